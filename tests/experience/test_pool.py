"""The pool: bounds, eviction, the wall between text and verdicts, and exact restoring through JSON."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import retrieval
from tests import fakes


def attempt(text="2 + 2 = 4", step=0) -> pool_lib.Attempt:
    return pool_lib.Attempt(text, len(text.split()), step)


def principle(text="Add up.", step=0) -> pool_lib.Principle:
    return pool_lib.Principle(text, 2, step)


def filled(problems, **options) -> pool_lib.Pool:
    pool = pool_lib.Pool(**options)
    pool.admit([(p.id, p.text) for p in problems])
    return pool


def through_json(pool: pool_lib.Pool) -> pool_lib.Pool:
    return pool_lib.from_state(json.loads(json.dumps(pool.state(), allow_nan=False)))


def test_newest_attempts_stay_whatever_they_earned():
    pool = filled(fakes.problems(1))
    pool.add_attempts("story/0", [attempt("a"), attempt("b")], [1.0, 1.0], [True, True])
    pool.add_attempts("story/0", [attempt("c", 1), attempt(" \n", 1)], [-0.5, 0.0], [False, False])
    assert [a.text for a in pool.entry("story/0").attempts] == ["b", "c"]
    outcome = pool.outcome("story/0")
    assert (outcome.rewards, outcome.correct) == ((1.0, -0.5), (True, False))
    assert (outcome.tried, outcome.solved) == (4, 2)


def test_what_may_be_shown_has_no_place_for_a_verdict():
    names = {f.name for t in (pool_lib.Entry, pool_lib.Attempt, pool_lib.Principle) for f in dataclasses.fields(t)}
    assert names == {"id", "text", "attempts", "principle", "tokens", "step"}


def test_statistics_belong_to_the_present_principle():
    pool = filled(fakes.problems(1))
    pool.set_principle("story/0", principle())
    pool.record_shown("story/0", 8, 3)
    pool.record_shown("story/0", 8, 1)
    assert (pool.outcome("story/0").shown, pool.outcome("story/0").succeeded) == (16, 4)
    pool.set_principle("story/0", principle("Add all.", 5))
    assert (pool.outcome("story/0").shown, pool.outcome("story/0").succeeded) == (0, 0)
    assert pool.entry("story/0").principle.step == 5
    pool.record_shown("gone", 8, 1)
    assert "gone" not in pool


def test_the_least_recently_used_entry_is_evicted():
    problems = fakes.problems(5)
    pool = filled(problems[:3], capacity=3)
    for p in problems[:3]:
        pool.set_principle(p.id, principle())
    pool.record_shown("story/0", 4, 4)  # used: story/1 is now the oldest
    assert pool.admit([("story/3", problems[3].text)]) == [True]
    assert pool.ids() == ["story/2", "story/0", "story/3"]
    assert pool.evicted == 1 and "story/1" not in pool.index and pool.outcome("story/1").shown == 0
    assert pool.admit([(p.id, p.text) for p in problems]) == [False, False, True, True, True]
    assert len(pool) == 3


def test_an_id_with_another_text_is_another_problem():
    pool = filled(fakes.problems(2))
    pool.add_attempts("story/0", [attempt()], [1.0], [True])
    pool.set_principle("story/0", principle())
    pool.admit([("story/0", "A wholly different question about trains.")])
    assert pool.entry("story/0").attempts == () and pool.entry("story/0").principle is None
    assert "story/0" not in pool.index and pool.outcome("story/0") == pool_lib.Outcome()


def test_evaluation_problems_never_enter_and_leave_if_they_did():
    problems = fakes.problems(6)
    pool = filled(problems[:3])
    pool.set_principle("story/1", principle())
    held_out = [problems[1].text.upper(), problems[4].text + "??"]
    assert pool.forbid(held_out) == 1
    assert pool.ids() == ["story/0", "story/2"] and len(pool.index) == 0
    assert pool.admit([(p.id, p.text) for p in problems]) == [True, False, True, True, False, True]
    assert pool.refused == 2
    assert pool.forbidden([held_out[0], problems[0].text]) == [True, False]
    again = through_json(pool)
    assert again.admit([("other id", problems[1].text)]) == [False]


def test_empty_capacity_and_foreign_states_are_refused():
    with pytest.raises(ValueError, match="use 1 or more"):
        pool_lib.Pool(capacity=0)
    with pytest.raises(ValueError, match="version 99"):
        pool_lib.from_state({"version": 99})


def test_the_order_of_principles_survives_restoring():
    problems = fakes.problems(30)
    pool = filled(problems)
    for p in reversed(problems):
        pool.set_principle(p.id, principle())
    asked = [retrieval.Query("new", "Share the cost of a boat.", str(i)) for i in range(10)]
    assert retrieval.random(through_json(pool).index, asked) == retrieval.random(pool.index, asked)


operations = st.lists(
    st.tuples(st.sampled_from(["admit", "attempts", "principle", "shown", "forbid"]), st.integers(0, 19)), max_size=60
)


def apply(pool: pool_lib.Pool, steps, problems) -> None:
    for number, (name, i) in enumerate(steps):
        p = problems[i]
        if name == "admit":
            pool.admit([(p.id, p.text), (problems[i - 1].id, problems[i - 1].text)])
        elif name == "forbid" and number % 7 == 0:
            pool.forbid([p.text])
        elif name == "shown":
            pool.record_shown(p.id, 4, i % 5)
        elif p.id in pool and name == "attempts":
            pool.add_attempts(p.id, [attempt(f"try é {number}", number)], [0.1 * number], [bool(i % 2)])
        elif p.id in pool and name == "principle":
            pool.set_principle(p.id, principle(f"Rule {number}", number))


@settings(max_examples=40, deadline=None)
@given(operations, operations)
def test_a_restored_pool_is_the_pool_and_goes_on_like_it(before, after):
    problems = fakes.problems(20)
    pool = pool_lib.Pool(capacity=8)
    apply(pool, before, problems)
    again = through_json(pool)
    assert again.state() == pool.state()
    for one in (pool, again):
        apply(one, after, problems)
    assert len(pool) <= 8
    assert json.dumps(again.state()) == json.dumps(pool.state())
    asked = [retrieval.Query(p.id, p.text, p.id) for p in problems]
    assert retrieval.tfidf(again.index, asked, k=3) == retrieval.tfidf(pool.index, asked, k=3)
    assert retrieval.random(again.index, asked, k=2) == retrieval.random(pool.index, asked, k=2)
