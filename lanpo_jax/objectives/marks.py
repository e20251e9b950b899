"""Facts about slot functions that the composition and the loop must know, kept as attributes of the functions.

A function that carries no mark is a plain function of its arguments; marks never change how it is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lanpo_jax import spec


def needs(*names: str) -> Callable[[Callable], Callable]:
    """The inputs the function cannot do without; `objective.build` collects them into `Objective.needs`."""
    return attach("needs", frozenset(names))


def attach(name: str, value) -> Callable[[Callable], Callable]:
    """Sets one mark: `needs`, `excludes`, `select`, `returns`, `start`, `after_rollout` or `after_update`.

    The last five are functions; see `hook` for the options they get and objective.py for when they are called.
    """

    def mark(function: Callable) -> Callable:
        setattr(function, name, value)
        return function

    return mark


def read(bound: functools.partial, name: str, default=None):
    """A mark of the function behind a resolved spec."""
    return getattr(bound.func, name, default)


def options(bound: functools.partial) -> dict[str, Any]:
    """The values of a resolved function's options, defaults included."""
    return {name: p.default for name, p in spec.options(bound.func).items()} | bound.keywords


def hook(bound: functools.partial, name: str) -> Callable | None:
    """A marked hook, given those options of the function that it names itself; None without that mark."""
    found = read(bound, name)
    if found is None:
        return None
    wanted = spec.options(found)
    return functools.partial(found, **{key: value for key, value in options(bound).items() if key in wanted})
