"""Exact values against SymPy and Fractions, and their bounds."""

import time
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from lanpo_jax.rewards import algebra, formula

X, Y = sympy.symbols("x y", positive=True)


def leaves():
    numbers = st.integers(0, 30).map(lambda n: (str(n), sympy.Integer(n)))
    roots = st.integers(1, 30).map(lambda n: (f"\\sqrt{{{n}}}", sympy.sqrt(n)))
    cubes = st.integers(1, 30).map(lambda n: (f"\\sqrt[3]{{{n}}}", sympy.cbrt(n)))
    letters = st.sampled_from([("x", X), ("y", Y), ("\\pi", sympy.pi), ("i", sympy.I)])
    return st.one_of(numbers, roots, cubes, letters)


def expressions(children):
    def sums(pair):
        (a, x), (b, y) = pair
        return f"({a}+{b})", x + y

    def differences(pair):
        (a, x), (b, y) = pair
        return f"({a}-{b})", x - y

    def products(pair):
        (a, x), (b, y) = pair
        return f"({a})*({b})", x * y

    def quotients(pair):
        (a, x), (b, y) = pair
        return f"\\frac{{{a}}}{{({b})^2+1}}", x / (y**2 + 1)

    def squares(one):
        return f"({one[0]})^{{2}}", one[1] ** 2

    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(sums), pairs.map(differences), pairs.map(products), pairs.map(quotients), children.map(squares)
    )


TEXTS = st.recursive(leaves(), expressions, max_leaves=5)


@settings(max_examples=120, deadline=None)
@given(TEXTS)
def test_values_agree_with_sympy_at_points(pair):
    """Each value evaluated at x = 2, y = 3 by its own definition, against SymPy's evaluation of the same expression."""
    text, expected = pair
    try:
        value = formula.parse(text)
    except algebra.Unsettled:
        return  # too many terms, or a denominator of zero
    ours = sum_of(value.top) / sum_of(value.bottom)
    theirs = complex(expected.subs({X: 2, Y: 3}).evalf(30))
    assert abs(ours - theirs) <= 1e-9 * max(1, abs(theirs)), text


def sum_of(polynomial) -> complex:
    points = {"x": 2.0, "y": 3.0, "i": 1j, **algebra.CONSTANTS}
    total = 0j
    for monomial, number in polynomial.items():
        term = complex(float(number))
        for atom, exponent in monomial:
            term *= (float(atom[1:]) if atom[0] == "#" else points[atom]) ** float(exponent)
        total += term
    return total


@settings(max_examples=80, deadline=None)
@given(TEXTS, TEXTS)
def test_equality_agrees_with_sympy(a, b):
    try:
        equal = formula.parse(a[0]) == formula.parse(b[0])
    except algebra.Unsettled:
        return
    assert equal == (sympy.simplify(sympy.expand(a[1] - b[1], complex=False)) == 0), (a, b)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_another_spelling_is_equal(pair):
    """(e+1)² - e² - 2e is 1, and e·(e+2)/(e+2) is e, for whatever e is."""
    e = f"({pair[0]})"
    try:
        assert formula.parse(f"({e}+1)^2-{e}^2-2*{e}") == algebra.constant(1)
        assert formula.parse(f"\\frac{{{e}*({e}+2)}}{{{e}+2}}") == formula.parse(e)
        assert formula.parse(f"{e}+1") != formula.parse(e)
    except algebra.Unsettled:
        return


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2^{100}", 2**100),
        ("-3", -3),
        ("1.25", Fraction(5, 4)),
        ("1\\frac12", Fraction(3, 2)),
        ("-\\frac{1}{-2}", Fraction(1, 2)),
        ("2^{-3}", Fraction(1, 8)),
        ("4^{1/2}", 2),
        ("4^{3/2}", 8),
        ("\\binom{5}{2}", 10),
        ("5!", 120),
        ("2(3)(4)", 24),
        ("6/2*3", 9),
        ("\\frac{\\sqrt{8}}{\\sqrt{2}}", 2),
        ("i^2", -1),
        ("\\sqrt[3]{\\frac{8}{27}}", Fraction(2, 3)),
        ("0^2", 0),
    ],
)
def test_numbers(text, number):
    assert algebra.rational(formula.parse(text)) == number


@pytest.mark.parametrize(
    "text",
    [
        "", "1 2", "1/2x", "x/0", "5!!", "\\sin x y", "\\sin(x)^2", "\\sin x/2", "\\sin", "(1", "1)", "{",
        "2^{100000}", "9^{9^9}", "300!", "\\binom{1000}{500}", "(a+b+c+d)^{31}", "1" * 3000,
        "(" * 100 + "1" + ")" * 100, "\\frac{dy}{dx}", "|x", "f(0)", "f(x+1)", "1,2", "\\frac{1}", "---5", "x^", "_1",
        "((a+b+c+d)^{9}(e+f+g+h)^{9})^{9}",
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_unsettled_fast(text):
    start = time.perf_counter()
    with pytest.raises(algebra.Unsettled):
        formula.parse(text)
    assert time.perf_counter() - start < 0.5


def test_ratio_and_solve():
    line, other = formula.parse("2x-4y+6"), formula.parse("-x+2y-3")
    assert algebra.ratio(line, other) == -2 and algebra.ratio(line, formula.parse("x-2y+4")) is None
    root, rising = algebra.solve(formula.parse("6-2x"))
    assert root == algebra.constant(3) and not rising
    assert all(algebra.solve(formula.parse(t)) is None for t in ("x^2-1", "x+y", "5", "3i+1", "1/x"))
