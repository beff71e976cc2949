"""One request on its way: what is known of it until its outcome has been told.

Owns this record. Never sends or answers it: :mod:`shmgpu.serve.scheduling.inference` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.serve.protocol.types import InferRequest
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.templates import RequestTemplate

# Called at the end: with an InferResponse whose outputs are in the order asked for; with the
# answer's body, if the request was like an earlier one; or with the error.
Outcome = Callable[[Any, BaseException | None], None]


class Pending:
    """One request that a helper has, or will have."""

    __slots__ = (
        "args",
        "call",
        "calls",
        "digest",
        "is_late",
        "is_over",
        "message",
        "outcome",
        "queue",
        "request",
        "rows",
        "sent_ns",
        "served",
        "started_ns",
        "template",
        "timer",
        "traceparent",
    )

    def __init__(
        self,
        calls: Any,  # those of the worker, which are told of its end
        served: ServedModel,
        request: InferRequest,
        args: tuple[Any, ...],
        rows: int,
        started_ns: int,
        outcome: Outcome,
        template: RequestTemplate | None = None,
    ) -> None:
        self.args = args
        self.template = template
        self.digest = b""  # of the inputs, where the result may be kept
        self.is_over = False
        self.calls = calls
        self.served = served
        self.request = request
        self.queue = served.queue_of(request)
        self.is_late = False  # its time is over, and it waits behind others
        self.rows = rows
        self.started_ns = started_ns
        self.sent_ns = 0
        self.outcome = outcome
        self.call: Ticket | None = None
        self.message = 0  # its number in the trace, where spans are made
        self.timer: Any = None
        self.traceparent = b""  # of the client's span

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """The port tells this: the call has ended."""
        self.calls.ended(self, result, error)

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        self.calls.cancel(self)
