"""Checkpoints of a training run: where each step's files lie, and what is in them without loading the model.

A series is laid out as the public suites are: revisions `step0`, `step1`, ... of a hub repository, or folders whose names
end in the step's number (`step512`, `checkpoint-500`). Weights are read from safetensors, else by
`torch.load(weights_only=True)`; sharded or not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joma_lib._lazy import require

__all__ = [
    "Checkpoint",
    "Source",
    "find_checkpoints",
    "fingerprint_folder",
    "quiet_transformers",
    "remote_fingerprints",
    "weight_files",
]

Source = str | os.PathLike[str] | Mapping[int, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]]
"""A hub repository ("EleutherAI/pythia-70m"), a folder of step folders, a list of such, or a mapping from step to folder."""

_KINDS = (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "*.bin"))
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    """One step: a local folder, or a revision of a hub repository."""

    step: int
    folder: Path | None = None
    repository: str = ""

    @property
    def origin(self) -> str:
        """What names it, without a path of this machine."""
        return self.folder.name if self.folder is not None else f"{self.repository}@step{self.step}"

    def fetch(self) -> Path:
        """Return its folder; a revision is downloaded to the hub's own cache, safetensors where there are any."""
        if self.folder is not None:
            return self.folder
        hub = require("huggingface_hub", extra="pretrained")
        revision = f"step{self.step}"
        try:
            for _, pattern in _KINDS:
                wanted = ["config.json", pattern, f"{pattern}.index.json"]
                folder = Path(
                    hub.snapshot_download(self.repository, revision=revision, allow_patterns=wanted)
                )
                if any(folder.glob(pattern)):
                    return folder
        except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
            raise ValueError(_unreachable(self.origin, error)) from error
        raise ValueError(f"{self.origin} holds neither safetensors nor pytorch_model.bin; it cannot be read")


def find_checkpoints(source: Source, steps: Iterable[int] | None = None) -> list[Checkpoint]:
    """Return the checkpoints of a series in the order of their steps.

    Raises
    ------
    ValueError : no such folder, a step that is missing, twice there, or not named; a hub repository without `steps`.
    """
    wanted = None if steps is None else sorted({int(step) for step in steps})
    if wanted is not None and (not wanted or wanted[0] < 0):
        raise ValueError(f"steps is {wanted}; give one or more, none negative")
    if isinstance(source, Mapping):
        found = {int(step): Path(path) for step, path in source.items()}
    elif isinstance(source, (str, os.PathLike)):
        root = Path(source)
        if not root.is_dir():
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
                raise ValueError(
                    f"{os.fspath(source)!r} is neither a folder nor a hub repository (owner/name)"
                )
            if wanted is None:
                raise ValueError(f"{source} is no folder here; to read it from the hub, say which steps")
            return [Checkpoint(step, repository=str(source)) for step in wanted]
        found = _by_number(path for path in root.iterdir() if path.is_dir() and re.search(r"\d$", path.name))
        if not found:
            raise ValueError(
                f"{root.name} holds no folders such as step0 or checkpoint-500; name the folder above them"
            )
    else:
        found = _by_number(map(Path, source))
    for path in found.values():
        if not path.is_dir():
            raise ValueError(f"{os.fspath(path)!r} is not a folder; give the folder of each checkpoint")
    missing = sorted(set(wanted or ()) - set(found))
    if missing or not found:
        raise ValueError(f"step(s) {missing} are not among {sorted(found)}; leave them out")
    return [Checkpoint(step, found[step]) for step in (wanted or sorted(found))]


def _by_number(paths: Iterable[Path]) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in paths:
        number = re.search(r"(\d+)$", path.name)
        if number is None:
            raise ValueError(
                f"{path.name!r} does not end in its step; name it so, or pass a mapping from step to folder"
            )
        step = int(number[1])
        if step in found:
            raise ValueError(f"{found[step].name} and {path.name} both claim step {step}; leave one out")
        found[step] = path
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a checkpoint's weights, all shards of them."""
    for single, _ in _KINDS:
        index = folder / f"{single}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"{index.name} of {folder.name} is damaged; fetch it again") from error
            files = [folder / name for name in names]
        elif (folder / single).is_file():
            files = [folder / single]
        else:
            continue
        for file in files:
            if not file.is_file():
                raise ValueError(f"{folder.name} lacks its shard {file.name}; fetch it again")
        return files
    raise ValueError(f"{folder.name} holds no model.safetensors or pytorch_model.bin; it is no checkpoint")


def fingerprint_folder(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each trained tensor of a checkpoint, by name, one tensor in memory at a time.

    Left out: buffers (masks, rotary frequencies, integers), constants (a fresh bias says nothing) and tied copies.
    """
    found: dict[str, str] = {}
    for file in weight_files(folder):
        read = _read_safetensors if file.suffix == ".safetensors" else _read_pickle
        for name, dtype, shape, chunks in read(file):
            if not dtype.startswith(("float", "bfloat")) or re.search(
                r"rotary|inv_freq|masked_bias|attn\.bias$|attention\.bias$", name
            ):
                continue
            digest, first, constant = hashlib.sha256(f"{dtype}{list(shape)}".encode()), None, True
            size = 8 if dtype == "float64" else 4 if dtype == "float32" else 1 if "8_" in dtype else 2
            for chunk in chunks:
                digest.update(chunk)
                items = np.frombuffer(chunk, dtype=f"u{size}")
                first = items[0] if first is None and len(items) else first
                constant = constant and bool((items == first).all())
            if not constant:
                found[name] = digest.hexdigest()
    if not found:
        raise ValueError(f"{folder.name} holds no trained tensor; it is no checkpoint of a model")
    distinct: dict[
        str, str
    ] = {}  # a tied copy has the same bytes; the embedding's name stays, some formats drop the head
    for name in sorted(found, key=lambda name: ("lm_head" in name or "embed_out" in name, name)):
        distinct.setdefault(found[name], name)
    return {name: digest for digest, name in sorted(distinct.items(), key=lambda item: item[1])}


_Entry = tuple[str, str, list[int], Iterable[bytes]]


def _read_safetensors(file: Path) -> Iterator[_Entry]:
    damaged = f"{file.parent.name}/{file.name} is damaged or cut short; fetch it again"
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(damaged)
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            entries = [
                (n, _DTYPES.get(e["dtype"], e["dtype"]), e["shape"], *e["data_offsets"])
                for n, e in header.items()
            ]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(damaged) from error
        if any(not 0 <= start <= stop <= size - 8 - length for *_, start, stop in entries):
            raise ValueError(damaged)
        for name, dtype, shape, start, stop in sorted(entries, key=lambda entry: entry[3]):

            def chunks(start: int = start, stop: int = stop) -> Iterator[bytes]:
                stream.seek(8 + length + start)
                for at in range(start, stop, _CHUNK):
                    yield stream.read(min(_CHUNK, stop - at))

            yield name, dtype, shape, chunks()


def _read_pickle(file: Path) -> Iterator[_Entry]:
    torch = require("torch", extra="torch")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        entries = [(name, value) for name, value in state.items() if isinstance(value, torch.Tensor)]
    except Exception as error:  # what a broken pickle raises differs from version to version
        raise ValueError(
            f"{file.parent.name}/{file.name} cannot be read as plain weights; fetch it again"
        ) from error
    for name, value in entries:
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
        pieces = (piece.numpy().tobytes() for piece in flat.split(_CHUNK))
        yield name, str(value.dtype).removeprefix("torch."), list(value.shape), pieces


def remote_fingerprints(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the SHA-256 of each weight file of a revision as the hub states them: nothing is downloaded."""
    hub = require("huggingface_hub", extra="pretrained")
    try:
        found = hub.HfApi().model_info(
            checkpoint.repository, revision=f"step{checkpoint.step}", files_metadata=True
        )
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise ValueError(_unreachable(checkpoint.origin, error)) from error
    for _, pattern in _KINDS:
        files = {
            s.rfilename: s.lfs.sha256 for s in found.siblings if s.rfilename.endswith(pattern[1:]) and s.lfs
        }
        if files:
            return files
    raise ValueError(
        f"{checkpoint.origin} holds neither safetensors nor pytorch_model.bin; it cannot be audited"
    )


def _unreachable(origin: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0][:160].rstrip(".")
    return f"{origin} cannot be reached ({type(error).__name__}: {reason}); check the name, the step and HF_HUB_OFFLINE"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Load or save without a progress bar for every file; the switch is put back."""
    logging = require("transformers", extra="pretrained").utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
