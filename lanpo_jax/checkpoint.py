"""Saving and resuming a run; the only file that imports orbax.

A checkpoint holds the train state (arrays, sharded) and a JSON side: pool, counters, first evaluation, configuration.
Data order and randomness are functions of (seed, step), so the step number alone restores them.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

# What a resumed run may not change unless told so: other values would make it another run.
FIXED = ("seed", "model.path", "model.hf", "rollout.group", "lora.rank", "lora.alpha", "lora.targets")


class Checkpoints:
    """The checkpoints of one run, written in the background; `keep=None` only reads.

    Kept are the newest `keep`, every `keep_every`th step, and the best by the metric `best` ("max" or "min" of it).
    """

    def __init__(
        self, workdir: pathlib.Path, keep: int | None, keep_every: int = 0, best: str = "", best_is: str = "max"
    ):
        if best_is not in ("max", "min"):
            raise ValueError(f"checkpoint.best_is={best_is!r} is not known; there are: max, min.")
        self._best = best
        if keep is None:
            options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        else:
            kept = [policies.LatestN(n=keep)]
            kept += [policies.EveryNSteps(interval_steps=keep_every)] if keep_every else []
            if best:
                kept.append(_best_of(best, best_is))
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept), enable_async_checkpointing=True
            )
        self._manager = ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options)

    def save(self, step: int, state: Any, side: dict[str, Any], numbers: Mapping[str, float | None] = {}) -> None:
        """Starts writing the state after `step` steps; returns before it is on disk. Saving a step twice is a no-op.

        `numbers` are the step's metrics: the best checkpoint is chosen among those that have the metric.
        """
        if step in self._manager.all_steps():
            return
        side = json.loads(json.dumps(side))  # written in the background, while the run goes on changing its counters
        parts = ocp.args.Composite(state=ocp.args.StandardSave(state), side=ocp.args.JsonSave(side))
        value = numbers.get(self._best)
        self._manager.save(step, args=parts, metrics=None if value is None else {self._best: float(value)})

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def pick(self, step: int | None) -> int:
        """The step asked for, or the newest. Raises FileNotFoundError in one sentence if it is not there."""
        steps = sorted(self._manager.all_steps())
        if not steps or step not in (None, *steps):
            there = f"there are: {', '.join(map(str, steps))}" if steps else "the folder has no checkpoints"
            asked = "checkpoint" if step is None else f"checkpoint of step {step}"
            raise FileNotFoundError(f"There is no {asked} in {self._manager.directory.parent}; {there}.")
        return steps[-1] if step is None else step

    def restore(self, step: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        """State and side of a step, each array placed as `abstract` says. Raises ValueError where shapes differ."""
        parts = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), side=ocp.args.JsonRestore())
        try:
            found = self._manager.restore(step, args=parts)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"The checkpoint of step {step} does not match this configuration's model or optimizer "
                f"({str(error).splitlines()[0][:200]}); use another --workdir or the configuration it was made with."
            ) from error
        # Fresh buffers of the executor's own: donating memory that the reader still holds would be unsafe.
        return jax.tree.map(jax.numpy.copy, found.state), dict(found.side)

    def read(
        self, step: int, abstract: Any | None = None, where: Sequence[str] = ("train", "params")
    ) -> tuple[Any, dict[str, Any]]:
        """A part of a step's state, the policy's parameters, placed as `abstract` says (None: none), and the side."""
        parts: dict[str, Any] = {"side": ocp.args.JsonRestore()}
        if abstract is not None:
            wanted = functools.reduce(lambda tree, name: {name: tree}, reversed(where), abstract)
            placed = ocp.checkpoint_utils.construct_restore_args(wanted)
            parts["state"] = ocp.args.PyTreeRestore(wanted, restore_args=placed, partial_restore=True)
        found = self._manager.restore(step, args=ocp.args.Composite(**parts))
        if abstract is None:
            return None, dict(found.side)
        params = functools.reduce(lambda tree, name: tree[name], where, found.state)
        read = jax.tree.map(lambda a, x: isinstance(x, jax.Array) and a.shape == x.shape, abstract, params)
        if not all(jax.tree.leaves(read)):
            raise ValueError(f"The checkpoint of step {step} holds another model than the configuration describes.")
        return params, dict(found.side)

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()


def _best_of(name: str, best_is: str) -> policies.PreservationPolicy:
    """Keeps the one checkpoint with the best value of a metric; those saved without an evaluation do not count."""
    sign = 1 if best_is == "max" else -1
    return policies.BestN(
        get_metric_fn=lambda numbers: sign * numbers[name], n=1, keep_checkpoints_without_metrics=False
    )


def fixed(changed: Sequence[str], other_problems: bool) -> list[str]:
    """Which of the lines of `changes`, and of the training problems, would make another run of a resumed one."""
    found = [name for name in FIXED if any(line.startswith(f"config.{name}:") for line in changed)]
    return found + ["set of training problems"] * other_problems


def changes(before: dict, after: dict, path: str = "config") -> list[str]:
    """'config.a.b: old -> new' for every leaf that differs."""
    after = json.loads(json.dumps(after, default=list))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += changes(old, new, f"{path}.{key}")
        elif old != new:
            lines.append(f"{path}.{key}: {old!r} -> {new!r}")
    return lines
