"""Which checkpoints stay: the newest, every k-th, the best by a metric; what makes a resumed run another one."""

import gc
import pathlib
import re
import threading

import jax
import numpy as np
import pytest

from lanpo_jax import checkpoint, sharding
from lanpo_jax.models import qwen


def kept(folder, values, **options):
    saved = checkpoint.Checkpoints(folder, **options)
    for step, value in enumerate(values):
        saved.save(step, {"x": np.ones(2) * step}, {"step": step}, {} if value is None else {"score": value})
    saved.close()
    return sorted(int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit())


def test_newest_periodic_and_best_are_kept(tmp_path):
    scores = [0.1, None, 0.9, 0.2, None, 0.5, 0.3, None]
    assert kept(tmp_path / "a", scores, keep=2) == [6, 7]
    assert kept(tmp_path / "b", scores, keep=1, keep_every=3) == [0, 3, 6, 7]
    assert kept(tmp_path / "c", scores, keep=1, best="score") == [2, 7]
    assert kept(tmp_path / "d", scores, keep=1, best="score", best_is="min") == [0, 7]
    with pytest.raises(ValueError, match="best_is='most' is not known; there are: max, min"):
        checkpoint.Checkpoints(tmp_path / "e", 1, best="score", best_is="most")


def test_what_is_saved_is_what_was_given(tmp_path, monkeypatch):
    """The side is written in the background: what the run changes after `save` returned is not in it."""
    write, side = checkpoint.ocp.JsonCheckpointHandler.async_save, {"counters": {"batches": 1}, "scores": [1.0]}
    begun = threading.Event()

    async def slow(self, *args, **options):
        begun.wait(10)
        return await write(self, *args, **options)

    monkeypatch.setattr(checkpoint.ocp.JsonCheckpointHandler, "async_save", slow)
    saved = checkpoint.Checkpoints(tmp_path, 1)
    threading.Timer(0.5, lambda: (side["counters"].update(batches=2), side["scores"].append(2.0), begun.set())).start()
    saved.save(0, {"x": np.ones(2)}, side)
    saved.close()
    assert checkpoint.Checkpoints(tmp_path, None).read(0)[1] == {"counters": {"batches": 1}, "scores": [1.0]}


def test_what_is_fixed():
    before = {"seed": 0, "rollout": {"group": 8, "prompts": 4}, "steps": 3}
    lines = checkpoint.changes(before, {"seed": 1, "rollout": {"group": 8, "prompts": 8}, "steps": 9})
    assert lines == ["config.rollout.prompts: 4 -> 8", "config.seed: 0 -> 1", "config.steps: 3 -> 9"]
    assert checkpoint.fixed(lines, False) == ["seed"]
    assert checkpoint.fixed([], True) == ["set of training problems"]


NETWORK = qwen.ModelConfig(
    vocab=64, width=32, mlp=64, layers=2, heads=4, kv_heads=2, head_size=8, tied=True, scan_layers=True
)


def test_another_mesh_reads_the_same_bits(tmp_path):
    """One device, then 2 x 2 x 2, then one again: what is restored is placed as asked, and nothing changes."""
    one = sharding.make_mesh(data=1, fsdp=1, tensor=1, devices=jax.devices()[:1])
    eight = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    rng = np.random.default_rng(0)
    abstract = {mesh: sharding.shard_abstract(mesh, *qwen.abstract(NETWORK, "float32")) for mesh in (one, eight)}
    first = jax.tree.map(lambda s: jax.device_put(rng.normal(size=s.shape).astype(s.dtype), s.sharding), abstract[one])
    state = first
    for step, there in enumerate([eight, one]):
        saved = checkpoint.Checkpoints(tmp_path / str(step), 1)
        saved.save(0, {"params": state}, {})
        saved.close()
        state = checkpoint.Checkpoints(tmp_path / str(step), None).restore(0, {"params": abstract[there]})[0]["params"]
        for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(abstract[there]), strict=True):
            assert leaf.sharding == wanted.sharding
        if there is eight:
            down = state["layers"]["down"]
            assert down.addressable_shards[0].data.size * 4 == down.size, "really divided"
    jax.tree.map(np.testing.assert_array_equal, first, state)


def test_memory_stays_flat_over_two_hundred_saves(tmp_path):
    """A megabyte a save: 150 further saves that kept anything of it would show."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc to read the resident memory from")
    saved, side = checkpoint.Checkpoints(tmp_path, 2), {"pool": {"texts": ["x" * 1000] * 200}}
    resident = []
    for step in range(200):
        saved.save(step, {"x": np.full(131_072, step, np.float64)}, side)
        if step in (49, 199):
            gc.collect()
            resident.append(int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024)
    saved.close()
    assert resident[1] - resident[0] < 40, f"memory went from {resident[0]:.0f} to {resident[1]:.0f} MB"
