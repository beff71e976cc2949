"""A child's port: arguments into the arena, one message out, the result back.

Owns the calls that are out: blocked ones, submitted ones, those waiting for room in the
window, and abandoned ones, whose memory stays untouched until their late reply. A port may be
used from many threads; ``_lock`` guards the queue and the table of what is out, and is never
held while waiting or while a user's code runs.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from typing import Any, Protocol

import numpy as np

from shmgpu import arrays, core, dtypes, layout
from shmgpu.arrays import Source, Spec
from shmgpu.errors import (
    ArenaFull,
    BadFunction,
    BadParams,
    RemoteError,
    ShmError,
)
from shmgpu.layout import Layout
from shmgpu.memory import Arena
from shmgpu.plans import MAX_IDLE, Call, Plan, PlanTable, lend, return_loans
from shmgpu.values import PLAIN_TYPES, flatten

_ndarray = np.ndarray
_new_ndarray = np.ndarray
_address_of = core.address_of

LINGER_NS = 50_000_000  # how long the reader waits for the next reply before it looks around
CHEAP_TYPES = PLAIN_TYPES - {slice, range, bytearray}


class Wire(Protocol):
    """What carries messages: the broker, or (inline) this very process."""

    @property
    def immediate(self) -> bool:
        """Whether a submitted call is done when submit returns."""

    def call(self, config: Any, params: int, deadline_ns: int, reply: Any, /) -> int:
        """As shm_port_call; likewise the others."""

    def wait(self, sequence: int, deadline_ns: int, reply: Any, /) -> int: ...

    def abandon(self, sequence: int, /) -> int: ...

    def grow(self, sequence: int, token: int, params: int, /) -> int: ...

    def cancel(self, sequence: int, /) -> int: ...

    def submit(self, config: Any, params: int, deadline_ns: int, /) -> tuple[int, int]: ...

    def drain(self, buffer: core.ReplyBuffer, timeout_ns: int, /) -> int: ...

    def descriptors(self) -> tuple[int, ...]: ...


class BrokerWire:
    """The wire to the dispatcher."""

    call = staticmethod(core.port_call)
    wait = staticmethod(core.port_wait)
    abandon = staticmethod(core.port_abandon)
    grow = staticmethod(core.port_grow)
    cancel = staticmethod(core.port_cancel)
    submit = staticmethod(core.port_submit)
    immediate = False

    @staticmethod
    def drain(buffer: core.ReplyBuffer, timeout_ns: int) -> int:
        """Replies of submitted and abandoned calls."""
        return buffer.drain(timeout_ns)

    @staticmethod
    def descriptors() -> tuple[int, ...]:
        """Readable when :meth:`drain` may bring something."""
        return core.port_fd(), core.port_event_fd()


class Target(Protocol):
    """What a port needs to know of a function."""

    name: str
    row: int
    pool: str | None
    pickle: bool
    batch_max_rows: int
    out: Any
    timeout: float | None
    plans: PlanTable
    plans_port: Any


class Options:
    """What one call may have besides its arguments."""

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


class Sink(Protocol):
    """Who is told how a submitted call ended."""

    def done(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Exactly once."""


class Port:
    """The calls of one child."""

    def __init__(self, wire: Wire, arena: Arena, pools: dict[str, int]) -> None:
        self.wire = wire
        self.arena = arena
        self.pools = pools
        self._call = wire.call
        self._base = arena.base
        self._end = arena.end
        self._allocate = arena.allocate
        self._lock = threading.RLock()  # a finalizer may call from anywhere
        self._queue: deque[Call] = deque()  # submitted, waiting for room in the window
        self._out: dict[int, Call] = {}  # submitted or abandoned, by sequence
        self._early: set[int] = set()  # late replies that came before _out knew of the call
        self._limbo: set[Call] = set()  # being sent; kept if an exception strikes just then
        self._reader: threading.Thread | None = None
        self._replies = core.ReplyBuffer()
        self._replies_lock = threading.Lock()
        self._deadlines = False
        self._closed: ShmError | None = None
        self._targets: list[Target] = []  # functions that have plans here
        arena.reclaimers.append(self._reclaim)

    # ---- preparing -----------------------------------------------------------------------

    def prepare(
        self, target: Target, args: tuple[Any, ...], kwargs: Any, options: Options | None
    ) -> Call:
        """A call with everything in place but the room for its result."""
        if target.plans_port is not self:
            self._adopt(target)
        if kwargs or (options is not None and options.out is not None):
            return self._prepare_any(target, args, kwargs, options)
        key: Any
        values: list[Any] | None = None
        if len(args) == 1 and type(args[0]) is _ndarray:
            array = args[0]
            key = (array.dtype, array.shape)
            plan = target.plans.get(key)
            if plan is None:
                return self._prepare_any(target, args, kwargs, options, key)
            try:
                address = _address_of(array)
            except ValueError:
                return self._prepare_any(target, args, kwargs, options, key)
            if not self._base <= address <= self._end - plan.nbytes[0]:
                return self._prepare_any(target, args, kwargs, options, key)
            addresses: Any = (address,)
        else:
            parts: list[Any] = []
            values = []
            places: list[int] = []
            for item in args:
                kind = type(item)
                if kind is _ndarray:
                    parts.append(item.dtype)
                    parts.append(item.shape)
                    try:
                        places.append(_address_of(item))
                    except ValueError:
                        places.append(0)
                elif kind in CHEAP_TYPES:
                    parts.append(kind)
                    values.append(item)
                elif kind.__name__ == "Tensor" and arrays.is_plain_tensor(item):
                    parts.append(item.dtype)
                    parts.append(item.shape)
                    places.append(item.data_ptr())
                else:
                    return self._prepare_any(target, args, kwargs, options)
            key = tuple(parts)
            if values and callable(target.out):  # what it declares may depend on the values
                return self._prepare_any(target, args, kwargs, options)
            plan = target.plans.get(key)
            if plan is None:
                return self._prepare_any(target, args, kwargs, options, key)
            base, end = self._base, self._end
            for address, size in zip(places, plan.nbytes, strict=True):
                if not base <= address <= end - size:
                    return self._prepare_any(target, args, kwargs, options, key)
            addresses = places
        call = self._take(plan)
        if values:
            call.set_values(values, self.arena)
        elif call.signature is not plan.signature:
            call.write(b"", self.arena)
        plan.pack(call.block, 8, 0, 0, *addresses)
        if options is not None or target.timeout is not None:
            self._apply(call, target, options)
        return call

    def _take(self, plan: Plan) -> Call:
        try:
            return plan.idle.pop()
        except IndexError:
            return Call(plan, self.arena)

    def _apply(self, call: Call, target: Target, options: Options | None) -> None:
        timeout = target.timeout
        if options is not None:
            if options.timeout is not None:
                timeout = options.timeout
            if options.priority != call.priority:
                call.config.priority = call.priority = options.priority
            if options.placement != call.placement:
                call.config.placement = call.placement = options.placement
            call.out = options.out
        if timeout is not None:
            call.deadline_ns = time.monotonic_ns() + max(int(timeout * 1e9), 0) or 1

    def _prepare_any(
        self,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options | None,
        key: Any = None,
    ) -> Call:
        """The general way: any tree of arguments, copies where they are needed."""
        flat = flatten((args, kwargs), arrays.is_array, target.pickle)
        if len(flat.arrays) > layout.MAX_ARRAYS:
            raise BadParams(
                f"a call can carry {layout.MAX_ARRAYS} arrays, not {len(flat.arrays)}: "
                "stack some of them"
            )
        sources = [Source(leaf) for leaf in flat.arrays]
        as_torch = any(source.is_torch for source in sources)
        structure = bytes(flat.structure)
        specs = tuple([source.spec for source in sources])
        out = None if options is None else options.out
        declared = self._declared(target, args, kwargs, out)
        full = (structure, specs, as_torch, None if declared is None else declared.encoded)
        plan = target.plans.get(full)
        if plan is None:
            plan = Plan(
                target.row,
                self._pool(target),
                Layout(structure, specs),
                declared,
                as_torch,
                target.pickle,
                target.batch_max_rows,
                target.name,
            )
            target.plans.add(full, plan)
        if key is not None and key not in target.plans:
            target.plans.add(key, plan)
        call = self._take(plan)
        try:
            if plan.value_count:
                call.set_values(flat.values, self.arena)
            elif call.signature is not plan.signature:
                call.write(b"", self.arena)
            addresses = []
            base, end = self._base, self._end
            for index, source in enumerate(sources):
                address, size = source.address, source.spec.nbytes
                if size == 0:
                    address = base
                elif address is None or not base <= address <= end - size:
                    address = call.stage(index, source.memory, source.spec, self.arena)
                    core.count_bytes(core.BYTES_COPIED_IN, size)
                addresses.append(address)
            plan.pack(call.block, 8, 0, 0, *addresses)
            self._apply(call, target, options)
        except BaseException:
            call.release()
            raise
        return call

    def _declared(
        self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Layout | None:
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
        return Layout(bytes(flat.structure), [_declaration(leaf) for leaf in flat.arrays])

    def _adopt(self, target: Target) -> None:
        """First call of a function through this port."""
        if not target.row:
            raise BadFunction(
                f"{target.name} was decorated after the broker had started, so helpers do not "
                "know it: move its definition above launch() or init()"
            )
        self._pool(target)
        target.plans = PlanTable()
        target.plans_port = self
        self._targets.append(target)

    def _pool(self, target: Target) -> int:
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
        for target in self._targets:
            for plan in list(target.plans.values()):
                while plan.idle:
                    plan.idle.pop()
                    found = True
        return gc.collect() > 0 or found

    def make_room(self, call: Call) -> None:
        """Set aside room for the result; raises ArenaFull."""
        plan = call.plan
        out = call.out
        if out is not None and type(out) is _ndarray and out.size:
            source = Source(out)
            address = source.address
            if address is not None and self._base <= address <= self._end - source.spec.nbytes:
                call.set_room(source.spec.nbytes, out, address)
                return
        room = plan.room
        buffer, address = self._allocate(room)
        call.set_room(room, buffer, address)

    # ---- a blocking call -----------------------------------------------------------------

    def call(
        self,
        target: Target,
        args: tuple[Any, ...],
        kwargs: Any,
        options: Options | None = None,
    ) -> Any:
        """Call and wait for the result; raises what went wrong."""
        if self._out and self._reader is None:
            self.poll()
        call = self.prepare(target, args, kwargs, options)
        reply = call.reply
        plan = call.plan
        reply.sequence = 0
        try:
            if call.out is None:
                room = plan.room
                call.result, address = self._allocate(room)
                call.room = room
                layout.ROOM.pack_into(call.block, 8, address, room)
            else:
                self.make_room(call)
            if call.deadline_ns:
                reply.status = 0
            status = self._call(call.config, call.address, call.deadline_ns, reply)
            while status == core.EINTR or status == core.ENEEDS_SPACE:
                status = self._resume(call, status)
        except BaseException:
            self._give_up(call, args)
            raise
        if (
            status == 0
            and reply.value == 0
            and plan.hint_type is not None
            and call.signature is plan.signature
            and call.out is None
        ):
            result = _new_ndarray(plan.hint_shape, plan.hint_type, call.result)
            call.result = None
            call.keep = None
            call.deadline_ns = 0
            if len(plan.idle) < MAX_IDLE:
                plan.idle.append(call)
            if self._queue:
                self.pump()
            return result
        if status == core.ETIMEOUT and reply.sequence and reply.status != core.ETIMEOUT:
            # The dispatcher answers for a deadline that passed while the call was queued. This
            # one passed while it ran: no answer yet, and the helper may still write.
            self._keep(call, int(reply.sequence), args)
            raise self._timeout(target.name)
        try:
            return self.result_of(call, status, reply.value)
        finally:
            call.release()
            if self._queue:
                self.pump()

    def _resume(self, call: Call, status: int) -> int:
        """Go on after a signal, or after the helper asked for more room."""
        reply = call.reply
        if status == core.ENEEDS_SPACE:
            self._grow(call, reply)
        elif not reply.sequence:
            return self._call(call.config, call.address, call.deadline_ns, reply)
        return self.wire.wait(reply.sequence, call.deadline_ns, reply)

    def _grow(self, call: Call, reply: Any) -> None:
        """Offer a parked result the room it needs; when there is none, drop it and raise."""
        if call.out is not None and call.plan.fixed:
            raise BadParams(
                "the function's result does not have the shape and dtype of out=: pass one "
                "that has, or leave out= away"
            )
        needed = int(reply.value)
        if needed > self.arena.capacity:
            raise self.arena.refused(needed)
        buffer, address = self._allocate(needed)
        call.set_room(needed, buffer, address)
        status = self.wire.grow(reply.sequence, reply.token, call.address)
        if status < 0:
            raise core.error_of(status, "the result's room could not be offered")

    def _timeout(self, name: str) -> ShmError:
        return core.error_of(core.ETIMEOUT, name)

    def _give_up(self, call: Call, args: Any) -> None:
        """An exception struck while the call may be out: keep its memory for as long as it is."""
        sequence = int(call.reply.sequence)
        if sequence and self.wire.abandon(sequence) == core.OK:
            self._keep(call, sequence, args)
        else:
            call.release()

    def _keep(self, call: Call, sequence: int, args: Any) -> None:
        call.abandoned = True
        call.sequence = sequence
        call.keep = (call.keep, args)
        with self._lock:
            if sequence not in self._early:
                self._out[sequence] = call
                return
            self._early.discard(sequence)
        call.release()

    # ---- results -------------------------------------------------------------------------

    def result_of(self, call: Call, status: int, value: int) -> Any:
        """What a reply means: the result, or the exception it raises."""
        if status == core.OK:
            return self._read_result(call, value)
        if status == core.EREMOTE:
            raise self._read_error(call, value)
        name = core.function_name(call.plan.row)
        if status == core.ETIMEOUT:
            raise self._timeout(name)
        if status == core.EBAD_PARAMS:
            raise core.error_of(status, f"{name}: the helper refused the arguments")
        raise core.error_of(status, name)

    def _read_result(self, call: Call, value: int) -> Any:
        plan = call.plan
        out = call.out
        if value == 0:
            signature = call.signature
            assert signature is not None
            hint = signature.hint
            if hint is None:
                return None
            if out is not None:
                if call.result is not out:
                    _copy_out(hint, call.result, out)
                return out
            leaves = [
                self._leaf(call.result, offset, spec, plan.as_torch)
                for spec, offset in zip(hint.specs, hint.offsets, strict=True)
            ]
            return hint.tree.build(leaves, ())
        if out is not None:
            raise BadParams(
                "the function's result does not have the shape and dtype of out=: pass one "
                "that has, or leave out= away"
            )
        found, values, start = layout.read_result(call.result, value, plan.pickle)
        leaves = [
            self._leaf(call.result, start + offset, spec, plan.as_torch)
            for spec, offset in zip(found.specs, found.offsets, strict=True)
        ]
        plan.learn(found, value)
        return found.tree.build(leaves, values)

    @staticmethod
    def _leaf(buffer: Any, offset: int, spec: Spec, as_torch: bool) -> Any:
        if as_torch and spec.dtype.has_torch:
            return arrays.torch_view(buffer, offset, spec)
        if not spec.dtype.has_numpy and arrays.torch_module() is not None:
            return arrays.torch_view(buffer, offset, spec)
        return arrays.numpy_view(buffer, offset, spec)

    def _read_error(self, call: Call, value: int) -> ShmError:
        try:
            _, values, _ = layout.read_result(call.result, value, False)
            type_name, message, traceback_text = values
        except (BadParams, ValueError, TypeError):
            return RemoteError("an exception", "its text did not arrive", "")
        error = RemoteError(str(type_name), str(message), str(traceback_text))
        cause = getattr(self.wire, "last_error", None)
        if cause is not None:
            error.__cause__ = cause
        return error

    # ---- submitting ----------------------------------------------------------------------

    def submit(
        self,
        target: Target,
        args: tuple[Any, ...],
        kwargs: Any,
        options: Options | None,
        sink: Sink,
        use_reader: bool,
    ) -> Call:
        """Send when the window has room, never wait; ``sink`` hears of the end."""
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        call = self.prepare(target, args, kwargs, options)
        call.sink = sink
        call.keep = (call.keep, args, kwargs)
        loans = []
        for item in (*args, *kwargs.values()):
            if type(item) is _ndarray and item.size:
                try:
                    address = _address_of(item)
                except ValueError:
                    continue
                if self._base <= address < self._end:
                    loans.append(lend(item))
        call.loans = loans
        if call.deadline_ns:
            self._deadlines = True
        with self._lock:
            self._queue.append(call)
        self.pump()
        if self.wire.immediate:
            while self.poll():
                pass
        elif use_reader and self._reader is None:
            self._start_reader()
        return call

    def pump(self) -> None:
        """Send what waits, as far as the window and the arena have room."""
        failed: list[tuple[Call, BaseException]] = []
        with self._lock:
            queue = self._queue
            while queue:
                call = queue.popleft()
                if call.result is None:
                    try:
                        self.make_room(call)
                    except ShmError as error:
                        if isinstance(error, ArenaFull) and self._out:
                            queue.appendleft(call)  # replies will bring memory back
                            break
                        failed.append((call, error))
                        continue
                self._limbo.add(call)
                status, sequence = self.wire.submit(call.config, call.address, call.deadline_ns)
                if status == core.OK:
                    call.sequence = sequence
                    self._out[sequence] = call
                self._limbo.discard(call)
                if status == core.EAGAIN:
                    queue.appendleft(call)
                    break
                if status < 0:
                    failed.append((call, core.error_of(status)))
        for call, reason in failed:
            self._end_call(call, None, reason)

    def poll(self) -> int:
        """Take in replies that have come, without waiting: how many."""
        if not self._replies_lock.acquire(blocking=False):
            return 0
        try:
            count = self.wire.drain(self._replies, 0)
            if count > 0:
                self._settle(self._replies, count)
        finally:
            self._replies_lock.release()
        if count > 0:
            self.pump()
        elif count < 0 and count not in (core.EINTR, core.EAGAIN):
            self.close(core.error_of(count))
        return max(count, 0)

    def _settle(self, replies: core.ReplyBuffer, count: int) -> None:
        for index in range(count):
            reply = replies[index]
            sequence = int(reply.sequence)
            status = int(reply.status)
            with self._lock:
                call = self._out.get(sequence)
                if call is None:  # abandoned so lately that its thread has not noted it yet
                    if status != core.ENEEDS_SPACE:
                        self._early.add(sequence)
                elif status != core.ENEEDS_SPACE:
                    del self._out[sequence]
            if call is None:
                if status == core.ENEEDS_SPACE:
                    self.wire.grow(sequence, int(reply.token), 0)
            elif status == core.ENEEDS_SPACE:
                self._grow_later(call, reply)
            elif call.abandoned:
                call.release()
            else:
                try:
                    result = self.result_of(call, status, int(reply.value))
                except BaseException as error:
                    self._end_call(call, None, error)
                else:
                    self._end_call(call, result, None)

    def _grow_later(self, call: Call, reply: Any) -> None:
        if call.abandoned:
            self.wire.grow(reply.sequence, reply.token, 0)
            return
        try:
            self._grow(call, reply)
        except ShmError as error:
            self._detach(call, error)
            self.wire.grow(reply.sequence, reply.token, 0)

    def _end_call(self, call: Call, result: Any, error: BaseException | None) -> None:
        sink = call.sink
        call.release()
        if sink is not None:
            sink.done(call, result, error)

    def _detach(self, call: Call, error: BaseException) -> None:
        """Tell the sink now; the call's memory stays pinned until its reply."""
        sink, call.sink = call.sink, None
        call.abandoned = True
        if sink is not None:
            sink.done(call, None, error)

    def cancel(self, call: Call, sink: Sink) -> bool:
        """Remove a submitted call; True when it had not been sent yet."""
        with self._lock:
            if call.sink is not sink:
                return False
            if call in self._queue:
                self._queue.remove(call)
                removed = True
            else:
                removed = False
                if call.sequence:
                    self.wire.cancel(call.sequence)
        if removed:
            call.release()
        return removed

    def expire(self, call: Call, sink: Sink) -> None:
        """The deadline of a submitted call has passed: its sink hears of it."""
        with self._lock:
            if call.sink is not sink:
                return
            queued = call in self._queue
            if queued:
                self._queue.remove(call)
        error = self._timeout(core.function_name(call.plan.row))
        if queued:
            self._end_call(call, None, error)
        else:
            self._detach(call, error)

    # ---- the reader ----------------------------------------------------------------------

    def _start_reader(self) -> None:
        with self._lock:
            if self._reader is not None or self._closed is not None:
                return
            self._reader = threading.Thread(target=self._read, name="shmgpu-replies", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        """The reader thread: it lives as long as submitted calls are out."""
        replies = core.ReplyBuffer()
        while True:
            count = self.wire.drain(replies, LINGER_NS)
            if count > 0:
                self._settle(replies, count)
                self.pump()
            elif count < 0 and count not in (core.EINTR, core.EAGAIN):
                self._reader = None
                self.close(core.error_of(count))
                return
            if self._deadlines:
                self._expire_all()
            if count <= 0:
                with self._lock:
                    if not self._out and not self._queue:
                        self._reader = None
                        return

    def _expire_all(self) -> None:
        now = time.monotonic_ns()
        with self._lock:
            late = [
                (call, call.sink)
                for call in (*self._queue, *self._out.values())
                if call.sink is not None and 0 < call.deadline_ns <= now
            ]
        for call, sink in late:
            self.expire(call, sink)

    # ---- the end -------------------------------------------------------------------------

    def close(self, reason: ShmError) -> None:
        """No reply will come any more: everything that waits hears why."""
        with self._lock:
            if self._closed is None:
                self._closed = reason
            calls = [*self._queue, *self._out.values()]
            self._queue.clear()
            self._out.clear()
        for call in calls:
            sink, call.sink = call.sink, None
            if call.loans:
                return_loans(call.loans)
                call.loans = None
            if sink is not None:
                sink.done(call, None, type(reason)(str(reason)))

    def join(self) -> None:
        """Wait for the reader to end; call after :meth:`close`."""
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(timeout=5.0)

    def forget(self) -> None:
        """Drop everything kept for later calls: nothing of the arena is held any more."""
        for target in self._targets:
            target.plans = PlanTable()
            target.plans_port = None
        self._targets.clear()
        self._out.clear()
        self._queue.clear()

    @property
    def outstanding(self) -> int:
        """Submitted calls that have not ended."""
        return len(self._queue) + len(self._out)


def _is_declaration(leaf: Any) -> bool:
    return isinstance(leaf, (Spec, Declared)) or arrays.is_array(leaf)


def _declaration(leaf: Any) -> Spec:
    if isinstance(leaf, Spec):
        return leaf
    if isinstance(leaf, Declared):
        return Spec(dtypes.of_any(leaf.dtype), leaf.shape)
    source = Source(leaf)
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
        self.shape = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Declared({self.shape}, {self.dtype!r})"


def _copy_out(hint: Layout, buffer: Any, out: Any) -> None:
    """Copy a result into arrays of the user's that do not lie in the arena."""
    leaves = flatten(out, arrays.is_array).arrays
    for leaf, spec, offset in zip(leaves, hint.specs, hint.offsets, strict=True):
        Source(leaf).memory[...] = arrays.storage_view(buffer, offset, spec)
