"""Exact comparison: kinds of answers and the policies, beside the public cases of verifier.jsonl."""

import re

import pytest

from lanpo_jax.rewards import compare

# Prediction, gold; settled without symbolic algebra.
RIGHT = r"""
5 | 05   -5 | −5   5. | 5   5.00 | 5   +5 | 5   0.0 | 0   -0 | 0   {5} | 5   $5$ | 5   \(5\) | 5   **5** | 5
\text{5} | 5   \mathbf{5} | 5   \color{red}{5} | 5   \underline{5} | 5   \,5\, | 5   1,000 | 1000   1 000 | 1000
10{,}000 | 10000   1,234.5 | 1234.5   10,000,000 | 10000000   1\,000 | 1000   .5 | \frac12   1/2 | \frac{1}{2}
2/4 | \frac{1}{2}   \frac{-1}{-2} | 0.5   0.333333333333333 | \frac13   -1./2 | -\frac12   3.14159265358979 | \pi
1.41421356237 | \sqrt2   1.5e3 | 1500   1.5 \times 10^{-3} | 0.0015   10^6 | 1000000   1 1/2 | 3/2   1\frac12 | 1.5
1½ | \frac{3}{2}   2\frac{1}{3} | \frac{7}{3}   2 \cdot \frac{1}{3} | \frac{2}{3}   3+4=7 | 7   50% | 0.5   0.5 | 50\%
50 | 50\%   50% | 50   \frac{1}{2} | 50\%   5 | 500\%   12.5 percent | 12.5\%   0\% | 0   \$5 | 5   $5 | 5
5 dollars | \$5.00   €5 | 5   -\$5 | -5   $-5 | -5   12cm | 12   12 inches | 12   12\,\mathrm{cm} | 12
12\text{ square centimeters} | 12\text{ cm}^2   12 \text{ cm}^{2} | 12   60^\circ | 60   60° | 60^{\circ}
60 degrees | 60   5 km/h | 5   5\text{ m/s}^2 | 5   5\text{ miles per hour} | 5   9 | 9 apples   9\ \text{apples} | 9
approximately 9 | 9   \approx 9 | 9   \frac{3\pi}{4} \text{ cm} | \frac{3\pi}4   (1,2) | (1, 2)   1,2 | (1,2)
(1,2) | 1,2   {1,2} | 2,1   \left\{1,2\right\} | 1,2   1 and 2 | 2,1   1 or 2 | 1, 2   1;2 | 1,2   x=1 or x=2 | 1,2
x=1, x=2 | 2,1   x=1,2 | 1,2   2, 3, and 5 | 2,3,5   (1,2),(3,4) | (3,4),(1,2)   12,34 | 12, 34   (3,500) | (3, 500)
x=5,y=3 | y=3,x=5   \langle 1,2\rangle | (1,2)   $1$, $2$ | 1, 2   \emptyset | \{\}   0 < x \leq 1 | (0,1]
x\ge 5 | [5,\infty)   5<x | (5,\infty)   2x>10 | x>5   -x<-5 | x>5   (-inf, 2) | (-\infty,2)   1>x>0 | (0,1)
x<2 \text{ or } x>3 | (-\infty,2) \cup (3,\infty)   +\infty | \infty   ∞ | \infty   x \in (0,1) | (0,1)   3 : 4 | 3:4
6:8 | 3:4   1:30 PM | 1:30   2516_{8} | 2516_8   \text{2A}_{16} | 2A_{16}   (A) | A   A) 42 | A   (A) 42 | A
\textbf{(A)}\ 42 | A   A: 42 | A   Option A | A   a | A   \text{(A)} | (A)   \text{A, B} | B, A   Even | \text{even}
the north | north   Monday. | Monday   \text{no solution} | No solution   Alice, Bob | \text{Bob and Alice}
4\sqrt{2} | \sqrt{32}   \frac{1}{\sqrt{2}} | \frac{\sqrt{2}}{2}   2\sqrt3 | √12   sqrt(2) | \sqrt{2}
\sqrt{3}+1 | 1+\sqrt{3}   \sqrt[3]{16} | 2\sqrt[3]{2}   2^{1/3} | \sqrt[3]{2}   \sqrt{-4} | 2i
\frac{1}{1+i} | \frac{1-i}{2}   \frac{1}{\sqrt{n}} | \sqrt{1/n}   \sqrt{2}\sqrt{3} | \sqrt{6}
\frac{1}{\sqrt{3}-1} | \frac{\sqrt{3}+1}{2}   \sqrt[4]{4} | \sqrt{2}   10x\sqrt{21x} | 10\sqrt{21x^3}
\frac{x^2-1}{x-1} | x+1   2(x+1) | 2x+2   ab | ba   a_2+a_1 | a_1+a_2   a/b | \frac{a}{b}   2π | 2\pi   2 pi | 2\pi
x**2 | x^2   y=3+2x | y=2x+3   2x+3 | y=2x+3   2x-y+3=0 | y=2x+3   f(x)=x^2 | x^2   x=2+3=5 | 5
\binom{6}{3} | \frac{40}{2}   \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{bmatrix} 1\\ 2\end{bmatrix}
(1,2) | \begin{pmatrix}1\\2\end{pmatrix}   ±2 | 2,-2   1\pm\sqrt{2} | 1-\sqrt{2}, 1+\sqrt{2}   x=\pm 2 | \pm 2
"""
WRONG = r"""
-5 | 5   1.000 | 1001   1,00 | 100   1,23 | 123   0.33 | \frac13   3.14 | \pi   22/7 | \pi   1.414 | \sqrt2   nine | 9
2^3 | 8   3+4 | 7   \sqrt{16} | 4   7! | 5040   \frac{4}{2} | 2   2\frac{1}{3} | \frac{2}{3}   5% | 500   0.5 | 50
50 | 0.5   5 cents | 5 dollars   12 \text{ m} | 12 \text{ cm}   3 hours and 20 minutes | 3   2x | 2   2 n | 2
2\pi | 2   2i | 2   x | 5   (2,1) | (1,2)   1, 2, 3 | 1, 2   1 | 1,2   1,1 | 1   (1,2),(3,4) | (1,2),(4,3)
(0,1) | [0,1]   x \geq 5 | (5,\infty)   x>5 | x<5   (-\infty,2]\cup(3,\infty) | (-\infty,2)\cup(3,\infty)   5 | \infty
1:30 PM | 1:30 AM   2516 | 2516_8   2516_{8} | 2516_{9}   B | A   A, B | A   A or B | A   AB | A   42 | A   Apple | A
odd | even   no | \text{Yes}   seat | east   None | 5   ? | 5   True | 1   x_1 | x_2   y=2x+4 | y=2x+3   x+y=5 | 5
\sqrt{x^3} | x   (x+1)^2 | x^2+2x+2   \begin{pmatrix} 1 & 2\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix}
1e400 | 5   1e-400 | 0   1e999999999 | 5   10^{999999999} | 5   9^{9^{9}} | 5   \frac{1}{0} | 5   0/0 | 0
5\times | 5   1, 2, \ldots, 5 | 5
"""


def pairs(table: str) -> list[tuple[str, str]]:
    """Cells are separated by two spaces or more."""
    cells = [c for line in table.strip().splitlines() for c in re.split(r"\s{2,}", line.strip())]
    return [tuple(part.strip() for part in cell.split(" | ")) for cell in cells if " | " in cell]


def test_the_tables_are_read():
    assert len(pairs(RIGHT)) > 150 and len(pairs(WRONG)) > 60
    assert all(len(p) == 2 for p in pairs(RIGHT) + pairs(WRONG))


@pytest.mark.parametrize(("prediction", "gold"), pairs(RIGHT))
def test_right(prediction, gold):
    assert compare.settle(prediction, gold)[0] == "right"


@pytest.mark.parametrize(("prediction", "gold"), pairs(WRONG))
def test_wrong(prediction, gold):
    assert compare.settle(prediction, gold)[0] == "wrong"


@pytest.mark.parametrize("gold", ["", " ", "$$", "\n"])
def test_nothing_equals_an_empty_gold(gold):
    for prediction in ("", " ", "5", gold):
        assert compare.settle(prediction, gold)[0] != "right"


@pytest.mark.parametrize("gold", ["5", r"\frac12", "A", "x+1", "(1,2)", "even"])
def test_nothing_equals_an_empty_answer(gold):
    for prediction in ("", " ", "$$", "{}", r"\text{}", ".", r"\ "):
        assert (compare.settle(prediction, gold) or ("open",))[0] != "right", prediction


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        (r"\sin 2x", r"2\sin x\cos x"),
        (r"\ln x^2", r"2 \ln x"),
        ("|x|", r"\sqrt{x^2}"),
        ("7:6", "7/6"),
        ("[x]", "[x]+1"),
    ],
)
def test_what_takes_symbolic_algebra_is_left_open(prediction, gold):
    assert compare.settle(prediction, gold) is None


def test_readable_golds():
    assert all(
        compare.readable(g)
        for g in ("5", r"\frac{\sqrt3}{2}", "A", "even", r"\sin x", "(1, x+1)", r"[0,\infty)", r"2\text{ cm}")
    )
    assert not any(compare.readable(g) for g in ("", r"\int x", r"\frac{1}{", r"\vec{a}", "5)("))
