r"""One optimizer update against Tunix and torch, and its memory: interleaved, ratios by name as the last line.

    python benchmarks/update.py [--sections=tunix,torch,head,ragged,prefix] [--rounds=3] [--only=NAME]
                                [--tunix-python=PATH] [--torch-python=PATH]

Every system runs in a process of its own and waits there; one update each, in turn, so that a busy machine is equally
busy for all. Times are medians of processor seconds (wall seconds beside them), after two updates of warm-up; memory
is the largest resident size of the process. The peers need interpreters that have google-tunix, or torch with
transformers; without, their sections are left out. `head` compares compiled log-probability passes in one process.

Tunix: 8 prompts x 8, 64 + 128 tokens, float32, AdamW, entropies, as its own learner cuts them (micro-batches of 8 or 2
prompts; here it is two packed rows); with a reference also its scoring. torch: transformers' model with
a plain clipped loss, once on rows that share nothing and once on groups. `ragged` is against the time that a full batch
takes for as many tokens, `prefix` against rows that repeat the prompt. Beside other work set OMP_NUM_THREADS=1: torch's
threads spin while they wait for each other, which counts as processor time.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

HERE = pathlib.Path(__file__).parent
SIZES = {  # Qwen2.5-like, tied embeddings
    "tiny": {"layers": 4, "vocab": 4096, "width": 256, "mlp": 1024, "heads": 4, "kv_heads": 2},
    "main": {"layers": 6, "vocab": 8192, "width": 384, "mlp": 1536, "heads": 6, "kv_heads": 2},
    "small": {"layers": 6, "vocab": 512, "width": 256, "mlp": 1024, "heads": 4, "kv_heads": 2},
    "smollm2": {"layers": 30, "vocab": 49152, "width": 576, "mlp": 1536, "heads": 9, "kv_heads": 3},
}
GRPO = {"prompts": 8, "group": 8, "prompt": 64, "completion": 128, "row": 320, "rows": 2}
TORCH = {  # (model, work): 16 x 128 and 4 x 128 tokens that share nothing; and groups
    "small_plain": (
        "small",
        {"prompts": 16, "group": 1, "prompt": 8, "completion": 120, "micro": 16, "layout": "plain"},
    ),
    "small_groups": (
        "small",
        {"prompts": 4, "group": 8, "prompt": 128, "completion": 64, "micro": 4, "row": 384, "rows": 2},
    ),
    "smollm2_plain": (
        "smollm2",
        {"prompts": 4, "group": 1, "prompt": 8, "completion": 120, "micro": 4, "layout": "plain"},
    ),
    "smollm2_groups": ("smollm2", {"prompts": 1, "group": 8, "prompt": 128, "completion": 64, "micro": 1, "row": 384}),
}
HEADS = {"151936": (151_936, 896, 4096, 1024), "49152": (49_152, 576, 2048, 2048)}  # V, D, tokens compiled, tokens run


def case(model: str, **work: Any) -> dict[str, Any]:
    """Everything that a process must know to do the same work.

    `micro` counts the prompts of a peer's micro-batch, and of ours where rows are plain; packed rows have `row` tokens
    (0: a whole group) and go `rows` at a time.
    """
    return (
        SIZES[model] | {"head_size": 64, "beta": 0.0, "layout": "packed", "lengths": "full", "row": 0, "rows": 1} | work
    )


class Worker:
    """A process that repeats one piece of work when it is told to."""

    def __init__(self, python: str, script: str, work: Mapping[str, Any]):
        command = [python, str(HERE / script), "--work", json.dumps(work)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def run(self) -> dict[str, float]:
        """{"cpu", "wall"} seconds of one more update, {"peak"} bytes of the process so far."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise RuntimeError(f"{' '.join(self._process.args[:2])} ended without an answer; its message is above.")


def serve(once, **about: Any) -> None:
    """The other end of a `Worker`: warms up, then answers every line with the cost of one call."""
    for _ in range(2):
        once()
    print("RESULT " + json.dumps(about), flush=True)
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        once()
        found = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print("RESULT " + json.dumps(found | {"peak": peak}), flush=True)


def interleaved(workers: Mapping[str, tuple[str, str, Mapping[str, Any]]], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of each worker's costs over so many rounds in turn."""
    started = {name: Worker(*what) for name, what in workers.items()}
    found = [{name: worker.run() for name, worker in started.items()} for _ in range(rounds)]
    for worker in started.values():
        worker.close()
    costs = ("cpu", "wall", "peak")
    medians = {name: {k: statistics.median(f[name][k] for f in found) for k in costs} for name in started}
    for name, m in medians.items():
        medians[name] |= started[name].about
        print(f"  {name:24} {m['cpu']:8.2f} CPU s {m['wall']:8.2f} s {m['peak'] / 1e9:6.2f} GB", flush=True)
    return medians


def ours(work: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
    return sys.executable, "update_ours.py", work


def against_tunix(python: str, only: str, rounds: int) -> dict[str, float]:
    ratios = {}
    for model in ("tiny", "main"):
        for micro, beta in ((8, 0.0), (2, 0.0), (8, 0.04)):
            work = case(model, **GRPO, micro=micro, beta=beta, entropy=True)
            name = f"tunix/{model}/micro{micro}" + ("/reference" if beta else "")
            if only not in name:
                continue
            print(name, flush=True)
            found = interleaved({"ours": ours(work), "tunix": (python, "update_tunix.py", work)}, rounds)
            ratios[f"{name}/speed"] = found["tunix"]["cpu"] / found["ours"]["cpu"]
            ratios[f"{name}/memory"] = found["ours"]["peak"] / found["tunix"]["peak"]
    return ratios


def against_torch(python: str, only: str, rounds: int) -> dict[str, float]:
    ratios = {}
    for name, (model, work) in TORCH.items():
        if only not in f"torch/{name}":
            continue
        print(f"torch/{name}", flush=True)
        work = case(model, **work)
        found = interleaved({"ours": ours(work), "torch": (python, "update_torch.py", work)}, rounds)
        ratios[f"torch/{name}/speed"] = found["torch"]["cpu"] / found["ours"]["cpu"]
        ratios[f"torch/{name}/speed_wall"] = found["torch"]["wall"] / found["ours"]["wall"]
    return ratios


def ragged(only: str, rounds: int) -> dict[str, float]:
    """Geometric lengths against full ones, a row's token each."""
    works = {k: case("tiny", prompts=9, group=8, prompt=64, completion=128, lengths=k)
             for k in ("full", "geometric")}  # fmt: skip
    found = interleaved({k: ours(w) for k, w in works.items()}, rounds)
    each = {k: v["cpu"] / v["tokens"] for k, v in found.items()}
    return {"ragged/time_per_token": each["geometric"] / each["full"], "ragged/padding": found["geometric"]["padding"]}


def prefix(only: str, rounds: int) -> dict[str, float]:
    work = case("tiny", prompts=4, group=8, prompt=512, completion=64, micro=1)
    found = interleaved({"shared": ours(work), "repeated": ours(work | {"layout": "plain"})}, rounds)
    return {
        "prefix/speed": found["repeated"]["cpu"] / found["shared"]["cpu"],
        "prefix/memory": found["shared"]["peak"] / found["repeated"]["peak"],
    }


def heads(only: str, rounds: int) -> dict[str, float]:
    """Log-probabilities with their gradient, against full logits: temporaries of the programs, and time."""
    import update_ours

    ratios = {}
    for name, (vocabulary, width, compiled, run) in HEADS.items():
        if only not in f"head/{name}":
            continue
        big, small = (update_ours.head_programs(vocabulary, width, tokens) for tokens in (compiled, run))
        bytes_ = {k: p.memory_analysis().temp_size_in_bytes for k, p in big.items()}
        times = update_ours.head_times(small, vocabulary, width, run, rounds)
        print(f"head/{name}: temporaries {bytes_['pieces'] / 1e6:.0f} of {bytes_['full'] / 1e6:.0f} MB, "
              f"{times['pieces']:.2f} against {times['full']:.2f} CPU s", flush=True)  # fmt: skip
        ratios[f"head/{name}/memory"] = bytes_["pieces"] / bytes_["full"]
        ratios[f"head/{name}/time"] = times["pieces"] / times["full"]
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="tunix,torch,head,ragged,prefix")
    parser.add_argument("--only", default="", help="cases whose name holds this, e.g. tunix/tiny/micro8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tunix-python", default="", help="interpreter with google-tunix")
    parser.add_argument("--torch-python", default="", help="interpreter with torch and transformers")
    options = parser.parse_args()
    sections, ratios = options.sections.split(","), {}
    for peer, python in (("tunix", options.tunix_python), ("torch", options.torch_python)):
        if peer in sections and not python:
            sections.remove(peer)
            print(f"{peer} is left out: there is no --{peer}-python.")
    for section in sections:
        print(f"== {section}", flush=True)
        if section == "tunix":
            ratios |= against_tunix(options.tunix_python, options.only, options.rounds)
        elif section == "torch":
            ratios |= against_torch(options.torch_python, options.only, options.rounds)
        else:
            ratios |= {"head": heads, "ragged": ragged, "prefix": prefix}[section](options.only, options.rounds)
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
