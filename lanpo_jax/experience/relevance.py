"""Would a principle help with a problem? The policy's own judgement: P(yes), one forward pass a question.

LANPO (arXiv 2510.16552) keeps an experience where the model itself finds it relevant with probability >= .9.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence

import numpy as np

from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import prompts, retrieval

# (conversations, token ids) -> P(next token is that id) at temperature 1, float32 [conversations, ids].
NextToken = Callable[[Sequence[prompts.Messages], Sequence[int]], np.ndarray]


def answer_ids(encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids that mean yes, and those that mean no.

    Every form of the word (yes, Yes, YES, each with and without a space before it) that is one token counts; if none
    is, the first token of the plain forms (y, Y), as models over characters need. Ids that both words share say
    nothing and are left out. Raises ValueError where nothing is left.
    """
    yes, no = (_forms(word, encode) for word in ("yes", "no"))
    yes, no = yes - no, no - yes
    if not yes or not no:
        raise ValueError("The tokenizer cannot tell yes from no by one token; use a retriever that asks no model.")
    return tuple(sorted(yes)), tuple(sorted(no))


def _forms(word: str, encode: Callable[[str], Sequence[int]]) -> set[int]:
    spelled = (word, word.capitalize(), word.upper())
    forms = [list(encode(space + form)) for form in spelled for space in ("", " ")]
    whole = {ids[0] for ids in forms if len(ids) == 1}
    return whole or {ids[0] for ids in forms[::2] if ids}


def wanted(retrieve: Callable) -> bool:
    """Whether a retriever asks for a model's judgement."""
    return "judge" in inspect.signature(retrieve).parameters


def bind(
    retrieve: Callable,
    next_token: NextToken,
    encode: Callable[[str], Sequence[int]],
    pool: pool_lib.Pool,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: Callable[[prompts.Messages, int], bool],
) -> retrieval.Retrieve:
    """A retriever with the policy as its judge, if it asks for one; else as it is."""
    if not wanted(retrieve):
        return retrieve
    answers = answer_ids(encode)
    return functools.partial(
        retrieve,
        judge=functools.partial(
            judge, pool=pool, templates=templates, truncate=truncate, fits=fits, next_token=next_token, answers=answers
        ),
    )


def judge(
    pairs: Sequence[tuple[str, str]],
    *,
    pool: pool_lib.Pool,
    templates: prompts.Templates,
    truncate: prompts.Truncate,
    fits: Callable[[prompts.Messages, int], bool],
    next_token: NextToken,
    answers: tuple[Sequence[int], Sequence[int]],
    principle_tokens: int = 256,
) -> list[float]:
    """P(yes) / (P(yes) + P(no)) for each (problem text, id of a stored principle).

    The question shows the problem and the principle, as a rollout would see them, and nothing of the problem that
    the principle came from. A question that does not fit the model is answered no, unasked.
    """
    told = []
    for question, id in pairs:
        principle, _ = prompts.shorten(pool.entry(id).principle.text, principle_tokens, truncate)
        told.append(prompts.relevant(question, principle, templates))
    asked = [i for i, messages in enumerate(told) if fits(messages, 1)]
    values = np.zeros(len(pairs))
    if asked:
        yes, no = answers
        chances = np.asarray(next_token([told[i] for i in asked], [*yes, *no]), np.float64)
        said_yes, said_no = chances[:, : len(yes)].sum(1), chances[:, len(yes) :].sum(1)
        values[asked] = said_yes / np.maximum(said_yes + said_no, np.finfo(np.float64).tiny)
    return values.tolist()
