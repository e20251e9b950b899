r"""Reads arithmetic in LaTeX, such as `\frac{3\sqrt{2}}{2}+x^2`, as an exact value of `algebra`, with `functions`."""

from __future__ import annotations

import re
from fractions import Fraction

from lanpo_jax.rewards import algebra, functions

MAX_LENGTH = 400  # characters
MAX_DEPTH = 24  # brackets in brackets
GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi pi rho sigma tau phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell hbar"
)
GREEK_LETTERS = frozenset(GREEK.split())
NUMBER = re.compile(r"\d+(?:\.\d+|\.(?=\s*[/*)}]))?|\.\d+")
COMMAND = re.compile(r"\\([A-Za-z]+) *")
SUBSCRIPT = re.compile(
    r"_ ?(?:\{ ?\\text ?\{ ?([A-Za-z0-9]{1,12}) ?\} ?\}|\{ ?(\\?[A-Za-z0-9,]{1,12}(?:[+-]\d)?) ?\}|"
    r"([A-Za-z0-9]|\\[A-Za-z]+))"
)
ARGUMENT = re.compile(r" ?\( ?([^()]*?) ?\)")
DERIVATIVE = re.compile(
    r" *\{ ?(?:d|\\partial ?)(?:\^ ?\{? ?\d ?\}?)? ?[\\A-Za-z]* ?\} *\{ ?(?:d|\\partial) ?[\\A-Za-z]"
)
PLAIN_FACTOR = re.compile(
    r"\d|\.\d|[A-Za-z]|\\(?:frac|sqrt)(?![a-z])|\\(?:" + "|".join(GREEK.split()) + r")(?![A-Za-z])"
)


def parse(text: str) -> algebra.Value:
    """The exact value of normalised LaTeX such as `\\frac{3\\sqrt{2}}{2}+x^2`. Raises algebra.Unsettled."""
    if len(text) > MAX_LENGTH:
        raise algebra.Unsettled("too long")
    reader = _Reader(text)
    value = reader.sum(0)
    if not reader.at_end():
        raise algebra.Unsettled(f"unexpected {reader.rest()[:10]!r}")
    return value


class _Reader:
    """Recursive descent over one text: sum, product, power, atom. Each method reads from the position on."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.bars = self.functions = 0  # |...| and functions that are open

    def rest(self) -> str:
        return self.text[self.position :]

    def at_end(self) -> bool:
        self._skip()
        return self.position >= len(self.text)

    def _skip(self) -> None:
        while self.text.startswith(" ", self.position):
            self.position += 1

    def _take(self, token: str) -> bool:
        self._skip()
        found = self.text.startswith(token, self.position)
        self.position += len(token) if found else 0
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip()
        match = pattern.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return match

    def sum(self, depth: int) -> algebra.Value:
        if depth > MAX_DEPTH:
            raise algebra.Unsettled("too deep")
        sign = -1 if self._take("-") else 1
        sign = -sign if self._take("-") else sign
        self._take("+")
        value = algebra.signed(self.product(depth), sign)
        while True:
            if self._take("+"):
                value = algebra.add(value, self.product(depth), 1)
            elif self._take("-"):
                value = algebra.add(value, self.product(depth), -1)
            else:
                return value

    def product(self, depth: int) -> algebra.Value:
        value, divided = self.power(depth), False
        while not self.at_end():
            if self._take("*"):
                sign = -1 if self._take("-") else 1
                value, divided = algebra.times(value, algebra.signed(self.power(depth), sign)), False
            elif self._take("/"):
                value, divided = algebra.divide(value, self.power(depth)), True
            elif self._ends_product():
                return value
            elif divided:
                raise algebra.Unsettled("1/2x can be read in two ways")
            else:
                value = algebra.times(value, self.power(depth))
        return value

    def _ends_product(self) -> bool:
        mark = self.text[self.position]
        closed = mark == "|" and self.bars > 0
        return closed or mark in "+-)}],=<>&:;!_^" or self.text.startswith((r"\rfloor", r"\rceil"), self.position)

    def power(self, depth: int) -> algebra.Value:
        value = self.atom(depth)
        while True:
            if self.functions and self._take(r"^\circ"):
                value = algebra.times(value, algebra.divide(algebra.symbol("\\pi"), algebra.constant(180)))
            elif self._take("^"):
                value = functions.power(value, self._argument(depth, signed=True))
            elif self._take("!"):
                if self._take("!"):
                    raise algebra.Unsettled("a double factorial")
                value = functions.factorial(value)
            else:
                return value

    def atom(self, depth: int) -> algebra.Value:
        if number := self._match(NUMBER):
            return self._mixed(_number(number.group()), number.group(), depth)
        if self._take("("):
            return self._closed(")", depth)
        if self._take("{"):
            return self._closed("}", depth)
        if self._take("|"):
            return self._absolute(depth)
        if command := self._match(COMMAND):
            return self._command(command[1], depth)
        letter = self.text[self.position : self.position + 1]
        if letter.isascii() and letter.isalpha():
            self.position += 1
            return self._symbol(letter)
        raise algebra.Unsettled(f"unexpected {letter!r}")

    def _mixed(self, value: algebra.Value, digits: str, depth: int) -> algebra.Value:
        """1\\frac{1}{2} is a sum, not a product."""
        if digits.isdigit() and re.match(r" *\\frac *(?:\{\d+\}|\d) *(?:\{\d+\}|\d)", self.rest()):
            return algebra.add(value, self.atom(depth), 1)
        if NUMBER.match(self.rest().lstrip()):
            raise algebra.Unsettled("two numbers side by side")
        return value

    def _closed(self, closing: str, depth: int) -> algebra.Value:
        value = self.sum(depth + 1)
        if not self._take(closing):
            raise algebra.Unsettled(f"no {closing}")
        return value

    def _absolute(self, depth: int) -> algebra.Value:
        self.bars += 1
        value = functions.absolute(self._closed("|", depth))
        self.bars -= 1
        return value

    def _command(self, name: str, depth: int) -> algebra.Value:
        if name == "frac":
            if DERIVATIVE.match(self.text, self.position):
                raise algebra.Unsettled("a derivative is no quotient")
            return algebra.divide(self._argument(depth), self._argument(depth))
        if name == "binom":
            return functions.binomial(self._argument(depth), self._argument(depth))
        if name in functions.NAMES:
            return self._function(name, depth)
        if name in ("lfloor", "lceil"):
            return functions.rounded(self._closed(rf"\r{name[1:]}", depth), up=name == "lceil")
        if name == "sqrt":
            degree = 2
            if index := self._match(re.compile(r"\[ ?([2-9]) ?\]")):
                degree = int(index[1])
            inside = self._closed(")", depth) if self._take("(") else self._argument(depth)
            return functions.power(inside, algebra.constant(Fraction(1, degree)))
        if name in GREEK_LETTERS:
            return self._symbol("\\" + name)
        raise algebra.Unsettled(f"\\{name} is not arithmetic")

    def _function(self, name: str, depth: int) -> algebra.Value:
        """\\sin^2 x, \\sin^{-1} x, \\log_2 8."""
        base, exponent = None, algebra.constant(1)
        if name == "log" and self._take("_"):
            base = functions.logarithm(self._argument(depth))
        if self._take("^"):
            exponent = self._argument(depth, signed=True)
        if algebra.rational(exponent) == -1:
            if name not in functions.INVERSE:
                raise algebra.Unsettled("an inverse or a reciprocal")
            name, exponent = functions.INVERSE[name], algebra.constant(1)
        self.functions += 1
        operand = self._operand(depth)
        self.functions -= 1
        value = functions.call(name, operand) if base is None else algebra.divide(functions.logarithm(operand), base)
        return functions.power(value, exponent)

    def _operand(self, depth: int) -> algebra.Value:
        """What a function applies to, where that is clear: brackets, or a product up to its first letter."""
        for opening, closing in (("(", ")"), ("{", "}"), ("|", "")):
            if self._take(opening):
                value = self._closed(closing, depth) if closing else self._absolute(depth)
                if self.rest().lstrip()[:1] in ("^", "!", "{"):
                    raise algebra.Unsettled("an operand that may end here or not")
                return value
        start, value, letters = self.position, algebra.constant(1), 0
        while match := PLAIN_FACTOR.match(self.text, self.position):
            if letters:
                raise algebra.Unsettled("an operand that may end here or not")
            letters += match.group() not in ("\\pi", "\\frac", "\\sqrt") and not match.group()[-1].isdigit()
            value = algebra.times(value, self.power(depth + 1))
            self._skip()
        if self.position == start or self.rest()[:1] in ("(", "/", "*", "{", "|"):
            raise algebra.Unsettled("an operand that may end here or not")
        return value

    def _argument(self, depth: int, signed: bool = False) -> algebra.Value:
        """What a TeX command takes: a group in braces, or a single digit, letter or command."""
        if self._take("{"):
            return self._closed("}", depth)
        sign = -1 if signed and self._take("-") else 1
        if signed and self._take("("):
            return self._closed(")", depth)
        if digits := self._match(re.compile(r"\d+(?![.\d])" if signed else r"\d")):
            return algebra.signed(_number(digits.group()), sign)
        if self.rest()[:1] in ("", "+", "-", "^", "_", "(", ")", "}"):
            raise algebra.Unsettled("an argument is missing")
        return algebra.signed(self.atom(depth + 1) if depth < MAX_DEPTH else self.sum(depth + 1), sign)

    def _is_call(self, name: str) -> bool:
        """Whether brackets after a letter surely hold an argument: x(0) and f(a+b), but not h(a+b)."""
        argument = ARGUMENT.match(self.text, self.position)
        if not argument or name in ("e", "i", "\\pi"):
            return False
        return bool(NUMBER.fullmatch(argument[1].lstrip("-"))) or (
            name in ("f", "g", "F", "G") and len(argument[1]) > 1
        )

    def _symbol(self, name: str) -> algebra.Value:
        if subscript := self._match(SUBSCRIPT):
            name += "_" + (subscript[1] or subscript[2] or subscript[3])
        if self._is_call(name):
            raise algebra.Unsettled("a function's value is no product")
        return algebra.symbol(name)


def _number(digits: str) -> algebra.Value:
    if len(digits) > 2000:  # beyond it Python's conversion is slow and, from 4,300 digits on, refused
        raise algebra.Unsettled("too many digits")
    return algebra.constant(Fraction(digits.removesuffix(".")))
