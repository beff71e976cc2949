"""For ``--reload``: modules that models import and that their author edits.

Owns which modules these are (not Python's, not installed, not ours), what their files were like
when they were imported, and how they are forgotten so that the next import reads them anew. Never
imports anything.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import sysconfig

from shmgpu.common.module_loader import OURS

Stamp = tuple[int, int]  # of a file: time of the last change, and size

_INSTALLED = ("/site-packages/", "/dist-packages/")
_OTHERS = (OURS, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")))
SERVED = "shmgpu_served_"  # modules of this name are models' own files, which are read at each load


def stamp_of(path: str) -> Stamp | None:
    """Of a file as it is now; None: it is gone, or being replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class ImportedModules:
    """Those of this process."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp | None] = {}

    def forget_changed(self) -> None:
        """Before models are loaded: where a file has changed, all such modules are imported anew.

        All of them, because those that have not changed refer to those that have.
        """
        modules = _own()
        now = {path: stamp_of(path) for path in modules.values()}
        changed = {path for path in now if now[path] != self._stamps.get(path, now[path])}
        if not changed:
            return
        for name in modules:
            del sys.modules[name]
        for path in changed:  # kept bytecode is matched by length and whole seconds
            with contextlib.suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(path))
        importlib.invalidate_caches()
        self._stamps = now

    def stamps(self) -> dict[str, Stamp]:
        """By file, as it was when its module was imported, or a moment before."""
        paths = set(_own().values())
        for path in paths - self._stamps.keys():
            self._stamps[path] = stamp_of(path)
        found = {path: self._stamps[path] for path in paths}
        return {path: stamp for path, stamp in found.items() if stamp is not None}


def _own() -> dict[str, str]:
    """Their files, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        if path.startswith(_OTHERS) or any(part in path for part in _INSTALLED):
            continue
        if not name.startswith((SERVED, "__m")):  # __main__, __mp_main__
            found[name] = path
    return found
