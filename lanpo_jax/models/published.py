"""A published checkpoint on disk, whatever its format: its config and its tensors under Hugging Face names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

LFS_HEAD = b"version https://git-lfs"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What loading needs of a checkpoint; `read(name)` brings one tensor at a time into host memory.

    Names, shapes and axis order are those of Hugging Face's torch modules, matrices [out, in], for every format.
    """

    path: Path
    config: Mapping[str, Any]  # as in an HF config.json
    generation_config: Mapping[str, Any]  # as in an HF generation_config.json; empty if there is none
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of a GGUF file, its tokenizer included


def refuse_pointer(path: Path) -> None:
    """Raises ValueError if the file is empty or a git-lfs pointer in place of the content."""
    with path.open("rb") as file:
        head = file.read(len(LFS_HEAD))
    if not head:
        raise ValueError(f"{path} is empty; download it again.")
    if head == LFS_HEAD:
        raise ValueError(f"{path} is a git-lfs pointer, not the file itself; run 'git lfs pull' in its folder.")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises ValueError if the file is cut off or holds something else."""
    refuse_pointer(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a JSON {type(value).__name__} where an object is expected; download it again.")
    return value
