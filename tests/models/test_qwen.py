"""The decoder against transformers' numbers (tests/golden/make_models.py), and against itself in other forms."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax import sharding
from lanpo_jax.models import embedded, qwen, weights
from tests.models import tiny

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
FORMS = ["qwen2", "qwen2_tied_yarn", "qwen3", "llama_tied", "llama_llama3"]


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = qwen.Decoder(config).apply({"params": params}, tokens, positions, jnp.ones_like(tokens))
    return qwen.logits(params, hidden)


@functools.partial(jax.jit, static_argnums=1)
def cross_entropy(params, config, tokens):
    logp = jax.nn.log_softmax(run(config, params, tokens)[:, :-1])
    return -jnp.mean(jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1))


gradient = jax.jit(jax.value_and_grad(cross_entropy), static_argnums=1)


def load(folder, mesh, scan_layers=False):
    found = weights.open_checkpoint(folder)
    config = qwen.ModelConfig.from_hf(found.config, scan_layers=scan_layers)
    return config, weights.load_params(found, sharding.shard_abstract(mesh, *qwen.abstract(config)))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_logits_loss_and_gradients_equal_transformers(form, scan_layers, mesh):
    golden = np.load(GOLDEN / "models" / form / "golden.npz")
    config, params = load(GOLDEN / "models" / form, mesh, scan_layers)
    tokens = jnp.asarray(golden["tokens"])
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(run(config, params, tokens), golden["logits"], atol=1e-4)
        loss, grads = gradient(params, config, tokens)
    assert abs(float(loss) - float(golden["loss"])) < 1e-4
    places = weights.export_names(grads)
    exported = {name: weights.export_tensor(grads, place) for name, place in places.items()}
    assert set(golden["grad_names"]) == set(exported)
    for name, norm in zip(golden["grad_names"], golden["grad_norms"]):
        assert abs(np.linalg.norm(exported[str(name)]) - norm) < 1e-4 * max(1.0, norm), name
    for key in (k for k in golden.files if k.startswith("grad/")):
        np.testing.assert_allclose(exported[key.removeprefix("grad/")], golden[key], atol=1e-4)


def test_smollm2_equals_transformers(mesh):
    try:
        path = embedded.fetch()
    except embedded.Unavailable as reason:
        pytest.skip(str(reason))
    golden = np.load(GOLDEN / "smollm2.npz")
    config, params = load(path, mesh)
    tokens = jnp.asarray(golden["tokens"])[None]
    with jax.set_mesh(mesh):
        logits = np.asarray(run(config, params, tokens)[0])
        loss, grads = gradient(params, config, tokens)
    assert abs(float(loss) - float(golden["loss"])) < 1e-4
    places = weights.export_names(grads)
    assert set(golden["grad_names"]) == set(places)
    for name, norm in zip(golden["grad_names"], golden["grad_norms"]):
        made = weights.export_tensor(grads, places[str(name)]).astype(np.float64)  # 28 million squares: not in float32
        assert abs(np.linalg.norm(made) - norm) < 1e-4 * max(1.0, norm), name
    corner = weights.export_tensor(grads, places["model.layers.3.self_attn.q_proj.weight"])[:16, :16]
    np.testing.assert_allclose(corner, golden["grad_corner"], atol=1e-4)
    at = logits[golden["positions"]]
    np.testing.assert_allclose(at[:, golden["vocab"]], golden["logits"], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(at, golden["top_ids"], 1), golden["top_logits"], atol=1e-4)
    assert (np.argsort(-at, axis=1)[:, :5] == golden["top_ids"]).all()


@pytest.mark.parametrize("form", ["qwen2", "qwen3", "llama"])
def test_causality_by_gradient(form, mesh):
    """The hidden state at position 5 depends on the embeddings of positions up to 5, each of them, and no other."""
    config = tiny.config(form)
    params = tiny.params(config, mesh)
    tokens = jnp.arange(1, 11)[None]  # all different: a row of the embedding's gradient is a position

    def one(params):
        positions = jnp.arange(10)[None]
        hidden, _ = qwen.Decoder(config).apply({"params": params}, tokens, positions, jnp.ones_like(tokens))
        return hidden[0, 5].sum()

    with jax.set_mesh(mesh):
        by_embedding = jax.jit(jax.grad(one))(params)["embed"]
    reached = np.abs(np.asarray(by_embedding)[1:11]).max(1) > 0
    assert reached.tolist() == [True] * 6 + [False] * 4


@pytest.mark.parametrize("remat", ["full", "dots"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_scan_and_remat_change_nothing(scan_layers, remat, mesh):
    plain = tiny.config("qwen3")
    other = tiny.config("qwen3", scan_layers, remat)
    params = tiny.params(plain, mesh, scale=2.0)
    tokens = jax.random.randint(jax.random.key(0), (2, 9), 0, 97)
    with jax.set_mesh(mesh):
        loss, grads = gradient(params, plain, tokens)
        if scan_layers:
            loss2, grads2 = gradient(qwen.stack_layers(params), other, tokens)
            grads2 = qwen.unstack_layers(grads2)
        else:
            loss2, grads2 = gradient(params, other, tokens)
    np.testing.assert_allclose(loss, loss2, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), grads, grads2)


def test_rows_with_several_documents_equal_each_alone(mesh):
    """Packing is exact: prompt once, completions side by side, two documents in a row."""
    config = tiny.config("qwen2")
    params = tiny.params(config, mesh)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 97, 5), rng.integers(1, 97, 3)]
    completions = [[rng.integers(1, 97, n) for n in (4, 2, 6)], [rng.integers(1, 97, n) for n in (1, 5)]]
    tokens, positions, segments, expected = [], [], [], []
    with jax.set_mesh(mesh):
        for d, (prompt, found) in enumerate(zip(prompts, completions)):
            base = d * 4096
            tokens += [*prompt]
            positions += [*range(len(prompt))]
            segments += [base + 1] * len(prompt)
            for k, completion in enumerate(found):
                tokens += [*completion]
                positions += [*range(len(prompt), len(prompt) + len(completion))]
                segments += [base + 2 + k] * len(completion)
                alone = run(config, params, jnp.asarray([[*prompt, *completion]]))[0]
                expected.append((len(tokens) - len(completion), len(tokens), alone[len(prompt) :]))
        row = [jnp.asarray([x + [0] * 4]) for x in (tokens, positions, segments)]
        hidden, _ = jax.jit(qwen.Decoder(config).apply)({"params": params}, *row)
        together = qwen.logits(params, hidden)[0]
    for start, end, alone in expected:
        np.testing.assert_allclose(together[start:end], alone, atol=2e-5)


def test_eight_devices_equal_one_and_are_really_sharded(mesh):
    sizes = tiny.SIZES | tiny.FORMS["qwen2"] | {"vocab_size": 96}
    config = qwen.ModelConfig.from_hf(sizes)
    params = tiny.params(config, mesh, scale=2.0)
    tokens = jax.random.randint(jax.random.key(0), (8, 9), 0, 96)
    big = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    where = jax.tree.map(lambda s: s.sharding, sharding.shard_abstract(big, *qwen.abstract(config)))
    spread = jax.device_put(params, where)
    assert tuple(spread["layers_0"]["q"].sharding.spec) == ("fsdp", "tensor")
    assert spread["layers_0"]["q"].addressable_shards[0].data.shape == (16, 16)
    with jax.set_mesh(mesh):
        loss, grads = gradient(params, config, tokens)
    with jax.set_mesh(big):
        loss2, grads2 = gradient(spread, config, sharding.to_device(big, np.asarray(tokens), "batch", None))
    np.testing.assert_allclose(loss, loss2, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5), grads, grads2)


def test_refuses_what_it_is_not():
    base = tiny.SIZES | tiny.FORMS["qwen2"]
    for change, words in [
        ({"model_type": "mixtral"}, "mixtral.*qwen2, qwen3, llama"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic.*yarn"),
    ]:
        with pytest.raises(ValueError, match=words):
            qwen.ModelConfig.from_hf(base | change)


def test_constrain_without_a_mesh_raises():
    with pytest.raises(RuntimeError, match="set_mesh"):
        sharding.constrain(jnp.zeros((2, 2)), "batch", None)
