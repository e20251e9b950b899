"""Composition by config strings: 'clip(low=0.2, high=0.28)' names a function of a module and binds its options.

A spec's arguments are keyword-only parameters of the function with literal values; the positional parameters are
the data the function will be called with. Everything is checked when it is resolved, at start-up.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Splits 'name(key=value, ...)' or 'name' into the name and its literal arguments. Raises ValueError."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not of the form name(key=value, ...).") from error
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if call.args or any(k.arg is None for k in call.keywords):
        raise ValueError(f"{text!r} has an argument without a name; write name(key=value, ...).")
    try:
        arguments = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    except ValueError as error:
        raise ValueError(f"{text!r} has an argument that is no plain value; use numbers, strings, lists.") from error
    return ast.unparse(call.func), arguments


def options(function: Callable) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function: what a spec may set."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def choices(module: ModuleType | Mapping[str, Callable]) -> dict[str, Callable]:
    """The functions a spec may name: those public and defined in the module (or in the given mapping)."""
    if isinstance(module, Mapping):
        return dict(module)
    found = inspect.getmembers(module, inspect.isfunction)
    return {n: f for n, f in found if not n.startswith("_") and f.__module__ == module.__name__}


def resolve(text: str, module: ModuleType | Mapping[str, Callable]) -> Callable:
    """Binds a spec to the function it names. Raises ValueError that lists what exists."""
    name, arguments = parse(text)
    known = choices(module)
    if name not in known:
        raise ValueError(f"{name!r} in {text!r} is not known{nearest(name, known)}; there are: {', '.join(known)}.")
    accepted = options(known[name])
    for key in arguments:
        if key not in accepted:
            what = ", ".join(accepted) or "none"
            raise ValueError(f"{name} has no option {key!r}{nearest(key, accepted)}; its options: {what}.")
    required = [n for n, p in accepted.items() if p.default is inspect.Parameter.empty and n not in arguments]
    if required:
        raise ValueError(f"{text!r} lacks {', '.join(required)}; write {name}({required[0]}=...).")
    return functools.partial(known[name], **arguments)


def nearest(word: str, known) -> str:
    """' (did you mean X?)' for the closest known word, or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
