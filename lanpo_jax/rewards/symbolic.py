r"""The worker process: math-verify on one pair a line, within limits of time, memory and processor time.

Started by `workers` as `python -m lanpo_jax.rewards.symbolic`; reads {"prediction", "gold"} and writes [verdict,
reason, cause], one JSON line each. It is a program of its own, because only a process can be killed: arithmetic on huge
integers holds the interpreter's lock for minutes, and math-verify's own time-out works in no thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import signal
import sys

SECONDS = 1.0  # for one pair; what does not heed it is killed by the parent
MEMORY = 2 << 30  # bytes of address space
CPU_SECONDS = 4  # for one pair, by the kernel: holds even if the parent is gone
TOO_LARGE = re.compile(
    r"\d{80}|\d{4}\s*\}?\s*!|!\s*!|\^\s*\{?\s*-?\s*\d{5}|\^\s*\{?[^{}]*\d\s*\^|\\binom\s*\{[^{}]*\d{4}|\\binom\s*\{[^{}]*\^|"
    r"(?:\\sqrt\s*\{?\s*){8}|(?:\{\s*){16}|(?:\(\s*){16}"
)
LONGEST = 400  # characters

Answer = tuple[str, str, str]


class OutOfTime(BaseException):
    """Raised by the timer; no Exception, so that the library does not catch it."""


def main() -> None:
    """Serves pairs until the input ends."""
    replies = sys.stdout
    sys.stdout = sys.stderr  # nothing else may write between the replies
    failure = start()
    print(json.dumps({"ready": failure is None, "reason": failure}), file=replies, flush=True)
    for line in sys.stdin if failure is None else ():
        pair = json.loads(line)
        print(json.dumps(limited(pair["prediction"], pair["gold"])), file=replies, flush=True)


def start() -> str | None:
    """Sets limits, loads math-verify and tries a known verdict; a reason if this installation cannot be trusted."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides on Ctrl-C, and closes our input
    signal.signal(signal.SIGALRM, _out_of_time)
    with contextlib.suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        percent, half = judge("0.5", r"50\%"), judge("0.25", r"50\%")
    except ImportError as error:
        return f"math-verify cannot be imported ({error}); pip install math-verify"
    if percent[0] != "right" or half[0] != "wrong":
        return r"math-verify misjudges 50\%; pip install 'antlr4-python3-runtime>=4.13.2,<4.14'"
    return None


def limited(prediction: str, gold: str) -> Answer:
    """`judge` within the limits."""
    for text, cause in ((prediction, "unparseable_pred"), (gold, "unparseable_gold")):
        if len(text) > LONGEST or TOO_LARGE.search(text):
            return "unknown", f"too large to evaluate: {text[:40]}", cause
    used = resource.getrusage(resource.RUSAGE_SELF)
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, hard))
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        return judge(prediction, gold)
    except OutOfTime:
        return "unknown", f"no verdict within {SECONDS:g} s", "timeouts"
    except MemoryError:
        return "unknown", "no verdict within the memory limit", "errors"
    except Exception as error:  # the library's errors are of many kinds
        return "unknown", f"math-verify failed ({type(error).__name__})", "errors"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def judge(prediction: str, gold: str) -> Answer:
    """math-verify's verdict on two pieces of LaTeX."""
    import math_verify  # here, so that a missing library is reported and not raised

    form = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    options = {"extraction_config": form, "fallback_mode": "no_fallback", "parsing_timeout": None}
    expected = math_verify.parse(f"${gold}$", **options)
    if not expected:
        return "unknown", "math-verify cannot read the gold answer", "unparseable_gold"
    found = math_verify.parse(f"${prediction}$", **options)
    if not found:
        return "wrong", "math-verify cannot read the answer", "unparseable_pred"
    equal = math_verify.verify(expected, found, timeout_seconds=None)
    return ("right" if equal else "wrong"), f"{'equal' if equal else 'different'} by math-verify", ""


def _out_of_time(number: int, frame: object) -> None:
    raise OutOfTime


if __name__ == "__main__":
    main()
