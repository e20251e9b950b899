"""Form and length rewards by hand-computed values."""

import numpy as np
import pytest

from lanpo_jax.rewards import shaping


def values(function, texts, tokens=None, **options):
    return function(
        [None] * len(texts), texts, np.array(tokens if tokens is not None else [0] * len(texts)), **options
    ).tolist()


def test_overlong_starts_and_caps():
    """OpenRLHF 1091, verl 3855."""
    found = values(shaping.overlong, [""] * 5, [80, 81, 90, 100, 120], limit=100, buffer=20)
    np.testing.assert_allclose(found, [0.0, -0.05, -0.5, -1.0, -1.0], atol=1e-12)


def test_lengths():
    assert values(shaping.brevity, [""] * 4, [0, 5, 10, 20], limit=10) == [1, 0.5, 0, 0]
    assert values(shaping.within, [""] * 4, [1, 2, 5, 6], low=2, high=5) == [0, 1, 1, 0]


def test_forms():
    texts = [
        "The answer is 5.",
        "5",
        r"\boxed{5}",
        r"\boxed{5} \boxed{6}",
        r"\boxed{}",
        r"<think>\boxed{1}</think>\boxed{2}",
    ]
    assert values(shaping.answered, texts) == [1, 0, 1, 1, 0, 1]
    assert values(shaping.boxed, texts) == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        (" <think>a</think>\n<answer>b</answer>\n", 1),
        ("<think>a</think>", 0),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think><answer>b</answer> more", 0),
        ("so <think>a</think><answer>b</answer>", 0),
        ("<think></think><answer>b</answer>", 0),
        ("<think>a<think>a</think></think><answer>b</answer>", 0),
        ("<think>a</think><answer>b", 0),
    ],
)
def test_tagged(text, good):
    assert values(shaping.tagged, [text]) == [good]


def test_impossible_options():
    for function, options in (
        (shaping.overlong, {"limit": 10, "buffer": 0}),
        (shaping.overlong, {"limit": 10, "buffer": 11}),
        (shaping.brevity, {"limit": 0}),
        (shaping.within, {"low": 2, "high": 1}),
    ):
        with pytest.raises(ValueError, match="="):
            values(function, [""], **options)
