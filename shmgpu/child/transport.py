"""What carries messages from a port to helpers, and reports how they ended.

Owns two interfaces, so that a port need not know whether a broker serves or, inline, this very
process; and the implementation that talks to the broker. Never looks into a block: it passes on a
function's row and an address.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Protocol

from shmgpu import core
from shmgpu.child.plans import Call

_is_one = attrgetter("sequence")


class Transport(Protocol):
    """What carries messages: the broker, or (inline) this very process."""

    last_error: BaseException | None  # inline: what the function raised
    number: int  # of the port in C

    @property
    def immediate(self) -> bool:
        """Whether a submitted call is done when submit returns."""

    def call(self, config: Any, params: int, deadline_ns: int, reply: Any, /) -> int:
        """As shm_port_call."""

    def wait(self, sequence: int, deadline_ns: int, reply: Any, /) -> int:
        """As shm_port_wait."""

    def abandon(self, sequence: int, /) -> int:
        """As shm_port_abandon."""

    def grow(self, sequence: int, token: int, params: int, /) -> int:
        """As shm_port_grow."""

    def cancel(self, sequence: int, /) -> int:
        """As shm_port_cancel."""

    def give_up(self, sequence: int, /) -> int:
        """As shm_port_give_up."""

    def submit(
        self, config: Any, params: int, deadline_ns: int, ticket: int, sequence: Any, /
    ) -> int:
        """As shm_port_submit."""

    def await_replies(self, timeout_ns: int, /) -> int:
        """As shm_port_await."""

    def take_ends(self, count: int, inbox: deque[Any], /) -> None:
        """Put so many replies into the inbox, in a step that no signal handler can divide.

        Where there were fewer, one without a sequence may be among them.
        """

    def await_end(self, sequence: int, deadline_ns: int, /) -> int:
        """As shm_port_await_end."""

    def take_end_of(self, sequence: int, inbox: deque[Any], /) -> None:
        """As :meth:`take_ends`, of the call that this was awaited of."""

    def take_growing(self, inbox: deque[Any], /) -> None:
        """The same for all that ask for a larger output buffer."""

    def version(self, pool: int, /) -> int:
        """As shm_broadcast_version."""

    def outstanding(self) -> int:
        """Messages that are out."""

    def descriptors(self) -> tuple[int, ...]:
        """Readable when replies may have come."""


class BrokerTransport:
    """The transport to the dispatcher."""

    call = staticmethod(core.port_call)
    wait = staticmethod(core.port_wait)
    abandon = staticmethod(core.port_abandon)
    grow = staticmethod(core.port_grow)
    cancel = staticmethod(core.port_cancel)
    give_up = staticmethod(core.port_give_up)
    submit = staticmethod(core.port_submit)
    outstanding = staticmethod(core.port_outstanding)
    version = staticmethod(core.broadcast_version)
    immediate = False
    last_error: BaseException | None = None

    def __init__(self) -> None:
        self.number = max(core.port_number(), 0)
        self.await_replies = partial(core.port_await, self.number)
        self.await_end = partial(core.port_await_end, self.number)
        self._take_end = partial(core.port_take_end, self.number)
        self._take_end_of = partial(core.port_take_end_of, self.number)
        self._take_growing = partial(core.port_take_growing, self.number)

    def take_ends(self, count: int, inbox: deque[Any]) -> None:
        """Replies of submitted and abandoned calls."""
        inbox.extend(islice(iter(self._take_end, None), count))

    def take_end_of(self, sequence: int, inbox: deque[Any]) -> None:
        """The reply of the call whose end was awaited."""
        inbox.extend(map(self._take_end_of, (sequence,)))

    def take_growing(self, inbox: deque[Any]) -> None:
        """Their requests for larger output buffers."""
        inbox.extend(takewhile(_is_one, iter(self._take_growing, None)))

    @staticmethod
    def descriptors() -> tuple[int, ...]:
        """Readable when replies may have come."""
        return core.port_fd(), core.port_event_fd()


class CompletionHandler(Protocol):
    """Who is told how a submitted call ended."""

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Once; again only where an exception from outside, such as Ctrl-C, broke it off."""
