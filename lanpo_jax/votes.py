"""The answers that completions state, and which of them are the same answer: what a majority vote counts.

The checker's own extractor and its exact comparison decide; the gold answer is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lanpo_jax import spec
from lanpo_jax.rewards import compare, extract, normal, trees

Extract = Callable[[str], str | None]  # completion -> the answer it states, or None

CHECKERS = ("lanpo_jax.rewards.math.verify", "lanpo_jax.rewards.gym.score")


def extractor(rewards: Sequence[str]) -> Extract:
    """The extractor of the first answer checker among some reward specs, with its mode; `bare` where none is one."""
    parsed = [spec.parse(text) for text in rewards]
    modes = [options.get("extract", "strict") for name, options in parsed if name in CHECKERS] or ["bare"]
    return lambda text: extract.extract(text, modes[0])


def ballots(answers: Sequence[str | None]) -> list[list[int]]:
    """Groups the numbers of equal answers, in order of first appearance; an answer that is None or empty has no vote.

    Equal are answers of one normal form, and those that the exact comparison finds equal (1/2 and 0.5).
    """
    forms: dict[str, list[int]] = {}
    for i, answer in enumerate(answers):
        form = normal.normalise(answer).replace(" ", "") if answer else ""
        if form:
            forms.setdefault(form, []).append(i)
    groups: list[tuple[str, list[int]]] = []
    for members in forms.values():
        answer = answers[members[0]]
        same = next((group for known, group in groups if _equal(answer, known)), None)
        if same is None:
            groups.append((answer, members))
        else:
            same.extend(members)
    return [sorted(group) for _, group in groups]


def _equal(a: str, b: str) -> bool:
    """Whether each would be accepted for the other as gold; long answers are only compared as text."""
    if max(len(a), len(b)) > trees.LONGEST:
        return False
    return all((found := compare.settle(*pair)) is not None and found[0] == "right" for pair in ((a, b), (b, a)))


def winner(answers: Sequence[str | None]) -> str | None:
    """The answer given most often, as first written; of equally many the one given first; None if there is none."""
    found = max(ballots(answers), key=len, default=None)
    return answers[found[0]] if found else None
