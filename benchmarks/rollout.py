"""Rollouts against Tunix, transformers' generate, our own static batch and the limit of the machine.

    python benchmarks/rollout.py --tunix-python=.../bin/python --torch-python=.../bin/python

Every contestant is a process of its own with its own interpreter; they take turns, one run each, and medians are
compared: `cpu` is the ratio of tokens per CPU second, `wall` that of tokens per second, above 1 where ours is faster.
Peers without an interpreter are skipped. Random weights, float32; the work is that of the WORKLOAD dictionary of a
script that measured Tunix alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MODELS = {  # Qwen2.5-like, embeddings tied
    "tiny": {"layers": 4, "vocab": 4096, "width": 256, "mlp": 1024, "heads": 4},
    "main": {"layers": 6, "vocab": 8192, "width": 384, "mlp": 1536, "heads": 6},
    "bigvocab": {"layers": 4, "vocab": 32768, "width": 256, "mlp": 1024, "heads": 4},
}
FIXED = {"prompts": 32, "group": 1, "prompt": 64, "new": 128, "mean": 0, "top_p": 1.0, "limit": 192}
RAGGED = {"prompts": 8, "group": 8, "prompt": 256, "new": 256, "mean": 64, "top_p": 1.0, "limit": 512}
SMOL = {"model": "smol", "group": 1, "prompt": 64, "new": 24}
CASES = {
    "fixed_tiny": {**FIXED, "model": "tiny", "peers": ["tunix"]},
    "fixed_main": {**FIXED, "model": "main", "peers": ["tunix"]},
    "fixed_bigvocab": {**FIXED, "model": "bigvocab", "peers": ["tunix"]},
    "top_p": {**FIXED, "model": "tiny", "top_p": 0.95, "peers": ["tunix"]},
    "cache_1024": {**FIXED, "model": "tiny", "limit": 1024, "peers": ["tunix"]},
    "ragged": {**RAGGED, "model": "tiny", "peers": ["tunix", "static"]},
    "smol_1": {**SMOL, "prompts": 1, "peers": ["transformers"]},
    "smol_16": {**SMOL, "prompts": 16, "peers": ["transformers"]},
    "smol_64": {**SMOL, "prompts": 64, "peers": ["transformers"]},
    "smol_group": {**SMOL, "prompts": 1, "group": 8, "prompt": 512, "peers": ["transformers"]},
}
BATCHES = (1, 16, 64, 128)  # for the share of the machine's limit


class Numbers:
    """Text is numbers with spaces between. `mean` sets as many end ids as make that mean length; 0: none."""

    def __init__(self, vocab: int, mean: int) -> None:
        self.vocab, self.eos_ids = vocab, tuple(range(0, vocab, mean)) if mean else (vocab + 7,)

    def encode(self, text, **_):
        return [int(t) for t in text.split()]

    def render(self, messages):
        return self.encode(messages[-1]["content"])

    def decode(self, ids, skip_special=True):
        return " ".join(map(str, ids))

    def bos_id(self):
        return 0

    def eos_id(self):
        return 2

    def pad_id(self):
        return 1


def texts(case: dict, vocab: int, seed: int) -> list[str]:
    """The prompts of run number `seed`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return [" ".join(map(str, rng.integers(3, vocab, case["prompt"]))) for _ in range(case["prompts"])]


def network(case: dict):
    """Our network of the case and its parameters: random, or the embedded model."""
    import jax

    from lanpo_jax import sharding
    from lanpo_jax.models import embedded, qwen, weights

    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    if case["model"] == "smol":
        source = weights.open_checkpoint(embedded.resolve(embedded.NAME))
        config = qwen.ModelConfig.from_hf(source.config)
        return mesh, config, weights.load_params(source, qwen.abstract(config)[0])
    sizes = MODELS[case["model"]]
    config = qwen.ModelConfig(**sizes, kv_heads=2, head_size=64, qkv_bias=True, tied=True, rope_theta=1e6)
    with jax.set_mesh(mesh):
        return mesh, config, qwen.init(config, jax.random.key(0))


def ours(case: dict, static: bool = False) -> Callable[[int, int], int]:
    """run(seed, new tokens) -> tokens drawn, by our sampler; `static`: all rows until the last one ends."""
    from lanpo_jax.models import cache
    from lanpo_jax.sampling import sampler
    from lanpo_jax.types import Prompt

    mesh, config, params = network(case)
    blocks = case.get("limit", 0) // cache.BLOCK

    class Wide(sampler.Sampler):
        def sizes(self, *args):
            found = super().sizes(*args)
            wide = max(found.blocks, blocks)
            return dataclasses.replace(found, blocks=wide, pages=found.rows * wide)

    if static:
        sampler._Run._shape = lambda self: (self.sizes.rows, self.sizes.slots)
    rows = case["prompts"] * case["group"]
    run = Wide(config, Numbers(config.vocab, case.get("mean", 0)), mesh, rows, top_p=case.get("top_p", 1.0))

    def once(seed: int, new: int) -> int:
        asked = [
            Prompt(({"role": "user", "content": text},), case["group"], str(i), new)
            for i, text in enumerate(texts(case, config.vocab, seed))
        ]
        found = run(params, asked, seed=seed, step=0, temperature=1.0)
        return sum(len(c.tokens) for g in found for c in g.completions)

    return once


def tunix(case: dict) -> Callable[[int, int], int]:
    """The same by Tunix's own sampler, every prompt repeated for its group."""
    import jax
    import numpy as np
    from flax import nnx
    from tunix.generate import sampler
    from tunix.models.qwen2 import model

    sizes = MODELS[case["model"]]
    config = model.ModelConfig(
        num_layers=sizes["layers"], vocab_size=sizes["vocab"], embed_dim=sizes["width"], hidden_dim=sizes["mlp"],
        num_heads=sizes["heads"], num_kv_heads=2, head_dim=64, rope_theta=1_000_000, norm_eps=1e-6,
        use_tied_embedding=True,
    )  # fmt: skip
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        made = model.Qwen2(config, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    graph, state = nnx.split(made)
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def init(path, x):
        plain = np.zeros if "bias" in str(path) else np.ones
        values = plain(x.shape) if len(x.shape) == 1 else rng.normal(0, 0.02, x.shape)
        return jax.device_put(values.astype(x.dtype), replicated)

    made = nnx.merge(graph, jax.tree_util.tree_map_with_path(init, state))
    tokens = Numbers(config.vocab_size, case["mean"])
    sizes = sampler.CacheConfig(
        cache_size=case["limit"], num_layers=config.num_layers, num_kv_heads=2, head_dim=config.head_dim
    )
    run = sampler.Sampler(made, tokens, sizes)

    def once(seed: int, new: int) -> int:
        with mesh:
            out = run(
                input_strings=[t for t in texts(case, config.vocab_size, seed) for _ in range(case["group"])],
                max_generation_steps=new, max_prompt_length=case["prompt"], temperature=1.0, top_p=case["top_p"],
                top_k=None, seed=seed, echo=False, return_logprobs=True, eos_tokens=list(tokens.eos_ids),
            )  # fmt: skip
        return sum(len(x) for x in out.tokens)

    return once


def transformers(case: dict) -> Callable[[int, int], int]:
    """The same by generate() of transformers in torch, from the same file."""
    import torch
    import transformers as hf

    from_cache = Path(os.environ.get("LANPO_CACHE") or "~/.cache/lanpo_jax").expanduser()
    model = hf.AutoModelForCausalLM.from_pretrained(
        from_cache, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32
    )
    torch.set_num_threads(os.cpu_count())
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def once(seed: int, new: int) -> int:
        ids = torch.tensor([[int(t) for t in x.split()] for x in texts(case, model.config.vocab_size, seed)])
        ids = ids.repeat_interleave(case["group"], 0)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new,
            pad_token_id=0,
        )  # fmt: skip
        return out.shape[0] * (out.shape[1] - ids.shape[1])

    return once


WORKERS = {"ours": ours, "static": lambda case: ours(case, static=True), "tunix": tunix, "transformers": transformers}


def work(name: str, case: dict) -> None:
    """A contestant: after a first run for compilation, one measured run a line of input, one JSON line each."""
    answers, sys.stdout = sys.stdout, sys.stderr
    run = WORKERS[name](case)
    lengths = [case["new"]] if "mean" in case else [case["new"], 1]  # 1: what is not decoding
    for new in lengths:
        run(0, new)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        found = []
        for new in lengths:
            cpu, wall = time.process_time(), time.perf_counter()
            tokens = run(int(line), new)
            found.append((tokens, time.process_time() - cpu, time.perf_counter() - wall))
        print(json.dumps(found), file=answers, flush=True)


def match(case: dict, interpreters: dict[str, str], repeats: int) -> dict[str, list]:
    """Runs of every contestant that there is, in turn: name -> [(tokens, CPU seconds, seconds), ..] for each length."""
    names = ["ours", *(p for p in case["peers"] if interpreters.get(p))]
    started = {}
    for name in names:
        command = [interpreters[name], __file__, f"--worker={name}", f"--case={json.dumps(case)}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **{**pipes, "stderr": subprocess.DEVNULL})
        if process.stdout.readline().strip() == "ready":
            started[name] = process
        else:
            print(f"  {name} does not run here and is skipped", flush=True)
    runs: dict[str, list] = {name: [] for name in started}
    for i in range(1, repeats + 1):
        for name, process in started.items():
            print(i, file=process.stdin, flush=True)
            runs[name].append(json.loads(process.stdout.readline()))
    for process in started.values():
        process.stdin.close()
        process.wait()
    return runs


def rates(runs: list, decode: bool) -> tuple[float, float]:
    """Median tokens per CPU second and per second; of decoding alone: without the run of one token each."""

    def one(run: list, clock: int) -> float:
        whole = run[0]
        less = run[1] if decode else (0, 0.0, 0.0)
        return (whole[0] - less[0]) / (whole[clock] - less[clock])

    return statistics.median(one(r, 1) for r in runs), statistics.median(one(r, 2) for r in runs)


def compare(name: str, interpreters: dict[str, str], repeats: int) -> dict[str, float]:
    """The ratios of one case, by name."""
    out, case = {}, CASES[name]
    runs = match(case, interpreters, repeats)
    parts = [("", False)] if "mean" in case or case["group"] > 1 else [("_decode", True)]
    for suffix, decode in parts:
        mine = rates(runs["ours"], decode)
        out[f"{name}{suffix}/tokens_per_cpu_second"] = round(mine[0], 1)
        for peer in (p for p in runs if p != "ours"):
            theirs = rates(runs[peer], decode)
            for kind, a, b in zip(("cpu", "wall"), mine, theirs):
                out[f"{name}{suffix}/{peer}/{kind}"] = round(a / b, 2)
    if "_decode" in parts[0]:
        for peer in (p for p in runs if p != "ours"):
            times = [statistics.median(r[1][1] for r in runs[p]) for p in (peer, "ours")]
            out[f"{name}_prefill/{peer}/cpu"] = round(times[0] / times[1], 2)
    print(json.dumps(out), flush=True)
    return out


def limits(model: str) -> dict[str, float]:
    """Decoding against the machine, both measured here: share of the GEMM rate, or of the memory bandwidth."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    gemm = jax.jit(lambda a, b: a @ b)
    square = jnp.asarray(np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32))
    total = jax.jit(lambda x: x.sum())
    large = jnp.ones(2**27, jnp.float32)
    case = {"model": model, "group": 1, "prompt": 64}
    runs = {}
    for batch in BATCHES:
        runs[batch] = ours({**case, "prompts": batch})
        runs[batch](0, 1), runs[batch](0, 33)
    config = network(case)[1]
    matrices = config.layers * (
        config.width * config.head_size * (2 * config.heads + 2 * config.kv_heads) + 3 * config.width * config.mlp
    )
    weights = matrices + config.vocab * config.width
    rates: dict[str, list] = {}
    for i in range(3):
        cpu, wall = timed(lambda: gemm(square, square).block_until_ready())
        rates.setdefault("flops", []).append(2 * 2048**3 / cpu)
        cpu, wall = timed(lambda: total(large).block_until_ready())
        rates.setdefault("bytes", []).append(large.nbytes / wall)
        for batch, run in runs.items():
            one, whole = timed(lambda run=run: run(i + 1, 1)), timed(lambda run=run: run(i + 1, 33))  # noqa: B023
            rates.setdefault(batch, []).append([(b - a) / 32 for a, b in zip(one, whole)])
    flops, bandwidth = statistics.median(rates["flops"]), statistics.median(rates["bytes"])
    out = {
        f"machine/{model}/gflops_per_cpu_second": flops / 1e9,
        f"machine/{model}/gigabytes_per_second": bandwidth / 1e9,
    }
    for batch in BATCHES:
        cpu, wall = (statistics.median(r[k] for r in rates[batch]) for k in (0, 1))
        out[f"machine/{model}/compute_share_{batch}"] = 2 * weights * batch / flops / cpu
        out[f"machine/{model}/memory_share_{batch}"] = 4 * weights / bandwidth / wall
    out = {name: round(value, 3) for name, value in out.items()}
    print(json.dumps(out), flush=True)
    return out


def timed(f: Callable) -> tuple[float, float]:
    """CPU seconds and seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    f()
    return time.process_time() - cpu, time.perf_counter() - wall


def compiled() -> dict[str, int]:
    """Programs after runs that differ in temperature, truncation, seed, number and length of prompts."""
    from lanpo_jax.sampling import programs, sampler
    from lanpo_jax.types import Prompt

    mesh, config, params = network({"model": "tiny"})
    run = sampler.Sampler(config, Numbers(config.vocab, 32), mesh, 16)
    counted = (programs.admit, programs.decode)
    before = [program._cache_size() for program in counted]
    for i, temperature in enumerate((1.0, 0.7, 0.0, 1.3)):
        asked = [
            Prompt(({"role": "user", "content": " ".join(["9"] * (i + j + 1))},), 4, str(j), 60 + j)
            for j in range(5 + i // 2)
        ]
        given = dataclasses.replace(run, top_p=1.0 - i / 10, top_k=i * 5)
        given(params, asked, seed=i, step=i, temperature=temperature)
    after = [program._cache_size() - n for program, n in zip(counted, before)]
    return dict(zip(("programs/prefill", "programs/decode"), after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tunix-python", default="", help="an interpreter with google-tunix 0.1.7")
    parser.add_argument("--torch-python", default="", help="an interpreter with torch, transformers and gguf")
    parser.add_argument("--cases", default=",".join([*CASES, "machine", "programs"]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return work(asked.worker, json.loads(asked.case))
    interpreters = {
        "ours": sys.executable, "static": sys.executable,
        "tunix": asked.tunix_python, "transformers": asked.torch_python,
    }  # fmt: skip
    out: dict[str, float] = {}
    for name in asked.cases.split(","):
        if name == "machine":
            out |= limits("main") | limits("smol")
        elif name == "programs":
            out |= compiled()
        else:
            out |= compare(name, interpreters, asked.repeats)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
