"""Where arrays live: one mesh of three axes, and rules from an array's logical axes to them.

This is the only file that names a PartitionSpec. Networks name logical axes ("embed", "heads"); the rules below say
which mesh axis each is split over. See https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")

AXES = ("data", "fsdp", "tensor")
# Parameters are split over fsdp by their width and over tensor by heads, mlp or vocabulary; batches over both
# data and fsdp, so that fsdp devices gather weights and never see each other's rows.
RULES: dict[str | None, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
    "layers": None,
    None: None,
}


def make_mesh(*, data: int = 1, fsdp: int = -1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over all devices (or those given); one size may be -1 and takes what is left. Raises ValueError."""
    available = list(devices or jax.devices())
    sizes, count = [data, fsdp, tensor], len(available)
    if sizes.count(-1) > 1:
        raise ValueError(f"Mesh {dict(zip(AXES, sizes))} has more than one -1; name all sizes but one.")
    if -1 in sizes:
        sizes[sizes.index(-1)] = max(1, count // int(-np.prod(sizes)))
    if np.prod(sizes) != count:
        raise ValueError(
            f"Mesh {dict(zip(AXES, sizes))} needs {np.prod(sizes)} devices and there are {count}; "
            "change mesh.data, mesh.fsdp or mesh.tensor."
        )
    return jax.make_mesh(tuple(sizes), AXES, devices=available, axis_types=(AxisType.Auto,) * 3)


def partition(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The PartitionSpec of an array with these logical axes."""
    unknown = [a for a in axes if a not in RULES]
    if unknown:
        raise ValueError(
            f"No sharding rule for the logical axis {unknown[0]!r}; there are: {', '.join(map(str, RULES))}."
        )
    return PartitionSpec(*(RULES[a] for a in axes))


def named(mesh: Mesh, axes: tuple[str | None, ...]) -> NamedSharding:
    """The sharding on `mesh` of an array with these logical axes; () is replicated."""
    return NamedSharding(mesh, partition(axes))


def shard_abstract(mesh: Mesh, shapes: Any, axes: Any) -> Any:
    """Gives every ShapeDtypeStruct of a tree its sharding; raises ValueError where a size does not divide."""

    def one(path, shape, logical):
        sharding = named(mesh, logical)
        try:
            sharding.shard_shape(shape.shape)
        except ValueError as error:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{where} of shape {shape.shape} cannot be split by {sharding.spec} on {mesh.shape}; "
                             "change the mesh sizes.") from error  # fmt: skip
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(one, shapes, axes)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pins an intermediate value's layout inside jit. Raises where it would be a silent no-op (no mesh is set)."""
    if jax.sharding.get_abstract_mesh().empty:
        raise RuntimeError("constrain() needs a mesh; wrap the caller in `with jax.set_mesh(mesh):`.")
    return jax.lax.with_sharding_constraint(x, partition(axes))


def batch_devices(mesh: Mesh) -> int:
    """Over how many devices the rows of a batch are split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


HOST = "pinned_host"  # memory of the host that devices read directly


def check_host_memory(option: str) -> None:
    """Raises ValueError where this backend's devices cannot use the host's memory, which `option` asks for."""
    device = jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        raise ValueError(
            f"{option} needs {HOST} memory, and {device.device_kind} has {', '.join(kinds)}; choose otherwise."
        )


def to_device(mesh: Mesh, tree: Any, *axes: str | None) -> Any:
    """Host arrays, equal on every process, to global device arrays whose leading axes are the given logical ones."""

    def one(x):
        x = np.asarray(x)
        sharding = named(mesh, axes[: x.ndim])
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(one, tree)


def to_host(tree: Any) -> Any:
    """Device arrays to numpy, whole on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def any_process(flag: bool) -> bool:
    """Whether the flag is set on any process of the run: what one is told to do, all do, after the same step."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns on the first process, on all of them; the others do not call it.

    For what depends on more than its arguments, a time limit say: every process must decide the same.
    """
    if jax.process_count() == 1:
        return make()
    first = jax.process_index() == 0
    content = np.frombuffer(pickle.dumps(make()), np.uint8) if first else np.zeros(0, np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(content)), first))
    sent = multihost_utils.broadcast_one_to_all(content if first else np.zeros(size, np.uint8), first)
    return pickle.loads(np.asarray(sent).tobytes())
