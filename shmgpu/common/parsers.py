"""How the text of settings is read: sizes, switches, numbers, seconds, paths.

Owns the readers, each a function of a value and the name of its source, which errors show. Never
knows which settings there are.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

from shmgpu import core
from shmgpu.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")


def shortened(value: Any) -> str:
    """A value as an error shows it; some numbers have more digits than Python prints."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}..."


def parse_bytes(value: int | str, name: str = "size") -> int:
    """Bytes of ``67108864``, ``"64MiB"``, ``"1.5 GB"``; raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ConfigError(f"{name} must be bytes or text such as '64MiB', not {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.match(value)
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ConfigError(f"{name}={value!r} is not a size: write it like 64MiB, 1GB or 4096")
        size = (
            int(float(match.group(1)) * unit)
            if "." in match.group(1)
            else (int(match.group(1)) * unit)
        )
    if not 0 <= size < 1 << 46:
        raise ConfigError(f"{name}={shortened(value)} is out of range: use 0 to 64 TiB")
    return size


def parse_bool(value: Any, name: str = "switch") -> bool:
    """True or False of a bool, ``1/0``, ``yes/no``, ``on/off``, ``true/false``."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"1", "yes", "on", "true"}:
        return True
    if text in {"0", "no", "off", "false", ""}:
        return False
    raise ConfigError(f"{name}={value!r} is neither yes nor no: use 1 or 0")


def whole(low: int, high: int) -> Callable[[Any, str], int]:
    """A reader of whole numbers from ``low`` to ``high``; it raises ConfigError."""

    def parse(value: Any, name: str) -> int:
        try:
            number = int(value)
            if isinstance(value, bool) or (isinstance(value, float) and value != number):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(
                f"{name} must be a whole number from {low} to {high}, not {value!r}"
            ) from None
        if not low <= number <= high:
            raise ConfigError(f"{name}={shortened(number)} is out of range: use {low} to {high}")
        return number

    return parse


parse_slots = whole(0, core.MAX_CHILDREN)
parse_count = whole(1, (1 << 31) - 1)


def parse_seconds(value: Any, name: str) -> float:
    """Seconds, 0 to 1e9; raises ConfigError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be seconds, not {value!r}") from None
    except OverflowError:
        number = math.inf
    if not 0 <= number < 1e9:
        raise ConfigError(f"{name}={shortened(value)} is out of range: use 0 to 1e9 seconds")
    return number


def one_of(*choices: str) -> Callable[[Any, str], str]:
    """A reader of one of these words; it raises ConfigError."""

    def parse(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
        return str(value)

    return parse


def parse_path(value: Any, name: str) -> str:
    """A file's path, of text or ``os.PathLike``; raises ConfigError.

    A number is none, though ``open`` would take it for a descriptor, and close that.
    """
    try:
        path = os.fsdecode(value)
        os.fsencode(path)
    except (TypeError, ValueError):
        path = ""
    if not path or "\0" in path:
        raise ConfigError(f"{name}={value!r} is not a path: pass the file's, as text")
    return path


def parse_path_or_none(value: Any, name: str) -> str:
    """As :func:`parse_path`; empty text stands for none."""
    path = parse_text(value, name)
    return parse_path(path, name) if path else ""


def parse_text(value: Any, name: str) -> str:
    """Text, or a path as text; raises ConfigError.

    Whatever else there is can be made text, too, and would be the name of a folder.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r} is not text: pass it as a string")
    return str(value)
