"""What carries messages from a port to helpers, and who hears of their end.

Owns two faces, so that a port need not know whether a broker runs or, inline, this very
process serves; and the one of them that speaks to the broker.
"""

from __future__ import annotations

from typing import Any, Protocol

from shmgpu import core
from shmgpu.plans import Call


class Wire(Protocol):
    """What carries messages: the broker, or (inline) this very process."""

    last_error: BaseException | None  # inline: what the function raised

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

    def submit(self, config: Any, params: int, deadline_ns: int, /) -> tuple[int, int]:
        """As shm_port_submit: (status, sequence)."""

    def drain(self, buffer: core.ReplyBuffer, timeout_ns: int, /) -> int:
        """As shm_port_drain."""

    def descriptors(self) -> tuple[int, ...]:
        """Readable when :meth:`drain` may bring something."""


class BrokerWire:
    """The wire to the dispatcher."""

    call = staticmethod(core.port_call)
    wait = staticmethod(core.port_wait)
    abandon = staticmethod(core.port_abandon)
    grow = staticmethod(core.port_grow)
    cancel = staticmethod(core.port_cancel)
    submit = staticmethod(core.port_submit)
    immediate = False
    last_error: BaseException | None = None

    @staticmethod
    def drain(buffer: core.ReplyBuffer, timeout_ns: int) -> int:
        """Replies of submitted and abandoned calls."""
        return buffer.drain(timeout_ns)

    @staticmethod
    def descriptors() -> tuple[int, ...]:
        """Readable when :meth:`drain` may bring something."""
        return core.port_fd(), core.port_event_fd()


class Sink(Protocol):
    """Who is told how a submitted call ended."""

    def done(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Exactly once."""
