"""Small requests of a kind that are read one after the other: one message for all of them.

Under load a worker reads many small requests at once. Each by itself would be a message, a position
in the dispatcher's queue and a call in the helper's batch; a :class:`Coalescer` puts them side by
side, as rows of the same arrays in the arena, and sends them as one call. A coalescer is sent as
soon as a turn of the loop has read nothing more for it, which takes a few microseconds. A request
that finds nothing else under way, where the last ones did not come together either, takes a slot of
its own at once (:mod:`shmgpu.serve.frontend.fast_path`).

Owns the rows' memory and which request has which row. Clients never see the difference: each
request is counted, may be cancelled, and is answered by itself. A call that ends otherwise than
expected is reported to each request as a call of its own, and the coalescer is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from shmgpu.child.plans import Call
from shmgpu.child.tickets import Ticket
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.layout import TreeLayout
from shmgpu.errors import ArenaFull, ShmError
from shmgpu.serve.frontend.connection import Connection
from shmgpu.serve.frontend.request import Request
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Outcome, Pending
from shmgpu.serve.scheduling.rows import ServerFunction

MOST_COALESCERS = 16  # of a lane
MOST_READING_NS = 100_000  # from a coalescer's first request until no more are waited for

_now = time.monotonic_ns


class Lane:
    """Which requests may go as one message, and what is ready for them.

    Attributes:
        capacity: requests of one message.
        filling: the coalescer that is being filled.
        empty: those that are ready.
        count: how many there are.
        come_together: whether the last message had several requests: then there are more to come.
        users: how many prepared requests have this lane; nothing is kept ready for none.
    """

    __slots__ = (
        "__weakref__", "_kind", "capacity", "come_together", "count", "empty", "filling", "users",
    )  # fmt: skip

    def __init__(self, capacity: int, kind: type[Coalescer]) -> None:
        self._kind = kind
        self.capacity = capacity
        self.filling: Coalescer | None = None
        self.empty: list[Coalescer] = []
        self.count = 0
        self.come_together = False
        self.users = 0

    def open(
        self, prepared: Any, calls: Calls, answering: Callable[[Request], Outcome]
    ) -> Coalescer | None:
        """The coalescer that takes such a request now; None: it goes by itself."""
        if not self.capacity:
            return None
        if self.empty:
            coalescer = self.empty.pop()
        elif self.count >= MOST_COALESCERS or not prepared.is_current():
            return None
        else:
            try:
                coalescer = self._kind(self, prepared, calls, answering)
            except ArenaFull:
                return None
            self.count += 1
        self.filling = coalescer
        calls.loop.call_soon(coalescer.send)
        return coalescer

    def leave(self) -> None:
        """One user less; after the last one, what no request uses is released at once."""
        self.users -= 1
        if not self.users:
            for coalescer in self.empty:
                coalescer.close()
            self.empty.clear()


def _rows(result: Any, mine: slice) -> Any:
    """A request's rows of each array of a result."""
    if isinstance(result, dict):  # which carries parameters
        return {key: _rows(value, mine) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return [_rows(one, mine) for one in result]
    return result[mine]


class Coalescer:
    """The memory and the requests of one message.

    Args:
        lane: whose requests it takes.
        prepared: one of them.
        calls: the worker's inferences.
        answering: what takes a known request's outcome, in general.

    Attributes:
        taken: how many requests it has.
        gone: how many of their clients have left.
    """

    __slots__ = (
        "_answering", "_calls", "_lane", "_leave", "_messages", "_output", "_prepared", "_seen",
        "_started", "_timer", "_turns", "call", "gone", "served", "taken",
    )  # fmt: skip

    def __init__(
        self, lane: Lane, prepared: Any, calls: Calls, answering: Callable[[Request], Outcome]
    ) -> None:
        self._lane = lane
        self._prepared = prepared
        self._calls = calls
        self._answering = answering
        self.served = prepared.served
        capacity = lane.capacity
        self._turns = [Request(None) for _ in range(capacity)]
        for turn in self._turns:
            turn.method = b"POST"
        self._started = [0] * capacity
        self._make_room(capacity)
        self._output = calls.port.arena.allocate(self._layout(capacity).nbytes)
        # Only now: what refers to itself would keep the room until Python's collector comes.
        self._leave = [partial(self._left, index) for index in range(capacity)]
        # By the number of requests: the call, and what each is answered with.
        self._messages: dict[int, tuple[Call, list[list[Any]]]] = {}
        self._timer: Any = None
        self.call: Ticket | None = None
        self._seen = 0  # how many it had when the loop began to read again
        self.taken = 0
        self.gone = 0

    # ---- what kinds of requests differ in ------------------------------------------------

    def _make_room(self, capacity: int) -> None:
        """Allocate the memory of their rows."""
        raise NotImplementedError

    def _fill(self, index: int, prepared: Any, view: memoryview, middle: int) -> None:
        """Write a request's rows."""
        raise NotImplementedError

    def _target(self, count: int) -> tuple[ServerFunction, tuple[Any, ...]]:
        """What is called for the first so many, and its arguments."""
        raise NotImplementedError

    def _layout(self, count: int) -> TreeLayout:
        """Of the result of so many requests."""
        raise NotImplementedError

    def _pieces(self, layout: TreeLayout, count: int) -> list[list[Any]]:
        """What the answer of each of so many is made of."""
        raise NotImplementedError

    def _one(self, index: int) -> tuple[Any, tuple[Any, ...]]:
        """A request, and its arguments as a call of its own."""
        raise NotImplementedError

    def _part(self, index: int, result: Any) -> Any:
        """A request's part of a result that was not expected; None: it must be sent again."""
        raise NotImplementedError

    # ---- what they have in common --------------------------------------------------------

    def add(
        self, prepared: Any, connection: Connection, view: memoryview, middle: int, started_ns: int
    ) -> bool:
        """Add a request whose tensors begin at ``middle``; whether the coalescer is now full."""
        index = self.taken
        self._fill(index, prepared, view, middle)
        turn = self._turns[index]
        turn.connection = connection
        turn.is_answered = False
        turn.on_disconnect = self._leave[index]
        connection.waiting.append(turn)
        self._started[index] = started_ns
        self._calls.accounting.admit_one(self._prepared.queue)
        self.taken = index + 1
        return self.taken == len(self._turns)

    def send(self) -> None:
        """Send the requests as one call."""
        prepared, calls, lane = self._prepared, self._calls, self._lane
        if lane.filling is not self:  # it was full, and is on its way
            return
        if self._seen < self.taken < len(self._turns):  # the loop has just read some: maybe more
            if _now() - self._started[0] < MOST_READING_NS:
                self._seen = self.taken
                calls.loop.call_soon(self.send)
                return
        lane.filling = None
        lane.come_together = self.taken > 1
        calls.accounting.begin_all(prepared.queue, self.taken - self.gone)
        if self.gone == self.taken:
            self._clear()
            return
        call = None
        try:
            call = self._message(self.taken)[0]
            if prepared.timeout is not None:
                call.deadline_ns = self._started[0] + int(prepared.timeout * 1e9)
                self._timer = calls.loop.call_later(prepared.timeout, calls.expire, self)
            self.call = Ticket(call, self)
            calls.port.resend(self.call)
        except ShmError as error:
            self.ended(call, None, error)

    def arrived(self) -> None:
        """The call has ended as expected: the results lie in the output buffer."""
        now = _now()
        prepared, taken, started = self._prepared, self.taken, self._started
        pieces, join = self._messages[taken][1], prepared.join
        count = taken - self.gone
        waiting: Sequence[int] = range(taken)
        if self.gone:
            waiting = [index for index in waiting if not self._turns[index].is_answered]
            since = sum(started[index] for index in waiting)
        else:
            since = sum(started[:taken])
        rows = count * prepared.template.rows
        # First: who has an answer may ask another worker at once how many there were.
        self._calls.accounting.answered(
            self.served, prepared.queue, count, rows, count * now - since, since
        )
        for index in waiting:
            turn = self._turns[index]
            if not turn.is_answered:
                turn.connection.reply_whole(turn, join(pieces[index]))
        self._clear()

    def ended(self, call: Call | None, result: Any, error: BaseException | None) -> None:
        """It has ended otherwise: each request is told, as if it had been a call of its own."""
        self._give_up()
        for index in range(self.taken):
            turn = self._turns[index]
            if turn.is_answered:
                continue
            prepared, args = self._one(index)
            template, started = prepared.template, self._started[index]
            one = Pending(
                self._calls,
                self.served,
                template.request,
                args,
                template.rows,
                started,
                self._answering(turn),
                template,
            )
            one.sent_ns = started
            turn.on_disconnect = one.cancel
            part = self._part(index, result) if error is None else None
            if error is None and part is None:
                self._calls.send_alone(one)
            else:
                self._calls.ended(one, part, error)

    def close(self) -> None:
        """It takes no more requests; its memory is free when no call uses it."""
        for call, _ in self._messages.values():
            call.keeper = None
        self._leave.clear()
        self._lane.count -= 1

    def _left(self, index: int) -> None:
        """A client has left; when all have, the call is not wanted any more."""
        accounting = self._calls.accounting
        self.gone += 1
        if self._lane.filling is self:
            accounting.withdraw(self._prepared.queue)
        else:
            accounting.leave(self._prepared.queue)
        accounting.cancelled(self.served, self._started[index])
        if self.gone == self.taken and self.call is not None:
            if self._calls.port.cancel(self.call):
                self._give_up()  # the call's memory waits for its late end

    def _clear(self) -> None:
        """Stand ready for others."""
        self._ended()
        self.taken = self.gone = self._seen = 0
        if self._lane.users:
            self._lane.empty.append(self)
        else:  # all of its kind are forgotten
            self.close()

    def _give_up(self) -> None:
        """The memory may still be written to: the coalescer is not used again."""
        self._ended()
        self.close()

    def _ended(self) -> None:
        self.call = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _message(self, count: int) -> tuple[Call, list[list[Any]]]:
        """The call that carries the first so many, made at its first use."""
        known = self._messages.get(count)
        if known is not None:
            return known
        prepared, port = self._prepared, self._calls.port
        target, args = self._target(count)
        call = port.prepare(target, args, {}, None)
        layout = self._layout(count)
        if call.plan.hint != layout:
            call.plan.expect(layout)
            call.write(call.value_bytes, port.arena)
        call.config.priority = call.priority = prepared.call_priority
        buffer, address = self._output
        call.set_output(layout.nbytes, buffer, address)
        call.keep = args
        call.keeper = self
        pieces = self._pieces(layout, count)
        self._messages[count] = call, pieces
        return call, pieces


class RowCoalescer(Coalescer):
    """Of requests whose tensors come with them: side by side, as rows of the same arrays."""

    __slots__ = ("_arrays", "_inputs", "_only")

    def _make_room(self, capacity: int) -> None:
        prepared, arena = self._prepared, self._calls.port.arena
        rows = prepared.template.rows
        self._inputs: list[list[memoryview]] = [[] for _ in range(capacity)]  # by request
        found: dict[int, Any] = {}
        for (start, end), (index, dtype, shape, _) in zip(
            prepared.inputs, prepared.template.pieces, strict=True
        ):
            size = end - start
            buffer, _ = arena.allocate(size * capacity)
            view = memoryview(buffer)
            for number, inputs in enumerate(self._inputs):
                inputs.append(view[number * size : (number + 1) * size])
            found[index] = np.ndarray((capacity * rows, *shape[1:]), dtype, buffer)
        self._only = prepared.inputs[0] if len(prepared.inputs) == 1 else None
        # By index among the call's inputs.
        self._arrays: list[Any] = [found[index] for index in sorted(found)]

    def _fill(self, index: int, prepared: Any, view: memoryview, middle: int) -> None:
        inputs = self._inputs[index]
        if self._only is not None:  # as of most models: 0.15 us less
            start, stop = self._only
            inputs[0][:] = view[middle + start : middle + stop]
            return
        for input_, (start, stop) in zip(inputs, prepared.inputs, strict=True):
            input_[:] = view[middle + start : middle + stop]

    def _target(self, count: int) -> tuple[ServerFunction, tuple[Any, ...]]:
        rows = count * self._prepared.template.rows
        arrays = [array[:rows] for array in self._arrays]
        return self.served.together, (self.served.number, count, *arrays)

    def _layout(self, count: int) -> TreeLayout:
        hint = self._prepared.hint
        specs = [ArraySpec(one.dtype, (count * one.shape[0], *one.shape[1:])) for one in hint.specs]
        return TreeLayout(hint.tree.structure, specs)

    def _pieces(self, layout: TreeLayout, count: int) -> list[list[Any]]:
        prepared = self._prepared
        view = memoryview(self._output[0])
        answers: list[list[Any]] = [[prepared.first] for _ in range(count)]
        for (index, _, _), frame in zip(prepared.template.wanted, prepared.frames, strict=True):
            size = prepared.hint.specs[index].nbytes
            start = layout.offsets[index]
            for number, pieces in enumerate(answers):
                pieces.append(frame)
                pieces.append(view[start + number * size : start + (number + 1) * size])
        return answers

    def _mine(self, index: int) -> slice:
        rows = self._prepared.template.rows
        return slice(index * rows, (index + 1) * rows)

    def _one(self, index: int) -> tuple[Any, tuple[Any, ...]]:
        arrays = (array[self._mine(index)] for array in self._arrays)
        return self._prepared, (self.served.number, *arrays)

    def _part(self, index: int, result: Any) -> Any:
        self._lane.capacity = 0  # not the rows that were expected
        return _rows(result, self._mine(index))
