"""Published checkpoints <-> our parameters: one table of names drives reading and writing.

Our matrices are [in, out], Hugging Face's [out, in]. Layers are either `layers_0` .. `layers_{R-1}`, each a dict, or
one dict `layers` whose leaves have a leading [R] axis.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanpo_jax.models import gguf_format, hf_format, published

# our name -> (Hugging Face's, is it a matrix whose axes are swapped)
TOP = {
    "embed": ("model.embed_tokens.weight", False),
    "final_norm": ("model.norm.weight", False),
    "head": ("lm_head.weight", True),
}
LAYER = {
    "attention_norm": ("input_layernorm.weight", False),
    "q": ("self_attn.q_proj.weight", True),
    "k": ("self_attn.k_proj.weight", True),
    "v": ("self_attn.v_proj.weight", True),
    "o": ("self_attn.o_proj.weight", True),
    "q_bias": ("self_attn.q_proj.bias", False),
    "k_bias": ("self_attn.k_proj.bias", False),
    "v_bias": ("self_attn.v_proj.bias", False),
    "q_norm": ("self_attn.q_norm.weight", False),
    "k_norm": ("self_attn.k_norm.weight", False),
    "mlp_norm": ("post_attention_layernorm.weight", False),
    "gate": ("mlp.gate_proj.weight", True),
    "up": ("mlp.up_proj.weight", True),
    "down": ("mlp.down_proj.weight", True),
}
IGNORED = re.compile(r".*(rotary_emb\.inv_freq|rope_freqs\.weight)")  # derived from the config


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one published tensor lives among our parameters."""

    keys: tuple[str, ...]  # path in the nested dicts
    layer: int | None  # index on the leading axis of a stacked leaf
    transpose: bool


def open_checkpoint(path: str | Path) -> published.Checkpoint:
    """Opens a Hugging Face directory or a .gguf file; reads headers only.

    Raises FileNotFoundError or ValueError in one sentence if it is missing, cut off or of an unknown kind.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}; pass a Hugging Face directory or a .gguf file.")
    if path.is_dir():
        return hf_format.open_directory(path)
    if path.suffix == ".gguf":
        return gguf_format.open_file(path)
    if path.suffix == ".safetensors":
        raise ValueError(f"{path} is one file of a checkpoint; pass its folder {path.parent} with the config.json.")
    raise ValueError(f"{path} is neither a Hugging Face directory nor a .gguf file; these two are known.")


def export_names(params: Mapping[str, Any]) -> dict[str, Place]:
    """Hugging Face's name of every tensor in a parameter tree (arrays or ShapeDtypeStructs, either layout).

    Raises ValueError for a parameter the table does not know.
    """
    places = {}
    for key, leaf in params.items():
        if key == "layers":
            for name, stacked in leaf.items():
                hf, transpose = _layer_entry(name)
                for i in range(stacked.shape[0]):
                    places[f"model.layers.{i}.{hf}"] = Place((key, name), i, transpose)
        elif match := re.fullmatch(r"layers_(\d+)", key):
            for name in leaf:
                hf, transpose = _layer_entry(name)
                places[f"model.layers.{match[1]}.{hf}"] = Place((key, name), None, transpose)
        elif key in TOP:
            places[TOP[key][0]] = Place((key,), None, TOP[key][1])
        else:
            raise ValueError(f"Parameter {key!r} has no Hugging Face name; known are layers and {', '.join(TOP)}.")
    return places


def _layer_entry(name: str) -> tuple[str, bool]:
    if name not in LAYER:
        raise ValueError(f"Layer parameter {name!r} has no Hugging Face name; known are {', '.join(LAYER)}.")
    return LAYER[name]


def export_tensor(params: Mapping[str, Any], place: Place) -> np.ndarray:
    """One parameter on the host, in Hugging Face's axis order: the reverse of what `load_params` does with it."""
    leaf = functools.reduce(lambda node, key: node[key], place.keys, params)
    host = np.asarray(leaf if place.layer is None else leaf[place.layer])
    return np.ascontiguousarray(host.T) if place.transpose else host


def export_shape(params: Mapping[str, Any], place: Place) -> tuple[int, ...]:
    """The shape of what `export_tensor` gives."""
    leaf = functools.reduce(lambda node, key: node[key], place.keys, params)
    shape = tuple(leaf.shape if place.layer is None else leaf.shape[1:])
    return shape[::-1] if place.transpose else shape


def load_params(checkpoint: published.Checkpoint, abstract_params: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a checkpoint into a tree of jax.Arrays like `abstract_params`, of jax.ShapeDtypeStructs.

    Each leaf gets the struct's dtype and, if it has one, its sharding. One tensor is in host memory at a time, so
    leaves fill up layer by layer on the devices. Raises ValueError for missing, surplus or differently shaped tensors.
    """
    places = export_names(abstract_params)
    _check_names(checkpoint, places)
    _check_shapes(checkpoint, places, abstract_params)
    if "head" not in abstract_params:
        _check_tied(checkpoint)
    params: dict[str, Any] = {}
    for keys, sources in _by_leaf(places).items():
        struct = functools.reduce(lambda node, key: node[key], keys, abstract_params)
        node = functools.reduce(lambda node, key: node.setdefault(key, {}), keys[:-1], params)
        node[keys[-1]] = _load_leaf(checkpoint, struct, sources)
    return params


def _by_leaf(places: Mapping[str, Place]) -> dict[tuple[str, ...], list[tuple[str, Place]]]:
    leaves: dict[tuple[str, ...], list[tuple[str, Place]]] = {}
    for name, place in places.items():
        leaves.setdefault(place.keys, []).append((name, place))
    return leaves


def _load_leaf(
    checkpoint: published.Checkpoint, struct: jax.ShapeDtypeStruct, sources: Iterable[tuple[str, Place]]
) -> jax.Array:
    (first, place), *_ = sources
    if place.layer is None:
        return _put(_read(checkpoint, first, place, struct.dtype), struct.sharding)
    buffer = jnp.zeros(struct.shape, struct.dtype, device=struct.sharding)
    # Without donation each layer's write would copy the whole stacked leaf.
    write = jax.jit(_write, donate_argnums=0, out_shardings=struct.sharding)
    for name, place in sources:
        layer = _put(_read(checkpoint, name, place, struct.dtype)[None], struct.sharding)
        buffer = write(buffer, layer, place.layer)
        buffer.block_until_ready()  # else reading runs ahead and the host holds several layers
    return buffer


def _write(buffer: jax.Array, layer: jax.Array, index: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(buffer, layer, index, axis=0)


def _read(checkpoint: published.Checkpoint, name: str, place: Place, dtype: Any) -> np.ndarray:
    host = checkpoint.read(name)
    return (host.T if place.transpose else host).astype(dtype, order="C")


def _put(host: np.ndarray, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """Puts host values on the devices, on each process only its part. A layer [1, ...] fits its stacked leaf's
    sharding, as the axis of layers is never divided.
    """
    if sharding is None:
        return jnp.asarray(host)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _check_names(checkpoint: published.Checkpoint, places: Mapping[str, Place]) -> None:
    missing = [name for name in places if name not in checkpoint.shapes]
    if missing:
        raise ValueError(
            f"{checkpoint.path} lacks {len(missing)} of the {len(places)} tensors of the model: {_some(missing)}; "
            "the model's config does not fit this checkpoint, or the download is incomplete."
        )
    tied = TOP["head"][0]
    surplus = [n for n in checkpoint.shapes if n not in places and n != tied and not IGNORED.fullmatch(n)]
    if surplus:
        raise ValueError(
            f"{checkpoint.path} has {len(surplus)} tensors that the model has no place for: {_some(surplus)}; "
            "the model's config does not fit this checkpoint."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _check_shapes(
    checkpoint: published.Checkpoint, places: Mapping[str, Place], abstract_params: Mapping[str, Any]
) -> None:
    for name, place in places.items():
        leaf = functools.reduce(lambda node, key: node[key], place.keys, abstract_params)
        ours = tuple(leaf.shape) if place.layer is None else tuple(leaf.shape[1:])
        theirs = checkpoint.shapes[name]
        if ours != (theirs[::-1] if place.transpose else theirs):
            raise ValueError(
                f"{name} in {checkpoint.path} has the shape {theirs} but the model's {'.'.join(place.keys)} is {ours}"
                f"{' (transposed)' if place.transpose else ''}; the model's config does not fit this checkpoint."
            )


def _check_tied(checkpoint: published.Checkpoint) -> None:
    """A tied model has no head of its own, so a stored one must repeat the embedding."""
    embed, head = TOP["embed"][0], TOP["head"][0]
    if head in checkpoint.shapes and not np.array_equal(checkpoint.read(embed), checkpoint.read(head)):
        raise ValueError(
            f"{checkpoint.path} has a {head} that differs from {embed}; set tie_word_embeddings to false in its config."
        )
