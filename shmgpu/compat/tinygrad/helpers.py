"""tinygrad's helpers that its examples import: ``getenv``, ``colored``, ``trange``.

Owns these three. Never draws: the progress bar is the package's own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from shmgpu.common.progress import ProgressBar

_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """A variable of the environment, of the default's type."""
    return type(default)(os.environ.get(key, default))


def colored(st: str, color: str | None, background: bool = False) -> str:
    """Text with the terminal's sequences for a colour."""
    if color is None:
        return st
    code = (40 if background else 30) + _COLORS.index(color.lower())
    return f"\x1b[{code}m{st}\x1b[0m"


class trange:
    """``range(n)`` that shows how far it is, on a terminal."""

    def __init__(self, n: int, **options: Any) -> None:
        self._n = n
        self._bar = ProgressBar(n, str(options.get("desc", "")))

    def __iter__(self) -> Iterator[int]:
        with self._bar:
            for place in range(self._n):
                yield place
                self._bar.update()

    def set_description(self, desc: str) -> None:
        """What is said beside it."""
        self._bar.describe(desc)
