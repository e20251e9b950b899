"""A policy to be asked from a command line: the checkpoint of a run, or a model as it was published."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import flags

from lanpo_jax import checkpoint, cli, console, inference, session, spec, votes
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import pool_file, retrieval
from lanpo_jax.models import weights
from lanpo_jax.types import Generation, Problem, Prompt


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its prompts, and how it is asked."""

    name: str  # for people and files: "runs/first, step 16"
    c: ml_collections.FrozenConfigDict
    session: session.Session
    setting: inference.Setting
    temperature: float
    extract: votes.Extract
    tell: console.Console
    first: bool  # whether this process writes files

    def within(self, sets: Mapping[str, Sequence[Problem]]) -> dict[str, list[Problem]]:
        """The problems that fit the prompt limit; says how many do not. Raises ValueError for an empty set."""
        kept = {}
        for name, problems in sets.items():
            kept[name], over = self.session.within(problems)
            if over:
                self.tell.say(f"{over} of {name} have prompts of over {self.session.prompt_limit} tokens.")
        session.require(kept)
        return kept

    def about(self) -> dict[str, Any]:
        """What made an answer, as JSON."""
        setting = self.setting
        known = {"model": self.name, "samples": setting.samples, "temperature": self.temperature, "seed": setting.seed}
        return known | {"principles": len(setting.pool.index)}


def define_model(values: flags.FlagValues) -> None:
    """The flags that `load` reads."""
    cli.define_config(values)
    flags.DEFINE_integer("step", None, "checkpoint of the run; the newest if not given", flag_values=values)
    flags.DEFINE_string("model", "", "Hugging Face directory or GGUF file", flag_values=values)


def define(values: flags.FlagValues) -> None:
    """The flags that `opened` reads."""
    define_model(values)
    flags.DEFINE_string("pool", "", "pool file", flag_values=values)
    flags.DEFINE_integer("samples", None, "completions per problem", lower_bound=1, flag_values=values)
    flags.DEFINE_float("temperature", None, "of sampling", lower_bound=0.0, flag_values=values)


def opened(f: flags.FlagValues, tell: console.Console) -> Policy:
    """The policy that the flags name; what they leave open is as in the evaluations of its run.

    Raises ValueError or FileNotFoundError in one sentence.
    """
    read = pool_file.read(pathlib.Path(f.pool)) if f.pool else None  # a wrong path is told before a model is loaded
    c, system, params, own, name = load(f, tell)
    pool = own if read is None else read
    temperature = c.eval.temperature if f.temperature is None else f.temperature

    def generate(role: str, asked: Sequence[Prompt]) -> list[Generation]:
        with tell.phase("sampling") as advance:
            return system.sampler(params, asked, seed=c.seed, step=0, temperature=temperature, progress=advance)

    next_token = functools.partial(system.sampler.next_token, params)
    retrieve = system.bound(spec.resolve(c.rollout.retriever, retrieval), pool, next_token)
    setting = session.setting(
        system, generate, pool, retrieve, episode=c.rollout.episode, samples=f.samples or c.eval.samples, seed=c.seed
    )
    extract = votes.extractor(c.reward.functions)
    return Policy(name, c, system, setting, temperature, extract, tell, first=cli.first())


def load(f: flags.FlagValues, tell: console.Console):
    """(configuration, session, parameters, pool, name for people) of the model that the flags name.

    Raises ValueError or FileNotFoundError in one sentence.
    """
    if f.workdir and f.model:
        raise ValueError(f"--workdir={f.workdir} and --model={f.model} name two models; give one of them.")
    if not f.workdir and f.config is None:
        raise ValueError("There is no model; give --workdir=RUN, or --config=FILE and --model=DIR.")
    if f.workdir:
        return _trained(f.config, pathlib.Path(f.workdir), f.step, tell)
    return _published(f.config, f.model, tell)


def _trained(config, workdir: pathlib.Path, step: int | None, tell: console.Console):
    """A run's checkpoint with its own pool, and its own configuration unless another is given."""
    saved = checkpoint.Checkpoints(workdir, None)
    step = saved.pick(step)
    _, side = saved.read(step)
    c = ml_collections.FrozenConfigDict(side["config"] if config is None else config)
    try:
        system = session.start(c, workdir, [], tell.say)
    except AttributeError as error:  # a key that came later
        raise ValueError(
            f"The configuration of {workdir} is of another version ({error}); give one by --config."
        ) from error
    return c, system, system.trained(saved, step), pool_lib.from_state(side["pool"]), f"{workdir}, step {step}"


def _published(config, path: str, tell: console.Console):
    """A model that was not trained here, without a pool: `path`, or what model.path of the configuration names."""
    c = ml_collections.ConfigDict(config)
    c.model.path = path or c.model.path
    if c.model.path == "random":
        raise ValueError("A model of random weights has nothing to say; give --workdir of a run, or --model.")
    c = ml_collections.FrozenConfigDict(c)
    system = session.start(c, pathlib.Path(), [], tell.say)
    return c, system, weights.load_params(system.source, system.weights), pool_lib.Pool(), c.model.path
