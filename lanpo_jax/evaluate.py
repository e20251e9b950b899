"""How good a policy is on held-out problems: zero-shot, with a second look, with a pool of principles.

    python -m lanpo_jax.evaluate --workdir=RUN [--step=N]                  a checkpoint with its configuration and pool
    python -m lanpo_jax.evaluate --config=configs/X.py [--model=DIR|GGUF]  a model as it was published

    --modes=zero_shot,self_correct,pool   ways of answering (default: eval.modes of the configuration)
    --samples=8 --temperature=1.0         per problem (default: eval.samples, eval.temperature)
    --set NAME=SOURCE                     a problem set, e.g. --set "aime=file(path='aime.jsonl')"; repeatable; replaces
                                          those of the configuration
    --pool=FILE                           principles for the mode pool (default: the pool of the checkpoint)
    --out=FILE.json                       all numbers with their intervals, and the results problem by problem
    --config=FILE with --workdir          another configuration than the run's own; --config.a.b=value changes a key

Randomness is that of the evaluations inside a run, so the numbers of a checkpoint are those that its run logged.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from lanpo_jax import cli, console, inference, policy, scores, session, votes
from lanpo_jax.types import Grade, Grades, Group, Problem


@dataclasses.dataclass(frozen=True)
class Result:
    """One problem set answered in one way."""

    mode: str
    answered: Sequence[inference.Answered]
    grades: Sequence[Grades]  # one per problem
    answers: Sequence[Sequence[str | None]]  # extracted from the completions
    score: scores.Score

    def groups(self) -> list[Group]:
        """The completions as graded groups, under the first prompt of each."""
        made = zip(self.answered, self.grades, strict=True)
        shown = [(a, dataclasses.replace(a.generations[0], completions=a.completions), g) for a, g in made]
        return [Group(a.problem, a.mode, generation, grades) for a, generation, grades in shown]


def assess(
    held_out: Mapping[str, Sequence[Problem]],
    modes: Sequence[str],
    setting: inference.Setting,
    grade: Grade,
    extract: votes.Extract,
) -> Iterator[Result]:
    """One result per set and mode; the randomness is a function of set and problem, so that differences are paired."""
    for name, problems in held_out.items():
        for mode, answered in inference.answer(modes, problems, setting, f"eval/{name}"):
            yield judge(name if mode == "zero_shot" else f"{name}/{mode}", mode, answered, grade, extract)


def judge(name: str, mode: str, answered: Sequence[inference.Answered], grade: Grade, extract: votes.Extract) -> Result:
    """Grades answers, in one call, and counts the votes."""
    completions = [c for a in answered for c in a.completions]
    graded = grade([a.problem for a in answered for _ in a.completions], completions)
    samples = len(completions) // len(answered)
    grades = [_part(graded, slice(i, i + samples)) for i in range(0, len(completions), samples)]
    answers = [[extract(c.text) for c in a.completions] for a in answered]
    majority = [scores.majority(votes.ballots(a), g.correct, samples) for a, g in zip(answers, grades, strict=True)]
    score = scores.Score(
        name,
        correct=np.stack([g.correct for g in grades]).astype(bool),
        majority=np.array(majority),
        tokens=np.array([a.tokens for a in answered]),
        guided=np.array([a.guided for a in answered] if mode != "zero_shot" else []),
    )
    return Result(mode, answered, grades, answers, score)


def _part(grades: Grades, rows: slice) -> Grades:
    parts = {name: values[rows] for name, values in grades.parts.items()}
    return Grades(grades.rewards[rows], grades.correct[rows], tuple(grades.reasons[rows]), parts)


def compare(
    result: Result, baseline: dict[str, list[float]], plain: scores.Score | None, last: bool
) -> tuple[dict[str, float], list[str]]:
    """Paired differences as metrics and as lines for people; remembers the first result of a name in `baseline`.

    Of a guided mode to `plain`, the zero-shot score of the same evaluation; at the end of a run also to its start.
    """
    name, means = result.score.name, result.score.means
    known = name in baseline and len(baseline[name]) == len(means)  # eval.limit may have changed
    if not known:
        baseline[name] = means.tolist()
    numbers, lines = {}, []
    if plain is not None:
        numbers |= _difference(f"val/{name}/over_zero_shot", plain.means, means)
    if last and known:
        numbers |= _difference(f"val/{name}/gain", np.array(baseline[name]), means)
        gain, low, high = list(numbers.values())[-3:]
        lines.append(f"change of {name} since the start: {gain:+.3f}, 95% interval [{low:+.3f}, {high:+.3f}] (paired)")
    return numbers, lines


def _difference(name: str, before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), scores.paired(before, after), strict=True))


# The command.


def define() -> flags.FlagValues:
    """The flags of the command."""
    values = flags.FlagValues()
    policy.define(values)
    flags.DEFINE_list("modes", None, "zero_shot,self_correct,pool", flag_values=values)
    flags.DEFINE_multi_string("set", [], "NAME=SOURCE, any number of times", flag_values=values)
    flags.DEFINE_string("out", "", "JSON file to write", flag_values=values)
    return values


def main(argv: Sequence[str]) -> None:
    """Evaluates what the flags name; ends in one sentence where something is wrong with them."""
    f = define()
    cli.parse(f, argv, __doc__)
    cli.prepare(f.distributed)
    with cli.one_sentence():
        run(f)


def run(f: flags.FlagValues) -> list[Result]:
    """Prints a table of all sets and modes, and writes the JSON file if one is named."""
    sources = dict(_named(text) for text in f.set)
    inference.check(f.modes or ())
    cli.check_folder("out", f.out)
    asked = policy.opened(f, console.Console(quiet=not cli.first()))
    modes = inference.check(asked.c.eval.modes if f.modes is None else f.modes)
    held_out = session.evaluation_sets(sources or asked.c.data.eval, 0 if sources else asked.c.eval.limit)
    if not held_out:
        raise ValueError("There is no problem set; name one, e.g. --set \"test=file(path='test.jsonl')\".")
    about = asked.about()
    asked.tell.say(
        f"{asked.name}: {about['samples']} samples at temperature {asked.temperature}, pool of {about['principles']}"
    )
    results = list(assess(asked.within(held_out), modes, asked.setting, asked.session.grade, asked.extract))
    asked.tell.table(*_table(results))
    if f.out and asked.first:
        report = about | {"results": [_report(result, plain) for result, plain in _with_plain(results)]}
        pathlib.Path(f.out).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        asked.tell.say(f"Written to {f.out}.")
    return results


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not re.fullmatch(r"[\w.-]+", name) or not equals:
        raise ValueError(f"--set={text} lacks its name; write --set \"test=file(path='test.jsonl')\".")
    return name, source


def _with_plain(results: Sequence[Result]) -> Iterator[tuple[Result, scores.Score | None]]:
    """Each result with the zero-shot score of its set, or None where it is that itself."""
    plain = None
    for result in results:
        plain = result.score if result.mode == "zero_shot" else plain
        yield result, plain if plain is not result.score else None


def _table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows: one row per set and mode, intervals in brackets."""
    k = results[0].score.samples
    names = [n for n in (f"mean@{k}", f"pass@{k}", f"maj@{k}") if n in results[0].score.estimates()]
    rows = []
    for result, plain in _with_plain(results):
        score, found = result.score, result.score.estimates()
        cells = ["{:.3f} [{:.3f}, {:.3f}]".format(*found[n]) for n in names]
        over = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*scores.paired(plain.means, score.means)) if plain else ""
        guided = f"{score.guided.mean():.2f}" if len(score.guided) else ""
        rows.append([score.name, *cells, over, guided, f"{score.tokens.mean():.0f}", str(len(score.correct))])
    return ["set", *names, "over zero-shot", "guided", "tokens", "problems"], rows


def _report(result: Result, plain: scores.Score | None) -> dict[str, Any]:
    """One set answered in one way, as JSON: estimates with intervals, then every problem."""
    score = result.score
    estimates = dict(score.estimates())
    if plain is not None:
        estimates["over_zero_shot"] = scores.paired(plain.means, score.means)
    return {
        "set": score.name.partition("/")[0],
        "mode": result.mode,
        **{name: dict(zip(("value", "low", "high"), values)) for name, values in estimates.items()},
        "tokens": float(score.tokens.mean()),
        "guided": float(score.guided.mean()) if len(score.guided) else 0.0,
        "problems": [
            {
                "id": a.problem.id, "answer": a.problem.answer, "answers": list(answers),
                "correct": g.correct.tolist(), "majority": float(vote), "tokens": a.tokens, "guided": a.guided,
                "sources": list(a.info.get("sources", ())), "similarity": a.info.get("similarity"),
            }
            for a, g, answers, vote in zip(result.answered, result.grades, result.answers, score.majority)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    cli.configs_importable()
    main(sys.argv)
