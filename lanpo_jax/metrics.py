"""Numbers of a step: what groups and evaluations say, and the writers of metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import event_file_writer

from lanpo_jax import batching
from lanpo_jax.types import Group

Numbers = Mapping[str, float | None]


def groups(found: Sequence[Group], advantages: Sequence[np.ndarray]) -> dict[str, float | None]:
    """Rewards and lengths of a step's groups, and the advantages of those trained on, under their usual names.

    `frac_reward_zero_std` counts rows of equal rewards, one for all groups that share an advantage's statistics.
    """
    rewards = np.concatenate([g.grades.rewards for g in found])
    correct = np.concatenate([g.grades.correct for g in found])
    advantages = np.concatenate([np.ravel(values) for values in advantages])
    place = batching.Placement.of(found)
    known = np.isfinite(rewards)  # others could not be computed
    lengths = np.array([len(c.tokens) for g in found for c in g.generation.completions])
    truncated = np.array([c.truncated for g in found for c in g.generation.completions])
    high, low = (place.gather(np.where(known, rewards, none), none) for none in (-np.inf, np.inf))
    flat = high.max(-1) <= low.min(-1)
    right = place.gather(correct, True).all(-1)
    wrong = ~place.gather(correct, False).any(-1)
    ended = lengths[~truncated]
    parts = {name for g in found for name in g.grades.parts}
    return {
        "reward/mean": _average(rewards),
        "reward/std": float(rewards[known].std()) if known.any() else math.nan,
        "reward/unknown": float((~known).mean()),
        "reward/correct": float(correct.mean()),
        **{f"rewards/{n}/mean": _average(np.concatenate([g.grades.parts[n] for g in found])) for n in sorted(parts)},
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
        "aborted_ratio": float((lengths == 0).mean()),
    }


def _average(values: np.ndarray) -> float:
    """The mean of what is known; NaN (written as null) where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


# Dense bfloat16 operations per second of a chip, from its vendor's data sheet, by the start of its device kind.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}


def utilisation(kind: str, devices: int, parameters: int, tokens: int, seconds: float) -> float | None:
    """Share of the chips' peak that a whole step used, None where the peak is not known (as on CPU).

    Counted are 2 operations per parameter to generate a token and 6 to train on it (arXiv 2204.02311); prompts,
    attention and scoring are not, so that it reads low.
    """
    peak = next((peak for name, peak in PEAKS.items() if kind.startswith(name)), None)
    return None if peak is None else 8.0 * parameters * tokens / (seconds * devices * peak)


def peak_memory() -> float:
    """Gigabytes used at most so far: of the fullest local device, or where devices do not tell, of this process."""
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in told if "peak_bytes_in_use" in stats]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return max(peaks, default=resident) / 1e9


class Trace:
    """A jax.profiler trace (TensorBoard, Perfetto) of some steps of a run, the first one, which compiles, left out."""

    def __init__(self, folder: pathlib.Path, steps: int, start: int, end: int):
        """Of `steps` steps from the second of `start`..`end` on, or of the only one; 0: none."""
        first = max(start, min(start + 1, end - 1))
        self._folder, self._traced, self._running = folder, range(first, first + steps), False

    def before(self, step: int) -> None:
        """To be called as every step begins."""
        if step in self._traced and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        elif step not in self._traced:
            self.close()

    def close(self) -> None:
        """Writes what has been traced."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False


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
            with jax.profiler.TraceAnnotation(phase):
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
    workdir: pathlib.Path, step: int, groups: Sequence[Group], advantages: Sequence[np.ndarray], keep: int
) -> None:
    """One JSON line per completion in rollouts/step_*.jsonl: prompt shown, text, reward and why; `keep` steps stay."""
    folder = workdir / "rollouts"
    folder.mkdir(exist_ok=True)
    with open(folder / f"step_{step:06}.jsonl", "w", encoding="utf-8") as file:
        for group, values in zip(groups, advantages, strict=True):
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
