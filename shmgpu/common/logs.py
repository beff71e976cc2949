"""Logging: the logger ``shmgpu``, whose records carry the role that made them.

Owns the logger's filter (``record.role`` is ``parent``, ``helper 0``, ``child 3``) and the
optional handler that ``SHMGPU_LOG=INFO`` asks for. Never touches the root logger.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time

from shmgpu.common import config
from shmgpu.errors import ConfigError

logger = logging.getLogger("shmgpu")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")  # that SHMGPU_LOG may name

_role = "user"


class _RoleFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.role = _role
        record.processName = _role
        return True


logger.addFilter(_RoleFilter())


class Pause:
    """Lets one of many through in a while, so that what happens again and again fills no log.

    Args:
        seconds: from one to the next.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._left_out = 0

    def passed(self) -> int | None:
        """How many were left out since the last one that passed; None: so is this one."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        self._next = now + self._seconds
        return left_out


def write_by_line() -> None:
    """Write out each line as it is printed, also into a file that somebody reads meanwhile."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def date_records() -> None:
    """Have what no handler takes begin with its time: in a process that writes to a file."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("%(asctime)s %(message)s"))


def set_role(name: str) -> None:
    """Name the role of this process in every later record."""
    global _role
    _role = name


def role() -> str:
    """Name of this process's role."""
    return _role


def configure() -> None:
    """Print records from the level named by SHMGPU_LOG on to standard error, once."""
    level = config.resolve("log").upper()
    if not level:
        return
    if level not in LEVELS:
        raise ConfigError(
            f"SHMGPU_LOG={level!r} is not a level: use DEBUG, INFO, WARNING, ERROR or CRITICAL"
        )
    logger.setLevel(level)
    if any(getattr(handler, "shmgpu", False) for handler in logger.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s shmgpu[%(role)s] %(levelname)s: %(message)s")
    )
    handler.shmgpu = True  # type: ignore[attr-defined]
    logger.addHandler(handler)
