"""What callers hold while a call is in flight: futures for threads and for event loops.

Owns how they learn of the end. Any step may be interrupted and is then repeated (see
:mod:`shmgpu.child.port`), so each does only what is still to be done. Never sends a call.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.plans import Call
from shmgpu.child.quick import go_on, new_wake, read_alone
from shmgpu.child.tickets import Ticket
from shmgpu.common.logs import logger
from shmgpu.errors import CallCancelled

if TYPE_CHECKING:
    import asyncio

    from shmgpu.child.port import Port

R = TypeVar("R")

CANCELLED = concurrent.futures._base.CANCELLED
CANCELLED_AND_NOTIFIED = concurrent.futures._base.CANCELLED_AND_NOTIFIED
FINISHED = concurrent.futures._base.FINISHED
PENDING = concurrent.futures._base.PENDING
ENDED = object()
TURNS = 8  # awaits whose answers are near; before one of so many, a loop has a turn
HELD_S = 0.02  # who holds a future's lock for longer may have left it so
LOOK_S = 0.05  # between two looks of an event loop for the ends of calls that nobody awaits
quick.know_ends(ENDED, FINISHED, PENDING)


class _Condition(_thread.RLock, threading.Condition):  # type: ignore[misc]
    """A condition that Ctrl-C leaves whole.

    That of the standard library is entered by a method of Python: Ctrl-C between the lock and the
    ``return`` would leave it locked for ever, and whoever settles the future waiting with it. This
    one is its own lock, whose methods are C. And a wait that is broken off has the lock.
    """

    def __init__(self) -> None:
        self._waiters: deque[Any] = deque()

    has_told = False

    def is_left_locked(self) -> bool:
        """Whether another thread holds it, for so long that it may never let go of it.

        It is looked at, not taken: an exception right after that would leave it locked here.
        """
        end = time.monotonic() + HELD_S
        is_mine = self._is_owned  # type: ignore[attr-defined]
        while not is_mine() and "<locked" in _thread.RLock.__repr__(self):
            if time.monotonic() > end:
                return True
            time.sleep(0.0005)
        return False

    def notify_all(self) -> None:
        """The future has ended."""
        self.has_told = True
        super().notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """As of any condition, for one that was entered once."""
        waiter = threading.Lock()
        waiter.acquire()
        seconds = -1 if timeout is None else max(timeout, 0.0)
        woken = False
        self._waiters.append(waiter)  # harmless if it stays there
        if self.has_told:  # a handler of this thread ended the future after it was looked at
            return True
        try:  # nothing before the release can raise, and nothing stands before the lock below
            self.release()
            woken = waiter.acquire(True, seconds)
        finally:
            self.acquire()
        if not woken and waiter in self._waiters:
            self._waiters.remove(waiter)
        return woken


def _told_of(call: CallFuture[Any] | Started[Any]) -> str:
    """What is known of a call; nobody waits, and no reply is read for it."""
    error = call._exception
    if call._state in (CANCELLED, CANCELLED_AND_NOTIFIED) or isinstance(error, CallCancelled):
        return "cancelled"
    if call._state is not FINISHED and call._made is not ENDED:
        is_sent = call._ticket is not None and call._ticket.sequence
        return "sent, no answer seen yet" if is_sent else "waits to be sent"
    return f"raised {type(error).__name__}" if error else f"returned {type(call._result).__name__}"


class CallFuture(quick.QuickFuture, concurrent.futures.Future[R]):
    """The future of a submitted call.

    :meth:`cancel` is True for every call that has not ended. One that no helper has been given
    leaves the queue and never runs; of one that a helper has, the result is dropped.
    """

    # What most futures never need anything else of. A condition, and what goes with it, is made for
    # whoever wants one: until then the end is told to nobody, and whoever asks for the result
    # serves replies in the thread that asks.
    _ticket: Ticket | None
    _made: Any  # the condition; ENDED: the end came before anybody wanted one
    _done_callbacks: list[Any]
    # Waiters that counted this future as pending and have not been told of its end. A waiter that
    # came later must not be told: concurrent.futures.wait would take it for the end of another
    # future.
    _owed: list[Any]

    def __init__(self, port: Port) -> None:
        self._port = port
        self._state = PENDING

    @property
    def _condition(self) -> Any:  # type: ignore[override]
        """As of any future; whoever takes it has the reader tell of the end."""
        own = vars(self)
        if self._made is None or self._made is ENDED:
            for name in ("_waiters", "_owed", "_done_callbacks"):
                own.setdefault(name, [])
        made = self.become(_Condition()) if self._made is None else self._made
        if made is ENDED:
            self._state = FINISHED  # whoever said so may not have come to it
            return own.setdefault("_late", _Condition())
        if self._state is PENDING and self._ticket is not None:
            self._port.call_reader(self._ticket)
        return made

    def _serve(self, timeout: float | None) -> float | None:
        """Have this thread read replies until the end, unless somebody else is to tell of it.

        Returns what is left of the time; raises TimeoutError where none is.
        """
        if self._made is not None or self._ticket is None:
            return timeout
        if timeout is None:
            self._port.await_end(self._ticket, 0)
            return None
        end = time.monotonic() + timeout
        self._port.await_end(self._ticket, max(int(end * 1e9), 1))
        timeout = max(end - time.monotonic(), 0)
        if not timeout and self._made is None:
            raise concurrent.futures.TimeoutError
        return timeout

    def result(self, timeout: float | None = None) -> R:
        """As of any future."""
        if timeout is None and (found := quick.result(self)) is not NotImplemented:
            return found  # type: ignore[no-any-return]
        timeout = self._serve(timeout)
        if self._made is ENDED and self._exception is None:
            result: R = self._result
            return result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any future."""
        timeout = self._serve(timeout)
        return self._exception if self._made is ENDED else super().exception(timeout)

    def done(self) -> bool:
        """As of any future."""
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._serve(0)
        return self._made is ENDED or self._state is not PENDING

    def running(self) -> bool:
        """As of any future: whether a call runs or waits is not known."""
        return False

    def cancelled(self) -> bool:
        """As of any future."""
        return self.done() and self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def __repr__(self) -> str:
        return f"<CallFuture: {_told_of(self)}>"

    def cancel(self) -> bool:
        """Give the call up; True unless it has ended."""
        if not super().cancel():  # from here on nobody is told of its end
            return False
        ticket = self._ticket
        if ticket is not None:
            self._port.cancel(ticket)
        self._notify_cancelled()
        return True

    def _notify_cancelled(self) -> None:
        """As ``set_running_or_notify_cancel``, which does not expect that a handler did it, too."""
        with self._condition:
            if self._state == CANCELLED:
                self._owed = self._waiters[:]
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._owed:
                    waiter.add_cancelled(self)
                self._owed = []

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """As a handler of the port is told; what an interrupt left undone is done now."""
        # Ctrl-C within concurrent.futures.wait() leaves locked for good what it has taken.
        # Whoever reads replies must not wait for them: others want theirs.
        if isinstance(self._made, _Condition) and self._made.is_left_locked():
            late = threading.Thread(target=self._end_late, args=(call, result, error), daemon=True)
            late.start()
            return
        if isinstance(error, CallCancelled):
            if self._state is PENDING:
                super().cancel()
        elif self._made is None or self._made is ENDED:
            if self._made is None:
                self._result, self._exception = result, error
            self._forget_ticket()
            if self.become(ENDED) is ENDED:
                self._state = FINISHED
                return
        if self._state == CANCELLED:
            self._notify_cancelled()
        with self._condition:
            if self._state is PENDING:
                self._owed = self._waiters[:]
                self._result, self._exception = result, error
                self._state = FINISHED
                for waiter in self._owed:
                    self._tell(waiter)
                self._owed = []
            while self._owed:  # an interrupt was in between
                if self not in self._owed[-1].finished_futures:
                    self._tell(self._owed[-1])
                self._owed.pop()
            self._condition.notify_all()
        self._forget_ticket()
        self._invoke_callbacks()

    def _end_late(self, call: Call, result: Any, error: BaseException | None) -> None:
        """In a thread of its own: once that lock is free, if it ever is."""
        with self._condition:
            pass
        self.ended(call, result, error)

    def _forget_ticket(self) -> None:
        """Neither keeps the other, nor its result, until they are collected as garbage."""
        if self._ticket is not None:
            self._ticket.handler = None

    def _tell(self, waiter: Any) -> None:
        """One of concurrent.futures.wait or as_completed."""
        if self._exception is None:
            waiter.add_result(self)
        else:
            waiter.add_exception(self)

    def _invoke_callbacks(self) -> None:
        callbacks = self._done_callbacks
        # Taken and called in one step of C: none is called twice, and none is lost.
        calls = map(methodcaller("__call__", self), iter(partial(callbacks.pop, 0), ENDED))
        while callbacks:
            try:
                next(calls)
            except Exception:
                logger.exception("exception calling callback for %r", self)


def _none() -> None:
    """The port that nobody looks at."""


class LoopReader:
    """What one event loop looks at.

    It goes on looking for a moment after the last call that waited in it: most callers soon make
    their next, and to stop and begin again takes four system calls.

    Attributes:
        waiting: the calls that wait in it.
        looks: the port, if it lives, of which a look after calls that nobody awaits is due.
        due: what tasks sleep on whose calls have ended, while its own callback finds these.
        is_at_work: whether its own callback reads replies now. Only then may a call be ended at
            once in the loop's thread. A signal handler runs in that thread, too. If it ended a
            call, nothing would wake a sleeping loop; and if it removed a reader, a callback that
            the loop is about to run would be lost.
    """

    __slots__ = ("_descriptors", "_port", "due", "is_at_work", "looks", "waiting")

    def __init__(self) -> None:
        self.waiting: set[Started[Any]] = set()
        self.due: deque[Any] = deque()
        self.is_at_work = False
        self.looks: Callable[[], Port | None] = _none
        self._port: weakref.ref[Port] | None = None  # whose replies are read
        self._descriptors: tuple[int, ...] = ()

    def enter(self, loop: asyncio.AbstractEventLoop, port: Port, one: Started[Any]) -> None:
        """A call waits in it."""
        self.waiting.add(one)
        if not self.looks_at(port):
            self._stop(loop)
            descriptors = self._descriptors = port.transport.descriptors()
            for descriptor in descriptors:
                loop.add_reader(descriptor, self._read, port)
            self._port = weakref.ref(port)

    def looks_at(self, port: Port) -> bool:
        """Whether it looks at that port."""
        return self._port is not None and self._port() is port

    def leave(self, loop: asyncio.AbstractEventLoop, port: Port) -> None:
        """In the loop's thread, or while it stands: it looks at that port no more."""
        if self.looks_at(port):
            self._stop(loop)

    def look_after(self, loop: asyncio.AbstractEventLoop, port: Port) -> None:
        """Have the loop read, before long, the replies of calls that nobody awaits."""
        if self.looks() is not port:
            import asyncio  # already imported by whoever runs a loop

            loop.call_later(LOOK_S, self._look, loop, port)
            self.looks = weakref.ref(port)
            quick.know_loop(asyncio._get_running_loop, loop, self)

    def _look(self, loop: asyncio.AbstractEventLoop, port: Port) -> None:
        """The loop's own callback: they may have come."""
        if self.looks() is not port:
            return  # that one's calls have ended with it
        self.looks = _none
        try:
            if not self.waiting:
                self._stop(loop)
            if port.outstanding or self.waiting:
                self.look_after(loop, port)
                self._read(port)
                for one in list(self.waiting):
                    one.rouse()  # an exception may have struck whoever ended it, or awaited it
        finally:
            if port.outstanding or self.waiting:  # one may strike here, too
                self.look_after(loop, port)

    def _read(self, port: Port) -> None:
        """The loop's own callback: replies have come, and who awaits them goes on."""
        if read_alone(self.waiting, core.GLANCE):
            return
        due = self.due
        try:
            try:
                self.is_at_work = True
                port.poll()
            finally:
                self.is_at_work = False
            while due:
                go_on(due.popleft())
        finally:
            while due:  # something broke this off: the others go on in the loop's next turn
                wake = due.popleft()
                if not wake.done():  # its task may have been cancelled meanwhile
                    wake.set_result(None)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing waits in it any more, or it is to look at another port."""
        self._port = None
        for descriptor in self._descriptors:
            if descriptor >= 0 and not loop.is_closed():
                loop.remove_reader(descriptor)
        self._descriptors = ()


class LoopReaders:
    """The reader of each event loop that has had a call."""

    def __init__(self) -> None:
        self.by_loop: dict[weakref.ref[asyncio.AbstractEventLoop], LoopReader] = {}
        self.turns = 0  # of those who awaited a call whose answer was near

    def of(self, loop: asyncio.AbstractEventLoop) -> LoopReader:
        """That loop's."""
        found = self.by_loop.get(weakref.ref(loop))
        if found is None:
            self._forget_closed()
            key = weakref.ref(loop, lambda gone: self.by_loop.pop(gone, None))
            found = self.by_loop.setdefault(key, LoopReader())
        return found

    def _forget_closed(self) -> None:
        """Calls that such a loop left in flight wait in its reader, and hold the loop."""
        for key in list(self.by_loop):
            loop = key()
            if loop is not None and loop.is_closed():
                self.by_loop.pop(key, None)

    def leave(self, port: Port) -> None:
        """Its descriptors will be closed: whoever gets their numbers is not to find them in a loop.

        From whatever thread. A loop that runs in another one stops as soon as it can.
        """
        for key, reader in list(self.by_loop.items()):
            loop = key()
            if loop is None or loop.is_closed() or not reader.looks_at(port):
                continue
            import asyncio  # already imported by whoever runs a loop

            if loop.is_running() and asyncio._get_running_loop() is not loop:
                with contextlib.suppress(RuntimeError):  # it has just been closed
                    loop.call_soon_threadsafe(reader.leave, loop, port)
            else:
                reader.leave(loop, port)


readers = LoopReaders()


def _fulfil(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        pass
    elif isinstance(error, CallCancelled):
        future.cancel()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class _Unseen:
    """An exception that nobody has asked for yet: where nobody ever does, the loop is told."""

    __slots__ = ("error", "loop")

    def __init__(self, error: BaseException, loop: asyncio.AbstractEventLoop) -> None:
        self.error: BaseException | None = error
        self.loop = loop

    def __del__(self) -> None:
        if self.error is not None and not self.loop.is_closed():
            what = {"message": "the exception of a call was never retrieved"}
            self.loop.call_exception_handler(what | {"exception": self.error})


def _current_task() -> Any:
    """Of the running loop; None: nothing is driven by a task of asyncio's here."""
    import asyncio  # already imported by whoever runs a loop

    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


class Started(quick.QuickStarted, Coroutine[Any, Any, R]):
    """A call that is on its way; await it, or make a task of it.

    It has the methods of an :class:`asyncio.Future` as well; cancelling it, or the task that
    awaits it, gives the call up.
    """

    # As of a CallFuture: most are awaited at once, and their answers are near. These need neither a
    # future of the loop nor its eye on the port.
    _exception: BaseException | None
    _made: Any  # the loop's future; ENDED: the end came before anybody wanted one
    _woken: Any  # what whoever awaits it sleeps on, once there is no end yet
    _ticket: Ticket | None
    reader: LoopReader
    _unseen: _Unseen | None = None
    _outcome: tuple[Any, BaseException | None] | None = None  # what the loop's future is to be told
    _timer: asyncio.TimerHandle | None = None
    _steps: dict[Any, Generator[Any, None, R]] | None = None  # by the task that drives them

    def __init__(self, loop: asyncio.AbstractEventLoop, port: Port) -> None:
        self._loop = loop
        self._port = port
        self.reader = readers.of(loop)

    # ---- as a handler of the port ----

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """As a handler of the port is told, from whatever thread."""
        if self._made is None:
            self._result, self._exception = result, error
            if error is not None and self._unseen is None and not isinstance(error, CallCancelled):
                self._unseen = _Unseen(error, self._loop)
        if self.become(ENDED) is ENDED:
            if self._ticket is not None:
                self._ticket.handler = None
            if self._woken is not None:
                self._tell(self.rouse)
            return
        self._has_seen()
        self._outcome = result, error
        self._tell(self._set)

    def _tell(self, what: Callable[[], None]) -> None:
        """Have the loop do that, at once if this is a callback of its own."""
        import asyncio  # already imported by whoever runs a loop

        at_once = self._port.transport.immediate or self.reader.is_at_work
        if at_once and asyncio._get_running_loop() is self._loop:
            what()
        else:
            try:
                self._loop.call_soon_threadsafe(what)
            except RuntimeError:  # the loop is closed: nobody will ever ask
                self.reader.waiting.discard(self)

    def rouse(self) -> None:
        """Whoever awaits it goes on, if it has ended; it waits in the loop no more."""
        if self._made is ENDED:
            self._wake()
            self.reader.waiting.discard(self)
        elif self._outcome is not None:
            self._set()

    def _wake(self) -> None:
        woken = self._woken
        if woken is None or woken.done():
            return
        if self.reader.is_at_work:
            self.reader.due.append(woken)
        else:
            woken.set_result(None)

    def _set(self) -> None:
        """Tell the loop's future. Called again by the loop's look where something broke it off."""
        if self._timer is not None:
            self._timer.cancel()
        outcome = self._outcome
        if outcome is not None:
            _fulfil(self._made, *outcome)
        self._outcome = None
        if self._ticket is not None:
            self._ticket.handler = None
        self.reader.waiting.discard(self)

    # ---- as whoever waits sees it ----

    def future(self) -> asyncio.Future[R]:
        """The loop's future of this call; from now on the loop watches the port for it."""
        made = self._made
        if made is None:
            made = self.become(self._loop.create_future())
            if made is not ENDED:
                made.add_done_callback(self._has_ended)
                self.reader.enter(self._loop, self._port, self)
        future: asyncio.Future[R] = self._late_future() if made is ENDED else made
        return future

    def _late_future(self) -> Any:
        own = vars(self)
        if "_late" not in own:
            own["_late"] = self._loop.create_future()
            _fulfil(own["_late"], self._result, self._exception)
            self._has_seen()  # the future tells of it
        return own["_late"]

    def give_up(self) -> None:
        """Nobody wants it any more; who awaits it all the same learns that."""
        if self._ticket is not None and self._port.cancel(self._ticket):
            self.ended(self._ticket.call, None, core.error_of(core.ECANCELLED))

    def _has_ended(self, done: asyncio.Future[R]) -> None:
        self._wake()
        if done.cancelled() and self._ticket is not None and self._port.cancel(self._ticket):
            self._set()

    def expire_in(self, seconds: float) -> None:
        """Its time is over then."""
        ticket = self._ticket
        if ticket is not None and self._made is not ENDED:
            self.future()
            self._timer = self._loop.call_later(seconds, self._port.expire, ticket)

    def _has_seen(self) -> None:
        if self._unseen is not None:
            self._unseen.error = None

    def _raise(self) -> NoReturn:
        error = self._exception
        assert error is not None
        self._has_seen()
        late = vars(self).get("_late")
        if late is not None and not late.cancelled():
            late.exception()  # as seen there, too
        if isinstance(error, CallCancelled):
            import asyncio  # already imported by whoever runs a loop

            raise asyncio.CancelledError
        raise error

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, R]: ...

    def steps(self, tried: bool | None) -> Generator[Any, None, R]:
        """Of a task that awaits it; ``tried``: as :meth:`await_in_place` says."""
        ticket = self._ticket
        if tried is None and self._made is None and ticket is not None and ticket.is_near:
            # The answer comes sooner than the loop would be back. Now and then others of the loop
            # must have their turn, before this thread looks for it.
            readers.turns += 1
            if not readers.turns % TURNS:
                try:
                    yield
                except BaseException:
                    self.give_up()
                    raise
            if self._made is None:
                self._port.await_end(ticket, core.GLANCE)
                self.rouse()  # another may have awaited it before
        if self._made is None and self._woken is None and ticket is not None:
            self._woken = woken = new_wake(self._loop)
            try:
                self.reader.enter(self._loop, self._port, self)
                if self._made is None:
                    yield from woken
            except GeneratorExit:  # others may await it still
                if self._made is None:
                    self.give_up()
                raise
            except BaseException:
                self.give_up()
                raise
            finally:
                made: Any = self._made
                if made is None or made is ENDED:  # else others await it still
                    self.reader.waiting.discard(self)
        if self._made is not ENDED:
            return (yield from self.future())
        if self._exception is not None:
            self._raise()
        result: R = self._result
        return result

    def send(self, value: Any, /) -> Any:
        """As of a coroutine; each task that drives it has its own steps, and the same end."""
        return self._drive(lambda steps: steps.send(value))

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        if self._steps is None:
            self.give_up()
        return self._drive(lambda steps: steps.throw(*error))

    def close(self) -> None:
        """As of a coroutine."""
        for steps in list((self._steps or {}).values()):
            steps.close()  # for good

    def _drive(self, go_on: Callable[[Generator[Any, None, R]], Any]) -> Any:
        if self._steps is None:
            self._steps = {}
        task, driven = _current_task(), self._steps
        steps = driven.get(task)
        if steps is None:
            steps = driven[task] = self.steps(self.await_in_place())
        try:
            return go_on(steps)
        except BaseException:  # its end is one, too
            driven.pop(task, None)
            raise

    # ---- as an asyncio.Future, whose words these are ----

    def done(self) -> bool:
        """Whether the call has ended, or was given up."""
        return self.future().done()

    def cancelled(self) -> bool:
        """Whether it was given up."""
        return self.future().cancelled()

    def cancel(self, msg: Any = None) -> bool:
        """Give it up; False where it has ended."""
        return self.future().cancel(msg)

    def result(self) -> R:
        """What it returned. Raises what it raised, CancelledError, or InvalidStateError: no end."""
        return self.future().result()

    def exception(self) -> BaseException | None:
        """What it raised, or None. Raises CancelledError, or InvalidStateError: no end yet."""
        return self.future().exception()

    def add_done_callback(self, callback: Callable[[Any], Any], /, **context: Any) -> None:
        """Have the loop call that with the loop's future of this call, once it has ended."""
        self.future().add_done_callback(callback, **context)

    def remove_done_callback(self, callback: Callable[[Any], Any], /) -> int:
        """Have that not called; how often it would have been."""
        return self.future().remove_done_callback(callback)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it was called from."""
        loop: asyncio.AbstractEventLoop = self._loop
        return loop

    def __repr__(self) -> str:
        made = self._made
        told = _told_of(self) if made is None or made is ENDED else repr(made)
        return f"<shmgpu call: {told}>"
