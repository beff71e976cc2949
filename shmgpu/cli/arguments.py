"""What arguments of commands may be: readers that argparse calls.

Owns how a number, a number of seconds, a setting, pools and devices are written on a command line.
What they cannot read, argparse tells in a sentence, with status 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

from shmgpu.common import config, devices
from shmgpu.errors import ConfigError

# What a command adds itself to.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
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


def setting(name: str) -> Callable[[str], Any]:
    """A reader of a setting's text, whose complaints are argparse's."""

    def parse(text: str) -> Any:
        try:
            return config.SETTINGS[name].parse(text, name)
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
