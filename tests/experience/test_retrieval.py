"""Index and retrievers: against scikit-learn's own TF-IDF, and the guard against one's own problem."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from lanpo_jax import spec
from lanpo_jax.experience import features, retrieval, segments
from lanpo_jax.experience import index as index_lib
from lanpo_jax.experience import pool as pool_lib
from tests import fakes

MATH = [
    r"Compute $\frac{1}{2} + \frac{1}{3}$.",
    r"Solve $x^2 - 5x + 6 = 0$ for $x$.",
    r"Find the area of a circle with radius $\sqrt{3}$.",
    r"A triangle has sides 3, 4 and 5. Find its area.",
    r"How many primes are less than 1,000?",
    r"Solve $x^2 + 2x + 1 = 0$ for $x$.",
]


def build(texts, **kinds) -> index_lib.Index:
    index = index_lib.Index()
    for i, text in enumerate(texts):
        index.add(f"p{i}", text)
    return index


def query(text, id="new", key="0") -> retrieval.Query:
    return retrieval.Query(id, text, key)


def oracle(stored: list[str], asked: list[str]) -> np.ndarray:
    """Cosines by scikit-learn's transformer fitted to the whole store, [asked, stored]."""
    hashing = HashingVectorizer(analyzer=features.features, n_features=2**18, alternate_sign=False, norm=None)
    tfidf = TfidfTransformer(sublinear_tf=True, smooth_idf=True, norm="l2").fit(hashing.transform(stored))
    rows, queries = (tfidf.transform(hashing.transform(texts)) for texts in (stored, asked))
    return (queries @ rows.T).toarray()


def found(index, texts, **options) -> list[dict[str, float]]:
    hits = retrieval.tfidf(index, [query(t) for t in texts], **options)
    return [{h.id: h.similarity for h in own} for own in hits]


def test_scores_are_those_of_a_full_refit_after_adding_and_removing():
    texts = MATH + [p.text for p in fakes.problems(30)]
    index = build(texts)
    assert found(index, MATH[:1], k=3)  # the first question turns pending texts into rows
    for i in (1, 7, 20):
        index.remove(f"p{i}")
    more = [p.text for p in fakes.problems(10, start=50)]
    for i, text in enumerate(more):
        index.add(f"q{i}", text)
    kept = {f"p{i}": t for i, t in enumerate(texts) if i not in (1, 7, 20)} | {f"q{i}": t for i, t in enumerate(more)}
    asked = [r"Solve $y^2 - 4 = 0$.", "Zoe has 70 apples. Then Zoe wins 2 more apples. How many apples has she?"]
    expected = oracle(list(kept.values()), asked)
    for row, hits in zip(expected, found(index, asked, k=100, threshold=0.0), strict=True):
        want = {id: s for id, s in zip(kept, row, strict=True) if 0 < s <= index_lib.NEAR_DUPLICATE}
        assert hits.keys() == want.keys()
        assert max(abs(hits[id] - want[id]) for id in want) < 1e-5


@given(st.lists(st.text(max_size=40) | st.sampled_from(MATH) | st.text("ab1 .\\\\^", max_size=40), max_size=8))
@settings(deadline=None, max_examples=150)
def test_counts_are_those_of_scikit_learn(texts):
    texts = [*texts, "x" * 300]
    hashing = HashingVectorizer(analyzer=features.features, n_features=2**18, alternate_sign=False, norm=None)
    expected = hashing.transform(texts).toarray()
    assert np.array_equal(features.counts(texts).toarray(), np.minimum(expected, 255))


def test_counts_do_not_depend_on_the_batch(monkeypatch):
    texts = [p.text for p in fakes.problems(20)] + ["", "é", "ab"]
    whole = features.counts(texts)
    monkeypatch.setattr(features, "_BATCH", 7)
    parts = features.counts(texts)
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


def test_best_come_first_and_k_and_threshold_bound_them():
    index = build(MATH)
    hits = retrieval.tfidf(index, [query("Solve $x^2 - 3x + 2 = 0$ for $x$.")], k=2, threshold=0.1)[0]
    assert [h.id for h in hits] == ["p1", "p5"]
    assert hits[0].similarity > hits[1].similarity >= 0.1
    assert retrieval.tfidf(index, [query("Solve $x^2 - 3x + 2 = 0$ for $x$.")], k=2, threshold=0.9) == [[]]
    assert retrieval.tfidf(index, [query("Zebra")], k=2) == [[]]
    assert retrieval.tfidf(index_lib.Index(), [query("x")]) == [[]]


def test_candidates_from_a_querys_heaviest_terms_find_most_neighbours():
    problems = [p.text for p in fakes.problems(400)]
    index = build(problems)
    asked = [query(t, f"p{i}") for i, t in enumerate(problems[:100])]
    full = retrieval.tfidf(index, asked, threshold=0.0)
    quick = retrieval.tfidf(index, asked, threshold=0.0, terms=40)
    assert np.mean([a == b for a, b in zip(full, quick, strict=True)]) > 0.9
    exact = {h.id: h.similarity for h in retrieval.tfidf(index, asked[:1], k=400, threshold=0.0)[0]}
    assert quick[0][0].similarity == pytest.approx(exact[quick[0][0].id])


def test_blocks_do_not_change_answers(monkeypatch):
    index = build([p.text for p in fakes.problems(100)] + ["Twin text of stamps."] * 1)
    asked = [query(p.text, p.id) for p in fakes.problems(20)]
    whole = retrieval.tfidf(index, asked, k=5)
    monkeypatch.setattr(index_lib, "_BLOCK", 7)
    assert retrieval.tfidf(index, asked, k=5) == whole


@pytest.mark.parametrize("exact", [index_lib.EXACT, 0])
@pytest.mark.parametrize("name", ["tfidf(threshold=0.0, k=5)", "tfidf(threshold=0.0, k=5, terms=20)", "random(k=5)"])
def test_never_the_same_problem_nor_a_near_duplicate(name, exact, monkeypatch):
    monkeypatch.setattr(index_lib, "EXACT", exact)
    base = (
        "Tom walks 12 miles on Monday and 7 miles on Tuesday, rests on Wednesday, and rides a bicycle for another long "
        "way on Thursday and Friday, until he has seen the whole of the valley. How many miles does he walk? $x^2$"
    )
    texts = [
        base,
        base.upper().replace("$X^2$", "$x^2$"),  # case
        base.replace(". ", ".\n\n  "),  # spacing
        base.replace("?", "??"),  # punctuation
        base.replace("the whole", "whole"),  # similar above .95
        base.replace("12", "13").replace("7", "8").replace("walk", "ride"),  # another problem
        "Tom walks a dog. How many dogs?",
    ]
    index = build(texts)
    assert index.duplicates([texts[4]]) == [True] and features.normal(texts[4]) != features.normal(base)
    index.remove("p4")
    assert index.duplicates([texts[4]]) == [True]  # similar, not equal
    index.add("p4", texts[4])
    retrieve = spec.resolve(name, retrieval)
    for key in range(20):
        for id in ("p0", "elsewhere"):
            ids = {h.id for h in retrieve(index, [query(base, id, str(key))])[0]}
            assert ids <= {"p5", "p6"}, ids
            assert "p6" in ids


def test_near_duplicates_do_not_take_the_place_of_neighbours():
    asked = "A farmer sells half of his cows on Monday and a third of the others on Tuesday, then buys seven new cows."
    copies = [asked.replace("new cows", "new cows" + "." * i) for i in range(3)] + [
        asked + " ?",
        asked.replace("A ", ""),
    ]
    index = build([*copies, "A farmer sells his cows and buys seven sheep on Tuesday."])
    for terms in (None, 10):
        assert [h.id for h in retrieval.tfidf(index, [query(asked)], terms=terms)[0]] == ["p5"]


def test_a_shortlist_full_of_near_duplicates_is_made_longer(monkeypatch):
    monkeypatch.setattr(index_lib, "SHORTLIST", 4)
    asked = "A farmer sells half of his cows on Monday and a third of the others on Tuesday, then buys seven new cows."
    index = build([asked + " ?" * i for i in range(9)] + ["A farmer sells his cows and buys seven sheep on Tuesday."])
    for terms in (0, 64):
        assert [h.id for h in retrieval.tfidf(index, [query(asked, "p0")], terms=terms, k=2)[0]] == ["p9"]


def mixed(count: int, seed: int = 0) -> list[str]:
    """Texts of parts of different stories: many partial neighbours and equal scores."""
    parts = [part for p in fakes.problems(60) for part in p.text.split(". ")]
    rng = np.random.default_rng(seed)
    return [". ".join(parts[i] for i in rng.integers(len(parts), size=3)) + f" {n}" for n in range(count)]


def test_large_pools_use_posting_lists_by_themselves(monkeypatch):
    index, asked = build(mixed(500)), [query(t) for t in mixed(50, seed=1)]
    exact = retrieval.tfidf(index, asked, k=4)
    assert exact == retrieval.tfidf(index, asked, k=4, terms=0)
    assert not any("postings" in s.__dict__ for s in index._segments)
    monkeypatch.setattr(index_lib, "EXACT", 499)
    monkeypatch.setattr(index_lib, "SHORTLIST", 32)
    quick = retrieval.tfidf(index, asked, k=4)
    assert quick == retrieval.tfidf(index, asked, k=4, terms=index_lib.TERMS)
    assert all("postings" in s.__dict__ for s in index._segments)
    shared = [len({h.id for h in a} & {h.id for h in b}) / 4 for a, b in zip(exact, quick, strict=True)]
    assert np.mean(shared) > 0.9
    assert [retrieval.tfidf(index, [q], k=4)[0] for q in asked] == quick  # neighbours in the batch change nothing
    assert retrieval.tfidf(index, asked, k=4, terms=0) == exact


@pytest.mark.parametrize("exact", [index_lib.EXACT, 0])
def test_answers_do_not_depend_on_history(monkeypatch, exact):
    """Entries that came one by one with others since removed, in small segments, or all at once: the same answers."""
    monkeypatch.setattr(index_lib, "EXACT", exact)
    monkeypatch.setattr(index_lib, "SHORTLIST", 8)  # a short one, so that its border matters
    texts = mixed(300)
    fresh = build(texts)
    asked = [query(t) for t in mixed(40, seed=1)]
    expected = retrieval.tfidf(fresh, asked, k=8, threshold=0.0)
    monkeypatch.setattr(segments, "LARGEST", 64)
    lived = index_lib.Index()
    for i, text in enumerate(texts):
        lived.add(f"x{i}", mixed(1, seed=i)[0])
        lived.add(f"p{i}", text)
        if i % 7 == 0:
            retrieval.tfidf(lived, asked[:1])
        if i >= 20:
            lived.remove(f"x{i - 20}")
    for i in range(280, 300):
        lived.remove(f"x{i}")
    assert retrieval.tfidf(lived, asked, k=8, threshold=0.0) == expected
    assert lived.ids() == fresh.ids() and lived.duplicates(texts[:9] + ["z"]) == [True] * 9 + [False]
    assert len(lived._segments) > 4 and max(map(len, lived._segments)) <= 64
    assert sum(map(len, lived._segments)) <= 300 / 0.75
    assert np.array_equal(lived._frequency, np.bincount(features.counts(texts).indices, minlength=features.COLUMNS))


def test_segments_stay_few():
    index = index_lib.Index()
    for i, text in enumerate(mixed(150)):
        index.add(f"p{i}", text)
        index.search([text], [""], 1, 0.0)
    sizes = [len(s) for s in index._segments]
    assert sum(sizes) == 150 and all(a > 2 * b for a, b in itertools.pairwise(sizes)), sizes


def test_an_evicting_pool_answers_as_its_saved_state_does(monkeypatch):
    monkeypatch.setattr(index_lib, "EXACT", 0)
    pool = pool_lib.Pool(capacity=50)
    for start in range(0, 200, 8):
        problems = fakes.problems(8, start)
        pool.admit([(p.id, p.text) for p in problems])
        for p in problems:
            pool.set_principle(p.id, pool_lib.Principle("Add.", 2, start))
    again = pool_lib.from_state(json.loads(json.dumps(pool.state())))
    asked = [query(p.text) for p in fakes.problems(30, 400)]
    found = retrieval.tfidf(pool.index, asked, k=3)
    assert found == retrieval.tfidf(again.index, asked, k=3)
    assert {h.id for hits in found for h in hits} <= set(pool.ids()) and len(pool.index) == 50


def test_equal_texts_are_the_same_problem_whatever_the_bound():
    index = index_lib.Index(near_duplicate=1.0)
    index.add("a", "Solve x^2 = 9 for x.")
    index.add("b", "Solve x^2 = 16 for x.")
    asked = [query("solve x^2 = 9 for x")]
    assert (
        [h.id for h in retrieval.tfidf(index, asked, k=2)[0]]
        == ["b"]
        == [h.id for h in retrieval.random(index, asked, k=2)[0]]
    )


def test_equal_but_for_a_number_is_another_problem():
    assert features.normal("It costs $3.50, Tom!") == features.normal("it costs 3.50 tom")
    assert features.normal("It costs 3.50") != features.normal("It costs 350")
    assert features.normal("Take 1,000") != features.normal("Take 1 000")
    index = build(["Add 5 and 7, then halve the sum."])
    assert index.duplicates(["add 5 and 7 then halve the sum", "Add 5 and 9, then double it."]) == [True, False]


def test_removed_problems_do_not_come_back_and_do_not_forbid():
    index = build(MATH)
    index.remove("p0")
    index.remove("absent")
    assert len(index) == 5 and "p0" not in index
    assert index.duplicates([MATH[0], MATH[1]]) == [False, True]
    assert "p0" not in found(index, [MATH[0] + " Show all the work that you did on this."], k=9, threshold=0.0)[0]


def test_compaction_keeps_answers_and_order():
    texts = [p.text for p in fakes.problems(300)]
    removed, fresh = build(texts), index_lib.Index()
    asked = [query(t) for t in MATH] + [query(p.text, p.id) for p in fakes.problems(9, start=400)]
    retrieval.tfidf(removed, asked)
    for i in range(300):
        if i % 5:
            removed.remove(f"p{i}")
        else:
            fresh.add(f"p{i}", texts[i])
    assert sum(map(len, removed._segments)) < 150  # rows were really dropped
    assert removed.ids() == fresh.ids()
    assert retrieval.tfidf(removed, asked, k=9, threshold=0.0) == retrieval.tfidf(fresh, asked, k=9, threshold=0.0)
    assert retrieval.random(removed, asked, k=4) == retrieval.random(fresh, asked, k=4)


def test_math_tokens_stay_whole():
    text = r"If $\frac{1}{2}x^2 + a_{10} \Delta = 3,000$ and 2.5 Apples"
    assert {r"\frac", "x^2", "a_{10}", "3,000", "2.5", r"\Delta", "apples", "="} <= set(features.tokens(text))
    assert "wx^2" in set(features.features(text))


@pytest.mark.parametrize("text", ["", " ", "\ud800", "?!", "\x00", "x" * 20_000])
def test_odd_texts_are_answered(text):
    index = build([*MATH, text])
    assert len(retrieval.tfidf(index, [query(text), query(MATH[0])])) == 2
    assert retrieval.random(index, [query(text)])


def test_random_is_uniform_and_depends_on_its_key_alone():
    index = build(MATH)
    queries = [query(MATH[0], "p0", str(i)) for i in range(2000)]
    drawn = [hits[0].id for hits in retrieval.random(index, queries)]
    counts = [drawn.count(f"p{i}") for i in range(6)]
    assert counts[0] == 0
    expected = 400
    assert sum((c - expected) ** 2 / expected for c in counts[1:]) < 18.5  # chi-square, 4 degrees, p = .001
    assert [h[0].id for h in retrieval.random(index, queries[5:8])] == drawn[5:8]


def test_unknown_retriever_and_option_are_named():
    with pytest.raises(ValueError, match="did you mean 'tfidf'"):
        spec.resolve("tfdif", retrieval)
    with pytest.raises(ValueError, match="threshold"):
        spec.resolve("tfidf(treshold=0.3)", retrieval)
