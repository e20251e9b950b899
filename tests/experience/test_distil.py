"""The filter for principles: what it drops, what it rejects, and that no gold answer gets through."""

import fractions

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanpo_jax.experience import distil, prompts
from tests import fakes

GOOD = "Break a total into equal parts and count how many parts there are."


def judge(text, gold="42", question="How many?", solution="We count 6 rows of 7.", max_tokens=60, **options):
    return distil.principle(text, gold, question, solution, fakes.truncate, max_tokens=max_tokens, **options)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (GOOD, GOOD),
        ("Principle: " + GOOD, GOOD),
        ("**Hint:** " + GOOD, GOOD),
        (GOOD + r" So \boxed{\frac{42}{1}}", GOOD + " So"),
        (GOOD + r" \boxed{unclosed {42}", GOOD),
        (GOOD + "\nThe answer is 17.", GOOD),
        (GOOD + " The final answer: 42.", GOOD),
        (GOOD + " So 3 * 8 = 24 here. Then stop.", GOOD + " Then stop."),
        ("Use that a^2 - b^2 = (a - b)(a + b) here.", "Use that a^2 - b^2 = (a - b)(a + b) here."),
        ("Multiply until you reach 42 things.", "Multiply until you reach N things."),
        ("Multiply until $42.00 is left, not 142.", "Multiply until $N is left, not 142."),
    ],
)
def test_what_is_dropped(text, kept):
    assert judge(text) == (kept, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("42", "empty"),
        (r"\boxed{Add all the parts up}", "empty"),
        ("The answer is 42.", "empty"),
        ("12 + 30 = 42", "empty"),
        ("We do 12 + 30 = 41 and then we stop.", "empty"),
        ("go on and on " * 30, "too_long"),
        ("We count 6 rows of 7.", "copied"),
        ("So: we count 6 rows of 7. Good.", "copied"),
        ("Share it equally, then divide.", "copied"),
    ],
)
def test_what_is_rejected(text, reason):
    assert judge(text, examples=("Share it equally, then divide.",)) == ("", reason)
    assert reason in distil.REASONS


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("1234", "First reach 1,234 and stop there."),
        ("1,234", "First reach 1234 and stop there."),
        ("0.5", "Take 1/2 of the whole thing."),
        ("0.5", "Take .50 of the whole thing."),
        (r"\frac{3}{4}", r"Take \dfrac{3}{4} of the whole thing."),
        (r"\frac{3}{4}", "Take 0.75 of the whole thing."),
        ("-5", "Subtract until x-5 is left over."),
        ("5", "It is -5 or five in the end."),
        ("Twelve monkeys", "There are twelve  MONKEYS in the end."),
        (r"\sqrt{2}", r"Use that \sqrt {2} is irrational here."),
        ("(1, 2)", "Start from the point (1,2) and go."),
        ("B", "Choose B because it fits best."),
        ("12", r"Use 1\boxed{0}2 and then 12 again."),
    ],
)
def test_the_gold_answer_does_not_survive_in_any_spelling(gold, text):
    assert distil.contains_answer(text, gold)
    kept, reason = judge(text, gold)
    assert reason == "" and not distil.contains_answer(kept, gold)
    assert len(kept.split()) >= 3


def test_other_numbers_and_words_survive():
    text = "Use 120 and 3.12 and a, then b; one should not stop at 21."
    assert distil.drop_answer(text, "12") == text
    assert distil.drop_answer(text, "1") == text
    assert distil.drop_answer(text, "A") == text  # a letter only in its own case
    assert distil.drop_answer(text, "") == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3/4", (3, 4)),
        ("$1,200", (1200, 1)),
        ("-7", (-7, 1)),
        (r"\frac12", (1, 2)),
        ("1/0", None),
        ("x", None),
        ("", None),
    ],
)
def test_numbers_are_read(text, value):
    assert distil.number(text) == (fractions.Fraction(*value) if value else None)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.integers(-(10**6), 10**6).map(str), st.text(min_size=1, max_size=12)),
    st.lists(st.one_of(st.just("GOLD"), st.text(max_size=12), st.sampled_from(["add", "the", "\\boxed{", "}", "1/"]))),
)
def test_no_accepted_text_contains_the_gold_answer(gold, pieces):
    text = " ".join(gold if p == "GOLD" else p for p in pieces)
    kept, reason = judge(text, gold)
    assert (kept == "") == (reason != "")
    if not reason and gold.strip():
        assert not distil.contains_answer(kept, gold)


def test_hostile_sizes_are_bounded():
    long = "9" * 50_000
    assert judge("Take " + long, long, max_tokens=10) == ("", "empty")
    assert judge(r"\boxed{" * 20_000 + " a b c d", max_tokens=40_000)[1] == "empty"
    assert judge("( " * 20_000 + "add all the parts", max_tokens=40_000)[1] == ""


def test_the_request_shows_the_solution_and_counts_its_cut():
    messages, cut = distil.request("Q?", "a b c d", prompts.Templates(), fakes.truncate, tokens=3)
    assert cut and "a b c [...]" in messages[-1]["content"]
    messages, cut = distil.request("Q?", "a b c", prompts.Templates(), fakes.truncate, tokens=3)
    assert not cut and "[...]" not in messages[-1]["content"]
