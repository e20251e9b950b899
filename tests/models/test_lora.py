"""Adapters: merged and beside, of no effect at the start, laid out as the matrices they belong to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax.models import lora as lora_lib
from lanpo_jax.models import qwen
from tests.models import tiny

IDS = jnp.asarray(np.random.default_rng(0).integers(0, 97, (2, 11)))


def hidden(config, params, mesh, adapters=None):
    variables = {"params": params} if adapters is None else {"params": params, "lora": adapters}
    positions = jnp.broadcast_to(jnp.arange(11), IDS.shape)
    with jax.set_mesh(mesh):
        return np.asarray(qwen.Decoder(config).apply(variables, IDS, positions, jnp.ones_like(IDS))[0])


def adapters(lora, config, started=False):
    made = lora_lib.init(lora_lib.abstract(lora, config, "float32")[0], jax.random.key(1))
    rng = np.random.default_rng(2)
    fill = lambda path, x: x if started or path[-1].key == "a" else jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype)  # noqa: E731
    return jax.tree_util.tree_map_with_path(fill, made)


@pytest.mark.parametrize("form", tiny.FORMS)
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("targets", [lora_lib.TARGETS, ("q", "down")])
def test_merged_equals_beside(form, scan, targets, mesh):
    lora = lora_lib.Lora(4, 2.0, targets)
    config = tiny.config(form, scan_layers=scan)
    params = tiny.params(config, mesh, scale=3.0)
    made = adapters(lora, config)
    beside = hidden(config, params, mesh, lora_lib.scaled(made, lora.scale))
    np.testing.assert_allclose(hidden(config, lora_lib.merged(params, made, lora.scale), mesh), beside, atol=1e-5)
    assert np.abs(beside - hidden(config, params, mesh)).max() > 0.1


def test_no_effect_at_the_start(mesh):
    lora, config = lora_lib.Lora(4, 8.0, lora_lib.TARGETS), tiny.config("qwen3")
    params, made = tiny.params(config, mesh), adapters(lora, config, started=True)
    assert all(jnp.any(x != 0) for path, x in jax.tree_util.tree_leaves_with_path(made) if path[-1].key == "a")
    merged = lora_lib.merged(params, made, lora.scale)
    jax.tree.map(np.testing.assert_array_equal, merged, params)
    np.testing.assert_array_equal(hidden(config, params, mesh, made), hidden(config, params, mesh))


def test_a_factor_is_split_as_its_side_of_the_matrix():
    lora = lora_lib.Lora(3, 1.0, ("o", "up"))
    shapes, axes = lora_lib.abstract(lora, tiny.config("llama", scan_layers=True), "float32")
    assert axes == {"layers": {
        "o": {"a": ("layers", "heads", None), "b": ("layers", None, "embed")},
        "up": {"a": ("layers", "embed", None), "b": ("layers", None, "mlp")},
    }}  # fmt: skip
    assert shapes["layers"]["up"]["a"].shape == (2, 32, 3) and shapes["layers"]["up"]["b"].shape == (2, 3, 80)


def test_wrong_options_are_one_sentence():
    with pytest.raises(ValueError, match=r"'gates'.*gate.*there are: q, k"):
        lora_lib.Lora(4, 1.0, ("q", "gates"))
    with pytest.raises(ValueError, match="there are"):
        lora_lib.Lora(4, 1.0, ())
    with pytest.raises(ValueError, match=r"lora\.rank=-1"):
        lora_lib.Lora(-1, 1.0, ("q",))
