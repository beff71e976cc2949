"""What users and programs that join a broker may use at most, from a small TOML file.

Owns the file's format: a table ``[default]``, and tables ``[user.NAME]`` and ``[program.NAME]``,
each with any of ``arena``, ``parked``, ``rate``, ``weight`` and ``window``. A value for a user or
program overrides the default. Where both a user and a program have one, the smaller applies: the
kernel vouches for the user, but a program chooses its own name. Never enforces a quota; C does
(csrc/broker/quota.h).
"""

from __future__ import annotations

import os
import pathlib
import pwd
import sys
from collections.abc import Mapping
from typing import Any

from shmgpu import core
from shmgpu.common import parsers
from shmgpu.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - one of the two runs
    import tomli as tomllib

NAME = "quotas.toml"
LONGEST = 63  # bytes of a program's name that the handshake keeps

Row = dict[str, Any]


def _whole(most: int) -> Any:
    def parse(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(f"{name} must be a whole number from 1 to {most}, not {value!r}")
        return value

    return parse


def _bytes(value: Any, name: str) -> int:
    size = parsers.parse_bytes(value, name)
    if size == 0:
        raise ConfigError(f"{name} is 0, which would leave nothing: omit it for no limit")
    return size


# key of the file -> member of shm_quota_t, how it is read
KEYS = {
    "arena": ("arena_bytes", _bytes),
    "parked": ("parked_bytes", _bytes),
    "rate": ("calls_per_second", _whole(core.MAX_RATE)),
    "weight": ("weight", _whole(core.MAX_WEIGHT)),
    "window": ("window", _whole(core.MAX_WINDOW)),
}


def path_of(given: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """The file named; else the user's own where there is one, else None."""
    if given is not None:
        return pathlib.Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    found = pathlib.Path(base, "shmgpu", NAME)
    try:
        return found if found.is_file() else None
    except OSError:  # a folder that is closed to this user: there may be limits, and read() says so
        return found


def read(path: pathlib.Path | None) -> list[Row]:
    """Rows for :func:`core.set_quotas`; none where there is no file.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds what means nothing.
    """
    if path is None:
        return []
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} is not TOML ({error}); an entry is a line [user.alice], then window = 32"
        ) from error
    try:
        return _rows(found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _rows(found: Mapping[str, Any]) -> list[Row]:
    unknown = sorted(set(found) - {"default", "user", "program"})
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} means nothing: write [default], [user.NAME] or [program.NAME]"
        )
    rows = [_row(found["default"], "default")] if "default" in found else []
    for name, limits in _table(found.get("user", {}), "user").items():
        rows.append({**_row(limits, f"user.{name}"), "uid": _uid(name), "has_uid": 1})
    for name, limits in _table(found.get("program", {}), "program").items():
        if not name or len(name.encode()) > LONGEST:
            raise ConfigError(f"program.{name!r} must be a name of 1 to {LONGEST} bytes")
        rows.append({**_row(limits, f"program.{name}"), "program": name})
    if len(rows) > core.MAX_QUOTAS:
        raise ConfigError(f"there are {len(rows)} tables: use {core.MAX_QUOTAS} or fewer")
    return rows


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be tables: write [{name}.NAME]")
    return value


def _row(limits: Any, name: str) -> Row:
    row: Row = {}
    for key, value in _table(limits, name).items():
        if key not in KEYS:
            raise ConfigError(f"{name}.{key} means nothing: use {', '.join(KEYS)}")
        member, parse = KEYS[key]
        row[member] = parse(value, f"{name}.{key}")
    return row


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(
            f"user.{name}: there is no user of that name here: write a name or a numeric id"
        ) from None
