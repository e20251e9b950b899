"""Killable worker processes for symbolic comparison, started when the first pair needs one.

Workers are programs of their own (no fork, no re-import of the main module), so they work under JAX's threads, in
notebooks and on macOS. One that overruns its time is killed and replaced; one that dies is replaced and its pair tried
once more.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

SECONDS = 1.7  # for one pair; the worker itself gives up after `symbolic.SECONDS`
START_SECONDS = 60.0  # for Python and SymPy to load on a busy machine
MOST = 8  # workers

Answer = tuple[str, str, str, float]  # verdict, reason, cause, milliseconds


class Worker:
    """One process; not to be shared between threads at a time."""

    def __init__(self) -> None:
        root = str(pathlib.Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lanpo_jax.rewards.symbolic"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        reply, _ = self._reply(START_SECONDS)
        if not reply or not reply["ready"]:
            self.close()
            raise RuntimeError(
                f"The answer checker's worker process did not start: {reply['reason'] if reply else 'it died'}."
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self, prediction: str, gold: str) -> tuple[tuple[str, str, str] | None, bool]:
        """(answer or None if the process ended, whether it was killed for its time)."""
        try:
            self._process.stdin.write(json.dumps({"prediction": prediction, "gold": gold}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None, False
        reply, late = self._reply(SECONDS)
        return (tuple(reply) if reply else None), late

    def _reply(self, seconds: float):
        """(next line, or None at the end of the process; whether the time ran out)."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        try:
            return json.loads(line), False
        except ValueError:
            return None, late.is_set()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()


class Pool:
    """Up to `size` workers, each made when there is work for it."""

    def __init__(self, size: int) -> None:
        self._slots: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._slots.put(None)
        self._threads = concurrent.futures.ThreadPoolExecutor(size, "answer-checker")
        self._size = size

    def check(self, pairs: Sequence[tuple[str, str]]) -> list[Answer]:
        """Answers in order."""
        if len(pairs) == 1:
            return [self._one(pairs[0])]
        return list(self._threads.map(self._one, pairs))

    def pids(self) -> list[int]:
        """Process ids of the idle workers."""
        return [worker.pid for worker in list(self._slots.queue) if worker]

    def close(self) -> None:
        """Ends all workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                if worker := self._slots.get_nowait():
                    worker.close()

    def _one(self, pair: tuple[str, str]) -> Answer:
        worker = self._slots.get()
        start = time.perf_counter()
        try:
            for _ in range(2):
                worker = worker or Worker()
                answer, late = worker.check(*pair)
                if answer:
                    return *answer, 1e3 * (time.perf_counter() - start)
                worker.close()
                worker = None
                if late:
                    return (
                        "unknown",
                        f"no verdict within {SECONDS:g} s",
                        "timeouts",
                        1e3 * (time.perf_counter() - start),
                    )
            return "unknown", "the worker process died twice", "errors", 1e3 * (time.perf_counter() - start)
        finally:
            self._slots.put(worker)


@functools.cache
def pool(process: int) -> Pool:
    """The pool of this process (by its id: a fork must not share pipes); it costs nothing until it is given a pair."""
    made = Pool(max(1, min(MOST, (os.cpu_count() or 2) // 2)))
    atexit.register(made.close)
    return made


def check(pairs: Sequence[tuple[str, str]]) -> list[Answer]:
    """(verdict, reason, cause, milliseconds) of each pair, by math-verify; no process is started for no pair."""
    return pool(os.getpid()).check(pairs) if pairs else []
