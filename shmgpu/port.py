"""A child's port: arguments into the arena, one message out, the result back.

Owns the calls that are out: blocked ones, submitted ones, those waiting for room in the
window, and abandoned ones, whose memory stays untouched until their late reply. A port may be
used from many threads; ``_lock`` guards the queue and the table of what is out, and is never
held while waiting or while a user's code runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from sys import getrefcount
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.arguments import Arguments, Options, Target
from shmgpu.errors import ArenaFull, BadParams, ShmError
from shmgpu.letters import Letter
from shmgpu.logs import logger
from shmgpu.memory import Arena
from shmgpu.plans import MAX_IDLE, Call, lend, return_loans
from shmgpu.repeats import UNHELD, Repeat
from shmgpu.results import result_of
from shmgpu.wire import Sink, Wire

_ndarray = np.ndarray

SPARE_BYTES = 4096  # what a result may leave unused of its room
LINGER_NS = 50_000_000  # how long the reader waits for the next reply before it looks around


class Port:
    """The calls of one child."""

    def __init__(self, wire: Wire, arena: Arena, pools: dict[str, int]) -> None:
        self.wire = wire
        self.arena = arena
        self.arguments = Arguments(arena, pools)
        self.prepare = self.arguments.prepare
        self._call = wire.call
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
        self._repeats = not wire.immediate
        self.rejoins = False  # whoever calls where the broker is gone joins the next one

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
                try:
                    call.result, address = self._allocate(room)
                    plan.pack(call.block, 8, address, room, *call.addresses)
                except ArenaFull:
                    self.arguments.make_little_room(call)
            else:
                self.arguments.make_room(call)
            if call.deadline_ns:
                reply.status = 0
            status = self._call(call.config, call.address, call.deadline_ns, reply)
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
            result = _ndarray(plan.hint_shape, plan.hint_type, call.result)
            call.result = None
            call.keep = None
            repeats = (
                self._repeats
                and options is None
                and not call.deadline_ns
                and len(args) == 1
                and not kwargs
                and type(args[0]) is _ndarray
                and not plan.fixed
                and target.repeats.keep((args[0].dtype, args[0].shape), call, self.arena)
            )
            call.deadline_ns = 0
            if not repeats and len(plan.idle) < MAX_IDLE:
                plan.idle.append(call)
            if self._queue:
                self.pump()
            return result
        return self._see_through(call, target, args, status)

    def send(self, letter: Letter, target: Target, keep: Any) -> Any:
        """Send a letter and wait: the room, with its result; raises what went wrong.

        ``keep`` is what has to live as long as helpers may look at it.
        """
        if self._out and self._reader is None:
            self.poll()
        reply = letter.reply
        reply.sequence = 0
        room = letter.result
        try:
            status = self._call(letter.config, letter.address, 0, reply)
        except BaseException:
            self._give_up(letter, keep)
            raise
        if status == 0:
            letter.done()
            if self._queue:
                self.pump()
        else:
            self._see_through(letter, target, keep, status)
        return room

    def repeat(self, target: Target, ready: deque[Repeat], args: tuple[Any, ...]) -> Any:
        """As :meth:`call`, for one plain array of a signature that has calls ready."""
        if self._out and self._reader is None:
            self.poll()
        try:
            pointer = core.from_buffer(args[0])
            again = ready.popleft()
        except (IndexError, TypeError, ValueError, BufferError):  # threads; strided; bfloat16
            return self.call(target, args, {})
        if getrefcount(again.result) != UNHELD:
            again.renew(self.arena)
        call = again.call
        try:
            status = core.port_repeat(again.recipe, pointer, again.owner)
        except BaseException:
            self._give_up(call, args)
            raise
        if status == 0:
            result = again.result.view()
            ready.append(again)
            if self._queue:
                self.pump()
            return result
        if status == core.EBAD_PARAMS and not call.reply.sequence:  # not an array of the arena
            ready.append(again)
            return self.call(target, args, {})
        call.result = again.result.base
        return self._see_through(call, target, args, min(status, 0))  # 1: a result of another kind

    def _see_through(self, call: Call, target: Target, args: tuple[Any, ...], status: int) -> Any:
        """The rest of a call whose wait has ended with ``status``, if that is its end."""
        reply = call.reply
        try:
            while status == core.EINTR or status == core.ENEEDS_SPACE:
                status = self._resume(call, status)
        except BaseException:
            self._give_up(call, args)
            raise
        if status == core.ETIMEOUT and reply.sequence:
            # It may run, and the helper still write: its reply comes late, whoever saw the
            # deadline pass. (reply.status does not say who: nobody wrote it if it was our clock.)
            self._keep(call, int(reply.sequence), args)
            raise self._timeout(target.name)
        try:
            return self._result_of(call, status, int(reply.value))
        finally:
            call.release()
            if self._queue:
                self.pump()

    def _result_of(self, call: Call, status: int, used_bytes: int) -> Any:
        buffer = call.result
        result = result_of(call, status, used_bytes, self.wire.last_error)
        if used_bytes and call.out is None and len(buffer) - used_bytes > SPARE_BYTES:
            self.arena.shrink(buffer, used_bytes)  # a kept result holds no more than it is
        return result

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

    # ---- submitting ----------------------------------------------------------------------

    def submit(
        self,
        target: Target,
        args: tuple[Any, ...],
        kwargs: Any,
        options: Options | None,
        sink: Sink,
        use_reader: bool,
        lends: bool = True,
    ) -> Call:
        """Send when the window has room, never wait; ``sink`` hears of the end.

        ``lends``: arrays of the arena are read-only until then; left out where nobody else has
        them.
        """
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        call = self.prepare(target, args, kwargs, options)
        call.sink = sink
        call.keep = (call.keep, args, kwargs)
        if lends:
            loans = []
            for item in (*args, *kwargs.values()):
                if type(item) is _ndarray and self.arguments.holds(item):
                    loans.append(lend(item))
            call.loans = loans
        self._post(call, use_reader)
        return call

    def post(self, letter: Letter, sink: Sink, keep: Any) -> Letter:
        """As :meth:`submit`, for a letter."""
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        letter.sink = sink
        letter.keep = keep
        self._post(letter, True)
        return letter

    def _post(self, call: Call, use_reader: bool) -> None:
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

    def resend(self, call: Call, sink: Sink) -> None:
        """As :meth:`submit`, for a call that its ``keeper`` has made ready, room and all.

        An end as was expected is told by ``keeper.arrived()``, and the call stays the keeper's;
        of any other the sink hears, and then the call is the plan's.
        """
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        call.sink = sink
        with self._lock:
            self._queue.append(call)
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the window and the arena have room."""
        failed: list[tuple[Call, BaseException]] = []
        with self._lock:
            queue = self._queue
            while queue:
                call = queue.popleft()
                if call.result is None:
                    try:
                        self.arguments.make_room(call)
                    except ArenaFull:
                        if self._out:
                            queue.appendleft(call)  # replies will bring memory back
                            break
                        try:
                            self.arguments.make_little_room(call)
                        except ShmError as error:
                            failed.append((call, error))
                            continue
                    except ShmError as error:
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
            elif call.keeper is not None and not status and not reply.value:
                call.sequence = 0
                call.sink = None
                call.keeper.arrived()
            else:
                try:
                    result = self._result_of(call, status, int(reply.value))
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
            _hand(sink, call, result, error)

    def _detach(self, call: Call, error: BaseException) -> None:
        """Tell the sink now; the call's memory stays pinned until its reply."""
        sink, call.sink = call.sink, None
        call.abandoned = True
        if sink is not None:
            sink.done(call, None, error)

    def cancel(self, call: Call, sink: Sink) -> bool:
        """Nobody wants a submitted call any more; False when it has ended already.

        It leaves the queue if no helper has been given it, and its result is dropped if one has.
        """
        with self._lock:
            if call.sink is not sink:
                return False
            queued = call in self._queue
            if queued:
                self._queue.remove(call)
            else:
                call.sink = None
                call.abandoned = True
                if call.sequence:
                    self.wire.cancel(call.sequence)
        if queued:
            call.release()
        return True

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
                _hand(sink, call, None, type(reason)(str(reason)))

    def join(self) -> None:
        """Wait for the reader to end; call after :meth:`close`."""
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(timeout=5.0)

    def forget(self) -> None:
        """Drop everything kept for later calls: nothing of the arena is held any more."""
        self.arguments.forget()
        self._out.clear()
        self._queue.clear()

    def is_lost(self) -> bool:
        """Whether the broker is gone, even if no call has noticed yet."""
        return not self.wire.immediate and bool(core.port_is_lost())

    @property
    def outstanding(self) -> int:
        """Submitted calls that have not ended."""
        return len(self._queue) + len(self._out)


def _hand(sink: Sink, call: Call, result: Any, error: BaseException | None) -> None:
    """Tell of a call's end. Others were read with it: a sink that raises must not cost theirs."""
    try:
        sink.done(call, result, error)
    except Exception:
        logger.exception("a reply was lost: what was to hear of it raised")
