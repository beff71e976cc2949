"""The message that asks for a program: what a child writes and a helper reads beside the program.

Owns the form of its head, and what a child reads from a failure: that the helper is another one
than it thought, which operation failed, or which tensors were never made. After HEAD come the
handles that are used and those that are freed, 8 bytes each, then the plain numbers. Never sends
and never computes.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable

from shmgpu.errors import BadParams
from shmgpu.ops.program import Program

# number of the program, options, first new handle, and how many handles are used and freed
HEAD = struct.Struct("<IIqII")
COMMITS = 1 << 6  # an option: what members of a gang run takes effect on all, or on none
SAYS = 1 << 7  # another: what is read is written, and said to be there, as soon as it is


class UnknownProgram(BadParams):
    """The helper was replaced since it was told: send the program again."""

    def __init__(self) -> None:
        super().__init__("this helper does not know that program")


class UnknownTensor(BadParams):
    """The helper that held the tensor is gone, and the tensor with it."""

    def __init__(self) -> None:
        super().__init__("this helper does not hold that tensor")


def says_early(head: bytes) -> bool:
    """Whether the message with that head asks for it."""
    return len(head) >= HEAD.size and bool(HEAD.unpack_from(head)[1] & SAYS)


# What a step raises comes out of a line with the step's number, from 1, so a traceback names it.
SOURCE = "<program>"
_FAILED_LINE = re.compile(rf'File "{SOURCE}", line (\d+), in ')
_NOT_MADE = re.compile(r"never made \(([\d ]+)\): ", re.DOTALL)


def failed_step(traceback_text: str) -> int | None:
    """The step of the program that raised; None where the traceback does not tell."""
    found = _FAILED_LINE.search(traceback_text)
    return int(found[1]) - 1 if found else None


def not_made(handles: Iterable[int], why: str) -> str:
    """The text that :func:`handles_not_made` reads."""
    return f"never made ({' '.join(map(str, handles))}): {why}"


def handles_not_made(message: str) -> tuple[frozenset[int], str]:
    """Which tensors a program was given that there are not, and why; none in any other text."""
    found = _NOT_MADE.match(message)
    if found is None:
        return frozenset(), message
    return frozenset(map(int, found[1].split())), message[found.end() :]


@functools.lru_cache(maxsize=256)
def handles(count: int) -> struct.Struct:
    """So many handles."""
    return struct.Struct(f"<{count}q")


def plain_numbers(program: Program) -> struct.Struct:
    """Its plain numbers: 8 bytes each."""
    kinds = [
        "d" if spec.dtype.name.startswith(("float", "bfloat")) else "q" for spec in program.numbers
    ]
    return struct.Struct("<" + "".join(kinds))
