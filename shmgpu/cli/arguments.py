"""How commands read their arguments: readers that argparse calls, and flags made of settings.

Owns the command line's notation for numbers, seconds, settings, pools and devices. What a reader
refuses, argparse reports in a sentence, with exit status 2. Never acts on an argument.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shmgpu.common import config, devices, settings
from shmgpu.errors import ConfigError

# What a command adds itself to.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A number of seconds, up to an hour."""
    try:
        read = float(text)
    except ValueError:
        read = -1.0
    if not 0 < read <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return read


def add_settings(
    parser: argparse.ArgumentParser, command: str, defaults: Mapping[str, str]
) -> None:
    """A flag for each setting that the command takes; None where it is not given.

    ``defaults`` are shown: what the command does without a flag, by the setting's name.
    """
    for row in settings.ROWS:
        if not row.is_taken_by(command):
            continue
        flag, text = "--" + row.name.replace("_", "-"), row.meaning.replace("`", "")
        if not row.metavar:
            parser.add_argument(flag, action="store_true", default=None, help=text)
            continue
        read = _READERS.get((row.name, command)) or _READERS.get(row.name) or _reader(row.name)
        if read is pools:
            text += "; or POOL=N,POOL=N"
        if row.name in defaults:
            text += f" ({defaults[row.name]})"
        parser.add_argument(flag, type=read, metavar=row.metavar, help=text)


def _reader(name: str) -> Callable[[str], Any]:
    """A reader of a setting's text, whose complaints are argparse's."""

    def parse(text: str) -> Any:
        try:
            return config.read(name, text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def pools(text: str) -> int | dict[str, int]:
    """``2``, or ``small=1,large=2``."""
    number = whole(1, 64)
    if "=" not in text:
        return number(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    return {name.strip(): number(count.strip()) for name, _, count in pairs}


def device_names(text: str) -> list[str]:
    """``cuda:0,cuda:1``, or ``cpu``."""
    try:
        return [devices.name_of(name.strip()) for name in text.split(",")]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# Settings, some of one command only, whose text has a form of its own.
_READERS: dict[str | tuple[str, str], Callable[[str], Any]] = {
    "devices": device_names,
    "session": str,
    "max_helpers": pools,
    ("helpers", "up"): pools,
}
