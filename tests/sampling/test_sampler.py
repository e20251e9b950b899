"""The sampler against the whole forward pass: same tokens, same log-probabilities, whatever the batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanpo_jax import sharding
from lanpo_jax.models import qwen
from lanpo_jax.sampling import programs, sampler
from lanpo_jax.types import Prompt
from tests.models import tiny


class NumberTokenizer:
    """Text is numbers with spaces between; encode and decode are inverses."""

    eos_ids = (3, 5)

    def render(self, messages):
        return [int(word) for word in messages[-1]["content"].split()]

    def decode(self, ids, skip_special=True):
        return " ".join(map(str, ids))


def ask(ids, samples=3, key="k", limit=12):
    return Prompt(({"role": "user", "content": " ".join(map(str, ids))},), samples, key, limit)


@functools.partial(jax.jit, static_argnums=0)
def forward(config, params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = qwen.Decoder(config).apply({"params": params}, tokens, positions, jnp.ones_like(tokens))
    return qwen.logits(params, hidden)


def score(config, params, mesh, ids, temperature):
    """Log-softmax at every position of one sequence by one whole forward pass (what follows it changes nothing)."""
    tokens = np.zeros((1, 48), np.int32)
    tokens[0, : len(ids)] = ids
    with jax.set_mesh(mesh):
        return np.asarray(jax.nn.log_softmax(forward(config, params, tokens)[0, : len(ids)] / temperature))


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def model(request, mesh):
    config = tiny.config(request.param)
    return config, tiny.params(config, mesh)


PROMPTS = [[7, 8, 9, 10, 11], [20], list(range(30, 48))]


def make(config, mesh, rows=64, **kw):
    return sampler.Sampler(config, NumberTokenizer(), mesh, rows, prompt_bucket=8, **kw)


def test_logprobs_are_those_of_the_whole_forward_pass(model, mesh):
    config, params = model
    run = make(config, mesh)
    for temperature in (1.0, 0.6):
        prompts = [ask(p, key=str(p)) for p in PROMPTS]
        for generation in run(params, prompts, seed=0, step=0, temperature=temperature):
            for c in generation.completions:
                ids = generation.prompt_tokens.tolist() + c.tokens.tolist()
                logp = score(config, params, mesh, ids, temperature)
                start = len(generation.prompt_tokens)
                expected = [logp[start - 1 + t, token] for t, token in enumerate(c.tokens)]
                np.testing.assert_allclose(c.logprobs, expected, atol=1e-4)


def test_greedy_is_argmax_of_the_whole_forward_pass(model, mesh):
    config, params = model
    (generation,) = make(config, mesh)(params, [ask(PROMPTS[0], samples=1)], seed=0, step=0, temperature=0.0)
    ids = PROMPTS[0].copy()
    for token in generation.completions[0].tokens:
        assert token == score(config, params, mesh, ids, 1.0)[-1].argmax()
        ids.append(int(token))


def test_a_row_depends_on_nothing_but_itself(model, mesh):
    """Alone or among others, in any order, with other padding and batch size: the same tokens."""
    config, params = model
    prompts = [ask(p, key=str(p)) for p in PROMPTS]
    together = make(config, mesh)(params, prompts, seed=4, step=9, temperature=1.0)
    swapped = make(config, mesh)(params, prompts[::-1], seed=4, step=9, temperature=1.0)[::-1]
    alone = [make(config, mesh, rows=3)(params, [p], seed=4, step=9, temperature=1.0)[0] for p in prompts]
    wide = dataclasses.replace(make(config, mesh), prompt_bucket=64)
    padded = wide(params, prompts, seed=4, step=9, temperature=1.0)
    for other in (swapped, alone, padded):
        for a, b in zip(together, other):
            for x, y in zip(a.completions, b.completions):
                assert x.tokens.tolist() == y.tokens.tolist()
                np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)


def test_randomness_differs_by_step_seed_key_and_sample(mesh):
    config = tiny.config("llama")
    params = tiny.params(config, mesh, scale=1.0)
    run = make(config, mesh)
    seen = set()
    for seed, step, key in [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]:
        (g,) = run(params, [ask([7, 8], key=key)], seed=seed, step=step, temperature=1.0)
        seen |= {tuple(c.tokens.tolist()) for c in g.completions}
    assert len(seen) == 12


def test_ends_at_any_eos_and_counts_limits(mesh):
    config = tiny.config("llama")
    params = tiny.params(config, mesh, scale=1.0)  # nearly uniform: an end token about every 50 draws
    prompts = [ask([9, i], samples=4, key=str(i), limit=7 + 20 * (i % 2)) for i in range(16)]
    for i, g in enumerate(make(config, mesh)(params, prompts, seed=0, step=0, temperature=1.0)):
        for c in g.completions:
            ends = [t for t, token in enumerate(c.tokens) if token in (3, 5)]
            assert ends in ([], [len(c.tokens) - 1])  # the end token is kept and nothing follows it
            assert c.truncated == (not ends)
            assert len(c.tokens) == 7 + 20 * (i % 2) if c.truncated else len(c.tokens) <= 7 + 20 * (i % 2)


def test_zero_id_mid_way_is_an_ordinary_token(mesh):
    """Masks come from lengths: a sampled id 0 (often the padding id) must not shift or hide anything."""
    config = tiny.config("llama")
    params = tiny.params(config, mesh, scale=1.0)
    params = params | {"embed": params["embed"].at[0].set(params["embed"][8] * 40)}
    prompts = [ask([9, i], samples=4, key=str(i)) for i in range(4)]
    found = 0
    for g in make(config, mesh)(params, prompts, seed=0, step=0, temperature=1.0):
        for c in g.completions:
            found += 0 in c.tokens[:-1]
            ids = g.prompt_tokens.tolist() + c.tokens.tolist()
            logp = score(config, params, mesh, ids, 1.0)
            expected = [logp[1 + t, token] for t, token in enumerate(c.tokens)]
            np.testing.assert_allclose(c.logprobs, expected, atol=1e-4)
    assert found


def test_scanned_layers_and_eight_devices_sample_the_same(mesh):
    config = tiny.config("qwen2")
    params = tiny.params(config, mesh)
    prompts = [ask(p, key=str(p)) for p in PROMPTS]
    one = make(config, mesh)(params, prompts, seed=0, step=0, temperature=1.0)
    scanned = tiny.config("qwen2", scan_layers=True)
    stacked = qwen.stack_layers(params)
    big = sharding.make_mesh(data=2, fsdp=2, tensor=1, devices=jax.devices()[:4])
    shapes, axes = qwen.abstract(scanned)
    where = jax.tree.map(lambda s: s.sharding, sharding.shard_abstract(big, shapes, axes))
    for config2, mesh2, tree in [(scanned, mesh, stacked), (scanned, big, jax.device_put(stacked, where))]:
        other = make(config2, mesh2)(tree, prompts, seed=0, step=0, temperature=1.0)
        for a, b in zip(one, other):
            for x, y in zip(a.completions, b.completions):
                assert x.tokens.tolist() == y.tokens.tolist()


def test_a_common_beginning_changes_nothing(model, mesh):
    """Computed once and gone on from, or with every prompt: the same tokens, on one device and on four."""
    config, params = model
    prompts = [ask([*range(40, 61), 7 + i, 9][: 23 - i % 2], key=str(i)) for i in range(8)]
    apart = make(config, mesh)
    big = sharding.make_mesh(data=4, fsdp=1, tensor=1, devices=jax.devices()[:4])
    where = jax.tree.map(lambda s: s.sharding, sharding.shard_abstract(big, *qwen.abstract(config)))
    spread = make(config, big, share_from=16)
    expected = apart(params, prompts, seed=0, step=0, temperature=1.0)
    assert spread._common([np.arange(23), np.r_[np.arange(21), 50, 51]]).tolist() == list(range(16))
    for run, tree in [(make(config, mesh, share_from=16), params), (spread, jax.device_put(params, where))]:
        for a, b in zip(expected, run(tree, prompts, seed=0, step=0, temperature=1.0)):
            for x, y in zip(a.completions, b.completions):
                assert x.tokens.tolist() == y.tokens.tolist()
                np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)


def test_few_programs(mesh):
    """Other temperatures, seeds, prompts and limits within the buckets reuse the compiled program."""
    config = tiny.config("llama")
    params = tiny.params(config, mesh)
    run = make(config, mesh)
    run(params, [ask([7, 8])], seed=0, step=0, temperature=1.0)
    before = programs.decode._cache_size()
    for step, temperature in enumerate([0.0, 0.7, 1.3]):
        run(params, [ask([9] * (step + 1), limit=9 + step)], seed=step, step=step, temperature=temperature)
    assert programs.decode._cache_size() == before


def test_prompts_of_unequal_numbers_of_samples_are_as_alone_and_share_few_programs(mesh):
    config = tiny.config("llama")
    params = tiny.params(config, mesh, scale=1.0)
    run = make(config, mesh, rows=16)
    prompts = [ask([7, 8, i], samples=n, key=str(i), limit=23) for i, n in enumerate([1, 3, 4, 2, 3, 1])]
    before = programs.decode._cache_size()
    found = run(params, prompts, seed=0, step=0, temperature=1.0)
    assert programs.decode._cache_size() - before == 1
    other = [ask([7, 9, i], samples=n, key=str(i), limit=21) for i, n in enumerate([4, 1, 2, 3, 3])]
    run(params, other, seed=0, step=1, temperature=1.0)
    assert programs.decode._cache_size() - before == 1
    assert [len(g.completions) for g in found] == [1, 3, 4, 2, 3, 1]
    for prompt, generation in zip(prompts[1:3], found[1:3]):
        (alone,) = run(params, [prompt], seed=0, step=0, temperature=1.0)
        assert [c.tokens.tolist() for c in alone.completions] == [c.tokens.tolist() for c in generation.completions]


NEXT = [ask(ids).messages for ids in [*PROMPTS, [*range(40, 61), 7], [*range(40, 61), 8, 9]]]


def test_next_token_probabilities_are_the_softmax_of_the_whole_forward_pass(model, mesh):
    """Over the whole vocabulary and at temperature 1."""
    config, params = model
    ids = [5, 0, 17, 5, config.vocab - 1]
    asked = [NumberTokenizer().render(messages) for messages in NEXT]
    expected = np.stack([np.exp(score(config, params, mesh, p, 1.0)[-1])[ids] for p in asked])
    found = make(config, mesh).next_token(params, NEXT, ids)
    assert found.shape == (5, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found, axis=0).min() > 1e-5  # prompts are told apart


def test_next_token_probabilities_do_not_depend_on_the_batch(mesh):
    """Alone or among others, in any order, with other padding, a shared beginning, on four devices."""
    config, ids = tiny.config("qwen3"), [5, 0, 17]
    params = tiny.params(config, mesh)
    run = make(config, mesh)
    found = run.next_token(params, NEXT, ids)
    big = sharding.make_mesh(data=4, fsdp=1, tensor=1, devices=jax.devices()[:4])
    where = jax.tree.map(lambda s: s.sharding, sharding.shard_abstract(big, *qwen.abstract(config)))
    others = {
        "swapped": run.next_token(params, NEXT[::-1], ids)[::-1],
        "alone": np.concatenate([run.next_token(params, [messages], ids) for messages in NEXT]),
        "shared": make(config, mesh, prefill_rows=2, share_from=16).next_token(params, NEXT, ids),
        "padded": dataclasses.replace(run, prompt_bucket=64).next_token(params, NEXT, ids),
        "spread": make(config, big).next_token(jax.device_put(params, where), NEXT, ids),
    }
    for name, other in others.items():
        np.testing.assert_allclose(other, found, atol=1e-6, err_msg=name)
    assert run.next_token(params, [], ids).shape == (0, 3)


def test_next_token_reuses_its_program(mesh):
    config = tiny.config("llama")
    params = tiny.params(config, mesh)
    run = make(config, mesh)
    run.next_token(params, [ask([7, 8]).messages] * 3, [4, 5])
    before = programs.next_token._cache_size()
    run.next_token(params, [ask([9] * n).messages for n in (1, 2, 3, 7)], [6, 2])
    assert programs.next_token._cache_size() == before


def test_weights_are_handed_over_once_and_again_when_any_of_them_changes(mesh):
    config = tiny.config("qwen2")
    params = tiny.params(config, mesh)
    run = make(config, mesh)
    first = run.weights(params)
    assert run.weights(params) is first
    changed = params | {"layers_1": params["layers_1"] | {"down": params["layers_1"]["down"] * 2}}
    second = run.weights(changed)
    np.testing.assert_array_equal(second["layers_1"]["down"], 2 * first["layers_1"]["down"])
    np.testing.assert_array_equal(first["layers_0"]["qkv"][:32], params["layers_0"]["q"].T)


def test_half_precision_weights_are_near_and_the_difference_is_measured(mesh):
    """A bfloat16 sampler: its own log-probabilities, off by what rounding the weights makes."""
    config = tiny.config("qwen3")
    params = tiny.params(config, mesh, scale=2.0)
    half = dataclasses.replace(make(config, mesh), config=dataclasses.replace(config, dtype="bfloat16"))
    assert {x.dtype.name for x in jax.tree.leaves(half.weights(params)) if x.ndim > 1} == {"bfloat16"}
    (g,) = half(params, [ask([7, 8, 9], samples=32, limit=12)], seed=0, step=0, temperature=1.0)
    gaps = []
    for c in g.completions:
        logp = score(config, params, mesh, [7, 8, 9, *c.tokens.tolist()], 1.0)
        gaps += [logp[2 + t, token] - c.logprobs[t] for t, token in enumerate(c.tokens)]
    assert 1e-4 < np.abs(gaps).mean() < 0.05
    assert abs(np.mean(gaps)) < 0.01
