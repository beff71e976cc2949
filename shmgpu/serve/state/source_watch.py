"""Files of models that change while a server runs, for those who write them: ``--reload``.

Owns which files are looked at: those of the sources, Python files and configurations beside them,
and those of modules that helpers have imported for them. Never loads anything: a change asks for a
reload of all models, as SIGHUP does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shmgpu.common.logs import logger
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.imported_modules import Stamp, stamp_of

BESIDE = (".py", ".json", ".toml")

Seen = dict[str, Stamp]  # by path


class SourceWatch:
    """Looks at the files of the sources that a control table has.

    Args:
        table: of the server.
        loaded: the files as they were before any helper loaded them. What is edited while a server
            starts, or while its first worker is being replaced, differs from that.
    """

    def __init__(self, table: ControlTable, loaded: Seen) -> None:
        self._table = table
        state = table.read()[1]
        self._seen = seen(state)
        self._loaded = {**loaded, **_imported(state)}

    def look(self) -> None:
        """Ask for a reload if files have changed, and are what they were at the last look."""
        state = self._table.read()[1]
        found = seen(state)
        # A module that is imported for the first time was like this then.
        before = self._loaded = {**_imported(state), **self._loaded}
        if found not in (before, {}) and found == self._seen:
            changed = [name for name in {*found, *before} if found.get(name) != before.get(name)]
            logger.info("%s changed: all models are reloaded", ", ".join(sorted(changed)))
            self._loaded = found
            self._table.ask_reload()
        self._seen = found


def seen(state: dict[str, Any]) -> Seen:
    """The files of a state's sources that there are, as they are now."""
    found: Seen = {}
    paths = {source["path"] for source in state["sources"].values()}
    for name in {*_imported(state), *(name for path in paths for name in _files(path))}:
        stamp = stamp_of(name)
        if stamp is not None:
            found[name] = stamp
    return found


def _imported(state: dict[str, Any]) -> Seen:
    """Files of modules, as they were when helpers imported them."""
    return {
        name: tuple(stamp)
        for source in state["sources"].values()
        for name, stamp in source["imported"].items()
    }


def _files(path: str) -> Iterator[str]:
    yield path
    folder = os.path.dirname(path)
    for beside in (folder, os.path.dirname(folder)) if _is_version(folder) else (folder,):
        try:
            names = os.listdir(beside)
        except OSError:
            continue
        yield from (os.path.join(beside, name) for name in names if name.endswith(BESIDE))


def _is_version(folder: str) -> bool:
    """Whether a folder is a version of a repository's model, whose configuration lies above."""
    return os.path.basename(folder).isdecimal()
