"""Kinds of faults that public verifiers were reported for, each in cases of our own.

Golds and answers of the same value in other spellings, answers that differ in one thing, and places of the answer.
"""

import pytest

from lanpo_jax.rewards import math

# Answer | gold, one a line.
RIGHT = r"""
101_{\text{two}} | 101_2
2516 \text{ (base 8)} | 2516_8
2516 \text{ base } 8 | 2516_8
2516 \text{ in base } 8 | 2516_{8}
2516_8 | 2516_{\text{eight}}
x \equiv 5 \pmod 7 | 5
12 \pmod 7 | 5 \pmod 7
11,\! 111,\! 111,\! 100 | 11111111100
11111111100 | 11,\! 111,\! 111,\! 100
1,234,567 | 1234567
1'234 | 1234
0.\overline{3} | \frac{1}{3}
0.1\overline{6} | \frac16
0.\overline{142857} | 1/7
0.333... | \frac13
3.0 \times 10^8 | 300000000
3e8 | 3\times10^8
3 \times 10^{-2} | 0.03
1.5E3 | 1500
2.5\cdot10^3 | 2500
\frac 1 2 | \frac{1}{2}
\frac12 | 0.5
\dfrac{1}2 | 1/2
\tfrac12 | 1/2
{1 \over 2} | \frac12
1 / 2 | \frac{1}{2}
(1)/(2) | \frac12
-\frac{3}{4} | \frac{3}{-4}
5\frac{1}{4} | 5.25
5 1/4 | \frac{21}{4}
5 \frac14 | 21/4
-1\frac{1}{2} | -\frac{3}{2}
5-1/4 | \frac{19}{4}
x=5 | 5
x = 5. | 5
x=\frac{1}{2} | 0.5
n=5 | n = 5
x\in\{1,2\} | \{1,2\}
x \in \{1, 2\} | 1,2
\{x=1, x=2\} | 1,2
x_1=1, x_2=2 | 1,2
x_1 = 1 \text{ and } x_2 = 2 | \{1,2\}
x=1 \lor x=2 | 1,2
\pm\sqrt{2} | \{\sqrt2,-\sqrt2\}
x = \pm 5 | 5, -5
2\pm\sqrt{3} | 2+\sqrt3, 2-\sqrt3
\frac{1 \pm \sqrt{5}}{2} | \frac{1+\sqrt{5}}{2}, \frac{1-\sqrt{5}}{2}
\{2,1\} | \{1,2\}
(1, 2) | (1,2)
(1;2) | (1,2)
(x,y)=(1,2) | (1,2)
x=1, y=2 | (x,y)=(1,2)
(a,b,c) = (1,2,3) | (1,2,3)
x=1,y=2 | (1,2)
(\frac12, 3) | (0.5,3.0)
[0, \infty) | [0,+\infty)
x \ge 0 | [0,\infty)
x\geqslant 0 | [0,\infty)
0 \le x | x\ge 0
-1 < x < 2 | (-1,2)
]0,1[ | (0,1)
[0,1[ | [0,1)
(-\infty, 0) \cup (0, \infty) | x \neq 0
x \neq 0 | (-\infty, 0) \cup (0, \infty)
\mathbb{R} | (-\infty,\infty)
\mathbb{R}\setminus\{0\} | (-\infty,0)\cup(0,\infty)
\text{all real numbers} | \mathbb{R}
x<-1 \text{ or } x>1 | (-\infty,-1)\cup(1,\infty)
(-\infty,-1)\cup(1,\infty) | x < -1 \text{ or } x > 1
\infty | +\infty
\text{(C)} | C
(C) | \text{C}
C. 42 | C
\text{(C) } 42 | C
\mathrm{C} | C
\textbf{C} | (C)
C) 42 | C
101_2 | 101_{2}
(101)_2 | 101_2
12:30 | 12:30
12:30 \text{ p.m.} | 12:30 PM
2:3 | 4:6
\begin{pmatrix}1&0\\0&1\end{pmatrix} | \begin{bmatrix}1&0\\0&1\end{bmatrix}
\begin{pmatrix} 1 & 0 \\ 0 & 1 \\ \end{pmatrix} | \left(\begin{array}{cc}1&0\\0&1\end{array}\right)
\frac12\begin{pmatrix}2\\4\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix}
-\begin{pmatrix}2\\4\end{pmatrix} | \begin{pmatrix}-2\\-4\end{pmatrix}
2(1,2) | (2,4)
\langle 1,2,3\rangle | (1,2,3)
3+4i | 4i+3
i(3-4i) | 4+3i
1+i\sqrt{3} | 1+\sqrt{3}i
-0 | 0
0.0 | -0
−5 | -5
–5 | -5
５ | 5
½ | 0.5
x² | x^2
√2 | \sqrt{2}
2·3·x | 6x
π | \pi
90° | 90^\circ
90^{\circ} | 90
90 degrees | 90^\circ
5\text{ cm} | 5
5\,\text{cm}^2 | 5
\$5.00 | 5
5 \text{ dollars} | \$5
£5 | 5
25\% | 25
0.25 | 25\%
25 percent | 25\%
007 | 7
1{,}000 | 1000
(x-1)(x+2) | x^2+x-2
x(x+1) | x^2+x
-(1-x) | x-1
\frac{x^2-1}{x+1} | x-1
\sin^2 x | 1-\cos^2 x
\frac{1-\cos 2x}{2} | \sin^2 x
2\sin x\cos x | \sin(2x)
\log_2 8 | \frac{6}{2}
\ln(e^2 x) | 2+\ln x
\ln\sqrt{2} | \frac{1}{2}\ln 2
\log_{10} 2 | \frac{\ln 2}{\ln 10}
\log_4 3 | \frac12\log_2 3
2^{n}\cdot 2 | 2^{n+1}
(n+1)! | (n+1)n!
\sqrt{3+2\sqrt2} | 1+\sqrt2
\frac{\sqrt{6}}{3} | \sqrt{\frac{2}{3}}
\frac{2}{\sqrt{3}} | \frac{2\sqrt{3}}{3}
\sqrt[3]{54} | 3\sqrt[3]{2}
\cos 60^\circ | \frac{1}{2}
\arctan 1 | \frac{\pi}{4}
y = 2x+1 | 2x - y + 1 = 0
2x+1 | y=2x+1
x^2+y^2=25 | y^2+x^2-25=0
f(x)=2x | 2x
a=b | b=a
5=x | x=5
5=x | 5
1,2,3,\ldots,10 | 1,2,3,\dots,10
1 \text{ and } 2 | 1,2
1\text{ or }2 | 1,2
1, 2, \text{ and } 3 | 3,2,1
\text{Yes} | yes
\text{Yes}. | Yes
\text{True} | True
\text{even function} | even function
twolines | \text{two lines}
\emptyset | \varnothing
\text{no solution} | \text{No solutions}
\text{none} | None
\overline{AB} | AB
\triangle ABC | \triangle{ABC}
\boxed{5} | 5
\displaystyle\frac{1}{2} | \frac12
\left(\frac{1}{2}\right) | \frac{1}{2}
\left[0, 1\right] | [0,1]
\bigl(1,2\bigr) | (1,2)
\mathbf{i}+2\mathbf{j} | \mathbf{i} + 2\mathbf{j}
10\% \text{ off} | 10\%
\approx 3.14 | 3.14
3.14 | \approx 3.14
3.1416 | 3.14160
1000000000000000000000000000000001 | 1000000000000000000000000000000001
10^{30} | 1000000000000000000000000000000
2^{10} | 2^{10}
1024 | 2^{10}
k\pi, k\in\mathbb{Z} | k\pi \text{ for } k \in \mathbb{Z}
\frac{\pi}{2}+2k\pi | 2\pi k + \frac{\pi}{2}
\text{The answer is } 5 | 5
5 \text{ (five)} | 5
five | \text{five}
5 \quad | 5
5~\text{km} | 5
5\text{km/h} | 5 \text{ km/h}
5\times 10^3\text{ m} | 5000
\{(1,2),(3,4)\} | (3,4),(1,2)
(1,2), (3,4) | \{(1,2),(3,4)\}
(1,2) \text{ and } (3,4) | (1,2),(3,4)
\text{(1,2)} | (1,2)
\frac{a}{b} | a/b
\frac{1}{2}x | \frac{x}{2}
0.5x | \frac{x}{2}
x^{1/2} | \sqrt{x}
x^{-1} | \frac{1}{x}
e^{-x} | \frac{1}{e^x}
\exp(2) | e^2
|x-1| | |1-x|
\lfloor x\rfloor | \lfloor x \rfloor
n(n+1)/2 | \frac{n(n+1)}{2}
\frac{n^2+n}{2} | \binom{n+1}{2}
\tan^{-1}(2) | \arctan 2
\cot x | \frac{1}{\tan x}
y=-\frac12x+\frac34 | 2x+4y-3=0
y = -1/2*x + 3/4 | 2x+4y-3=0
1 - \frac{1}{\mathrm{e}} | 1-e^{-1}
\text{(1) and (2)} | \text{(2) and (1)}
5 \pmod{7} | 5 \pmod 7
x \equiv 5 \pmod{7} | x\equiv 5 \pmod 7
\frac{x}{7}+\frac{2}{7} | \frac{x+2}{7}
(1,4.5) | (1,\frac{9}{2})
\begin{pmatrix}-\frac74&-2\\4&\frac14\end{pmatrix} | (\begin{pmatrix}-\frac{7}{4}&-2\\4&\frac{1}{4}\\\end{pmatrix})
\begin{pmatrix}\frac{1}{3x^{2/3}}&0\\0&1\end{pmatrix} | \begin{pmatrix}\frac{1}{3\sqrt[3]{x}^2}&0\\0&1\end{pmatrix}
-\frac{8x^2}{9(x^2-2)^{5/3}}+\frac{2}{3(x^2-2)^{2/3}} | -\frac{2(x^2+6)}{9(x^2-2)\sqrt[3]{x^2-2}^2}
f(x) = 0 | f(x)=0
0.5 | .5
5,6 | \{6, 5\}
6 \text{ and } 5 | 5,6
\mathrm{Monday} | Monday
\textit{Monday} | monday
1 - i | 1-i
\dfrac{\sqrt{3}}{3} | \frac{1}{\sqrt3}
\frac{\sqrt{2}}{2} \text{ cm} | \frac{1}{\sqrt{2}}
x\in(-\infty,1]\cup[3,\infty) | (-\infty, 1] \cup [3, \infty)
(-\infty,1]\cup[3,+\infty) | x\le 1 \text{ or } x \ge 3
x \le 1, x \ge 3 | (-\infty,1]\cup[3,\infty)
x\in\mathbb{R} | \mathbb{R}
x \in [1, 2) | 1 \le x < 2
n \ge 3 | n\geq 3
\{x \mid x > 2\} | (2,\infty)
\{x : x > 2\} | x>2
\{x \in \mathbb{R} : x > 2\} | (2,\infty)
k=-1 | -1
\lambda = 2 | 2
m\angle A = 30^\circ | 30
\angle ABC = 30^\circ | 30^\circ
AB = 5 | 5
P(A) = \frac{1}{2} | 0.5
\text{Area} = 12 | 12
S_{10} = 55 | 55
\text{perimeter} = 12\text{ cm} | 12
a = 1, b = 2, c = 3 | (1,2,3)
3x^2 + 2x + C | 3x^2+2x+C
5 \text{ people} | 5
5 \text{ hours} | 5 \text{ hrs}
5 hours | 5
5\text{ h} | 5 \text{ hours}
12 \text{ square units} | 12
12\text{ units}^2 | 12
36\pi \text{ cubic inches} | 36\pi
40^{\circ}\text{C} | 40
40°C | 40^\circ
3.5\times10^{-4}\,\text{m/s} | 0.00035
120\% | 1.2
\frac{1}{3}\% | \frac{1}{3}\%
¥500 | 500
500\text{ yen} | 500
Rs. 500 | 500
\$1.50 | 1.5
150 \text{ cents} | 150
7 \frac{1}{2} | 7.5
7\tfrac{1}{2} | \frac{15}{2}
-7\frac12 | -7.5
\frac{2}{3}x | \frac{2x}{3}
2x/3 | \frac{2}{3}x
sqrt(3)/2 | \frac{\sqrt{3}}{2}
sqrt3/2 | \frac{\sqrt{3}}{2}
(1+sqrt(5))/2 | \frac{1+\sqrt{5}}{2}
pi/6 | \frac{\pi}{6}
2*pi | 2\pi
x^2 + 3*x | x^2+3x
e^(2x) | e^{2x}
2^(n+1) | 2^{n+1}
ln(2) | \ln 2
log(2) | \log 2
sin(x) | \sin x
1/(x+1) | \frac{1}{x+1}
infinity | \infty
\text{July 4} | July 4
1st | 1
21^{\text{st}} | 21
\text{third} | third
2^{\text{nd}} | 2
"""
WRONG = r"""
101_{\text{three}} | 101_2
2516 \text{ (base 9)} | 2516_8
12 \pmod 7 | 5
(A) \text{ or } (B) | A
(A), (B) | A
(A) and B | A
A. or B. | A
(A)+1 | A
0 | I(0)
I(0)0 | I(0)
f(x)+f(1) | f(x+1)
f(x+1) | f(x)+f(1)
\frac{v}{t} | \frac{dv}{dt}
- | 16.3
1.234.567 | 1234567.5
12,34 | 1234
0.\overline{3} | 0.3
0.333 | \frac13
x=1 | 1,2
(2,1) | (1,2)
(0,1) | [0,1]
(0,1] | [0,1)
x>1 | x\ge 1
-\infty | \infty
D | C
\text{None} | C
C, D | C
101_2 | 101_3
12:30 | 12:03
2:3 | 3:2
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&3\\2&4\end{pmatrix}
3-4i | 3+4i
25 | 0.25
2500 | 25\%
y=2x+1 | y=2x-1
1,2,\ldots,9 | 1,2,\ldots,10
\text{No} | Yes
3.1416 | 3.1415
1000000000000000000000000000000002 | 1000000000000000000000000000000001
2^{10} | 1024
\frac{1}{2}, \frac{1}{3} | \frac{1}{2}
1/2 or 1/3 | 1/2
\text{yes and no} | yes
\text{yes or no} | yes
\text{not } 5 | 5
not 5 | 5
\neq 5 | 5
\text{either } 5 \text{ or } 6 | 5
\text{between } 5 \text{ and } 6 | 5
\text{at least } 5 | 5
\text{more than } 5 | 5
>5 | 5
\geq 5 | 5
5\ldots | 5
5x | 5
5 + C | 5
5i | 5
|5| | 5
\sqrt{25} | 5
1e400 | \infty
\infty | 10^{100}
0.9999999999999999 | 1
3.14159265358 | 3.14159265359
\frac{22}{7} | \pi
\{1,2,3\} | \{1,2\}
(1,2,3) | (1,2)
\{1\} | 2
\emptyset | 0
0 | \emptyset
\{0\} | \emptyset
\text{None} | 0
AC | A
\text{A or C} | A
ABCDE | A
A\ B | A
\text{A, B, C, D} | A
f(x) = x | g(x)=x^2
x=2 | y=3
12 | 1, 2
1,2 | 12
(1,200) | 1200
1,2 | 1.2
1.2.3 | 1.23
5\text{ cm} | 5\text{ m}
60 \text{ minutes} | 60 \text{ seconds}
\frac{1}{2} | \frac{2}{1}
\frac{0}{0} | 0
\frac{1}{0} | \infty
\text{undefined} | 0
\text{five} | 5
(x+1)^2 | x^2+1
\sqrt{a^2+b^2} | a+b
\sin(x+y) | \sin x+\sin y
\ln(x+y) | \ln x + \ln y
\frac{a}{b+c} | \frac{a}{b}+\frac{a}{c}
a^{b^c} | (a^b)^c
-x^2 | (-x)^2
e^{x+1} | e^x+1
x^{2y} | x^2y
\log_2 x | \log_3 x
10^{-3} | -10^3
3\frac{1}{2} | \frac{3}{2}
x^2+y^2=4 | x^2+y^2=2
x+y=1 | x+y=2
y>x | y<x
x\ge 2 | x>2
1:2:3 | 1:2
1:30 | 13:0
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | (1,2,3,4)
1,2,\ldots | 1,2,3
1 + \frac{1}{\mathrm{e}} | 1 - \frac{1}{\mathrm{e}}
\frac{1}{2006!} | \frac{1}{2004!}
\text{(1) and (2)} | \text{(1) and (3)}
19, 46, 82 | 21, 36, 82
2021 | \pm 2021
x \equiv 5 \pmod{7} | x\equiv 5 \pmod 8
1:4:9:\ldots | 1:2:3:\ldots
\frac{100}{3} | 33.3
"""
STATED = [
    ("#### 42<|im_end|>", "42"),
    ("The answer is 42<|endoftext|>", "42"),
    ("\\boxed{42}</s>", "42"),
    ("The answer is 42.</s>", "42"),
    ("The answer is: \n\n42", "42"),
    ("Answer:\n42", "42"),
    ("**Final Answer:** 42", "42"),
    ("**Final Answer**: $42$", "42"),
    ("### Answer: 42", "42"),
    ("ANSWER: 42", "42"),
    ("answer = 42", "42"),
    ("The answer is therefore 42.", "42"),
    ("The final answer is thus 42", "42"),
    ("The correct answer is option B.", "B"),
    ("The correct answer is (B).", "B"),
    ("So the correct option is B", "B"),
    ("The answer is 5. Wait, no. The answer is 7.", "7"),
    ("\\boxed{5} apples", "5"),
    ("\\boxed{5}\\text{ apples}", "5"),
    ("$\\boxed{\\$5}$", "5"),
    ("\\boxed{\\text{Answer: }5}", "5"),
    ("\\boxed{x=5}", "5"),
    ("</think>\\boxed{5}", "5"),
    ("<think>a</think> The answer is 5.", "5"),
    ("<answer>5</answer>", "5"),
    ("<answer>\n5\n</answer>", "5"),
    ("<Answer>5</Answer>", "5"),
    ("\\boxed{ 5 }", "5"),
    ("\\boxed {5}", "5"),
    ("\\boxed 5", "5"),
    ("\\boxed{{5}}", "5"),
    ("\\boxed{\\mathbf{5}}", "5"),
    ("####42", "42"),
    ("#### $42", "42"),
    ("#### 42 apples", "42"),
    ("#### -42", "-42"),
    ("#### 1,234.00", "1234"),
    ("#### **42**", "42"),
    ("#### \\boxed{42}", "42"),
    ("The answer is $1,234.56$.", "1234.56"),
    ("the answer is 50%.", "50"),
    ("the answer is 50 percent", "50"),
    ("The answer is 3 1/2", "3.5"),
    ("The answer is 12:30 PM.", "12:30"),
    ("The answer is 2^{10}.", "2^{10}"),
    ("The answer is x = 5, y = 3.", "x=5,y=3"),
    ("The answer is (3, 4).", "(3,4)"),
    ("The answer is {1, 2}.", "1,2"),
    ("The answer is [1, 2].", "[1,2]"),
    ("The answer is 5 because 2+3=5.", "5"),
    ("The answer is 5 (five).", "5"),
    ("The answer is 10 - 5 = 5.", "5"),
    ("The answer is 10-5=5", "5"),
    ("Answer: 5 Explanation: 2+3", "5"),
    ("Answer: A. 42", "A"),
    ("Answer: (A) 42", "A"),
    ("Answer: A", "A"),
    ("Final Answer: The answer is A.", "A"),
    ("The answer is $\\frac{1}{2}$ or 0.5.", "0.5"),
    ("The answer is $5$ dollars", "5"),
    ("The answer is \\$5.", "5"),
    ("The answer is €5.", "5"),
    ("The answer is about 5.", "5"),
    ("The answer is approximately 3.14.", "3.14"),
    ("Thus, the answer is $\\boxed{5}$ units.", "5"),
    ("答案是 42", "42"),
    ("答案：42", "42"),
    ("The answer is：42", "42"),
    ("1. The answer is 42.\n2. Note: 17.", "42"),
    ("The answer is 42\n\nHuman: what is 17?", "42"),
    ("\\boxed{A}\\boxed{B}", "B"),
    ("The answer is 1e3", "1000"),
    ("The answer is 1/2.", "\\frac12"),
    ("The answer is -1/2.", "-\\frac12"),
    ("The answer is − 5", "-5"),
    ("\\boxed{0.5=\\frac{1}{2}}", "\\frac12"),
    ("\\boxed{\\frac12=0.5}", "0.5"),
    ("\\boxed{\\frac{10}{2}=5}", "5"),
    ("\\boxed{5.}", "5"),
    ("\\boxed{5,}", "5"),
    ("\\boxed{5}!", "5"),
    ("\\boxed{5}%", "5"),
    ("\\boxed{50}\\%", "50\\%"),
    ("\\boxed{\\approx 5}", "5"),
    ("\\[ \\boxed{5} \\]", "5"),
    ("\\boxed{\\left. 5 \\right.}", "5"),
    ("\\boxed{\\large 5}", "5"),
    ("\\boxed{\\small{5}}", "5"),
    ("\\boxed{\\huge\\textbf{5}}", "5"),
    ("$$\\boxed{5}.$$", "5"),
    ("\\boxed{5\\,}", "5"),
    ("\\boxed{\\textcolor{red}{5}}", "5"),
    ("\\boxed{\\colorbox{yellow}{5}}", "5"),
    ("\\boxed{\\tag{1} 5}", "5"),
    ("\\boxed{5 \\quad \\text{(B)}}", "5"),
    ("\\boxed{(B)\\ 5}", "B"),
    ("\\boxed{\\textbf{(B) }5}", "B"),
    ("\\framebox{5}", "5"),
    ("\\fbox{$5$}", "5"),
    ("\\boxed{$5$}", "5"),
    ("\\boxed{\\(5\\)}", "5"),
    ("\\boxed{5\\\\}", "5"),
    ("\\boxed{5\\text{.}}", "5"),
    ("\\boxed{\\ 5}", "5"),
    ("\\boxed{5\\ }", "5"),
]
NOT_STATED = [
    ("The answer is not 5, it is 7.", "5"),
    ("The answer is not 5.", "5"),
    ("The answer is 5. Wait, no. The answer is 7.", "5"),
    ("\\boxed{5 \\text{ or } 6}", "5"),
    ("\\boxed{5} or \\boxed{6}", "5"),
    ("\\boxed{5}, \\boxed{6}", "5, 6"),
    ("<think>\\boxed{5}</think>", "5"),
    ("<think> long \\boxed{5}", "5"),
    ("<answer>\\n5\\n</answer>", "5"),
    ("<answer>5", "5"),
    ("<answer></answer>", "5"),
    ("\\boxed{\\frac{1}{2}", "\\frac12"),
    ("boxed{5}", "5"),
    ("\\boxed{\\begin{cases}5\\end{cases}}", "5"),
    ("The answer is 1.5 million", "1500000"),
    ("The answer is one hundred", "100"),
    ("The answer is 5 + 5.", "5"),
    ("La respuesta es 42", "42"),
    ("The answer is 42.\nQuestion: next? The answer is 17.", "42"),
    ("\\boxed{5!}", "5"),
    ("\\boxed{>5}", "5"),
    ("\\boxed{5+}", "5"),
    ("\\boxed{?}", "5"),
    ("\\boxed{\\text{cannot be determined}}", "5"),
    ("\\boxed{answer}", "5"),
    ("\\boxed{\\boxed{}}", "5"),
]


def pairs(table: str) -> list[tuple[str, str]]:
    return [tuple(line.rsplit(" | ", 1)) for line in table.strip().splitlines()]


@pytest.mark.parametrize(("answer", "gold"), pairs(RIGHT))
def test_right(answer, gold):
    assert math.check(rf"So \boxed{{{answer}}}.", gold).verdict == "right"


@pytest.mark.parametrize(("answer", "gold"), pairs(WRONG))
def test_not_right(answer, gold):
    assert math.check(rf"So \boxed{{{answer}}}.", gold).verdict != "right"


@pytest.mark.parametrize(("text", "gold"), STATED)
def test_stated(text, gold):
    assert math.check(text, gold).verdict == "right"


@pytest.mark.parametrize(("text", "gold"), NOT_STATED)
def test_not_stated(text, gold):
    assert math.check(text, gold).verdict != "right"
