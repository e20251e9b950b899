r"""The answer checker: whether a completion's stated answer is the gold answer, and what could not be decided.

Layers: `extract` finds the stated answer; `compare` settles most pairs exactly in microseconds; the rest goes to
math-verify in killable processes (`workers`). A verdict is right, wrong or unknown, always with a reason.

    python -m lanpo_jax.rewards.math FILE.jsonl [--extract=bare]

prints one JSON line {"verdict", "reason", "ms"} for each row {"prediction", "gold"} of a file.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lanpo_jax import boxes
from lanpo_jax.rewards import compare, trees, workers
from lanpo_jax.rewards import extract as extraction
from lanpo_jax.rewards.reward import Scored
from lanpo_jax.types import Problem

CAUSES = ("errors", "timeouts", "unparseable_pred", "unparseable_gold")
CACHED = 100_000  # verdicts kept, by (answer, gold)


class Verdict(NamedTuple):
    """One judgement."""

    verdict: str  # right | wrong | unknown
    reason: str
    cause: str = ""  # the counter this belongs to: one of CAUSES, or none
    ms: float = 0.0  # time spent; of a cached verdict 0


_verdicts: dict[tuple[str | None, str], tuple[str, str, str]] = {}  # a cache only: emptied when full, never saved


def verify(
    problems: Sequence[Problem],
    completions: Sequence[str],
    tokens: np.ndarray,
    *,
    extract: str = "strict",
    right: float = 1.0,
    wrong: float = 0.0,
    unknown: float | None = 0.0,
) -> Scored:
    """Reward function: `right` for completions that state the gold answer, `wrong` for others.

    Args:
        problems, completions, tokens: one row each (see `lanpo_jax.rewards.reward`); tokens are not used.
        extract: strict | bare | last, see `lanpo_jax.rewards.extract.MODES`.
        right, wrong: rewards.
        unknown: reward where no verdict was reached; None leaves the row out (a NaN, for on_error="skip").

    Counters: errors, timeouts, unparseable_pred, unparseable_gold, unknown, cache_hits, ms.
    """
    pairs = [(text, problem.answer) for text, problem in zip(completions, problems, strict=True)]
    verdicts, hits = _check(pairs, extract)
    values = {"right": right, "wrong": wrong, "unknown": np.nan if unknown is None else unknown}
    counters: collections.Counter[str] = collections.Counter(dict.fromkeys((*CAUSES, "unknown"), 0))
    counters.update(v.cause for v in verdicts if v.cause)
    counters["unknown"] = sum(v.verdict == "unknown" for v in verdicts)
    return Scored(
        np.array([values[v.verdict] for v in verdicts], np.float64),
        np.array([v.verdict == "right" for v in verdicts], bool),
        [v.reason for v in verdicts],
        {**counters, "cache_hits": hits, "ms": sum(v.ms for v in verdicts)},
    )


def check(prediction: str, gold: str, extract: str = "strict") -> Verdict:
    """The verdict on one completion."""
    return _check([(prediction, gold)], extract)[0][0]


def check_all(pairs: Iterable[tuple[str, str]], extract: str = "strict") -> list[Verdict]:
    """The verdicts on (completion, gold) pairs, in order; equal pairs are judged once."""
    return _check(list(pairs), extract)[0]


def unparseable(problems: Sequence[Problem]) -> list[tuple[int, Problem]]:
    """(row, problem) of the problems whose gold answer the checker cannot read: drop or mend them before training."""
    golds = [gold_answer(p.answer) for p in problems]
    open_rows = [i for i, gold in enumerate(golds) if not compare.readable(gold)]
    judged = workers.check([(golds[i], golds[i]) for i in open_rows if golds[i]])
    bad = {i for i in open_rows if not golds[i]}
    bad |= {i for i, v in zip([i for i in open_rows if golds[i]], judged) if v[0] != "right"}
    return [(i, problems[i]) for i in sorted(bad)]


def gold_answer(gold: str) -> str:
    """A gold answer without the box or the #### in front that some data sets leave around it."""
    gold = gold.rpartition("####")[2]
    box = boxes.last(gold)
    return (gold if box is None else box).strip()


def _check(pairs: Sequence[tuple[str, str]], mode: str) -> tuple[list[Verdict], int]:
    """Verdicts in order, and how many of them came from the cache."""
    if mode not in extraction.MODES:
        raise ValueError(f"extract is {mode!r}; it must be one of {', '.join(extraction.MODES)}.")
    found: list[Verdict | None] = []
    open_rows: dict[tuple[str, str], list[int]] = {}
    hits = 0
    for row, (text, gold) in enumerate(pairs):
        start = time.perf_counter()
        key = (extraction.extract(text, mode), gold_answer(gold))
        if (known := _verdicts.get(key)) is not None:
            hits += 1
            verdict: Verdict | None = Verdict(*known)
        elif (settled := _settle(*key)) is None:
            verdict = None
            open_rows.setdefault(key, []).append(row)
        else:
            _remember(key, settled)
            verdict = Verdict(*settled, 1e3 * (time.perf_counter() - start))
        found.append(verdict)
    for (key, rows), result in zip(open_rows.items(), workers.check(list(open_rows))):
        _remember(key, result[:3])
        for place, row in enumerate(rows):
            found[row] = Verdict(*result) if place == 0 else Verdict(*result[:3])
    return found, hits


def _settle(answer: str | None, gold: str) -> tuple[str, str, str] | None:
    """(verdict, reason, cause) without symbolic algebra, or None."""
    if not gold:
        return "unknown", "the gold answer is empty", "unparseable_gold"
    if answer is None:
        return "wrong", "no answer is stated", "unparseable_pred"
    settled = compare.settle(answer, gold)
    return None if settled is None else (*settled, "")


def _remember(key: tuple[str | None, str], verdict: tuple[str, str, str]) -> None:
    if verdict[2] == "errors" or len(key[0] or "") > trees.LONGEST:
        return
    if len(_verdicts) >= CACHED:
        _verdicts.clear()
    _verdicts[key] = verdict


def main(arguments: Sequence[str]) -> int:
    """Grades the rows of a JSONL file on the console."""
    parser = argparse.ArgumentParser(prog="python -m lanpo_jax.rewards.math", description=main.__doc__)
    parser.add_argument("file", help='JSONL with rows {"prediction": ..., "gold": ...}')
    parser.add_argument("--extract", default="bare", choices=extraction.MODES)
    options = parser.parse_args(arguments)
    try:
        lines = open(options.file, encoding="utf-8", errors="replace")  # noqa: SIM115  # closed by the with below
    except OSError as error:
        print(f"{options.file} cannot be read ({error.strerror}).", file=sys.stderr)
        return 1
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                prediction, gold = str(row["prediction"]), str(row["gold"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                what = f"{options.file}:{number} is no row with prediction and gold ({type(error).__name__}: {error})."
                print(what, file=sys.stderr)
                return 1
            start = time.perf_counter()
            verdict = check(prediction, gold, options.extract)
            ms = round(1e3 * (time.perf_counter() - start), 3)
            print(json.dumps({"verdict": verdict.verdict, "reason": verdict.reason, "ms": ms}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
