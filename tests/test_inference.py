"""Ways of answering outside of training, with a `generate` that is no model."""

import dataclasses
import inspect

import numpy as np
import pytest

from lanpo_jax import episodes, evaluate, inference, types, votes
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import prompts
from tests import fakes

LESSON = "Add the parts to get the whole."


def memory(problems, lesson=LESSON):
    pool = pool_lib.Pool()
    pool.admit([(p.id, p.text) for p in problems])
    for p in problems:
        pool.set_principle(p.id, pool_lib.Principle(lesson, 7, 3))
    return pool


def setting(model, **changes):
    given = inference.Setting(model, prompts.Templates(), fakes.truncate, fakes.fits, samples=3, max_new_tokens=32)
    return dataclasses.replace(given, **changes)


def answers(mode, problems, given):
    return dict(inference.answer([mode], problems, given, "eval/set"))[mode]


def shown(model):
    return [" ".join(m["content"] for m in p.messages) for p in model.rollouts()]


def test_zero_shot_is_what_plain_rollouts_are_shown():
    model, problems = fakes.Model(), fakes.problems(4)
    found = answers("zero_shot", problems, setting(model))
    assert [p.messages for p in model.rollouts()] == [prompts.plain(p.text, prompts.Templates()) for p in problems]
    assert [len(a.completions) for a in found] == [3] * 4
    assert all(a.tokens == sum(len(c.tokens) for c in a.completions) for a in found)


def test_each_second_attempt_reviews_its_own_first_one():
    model, problems = fakes.Model(), fakes.problems(4)
    first = answers("zero_shot", problems, setting(fakes.Model()))
    found = answers("self_correct", problems, setting(model))
    assert len(model.calls) == 2
    prompts_seen = shown(model)[4:]
    assert len(prompts_seen) == 12
    expected = [c.text for a in first for c in a.completions]
    for text, prompt in zip(expected, prompts_seen, strict=True):
        assert text in prompt
    assert len({p.key for p in model.rollouts()}) == 16
    assert all(a.guided == 1.0 and len(a.completions) == 3 for a in found)
    for a, before in zip(found, first, strict=True):
        assert a.tokens == before.tokens + sum(len(c.tokens) for c in a.completions)
        assert [c.text for c in a.info["first"]] == [c.text for c in before.completions]


def test_a_first_attempt_that_cannot_be_shown_stands():
    model = fakes.Model()
    only_plain = lambda messages, tokens: "attempt" not in messages[-1]["content"]  # noqa: E731
    found = answers("self_correct", fakes.problems(3), setting(model, fits=only_plain))
    assert len(model.calls) == 1
    assert all(a.guided == 0.0 and a.completions == a.info["first"] for a in found)


def test_an_empty_first_attempt_stands_and_a_long_one_is_cut():
    said = {"story/0": "", "story/1": "one two three four"}

    def generate(role, asked):
        texts = [said.get(p.key.removeprefix("eval/set/").removesuffix("/plain"), "again") for p in asked]
        return [
            types.Generation(np.arange(1), "", (fakes.completion(t),) * p.samples)
            for t, p in zip(texts, asked, strict=True)
        ]

    model = fakes.Model()
    both = lambda role, asked: (model(role, asked), generate(role, asked))[1]  # noqa: E731
    given = setting(both, samples=1, guidance=inference.Guidance(attempt_tokens=2))
    empty, long = answers("self_correct", fakes.problems(2), given)
    assert (empty.guided, empty.completions[0].text) == (0.0, "")
    assert (long.guided, long.completions[0].text) == (1.0, "again")
    assert "one two [...]" in shown(model)[2] and "three" not in shown(model)[2]


def test_reflection_prompts_hold_neither_verdict_nor_gold_answer():
    model, problems = fakes.Model(replies=("I add", "I subtract")), fakes.problems(30)
    answers("self_correct", problems, setting(model))
    for problem, prompt in zip([p for p in problems for _ in range(3)], shown(model)[30:], strict=True):
        assert problem.answer not in prompt.replace(problem.text, "").split()
        assert "0.7431" not in prompt and "-0.2917" not in prompt


def test_the_pool_guides_where_it_has_something_and_is_not_changed():
    model = fakes.Model()
    asked = [*fakes.problems(2), dataclasses.replace(fakes.problems(1)[0], id="far", text="Integrate x^2 over [0, 1].")]
    pool = memory(fakes.problems(6, start=10))
    before = pool.state()
    found = answers("pool", asked, setting(model, pool=pool))
    assert [a.guided for a in found] == [1.0, 1.0, 0.0]
    assert found[0].info["sources"][0].startswith("story/1") and 0 < found[0].info["similarity"] < 0.95
    assert found[2].info["fallback"] == "nothing_similar"
    assert sum(LESSON in prompt for prompt in shown(model)) == 2
    assert pool.state() == before


def test_what_stays_plain_is_not_sampled_again():
    model, problems = fakes.Model(), fakes.problems(4)
    found = dict(inference.answer(["pool", "self_correct"], problems, setting(model), "eval/set"))
    assert [len(prompts) for _, prompts in model.calls] == [4, 12]  # the empty pool adds no request
    assert [a.completions for a in found["pool"]] == [a.completions for a in found["zero_shot"]]
    assert list(found) == ["zero_shot", "pool", "self_correct"]


def test_a_problem_never_sees_its_own_principle():
    model, problems = fakes.Model(), fakes.problems(5)
    found = answers("pool", problems, setting(model, pool=memory(problems)))
    assert all(a.problem.id not in a.info.get("sources", ()) for a in found)
    alone = answers("pool", problems[:1], setting(model, pool=memory(problems[:1])))
    assert alone[0].guided == 0.0


def test_unknown_modes_are_named():
    with pytest.raises(ValueError, match=r"'self_corect' is not known \(did you mean 'self_correct'\?\); there are: z"):
        inference.check(["self_corect"])
    assert inference.check(["pool", "zero_shot", "pool"]) == ("zero_shot", "pool")


def test_limits_are_those_of_the_episode():
    found = inference.guidance("lanpo(min_pool=3, attempt_tokens=48, lesson='raw')")
    assert found == inference.Guidance(attempt_tokens=48, lesson="raw")
    defaults = inspect.signature(episodes.lanpo).parameters
    for field in dataclasses.fields(inference.Guidance):
        assert field.default == defaults[field.name].default


def test_results_hold_verdicts_votes_and_tokens_in_the_order_of_the_problems():
    problems = fakes.problems(8)
    replies = (r"RIGHT \boxed{1}", r"WRONG \boxed{2}", "WRONG and silent")
    given = setting(fakes.Model(replies=replies), pool=memory(fakes.problems(6, start=20)))
    extract = votes.extractor(["lanpo_jax.rewards.math.verify"])
    found = list(evaluate.assess({"set": problems}, ("zero_shot", "pool"), given, fakes.grade, extract))
    assert [r.score.name for r in found] == ["set", "set/pool"]
    for result in found:
        texts = [[c.text for c in a.completions] for a in result.answered]
        np.testing.assert_array_equal(result.score.correct, [["RIGHT" in t for t in row] for row in texts])
        for row, share in zip(texts, result.score.majority, strict=True):
            right, wrong = (sum(f"boxed{{{i}}}" in t for t in row) for i in (1, 2))
            assert share == (0.0 if right + wrong == 0 or right < wrong else 0.5 if right == wrong else 1.0)
        assert [g.problem for g in result.groups()] == problems
    assert "val/set/pool/guided" in found[1].score.numbers() and "val/set/guided" not in found[0].score.numbers()


def test_changes_are_paired_and_remembered_per_mode():
    problems, extract = fakes.problems(8), votes.extractor([])
    results = [
        next(evaluate.assess({"set": problems}, (), setting(fakes.Model(replies=r)), fakes.grade, extract))
        for r in (("WRONG",), ("RIGHT",))
    ]
    baseline = {}
    assert evaluate.compare(results[0], baseline, None, last=False) == ({}, [])
    numbers, lines = evaluate.compare(results[1], baseline, results[0].score, last=True)
    assert numbers["val/set/gain"] == numbers["val/set/over_zero_shot"] == 1.0
    assert "change of set since the start: +1.000" in lines[0]
    assert baseline == {"set": [0.0] * 8}
    fewer = next(evaluate.assess({"set": problems[:5]}, (), setting(fakes.Model()), fakes.grade, extract))
    assert evaluate.compare(fewer, baseline, None, last=True) == ({}, [])
    assert len(baseline["set"]) == 5
