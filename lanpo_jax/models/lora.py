"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / rank) (x A) B with W frozen, A and B trained.

Adapters are a tree of their own, shaped like the layers of the network's: {layer: {matrix: {"a": [in, r], "b":
[r, out]}}}, with a leading [R] axis where layers are stacked. B starts at 0, and so does their effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lanpo_jax import spec
from lanpo_jax.models import qwen

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which matrices have adapters, and of what rank."""

    rank: int
    alpha: float  # the adapters' product counts alpha / rank
    targets: tuple[str, ...]

    def __post_init__(self):
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets:
            name = unknown[0] if unknown else ""
            raise ValueError(
                f"lora.targets names {name!r}{spec.nearest(name, TARGETS)}; there are: {', '.join(TARGETS)}."
            )
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} must be 1 or more; 0 in a configuration trains all weights.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def abstract(lora: Lora, config: qwen.ModelConfig, dtype: str) -> tuple[Any, Any]:
    """Shapes and logical axes of the adapters, as two equal trees: what is split in a matrix is split in its factor."""
    shapes, axes = qwen.abstract(config, dtype)
    made: tuple[dict, dict] = ({}, {})
    for layer in (name for name in shapes if name.startswith("layers")):
        for tree in made:
            tree[layer] = {}
        for name in lora.targets:
            (*stack, rows, columns), (*over, along, across) = shapes[layer][name].shape, axes[layer][name]
            factors = {"a": (*stack, rows, lora.rank), "b": (*stack, lora.rank, columns)}
            made[0][layer][name] = {k: jax.ShapeDtypeStruct(shape, dtype) for k, shape in factors.items()}
            made[1][layer][name] = {"a": (*over, along, None), "b": (*over, None, across)}
    return made


def init(shapes: Any, key: jax.Array) -> Any:
    """A from normal(0, 1/in), B zero, of the given shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    made = []
    for number, (path, shape) in enumerate(leaves):
        if path[-1].key == "b":
            made.append(jnp.zeros(shape.shape, shape.dtype))
        else:
            draw = jax.random.normal(jax.random.fold_in(key, number), shape.shape, shape.dtype)
            made.append(draw * shape.shape[-2] ** -0.5)
    return jax.tree.unflatten(jax.tree.structure(shapes), made)


def scaled(adapters: Mapping[str, Any], scale: float) -> Any:
    """Adapters with B times alpha / rank, as the network reads them; entries that are no layers are left out."""
    layers = {name: layer for name, layer in adapters.items() if name.startswith("layers")}
    return {k: {n: {"a": f["a"], "b": f["b"] * scale} for n, f in layer.items()} for k, layer in layers.items()}


def merged(params: Mapping[str, Any], adapters: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """The network's parameters with the adapters added to their matrices: W + (alpha / rank) A B, in float32."""
    found = dict(params)
    for layer, factors in scaled(adapters, scale).items():
        changed = {}
        for name, f in factors.items():
            product = jnp.matmul(f["a"], f["b"], preferred_element_type=jnp.float32)
            changed[name] = (params[layer][name] + product).astype(params[layer][name].dtype)
        found[layer] = {**params[layer], **changed}
    return found
