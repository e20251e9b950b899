"""Numbers of a step: what groups and evaluations say, and the writers of metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import event_file_writer

from lanpo_jax.types import Group

Numbers = Mapping[str, float | None]


def groups(found: Sequence[Group], advantages: np.ndarray) -> dict[str, float | None]:
    """Rewards and lengths of a step's groups, and the advantages of those trained on, under their usual names."""
    rewards = np.concatenate([g.grades.rewards for g in found])
    lengths = np.array([len(c.tokens) for g in found for c in g.generation.completions])
    truncated = np.array([c.truncated for g in found for c in g.generation.completions])
    flat = np.array([g.grades.rewards.max() == g.grades.rewards.min() for g in found])
    right = np.array([g.grades.correct.all() for g in found])
    wrong = np.array([not g.grades.correct.any() for g in found])
    ended = lengths[~truncated]
    parts = {name for g in found for name in g.grades.parts}
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/correct": float(np.mean(np.concatenate([g.grades.correct for g in found]))),
        **{
            f"rewards/{n}/mean": float(np.mean(np.concatenate([g.grades.parts[n] for g in found])))
            for n in sorted(parts)
        },
        "frac_reward_zero_std": float(flat.mean()),
        "frac_reward_zero_std/all_right": float((flat & right).mean()),
        "frac_reward_zero_std/all_wrong": float((flat & wrong).mean()),
        "advantages/mean": float(advantages.mean()),
        "advantages/max": float(advantages.max()),
        "advantages/min": float(advantages.min()),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/min": float(lengths.min()),
        "response_length/terminated_mean": float(ended.mean()) if len(ended) else None,
        "truncated_ratio": float(truncated.mean()),
    }


def mean(found: Sequence[Numbers]) -> dict[str, float | None]:
    """The mean of each metric over several parts of a step, None where no part had data."""
    values = {k: [m[k] for m in found if m.get(k) is not None] for m in found for k in m}
    return {k: float(np.mean(v)) if v else None for k, v in values.items()}


class Clock:
    """Seconds spent per named phase since it was last read."""

    def __init__(self):
        self._spent: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] = self._spent.get(phase, 0.0) + time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """{"time/<phase>": seconds}, and starts anew."""
        spent, self._spent = self._spent, {}
        return {f"time/{phase}": seconds for phase, seconds in spent.items()}


class Writer:
    """Appends one flat JSON object a step to `metrics.jsonl`, and the same numbers to TensorBoard event files.

    Lines beyond `resume_step` (a run that was killed after logging and before saving) are cut off when it reopens.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int | None):
        self.path = workdir / "metrics.jsonl"
        kept = _lines_until(self.path, resume_step) if resume_step is not None else []
        self._file = open(self.path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # one line is one write
        self._file.writelines(kept)
        self._events = event_file_writer.EventFileWriter(str(workdir / "tensorboard"))

    def write(self, step: int, numbers: Numbers) -> None:
        """None is written as null, and so is whatever is not finite: the file stays valid JSON."""
        clean = {k: None if v is None or not math.isfinite(v) else float(v) for k, v in numbers.items()}
        self._file.write(json.dumps({"progress/step": step, **clean}) + "\n")
        values = [summary_pb2.Summary.Value(tag=k, simple_value=v) for k, v in clean.items() if v is not None]
        summary = summary_pb2.Summary(value=values)
        self._events.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
        self._events.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()


class Silent:
    """The writer of every process but the first: same calls, no files."""

    def write(self, step: int, numbers: Numbers) -> None:
        pass

    def close(self) -> None:
        pass


def write_rollouts(
    workdir: pathlib.Path, step: int, groups: Sequence[Group], advantages: np.ndarray, keep: int
) -> None:
    """One JSON line per completion in rollouts/step_*.jsonl: prompt shown, text, reward and why; `keep` steps stay."""
    folder = workdir / "rollouts"
    folder.mkdir(exist_ok=True)
    with open(folder / f"step_{step:06}.jsonl", "w", encoding="utf-8") as file:
        for group, values in zip(groups, advantages):
            for i, completion in enumerate(group.generation.completions):
                row = {
                    "step": step, "id": group.problem.id, "mode": group.mode, "sample": i,
                    "prompt": group.generation.prompt_text, "completion": completion.text,
                    "tokens": len(completion.tokens), "truncated": completion.truncated,
                    "reward": float(group.grades.rewards[i]), "correct": bool(group.grades.correct[i]),
                    "reason": group.grades.reasons[i], "advantage": float(np.mean(values[i])),
                    "answer": group.problem.answer, "sources": list(group.info.get("sources", ())),
                    "similarity": group.info.get("similarity"),
                }  # fmt: skip
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    for old in sorted(folder.glob("step_*.jsonl"))[:-keep]:
        old.unlink()


def _lines_until(path: pathlib.Path, step: int) -> list[str]:
    """The lines of steps up to `step`; a line torn by a crash is dropped."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            if json.loads(line)["progress/step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue
    return kept
