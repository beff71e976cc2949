"""What a worker counts of its requests: each step of a request is one method here.

A request is *pending* from the moment that it is handed over until it has ended, and ends once:

    received --- refused --------------------------------> counted as failed
        |------- hit (in the response cache) ------------> counted as answered
        `------- begin --> pending --- leave --> ended --- succeed, told --> answered
                              ^                    |------ failed
                              |                    |------ cancelled
                              `------ begin -------'  (it is sent again, to a model's next version)

``answered`` is leave, succeed and told in one step, for those whose answer is already out. An
answer is counted before its client is told, so that whoever has it finds it counted; where it then
cannot be written, ``revoke`` takes that back, and the request has failed.

Owns every change of a worker's request counters, for HTTP, gRPC, streams and the fast path. Never
decides what becomes of a request. Helpers count their executions themselves.
"""

from __future__ import annotations

import time

from shmgpu.errors import CallTimeout
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.queues import ModelQueue
from shmgpu.serve.state.counters import INDEX

_SUCCESS, _SUCCESS_NS = INDEX["success_count"], INDEX["success_ns"]
_FAIL, _FAIL_NS, _REFUSED = INDEX["fail_count"], INDEX["fail_ns"], INDEX["refused_count"]
_FULL, _EXPIRED = INDEX["full_count"], INDEX["expired_count"]
_CANCEL, _CANCEL_NS = INDEX["cancel_count"], INDEX["cancel_ns"]
_ROWS, _CALL_NS, _LAST_MS = INDEX["inference_count"], INDEX["call_ns"], INDEX["last_ms"]
_HIT, _HIT_NS = INDEX["cache_hit_count"], INDEX["cache_hit_ns"]
_MISS, _MISS_NS = INDEX["cache_miss_count"], INDEX["cache_miss_ns"]
_now = time.monotonic_ns
_unix_ns = time.time_ns


class ModelQueueFull(ProtocolError):
    """A request is one too many."""

    def __init__(self) -> None:
        super().__init__(503, "Exceeds maximum queue size")


class Accounting:
    """The request counters of one worker.

    Args:
        counters: the worker's row; see :mod:`shmgpu.serve.state.counters`.
        most_pending: requests that may be pending at once.
        workers: that have requests of a model; each may have an equal part.

    Attributes:
        pending: requests that are, of all models.
    """

    __slots__ = ("counters", "most_pending", "pending", "workers")

    def __init__(self, counters: memoryview, most_pending: int, workers: int = 1) -> None:
        self.counters = counters
        self.most_pending = most_pending
        self.workers = workers
        self.pending = 0

    # ---- before a request is pending -------------------------------------------------------

    def admit(self, queue: ModelQueue | None) -> None:
        """Refuse one request too many (ModelQueueFull); None: its queue is not known yet."""
        if self.pending >= self.most_pending or (queue is not None and self.is_full(queue)):
            raise ModelQueueFull

    def is_full(self, queue: ModelQueue) -> bool:
        """Whether as many requests wait as may; a part of these for each worker."""
        return 0 < queue.most <= queue.pending * self.workers

    def refused(self, served: ServedModel, started_ns: int, error: BaseException) -> None:
        """A request was answered with an error before it was handed over."""
        counters, base = self.counters, served.base
        counters[base + _FAIL] += 1
        counters[base + _REFUSED] += 1
        counters[base + _FULL] += isinstance(error, ModelQueueFull)
        counters[base + _FAIL_NS] += _now() - started_ns

    def missed(self, served: ServedModel, asked_ns: int) -> None:
        """The response cache did not have the result; it was asked since ``asked_ns``."""
        self.counters[served.base + _MISS] += 1
        self.counters[served.base + _MISS_NS] += _now() - asked_ns

    def kept(self, served: ServedModel, begun_ns: int) -> None:
        """A result was put into the response cache, which took since ``begun_ns``."""
        self.counters[served.base + _MISS_NS] += _now() - begun_ns

    def hit(self, served: ServedModel, passed_ns: int) -> None:
        """The response cache had the result, ``passed_ns`` after the request came."""
        self._count_hit(served, 1, passed_ns)
        self.counters[served.base + _LAST_MS] = _unix_ns() // 1_000_000

    def revoke_hit(self, served: ServedModel, passed_ns: int) -> None:
        """That answer cannot be written: the request has failed."""
        self._count_hit(served, -1, -passed_ns)
        self.counters[served.base + _FAIL] += 1
        self.counters[served.base + _FAIL_NS] += passed_ns

    def _count_hit(self, served: ServedModel, count: int, nanoseconds: int) -> None:
        counters, base = self.counters, served.base
        counters[base + _HIT] += count
        counters[base + _HIT_NS] += nanoseconds
        counters[base + _SUCCESS] += count
        counters[base + _SUCCESS_NS] += nanoseconds

    # ---- pending -----------------------------------------------------------------------------

    def begin(self, queue: ModelQueue) -> None:
        """A request is handed over."""
        self.pending += 1
        queue.pending += 1
        self.counters[queue.counter] += 1

    def admit_one(self, queue: ModelQueue) -> None:
        """A request is pending here, and soon handed over with others: see :meth:`begin_all`."""
        self.pending += 1
        queue.pending += 1

    def withdraw(self, queue: ModelQueue) -> None:
        """A request that was admitted has left before it was handed over."""
        self.pending -= 1
        queue.pending -= 1

    def begin_all(self, queue: ModelQueue, count: int) -> None:
        """So many that were admitted, and have not left meanwhile, are handed over."""
        self.counters[queue.counter] += count

    def leave(self, queue: ModelQueue) -> None:
        """A request is not pending any more."""
        self.pending -= 1
        queue.pending -= 1
        self.counters[queue.counter] -= 1

    # ---- the end -----------------------------------------------------------------------------

    def answered(
        self,
        served: ServedModel,
        queue: ModelQueue,
        count: int,
        rows: int,
        call_ns: int,
        started_ns: int,
    ) -> None:
        """Requests that were pending are answered.

        Args:
            served: the model.
            queue: where they were.
            count: how many requests.
            rows: of all of them together.
            call_ns: from each one's handing over to its result, summed.
            started_ns: when each one had come, summed.
        """
        counters, base = self.counters, served.base
        self.pending -= count
        queue.pending -= count
        counters[queue.counter] -= count
        counters[base + _CALL_NS] += call_ns
        counters[base + _SUCCESS] += count
        counters[base + _ROWS] += rows
        counters[base + _SUCCESS_NS] += count * _now() - started_ns
        counters[base + _LAST_MS] = _unix_ns() // 1_000_000

    def succeed(self, served: ServedModel, rows: int, call_ns: int) -> None:
        """A request that has left has a result, which its client is about to be told."""
        counters, base = self.counters, served.base
        counters[base + _CALL_NS] += call_ns
        counters[base + _SUCCESS] += 1
        counters[base + _ROWS] += rows

    def revoke(self, served: ServedModel, rows: int, call_ns: int) -> None:
        """That result cannot be told; :meth:`failed` follows."""
        counters, base = self.counters, served.base
        counters[base + _CALL_NS] -= call_ns
        counters[base + _SUCCESS] -= 1
        counters[base + _ROWS] -= rows

    def told(self, served: ServedModel, started_ns: int) -> None:
        """The client of a request that succeeded has been told."""
        self.counters[served.base + _SUCCESS_NS] += _now() - started_ns
        self.counters[served.base + _LAST_MS] = _unix_ns() // 1_000_000

    def retract(self, served: ServedModel) -> None:
        """The client of a request that succeeded could not be told after all."""
        self.counters[served.base + _SUCCESS] -= 1
        self.counters[served.base + _FAIL] += 1

    def failed(self, served: ServedModel, started_ns: int, error: BaseException) -> None:
        """A request that has left ends with an error."""
        counters, base = self.counters, served.base
        counters[base + _FAIL] += 1
        counters[base + _FAIL_NS] += _now() - started_ns
        counters[base + _EXPIRED] += isinstance(error, CallTimeout)

    def cancelled(self, served: ServedModel, started_ns: int) -> None:
        """A request that has left ends because its answer is not wanted any more."""
        self.counters[served.base + _CANCEL] += 1
        self.counters[served.base + _CANCEL_NS] += _now() - started_ns
