"""Settings: an argument beats a ``SHMGPU_*`` variable, which beats the default.

Owns the table of settings and how their text is read. Knows nothing of what they do.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.errors import ConfigError

PREFIX = "SHMGPU_"

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
            raise ConfigError(f"{name}={value!r} is no size: write it like 64MiB, 1GB or 4096")
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


def _whole(low: int, high: int) -> Callable[[Any, str], int]:
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


parse_slots = _whole(0, core.MAX_CHILDREN)
parse_count = _whole(1, (1 << 31) - 1)


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


def _one_of(*choices: str) -> Callable[[Any, str], str]:
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
        raise ConfigError(f"{name}={value!r} is no path: pass the file's, as text")
    return path


def _text(value: Any, name: str) -> str:
    return str(value)


@dataclass(frozen=True)
class Setting:
    """One setting: how it is read, its default, and what it means."""

    parse: Callable[[Any, str], Any]
    default: Any
    meaning: str


SETTINGS: dict[str, Setting] = {
    "children": Setting(_whole(1, core.MAX_CHILDREN), 1, "child processes to fork"),
    "helpers": Setting(_whole(1, core.MAX_HELPERS), 1, "helper processes to fork"),
    "arena": Setting(parse_bytes, "64MiB", "bytes of each child's arena"),
    "window": Setting(_whole(1, core.MAX_WINDOW), 64, "messages a child may have outstanding"),
    "trace_records": Setting(_whole(0, core.MAX_TRACE), 65536, "calls that the trace remembers"),
    "prefault": Setting(parse_bool, False, "populate every arena at launch"),
    "huge_pages": Setting(parse_bool, False, "ask for transparent huge pages"),
    "grace": Setting(parse_seconds, 5.0, "seconds a drain waits before TERM, and TERM before KILL"),
    "scratch": Setting(parse_bytes, 0, "bytes of each helper's scratch region"),
    "threads": Setting(_whole(0, 1024), 0, "threads of a CPU helper; 0: (cores - 1) / helpers"),
    "restart": Setting(
        _one_of("never", "on-failure"), "never", "what becomes of a child that failed"
    ),
    "auto": Setting(
        _one_of("join", "start", "never"), "start", "what a first call outside a broker does"
    ),
    "idle_timeout": Setting(
        parse_seconds, 60.0, "how long a broker that a first call started outlives its programs"
    ),
    "max_children": Setting(
        _whole(1, core.MAX_CHILDREN), None, "programs at once in a broker that is started for many"
    ),
    "max_restarts": Setting(_whole(1, 1000000), 5, "how often one child is restarted at most"),
    "seed": Setting(_whole(0, (1 << 63) - 1), None, "seed from which each rank's is derived"),
    "progress": Setting(parse_bool, True, "show progress bars on a terminal"),
    "log": Setting(_text, "", "level at which the shmgpu logger prints to stderr"),
    "parked": Setting(parse_bytes, "256MiB", "bytes of too-large results a helper may keep"),
    "dump_arenas": Setting(parse_bool, False, "core dumps hold arenas and scratch regions"),
    "debug": Setting(parse_bool, False, "record what tensors do, for shmgpu.debug"),
    "debug_dir": Setting(_text, "", "folder where each child leaves its debug trace at its end"),
    "tick_rate_ms": Setting(_whole(1, 60_000), 10, "milliseconds of a tick of the debug trace"),
    "resident": Setting(
        parse_bytes, 0, "bytes of tensors that a helper holds for one child at most; 0: no limit"
    ),
    "gpu_memory": Setting(parse_bytes, 0, "bytes of device memory a helper may use; 0: all"),
}

given: dict[str, Any] = {}  # what launch() or init() were told and its children ask for later

_KNOWN_ELSEWHERE = {"BENCH", "CI", "TEST", "DEMO", "BUILD"}  # prefixes other programs may read


def give(**settings: Any) -> None:
    """Settings that hold for this process and the children it forks, until ``given`` is cleared."""
    for name, value in settings.items():
        if value is not None:
            given[name] = SETTINGS[name].parse(value, name)


def resolve(name: str, argument: Any = None) -> Any:
    """The value of a setting: the argument unless it is None, else the variable, else the default.

    Raises ConfigError in a sentence that names where the value came from.
    """
    setting = SETTINGS[name]
    if argument is None:
        argument = given.get(name)
    if argument is not None:
        return setting.parse(argument, name)
    variable = PREFIX + name.upper()
    text = os.environ.get(variable)
    if text is not None and text != "":
        return setting.parse(text, variable)
    if setting.default is None:
        return None
    return setting.parse(setting.default, name)


_warned_of: set[str] = set()


def known_variables() -> list[str]:
    """The SHMGPU_* variables that mean something."""
    known = {PREFIX + name.upper() for name in SETTINGS}
    known.add(PREFIX + "SOCKET")  # a broker's: see attach/endpoint.py
    if core.HAS_FAULTS:
        known.add(PREFIX + "FAULTS")
    return sorted(known)


def unknown_variables() -> list[str]:
    """Those of the environment that mean nothing, misspelt ones above all."""
    known = set(known_variables())
    return [
        name
        for name in sorted(os.environ)
        if name.startswith(PREFIX)
        and name not in known
        and name.removeprefix(PREFIX).split("_")[0] not in _KNOWN_ELSEWHERE
    ]


def warn_unknown() -> None:
    """Warn of variables that mean nothing, once in a process of each."""
    for name in unknown_variables():
        if name in _warned_of:
            continue
        import difflib  # here, because most programs do without

        _warned_of.add(name)
        known = [variable.removeprefix(PREFIX) for variable in known_variables()]
        meant = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
        instead = PREFIX + (meant[0] if meant else f"{{{','.join(known)}}}")
        warnings.warn(
            f"the environment variable {name} means nothing to shmgpu: unset it, or use {instead}",
            stacklevel=3,
        )


def leave_unknown() -> None:
    """Warn of none of them any more: whoever started this process has."""
    _warned_of.update(unknown_variables())
