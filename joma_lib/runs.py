"""Recorded runs: datasets with named dimensions and their provenance, in netCDF, without pickle.

A run is an `xarray.Dataset` whose dimensions are among `seed, step, layer, head, token, node, latent, query` as they
apply. Its attributes say where it comes from; the last of them, `sha256`, covers everything else, so that `load_run`
notices a file that was damaged or edited. Files are written beside their target and moved into place in one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

import joma_lib

__all__ = ["SCHEMA_VERSION", "content_hash", "fingerprint", "list_runs", "load_run", "provenance", "save_run"]

SCHEMA_VERSION = 1
_SUFFIX = ".nc"
_WORTH_PACKING = 6000
_HASH = "sha256"


def fingerprint(*arrays: Any) -> str:
    """Return the SHA-256 of arrays (anything NumPy can read; torch tensors on the CPU too), shapes and dtypes included.

    >>> fingerprint([1, 2]) == fingerprint(np.array([1, 2]))
    True
    >>> fingerprint([1.0, 2.0]) == fingerprint([1, 2])
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        _feed(digest, array)
    return digest.hexdigest()


def provenance(
    config: Any,
    *,
    seeds: Iterable[int] = (),
    device: Any = "cpu",
    wall_seconds: float = 0.0,
    data: Any = "none",
) -> dict[str, Any]:
    """Return the attributes that every run carries, for `dataset.attrs.update(...)`.

    Parameters
    ----------
    config : a dataclass or a mapping; stored as JSON (arrays in it by their fingerprint)
    seeds : the seeds of the run, in the order of its dimension `seed`
    device : where it ran, such as "cpu" or a `torch.device`
    wall_seconds : how long it took
    data : the data set's fingerprint as text, or the array(s) to fingerprint; "none" when there is no data set

    Returns
    -------
    dict : schema_version, config, seeds, device, versions, wall_seconds, git_commit, git_dirty, data_fingerprint

    >>> sorted(provenance({"eta": 0.1}, seeds=[0], data="none"))[:3]
    ['config', 'data_fingerprint', 'device']
    """
    if isinstance(data, (tuple, list)):
        data = fingerprint(*data)
    commit, dirty = _git(Path(__file__).resolve().parents[1])
    return {
        "schema_version": SCHEMA_VERSION,
        "config": _as_json(config),
        "seeds": json.dumps([int(seed) for seed in seeds]),
        "device": str(device),
        "versions": json.dumps(_versions()),
        "wall_seconds": float(wall_seconds),
        "git_commit": commit,
        "git_dirty": int(dirty),
        "data_fingerprint": data if isinstance(data, str) else fingerprint(data),
    }


def save_run(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a run to `path` (the suffix .nc is added where it lacks) in one step, and return the path.

    Provenance attributes that the dataset lacks are filled in with what is known here; the dataset itself is left as
    it was. What was written is read back and compared before it takes the place of an older file.

    Raises
    ------
    TypeError : not an `xarray.Dataset`.
    ValueError : a variable's or an attribute's type has no place in netCDF, or the folder does not exist.

    >>> folder = tempfile.mkdtemp()
    >>> path = save_run(xr.Dataset({"loss": ("step", [1.0, 0.5])}), Path(folder) / "demo")
    >>> load_run(path).loss.values.tolist()
    [1.0, 0.5]
    """
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(
            f"a run is an xarray.Dataset, got {type(dataset).__name__}; see Dataset.from_dict or to_dataset"
        )
    path = Path(path)
    if path.suffix != _SUFFIX:
        path = path.with_name(path.name + _SUFFIX)
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist; make it before saving {path.name}")
    run = dataset.copy()
    known = provenance(
        {}, seeds=np.atleast_1d(run["seed"].values) if "seed" in run.coords else (), device="unknown"
    )
    run.attrs = {**known, **{key: value for key, value in dataset.attrs.items() if key != _HASH}}
    _check_types(run)
    run.attrs[_HASH] = content_hash(run)
    encoding = {name: _encoding(variable) for name, variable in run.variables.items()}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=_SUFFIX)
    os.close(handle)
    try:
        try:
            run.to_netcdf(name, engine="h5netcdf", format="NETCDF4", encoding=encoding)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name} cannot be written as netCDF: {_sentence(error)}") from error
        _read(Path(name), path.name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return path


def load_run(name_or_path: str | os.PathLike[str]) -> xr.Dataset:
    """Return a run, wholly in memory: one that comes with the package by its name, any other by its path.

    Raises
    ------
    ValueError : there is no such run, the file is damaged or was changed since it was saved, or it is no run at all.

    >>> load_run("no-such-run")
    Traceback (most recent call last):
    ValueError: no recorded run is called 'no-such-run'; list_runs() names those that come with the package, any other needs its path
    """
    text = os.fspath(name_or_path)
    shipped = resources.files("joma_lib") / "data" / f"{text}{_SUFFIX}"
    if isinstance(name_or_path, str) and Path(text).name == text and shipped.is_file():
        with resources.as_file(shipped) as path:
            return _read(path, text)
    path = Path(text)
    if not path.exists() and path.suffix != _SUFFIX and Path(text + _SUFFIX).is_file():
        path = Path(text + _SUFFIX)
    if not path.is_file():
        what = f"{text} is a folder" if path.is_dir() else f"no recorded run is called {text!r}"
        raise ValueError(
            f"{what}; list_runs() names those that come with the package, any other needs its path"
        )
    return _read(path, text)


def list_runs(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the runs that come with the package, or the paths of those in `folder`, sorted.

    >>> list_runs() == sorted(list_runs())
    True
    """
    if folder is None:
        names = [item.name for item in (resources.files("joma_lib") / "data").iterdir()]
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    if not Path(folder).is_dir():
        raise ValueError(f"{os.fspath(folder)!r} is not a folder; name the one that holds the runs")
    return sorted(str(path) for path in Path(folder).glob(f"*{_SUFFIX}") if not path.name.startswith("."))


def content_hash(dataset: xr.Dataset) -> str:
    """Return the SHA-256 of a dataset's variables, dimensions and attributes (the stored hash aside).

    >>> run = xr.Dataset({"loss": ("step", [1.0, 0.5])})
    >>> content_hash(run) == content_hash(run.assign_attrs(sha256="any")) != content_hash(run + 1)
    True
    """
    digest = hashlib.sha256()
    for key in sorted(map(str, dataset.attrs)):
        if key != _HASH:
            _feed(digest, key)
            _feed(digest, np.ravel(dataset.attrs[key]))
    for name in sorted(map(str, dataset.variables)):
        variable = dataset[name].variable
        _feed(digest, json.dumps([name, list(map(str, variable.dims))]))
        for key in sorted(map(str, variable.attrs)):
            _feed(digest, key)
            _feed(digest, np.ravel(variable.attrs[key]))
        _feed(digest, variable.values)
    return digest.hexdigest()


def _read(path: Path, name: str) -> xr.Dataset:
    try:
        h5py.File(path, "r").close()  # h5netcdf complains on stderr about what is no HDF5 file
        with xr.open_dataset(path, engine="h5netcdf", decode_times=False) as source:
            run = source.load()
    except Exception as error:
        raise ValueError(
            f"{name} cannot be read as netCDF, so it is damaged or no run; record or fetch it again"
        ) from error
    if "schema_version" not in run.attrs or _HASH not in run.attrs:
        raise ValueError(
            f"{name} is a netCDF file but no run: it has no schema version or hash; write runs with save_run"
        )
    version = run.attrs["schema_version"]
    if np.ndim(version) or not float(version) <= SCHEMA_VERSION:
        raise ValueError(
            f"{name} has schema version {version}, newer than {SCHEMA_VERSION}; update joma_lib to read it"
        )
    if content_hash(run) != run.attrs[_HASH]:
        raise ValueError(
            f"{name} was changed since it was saved: its SHA-256 does not match; record or fetch it again"
        )
    return run


def _feed(digest: Any, value: Any) -> None:
    """Update a hash with a value's kind, shape and bytes, equal before and after netCDF."""
    array = np.asarray(value)
    if array.dtype.kind in "OUST":
        content = json.dumps([_text(item) for item in array.ravel().tolist()]).encode()
        kind = "text"
    else:
        content = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    digest.update(f"{kind}{list(array.shape)}{len(content)}:".encode())
    digest.update(content)


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def _check_types(run: xr.Dataset) -> None:
    for name, variable in run.variables.items():
        kind, size = variable.dtype.kind, variable.dtype.itemsize
        if kind not in "biufUOT" or (kind == "f" and size not in (4, 8)):
            raise ValueError(
                f"variable {name} has dtype {variable.dtype}; convert it to float32, float64, int or text"
            )
    for attributes in (run.attrs, *(variable.attrs for variable in run.variables.values())):
        for key, value in attributes.items():
            if np.asarray(value).dtype.kind not in "iufU" or np.size(value) == 0:
                raise ValueError(f"attribute {key} is {value!r}; store a number, a text, or JSON in a text")


def _encoding(variable: xr.Variable) -> dict[str, Any]:
    """Compress what is worth it: the index of a compressed variable takes some 3 kB."""
    if variable.dtype.kind not in "biuf" or variable.ndim == 0:
        return {}
    packed = {"zlib": True, "complevel": 6, "shuffle": True} if variable.nbytes > _WORTH_PACKING else {}
    return packed | ({"_FillValue": None} if variable.dtype.kind == "f" else {})


def _as_json(config: Any) -> str:
    content = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    if not isinstance(content, Mapping):
        raise TypeError(f"config is a {type(config).__name__}; give a dataclass or a mapping")
    return json.dumps(content, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__") or hasattr(value, "shape"):
        return {"shape": list(value.shape), "sha256": fingerprint(value)}
    return str(value)


def _versions() -> dict[str, str]:
    found = {
        "joma_lib": joma_lib.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    for name in ("numpy", "xarray", "torch", "transformers"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


@lru_cache
def _git(root: Path) -> tuple[str, bool]:
    """Return (commit, has the package changed since?) of a checkout; ("unknown", False) anywhere else."""
    if not (root / ".git").exists():
        return "unknown", False

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "joma_lib/*.py"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", False


def _sentence(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(".")
