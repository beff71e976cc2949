"""Triton's shared-memory utilities, where setuptools has no ``pkg_resources`` any more.

They import it for one function, which gives the path of the library beside them.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import sys
import types
from typing import Any

import pytest


def load() -> Any:
    """The module ``tritonclient.utils.shared_memory``; skips the test without tritonclient."""
    pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed")
    if importlib.util.find_spec("pkg_resources") is None:
        stand_in: Any = types.ModuleType("pkg_resources")
        stand_in.resource_filename = lambda package, name: str(
            importlib.resources.files(package) / name
        )
        sys.modules["pkg_resources"] = stand_in
        try:
            return _module()
        finally:
            del sys.modules["pkg_resources"]
    return _module()


def _module() -> Any:
    import tritonclient.utils.shared_memory

    return tritonclient.utils.shared_memory
