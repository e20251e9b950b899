"""DISHONEST on purpose: a reflection prompt that shows the gold answer.

For the cautionary experiment alone (training accuracy rises, held-out accuracy does not). Kept apart so that nothing
in `prompts` ever has a parameter for an answer; `episodes` reaches it only when a run asks for the mode `leak`.
"""

from __future__ import annotations

from lanpo_jax.experience import prompts


def reflect_with_answer(question: str, attempt: str, answer: str, templates: prompts.Templates) -> prompts.Messages:
    """The reflection prompt with the gold answer of the very problem added."""
    *before, request = prompts.reflect(question, attempt, templates)
    told = f"{request['content']}\nThe correct answer to the problem is {answer}."
    return (*before, {"role": "user", "content": told})
