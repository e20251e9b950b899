"""The checker as a whole: the public cases, counters, cache, gold answers, command line."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from lanpo_jax.rewards import math
from lanpo_jax.types import Problem

CASES = [json.loads(line) for line in (pathlib.Path(__file__).parent / "verifier.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_cases_from_public_reports(case):
    """All 112 agree; a case that is not to be rewarded may be wrong or unknown."""
    verdict = math.check(case["prediction"], case["gold"])
    assert (verdict.verdict == "right") == case["expect"], verdict
    assert verdict.reason


def problem(gold: str) -> Problem:
    return Problem(gold, "?", gold)


def test_verify_is_a_reward_function_with_counters():
    math._verdicts.clear()
    golds = ["5", "5", "", "6", "5"]
    texts = [r"\boxed{5}", "it is 5", r"\boxed{5}", r"\boxed{5}", r"hence \boxed{5}"]
    scored = math.verify([problem(g) for g in golds], texts, np.ones(5))
    assert scored.values.tolist() == [1, 0, 0, 0, 1] and scored.correct.tolist() == [True, False, False, False, True]
    assert len(scored.reasons) == 5 and all(scored.reasons)
    expected = {"errors": 0, "timeouts": 0, "unparseable_pred": 1, "unparseable_gold": 1, "unknown": 1, "cache_hits": 1}
    assert {k: scored.counters[k] for k in expected} == expected and scored.counters["ms"] > 0


def test_rewards_are_options_and_unknown_may_be_left_out():
    problems, texts = [problem("5"), problem("5"), problem("")], [r"\boxed{5}", "", "x"]
    scored = math.verify(problems, texts, np.ones(3), wrong=-1.0, unknown=None)
    assert scored.values[:2].tolist() == [1, -1] and np.isnan(scored.values[2])


def test_equal_pairs_are_judged_once_and_come_from_the_cache_later():
    pairs = [(r"\boxed{\ln 9}", r"2\ln 3"), (r"so \boxed{\ln 9}", r"2\ln 3")]
    math._verdicts.clear()
    first, second = math.check_all(pairs)
    assert first.verdict == second.verdict == "right" and first.ms > 0 and second.ms == 0
    assert math.check(*pairs[0]).ms == 0


def test_extract_is_an_option():
    assert [math.check("It is 5", "5", mode).verdict for mode in ("strict", "bare", "last")] == [
        "wrong",
        "wrong",
        "right",
    ]
    with pytest.raises(ValueError, match="strict, bare, last"):
        math.check("5", "5", "lenient")


@pytest.mark.parametrize(
    ("gold", "answer"), [(r"so \boxed{5}", "5"), ("5+5=10\n#### 10", "10"), (" 7 ", "7"), (r"#### \boxed{3}", "3")]
)
def test_golds_may_come_wrapped(gold, answer):
    assert math.gold_answer(gold) == answer and math.check(rf"\boxed{{{answer}}}", gold).verdict == "right"


def test_unparseable_golds_are_listed_with_their_row():
    golds = ["5", r"\frac{1}{", r"\sin x", "", "A", r"\begin{foo}", "even"]
    assert [row for row, _ in math.unparseable([problem(g) for g in golds])] == [1, 3, 5]


def test_command_line(tmp_path):
    rows = [(r"\boxed{5}", "5"), ("7", 7), (r"\boxed{6}", "5"), ("x", ""), (r"\boxed{\ln 9}", r"2\ln 3")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prediction": p, "gold": g}) + "\n" for p, g in rows))
    command = [sys.executable, "-m", "lanpo_jax.rewards.math", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["verdict"] for f in found] == ["right", "right", "wrong", "unknown", "right"]
    assert all(set(f) == {"verdict", "reason", "ms"} and f["ms"] >= 0 and f["reason"] for f in found)
    assert not done.stderr
    path.write_text('{"prediction": "5"}\n')
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "rows.jsonl:1" in done.stderr and "Traceback" not in done.stderr
    path.unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "rows.jsonl cannot be read" in done.stderr and "Traceback" not in done.stderr
