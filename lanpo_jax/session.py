"""What training, evaluation and generation share: the machine, a model that can be asked, and problems that fit it."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from lanpo_jax import checkpoint, data, demonstrations, families, inference, sharding, spec
from lanpo_jax.experience import pool as pool_lib
from lanpo_jax.experience import prompts, relevance, retrieval
from lanpo_jax.models import embedded, lora, published, qwen, weights
from lanpo_jax.rewards import math, reward
from lanpo_jax.sampling import sampler as sampler_lib
from lanpo_jax.sampling import tokenizer as tokenizer_lib
from lanpo_jax.types import Generation, Grade, Problem, Prompt

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Session:
    """A network on a mesh with its tokenizer, prompts and grader; parameters are given to each call."""

    mesh: Mesh
    config: Mapping[str, Any]  # the model's own config.json
    source: published.Checkpoint | None  # None: a model of random weights, or of a run's checkpoint
    network: qwen.ModelConfig
    param_dtype: str
    lora: lora.Lora | None  # adapters that are trained in place of the network's parameters
    frozen_saved: bool  # whether its checkpoints hold those; else `source` does
    tokenizer: tokenizer_lib.Tokenizer
    templates: prompts.Templates
    sampler: sampler_lib.Sampler
    grade: Grade
    prompt_limit: int
    max_new_tokens: int
    overlong: str

    @functools.cached_property
    def weights(self) -> Any:
        """Shapes and shardings of the network's parameters."""
        return sharding.shard_abstract(self.mesh, *qwen.abstract(self.network, self.param_dtype))

    def trained(self, saved: checkpoint.Checkpoints, step: int) -> Any:
        """The network's parameters as they were after `step` steps of a run, adapters merged."""
        if self.lora is None:
            return saved.read(step, self.weights)[0]
        shapes = sharding.shard_abstract(self.mesh, *lora.abstract(self.lora, self.network, self.param_dtype))
        adapters, _ = saved.read(step, shapes)
        if self.frozen_saved:
            frozen, _ = saved.read(step, self.weights, ("frozen",))
        else:
            frozen = weights.load_params(self.source, self.weights)
        return lora.merged(frozen, adapters, self.lora.scale)

    def truncate(self, text: str, tokens: int) -> tuple[str, bool]:
        """The text within so many tokens, and whether it was cut."""
        ids = self.tokenizer.encode(text)
        return (text, False) if len(ids) <= tokens else (self.tokenizer.decode(ids[:tokens]), True)

    def fits(self, messages: prompts.Messages, max_new_tokens: int) -> bool:
        """Whether a prompt is within the limit that batches are made for."""
        return len(self.tokenizer.render(messages)) <= self.prompt_limit

    def within(self, problems: Sequence[Problem]) -> tuple[list[Problem], int]:
        """The problems whose plain prompt fits, and how many did not."""
        return data.within(
            problems,
            length=lambda text: len(self.tokenizer.render(prompts.plain(text, self.templates))),
            shorten=lambda text, excess: self.tokenizer.decode(self.tokenizer.encode(text)[:-excess]),
            limit=self.prompt_limit,
            policy=self.overlong,
        )

    def bound(self, retrieve: Callable, pool: pool_lib.Pool, next_token: relevance.NextToken) -> retrieval.Retrieve:
        """A retriever over a pool; one that wants a judge asks the policy, by `next_token`."""
        return relevance.bind(
            retrieve, next_token, self.tokenizer.encode, pool, self.templates, self.truncate, self.fits
        )


def start(c, workdir: pathlib.Path, train: Sequence[Problem], say: Say) -> Session:
    """The session of a configuration. `train` are the texts for a tokenizer of its own, if `workdir` holds none yet.

    Raises ValueError or FileNotFoundError in one sentence for whatever does not fit together.
    """
    mesh = sharding.make_mesh(data=c.mesh.data, fsdp=c.mesh.fsdp, tensor=c.mesh.tensor)
    if not c.model.path:
        raise ValueError("model.path is empty; give a checkpoint directory, a .gguf file or 'smollm2-135m-instruct'.")
    random = c.model.path == "random"
    source = None if random else weights.open_checkpoint(embedded.resolve(c.model.path, say=say))
    config = json.loads(c.model.hf) if random else source.config
    network = qwen.ModelConfig.from_hf(
        config, dtype=c.model.dtype, scan_layers=c.model.scan_layers, remat=c.model.remat
    )
    positions, longest = config.get("max_position_embeddings"), c.data.prompt_limit + c.rollout.max_new_tokens
    if positions and longest > positions:
        raise ValueError(
            f"The model knows {positions} positions and data.prompt_limit + rollout.max_new_tokens make {longest}."
        )
    tokenizer = _tokenizer(c, source, workdir, train)
    tokenizer_lib.check_vocabulary(tokenizer, network.vocab)
    return Session(
        mesh=mesh,
        config=config,
        source=source,
        network=network,
        param_dtype=c.model.param_dtype,
        lora=_lora(c),
        frozen_saved=random or c.warmup.steps > 0,
        tokenizer=tokenizer,
        templates=prompts.Templates(
            style=c.prompt.style,
            answer=c.prompt.answer,
            instruction=c.prompt.instruction,
            system=c.prompt.system,
            examples=families.examples(c.prompt.examples) if c.prompt.examples else (),
        ),
        sampler=_sampler(c, network, tokenizer, mesh),
        grade=reward.grader(dict(zip(c.reward.functions, c.reward.weights))),
        prompt_limit=c.data.prompt_limit,
        max_new_tokens=c.rollout.max_new_tokens,
        overlong=c.data.overlong,
    )


def _sampler(c, network: qwen.ModelConfig, tokenizer: Any, mesh: Any) -> sampler_lib.Sampler:
    made = sampler_lib.Sampler(network, tokenizer, mesh, c.rollout.rows)
    if "top_k" not in c.rollout:  # a run of an older version
        return made
    return dataclasses.replace(
        made,
        config=dataclasses.replace(network, dtype=c.rollout.dtype or network.dtype),
        top_k=c.rollout.top_k,
        top_p=c.rollout.top_p,
        min_p=c.rollout.min_p,
        stop=tuple(c.rollout.stop),
        cache_bytes=int(c.rollout.cache_gib * 2**30),
    )


def _lora(c) -> lora.Lora | None:
    if "lora" not in c or not c.lora.rank:  # runs of older versions have no such key
        return None
    return lora.Lora(c.lora.rank, c.lora.alpha or c.lora.rank, tuple(c.lora.targets))


def _tokenizer(c, source, workdir: pathlib.Path, train: Sequence[Problem]) -> tokenizer_lib.Tokenizer:
    """The model's own, the one named in the config, or one trained on the first texts of a model from scratch."""
    where = c.model.tokenizer or source
    if where is None:
        raise ValueError("A random model needs model.tokenizer: a path, or 'train(vocab=8000)' for one of its own.")
    if c.model.tokenizer.startswith("train("):
        where = workdir / "tokenizer.model"
        if not where.exists():
            if not train:
                raise ValueError(f"There is no {where}, the tokenizer that the run of this folder trained.")
            written = demonstrations.writer(c.warmup.demonstrations)(train, 0)
            lines = [p.text for p in train] + [text for d in written for text in (d.text, d.lesson) if text]
            lines.append("() again hint")
            spec.resolve(c.model.tokenizer, {"train": _train_tokenizer})(lines, where)
    return tokenizer_lib.load(where, template=c.prompt.template or None)


def _train_tokenizer(lines, path, *, vocab: int, kind: str = "bpe", byte_fallback: bool = True) -> None:
    tokenizer_lib.train_sentencepiece(lines, path, vocab, model_type=kind, byte_fallback=byte_fallback)


def evaluation_sets(sources: Mapping[str, str], limit: int) -> dict[str, list[Problem]]:
    """Set name -> its first `limit` problems (0: all)."""
    return {name: data.load(text)[: limit or None] for name, text in sources.items()}


def training_problems(
    sources: Sequence[str], held_out: Mapping[str, Sequence[Problem]], say: Say
) -> tuple[list[Problem], int]:
    """Training problems, and how many were left out because they also stand in an evaluation set."""
    found = data.load(*sources)
    if bad := math.unparseable(found):
        say(f"{len(bad)} training answers cannot be read exactly and may never be right:")
        for row, problem in bad:
            say(f"  row {row + 1}, {problem.id}: {problem.answer[:100]!r}")
    kept, dropped = data.exclude(found, [p for problems in held_out.values() for p in problems])
    return kept, len(dropped)


def require(sets: Mapping[str, Sequence[Problem]]) -> None:
    """Raises ValueError for an empty problem set."""
    for name, problems in sets.items():
        if not problems:
            raise ValueError(f"No {name} problem is left; look at data.train, data.eval and data.prompt_limit.")


def setting(
    session: Session,
    generate: Callable[[str, Sequence[Prompt]], list[Generation]],
    pool: pool_lib.Pool,
    retrieve: retrieval.Retrieve,
    *,
    episode: str,
    samples: int,
    seed: int,
) -> inference.Setting:
    """How problems are answered outside of training, with the limits of the episode that training uses."""
    return inference.Setting(
        generate=generate,
        templates=session.templates,
        truncate=session.truncate,
        fits=session.fits,
        samples=samples,
        max_new_tokens=session.max_new_tokens,
        seed=seed,
        pool=pool,
        retrieve=retrieve,
        guidance=inference.guidance(episode),
    )
