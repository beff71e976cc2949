"""How many workers a server in GT's spelling has: a file beside its socket.

Owns that file: how many helpers the server has of its own, and the processes that each stand for
one more. Whoever changes it holds its lock, and has the broker make as many helpers. Never counts a
process that has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from shmgpu.attach import control, endpoint
from shmgpu.errors import NotRunning

MOST = 16  # helpers that a server may come to have


def _file(path: pathlib.Path) -> pathlib.Path:
    return endpoint.beside(path, ".workers")


@contextlib.contextmanager
def _known(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """What the file says, without processes that are gone; written again at the end."""
    try:
        file = open(_file(path), "r+", encoding="utf-8")
    except FileNotFoundError:
        raise NotRunning(
            f"no server of this user listens at {path}: start it with "
            "python -m shmgpu.compat.gt.server"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: dict[str, Any] = json.loads(file.read())
        known["workers"] = {
            pid: name for pid, name in known["workers"].items() if os.path.exists(f"/proc/{pid}")
        }
        yield known
        file.seek(0)
        file.truncate()
        file.write(json.dumps(known))


def begin(path: pathlib.Path, own: int) -> None:
    """A server has started with so many helpers of its own."""
    _file(path).write_text(json.dumps({"own": own, "workers": {}}), encoding="utf-8")


def end(path: pathlib.Path) -> None:
    """The server is gone."""
    _file(path).unlink(missing_ok=True)


def join(path: pathlib.Path, name: str) -> int:
    """This process stands for one helper more; how many there are now.

    Raises:
        NotRunning: no server listens there.
        ConfigError: the server has as many as it may have.
    """
    with _known(path) as known:
        return _scale(path, known, {**known["workers"], str(os.getpid()): name})


def leave(path: pathlib.Path) -> None:
    """This process stands for none any more."""
    with _known(path) as known:
        others = {k: v for k, v in known["workers"].items() if k != str(os.getpid())}
        _scale(path, known, others)


def _scale(path: pathlib.Path, known: dict[str, Any], workers: dict[str, str]) -> int:
    count: int = known["own"] + len(workers)
    control.scale(max(count, 1), path=path)  # a broker has one at least
    known["workers"] = workers
    return count
