"""Every configuration loads, and every key of it is read somewhere."""

import importlib
import inspect
import pathlib
import re

import pytest

from configs import common, objectives, qwen7b
from lanpo_jax import cli, numerical, protocols, spec
from lanpo_jax.objectives import objective as objective_lib
from lanpo_jax.rewards import reward

ROOT = pathlib.Path(__file__).parent.parent
NAMES = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem not in (*cli.SHARED, "__init__"))


def leaves(config, path=""):
    for key, value in config.items():
        if hasattr(value, "items") and len(value) and path + key != "objective":
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key


@pytest.mark.parametrize("name", NAMES)
def test_loads_with_its_command_in_the_docstring(name):
    module = importlib.import_module(f"configs.{name}")
    config = module.get_config("")
    assert f"python -m lanpo_jax.main --config=configs/{name}.py" in module.__doc__
    assert set(leaves(config)) - {k for k in leaves(config) if k.startswith("data.eval")} == set(
        leaves(common.base())
    ) - {"data.eval"}, "configurations may set keys, not add them"


WORDS = [  # as a user writes them after algo=
    "reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "ctpo", "pnpo",
    "r2vpo", "opo", "riskpo", "progrpo", "entropy_top_20", "clip_cov", "kl_cov", "capo", "rover", "trpa", "ppo",
]  # fmt: skip


def test_the_presets_are_these():
    assert sorted(common.OBJECTIVES) == sorted(WORDS)
    assert common.OBJECTIVES is objectives.OBJECTIVES


@pytest.mark.parametrize("algo", [*WORDS, "entropy-top-20%", "dr-grpo"])
def test_every_objective_by_one_word(algo):
    """It builds the configuration of a 7B model, binds, fits its batch, and the loop has what it needs."""
    config = qwen7b.get_config(f"model=/none,data=train.jsonl,algo={algo}")
    assert config.objective.to_dict() == objectives.preset(algo, config.rollout.max_new_tokens)
    objective = objective_lib.build(config.objective.to_dict())
    objective_lib.check_sizes(objective, config.rollout.prompts, config.rollout.group)
    numerical.check(objective)
    reward.grader(dict(zip(config.reward.functions, config.reward.weights)))


def test_what_methods_publish_outside_of_the_loss():
    for algo in ("dapo", "entropy-top-20%"):
        functions = common.qwen(f"algo={algo}", {}, tokens=100).reward.functions
        assert functions[1] == "lanpo_jax.rewards.shaping.overlong(limit=100, buffer=20)"
    assert common.qwen("algo=riskpo", {}, prompts=32).rollout.prompts == 30
    assert common.qwen("algo=rover", {}).rollout.temperature == 0.6
    assert common.qwen("algo=grpo", {}).reward.weights == (1.0,)


@pytest.mark.parametrize("method", objectives.METHODS, ids=lambda m: m.__name__)
def test_each_preset_names_its_paper_and_what_is_published(method):
    text = inspect.getdoc(method)
    if method.__name__ == "pnpo":
        assert "no public paper" in text
    else:
        assert re.search(r"arXiv \d{4}\.\d{5}\b", text) or "Williams 1992" in text
    assert "ublished" in text or "Ours" in text


@pytest.mark.parametrize("name", [n for n in NAMES if hasattr(importlib.import_module(f"configs.{n}"), "get_config")])
@pytest.mark.parametrize("feedback", common.FEEDBACK)
def test_every_feedback_by_one_word(name, feedback):
    """It binds, and the default objective of the configuration can be trained with it."""
    config = importlib.import_module(f"configs.{name}").get_config(f"feedback={feedback}")
    episode = spec.resolve(config.rollout.episode, protocols.EPISODES)
    assert episode.func.__name__ == {"none": "direct"}.get(feedback, feedback)
    demands = protocols.demands(episode, config.rollout.prompts)
    objective = objective_lib.build(config.objective.to_dict())
    numerical.check(objective, mixed=demands.mixed, off_policy=demands.off_policy, corrected=demands.corrected)
    if feedback == "scaffold":
        assert episode.keywords["warmup"] == round(0.15 * config.steps) > 0
    if feedback == "lanpo" and name in ("default", "tiny", "rules"):
        assert "modes" in episode.keywords


def test_an_unknown_feedback_is_named():
    with pytest.raises(ValueError, match="feedback='hints' is not known; there are: lanpo, none, scaffold"):
        common.episode("hints", 100)


def test_every_key_is_read():
    source = "".join((ROOT / "lanpo_jax" / name).read_text() for name in ("train.py", "session.py"))
    unread = [key for key in leaves(common.base()) if not re.search(rf"\bc\.{re.escape(key)}\b", source)]
    assert not unread


def test_arguments():
    assert common.parse("algo=gspo,feedback=none", {"algo": "grpo", "feedback": "lanpo", "n": 3}) == {
        "algo": "gspo",
        "feedback": "none",
        "n": 3,
    }
    with pytest.raises(ValueError, match="'alog' is not known; there are: algo"):
        common.parse("alog=gspo", {"algo": "grpo"})
