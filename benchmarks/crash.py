"""Kills a run again and again and compares what comes out with the run that nobody touched.

    python benchmarks/crash.py [--kills=50] [--seed=0] [--folder=FOLDER]

A small run (a few steps of configs/tiny.py, a checkpoint after each) is ended by SIGKILL at random moments, start-up,
rollout, update and save alike, and started again until it is through; then the next round begins, until there were
`--kills` kills. Every round must end with the same bits as the undisturbed run: parameters and optimizer, pool file,
metrics (times and cache hits aside). The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from lanpo_jax import checkpoint, cli

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {
    "steps": 8, "warmup.steps": 12, "rollout.prompts": 4, "rollout.group": 4, "rollout.rows": 16, "eval.limit": 8,
    "eval.every": 3, "checkpoint.every": 1, "optimizer.rate": 1e-3, "data.train": "('addition(digits=1, count=40)',)",
    "data.eval.addition": "addition(digits=1, count=60, seed=3, part='eval')", "objective.kl": "k3(beta=0.01)",
    "rollout.episode": "lanpo(modes={'plain': .5, 'intra': .5}, min_pool=1, attempt_tokens=48, principle_tokens=48, "
                       "lesson='raw')",
}  # fmt: skip
OWN = ("time/", "perf/", "checker/ms", "checker/cache_hits")  # what belongs to a process and not to the run


def start(workdir: pathlib.Path) -> subprocess.Popen:
    """The run, in a process of its own."""
    command = [sys.executable, "-m", "lanpo_jax.main", "--config=configs/tiny.py", f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in SETTINGS.items()]
    log = open(workdir.with_suffix(".log"), "a")  # noqa: SIM115
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def outcome(workdir: pathlib.Path) -> dict:
    """What a finished run leaves, comparable."""
    saved = checkpoint.Checkpoints(workdir, None)
    state, side = saved.restore(saved.pick(None), None)
    saved.close()
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith(OWN)} for row in rows]
    arrays = [np.asarray(x) for x in jax.tree.leaves(state)]
    pool = (workdir / "pool.jsonl").read_text() if (workdir / "pool.jsonl").exists() else ""
    return {"arrays": arrays, "side": side, "rows": rows, "pool": pool}


def differences(a: dict, b: dict) -> list[str]:
    """Which parts of two outcomes are not the same."""
    same = all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(a["arrays"], b["arrays"], strict=True))
    return ([] if same else ["arrays"]) + [part for part in ("side", "rows", "pool") if a[part] != b[part]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--folder", type=pathlib.Path)
    asked = arguments.parse_args()
    cli.prepare()
    folder = asked.folder or pathlib.Path(tempfile.mkdtemp(prefix="crash"))
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(asked.seed)

    began = time.time()
    for name in ("warm", "whole"):  # the first fills the compilation cache, the second tells how long a run takes
        shutil.rmtree(folder / name, ignore_errors=True)
        began = time.time()
        if start(folder / name).wait():
            raise SystemExit(f"The undisturbed run failed; see {folder / name}.log.")
    length = time.time() - began
    whole, kills, rounds, wrong = outcome(folder / "whole"), 0, 0, []
    print(f"undisturbed: {length:.0f} s, {len(whole['rows'])} rows of metrics", flush=True)
    while kills < asked.kills:
        workdir = folder / f"round{rounds}"
        shutil.rmtree(workdir, ignore_errors=True)
        code = None
        while code != 0:
            run = start(workdir)
            try:
                code = run.wait(timeout=draw.uniform(0, length) if kills < asked.kills else None)
                if code:
                    raise SystemExit(f"Round {rounds} failed after a kill; see {workdir}.log.")
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
                kills += 1
        found = differences(whole, outcome(workdir))
        wrong += found
        print(
            f"round {rounds}: {kills} kills so far, {'equal' if not found else 'differs in ' + str(found)}", flush=True
        )
        rounds += 1
    print(
        json.dumps({"kills": kills, "rounds": rounds, "differences": len(wrong), "seconds_undisturbed": round(length)})
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
