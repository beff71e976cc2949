"""From a call's arguments to a parameter block that can be sent.

Owns the look-up of plans, the fast path for arrays that already lie in the arena, the general path
for any tree, and what functions declare about their results. Never sends, never waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from shmgpu import core
from shmgpu.child.broadcast_calls import BroadcastCall, BroadcastPlan
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call, CallPlan, PlanTable
from shmgpu.child.raw_calls import RawCall, RawCallPlan
from shmgpu.codec import arrays, dtypes, layout
from shmgpu.codec.arrays import ArraySource, ArraySpec
from shmgpu.codec.layout import RESULT_AT, TreeLayout
from shmgpu.codec.pytree import CHEAP_TYPES, flatten
from shmgpu.errors import BadFunction, BadParams, ConfigError

_ndarray = np.ndarray
_address_of = core.address_of

KEPT_SHARE = 16  # of the arena, what idle calls may keep: one part in so many,
MAX_KEPT = 32 << 20  # and at most so many bytes: to copy more takes longer than to allocate

MAX_QUICK_DEPTH = 4  # containers in containers among arguments whose signature is looked up,
MAX_QUICK_ITEMS = 32  # and things in each


class CallTarget(Protocol):
    """What a port needs to know of a function."""

    name: str
    row: int
    pool: str | None
    pickle: bool
    mutates: bool
    batch_max_rows: int
    units_per_row: int  # of the capacity of a batch of the row; 1 where it counts rows
    out: Any
    timeout: float | None
    plans: PlanTable
    plans_port: Any
    signatures: Any  # a list of those that have calls ready to be made again; None: never

    def why_unknown(self) -> str:
        """Why helpers do not have it, in a sentence."""


NO_TIMEOUT = math.inf


class CallOptions:
    """What one call may have besides its arguments.

    Attributes:
        timeout: seconds; None: that of the function; NO_TIMEOUT: none, whatever the function has.
    """

    __slots__ = ("out", "placement", "priority", "timeout")

    def __init__(
        self,
        timeout: float | None = None,
        priority: int = 0,
        placement: int = 0,
        out: Any = None,
    ) -> None:
        self.timeout = timeout
        self.priority = priority
        self.placement = placement
        self.out = out

    def __repr__(self) -> str:
        """What differs from the defaults."""
        helpers = [n for n in range(self.placement.bit_length()) if self.placement >> n & 1]
        is_lifted = self.timeout == NO_TIMEOUT
        timeout = None if is_lifted else self.timeout
        given: dict[str, Any] = {"timeout": timeout, "priority": self.priority or None}
        given |= {"helpers": helpers or None, "out": None if self.out is None else ...}
        told = ["timeout=None"] if is_lifted else []
        told += [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return ", ".join(told) or "no options"


def timeout_of(target: CallTarget, options: CallOptions | None) -> float | None:
    """Seconds until a call is given up; None: it never is."""
    if options is None or options.timeout is None:
        return target.timeout
    return None if options.timeout == NO_TIMEOUT else options.timeout


def _take_apart(
    items: Iterable[Any], parts: list[Any], given: list[Any], values: list[Any], depth: int
) -> bool:
    """Add what a call has among its arguments; False: it is sent the general way.

    Args:
        items: some of them.
        parts: of the key: what calls of one signature have in common.
        given: arrays, in the order in which a block names them.
        values: plain values likewise.
        depth: how many containers they may still be in.
    """
    for item in items:
        kind = type(item)
        if kind is _ndarray:
            parts.append(item.dtype)
            parts.append(item.shape)
            given.append(item)
        elif kind in CHEAP_TYPES:
            parts.append(kind)
            values.append(item)
        elif kind is tuple or kind is list or kind is dict:
            if not depth or len(item) > MAX_QUICK_ITEMS:
                return False
            parts += (kind, len(item))
            if kind is dict:
                parts += item
                if not all(type(name) is str for name in item):
                    return False
                item = item.values()
            if not _take_apart(item, parts, given, values, depth - 1):
                return False
        elif kind.__name__ == "Tensor" and arrays.is_plain_tensor(item):
            parts += (item.dtype, item.shape)
            given.append(item)
        else:
            return False
    return True


def _key_of(args: tuple[Any, ...], kwargs: Any, given: list[Any], values: list[Any]) -> Any:
    """What calls of one signature have in common; None: such calls are sent the general way."""
    if len(args) == 1 and type(args[0]) is _ndarray and not kwargs:
        given.append(args[0])
        return args[0].dtype, args[0].shape
    parts: list[Any] = []
    is_quick = _take_apart(args, parts, given, values, MAX_QUICK_DEPTH)
    if is_quick and kwargs:
        parts += kwargs
        is_quick = _take_apart(kwargs.values(), parts, given, values, MAX_QUICK_DEPTH)
    return tuple(parts) if is_quick else None


def _has_key(key: Any, args: tuple[Any, ...], kwargs: Any, arrays_found: list[Any]) -> bool:
    """Whether arguments still look as they did: another thread may have changed a list of them.

    ``arrays_found`` are what was found of them meanwhile.
    """
    given: list[Any] = []
    return _key_of(args, kwargs, given, []) == key and list(map(id, given)) == list(
        map(id, arrays_found)
    )


def ready_calls(target: CallTarget) -> list[list[Any]]:
    """The calls of a function that are ready to be made again, by signature."""
    return [signature.ready for signature in tuple(target.signatures or ())]


def _drop(turns: Any, size_bytes: int) -> int:
    """Drop so many bytes of what is ready for use, if it has them: how many were dropped."""
    dropped = 0
    while turns and dropped < size_bytes:
        try:
            dropped += turns.pop().kept_bytes
        except IndexError:  # another thread took the last one
            break
    return dropped


def _is_declaration(leaf: Any) -> bool:
    return isinstance(leaf, (ArraySpec, Declared)) or arrays.is_array(leaf)


def _declaration(leaf: Any) -> ArraySpec:
    if isinstance(leaf, ArraySpec):
        return leaf
    if isinstance(leaf, Declared):
        return ArraySpec(dtypes.of_any(leaf.dtype), leaf.shape)
    source = ArraySource(leaf)
    if not source.memory.flags.writeable:
        raise BadParams("out= is read-only: pass an array that can be written to")
    return source.spec


class Declared:
    """Shape and dtype of an array that a function will return; see ``function(out=...)``.

    Args:
        shape: lengths of the axes; one number for a vector.
        dtype: a name such as ``"float32"``, or a NumPy or torch dtype.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> None:
        self.shape = arrays.axes_of(shape)
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Declared({self.shape}, {self.dtype!r})"


class Arguments:
    """What one child's calls are prepared with: its arena, its pools, its functions' plans.

    ``port`` is the number of the port that they are for.
    """

    def __init__(self, arena: Arena, pools: dict[str, int], port: int = 0) -> None:
        self.arena = arena
        self._port = port
        self.pools = pools
        self._base = arena.base
        self._end = arena.end
        self._targets: list[CallTarget] = []  # functions that have plans here
        self._may_keep = min(arena.capacity // KEPT_SHARE, MAX_KEPT)
        self.when_adopted: Callable[[Any], None] | None = None  # told of a function's first call
        arena.reclaimers.append(self._reclaim)

    def prepare(
        self, target: CallTarget, args: tuple[Any, ...], kwargs: Any, options: CallOptions | None
    ) -> Call:
        """A call with everything in place but its output buffer."""
        if target.plans_port is not self:
            self._adopt(target)
        if options is not None and options.out is not None:
            return self._prepare_any(target, args, kwargs, options)
        given: list[Any] = []
        values: list[Any] = []
        key = _key_of(args, kwargs, given, values)
        if key is None:
            return self._prepare_any(target, args, kwargs, options)
        if values and callable(target.out):  # what it declares may depend on the values
            return self._prepare_any(target, args, kwargs, options)
        plan = target.plans.get(key)
        if plan is None:
            return self._prepare_any(target, args, kwargs, options, key)
        addresses: list[int] = []
        base, end = self._base, self._end
        outside: list[int] = []
        for item, size in zip(given, plan.nbytes, strict=True):
            try:
                address = _address_of(item) if type(item) is _ndarray else item.data_ptr()
            except ValueError:  # strided
                address = 0
            except RuntimeError:  # without elements of its own, as those of torch.func
                return self._prepare_any(target, args, kwargs, options)
            if not base <= address <= end - size:
                if size == 0:
                    address = base
                else:
                    outside.append(len(addresses))
            elif type(item) is not _ndarray:  # a tensor may be given other memory meanwhile
                given[len(addresses)] = item.untyped_storage()
            addresses.append(address)
        call = self._take(plan)
        call.keep = given
        try:
            if values:
                call.set_values(values, self.arena)
            elif call.signature is not plan.signature:
                call.write(b"", self.arena)
            for index in outside:
                addresses[index] = self._copy_in(call, index, given[index])
        except BaseException:
            call.release()
            raise
        call.addresses = addresses
        if options is not None or target.timeout is not None:
            self._apply(call, target, options)
        return call

    def prepare_broadcast(
        self, target: CallTarget, args: tuple[Any, ...], kwargs: Any, options: CallOptions | None
    ) -> BroadcastCall:
        """As :meth:`prepare`, for a call that runs on each helper of the pool."""
        if target.plans_port is not self:
            self._adopt(target)
        if target.out is not None:
            raise ConfigError(
                f"{target.name} is declared with out=, and nobody gets the result of a broadcast: "
                "broadcast a function without it"
            )
        if options is not None and (options.placement or options.out is not None):
            raise ConfigError(
                f"a broadcast of {target.name} runs on all helpers of its pool and gives no "
                "result: omit helpers= and out="
            )
        call = self._prepare_any(target, args, kwargs, options, plans=BroadcastPlan)
        assert isinstance(call, BroadcastCall)
        return call

    def _copy_in(self, call: Call, index: int, memory: Any) -> int:
        """Copy an argument into the arena that does not lie there: where it lies from now on."""
        spec = call.plan.arguments.specs[index]
        if type(memory) is not _ndarray or spec.dtype.name in dtypes.EXTENSIONS:
            memory = ArraySource(memory).memory
        if self.arena.set_aside > self._may_keep // 4:
            self._trim()
        address = call.stage(index, memory, spec, self.arena)
        core.count_bytes(core.BYTES_COPIED_IN, spec.nbytes)
        return address

    def raw_call(self, target: CallTarget, arity: int, placement: int) -> RawCall:
        """A raw call for so many arrays, not written yet, to one of the helpers in the mask."""
        if target.plans_port is not self:
            self._adopt(target)
        plan = target.plans.get(arity)
        if plan is None:
            plan = RawCallPlan(target.row, self.pool_of(target), arity, target.name, self._port)
            target.plans.add(arity, plan)
        call = plan.idle.pop() if plan.idle else RawCall(plan, self.arena)
        assert isinstance(call, RawCall)
        if call.placement != placement:
            call.config.placement = call.placement = placement
        return call

    def _take(self, plan: CallPlan) -> Call:
        try:
            return plan.idle.pop()
        except IndexError:
            if self.arena.set_aside > self._may_keep // 4:
                self._trim()
            return plan.new_call(self.arena)

    def _apply(self, call: Call, target: CallTarget, options: CallOptions | None) -> None:
        timeout = timeout_of(target, options)
        if options is not None:
            if options.priority != call.priority:
                call.config.priority = call.priority = options.priority
            if options.placement != call.placement:
                call.config.placement = call.placement = options.placement
            call.out = options.out
        if timeout is not None:
            call.deadline_ns = time.monotonic_ns() + max(int(timeout * 1e9), 0) or 1

    def _prepare_any(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions | None,
        key: Any = None,
        plans: type[CallPlan] = CallPlan,
    ) -> Call:
        """The general way: any tree of arguments, copies where they are needed."""
        if self.arena.set_aside > self._may_keep // 4:
            self._trim()
        flat = flatten((args, kwargs), arrays.is_array, target.pickle)
        layout.check_count(len(flat.arrays))
        sources = [ArraySource(leaf) for leaf in flat.arrays]
        as_torch = any(source.is_torch for source in sources)
        made = next((source.result for source in sources if source.result is not None), None)
        structure = bytes(flat.structure)
        specs = tuple([source.spec for source in sources])
        out = None if options is None else options.out
        declared = self._declared(target, args, kwargs, out)
        promised = None if declared is None else declared.encoded
        full = (plans, structure, specs, as_torch, made, promised)
        plan = target.plans.get(full)
        if plan is None:
            plan = plans(
                target.row,
                self.pool_of(target),
                TreeLayout(structure, specs),
                declared,
                as_torch,
                made,
                target.pickle,
                target.batch_max_rows,
                target.name,
                target.units_per_row,
                self._port,
            )
            target.plans.add(full, plan)
        # An array that a function writes to is checked at each call, and one of another byte order
        # is turned around, so such calls never take the fast path.
        if (
            key is not None
            and key not in target.plans
            and not target.mutates
            and all(source.memory.dtype.isnative for source in sources)
            and _has_key(key, args, kwargs, flat.arrays)
        ):
            target.plans.add(key, plan)
        call = self._take(plan)
        call.keep = [source.memory for source in sources]
        try:
            if plan.value_count:
                call.set_values(flat.values, self.arena)
            elif call.signature is not plan.signature:
                call.write(b"", self.arena)
            addresses = []
            base, end = self._base, self._end
            for index, source in enumerate(sources):
                address, size = source.address, source.spec.nbytes
                is_inside = address is not None and base <= address <= end - size
                if source.result is not None:
                    is_inside = is_inside and not target.mutates  # others may share its elements
                if size == 0:
                    address = base
                elif is_inside and target.mutates and not source.memory.flags.writeable:
                    raise BadParams(
                        f"{target.name} writes to its arguments (mutates=True), and an array that "
                        "was passed is read-only, because another call that is out has it, or "
                        "because it was made so: wait for that call, or pass a copy"
                    )
                elif address is None or not is_inside:
                    address = call.stage(index, source.memory, source.spec, self.arena)
                    core.count_bytes(core.BYTES_COPIED_IN, size)
                addresses.append(address)
            call.addresses = addresses
            self._apply(call, target, options)
        except BaseException:
            call.release()
            raise
        return call

    def _declared(
        self, target: CallTarget, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> TreeLayout | None:
        if out is None:
            out = target.out
            if out is None:
                return None
            if callable(out):
                out = out(*args, **kwargs)
        flat = flatten(out, _is_declaration)
        if flat.values:
            raise BadParams(
                f"out= of {target.name} must give arrays or (shape, dtype) pairs, "
                f"not {flat.values[0]!r}"
            )
        return TreeLayout(bytes(flat.structure), [_declaration(leaf) for leaf in flat.arrays])

    def _adopt(self, target: CallTarget) -> None:
        """First call of a function through this port."""
        if not target.row:
            raise BadFunction(target.why_unknown())
        self.pool_of(target)
        target.plans = PlanTable()
        if target.signatures is not None:
            target.signatures = []
        target.plans_port = self
        self._targets.append(target)
        if self.when_adopted is not None:
            self.when_adopted(target)

    def pool_of(self, target: CallTarget) -> int:
        """The number of the pool that runs it.

        Raises:
            BadFunction: there is no pool of that name.
        """
        if target.pool is None:
            return 0
        try:
            return self.pools[target.pool]
        except KeyError:
            raise BadFunction(
                f"{target.name} asks for the pool {target.pool!r}, and the helpers form "
                f"{sorted(self.pools)}: name one of those, or launch with "
                f"helpers={{{target.pool!r}: 1}}"
            ) from None

    def _reclaim(self) -> bool:
        """Give back what idle calls hold; the arena asks when it is full."""
        found = False
        for target in tuple(self._targets):
            for ready in ready_calls(target):
                found = found or bool(ready)
                ready.clear()
            for plan in list(target.plans.values()):
                found = found or bool(plan.idle) or bool(plan.rooms)
                plan.idle.clear()
                plan.rooms.clear()
        self.arena.set_aside = 0
        return found

    def _trim(self) -> None:
        """Have idle calls keep no more than their share: what was not used for longest goes.

        Prepared calls and rooms keep little, and are there for speed: theirs goes last. Calls that
        are out are not looked at, until the next time.
        """
        self.arena.set_aside = 0
        idle: list[tuple[Call, CallPlan]] = []
        ready: list[Any] = []
        for target in tuple(self._targets):
            ready += ready_calls(target)
            plans = {id(plan): plan for plan in list(target.plans.values())}
            ready += [plan.rooms for plan in plans.values()]
            idle += [(call, plan) for plan in plans.values() for call in list(plan.idle)]
        kept = sum(call.kept_bytes for call, _ in idle)
        kept += sum(one.kept_bytes for turns in ready for one in tuple(turns))
        if kept <= self._may_keep:
            return
        enough = self._may_keep // 2
        idle.sort(key=lambda one: one[0].used)
        for call, plan in idle:
            if kept <= enough:
                return
            try:
                plan.idle.remove(call)  # from here on no other thread takes it
            except ValueError:
                continue
            kept -= call.kept_bytes
            if not plan.idle:
                kept -= _drop(plan.rooms, kept)
        for turns in ready:
            kept -= _drop(turns, kept - enough)

    def allocate_output(self, call: Call) -> None:
        """Allocate the output buffer; raises ArenaFull."""
        if call.signature is not call.plan.signature:  # the plan has learned while the call waited
            call.write(call.value_bytes, self.arena)
        out = call.out
        if out is not None and type(out) is _ndarray and out.size:
            source = ArraySource(out)
            address = source.address
            if address is not None and self._base <= address <= self._end - source.spec.nbytes:
                call.set_output(source.spec.nbytes, out, address)
                return
        size = call.output_bytes
        buffer, address = self.arena.allocate(size)
        call.set_output(size, buffer, address)

    def allocate_small_output(self, call: Call) -> None:
        """Where memory is short: a small buffer; a result that needs more asks for it.

        Raises ArenaFull as :meth:`allocate_output` did when that does not help.
        """
        if call.out is None and call.plan.make_do():
            call.write(call.value_bytes, self.arena)
            call.plan.pack(call.block, RESULT_AT, 0, 0, *call.addresses)
        self.allocate_output(call)

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether an array's bytes lie in the arena, so that helpers see them in place."""
        try:
            return bool(array.size) and self._base <= _address_of(array) < self._end
        except ValueError:
            return False

    def forget(self) -> None:
        """Drop everything kept for later calls: nothing of the arena is held any more."""
        for target in self._targets:
            target.plans = PlanTable()
            if target.signatures is not None:
                target.signatures = []
            target.plans_port = None
        self._targets.clear()
