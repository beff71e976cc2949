"""By what names modules and what stands in them are known to other processes.

Owns the two names of a program that is run: ``__main__`` to itself, and to others what it would be
imported as; and whether it is typed as it runs. Never imports a module.
"""

from __future__ import annotations

import os
import sys
from typing import Any

MAIN = {"__main__", "__mp_main__"}  # the program itself; as multiprocessing runs it once more


def is_interactive() -> bool:
    """Whether somebody types the program as it runs: a prompt, a notebook, ``python -i``."""
    if sys.flags.interactive or hasattr(sys, "ps1"):
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "asyncio.__main__"  # which sets no ps1 from 3.13 on


def module_of(thing: Any) -> str:
    """The name by which another program imports the module that a function or class stands in."""
    module = getattr(thing, "__module__", "") or ""
    if module in MAIN:
        return _imported_as(sys.modules.get(module) or sys.modules["__main__"], module)
    return str(module)


def _imported_as(main: Any, name: str) -> str:
    spec = getattr(main, "__spec__", None)
    path: str | None = getattr(main, "__file__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    if path:
        place = os.path.dirname(path) if spec is not None else path  # a folder, or an archive
        return os.path.splitext(os.path.basename(place))[0]
    return name


def class_of(module: str, qualname: str) -> type | None:
    """The class that another process means by these names, if it is here; runs no code.

    The program that is run goes before a module of the same name: functions of the two are not the
    same either, and helpers have those of the program.
    """
    places = [
        main
        for name in MAIN
        if (main := sys.modules.get(name)) is not None and _imported_as(main, name) == module
    ]
    if module in sys.modules:
        places.append(sys.modules[module])
    for place in places:
        found: Any = place
        for part in qualname.split("."):
            found = getattr(found, "__dict__", {}).get(part)
        if isinstance(found, type):
            return found
    return None
