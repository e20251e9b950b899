"""Generated problems: right answers, no repetition, reproducible, learnable characters."""

import re

import numpy as np
import pytest

from lanpo_jax import data, families
from lanpo_jax.rewards import extract


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "mixed"])
@pytest.mark.parametrize("digits", [1, 2])
def test_answers_follow_from_the_numbers_in_the_text(operation, digits):
    """Solved again from the words, not from the generator's own signs."""
    for p in families.stories(operation=operation, digits=digits, count=300, seed=4):
        numbers = [int(n) for n in re.findall(r"\d+", p.text)]
        assert int(p.answer) in _solutions(operation, p.text, numbers), p
        assert all(n < 10**digits for n in numbers) and int(p.answer) > 0


def _solutions(operation: str, text: str, numbers: list[int]) -> set[int]:
    a, b = numbers[:2]
    if operation == "add":
        return {a + b}
    if operation == "subtract":
        return {a - b}
    if operation == "multiply":
        return {a * b}
    c = numbers[2]
    if "boxes" in text or "bags" in text:
        return {a * b - c if "gives away" in text else a * b + c}
    return {a + b - c if "then gives away" in text else a - b + c}


def test_texts_differ_and_are_reproducible():
    first = families.stories(operation="add", digits=1, count=2000, seed=7)
    assert len({p.text for p in first}) == 2000 and len({p.id for p in first}) == 2000
    assert first == families.stories(operation="add", digits=1, count=2000, seed=7)
    assert first[:50] == families.stories(operation="add", digits=1, count=50, seed=7), "a longer list only goes on"
    assert first != families.stories(operation="add", digits=1, count=2000, seed=8)


def test_parts_never_coincide():
    train = families.stories(operation="multiply", count=3000, seed=0, part="train")
    held_out = families.stories(operation="multiply", count=300, seed=0, part="eval")
    assert not data.exclude(train, held_out)[1]
    names = {word for p in held_out for word in re.findall(r"[A-Z][a-z]+", p.text)} & set(
        (families.HE + " " + families.SHE).split()
    )
    assert names and not any(re.search(rf"\b(?:{'|'.join(names)})\b", p.text) for p in train)


def test_one_of_a_thing_is_singular():
    texts = [p.text for p in families.stories(operation="subtract", count=1500, seed=0)]
    assert not any(re.search(r"\b1 [a-z]+s\b", t) for t in texts)


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "mixed"])
@pytest.mark.parametrize("digits", [1, 2])
def test_examples_are_solved_and_stay_apart(operation, digits):
    spec = f"stories(operation={operation!r}, digits={digits}, count=5)"
    examples = families.examples(spec)
    texts = {
        p.text for seed in range(3) for p in families.stories(operation=operation, digits=digits, count=1500, seed=seed)
    }
    assert len(examples) == 3
    answers = set()
    for text, solution in examples:
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        answer = int(extract.extract(solution))
        answers.add(answer)
        assert answer in _solutions(operation, text, numbers) and solution.endswith(f"The answer is {answer}.")
        assert text not in texts and not any(name in t for t in texts for name, _ in families.EXAMPLE_PEOPLE)
        for left, sign, right, result in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", solution):
            assert {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign] == int(
                result
            )
    assert len(answers) > 1, "examples with one answer teach a constant"


def test_additions_and_their_parts():
    found = families.addition(digits=2, count=3000, seed=1)
    for p in found:
        a, b = map(int, re.fullmatch(r"(\d+)\+(\d+)=\?", p.text).groups())
        assert int(p.answer) == a + b and max(a, b) < 100
    assert len({p.text for p in found}) == 3000
    train = families.addition(count=4000, seed=1, part="train")
    held_out = families.addition(count=500, seed=2, part="eval")
    assert not {p.text for p in train} & {p.text for p in held_out}
    assert len(families.addition(digits=1, count=500)) == 500, "repeats once all pairs are used"


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_traces_are_right_in_every_column(digits):
    for p in families.addition(digits=digits, count=200, seed=5):
        text = families.trace(p)
        assert extract.extract(text) == p.answer, text
        for column in re.findall(r"([\d+]+)=(\d+)", text):
            assert sum(map(int, column[0].split("+"))) == int(column[1]), text
        assert text.count("carry 1") <= digits


def test_the_documented_trace():
    (text, trace), *_ = families.examples("addition(digits=1)")
    assert (text, trace) == ("37+68=?", "7+8=15 carry 1, 3+6+1=10, answer is 105")


def test_slips_are_as_frequent_as_asked_and_reproducible():
    found = families.addition(digits=2, count=2000, seed=6)
    texts = [families.trace(p, slips=0.45) for p in found]
    wrong = sum(extract.extract(t) != p.answer for t, p in zip(texts, found))
    assert abs(wrong / 2000 - 0.45) < 0.04  # 3.6 standard errors
    assert texts == [families.trace(p, slips=0.45) for p in found]
    assert texts != [families.trace(p, slips=0.45, seed=1) for p in found]
    assert len(set("".join(texts) + "".join(p.text for p in found))) <= 24, "a small alphabet"


def test_rules_have_one_secret_an_operator_and_disjoint_parts():
    train = families.rules(operators=6, count=300, seed=1, part="train")
    held_out = families.rules(operators=6, count=60, seed=9, part="eval")
    assert not {p.text for p in train} & {p.text for p in held_out}
    shifts: dict[str, set[int]] = {}
    for problem in train + held_out:
        name, _, a, _, b = problem.text.rstrip("?").split()
        shifts.setdefault(name, set()).add(int(problem.answer) - int(a) - int(b))
    assert len(shifts) == 6 and all(len(s) == 1 and s <= set(range(10)) for s in shifts.values()), shifts
    assert set(families.rule_names(3)) < set(families.rule_names(6)), "more operators keep those that were there"
    counts = np.bincount([families.secret(n) for n in families.rule_names(900)], minlength=10)
    assert ((counts - 90) ** 2 / 90).sum() < 27.9, "secrets are uniform (chi-square, 9 degrees, p = .001)"


def test_a_rule_trace_is_right_exactly_with_the_secret():
    problem = families.rules(operators=2, count=5)[3]
    name = problem.text.split()[0]
    for shift in range(10):
        text = families.rule_trace(problem, shift)
        assert (extract.extract(text) == problem.answer) == (shift == families.secret(name)), text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: families.rules(operators=2, count=999), "ask for fewer"),
        (lambda: families.rules(operators=0), "there are 1 to"),
        (lambda: families.rules(part="test"), "parts are all"),
        (lambda: families.stories(operation="divide"), "operations are add, subtract"),
        (lambda: families.stories(digits=3), "digits 1 or 2"),
        (lambda: families.stories(part="test"), "all, train, eval"),
        (lambda: families.stories(count=10**6), "ask for fewer"),
        (lambda: families.addition(digits=0), "digits are 1 to 9"),
        (lambda: families.examples("file(path='x')"), "stories, addition"),
        (lambda: families.examples("stories(operation='divide')"), "operations are"),
    ],
)
def test_errors(call, message, monkeypatch):
    monkeypatch.setattr(families, "THINGS", "apple pear")
    monkeypatch.setattr(families, "HE", "Tom Ben")
    monkeypatch.setattr(families, "SHE", "Mia Eva")
    if "fewer" in message:
        call = lambda: families.stories(count=4000)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("operation", sorted(families.TEMPLATES))
def test_problems_come_with_a_solution_that_ends_in_the_answer(operation):
    for problem in families.stories(operation=operation, digits=2, count=20):
        assert problem.extra["solution"].endswith(f"The answer is {problem.answer}.")
        numbers = set(re.findall(r"\d+", problem.text))
        assert len(numbers & set(re.findall(r"\d+", problem.extra["solution"]))) == len(numbers)
    for problem in families.addition(count=20):
        assert problem.extra["solution"] == families.trace(problem)
