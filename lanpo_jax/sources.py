"""Where problems come from: files, TensorFlow Datasets, reasoning-gym. Every public function is a problem source.

Columns are found by name for the published forms of GSM8K, MATH and DAPO-Math and for plain {problem, answer} rows.
"""

from __future__ import annotations

import csv
import itertools
import json
import logging
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lanpo_jax import boxes
from lanpo_jax.types import Problem

PROBLEM_COLUMNS = ("problem", "question", "prompt", "input", "query")
ANSWER_COLUMNS = ("answer", "ground_truth", "final_answer", "reward_model", "solution", "target", "output", "label")
SOURCE_COLUMNS = ("source", "data_source")
EXTRA_COLUMNS = ("level", "type", "subject", "difficulty", "hints")  # hints: a list, from abstract to concrete

# The frame that DAPO-Math puts around every problem; our own prompt templates give the instruction instead.
DAPO_FRAME = re.compile(
    r"\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \\?\$Answer \(without quotes\) where \\?\$Answer is the answer to the problem\.\s*"
    r"(?P<problem>.*?)\s*(?:Remember to put your answer on its own line after \"Answer:\"\.\s*)?",
    re.DOTALL,
)

Row = tuple[str, Any]  # where it stands ("x.jsonl:7"), what was read


def file(
    *,
    path: str,
    problem: str = "",
    answer: str = "",
    limit: int = 0,
    strict: bool = True,
    distinct: bool = False,
    unanswered: bool = False,
) -> list[Problem]:
    """Problems of a JSONL, JSON, CSV or Parquet file, by its suffix.

    Args:
        path: the file.
        problem: column with the text; found by name if empty.
        answer: column with the gold answer; found by name if empty.
        limit: number of rows that are read; 0 reads all.
        strict: a malformed row is an error; otherwise it is skipped, and the number of skipped rows is logged.
        distinct: keeps only the first of rows with the same text (DAPO-Math-17k repeats each problem 100 times).
        unanswered: keeps rows without an answer too, with an empty one: problems to be answered, not trained on.

    Raises ValueError that names the file and line, FileNotFoundError if there is no such file.
    """
    where = pathlib.Path(path).expanduser()
    if not where.is_file():
        raise FileNotFoundError(
            f"There is no problem file {path!r}; give the path of a .jsonl, .json, .csv or .parquet."
        )
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    if where.suffix not in readers:
        raise ValueError(f"{path!r} has suffix {where.suffix!r}; problem files are {', '.join(readers)}.")
    rows = itertools.islice(readers[where.suffix](where), limit or None)
    return _problems(rows, where.stem, str(path), problem, answer, strict, distinct, unanswered)


def tfds(
    *,
    name: str,
    split: str = "train",
    data_dir: str = "",
    problem: str = "",
    answer: str = "",
    limit: int = 0,
    strict: bool = True,
) -> list[Problem]:
    """Problems of a prepared TensorFlow Datasets data set, read as array_record without TensorFlow or network.

    Args:
        name: data set, with its config and version if wanted ("gsm8k", "my_set/config:1.0.0").
        split: "train", "test[:100]", ...
        data_dir: folder of prepared data sets; empty means the default of tensorflow_datasets.
        problem, answer, limit, strict: as for `file`.
    """
    import tensorflow_datasets  # heavy, and only needed here

    try:
        data = tensorflow_datasets.data_source(name, split=split, data_dir=data_dir or None, download=False)
    except Exception as error:  # its errors are of many kinds and span pages
        raise ValueError(
            f"tfds(name={name!r}, split={split!r}, data_dir={data_dir!r}) is not readable as a prepared array_record "
            f"data set ({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}); "
            f"prepare it with tfds build --file_format=array_record, or name its data_dir."
        ) from error
    count = min(limit, len(data)) if limit else len(data)
    rows = ((f"{name}/{split} row {i}", _plain(data[i])) for i in range(count))
    return _problems(rows, f"{name}/{split}", name, problem, answer, strict, False, False)


def gym(*, name: str, count: int = 1000, seed: int = 0) -> list[Problem]:
    """Problems that the optional package reasoning-gym generates; `lanpo_jax.rewards.gym.score` is their reward."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError(
            f"gym(name={name!r}) needs the package reasoning-gym; pip install 'lanpo-jax[gym]'."
        ) from error
    try:
        data = reasoning_gym.create_dataset(name, size=count, seed=seed)
    except Exception as error:
        raise ValueError(f"reasoning-gym cannot make data set {name!r} of {count} rows ({error}).") from error
    return [_gym_problem(name, seed, i, data[i]) for i in range(count)]


def _gym_problem(name: str, seed: int, index: int, entry: Mapping[str, Any]) -> Problem:
    return Problem(
        id=f"gym/{name}/{seed}/{index}",
        text=entry["question"],
        answer="" if entry.get("answer") is None else str(entry["answer"]),  # some tasks have many right answers
        source=f"gym/{name}",
        extra={"gym": name, "entry": dict(entry)},
    )


# Readers: each yields (where, row) and leaves judging the row to _problem.


def _jsonl(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield f"{path}:{number}", json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield f"{path}:{number}", ValueError(f"it is not JSON ({error})")


def _json(path: pathlib.Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}).") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        yield f"{path} row {number}", row


def _csv(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():  # how DictReader marks surplus and missing fields
                yield where, ValueError(f"it has not the {len(reader.fieldnames or ())} fields of the header")
            else:
                yield where, row


def _parquet(path: pathlib.Path) -> Iterator[Row]:
    import pyarrow.parquet  # heavy, and only needed here

    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file ({error}).") from error
    numbers = itertools.count(1)
    for batch in table.iter_batches():
        for row in batch.to_pylist():
            yield f"{path} row {next(numbers)}", row


def _plain(value: Any) -> Any:
    """A TFDS example as plain Python: bytes decoded, arrays as lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


# Rows to problems.


def _problems(
    rows: Iterable[Row],
    prefix: str,
    name: str,
    problem: str,
    answer: str,
    strict: bool,
    distinct: bool,
    unanswered: bool,
) -> list[Problem]:
    found, skipped, texts, total = [], [], set(), 0
    for index, (where, row) in enumerate(rows):
        total += 1
        try:
            item = _problem(row, f"{prefix}/{index}", name, problem, answer, unanswered)
        except ValueError as error:
            if strict:
                raise ValueError(f"{where}: {error}; correct it, or set strict=False to skip such rows.") from error
            skipped.append(f"{where}: {error}")
            continue
        if not (distinct and item.text in texts):
            found.append(item)
            texts.add(item.text)
    if skipped:
        logging.warning(
            "%d of %d rows of %s skipped as malformed; the first: %s.", len(skipped), total, name, skipped[0]
        )
    if not found:
        raise ValueError(f"{name} holds no problem ({total} rows read, {len(skipped)} of them malformed).")
    return found


def _problem(row: Any, key: str, name: str, problem: str, answer: str, unanswered: bool) -> Problem:
    """One row as a Problem. Raises ValueError with a clause that says what is wrong with it."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping):
        raise ValueError(f"it is a {type(row).__name__}, not an object with columns")
    text = _text(_column(row, problem, PROBLEM_COLUMNS, "problem"))
    open_ended = unanswered and not any(row.get(c) not in (None, "") for c in ([answer] if answer else ANSWER_COLUMNS))
    gold, solution = ("", "") if open_ended else _gold(_column(row, answer, ANSWER_COLUMNS, "answer"))
    if not text or not (gold or unanswered):
        raise ValueError(f"its {'problem' if not text else 'answer'} is empty")
    extra = {c: row[c] for c in EXTRA_COLUMNS if row.get(c) not in (None, "")}
    solution = solution or (row["solution"] if isinstance(row.get("solution"), str) else "")
    source = next((str(row[c]) for c in SOURCE_COLUMNS if row.get(c)), name)
    return Problem(_identity(row, key), text, gold, source, extra | ({"solution": solution} if solution else {}))


def _identity(row: Mapping[str, Any], default: str) -> str:
    info = row.get("extra_info")
    given = row.get("id", info.get("index") if isinstance(info, Mapping) else None)
    return default if given in (None, "") else str(given)


def _column_name(row: Mapping[str, Any], wanted: str, known: Sequence[str], what: str) -> str:
    names = (wanted,) if wanted else known
    found = next((name for name in names if name in row), None)
    if found is None:
        asked = f"no column {wanted!r}" if wanted else f"no {what} column that is known by name"
        raise ValueError(f"it has {asked}; its columns are {', '.join(map(str, row))} (option {what}= names one)")
    return found


def _column(row: Mapping[str, Any], wanted: str, known: Sequence[str], what: str) -> Any:
    return row[_column_name(row, wanted, known, what)]


def _text(value: Any) -> str:
    """The problem in a cell: a string, or a list of chat messages whose last user turn counts."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        turns = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role", "user") == "user"]
        value = turns[-1] if turns else None
    if not isinstance(value, str):
        raise ValueError(f"its problem is a {type(value).__name__}, not text or a list of chat messages")
    framed = DAPO_FRAME.fullmatch(value)
    return (framed["problem"] if framed else value).strip()


def _gold(value: Any) -> tuple[str, str]:
    """The gold answer in a cell, and the solution around it if there is one ("... #### 42", or a last box)."""
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value), ""
    if not isinstance(value, str):
        raise ValueError(f"its answer is a {type(value).__name__}, not text or a number")
    if "####" in value:
        return value.rpartition("####")[2].strip(), value
    box = boxes.last(value)
    return (value.strip(), "") if box is None else (box.strip(), value)
