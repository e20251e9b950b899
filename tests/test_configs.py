"""Every configuration loads, and every key of it is read somewhere."""

import importlib
import pathlib
import re

import pytest

from configs import common, objectives
from lanpo_jax import main
from lanpo_jax.objectives import objective as objective_lib

ROOT = pathlib.Path(__file__).parent.parent
NAMES = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem not in (*main.SHARED, "__init__"))


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


def test_every_objective_by_one_word():
    for algo in objectives.OBJECTIVES:
        config = common.qwen(f"algo={algo}", {}, tokens=100)
        assert config.objective.to_dict() == objectives.preset(algo, 100)
        objective_lib.build(config.objective.to_dict())
    assert "overlong(limit=100, buffer=20)" in common.qwen("algo=dapo", {}, tokens=100).reward.functions[1]


def test_every_key_is_read():
    source = (ROOT / "lanpo_jax" / "train.py").read_text()
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
