"""Hugging Face checkpoint directories, read and written: config.json, and model.safetensors or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from lanpo_jax.models import published

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")


def open_directory(path: Path) -> published.Checkpoint:
    """Opens a directory as written by `save_pretrained` or downloaded from the hub; reads headers only.

    Raises FileNotFoundError or ValueError, in one sentence, if anything is missing, cut off or of an unread kind.
    """
    config = _config(path)
    files = _tensor_files(path)
    shapes = {}
    for file in sorted(set(files.values())):
        shapes |= _header(file, [name for name, at in files.items() if at == file])
    generation = path / "generation_config.json"
    return published.Checkpoint(
        path=path,
        config=config,
        generation_config=published.read_json(generation) if generation.exists() else {},
        shapes=shapes,
        read=lambda name: _read(files[name], name),
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.exists():
        raise FileNotFoundError(f"{path} has no config.json{_unfinished(path)}; pass a complete checkpoint directory.")
    config = published.read_json(file)
    if method := config.get("quantization_config"):
        kind = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ValueError(f"{path} is quantised ({kind}); take the unquantised checkpoint or a GGUF file.")
    return config


def _tensor_files(path: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it."""
    index = path / INDEX
    if index.exists():
        weight_map = published.read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{index} has no weight_map; download it again.")
        files = {name: path / Path(str(file)).name for name, file in weight_map.items()}
        missing = sorted({file.name for file in files.values() if not file.exists()})
        if missing:
            total = len(set(files.values()))
            raise FileNotFoundError(
                f"{path} lacks {len(missing)} of the {total} files that its index names: {', '.join(missing[:4])}"
                f"{', ...' if len(missing) > 4 else ''}{_unfinished(path)}; finish the download."
            )
        return files
    single = path / SINGLE
    if not single.exists():
        torch_only = any(path.glob("*.bin")) or any(path.glob("*.pth"))
        remedy = "convert its torch files to safetensors" if torch_only else "finish the download"
        raise FileNotFoundError(f"{path} has neither {SINGLE} nor {INDEX}{_unfinished(path)}; {remedy}.")
    with _open(single) as file:
        return dict.fromkeys(file.keys(), single)


def _unfinished(path: Path) -> str:
    """' (N unfinished downloads, e.g. X)' if the downloader left any behind."""
    found = sorted(p.name for pattern in ("*.incomplete", "*.part", "*.aria2") for p in path.rglob(pattern))
    return f" ({len(found)} unfinished downloads, e.g. {found[0]})" if found else ""


def _open(file: Path):
    published.refuse_pointer(file)
    try:
        return safetensors.safe_open(file, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is cut off or no safetensors file ({error}); download it again.") from error


def _header(file: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the named tensors of one file."""
    shapes = {}
    with _open(file) as handle:
        absent = sorted(set(names) - set(handle.keys()))
        if absent:
            raise ValueError(f"{file} lacks {absent[0]}, which the index places there; download both again.")
        for name in names:
            part = handle.get_slice(name)
            if part.get_dtype() not in FLOATS:
                raise ValueError(f"{name} in {file} is stored as {part.get_dtype()}; known are {', '.join(FLOATS)}.")
            shapes[name] = tuple(part.get_shape())
    return shapes


def _read(file: Path, name: str) -> np.ndarray:
    # Opened anew for each tensor: a mapping kept open would leave every page read so far in resident memory.
    with _open(file) as handle:
        return handle.get_tensor(name)


DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def write_tensors(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray], dtype: str, shard_bytes: int
) -> list[str]:
    """Writes tensors as `save_pretrained` does: one file, or shards of at most `shard_bytes` and their index.

    `read(name)` brings one tensor to the host; a shard at a time is in memory. Returns the names of the files.
    """
    size = {name: int(np.prod(shape)) * DTYPES[dtype].itemsize for name, shape in shapes.items()}
    shards: list[list[str]] = [[]]
    for name in shapes:
        if shards[-1] and sum(size[n] for n in shards[-1]) + size[name] > shard_bytes:
            shards.append([])
        shards[-1].append(name)
    count = len(shards)
    files = [SINGLE] if count == 1 else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for file, names in zip(files, shards, strict=True):
        tensors = {name: np.ascontiguousarray(read(name).astype(DTYPES[dtype])) for name in names}
        safetensors.numpy.save_file(tensors, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # the library makes files that only their owner can read
    if count > 1:
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(size.values())}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        files.append(INDEX)
    return files
