"""Replies that have arrived: from C's queue to whoever waits for each, and the reader thread.

Owns the tickets of calls in flight, the inboxes that replies pass through, and the reader. The
rules that let all of this be interrupted anywhere are at the head of :mod:`shmgpu.child.port`.
Never runs a user's function.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.memory import Arena
from shmgpu.child.plans import Call
from shmgpu.child.prepared import keep
from shmgpu.child.results import result_of, wrong_output
from shmgpu.child.tickets import Inbox, Ticket
from shmgpu.child.transport import Transport
from shmgpu.common.logs import logger
from shmgpu.errors import ArenaFull, ShmError

SPARE_BYTES = 4096  # what a result may leave unused of its output buffer
JOIN_S = 5.0  # for the reader to end
LINGER_NS = 50_000_000  # how long the reader waits for the next reply before it looks around
QUEUE_NS = 5_000_000  # the same while calls wait for the window, of which some have deadlines
LOOK_NS = 50_000_000  # how long a thread waits for a reply before it looks who else ended its call
REST_S = 0.05  # how long it leaves calls alone that somebody may be waiting for
# Keys of _out that stand for no ticket, because an exception struck:
LEFT = 0  # work was left behind
STRUCK = -1  # what it struck is in _struck
ENDS = (1 << 32) - 1  # the bits of await_replies() that count calls that ended


class Replies(quick.QuickPort):
    """The calls that are out, and what comes back of them; what a port is besides sending."""

    def __init__(self, transport: Transport, arena: Arena) -> None:
        self.transport = transport
        self.arena = arena
        self._lock = threading.RLock()
        self._queue: deque[Ticket] = deque()  # submitted, waiting for a slot in the window
        # By number those that were submitted, by sequence those that were given up; LEFT, STRUCK.
        self._out: dict[int, Ticket | None] = {}
        self._early: set[int] = set()  # late replies that came before _out knew of the call
        self._growing: deque[Any] = deque()  # replies that ask for a larger output buffer
        self._told: deque[tuple[Any, ...]] = deque()  # ends that no reply brought
        # Calls and tickets that an exception struck, and the memory that helpers may still touch.
        self._struck: deque[tuple[Any, Any, list[Any]]] = deque()
        self._inboxes = [Inbox()]
        self._is_quick = not transport.immediate and not quick.why_not()
        self._reader: threading.Thread | None = None
        self._deadlines = False
        self._rest = threading.Lock()  # while it is held, the reader has nothing to do
        self._rest.acquire()
        self._closed: ShmError | None = None

    def pump(self) -> None:
        """Send what waits, as far as the window allows."""
        raise NotImplementedError

    def close(self, reason: ShmError) -> None:
        """No reply will come any more."""
        raise NotImplementedError

    def _expire_all(self) -> None:
        """End the calls whose time is over."""
        raise NotImplementedError

    def _tidy(self) -> None:
        """Give up what exceptions have struck."""
        raise NotImplementedError

    def poll(self) -> int:
        """Take in replies that have come, without waiting: how many."""
        done = self._settle(True)
        # Whoever found the window full may have been broken off by what took all ends meanwhile.
        if done > 0 or (self._queue and done == 0):
            self.pump()
        elif done < 0:
            self.close(core.error_of(done))
            return 0
        return done

    def _settle(self, looks: bool) -> int:
        """Report what has arrived, continuing interrupted work: how much, or a status."""
        done = ready = 0
        mine = threading.Lock()
        try:
            with mine:
                if looks:
                    ready = self.transport.await_replies(0)
                self._out.pop(LEFT, None)
                if self._struck or STRUCK in self._out:  # the mark alone: broken off
                    self._tidy()
                growing = ready >> 32
                if growing > 0 or self._growing:
                    done = self._serve_growing()
                for inbox in self._claim(mine):
                    if ready > 0:
                        self.transport.take_ends(ready & ENDS, inbox)
                        ready = 0
                    done += self._empty(inbox)
        except BaseException:
            self._out[LEFT] = None
            self._call_reader()
            raise
        if not done and ready < 0 and ready not in (core.EINTR, core.EAGAIN):
            return ready
        return done

    def await_end(self, ticket: Ticket, until_ns: int) -> None:
        """Serve the replies of a submitted call in this thread until it has ended.

        Returns early where that is not possible, because it waits for the window or another thread
        waits for it, and at the time ``until_ns`` (0: never; core.GLANCE: one look is all). Ends of
        other calls are left to those who wait for them.
        """
        if ticket.ready is not None:
            has_ended = quick.native.await_end(self, ticket, until_ns)
            if has_ended and self._queue:
                self.pump()
            if has_ended or until_ns == core.GLANCE:
                return
        await_end, out, number = self.transport.await_end, self._out, ticket.number
        while ticket.handler is not None and out.get(number) is ticket and ticket.sequence:
            look_ns = time.monotonic_ns() + LOOK_NS
            for limit_ns in (ticket.deadline_ns, until_ns):
                if 0 < limit_ns < look_ns:
                    look_ns = limit_ns
            status = await_end(ticket.sequence, look_ns)
            if status == core.OK:
                self._settle_one(ticket.sequence)
            elif status == core.ENEEDS_SPACE:
                self._serve_growing()
            elif status == core.ETIMEOUT:
                now_ns = time.monotonic_ns()
                if 0 < ticket.deadline_ns <= now_ns:
                    self._expire_all()
                if 0 < until_ns <= now_ns:
                    return
            elif status != core.EINTR:
                return

    def _settle_one(self, sequence: int) -> None:
        """Report the end of the call with that sequence, unless somebody else has."""
        mine = threading.Lock()
        try:
            with mine:
                inboxes = self._claim(mine)
                self.transport.take_end_of(sequence, inboxes[0])
                for inbox in inboxes:  # others have what somebody was interrupted in
                    self._empty(inbox)
            if self._queue:
                self.pump()
        except BaseException:
            self._out[LEFT] = None
            self._call_reader()
            raise

    def _claim(self, mine: Any) -> list[Inbox]:
        """All inboxes that no thread is emptying, and at least one."""
        with self._lock:
            claimed = [inbox for inbox in self._inboxes if not inbox.owner.locked()]
            if not claimed:
                claimed = [Inbox()]
                self._inboxes += claimed
            for inbox in claimed:
                inbox.owner = mine
        return claimed

    def _empty(self, inbox: Inbox) -> int:
        """Read and tell whatever is in an inbox, and what no reply brought: how much it was."""
        done = 0
        while True:
            if not inbox:
                try:
                    inbox.extend(islice(iter(self._told.popleft, None), 1))
                except IndexError:  # that was all
                    return done
            if type(inbox[0]) is tuple or self._read_end(inbox):
                ticket, handler, result, error, is_over = inbox[0]
                if is_over:
                    self._end(ticket, handler is not None and error is None)
                if handler is not None:
                    _report(handler.ended, ticket.call, result, error)
            inbox.popleft()
            done += 1

    def _read_end(self, inbox: Inbox) -> bool:
        """Replace the inbox's first reply by what it means; False where nothing is to be told."""
        reply = inbox[0]
        number = int(reply.ticket or reply.sequence)
        ticket = self._out.get(number)
        if ticket is None and number and not reply.ticket:
            with self._lock:  # given up a moment ago: its thread has not noted it yet
                ticket = self._out.get(number)
                if ticket is None:
                    self._early.add(number)
        if ticket is None:
            return False
        call, handler, error = ticket.call, ticket.handler, ticket.error
        if handler is None or error is not None:
            inbox[0] = ticket, handler, None, error, True
            return True
        status, value = int(reply.status), int(reply.value)
        if ticket.ready is not None and quick.native.settle(self, inbox, ticket, status, value):
            return True
        if status:
            call.note(reply)
        if call.keeper is not None and not status and not value:
            self._out.pop(number, None)
            _report(call.keeper.arrived)
            return False
        try:
            inbox[0] = ticket, handler, self._result_of(call, status, value), None, True
        except ShmError as reason:
            call.blame(reason)
            inbox[0] = ticket, handler, None, _alone(reason), True
        except BaseException as reason:
            # The result's own, or from outside, where signals are handled: read once more and see.
            try:
                inbox[0] = ticket, handler, self._result_of(call, status, value), None, True
            except BaseException as again:
                if _is_from_outside(again):
                    raise  # twice: the next thread reads it
                inbox[0] = ticket, handler, None, _alone(again), True
            else:
                raise reason
        return True

    def _end(self, ticket: Ticket, is_good: bool) -> None:
        """Nobody writes to its memory any more."""
        if ticket.loans:
            ticket.return_loans()
        kept, ticket.keep = ticket.keep, None
        call = ticket.call
        if self._out.pop(ticket.number, None) is None:
            if self._closed is not None:  # nobody uses it again
                call.keep = None
            return
        if ticket.offers:  # another thread may be about to write its own offer into the block
            call.result = call.keep = call.out = None
            ticket.offers = {}
            return
        call.result = call.keep = None  # before another thread may take it
        if not is_good or not self._is_prepared(call, kept):
            call.release()

    def _is_prepared(self, call: Call, kept: Any) -> bool:
        """Whether a call that was submitted stands ready from now on to be made again by C."""
        if not self._is_quick or type(call) is not Call or kept is None:  # raw, or its keeper's
            return False
        args, kwargs, target = kept[:3]  # as Port.submit has it; C has the arrays behind it
        return keep(target, args, kwargs, call, self.arena)

    def _serve_growing(self) -> int:
        """Offer larger buffers to the results that asked: to how many. Runs no user's code."""
        growing = self._growing
        try:
            self.transport.take_growing(growing)
            return self._offer_all()
        except BaseException:
            self._out[LEFT] = None
            self._offer_all()  # others wait for the slots that these hold
            raise

    def _offer_all(self) -> int:
        done = 0
        for reply in list(self._growing):
            self._offer(reply)
            try:
                self._growing.remove(reply)
            except ValueError:
                pass  # somebody else did the same
            done += 1
        return done

    def _offer(self, reply: Any) -> None:
        sequence, token = int(reply.sequence), int(reply.token)
        ticket = self._out.get(int(reply.ticket) or sequence)
        block = 0  # none: the result is dropped, and the call ends
        if ticket is not None and ticket.handler is not None and ticket.error is None:
            call, offers = ticket.call, ticket.offers
            try:
                if token not in offers:
                    offers.setdefault(token, self._output_for(call, int(reply.value)))
                # It may have ended meanwhile, in another thread, and another may have its block.
                # Who ends it from now on finds the offer, and leaves the block alone. Or another
                # thread has offered the same, and the helper is reading it.
                if self._out.get(ticket.number) is ticket:
                    call.offer_output(*offers[token])
                    block = call.address
            except ShmError as error:
                ticket.error = error
        self.transport.grow(sequence, token, block)

    # ---- the reader ----------------------------------------------------------------------

    def call_reader(self, ticket: Ticket) -> None:
        """Somebody wants to hear of its end, and serves no replies meanwhile."""
        if ticket.is_watched and self._reader is not None:
            return
        ticket.is_watched = True
        if self._out.get(ticket.number) is ticket:
            self._rouse_reader()

    def _rouse_reader(self) -> None:
        """There is something for it to do."""
        try:
            self._rest.release()
        except RuntimeError:
            pass  # it has been told
        if self._reader is None:
            self._start_reader()

    def _start_reader(self) -> None:
        with self._lock:
            if self._reader is not None or self._closed is not None:
                return
            reader = threading.Thread(target=self._read, name="shmgpu-replies", daemon=True)
            _thread.start_new_thread(self._launch, (reader,))
            self._reader = reader  # if this is interrupted, the thread itself says that it runs

    def _launch(self, reader: threading.Thread) -> None:
        """Start it, from where no signal handler runs.

        ``Thread.start`` waits, with a condition that Ctrl-C may leave locked; the thread that was
        started would then wait for that for ever.
        """
        try:
            reader.start()
        except RuntimeError:  # no more threads: this is one
            with self._lock:
                if self._reader is reader:
                    self._reader = threading.current_thread()
            self._read()

    def _call_reader(self) -> None:
        """An exception struck here: have another thread continue."""
        if not self.transport.immediate:
            try:
                self._rouse_reader()
            except RuntimeError:
                pass  # the interpreter ends, or has no more threads

    def _read(self) -> None:
        """The reader thread: it lives as long as submitted calls are out.

        Most of them are waited for by threads that read replies themselves, faster than this one
        could tell them. So it rests until it is roused, and looks around now and then for what
        nobody has waited for.
        """
        me = threading.current_thread()
        with self._lock:
            if self._reader is not None and self._reader is not me:
                return
            self._reader = me
        inbox = Inbox()
        try:
            self._serve(inbox)
        except BaseException:
            # What it took is for whoever comes next, be it another thread like this.
            with self._lock:
                self._inboxes.append(inbox)
                self._out[LEFT] = None
                self._reader = None
            raise

    def _serve(self, inbox: Inbox) -> None:
        """What the reader does until nothing is out."""
        rests = not self._rest.acquire(False)
        while True:
            if rests:
                rests = not self._rest.acquire(True, REST_S)
            ready = self.transport.await_replies(0 if rests else self._linger_ns())
            if ready > 0:
                if ready >> 32:
                    self._serve_growing()
                self.transport.take_ends(ready & ENDS, inbox)
                self._empty(inbox)
            elif ready < 0 and ready not in (core.EINTR, core.EAGAIN):
                self._reader = None
                self.close(core.error_of(ready))
                return
            if LEFT in self._out or STRUCK in self._out or self._struck:
                self._settle(False)
            if self._queue or self._told:
                self.pump()
            if self._deadlines:
                self._expire_all()
            if ready <= 0:
                with self._lock:
                    if not self._out:
                        self._reader = None
                        return
                rests = not self._has_work()

    def _linger_ns(self) -> int:
        """How long the reader may wait for a reply: not beyond the first deadline."""
        if not self._deadlines:
            return LINGER_NS
        linger_ns, now_ns = QUEUE_NS if self._queue else LINGER_NS, time.monotonic_ns()
        for ticket in list(self._out.values()):
            if ticket is not None and ticket.handler is not None and ticket.deadline_ns:
                linger_ns = min(linger_ns, max(ticket.deadline_ns - now_ns, 0))
        return linger_ns

    def _has_work(self) -> bool:
        """Whether the reader has to wait for replies: nobody else does for these."""
        return bool(self._queue) or any(
            ticket is None or ticket.is_watched or ticket.deadline_ns
            for ticket in list(self._out.values())
        )

    def join(self) -> None:
        """Wait for the reader to end; call after :meth:`close`."""
        reader = self._reader
        if reader is None or reader is threading.current_thread():
            return
        until = time.monotonic() + JOIN_S
        self._rouse_reader()
        while self._reader is reader and time.monotonic() < until:
            if reader.is_alive():
                reader.join(until - time.monotonic())
                return
            time.sleep(0.001)  # it is just being launched

    # ---- what a reply means --------------------------------------------------------------

    def _result_of(self, call: Call, status: int, used_bytes: int) -> Any:
        buffer = call.result
        result = result_of(call, status, used_bytes, self.transport.last_error)
        if used_bytes and call.out is None and len(buffer) - used_bytes > SPARE_BYTES:
            self.arena.shrink(buffer, used_bytes)  # a kept result holds no more than it is
        return result

    def _output_for(self, call: Call, needed: int) -> tuple[int, Any, int]:
        """A buffer for a parked result, as :meth:`Call.set_output` takes it."""
        try:
            if needed > self.arena.capacity:
                raise self.arena.refused(needed)
            return needed, *self.arena.allocate(needed)
        except ArenaFull:
            if call.out is None or not call.plan.fixed:
                raise
            # It is fetched only to say what it is: see wrong_output().
            raise wrong_output(call, f"{needed:,} bytes") from None


def _report(tell: Callable[..., None], *what: Any) -> None:
    """Tell somebody. Others were read with it: one that raises must not cost theirs."""
    try:
        tell(*what)
    except BaseException as error:
        if _is_from_outside(error):
            raise  # the next thread reports it again
        # Its own, or of a signal handler, as of a program that limits time by SIGALRM: told once
        # more, and see.
        try:
            tell(*what)
        except BaseException as again:
            if _is_from_outside(again):
                raise
            logger.exception("a reply was lost: its handler raised")
            return
        if threading.current_thread() is threading.main_thread():
            raise


def _alone(error: BaseException) -> BaseException:
    """An error without the frames of whoever happened to read the reply, or what was handled there.

    They would keep alive what that thread was about, which may well wait for this very call.
    """
    error.__context__ = error.__cause__
    return error.with_traceback(None)


def _is_from_outside(error: BaseException) -> bool:
    """Whether it is Ctrl-C, most likely: other threads run no signal handlers."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and not isinstance(error, Exception)
