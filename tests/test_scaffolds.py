"""Hints, rewritten problems and replayed groups with a fake model: who is helped, by what, and what is trained."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanpo_jax import batching, protocols, scaffolds, spec, types
from lanpo_jax.experience import distil, prompts, replay
from lanpo_jax.experience import pool as pool_lib
from tests import fakes

SHORT = prompts.Templates(style="short", answer="number")
SOLUTION = "First look at both heaps. Then put them together. Count them all now: 11 and 23 make 34. The answer is 34."


def problem(i=0, **extra):
    (made,) = fakes.problems(1, start=i)
    return dataclasses.replace(made, extra=extra)


class Model:
    """Answers by a function of the prompt: `reply(prompt, sample) -> text`; remembers what it was asked."""

    def __init__(self, reply):
        self.reply, self.calls = reply, []

    def __call__(self, role, asked):
        self.calls.append(list(asked))
        return [
            types.Generation(
                np.arange(3, dtype=np.int32), "", tuple(fakes.completion(self.reply(p, i)) for i in range(p.samples))
            )
            for p in asked
        ]


def said(prompt):
    return "\n".join(m["content"] for m in prompt.messages)


# Hints on failure.


def scaffold(problems, model, step=10, **options):
    given = {"templates": SHORT, "truncate": fakes.truncate, "fits": fakes.fits, "group": 4, "max_new_tokens": 9}
    given |= {"warmup": 5, "tiers": 3, "parts": 1} | options
    return scaffolds.scaffold(problems, step, model, fakes.grade, **given)


def wrong_unless(word):
    """Right where the prompt holds a word."""
    return Model(lambda prompt, i: "RIGHT" if word in said(prompt) else "WRONG")


HINTS = ["Think of heaps.", "Put the heaps together.", "Add the two numbers."]


def test_the_least_hint_that_works_replaces_one_rollout_and_stays_in_the_family():
    problems = [problem(0, hints=HINTS), problem(1), problem(2, hints=HINTS)]
    model = wrong_unless("together")
    groups, metrics = scaffold(problems, model)
    assert [g.mode for g in groups] == ["plain", "hint", "plain", "plain", "hint"]
    assert [len(g.generation.completions) for g in groups] == [3, 1, 4, 3, 1]
    assert groups[0].family == groups[1].family != groups[3].family == groups[4].family and not groups[2].family
    assert all(g.shared and not g.off_policy and g.prompt is None for g in groups)
    for group in (groups[1], groups[4]):
        assert group.grades.correct.tolist() == [True] and group.info["tier"] == 2
        assert group.grades.rewards.tolist() == pytest.approx([0.7431])
    assert groups[1].problem is problems[0]
    sizes = [[p.samples for p in call] for call in model.calls]
    assert sizes == [[4, 4, 4], [1, 1], [1, 1]]  # plain; the first tier; the second; the third is not needed
    assert metrics["scaffold/failed"] == 3 and metrics["scaffold/tried"] == 2 and metrics["scaffold/rescued"] == 2
    assert metrics["scaffold/without_hint"] == 1 and metrics["scaffold/tier"] == 2.0
    assert metrics["scaffold/tokens_hints"] == 4 and metrics["scaffold/correct_plain"] == 0.0
    assert metrics["checker/errors"] == 6.0  # three passes of the fake grader
    rewards = batching.Placement.of(groups)
    assert rewards.index.shape == (3, 4) and (rewards.index >= 0).all()


def test_nobody_is_helped_who_needs_no_help():
    model = Model(lambda prompt, i: "RIGHT" if i == 2 else "WRONG")
    groups, metrics = scaffold([problem(0, hints=HINTS)], model)
    assert [g.mode for g in groups] == ["plain"] and len(model.calls) == 1
    assert metrics["scaffold/failed"] == metrics["scaffold/tried"] == 0 and metrics["scaffold/tier"] is None


def test_no_hint_during_the_warm_up_and_none_for_groups_of_one():
    for options in ({"step": 4}, {"group": 1}):
        model = wrong_unless("heaps")
        groups, metrics = scaffold([problem(0, hints=HINTS)], model, **options)
        assert [g.mode for g in groups] == ["plain"] and len(model.calls) == 1
        assert metrics["scaffold/failed"] == 1 and metrics["scaffold/tried"] == metrics["scaffold/rescued"] == 0
    names = [set(scaffold([problem(0, hints=HINTS)], wrong_unless("heaps"), step=s)[1]) for s in (4, 5)]
    assert names[0] == names[1]


def test_a_problem_that_no_hint_helps_stays_as_it_is():
    model = wrong_unless("no such word")
    groups, metrics = scaffold([problem(0, hints=HINTS)], model, samples=2)
    assert [(g.mode, len(g.generation.completions)) for g in groups] == [("plain", 4)]
    assert [len(call) for call in model.calls] == [1, 1, 1, 1] and metrics["scaffold/tried"] == 1


def test_within_a_tier_the_least_part_is_taken():
    model = wrong_unless("put them")
    groups, _ = scaffold([problem(0, solution=SOLUTION)], model, tiers=1, parts=5)
    shown = [said(p) for p in model.calls[1]]
    assert len(shown) == 5 and [len(a) < len(b) for a, b in itertools.pairwise(shown)] == [True] * 4
    least = next(i for i, text in enumerate(shown) if "put them" in text)
    assert groups[1].generation.completions[0].text == "RIGHT" and 0 < least < 4
    keys = [p.key for p in model.calls[1]]
    assert len(set(keys)) == 5 and keys[0] == "train/story/0/plain/hint/0"


def test_hints_from_a_solution_are_leading_parts_and_never_the_whole():
    found = scaffolds.hints_of(problem(0, solution=SOLUTION), tiers=3, parts=2)
    assert [h.tier for h in found] == [1, 1, 2, 2, 3, 3]
    clean = SOLUTION.replace("34", "N")
    assert all(clean.startswith(h.text) and h.text != clean for h in found)
    assert found[0].text.startswith("First look") and "34" not in found[-1].text
    assert scaffolds.hints_of(problem(0), 3, 2) == [] == scaffolds.hints_of(problem(0, solution=""), 3, 2)


def test_hints_that_do_not_fit_are_counted_and_long_ones_cut():
    long = "word " * 30
    groups, metrics = scaffold([problem(0, hints=[long])], wrong_unless("[...]"), hint_tokens=6)
    assert metrics["scaffold/cut"] == 1 and groups[1].info["cut"] == 1
    model = wrong_unless("heaps")
    groups, metrics = scaffold([problem(0, hints=HINTS)], model, fits=lambda m, n: "heaps" not in str(m))
    assert metrics["scaffold/unfit"] == 2 and metrics["scaffold/rescued"] == 0 and len(model.calls) == 2


pieces = st.sampled_from(
    ["34", "3 4", "\\boxed{34}", "341", "134", "three", "so 34", "34.", "\\frac{34}{1}", "x", "\n"]
)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(pieces, max_size=8).map(" ".join), min_size=1, max_size=4),
    solution=st.booleans(),
    parts=st.integers(1, 4),
    tokens=st.integers(1, 6),
)
def test_no_hint_prompt_holds_the_gold_answer(texts, solution, parts, tokens):
    """Neither of the data's hints nor of its solution; cuts may fall anywhere, inside a number too."""
    extra = {"solution": " ".join(texts)} if solution else {"hints": texts}
    asked = dataclasses.replace(problem(0, **extra), text="How many?", answer="34")
    model = wrong_unless("no such word")

    def cut(text, limit):  # a token is a character here
        return text[: 4 * limit], len(text) > 4 * limit

    scaffold([asked], model, parts=parts, truncate=cut, hint_tokens=tokens)
    for call in model.calls[1:]:
        for prompt in call:
            assert not distil.contains_answer(said(prompt), "34")


# Rewritten problems.


def restructure(problems, model, pool=None, **options):
    given = {"templates": SHORT, "truncate": fakes.truncate, "fits": fakes.fits, "group": 4, "max_new_tokens": 9}
    given |= {"share": 1.0, "rewrite_tokens": 30} | options
    pool = pool_lib.Pool() if pool is None else pool  # an empty pool is false
    return scaffolds.restructure(problems, pool, model, fakes.grade, **given)


def rewriter(success, text="Two heaps of things are joined. What is their number?"):
    """Right `success[id]` times of 4; rewrites give `text`, and those are solved half of the time."""

    def reply(prompt, i):
        kind = prompt.key.rsplit("/", 1)[-1]
        if kind in scaffolds.REWRITES:
            return text
        right = next((n for id, n in success.items() if f"/{id}/plain" in prompt.key), 2)
        return "RIGHT" if i < right else "WRONG"

    return Model(reply)


def test_problems_are_rewritten_by_their_difficulty_and_rolled_out():
    problems = fakes.problems(4)
    model = rewriter({"story/0": 0, "story/1": 2, "story/2": 4, "story/3": 1})
    groups, metrics = restructure(problems, model)
    assert [g.mode for g in groups] == ["plain"] * 4 + ["simpler", "simpler", "variant"]  # the hardest first
    assert [g.problem.id for g in groups[4:]] == ["story/0/simpler", "story/3/simpler", "story/1/variant"]
    assert [g.info["original"] for g in groups[4:]] == ["story/0", "story/3", "story/1"]
    assert all(g.problem.answer == p.answer for g, p in zip(groups[4:], [problems[i] for i in (0, 3, 1)]))
    assert all(len(g.generation.completions) == 4 and not g.family for g in groups)
    assert all("Two heaps" in said(p) and p.samples == 4 for p in model.calls[2]) and len(model.calls) == 3
    assert "simpler" in said(model.calls[1][0]) and "other names" in said(model.calls[1][2])
    expected = {"hard": 2, "medium": 1, "asked": 3, "written": 3, "correct_plain": 7 / 16, "correct_simpler": 0.5}
    assert {k: metrics[f"restructure/{k}"] for k in expected} == expected
    assert metrics["restructure/tokens_rewrites"] == 3 * 10
    assert len({p.key for call in model.calls for p in call}) == 10


def test_at_most_a_share_is_rewritten_and_the_learner_has_room_for_it():
    model = rewriter({f"story/{i}": 0 for i in range(9)})
    groups, metrics = restructure(fakes.problems(9), model, share=0.5)
    assert metrics["restructure/written"] == 4 and len(groups) == 13
    episode = spec.resolve("restructure(share=0.5)", protocols.EPISODES)
    assert protocols.demands(episode, 9).extra == 4
    groups, metrics = restructure(fakes.problems(9), rewriter({}), medium=0.4)
    assert len(groups) == 9 and metrics["restructure/asked"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("word " * 40, "too_long"),
        ("Ann has 11 apples. Then Ann buys 23 more apples. How many apples does Ann have now?", "copied"),
        ("Two heaps are joined and make 34 in all. How many?", "answer"),
        ("A held out question about trains and boats.", "held_out"),
        ("This one does not fit into the model at all.", "unfit"),
    ],
)
def test_bad_rewrites_are_counted_by_reason_and_not_used(text, reason):
    pool = pool_lib.Pool()
    pool.forbid(["A held out question about trains and boats!"])
    model = rewriter({"story/0": 0}, text)
    groups, metrics = restructure(
        fakes.problems(1), model, pool, fits=lambda messages, n: "does not fit" not in str(messages)
    )
    assert len(groups) == 1 and metrics["restructure/written"] == 0
    rejected = {r: metrics[f"restructure/rejected_{r}"] for r in scaffolds.REASONS}
    assert rejected == {r: float(r == reason) for r in scaffolds.REASONS}


def test_an_answer_that_the_original_holds_may_stay_and_marks_are_made_harmless():
    asked = dataclasses.replace(problem(0), text="Is it 34 or 35? Choose one of them and say why.", answer="34")
    answer = fakes.completion("New problem: Choose among 34 and 35. <|im_end|> Which one?")
    text, reason = scaffolds.rewritten(answer, asked, fakes.truncate, max_tokens=40, max_overlap=0.8)
    assert reason == "" and text == "Choose among 34 and 35. < |im_end| > Which one?"
    cut = dataclasses.replace(answer, truncated=True)
    assert scaffolds.rewritten(cut, asked, fakes.truncate, max_tokens=40, max_overlap=0.8) == ("", "too_long")


def test_requests_to_rewrite_that_do_not_fit_are_not_sent():
    model = rewriter({"story/0": 0})
    _, metrics = restructure(fakes.problems(1), model, fits=lambda messages, n: "simpler" not in str(messages))
    assert len(model.calls) == 1 and metrics["restructure/rejected_unfit"] == 1


# Replayed groups.


def play(problems, model, buffer, step, **options):
    given = {"templates": SHORT, "group": 4, "max_new_tokens": 9} | options
    return scaffolds.replay(problems, step, buffer, model, fakes.grade, **given)


def outcomes(right):
    """Right `right[id]` times of 4."""

    def reply(prompt, i):
        (count,) = [n for id, n in right.items() if f"/{id}/plain" in prompt.key]
        return f"{'RIGHT' if i < count else 'WRONG'} {prompt.key}"

    return Model(reply)


def test_stored_groups_stand_in_for_uninformative_ones():
    problems, buffer = fakes.problems(4), replay.Buffer()
    first, metrics = play(problems, outcomes({"story/0": 1, "story/1": 4, "story/2": 2, "story/3": 0}), buffer, 0)
    assert [g.mode for g in first] == ["plain"] * 4 and len(buffer) == 2
    assert [g.problem.id for g in first] == ["story/0", "story/2", "story/1", "story/3"]  # informative ones first
    assert metrics["replay/uninformative"] == 2 and metrics["replay/replaced"] == 0 and metrics["replay/age"] is None

    groups, metrics = play(problems, outcomes({"story/0": 0, "story/1": 3, "story/2": 0, "story/3": 0}), buffer, 1)
    assert [g.mode for g in groups] == ["plain", "replay", "replay", "plain", "plain", "plain"]
    assert [g.problem.id for g in groups[:3]] == ["story/1", "story/2", "story/0"]  # the newest first
    for again, before in ((groups[1], first[1]), (groups[2], first[0])):
        assert again.off_policy and again.info["sampled"] == 0 and not before.off_policy
        assert again.generation is before.generation and again.grades is before.grades
    assert metrics["replay/uninformative"] == 3 and metrics["replay/replaced"] == 2 and metrics["replay/age"] == 1.0
    assert len(buffer) == 3

    groups, _ = play(problems, outcomes({f"story/{i}": 0 for i in range(4)}), buffer, 2)
    assert [g.problem.id for g in groups[:3]] == ["story/1", "story/2", "story/0"]  # the least replayed first
    assert {g.mode for g in groups[3:]} == {"plain"}


def test_a_group_is_not_replayed_twice_in_a_step_nor_in_its_own():
    problems, buffer = fakes.problems(2), replay.Buffer()
    play(problems, outcomes({"story/0": 1, "story/1": 1}), buffer, 0)
    nothing = outcomes({"story/0": 0, "story/1": 0})
    again = [play(problems, nothing, buffer, 0)[0], play(problems, nothing, buffer, 1)[0]]
    again.append(play(problems, nothing, buffer, 1, purpose="train/1")[0])  # a refill of the same step
    assert [sum(g.mode == "replay" for g in groups) for groups in again] == [0, 2, 0]


def test_size_and_age_bound_the_buffer():
    problems, buffer = fakes.problems(3), replay.Buffer()
    some = outcomes({f"story/{i}": 1 for i in range(3)})
    for step in range(4):
        play(problems, some, buffer, step, size=5)
    assert len(buffer) == 5
    none = outcomes({f"story/{i}": 4 for i in range(3)})
    _, metrics = play(problems, none, buffer, 9, age=6)
    assert metrics["replay/forgotten"] == 2 and metrics["replay/replaced"] == 3 and metrics["replay/age"] == 6.0
    _, metrics = play(problems, none, buffer, 30, age=6)
    assert metrics["replay/stored"] == 0 and metrics["replay/replaced"] == 0
    play(problems, some, buffer, 31)
    _, metrics = play(problems, Model(lambda prompt, i: "WRONG"), buffer, 32, group=2)  # another size than was stored
    assert metrics["replay/forgotten"] == 3


def test_unknown_rewards_do_not_make_a_group_informative():
    buffer = replay.Buffer()

    def grade(owners, completions):
        rewards = np.array([0.0, np.nan, 0.0, 0.0], np.float32)
        return types.Grades(rewards, rewards > 0, ("",) * 4, {"fake": rewards})

    scaffolds.replay(
        fakes.problems(1), 0, buffer, Model(lambda prompt, i: "x"), grade, SHORT, group=4, max_new_tokens=9
    )
    assert len(buffer) == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_restored_buffer_is_the_buffer_and_goes_on_like_it(seed):
    rng = np.random.default_rng(seed)
    problems, buffers = fakes.problems(4), [replay.Buffer()]

    class Drawn(Model):
        def __call__(self, role, asked):
            made = super().__call__(role, asked)
            return [
                dataclasses.replace(
                    g,
                    completions=tuple(
                        dataclasses.replace(c, logprobs=-np.float32(1 / (1 + len(self.calls) + i)) * (c.logprobs + i))
                        for i, c in enumerate(g.completions)
                    ),
                )
                for g in made
            ]

    def advance(step, right):
        found = []
        for buffer in buffers:
            model = Drawn(outcomes(right).reply)
            groups, metrics = play(problems, model, buffer, step, size=6, age=3)
            found.append((metrics, [(g.mode, g.problem.id, g.generation, g.grades) for g in groups]))
        return found

    draws = [{f"story/{i}": int(n) for i, n in enumerate(rng.integers(0, 5, 4))} for _ in range(6)]
    for step in range(3):
        advance(step, draws[step])
    state = json.loads(json.dumps(buffers[0].state(), allow_nan=False))
    buffers.append(replay.from_state(state))
    assert buffers[1].state() == buffers[0].state()
    for step in range(3, 6):
        one, two = advance(step, draws[step])
        assert one[0] == two[0]
        for (*names, made, grades), (*others, made2, grades2) in zip(one[1], two[1], strict=True):
            assert names == others
            for a, b in zip(made.completions, made2.completions, strict=True):
                np.testing.assert_array_equal(a.logprobs, b.logprobs)
                assert a.logprobs.dtype == b.logprobs.dtype == np.float32 and a.tokens.dtype == b.tokens.dtype
                assert (a.text, a.truncated, a.tokens.tolist()) == (b.text, b.truncated, b.tokens.tolist())
            np.testing.assert_array_equal(grades.outcome, grades2.outcome)
            assert grades.correct.tolist() == grades2.correct.tolist() and grades.reasons == grades2.reasons
        assert json.dumps(buffers[0].state()) == json.dumps(buffers[1].state())
    with pytest.raises(ValueError, match="version 99"):
        replay.from_state({"version": 99})


def test_parts_come_back_in_their_order_whatever_sorts_the_keys_of_json():
    buffer = replay.Buffer()
    rewards = np.array([1.0, 0.0], np.float32)
    grades = types.Grades(rewards, rewards > 0, ("", ""), {"verify": rewards, "a": rewards * 0})
    made = types.Generation(np.arange(2, dtype=np.int32), "", (fakes.completion("x"), fakes.completion("y")))
    buffer.add([types.Group(problem(0, entry=object()), "plain", made, grades)], 0, 9)
    again = replay.from_state(json.loads(json.dumps(buffer.state(), sort_keys=True)))
    (stored,) = again.take(1, 1)
    assert list(stored.group.grades.parts) == ["verify", "a"]
    np.testing.assert_array_equal(stored.group.grades.outcome, rewards)
    assert stored.group.problem.extra == {}  # it is graded


# By name.


def test_what_each_episode_asks_of_the_learner():
    def asked(text):
        return protocols.demands(spec.resolve(text, protocols.EPISODES), 8)

    nothing = protocols.Demands()
    assert asked("direct") == asked("lanpo") == nothing
    assert asked("lanpo(mix_level='rollout', strip_guidance=True)") == protocols.Demands(mixed=True, off_policy=True)
    assert asked("lanpo(strip_guidance=True, strip_ratio=False)") == nothing
    assert asked("scaffold") == protocols.Demands(mixed=True)
    assert asked("restructure(share=0.25)") == protocols.Demands(extra=2, mixed=True)
    assert asked("replay") == protocols.Demands(off_policy=True)
    assert asked("replay(decoupled=True)") == protocols.Demands(corrected=True)
