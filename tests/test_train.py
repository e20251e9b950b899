"""The loop on a very small run: resumed equals uninterrupted, one program each, all metrics, clear errors."""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import ml_collections
import numpy as np
import pytest

from configs import default, tiny
from lanpo_jax import checkpoint, data, learner, metrics, scaffolds, session, sharding, train
from lanpo_jax.models import qwen
from lanpo_jax.sampling import programs

ROOT = pathlib.Path(__file__).parent.parent


def small(**changes):
    c = tiny.get_config("")
    c.steps, c.warmup.steps, c.warmup.rows = 4, 6, 16
    c.rollout.prompts, c.rollout.group, c.rollout.rows = 4, 4, 16
    c.rollout.episode = "lanpo(modes={'plain': 0.5, 'intra': 0.5}, min_pool=1, attempt_tokens=48, principle_tokens=24)"
    c.data.train = ("addition(digits=1, count=40, part='train')",)
    c.data.eval.addition = "addition(digits=1, count=6, part='eval')"
    c.eval.every, c.eval.samples, c.checkpoint.every = 2, 2, 1
    c.eval.modes = ("zero_shot", "self_correct", "pool")
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
        before = programs.decode._cache_size()
        train.run(small(), workdir)
        compiled = programs.decode._cache_size() - before
    return workdir, traces, compiled


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
        timed = {k for k in a if k.startswith(("time/", "perf/")) or k == "checker/ms"} - {"perf/padding_share"}
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
        "progress/epoch",
        "perf/tokens_per_s",
        "perf/mfu",
        "frac_reward_zero_std/all_right",
        "frac_reward_zero_std/all_wrong",
        "reward/unknown",
        "aborted_ratio",
        *(f"filter/{n}" for n in ("kept", "dropped_all_right", "dropped_all_wrong", "batches")),
        *(f"advantages/{n}" for n in ("max", "min")),
        *(f"response_length/{n}" for n in ("max", "min")),
        *(f"actor/pg_clipfrac_{n}" for n in ("high", "low", "lower")),
        *(f"mismatch/{n}" for n in ("logp_abs_diff_max", "k3", "ppl_ratio", "chi2")),
        *(f"checker/{n}" for n in ("timeouts", "unparseable_gold")),
        *(f"lanpo/{n}" for n in ("share_inter", "reward_plain", "reward_intra", "reward_inter")),
        *(f"lanpo/{n}" for n in ("retrieval_similarity", "principle_tokens", "principle_rejected")),
    ]:
        assert key in steps[0], key
    for phase in ("rollout", "reward", "logprob", "update", "save", "step"):
        assert all(r[f"time/{phase}"] >= 0 for r in found[1:]), phase
    assert found[4]["time/eval"] > 0
    for mode in ("", "/self_correct", "/pool"):
        for key in ("mean@2", "pass@2", "maj@2", "maj@2_low", "ci95_low", "ci95_high", "n", "tokens"):
            assert all(f"val/addition{mode}/{key}" in found[i] for i in (0, 2, 4))
        assert f"val/addition{mode}/gain_low" in found[4]
        assert all(f"val/addition{mode}/over_zero_shot" in found[4] for mode in ("/self_correct", "/pool"))
    assert all(r["val/addition/self_correct/tokens"] >= r["val/addition/tokens"] for r in (found[0], found[4]))


def test_evaluation_neither_counts_as_training_nor_feeds_the_pool(uninterrupted):
    found, (_, side) = rows(uninterrupted[0]), final(uninterrupted[0])
    spent = sum(r["response_length/mean"] * 16 + r["lanpo/tokens_principles"] for r in found[1:])
    assert round(spent) == side["counters"]["tokens"]
    assert set(side["baseline"]) == {"addition", "addition/self_correct", "addition/pool"}
    held_out = {p.text for p in data.load("addition(digits=1, count=6, part='eval')")}
    assert side["pool"]["entries"]
    assert not held_out & {e["text"] for e in side["pool"]["entries"]}


def test_a_token_budget_ends_a_run(uninterrupted, tmp_path, capsys):
    """After the step that reaches it, with all that the end of a run brings; then there is no more to do."""
    spent = [r["progress/tokens"] for r in rows(uninterrupted[0])[1:]]
    c = small()
    c.eval.every, c.checkpoint.every, c.max_tokens = 0, 0, int(spent[1]) + 1
    train.run(c, tmp_path)
    told = capsys.readouterr().out
    assert f"Ended after step 3: {spent[2]:.0f} generated tokens, max_tokens is {spent[1] + 1:.0f}." in told
    assert "change of addition/pool since the start" in told
    found = rows(tmp_path)
    assert [r["progress/step"] for r in found] == [0, 1, 2, 3]
    assert "val/addition/gain" in found[-1]
    assert final(tmp_path)[1]["counters"]["tokens"] == spent[2]
    train.run(c, tmp_path)
    assert f"This run has ended: step 3 of 4, {spent[2]:.0f} generated tokens." in capsys.readouterr().out
    assert rows(tmp_path) == found
    c.max_tokens = 0
    train.run(c, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, final(uninterrupted[0])[0], final(tmp_path)[0])


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


def test_a_mixture_inside_groups_stripped_of_its_guidance_trains_with_one_program(tmp_path, monkeypatch):
    episode = "lanpo(modes={'plain': 0.5, 'intra': 0.5}, attempt_tokens=48, principle_tokens=24, "
    traces, step = [], learner.Learner._step
    monkeypatch.setattr(learner.Learner, "_step", lambda self, *args: traces.append(1) or step(self, *args))
    c = small(rollout__episode=episode + "mix_level='rollout', strip_guidance=True)")
    c.data.train = ("addition(digits=1, count=4, part='train')",)  # every problem at every step
    c.eval.every, c.eval.modes, c.steps = 0, ("zero_shot",), 4
    train.run(c, tmp_path)
    found = rows(tmp_path)[1:]
    assert len(traces) == 2  # the warm-up's and this one's
    assert all(r["progress/samples"] == 16 * n for n, r in enumerate(found, 1))
    assert [0 < r["lanpo/share_intra"] < 1 for r in found] == [False, True, True, True]
    assert [r["actor/ratio_max"] > 1.0 for r in found] == [False, True, True, True]
    lines = [json.loads(x) for x in (tmp_path / "rollouts" / "step_000004.jsonl").read_text().splitlines()]
    guided = [x for x in lines if x["mode"] == "intra"]
    assert len(lines) == 16 and guided and all("again" in x["prompt"] for x in guided)


def scaffolded(episode, share=0.2, **changes):
    """A model that can do nothing, and a reward by luck: groups of every kind come up."""
    c = small(rollout__episode=episode, **changes)
    c.reward.functions = (f"tests.fakes.lucky(share={share})",)
    c.warmup.steps, c.eval.every, c.eval.modes = 2, 0, ("zero_shot",)
    c.objective.advantage = "group_center"
    return c


def counted(monkeypatch):
    """Every trace of the update's program."""
    traces, step = [], learner.Learner._step
    monkeypatch.setattr(learner.Learner, "_step", lambda self, *args: traces.append(1) or step(self, *args))
    return traces


def kept_rollouts(workdir, step):
    return [json.loads(x) for x in (workdir / "rollouts" / f"step_{step:06}.jsonl").read_text().splitlines()]


def test_hints_rescue_failed_groups_with_one_program(tmp_path, monkeypatch):
    problems = data.load("addition(digits=1, count=8, part='train')")
    found = [{"problem": p.text, "answer": p.answer, "solution": "add 1 and 2 and 3 and 4, is 10"} for p in problems]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, found)))
    traces = counted(monkeypatch)
    c = scaffolded("scaffold(warmup=1, parts=2)", share=0.15)
    c.data.train = (f"file(path='{tmp_path / 'train.jsonl'}')",)
    train.run(c, tmp_path / "run")
    found = rows(tmp_path / "run")[1:]
    assert len(traces) == 2
    assert found[0]["scaffold/tried"] == 0 and sum(r["scaffold/rescued"] for r in found) > 0
    assert all(r["progress/samples"] == 16 * n for n, r in enumerate(found, 1))
    for step, row in enumerate(found, 1):
        hinted = [x for x in kept_rollouts(tmp_path / "run", step) if x["mode"] == "hint"]
        assert len(hinted) == row["scaffold/rescued"]
        assert all(x["advantage"] == pytest.approx(0.75) and "add" in x["prompt"] for x in hinted)


def test_rewritten_problems_are_trained_on_beside_the_originals(tmp_path, monkeypatch):
    traces = counted(monkeypatch)
    c = scaffolded("restructure(share=0.5, medium=1.0, rewrite_tokens=16, max_overlap=1.0)")
    c.learner.row_tokens = 0  # one completion a row: the batch has no room to spare
    monkeypatch.setattr(scaffolds, "rewritten", lambda a, p, *rest, **options: (f"{p.text} {a.text[:8]} {p.text}", ""))
    train.run(c, tmp_path)
    found = rows(tmp_path)[1:]
    assert len(traces) == 2
    assert [r["progress/samples"] for r in found] == [24, 48, 72, 96]  # four problems and two rewritten ones
    lines = kept_rollouts(tmp_path, 4)
    assert len(lines) == 24 and {x["mode"] for x in lines[16:]} <= {"simpler", "variant"}


@pytest.mark.parametrize("decoupled", [False, True])
def test_replayed_groups_are_corrected_saved_and_restored(decoupled, tmp_path, monkeypatch):
    traces = counted(monkeypatch)
    weights = "token_is(cap=2.0)" if decoupled else "none"
    c = scaffolded(f"replay(size=3, age=3, decoupled={decoupled})", share=0.1, objective__weights=weights)
    c.steps = 6
    train.run(c, tmp_path / "whole")
    found = rows(tmp_path / "whole")[1:]
    assert len(traces) == 2
    replayed = [r["replay/replaced"] > 0 for r in found]
    assert not replayed[0] and any(replayed)
    assert all(r["progress/samples"] == 16 * n for n, r in enumerate(found, 1))  # replayed ones are not new
    corrected = "is/max" if decoupled else "actor/ratio_max"
    assert [r[corrected] > 1.001 for r in found] == replayed
    for step, row in enumerate(found, 1):
        lines = kept_rollouts(tmp_path / "whole", step)
        assert len(lines) == 16 and sum(x["mode"] == "replay" for x in lines) == 4 * row["replay/replaced"]

    answers = iter([False, False, False, True])
    train.run(c, tmp_path / "parts", stop=lambda: next(answers))
    train.run(c, tmp_path / "parts")
    (one, side), (two, other) = final(tmp_path / "whole"), final(tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert side["replay"]["stored"] and side["replay"] == other["replay"] and side == other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__path": "nowhere"}, "no model 'nowhere'"),
        ({"rollout__group": 1}, "rollout.group"),
        ({"objective__advantage": "mvar(bundle=5)"}, "do not divide into bundles of 5; change rollout.prompts"),
        ({"rollout__episode": "lampo"}, "did you mean 'lanpo'"),
        ({"rollout__episode": "lanpo(strip_guidance=True)", "objective__ratio": "none"}, "no importance weight"),
        ({"rollout__episode": "replay(decoupled=True)"}, "token_is"),
        ({"rollout__episode": "scaffold", "objective__advantage": "mvar(bundle=4)"}, "another rollout.episode"),
        ({"objective__surrogate": "clip(lo=1)"}, "did you mean 'low'"),
        ({"data__train": ("file(path='missing.jsonl')",)}, "missing.jsonl"),
        ({"data__prompt_limit": 2}, "No training problem is left"),
        (
            {"model__hf": tiny.get_config().model.hf.replace("}", ', "max_position_embeddings": 99}')},
            "knows 99 positions",
        ),
        ({"data__overlong": "cut"}, "drop, truncate, error"),
        ({"learner__row_tokens": 20}, "row_tokens=20 cannot hold"),
        ({"eval__modes": ("pol",)}, "did you mean 'pool'"),
        ({"reward__functions": ("lanpo_jax.rewards.math.verifi",)}, "verifi"),
    ],
)
def test_bad_configuration_is_one_sentence(changes, words, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as found:
        train.run(small(**changes), tmp_path)
    assert "\n" not in str(found.value)


def test_what_makes_another_run_is_refused_unless_allowed(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0], tmp_path / "run")
    c = small(data__train=("addition(digits=1, count=30, part='train')",))
    c.seed = 5
    with pytest.raises(ValueError, match="another seed, set of training problems; use a fresh --workdir"):
        train.run(c, tmp_path / "run")
    c.checkpoint.accept_changes = True
    train.run(c, tmp_path / "run")


def test_going_on_from_another_run(uninterrupted, tmp_path, capsys):
    """`resume` continues a copy of the state in a folder of its own; the other run is left as it is."""
    before = {p: p.stat().st_mtime_ns for p in uninterrupted[0].rglob("*")}
    c = small()
    c.resume, c.steps = str(uninterrupted[0]), 5
    train.run(c, tmp_path)
    assert f"Resumed from step 4 of {uninterrupted[0]}" in capsys.readouterr().out
    assert [row["progress/step"] for row in rows(tmp_path)] == [5]
    assert final(tmp_path)[1]["counters"]["batches"] == 5
    assert {p: p.stat().st_mtime_ns for p in uninterrupted[0].rglob("*")} == before
    c.steps = 6
    train.run(c, tmp_path)
    assert f"Resumed from step 5 of {tmp_path}" in capsys.readouterr().out, "its own checkpoint comes first"


def test_nothing_to_resume_is_one_sentence(tmp_path):
    c = small()
    c.resume = str(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*nowhere"):
        train.run(c, tmp_path / "run")


def test_steps_without_a_finite_gradient_end_the_run(tmp_path, monkeypatch):
    """A KL weight beyond float32 makes the loss nan: no update is taken, and after two such steps the run says so."""
    c = small(learner__max_unsound=2, rollout__episode="direct", objective__kl="k3(beta=1e39)")
    c.warmup.steps = 0
    with pytest.raises(RuntimeError, match=r"not finite in 2 steps in a row, 2 the last.*rollouts"):
        train.run(c, tmp_path)
    assert [row["actor/skipped"] for row in rows(tmp_path)[1:]] == [1.0, 1.0]
    assert len(list((tmp_path / "rollouts").iterdir())) == 2
    state, _ = final(tmp_path)
    assert int(state["train"].updates if hasattr(state["train"], "updates") else state["train"]["updates"]) == 0


def test_refills_make_up_for_dropped_groups(tmp_path):
    c = small(rollout__episode="direct", objective__filter="drop_equal")
    c.steps, c.rollout.refills = 1, 2
    train.run(c, tmp_path)
    row = rows(tmp_path)[1]
    assert 1 <= row["filter/batches"] <= 3
    assert row["progress/samples"] == 16 * row["filter/batches"]
    dropped = row["filter/dropped_all_right"] + row["filter/dropped_all_wrong"]
    assert row["filter/kept"] * 4 * row["filter/batches"] + dropped == 4 * row["filter/batches"]


def test_adapters_are_saved_resumed_and_read(tmp_path):
    """A stopped and resumed run of adapters equals one that was not; its policy is what both evaluated."""
    changes = {"lora__rank": 2, "objective__kl": "k3(beta=0.1)", "eval__modes": ("zero_shot",), "log__rollouts": 1}
    config = small(**changes)
    config.steps = 2
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.run(config, whole)
    train.run(config, parts, stop=lambda: True)
    train.run(config, parts)
    (state, _), (again, _) = final(whole), final(parts)
    jax.tree.map(np.testing.assert_array_equal, state, again)
    count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))  # noqa: E731
    assert count(state["train"]["params"]) < 0.2 * count(state["frozen"])
    assert rows(whole)[1]["actor/kl_ref"] == pytest.approx(0, abs=1e-6)
    c = ml_collections.FrozenConfigDict(config)
    system = session.start(c, whole, [], print)
    read = system.trained(checkpoint.Checkpoints(whole, None), 2)
    scale = system.lora.scale
    one = state["train"]["params"]["layers_0"]["q"]
    np.testing.assert_allclose(
        read["layers_0"]["q"], state["frozen"]["layers_0"]["q"] + scale * one["a"] @ one["b"], atol=1e-6
    )
    assert np.any(one["b"] != 0)
    np.testing.assert_array_equal(read["embed"], state["frozen"]["embed"])


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
