"""Answers a file of problems, with or without the experience of a run.

    python -m lanpo_jax.generate --workdir=RUN --problems=FILE.jsonl --out=FILE.jsonl
    python -m lanpo_jax.generate --config=configs/X.py --model=DIR|GGUF --pool=pool.jsonl --problems=... --out=...

    --guided=none|pool|self_correct   plain; principles of similar problems from the pool; a second look at each answer
    --samples=4 --temperature=0.6     completions per problem (default: eval.samples, eval.temperature)
    --pool=FILE                       principles, a line each (default: those of the checkpoint); RUN/pool.jsonl is one
    --step=N                          checkpoint of the run (default: the newest)

Problems are JSONL, CSV or parquet, as for training; an answer may be missing. One JSON line per problem is written as
it is answered; started again, the command goes on where the file ends. A row holds

    id, problem, prompt (as the model read it; for second looks a list, one per completion), completions, truncated,
    answers (extracted, null where none is stated), majority (the most frequent answer, or null), sources and similarity
    (whose principles were shown), fallback (why none was), tokens (generated, first attempts included), first (the
    first attempts, for second looks), about (what made it), and where a gold answer is given: gold, correct
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from lanpo_jax import cli, console, data, inference, policy, scores, sources, votes
from lanpo_jax.types import Problem

GUIDED = {"none": inference.zero_shot, "pool": inference.with_pool, "self_correct": inference.second_attempts}


def define() -> flags.FlagValues:
    """The flags of the command."""
    values = flags.FlagValues()
    policy.define(values)
    flags.DEFINE_string("problems", None, "file of problems", flag_values=values)
    flags.DEFINE_string("out", None, "JSONL file to write or to go on with", flag_values=values)
    flags.DEFINE_enum("guided", "none", list(GUIDED), "what the model is shown", flag_values=values)
    return values


def main(argv: Sequence[str]) -> None:
    """Answers what the flags name; ends in one sentence where something is wrong with them."""
    f = define()
    cli.parse(f, argv, __doc__)
    cli.prepare(f.distributed)
    with cli.one_sentence():
        run(f)


def run(f: flags.FlagValues) -> None:
    """Writes a row for every problem that has none yet, then says how many are right, if that can be told."""
    for flag in ("problems", "out"):
        if not f[flag].value:
            raise ValueError(f"--{flag} is missing; try --problems=questions.jsonl --out=answers.jsonl.")
    cli.check_folder("out", f.out)
    problems = data.unique(sources.file(path=f.problems, unanswered=True))
    asked = policy.opened(f, console.Console(quiet=not cli.first()))
    if f.guided == "pool" and not len(asked.setting.pool.index):
        raise ValueError(f"The pool of {f.pool or asked.name} holds no principle; name another by --pool=FILE.")
    about = {**asked.about(), "guided": f.guided}
    out = pathlib.Path(f.out)
    done = written(out, problems, about)
    problems = asked.within({"the problems": problems})["the problems"]
    left = [p for p in problems if p.id not in done]
    asked.tell.say(f"{asked.name}: {len(left)} problems to answer, {len(done)} answered before; guidance: {f.guided}")
    if asked.first:
        _keep(out, done.values())
    size = max(1, asked.session.sampler.rows // asked.setting.samples)
    for start in range(0, len(left), size):
        rows = answer(left[start : start + size], asked, f.guided, about)
        done |= {row["id"]: row for row in rows}
        if asked.first:
            with open(out, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        asked.tell.say(f"  {start + len(rows)}/{len(left)}")
    if line := summary(list(done.values())):
        asked.tell.say(line)
    asked.tell.say(f"{len(done)} rows are in {out}.")


def answer(
    problems: Sequence[Problem], asked: policy.Policy, guided: str, about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One row per problem, in order. Randomness depends on the problem's id, so cutting the file changes nothing."""
    shown = inference.zero_shot(problems, asked.setting, "generate") if guided == "self_correct" else problems
    answered = GUIDED[guided](shown, asked.setting, "generate")
    golds = [(a.problem, c) for a in answered if a.problem.answer for c in a.completions]
    verdicts: Iterator[bool] = iter(())
    if golds:
        graded = asked.session.grade([p for p, _ in golds], [c for _, c in golds])
        verdicts = iter(graded.correct.tolist())
    rows = []
    for a in answered:
        answers = [asked.extract(c.text) for c in a.completions]
        seen = [g.prompt_text for g in a.generations for _ in g.completions]
        row = {
            "id": a.problem.id, "problem": a.problem.text, "prompt": seen if guided == "self_correct" else seen[0],
            "completions": [c.text for c in a.completions], "truncated": [c.truncated for c in a.completions],
            "answers": answers, "majority": votes.winner(answers), "sources": list(a.info.get("sources", ())),
            "similarity": a.info.get("similarity"), "fallback": a.info.get("fallback"), "tokens": a.tokens,
            "about": dict(about),
        }  # fmt: skip
        if guided == "self_correct":
            row["first"] = [c.text for c in a.info["first"]]
        if a.problem.answer:
            row |= {"gold": a.problem.answer, "correct": [next(verdicts) for _ in answers]}
        rows.append(row)
    return rows


def written(path: pathlib.Path, problems: Sequence[Problem], about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of an earlier call by problem id; a last line that was cut off is left out.

    Raises ValueError for a file that something else has made, or the same with other settings or other problems.
    """
    rows: dict[str, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    texts = {p.id: p.text for p in problems}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            id, text, made = row["id"], row["problem"], row["about"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and isinstance(error, ValueError):
                continue
            raise ValueError(f"{path}:{number} is no row that this command wrote; name another --out.") from error
        if made != about:
            changed = [k for k in about if made.get(k) != about[k]]
            was = ", ".join(f"{k}={made.get(k)} and not {about[k]}" for k in changed)
            raise ValueError(f"{path} was made with {was}; name another --out.")
        if id in texts and texts[id] != text:
            raise ValueError(f"{path}:{number} answers another problem with the id {id}; name another --out.")
        rows[id] = row
    return rows


def _keep(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Only whole rows stay in the file, so that what follows begins on a line of its own."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, path)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line on the rows with a gold answer; empty if there are none."""
    rows = [row for row in rows if "correct" in row]
    if not rows:
        return ""
    votes_of = [scores.majority(votes.ballots(r["answers"]), r["correct"], len(r["correct"])) for r in rows]
    score = scores.Score("answers", np.array([r["correct"] for r in rows], bool), np.array(votes_of))
    return f"of those with a gold answer: {score.line()}"


if __name__ == "__main__":
    cli.configs_importable()
    main(sys.argv)
