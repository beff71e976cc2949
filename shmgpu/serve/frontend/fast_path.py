"""Small requests like earlier ones: memory and messages for them stay ready in the arena.

A client that asks again sends the same head and the same JSON, byte for byte; only the tensors'
bytes differ. A :class:`PreparedRequest` keeps everything that was derived from those bytes: the
model, where each input's bytes lie, the first bytes of the answer. Its *slots* are parameter blocks
with memory for inputs and outputs that stay where they are in the arena, so that neither the worker
nor the helper parses anything again. A request that arrives whole, matches an earlier one and finds
a free slot costs a copy into the arena, one message, and a copy out.

Owns the prepared requests and the arena memory that they hold, and those that HTTP's begin with;
:mod:`shmgpu.serve.frontend.grpc_fast_path` has gRPC's. Never parses: bytes that it has not
seen take the general path (:mod:`shmgpu.serve.scheduling.templates` knows where to find their
tensors), and so does a call that ends otherwise than the last one did. What holds for a prepared
request's bytes holds until the control table changes; then all of them are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.codec import arrays
from shmgpu.errors import ArenaFull
from shmgpu.serve.frontend.coalescing import Lane
from shmgpu.serve.frontend.connection import Connection
from shmgpu.serve.frontend.lanes import Lanes
from shmgpu.serve.frontend.request import Request, head_of
from shmgpu.serve.scheduling.catalog import Catalog
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Outcome, Pending
from shmgpu.serve.scheduling.templates import RequestTemplate

MOST_PREPARED = 512  # all are forgotten when there are more
MOST_SLOTS = 256  # of a prepared request
MOST_HEAD = 4096  # bytes of a head that is kept
MOST_ANSWER = 65536  # bytes of an answer that is copied out
END = b"\r\n\r\n"

_now = time.monotonic_ns


class PreparedRequest:
    """What all requests of the same bytes share.

    Attributes:
        first: the answer's bytes before the outputs': head and JSON.
        frames: what stands before each output's bytes.
        join: makes an answer of ``first``, and of each output's frame and bytes.
        parts: where each output's bytes begin and end in a call's output buffer.
        told: where it says something of outputs in regions, and what: that holds for the answer.
        inputs: where each input's bytes begin and end behind the JSON.
        is_open: whether requests take it; none does once it was closed.
        ready: the free slots.
        slots: how many there are.
        hint: layout of a result.
        lane: of the requests that may go as one message with it; None: each goes by itself.
        places: where its tensors lie, if all of them lie in clients' regions.
        version: of the control table that all this is true of.
    """

    __slots__ = (
        "_lanes",
        "call_priority",
        "first",
        "frames",
        "hint",
        "inputs",
        "is_open",
        "join",
        "lane",
        "parts",
        "places",
        "plan",
        "queue",
        "ready",
        "served",
        "signature",
        "slots",
        "template",
        "timeout",
        "told",
        "values",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        pending: Pending,
        template: RequestTemplate,
        call: Call,
        timeout: float | None,
        version: int,
        lanes: Lanes,
    ) -> None:
        self.template = template
        self.served = pending.served
        self.queue = pending.queue
        self.plan = call.plan
        self.signature = call.plan.signature
        self.values = call.value_bytes
        self.call_priority = call.priority
        self.timeout = timeout
        self.version = version
        start = template.pieces[0][3] if template.pieces else 0
        self.inputs = [
            (offset - start, offset - start + dtype.itemsize * int(np.prod(shape)))
            for _, dtype, shape, offset in template.pieces
        ]
        self.parts: list[tuple[int, int]] = []
        self.told: list[tuple[int, int, bytes]] = []
        self.first = b""
        self.frames: list[bytes] = []
        self.join: Callable[[Sequence[Any]], bytes] = b"".join
        self.ready: list[RequestSlot] = []
        self.slots = 0
        self.hint: Any = None
        self.is_open = True
        self.places = b""
        self.lane: Lane | None = None
        self._lanes = lanes

    def learn(self, first: bytes, frames: Sequence[bytes], outputs: Sequence[Any]) -> bool:
        """Take the first answer, of which later ones are copies but for the outputs' bytes.

        Args:
            first: what comes before the outputs.
            frames: what stands before each of them.
            outputs: their bytes.

        Returns:
            Whether answers are alike, and small.
        """
        hint = self.plan.hint
        if hint is None or self.plan.fixed or hint.tree.value_count:
            return False
        if not self.is_current() or len(hint.specs) != len(self.served.outputs):
            return False
        self.parts, self.told = [], []
        told = iter(self.template.told)
        if len(self.template.told) != sum(
            is_in_region for *_, is_in_region in self.template.wanted
        ):
            return False  # it was made in the general way
        for index, _, is_in_region in self.template.wanted:
            start = hint.offsets[index]
            end = start + hint.specs[index].nbytes
            if is_in_region:
                self.told.append((start, end, next(told)))
            else:
                self.parts.append((start, end))
        sizes = [end - start for start, end in self.parts]
        if sizes != [len(one) for one in outputs]:
            return False
        self.first, self.frames, self.hint = first, list(frames), hint
        if sum(map(len, (first, *frames))) + sum(sizes) > MOST_ANSWER:
            return False
        self.lane = self._lanes.join(self)
        return True

    def is_current(self) -> bool:
        """Whether results still look as they did; a plan may learn that they differ."""
        return self.signature is self.plan.signature

    def close(self) -> None:
        """Release what no request uses, at once: it and its calls refer to each other."""
        self.is_open = False
        for slot in self.ready:
            slot.block.keeper = None
        self.ready.clear()
        if self.lane is not None:
            self.lane.leave()
            self.lane = None


class RequestSlot(Pending):
    """A prepared request's memory for one call; requests take it one after the other.

    Attributes:
        block: the call, whose parameter block never changes.
        inputs: views of the memory for the inputs' bytes.
        turn: the request, as its connection knows it.
    """

    __slots__ = ("block", "inputs", "output", "pieces", "prepared", "told", "turn")

    def __init__(
        self, prepared: PreparedRequest, calls: Calls, answering: Callable[[Request], Outcome]
    ) -> None:
        self.turn = Request(None)
        self.turn.method = b"POST"
        arena, template = calls.port.arena, prepared.template
        block = Call(prepared.plan, arena)
        block.write(prepared.values, arena)
        block.config.priority = block.priority = prepared.call_priority
        self.inputs: list[memoryview] = []
        addresses = [0] * len(template.pieces)
        args = list(template.args)
        places = {
            index: place for place, index in enumerate(sorted(i for i, *_ in template.pieces))
        }
        for (start, end), (index, dtype, shape, _) in zip(
            prepared.inputs, template.pieces, strict=True
        ):
            buffer, address = arena.allocate(end - start)
            self.inputs.append(memoryview(buffer)[: end - start])
            addresses[places[index]] = address
            args[index] = np.ndarray(shape, dtype, buffer)
        block.addresses = addresses
        output, address = arena.allocate(block.output_bytes)
        block.set_output(block.output_bytes, output, address)
        block.keep = args
        block.keeper = self
        self.output = output
        self.pieces: list[bytes | memoryview] = [prepared.first]
        for frame, (start, end) in zip(prepared.frames, prepared.parts, strict=True):
            self.pieces += [frame, memoryview(output)[start:end]]
        self.told = [(memoryview(output)[start:end], said) for start, end, said in prepared.told]
        self.block = block
        self.prepared = prepared
        super().__init__(
            calls,
            prepared.served,
            template.request,
            tuple(args),
            template.rows,
            0,
            answering(self.turn),
            template,
        )

    def arrived(self) -> None:
        """The call has ended as expected: its result lies in the output buffer."""
        if any(memory != said for memory, said in self.told):
            self.ended(self.block, self._result(), None)
            return
        turn, started_ns = self.turn, self.started_ns
        now = _now()
        # First: who has an answer may ask another worker at once how many there were.
        self.calls.accounting.answered(
            self.served, self.queue, 1, self.rows, now - started_ns, started_ns
        )
        turn.connection.reply_whole(turn, self.prepared.join(self.pieces))
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.call = None
        if self.prepared.is_open:
            self.prepared.ready.append(self)
        else:  # a connection may have asked for it last, and stay
            self._leave()

    def ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        """It has ended otherwise: from here on it is an ordinary call, and the slot is lost."""
        self._leave()
        super().ended(call, result, error)

    def cancel(self) -> None:
        """Nobody wants the answer any more; the block's memory waits for its late end."""
        self._leave()
        super().cancel()

    def _result(self) -> Any:
        """The result that lies in the output buffer."""
        hint = self.prepared.hint
        leaves = [
            arrays.numpy_view(self.output, offset, spec)
            for spec, offset in zip(hint.specs, hint.offsets, strict=True)
        ]
        return hint.tree.build(leaves, ())

    def _leave(self) -> None:
        if self.block.keeper is self:
            self.block.keeper = None
            self.prepared.slots -= 1


class Candidate:
    """A request in flight that becomes a prepared one if its answer allows."""

    __slots__ = ("_fast_path", "_head", "_json", "_prepared")

    def __init__(
        self, fast_path: FastPath, head: bytes, json: bytes, prepared: PreparedRequest
    ) -> None:
        self._fast_path = fast_path
        self._head = head
        self._json = json
        self._prepared = prepared

    def answered(self, answer: list[Any], header_length: int | None) -> None:
        """Take the answer's body, as :func:`.http_codec.build_infer` gives it."""
        json, *outputs = answer
        headers = (b"application/json",) if header_length is None else binary_headers(header_length)
        head = head_of(200, sum(map(len, answer)), *headers)
        if self._prepared.learn(head + json, [b""] * len(outputs), outputs):
            self._fast_path.open(self._head, self._json, self._prepared)


class PreparedRequests:
    """How requests start that have a prepared one: what each front end's fast path has.

    Args:
        calls: the worker's inferences.
        catalog: of models.
        answering: what takes a known request's outcome, in general.
    """

    def __init__(
        self, calls: Calls, catalog: Catalog, answering: Callable[[Request], Outcome]
    ) -> None:
        self._calls = calls
        self._accounting = calls.accounting
        self._catalog = catalog
        self._table = catalog.table
        self._answering = answering
        self._version = -1  # of the table that all of them are true of
        self._lanes = Lanes()
        calls.port.arena.reclaimers.append(self.forget)

    def forget(self) -> bool:
        """Forget all, and free their arena memory; whether there were any."""
        raise NotImplementedError

    def _may_start(self, prepared: PreparedRequest) -> bool:
        """Whether the limits and the table allow it."""
        accounting = self._accounting
        if accounting.pending >= accounting.most_pending:
            return False
        if prepared.queue.most and accounting.is_full(prepared.queue):
            return False
        if self._version != self._table.version:
            self.forget()
            return False
        return True

    def _start(
        self, prepared: PreparedRequest, connection: Any, view: memoryview, middle: int
    ) -> bool:
        """Start a request whose tensors begin at ``middle``; False: there is no room for it.

        ``connection``: has the request in ``waiting``, and is told by ``reply_whole``.
        """
        calls, accounting = self._calls, self._accounting
        started_ns = _now()
        lane = prepared.lane
        if lane is not None and (accounting.pending or lane.come_together):
            coalescer = lane.filling or lane.open(prepared, calls, self._answering)
            if coalescer is not None:
                if coalescer.add(prepared, connection, view, middle, started_ns):
                    coalescer.send()
                return True
        if prepared.ready:
            slot = prepared.ready.pop()
        else:
            made = self._slot(prepared)
            if made is None:
                return False
            slot = made
        for input_, (start, stop) in zip(slot.inputs, prepared.inputs, strict=True):
            input_[:] = view[middle + start : middle + stop]
        turn, block = slot.turn, slot.block
        turn.connection = connection
        turn.is_answered = False
        turn.on_disconnect = slot.cancel
        connection.waiting.append(turn)
        slot.started_ns = slot.sent_ns = started_ns
        accounting.begin(prepared.queue)
        if prepared.timeout is not None:
            block.deadline_ns = started_ns + int(prepared.timeout * 1e9)
            slot.timer = calls.loop.call_later(prepared.timeout, calls.expire, slot)
        slot.call = Ticket(block, slot)
        calls.port.resend(slot.call)
        return True

    def _slot(self, prepared: PreparedRequest) -> RequestSlot | None:
        if not prepared.is_current() or prepared.slots >= MOST_SLOTS:
            return None
        try:
            slot = RequestSlot(prepared, self._calls, self._answering)
        except ArenaFull:
            return None
        prepared.slots += 1
        return slot

    def _prepared(
        self, pending: Pending, template: RequestTemplate | None
    ) -> PreparedRequest | None:
        """Of a known request that was just started; None: later ones are not alike enough."""
        call = None if pending.call is None else pending.call.call
        if call is None or template is None or template.omits:
            return None
        if pending.served.sequence or pending.digest or self._calls.spans is not None:
            return None
        if pending.request.sequence_id or call.placement:  # it matters which helper runs it
            return None
        if pending.queue.delays:  # its message may be taken back and sent again
            return None
        timeout = self._calls.timeout_of(pending.served, pending.request)
        return PreparedRequest(pending, template, call, timeout, self._catalog.version, self._lanes)


class FastPath(PreparedRequests):
    """The prepared requests of one worker over HTTP.

    Args:
        calls, catalog, answering: of :class:`PreparedRequests`.
        scratch: what the worker's connections receive into.
        otherwise: what a request is offered that is none of these, with its head.
    """

    def __init__(
        self,
        calls: Calls,
        catalog: Catalog,
        scratch: memoryview,
        answering: Callable[[Request], Outcome],
        otherwise: Callable[[Connection, int, bytes], bool],
    ) -> None:
        super().__init__(calls, catalog, answering)
        self._otherwise = otherwise
        self._view = scratch
        self._text: bytearray = scratch.obj  # type: ignore[assignment]
        self._find = self._text.find
        # By a request's head: bytes of the body, of its JSON, and the prepared requests by JSON.
        self._heads: dict[bytes, tuple[int, int, dict[bytes, PreparedRequest]]] = {}
        self._count = 0

    def take(self, connection: Connection, count: int) -> bool:
        """Start the request that begins the scratch buffer; False: it takes the general path."""
        lately = connection.lately
        if lately is not None:  # most clients ask the same again
            begin, size, again = lately
            if size == count and self._text.startswith(begin):
                if type(again) is not PreparedRequest:  # a function of another fast path
                    if again(connection, count):
                        return True
                elif again.is_open and self._may_start(again):
                    if self._start(again, connection, self._view, len(begin)):
                        return True
        view = self._view
        end = self._find(END, 0, count) + 4
        head = view[:end].tobytes()
        known = self._heads.get(head)
        if known is None:
            return self._otherwise(connection, count, head)
        length, header_length, by_json = known
        middle = end + header_length
        if count != end + length:
            return False
        key = view[end:middle].tobytes()
        prepared = by_json.get(key)
        if prepared is None or not self._may_start(prepared):
            return False
        if self._start(prepared, connection, view, middle):
            connection.lately = head + key, count, prepared
            return True
        if not prepared.is_current():
            by_json.pop(key).close()
            self._count -= 1
        return False

    def candidate(self, request: Request, pending: Pending) -> Candidate | None:
        """What may become a prepared request: a known one, just started, that begins the buffer."""
        count, header_length = request.connection.came, request.header_length
        if header_length is None:  # all is JSON
            header_length = request.length
        if not may_be_kept(request):
            return None
        end = self._find(END, 0, count) + 4
        if count != end + request.length or end > MOST_HEAD:
            return None
        prepared = self._prepared(pending, pending.template)
        if prepared is None:
            return None
        middle = end + header_length
        return Candidate(
            self, self._view[:end].tobytes(), self._view[end:middle].tobytes(), prepared
        )

    def open(self, head: bytes, json: bytes, prepared: PreparedRequest) -> None:
        """From now on, requests of that head and JSON take the fast path."""
        if prepared.version != self._table.version:  # the model may be another by now
            prepared.close()
            return
        if self._version != prepared.version or self._count >= MOST_PREPARED:
            self.forget()
            self._version = prepared.version
        length = prepared.template.total
        by_json = self._heads.setdefault(head, (length, len(json), {}))[2]
        before = by_json.pop(json, None)  # of one that came meanwhile, or looks otherwise now
        if before is None:
            self._count += 1
        else:
            before.close()
        by_json[json] = prepared

    def forget(self) -> bool:
        """Forget all, and free their arena memory; whether there were any."""
        had = bool(self._heads)
        for _, _, by_json in self._heads.values():
            for prepared in by_json.values():
                prepared.close()
        self._heads.clear()
        self._count = 0
        return had


def may_be_kept(request: Request) -> bool:
    """Whether a request that was just started begins the buffer, and its head asks for nothing."""
    headers, connection = request.headers, request.connection
    if not connection.came or len(connection.waiting) != 1 or not request.keep_alive:
        return False
    if request.is_old:  # it must be told that its connection stays
        return False
    if any(name in headers for name in (b"content-encoding", b"expect")):
        return False
    # Otherwise the answer may be compressed.
    return headers.get(b"accept-encoding", b"identity") == b"identity"


def binary_headers(header_length: int) -> tuple[bytes, bytes]:
    """Content type and further headers of an answer that has binary outputs."""
    return (
        b"application/octet-stream",
        b"Inference-Header-Content-Length: %d\r\n" % header_length,
    )
