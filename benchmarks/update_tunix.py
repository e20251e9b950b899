"""Tunix's side of update.py: its own learner's trainer, fed with the examples that the learner would make."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TQDM_DISABLE", "1")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import update
from flax import nnx
from tunix.models.qwen2 import model as qwen2
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

PAD, EOS = 1, 2


class Tokenizer:
    """Ids as words; the learner asks for no more than this."""

    def encode(self, text, **_):
        return [int(t) for t in text.split()]

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def bos_id(self):
        return 0

    def eos_id(self):
        return EOS

    def pad_id(self):
        return PAD


def model(work: Mapping[str, Any], mesh):
    """Random parameters, normal(0, 0.02) matrices."""
    config = qwen2.ModelConfig(
        num_layers=work["layers"], vocab_size=work["vocab"], embed_dim=work["width"], hidden_dim=work["mlp"],
        num_heads=work["heads"], num_kv_heads=work["kv_heads"], head_dim=work["head_size"], rope_theta=1_000_000,
        norm_eps=1e-6, use_tied_embedding=True, remat_config=qwen2.RematConfig.NONE,
    )  # fmt: skip
    with mesh:
        graph, state = nnx.split(qwen2.Qwen2(config, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def start(path, x):
        bias = 0.0 if "bias" in str(path) else 1.0
        values = np.full(x.shape, bias) if len(x.shape) == 1 else rng.normal(0, 0.02, x.shape)
        return jax.device_put(jnp.asarray(values, x.dtype), where)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(start, state))


def cluster(work: Mapping[str, Any]):
    """The cluster with the GRPO learner's loss in its trainer."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(1e-5, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
        eval_every_n_steps=10**9, max_steps=10**9, mini_batch_size=work["prompts"],
        train_micro_batch_size=work["micro"], rollout_micro_batch_size=work["prompts"],
        compute_logps_micro_batch_size=work["prompts"],
    )  # fmt: skip
    rollout = base_rollout.RolloutConfig(
        max_tokens_to_generate=work["completion"], max_prompt_length=work["prompt"],
        kv_cache_size=work["prompt"] + work["completion"], temperature=1.0,
    )  # fmt: skip
    role = rl_cluster.Role
    config = rl_cluster.ClusterConfig(
        role_to_mesh={role.ACTOR: mesh, role.REFERENCE: mesh, role.ROLLOUT: mesh}, rollout_engine="vanilla",
        offload_to_cpu=False, training_config=training, rollout_config=rollout,
    )  # fmt: skip
    reference = model(work, mesh) if work["beta"] else None
    made = rl_cluster.RLCluster(
        actor=model(work, mesh), reference=reference, tokenizer=Tokenizer(), cluster_config=config
    )
    settings = grpo_learner.GRPOConfig(num_generations=work["group"], num_iterations=1, beta=work["beta"], epsilon=0.2)
    grpo_learner.GRPOLearner(made, settings, lambda prompts, completions, **_: [0.0] * len(completions))
    return made, mesh


def repeat(work: Mapping[str, Any]) -> None:
    made, mesh = cluster(work)
    rng, rows = np.random.default_rng(0), work["prompts"] * work["group"]
    prompts = np.repeat(rng.integers(3, work["vocab"], (work["prompts"], work["prompt"])), work["group"], axis=0)
    completions = rng.integers(3, work["vocab"], (rows, work["completion"]))
    advantages = rng.normal(size=rows).astype(np.float32)
    size = work["micro"] * work["group"]

    def once() -> None:
        examples = []
        for start in range(0, rows, size):
            part = slice(start, start + size)
            ids, answers = (jnp.asarray(x[part], jnp.int32) for x in (prompts, completions))
            reference = None
            if work["beta"]:
                reference = made.get_ref_per_token_logps(
                    prompt_tokens=ids, completion_tokens=answers, pad_id=PAD, eos_id=EOS, micro_batch_size=size
                )
            examples.append(
                grpo_learner.TrainExample(
                    prompt_ids=ids, prompt_mask=jnp.ones_like(ids), completion_ids=answers,
                    completion_mask=jnp.ones_like(answers), advantages=jnp.asarray(advantages[part]),
                    ref_per_token_logps=reference, old_per_token_logps=None,
                )
            )  # fmt: skip
        made.update_actor(examples, None)
        jax.block_until_ready(jax.tree.leaves(nnx.state(made.actor_trainer.model)))

    with mesh:
        update.serve(once)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=json.loads, required=True)
    repeat(parser.parse_args().work)
