"""Where models lie: a file, or a folder of models with versions, as a list of sources.

Owns how names and folders are read. Never opens a model: only helpers do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shmgpu.errors import ConfigError

# How a file is loaded, by the end of its name.
KINDS = {".py": "python", ".pt": "torchscript", ".pt2": "exported", ".onnx": "onnx"}

# Helpers and workers number models alike: those of source 2 from 2 * MODELS_OF_A_SOURCE on.
MODELS_OF_A_SOURCE = 4096


@dataclass(frozen=True)
class ModelSource:
    """One file that helpers load as a whole; a Python file may declare several models.

    Attributes:
        path: of the file.
        kind: how it is loaded.
        name: of its model, where the file does not say; empty: as the file says.
        version: whole number, as text.
        pool: of the helpers that load it; empty until that is known.
    """

    path: str
    kind: str
    name: str = ""
    version: str = "1"
    pool: str = ""


def entry_of(source: ModelSource, **more: Any) -> dict[str, Any]:
    """A source's entry in the control table.

    Its ``state`` is LOADING, READY, UNLOADING or UNAVAILABLE, for which ``reason`` is given;
    ``models`` are the descriptions of what it declares, once a helper has loaded it, and
    ``imported`` the files of modules that it uses, where these are watched. Entries of
    the same models take turns in ``parity``, so that what is still pending with the older one
    can be told from what is with the newer.
    """
    return {
        **asdict(source),
        "state": "LOADING",
        "reason": "",
        "models": [],
        "imported": {},
        "parity": 0,
        "is_rolled": False,
        **more,
    }


def find(path: str) -> list[ModelSource]:
    """The sources at ``PATH`` or ``PATH@POOL``.

    A folder is a model repository: ``NAME/VERSION/model.py``, all versions that it has, and
    files that lie in it as they are, ``NAME.pt``, each version 1 of its model. Python files whose
    names begin with an underscore are no models.

    Raises:
        ConfigError: nothing that can be served is there.
    """
    text, pool = _and_pool(path)
    location = Path(text).resolve()
    if location.is_file():
        return [_flat(location, _kind(location), pool)]
    if not location.is_dir():
        raise ConfigError(f"there is no model at {text}: name a file, or a folder of models")
    found = [source for one in sorted(location.iterdir()) for source in _inside(one, pool)]
    if not found:
        raise ConfigError(
            f"the folder {text} holds no model: it must have NAME/1/model.py or NAME.pt or "
            "the like in it"
        )
    return found


def _and_pool(path: str) -> tuple[str, str]:
    """``PATH@POOL``; a path that is there as it is written may have that sign in it, too."""
    text, sign, pool = path.rpartition("@")
    if not sign or "/" in pool or Path(path).exists():
        return path, ""
    return text, pool


def find_all(paths: Sequence[str]) -> list[ModelSource]:
    """The sources at several paths."""
    return [source for path in paths for source in find(path)]


def in_pools(sources: Sequence[ModelSource], pools: Sequence[str]) -> list[ModelSource]:
    """The same sources, each in a pool that there is: the first, unless it names one.

    Raises:
        ConfigError: one names a pool that there is not.
    """
    for source in sources:
        if source.pool and source.pool not in pools:
            raise ConfigError(
                f"{source.path} is for the pool {source.pool!r}, and the helpers form "
                f"{', '.join(pools)}: name one of those, or add it to --helpers"
            )
    return [replace(source, pool=source.pool or pools[0]) for source in sources]


def _flat(path: Path, kind: str, pool: str) -> ModelSource:
    """A file outside a repository; a Python file names its models itself."""
    return ModelSource(str(path), kind, "" if kind == "python" else path.stem, "1", pool)


def _inside(path: Path, pool: str) -> list[ModelSource]:
    """What a folder's entry holds."""
    if path.name.startswith((".", "_")):
        return []
    if path.is_dir():
        return _versions(path, pool)
    kind = KINDS.get(path.suffix)
    return [_flat(path, kind, pool)] if kind is not None else []


def _versions(folder: Path, pool: str) -> list[ModelSource]:
    found = []
    for inner in sorted(folder.iterdir()):
        if not inner.is_dir() or not re.fullmatch(r"[1-9][0-9]*", inner.name):
            continue
        files = sorted(
            file for file in inner.iterdir() if file.stem == "model" and file.suffix in KINDS
        )
        if len(files) > 1:
            raise ConfigError(
                f"{inner} holds {' and '.join(file.name for file in files)}: leave one of them"
            )
        for file in files:
            found.append(ModelSource(str(file), KINDS[file.suffix], folder.name, inner.name, pool))
    return found


def _kind(path: Path) -> str:
    kind = KINDS.get(path.suffix)
    if kind is None:
        raise ConfigError(
            f"{path.name} is not a model that can be served: its name must end in "
            f"{' or '.join(KINDS)}"
        )
    return kind
