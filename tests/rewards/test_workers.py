"""Worker processes: lazily started, killable, replaced, usable from threads and spawned processes."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from lanpo_jax import data
from lanpo_jax.rewards import math, symbolic, workers

SLOW = (r"\int_0^1 \frac{\sin(x^{x^x})}{x^{100}+e^{x}}\,dx", r"\sin(1)")


@pytest.fixture(scope="module")
def pool():
    made = workers.Pool(2)
    yield made
    made.close()


def test_math_verify_judges(pool):
    pairs = [(r"\ln 2+\ln 3", r"\ln 6"), (r"\ln 2", r"\ln 3"), (r"\sec^2 y", r"\tan^2 y+1"), ("x+1", r"\frac{")]
    assert [a[0] for a in pool.check(pairs)] == ["right", "wrong", "right", "unknown"]
    assert pool.check(pairs[3:])[0][2] == "unparseable_gold"


def test_a_slow_pair_ends_in_time_and_the_worker_lives(pool):
    pool.check([(r"\ln 2", r"\ln 2")])
    before = pool.pids()
    start = time.perf_counter()
    verdict, reason, cause, ms = pool.check([SLOW])[0]
    assert time.perf_counter() - start < 2 and ms < 2000
    assert (verdict, cause) == ("unknown", "timeouts") and "1 s" in reason
    assert pool.pids() == before


def test_a_worker_that_heeds_no_timer_is_killed(monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 0.2)  # below the worker's own limit
    pool = workers.Pool(1)
    try:
        assert pool.check([SLOW])[0][:1] + pool.check([SLOW])[0][2:3] == ("unknown", "timeouts")
        assert pool.pids() == []
        monkeypatch.undo()
        assert pool.check([(r"\ln 4", r"2\ln 2")])[0][0] == "right"
    finally:
        pool.close()


def test_a_worker_killed_from_outside_is_replaced(pool):
    pool.check([("x", "x")])
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
    assert [a[0] for a in pool.check([(r"\ln 4", r"2\ln 2")] * 3)] == ["right"] * 3


def test_a_worker_killed_at_work_is_replaced_and_the_pair_tried_again():
    pool = workers.Pool(1)
    try:
        pool.check([("x", "x")])
        [first] = pool.pids()
        threading.Timer(0.3, os.kill, (first, signal.SIGKILL)).start()
        answer = pool.check([SLOW])[0]
        assert answer[:1] + answer[2:3] == ("unknown", "timeouts")  # the second worker ran out of time
        assert pool.pids() and pool.pids() != [first]
        assert pool.check([(r"\ln 4", r"2\ln 2")])[0][0] == "right"
    finally:
        pool.close()


def test_a_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(RuntimeError, match="did not start"):
        workers.Worker()


def test_no_process_is_started_for_the_default_problems(monkeypatch):
    def refuse(self):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(workers.Worker, "__init__", refuse)
    problems = data.load("stories(operation='multiply', count=200)", "addition(count=100)")
    texts = [f"So. The answer is {p.answer if i % 2 else 'x'}." for i, p in enumerate(problems)]
    scored = math.verify(problems, texts, np.ones(300), extract="strict")
    assert scored.correct.sum() == 150 and not math.unparseable(problems)


def test_threads(pool):
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda i: math.check(rf"\boxed{{\ln {i}+\ln 3}}", rf"\ln {3 * i}"), range(2, 14)))
    assert [v.verdict for v in found] == ["right"] * 12


def _in_child(queue):
    queue.put(math.check(r"\boxed{\ln 4}", r"2\ln 2").verdict)


def test_spawned_process():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == "right"
    child.join(30)
    assert child.exitcode == 0, "workers of the child must not keep it alive"


def test_guards_against_huge_numbers():
    for text in (
        "9" * 90,
        "99999!",
        "5!!",
        "10^{100000}",
        r"\binom{10^9}{5}",
        "2^{3^{4}}",
        r"\sqrt{" * 9,
        "(" * 20,
        "x" * 500,
    ):
        assert symbolic.limited(text, "x")[2] == "unparseable_pred", text
