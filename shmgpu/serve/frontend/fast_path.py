"""Small requests like earlier ones: memory and messages for them stay ready in the arena.

A client that asks again sends the same head and the same JSON, byte for byte; only the tensors'
bytes differ. All that was ever made of those bytes is kept here, in a *lane*: the model, where each
input's bytes lie, the first bytes of the answer. A lane has *seats*: parameter blocks with room for
inputs and result in the arena that stay where they are, so that neither the worker nor the helper
reads anything anew. A request that arrives whole, is like an earlier one and finds a seat costs a
copy into the arena, one message, and a copy out.

Owns the lanes and what they hold of the arena. It never parses: bytes that it has not seen go the
general way (:mod:`shmgpu.serve.scheduling.templates` knows where to find their tensors), and so
does a call that ends in another way than the last one did. What is true of a lane's bytes is true
until the control table changes; then all lanes are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.errors import ArenaFull
from shmgpu.serve.frontend.coalescing import MOST_BENCHES, Coalescer, requests_together
from shmgpu.serve.frontend.connection import Connection, Request, head_of
from shmgpu.serve.scheduling.catalog import Catalog
from shmgpu.serve.scheduling.inference import Calls, Outcome, Pending
from shmgpu.serve.state.counters import INDEX, now_ms

MOST_LANES = 512  # all are forgotten when there are more
MOST_SEATS = 256  # of a lane
MOST_HEAD = 4096  # bytes of a head that is kept
MOST_ANSWER = 65536  # bytes of an answer that is copied out
END = b"\r\n\r\n"

_SUCCESS, _SUCCESS_NS = INDEX["success_count"], INDEX["success_ns"]
_ROWS, _CALL_NS, _LAST = INDEX["inference_count"], INDEX["call_ns"], INDEX["last_ms"]
_now = time.monotonic_ns


class PreparedRequest:
    """What all requests of the same bytes share.

    Attributes:
        first: the answer's bytes before the outputs': head and JSON.
        parts: where each output's bytes begin and end in a call's room.
        inputs: where each input's bytes begin and end behind the JSON.
        ready: seats that nobody has.
        seats: how many there are.
        places: of a bench; 0 where each request goes by itself.
        bench: the one that is being filled.
        benches: those that are empty.
        hint: layout of a result.
        version: of the control table that all this is true of.
    """

    __slots__ = (
        "bench", "bench_count", "benches", "call_priority", "first", "hint", "inputs", "known",
        "parts", "places", "plan", "ready", "seats", "served", "signature", "timeout", "values",
        "version",
    )  # fmt: skip

    def __init__(self, pending: Pending, call: Call, timeout: float | None, version: int) -> None:
        known = pending.known
        assert known is not None
        self.known = known
        self.served = pending.served
        self.plan = call.plan
        self.signature = call.plan.signature
        self.values = call.value_bytes
        self.call_priority = call.priority
        self.timeout = timeout
        self.version = version
        start = known.pieces[0][3]
        self.inputs = [
            (offset - start, offset - start + dtype.itemsize * int(np.prod(shape)))
            for _, dtype, shape, offset in known.pieces
        ]
        self.parts: list[tuple[int, int]] = []
        self.first = b""
        self.ready: list[RequestSlot] = []
        self.seats = 0
        self.hint: Any = None
        self.places = 0
        self.bench: Coalescer | None = None
        self.benches: list[Coalescer] = []
        self.bench_count = 0

    def close(self) -> None:
        """Let go of what nobody sits on, at once: its calls know it and it knows them."""
        for seat in self.ready:
            seat.block.keeper = None
        for bench in self.benches:
            bench.close()
        self.ready.clear()
        self.benches.clear()


class RequestSlot(Pending):
    """One request's place in a lane, taken by one after the other.

    Attributes:
        block: the call, whose parameter block never changes.
        places: views of the memory for the inputs' bytes.
        turn: the request, as its connection knows it.
    """

    __slots__ = ("block", "lane", "pieces", "places", "turn")

    def __init__(
        self, lane: PreparedRequest, calls: Calls, answering: Callable[[Request], Outcome]
    ) -> None:
        self.turn = Request(None)
        self.turn.method = b"POST"
        arena, known, block = calls.port.arena, lane.known, Call(lane.plan, calls.port.arena)
        block.write(lane.values, arena)
        block.config.priority = block.priority = lane.call_priority
        self.places = []
        addresses = [0] * len(known.pieces)
        args: list[Any] = [lane.served.number, *addresses]
        for (start, end), (place, dtype, shape, _) in zip(lane.inputs, known.pieces, strict=True):
            buffer, address = arena.allocate(end - start)
            self.places.append(memoryview(buffer)[: end - start])
            addresses[place - 1] = address
            args[place] = np.ndarray(shape, dtype, buffer)
        block.addresses = addresses
        room, address = arena.allocate(block.room_bytes)
        block.set_room(block.room_bytes, room, address)
        block.keep = args
        block.keeper = self
        outputs = (memoryview(room)[start:end] for start, end in lane.parts)
        self.pieces: list[bytes | memoryview] = [lane.first, *outputs]
        self.block = block
        self.lane = lane
        super().__init__(
            calls,
            lane.served,
            known.request,
            tuple(args),
            known.rows,
            0,
            answering(self.turn),
            known,
        )

    def arrived(self) -> None:
        """The call has ended as the lane's others: its result lies in the room."""
        calls, turn, served = self.calls, self.turn, self.served
        now = _now()
        turn.connection.reply_whole(turn, b"".join(self.pieces))
        counters, base = calls.counters, served.base
        calls.pending -= 1
        counters[served.pending] -= 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.call = None
        counters[base + _CALL_NS] += now - self.started_ns
        counters[base + _SUCCESS] += 1
        counters[base + _ROWS] += self.rows
        counters[base + _SUCCESS_NS] += _now() - self.started_ns
        counters[base + _LAST] = now_ms()
        self.lane.ready.append(self)

    def done(self, call: Call, result: Any, error: BaseException | None) -> None:
        """It has ended in another way: from here on it is a call like any, and the seat is lost."""
        self._leave()
        super().done(call, result, error)

    def cancel(self) -> None:
        """Nobody wants the answer any more; the block's memory waits for its late end."""
        self._leave()
        super().cancel()

    def _leave(self) -> None:
        if self.block.keeper is self:
            self.block.keeper = None
            self.lane.seats -= 1


class Lesson:
    """What a request in flight will teach when it is answered."""

    __slots__ = ("_head", "_json", "_lane", "_lanes")

    def __init__(self, lanes: Lanes, head: bytes, json: bytes, lane: PreparedRequest) -> None:
        self._lanes = lanes
        self._head = head
        self._json = json
        self._lane = lane

    def learn(self, answer: list[Any]) -> None:
        """From the answer's body: its JSON, then the outputs."""
        lane, plan = self._lane, self._lane.plan
        hint = plan.hint
        if hint is None or plan.fixed or hint.tree.value_count:
            return  # results are not alike
        if lane.signature is not plan.signature or len(hint.specs) != len(lane.served.outputs):
            return
        for place, _, _ in lane.known.wanted:
            start = hint.offsets[place]
            lane.parts.append((start, start + hint.specs[place].nbytes))
        sizes = [end - start for start, end in lane.parts]
        total = len(answer[0]) + sum(sizes)
        if sizes != [len(part) for part in answer[1:]] or total > MOST_ANSWER:
            return
        lane.first = head_of(200, total, *binary_headers(len(answer[0]))) + answer[0]
        lane.hint = hint
        lane.places = requests_together(lane)
        self._lanes.open(self._head, self._json, lane)


class Lanes:
    """The lanes of one worker.

    Args:
        calls: its inferences.
        catalog: of models.
        scratch: what its connections receive into.
        answering: what takes a known request's outcome, in general.
    """

    def __init__(
        self,
        calls: Calls,
        catalog: Catalog,
        scratch: memoryview,
        answering: Callable[[Request], Outcome],
    ) -> None:
        self._calls = calls
        self._catalog = catalog
        self._table = catalog.table
        self._answering = answering
        self._view = scratch
        self._find = scratch.obj.find  # type: ignore[attr-defined]
        # By a request's head: bytes of the body, of its JSON, and the lanes by JSON.
        self._heads: dict[bytes, tuple[int, int, dict[bytes, PreparedRequest]]] = {}
        self._count = 0
        self._version = -1
        calls.port.arena.reclaimers.append(self.forget)

    def take(self, connection: Connection, count: int) -> bool:
        """Hand a request over that begins the scratch buffer; False: it goes the general way."""
        view = self._view
        end = self._find(END, 0, count) + 4
        known = self._heads.get(view[:end].tobytes())
        if known is None:
            return False
        length, header_length, lanes = known
        middle = end + header_length
        if count != end + length:
            return False
        key = view[end:middle].tobytes()
        lane = lanes.get(key)
        calls = self._calls
        if lane is None or calls.pending >= calls.most_pending:
            return False
        if self._version != self._table.version:
            self.forget()
            return False
        started_ns = _now()
        if lane.places and calls.pending:
            bench = lane.bench or self._bench(lane)
            if bench is not None:
                if bench.add(connection, view, middle, started_ns):
                    bench.send()
                return True
        if lane.ready:
            seat = lane.ready.pop()
        else:
            made = self._seat(lane, lanes, key)
            if made is None:
                return False
            seat = made
        for place, (start, stop) in zip(seat.places, lane.inputs, strict=True):
            place[:] = view[middle + start : middle + stop]
        turn, block = seat.turn, seat.block
        turn.connection = connection
        turn.is_answered = False
        turn.on_disconnect = seat.cancel
        connection.waiting.append(turn)
        seat.started_ns = seat.sent_ns = started_ns
        calls.pending += 1
        calls.counters[seat.served.pending] += 1
        if lane.timeout is not None:
            block.deadline_ns = started_ns + int(lane.timeout * 1e9)
            seat.timer = calls.loop.call_later(lane.timeout, calls.expire, seat)
        seat.call = Ticket(block, seat)
        calls.port.resend(seat.call)
        return True

    def _seat(
        self, lane: PreparedRequest, lanes: dict[bytes, PreparedRequest], key: bytes
    ) -> RequestSlot | None:
        if lane.signature is not lane.plan.signature:  # it has learned that results differ
            del lanes[key]
            return None
        if lane.seats >= MOST_SEATS:
            return None
        try:
            seat = RequestSlot(lane, self._calls, self._answering)
        except ArenaFull:
            return None
        lane.seats += 1
        return seat

    def _bench(self, lane: PreparedRequest) -> Coalescer | None:
        """One to be filled until the loop has read what there is."""
        if lane.benches:
            bench = lane.benches.pop()
        elif lane.bench_count >= MOST_BENCHES or lane.signature is not lane.plan.signature:
            return None
        else:
            try:
                bench = Coalescer(lane, self._calls, self._answering)
            except ArenaFull:
                return None
            lane.bench_count += 1
        lane.bench = bench
        self._calls.loop.call_soon(bench.send)
        return bench

    def lesson(self, request: Request, pending: Pending) -> Lesson | None:
        """What may become a lane: a known request, just handed over, that begins the buffer."""
        connection, ticket = request.connection, pending.call
        call = None if ticket is None else ticket.call
        count, header_length = connection.came, request.header_length or 0
        if not count or call is None or len(connection.waiting) != 1:
            return None
        if pending.known is None or pending.known.is_placed:
            return None
        if len(pending.known.pieces) < len(pending.served.inputs):  # an optional one is left away
            return None
        if pending.served.sequence or pending.digest or self._calls.spans is not None:
            return None
        if pending.request.sequence_id or call.placement:  # it matters which helper runs it
            return None
        end = self._find(END, 0, count) + 4
        headers = request.headers
        if count != end + request.length or end > MOST_HEAD or not request.keep_alive:
            return None
        if any(name in headers for name in (b"content-encoding", b"expect")):
            return None
        if b"identity" != headers.get(b"accept-encoding", b"identity"):  # it may be compressed
            return None
        timeout = self._calls.timeout_of(pending.request)
        lane = PreparedRequest(pending, call, timeout, self._catalog.version)
        middle = end + header_length
        return Lesson(self, self._view[:end].tobytes(), self._view[end:middle].tobytes(), lane)

    def open(self, head: bytes, json: bytes, lane: PreparedRequest) -> None:
        """From now on, requests of that head and JSON go by that lane."""
        if lane.version != self._table.version:  # the model may be another by now
            return
        if self._version != lane.version or self._count >= MOST_LANES:
            self.forget()
            self._version = lane.version
        length = lane.known.total
        self._heads.setdefault(head, (length, len(json), {}))[2][json] = lane
        self._count += 1

    def forget(self) -> bool:
        """Forget all lanes, and what they hold of the arena; whether there were any."""
        had = bool(self._heads)
        for _, _, lanes in self._heads.values():
            for lane in lanes.values():
                lane.close()
        self._heads.clear()
        self._count = 0
        return had


def binary_headers(header_length: int) -> tuple[bytes, bytes]:
    """Content type and further headers of an answer that has binary outputs."""
    return (
        b"application/octet-stream",
        b"Inference-Header-Content-Length: %d\r\n" % header_length,
    )
