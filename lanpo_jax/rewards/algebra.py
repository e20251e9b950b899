r"""Exact values without symbolic algebra: quotients of polynomials over Q with letters, \pi, e, i and real roots.

A polynomial is a dict from monomial to Fraction; a monomial is a sorted tuple of (atom, exponent). An atom is a letter,
"i", or "#p" for a prime p, whose exponent lies strictly between 0 and 1. Products of such prime roots are linearly
independent over Q (Besicovitch 1940), so this form is unique and the polynomials form an integral domain: a/b equals
c/d exactly if a·d equals b·c. Letters under a root are taken as positive.

Everything is bounded: what is too large, too deep or not of this kind raises `Unsettled` and is left to others. Nothing
is evaluated but +, -, *, / and bounded powers, roots, factorials and binomials.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

Monomial = tuple[tuple[str, Fraction], ...]
Polynomial = dict[Monomial, Fraction]

MAX_TERMS = 200
MAX_WORK = 1000  # products of terms in one multiplication
MAX_BITS = 20_000  # of a numerator or denominator; shared by the terms of a product
MAX_RADICAND = 10**9  # is factored by trial division
CONSTANTS = {"\\pi": math.pi, "e": math.e}


class Unsettled(ValueError):
    """The text is no value of this kind, or one beyond the bounds."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A quotient of two polynomials, the lower one not zero."""

    top: Polynomial
    bottom: Polynomial

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return False
        if self.bottom == other.bottom:
            return self.top == other.top
        return _times(self.top, other.bottom) == _times(other.top, self.bottom)

    def __hash__(self) -> int:  # equal values may be written with other polynomials
        return 0


def rational(value: Value) -> Fraction | None:
    """The value as a Fraction if it is a rational number."""
    if len(value.top) > 1 and len(value.bottom) == 1:  # the usual case of a polynomial, without multiplying
        return None
    return ratio(value, constant(1)) if value.top else Fraction(0)


def ratio(a: Value, b: Value) -> Fraction | None:
    """c if a = c·b for a rational number c other than 0 (then a = 0 and b = 0 are one equation), else None."""
    left, right = _times(a.top, b.bottom), _times(b.top, a.bottom)
    if not left or set(left) != set(right):
        return None
    factors = {left[m] / right[m] for m in left}
    return factors.pop() if len(factors) == 1 else None


def solve(value: Value) -> tuple[Value, bool] | None:
    """(root, whether the value rises) of c·x + d with one letter x, rational c and a real constant d, else None."""
    letters = [m for m in value.top if any(atom[0] != "#" and atom not in CONSTANTS for atom, _ in m)]
    below = rational(Value(value.bottom, _poly(Fraction(1))))
    if len(letters) != 1 or below is None or len(letters[0]) != 1 or letters[0][0][1] != 1 or letters[0][0][0] == "i":
        return None
    if letters[0][0][0].endswith(")"):  # a function, see `functions`
        return None
    slope = value.top[letters[0]]
    rest = {m: -c / slope for m, c in value.top.items() if m != letters[0]}
    return Value(rest, _poly(Fraction(1))), slope / below > 0


def constant(number: int | Fraction) -> Value:
    """A rational number as a value."""
    return Value(_poly(Fraction(number)), _poly(Fraction(1)))


def symbol(name: str) -> Value:
    """A letter as a value; "i" is the imaginary unit, "e" and "\\\\pi" are the constants."""
    return Value({((name, Fraction(1)),): Fraction(1)}, _poly(Fraction(1)))


def minus(a: Value, b: Value) -> Value:
    """a - b."""
    return add(a, b, -1)


def times(a: Value, b: Value) -> Value:
    """a·b."""
    return Value(_times(a.top, b.top), _times(a.bottom, b.bottom))


def _poly(number: Fraction) -> Polynomial:
    return {(): number} if number else {}


def _bounded(polynomial: Polynomial) -> Polynomial:
    if len(polynomial) > MAX_TERMS:
        raise Unsettled("too many terms")
    if polynomial and max(map(_bits, polynomial.values())) > MAX_BITS // len(polynomial):
        raise Unsettled("too large")
    return polynomial


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    if len(a) * len(b) > MAX_WORK:
        raise Unsettled("too many terms")
    result: Polynomial = {}
    for first, x in a.items():
        for second, y in b.items():
            factor, monomial = _join(first, second)
            result[monomial] = result.get(monomial, Fraction(0)) + factor * x * y
    return _bounded({m: c for m, c in result.items() if c})


def _join(first: Monomial, second: Monomial) -> tuple[Fraction, Monomial]:
    """Product of monomials as (factor, monomial)."""
    if not first or not second:
        return Fraction(1), first or second
    powers = dict(first)
    for atom, exponent in second:
        powers[atom] = powers.get(atom, Fraction(0)) + exponent
    return _reduce(powers)


def _reduce(powers: dict[str, Fraction]) -> tuple[Fraction, Monomial]:
    """Powers of atoms as (factor, monomial): i·i = -1, and whole powers of primes go into the factor."""
    factor = Fraction(1)
    for atom, exponent in powers.items():
        if atom == "i" and exponent >= 2:
            powers[atom], factor = exponent - 2, -factor
        elif atom[0] == "#" and exponent >= 1:
            powers[atom], factor = exponent - 1, factor * int(atom[1:])
    return factor, tuple(sorted((atom, e) for atom, e in powers.items() if e))


def add(a: Value, b: Value, sign: int) -> Value:
    if a.bottom == b.bottom:
        left, right, bottom = a.top, b.top, a.bottom
    else:
        left, right, bottom = _times(a.top, b.bottom), _times(b.top, a.bottom), _times(a.bottom, b.bottom)
    top = dict(left)
    for monomial, number in right.items():
        top[monomial] = top.get(monomial, Fraction(0)) + sign * number
    return Value(_bounded({m: c for m, c in top.items() if c}), bottom)


def signed(value: Value, sign: int) -> Value:
    return value if sign == 1 else Value({m: -c for m, c in value.top.items()}, value.bottom)


def divide(a: Value, b: Value) -> Value:
    if not b.top:
        raise Unsettled("division by zero")
    if set(b.top) == {()} and set(b.bottom) == {()}:  # keep rational numbers in the coefficients
        factor = b.bottom[()] / b.top[()]
        return Value(_bounded({m: c * factor for m, c in a.top.items()}), a.bottom)
    return Value(_times(a.top, b.bottom), _times(a.bottom, b.top))


def _integer(value: Value) -> int | None:
    number = rational(value)
    return number.numerator if number is not None and number.denominator == 1 else None


def power(value: Value, exponent: Value) -> Value:
    number = rational(exponent)
    if number is None or number.denominator > 9:
        raise Unsettled("an exponent is no small fraction")
    if number.denominator > 1:
        value = Value(_root(value.top, number.denominator), _root(value.bottom, number.denominator))
    count = abs(number.numerator)
    if number < 0:
        value = divide(constant(1), value)
    if count > 5000 or (count > 30 and max(len(value.top), len(value.bottom)) > 1):
        raise Unsettled("too large a power")
    result = constant(1)
    while count:  # every product is bounded, so squaring stops early
        result = times(result, value) if count & 1 else result
        count >>= 1
        value = times(value, value) if count else value
    return result


def factorial(value: Value) -> Value:
    number = _integer(value)
    if number is None or not 0 <= number <= 200:
        raise Unsettled("too large a factorial, or none")
    return constant(math.factorial(number))


def binomial(above: Value, below: Value) -> Value:
    n, k = _integer(above), _integer(below)
    if n is None or k is None or not 0 <= k <= n <= 500:
        raise Unsettled("too large a binomial, or none")
    return constant(math.comb(n, k))


def _root(polynomial: Polynomial, degree: int) -> Polynomial:
    """The real root of a single term, or i times it for the square root of a negative number."""
    if not polynomial:
        return {}
    if len(polynomial) > 1:
        raise Unsettled("root of a sum")
    ((monomial, number),) = polynomial.items()
    atoms = {atom: exponent / degree for atom, exponent in monomial}
    if any(atom == "i" or (e.denominator == 1 and degree % 2 == 0) for atom, e in atoms.items()):
        raise Unsettled("a root with a sign that is not known")  # √(x²) is |x|
    if number < 0 and (degree > 2 or monomial):
        raise Unsettled("root of a negative number")
    if number < 0:
        atoms["i"] = Fraction(1)
    factor = Fraction(1)
    for part, sign in ((abs(number.numerator), 1), (number.denominator, -1)):
        whole, rest = _prime_powers(part, degree)
        factor *= Fraction(whole) ** sign
        for prime, count in rest.items():
            # A root below the line is brought above it: p^(-k/d) = p^(1 - k/d) / p.
            power = Fraction(sign * count, degree) + (sign < 0)
            atoms[f"#{prime}"] = atoms.get(f"#{prime}", Fraction(0)) + power
            factor *= Fraction(1, prime) if sign < 0 else 1
    scale, reduced = _reduce(atoms)
    return {reduced: factor * scale}


def _prime_powers(number: int, degree: int) -> tuple[int, dict[int, int]]:
    """(a, {p: k}) with number = a^degree · Π p^k and 0 < k < degree."""
    exact = math.isqrt(number) if degree == 2 and number.bit_length() <= MAX_BITS else 0
    if exact * exact == number:
        return exact, {}
    found = primes(number)
    whole = math.prod(prime ** (count // degree) for prime, count in found.items())
    return whole, {prime: count % degree for prime, count in found.items() if count % degree}


def primes(number: int) -> dict[int, int]:
    """The prime factors of a positive integer with their exponents."""
    if number > MAX_RADICAND:
        raise Unsettled("too large to factor")
    found, divisor = {}, 2
    while number > 1:
        if divisor * divisor > number:
            divisor = number
        while number % divisor == 0:
            number, found[divisor] = number // divisor, found.get(divisor, 0) + 1
        divisor += 1
    return found
