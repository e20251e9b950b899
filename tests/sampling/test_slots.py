"""Rows that are refilled: results depend on no row, order or refill, rows stay busy, memory is bounded."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from lanpo_jax.models import cache
from lanpo_jax.sampling import programs, slots
from tests.models import tiny
from tests.sampling.test_sampler import NumberTokenizer, ask, forward, make, score


@pytest.fixture(scope="module")
def model(mesh):
    config = tiny.config("qwen3")
    return config, tiny.params(config, mesh, scale=2.0)  # an end token about every 50 draws


def requests():
    """Turns of different lengths: 60 prompts, 1 to 6 completions each, limits up to two pages."""
    rng = np.random.default_rng(0)
    return [
        ask(rng.integers(6, 90, rng.integers(1, 14)).tolist(), int(rng.integers(1, 7)), str(i), int(limit))
        for i, limit in enumerate(rng.choice([5, 40, 100], 60))
    ]


@pytest.fixture(scope="module")
def drawn(model, mesh):
    """Every turn, on 16 rows: prompt -> Generation."""
    config, params = model
    found = make(config, mesh, rows=16)(params, requests(), seed=0, step=0, temperature=1.0)
    assert sum(len(g.completions) for g in found) > 200
    return found


def same(a, b, bits):
    for g, h in zip(a, b, strict=True):
        for x, y in zip(g.completions, h.completions, strict=True):
            assert x.tokens.tolist() == y.tokens.tolist()
            if bits:
                assert x.logprobs.tobytes() == y.logprobs.tobytes()
            else:
                np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)


def test_order_and_refill_change_no_bit(model, mesh, drawn):
    config, params = model
    order = np.random.default_rng(1).permutation(60)
    asked = [requests()[i] for i in order]
    other = make(config, mesh, rows=16)(params, asked, seed=0, step=0, temperature=1.0)
    same([drawn[i] for i in order], other, bits=True)


@pytest.mark.parametrize("change", [{"rows": 64}, {"chunk": 16}, {"prefill_tokens": 16}])
def test_other_programs_draw_the_same_tokens(model, mesh, drawn, change):
    """Other shapes may round a log-probability otherwise, and no more than that."""
    config, params = model
    run = dataclasses.replace(make(config, mesh, rows=16), **change)
    same(drawn, run(params, requests(), seed=0, step=0, temperature=1.0), bits=False)


def test_logprobs_are_those_of_the_whole_forward_pass(model, mesh, drawn):
    """Also across pages, after refills, and at the last token, be it an end or the limit."""
    config, params = model
    long = [(g, c) for g in drawn for c in g.completions if len(c.tokens) > cache.BLOCK]
    assert len(long) > 10
    picked = [(g, g.completions[-1]) for g in drawn[::4]] + long[:10]
    for g, c in picked:
        ids = np.concatenate([g.prompt_tokens, c.tokens])
        tokens = np.zeros((1, 128), np.int32)
        tokens[0, : len(ids)] = ids
        with jax.set_mesh(mesh):
            logp = np.asarray(jax.nn.log_softmax(forward(config, params, tokens)[0]))
        start = len(g.prompt_tokens)
        expected = [logp[start - 1 + t, token] for t, token in enumerate(c.tokens)]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-4)


def test_ends_and_limits(drawn):
    for g, asked in zip(drawn, requests()):
        for c in g.completions:
            ends = [t for t, token in enumerate(c.tokens) if token in NumberTokenizer.eos_ids]
            assert ends in ([], [len(c.tokens) - 1])
            assert c.truncated == (not ends)
            assert len(c.tokens) == asked.max_new_tokens if c.truncated else len(c.tokens) <= asked.max_new_tokens
    assert 0.1 < np.mean([c.truncated for g in drawn for c in g.completions]) < 0.9


def test_tokens_follow_the_distribution(model, mesh):
    """Chi-square of first and second tokens over thousands of completions that go through 64 rows."""
    config, params = model
    draws, prompt = 4000, [7, 8, 9]
    (g,) = make(config, mesh)(params, [ask(prompt, draws, limit=2)], seed=3, step=0, temperature=1.0)
    first = np.exp(score(config, params, mesh, prompt, 1.0)[-1].astype(np.float64))
    tokens = np.asarray([[*prompt, t, *[0] * 44] for t in range(config.vocab)], np.int32)
    with jax.set_mesh(mesh):
        after = np.asarray(jax.nn.softmax(forward(config, params, tokens)[:, len(prompt)]), np.float64)
    going = np.where(np.isin(np.arange(config.vocab), NumberTokenizer.eos_ids), 0.0, first)
    for t, p in ((0, first), (1, going @ after / going.sum())):
        seen = np.bincount([c.tokens[t] for c in g.completions if len(c.tokens) > t], minlength=config.vocab)
        common = p * seen.sum() >= 5
        observed = np.append(seen[common], seen[~common].sum())
        expected = np.append(p[common], p[~common].sum()) * seen.sum() / p.sum()
        keep = expected > 0
        assert scipy.stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-3


def spied(monkeypatch):
    """Live rows and new tokens of every chunk that `decode` runs."""
    chunks, real = [], programs.decode

    def decode(weights, prompts, pages, rows, *more, **kw):
        live = np.asarray(rows.live)
        out = real(weights, prompts, pages, rows, *more, **kw)
        chunks.append((len(live), int(live.sum()), int(np.asarray(out[3]).sum())))
        return out

    monkeypatch.setattr(programs, "decode", decode)
    return chunks


def test_rows_stay_busy(model, mesh, monkeypatch):
    """All rows are live until the last turns, which run on fewer rows; static batches would do half as well."""
    config, params = model
    chunks = spied(monkeypatch)
    found = make(config, mesh, rows=32)(params, requests(), seed=0, step=0, temperature=1.0)
    tokens = sum(len(c.tokens) - 1 for g in found for c in g.completions)
    assert sum(n for *_, n in chunks) == tokens  # and nothing is drawn twice
    full = [live for _, live, _ in chunks[: len(chunks) // 2]]
    assert np.mean(full) > 0.95 * 32
    assert chunks[-1][0] == 16
    assert tokens / sum(8 * rows for rows, *_ in chunks) > 0.6


def test_little_memory_starts_turns_again_or_takes_fewer_rows_and_changes_no_token(model, mesh, drawn, monkeypatch):
    """Half of the pages first, then fewer rows: never more than is allowed."""
    config, params = model
    token = 2 * config.layers * config.kv_heads * config.head_size * 4
    asked = [p for p in requests() if p.max_new_tokens == 100]
    expected = [g for g, p in zip(drawn, requests()) if p.max_new_tokens == 100]
    for pages, rows in ((20, 16), (9, 8)):
        run = dataclasses.replace(make(config, mesh, rows=16), cache_bytes=token * (12 * 16 + pages * cache.BLOCK))
        chunks = spied(monkeypatch)
        found = run(params, asked, seed=0, step=0, temperature=1.0)
        same(expected, found, bits=False)
        assert chunks[0][0] == rows
        assert sum(n for *_, n in chunks) > sum(len(c.tokens) - 1 for g in found for c in g.completions)  # some twice
    with pytest.raises(ValueError, match=r"one completion takes \d+ bytes"):
        dataclasses.replace(run, cache_bytes=1000)(params, asked, seed=0, step=0, temperature=1.0)


def turn(sample=0, tokens=1):
    return slots.Turn(0, sample, np.zeros(2, np.uint32), 500, 1.0, 3, [5] * tokens, [0.0] * tokens)


def test_places_pages_and_slots_are_given_back():
    device = slots.Device(rows=4, places=2, free_slots=[0], free_pages=[0, 1, 2])
    turns = [turn(g) for g in range(3)]
    device.admit(device.free_slots.pop(), turns)
    device.seat()
    assert device.live == turns[:2] and list(device.waiting) == turns[2:]  # two places
    device.finish(turns[0])
    device.seat()
    assert device.live == turns[1:]
    for t in turns[1:]:
        device.finish(t)
    assert sorted(device.free_pages) == [0, 1, 2] and device.free_slots == [0] and not device.open


def test_the_shortest_turn_gives_way():
    device = slots.Device(rows=2, places=2, free_slots=[], free_pages=[7])
    old, young = turn(0, tokens=65), turn(1, tokens=9)
    old.pages, young.pages = [3], [4]
    device.live, device.open = [young, old], collections.Counter({0: 2})
    device.free_pages.clear()
    device.seat()
    assert device.live == [old] and old.pages == [3, 4]
    assert list(device.waiting) == [young] and young.tokens == [5] and young.pages == []


def test_stored_pages_are_read_back():
    """Pages of two devices, rows in any order: attention over pages equals that over the row's tokens in one piece."""
    rng = np.random.default_rng(0)
    rows, kv, size, blocks, devices = 4, 2, 8, 3, 2
    stored = np.asarray([0, 70, 130, 64], np.int32)
    k = rng.normal(size=(rows, kv, size, blocks * cache.BLOCK)).astype(np.float32)
    v = rng.normal(size=(rows, kv, blocks * cache.BLOCK, size)).astype(np.float32)
    table = np.stack([rng.permutation(6)[:3] for _ in range(rows)])  # within its device
    table[1] = [i for i in range(6) if i not in table[0]]
    table[3] = [i for i in range(6) if i not in table[2]]
    pages = cache.Pair(
        np.zeros((12, kv, size, cache.BLOCK), np.float32), np.zeros((12, kv, cache.BLOCK, size), np.float32)
    )
    for r in range(rows):
        for i, page in enumerate(table[r] + 6 * (r // 2)):
            pages.keys[page] = k[r, :, :, i * cache.BLOCK : (i + 1) * cache.BLOCK]
            pages.values[page] = v[r, :, i * cache.BLOCK : (i + 1) * cache.BLOCK]
    prompts = cache.Pair(jnp.asarray(k[:, :, :, :5]), jnp.asarray(v[:, :, :5]))
    q = rng.normal(size=(rows, 4, size)).astype(np.float32)
    local = np.asarray([0, 1, 0, 1], np.int32)
    view = cache.View(local, local, np.full(rows, 5, np.int32), stored, table.astype(np.int32), jnp.int32(0))
    recent = cache.empty(rows, kv, size, 8, "float32")
    new = rng.normal(size=(2, rows, kv, size)).astype(np.float32)
    attend = jax.jit(cache.attend, static_argnums=7)
    out, recent = attend(q, *new, prompts, jax.tree.map(jnp.asarray, pages), recent, view, devices)
    for r in range(rows):
        keys = np.concatenate([k[r, :, :, :5], k[r, :, :, : stored[r]], new[0, r, :, :, None]], axis=-1)
        values = np.concatenate([v[r, :, :5], v[r, :, : stored[r]], new[1, r, :, None]], axis=1)
        scores = np.einsum("kmh,khs->kms", q[r].reshape(kv, 2, size), keys) / np.sqrt(size)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected = np.einsum("kms,ksh->kmh", weights, values).reshape(4, size)
        np.testing.assert_allclose(out[r], expected, atol=1e-5)
    live = np.asarray([True, True, False, True])
    kept = cache.store(
        jax.tree.map(jnp.asarray, pages), recent, view._replace(stored=np.asarray([0, 72, 128, 64])), live, 2
    )
    page = table[1][1]
    np.testing.assert_array_equal(kept.keys[page, :, :, 8], new[0, 1])
    np.testing.assert_array_equal(kept.values[6 + table[3][1], :, 0], new[1, 3])
    np.testing.assert_array_equal(kept.keys[6 + table[2][2]], pages.keys[6 + table[2][2]])  # not live


def test_stop_texts_end_a_completion(model, mesh, drawn):
    """At the first token that completes one, wherever it falls in a chunk; the text stays, nothing follows."""
    config, params = model
    stop = (" 1", "7 4")  # parts of numbers: texts need not begin or end with a token
    run = dataclasses.replace(make(config, mesh, rows=16), stop=stop)
    found, ended = run(params, requests(), seed=0, step=0, temperature=1.0), 0
    for g, h in zip(found, drawn, strict=True):
        for x, y in zip(g.completions, h.completions, strict=True):
            text = NumberTokenizer().decode
            ends = [n for n in range(1, len(y.tokens) + 1) if any(s in text(y.tokens[:n].tolist()) for s in stop)]
            assert x.tokens.tolist() == y.tokens[: (ends or [None])[0]].tolist()
            assert len(x.logprobs) == len(x.tokens)
            assert x.truncated == (y.truncated and not ends)
            ended += bool(ends)
    assert ended > 20
