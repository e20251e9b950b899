"""How a policy answers problems outside of training: alone, with a second look, or with principles from a pool.

Each way takes problems and a `Setting` and returns what was answered, ungraded. Nothing here changes a pool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanpo_jax import spec, types
from lanpo_jax.experience import guide, prompts, retrieval
from lanpo_jax.experience import pool as pool_lib

MODES = ("zero_shot", "self_correct", "pool")


@dataclasses.dataclass(frozen=True)
class Guidance:
    """Limits of what is shown: tokens of an earlier attempt and of a principle, and what the pool's lessons are."""

    attempt_tokens: int = 1024
    principle_tokens: int = 256
    lesson: str = "principle"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What every way of answering is given; `pool` and `retrieve` matter to the mode `pool` alone."""

    generate: types.Generate
    templates: prompts.Templates
    truncate: prompts.Truncate
    fits: guide.Fits
    samples: int
    max_new_tokens: int
    seed: int = 0
    pool: pool_lib.Pool = dataclasses.field(default_factory=pool_lib.Pool)
    retrieve: retrieval.Retrieve = retrieval.tfidf
    guidance: Guidance = Guidance()


@dataclasses.dataclass(frozen=True)
class Answered:
    """One problem's completions, over one prompt or, for second attempts, one prompt each."""

    problem: types.Problem
    mode: str
    generations: tuple[types.Generation, ...]
    guided: float  # share of the completions that saw guidance
    tokens: int  # generated for this problem in all, first attempts included
    info: Mapping[str, Any]  # sources and similarity of principles, the reason of a fall-back

    @property
    def completions(self) -> tuple[types.Completion, ...]:
        return tuple(c for g in self.generations for c in g.completions)


def check(modes: Sequence[str]) -> tuple[str, ...]:
    """The modes without repetition, zero_shot first: it is what the others are compared with. Raises ValueError."""
    for name in modes:
        if name not in MODES:
            raise ValueError(f"Mode {name!r} is not known{spec.nearest(name, MODES)}; there are: {', '.join(MODES)}.")
    return tuple(dict.fromkeys(("zero_shot", *modes)))


def guidance(episode: str) -> Guidance:
    """The limits that an episode's config string sets, so that evaluation shows what training showed."""
    names = {field.name for field in dataclasses.fields(Guidance)}
    return Guidance(**{name: value for name, value in spec.parse(episode)[1].items() if name in names})


def answer(
    modes: Sequence[str], problems: Sequence[types.Problem], setting: Setting, purpose: str
) -> Iterator[tuple[str, list[Answered]]]:
    """(mode, answers in the order of the problems) for each mode; what was sampled for one is not sampled again.

    `purpose` names what this is for ("eval/aime24"): randomness is a function of it, the seed and the problem's id.
    """
    plain = zero_shot(problems, setting, purpose)
    for mode in check(modes):
        if mode == "zero_shot":
            yield mode, plain
        elif mode == "self_correct":
            yield mode, second_attempts(plain, setting, purpose)
        else:
            yield mode, with_pool(problems, setting, purpose, plain)


def zero_shot(problems: Sequence[types.Problem], setting: Setting, purpose: str) -> list[Answered]:
    """The problems alone."""
    plans = guide.plain(
        problems, setting.templates, purpose, group=setting.samples, max_new_tokens=setting.max_new_tokens
    )
    return _sample(plans, setting.generate)


def second_attempts(first: Sequence[Answered], setting: Setting, purpose: str) -> list[Answered]:
    """Each completion's own second attempt, after a reflection prompt that does not say whether the first was right.

    An empty first attempt, or one that makes the prompt too long, stands.
    """
    limit, sent, places = setting.max_new_tokens, [], {}
    for row, answered in enumerate(first):
        for i, completion in enumerate(answered.completions):
            shown, _ = prompts.shorten(completion.text, setting.guidance.attempt_tokens, setting.truncate)
            messages = prompts.reflect(answered.problem.text, shown, setting.templates)
            if shown.strip() and setting.fits(messages, limit):
                places[row, i] = len(sent)
                sent.append(types.Prompt(messages, 1, f"{purpose}/{answered.problem.id}/self_correct/{i}", limit))
    made = setting.generate("policy", sent) if sent else []
    return [
        _second(
            answered, [made[places[row, i]] if (row, i) in places else None for i in range(len(answered.completions))]
        )
        for row, answered in enumerate(first)
    ]


def with_pool(
    problems: Sequence[types.Problem], setting: Setting, purpose: str, plain: Sequence[Answered] = ()
) -> list[Answered]:
    """The problems with principles of similar ones from the pool, as a rollout of the mode `inter` sees them.

    Problems for which nothing relevant is found stay plain; those are taken from `plain` if they stand there.
    """
    shown = setting.guidance
    plans = guide.plan(
        problems, 0, setting.seed, setting.pool, setting.templates, setting.truncate, setting.fits, setting.retrieve,
        purpose, modes={"inter": 1.0}, group=setting.samples, max_new_tokens=setting.max_new_tokens,
        attempt_tokens=shown.attempt_tokens, principle_tokens=shown.principle_tokens, min_pool=1, lesson=shown.lesson,
    )  # fmt: skip
    known = {a.problem.id: a for a in plain}
    old = [p.mode == "plain" and p.problem.id in known for p in plans]
    new = iter(_sample([p for p, have in zip(plans, old, strict=True) if not have], setting.generate))
    return [
        dataclasses.replace(known[p.problem.id], info=p.info) if have else next(new)
        for p, have in zip(plans, old, strict=True)
    ]


def _sample(plans: Sequence[guide.Plan], generate: types.Generate) -> list[Answered]:
    made = generate("policy", [p.prompt for p in plans]) if plans else []
    return [
        Answered(p.problem, p.mode, (g,), float(p.mode != "plain"), sum(len(c.tokens) for c in g.completions), p.info)
        for p, g in zip(plans, made, strict=True)
    ]


def _second(first: Answered, made: Sequence[types.Generation | None]) -> Answered:
    """Second attempts in the place of the first ones where there are any, with the tokens of both."""
    (before,) = first.generations
    stands = [dataclasses.replace(before, completions=(c,)) for c in before.completions]
    tokens = first.tokens + sum(len(c.tokens) for g in made if g is not None for c in g.completions)
    share = sum(g is not None for g in made) / len(made)
    generations = tuple(old if new is None else new for old, new in zip(stands, made, strict=True))
    return Answered(first.problem, "self_correct", generations, share, tokens, {"first": before.completions})
