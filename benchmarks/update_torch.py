"""transformers' side of update.py: its model, padded rows, full logits, a plain clipped loss, AdamW."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import torch
import transformers
import update


def repeat(work: Mapping[str, Any]) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=work["vocab"], hidden_size=work["width"], intermediate_size=work["mlp"],
        num_hidden_layers=work["layers"], num_attention_heads=work["heads"], num_key_value_heads=work["kv_heads"],
        tie_word_embeddings=True, use_cache=False, rope_theta=1e6,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config)
    tuned = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
    rows, prompt = work["prompts"] * work["group"], work["prompt"]
    prompts = torch.randint(3, work["vocab"], (work["prompts"], prompt)).repeat_interleave(work["group"], 0)
    ids = torch.cat([prompts, torch.randint(3, work["vocab"], (rows, work["completion"]))], dim=1)
    advantages = torch.randn(rows, 1)
    size = work["micro"] * work["group"]

    def once() -> None:
        tuned.zero_grad(set_to_none=True)
        for start in range(0, rows, size):
            part = ids[start : start + size]
            logits = model(part).logits[:, prompt - 1 : -1]
            logp = torch.log_softmax(logits, -1).gather(-1, part[:, prompt:, None])[..., 0]
            ratio = torch.exp(logp - logp.detach())
            gain = advantages[start : start + size]
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum() / (rows * work["completion"])
            loss.backward()
        tuned.step()

    update.serve(once)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=json.loads, required=True)
    repeat(parser.parse_args().work)
