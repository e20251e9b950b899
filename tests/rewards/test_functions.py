"""Opaque functions: equal forms are equal, certain differences are refuted, and nothing else is concluded."""

import time

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from lanpo_jax.rewards import algebra, compare, formula, functions, normal

X, N = sympy.symbols("x n", positive=True)

EQUAL = [
    (r"2^{n+1}", r"2 \cdot 2^n"),
    (r"4^n", r"2^{2n}"),
    (r"6^n", r"2^n 3^n"),
    (r"\frac{2^n}{2^{n+1}}", r"\frac12"),
    (r"e^{-2t}", r"\frac{1}{(e^t)^2}"),
    (r"\exp{2t}", r"e^{2t}"),
    (r"\ln 6", r"\ln 2 + \ln 3"),
    (r"\ln\frac{8}{9}", r"3\ln 2-2\ln 3"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
    (r"\log_{10} 1000", "3"),
    (r"\log_2 8", "3"),
    (r"\ln e", "1"),
    (r"\tan x", r"\frac{\sin x}{\cos x}"),
    (r"\sin^2 x", r"(\sin x)^2"),
    (r"\sin^{-1} x", r"\arcsin x"),
    (r"\sin 30^\circ", r"\sin\frac{\pi}{6}"),
    (r"|{-5}|+|3|", "8"),
    (r"2|x|", r"|x|+|x|"),
    (r"\lfloor 7/2 \rfloor + \lceil 7/2 \rceil", "7"),
    (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
    (r"\sqrt{x+1}+\sqrt{x+1}", r"2\sqrt{1+x}"),
    ("--3", "3"),
]
DIFFERENT = [
    (r"\sin x", r"\cos x"),
    (r"2^{n+1}", r"2^n"),
    (r"\ln 2", r"\ln 3"),
    (r"e^{x}", r"e^{x}+1"),
    (r"\sqrt{x^2+1}", r"x+1"),
    (r"\sin 2x", r"2\sin x"),
    (r"(-1)^n", r"(-1)^{n+1}"),
    (r"\binom{2n}{n}", r"\binom{2n}{n-1}"),
    (r"n!", r"(n+1)!"),
    (r"\sqrt{2+\sqrt{3}}", r"\sqrt{2}+\sqrt{3}"),
    (r"\arctan 2", r"\arctan 3"),
    (r"\log 2", r"\log 3"),
    (r"C_{1}e^{t}+C_2", r"C_{1}e^{t}-C_2"),
    (r"\sin 1", r"\sin 2"),
]
# Equal, or equal under a condition that the letters may have, or in one of two readings: never refuted.
OPEN = [
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"\sin 2x", r"2\sin x \cos x"),
    (r"\cos(n\pi)", r"(-1)^n"),
    (r"(-1)^{2n}", "1"),
    (r"\sin(n\pi)", "0"),
    (r"|1-x|", "1-x"),
    (r"\sqrt{x^2}", "x"),
    (r"\sqrt{(x-1)^2}", "1-x"),
    (r"\ln((x-7)(x-8))", r"\ln(x-7)+\ln(x-8)"),
    (r"\log 10", "1"),
    (r"\log e", "1"),
    (r"\log x", r"\frac{\ln x}{\ln 10}"),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"\sqrt[3]{2+\sqrt{5}}+\sqrt[3]{2-\sqrt{5}}", "1"),
    (r"\arctan 1", r"\frac{\pi}{4}"),
    (r"\lfloor n \rfloor", "n"),
    (r"\lfloor \sqrt{2}^2 \rfloor", "2"),
    (r"n!", r"n(n-1)!"),
    (r"10^{20}+\sin 1", r"10^{20}+\sin 2"),  # beyond what floating point can tell
    (r"\ln(x-9)", r"\ln(x-10)"),  # no value at the points
]


def read(text: str) -> algebra.Value:
    return formula.parse(normal.normalise(text))


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal_forms(a, b):
    assert read(a) == read(b) and not functions.refuted(read(a), read(b))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_differences_are_certain(a, b):
    assert read(a) != read(b) and functions.refuted(read(a), read(b))
    assert compare.settle(a, b)[0] == "wrong"


@pytest.mark.parametrize(("a", "b"), OPEN)
def test_nothing_else_is_concluded(a, b):
    assert not functions.refuted(read(a), read(b)) and not functions.refuted(read(b), read(a))


def test_multiples():
    line, other = read(r"2\sin x-2y"), read(r"y-\sin x")
    assert functions.proportional(line, other) and functions.proportional(line, read(r"\sin x+y")) is False
    assert functions.proportional(read(r"\sin 2x-y"), read(r"2y-4\sin x\cos x")) is None


@pytest.mark.parametrize(("text", "number"), [(r"\ln 2", 0.6931471805599453), (r"\sqrt{1+\sqrt2}", 1.5537739740300374)])
def test_constants(text, number):
    assert functions.approximate(read(text)) == pytest.approx(number, rel=1e-14)
    assert functions.approximate(read(text + "x")) is functions.approximate(read(r"\ln(-1)")) is None


def expressions():
    leaf = st.sampled_from([X, N, sympy.Integer(2), sympy.Integer(3), sympy.pi, sympy.Rational(1, 2)])
    some = [sympy.sin, sympy.cos, sympy.tan, sympy.exp, sympy.sqrt, sympy.log, sympy.atan, sympy.sinh, sympy.Abs]

    def extend(inner):
        pairs = st.tuples(inner, inner)
        applied = st.tuples(st.sampled_from(some), inner).map(lambda t: t[0](t[1]))
        sums, products = pairs.map(lambda p: p[0] + p[1]), pairs.map(lambda p: p[0] * p[1])
        return st.one_of(applied, sums, products, pairs.map(lambda p: p[0] - p[1]))

    return st.recursive(leaf, extend, max_leaves=5)


REWRITINGS = (
    sympy.expand_trig,
    sympy.expand,
    sympy.factor,
    lambda e: sympy.expand_log(e, force=True),
    lambda e: e.rewrite(sympy.exp),
    lambda e: e.subs(X, X + 1).subs(X, X - 1),
    lambda e: sympy.powdenest(sympy.powsimp(e), force=True),
)


def latex(expression) -> str:
    return (
        sympy.latex(expression, fold_func_brackets=False)
        .replace(r"\log", r"\ln")
        .replace(r"\operatorname{atan}", r"\arctan")
    )


@settings(max_examples=60, deadline=None)
@given(expressions(), st.sampled_from(REWRITINGS))
def test_what_sympy_rewrites_is_not_refuted(expression, rewrite):
    try:
        a, b = read(latex(expression)), read(latex(rewrite(expression)))
    except algebra.Unsettled:
        return
    assert not functions.refuted(a, b), (latex(expression), latex(rewrite(expression)))


@settings(max_examples=60, deadline=None)
@given(expressions(), st.integers(0, 7))
def test_values_lie_within_their_error_bounds(expression, place):
    points = {X: functions._point("x", place), N: functions._point("n", place)}
    try:
        value, error = functions._value(read(latex(expression)), place, 1.0)
    except (algebra.Unsettled, ArithmeticError, ValueError):
        return
    exact = complex(expression.evalf(40, subs={s: sympy.Float(repr(v), 40) for s, v in points.items()}))
    if exact == exact:  # some have a pole there
        assert abs(value - exact) <= 4 * error + 1e-15 * abs(exact), latex(expression)


@pytest.mark.parametrize(
    "text",
    [
        r"\sin(" * 23 + "x" + ")" * 23,
        "2^{" * 20 + "x" + "}" * 20,
        r"(\sin(" * 10 + "x" + ")+1)^{30}" * 10,
        r"e^{e^{e^{e^{e^{9}}}}}",
        r"\ln(" * 20 + "9^{9}" + ")" * 20,
        "(10^9)!+x!",
        r"\tan(" * 15 + "x^{999}" + ")" * 15,
        "x" + "!" * 40,
        "+".join(rf"\sin({k}x)^2" for k in range(30)),
    ],
)
def test_deep_functions_are_bounded(text):
    start = time.perf_counter()
    compare.settle(text, r"\sin x")
    assert time.perf_counter() - start < 0.5
