"""A progress bar on a terminal, nothing elsewhere.

A thin wrapper: tqdm draws if it is installed, plain text otherwise. Owns what is drawn; never has a
thread: tqdm's monitor thread is switched off, because the parent forks replacements at any time.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from shmgpu.common import config


class ProgressBar:
    """Counts steps towards a total; draws only where a person is looking.

    Args:
        total: how many steps there will be; None when nobody knows.
        label: what is being counted, a few words.
        unit: one step's name.
        show: True or False to insist; None for "on a terminal only".
        delay: seconds before the first drawing, so that short work draws nothing.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        unit: str = "it",
        show: bool | None = None,
        delay: float = 0.0,
        file: TextIO | None = None,
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.count = 0
        self._file = sys.stderr if file is None else file
        self._drawn = False
        self._started = time.monotonic()
        self._last = self._started + delay - 0.1
        self._tqdm: Any = None
        if show is None:
            show = config.resolve("progress") and _is_terminal(self._file)
        self.shown = bool(show)
        if self.shown:
            self._tqdm = _make_tqdm(total, label, unit, delay, self._file)

    def update(self, steps: int = 1) -> None:
        """Count steps."""
        self.count += steps
        if not self.shown:
            return
        if self._tqdm is not None:
            self._tqdm.update(steps)
            return
        now = time.monotonic()
        if now - self._last >= 0.1:
            self._last = now
            self._draw()

    def describe(self, label: str) -> None:
        """Say something else from the next drawing on."""
        self.label = label
        if self._tqdm is not None:
            self._tqdm.set_description_str(label, refresh=False)

    def _draw(self) -> None:
        seconds = time.monotonic() - self._started
        done = f"{self.count}/{self.total}" if self.total is not None else f"{self.count}"
        self._file.write(f"\r{self.label}: {done} {self.unit} in {seconds:.1f} s")
        self._file.flush()
        self._drawn = True

    def close(self) -> None:
        """End the line, if one was drawn."""
        if self._tqdm is not None:
            self._tqdm.close()
            self._tqdm = None
        elif self._drawn:
            self._draw()
            self._file.write("\n")
            self._file.flush()
        self.shown = False
        self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def tell_terminal(sentence: str) -> bool:
    """Print it to standard error where that is a terminal; whether it was."""
    try:
        if not sys.stderr.isatty():
            return False
        print(sentence, file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):  # there is none
        return False
    return True


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _make_tqdm(total: int | None, label: str, unit: str, delay: float, file: TextIO) -> Any:
    try:
        import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None

    class _Quiet(tqdm.tqdm):  # type: ignore[misc,unused-ignore]
        monitor_interval = 0

    return _Quiet(total=total, desc=label, unit=unit, delay=delay, file=file, leave=True)
