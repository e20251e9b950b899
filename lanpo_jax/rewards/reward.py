"""Rewards by name: `package.module.function(option=value)`, one or several with weights, into one `grade` function.

A reward function has the signature

    f(problems: Sequence[Problem], completions: Sequence[str], tokens: np.ndarray, *, options...) -> float array [n]

with one problem, one completion text and one token count (int [n]) per row. It may return a `Scored` instead, to say
which rows are correct, why, and what it counted. A wrong length, a NaN or an exception is an error that names function
and row, or is counted and treated as `on_error` says. There is no reward by code execution: running model output needs
a sandbox that this package does not bring.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lanpo_jax import spec
from lanpo_jax.types import Completion, Grade, Grades, Problem


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a reward function found out about n completions."""

    values: np.ndarray  # float [n]
    correct: np.ndarray | None = None  # bool [n], from a verifier
    reasons: Sequence[str] = ()  # n short texts, or none
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)


Reward = Callable[[Sequence[Problem], Sequence[str], np.ndarray], "Scored | np.ndarray | Sequence[float]"]


def resolve(text: str) -> Reward:
    """The function that 'package.module.function(option=value)' names, its options bound. Raises ValueError."""
    name, _ = spec.parse(text)
    module_name, dot, function = name.rpartition(".")
    if not dot:
        raise ValueError(f"Reward {text!r} lacks its module; write package.module.function(option=value).")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"Reward {text!r}: the module {module_name} cannot be imported ({error}).") from error
    known = spec.choices(module)
    if function not in known:
        near = spec.nearest(function, known)
        raise ValueError(
            f"Reward {text!r}: {module_name} has no function {function!r}{near}; it has {', '.join(known)}."
        )
    return spec.resolve(text, {name: known[function]})


def grader(rewards: str | Mapping[str, float], *, on_error: str | float = "raise") -> Grade:
    """Binds reward specs with weights to `grade(problems, completions) -> Grades`.

    The trained reward is the weighted sum. `Grades.correct` comes from the first function that returns a verdict, else
    it says where the first function gave at least 1.

    Args:
        rewards: one spec, or a mapping from spec to weight.
        on_error: "raise"; or "skip": the row's reward is NaN, for the trainer to leave out; or a number that the failed
            part gets. Both of these are counted as "errors".
    """
    if on_error not in ("raise", "skip") and not isinstance(on_error, (int, float)):
        raise ValueError(f"on_error is {on_error!r}; it must be 'raise', 'skip' or a number.")
    weights = {rewards: 1.0} if isinstance(rewards, str) else dict(rewards)
    if not weights:
        raise ValueError("No reward function is configured; name at least one, e.g. lanpo_jax.rewards.math.verify.")
    functions = {name: resolve(text) for name, text in _short_names(weights).items()}
    factors = dict(zip(functions, weights.values()))

    def grade(problems: Sequence[Problem], completions: Sequence[Completion]) -> Grades:
        if len(problems) != len(completions):
            raise ValueError(f"grade() got {len(problems)} problems for {len(completions)} completions.")
        texts = [c.text for c in completions]
        tokens = np.array([len(c.tokens) for c in completions], np.int64)
        scored = {n: _score(n, f, problems, texts, tokens, on_error) for n, f in functions.items()}
        return _combine(scored, factors)

    return grade


def _short_names(weights: Mapping[str, float]) -> dict[str, str]:
    """Function name -> spec; the whole spec is the name where two functions share one."""
    short = [spec.parse(text)[0].rpartition(".")[2] for text in weights]
    counts = collections.Counter(short)
    return {name if counts[name] == 1 else text: text for name, text in zip(short, weights)}


def _combine(scored: Mapping[str, Scored], factors: Mapping[str, float]) -> Grades:
    parts = {name: np.asarray(s.values, np.float32) for name, s in scored.items()}
    total = sum(factors[name] * np.asarray(s.values, np.float64) for name, s in scored.items())
    first = next(iter(scored.values()))
    judge = next((s for s in scored.values() if s.correct is not None), first)
    correct = judge.values >= 1 if judge.correct is None else judge.correct
    counters: collections.Counter[str] = collections.Counter()
    for s in scored.values():
        counters.update(s.counters)
    reasons = tuple(judge.reasons) or tuple(f"{v:g}" for v in judge.values)
    return Grades(np.asarray(total, np.float32), np.asarray(correct, bool), reasons, parts, dict(counters))


def _score(
    name: str,
    function: Reward,
    problems: Sequence[Problem],
    texts: Sequence[str],
    tokens: np.ndarray,
    on_error: str | float,
) -> Scored:
    """One function's values with every failed row raised or replaced."""
    try:
        scored = _checked(function(problems, texts, tokens), len(texts))
    except Exception as error:
        return _one_by_one(name, function, problems, texts, tokens, on_error, error)
    bad = np.flatnonzero(~np.isfinite(scored.values))
    if not len(bad):
        return scored
    if on_error == "raise":
        row = int(bad[0])
        raise ValueError(f"Reward {name} gave {scored.values[row]} for row {row} (problem {problems[row].id!r}).")
    values = scored.values.copy()
    values[bad] = _replacement(on_error)
    counters = {**scored.counters, "errors": scored.counters.get("errors", 0) + len(bad)}
    return dataclasses.replace(scored, values=values, counters=counters)


def _checked(result: Scored | np.ndarray | Sequence[float], rows: int) -> Scored:
    scored = result if isinstance(result, Scored) else Scored(np.asarray(result))
    values = np.asarray(scored.values, np.float64)
    if values.shape != (rows,):
        raise ValueError(f"it returned shape {values.shape} for {rows} completions; it must return ({rows},)")
    return dataclasses.replace(scored, values=values)


def _one_by_one(
    name: str,
    function: Reward,
    problems: Sequence[Problem],
    texts: Sequence[str],
    tokens: np.ndarray,
    on_error: str | float,
    error: Exception,
) -> Scored:
    """After a failed call: finds the rows at fault, to name or to replace them."""
    rows: list[Scored] = []
    for i in range(len(texts)):
        try:
            rows.append(_checked(function(problems[i : i + 1], texts[i : i + 1], tokens[i : i + 1]), 1))
        except Exception as fault:
            if on_error == "raise":
                what = f"{type(fault).__name__}: {fault}"
                raise ValueError(f"Reward {name} failed on row {i} (problem {problems[i].id!r}): {what}.") from fault
            rows.append(Scored(np.array([math.nan]), None, (f"{name} failed: {type(fault).__name__}",)))
    if on_error == "raise":  # each row alone is fine
        raise ValueError(f"Reward {name} failed on {len(texts)} rows: {type(error).__name__}: {error}.") from error
    values = np.concatenate([r.values for r in rows])
    counters = collections.Counter({"errors": int(np.isnan(values).sum())})
    for row in rows:
        counters.update(row.counters)
    values[np.isnan(values)] = _replacement(on_error)
    judged = any(r.correct is not None for r in rows)
    correct = np.array([r.correct is not None and bool(r.correct[0]) for r in rows]) if judged else None
    reasons = [r.reasons[0] if r.reasons else f"{r.values[0]:g}" for r in rows]
    return Scored(values, correct, reasons, counters)


def _replacement(on_error: str | float) -> float:
    return math.nan if isinstance(on_error, str) else float(on_error)
