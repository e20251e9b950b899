"""From the runs of a study to its table and figure."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
import time
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
import scipy.stats
import studies

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PACKAGES = ("jax", "flax", "optax", "numpy", "scikit-learn")


def write(
    target: pathlib.Path,
    command: str,
    task: studies.Task,
    arms: Sequence[str],
    runs: pathlib.Path,
    seeds: Sequence[int],
) -> None:
    """Writes TARGET.md, TARGET.json and TARGET.png."""
    target.parent.mkdir(parents=True, exist_ok=True)
    finals = {a: [_read(runs / a / f"seed{s}" / "final.json") for s in seeds] for a in arms}
    rows = [row(arm, finals, mode) for arm in arms for mode in task.modes]
    curves = {a: [_curve(runs / a / f"seed{s}" / "metrics.jsonl") for s in seeds] for a in arms}
    seconds = sum(
        _read(p)["seconds"] for a in (*arms, "start") for s in seeds for p in [runs / a / f"seed{s}/done.json"]
    )
    about = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "seeds": list(seeds),
        "tokens": {a: [round(c["tokens"][-1]) for c in curves[a]] for a in arms},
        "wall_seconds": seconds,
        "python": platform.python_version(),
        "versions": {p: importlib.metadata.version(p) for p in PACKAGES},
    }
    pathlib.Path(f"{target}.json").write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    pathlib.Path(f"{target}.md").write_text(_page(about, task, arms, rows, target.name), encoding="utf-8")
    _figure(pathlib.Path(f"{target}.png"), task, curves)
    print(pathlib.Path(f"{target}.md").read_text(encoding="utf-8"))


def row(arm: str, finals: dict[str, list[dict[str, Any]]], mode: str) -> dict[str, Any]:
    """An arm answering in one way: each seed's accuracy, and the differences to grpo answering zero-shot.

    Two 95% intervals of the difference: over problems, paired and pooled over these very seeds; and over seeds
    (Student's t on their mean differences), which speaks of seeds that were not run.
    """
    own = [_shares(final, mode) for final in finals[arm]]
    plain = [_shares(final, "zero_shot") for final in finals["grpo"]]
    differences = np.concatenate([a - b for a, b in zip(own, plain, strict=True)])
    by_seed = [float((a - b).mean()) for a, b in zip(own, plain, strict=True)]
    found = {
        "arm": arm,
        "mode": mode,
        "seeds": [float(x.mean()) for x in own],
        "mean": float(np.mean([x.mean() for x in own])),
    }
    found["over_grpo"] = float(np.mean(by_seed))
    found["over_problems"] = _normal(differences)
    found["over_seeds"] = _student(by_seed)
    found["guided"] = float(np.mean([_part(final, mode)["guided"] for final in finals[arm]]))
    return found


def _normal(values: np.ndarray) -> list[float]:
    half = 1.959964 * values.std(ddof=1) / np.sqrt(len(values))
    return [float(values.mean() - half), float(values.mean() + half)]


def _student(values: Sequence[float]) -> list[float] | None:
    if len(values) < 2:
        return None
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return [float(np.mean(values) - half), float(np.mean(values) + half)]


def _read(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _part(final: dict[str, Any], mode: str) -> dict[str, Any]:
    return next(r for r in final["results"] if r["mode"] == mode)


def _shares(final: dict[str, Any], mode: str) -> np.ndarray:
    """Share of right samples of each problem."""
    return np.array([np.mean(p["correct"]) for p in _part(final, mode)["problems"]])


def _curve(path: pathlib.Path) -> dict[str, list[float]]:
    """Accuracy by generated tokens: {"tokens", mode: mean@k at every evaluation}."""
    found: dict[str, list[float]] = {"tokens": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        numbers = json.loads(line)
        means = {k: v for k, v in numbers.items() if k.startswith("val/") and "/mean@" in k}
        if means:
            found["tokens"].append(numbers.get("progress/tokens") or 0.0)
            for key, value in means.items():
                parts = key.split("/")
                found.setdefault(parts[2] if len(parts) == 4 else "zero_shot", []).append(value)
    return found


def _page(about: dict[str, Any], task: studies.Task, arms: Sequence[str], rows: Sequence[dict], name: str) -> str:
    lines = [
        f"# {name}",
        "",
        f"`{about['command']}`",
        "",
        f"{task.config}, {len(about['seeds'])} seeds, each arm to {task.overrides['max_tokens']:,} generated tokens; "
        f"{about['wall_seconds'] / 60:.0f} minutes of runs in all; Python {about['python']}, "
        + ", ".join(f"{p} {v}" for p, v in about["versions"].items())
        + f"; {about['date']}.",
        "",
        "Accuracy on held-out problems after training. *Difference*: to `grpo` answering zero-shot, same seed and "
        "problems; 95% intervals over problems (of these seeds) and over seeds (Student's t).",
        "",
        "| arm | answers | accuracy | by seed | difference | over problems | over seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        seeds = " ".join(f"{x:.3f}" for x in r["seeds"])
        base = r["arm"] == "grpo" and r["mode"] == "zero_shot"
        cells = (
            ["", "", ""]
            if base
            else [f"{r['over_grpo']:+.3f}", _bracket(r["over_problems"]), _bracket(r["over_seeds"])]
        )
        lines.append(f"| {r['arm']} | {r['mode']} | {r['mean']:.3f} | {seeds} | {' | '.join(cells)} |")
    lines += ["", *(f"* `{a}`: {studies.ARMS[a].about}." for a in arms), "", f"![curves]({name}.png)", ""]
    return "\n".join(lines)


def _bracket(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]"


def _figure(path: pathlib.Path, task: studies.Task, curves: dict[str, list[dict[str, list[float]]]]) -> None:
    """One panel for each way of answering: mean over seeds, and their range as a band."""
    figure, panels = plt.subplots(1, len(task.modes), figsize=(5 * len(task.modes), 3.6), sharey=True, squeeze=False)
    for panel, mode in zip(panels[0], task.modes, strict=True):
        for arm, found in curves.items():
            count = min(len(c[mode]) for c in found)
            tokens = np.mean([c["tokens"][:count] for c in found], axis=0)
            values = np.array([c[mode][:count] for c in found])
            (line,) = panel.plot(tokens, values.mean(axis=0), label=arm)
            panel.fill_between(tokens, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15)
        panel.set_title(mode.replace("_", "-"))
        panel.set_xlabel("generated tokens")
        panel.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    panels[0][0].set_ylabel("held-out accuracy")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
