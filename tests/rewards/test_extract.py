"""Where a completion states its answer."""

import time

import pytest

from lanpo_jax import boxes
from lanpo_jax.rewards import extract

STATED = [
    (r"so \boxed{5}", "5"),
    (r"\boxed{5}, or rather \boxed{7}", "7"),
    (r"\boxed{\frac{1}{2}} and more", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\boxed{3}}", "3"),
    (r"\fbox{12}", "12"),
    (r"\boxed 7 is it", "7"),
    (r"\boxed{5} and \boxed{7", "5"),
    (r"\boxed{}", ""),
    ("6 * 7\n#### 42", "42"),
    ("so it is 42 #### 42", "42"),
    ("#### 1,250", "1,250"),
    ("<answer> 42 </answer>", "42"),
    (r"<answer>\boxed{42}</answer>", "42"),
    ("<answer>The answer is 42.</answer>", "42"),
    ("<answer>1</answer> no: <answer>2</answer>", "2"),
    ("The answer is 9.", "9"),
    ("The answer is 9 apples.", "9"),
    ("The answer is 9 and Tom has 4 apples.", "9"),
    ("So the final answer is: 9", "9"),
    ("answer is 85", "85"),
    ("Answer: 42", "42"),
    ("**Answer:** 42", "42"),
    ("answer: **42**", "42"),
    ("### Final Answer\n42", "42"),
    ("The answer to the question is 7.", "7"),
    ("The final answer is $24$. I hope it is correct.", "24"),
    ("The answer is $5 each.", "$5"),
    ("The answer is $1,250.00.", "$1,250.00"),
    ("The answer is -3.", "-3"),
    ("The answer is 3.5.", "3.5"),
    ("The answer is 50%.", "50%"),
    ("The answer is 3/4 of a pie.", "3/4"),
    ("The answer is 5!", "5"),
    ("The answer is 12, because 3*4=12.", "12"),
    ("The answer is 7, so Tom has 7 apples.", "7"),
    ("The answer is 2x + 3.", "2x + 3"),
    (r"The answer is 2\sqrt{3}.", r"2\sqrt{3}"),
    ("The answer is (3, 4).", "(3, 4)"),
    ("The answer is B.", "B"),
    ("The answer is (B) 42.", "(B) 42"),
    ("The answer is Tuesday.", "Tuesday"),
    (r"The answer is \(42\).", "42"),
    ("The answer is:\n\n$$x=4$$", "x=4"),
    # A list of guesses stays a list.
    ("The answer is 5 or 6.", "5 or 6"),
    ("the answer is 5, 6, or 7", "5, 6, or 7"),
    ("The answers are 3 and 4.", "3 and 4"),
    # What comes last counts, unless it is mere words.
    (r"\boxed{5}, no wait, the answer is 7.", "7"),
    (r"The answer is 5. Let me check. \boxed{7}", "7"),
    (r"\boxed{18}. The answer is correct.", "18"),
    (r"\boxed{18}. Check: 18+2=20.", "18"),
    (r"<think>\boxed{3}</think> The answer is \boxed{4}.", "4"),
    (r"<think>a</think>\boxed{3}<think>\boxed{4}</think>\boxed{5}", "5"),
]
NOT_STATED = [
    "",
    "I could not solve it.",
    "He has 42 apples",
    "42",
    r"\boxed{\frac{1}{2",
    "<answer>42",
    "42</answer>",
    "#### Step 2",
    "#### 2. Add the numbers",
    "##### 42",
    r"<think>it is \boxed{3}</think>",
    r"<think>it is \boxed{3}",
    "The answers were many and the answer",
]


@pytest.mark.parametrize(("text", "answer"), STATED)
def test_stated(text, answer):
    assert {extract.extract(text, mode) for mode in extract.MODES} == {answer}


@pytest.mark.parametrize("text", NOT_STATED)
def test_not_stated(text):
    assert extract.extract(text) is None


@pytest.mark.parametrize(
    ("text", "bare", "last"),
    [
        ("42", "42", "42"),
        ("42.", "42", "42"),
        ("$\\frac{1}{2}$", "\\frac{1}{2}", "\\frac{1}{2}"),
        ("-3 apples", "-3 apples", "-3 apples"),
        ("He has 42 apples left of 50", None, "50"),
        ("First 5.\nThen 1,250", None, "1,250"),
        ("so 1,2,3,4", None, "1,2,3,4"),
        ("I have 42 apples", None, "42"),
        ("nothing", None, None),
    ],
)
def test_lenient_modes(text, bare, last):
    assert (extract.extract(text, "strict"), extract.extract(text, "bare"), extract.extract(text, "last")) == (
        None,
        bare,
        last,
    )


def test_boxes_are_counted_by_braces():
    text = r"\boxed{a{b}c} \boxed{d\}e} \boxed{f"
    assert [content for _, content in boxes.boxes(text)] == ["a{b}c", r"d\}e"]
    assert [text[:end][-1] for end, _ in boxes.boxes(text)] == ["}", "}"]
    assert boxes.last("no box") is None


@pytest.mark.parametrize(
    "piece",
    [
        "answer is ", "answer to ", "answer   ", r"\boxed{", "{", "}", "<answer>", "$", "1,", "####", "#### 1\n",
        "<think>", "**", "\n", "answer is $", r"\(", "answer: 1 or 2 or ", "final answer*", "answer is " + "(" * 50,
        "the answer is 1 and 1 apples ",
    ],
)  # fmt: skip
def test_time_is_linear_in_the_text(piece):
    text = piece * (300_000 // len(piece))
    start = time.perf_counter()
    extract.extract(text, "last")
    assert time.perf_counter() - start < 2
