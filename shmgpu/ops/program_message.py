"""The message that has a program run: what a child writes and a helper reads beside the program.

Owns the form of its head, and the errors by which a child knows that a helper is another one than
it thought. After HEAD come the handles that are used and those that are freed, 8 bytes each,
then the plain numbers. Never sends and never computes.
"""

from __future__ import annotations

import functools
import struct

from shmgpu.errors import BadParams
from shmgpu.ops.program import Program

# number of the program, options, first new handle, and how many handles are used and freed
HEAD = struct.Struct("<IIqII")


class UnknownProgram(BadParams):
    """The helper was replaced since it was told: send the program again."""

    def __init__(self) -> None:
        super().__init__("this helper does not know that program")


class UnknownTensor(BadParams):
    """The helper that held the tensor is gone, and the tensor with it."""

    def __init__(self) -> None:
        super().__init__("this helper does not hold that tensor")


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
