"""THE loop. The only file that knows every other; below it, nobody sees a configuration object.

Chapters: 1 the machine and the model, 2 the problems, 3 the parts, 4 where to start, 5 the steps.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pathlib
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
    demonstrations,
    episodes,
    evaluate,
    families,
    metrics,
    numerical,
    optimizer,
    sharding,
    spec,
    warmup,
)
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import prompts, retrieval
from lanpo_jax.learner import Learner, TrainState
from lanpo_jax.models import embedded, qwen, weights
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.rewards import math, reward
from lanpo_jax.sampling import sampler as sampler_lib
from lanpo_jax.sampling import tokenizer as tokenizer_lib
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

    # ---- 1. The machine and the model -------------------------------------------------------------------------
    mesh = sharding.make_mesh(data=c.mesh.data, fsdp=c.mesh.fsdp, tensor=c.mesh.tensor)
    if not c.model.path:
        raise ValueError("model.path is empty; give a checkpoint directory, a .gguf file or 'smollm2-135m-instruct'.")
    random = c.model.path == "random"
    source = None if random else weights.open_checkpoint(embedded.resolve(c.model.path, say=tell.say))
    published = json.loads(c.model.hf) if random else source.config
    network = qwen.ModelConfig.from_hf(
        published, dtype=c.model.dtype, scan_layers=c.model.scan_layers, remat=c.model.remat
    )

    positions, longest = published.get("max_position_embeddings"), c.data.prompt_limit + c.rollout.max_new_tokens
    if positions and longest > positions:
        raise ValueError(
            f"The model knows {positions} positions and data.prompt_limit + rollout.max_new_tokens make {longest}."
        )

    # ---- 2. The problems --------------------------------------------------------------------------------------
    train = data.load(*c.data.train)
    held_out = {name: data.load(text)[: c.eval.limit or None] for name, text in c.data.eval.items()}
    if bad := [p.id for _, p in math.unparseable(train)]:
        tell.say(f"{len(bad)} training answers cannot be read and will never be right: {', '.join(bad[:5])} ...")
    train, also_held_out = data.exclude(train, [p for found in held_out.values() for p in found])
    tokenizer = _tokenizer(c, source, workdir, train)
    tokenizer_lib.check_vocabulary(tokenizer, network.vocab)
    templates = prompts.Templates(
        style=c.prompt.style,
        answer=c.prompt.answer,
        instruction=c.prompt.instruction,
        system=c.prompt.system,
        examples=families.examples(c.prompt.examples) if c.prompt.examples else (),
    )
    fit = functools.partial(
        data.within,
        length=lambda text: len(tokenizer.render(prompts.plain(text, templates))),
        shorten=lambda text, excess: tokenizer.decode(tokenizer.encode(text)[:-excess]),
        limit=c.data.prompt_limit,
        policy=c.data.overlong,
    )
    train, overlong = fit(train)
    held_out = {name: fit(found)[0] for name, found in held_out.items()}
    for name, found in {"training": train, **held_out}.items():
        if not found:
            raise ValueError(f"No {name} problem is left; look at data.train, data.eval and data.prompt_limit.")
    tell.say(
        f"{len(train)} training problems ({len(also_held_out)} dropped that are in an evaluation set, {overlong} over "
        f"{c.data.prompt_limit} tokens); evaluation: "
        + (", ".join(f"{name} {len(found)}" for name, found in held_out.items()) or "none")
    )

    # ---- 3. The parts -----------------------------------------------------------------------------------------
    objective = objective_lib.build(c.objective.to_dict())
    numerical.check(objective)
    objective_lib.check_sizes(objective, c.rollout.prompts, c.rollout.group)
    grade = reward.grader(dict(zip(c.reward.functions, c.reward.weights)))
    episode = spec.resolve(c.rollout.episode, {"direct": episodes.direct, "lanpo": episodes.lanpo})
    retrieve = spec.resolve(c.rollout.retriever, retrieval)
    sampler = sampler_lib.Sampler(network, tokenizer, mesh, c.rollout.rows)
    rate = optimizer.schedule(
        rate=c.optimizer.rate,
        warmup=c.optimizer.warmup,
        decay=c.optimizer.decay,
        updates=c.steps * c.learner.mini_batches,
        floor=c.optimizer.floor,
    )
    learner = _learner(c, network, mesh, objective, rate, c.rollout.prompts * c.rollout.group)

    # ---- 4. Where to start: this run's own checkpoint, or the given weights, or random ones -------------------
    checkpoints = checkpoint.Checkpoints(workdir, c.checkpoint.keep)
    latest = checkpoints.latest()
    pool = pool_lib.Pool(c.rollout.pool_size)
    counters = {"samples": 0, "tokens": 0, "batches": 0}  # batches of problems drawn: the place in the data
    memory = {k: float(v) for k, v in objective_lib.start_state(objective).items()}
    baseline: dict[str, list[float]] = {}  # per-problem shares of the first evaluation, for the paired comparison
    if latest is not None:
        saved, side = checkpoints.restore(latest, _saved(learner.abstract, learner.weights, objective))
        state, reference = saved["train"], saved["reference"]
        pool, memory = pool_lib.from_state(side["pool"]), side["memory"]
        counters, baseline = side["counters"], side["baseline"]
        start = latest
        if side["problems"] != data.fingerprint(train) and not c.checkpoint.new_problems:
            raise ValueError(
                f"The training problems are not those that {workdir} was made with; use another --workdir, or "
                "--config.checkpoint.new_problems to go on with these."
            )
        tell.say(f"Resumed from step {latest} of {workdir}.")
        for line in _changes(side["config"], c.to_dict()):
            tell.say(f"  the configuration changed: {line}")
    else:
        params = weights.load_params(source, learner.weights) if source else learner.random_params(c.seed)
        if c.warmup.steps:
            params = warmup.imitate(
                _teacher(c, learner), params, train, tokenizer, templates, demonstrated=c.warmup.demonstrations,
                guided=c.warmup.guided, steps=c.warmup.steps, rows=c.warmup.rows, limit=c.rollout.max_new_tokens,
                seed=c.seed + 1, say=tell.say,
            )  # fmt: skip
        reference = jax.tree.map(jax.numpy.copy, params) if numerical.needs_reference(objective) else {}
        state, start = learner.start(params), 0
        pool.forbid([p.text for found in held_out.values() for p in found])
    writer = metrics.Writer(workdir, latest) if first else metrics.Silent()
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    tell.say(
        f"{published['model_type']} with {parameters / 1e6:.1f}M parameters on {jax.device_count()} "
        f"{jax.devices()[0].platform} device(s), mesh {dict(mesh.shape)}; {c.steps} steps of {c.rollout.prompts} "
        f"prompts x {c.rollout.group} samples."
    )

    # ---- 5. The steps -----------------------------------------------------------------------------------------
    timer, eta = metrics.Clock(), console.Eta()

    def generate(role: str, asked, *, step: int, temperature: float, phase: str) -> list[Generation]:
        with timer(phase), tell.phase(phase) as advance:
            made = sampler(state.params, asked, seed=c.seed, step=step, temperature=temperature, progress=advance)
        if phase == "rollout":  # principles included: methods are compared at equal generated tokens
            counters["tokens"] += sum(len(found.tokens) for g in made for found in g.completions)
        return made

    def timed_grade(problems: Sequence[Problem], completions: Sequence[Completion]) -> Grades:
        with timer("reward"):
            return grade(problems, completions)

    def truncate(text: str, tokens: int) -> tuple[str, bool]:
        ids = tokenizer.encode(text)
        return (text, False) if len(ids) <= tokens else (tokenizer.decode(ids[:tokens]), True)

    def fits(messages, max_new_tokens: int) -> bool:
        return len(tokenizer.render(messages)) <= c.data.prompt_limit

    def assess(step: int) -> dict[str, float]:
        """Zero-shot scores of all sets. The randomness is the same every time, so that differences are paired."""
        numbers, began = {}, time.perf_counter()
        draw = functools.partial(generate, step=0, temperature=c.eval.temperature, phase="eval")
        for name, found in held_out.items():
            groups, _ = episodes.direct(
                found, draw, timed_grade, templates, f"eval/{name}",
                group=c.eval.samples, max_new_tokens=c.rollout.max_new_tokens,
            )  # fmt: skip
            score = evaluate.score(name, groups)
            baseline.setdefault(name, score.means.tolist())
            numbers |= score.numbers()
            low, high = evaluate.interval(score.correct)
            tell.say(
                f"eval {name} at step {step}: mean@{c.eval.samples} {score.means.mean():.3f} [{low:.3f}, {high:.3f}], "
                f"pass@{c.eval.samples} {score.correct.any(1).mean():.3f}, {len(found)} problems"
            )
            tell.samples(name, groups, c.log.samples)
            if step == c.steps and step > 0:
                gain, low, high = evaluate.paired(np.array(baseline[name]), score.means)
                tell.say(
                    f"change of {name} since the start: {gain:+.3f}, 95% interval [{low:+.3f}, {high:+.3f}] (paired)"
                )
                numbers |= {f"val/{name}/gain": gain, f"val/{name}/gain_low": low, f"val/{name}/gain_high": high}
        eta.spent("eval", time.perf_counter() - began)
        return numbers

    if start == 0 and latest is None:
        numbers = assess(0)
        writer.write(0, numbers | timer.read())
        checkpoints.save(0, _saved(state, reference, objective), _side(pool, memory, counters, baseline, train, c))

    for step in range(start, c.steps):
        step_began, tokens_before = time.perf_counter(), counters["tokens"]
        draw = functools.partial(generate, step=step + 1, temperature=c.rollout.temperature, phase="rollout")
        available = {
            "step": step, "seed": c.seed, "pool": pool, "generate": draw, "grade": timed_grade, "templates": templates,
            "truncate": truncate, "fits": fits, "retrieve": retrieve, "group": c.rollout.group,
            "max_new_tokens": c.rollout.max_new_tokens,
        }  # fmt: skip
        groups, sampled, language = _rollouts(c, objective, train, counters, episode, available)

        with timer("update"), tell.phase("update"):
            improved = numerical.improve(
                learner, state, reference, memory, groups,
                mini_batches=c.learner.mini_batches, temperature=c.rollout.temperature, seed=c.seed + step,
            )  # fmt: skip
        state, memory = improved.state, improved.memory
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
        row |= {"time/step": seconds, "perf/tokens_per_s": (counters["tokens"] - tokens_before) / seconds}

        evals = 1 + ((c.steps - 1) // c.eval.every - done // c.eval.every if c.eval.every else 0)
        tell.say(
            f"step {done}/{c.steps}  reward {row['reward/mean']:.3f}  correct {row['reward/correct']:.3f}  "
            f"length {row['response_length/mean']:.0f}  truncated {row['truncated_ratio']:.2f}  "
            f"grad {row['actor/grad_norm']:.2f}  {seconds:.1f} s  "
            f"left {eta.left(step=c.steps - done, eval=evals)}"
        )
        if done == c.steps or (c.eval.every and done % c.eval.every == 0):
            row |= assess(done)
        hours = (time.perf_counter() - began) / 3600
        stopped = stop() or 0 < c.checkpoint.max_hours < hours
        with timer("save"):
            if done == c.steps or stopped or (c.checkpoint.every and done % c.checkpoint.every == 0):
                checkpoints.save(
                    done, _saved(state, reference, objective), _side(pool, memory, counters, baseline, train, c)
                )
        writer.write(done, row | timer.read())
        if stopped and done < c.steps:
            tell.say(f"Stopped after step {done} of {c.steps} and saved; the same command goes on from here.")
            break

    checkpoints.close()
    writer.close()
    tell.say(f"Done in {console.clock(time.perf_counter() - began)}; metrics and checkpoints are in {workdir}.")


def _rollouts(c, objective, train, counters: dict[str, int], episode: Callable, available: dict[str, Any]):
    """The groups to train on, all groups sampled for them, and the metrics of language and filter.

    Groups that the objective's filter drops are made up for by further batches of problems, at most `rollout.refills`
    of them; if those do not suffice, dropped groups fill the step and the update leaves them out.
    """
    kept, dropped, told = [], [], []
    while len(told) <= c.rollout.refills and len(kept) < c.rollout.prompts:
        problems = data.batch(train, counters["batches"], c.rollout.prompts, c.seed)
        counters["batches"] += 1
        more = available | {"problems": problems, "purpose": f"train/{len(told)}"}
        groups, language = episode(**_accepted(episode, more))
        keep = numerical.kept(objective, groups)
        kept += [g for g, good in zip(groups, keep) if good]
        dropped += [g for g, good in zip(groups, keep) if not good]
        told.append(language)
    values = [numerical.outcome(g).max() for g in dropped]
    best = max((numerical.outcome(g).max() for g in kept + dropped), default=0.0)
    counts = {
        "filter/kept": len(kept) / (len(kept) + len(dropped)),
        "filter/dropped_all_right": float(sum(v >= best for v in values)),
        "filter/dropped_all_wrong": float(sum(v < best for v in values)),
        "filter/batches": float(len(told)),
    }
    return (kept + dropped)[: c.rollout.prompts], kept + dropped, metrics.mean(told) | counts


def _prepare_folder(workdir: pathlib.Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / ".writable").touch()
        (workdir / ".writable").unlink()
    except OSError as error:
        raise ValueError(f"--workdir={workdir} cannot be written to ({error.strerror}); choose another.") from error


def _tokenizer(c, source, workdir: pathlib.Path, train: Sequence[Problem]) -> tokenizer_lib.Tokenizer:
    """The model's own, the one named in the config, or one trained on the first texts of a model from scratch."""
    where = c.model.tokenizer or source
    if where is None:
        raise ValueError("A random model needs model.tokenizer: a path, or 'train(vocab=8000)' for one of its own.")
    if c.model.tokenizer.startswith("train("):
        where = workdir / "tokenizer.model"
        if not where.exists():
            lines = [p.text for p in train] + demonstrations.write(c.warmup.demonstrations, train)
            lines += [demonstrations.LESSON, "() again hint"]
            spec.resolve(c.model.tokenizer, {"train": _train_tokenizer})(lines, where)
    return tokenizer_lib.load(where, template=c.prompt.template or None)


def _train_tokenizer(lines, path, *, vocab: int, kind: str = "bpe", byte_fallback: bool = True) -> None:
    tokenizer_lib.train_sentencepiece(lines, path, vocab, model_type=kind, byte_fallback=byte_fallback)


def _learner(c, network, mesh, objective, rate, completions: int) -> Learner:
    """The learner whose batches hold `completions` completions per step, in learner.mini_batches parts."""
    devices = sharding.batch_devices(mesh)
    micro = c.learner.micro_rows or devices
    limits = c.data.prompt_limit, c.rollout.max_new_tokens
    packed = c.learner.row_tokens > 0
    shape = batching.Shape.packed(c.learner.row_tokens, *limits) if packed else batching.Shape.plain(*limits)
    part = -(-c.rollout.prompts // c.learner.mini_batches) * (completions // c.rollout.prompts)
    tx = optimizer.make(
        rate,
        b1=c.optimizer.b1,
        b2=c.optimizer.b2,
        eps=c.optimizer.eps,
        weight_decay=c.optimizer.weight_decay,
        clip=c.optimizer.clip,
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
    )


def _accepted(episode: Callable, available: dict[str, Any]) -> dict[str, Any]:
    """What of the loop's things an episode asks for by name; options bound in its config string stay."""
    bound = episode.keywords if isinstance(episode, functools.partial) else {}
    return {k: v for k, v in available.items() if k in inspect.signature(episode).parameters and k not in bound}


def _teacher(c, learner: Learner) -> Learner:
    """The learner of the supervised warm-up: same rows, its own objective and schedule."""
    rate = optimizer.schedule(rate=c.warmup.rate, warmup=10, decay="cosine", updates=c.warmup.steps, floor=0.1)
    completions = c.rollout.prompts * c.rollout.group
    teacher = _learner(c, learner.config, learner.mesh, objective_lib.build(warmup.IMITATION), rate, completions)
    return dataclasses.replace(teacher, rows=-(-c.warmup.rows // learner.micro_rows) * learner.micro_rows)


def _saved(state: TrainState, reference: Any, objective) -> dict[str, Any]:
    """The arrays of a checkpoint; the reference is kept only where the objective has one."""
    return {"train": state, "reference": reference if numerical.needs_reference(objective) else {}}


def _side(pool: pool_lib.Pool, memory, counters, baseline, train, c) -> dict[str, Any]:
    """The rest of a checkpoint, as JSON."""
    config = json.loads(json.dumps(c.to_dict(), default=list))
    rest = {"counters": counters, "baseline": baseline, "problems": data.fingerprint(train), "config": config}
    return {"pool": pool.state(), "memory": memory} | rest


def _changes(before: dict, after: dict, path: str = "config") -> list[str]:
    """'config.a.b: old -> new' for every leaf that differs."""
    after = json.loads(json.dumps(after, default=list))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _changes(old, new, f"{path}.{key}")
        elif old != new:
            lines.append(f"{path}.{key}: {old!r} -> {new!r}")
    return lines
