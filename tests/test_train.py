"""The loop on a very small run: resumed equals uninterrupted, one program each, all metrics, clear errors."""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import default, tiny
from lanpo_jax import checkpoint, learner, metrics, sharding, train
from lanpo_jax.models import qwen
from lanpo_jax.sampling import sampler

ROOT = pathlib.Path(__file__).parent.parent


def small(**changes):
    c = tiny.get_config("")
    c.steps, c.warmup.steps, c.warmup.rows = 4, 6, 16
    c.rollout.prompts, c.rollout.group, c.rollout.rows = 4, 4, 16
    c.rollout.episode = "lanpo(modes={'plain': 0.5, 'intra': 0.5}, min_pool=1, attempt_tokens=48, principle_tokens=24)"
    c.data.train = ("addition(digits=1, count=40, part='train')",)
    c.data.eval.addition = "addition(digits=1, count=6, part='eval')"
    c.eval.every, c.eval.samples, c.checkpoint.every = 2, 2, 1
    c.optimizer.warmup, c.optimizer.rate = 1, 1e-2
    c.mesh.fsdp = 1
    for path, value in changes.items():
        section, key = path.split("__")
        c[section][key] = value
    return c


@pytest.fixture(autouse=True)
def one_device(monkeypatch, mesh):
    """The loop asks for a mesh over all devices; here it gets one device, unless a test names sizes of its own."""
    real = sharding.make_mesh
    given = lambda **sizes: real(**sizes) if sizes.get("fsdp") == 8 else mesh  # noqa: E731
    monkeypatch.setattr(train.sharding, "make_mesh", given)


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def final(workdir):
    """Everything of the last checkpoint, arrays as numpy."""
    manager = checkpoint.ocp.CheckpointManager((workdir / "checkpoints").absolute())
    parts = checkpoint.ocp.args.Composite(
        state=checkpoint.ocp.args.StandardRestore(), side=checkpoint.ocp.args.JsonRestore()
    )
    found = manager.restore(manager.latest_step(), args=parts)
    manager.close()
    return jax.tree.map(np.asarray, found.state), found.side


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, mesh):
    workdir = tmp_path_factory.mktemp("whole")
    traces = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.sharding, "make_mesh", lambda **sizes: mesh)
        step = learner.Learner._step

        def counted(self, *args):
            traces.append(self.objective)
            return step(self, *args)

        patch.setattr(learner.Learner, "_step", counted)
        before = sampler.sample._cache_size()
        train.run(small(), workdir)
        programs = sampler.sample._cache_size() - before
    return workdir, traces, programs


def test_few_programs(uninterrupted):
    """The update is traced once for the warm-up and once for RL, whatever steps, modes and lengths came."""
    _, traces, programs = uninterrupted
    assert len(traces) == 2
    assert programs <= 8


def test_resumed_equals_uninterrupted(uninterrupted, tmp_path, monkeypatch):
    """Killed in the middle of step 3 and started again: parameters, moments, pool and metrics are the same bits."""
    write = metrics.write_rollouts

    def dies(workdir, step, *args, **options):
        if step == 3:
            raise KeyboardInterrupt
        write(workdir, step, *args, **options)

    monkeypatch.setattr(metrics, "write_rollouts", dies)
    with pytest.raises(KeyboardInterrupt):
        train.run(small(), tmp_path)
    monkeypatch.setattr(metrics, "write_rollouts", write)
    train.run(small(), tmp_path)

    whole, whole_side = final(uninterrupted[0])
    resumed, resumed_side = final(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    assert whole_side == resumed_side
    for a, b in zip(rows(uninterrupted[0]), rows(tmp_path), strict=True):
        timed = {k for k in a if k.startswith(("time/", "perf/tokens")) or k == "checker/ms"}
        cached = {"checker/cache_hits"}  # the cache of verdicts is the process's own
        assert {k: v for k, v in a.items() if k not in timed | cached} == {
            k: v for k, v in b.items() if k not in timed | cached
        }


def test_a_stopped_run_is_saved_and_goes_on(uninterrupted, tmp_path, capsys):
    answers = iter([False, False, True])
    c = small()
    c.checkpoint.every = 0
    train.run(c, tmp_path, stop=lambda: next(answers))
    assert "Stopped after step 3 of 4 and saved" in capsys.readouterr().out
    assert final(tmp_path)[1]["counters"]["samples"] == 48
    train.run(c, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, final(uninterrupted[0])[0], final(tmp_path)[0])


def test_the_time_budget_ends_a_run(tmp_path, capsys):
    train.run(small(checkpoint__max_hours=1e-9), tmp_path)
    assert "Stopped after step 1 of 4" in capsys.readouterr().out


def test_every_step_has_the_same_keys_and_what_users_search_for(uninterrupted):
    found = rows(uninterrupted[0])
    assert [r["progress/step"] for r in found] == [0, 1, 2, 3, 4]
    steps = [{k for k in r if not k.startswith(("val/", "time/"))} for r in found[1:]]
    assert all(keys == steps[0] for keys in steps)
    for key in [
        "reward/mean",
        "reward/std",
        "rewards/verify/mean",
        "frac_reward_zero_std",
        "advantages/mean",
        "response_length/mean",
        "response_length/terminated_mean",
        "truncated_ratio",
        "actor/pg_loss",
        "actor/ppo_kl",
        "actor/pg_clipfrac",
        "actor/grad_norm",
        "actor/lr",
        "actor/entropy",
        "mismatch/logp_abs_diff_mean",
        "mismatch/kl",
        "checker/errors",
        "checker/unparseable_pred",
        "lanpo/share_plain",
        "lanpo/share_intra",
        "lanpo/fallback",
        "lanpo/pool_size",
        "progress/samples",
        "progress/tokens",
        "perf/tokens_per_s",
    ]:
        assert key in steps[0], key
    for key in ("mean@2", "pass@2", "ci95_low", "ci95_high", "n"):
        assert all(f"val/addition/{key}" in found[i] for i in (0, 2, 4))
    assert "val/addition/gain_low" in found[4]


def test_on_policy_ratio_is_one_and_the_sampler_agrees_with_the_trainer(uninterrupted):
    for row in rows(uninterrupted[0])[1:]:
        assert row["actor/ratio"] == 1.0
        assert row["actor/pg_clipfrac"] == 0.0
        assert row["mismatch/logp_abs_diff_max"] < 1e-4
        assert row["actor/skipped"] == 0.0


def test_tensorboard_and_rollouts_are_written(uninterrupted):
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(uninterrupted[0] / "tensorboard"))
    events.Reload()
    logged = [r["reward/mean"] for r in rows(uninterrupted[0])[1:]]
    np.testing.assert_allclose([e.value for e in events.Scalars("reward/mean")], logged, rtol=1e-6)
    lines = (uninterrupted[0] / "rollouts" / "step_000004.jsonl").read_text().splitlines()
    assert len(lines) == 16
    assert {"prompt", "completion", "reward", "reason", "mode", "advantage"} <= set(json.loads(lines[0]))


def test_rerun_of_a_finished_run_changes_nothing(uninterrupted):
    before = final(uninterrupted[0]), rows(uninterrupted[0])
    train.run(small(), uninterrupted[0])
    after = final(uninterrupted[0]), rows(uninterrupted[0])
    jax.tree.map(np.testing.assert_array_equal, before[0][0], after[0][0])
    assert before[1] == after[1]


def test_several_updates_with_reference_and_filter(tmp_path):
    """Old and reference log-probabilities scored, groups of equal rewards dropped, no feedback."""
    c = small(rollout__episode="direct", objective__kl="k3(beta=0.1)", objective__filter="drop_equal")
    c.learner.mini_batches, c.steps = 2, 2
    train.run(c, tmp_path)
    found = rows(tmp_path)[1:]
    assert all(r["actor/kl_ref"] is None or r["actor/kl_ref"] >= 0 for r in found)
    assert all(0 <= r["filter/kept"] <= 1 for r in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__path": "nowhere"}, "no model 'nowhere'"),
        ({"rollout__group": 1}, "rollout.group"),
        ({"rollout__episode": "lampo"}, "did you mean 'lanpo'"),
        ({"objective__surrogate": "clip(lo=1)"}, "did you mean 'low'"),
        ({"data__train": ("file(path='missing.jsonl')",)}, "missing.jsonl"),
        ({"data__prompt_limit": 2}, "No training problem is left"),
        (
            {"model__hf": tiny.get_config().model.hf.replace("}", ', "max_position_embeddings": 99}')},
            "knows 99 positions",
        ),
        ({"data__overlong": "cut"}, "drop, truncate, error"),
        ({"learner__row_tokens": 20}, "row_tokens=20 cannot hold"),
        ({"reward__functions": ("lanpo_jax.rewards.math.verifi",)}, "verifi"),
    ],
)
def test_bad_configuration_is_one_sentence(changes, words, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as found:
        train.run(small(**changes), tmp_path)
    assert "\n" not in str(found.value)


def test_other_problems_are_refused_unless_allowed(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0], tmp_path / "run")
    c = small(data__train=("addition(digits=1, count=30, part='train')",))
    with pytest.raises(ValueError, match="training problems are not those"):
        train.run(c, tmp_path / "run")
    c.checkpoint.new_problems = True
    train.run(c, tmp_path / "run")


def test_refills_make_up_for_dropped_groups(tmp_path):
    c = small(rollout__episode="direct", objective__filter="drop_equal")
    c.steps, c.rollout.refills = 1, 2
    train.run(c, tmp_path)
    row = rows(tmp_path)[1]
    assert 1 <= row["filter/batches"] <= 3
    assert row["progress/samples"] == 16 * row["filter/batches"]
    dropped = row["filter/dropped_all_right"] + row["filter/dropped_all_wrong"]
    assert row["filter/kept"] * 4 * row["filter/batches"] + dropped == 4 * row["filter/batches"]


def test_a_model_of_another_size_is_not_resumed(uninterrupted):
    c = small()
    c.model.hf = c.model.hf.replace('"hidden_size": 64', '"hidden_size": 32')
    with pytest.raises(ValueError, match="does not match this configuration"):
        train.run(c, uninterrupted[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=configs/tiny.py", "--workdir=x", "--config.optimizer.rte=3"], 'Did you mean "rate"'),
        (["--config=configs/tiny.py", "--workdir=x", "--config.steps=many"], "--config.steps=many"),
        (["--config=configs/tiny.py:algo=gpro", "--workdir=x"], "algo='gpro' is not known; there are: reinforce"),
        (["--config=configs/none.py", "--workdir=x"], "no configuration file configs/none.py; there are: configs/def"),
        (["--config=configs/tiny.py"], "--workdir is missing"),
    ],
)
def test_bad_command_line_is_one_sentence(arguments, words):
    done = subprocess.run(
        [sys.executable, "-m", "lanpo_jax.main", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


PUBLISHED = {"qwen7b": 7.62, "qwen14b": 14.77, "qwen0_5b": 0.494, "qwen3_0_6b": 0.596, "qwen3_1_7b": 1.72}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_build_their_abstract_state(name):
    """Parameters and optimizer moments of the published size, split over eight devices, nothing allocated."""
    c = importlib.import_module(f"configs.{name}").get_config("")
    big = sharding.make_mesh(fsdp=8)
    network = qwen.ModelConfig.from_hf(json.loads(c.model.hf), dtype=c.model.dtype, scan_layers=True, remat="full")
    objective = train.objective_lib.build(c.objective.to_dict())
    made = train._learner(c, network, big, objective, lambda step: 1e-6, c.rollout.prompts * c.rollout.group)
    billions = sum(np.prod(p.shape) for p in jax.tree.leaves(made.abstract.params)) / 1e9
    assert abs(billions / PUBLISHED[name] - 1) < 0.005
    leaves = jax.tree.leaves(made.abstract)
    whole = sum(x.size * x.dtype.itemsize for x in leaves)
    here = sum(np.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)
    assert 0.99 < whole / (12e9 * billions) < 1.01  # float32 weights and two moments
    assert here < whole / 7.9  # an eighth of it on each device


def test_the_default_is_the_embedded_model():
    assert default.get_config("").model.path == "smollm2-135m-instruct"
