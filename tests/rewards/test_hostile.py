"""Model output is untrusted: whatever it holds, a check ends in time, raises nothing, and evaluates nothing.

CHECKER_FUZZ sets the number of generated inputs (10000 for the long run); the default keeps the suite fast.
"""

import os
import resource
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanpo_jax.rewards import math, workers

EXAMPLES = int(os.environ.get("CHECKER_FUZZ", "300"))
GOLDS = [
    "5",
    "0",
    r"\frac{1}{7}",
    r"\sqrt{2}",
    "x+1",
    "(1,2)",
    r"\{1,2\}",
    "A",
    "even",
    r"\sin x",
    "",
    r"[0,\infty)",
    "50\\%",
    "2^{100}",
]

HOSTILE = {
    "power tower": "9^{9^{9^{9}}}",
    "python tower": "9**9**9**9",
    "factorial": "99999999!",
    "iterated factorial": "((9!)!)!",
    "binomial": r"\binom{10^9}{5\cdot 10^8}",
    "product": r"\prod_{k=1}^{10^9} k",
    "sum": r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
    "integral": r"\int_0^1 \frac{\sin(x^{x^x})}{x^{100}+e^{x}}\,dx",
    "big power": "(a+b+c+d+e+f)^{999}",
    "nested power": "((((a+b+c)^9)^9)^9)^9",
    "many digits": "1" * 50_000,
    "a million digits": "1" * 1_000_000,
    "a million letters": "x" * 1_000_000,
    "deep braces": "{" * 20_000 + "1" + "}" * 20_000,
    "deep parentheses": "(" * 500 + "1" + ")" * 500,
    "deep roots": r"\sqrt{" * 300 + "2" + "}" * 300,
    "deep fractions": r"\frac{1}{" * 300 + "2" + "}" * 300,
    "deep boxes": r"\boxed{" * 1000 + "5" + "}" * 1000,
    "long list": "1," * 20_000,
    "set of sums": r"\{" + ",".join(f"x_{i}+y" for i in range(60)) + r"\}",
    "decimal": "0." + "0" * 5000 + "1",
    "exponent": "1e999999999",
    "negative exponent": "10^{-999999999}",
    "null bytes": "5\x00" * 1000,
    "surrogate": "5\ud800",
    "right to left": "\u202e5",
    "zero width": "\u200b5",
    "import": "__import__('os').system('touch HACKED')",
    "sympify": 'sympy.sympify(\'__import__("os").system("touch HACKED")\')',
    "lambda": "(lambda: [x for x in iter(int, 1)])()",
    "input": r"\input{/etc/passwd}",
    "write": r"\immediate\write18{touch HACKED}",
    "class": "().__class__.__base__.__subclasses__()",
    "format": "{0.__class__}%s%n",
    "dollars": "$" * 5000,
    "radicand": r"\sqrt{999999999999999989}",
    "matrix": r"\begin{pmatrix}" + r"1&2\\" * 3000 + r"\end{pmatrix}",
    "equations": "x=" * 3000 + "5",
    "signs": "-" * 5000 + "5",
    "currencies": "¥€" * 450 + "5",
    "functions": r"\sin" * 200 + "5",
    "bars": "|" * 300 + "5",
    "assignments": "f(" * 300 + ")=5",
    "outward": "[1," * 300 + "]",
    "repeating": "0." + "12" * 400 + r"\ldots",
    "roots of sums": r"\sqrt{1+" * 20 + "2" + "}" * 20,
    "powers of sums": "(1+x)^{1/3}" * 60,
    "quantifiers": r"\text{ for k \in \mathbb{Z}" * 100,
    "spaces": "5" + " " * 500_000 + "5",
    "commas": "1,111" * 1000,
    "units": "5 " + "cm " * 3000,
    "texts": r"\text{a}" * 3000,
    "fractions": "½" * 5000,
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir()), "something wrote a file"


@pytest.fixture(scope="module", autouse=True)
def started():
    """Starting a worker takes a second or more; that is not the check's time."""
    workers.check([(r"\ln 2", r"\ln 2")])
    return resident(os.getpid())


def check(text: str, gold: str) -> math.Verdict:
    start = time.perf_counter()
    verdict = math.check(text, gold)
    assert time.perf_counter() - start < 2, (text[:100], gold)
    return verdict


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("gold", ["5", r"\frac{1}{7}", r"\ln 3"])
def test_hostile_answers(name, gold):
    check(f"The answer is {HOSTILE[name]}.", gold)
    verdict = check(rf"\boxed{{{HOSTILE[name]}}}", gold)
    if name not in ("null bytes", "deep boxes", "zero width", "right to left", "equations"):  # these may pass for 5
        assert verdict.verdict != "right"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_golds(name):
    check(r"\boxed{7}", HOSTILE[name])


PIECES = st.sampled_from(
    [
        "1", "2", "9", "0", "12", ".5", "x", "y", "n", "e", "i", r"\pi", "+", "-", "*", "/", "^", "^{9}", "^{99999}",
        "!", "_", "(", ")", "[", "]", "{", "}", r"\{", r"\}", ",", ";", ":", "=", "<", ">", r"\leq", r"\cup", r"\in",
        r"\pm", r"\infty", r"\frac", r"\frac{1}{2}", r"\sqrt", r"\sqrt{2}", r"\sqrt[3]{x}", r"\sin", r"\log",
        r"\int", r"\sum_{k=1}^{n}", r"\binom{9}{4}", r"\lim_{x\to 0}", r"\text{ and }", r"\text{cm}",
        r"\begin{pmatrix}", r"\end{pmatrix}", "&", r"\\", r"\ldots", "%", r"\%", "$", r"\$", "°", "½", "√", "²",
        "\x00", "\ud83d", " or ", " and ", "A", "(B)", "True", "None", "nan", r"\boxed{", "<answer>", "</answer>",
        "<think>", "</think>", "#### ", "The answer is ", "\n", " ", "__import__('os')", "eval(", "10^{10}",
        "9^{9^{9}}", "1e9", r"\left", r"\right", r"\begin{cases}", "|",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=14).map("".join).map(lambda s: rf"\boxed{{{s}}}"),
    st.lists(PIECES, max_size=14).map("".join),
    st.text(max_size=60).map(lambda s: f"The answer is {s}"),
    st.tuples(PIECES, st.integers(1, 5000)).map(lambda t: rf"\boxed{{{t[0] * t[1]}}}"),
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.sampled_from(GOLDS))
def test_generated_texts(text, gold):
    assert check(text, gold).verdict in ("right", "wrong", "unknown")


def resident(pid: int) -> int:
    """Bytes that a process holds now; 0 where /proc does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def test_workers_and_memory_are_sound_afterwards(started):
    assert [v.verdict for v in math.check_all([(rf"\boxed{{\ln {n}^2}}", rf"2\ln {n}") for n in (3, 5, 7)])] == [
        "right"
    ] * 3
    unit = 1 if sys.platform == "darwin" else 1024
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit < 3 << 30
    assert resident(os.getpid()) - started < 200 << 20, "the checker's own process has grown"
    idle = workers.pool(os.getpid()).pids()
    assert idle and all(resident(pid) < 1 << 30 for pid in idle)
