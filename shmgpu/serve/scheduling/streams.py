"""In workers: answers that come in parts, pulled from the helper one by one.

Owns the course of a stream: begun on a free helper, continued there, closed when the client leaves.
The front end asks for the next part when it could write the last one, so nothing is computed that a
slow client has not made room for. A model that answers at once is a stream of one part. Never knows
HTTP or gRPC.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from shmgpu.child.arguments import CallOptions
from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.errors import RemoteError
from shmgpu.serve.models.errors import StreamLost
from shmgpu.serve.protocol.types import InferRequest, InferResponse, ProtocolError
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.inference import LEFT, Calls
from shmgpu.serve.scheduling.pending import Pending

_tokens = itertools.count(1)

Part = Callable[[InferResponse], None]  # told of each, and asks for more when it likes
End = Callable[[BaseException | None], None]  # told once


class Stream:
    """One request whose answer comes in parts.

    Args:
        calls: of the worker.
        served: the model.
        request: what is asked.
        started_ns: when its last byte had come.
        part: told of each part; it has :meth:`more` called then, at once or later.
        end: told of the end, with what went wrong or None; not after :meth:`cancel`.
        traceparent: of the client's span.
    """

    def __init__(
        self,
        calls: Calls,
        served: ServedModel,
        request: InferRequest,
        started_ns: int,
        part: Part,
        end: End,
        traceparent: bytes = b"",
    ) -> None:
        self.calls = calls
        self.served = served
        self.request = request
        self.started_ns = started_ns
        self.part = part
        self.end = end
        self.traceparent = traceparent
        self.helper = -1
        self.is_over = False
        self._queue = served.queue_of(request)
        self._token = next(_tokens)
        self._call: Ticket | None = None
        self._timer: Any = None
        self._args: tuple[Any, ...] = ()  # the generator reads them to its end
        self._pending: Pending | None = None
        self._message = 0  # the number of the opening call in the trace, where spans are made

    def begin(self) -> None:
        """Hand the request over.

        Raises:
            ProtocolError: the request does not fit the model, or the queue is full.
            ShmError: it cannot be carried.
        """
        calls, served = self.calls, self.served
        if not served.streams:
            self._pending = calls.start(served, self.request, self.started_ns, self._whole)
            self._pending.traceparent = self.traceparent
            return
        calls.accounting.admit(self._queue)
        first, *inputs = calls.arguments(served, self.request)
        self._args = (first, self._token, *inputs)
        calls.accounting.begin(self._queue)
        options = calls.options(served, self.request) or CallOptions()
        try:
            self._send(served.opening, self._args, options)
        except BaseException:
            calls.accounting.leave(self._queue)
            raise
        if calls.spans is not None and self._call is not None:
            self._message = self._call.sequence
            calls.spans.keep(self._message)

    def more(self) -> None:
        """The last part has been taken: have the next one made."""
        if self.is_over:
            return
        if not self.served.streams:
            self.is_over = True
            self.end(None)
            return
        options = self.calls.options(self.served, self.request) or CallOptions()
        options.placement = 1 << self.helper
        try:
            self._send(self.served.continuing, (self._token,), options)
        except Exception as error:
            self._ended(error)

    def cancel(self, why: BaseException = LEFT) -> None:
        """Nobody wants the rest."""
        if self.is_over:
            return
        self.is_over = True
        if self._pending is not None:
            self._pending.cancel()
            return
        self.calls.accounting.leave(self._queue)
        self.calls.accounting.cancelled(self.served, self.started_ns)
        self._trace(why)
        if self.helper >= 0:
            self._close()
        # Otherwise it is just being opened: the stream is closed when its opening is reported.

    # ---- as a handler of the port -----------------------------------------------------------

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """A call has ended: the opening one, or one for a part."""
        self._call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if error is None and self.helper < 0:
            self.helper, *result = result
        if self.is_over:
            if error is None and result:
                self._close()
            return
        if error is not None:
            self._ended(error)
            return
        if not result:
            self._ended(None)
            return
        try:
            response = self.calls.response(self.served, self.request, result[0])
        except Exception as wrong:
            self._ended(wrong)
            self._close()
            return
        self.part(response)

    # ---- inside --------------------------------------------------------------------------

    def _whole(self, response: Any, error: BaseException | None) -> None:
        """The answer of a model that does not stream."""
        if error is not None:
            self.is_over = True
            self.end(error)
        else:
            self.part(response)

    def _send(self, target: Any, args: tuple[Any, ...], options: CallOptions) -> None:
        calls = self.calls
        self._call = calls.port.submit(target, args, {}, options, self, False, False)
        if options.timeout is not None and self._call is not None and not self.is_over:
            self._timer = calls.loop.call_later(options.timeout, self._expire)

    def _expire(self) -> None:
        if self._call is not None:
            self.calls.port.expire(self._call)

    def _close(self) -> None:
        """Have the helper forget it; nothing comes of that that anybody wants to know."""
        port = self.calls.port
        port.submit(
            self.served.closing,
            (self._token,),
            {},
            CallOptions(placement=1 << self.helper),
            _Nobody(self._args),
            False,
            False,
        )

    def _ended(self, error: BaseException | None) -> None:
        self.is_over = True
        accounting = self.calls.accounting
        if error is None:
            accounting.answered(self.served, self._queue, 1, 1, 0, self.started_ns)
        else:
            accounting.leave(self._queue)
            accounting.failed(self.served, self.started_ns, error)
        if isinstance(error, RemoteError) and error.matches(StreamLost):
            error = ProtocolError(503, error.message)
        self.end(error)
        self._trace(error)

    def _trace(self, error: BaseException | None) -> None:
        named = self.served.name, self.served.version, self.request.id
        self.calls.trace(self._message, self.started_ns, self.traceparent, named, error)


class _Nobody:
    """Takes the end of a call that nobody waits for, and keeps what must live until then."""

    __slots__ = ("kept",)

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """As a handler of the port is told."""
