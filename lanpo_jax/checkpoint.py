"""Saving and resuming a run; the only file that imports orbax.

A checkpoint holds the train state (arrays, sharded) and a JSON side: pool, counters, first evaluation, configuration.
Data order and randomness are functions of (seed, step), so the step number alone restores them.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """The checkpoints of one run, written in the background, the newest `keep` kept."""

    def __init__(self, workdir: pathlib.Path, keep: int):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options)

    def save(self, step: int, state: Any, side: dict[str, Any]) -> None:
        """Starts writing the state after `step` steps; returns before it is on disk. Saving a step twice is a no-op."""
        if step in self._manager.all_steps():
            return
        parts = ocp.args.Composite(state=ocp.args.StandardSave(state), side=ocp.args.JsonSave(side))
        self._manager.save(step, args=parts)

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

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

    def close(self) -> None:
        """Waits until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()
