"""Errors of the machine in one sentence, with what may help."""

import errno

import jax
import pytest

from lanpo_jax import cli, train


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("x is 3; use 4."), "Error: x is 3; use 4."),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffer 1:\nBuffer 2:"),
            "too little memory .*9 bytes.*; lower rollout.rows",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/x"),
            "disk is full .*runs/x.*goes on from the last save",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), "Permission denied: 'runs/x'"),
    ],
)
def test_one_sentence(error, words, monkeypatch):
    with pytest.raises(SystemExit, match=words) as found, cli.one_sentence():
        raise error
    assert "\n" not in str(found.value)
    monkeypatch.setenv("LANPO_TRACEBACK", "1")
    with pytest.raises(type(error)), cli.one_sentence():
        raise error


def test_other_errors_keep_their_traceback():
    with pytest.raises(TypeError), cli.one_sentence():
        raise TypeError("a fault of ours")


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be written to .*; choose another"):
        train._prepare_folder(tmp_path / "file" / "run")
