"""The quick call: calls like an earlier one, in C, where that was built and is wanted.

Owns the look at what ``shmgpu._quick`` needs, and the answer why it is not used. Without it every
call is one through Python, which does all that it does. Never calls a function.
"""

from __future__ import annotations

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
        start, result = native.start, native.result


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


def why_not() -> str:
    """Why calls in this process go through Python; "" where those like an earlier one do not."""
    if not _unable and not config.resolve("quick_calls"):
        return SWITCHED_OFF
    return _unable


def use(port: Any) -> None:
    """Calls go through this port from now on; None: this process calls nothing any more."""
    if native is not None:
        native.use(port, port.arena.base if port else 0, port.arena.end if port else 0)


def know_tickets(ticket: type, on_loan: dict[int, Any]) -> None:
    """What submitted calls are noted as, and which arrays they make read-only."""
    if native is not None:
        native.know_ticket(ticket, on_loan)


def know_ends(ended: object, finished: object) -> None:
    """What a future says that has ended before anybody waited for it."""
    if native is not None:
        native.know_ends(ended, finished)
