"""THE loop. The only file that knows every other; below it, nobody sees a configuration object.

Chapters: 1 the problems, the machine and the model, 2 the parts, 3 where to start, 4 the steps.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from lanpo_jax import (
    batching,
    checkpoint,
    console,
    data,
    evaluate,
    inference,
    metrics,
    numerical,
    optimizer,
    protocols,
    scores,
    session,
    sharding,
    spec,
    votes,
    warmup,
)
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import pool_file, replay, retrieval
from lanpo_jax.learner import Learner, TrainState
from lanpo_jax.models import weights
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.types import Completion, Generation, Grades, Problem


def run(config: ml_collections.ConfigDict, workdir: pathlib.Path, stop: Callable[[], bool] = lambda: False) -> None:
    """Trains as the configuration says; resumes by itself when `workdir` holds a checkpoint.

    `stop` is asked after every step; on True, or after checkpoint.max_hours, the run is saved and ends.
    """
    c = ml_collections.FrozenConfigDict(config)
    first = jax.process_index() == 0
    tell = console.Console(quiet=not first)
    _prepare_folder(workdir)
    began = time.perf_counter()

    # ---- 1. The problems, and the machine and model that are to solve them --------------------------------------
    held_out = session.evaluation_sets(c.data.eval, c.eval.limit)
    train, dropped = session.training_problems(c.data.train, held_out, tell.say)
    system = session.start(c, workdir, train, tell.say)
    train, overlong = system.within(train)
    held_out = {name: system.within(found)[0] for name, found in held_out.items()}
    session.require({"training": train, **held_out})
    tell.say(
        f"{len(train)} training problems ({dropped} dropped that are in an evaluation set, {overlong} over "
        f"{c.data.prompt_limit} tokens); evaluation: "
        + (", ".join(f"{name} {len(found)}" for name, found in held_out.items()) or "none")
    )

    # ---- 2. The parts -----------------------------------------------------------------------------------------
    objective = objective_lib.build(c.objective.to_dict())
    episode = spec.resolve(c.rollout.episode, protocols.EPISODES)
    demands = protocols.demands(episode, c.rollout.prompts)
    numerical.check(objective, mixed=demands.mixed, off_policy=demands.off_policy, corrected=demands.corrected)
    objective_lib.check_sizes(objective, c.rollout.prompts, c.rollout.group)
    retrieve = spec.resolve(c.rollout.retriever, retrieval)
    modes, extract = inference.check(c.eval.modes), votes.extractor(c.reward.functions)
    rate = optimizer.schedule(
        rate=c.optimizer.rate,
        warmup=c.optimizer.warmup,
        decay=c.optimizer.decay,
        updates=c.steps * c.learner.mini_batches,
        floor=c.optimizer.floor,
    )
    families = c.rollout.prompts + demands.extra
    learner = _learner(c, system.network, system.mesh, objective, rate, families)
    learner = dataclasses.replace(learner, lora=system.lora)

    # ---- 3. Where to start: (1) this run's own checkpoint, (2) that of the run `resume` names, (3) the model's
    #         weights or random ones; the model itself was refused above if there is none -------------------------
    checkpoints = checkpoint.Checkpoints(
        workdir, c.checkpoint.keep, c.checkpoint.keep_every, c.checkpoint.best, c.checkpoint.best_is
    )
    latest, origin, found = checkpoints.latest(), workdir, checkpoints
    if latest is None and c.resume:
        origin = pathlib.Path(c.resume)
        found = checkpoint.Checkpoints(origin, None)
        latest = found.pick(None)
    pool, buffer = pool_lib.Pool(c.rollout.pool_size), replay.Buffer()
    counters = {"samples": 0, "tokens": 0, "batches": 0}  # batches of problems drawn: the place in the data
    memory = {k: float(v) for k, v in objective_lib.start_state(objective).items()}
    baseline: dict[str, list[float]] = {}  # per-problem shares of the first evaluation, for the paired comparison
    if latest is not None:
        saved, side = found.restore(latest, _saved(system, learner.abstract, learner.weights, objective))
        state, reference = TrainState(**saved["train"]), saved["reference"]
        if learner.lora is not None:
            frozen = saved["frozen"] if system.frozen_saved else weights.load_params(system.source, learner.weights)
            state = state._replace(frozen=frozen)
        pool, memory = pool_lib.from_state(side["pool"]), side["memory"]
        buffer = replay.from_state(side.get("replay", buffer.state()))  # older checkpoints have none
        counters, baseline = side["counters"], side["baseline"]
        start = latest
        changed = checkpoint.changes(side["config"], c.to_dict())
        other_problems = side["problems"] != data.fingerprint(train)
        if refused := [] if c.checkpoint.accept_changes else checkpoint.fixed(changed, other_problems):
            raise ValueError(
                f"A run cannot go on from {origin} with another {', '.join(refused)}; use a fresh --workdir, or "
                "--config.checkpoint.accept_changes=True if that is meant."
            )
        tell.say(f"Resumed from step {latest} of {origin}.")
        for line in changed:
            tell.say(f"  the configuration changed: {line}")
    else:
        params = weights.load_params(system.source, learner.weights) if system.source else learner.random_params(c.seed)
        if c.warmup.steps:
            params = warmup.imitate(
                _teacher(c, learner), params, train, system.tokenizer, system.templates,
                demonstrated=c.warmup.demonstrations, guided=c.warmup.guided, steps=c.warmup.steps,
                rows=c.warmup.rows, limit=c.rollout.max_new_tokens, seed=c.seed + 1, say=tell.say,
            )  # fmt: skip
        kept = numerical.needs_reference(objective) and learner.lora is None
        reference = jax.tree.map(jax.numpy.copy, params) if kept else {}
        state, start = learner.start(params, c.seed), 0
        pool.forbid([p.text for found in held_out.values() for p in found])
    writer = metrics.Writer(workdir, latest) if first else metrics.Silent()
    parameters = sum(x.size for x in jax.tree.leaves(learner.weights))
    tell.say(
        f"{system.config['model_type']} with {parameters / 1e6:.1f}M parameters on {jax.device_count()} "
        f"{jax.devices()[0].platform} device(s), mesh {dict(system.mesh.shape)}; {c.steps} steps of "
        f"{c.rollout.prompts} prompts x {c.rollout.group} samples."
    )

    # ---- 4. The steps -----------------------------------------------------------------------------------------
    timer, eta = metrics.Clock(), console.Eta()
    trace = metrics.Trace(workdir / "profile", c.profile, start, c.steps)
    unsound = 0  # steps in a row whose loss or gradient was not finite

    merged: dict[str, Any] = {}  # the policy while it is asked: its own parameters, or adapters added to frozen ones

    def policy() -> Any:
        if "now" not in merged:
            merged["now"] = learner.policy(state)
        return merged["now"]

    def generate(role: str, asked, *, step: int, temperature: float, phase: str) -> list[Generation]:
        with timer(phase), tell.phase(phase) as advance:
            made = system.sampler(policy(), asked, seed=c.seed, step=step, temperature=temperature, progress=advance)
        if phase == "rollout":  # principles included: methods are compared at equal generated tokens
            counters["tokens"] += sum(len(found.tokens) for g in made for found in g.completions)
        return made

    def timed_grade(problems: Sequence[Problem], completions: Sequence[Completion]) -> Grades:
        with timer("reward"):
            return sharding.from_first(lambda: system.grade(problems, completions))  # a time-out may differ elsewhere

    def next_token(conversations, ids: Sequence[int]) -> np.ndarray:
        with timer("judge"):
            return system.sampler.next_token(policy(), conversations, ids)

    retrieve = system.bound(retrieve, pool, next_token)

    def assess(step: int, last: bool) -> dict[str, float]:
        """Scores of all sets. The randomness is the same every time, so that differences are paired."""
        numbers, began = {}, time.perf_counter()
        draw = functools.partial(generate, step=0, temperature=c.eval.temperature, phase="eval")
        setting = session.setting(
            system, draw, pool, retrieve, episode=c.rollout.episode, samples=c.eval.samples, seed=c.seed
        )
        plain: scores.Score | None = None
        for found in evaluate.assess(held_out, modes, setting, timed_grade, extract):
            plain = None if found.mode == "zero_shot" else plain
            differences, lines = evaluate.compare(found, baseline, plain, last)
            plain = plain or found.score
            numbers |= found.score.numbers() | differences
            tell.say(f"eval {found.score.name} at step {step}: {found.score.line()}")
            tell.samples(found.score.name, found.groups(), c.log.samples)
            for line in lines:
                tell.say(line)
        eta.spent("eval", time.perf_counter() - began)
        return numbers

    def ended() -> bool:
        return 0 < c.max_tokens <= counters["tokens"]

    if start == 0 and latest is None:
        numbers = assess(0, last=False)
        writer.write(0, numbers | timer.read())
        side = _side(pool, buffer, memory, counters, baseline, train, c)
        checkpoints.save(0, _saved(system, state, reference, objective), side)

    if start >= c.steps or ended():
        tell.say(f"This run has ended: step {start} of {c.steps}, {counters['tokens']} generated tokens.")
    for step in range(start, start if ended() else c.steps):
        trace.before(step)
        step_began, tokens_before = time.perf_counter(), counters["tokens"]
        draw = functools.partial(generate, step=step + 1, temperature=c.rollout.temperature, phase="rollout")
        available = {
            "step": step, "seed": c.seed, "pool": pool, "generate": draw, "grade": timed_grade,
            "templates": system.templates, "truncate": system.truncate, "fits": system.fits, "retrieve": retrieve,
            "render": system.tokenizer.render, "buffer": buffer,
            "group": c.rollout.group, "max_new_tokens": c.rollout.max_new_tokens,
        }  # fmt: skip
        groups, sampled, language = _rollouts(c, objective, train, counters, episode, available, families)

        merged.clear()
        update_began = time.perf_counter()
        with timer("update"), tell.phase("update"):
            improved = numerical.improve(
                learner, state, reference if learner.lora is None else state.frozen, memory, groups, timer=timer,
                mini_batches=c.learner.mini_batches, temperature=c.rollout.temperature, seed=c.seed + step,
                off_policy=demands.off_policy,
            )  # fmt: skip
        state, memory, update_seconds = improved.state, improved.memory, time.perf_counter() - update_began
        counters["samples"] += sum(len(g.generation.completions) for g in sampled)
        done = step + 1
        row = metrics.groups(sampled, improved.advantages) | language | improved.numbers
        row |= {f"progress/{k}": float(v) for k, v in counters.items()}
        row |= {
            "progress/epoch": counters["batches"] * c.rollout.prompts / len(train),
            "actor/lr": float(rate(done * c.learner.mini_batches - 1)),
        }
        if first:
            metrics.write_rollouts(workdir, done, groups, improved.advantages, keep=c.log.rollouts)
        seconds = time.perf_counter() - step_began
        eta.spent("step", seconds)
        made = counters["tokens"] - tokens_before
        row |= {"time/step": seconds, "perf/tokens_per_s": made / seconds, "perf/peak_memory_gb": metrics.peak_memory()}
        trained = sum(len(found.tokens) for g in groups for found in g.generation.completions)
        row["perf/update_tokens_per_s"] = trained / update_seconds
        row["perf/mfu"] = metrics.utilisation(
            jax.devices()[0].device_kind, jax.device_count(), parameters, made, seconds
        )

        last = done == c.steps or ended()
        left = _steps_left(c, done, counters["tokens"])
        evals = 1 + ((done + left - 1) // c.eval.every - done // c.eval.every if c.eval.every else 0)
        tell.say(
            f"step {done}/{c.steps}  reward {row['reward/mean']:.3f}  correct {row['reward/correct']:.3f}  "
            f"length {row['response_length/mean']:.0f}  truncated {row['truncated_ratio']:.2f}  "
            f"grad {row['actor/grad_norm']:.2f}  {seconds:.1f} s  "
            f"left {eta.left(step=left, eval=evals)}"
        )
        if last or (c.eval.every and done % c.eval.every == 0):
            row |= assess(done, last)
        hours = (time.perf_counter() - began) / 3600
        stopped = sharding.any_process(stop() or 0 < c.checkpoint.max_hours < hours)
        row |= {"time/save": 0.0} | timer.read()  # of the save before this step
        writer.write(done, row)  # before the checkpoint: a step that is not done again has its row
        with timer("save"):
            if last or stopped or (c.checkpoint.every and done % c.checkpoint.every == 0):
                side = _side(pool, buffer, memory, counters, baseline, train, c)
                checkpoints.save(done, _saved(system, state, reference, objective), side, row)
                if first and len(pool.index):
                    pool_file.write(pool, workdir / "pool.jsonl")
        unsound = unsound + 1 if numerical.unsound(improved.numbers) else 0
        if 0 < c.learner.max_unsound <= unsound:
            checkpoints.close()
            raise RuntimeError(
                f"Loss or gradient was not finite in {unsound} steps in a row, {done} the last; no such update was "
                f"taken, what was sampled is in {workdir / 'rollouts'}. Lower optimizer.rate, look at the rewards, or "
                "raise learner.max_unsound."
            )
        if stopped and not last:
            tell.say(f"Stopped after step {done} of {c.steps} and saved; the same command goes on from here.")
        elif last and done < c.steps:
            tell.say(f"Ended after step {done}: {counters['tokens']} generated tokens, max_tokens is {c.max_tokens}.")
        if stopped or last:
            break

    trace.close()
    checkpoints.close()
    writer.close()
    tell.say(f"Done in {console.clock(time.perf_counter() - began)}; metrics and checkpoints are in {workdir}.")


def _rollouts(c, objective, train, counters: dict[str, int], episode: Callable, available: dict[str, Any], most: int):
    """The groups to train on (at most `most` families), all sampled for them, and metrics of language and filter.

    Families that the objective's filter drops are made up for by further batches of problems, at most
    `rollout.refills` of them; if those do not suffice, dropped ones fill the step and the update leaves them out.
    """
    kept, dropped, told = [], [], []
    while len(told) <= c.rollout.refills and len(kept) < c.rollout.prompts:
        problems = data.batch(train, counters["batches"], c.rollout.prompts, c.seed)
        counters["batches"] += 1
        more = available | {"problems": problems, "purpose": f"train/{len(told)}"}
        groups, language = episode(**_accepted(episode, more))
        good, bad = numerical.sift(objective, groups)
        kept, dropped = kept + good, dropped + bad
        told.append(language)
    values = [max(g.grades.outcome.max() for g in family) for family in dropped]
    best = max((g.grades.outcome.max() for family in kept + dropped for g in family), default=0.0)
    counts = {
        "filter/kept": len(kept) / (len(kept) + len(dropped)),
        "filter/dropped_all_right": float(sum(v >= best for v in values)),
        "filter/dropped_all_wrong": float(sum(v < best for v in values)),
        "filter/batches": float(len(told)),
    }
    sampled = [g for family in kept + dropped for g in family if g.mode != "replay"]
    trained = [g for family in (kept + dropped)[:most] for g in family]
    return trained, sampled, metrics.mean(told) | counts


def _prepare_folder(workdir: pathlib.Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()  # several processes may try at once
    except OSError as error:
        raise ValueError(f"--workdir={workdir} cannot be written to ({error.strerror}); choose another.") from error


def _learner(c, network, mesh, objective, rate, families: int) -> Learner:
    """The learner whose batches hold `families` groups per step, in learner.mini_batches parts."""
    devices = sharding.batch_devices(mesh)
    micro = c.learner.micro_rows or devices
    limits = c.data.prompt_limit, c.rollout.max_new_tokens
    packed = c.learner.row_tokens > 0
    shape = batching.Shape.packed(c.learner.row_tokens, *limits) if packed else batching.Shape.plain(*limits)
    part = -(-families // c.learner.mini_batches) * c.rollout.group
    tx = optimizer.make(
        rate,
        b1=c.optimizer.b1,
        b2=c.optimizer.b2,
        eps=c.optimizer.eps,
        weight_decay=c.optimizer.weight_decay,
        clip=c.optimizer.clip,
        mu_dtype=c.optimizer.mu_dtype,
    )
    return Learner(
        config=network,
        objective=objective,
        tx=tx,
        mesh=mesh,
        shape=shape,
        micro_rows=micro,
        rows=-(-part // micro) * micro,
        rate=rate,
        entropy=c.log.entropy,
        b1=c.optimizer.b1,
        b2=c.optimizer.b2,
        param_dtype=c.model.param_dtype,
        offload=c.optimizer.offload,
    )


def _steps_left(c, done: int, tokens: int) -> int:
    """Steps to go, as far as c.steps and, at the tokens that a step took so far, c.max_tokens allow."""
    if not c.max_tokens:
        return c.steps - done
    return max(0, min(c.steps - done, -(-(c.max_tokens - tokens) * done // max(1, tokens))))


def _accepted(episode: Callable, available: dict[str, Any]) -> dict[str, Any]:
    """What of the loop's things an episode asks for by name; options bound in its config string stay."""
    bound = episode.keywords if isinstance(episode, functools.partial) else {}
    return {k: v for k, v in available.items() if k in inspect.signature(episode).parameters and k not in bound}


def _teacher(c, learner: Learner) -> Learner:
    """The learner of the supervised warm-up: same rows, its own objective and schedule."""
    rate = optimizer.schedule(rate=c.warmup.rate, warmup=10, decay="cosine", updates=c.warmup.steps, floor=0.1)
    imitation = objective_lib.build(warmup.IMITATION)
    teacher = _learner(c, learner.config, learner.mesh, imitation, rate, c.rollout.prompts)
    return dataclasses.replace(teacher, rows=-(-c.warmup.rows // learner.micro_rows) * learner.micro_rows)


def _saved(system: session.Session, state: TrainState, reference: Any, objective) -> dict[str, Any]:
    """The arrays of a checkpoint: the reference where the objective has one, frozen parameters that nobody else has.

    Where adapters are trained, the frozen parameters are the reference.
    """
    train = {"params": state.params, "opt_state": state.opt_state, "updates": state.updates}
    if system.lora is not None:
        return {"train": train, "reference": {}} | ({"frozen": state.frozen} if system.frozen_saved else {})
    return {"train": train, "reference": reference if numerical.needs_reference(objective) else {}}


def _side(pool: pool_lib.Pool, buffer: replay.Buffer, memory, counters, baseline, train, c) -> dict[str, Any]:
    """The rest of a checkpoint, as JSON."""
    config = json.loads(json.dumps(c.to_dict(), default=list))
    rest = {"counters": counters, "baseline": baseline, "problems": data.fingerprint(train), "config": config}
    return {"pool": pool.state(), "replay": buffer.state(), "memory": memory} | rest
