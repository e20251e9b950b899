"""The policy as judge: which tokens mean yes, what a question shows, who is kept, what is counted."""

import itertools

import numpy as np
import pytest

from lanpo_jax import episodes, spec
from lanpo_jax.experience import index as index_lib
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import prompts, relevance, retrieval
from tests import fakes

SHORT = prompts.Templates(style="short", answer="number")


def encoder(*vocabulary: str):
    """Greedy longest match; characters that are in no token are their code points, from 1000 on."""

    def encode(text: str) -> list[int]:
        ids = []
        while text:
            found = max((t for t in vocabulary if text.startswith(t)), key=len, default="")
            ids.append(vocabulary.index(found) if found else 1000 + ord(text[0]))
            text = text[max(1, len(found)) :]
        return ids

    return encode


def test_every_form_of_one_token_counts():
    vocabulary = ["yes", "no", " yes", " no", "Yes", "No", " Yes", "YES", " N", "O", "maybe"]
    yes, no = relevance.answer_ids(encoder(*vocabulary))
    assert {vocabulary[i] for i in yes} == {"yes", " yes", "Yes", " Yes", "YES"}
    assert {vocabulary[i] for i in no} == {"no", " no", "No"}  # " NO" is two tokens


def test_models_over_characters_answer_by_the_first_one():
    yes, no = relevance.answer_ids(encoder())
    assert {chr(i - 1000) for i in yes} == {"y", "Y"} and {chr(i - 1000) for i in no} == {"n", "N"}


@pytest.mark.parametrize("encode", [lambda text: [7], lambda text: []], ids=["all unknown", "nothing"])
def test_a_tokenizer_that_cannot_tell_is_refused(encode):
    with pytest.raises(ValueError, match="cannot tell yes from no"):
        relevance.answer_ids(encode)


def stories(count: int = 40) -> tuple[index_lib.Index, list[retrieval.Query]]:
    index, problems = index_lib.Index(), fakes.problems(count)
    for p in problems:
        index.add(p.id, p.text)
    return index, [retrieval.Query(p.id, p.text, "0") for p in problems]


def test_the_surest_are_kept_and_the_shortlist_is_the_nearest():
    index, queries = stories()
    asked = []

    def judge(pairs):
        asked.append(pairs)
        return [int(id.split("/")[1]) / 39 for _, id in pairs]

    found = retrieval.llm(index, queries[:3], judge, k=2, shortlist=8, gamma=0.5)
    nearest = retrieval.tfidf(index, queries[:3], k=8, threshold=0.0)
    assert asked == [[(q.text, hit.id) for q, hits in zip(queries, nearest, strict=False) for hit in hits]]
    for hits, near in zip(found, nearest, strict=True):
        values = {h.id: int(h.id.split("/")[1]) / 39 for h in near}
        assert hits.values == tuple(values.values())
        want = sorted((id for id in values if values[id] >= 0.5), key=lambda id: -values[id])[:2]
        assert [h.id for h in hits] == want
        assert all(h in near for h in hits)
    equal = retrieval.llm(index, queries[:1], lambda pairs: [0.9] * len(pairs), k=3)[0]
    assert list(equal) == nearest[0][:3]  # equally sure: the more similar first; gamma itself is enough


def test_no_candidate_no_question():
    assert retrieval.llm(index_lib.Index(), [retrieval.Query("a", "x", "0")], lambda pairs: [1.0 for _ in pairs]) == [
        []
    ]
    index, queries = stories()
    kept = retrieval.llm(index, queries, lambda pairs: [1.0] * len(pairs), k=16)
    assert all(q.id not in {h.id for h in hits} for q, hits in zip(queries, kept, strict=True))


def asked_of(pool, pairs, fits=fakes.fits, chances=(0.3, 0.1), **options):
    """(values, conversations) of `judge` with a model that always gives these chances to yes and no."""
    seen = []

    def next_token(conversations, ids):
        assert list(ids) == [4, 5, 6]
        seen.extend(conversations)
        return np.array([[chances[0] / 2, chances[0] / 2, chances[1]]] * len(conversations))

    values = relevance.judge(
        pairs, pool=pool, templates=SHORT, truncate=fakes.truncate, fits=fits, next_token=next_token,
        answers=((4, 5), (6,)), **options,
    )  # fmt: skip
    return values, seen


def taught() -> pool_lib.Pool:
    pool = pool_lib.Pool()
    pool.admit([("a", "A secret story of 12 goats."), ("b", "Another one of 7 hens.")])
    pool.add_attempts("a", [pool_lib.Attempt("I guess 71943.", 3, 0)], [0.7431], [True])
    pool.set_principle("a", pool_lib.Principle("Add all parts of it.", 5, 1))
    pool.set_principle("b", pool_lib.Principle("Divide by the count.", 4, 1))
    return pool


def test_p_yes_is_its_share_of_yes_and_no_and_a_question_shows_problem_and_principle_alone():
    values, seen = asked_of(taught(), [("Q?", "b"), ("R?", "a")])
    assert values == pytest.approx([0.75, 0.75])
    assert seen == [
        prompts.relevant("Q?", "Divide by the count.", SHORT),
        prompts.relevant("R?", "Add all parts of it.", SHORT),
    ]
    text = str(seen)
    assert not any(word in text for word in ("goats", "hens", "71943", "0.7431", "0.3"))
    assert asked_of(taught(), [("Q?", "a")], chances=(0.0, 0.0))[0] == [0.0]
    assert asked_of(taught(), [])[0] == []


def test_long_principles_are_cut_and_what_does_not_fit_is_answered_no_unasked():
    _, seen = asked_of(taught(), [("Q?", "a")], principle_tokens=2)
    assert "Add all" + prompts.CUT in str(seen) and "parts" not in str(seen)
    values, seen = asked_of(taught(), [("Q?", "a"), ("long?", "a")], fits=lambda m, n: "long?" not in str(m))
    assert values == pytest.approx([0.75, 0.0]) and len(seen) == 1


def test_only_a_retriever_that_wants_a_judge_gets_one():
    def bind(text, encode):
        retrieve = spec.resolve(text, retrieval)
        given = (lambda conversations, ids: np.full((len(conversations), len(ids)), 0.1)), encode, taught(), SHORT
        return retrieve, relevance.bind(retrieve, *given, fakes.truncate, fakes.fits)

    for text in ("tfidf(k=2)", "random"):
        before, after = bind(text, lambda text: [])  # a tokenizer without yes and no is no matter
        assert after is before
    _, asks = bind("llm(gamma=0.4, k=2, threshold=0.1)", encoder("yes", "no"))
    index = index_lib.Index()
    for id, text in (("a", "Tom has 3 goats and 4 hens."), ("b", "Tom sells 7 hens.")):
        index.add(id, text)
    (hits,) = asks(index, [retrieval.Query("q", "Ann has 5 goats and 6 hens.", "0")])
    assert hits[0].id == "a" and hits.values[0] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="cannot tell yes from no"):
        bind("llm", lambda text: [])


def lanpo(judge, step: int, pool, retrieve=None):
    """Metrics of one step of which every group asks for a principle."""
    retrieve = retrieve or (lambda index, queries: retrieval.llm(index, queries, judge, shortlist=4))
    return episodes.lanpo(
        fakes.problems(20), step=step, seed=0, pool=pool, generate=fakes.Model(), grade=fakes.grade, templates=SHORT,
        truncate=fakes.truncate, fits=fakes.fits, retrieve=retrieve, group=4, min_pool=2,
        modes={"plain": 1.0} if step == 0 else {"inter": 1.0},
    )[1]  # fmt: skip


def test_judgements_are_counted_and_rejection_is_a_fall_back_of_its_own():
    def sure(pairs):
        return [0.95] * len(pairs)

    def unsure(pairs):
        return [(0.2, 0.4)[i % 2] for i in range(len(pairs))]

    rows = {}
    for name, judge in (("yes", sure), ("no", unsure), ("tfidf", None)):
        pool = pool_lib.Pool()
        lanpo(sure, 0, pool)
        rows[name] = lanpo(judge, 1, pool, retrieval.tfidf if judge is None else None)
    assert rows["yes"].keys() == rows["no"].keys() == rows["tfidf"].keys()
    assert rows["yes"]["lanpo/judged"] == rows["no"]["lanpo/judged"] == 80 and rows["tfidf"]["lanpo/judged"] == 0
    assert rows["yes"]["lanpo/judge_yes"] == pytest.approx(0.95)
    assert rows["no"]["lanpo/judge_yes"] == pytest.approx(0.3)
    assert rows["tfidf"]["lanpo/judge_yes"] is None
    assert rows["no"]["lanpo/fallback_nothing_relevant"] == 20 and rows["no"]["lanpo/share_plain"] == 1.0
    assert rows["yes"]["lanpo/share_inter"] == 1.0 and rows["yes"]["lanpo/fallback"] == 0.0
    nothing = lanpo(None, 1, _small_pool(), lambda index, queries: [retrieval.Judged([], ()) for _ in queries])
    assert nothing["lanpo/fallback_nothing_similar"] == 20


def _small_pool() -> pool_lib.Pool:
    pool = pool_lib.Pool()
    lanpo(lambda pairs: [1.0 for _ in pairs], 0, pool)
    return pool


def test_questions_of_every_style_are_told_apart_by_problem_and_principle():
    for style, layout in itertools.product(prompts.STYLES, ("turns", "text")):
        templates = prompts.Templates(style=style, layout=layout, examples=(("1 + 1?", "It is 2."),))
        (message,) = prompts.relevant("What is Q?", "my </principle> text", templates)
        assert message["role"] == "user" and "What is Q?" in message["content"]
        assert "yes" in message["content"] and "no" in message["content"]
        assert "1 + 1?" not in message["content"] and "my (/principle) text" in message["content"]
