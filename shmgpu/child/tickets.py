"""Tickets, one for each submitted call from ``submit`` to its end; and inboxes for replies.

A :class:`shmgpu.child.plans.Call` is memory that one call after another uses; a ticket stands for
one of those calls and is never used again. So whoever holds a ticket, to cancel or expire the call,
cannot hit another call by mistake. Owns both. Never sends. The head of :mod:`shmgpu.child.port`
says who may do what to a ticket, and when.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.plans import Call, lend, on_loan, return_loans

if TYPE_CHECKING:
    from shmgpu.child.transport import CompletionHandler


class Ticket(quick.QuickTicket):
    """One submitted call, or one that was given up while it was out.

    Attributes:
        call: the memory it uses.
        handler: who hears of the end; None when nobody wants to.
        number: what its replies bear.
        sent: a cell with the message's sequence; 0 until it is sent.
        deadline_ns: when its time is over; 0: never.
        keep: what has to live until its end besides the call.
        loans: arrays that are read-only until its end.
        offers: the output buffers offered to a result that did not fit, by its token.
        error: what it raises, whatever its reply will say.
        is_near: whether its end is worth to be looked for in place, as it was sent.
        is_watched: whether somebody wants to hear of its end who does not serve replies meanwhile.
    """

    __slots__ = ()

    call: Call
    handler: CompletionHandler | None
    number: int
    sent: Any
    deadline_ns: int
    keep: Any
    loans: list[Any] | None
    offers: dict[int, tuple[int, Any, int]]
    error: BaseException | None
    is_near: bool
    is_watched: bool

    def __init__(
        self, call: Call, handler: CompletionHandler | None, number: int = -1, keep: Any = None
    ) -> None:
        self.call = call
        self.handler = handler
        self.number = number
        self.sent = core.new_sequence()
        self.deadline_ns = call.deadline_ns
        self.keep = keep
        self.loans = None
        self.offers = {}
        self.error = None
        self.is_near = False
        self.is_watched = False

    @property
    def sequence(self) -> int:
        """Of the message; 0 while it waits for a slot in the window."""
        return int(self.sent[0])

    def lend(self, arrays: list[Any]) -> None:
        """Make these read-only until the call's end."""
        self.loans = arrays
        for array in arrays:
            lend(array, self)

    def return_loans(self) -> None:
        """Whoever lent may write again; does nothing the second time."""
        if self.loans:
            return_loans(self.loans, self)
            self.loans = None


quick.know_tickets(Ticket, on_loan)


class Inbox(deque[Any]):
    """Replies that have come, and what was read of them, until whoever wanted to know was told.

    Attributes:
        owner: held by whoever empties the inbox, for just as long. Who finds it free goes on where
            the last one was interrupted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owner = threading.Lock()
