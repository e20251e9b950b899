"""The studies' arms are configurations that exist, and their tables say what the runs' files say."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest

from lanpo_jax import protocols, spec
from lanpo_jax.experience import guide

HOME = pathlib.Path(__file__).parent.parent / "experiments"


@pytest.fixture(scope="module")
def experiments():
    """The modules of experiments/, which is a folder of scripts and no package."""
    pytest.importorskip("matplotlib")
    found = {}
    sys.path.insert(0, str(HOME))
    try:
        for name in ("studies", "summary", "study"):
            found[name] = importlib.import_module(name)
    finally:
        sys.path.remove(str(HOME))
    return found


def test_every_arm_of_every_study_is_a_configuration(experiments):
    studies, study = experiments["studies"], experiments["study"]
    for study_name, tasks in studies.STUDIES.items():
        for task_name, arms in tasks.items():
            assert not set(arms) & set(studies.ALWAYS), study_name
            task = studies.TASKS[task_name]
            for arm in (*studies.ALWAYS, *arms):
                changes = study.changes(task, studies.ARMS[arm])
                episode = spec.resolve(changes["rollout.episode"], protocols.EPISODES)
                guide.check(episode.keywords["modes"], episode.keywords.get("lesson", "principle"))
                _set_all(task.config, {**task.overrides, **changes})


def _set_all(path, changes):
    module = importlib.util.spec_from_file_location("config_of_a_task", path)
    config = importlib.util.module_from_spec(module)
    module.loader.exec_module(config)
    flat = config.get_config()
    for key, value in changes.items():
        old = _get(flat, key) if not key.startswith("data.eval") else value
        assert isinstance(value, type(old)) or isinstance(old, float), (key, old, value)


def _get(config, key):
    for part in key.split("."):
        config = config[part]
    return config


def _final(path, right):
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [
        {"mode": mode, "guided": 0.5, "problems": [{"correct": row} for row in rows]} for mode, rows in right.items()
    ]
    path.write_text(json.dumps({"results": results}))


def test_differences_are_paired_by_seed_and_problem(experiments, tmp_path):
    summary = experiments["summary"]
    rng = np.random.default_rng(0)
    finals, shares = {}, {}
    for arm, chance in {"grpo": 0.3, "both": 0.6}.items():
        rows = rng.random((3, 40, 8)) < chance
        shares[arm] = rows.mean(-1)
        for seed in range(3):
            _final(tmp_path / arm / f"{seed}.json", {"zero_shot": rows[seed].tolist()})
        finals[arm] = [json.loads((tmp_path / arm / f"{s}.json").read_text()) for s in range(3)]
    row = summary.row("both", finals, "zero_shot")
    differences = (shares["both"] - shares["grpo"]).reshape(-1)
    half = 1.96 * differences.std(ddof=1) / np.sqrt(120)
    assert row["over_grpo"] == pytest.approx(differences.mean())
    assert row["over_problems"] == pytest.approx([differences.mean() - half, differences.mean() + half], abs=1e-4)
    means = (shares["both"] - shares["grpo"]).mean(1)
    half = 4.302653 * means.std(ddof=1) / np.sqrt(3)  # t of 2 degrees of freedom
    assert row["over_seeds"] == pytest.approx([means.mean() - half, means.mean() + half], abs=1e-5)
    assert row["seeds"] == pytest.approx(shares["both"].mean(1)) and row["guided"] == 0.5
    same = summary.row("grpo", finals, "zero_shot")
    assert same["over_grpo"] == 0 and same["over_problems"] == [0, 0]


def test_page_and_figure_from_the_files_of_runs(experiments, tmp_path):
    studies, summary = experiments["studies"], experiments["summary"]
    task = studies.TASKS["rules"]
    arms = ("untrained", "grpo", "inter")
    for seed in range(2):
        for arm in (*arms, "start"):
            folder = tmp_path / "runs" / arm / f"seed{seed}"
            _final(folder / "final.json", {m: [[True, False]] * 5 for m in task.modes})
            (folder / "done.json").write_text('{"seconds": 60}')
            lines = [
                {
                    "progress/tokens": t,
                    "val/rules/mean@4": 0.1,
                    "val/rules/pool/mean@4": 0.2,
                    "val/rules/pool/gain": 0.1,
                }
                for t in (None, 500, 1000)
            ]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"reward/mean": 1.0}])))
    summary.write(tmp_path / "out" / "mixture-rules", "COMMAND", task, arms, tmp_path / "runs", range(2))
    page = (tmp_path / "out" / "mixture-rules.md").read_text()
    assert "COMMAND" in page and "8 minutes" in page and "| inter | pool | 0.500 | 0.500 0.500 | +0.000 |" in page
    found = json.loads((tmp_path / "out" / "mixture-rules.json").read_text())
    assert found["tokens"] == {arm: [1000, 1000] for arm in arms} and len(found["rows"]) == 6
    assert (tmp_path / "out" / "mixture-rules.png").stat().st_size > 10_000
