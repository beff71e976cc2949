"""Numbers of a command line: each either what its name says, or refused in a few words."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return number


def positive(text: str) -> float:
    """Return a finite number above 0."""
    number = _finite(text)
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def not_negative(text: str) -> float:
    """Return a finite number from 0 on."""
    number = _finite(text)
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is no number")
    return number
