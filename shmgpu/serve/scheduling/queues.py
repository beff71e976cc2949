"""The queues of a served model: its requests that wait or run, by the policy that they wait under.

Owns the count of these in this worker, and what a policy says of a request's time. Never refuses
or delays a request itself.
"""

from __future__ import annotations

from typing import Any

from shmgpu.serve.models.queue_policy import LEVELS
from shmgpu.serve.protocol.types import InferRequest


class ModelQueue:
    """Requests of one model under one policy.

    Attributes:
        counter: where the model's pending requests are counted, for all to see.
        most: requests that may be pending at once, in all workers; 0: any number.
        pending: requests that are, in this worker.
        default_timeout: seconds that a request has which names no time; 0: it has no end.
        delays: whether a request whose time is over waits behind others, instead of ending.
        allows_override: whether a request may name its time.
    """

    __slots__ = ("allows_override", "counter", "default_timeout", "delays", "most", "pending")

    def __init__(self, counter: int, policy: dict[str, Any]) -> None:
        self.counter = counter
        self.most: int = policy["max_queue_size"]
        self.default_timeout: float = policy["default_timeout_ms"] / 1e3
        self.delays: bool = policy["timeout_action"] == "DELAY"
        self.allows_override: bool = policy["allow_timeout_override"]
        self.pending = 0

    def timeout_of(self, request: InferRequest) -> float:
        """Seconds until the time of a request is over; 0: never."""
        own = request.timeout_us / 1e6 if self.allows_override else 0.0
        return own or self.default_timeout

    def delay_of(self, request: InferRequest) -> float:
        """Seconds until a request waits behind others; 0: never."""
        return self.timeout_of(request) if self.delays else 0.0

    def show(self) -> dict[str, Any]:
        """In the words of Triton's ModelQueuePolicy."""
        return {
            "timeout_action": "DELAY" if self.delays else "REJECT",
            "default_timeout_microseconds": int(self.default_timeout * 1e6),
            "allow_timeout_override": self.allows_override,
            "max_queue_size": self.most,
        }


def level_of(request: InferRequest) -> int:
    """Its priority as policies name it: the last one where it names none, or more."""
    return request.priority if 0 < request.priority < LEVELS else LEVELS
