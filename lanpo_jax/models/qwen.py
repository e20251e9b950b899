"""The decoder: Qwen2/2.5 (bias on q, k, v), Qwen3 (norm on q and k, own head size) and Llama forms, one module.

Parameters are a plain nested dict (see `abstract`): `embed` [V, D], `layers_0` .. or stacked `layers`, `final_norm`,
and `head` [D, V] unless tied. Matrices are [in, out]. Published configurations are read by `ModelConfig.from_hf`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import ad_checkpoint

from lanpo_jax import sharding, spec
from lanpo_jax.models import attention

FORMS = ("qwen2", "qwen3", "llama")
REMAT = ("none", "full", "dots", "offload")
LAYER_INPUT = "layer_input"  # what remat='offload' keeps on the host
ROPE_SCALINGS = ("default", "linear", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of a network and how it is executed. Letters as in types.py."""

    vocab: int
    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()  # items of HF's rope_scaling, hashable
    dtype: str = "float32"  # of activations and products; parameters keep their own
    scan_layers: bool = False  # one compiled layer over stacked weights: fast to compile; unrolled is faster on CPU
    remat: str = "none"

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, dtype: str = "float32", scan_layers: bool = False,
                remat: str = "none") -> ModelConfig:  # fmt: skip
        """From the content of a published config.json. Raises ValueError for forms that this module is not."""
        form = config.get("model_type")
        if form not in FORMS:
            raise ValueError(f"Model type {form!r} is not supported; known are {', '.join(FORMS)}.")
        if remat not in REMAT:
            raise ValueError(f"Remat policy {remat!r} is not known{spec.nearest(remat, REMAT)}; there are {REMAT}.")
        _refuse_unsupported(config, form)
        heads = config["num_attention_heads"]
        # Newer files hold rope_theta and the scaling in one dict, rope_parameters.
        rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        kind = rope.pop("type", None) or "default"
        rope.setdefault("rope_type", kind)
        theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
        if rope["rope_type"] not in ROPE_SCALINGS:
            raise ValueError(f"RoPE scaling {rope['rope_type']!r} is not supported; known are {ROPE_SCALINGS}.")
        if rope["rope_type"] == "default":
            rope = {}
        else:
            rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
        return cls(
            vocab=config["vocab_size"],
            width=config["hidden_size"],
            mlp=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            qkv_bias=form == "qwen2",
            qk_norm=form == "qwen3",
            tied=bool(config.get("tie_word_embeddings", False)),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(theta),
            rope_scaling=tuple(sorted(rope.items())),
            dtype=dtype,
            scan_layers=scan_layers,
            remat=remat,
        )


def _refuse_unsupported(config: Mapping[str, Any], form: str) -> None:
    """A silently ignored option would be a wrong model."""
    wants = {
        "hidden_act": config.get("hidden_act", "silu") not in ("silu", "swish"),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "attention_bias": form != "qwen2" and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
    }
    for key, wanted in wants.items():
        if wanted:
            raise ValueError(f"This checkpoint's {key}={config[key]!r} is not supported by the {form} form here.")


def rope_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Angular frequency of each pair of head dimensions, float64 [H/2], and the factor on cos and sin.

    Scalings: linear; llama3 (Llama 3.1's smooth interpolation by wavelength); yarn (arXiv 2309.00071).
    """
    size, base, scaling = config.head_size, config.rope_theta, dict(config.rope_scaling)
    plain = base ** (-np.arange(0, size, 2) / size)
    kind, factor = scaling.get("rope_type", "default"), scaling.get("factor", 1.0)
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * plain / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0

    def dimension(turns: float) -> float:  # where a pair turns this often over the original length
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow") or 1)), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    attention_factor = scaling.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return ramp * plain / factor + (1 - ramp) * plain, attention_factor


def rope_tables(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin of the rotation at each position, [..] -> two float32 [.., 1, H/2]."""
    frequencies, factor = rope_frequencies(config)
    angles = positions[..., None, None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """RoPE on [.., heads, H], first half paired with second (arXiv 2104.09864, in HF's order)."""
    cos, sin = tables
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) · scale over the last axis, statistics in float32 (arXiv 1910.07467)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale.astype(jnp.float32)).astype(x.dtype)


class Block(nn.Module):
    """One layer: attention, then SwiGLU (arXiv 2002.05202), each on the normed input and added to it."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x, tables, segments):
        """x [B, L, D] -> x [B, L, D] and (k, v) of the whole row."""
        c = self.config
        x = ad_checkpoint.checkpoint_name(x, LAYER_INPUT)
        normed = rms_norm(x, self._vector("attention_norm", c.width), c.norm_eps)
        q = self._heads(normed, "q", c.heads)
        k = self._heads(normed, "k", c.kv_heads)
        v = self._heads(normed, "v", c.kv_heads)
        if c.qk_norm:
            q = rms_norm(q, self._vector("q_norm", c.head_size), c.norm_eps)
            k = rms_norm(k, self._vector("k_norm", c.head_size), c.norm_eps)
        q, k = rotate(q, tables), rotate(k, tables)
        mixed = attention.full(q, k, v, segments)
        mixed = mixed.reshape(*mixed.shape[:-2], c.heads * c.head_size)
        x = x + self._matmul(mixed, "o", c.width, ("heads", "embed"))

        # Flat rows: XLA:CPU otherwise computes silu's gradient once per use inside the weights' gradients.
        normed = rms_norm(x, self._vector("mlp_norm", c.width), c.norm_eps).reshape(-1, c.width)
        gate = self._matmul(normed, "gate", c.mlp, ("embed", "mlp"))
        up = self._matmul(normed, "up", c.mlp, ("embed", "mlp"))
        down = self._matmul(jax.nn.silu(gate) * up, "down", c.width, ("mlp", "embed"))
        x = x + down.reshape(x.shape)
        return _pinned(self, x), (k, v)

    def _vector(self, name: str, size: int, axis: str | None = None, init=nn.initializers.ones):
        return self.param(name, nn.with_logical_partitioning(init, (axis,)), (size,))

    def _matmul(self, x: jax.Array, name: str, size: int, axes: tuple[str, str]) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), axes)
        kernel = self.param(name, init, (x.shape[-1], size))
        y = x @ kernel.astype(x.dtype)
        if self.has_variable("lora", name):
            factors = self.get_variable("lora", name)
            y += (x @ factors["a"].astype(x.dtype)) @ factors["b"].astype(x.dtype)
        return y

    def _heads(self, x: jax.Array, name: str, heads: int) -> jax.Array:
        size = heads * self.config.head_size
        y = self._matmul(x, name, size, ("embed", "heads"))
        if self.config.qkv_bias:
            y = y + self._vector(f"{name}_bias", size, "heads", nn.initializers.zeros).astype(y.dtype)
        return y.reshape(*y.shape[:-1], heads, self.config.head_size)


class Decoder(nn.Module):
    """Token ids to final hidden states; the head is apart (`head`), so that nobody pays for logits that are not read.

    `tokens`, `positions`, `segments` [B, L] -> hidden [B, L, D] and (k, v) [B, L, K, H] of each layer: a tuple, or
    stacked on axis 0 with `config.scan_layers`. One token at a time is `packed.step`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens, positions, segments):
        c = self.config
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocab", "embed"))
        embed = self.param("embed", init, (c.vocab, c.width))
        x = _pinned(self, embed.astype(c.dtype)[tokens])
        tables = rope_tables(c, positions)
        block = _remat(Block, c.remat)
        if c.scan_layers:
            layers = nn.scan(
                block,
                variable_axes={"params": 0, "lora": 0},
                split_rngs={"params": True},
                in_axes=(nn.broadcast, nn.broadcast),
                length=c.layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )(c, name="layers")
            x, memory = layers(x, tables, segments)
        else:
            memory = ()
            for i in range(c.layers):
                x, kept = block(c, name=f"layers_{i}")(x, tables, segments)
                memory += (kept,)
        scale = self.param("final_norm", nn.with_logical_partitioning(nn.initializers.ones, (None,)), (c.width,))
        if not c.tied:
            init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("embed", "vocab"))
            self.param("head", init, (c.width, c.vocab))
        return rms_norm(x, scale, c.norm_eps), memory


def _pinned(module: nn.Module, x: jax.Array) -> jax.Array:
    """Rows stay on their devices; at initialisation there is but one row."""
    return x if module.is_initializing() else sharding.constrain(x, "batch", *(None,) * (x.ndim - 1))


def _remat(block: type[nn.Module], policy: str) -> type[nn.Module]:
    """Trades time for memory in the backward pass: keep all | matrix products | layer inputs | those, on the host."""
    if policy == "none":
        return block
    policies = jax.checkpoint_policies
    kept = {
        "dots": policies.dots_with_no_batch_dims_saveable,
        "full": None,
        "offload": policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=[LAYER_INPUT], offload_src="device",
            offload_dst=sharding.HOST,
        ),
    }  # fmt: skip
    return nn.remat(block, policy=kept[policy], prevent_cse=False)


def head(params: Mapping[str, Any]) -> jax.Array:
    """The output matrix [D, V]: its own, or the transposed embedding where they are tied."""
    return params["head"] if "head" in params else params["embed"].T


def logits(params: Mapping[str, Any], hidden: jax.Array) -> jax.Array:
    """float32 [.., V] from hidden states [.., D]."""
    return jnp.matmul(hidden, head(params).astype(hidden.dtype), preferred_element_type=jnp.float32)


def abstract(config: ModelConfig, dtype: str = "float32") -> tuple[Any, Any]:
    """Shapes (ShapeDtypeStruct) and logical axes of all parameters, as two equal trees; nothing is allocated."""
    boxed = jax.eval_shape(lambda: _init(config, jax.random.key(0)))
    axes = jax.tree.map(lambda b: b.names, boxed, is_leaf=lambda b: isinstance(b, nn.Partitioned))
    shapes = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, dtype), nn.meta.unbox(boxed))
    return shapes, axes


def init(config: ModelConfig, key: jax.Array) -> Any:
    """Random parameters: normal(0, 0.02) matrices, unit norms, zero biases."""
    return nn.meta.unbox(_init(config, key))


def _init(config: ModelConfig, key: jax.Array) -> Any:
    one = jnp.zeros((1, 1), jnp.int32)
    return Decoder(config).init(key, one, one, one)["params"]


def stack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Unrolled parameters (`layers_0`, ..) to stacked ones (`layers`), for scan_layers."""
    count = sum(name.startswith("layers_") for name in params)
    rest = {k: v for k, v in params.items() if not k.startswith("layers_")}
    return rest | {"layers": jax.tree.map(lambda *x: jnp.stack(x), *(params[f"layers_{i}"] for i in range(count)))}


def unstack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_layers`."""
    count = jax.tree.leaves(params["layers"])[0].shape[0]
    rest = {k: v for k, v in params.items() if k != "layers"}
    return rest | {f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(count)}
