"""A connection of gRPC's and its calls, beside a transport that only notes what it is told."""

from __future__ import annotations

import asyncio
import functools
import gc
import types
import weakref

import pytest
from serve import frames as h2
from serve import servers

pytest.importorskip("google.protobuf")
pytest.importorskip("shmgpu._http2", reason="there is no libnghttp2", exc_type=ImportError)

from shmgpu import _http2 as native
from shmgpu.serve.frontend import grpc_inference, http2_calls
from shmgpu.serve.frontend.answer_pace import LARGE
from shmgpu.serve.frontend.connection import ConnectionLimits
from shmgpu.serve.frontend.http2_connection import Http2Connection
from shmgpu.serve.frontend.message_memory import AT_ONCE, MessageMemory
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.types import ProtocolError

PATH = h2.INFER.encode()


class Transport:
    """Takes bytes, as many as there are; ``unsent`` says how many of them lie unread."""

    def __init__(self):
        self.data = b""
        self.unsent = 0
        self.fate = ""

    def get_extra_info(self, name):
        return ("127.0.0.1", 5)

    def get_write_buffer_size(self):
        return self.unsent

    def write(self, data):
        assert not self.fate, "it has ended"
        self.data += data

    def close(self):
        self.fate = self.fate or "closed"

    def abort(self):
        self.fate = "aborted"


class Calls(http2_calls.Http2Calls):
    """What calls of ``handler`` share; ``quick`` are the messages that take the fast path."""

    def __init__(self, handler, most=1000, kind=http2_calls.OFTEN):
        self.options = types.SimpleNamespace(arena=most, max_queue=100, max_body=5000)
        self.log = None
        self.loop = asyncio.get_running_loop()
        self.memory = MessageMemory(most, 0.05)
        self.parked = self.under_way = 0
        self.most = 5
        self._fast_path = types.SimpleNamespace(start=self._start)
        self._handlers = {PATH: (kind, handler)}
        self._token = b""
        self.quick = []

    def _start(self, message, call):
        if message != b"quick":
            return False
        self.quick.append(call)
        return True


class Side:
    """A connection that was made, and its client."""

    def __init__(self, calls, limit=10, **settings):
        self.seen = getattr(calls, "seen", None) or set()
        calls.seen = self.seen
        limits = ConnectionLimits(5000, 16384, limit, idle_s=5, send_s=5)
        self.connection = Http2Connection(calls, limits, self.seen)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.feed(h2.hello(**settings) + h2.frame(h2.SETTINGS, h2.ACK, 0))
        self.transport.data = b""

    def feed(self, data):
        native.scratch[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def frames(self):
        """What was sent since, once the loop has done what it is at."""
        for _ in range(10):
            await asyncio.sleep(0)
        data, self.transport.data = self.transport.data, b""
        return list(h2.frames(data))

    async def kinds(self, stream=1):
        return [kind for kind, _, which, _ in await self.frames() if which == stream]


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), servers.DEADLINE_S))


async def echo(data, context):
    return data


ANSWER = [h2.HEADERS, h2.DATA, h2.HEADERS]


def test_calls_are_answered_whether_they_come_in_one_piece_or_many():
    async def scenario():
        side = Side(Calls(echo))
        side.feed(h2.call(1, b"question"))
        assert await side.kinds() == ANSWER
        for piece in (h2.head(3), h2.data(3, h2.message(b"question")[:7], False)):
            side.feed(piece)
            assert await side.kinds(3) == []
        side.feed(h2.data(3, h2.message(b"question")[7:]))
        assert await side.kinds(3) == ANSWER
        assert side.connection.open == {} and side.connection.calls.memory.held == 0

    run(scenario)


def test_small_answers_that_are_not_taken_are_counted_once_and_those_beyond_end_their_calls():
    async def scenario():
        calls = Calls(None)
        side, answers = Side(calls, s4=10), calls.memory.answers
        for stream in (1, 3, 5):
            side.feed(h2.call(stream, b"quick"))
            calls.quick[-1].reply_whole(types.SimpleNamespace(), bytes(400))
            assert answers.unread == 400  # half of what all may have is one connection's
        assert answers.waiting == 400  # and half as many may wait
        frames = await side.frames()
        assert [which for kind, _, which, _ in frames if kind == h2.RST_STREAM] == [5]
        side.feed(h2.window(1, 1000))
        await side.frames()
        assert (answers.unread, answers.waiting) == (400, 0)
        side.feed(h2.window(3, 1000))
        await side.frames()
        assert answers.unread == 0 and side.connection.open == {}

    run(scenario)


async def large(data, context):
    """As many bytes as the message says, as inferences are answered."""
    unread = context._calls.memory.answers.hold(int(data), context.peer(), may_wait=True)
    context.add_done_callback(unread.close)
    return unread.given([bytes(int(data))])


async def beside_answers_that_wait(**more):
    """A side that has taken none of 400 bytes; two answers wait, and there is no place for more."""
    side = Side(Calls(large), s4=10)
    side.feed(h2.call(1, b"400") + h2.call(3, b"300", **more) + h2.call(5, b"200"))
    assert {which for *_, which, _ in await side.frames()} == {1}
    memory = side.connection.calls.memory
    assert (memory.answers.unread, memory.answers.waiting, memory.held) == (400, 500, 0)
    return side, memory.answers


def test_answers_for_which_there_is_no_room_wait_and_go_in_order():
    async def scenario():
        side, answers = await beside_answers_that_wait()
        side.feed(h2.call(7, b"1"))
        frames = await side.frames()
        assert {which for *_, which, _ in frames} == {7}
        assert b"\x0214" in b"".join(payload for *_, payload in frames)  # UNAVAILABLE, at once
        other = Side(side.connection.calls, s4=10)
        other.feed(h2.call(1, b"400"))  # others have room all the same
        assert await other.kinds() == [h2.HEADERS, h2.DATA]
        other.connection.connection_lost(None)
        side.feed(h2.window(1, 1000))
        begun = [which for kind, _, which, _ in await side.frames() if kind == h2.HEADERS]
        assert begun == [1, 3, 5]  # the first one's is its end
        assert (answers.unread, answers.waiting) == (500, 0)
        for stream in (3, 5):
            side.feed(h2.window(stream, 1000))
            assert h2.HEADERS in await side.kinds(stream)
        assert (answers.unread, side.connection.open) == (0, {})

    run(scenario)


def test_an_answer_that_waits_is_given_up_with_its_call():
    async def scenario():
        side, answers = await beside_answers_that_wait(grpc_timeout="500m")
        side.connection.pause_writing()  # the client takes not even the trailers
        while answers.waiting > 200:
            await asyncio.sleep(0.001)
        side.connection.resume_writing()
        side.feed(h2.reset(5))
        await side.frames()
        assert (answers.unread, answers.waiting) == (400, 0)
        side, answers = await beside_answers_that_wait()
        side.connection.connection_lost(None)
        await side.frames()
        assert (answers.unread, answers.waiting) == (0, 0)

    run(scenario)


def test_a_call_waits_until_there_is_room_for_an_answer_like_the_last_one():
    async def scenario():
        calls = Calls(large, most=10 * LARGE)
        side = Side(calls, s4=1 << 20)
        size = b"%d" % (2 * LARGE)
        side.connection.pause_writing()
        side.feed(h2.call(1, size))
        await side.frames()
        for stream in (3, 5, 7):  # one begins, and would be the last for which there is room
            side.feed(h2.call(stream, size, grpc_timeout="50m" if stream == 7 else None))
        await side.frames()
        assert (calls.memory.answers.unread, calls.memory.answers.waiting) == (4 * LARGE, 0)
        call = side.connection.open[7]
        while not call._is_over:
            await asyncio.sleep(0.001)
        side.feed(h2.window(0, 1 << 24))
        side.connection.resume_writing()
        ends = [which for kind, flags, which, _ in await side.frames() if flags & h2.END_STREAM]
        assert sorted(ends) == [1, 3, 5, 7]
        side.connection.connection_lost(None)
        assert calls.memory.pace._expected == {} and calls.memory.answers.unread == 0

    run(scenario)


def test_an_answer_that_is_held_by_whoever_made_it_is_not_counted_again():
    async def held(data, context):
        unread = calls.memory.answers.hold(400, context.peer())
        context.add_done_callback(unread.close)
        return bytes(400)

    async def scenario():
        nonlocal calls
        calls = Calls(held)
        side = Side(calls, s4=10)
        side.feed(h2.call(1, b"x"))
        await side.frames()
        assert calls.memory.answers.unread == 400
        side.connection.connection_lost(None)
        assert calls.memory.answers.unread == 0
        call = http2_calls.Http2Call(calls, side.connection, http2_calls.Route(), 3)
        call.ended()
        done = []
        call.add_done_callback(done.append)
        assert done == [call]  # nobody else would tell

    calls = None
    run(scenario)


def test_a_deadline_gives_up_what_is_under_way():
    async def never(data, context):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            given_up.append(data)

    async def scenario():
        calls = Calls(never)
        side = Side(calls)
        side.connection.pause_writing()  # the client takes not even the trailers
        side.feed(h2.call(1, b"slow", grpc_timeout="1m") + h2.call(3, b"quick", grpc_timeout="1m"))
        turn = types.SimpleNamespace(is_answered=False, on_disconnect=lambda: given_up.append(turn))
        calls.quick[0].waiting.append(turn)
        while len(given_up) < 2:
            await asyncio.sleep(0.001)
        assert turn.is_answered
        side.connection.resume_writing()
        frames = await side.frames()
        assert sorted(which for kind, _, which, _ in frames if kind == h2.HEADERS) == [1, 3]

    given_up = []
    run(scenario)


def test_messages_that_wait_for_room_are_bounded():
    async def never(data, context):
        await asyncio.get_running_loop().create_future()

    async def scenario():
        calls = Calls(never)
        calls.memory.seconds = 0.5  # it has its answers sooner, be the machine busy
        side = Side(calls)
        for stream in range(1, 9, 2):
            side.feed(h2.call(stream, bytes(700)))
            await asyncio.sleep(0)
        # Two are under way; two more wait, and are told after their time; the last is told at once.
        frames = await side.frames()
        assert [which for kind, _, which, _ in frames if kind == h2.HEADERS] == []
        assert calls.parked == 1400
        side.feed(h2.call(9, bytes(700)))
        frames = await side.frames()
        assert [which for kind, _, which, _ in frames if kind == h2.HEADERS] == [9]
        while calls.parked:
            await asyncio.sleep(0.01)
        frames = await side.frames()
        assert sorted(which for kind, _, which, _ in frames if kind == h2.HEADERS) == [5, 7]

    run(scenario)


def test_calls_that_only_begin_are_bounded():
    async def scenario():
        calls = Calls(echo)
        calls.memory.seconds = servers.DEADLINE_S
        side, other = Side(calls), Side(calls)
        side.feed(b"".join(h2.head(stream) for stream in (1, 3, 5)))
        other.feed(b"".join(h2.head(stream) for stream in (1, 3, 5)))
        assert (await side.frames(), calls.under_way) == ([], 5)
        assert await other.kinds(5) == [h2.HEADERS, h2.RST_STREAM]
        other.feed(h2.data(1, h2.message(b"x")))
        assert await other.kinds(1) == ANSWER
        other.feed(h2.call(7, b"x"))
        assert await other.kinds(7) == ANSWER
        other.feed(h2.reset(3))
        side.connection.connection_lost(None)
        assert calls.under_way == 0

    run(scenario)


def test_a_message_for_which_there_is_no_room_is_refused():
    async def scenario():
        side = Side(Calls(echo))
        side.feed(h2.head(1))
        await side.frames()  # its message is wanted
        side.connection.open[1].came(native.NO_ROOM, None)
        found = b"".join(payload for _, _, which, payload in await side.frames() if which == 1)
        assert b"\x0214" in found  # UNAVAILABLE

    run(scenario)


def test_whoever_still_reads_a_stream_that_has_ended_is_told():
    """Such as the task that reads ahead: it would wait for ever, or begin what nobody gives up."""

    async def reads(received, call):
        messages.append(received)
        ahead.append(asyncio.ensure_future(anext(received)))
        await asyncio.get_running_loop().create_future()
        yield b""

    async def scenario():
        for is_there in (False, True):
            side = Side(Calls(reads, kind=http2_calls.STREAM))
            side.feed(h2.call(1, b"first") if is_there else h2.head(1))
            await side.frames()
            assert ahead[-1].done() == is_there
            side.feed(h2.reset(1))
            await side.frames()
            assert ahead[-1].cancelled() == (not is_there)
            with pytest.raises(asyncio.CancelledError):
                await anext(messages[-1])

    messages, ahead = [], []
    run(scenario)


def test_who_is_cancelled_as_its_turn_comes_is_cancelled_and_the_turn_is_free_again():
    async def scenario():
        memory = MessageMemory(1, servers.DEADLINE_S)
        first = memory.begin()
        first.arrived(10)
        waiting = asyncio.ensure_future(memory.wait())
        await asyncio.sleep(0)
        first.close()  # from now on it has its turn
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() and memory._coming == {}

    run(scenario)


def test_a_small_call_does_not_wait_for_messages_that_have_not_come():
    async def scenario():
        calls = Calls(echo)
        coming = [calls.memory.begin() for _ in range(AT_ONCE)]  # as streams have them
        side = Side(calls)
        side.feed(h2.call(1, b"question") + h2.call(3, b"quick"))
        assert await side.kinds() == ANSWER and len(calls.quick) == 1
        coming[0].arrived(1000)  # now there is no room for more
        side.feed(h2.call(5, b"question") + h2.call(7, b"quick"))
        assert await side.kinds(5) == [] and len(calls.quick) == 1
        for one in coming:
            one.close()
        assert await side.kinds(5) == ANSWER

    run(scenario)


def test_an_inference_that_is_over_leaves_its_message_to_nobody():
    """Not even to the collector, which comes late: messages are large, and objects few."""

    async def scenario():
        for end in (
            lambda asked, told: asked.give_up(),
            lambda asked, told: told(None, ProtocolError(503, "no")),
            lambda asked, told: asked._answer([b"answer"]),
        ):
            told = []

            def start(served, request, started_ns, outcome, told=told):
                told.append(outcome)
                return types.SimpleNamespace(cancel=lambda: None, told=outcome)

            front = types.SimpleNamespace(
                limits=grpc_codec.DEFAULT_LIMITS,
                catalog=types.SimpleNamespace(find=lambda name, version: None),
                calls=types.SimpleNamespace(start=start),
            )
            memory = MessageMemory(1000, 1)
            hold = functools.partial(memory.answers.hold, peer="one")
            asked = grpc_inference._Asked(front, hold, b"", read=object())
            gone = weakref.ref(asked)
            end(asked, told.pop())
            del asked
            assert gone() is None

    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


def test_a_coding_that_nobody_knows_is_refused():
    async def scenario():
        side = Side(Calls(echo))
        sent = h2.data(1, h2.message(b"x" * 50, True))
        side.feed(h2.head(1, grpc_encoding="snappy") + sent)
        assert await side.kinds() == [h2.HEADERS]
        side.feed(h2.call(3, b"good"))
        assert await side.kinds(3) == ANSWER

    run(scenario)


def test_a_client_that_does_nothing_is_sent_away_and_one_that_waits_is_not():
    async def never(data, context):
        await asyncio.get_running_loop().create_future()

    async def scenario():
        side, busy = Side(Calls(never)), Side(Calls(never))
        busy.feed(h2.call(1, b"x"))
        for one in (side, busy):
            one.connection.look(one.connection.since + 4)
            assert one.transport.fate == ""
            one.connection.look(one.connection.since + 6)
        assert (side.transport.fate, busy.transport.fate) == ("closed", "")
        assert h2.GOAWAY in [kind for kind, *_ in await side.frames()]
        busy.transport.unsent = 100
        busy.connection.look(10.0)
        busy.transport.unsent = 50  # it takes some
        busy.connection.look(16.0)
        assert busy.transport.fate == ""
        busy.connection.look(22.0)
        assert busy.transport.fate == "aborted"

    run(scenario)


def test_only_so_many_connections_are_answered():
    async def scenario():
        calls = Calls(echo)
        sides = [Side(calls, limit=2) for _ in range(3)]
        assert [one.transport.fate for one in sides] == ["", "", "aborted"]
        sides[2].feed(h2.call(1, b"x"))
        assert await sides[2].frames() == []
        sides[0].connection.connection_lost(None)
        sides[2].connection.connection_lost(None)
        assert Side(calls, limit=2).transport.fate == ""

    run(scenario)


def test_nothing_is_written_to_a_connection_that_is_gone():
    async def late(data, context):
        await asyncio.sleep(0)
        return data

    async def scenario():
        calls = Calls(late)
        side = Side(calls)
        side.feed(h2.call(1, b"quick") + h2.call(3, b"x"))
        side.connection.connection_lost(None)
        side.transport.fate = "lost"
        calls.quick[0].reply_whole(types.SimpleNamespace(), b"late")
        assert await side.frames() == []

    run(scenario)
