r"""From a solved problem to a principle: the request, and the filter that what comes back must pass."""

from __future__ import annotations

import fractions
import re
from collections.abc import Sequence

from lanpo_jax.experience import features, prompts

REASONS = ("empty", "too_long", "copied", "answer")  # why a principle is rejected

_NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_PART = r"\s*(?:\{\s*(\d+)\s*\}|(\d))"  # an argument of \frac: braced, or a single digit
_RATIO = re.compile(rf"\\[dt]?frac{_PART}{_PART}|(\d+)\s*/\s*(\d+)")
_SUM = re.compile(r"\d\s*[-+*/×÷]\s*\d+(?:\.\d+)?\s*=")
_LABEL = re.compile(r"^\W*(?:general\s+)?(?:principle|hint|lesson)\W*:\W*", re.IGNORECASE)
# Numbers as words. "one" is left out: it is a pronoun more often than a number.
# fmt: off
_WORDS = {
    "zero": 0, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17,
    "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70,
    "eighty": 80, "ninety": 90, "hundred": 100, "thousand": 1000,
}
# fmt: on
_DIGITS = 40  # longer numerals are compared as text: the work stays bounded


def request(
    question: str, solution: str, templates: prompts.Templates, truncate: prompts.Truncate, *, tokens: int
) -> tuple[prompts.Messages, bool]:
    """The request for a principle, and whether the solution had to be cut to `tokens`."""
    shown, cut = prompts.shorten(solution, tokens, truncate)
    return prompts.abstract(question, shown, templates), cut


def principle(
    text: str,
    gold: str,
    question: str,
    solution: str,
    truncate: prompts.Truncate,
    *,
    max_tokens: int,
    max_overlap: float = 0.5,
    examples: Sequence[str] = (),
) -> tuple[str, str]:
    """(principle, "") if the model's text can serve as one, else ("", one of REASONS).

    Boxed parts, calculations, statements of a final answer and every occurrence of the gold answer are dropped.
    Rejected are texts of more than `max_tokens`, texts of which fewer than three words are left, and those of whose
    word 4-grams more than a share of `max_overlap` stand in the problem and its solution, or in an example principle.
    """
    if truncate(text, max_tokens)[1]:
        return "", "too_long"
    text = _LABEL.sub("", drop_statements(drop_boxes(text)).strip())
    text = " ".join(drop_answer(text, gold).split())
    if len(re.findall(r"[^\W\d_]{2,}", text)) < 3:
        return "", "empty"
    if any(overlap(text, source) > max_overlap for source in (f"{question} {solution}", *examples)):
        return "", "copied"
    if contains_answer(text, gold):
        return "", "answer"
    return text, ""


def drop_boxes(text: str) -> str:
    r"""Removes every \boxed{...} and \fbox{...} with its braces counted; an unclosed one takes the rest with it."""
    parts, position = [], 0
    for match in re.finditer(r"\\f?boxed?\s*\{|\\boxed\s*", text):
        if match.start() < position:
            continue
        parts.append(text[position : match.start()])
        position = _closing(text, match.end()) if match.group().endswith("{") else match.end()
    return " ".join([*parts, text[position:]])


def drop_statements(text: str) -> str:
    """Removes the sentences that state a number as the answer or work one out (3 * 8 = 24)."""
    sentences = re.split(r"(?<=[.!?])\s+|\n", text)
    return " ".join(s for s in sentences if not ("answer" in s.lower() and re.search(r"\d", s)) and not _SUM.search(s))


def drop_answer(text: str, gold: str) -> str:
    """Replaces every occurrence of the gold answer, written as a string, a number, a ratio or a word."""
    if not gold.strip():
        return text
    value = number(gold)
    if value is not None:
        text = _RATIO.sub(lambda m: "N" if number(m.group()) == abs(value) else m.group(), text)
        text = _NUMBER.sub(lambda m: "N" if number(m.group()) == abs(value) else m.group(), text)
        words = [word for word, n in _WORDS.items() if n == abs(value)]
        return re.sub(rf"\b(?:{words[0]})\b", "N", text, flags=re.IGNORECASE) if words else text
    return _literal(gold).sub(" ... ", text)


def contains_answer(text: str, gold: str) -> bool:
    """Whether `drop_answer` would still find something."""
    return drop_answer(text, gold) != text


def number(text: str) -> fractions.Fraction | None:
    r"""The value of a plain numeral or ratio (1,200  3.5  -7  3/4  \frac{3}{4}  $5), else None."""
    text = re.sub(r"[\s$]", "", text).removesuffix(".").lstrip("+").replace("\\!", "")
    sign = -1 if text.startswith("-") else 1
    text = text.removeprefix("-")
    if len(text) > _DIGITS:
        return None
    ratio = _RATIO.fullmatch(text)
    if ratio:
        top, bottom = (int(g) for g in ratio.groups() if g is not None)
        return sign * fractions.Fraction(top, bottom) if bottom else None
    return sign * fractions.Fraction(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def overlap(text: str, source: str, n: int = 4) -> float:
    """The share of a text's word n-grams that stand in the source, in [0, 1]; shorter texts count as one n-gram."""
    words, pool = features.tokens(text), features.tokens(source)
    n = max(1, min(n, len(words)))
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    known = {tuple(pool[i : i + n]) for i in range(len(pool) - n + 1)}
    return sum(g in known for g in grams) / len(grams) if grams else 0.0


def _closing(text: str, start: int) -> int:
    """The position after the brace that closes the one before `start`."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return len(text)


def _literal(gold: str) -> re.Pattern[str]:
    """Finds a gold answer that is no number, whatever its spacing; single letters only in their own case."""
    parts = [re.escape(p) for p in re.findall(r"\w+|[^\w\s]", gold)]
    start, end = (r"\b" if re.match(r"\w", g) else "" for g in (gold.strip(), gold.strip()[::-1]))
    flags = 0 if len(gold.strip()) == 1 else re.IGNORECASE
    return re.compile(start + r"\s*".join(parts) + end, flags)
