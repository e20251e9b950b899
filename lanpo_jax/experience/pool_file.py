"""A pool as a file that people can read, edit and write: one JSON line per principle.

    {"id": "...", "problem": "...", "principle": "...", "tokens": 31, "step": 40, "shown": 16, "succeeded": 9}

Only `problem` and `principle` must be there. A pool that was read holds principles and nothing else: no attempts, no
verdicts, no problems to keep out. It serves answering, not the resumption of a run.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from typing import Any

from lanpo_jax.experience import pool as pool_lib


def write(pool: pool_lib.Pool, path: pathlib.Path) -> None:
    """Writes the principles, oldest first; the file appears whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        for id in pool.index.ids():
            entry, outcome = pool.entry(id), pool.outcome(id)
            row = {
                "id": id, "problem": entry.text, "principle": entry.principle.text, "tokens": entry.principle.tokens,
                "step": entry.principle.step, "shown": outcome.shown, "succeeded": outcome.succeeded,
            }  # fmt: skip
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def read(path: pathlib.Path) -> pool_lib.Pool:
    """The pool of a file, in its order. Raises FileNotFoundError, or ValueError with file and line."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no pool file {path}; a run leaves one as pool.jsonl in its folder.")
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = [_row(line, path, number) for number, line in enumerate(file, 1) if line.strip()]
    pool = pool_lib.Pool(max(1, len(rows)))
    twice = [id for id, count in collections.Counter(id for id, _, _ in rows).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one line with the id {twice[0]!r}; give each its own, or none.")
    pool.admit([(id, problem) for id, problem, _ in rows])
    for id, _, principle in rows:
        pool.set_principle(id, principle)
    return pool


def _row(line: str, path: pathlib.Path, number: int) -> tuple[str, str, pool_lib.Principle]:
    where = f"{path}:{number}"
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: it is not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: it is a JSON {type(row).__name__}; each line is an object with problem, principle.")
    for name in ("problem", "principle"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"{where}: {name!r} is missing or empty; each line needs a problem and a principle.")
    numbers = [row.get(name, 0) for name in ("tokens", "step")]
    if not all(isinstance(n, int) for n in numbers):
        raise ValueError(f"{where}: tokens and step are whole numbers, not {numbers}.")
    return str(row.get("id", f"{path.name}:{number}")), row["problem"], pool_lib.Principle(row["principle"], *numbers)
