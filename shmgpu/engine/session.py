"""What a helper holds for the children whose programs it runs.

Owns their resident arrays, by handle, and the programs they have sent, by number. Never lets a
child name another's tensor or program: each child has handles and numbers of its own.
"""

from __future__ import annotations

import contextlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shmgpu.engine.backends import Backend
from shmgpu.engine.compile import Compiled, Fused, Pool, Rest, compiled, raise_again, step_of
from shmgpu.engine.cuda_graphs import Graphs, as_one
from shmgpu.engine.foresight import Draws, Foresight
from shmgpu.engine.plan import Options
from shmgpu.errors import BadParams, GangAborted, ShmError
from shmgpu.ops.graph import Spec
from shmgpu.ops.program import Program, decode
from shmgpu.ops.program_message import (
    HEAD,
    UnknownProgram,
    UnknownTensor,
    not_made,
    plain_numbers,
)
from shmgpu.ops.program_message import handles as packed_handles

MAX_COMPILED = 1024  # programs; the least recently used goes first
MAX_CODE_BYTES = 64 << 20  # of all of them as they came
MAX_BUFFER_BYTES = 2 << 30  # that their buffers may hold
MAX_KNOWN = 4096  # programs that a child may have here: as many as it knows itself
FUSE_AT_RUN = 3  # the run at which a program proves to be one that repeats

Later = Callable[[Callable[[], None], Callable[[BaseException], None] | None], None]

Sent = Callable[[int, Spec], Any]


class NotMade(ShmError):
    """An operation of the step that was to make the tensor failed.

    Attributes:
        why: with what.
    """

    def __init__(self, handles: Iterable[int], why: str) -> None:
        super().__init__(not_made(handles, why))
        self.why = why


class TooMuch(ShmError):
    """The child would hold more in this helper than it may, or than there is."""


class Ready:
    """A program that can be run.

    Attributes:
        program: as it was sent.
        compiled: as it runs now; None when it had to make room, until it is asked for again.
        draws: its random numbers.
        fused: the same with loops in C, while these are being compiled.
        numbers: how its plain numbers are packed.
        given: of each array (whether it is resident, its place among those that are or among
            those that are sent, its spec, the library's dtype).
        resident: how many arrays are.
        donated: (slot, place among the handles) of each.
        is_captured: it may be, on a device.
        kept_bytes: that stay in the helper.
        runs: how often it was run, up to the one at which it is fused.
        flags: its options.
        code_bytes: of the program as it was sent.
    """

    __slots__ = (
        "code_bytes",
        "compiled",
        "donated",
        "draws",
        "flags",
        "fused",
        "given",
        "is_captured",
        "kept_bytes",
        "numbers",
        "program",
        "resident",
        "runs",
    )

    def __init__(self, program: Program, backend: Backend, code_bytes: int, flags: int) -> None:
        self.program = program
        self.flags = flags
        options = Options.of_flags(flags)
        self.is_captured = options.capture and not options.commits
        self.compiled: Compiled | None = None
        self.fused: Fused | None = None
        self.numbers = plain_numbers(program)
        self.resident = sum(program.resident)
        given = []
        places = [0, 0]  # the next one that is sent, the next one that is resident
        for spec, is_resident in zip(program.arrays, program.resident, strict=True):
            given.append((is_resident, places[is_resident], spec, backend.dtype(spec)))
            places[is_resident] += 1
        self.given = tuple(given)
        self.donated = tuple([(slot, sum(program.resident[:slot])) for slot in program.donated])
        specs = program.specs
        self.kept_bytes = sum(specs[slot].nbytes for slot in program.kept)
        self.draws = Draws.of(program, backend)
        self.runs = 0
        self.code_bytes = code_bytes


class Tenant:
    """One child's share.

    Attributes:
        arrays: resident ones by handle.
        failed: why there is none, by handle.
        foresight: what it is expected to draw next.
        nbytes: of these.
        programs: by the child's number of them, the oldest first.
        code_bytes: of these.
        runs, steps: programs that were run, and operations in these.
    """

    __slots__ = (
        "arrays",
        "code_bytes",
        "failed",
        "foresight",
        "nbytes",
        "programs",
        "runs",
        "steps",
    )

    def __init__(self) -> None:
        self.arrays: dict[int, Any] = {}
        self.failed: dict[int, str] = {}
        self.foresight = Foresight()
        self.nbytes = 0
        self.programs: OrderedDict[int, Ready] = OrderedDict()
        self.code_bytes = 0
        self.runs = 0
        self.steps = 0

    def drop(self, handle: int) -> None:
        """Let go of an array."""
        array = self.arrays.pop(handle, None)
        if array is not None:
            self.nbytes -= array.nbytes
        elif self.failed:
            self.failed.pop(handle, None)

    def know(self, number: int, ready: Ready) -> None:
        """The child may call the program by that number; the oldest make room."""
        before = self.programs.pop(number, None)
        self.code_bytes += ready.code_bytes - (before.code_bytes if before is not None else 0)
        self.programs[number] = ready
        while len(self.programs) > 1 and (
            len(self.programs) > MAX_KNOWN or self.code_bytes > MAX_CODE_BYTES
        ):
            _, oldest = self.programs.popitem(last=False)
            self.code_bytes -= oldest.code_bytes

    def hold(self, handle: int, array: Any) -> None:
        """Keep an array."""
        self.drop(handle)
        self.arrays[handle] = array
        self.nbytes += array.nbytes

    def take(self, first: int, kept: Sequence[Any]) -> None:
        """Keep arrays, under handles that rise."""
        for handle, array in enumerate(kept, first):
            self.hold(handle, array)

    def fail(self, first: int, last: int, error: BaseException) -> None:
        """Under these handles (not the last) there will be none."""
        why = (
            "this tensor is lost: an operation of its step failed after the step had been "
            f"answered, with {type(error).__name__}: {error}"
        )
        self.lose(range(first, last), why)

    def lose(self, handles: Iterable[int], why: str) -> None:
        """Under these handles there is none any more."""
        for handle in handles:
            self.drop(handle)
            self.failed[handle] = why


class Engine:
    """Runs the programs of all children that this helper serves.

    Args:
        backend: what computes.
        quota: bytes that each child may keep here; 0: as many as there are.
        memory: bytes that there are; 0: not known.
        fuse_at_run: see FUSE_AT_RUN; 0: never.
    """

    def __init__(
        self, backend: Backend, quota: int = 0, memory: int = 0, fuse_at_run: int = FUSE_AT_RUN
    ) -> None:
        self.backend = backend
        self.quota = quota
        self.memory = memory
        self.fuse_at_run = fuse_at_run if backend.is_host else 0
        self._pool = Pool(backend)
        driver = backend.driver()
        self._graphs = Graphs(backend, driver, self._pool) if driver is not None else None
        self._tenants: dict[int, tuple[int, Tenant]] = {}
        self._compiled: OrderedDict[tuple[bytes, int], Ready] = OrderedDict()
        self._code_bytes = 0

    def tenant(self, slot: int, generation: int) -> Tenant:
        """The child's share; that of a predecessor in its place is dropped."""
        held = self._tenants.get(slot)
        if held is None or held[0] != generation:
            self.forget(slot)
            held = self._tenants[slot] = (generation, Tenant())
        return held[1]

    def callers(self) -> list[tuple[int, int]]:
        """(slot, generation) of each child for whom something is held."""
        return [(slot, generation) for slot, (generation, _) in self._tenants.items()]

    def keeps_arrays(self) -> bool:
        """Whether any child has a resident array here, or has yet to be told why it has none."""
        return any(tenant.arrays or tenant.failed for _, tenant in self._tenants.values())

    def forget(self, slot: int) -> None:
        """The child is gone, and what was held for it with it."""
        self._tenants.pop(slot, None)
        if self._graphs is not None:
            self._graphs.forget(slot)

    def execute(
        self,
        caller: tuple[int, int],
        head: bytes,
        code: bytes,
        sent: Sent,
        later: Later | None = None,
    ) -> tuple[Any, ...]:
        """Run a program; what the child wants to see.

        Args:
            caller: (slot, generation) of the child.
            head: which program, and what is given beside the arrays that were sent.
            code: the program's own bytes, where the helper may not know it.
            sent: gives one of the arrays that were sent, as what the program says it is.
            later: takes what need not be done before the child sees that, and what to tell of its
                failure: it is done before the next program.

        Raises:
            UnknownProgram, UnknownTensor, NotMade, TooMuch: see there; nothing was done.
            BadParams: the message is damaged.
            Exception: what an operation raised. What was given is as it was, unless memory ran out
                or a device failed after something had been written over; that is lost then.
        """
        tenant = self.tenant(*caller)
        try:
            number, flags, first, used, freed = HEAD.unpack_from(head)
            at = HEAD.size
            handles = packed_handles(used).unpack_from(head, at) if used else ()
            frees = packed_handles(freed).unpack_from(head, at + 8 * used) if freed else ()
        except (struct.error, MemoryError) as error:
            raise BadParams("the program's head is damaged") from error
        for handle in frees:
            tenant.drop(handle)
        if code:
            ready = self._ready(code, flags)
            tenant.know(number, ready)
        else:
            known = tenant.programs.get(number)
            if known is None:
                raise UnknownProgram
            ready = known
        first_free = first + len(ready.program.kept)
        try:
            return self._run(
                caller, tenant, ready, handles, head[at + 8 * (used + freed) :], first, sent, later
            )
        except UnknownTensor:
            raise
        except Exception as error:
            why = error.why if isinstance(error, NotMade) else f"{type(error).__name__}: {error}"
            tenant.lose(range(first, first_free), f"an operation of its step failed with {why}")
            raise

    def _run(
        self,
        caller: tuple[int, int],
        tenant: Tenant,
        ready: Ready,
        handles: tuple[int, ...],
        packed: bytes,
        first: int,
        sent: Sent,
        later: Later | None,
    ) -> tuple[Any, ...]:
        """Run a program that is known; ``packed``: its plain numbers."""
        if ready.compiled is None:
            self._compile(ready)
        given = self._given(ready, tenant, handles, sent)
        try:
            numbers = ready.numbers.unpack_from(packed)
        except struct.error as error:
            raise BadParams("the program's head is damaged") from error
        foresight = tenant.foresight
        if ready.draws.places:
            numbers = foresight.meet(ready.draws, numbers)
        if ready.fused is not None or ready.runs < self.fuse_at_run:
            self._grow_fast(ready)
        compiled = ready.compiled
        assert compiled is not None
        if self.quota:
            self._check_quota(tenant, ready, given)
        if len(handles) > 1 and len(set(handles)) < len(handles):
            # One array under two slots: what is written over must not be the other's as well.
            for slot in compiled.spoilt:
                given[slot] = self.backend.copy(given[slot])
        try:
            with self.backend.running():
                if self._graphs is None or not ready.is_captured:
                    read, kept = compiled.run(given, numbers)
                else:
                    read, kept = self._graphs.run(caller, ready, given, numbers, packed)
        except Exception as error:
            is_whole = isinstance(error, GangAborted) or step_of(error) in compiled.intact
            if compiled.spoilt and not is_whole:
                spoilt = [handles[n] for slot, n in ready.donated if slot in compiled.spoilt]
                tenant.lose(spoilt, f"it was written over by a step that failed with {error}")
            raise_again(error)
        del given
        tenant.runs += 1
        tenant.steps += len(ready.program.steps)
        for _, place in ready.donated:
            tenant.drop(handles[place])
        rest = compiled.rest
        if rest is None:
            tenant.take(first, kept)
        elif later is None:
            self._finish(tenant, rest, kept, first)
        else:
            last = first + len(ready.program.kept)
            later(
                lambda: self._finish(tenant, rest, kept, first),
                lambda error: tenant.fail(first, last, error),
            )
        if later is not None and ready.draws.places and foresight.is_likely:
            later(lambda: self._draw(foresight), None)
        return read

    def _finish(self, tenant: Tenant, rest: Rest, live: Sequence[Any], first: int) -> None:
        try:
            with self.backend.running():
                kept = rest(live)
        except Exception as error:
            raise_again(error)
        tenant.take(first, kept)

    def _draw(self, foresight: Foresight) -> None:
        # What could not be drawn ahead is drawn when it is asked for, and fails there.
        with self.backend.running(), contextlib.suppress(Exception):
            foresight.draw()

    def _given(
        self,
        ready: Ready,
        tenant: Tenant,
        handles: tuple[int, ...],
        sent: Sent,
    ) -> list[Any]:
        """The arrays in the order of their slots, each what the program says it is."""
        given = []
        held = tenant.arrays
        if len(handles) != ready.resident:
            raise BadParams("the program is given another number of tensors than it needs")
        if tenant.failed:
            missing = [handle for handle in handles if handle in tenant.failed]
            if missing:
                raise NotMade(missing, tenant.failed[missing[0]])
        for is_resident, place, spec, dtype in ready.given:
            if is_resident:
                handle = handles[place]
                array = held.get(handle)
                if array is None:
                    raise UnknownTensor
                if array.shape != spec.shape or array.dtype != dtype:
                    raise BadParams("a tensor of the program is not of the type that it says")
                given.append(array)
            else:
                given.append(sent(place, spec))
        return given

    def _check_quota(self, tenant: Tenant, ready: Ready, given: list[Any]) -> None:
        let_go = sum(given[slot].nbytes for slot, _ in ready.donated)
        if ready.kept_bytes and tenant.nbytes + ready.kept_bytes - let_go > self.quota:
            raise TooMuch(
                f"the tensors that this child holds in the helper ({tenant.nbytes} bytes) and the "
                f"{ready.kept_bytes - let_go} more of this step are over its quota of "
                f"{self.quota} bytes: let go of tensors, or raise SHMGPU_RESIDENT"
            )

    # ---- programs ----------------------------------------------------------------------------

    def _ready(self, code: bytes, flags: int) -> Ready:
        """Read and compiled; children that train alike models share what comes of it."""
        key = (code, flags)
        ready = self._compiled.get(key)
        if ready is None:
            program = decode(code)
            self._check_memory(program)
            ready = self._compiled[key] = Ready(program, self.backend, len(code), flags)
            self._code_bytes += len(code)
            self._make_room()
        else:
            self._compiled.move_to_end(key)
        return ready

    def _make_room(self) -> None:
        """Let go of what was sent longest ago; whoever still knows it waits a moment once."""
        while len(self._compiled) > 1 and self._is_over():
            _, oldest = self._compiled.popitem(last=False)
            self._code_bytes -= oldest.code_bytes
            oldest.compiled = oldest.fused = None
            if self._graphs is not None:
                self._graphs.drop(oldest)

    def _compile(self, ready: Ready) -> None:
        options = Options.of_flags(ready.flags)
        if self._graphs is not None and ready.is_captured:
            options = as_one(options)
        ready.compiled = compiled(ready.program, self.backend, self._pool, options)
        ready.runs = 0
        self._make_room()

    def _is_over(self) -> bool:
        return (
            len(self._compiled) > MAX_COMPILED
            or self._code_bytes > MAX_CODE_BYTES
            or sum(self._pool.buffers) > MAX_BUFFER_BYTES
        )

    def _check_memory(self, program: Program) -> None:
        """Before memory is asked for that the system would give, and kill for when it is used."""
        most = max((step.spec.nbytes for step in program.steps), default=0)
        if self.memory and most > self.memory:
            raise TooMuch(
                f"an operation makes a tensor of {most} bytes, and the helper has {self.memory}: "
                "make it smaller, or split it"
            )

    def _grow_fast(self, ready: Ready) -> None:
        """Count a run; at the right one have loops compiled beside, and use them when they are.

        No step waits for the compiler: until it is done, and where it fails, nothing changes.
        """
        ready.runs += 1
        options = Options.of_flags(ready.flags)
        if ready.runs == self.fuse_at_run and options.fuse:
            fused = Fused(ready.program, self.backend, options)
            ready.fused = fused if fused.library is not None else None
        elif ready.fused is not None and ready.fused.library is not None:
            state = ready.fused.library.state
            if state == "ready":
                ready.compiled = compiled(
                    ready.program, self.backend, self._pool, options, ready.fused
                )
            if state != "waiting":
                ready.fused = None

    def wait(self) -> None:
        """Until no compiler works for this engine any more."""
        for ready in list(self._compiled.values()):
            if ready.fused is not None and ready.fused.library is not None:
                ready.fused.library.wait()

    # ---- figures -----------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """What is held and was done: plain values.

        ``programs`` in the cache, ``loops`` (chains of operations that run as C), ``compiling``,
        ``buffers`` and ``buffer_bytes`` shared by all; of a device ``graphs`` (programs that it
        launches as one), ``graph_bytes`` that these have of their own, how many were ``captured``,
        their ``replays``, and ``fallbacks`` (reason -> how many programs run operation by operation
        for it, or were captured again); ``children``: of each its ``slot``,
        ``generation``, ``tensors``, ``bytes`` resident, ``programs`` it knows, and how many
        ``runs`` of programs and ``steps`` in these it had.
        """
        ready = list(self._compiled.values())
        buffers = self._pool.buffers
        graphs = self._graphs
        return {
            "backend": self.backend.name,
            "quota": self.quota,
            "programs": len(ready),
            "loops": sum(one.compiled.loops for one in ready if one.compiled is not None),
            "compiling": sum(one.fused is not None for one in ready),
            "buffers": len(buffers),
            "buffer_bytes": sum(buffers),
            "graphs": graphs.held if graphs is not None else 0,
            "graph_bytes": graphs.nbytes if graphs is not None else 0,
            "captured": graphs.captured if graphs is not None else 0,
            "replays": graphs.replays if graphs is not None else 0,
            "fallbacks": dict(graphs.fallbacks) if graphs is not None else {},
            "children": [
                {
                    "slot": slot,
                    "generation": generation,
                    "tensors": len(tenant.arrays),
                    "bytes": tenant.nbytes,
                    "programs": len(tenant.programs),
                    "runs": tenant.runs,
                    "steps": tenant.steps,
                }
                for slot, (generation, tenant) in self._tenants.items()
            ],
        }
