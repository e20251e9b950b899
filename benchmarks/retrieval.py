r"""Milliseconds a query, recall, memory and time to add of the TF-IDF index, at several sizes.

    python benchmarks/retrieval.py --data FOLDER [--sizes=10000,100000,1000000] [--queries=256] [--checked=64]

FOLDER holds JSONL problem sets. Entries are 2 to 5 sentences, each from a problem drawn at random, with 7 of 10 numbers
replaced: real vocabulary, no real problem. Queries are of two kinds: `mixed`, made like the entries, and `held_out`,
whole real problems (one in ten) no sentence of which was used. Recall is against comparing every entry: the share of
its best 1 and best 4 that are found. Times are wall times in one process; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from lanpo_jax import data
from lanpo_jax.experience import index as index_lib

BEST = 4
STEP = 256  # entries that one training step adds


def problems(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """(texts whose sentences make the entries, texts held out), the same for the same folder."""
    found = [p.text for path in sorted(folder.glob("*.jsonl")) for p in data.load(f"file(path={str(path)!r})")]
    found = list(dict.fromkeys(found))
    return [t for i, t in enumerate(found) if i % 10], found[::10]


def mixtures(texts: list[str], seed: int) -> Iterator[str]:
    """Texts of sentences from several problems, without end."""
    rng = random.Random(seed)
    sentences = [s for t in texts for s in re.split(r"(?<=[.?!])\s+", t) if s]
    while True:
        text = " ".join(rng.choice(sentences) for _ in range(rng.randint(2, 5)))
        yield re.sub(r"\d+", lambda m: str(rng.randint(2, 999)) if rng.random() < 0.7 else m[0], text)


def seconds(function: Callable[..., object], *arguments) -> float:
    """Wall time of a call."""
    return times(function, *arguments)[0]


def times(function: Callable[..., object], *arguments) -> tuple[float, float]:
    """Wall time and processor time of a call; the latter is what a machine busy with other things would show."""
    wall, cpu = time.perf_counter(), time.process_time()
    function(*arguments)
    return time.perf_counter() - wall, time.process_time() - cpu


def grow(index: index_lib.Index, size: int, texts: Iterator[str]) -> float:
    """Adds entries in portions, each indexed at once; returns the seconds that took, making texts not counted."""
    spent = 0.0
    while len(index) < size:
        start = len(index)
        portion = [next(texts) for _ in range(min(4096, size - start))]
        spent += seconds(add, index, portion)
    return spent


def add(index: index_lib.Index, texts: list[str]) -> None:
    """Adds texts, and asks once, so that they are indexed."""
    for i, text in enumerate(texts, start=len(index)):
        index.add(f"mixed/{i}", text)
    index.search(texts[:1], [""], 1, 0.0)


def recall(index: index_lib.Index, queries: list[str]) -> dict[str, float]:
    """Shares of the true best 1 and best 4 that are found, what similarity is lost, and the oracle's speed."""
    names = [""] * len(queries)
    start = time.perf_counter()
    truth = index.search(queries, names, BEST, 0.0, terms=0)
    spent = time.perf_counter() - start
    found = index.search(queries, names, BEST, 0.0)
    pairs = [([h.id for h in t], [h.id for h in f]) for t, f in zip(truth, found, strict=True)]
    lost = [t[0].similarity - (f[0].similarity if f else 0.0) for t, f in zip(truth, found, strict=True) if t]
    return {
        "recall@1": round(float(np.mean([t[:1] == f[:1] for t, f in pairs])), 3),
        f"recall@{BEST}": round(float(np.mean([len({*t} & {*f}) / max(1, len(t)) for t, f in pairs])), 3),
        "similarity": round(float(np.mean([t[0].similarity for t in truth if t])), 3),
        "similarity_lost": round(float(np.mean(lost)), 4),
        "exact_ms": round(1000 * spent / len(queries), 1),
    }


def measure(index: index_lib.Index, texts: Iterator[str], asked: dict[str, list[str]], checked: int) -> dict:
    """All numbers at the present size; leaves the index with some more entries."""
    result: dict = {"entries": len(index)}
    for kind, queries in asked.items():
        names = [""] * len(queries)
        runs = [times(index.search, queries, names, BEST, 0.0) for _ in range(3)]
        wall, cpu = (round(1000 * min(column) / len(queries), 2) for column in zip(*runs, strict=True))
        result[kind] = {"ms": wall, "cpu_ms": cpu, **recall(index, queries[:checked])}
    steps = [seconds(add, index, [next(texts) for _ in range(STEP)]) for _ in range(8)]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return result | {
        f"add_{STEP}_mean_s": round(float(np.mean(steps)), 3),
        f"add_{STEP}_max_s": round(max(steps), 3),
        "index_gb": round(index.nbytes / 1e9, 3),
        "peak_rss_gb": round(rss / 1e9, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--checked", type=int, default=64)
    args = parser.parse_args()
    source, held = problems(args.data)
    texts, asking = mixtures(source, seed=0), mixtures(source, seed=1)
    asked = {
        "mixed": [next(asking) for _ in range(args.queries)],
        "held_out": random.Random(2).sample(held, min(args.queries, len(held))),
    }
    words = np.mean([len(t.split()) for t in asked["mixed"]])
    print(f"{len(source)} problems give the sentences, {len(held)} are held out; entries have {words:.0f} words.")
    index, results, built = index_lib.Index(), [], 0.0
    for size in map(int, args.sizes.split(",")):
        built += grow(index, size, texts)
        results.append(measure(index, texts, asked, args.checked) | {"build_s": round(built, 1)})
        show(results[-1])
    print(
        json.dumps(
            {"queries": args.queries, "checked": args.checked, "words": round(float(words), 1), "sizes": results}
        )
    )


def show(result: dict) -> None:
    for kind in ("mixed", "held_out"):
        r = result[kind]
        print(
            f"{result['entries']:>9} entries, {kind:8}: {r['ms']:6.2f} ms a query ({r['cpu_ms']:.2f} of "
            f"processor), recall@1 {r['recall@1']:.3f}, "
            f"recall@{BEST} {r[f'recall@{BEST}']:.3f}, best similarity {r['similarity']:.3f} less "
            f"{r['similarity_lost']:.4f}; exact {r['exact_ms']:.1f} ms"
        )
    print(
        f"{'':>9} index {result['index_gb']:.2f} GB, peak memory {result['peak_rss_gb']:.2f} GB; {STEP} more "
        f"in {result[f'add_{STEP}_mean_s']:.3f} s (at most {result[f'add_{STEP}_max_s']:.3f}); built in "
        f"{result['build_s']:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
