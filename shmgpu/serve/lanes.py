"""Requests like earlier ones: what does not change between them is kept, and not worked out again.

A client that asks again sends the same head and the same JSON, byte for byte; only the tensors'
bytes differ. What the parsers and the checks made of those bytes is kept here, in a *lane*: the
model, where each input's bytes lie, the first bytes of the answer. A lane has *seats*: parameter
blocks with room for inputs and result in the arena that stay where they are, so that neither the
worker nor the helper reads anything anew. A request that arrives whole, is like an earlier one and
finds a seat costs a copy into the arena, one message, and a copy out.

Owns the lanes and what they hold of the arena. It never parses: bytes that it has not seen go the
general way, and so does every call that ends in another way than the last one did. What is true of
a lane's bytes is true until the control table changes; then all lanes are forgotten.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from shmgpu.errors import ArenaFull
from shmgpu.plans import Call, Plan
from shmgpu.serve import datatypes
from shmgpu.serve.catalog import Catalog, Served
from shmgpu.serve.counters import INDEX, now_ms
from shmgpu.serve.edge import Connection, Request, head_of
from shmgpu.serve.infer import Calls, Pending
from shmgpu.serve.requests import InferRequest, InputTensor, OutputTensor

MOST_LANES = 512  # all are forgotten when there are more
MOST_SEATS = 64  # of a lane
MOST_BYTES = 4096  # of a head, and of a request's JSON, that is kept
MOST_ANSWER = 65536  # bytes of an answer that is copied out
END = b"\r\n\r\n"

_SUCCESS, _SUCCESS_NS = INDEX["success_count"], INDEX["success_ns"]
_ROWS, _CALL_NS, _LAST = INDEX["inference_count"], INDEX["call_ns"], INDEX["last_ms"]
_now = time.monotonic_ns

# Answers a request with a call's outcome: the request, the model, what was asked, the outcome.
Answer = Callable[
    [Request, Served, InferRequest, list[OutputTensor] | None, BaseException | None], Any
]


class Lane:
    """What all requests of the same bytes share.

    Attributes:
        served, request: the model, and what was asked of it; the inputs without their bytes.
        plan, values, signature: of their calls.
        inputs: where each input's bytes begin and end behind the JSON.
        parts: where each output's bytes begin and end in a call's room.
        first: the answer's bytes before those: head and JSON.
        ready: seats that nobody has.
        seats: how many there are.
        version: of the control table that all this is true of.
    """

    __slots__ = (
        "first", "inputs", "parts", "plan", "priority", "ready", "request", "rows", "seats",
        "served", "signature", "timeout", "values", "version",
    )  # fmt: skip

    def __init__(
        self, served: Served, request: InferRequest, call: Call, rows: int, version: int
    ) -> None:
        self.served = served
        self.request = request
        self.plan: Plan = call.plan
        self.signature = call.plan.signature
        self.values = call.value_bytes
        self.priority = call.priority
        self.timeout: float | None = None
        self.rows = rows
        self.version = version
        self.inputs: list[tuple[int, int]] = []
        self.parts: list[tuple[int, int]] = []
        self.first = b""
        self.ready: list[Seat] = []
        self.seats = 0


Lesson = tuple[bytes, bytes, Lane]  # a request's head, its JSON, what may become their lane


class Seat(Pending):
    """One request's place in a lane, taken by one after the other.

    Attributes:
        block: the call, whose parameter block never changes.
        places: views of the memory for the inputs' bytes.
        room: the memory for the result, as the call knows it.
        turn: the request, as its connection knows it.
    """

    __slots__ = ("answer", "block", "lane", "pieces", "places", "room", "turn")

    def __init__(self, lane: Lane, calls: Calls, answer: Answer) -> None:
        super().__init__(calls, lane.served, lane.request, lane.rows, 0, self._answered)
        arena, plan = calls.port.arena, lane.plan
        block = Call(plan, arena)
        block.write(lane.values, arena)
        block.config.priority = block.priority = lane.priority
        self.places = []
        addresses = []
        for start, end in lane.inputs:
            buffer, address = arena.allocate(max(end - start, 1))
            self.places.append(memoryview(buffer)[: end - start])
            addresses.append(address)
        block.addresses = addresses
        self.room, address = arena.allocate(plan.room)
        block.set_room(plan.room, self.room, address)
        block.keep = self.places
        block.keeper = self
        view = memoryview(self.room)
        self.pieces: list[bytes | memoryview] = [
            lane.first,
            *(view[start:end] for start, end in lane.parts),
        ]
        self.block = block
        self.lane = lane
        self.answer = answer
        self.turn = Request(None)
        self.turn.method = b"POST"

    def arrived(self) -> None:
        """The call has ended as the lane's others: its result lies in the room."""
        lane, calls, turn = self.lane, self.calls, self.turn
        now = _now()
        turn.connection.reply_whole(turn, b"".join(self.pieces))
        served, counters = self.served, calls.counters
        calls.pending -= 1
        counters[served.pending] -= 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        base = served.base
        counters[base + _CALL_NS] += now - self.sent_ns
        counters[base + _SUCCESS] += 1
        counters[base + _ROWS] += self.rows
        counters[base + _SUCCESS_NS] += _now() - self.started_ns
        counters[base + _LAST] = now_ms()
        self.call = None
        lane.ready.append(self)

    def done(self, call: Call, result: Any, error: BaseException | None) -> None:
        """It has ended in another way: from here on it is a call like any, and the seat is lost."""
        self._leave()
        inputs = [
            dataclasses.replace(one, data=place)
            for one, place in zip(self.lane.request.inputs, self.places, strict=True)
        ]
        self.request = _with_inputs(self.lane.request, inputs)
        super().done(call, result, error)

    def cancel(self) -> None:
        """Nobody wants the answer any more; the block's memory waits for its late end."""
        self._leave()
        super().cancel()

    def _leave(self) -> None:
        self.block.keeper = None
        self.lane.seats -= 1

    def _answered(self, outputs: list[OutputTensor] | None, error: BaseException | None) -> None:
        self.answer(self.turn, self.served, self.request, outputs, error)


class Lanes:
    """The lanes of one worker.

    Args:
        calls: its inferences.
        catalog: of models.
        scratch: what its connections receive into.
        answer: how a call's outcome becomes an answer, in general.
    """

    def __init__(self, calls: Calls, catalog: Catalog, scratch: memoryview, answer: Answer) -> None:
        self.calls = calls
        self.catalog = catalog
        self.answer = answer
        self.view = scratch
        self.bytes: bytearray = scratch.obj  # type: ignore[assignment]
        # By a request's head: (bytes of the body, of its JSON, lanes by JSON).
        self.heads: dict[bytes, tuple[int, int, dict[bytes, Lane]]] = {}
        self.count = 0
        self.version = -1
        self.glimpsed: set[int] = set()  # hashes of what was seen once: it may never come again
        calls.port.arena.reclaimers.append(self.forget)

    def forget(self) -> bool:
        """Forget all lanes, and give back what they hold; whether there were any."""
        had = bool(self.heads)
        self.heads.clear()
        self.glimpsed.clear()
        self.count = 0
        return had

    def take(self, connection: Connection, count: int) -> bool:
        """Hand a request over that begins the scratch buffer; False: it goes the general way."""
        view = self.view
        end = self.bytes.find(END, 0, count) + 4
        known = self.heads.get(view[:end].tobytes())
        if known is None:
            return False
        length, header_length, lanes = known
        middle = end + header_length
        if count != end + length:
            return False
        lane = lanes.get(view[end:middle].tobytes())
        calls = self.calls
        if lane is None or calls.pending >= calls.most_pending:
            return False
        if self.version != self.catalog.table.version:
            self.forget()
            return False
        started_ns = _now()
        try:
            seat = lane.ready.pop()
        except IndexError:
            made = self._make(lane, lanes, view[end:middle].tobytes())
            if made is None:
                return False
            seat = made
        for place, (start, stop) in zip(seat.places, lane.inputs, strict=True):
            place[:] = view[middle + start : middle + stop]
        turn = seat.turn
        turn.connection = connection
        turn.is_answered = False
        turn.on_disconnect = seat.cancel
        connection.waiting.append(turn)
        block = seat.block
        seat.call = block
        seat.started_ns = seat.sent_ns = started_ns
        calls.pending += 1
        calls.counters[seat.served.pending] += 1
        if lane.timeout is not None:
            block.deadline_ns = started_ns + int(lane.timeout * 1e9)
            seat.timer = calls.loop.call_later(lane.timeout, calls.expire, seat)
        calls.port.send(block, seat)
        return True

    def _make(self, lane: Lane, lanes: dict[bytes, Lane], key: bytes) -> Seat | None:
        if lane.signature is not lane.plan.signature:  # it has learned that results differ
            lanes.pop(key, None)
            return None
        if lane.seats >= MOST_SEATS:
            return None
        try:
            seat = Seat(lane, self.calls, self.answer)
        except ArenaFull:
            return None
        lane.seats += 1
        return seat

    # ---- learning ------------------------------------------------------------------------

    def lesson(self, request: Request, pending: Pending) -> Lesson | None:
        """What may become a lane: a request just handed over whose bytes begin the scratch buffer.

        None for what was never seen before, and for what no lane can carry.
        """
        connection = request.connection
        count, header_length = connection.came, request.header_length
        if not count or len(connection.waiting) != 1 or not header_length or header_length < 0:
            return None
        end = self.bytes.find(END, 0, count) + 4
        middle = end + header_length
        if count != end + request.length or end > MOST_BYTES or header_length > MOST_BYTES:
            return None
        head, json = self.view[:end].tobytes(), self.view[end:middle].tobytes()
        seen = hash((head, json))
        if seen not in self.glimpsed:
            if len(self.glimpsed) >= MOST_LANES:
                self.glimpsed.clear()
            self.glimpsed.add(seen)
            return None
        parsed, call = pending.request, pending.call
        if call is None or not _is_plain(request, parsed):
            return None
        lane = Lane(pending.served, parsed, call, pending.rows, self.catalog.version)
        lane.timeout = self.calls.timeout_of(parsed)
        place = 0
        inputs = []
        for one in parsed.inputs:
            assert isinstance(one.data, memoryview)
            lane.inputs.append((place, place + len(one.data)))
            place += len(one.data)
            inputs.append(dataclasses.replace(one, data=None))
        lane.request = _with_inputs(parsed, inputs)
        order = lane.served.places
        if [order[one.name] for one in inputs] != list(range(len(order))):
            return None  # the call's arrays go in the model's order
        return head, json, lane

    def learn(self, lesson: Lesson, outputs: list[OutputTensor], answer: list[Any]) -> None:
        """The answer to what a lesson was taken from, as buffers: the JSON, then the outputs."""
        head, json, lane = lesson
        hint = lane.plan.hint
        served = lane.served
        if hint is None or lane.plan.fixed or lane.signature is not lane.plan.signature:
            return
        if len(hint.specs) != len(served.outputs) or hint.tree.value_count:
            return
        for output in outputs:
            place = served.output_places[output.name]
            spec, start = hint.specs[place], hint.offsets[place]
            if tuple(spec.shape) != tuple(output.shape):
                return
            lane.parts.append((start, start + spec.nbytes))
        sizes = [end - start for start, end in lane.parts if end > start]
        total = len(answer[0]) + sum(sizes)
        if sizes != [len(part) for part in answer[1:]] or total > MOST_ANSWER:
            return
        lane.first = head_of(200, total, *binary_headers(len(answer[0]))) + answer[0]
        if lane.version != self.catalog.table.version:  # the model may be another by now
            return
        if self.version != lane.version or self.count >= MOST_LANES:
            self.forget()
            self.version = lane.version
        length = len(json) + sum(end - start for start, end in lane.inputs)
        self.heads.setdefault(head, (length, len(json), {}))[2][json] = lane
        self.count += 1


def binary_headers(header_length: int) -> tuple[bytes, bytes]:
    """Content type and further headers of an answer that has binary outputs."""
    return (
        b"application/octet-stream",
        b"Inference-Header-Content-Length: %d\r\n" % header_length,
    )


def _is_plain(request: Request, parsed: InferRequest) -> bool:
    """Whether the bytes of a request say all of it, and tensors are all that differs."""
    headers = request.headers
    return (
        request.keep_alive
        and b"content-encoding" not in headers
        and b"expect" not in headers
        and not parsed.sequence_id
        and all(
            type(one.data) is memoryview and datatypes.DATATYPES[one.datatype].itemsize
            for one in parsed.inputs
        )
        and (bool(parsed.outputs) or parsed.binary_output)
        and all(one.binary and not one.classification and one.shm is None for one in parsed.outputs)
    )


def _with_inputs(request: InferRequest, inputs: list[InputTensor]) -> InferRequest:
    return dataclasses.replace(request, inputs=inputs)
