"""Mutations that no test can see, each with the reason why.

A remark names the file, the line as it stands (without the spaces around it), the line that the
mutation makes of it, and why nobody can tell them apart. One whose line is gone matches nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """One remark."""

    file: str
    line: str
    becomes: str
    why: str


UNSEEN: list[Unseen] = []
