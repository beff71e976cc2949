"""What a helper holds for the children whose programs it runs.

Owns their resident arrays, by handle, and the programs they have sent, by number. A child's handles
and numbers are its own: nobody can name another's.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

from shmgpu import program as programs
from shmgpu.engine.backends import Backend
from shmgpu.engine.compile import Pool, Run, compiled
from shmgpu.engine.plan import Options
from shmgpu.errors import BadParams

MAX_COMPILED = 1024

# number of the program, options, first new handle, and how many handles are used and freed
HEAD = struct.Struct("<IIqII")

UNKNOWN_PROGRAM = "this helper does not know that program"
UNKNOWN_TENSOR = "this helper does not hold that tensor"


class UnknownProgram(BadParams):
    """The helper was replaced since it was told: send the program again."""


class UnknownTensor(BadParams):
    """The helper that held the tensor is gone, and the tensor with it."""


class Ready:
    """A program that can be run, and how its plain numbers are packed."""

    __slots__ = ("numbers", "program", "run")

    def __init__(self, program: programs.Program, run: Run) -> None:
        self.program = program
        self.run = run
        self.numbers = struct.Struct("<" + number_format(program))


def number_format(program: programs.Program) -> str:
    """How its plain numbers are packed: 8 bytes each."""
    return "".join(
        "d" if spec.dtype.name.startswith(("float", "bfloat")) else "q" for spec in program.numbers
    )


class Tenant:
    """One child's share."""

    __slots__ = ("arrays", "programs")

    def __init__(self) -> None:
        self.arrays: dict[int, Any] = {}
        self.programs: dict[int, Ready] = {}


class Engine:
    """Runs the programs of all children that this helper serves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._pool = Pool(backend)
        self._tenants: dict[int, tuple[int, Tenant]] = {}
        self._compiled: OrderedDict[tuple[bytes, int], Ready] = OrderedDict()

    def tenant(self, slot: int, generation: int) -> Tenant:
        """The child's share; that of a predecessor in its place is dropped."""
        held = self._tenants.get(slot)
        if held is None or held[0] != generation:
            held = self._tenants[slot] = (generation, Tenant())
        return held[1]

    def forget(self, slot: int) -> None:
        """The child is gone, and what was held for it with it."""
        self._tenants.pop(slot, None)

    def execute(
        self, caller: tuple[int, int], head: bytes, code: bytes, arrays: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Run a program; what the child wants to see, or None where that is nothing.

        Raises:
            UnknownProgram, UnknownTensor: see there; nothing was done.
            BadParams: the message is damaged.
        """
        tenant = self.tenant(*caller)
        try:
            number, flags, first, used, freed = HEAD.unpack_from(head)
            at = HEAD.size
            handles = struct.unpack_from(f"<{used}q", head, at)
            frees = struct.unpack_from(f"<{freed}q", head, at + 8 * used)
        except struct.error as error:
            raise BadParams("the program's head is damaged") from error
        held = tenant.arrays
        for handle in frees:
            held.pop(handle, None)
        ready = tenant.programs.get(number)
        if code:
            ready = tenant.programs[number] = self._ready(code, flags)
        if ready is None:
            raise UnknownProgram(UNKNOWN_PROGRAM)
        program = ready.program
        given = self._given(program, held, handles, arrays)
        try:
            numbers = ready.numbers.unpack_from(head, at + 8 * (used + freed))
        except struct.error as error:
            raise BadParams("the program's head is damaged") from error
        for slot in program.donated:
            held.pop(handles[sum(program.resident[:slot])], None)
        with self.backend.running():
            kept, read = ready.run(given, numbers)
        for handle, array in enumerate(kept, first):
            held[handle] = array
        return read or None

    def _given(
        self,
        program: programs.Program,
        held: dict[int, Any],
        handles: tuple[int, ...],
        arrays: tuple[Any, ...],
    ) -> list[Any]:
        """The arrays in the order of their slots, each what the program says it is."""
        given = []
        sent, resident = iter(arrays), iter(handles)
        try:
            for spec, is_resident in zip(program.arrays, program.resident, strict=True):
                if is_resident:
                    array = held.get(next(resident))
                    if array is None:
                        raise UnknownTensor(UNKNOWN_TENSOR)
                else:
                    array = next(sent)
                if tuple(array.shape) != spec.shape:
                    raise BadParams("an array of the program has another shape than it says")
                given.append(array)
        except StopIteration:
            raise BadParams("the program is given fewer arrays than it needs") from None
        return given

    def _ready(self, code: bytes, flags: int) -> Ready:
        """Read and compiled; children that train alike models share what comes of it."""
        key = (code, flags)
        ready = self._compiled.get(key)
        if ready is None:
            program = programs.decode(code)
            options = Options(reuse_results=not flags & 1, plan_memory=not flags & 2)
            ready = Ready(program, compiled(program, self.backend, self._pool, options))
            self._compiled[key] = ready
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(key)
        return ready
