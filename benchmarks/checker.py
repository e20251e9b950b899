r"""Checks per second of the answer checker and of math-verify alone, and every difference in their verdicts.

    python benchmarks/checker.py --data FOLDER [--seconds=60] [--each=200]

FOLDER holds JSONL problem sets. Golds are checked against themselves, respelled golds, near misses and other golds;
the two checkers take turns block by block in one process (a trainer checks batches), ours with no verdict cached. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import logging
import pathlib
import random
import re
import statistics
import time

import math_verify

from lanpo_jax import data
from lanpo_jax.rewards import math, workers

BLOCK = 50
Block = tuple[int, float, float]  # checks, our seconds, math-verify's seconds
BEFORE, AFTER = len(r"We find $\boxed{"), len("}$.")
NEAR_MISSES = (lambda s: f"-{s}", lambda s: f"{s}0", lambda s: f"{s}+1", lambda s: f"{s}, 7", lambda s: f"2({s})")
RESPELLINGS = (
    lambda s: s.replace(r"\frac", r"\dfrac"),
    lambda s: s.replace("(", r"\left(").replace(")", r"\right)"),
    lambda s: re.sub(r"^(-?\d{4,})$", lambda m: f"{int(m[1]):,}", s),
    lambda s: f"x = {s}" if re.fullmatch(r"[-\d./]+", s) else f" {s} ",
    lambda s: s.replace(",", ", ").replace("+", " + "),
    lambda s: rf"{s}\text{{ cm}}" if re.fullmatch(r"[-\d./]+", s) else s.replace("{", "{ "),
)


def pairs(path: pathlib.Path, each: int, seed: int) -> list[tuple[str, str]]:
    """(completion, gold): in equal shares the gold itself, respelled, a near miss, another gold."""
    rng = random.Random(seed)
    golds = [math.gold_answer(p.answer) for p in data.load(f"file(path={str(path)!r})")]
    golds = [g for g in golds if g and "$" not in g]
    result = {}
    for i in range(each):
        gold = rng.choice(golds)
        other = (gold, rng.choice(RESPELLINGS)(gold), rng.choice(NEAR_MISSES)(gold), rng.choice(golds))[i % 4]
        result[f"We find $\\boxed{{{other}}}$.", gold] = None  # no pair twice: the cache would answer
    return list(result)


def by_math_verify(text: str, gold: str) -> bool:
    """Its documented use: parse both, verify."""
    return math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(text))


def timed(function, *arguments):
    """(result, seconds)."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def blocks(found: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Pairs of one kind in blocks of at most BLOCK."""
    sorted_by_kind = [[p for p in found if kind(p) == k] for k in ("integer", "to integer", "other")]
    return [some[i : i + BLOCK] for some in sorted_by_kind for i in range(0, len(some), BLOCK)]


def kind(pair: tuple[str, str]) -> str:
    """integer: both answers are; to integer: only the gold is; other."""
    integer = re.compile(r"-?[\d,]+")
    if not integer.fullmatch(pair[1]):
        return "other"
    return "integer" if integer.fullmatch(pair[0][BEFORE:-AFTER]) else "to integer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--each", type=int, default=200, help="pairs of each file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    files = sorted(pathlib.Path(options.data).glob("*.jsonl"))
    if not files:
        raise SystemExit(f"There are no .jsonl files in {options.data}; name a folder of problem sets with --data.")
    workers.check([(r"\ln 2", r"\ln 2")])  # start a worker and load math-verify before the clock runs
    by_math_verify("$1$", "1")

    spent: dict[str, list[Block]] = collections.defaultdict(list)
    differences = []
    for number, path in enumerate(files):
        deadline = time.perf_counter() + options.seconds / len(files)
        for block in random.Random(0).sample(
            found := blocks(pairs(path, options.each, options.seed + number)), len(found)
        ):
            if time.perf_counter() > deadline:
                break
            math._verdicts.clear()
            gc.collect()  # neither side pays for the other's garbage
            verdicts, ours = timed(math.check_all, block)
            judged, theirs = timed(lambda block: [by_math_verify(*pair) for pair in block], block)
            for group in (path.stem, kind(block[0]), *(["MATH mix"] if path.stem.startswith("math") else [])):
                spent[group].append((len(block), ours, theirs))
            for (text, gold), verdict, right in zip(block, verdicts, judged):
                if (verdict.verdict == "right") != right:
                    row = [
                        path.stem,
                        text[BEFORE:-AFTER],
                        gold,
                        verdict.verdict,
                        verdict.reason,
                        "right" if right else "wrong",
                    ]
                    differences.append(row)
    report(spent, differences)


def report(spent: dict[str, list[Block]], differences: list[list[str]]) -> None:
    """A table, the differences, and a line of JSON.

    "times" compares the totals; "median" is the median over blocks, which a machine busy with other work disturbs less.
    """
    print(f"{'set':16}{'checks':>8}{'ours/s':>10}{'math-verify/s':>15}{'times':>8}{'median':>8}")
    rates = {}
    for group, found in sorted(spent.items()):
        count, ours, theirs = (sum(column) for column in zip(*found))
        median = statistics.median(block[2] / block[1] for block in found)
        values = {
            "checks": count,
            "ours": count / ours,
            "math_verify": count / theirs,
            "times": theirs / ours,
            "median": median,
        }
        rates[group] = {name: round(value, 1) for name, value in values.items()}
        print(f"{group:16}{count:8}{count / ours:10.0f}{count / theirs:15.0f}{theirs / ours:8.1f}{median:8.1f}")
    print(f"\n{len(differences)} differences (set, prediction, gold, ours, reason, math-verify):")
    for row in differences:
        print("  " + " | ".join(row))
    print(json.dumps({"rates": rates, "differences": len(differences)}))


if __name__ == "__main__":
    main()
