"""The quick call: calls like an earlier one, in C, where that was built and is wanted.

Owns the look at what ``shmgpu._quick`` needs, and the answer why it is not used. Without it every
call is one through Python, which does all that it does. Never calls a function.
"""

from __future__ import annotations

import selectors
import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from shmgpu import core
from shmgpu.common import config


class QuickFunction:
    """What a function is made of: calling it, where C does not, is :meth:`call_in_python`.

    Attributes:
        plans_port: whose plans it has, or None.
        signatures: of calls that are ready to be made again; None: it has none ever.
    """

    plans_port: Any
    signatures: list[Any] | None

    if not TYPE_CHECKING:  # they are told of calls by what is made of this

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """As :meth:`call_in_python`."""
            return self.call_in_python(*args, **kwargs)

    def call_in_python(self, *args: Any, **kwargs: Any) -> Any:
        """Call and wait, whatever the arguments are."""
        raise NotImplementedError


class QuickPort:
    """What a port is made of: in C its attributes are fields that the quick call looks at."""


class QuickCall:
    """What a ready call is made of: in C it is sent as it lies; see :mod:`.prepared`."""

    call: Any
    buffer: Any

    def describe(
        self, recipe: Any, address: int, values: tuple[Any, ...], value_bytes: int
    ) -> None:
        """How it is made, and the plain values in its block."""

    def hold(
        self, buffer: Any, address: int, arrays: tuple[Any, ...], form: Any, make: Any
    ) -> None:
        """Its output buffer, arrays over it that nobody else has, and what is made of them."""


class QuickTicket:
    """What a ticket is made of: in C it is made for a call that is sent as it lies."""

    __slots__ = (
        "call",
        "deadline_ns",
        "error",
        "handler",
        "is_near",
        "is_watched",
        "keep",
        "loans",
        "number",
        "offers",
        "sent",
    )
    ready: Any = None  # the ready call, where it was made in C


class QuickFuture:
    """What futures of calls are made of: in C its attributes are fields, which the end sets."""

    _port: Any = None
    _ticket: Any = None
    _made: Any = None
    _state: Any = None
    _result: Any = None
    _exception: Any = None
    _loop: Any = None
    reader: Any = None
    _woken: Any = None

    def become(self, made: Any) -> Any:
        """What it is made as from now on: that, unless it is something already."""
        return vars(self).setdefault("_made", made)


class QuickStarted(QuickFuture):
    """What those are made of that a task awaits: in C most waits end where they begin."""

    def __await__(self) -> Any:
        """The steps of whoever awaits it."""
        return self.steps(self.await_in_place())

    def await_in_place(self) -> bool | None:
        """Where its loop has nothing else to do, whether it has ended before there was; else None.

        What strikes meanwhile, such as a signal handler's exception, gives it up.
        """
        return None

    def steps(self, tried: bool | None) -> Any:
        """See :meth:`shmgpu.child.futures.Started.steps`."""
        raise NotImplementedError


def makes(form: Any) -> bool:
    """Whether C makes results of that form: arrays, by their numbers, in plain containers."""
    if type(form) is dict:
        return all(map(makes, form.values()))
    return type(form) is int or (type(form) in (tuple, list) and all(map(makes, form)))


# Functions of the core that it calls, in its order.
CALLS = (
    "port_repeat",
    "port_resubmit",
    "port_is_near",
    "port_await_reply",
    "port_put_back",
    "port_is_lost",
    "count_bytes",
)

# Why calls go through Python.
NOT_BUILT = "shmgpu._quick was not built"
OTHER_ARRAYS = f"NumPy {np.__version__} keeps the fields of arrays elsewhere"
SWITCHED_OFF = "SHMGPU_QUICK_CALLS says so"

native: Any = None


def start(function: Any, args: Any, kwargs: Any, future: type) -> Any:
    """A future of a call like an earlier one, which was sent; None: submit it through Python."""


def start_awaited(function: Any, args: Any, kwargs: Any, started: type) -> Any:
    """As :func:`start`, of a call that the running event loop awaits."""


def new_wake(loop: Any) -> Any:
    """What a task of that loop sleeps on: a future without a value, which nobody else has."""
    return loop.create_future()


def go_on(wake: Any) -> None:
    """In a callback of the loop: have whoever sleeps on it go on, at once in C."""
    if not wake.done():
        wake.set_result(None)


def read_alone(waiting: set[Any], glance_ns: int) -> bool:
    """Whether one call alone waits in the loop, has ended, and whoever awaits it has gone on."""
    return False


def result(future: Any) -> Any:
    """Of one whose call ends as expected, once it has ended; NotImplemented: Python goes on."""
    return NotImplemented


if not TYPE_CHECKING:
    try:
        import shmgpu._quick as native
    except ImportError:  # a tree that was not built
        pass
    else:
        QuickFunction, QuickPort = native.QuickFunction, native.QuickPort
        QuickCall, QuickTicket = native.QuickCall, native.QuickTicket
        QuickFuture, QuickStarted = native.QuickFuture, native.QuickStarted
        start, result = native.start, native.result
        start_awaited, new_wake = native.start_awaited, native.QuickWake
        go_on, read_alone = native.QuickWake.go_on, native.read_alone


def _reads_arrays() -> bool:
    """Whether C finds the fields of NumPy's arrays where they are."""
    if np.ndarray.__basicsize__ < native.NDARRAY_BYTES:
        return False
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    several = (whole, whole[1:, ::2], whole.T, whole[2, 3:], np.array(1), np.zeros((0, 5)))
    return all(
        native.reads_array(
            one,
            one.__array_interface__["data"][0],
            one.shape,
            one.dtype,
            one.flags.c_contiguous,
        )
        for one in several
    )


def _why_unable() -> str:
    if native is None:
        return NOT_BUILT
    native.bind(np.ndarray, *map(core.address_of_call, CALLS))
    if not _reads_arrays():
        return OTHER_ARRAYS
    return ""


_unable = _why_unable()


def _set_writeable(array: Any, may: bool) -> None:
    try:
        array.flags.writeable = may
    except ValueError:  # NumPy only lends such memory out: it stays read-only
        pass


# Of an array that was writeable before: NumPy gives that back to none whose memory it knows nothing
# of, such as a tensor's.
set_writeable = _set_writeable if _unable else native.set_writeable


def why_not() -> str:
    """Why calls in this process go through Python; "" where those like an earlier one do not."""
    if not _unable and not config.resolve("quick_calls"):
        return SWITCHED_OFF
    return _unable


def use(port: Any) -> None:
    """Calls go through this port from now on; None: this process calls nothing any more."""
    if native is not None:
        native.use(port, port.arena.base if port else 0, port.arena.end if port else 0)


def know_tensor(tensor: type) -> None:
    """Torch's type, which is there once torch has been imported."""
    # Another thread may be importing the rest of torch: then it is known another time.
    to_dlpack = getattr(sys.modules.get("torch.utils.dlpack"), "to_dlpack", None)
    if to_dlpack is not None:
        native.know_tensor(tensor, to_dlpack)


def know_tickets(ticket: type, on_loan: dict[int, Any]) -> None:
    """What submitted calls are noted as, and which arrays they make read-only."""
    if native is not None:
        native.know_ticket(ticket, on_loan)


def know_loop(running_loop: Any, loop: Any, reader: Any) -> None:
    """Asyncio's function, the loop that calls, and what that looks at."""
    if native is not None:
        native.know_loop(running_loop, weakref.ref(loop), reader, _descriptor_of(loop))


def _descriptor_of(loop: Any) -> int:
    """What is readable where a loop of asyncio's own has something to do; -1: who knows.

    What else such a loop has to do stands in fields of its own, the same ones since Python 3.4.
    """
    import asyncio  # already imported by whoever runs a loop

    fields = ("_ready", "_scheduled", "_debug", "_stopping", "_task_factory")
    if type(loop) is not asyncio.SelectorEventLoop or not all(hasattr(loop, one) for one in fields):
        return -1
    selector = getattr(loop, "_selector", None)
    return int(selector.fileno()) if isinstance(selector, selectors.EpollSelector) else -1


def know_ends(ended: object, finished: object, pending: object) -> None:
    """What a future says that has ended before anybody waited for it, or has not ended."""
    if native is not None:
        native.know_ends(ended, finished, pending)
