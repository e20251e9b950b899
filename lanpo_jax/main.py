"""`python -m lanpo_jax.main --config=configs/X.py[:arg,...] --workdir=RUN [--config.a.b=value ...]`"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

from absl import app, flags, logging
from ml_collections import config_flags

SHARED = ("common", "objectives")  # files of configs/ that are no configurations
_CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, with arguments after a colon.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the run: metrics, checkpoints, rollouts. Resumes if it exists."
)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the other processes of this run (TPU pods, clusters).")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise SystemExit(f"Unexpected argument {argv[1]!r}; options start with --.")
    logging.set_verbosity(logging.WARNING)  # orbax tells every step of a save otherwise
    import jax

    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or pathlib.Path.home() / ".cache" / "lanpo_jax" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(cache))  # the second run of a config starts in seconds
    if _DISTRIBUTED.value:
        jax.distributed.initialize()

    from lanpo_jax import train

    asked = _stop_signals()
    try:
        train.run(_CONFIG.value, pathlib.Path(_WORKDIR.value), stop=lambda: bool(asked))
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        if os.environ.get("LANPO_TRACEBACK"):
            raise
        # What is wrong with the input is one sentence; LANPO_TRACEBACK=1 shows where it was noticed.
        raise SystemExit(f"Error: {error}") from None


def _stop_signals() -> list[int]:
    """SIGTERM and the first Ctrl-C let the step end and the run be saved; the list fills when one comes."""
    asked: list[int] = []

    def note(number: int, frame) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        print("Ending after this step, then saving (Ctrl-C again: at once).", flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return asked


def parse(argv: list[str]) -> list[str]:
    """absl's flag parsing, its errors in one sentence."""
    for argument in argv[1:]:
        path = argument.removeprefix("--config=").partition(":")[0]
        if path != argument.partition(":")[0] and not os.path.exists(path):
            known = (
                ", ".join(sorted(str(p) for p in pathlib.Path("configs").glob("*.py") if p.stem not in SHARED))
                or "none in this folder"
            )
            raise SystemExit(f"Error: There is no configuration file {path}; there are: {known}.")
    try:
        rest = flags.FLAGS(argv)
    except Exception as error:  # a config file is Python: anything can come out of it
        raise SystemExit(f"Error: {_sentence(error)}") from None
    for flag in ("config", "workdir"):
        if flags.FLAGS[flag].value is None:
            raise SystemExit(f"Error: --{flag} is missing; try --config=configs/default.py --workdir=runs/first.")
    return rest


def _sentence(error: Exception) -> str:
    """What an error of flag or config parsing says, without the traceback that config_flags puts into it."""
    text = str(error.args[0] if error.args else error)
    if "Traceback" in text:
        return text.strip().splitlines()[-1].partition(": ")[2]
    text = " ".join(text.replace("\\n", " ").replace("\\'", "'").split()).replace("'", "", 2)
    return f"No configuration key: {text}" if isinstance(error, KeyError | AttributeError) else text


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # config files import configs.common
    app.run(main, flags_parser=parse)
