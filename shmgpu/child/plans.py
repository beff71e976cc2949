"""Plans and calls: what a child keeps so that the next call of a signature costs little.

A *plan* is what all calls of one function with one signature share; a *call* is one parameter block
in the arena, written once and then only told its addresses, that is used by one call at a time.
Owns both. Never sends.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.memory import Arena
from shmgpu.child.promise import Promise
from shmgpu.child.rooms import Rooms
from shmgpu.codec import arrays, layout
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.layout import RESULT_AT, TreeLayout
from shmgpu.codec.pytree import encode_values
from shmgpu.errors import BadParams, ShmError

FIRST_OUTPUT_BYTES = 4096  # bytes allocated for a result of unknown size
MAX_IDLE = 64  # calls kept ready for each plan
MAX_PLANS = 256  # plans kept for each function
_uses = itertools.count(1)

MAX_STAGING = 1 << 20  # bytes of a copied argument's buffer that an idle call keeps
MAX_SURPRISES = 4  # results of another layout, until a plan stops promising one


class CallPlan:
    """What the calls of one signature share.

    Attributes:
        row, pool: the function's row and the number of its pool.
        port: the number of the port that row is known to.
        arguments: layout of (args, kwargs).
        as_torch: whether results are tensors of torch.
        result: makes of an array what the caller gets; None where that is the array.
        signature: the promise that the next call's block makes.
        fixed: whether it was declared and so never changes.
        output_bytes: bytes to set aside for a result of no expected layout.
        idle: calls ready for use.
        rooms: small output buffers ready for use.
    """

    __slots__ = (
        "arguments",
        "arity",
        "as_torch",
        "batch_rows",
        "batch_units",
        "fixed",
        "idle",
        "nbytes",
        "output_bytes",
        "pack",
        "pickle",
        "pool",
        "port",
        "result",
        "rooms",
        "row",
        "signature",
        "surprises",
        "value_count",
    )

    may_batch = True  # where its function does

    def __init__(
        self,
        row: int,
        pool: int,
        arguments: TreeLayout,
        declared: TreeLayout | None,
        as_torch: bool,
        result: Callable[[Any], Any] | None,
        pickle: bool,
        batch_max_rows: int,
        name: str,
        units_per_row: int = 1,
        port: int = 0,
    ) -> None:
        self.row = row
        self.port = port
        self.pool = pool
        self.arguments = arguments
        self.as_torch = as_torch
        self.result = result
        self.pickle = pickle
        self.arity = len(arguments.specs)
        self.nbytes = tuple(spec.nbytes for spec in arguments.specs)
        self.value_count = arguments.tree.value_count
        self.pack = layout.address_writer(self.arity, core.arena_shift())
        self.idle: list[Call] = []
        self.rooms = Rooms()
        self.fixed = declared is not None
        self.surprises = 0
        self.output_bytes = FIRST_OUTPUT_BYTES
        most = batch_max_rows if self.may_batch else 0
        self.batch_rows = _rows_of(arguments.specs, most, name)
        self.batch_units = self.batch_rows * units_per_row
        self.expect(declared)

    @property
    def hint(self) -> TreeLayout | None:
        """Layout that the next result is expected to have."""
        return self.signature.hint

    def new_call(self, arena: Arena) -> Call:
        """A call of this signature."""
        return Call(self, arena)

    def expect(self, hint: TreeLayout | None) -> None:
        """From now on promise helpers a result of this layout."""
        self.signature = Promise(
            self.arguments, hint, self.fixed, self.as_torch, self.result is None
        )

    def learn(self, result: TreeLayout, used_bytes: int) -> None:
        """A result came that described itself: size the next one's output buffer by it."""
        hint = self.hint
        if self.fixed or result == hint:  # sent before the plan had learned
            return
        if hint is not None:
            self.surprises += 1
        if result.specs and not result.tree.value_count and self.surprises < MAX_SURPRISES:
            self.expect(result)
        else:
            if hint is not None:
                self.expect(None)
                self.output_bytes = max(self.output_bytes, hint.nbytes)
            self.learn_size(used_bytes)

    def learn_size(self, used_bytes: int) -> None:
        """A result that described itself took so many bytes: set aside somewhat more for the next.

        A large one is forgotten after some smaller ones.
        """
        self.output_bytes = max(
            self.output_bytes - self.output_bytes // 8, used_bytes + used_bytes // 4 + 256
        )

    def make_do(self) -> bool:
        """Expect little from now on, as memory is short; False where the result was declared."""
        if self.fixed or max(self.signature.output_bytes, self.output_bytes) <= FIRST_OUTPUT_BYTES:
            return False
        self.expect(None)
        self.output_bytes = FIRST_OUTPUT_BYTES
        return True

    def batch_key(self, value_bytes: bytes) -> int:
        """What calls that may run as one batch have in common: 64 bits, never 0 for them."""
        if not self.batch_rows:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.row.to_bytes(8, "little"))
        digest.update(self.arguments.tree.structure)
        for spec in self.arguments.specs:
            digest.update(ArraySpec(spec.dtype, spec.shape[1:]).encode())
        digest.update(value_bytes)
        return int.from_bytes(digest.digest(), "little") or 1


def _rows_of(specs: tuple[ArraySpec, ...], batch_max_rows: int, name: str) -> int:
    if not batch_max_rows:
        return 0
    if not specs:
        return 0
    if any(not spec.shape for spec in specs):
        raise BadParams(
            f"{name} is batched on axis 0, so each array needs one: pass x[None] for one row"
        )
    counts = {spec.shape[0] for spec in specs}
    if len(counts) != 1:
        raise BadParams(
            f"{name} is batched on axis 0, so its arrays must have equally many rows, "
            f"not {sorted(counts)}"
        )
    rows = counts.pop()
    return rows if rows <= batch_max_rows else 0


class Call:
    """One parameter block and what belongs to the call that uses it.

    Attributes:
        address: of the block.
        addresses: of the arguments' arrays.
        keep: what has to live until its end besides: above all those arrays, as whoever passed a
            list of them may empty it meanwhile.
        result: the output buffer, and what keeps it.
        keeper: who keeps this call for its own use, and reads the result where it lies; see
            :meth:`shmgpu.child.port.Port.resend`.
    """

    __slots__ = (
        "address",
        "addresses",
        "block",
        "config",
        "deadline_ns",
        "keep",
        "keeper",
        "late_sequence",
        "out",
        "placement",
        "plan",
        "priority",
        "reply",
        "result",
        "signature",
        "staging",
        "used",
        "value_bytes",
    )

    def __init__(self, plan: CallPlan, arena: Arena) -> None:
        self.plan = plan
        self.signature = plan.signature
        self.value_bytes = b""
        self.reply = core.new_reply()
        self.config = core.new_call_config(plan.row, plan.pool, port=plan.port)
        self.config.rows = plan.batch_units or 1
        self.priority = 0
        self.placement = 0
        self.staging: list[tuple[Any, int, Any] | None] = [None] * plan.arity
        self.used = 0
        self.block: Any = b""
        self.address = 0
        self.addresses: Any = ()
        self.result: Any = None
        self.deadline_ns = 0
        self.late_sequence = 0  # of a call whose caller saw the deadline pass: its reply will come
        self.keep: Any = None
        self.keeper: Any = None
        self.out: Any = None
        self.write(b"", arena)

    def write(self, value_bytes: bytes, arena: Arena) -> None:
        """Write the part of the block that stays; allocates when it has outgrown its memory."""
        plan = self.plan
        signature = plan.signature
        size = layout.block_bytes(signature, value_bytes)
        if size > len(self.block):
            self.block, self.address = arena.allocate(arrays.aligned(size))
            arena.set_aside += size
        self.used = next(_uses)
        layout.write_constant(self.block, signature, value_bytes)
        self.signature = signature
        self.value_bytes = value_bytes
        self.config.batch_key = plan.batch_key(value_bytes)

    def set_values(self, values: list[Any], arena: Arena) -> None:
        """Write the plain values, unless they are those of the last call."""
        data = encode_values(values, self.plan.pickle)
        if data != self.value_bytes or self.signature is not self.plan.signature:
            self.write(data, arena)

    def stage(self, index: int, memory: Any, spec: ArraySpec, arena: Arena) -> int:
        """Copy an array that cannot be passed in place into the arena: its new address."""
        address, view = self.place(index, spec, arena)
        self.used = next(_uses)
        view[...] = memory
        return address

    def place(self, index: int, spec: ArraySpec, arena: Arena) -> tuple[int, Any]:
        """Where such an array is copied to: (address, view)."""
        staged = self.staging[index]
        if staged is None:
            buffer, address = arena.allocate(max(spec.nbytes, 1))
            view = arrays.storage_view(buffer, 0, spec)
            if spec.nbytes <= MAX_STAGING:
                self.staging[index] = (buffer, address, view)
                arena.set_aside += spec.nbytes
            else:
                self.keep = (self.keep, buffer)
        else:
            _, address, view = staged
        return address, view

    @property
    def output_bytes(self) -> int:
        """Size of its output buffer."""
        return self.signature.output_bytes or self.plan.output_bytes

    @property
    def kept_bytes(self) -> int:
        """What it keeps of the arena between calls."""
        staged = sum(len(one[0]) for one in self.staging if one is not None)
        return len(self.block) + staged

    def set_output(self, size_bytes: int, buffer: Any, address: int) -> None:
        """Tell the block where the result goes."""
        self.result = buffer
        self.plan.pack(self.block, RESULT_AT, address, size_bytes, *self.addresses)

    def offer_output(self, size_bytes: int, buffer: Any, address: int) -> None:
        """The same where a helper may be reading that very thing in the block already.

        ``struct`` clears what it packs into, and a helper would find no buffer there for a moment;
        copied bytes that are there already do not change.
        """
        self.result = buffer
        places = bytearray((2 + self.plan.arity) * 8)
        self.plan.pack(places, 0, address, size_bytes, *self.addresses)
        self.block[RESULT_AT : RESULT_AT + len(places)] = places

    def note(self, reply: Any) -> None:
        """It failed, and that is the reply: for those that want to know more than its status."""

    def blame(self, error: ShmError) -> None:
        """It raises that: for those that know more of it."""

    def release(self) -> None:
        """The call has ended: forget what was its, and stand ready for the next."""
        self.result = None
        self.keep = None
        self.out = None
        self.deadline_ns = 0
        if self.priority or self.placement:
            self.forget_options()
        idle = self.plan.idle
        if len(idle) < MAX_IDLE:
            idle.append(self)

    def forget_options(self) -> None:
        """The next call of this signature may be one without options: anywhere, in its turn."""
        self.config.priority = self.priority = 0
        self.config.placement = self.placement = 0


class PlanTable(dict[Any, CallPlan]):
    """A function's plans by key; the least lately made goes when there are too many.

    Keys are compared by Python code, during which others may add plans, too. A dictionary stands
    that; an ``OrderedDict`` does not, and raises a KeyError when two take its first item at once.
    """

    def add(self, key: Any, plan: CallPlan) -> None:
        """Keep a plan."""
        self[key] = plan
        for oldest in list(self)[: max(0, len(self) - MAX_PLANS)]:
            self.pop(oldest, None)


# ---- loans ---------------------------------------------------------------------------------

# id -> (array, who borrows it, was writeable). Lending twice to one borrower equals lending once,
# and returning likewise, so an interrupted call to either is simply repeated.
on_loan: dict[int, tuple[Any, set[Any], bool]] = {}
_loans_lock = threading.RLock()


def lend(memory: np.ndarray[Any, Any], borrower: object) -> None:
    """Make an array that a helper reads read-only until it is returned."""
    with _loans_lock:
        key, loan = id(memory), None
        while loan is None or on_loan.get(key) is not loan:  # a handler returned the last loan
            nobody: set[Any] = set()
            loan = on_loan.setdefault(key, (memory, nobody, memory.flags.writeable))
            loan[1].add(borrower)
        memory.flags.writeable = False


def return_loans(loans: list[Any], borrower: object) -> None:
    """The helper is done with these arrays."""
    with _loans_lock:
        for memory in loans:
            key = id(memory)
            loan = on_loan.get(key)
            if loan is None:
                continue
            loan[1].discard(borrower)
            if not loan[1] and key in on_loan:
                del on_loan[key]  # from the question to the next line no handler runs
                quick.set_writeable(memory, loan[2])
