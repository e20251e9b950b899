"""`python -m lanpo_jax.main --config=configs/X.py[:arg,...] --workdir=RUN [--config.a.b=value ...]`"""

from __future__ import annotations

import os
import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags

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

    try:
        train.run(_CONFIG.value, pathlib.Path(_WORKDIR.value))
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        if os.environ.get("LANPO_TRACEBACK"):
            raise
        # What is wrong with the input is one sentence; LANPO_TRACEBACK=1 shows where it was noticed.
        raise SystemExit(f"Error: {error}") from None


def parse(argv: list[str]) -> list[str]:
    """absl's flag parsing, its errors in one sentence."""
    try:
        rest = flags.FLAGS(argv)
    except (AttributeError, KeyError, TypeError, ValueError, flags.Error, FileNotFoundError) as error:
        text = " ".join(str(error.args[0] if error.args else error).split())
        raise SystemExit(f"Error: {text}") from None
    for flag in ("config", "workdir"):
        if flags.FLAGS[flag].value is None:
            raise SystemExit(f"Error: --{flag} is missing; try --config=configs/default.py --workdir=runs/first.")
    return rest


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # config files import configs.common
    app.run(main, flags_parser=parse)
