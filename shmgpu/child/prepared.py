"""Calls that differ from an earlier one only in addresses and plain values, ready to be made in C.

Most calls of a loop differ from the last one in the addresses of their arrays. For these a
:class:`PreparedCall` keeps everything else ready: the block, the C description of the call, and a
small output buffer with the arrays over it that the result will be made of. At least two take
turns, because the last result usually lives until the next one replaces it. ``csrc/python/quick``
makes them; this owns their readiness. Never sends.

Results are views on a PreparedCall's arrays, and NumPy makes every view of a view hold that same
array: so its reference count tells whether anybody still uses the buffer.
"""

from __future__ import annotations

from typing import Any

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.arguments import CallTarget
from shmgpu.child.memory import Arena
from shmgpu.child.plans import MAX_STAGING, Call
from shmgpu.child.promise import MAX_KEPT_OUTPUT
from shmgpu.child.rooms import arrays_over
from shmgpu.codec import arrays, dtypes
from shmgpu.codec.layout import NO_LONE_VALUE, read_lone_value
from shmgpu.codec.pytree import CHEAP_TYPES, encode_values
from shmgpu.errors import ArenaFull, ShmError

MAX_SIGNATURES = 64  # of one function
MAX_READY = 8  # calls kept ready for one signature: threads that call at once


class PreparedCall(quick.QuickCall):
    """One call that is ready to be made again.

    Attributes:
        call: the call whose block is used.
        buffer: the output buffer.
    """

    __slots__ = ("_arena", "_size")

    call: Call

    def __init__(self, call: Call, values: tuple[Any, ...], arena: Arena) -> None:
        self.call = call
        self._arena = arena
        self._size = call.output_bytes
        self._describe(values)
        self._take_buffer()
        arena.set_aside += self._size

    def _describe(self, values: tuple[Any, ...]) -> None:
        call = self.call
        recipe, address = core.new_repeat(
            call.config, call.address, call.plan.nbytes, self._size, call.reply
        )
        self.describe(recipe, address, values, len(call.value_bytes))

    def renew(self) -> bool:
        """Leave the output buffer to whoever still uses it, and take another.

        False where the arena has none: Python may have the call wait for memory, or do with less.
        """
        try:
            self._take_buffer()
        except ArenaFull:
            return False
        return True

    def _take_buffer(self) -> None:
        buffer, address = self._arena.allocate(self._size)
        promised = self.call.signature
        make = None if promised.make is None else arrays.torch_module().from_numpy
        self.hold(buffer, address, tuple(arrays_over(promised, buffer)), promised.form, make)

    def stage(self, index: int) -> int:
        """Where an argument from elsewhere is copied to at each call; 0: nowhere, it is large."""
        spec = self.call.plan.arguments.specs[index]
        if spec.nbytes > MAX_STAGING:
            return 0
        address, _ = self.call.place(index, spec, self._arena)
        return address

    def set_values(self, values: tuple[Any, ...]) -> bool:
        """Write these plain values into the block, which may have to lie elsewhere for it.

        False where another result than before is expected by now: this serves no more.
        """
        promised = self.call.signature
        self.call.set_values(list(values), self._arena)
        self._describe(values)
        return self.call.signature is promised

    def read(self, size_bytes: int) -> tuple[Any] | None:
        """The plain value that was written instead of arrays; None where it is something else."""
        found = read_lone_value(self.buffer, size_bytes)
        return None if found is NO_LONE_VALUE else (found,)

    @property
    def kept_bytes(self) -> int:
        """What it keeps of the arena between calls."""
        return self.call.kept_bytes + self._size


def _carries(call: Call, given: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Whether a call's block says what its arguments are by now.

    They are looked at again when it has ended, and somebody may have written to a list meanwhile.
    """
    plan = call.plan
    if encode_values(values, plan.pickle) != call.value_bytes:
        return False
    now = [(dtypes.of_any(one.dtype), tuple(one.shape)) for one in given]
    return now == [(spec.dtype, spec.shape) for spec in plan.arguments.specs]


def keep(target: CallTarget, args: Any, kwargs: Any, call: Call, arena: Arena) -> bool:
    """Make a call that has just gone the expected way ready to repeat, if that is worth it.

    False where it is not, or where there is no memory for it: the call has ended well, whatever
    becomes of it.
    """
    promised = call.signature
    if not (promised.is_small or promised.form is None) or target.signatures is None:
        return False
    if call.deadline_ns or call.priority or call.placement or call.out is not None:
        return False
    if target.timeout is not None:  # this one was told to have none, and the next is not
        return False
    if call.plan.value_count and callable(target.out):  # which may look at the values
        return False
    try:
        return _keep(target.signatures, args, kwargs, call, arena)
    except ShmError:
        return False


def _keep(signatures: list[Any], args: Any, kwargs: Any, call: Call, arena: Arena) -> bool:
    plan = call.plan
    promised = call.signature
    if promised is not plan.signature or call.output_bytes > MAX_KEPT_OUTPUT:
        return False
    if promised.form is not None and not quick.makes(promised.form):
        return False
    tensor = arrays.tensor_type()
    if tensor is not None:
        quick.know_tensor(tensor)
    found = quick.native.find(signatures, args, kwargs)
    if found is None:
        if len(signatures) >= MAX_SIGNATURES:
            return False
        try:
            made = quick.native.Signature(args, kwargs, CHEAP_TYPES)
        except ValueError:  # such calls are not made in C
            return False
        found = quick.native.find([made], args, kwargs)
        if found is None:  # another thread writes to what was passed
            return False
        signatures.append(made)
    signature, given, values = found
    if not _carries(call, given, values):
        return False
    ready = signature.ready
    if len(ready) >= MAX_READY:
        return False
    if not ready:
        another = Call(plan, arena)
        if plan.value_count:
            another.set_values(list(values), arena)
        if another.signature is not promised:  # another thread's result was of another kind
            return False
        ready.append(PreparedCall(another, values, arena))
    ready.append(PreparedCall(call, values, arena))
    return True
