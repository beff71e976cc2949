"""A source folder that was never built gives way to an installed package.

Inside a checkout ``import shmgpu`` finds the folder of that name first, also where the package was
installed with pip and the compiled core lies elsewhere. Owns the decision, before any other module
of the package is imported, and never mixes the two: Python files and compiled core come from one
installation.
"""

from __future__ import annotations

import filecmp
import importlib.machinery
import importlib.util
import os
import sys
import warnings
from typing import Any

PACKAGE = __name__.partition(".")[0]
HERE = os.path.dirname(os.path.abspath(__file__))


def is_built(folder: str) -> bool:
    """Whether the compiled core lies in that folder."""
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    return any(os.path.exists(os.path.join(folder, "_core" + suffix)) for suffix in suffixes)


def give_way() -> None:
    """Where this folder has no compiled core, put another that has one into ``sys.modules``."""
    if is_built(HERE):
        return
    spec = _other()
    if spec is None or spec.loader is None:
        return  # whoever imports the compiled core says what to do
    folder = os.path.dirname(str(spec.origin))
    if _differs(folder):
        warnings.warn(
            f"the compiled core of {HERE} has not been built, so the installed package "
            f"{folder} is used, whose files differ: run make in the checkout to use those, or "
            "reinstall it to use them everywhere",
            stacklevel=3,
        )
    shadow = sys.modules[PACKAGE]
    for name in [name for name in sys.modules if name.startswith(PACKAGE + ".")]:
        del sys.modules[name]
    module = importlib.util.module_from_spec(spec)
    # The import system returns what stands here when this folder's own __init__ has ended.
    sys.modules[PACKAGE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules[PACKAGE] = shadow
        raise


def what_to_do() -> str:
    """The end of a sentence for users without a compiled core: how to get one."""
    import sysconfig  # not before it is needed: each import of the package would pay

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "this is a free-threaded Python, on which shmgpu does not run yet: use the ordinary "
            f"build of {sys.version_info.major}.{sys.version_info.minor}"
        )
    checkout = os.path.dirname(HERE)
    if not os.path.exists(os.path.join(checkout, "csrc", "build_core.py")):
        return (
            "install the package with pip on Linux (x86-64 or aarch64), or run `make` in a checkout"
        )
    if is_built(HERE):
        return f"run `make` in {checkout}, which builds it for this Python"
    return (
        f"{HERE} is the source, and this Python has no other installation: run `make` in "
        f"{checkout} and use the Python in its .venv, or run `pip install {checkout}` with this one"
    )


def _other() -> Any:
    """The spec of the first built package that importers find elsewhere; None where none is."""
    path = [entry for entry in sys.path if _package_in(entry) != os.path.realpath(HERE)]
    for finder in list(sys.meta_path):
        if finder is importlib.machinery.PathFinder:
            found = [importlib.machinery.PathFinder.find_spec(PACKAGE, [entry]) for entry in path]
        else:
            find = getattr(finder, "find_spec", None)
            found = [find(PACKAGE, None, None)] if find is not None else []
        for spec in found:
            if spec is not None and spec.origin and is_built(os.path.dirname(spec.origin)):
                return spec
    return None


def _package_in(entry: str) -> str:
    return os.path.realpath(os.path.join(entry, PACKAGE))


def _differs(folder: str) -> bool:
    """Whether a module here is another one there."""
    names = [
        os.path.relpath(os.path.join(folder, name), HERE)
        for folder, _, files in os.walk(HERE)
        for name in files
        if name.endswith(".py")
    ]
    _, changed, missing = filecmp.cmpfiles(HERE, folder, names, shallow=False)
    return bool(changed or missing)
