"""Command lines: flags with a configuration file among them, the process's set-up, every error one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags, logging
from ml_collections import config_flags

SHARED = ("common", "objectives")  # files of configs/ that are no configurations
HEARTBEAT = 30  # seconds of silence after which a process counts as dead, and the others end


def define_config(values: flags.FlagValues) -> None:
    """The flags --config and --workdir, as every command has them."""
    config_flags.DEFINE_config_file(
        "config", None, "A file of configs/, with arguments after a colon.", flag_values=values
    )
    flags.DEFINE_string("workdir", None, "Folder of a run.", flag_values=values)
    flags.DEFINE_bool("distributed", False, "Join the other processes (TPU pods, clusters).", flag_values=values)


def parse(values: flags.FlagValues, argv: Sequence[str], usage: str = "") -> list[str]:
    """Parses the flags; errors and `--help` (the text `usage`) end the program."""
    if usage and {"--help", "-h", "--helpfull"} & set(argv[1:]):
        raise SystemExit(print(usage.strip()))
    for argument in argv[1:]:
        path = argument.removeprefix("--config=").partition(":")[0]
        if path != argument.partition(":")[0] and not os.path.exists(path):
            known = sorted(str(p) for p in pathlib.Path("configs").glob("*.py") if p.stem not in SHARED)
            raise SystemExit(
                f"Error: There is no configuration file {path}; there are: {', '.join(known) or 'none in this folder'}."
            )
    try:
        rest = values(list(argv))
    except Exception as error:  # a config file is Python: anything can come out of it
        raise SystemExit(f"Error: {_sentence(error)}") from None
    if len(rest) > 1:
        raise SystemExit(f"Error: Unexpected argument {rest[1]!r}; options start with --.")
    return rest


def _sentence(error: Exception) -> str:
    """What an error of flag or config parsing says, without the traceback that config_flags puts into it."""
    text = str(error.args[0] if error.args else error)
    if "Traceback" in text:
        return text.strip().splitlines()[-1].partition(": ")[2]
    text = " ".join(text.replace("\\n", " ").replace("\\'", "'").split()).replace("'", "", 2)
    return f"No configuration key: {text}" if isinstance(error, KeyError | AttributeError) else text


def prepare(distributed: bool = False) -> None:
    """Quiet libraries, the persistent compilation cache, and the other processes of this job."""
    logging.set_verbosity(logging.WARNING)  # orbax tells every step of a save otherwise
    logging.get_absl_logger().addFilter(lambda record: "directory is read only" not in record.getMessage())
    import jax

    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or pathlib.Path.home() / ".cache" / "lanpo_jax" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(cache))  # the second run of a config starts in seconds
    if distributed:
        from jax.experimental import multihost_utils

        with one_sentence():
            _join()
            multihost_utils.sync_global_devices("joined")  # gloo waits 30 s for the others, and no longer


def _join() -> None:
    """Joins the other processes: TPU pods and SLURM jobs are found by jax, others by three environment variables."""
    import jax

    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [os.environ.get(name) for name in names]
    if not any(given):
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        return
    address, count, own = given
    if not (address and (count or "").isdigit() and (own or "").isdigit()):
        found = ", ".join(f"{name}={value}" for name, value in zip(names, given, strict=True))
        raise ValueError(f"To join other processes all of {found} must be set, the last two to numbers.")
    jax.distributed.initialize(address, int(count), int(own), heartbeat_timeout_seconds=HEARTBEAT)


def first() -> bool:
    """Whether this is the process that talks and writes."""
    import jax

    return jax.process_index() == 0


def check_folder(flag: str, file: str) -> None:
    """Raises ValueError, before hours of work, where a file cannot be written because its folder is not there."""
    folder = pathlib.Path(file).parent
    if not folder.is_dir():
        raise ValueError(f"--{flag}={file} lies in {folder}, which is no folder; make it or name another.")


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """What is wrong with the input ends the program in one sentence; LANPO_TRACEBACK=1 shows where it was noticed."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("LANPO_TRACEBACK"):
            raise
        raise SystemExit(f"Error: {_told(error)}") from None


def _told(error: Exception) -> str:
    """An error's own sentence; for those of the runtime and the system the first line, with what may help."""
    text = str(error).strip() or type(error).__name__
    if "RESOURCE_EXHAUSTED" in text:
        return (
            f"The device has too little memory ({text.splitlines()[0][:200]}); lower rollout.rows, learner.micro_rows "
            "or the token limits, set model.remat='full', or spread the model over more devices."
        )
    if getattr(error, "errno", None) == errno.ENOSPC:
        return f"The disk is full ({error}); make room and start the same command again: it goes on from the last save."
    return text


def configs_importable() -> None:
    """Lets a configuration file import its neighbours (`from configs import common`)."""
    sys.path.insert(0, os.getcwd())
