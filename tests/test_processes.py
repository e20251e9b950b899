"""Several local processes over gloo make the mesh of a cluster: what they train is what one process trains."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SETTINGS = {
    "steps": 2, "warmup.steps": 4, "warmup.rows": 16, "rollout.prompts": 4, "rollout.group": 4, "rollout.rows": 16,
    "eval.limit": 4, "eval.samples": 2, "eval.every": 1, "checkpoint.every": 1,
    "rollout.episode": "lanpo(modes={'plain': .5, 'intra': .5}, min_pool=1, attempt_tokens=48, principle_tokens=48, "
                       "lesson='raw')",
}  # fmt: skip


def start(workdir, number=0, count=1, port=0, **changes):
    """One process of a run, with as many devices that the run has two in all."""
    settings = [f"--config.{key}={value}" for key, value in {**SETTINGS, **changes}.items()]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={2 // count}"}
    command = [sys.executable, "-m", "lanpo_jax.main", "--config=configs/tiny.py", f"--workdir={workdir}", *settings]
    if count > 1:
        env |= {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(count)}
        env["JAX_PROCESS_ID"] = str(number)
        command.append("--distributed")
    log = open(f"{workdir}.{number}.log", "w")  # noqa: SIM115
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def rows(workdir):
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/", "checker/"))} for row in found]


def said(workdir, number=0):
    return pathlib.Path(f"{workdir}.{number}.log").read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process with two devices."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    assert start(workdir).wait(timeout=600) == 0, said(workdir)
    return workdir


def test_two_processes_train_what_one_trains(alone, tmp_path):
    """Every metric of every step is the same number, every rollout the same text; one process talks and writes."""
    port = free_port()
    both = [start(tmp_path / "run", number, 2, port) for number in range(2)]
    assert [p.wait(timeout=600) for p in both] == [0, 0], said(tmp_path / "run") + said(tmp_path / "run", 1)
    assert rows(tmp_path / "run") == rows(alone)
    for path in sorted((alone / "rollouts").iterdir()):
        assert (tmp_path / "run" / "rollouts" / path.name).read_text() == path.read_text()
    assert "step 1/2" in said(tmp_path / "run") and "step" not in said(tmp_path / "run", 1)


def test_one_process_goes_on_where_two_ended(alone, tmp_path):
    """A checkpoint of two processes is resumed by one, which makes the steps that two would have made."""
    port = free_port()
    both = [start(tmp_path / "run", number, 2, port, steps=1) for number in range(2)]
    assert [p.wait(timeout=600) for p in both] == [0, 0], said(tmp_path / "run")
    assert start(tmp_path / "run").wait(timeout=600) == 0, said(tmp_path / "run")
    last, expected = rows(tmp_path / "run")[-1], rows(alone)[-1]
    assert last["actor/loss"] == expected["actor/loss"] and last["progress/tokens"] == expected["progress/tokens"]


@pytest.mark.parametrize(
    ("name", "value"), [("JAX_NUM_PROCESSES", "two"), ("JAX_PROCESS_ID", ""), ("JAX_COORDINATOR_ADDRESS", "")]
)
def test_half_a_description_of_the_processes_is_refused(name, value, monkeypatch):
    from lanpo_jax import cli

    given = {"JAX_COORDINATOR_ADDRESS": "localhost:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"} | {name: value}
    for key, text in given.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(SystemExit, match="all of JAX_COORDINATOR_ADDRESS"):
        cli.prepare(distributed=True)
