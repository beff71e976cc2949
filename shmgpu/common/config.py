"""The value of a setting: an argument beats a ``SHMGPU_*`` variable, which beats the default.

Owns the values given to this process, and the warning about unknown variables. Never acts on a
setting; :mod:`shmgpu.common.settings` lists them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

from shmgpu import core
from shmgpu.common.settings import PREFIX, ROWS

# Those that have a variable.
SETTINGS = {row.name: row for row in ROWS if row.has_variable}

given: dict[str, Any] = {}  # what launch() or init() were told and its children ask for later

_KNOWN_ELSEWHERE = {"BENCH", "CI", "TEST", "DEMO", "BUILD"}  # prefixes other programs may read


def give(**settings: Any) -> None:
    """Settings that hold for this process and the children it forks, until ``given`` is cleared."""
    for name, value in settings.items():
        if value is not None:
            given[name] = read(name, value)


@contextlib.contextmanager
def taken_back_on_failure() -> Iterator[None]:
    """Within, what is given holds from then on only if nothing raises."""
    before = dict(given)
    try:
        yield
    except BaseException:
        given.clear()
        given.update(before)
        raise


def read(name: str, value: Any, source: str = "") -> Any:
    """A setting's value as its row reads it; raises ConfigError, which names the source."""
    parse = SETTINGS[name].parse
    assert parse is not None
    return parse(value, source or name)


def resolve(name: str, argument: Any = None) -> Any:
    """The value of a setting: the argument unless it is None, else the variable, else the default.

    Raises ConfigError in a sentence that names where the value came from.
    """
    setting = SETTINGS[name]
    if argument is None:
        argument = given.get(name)
    if argument is not None:
        return read(name, argument)
    text = os.environ.get(setting.variable)
    if text is not None and text != "":
        return read(name, text, setting.variable)
    if setting.default is None:
        return None
    return read(name, setting.default)


_warned_of: set[str] = set()


@functools.cache  # who joins asks
def known_variables() -> frozenset[str]:
    """The SHMGPU_* variables that mean something."""
    known = {setting.variable for setting in SETTINGS.values()}
    known.add(PREFIX + "SOCKET")  # a broker's: see attach/endpoint.py
    if core.HAS_FAULTS:
        known.add(PREFIX + "FAULTS")
    return frozenset(known)


def unknown_variables() -> list[str]:
    """Those of the environment that mean nothing, misspelt ones above all."""
    known = known_variables()
    return sorted(
        name
        for name in os.environ
        if name.startswith(PREFIX)
        and name not in known
        and name.removeprefix(PREFIX).split("_")[0] not in _KNOWN_ELSEWHERE
    )


def warn_unknown() -> None:
    """Warn of variables that mean nothing, once in a process of each."""
    for name in unknown_variables():
        if name in _warned_of:
            continue
        import difflib  # here, because most programs do without

        _warned_of.add(name)
        known = [variable.removeprefix(PREFIX) for variable in sorted(known_variables())]
        meant = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
        instead = PREFIX + (meant[0] if meant else f"{{{','.join(known)}}}")
        warnings.warn(
            f"the environment variable {name} means nothing to shmgpu: unset it, or use {instead}",
            stacklevel=3,
        )


def leave_unknown() -> None:
    """Warn of none of them any more: whoever started this process has."""
    _warned_of.update(unknown_variables())
