"""Small requests of a kind that came in the same turn of the loop: one message for all of them.

Under load a worker reads many small requests at once. Each by itself would be a message, a place
in the dispatcher's queue and an entry in the helper's batch; on a *bench* they sit side by side,
rows of the same arrays in the arena, and go as one. Nobody waits for company: a bench is sent when
the loop has read what had come, and a request that finds nothing else under way takes a seat of its
own (:mod:`shmgpu.serve.frontend.fast_path`).

Owns the rows' memory and which request has which row. Requests stay apart in all that clients see:
each is counted, may leave, and is answered by itself. A call that ends in another way than was
expected is told to each as a call of its own, and the bench is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.codec.arrays import Spec
from shmgpu.codec.layout import Layout
from shmgpu.errors import ShmError
from shmgpu.serve.frontend.connection import Connection, Request
from shmgpu.serve.scheduling.inference import Calls, Outcome, Pending
from shmgpu.serve.state.counters import INDEX, now_ms

MOST_TOGETHER = 32  # requests
MOST_BYTES = 1 << 18  # of a bench's rows, inputs and outputs each
MOST_BENCHES = 16  # of a lane

_SUCCESS, _SUCCESS_NS = INDEX["success_count"], INDEX["success_ns"]
_CANCEL, _CANCEL_NS = INDEX["cancel_count"], INDEX["cancel_ns"]
_ROWS, _CALL_NS, _LAST = INDEX["inference_count"], INDEX["call_ns"], INDEX["last_ms"]
_now = time.monotonic_ns


def requests_together(lane: Any) -> int:
    """How many of a lane's requests may go as one message; 0: each goes by itself."""
    served, rows, hint = lane.served, lane.known.rows, lane.plan.hint
    if not served.batch_max_rows or served.description["max_delay_ms"]:
        return 0
    if not all(spec.shape and spec.shape[0] == rows for spec in hint.specs):
        return 0
    largest = max(sum(end - start for start, end in lane.inputs), hint.nbytes, 1)
    most = min(MOST_TOGETHER, served.batch_max_rows // rows, MOST_BYTES // largest)
    return most if most > 1 else 0


class Coalescer:
    """Places for the requests of one message.

    Attributes:
        taken: how many places are taken, from the first on.
        gone: how many of their clients have left.
    """

    __slots__ = (
        "_answering", "_arrays", "_calls", "_inputs", "_lane", "_leave", "_messages", "_room",
        "_started", "_timer", "_turns", "call", "gone", "served", "taken",
    )  # fmt: skip

    def __init__(self, lane: Any, calls: Calls, answering: Callable[[Request], Outcome]) -> None:
        self._lane = lane
        self._calls = calls
        self._answering = answering
        self.served = lane.served
        arena, places, rows = calls.port.arena, lane.places, lane.known.rows
        self._turns = [Request(None) for _ in range(places)]
        for turn in self._turns:
            turn.method = b"POST"
        self._leave = [partial(self._left, place) for place in range(places)]
        self._started = [0] * places
        self._arrays: list[Any] = []  # by place among the call's inputs
        self._inputs: list[list[memoryview]] = [[] for _ in range(places)]  # by request
        found: dict[int, Any] = {}
        for (start, end), (place, dtype, shape, _) in zip(
            lane.inputs, lane.known.pieces, strict=True
        ):
            size = end - start
            buffer, _ = arena.allocate(size * places)
            view = memoryview(buffer)
            for number, inputs in enumerate(self._inputs):
                inputs.append(view[number * size : (number + 1) * size])
            found[place] = np.ndarray((places * rows, *shape[1:]), dtype, buffer)
        self._arrays = [found[place] for place in sorted(found)]
        self._room = arena.allocate(self._layout(places).nbytes)
        # By the number of requests: the call, and what each is answered with.
        self._messages: dict[int, tuple[Call, list[list[Any]]]] = {}
        self._timer: Any = None
        self.call: Ticket | None = None
        self.taken = 0
        self.gone = 0

    def add(self, connection: Connection, view: memoryview, middle: int, started_ns: int) -> bool:
        """Take the next place for a request whose tensors begin there; whether it was the last."""
        place = self.taken
        turn = self._turns[place]
        for input_, (start, stop) in zip(self._inputs[place], self._lane.inputs, strict=True):
            input_[:] = view[middle + start : middle + stop]
        turn.connection = connection
        turn.is_answered = False
        turn.on_disconnect = self._leave[place]
        connection.waiting.append(turn)
        self._started[place] = started_ns
        calls = self._calls
        calls.pending += 1
        calls.counters[self.served.pending] += 1
        self.taken = place + 1
        return self.taken == len(self._turns)

    def send(self) -> None:
        """Hand over what sits here."""
        lane, calls = self._lane, self._calls
        if lane.bench is not self:  # it was full, and is on its way
            return
        lane.bench = None
        if self.gone == self.taken:
            self._clear()
            return
        call = None
        try:
            call = self._message(self.taken)[0]
            if lane.timeout is not None:
                call.deadline_ns = self._started[0] + int(lane.timeout * 1e9)
                self._timer = calls.loop.call_later(lane.timeout, calls.expire, self)
            self.call = Ticket(call, self)
            calls.port.resend(self.call)
        except ShmError as error:
            self.done(call, None, error)

    def arrived(self) -> None:
        """The call has ended as was expected: the results lie in the room."""
        now = _now()
        lane, taken, started = self._lane, self.taken, self._started
        answers = self._messages[taken][1]
        count = taken - self.gone
        since = 0
        for place in range(taken):
            turn = self._turns[place]
            if not turn.is_answered:
                since += started[place]
                turn.connection.reply_whole(turn, b"".join(answers[place]))
        calls, base = self._calls, self.served.base
        counters = calls.counters
        self._out(count)
        counters[base + _CALL_NS] += count * now - since
        counters[base + _SUCCESS] += count
        counters[base + _ROWS] += count * lane.known.rows
        counters[base + _SUCCESS_NS] += count * _now() - since
        counters[base + _LAST] = now_ms()
        self._clear()

    def done(self, call: Call | None, result: Any, error: BaseException | None) -> None:
        """It has ended in another way: each request is told, as if it had been a call by itself."""
        lane, rows = self._lane, self._lane.known.rows
        self._give_up()
        if error is None:  # a result, but not the rows that were expected
            lane.places = 0
        for place in range(self.taken):
            turn = self._turns[place]
            if turn.is_answered:
                continue
            mine = slice(place * rows, (place + 1) * rows)
            args = (self.served.number, *(array[mine] for array in self._arrays))
            started = self._started[place]
            outcome = self._answering(turn)
            known = lane.known
            one = Pending(
                self._calls, self.served, known.request, args, rows, started, outcome, known
            )
            one.sent_ns = started
            turn.on_disconnect = one.cancel
            part = result
            if error is None:
                part = result[mine] if len(self.served.outputs) == 1 else [x[mine] for x in result]
            self._calls.ended(one, part, error)

    def close(self) -> None:
        """Let go of the memory; nobody sits here."""
        for call, _ in self._messages.values():
            call.keeper = None
        self._leave.clear()

    def _left(self, place: int) -> None:
        """A client has left; where all have, nobody wants the call any more."""
        calls, base = self._calls, self.served.base
        self.gone += 1
        self._out(1)
        calls.counters[base + _CANCEL] += 1
        calls.counters[base + _CANCEL_NS] += _now() - self._started[place]
        if self.gone == self.taken and self.call is not None:
            if calls.port.cancel(self.call):
                self._give_up()  # the call's memory waits for its late end

    def _out(self, count: int) -> None:
        """So many of the requests are not pending any more."""
        self._calls.pending -= count
        self._calls.counters[self.served.pending] -= count

    def _clear(self) -> None:
        """Stand ready for others."""
        self._ended()
        self.taken = self.gone = 0
        self._lane.benches.append(self)

    def _give_up(self) -> None:
        """The memory may still be written to: the bench is not used again."""
        self._ended()
        for call, _ in self._messages.values():
            call.keeper = None
        self._lane.bench_count -= 1

    def _ended(self) -> None:
        self.call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _layout(self, count: int) -> Layout:
        """Of the result of so many requests."""
        hint = self._lane.hint
        specs = [Spec(one.dtype, (count * one.shape[0], *one.shape[1:])) for one in hint.specs]
        return Layout(hint.tree.structure, specs)

    def _message(self, count: int) -> tuple[Call, list[list[Any]]]:
        """The call that carries the first so many, made at its first use."""
        known = self._messages.get(count)
        if known is not None:
            return known
        lane, port = self._lane, self._calls.port
        rows = count * lane.known.rows
        arrays = [array[:rows] for array in self._arrays]
        call = port.prepare(self.served.together, (self.served.number, count, *arrays), {}, None)
        layout = self._layout(count)
        if call.plan.hint != layout:
            call.plan.expect(layout)
            call.write(call.value_bytes, port.arena)
        call.config.priority = call.priority = lane.call_priority
        buffer, address = self._room
        call.set_room(layout.nbytes, buffer, address)
        call.keep = self._arrays
        call.keeper = self
        view = memoryview(buffer)
        answers: list[list[Any]] = [[lane.first] for _ in range(count)]
        for place, _, _ in lane.known.wanted:
            size = lane.hint.specs[place].nbytes
            start = layout.offsets[place]
            for number, pieces in enumerate(answers):
                pieces.append(view[start + number * size : start + (number + 1) * size])
        self._messages[count] = call, answers
        return call, answers
