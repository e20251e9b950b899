"""Demonstrations teach forms: of plain and guided prompts, of lessons, and nothing of a hidden rule."""

import collections

import pytest

from lanpo_jax import demonstrations, families
from lanpo_jax.experience import prompts
from tests import fakes

BARE = prompts.Templates(style="bare", answer="number")


def test_guesses_tell_nothing_of_the_secret():
    problems = families.rules(operators=4, count=200)
    drawn = collections.Counter()
    for draw in range(20):
        for problem, shown in zip(problems, demonstrations.guesses(problems, draw)):
            name, _, shift = shown.lesson.removeprefix("the ").split()
            assert name == problem.text.split()[0] and shown.text.startswith(f"{name} adds {shift},")
            drawn[int(shift) == families.secret(name)] += 1
    assert abs(drawn[True] / drawn.total() - 0.1) < 0.016, "3.3 standard errors of a blind guess in ten"
    assert demonstrations.guesses(problems, 1) == demonstrations.guesses(problems, 1)
    assert demonstrations.guesses(problems, 1) != demonstrations.guesses(problems, 2)


def test_kinds_of_guidance_come_in_turn_and_their_target_follows_what_is_shown():
    (problem,) = families.rules(operators=1, count=1)
    own, other = (demonstrations.Demonstration(families.rule_trace(problem, s), f"the rule adds {s}") for s in (3, 5))
    made = [demonstrations.under_guidance(i, problem, own, other, "stray", BARE) for i in range(24)]
    texts = [(messages[-1]["content"], target) for messages, target in made]
    assert all(t == (problem.text, own.text) for t in texts[0::2])
    assert texts[1] == (f"{problem.text} ({other.text}) again", own.text)
    assert texts[3] == (f"(stray) {problem.text}", own.text) and texts[9] == (
        f"({own.lesson}) {problem.text}",
        own.text,
    )
    assert texts[5] == (f"{problem.text} ({own.text}) hint", own.lesson)


def test_without_lessons_only_attempts_are_shown():
    (problem,) = families.addition(count=1)
    own = demonstrations.Demonstration("answer is 3")
    made = [demonstrations.under_guidance(i, problem, own, own, "", BARE)[0] for i in range(6)]
    assert [m[-1]["content"].endswith("again") for m in made] == [False, True] * 3


def test_problems_without_solutions_are_refused():
    with pytest.raises(ValueError, match="no solution to imitate"):
        demonstrations.writer("solutions")(fakes.problems(1), 0)
