"""`python -m lanpo_jax.main --config=configs/X.py[:arg,...] --workdir=RUN [--config.a.b=value ...]`"""

from __future__ import annotations

import pathlib
import signal

from absl import app, flags

from lanpo_jax import cli

cli.define_config(flags.FLAGS)


def main(argv: list[str]) -> None:
    cli.prepare(flags.FLAGS.distributed)
    from lanpo_jax import train

    asked = _stop_signals()
    with cli.one_sentence():
        train.run(flags.FLAGS.config, pathlib.Path(flags.FLAGS.workdir), stop=lambda: bool(asked))


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
    rest = cli.parse(flags.FLAGS, argv)
    for flag in ("config", "workdir"):
        if flags.FLAGS[flag].value is None:
            raise SystemExit(f"Error: --{flag} is missing; try --config=configs/default.py --workdir=runs/first.")
    return rest


if __name__ == "__main__":
    cli.configs_importable()
    app.run(main, flags_parser=parse)
