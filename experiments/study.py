"""One study, one command: trains every arm with every seed at equal generated tokens, then writes table and figure.

    python experiments/study.py STUDY [--task=rules] [--seeds=3] [--arms=inter,raw] [--runs=runs/experiments]

Studies, tasks and arms are those of experiments/studies.py. Arms of one seed start from the same parameters and see the
same problems. Runs are kept by task, arm and seed: a study that was interrupted goes on where it stood, and studies
share their arms. Results go to experiments/results/STUDY-TASK.md, .json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import studies
import summary

HOME = pathlib.Path(__file__).resolve().parent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("study", choices=studies.STUDIES)
    arguments.add_argument("--task", choices=studies.TASKS, help="default: the first that the study is made for")
    arguments.add_argument("--seeds", type=int, help="how many; default: as the task says")
    arguments.add_argument("--arms", help="comma-separated; default: as the study says, always with untrained and grpo")
    arguments.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/experiments"))
    arguments.add_argument("--results", type=pathlib.Path, default=HOME / "results")
    asked = arguments.parse_args()

    study = studies.STUDIES[asked.study]
    name = asked.task or next(iter(study))
    task = studies.TASKS[name]
    arms = (*studies.ALWAYS, *(asked.arms.split(",") if asked.arms else study.get(name, ())))
    if unknown := [a for a in arms if a not in studies.ARMS]:
        arguments.error(f"there is no arm {', '.join(unknown)}; there are: {', '.join(studies.ARMS)}")
    seeds = range(asked.seeds or task.seeds)
    for seed in seeds:
        start = _start(task, asked.runs / name / "start" / f"seed{seed}", seed)
        for arm in arms:
            _train(task, studies.ARMS[arm], asked.runs / name / arm / f"seed{seed}", start, seed)
    command = f"python experiments/study.py {asked.study} --task={name} --seeds={len(seeds)}"
    summary.write(asked.results / f"{asked.study}-{name}", command, task, arms, asked.runs / name, seeds)


def _start(task: studies.Task, folder: pathlib.Path, seed: int) -> pathlib.Path:
    """The run of no steps that all arms of a seed go on from: parameters, first evaluation, reference."""
    if not (folder / "done.json").exists():
        _run(folder, [*_flags(task, folder, seed), "--config.steps=0", "--config.max_tokens=0"])
    return folder


def _train(task: studies.Task, arm: studies.Arm, folder: pathlib.Path, start: pathlib.Path, seed: int) -> None:
    """Trains one arm with one seed and evaluates it with more samples than on the way."""
    if (folder / "done.json").exists():
        return
    if not folder.exists():
        fresh = folder.with_name(folder.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(start, fresh, ignore=shutil.ignore_patterns("done.json", "tensorboard"))
        fresh.rename(folder)
    final = [
        "-m", "lanpo_jax.evaluate", f"--workdir={folder}", f"--modes={','.join(task.modes)}",
        f"--samples={task.samples}", f"--out={folder / 'final.json'}",
    ]  # fmt: skip
    _run(folder, _flags(task, folder, seed) + _settings(changes(task, arm)), final)


def changes(task: studies.Task, arm: studies.Arm) -> dict[str, Any]:
    """Configuration keys that make a task's configuration that of an arm."""
    options = {**task.episode, **arm.episode}
    return {"rollout.episode": f"lanpo({', '.join(f'{k}={v!r}' for k, v in options.items())})", **arm.overrides}


def _flags(task: studies.Task, folder: pathlib.Path, seed: int) -> list[str]:
    settings = {"seed": seed, "eval.modes": task.modes, "checkpoint.every": 30, "log.rollouts": 3, **task.overrides}
    return ["-m", "lanpo_jax.main", f"--config={task.config}", f"--workdir={folder}", *_settings(settings)]


def _settings(values: Mapping[str, Any]) -> list[str]:
    return [f"--config.{key}={value}" for key, value in values.items()]


def _run(folder: pathlib.Path, *commands: Sequence[str]) -> None:
    """Runs commands in turn, their output in the folder's log; leaves done.json with the seconds they took."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    path = os.pathsep.join(filter(None, [str(HOME.parent), os.environ.get("PYTHONPATH")]))
    for command in commands:
        print(f"{time.strftime('%H:%M:%S')}  {folder}: {command[1]}", flush=True)
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=HOME.parent,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
            )
        if done.returncode:
            raise SystemExit(f"{folder} ended with {done.returncode}; {folder / 'log.txt'} says why.")
    (folder / "done.json").write_text(json.dumps({"seconds": round(time.time() - began)}))


if __name__ == "__main__":
    main()
