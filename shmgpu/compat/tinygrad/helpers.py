"""tinygrad's helpers that its examples import: ``getenv``, ``colored``, ``trange``.

Owns these three. Never prints but for a progress line, to stderr.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

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
        self._said = str(options.get("desc", ""))
        self._done = 0

    def __iter__(self) -> Iterator[int]:
        for place in range(self._n):
            yield place
            self._done = place + 1
            self._show()
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def set_description(self, desc: str) -> None:
        """What is said beside it."""
        self._said = desc
        self._show()

    def _show(self) -> None:
        if sys.stderr.isatty():
            print(f"\r{self._said} {self._done}/{self._n}", end="", file=sys.stderr, flush=True)
