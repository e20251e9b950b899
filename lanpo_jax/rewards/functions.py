r"""Functions and symbolic powers as opaque atoms of `algebra`, and their evaluation with error bounds.

`\sin 2x` becomes a letter of its own, so equal forms are equal values, but different forms may be equal as well.
Whether they differ is seen at points: `refuted` evaluates both sides in floating point with a running bound of the
error and answers True only where every point tells them apart.
"""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Iterable
from fractions import Fraction

from lanpo_jax.rewards import algebra
from lanpo_jax.rewards.algebra import Unsettled, Value

LONGEST = 1500  # characters of an atom's name: functions of functions of sums must stay small
EPSILON = 2.0**-52
DECIMAL = (1.0, math.log(10))  # what \log may divide the natural logarithm by
CLEAR = 1e3  # a difference counts if it is this many times its error bound
TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
RECIPROCAL = {"cot": ("cos", "sin"), "tan": ("sin", "cos"), "sec": (None, "cos"), "csc": (None, "sin")}
SQUARES = {0: 0, 2: Fraction(1, 4), 3: Fraction(1, 2), 4: Fraction(3, 4), 6: 1}  # of sin(k π/12)
INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
PLAIN = {"sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh, "sin": cmath.sin, "cos": cmath.cos}
# Each has one real value on its domain only; elsewhere nothing is concluded.
REAL = {"ln": math.log, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan}
NAMES = frozenset({*TRIGONOMETRIC, *PLAIN, *REAL, "log", "exp"})  # as commands in LaTeX
REAL |= {"abs": abs, "floor": math.floor, "factorial": lambda number: math.gamma(number + 1), "same": float}

Number = tuple[complex, float]  # a value and a bound of its error


class Applied(str):
    """An atom such as sin(2x): a name that sorts and compares as text, with what it stands for."""

    function: str
    arguments: tuple[Value, ...]


def applied(function: str, *arguments: Value) -> Value:
    """f(arguments) as a letter of its own. Raises Unsettled if its name would be too long."""
    atom = Applied(f"\\{function}({'; '.join(map(_text, arguments))})")
    if len(atom) > LONGEST:
        raise Unsettled("too large an argument")
    atom.function, atom.arguments = function, arguments
    return algebra.symbol(atom)


def _text(value: Value) -> str:
    """One text for one pair of polynomials, the lower one scaled to begin with 1."""
    scale = value.bottom[min(value.bottom)]
    top, bottom = (sorted((m, c / scale) for m, c in p.items()) for p in (value.top, value.bottom))
    parts = ("+".join(f"{c}" + "".join(f"*{a}^{e}" for a, e in m) for m, c in p) for p in (top, bottom))
    return "/".join(f"({part})" for part in parts)


def is_opaque(*values: Value) -> bool:
    """Whether different forms of these may be equal."""
    return any(isinstance(atom, Applied) for value in values for atom in _atoms(value))


def _atoms(value: Value) -> Iterable[str]:
    return (atom for polynomial in (value.top, value.bottom) for monomial in polynomial for atom, _ in monomial)


# Construction.


def call(name: str, argument: Value) -> Value:
    """The function of that name in `NAMES` of a value."""
    if name == "exp":
        return power(algebra.symbol("e"), argument)
    if name in ("ln", "log"):
        return logarithm(argument, name)
    if name in RECIPROCAL:
        above, below = RECIPROCAL[name]
        return algebra.divide(call(above, argument) if above else algebra.constant(1), call(below, argument))
    return (name in ("sin", "cos") and _at_special_angle(name, argument)) or applied(name, argument)


def _at_special_angle(name: str, argument: Value) -> Value | None:
    """sin or cos of a multiple of 30 or 45 degrees."""
    turns = algebra.ratio(argument, algebra.symbol("\\pi")) if argument.top else Fraction(0)
    if turns is None or (12 * turns).denominator > 1:
        return None
    step = (int(12 * turns) + (6 if name == "cos" else 0)) % 24
    acute = min(step % 12, 12 - step % 12)
    if acute not in SQUARES:
        return None
    value = algebra.power(algebra.constant(SQUARES[acute]), algebra.constant(Fraction(1, 2)))
    return algebra.signed(value, -1 if step >= 12 else 1)


def logarithm(value: Value, name: str = "ln") -> Value:
    """ln or log of a value; that of a positive rational number as a sum over its primes."""
    number = algebra.rational(value)
    if name == "ln" and value == algebra.symbol("e"):
        return algebra.constant(1)
    if number is None or not 0 < number <= algebra.MAX_RADICAND or number.denominator > algebra.MAX_RADICAND:
        return applied(name, value)
    total = algebra.constant(0)
    for part, sign in ((number.numerator, 1), (number.denominator, -1)):
        for prime, count in algebra.primes(part).items():
            term = algebra.times(algebra.constant(sign * count), applied(name, algebra.constant(prime)))
            total = algebra.add(total, term, 1)
    return total


def factorial(value: Value) -> Value:
    """value!"""
    return algebra.factorial(value) if algebra.rational(value) is not None else applied("factorial", value)


def binomial(above: Value, below: Value) -> Value:
    """The number of ways to choose, as quotient of factorials if a letter is in it."""
    if algebra.rational(above) is not None and algebra.rational(below) is not None:
        return algebra.binomial(above, below)
    others = algebra.times(factorial(below), factorial(algebra.minus(above, below)))
    return algebra.divide(factorial(above), others)


def rounded(value: Value, *, up: bool) -> Value:
    """The integer below a value, or above it."""
    number = algebra.rational(value)
    if number is not None:
        return algebra.constant(math.ceil(number) if up else math.floor(number))
    below = applied("floor", algebra.signed(value, -1 if up else 1))
    return algebra.signed(below, -1 if up else 1)


def absolute(value: Value) -> Value:
    """|value|."""
    number = algebra.rational(value)
    return applied("abs", value) if number is None else algebra.constant(abs(number))


def power(base: Value, exponent: Value) -> Value:
    """base^exponent; `algebra.power` if that can tell, else by opaque atoms, so that 2^(n+1) is 2·2^n."""
    number = algebra.rational(exponent)
    if number is not None:
        try:
            return algebra.power(base, exponent)
        except Unsettled:
            if number.denominator == 1:
                raise
        whole = number.numerator // number.denominator
        root = applied("same", base)  # a sum as a letter of its own, to bear the root
        (((atom, _),),) = root.top
        part = Value({((atom, number - whole),): Fraction(1)}, {(): Fraction(1)})
        return algebra.times(algebra.power(base, algebra.constant(whole)), part)
    below = algebra.rational(Value(exponent.bottom, {(): Fraction(1)}))
    factors = _factors(base)
    if below is None or factors is None:
        return applied("pow", base, exponent)
    result = algebra.constant(1)
    for root, count in factors:
        for monomial, number in exponent.top.items():
            result = algebra.times(result, _exponential(root, monomial, number * count / below))
    return result


def _factors(base: Value) -> list[tuple[Value, int]] | None:
    """A positive integer as primes with exponents, a letter as itself; None for others."""
    number = algebra.rational(base)
    if number is not None:
        if number.denominator > 1 or not 1 < number <= algebra.MAX_RADICAND:
            return None
        return [(algebra.constant(p), k) for p, k in algebra.primes(number.numerator).items()]
    letter = len(base.top) == 1 and base.bottom == {(): 1} and base == algebra.symbol(next(_atoms(base)))
    return [(base, 1)] if letter and not is_opaque(base) and base != algebra.symbol("i") else None


def _exponential(root: Value, monomial: algebra.Monomial, number: Fraction) -> Value:
    """root^(number·monomial); its real powers belong to one atom, complex ones are not to be taken apart."""
    if not monomial:
        return algebra.power(root, algebra.constant(number))
    if any(atom == "i" for atom, _ in monomial):
        return applied("pow", root, Value({monomial: number}, {(): Fraction(1)}))
    atom = applied("pow", root, Value({monomial: Fraction(1)}, {(): Fraction(1)}))
    (((name, _),),) = atom.top
    part = Value({((name, abs(number)),): Fraction(1)}, {(): Fraction(1)})
    return part if number > 0 else algebra.divide(algebra.constant(1), part)


# Evaluation.


def approximate(value: Value) -> float | None:
    """The value as a float if it is a real constant."""
    try:
        number, error = _value(value, None, 1.0)
    except (Unsettled, ArithmeticError, ValueError):
        return None
    real = abs(number.imag) <= error and error <= 1e-9 * abs(number) + 1e-12
    return number.real if real else None


def refuted(a: Value, b: Value) -> bool:
    """Whether a and b differ for certain: at integer points and at points between 0 and 1, wherever they have values.

    The letters of an identity may stand for integers, as in (-1)^(2n) = 1, or for small numbers, as in |1-x| = 1-x.
    A logarithm without a base may be the natural one or the decimal one.
    """
    return all(_told_apart(a, b, decimal) for decimal in DECIMAL)


def proportional(a: Value, b: Value) -> bool | None:
    """Whether a is a rational multiple of b other than 0, as far as can be told."""
    if algebra.ratio(a, b) is not None:
        return True
    if not is_opaque(a, b):
        return False
    return False if all(_not_proportional(a, b, decimal) for decimal in DECIMAL) else None


def _not_proportional(a: Value, b: Value, decimal: float) -> bool:
    found = []
    for place in range(8):
        try:
            found.append(_divide(_value(a, place, decimal), _value(b, place, decimal)))
        except (Unsettled, ArithmeticError, ValueError):
            continue
    return any(abs(x - y) > CLEAR * (e + f) + 1e-12 * abs(x) for x, e in found for y, f in found)


def _told_apart(a: Value, b: Value, decimal: float) -> bool:
    found = []
    for place in range(8):
        try:
            (x, e), (y, f) = _value(a, place, decimal), _value(b, place, decimal)
        except (Unsettled, ArithmeticError, ValueError):
            continue
        if abs(x - y) <= CLEAR * (e + f) + 1e-12 * max(abs(x), abs(y)):
            return False
        found.append(place)
    return len(found) >= 3 and any(place % 2 == 0 for place in found)


def _point(letter: str, place: int | None) -> float:
    """A letter's value: an integer from 2 to 6 at even places, a fraction at odd ones."""
    if place is None:
        raise Unsettled("no constant")
    mark = zlib.crc32(f"{place} {letter}".encode())
    return float(2 + mark % 5) if place % 2 == 0 else (1 + mark % 997) / 1000


def _value(value: Value, place: int | None, decimal: float) -> Number:
    return _divide(_polynomial(value.top, place, decimal), _polynomial(value.bottom, place, decimal))


def _divide(a: Number, b: Number) -> Number:
    if abs(b[0]) <= 10 * b[1]:
        raise Unsettled("division by nearly zero")
    quotient = a[0] / b[0]
    return quotient, 2 * (a[1] + abs(quotient) * b[1]) / abs(b[0]) + EPSILON * abs(quotient)


def _polynomial(polynomial: algebra.Polynomial, place: int | None, decimal: float) -> Number:
    total, error = 0j, 0.0
    for monomial, number in polynomial.items():
        term, relative = complex(float(number)), EPSILON
        for atom, exponent in monomial:
            base, doubt = _atom(atom, place, decimal)
            if exponent.denominator > 1 and (abs(base.imag) > 0 or base.real <= 0):
                raise Unsettled("a root that may have two signs")
            size = abs(base)
            if size <= 10 * doubt:  # nearly zero: no relative error
                raise Unsettled("a power of nearly zero")
            term *= base ** int(exponent) if exponent.denominator == 1 else base.real ** float(exponent)
            relative += 2 * float(exponent) * doubt / size + EPSILON * (4 + float(exponent) * (2 + abs(math.log(size))))
        total, error = total + term, error + abs(term) * relative
        error += EPSILON * abs(total)
    if not cmath.isfinite(total) or not error <= 1e-3 * max(1.0, abs(total)):
        raise Unsettled("beyond floating point")
    return total, error


def _atom(atom: str, place: int | None, decimal: float) -> Number:
    if isinstance(atom, Applied):
        return _function(atom, [_value(argument, place, decimal) for argument in atom.arguments], decimal)
    if atom == "i":
        return 1j, 0.0
    if atom[0] == "#":
        return complex(int(atom[1:])), 0.0
    return complex(
        algebra.CONSTANTS.get(atom) or _point(atom, place)
    ), EPSILON * 4 if atom in algebra.CONSTANTS else 0.0


def _function(atom: Applied, arguments: list[Number], decimal: float) -> Number:
    """f at its arguments and at the ends of their error bounds."""
    if atom.function == "pow":
        (base, doubt), (exponent, error) = arguments
        found = _power(base, exponent)
        spread = abs(found) * 2 * (abs(exponent) * doubt / abs(base) + abs(cmath.log(base)) * error)
    else:
        ((argument, error),) = arguments
        found = _simple(atom.function, argument)
        moved = (_simple(atom.function, argument + e) for e in (error, -error))
        spread = 2 * max(abs(other - found) for other in moved)
        if atom.function == "floor" and (spread or abs(argument - round(argument.real)) <= CLEAR * error):
            raise Unsettled("next to a step")
    if atom.function == "log":
        found, spread = found / decimal, spread / decimal
    return found, spread + 16 * EPSILON * (abs(found) + abs(arguments[-1][0]) * (atom.function == "pow"))


def _power(base: complex, exponent: complex) -> complex:
    if base.imag == 0 and base.real > 0:
        return cmath.exp(exponent * math.log(base.real))
    if exponent.imag == 0 and exponent.real == round(exponent.real) and abs(exponent.real) < 1000 and base != 0:
        return base ** int(exponent.real)
    raise Unsettled("a power with many values")


def _simple(function: str, argument: complex) -> complex:
    if function in PLAIN:
        return PLAIN[function](argument)
    if abs(argument.imag) > 0:
        raise Unsettled("not a real argument")
    return complex(REAL["ln" if function == "log" else function](argument.real))
