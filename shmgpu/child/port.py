"""A child's port: arguments into the arena, one message out, the result back.

Owns the calls that are out: blocked ones, submitted ones, those waiting for a slot in the window,
and abandoned ones, whose memory stays untouched until their late reply. Never runs a user's
function, never gives back memory that a helper may still write to.

A port is used from many threads, and within one thread by code that comes in between: CPython runs
signal handlers in the main thread after any call, at the top of any function and at any backward
jump, and finalizers anywhere. Such code may raise (Ctrl-C), and it may call, submit or cancel. (It
must not wait for a future: what ends it may wait for the very thread that was interrupted.) So:

*A single call into C is the only indivisible step*, ``deque.append`` and ``dict.pop`` as much as
``port_submit``; and only one that makes no object within, as that may collect garbage (before
CPython 3.12), and run finalizers. (So a dictionary or deque that others change is looked through as
a ``list`` of it, which reads it in one go; a ``tuple`` is made after the reading has begun.)
Everything else here is a row of such steps after each of which one may stop, and whoever comes next
goes on. What is to be done is therefore never on a stack alone: it stays where the next one finds
it until the step that completes it.

- *A blocked call* owns its :class:`Call` until it returns. Where an exception strikes, the call is
  put into ``_struck`` with all that a helper may still touch, and ``STRUCK`` into ``_out``: nothing
  is called between the two, so they are one step. ``_tidy`` abandons it, at once or, where that is
  interrupted too, whoever comes next does. A Call that was struck is not used again. A submission
  that is struck goes the same way.
- *A submitted call* is a :class:`Ticket` in ``_out`` from before it is sent until its end. C gives
  its number back with each reply, and writes its sequence as it sends it: so a reply finds its
  ticket at whatever point the sender was interrupted, and nobody sends twice. The ticket owns the
  Call; ``cancel`` and ``expire`` mean a ticket, whatever its Call does meanwhile.
- *Replies* stay in C until :meth:`Transport.take_ends` moves them into an :class:`Inbox` in one
  step. The first item of an inbox is a reply, then what was read of it (a tuple), and leaves the
  inbox when whoever waits was told. An inbox is emptied by whoever has its ``owner``, a lock that a
  ``with`` lets go of however it is left; who finds the owner gone takes the inbox over. An
  exception on the way leaves ``LEFT`` in ``_out`` and a reader that mops up.
- *Whoever asks a future for its result* reads replies until its own is there, as a blocked call
  does, and takes that one alone (:meth:`Port.await_end`). The reader rests meanwhile. It reads
  where nobody else would: for callbacks and waits that need a condition, for calls that wait for
  the window or have a deadline, after an exception, and, now and then, for what is left.
- *An event loop* is told by its own callback (:class:`shmgpu.child.futures.LoopReaders`), for calls
  whose end was not near when they were awaited.
- *A call like an earlier one* is submitted by C (``csrc/python/quick/submit.c``): its ticket is
  noted and its message sent in one step. If its caller waits, C ends it in one step, too; else its
  reply is read, and the call over, in one step of C, and the inbox has what is to be told.
- *Replies that ask for a larger buffer* are served first, and by whoever waits for a slot in the
  window: the calls that have it may all be asking. That runs no user's code, and each of them may
  be served twice: a ticket keeps the first buffer offered for a token, C takes one offer, and the
  helper that has it sees no change of the block while the same is written there again.
- *The queue* is sent from its head by one frame at a time (``_pumper``, like an inbox's owner). A
  ticket that nobody wants any more (its handler is None) is never sent.
- ``_lock`` guards the queue's sending, the claims of inboxes, and questions about ``_out`` that
  lead to a change of a ticket. It is reentrant, taken with ``with`` only, and never held while
  waiting, while a result is read, or while a user's code is told of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.arguments import Arguments, CallOptions, CallTarget
from shmgpu.child.broadcast_calls import BroadcastCall
from shmgpu.child.gang_calls import GangCall
from shmgpu.child.memory import Arena
from shmgpu.child.plans import MAX_IDLE, Call
from shmgpu.child.prepared import PreparedCall, keep
from shmgpu.child.promise import MAX_KEPT_OUTPUT
from shmgpu.child.raw_calls import RawCall
from shmgpu.child.replies import LEFT, STRUCK, Replies
from shmgpu.child.rooms import Room
from shmgpu.child.tickets import Ticket
from shmgpu.child.transport import CompletionHandler, Transport
from shmgpu.codec.layout import NO_LONE_VALUE, RESULT_AT, read_lone_value
from shmgpu.errors import ArenaFull, ShmError

PAUSED = "its pool is paused, and goes on after shmgpu resume"

_ndarray = np.ndarray


class Port(Replies):
    """The calls of one child."""

    takes_functions = False  # whether one that the broker lacks goes there at its first call

    def __init__(self, transport: Transport, arena: Arena, pools: dict[str, int]) -> None:
        super().__init__(transport, arena)
        self.arguments = Arguments(arena, pools, transport.number)
        self.prepare = self.arguments.prepare
        self._call = transport.call
        self._allocate = arena.allocate
        arena.awaits = lambda: bool(self._out)
        self._pumper = threading.Lock()  # held by the frame that sends from the queue
        self._numbers = count(1 << 62)  # of tickets; no sequence is as large
        self.rejoins = False  # a call after the broker is gone joins the next broker
        self.look: Callable[[], None] | None = None  # called before each call

    # ---- a blocking call -----------------------------------------------------------------

    def call(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None = None,
    ) -> Any:
        """Call and wait for the result; raises what went wrong."""
        if self._out and self._reader is None:
            self.poll()
        call = self.prepare(target, args, kwargs, options)
        reply = call.reply
        plan = call.plan
        promised = call.signature
        reply.sequence = 0
        room = buffer = None
        address = size = 0
        try:
            if call.out is None:
                size = promised.output_bytes or plan.output_bytes
                room = plan.rooms.take(promised, size)
                try:
                    if room is None:
                        buffer, address = self._allocate(size)
                    else:
                        buffer, address = room.buffer, room.address
                    call.result = buffer
                    plan.pack(call.block, RESULT_AT, address, size, *call.addresses)
                except ArenaFull:
                    self.arguments.allocate_small_output(call)
            else:
                self.arguments.allocate_output(call)
            if call.deadline_ns:
                reply.status = 0
            status = self._call(call.config, call.address, call.deadline_ns, reply)
            if status < 0:
                status = self._go_on(call, target, status)
        except BaseException:
            self._out[STRUCK] = None
            self._struck.append((call, (args, kwargs), []))
            self._tidy()
            raise
        if status or buffer is None or call.result is not buffer:
            room = buffer = None  # the traceback of what is raised would keep it
            return self._finish(call, status)
        # An answer as they nearly all are: arrays as promised, or one plain value.
        value = reply.value
        if value:
            result = NO_LONE_VALUE
            if not promised.output_bytes:
                result = read_lone_value(buffer, value)
            if result is NO_LONE_VALUE:
                return self._finish(call, status)
            if room is None:
                plan.learn_size(value)
                if size <= MAX_KEPT_OUTPUT:
                    room = Room(promised, buffer, address, size)
        elif promised.is_small:
            if room is None:
                room = Room(promised, buffer, address, size)
            result = room.result()
        elif promised.dtype is not None:
            result = _ndarray(promised.shape, promised.dtype, buffer)
        else:
            return self._finish(call, status)
        if room is not None and plan.rooms.keep(room):
            self.arena.set_aside += room.kept_bytes
        call.result = None
        call.keep = None
        is_prepared = self._is_quick and keep(target, args, kwargs, call, self.arena)
        call.deadline_ns = 0
        if options is not None:
            call.forget_options()
        if not is_prepared and len(plan.idle) < MAX_IDLE:
            plan.idle.append(call)
        if self._queue:
            self.pump()
        return result

    def send(self, call: RawCall | GangCall | BroadcastCall, target: CallTarget, keep: Any) -> Any:
        """Send such a call and wait: the output buffer, with its result; raises what went wrong.

        Of a gang's call it is a list of them, by rank.

        ``keep`` is what has to live as long as helpers may look at it.
        """
        if self._out and self._reader is None:
            self.poll()
        reply = call.reply
        reply.sequence = 0
        output = call.result
        try:
            status = self._call(call.config, call.address, call.deadline_ns, reply)
            if status < 0:
                status = self._go_on(call, target, status)
        except BaseException:
            self._out[STRUCK] = None
            self._struck.append((call, keep, []))
            self._tidy()
            raise
        if status == 0:
            call.done()
            if self._queue:
                self.pump()
        else:
            self._finish(call, status)
        return output

    def broadcast(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None = None,
    ) -> int:
        """Call on each helper of the pool and wait for all: the pool's version from then on."""
        call = self.arguments.prepare_broadcast(target, args, kwargs, options)
        self.arguments.allocate_output(call)
        try:
            self.send(call, target, (args, kwargs))
        except ShmError as error:
            raise call.error_of(error) from error.__cause__
        version = int(call.reply.value)
        call.release()
        return version

    def version(self, target: CallTarget) -> int:
        """How many broadcasts have taken effect in the function's pool."""
        return self.transport.version(self.arguments.pool_of(target))

    def go_on_prepared(
        self, target: CallTarget, ready: PreparedCall, addresses: tuple[int, ...], status: int
    ) -> int:
        """As :meth:`_go_on`, of a call that C has sent; 1: its result lies elsewhere."""
        call = ready.call
        call.result = output = ready.buffer
        call.addresses = addresses  # for another buffer, beside them
        status = self._go_on(call, target, status)
        if status == core.OK:
            if call.result is not output:
                return 1
            call.result = None
        return status

    def finish_prepared(self, ready: PreparedCall, status: int) -> Any:
        """As :meth:`_finish`, of a call that C has sent."""
        call = ready.call
        if call.result is None:
            call.result = ready.buffer
        return self._finish(call, status)

    def _go_on(self, call: Call, target: CallTarget, status: int) -> int:
        """The rest of a call whose wait has ended with ``status``, if that is its end."""
        reply = call.reply
        while status == core.EINTR or status == core.ENEEDS_SPACE:
            status = self._resume(call, status)
        if status == core.ETIMEOUT and reply.sequence:
            # The call may still run, and its helper may still write: a late reply will come,
            # whether the broker or this process saw the deadline pass. (reply.status does not tell
            # which: it is not written if our clock did.)
            call.late_sequence = reply.sequence
            raise self._timeout(target.name, call)
        if status == core.EWINDOW:
            raise ShmError(
                f"{target.name} was called from a signal handler, or from __del__, in the middle "
                "of calls that fill the window and wait for larger output buffers: "
                "launch with a larger window, or submit() there"
            )
        return status

    def _finish(self, call: Call, status: int) -> Any:
        """What an answered call returns, or raises."""
        try:
            call.note(call.reply)
            return self._result_of(call, status, int(call.reply.value))
        except ShmError as error:
            call.blame(error)
            raise
        finally:
            call.release()
            if self._queue:
                self.pump()

    def _resume(self, call: Call, status: int) -> int:
        """Go on after a signal, or after a helper asked for a larger output buffer."""
        reply = call.reply
        if not reply.sequence:  # it waits for a slot in the window
            if status == core.ENEEDS_SPACE:
                self._serve_growing()
            return self._call(call.config, call.address, call.deadline_ns, reply)
        if status == core.ENEEDS_SPACE:
            call.set_output(*self._output_for(call, int(reply.value)))
            status = self.transport.grow(reply.sequence, reply.token, call.address)
            if status < 0:
                raise core.error_of(status, "the larger output buffer could not be offered")
        return self.transport.wait(reply.sequence, call.deadline_ns, reply)

    def _timeout(self, name: str, call: Call) -> ShmError:
        """Its deadline has passed; more time may not be what helps."""
        is_paused = core.is_paused(call.plan.pool)
        return core.error_of(core.ETIMEOUT, name, PAUSED if is_paused else "")

    def _tidy(self) -> None:
        """Give up the calls that exceptions have struck, and keep what is still theirs.

        May be interrupted, and done again, by another thread as well.
        """
        for struck in list(self._struck):
            call, keep, done = struck
            if type(call) is Ticket:
                self._withdraw(call)
            elif call.reply.sequence:
                self._keep(call, int(call.reply.sequence), keep, done)
            try:
                self._struck.remove(struck)
            except ValueError:
                pass  # somebody else did the same
        if not self._struck:  # no handler runs from here to the end of the next line
            self._out.pop(STRUCK, None)

    def _keep(self, call: Call, sequence: int, keep: Any, done: list[Any]) -> None:
        """Its reply comes late: its memory stays reserved until then.

        ``done`` notes each step in one with it: neither may be taken twice, because the reply may
        have come in between.
        """
        ticket = Ticket(call, None, sequence, keep)
        with self._lock:
            if not done:
                self._out[sequence] = ticket
                done.append(core.OK)
            if sequence in self._early:
                self._out.pop(sequence, None)
                self._early.discard(sequence)
            if call.late_sequence != sequence:
                if len(done) == 1:
                    done.extend(map(self.transport.abandon, (sequence,)))
                if done[1] != core.OK:
                    self._out.pop(sequence, None)  # it had ended

    # ---- submitting ----------------------------------------------------------------------

    def submit(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None,
        handler: CompletionHandler,
        use_reader: bool,
        lends: bool = True,
    ) -> Ticket:
        """Send when the window has a free slot, never wait; ``handler`` hears of the end.

        ``lends``: arrays of the arena are read-only until then; left out where nobody else has
        them.
        """
        if self._is_quick and options is None and lends:
            sent: Ticket | None = quick.native.submit(self, target, args, kwargs, handler)
            if sent is not None:
                if use_reader and self._reader is None:
                    self._start_reader()
                return sent
        call = self.prepare(target, args, kwargs, options)
        ticket = Ticket(call, handler, next(self._numbers), (args, kwargs, target))
        try:
            if lends:
                holds = self.arguments.holds
                loans = [x for x in (*args, *kwargs.values()) if type(x) is _ndarray and holds(x)]
                if loans:
                    ticket.lend(loans)
            self._post(ticket, use_reader)
        except BaseException:
            self._out[STRUCK] = None
            self._struck.append((ticket, None, []))
            self._tidy()
            raise
        return ticket

    def post(self, call: RawCall | GangCall, handler: CompletionHandler, keep: Any) -> Ticket:
        """As :meth:`submit`, for a raw call."""
        ticket = Ticket(call, handler, next(self._numbers), keep)
        try:
            self._post(ticket, True)
        except BaseException:
            self._out[STRUCK] = None
            self._struck.append((ticket, None, []))
            self._tidy()
            raise
        return ticket

    def resend(self, ticket: Ticket) -> None:
        """As :meth:`submit`, for a call that its ``keeper`` has made ready, output buffer included.

        An end as was expected is told by ``keeper.arrived()``, and the call stays the keeper's;
        of any other the handler hears, and then the call is the plan's.
        """
        ticket.number = next(self._numbers)
        self._post(ticket, False)

    def _post(self, ticket: Ticket, use_reader: bool) -> None:
        if ticket.deadline_ns:
            self._deadlines = True
        with self._lock:
            if self._closed is not None:
                raise type(self._closed)(str(self._closed))
            self._out[ticket.number] = ticket
            self._queue.append(ticket)
        self.pump()
        if self.transport.immediate:
            while self.poll():
                pass
        elif use_reader and (ticket.deadline_ns or not ticket.sequence):
            self._rouse_reader()
        elif use_reader and self._reader is None:
            self._start_reader()

    def _withdraw(self, ticket: Ticket) -> None:
        """Its submission was interrupted: nobody will ever ask for it."""
        ticket.handler = None
        if ticket.sequence:
            self.transport.cancel(ticket.sequence)  # does nothing where it has ended
        else:
            self._unqueue(ticket)

    def pump(self) -> None:
        """Send what waits, as far as the window and the arena allow."""
        mine = threading.Lock()
        try:
            with self._lock, mine:
                if self._pumper.locked() and not self.transport.immediate:
                    return  # an outer frame of this thread is sending, and will continue
                self._pumper = mine
                queue, out = self._queue, self._out
                while queue:
                    ticket = queue[0]
                    if ticket.number in out and not ticket.sent[0] and not self._send(ticket):
                        break
                    if queue and queue[0] is ticket:
                        queue.popleft()
            if self._told:
                self._settle(False)
        except BaseException:
            self._out[LEFT] = None
            self._call_reader()
            raise

    def _send(self, ticket: Ticket) -> bool:
        """Send the first of the queue, unless that is over; False when it has to wait."""
        call = ticket.call
        error = ticket.error
        if error is None and call.result is None:
            try:
                self.arguments.allocate_output(call)
            except ArenaFull:
                if self._is_anything_out():
                    return False  # replies will bring memory back
                try:
                    self.arguments.allocate_small_output(call)
                except ShmError as reason:
                    error = reason
            except ShmError as reason:
                error = reason
        if ticket.handler is None:
            self._drop(ticket)
            return True
        if error is None and self.transport.immediate:
            self._queue.popleft()  # serving it may raise, or send others, and never happens twice
            try:
                self.transport.submit(call.config, call.address, 0, ticket.number, ticket.sent)
            except BaseException:
                self._out.pop(ticket.number, None)
                raise
            return True
        if error is None:
            status = self.transport.submit(
                call.config, call.address, ticket.deadline_ns, ticket.number, ticket.sent
            )
            if status == core.EAGAIN:
                return False
            if status < 0:
                error = core.error_of(status)
        if error is not None:
            ticket.error = error
            self._told.append((ticket, ticket.handler, None, error, True))
        return True

    def _is_anything_out(self) -> bool:
        return any(one is not None and one.sent[0] for one in list(self._out.values()))

    def cancel(self, ticket: Ticket) -> bool:
        """Nobody wants a submitted call any more; False when it has ended already.

        It leaves the queue if no helper has been given it, and its result is dropped if one has.
        """
        with self._lock:
            if ticket.handler is None or self._out.get(ticket.number) is not ticket:
                return False
            ticket.handler = None
        sequence = ticket.sequence
        if sequence:
            self.transport.cancel(sequence)
        else:
            self._unqueue(ticket)
        return True

    def recall(self, ticket: Ticket) -> None:
        """Take a submitted call back that no helper has been given; others go on as they do.

        Its handler is told CallCancelled, and may send it again.
        """
        sequence = ticket.sequence
        if sequence:
            self.transport.cancel(sequence)
        else:
            self._dismiss(ticket, core.error_of(core.ECANCELLED))

    def expire(self, ticket: Ticket) -> None:
        """The deadline of a submitted call has passed: its handler hears of it."""
        if ticket.handler is not None:
            name = core.function_name(ticket.call.plan.row)
            self._dismiss(ticket, self._timeout(name, ticket.call))

    def _dismiss(self, ticket: Ticket, error: ShmError) -> None:
        """Nobody waits for a submitted call any more; its handler hears why."""
        with self._lock:
            handler = ticket.handler
            if handler is None or self._out.get(ticket.number) is not ticket:
                return
            self._told.append((ticket, handler, None, error, False))
            ticket.handler = None
        if not ticket.sequence:
            self._unqueue(ticket)
        else:
            self.transport.give_up(ticket.sequence)
        self._settle(False)

    def _unqueue(self, ticket: Ticket) -> None:
        """Drop what was never sent because nobody wants it any more."""
        with self._lock:
            if ticket.sent[0]:
                return
            self._drop(ticket)
            try:
                self._queue.remove(ticket)
            except ValueError:
                pass  # it was just dropped from there

    def _drop(self, ticket: Ticket) -> None:
        """Of a ticket that was not sent: as long as it is in _out, this may be to be done."""
        ticket.return_loans()
        ticket.keep = None
        is_mine = self._out.pop(ticket.number, None) is ticket  # else it has ended: the next has it
        if is_mine and ticket.call.keeper is None:
            ticket.call.keep = None

    def _expire_all(self) -> None:
        now = time.monotonic_ns()
        for ticket in list(self._out.values()):
            if ticket is not None and 0 < ticket.deadline_ns <= now:
                self.expire(ticket)

    # ---- the end -------------------------------------------------------------------------

    def close(self, reason: ShmError) -> None:
        """No reply will come any more: everything that waits hears why. May be called again."""
        with self._lock:
            if self._closed is None:
                self._closed = reason
            self._told += [
                (ticket, ticket.handler, None, type(reason)(str(reason)), True)
                for ticket in list(self._out.values())
                if ticket is not None
            ]
            self._out.clear()
            self._queue.clear()
        self._settle(False)

    def forget(self) -> None:
        """After :meth:`close`: drop what is kept for later calls, which is in the arena."""
        self.arguments.forget()
        self._out.clear()

    def is_lost(self) -> bool:
        """Whether the broker is gone, even if no call has noticed yet."""
        return not self.transport.immediate and bool(core.port_is_lost())

    @property
    def outstanding(self) -> int:
        """Submitted calls that have not ended."""
        return len(self._out)
