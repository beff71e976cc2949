"""One connection's side of HTTP/2, given bytes and asked for bytes, without a socket."""

from __future__ import annotations

import gc
import random

import pytest
from serve import frames as h2

native = pytest.importorskip("shmgpu._http2", reason="there is no libnghttp2", exc_type=ImportError)

MOST_HEAD, MOST_MESSAGE = 16384, 1 << 20
WINDOW = 65536
ENHANCE_YOUR_CALM, REFUSED_STREAM = 11, 7


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Whatever a client did, a session that is gone holds nothing."""
    native.limit(64 << 20)
    native.limit_coming(1 << 30)
    yield
    gc.collect()
    assert native.unwanted() == native.coming() == 0


class Side:
    """A session, and what a client sees of it."""

    def __init__(self, streams=100, **settings):
        self.session = native.Session(streams, MOST_HEAD, MOST_MESSAGE)
        self.told = []
        self.feed(h2.hello(**settings) + h2.frame(h2.SETTINGS, h2.ACK, 0))
        self.sent()

    def feed(self, data, step=65536):
        """Have these bytes come; whether they were HTTP/2."""
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            native.scratch[: len(piece)] = piece
            told = self.session.feed(len(piece))
            if told is None:
                return False
            self.told += told
        return True

    def sent(self, most=1 << 30):
        """The frames that go out."""
        return list(h2.frames(self.session.pull(most) or b""))

    def goodbye(self):
        """The code that the connection ends with; None: it does not."""
        found = [payload for kind, _, _, payload in self.sent() if kind == h2.GOAWAY]
        assert not found or self.session.is_over()
        return int.from_bytes(found[0][4:8], "big") if found else None


def test_a_whole_call_is_told_at_once_and_answered_with_three_frames():
    side = Side()
    side.feed(h2.call(1, b"question", authorization="Bearer x", grpc_timeout="1S"))
    ((stream, flags, head, message),) = side.told
    assert (stream, flags, message) == (
        1,
        native.OPENED | native.MESSAGE | native.ENDED,
        b"question",
    )
    assert head == (
        b"POST", h2.INFER.encode(), b"application/grpc", b"Bearer x", b"1S", None, None
    )  # fmt: skip
    assert side.session.answer(1, b"answer!")
    kinds = [(kind, flags & h2.END_STREAM, payload) for kind, flags, _, payload in side.sent()]
    assert [one[:2] for one in kinds] == [(h2.HEADERS, 0), (h2.DATA, 0), (h2.HEADERS, 1)]
    assert kinds[1][2] == h2.message(b"answer!")
    assert side.session.progress() == [-1] and side.session.want(1) is False
    assert not side.session.answer(1, b"again")


def test_heads_alike_are_told_as_the_same_object():
    side = Side()
    side.feed(h2.call(1, b"a") + h2.call(3, b"b") + h2.call(5, b"c", authorization="x"))
    first, second, third = [one[2] for one in side.told]
    assert first is second and third[:3] == first[:3] and third != first


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_bytes_may_come_in_any_pieces(step):
    side = Side()
    sent = h2.message(b"x" * 300) + h2.message(b"") + h2.message(b"z" * 50, True)
    side.feed(h2.head(1) + h2.data(1, sent), step)
    found = []
    while True:
        told = side.session.want(1)
        if not told[1] & native.MESSAGE:
            break
        found.append((told[3], bool(told[1] & native.COMPRESSED)))
    messages = [one[3] for one in side.told if one[3] is not None]
    assert messages == [] and told[1] == native.ENDED
    assert found == [(b"x" * 300, False), (b"", False), (b"z" * 50, True)]


def test_a_message_that_nobody_wants_comes_no_further_than_its_window():
    side = Side()
    payload = random.Random(7).randbytes(3 * WINDOW)
    whole = h2.data(1, h2.message(payload))
    allowed = whole[: 4 * (16384 + 9)]  # four frames fill the window
    side.feed(h2.head(1) + allowed)
    assert not [one for one in side.sent() if one[0] == h2.WINDOW_UPDATE and one[2] == 1]
    assert native.unwanted() == WINDOW
    assert side.session.want(1) is None
    assert native.unwanted() == 0
    more = [one for one in side.sent() if one[0] == h2.WINDOW_UPDATE and one[2] == 1]
    assert sum(int.from_bytes(one[3], "big") for one in more) >= len(payload) + 5 - WINDOW
    side.told.clear()
    side.feed(whole[len(allowed) :])
    ((_, flags, _, message),) = side.told
    assert message == payload and flags == native.MESSAGE | native.ENDED


def test_all_that_nobody_wants_is_bounded():
    native.limit(100_000)
    side = Side()
    for stream in (1, 3):
        side.feed(h2.head(stream) + h2.data(stream, bytes(60_000), False))
    refused = [one for one in side.sent() if one[0] == h2.RST_STREAM]
    assert [(one[2], int.from_bytes(one[3], "big")) for one in refused] == [(3, REFUSED_STREAM)]
    assert side.session.progress() == [-3] and native.unwanted() == 60_000


def test_all_that_comes_and_is_not_whole_is_bounded():
    native.limit_coming(150_000)
    side = Side()
    long, small = h2.message(bytes(90_000))[:-1], h2.message(bytes(500))
    for stream in (1, 3, 5):
        side.feed(h2.head(stream))
        side.session.want(stream)
    side.told.clear()
    side.feed(h2.data(1, long, False))
    assert native.coming() == len(long) - 5 and not side.told
    side.feed(h2.data(3, long, False))
    assert [one[:2] for one in side.told] == [(3, native.NO_ROOM)]
    assert native.coming() == len(long) - 5
    native.limit_coming(10)
    side.feed(h2.data(5, small[:200], False))
    side.feed(h2.data(5, small[200:]))
    assert side.told[-1][3] == small[5:]  # what is short has room
    side.session.end(1, b"4 Deadline Exceeded")
    assert native.coming() == 0


@pytest.mark.parametrize(
    ("sent", "flag"),
    [
        (b"\x02\0\0\0\x01x", "BROKEN"),
        (h2.message(b"whole")[:-1], "BROKEN"),
        (b"\0\0\0", "BROKEN"),
        (b"\0" + (MOST_MESSAGE + 1).to_bytes(4, "big"), "TOO_LARGE"),
    ],
)
def test_what_is_no_message_is_told(sent, flag):
    for is_late in (False, True):
        side = Side()
        side.feed(h2.head(1))
        if is_late:
            assert side.session.want(1) is None
        side.told.clear()
        side.feed(h2.data(1, sent))
        told = side.told[0] if is_late else side.session.want(1)
        assert told[1] & ~native.ENDED == getattr(native, flag) and told[3] is None
    whole = Side()
    whole.feed(h2.head(1) + h2.data(1, sent))
    assert whole.told[0][1] & getattr(native, flag)


def test_a_call_that_fails_is_one_frame_and_who_still_sends_is_told():
    side = Side()
    side.feed(h2.head(1) + h2.data(1, b"\0\0\0", False))
    assert side.session.end(1, b"3 no%20good")
    (head, reset) = side.sent()
    assert head[0] == h2.HEADERS and head[1] & h2.END_STREAM
    assert b"no%20good" in head[3] or len(head[3]) > 10  # as HPACK has it
    assert (reset[0], reset[3]) == (h2.RST_STREAM, bytes(4))
    assert side.session.progress() == [-1]


def test_what_comes_of_a_call_that_is_answered_is_dropped():
    side = Side()
    side.feed(h2.head(1) + h2.data(1, h2.message(bytes(100))[:50], False))
    assert side.session.end(1, b"16 no%20token")
    held = native.unwanted()
    side.feed(h2.data(1, bytes(16_000), False))  # before it is told
    assert native.unwanted() == held


def test_messages_go_out_one_by_one_as_the_client_takes_them():
    side = Side(s4=100)  # bytes of its window
    side.feed(h2.call(1, b""))
    assert side.session.send(1, b"x" * 150)
    assert sum(len(one[3]) for one in side.sent() if one[0] == h2.DATA) == 100
    assert not side.session.send(1, b"before the first was taken")
    assert side.session.progress() is None
    side.feed(h2.window(1, 1000))
    assert sum(len(one[3]) for one in side.sent()) == 55
    assert side.session.progress() == [1]
    assert side.session.send(1, b"y") and side.session.end(1, None)
    kinds = [one[0] for one in side.sent()]
    assert kinds[0] == h2.DATA and kinds[-1] == h2.HEADERS
    assert side.session.progress() == [-1]


def test_no_more_is_pulled_at_once_than_was_asked_for():
    side = Side(s4=1 << 20)
    side.feed(h2.window(0, 1 << 20) + h2.call(1, b""))
    side.session.answer(1, bytes(200_000))
    sizes = []
    while data := side.session.pull(50_000):
        sizes.append(len(data))
    assert len(sizes) >= 3 and max(sizes) < 50_000 + 16384 + 9


def test_large_messages_go_out_as_they_are_in_turn_with_small_ones():
    """Whatever is pulled at once: each goes on where it stopped."""
    side = Side(s4=1 << 20)
    side.feed(h2.window(0, 1 << 24) + b"".join(h2.call(one, b"") for one in (1, 3, 5, 7)))
    chance = random.Random(3)
    answers = {one: chance.randbytes(size) for one, size in ((1, 300_000), (3, 10), (5, 32_768))}
    for one, message in answers.items():
        assert side.session.answer(one, message)
    assert side.session.send(7, bytes(100_000))
    data = b""
    while piece := side.session.pull(chance.choice([1, 5000, 40_000])):
        assert len(piece) < 40_000 + 2 * (16384 + 9)
        data += piece
    found = dict.fromkeys((1, 3, 5, 7), b"")
    for kind, _, stream, payload in h2.frames(data):
        if kind == h2.DATA:
            found[stream] += payload
    for one, message in answers.items():
        assert found[one] == h2.message(message)
    assert found[7] == h2.message(bytes(100_000))
    assert sorted(side.session.progress()) == [-5, -3, -1, 7]
    assert side.session.send(7, bytes(50_000)) and side.session.end(7, None)
    assert sum(len(one[3]) for one in side.sent() if one[0] == h2.DATA) == 50_005


def test_a_client_that_leaves_amid_a_large_message_gets_no_more_of_it():
    side = Side(s4=1 << 20)
    side.feed(h2.window(0, 1 << 20) + h2.call(1, b"") + h2.call(3, b""))
    side.session.answer(1, bytes(500_000))
    assert len(side.session.pull(1000)) > 1000
    side.feed(h2.reset(1))
    side.session.answer(3, b"x" * 40_000)
    data = b"".join(one[3] for one in side.sent() if one[0] == h2.DATA and one[2] == 3)
    assert data == h2.message(b"x" * 40_000)
    assert side.session.progress() == [-1, -3]


def test_a_client_that_leaves_is_told_once_and_never_where_nobody_knew_it():
    side = Side()
    side.feed(h2.call(1, b"a"))
    side.feed(h2.reset(1))
    assert side.session.progress() == [-1] and side.session.want(1) is False
    side.told.clear()
    side.feed(h2.call(3, b"b") + h2.reset(3))
    assert (side.told, side.session.progress(), side.session.want(3)) == ([], None, False)


def test_a_head_that_is_too_long_is_told_and_one_without_end_ends_the_connection():
    side = Side()
    side.feed(h2.head(1, True, note="n" * (MOST_HEAD - 300)))
    assert side.told[0][1] & native.LONG_HEAD
    side = Side()
    more = b"\x00" + h2.text("a") + h2.text("b" * 16_000)
    side.feed(h2.frame(h2.HEADERS, 0, 1, h2.fields()))
    sent = 0
    while side.feed(h2.frame(h2.CONTINUATION, 0, 1, more)) and side.goodbye() is None:
        sent += 1
        assert sent <= 6  # twice what is allowed, and a read's bytes


def test_a_head_that_swells_ends_the_connection():
    """Each byte of it stands for a field of four thousand that the client has had kept."""
    side = Side()
    kept = b"\x40" + h2.text("a") + h2.text("b" * 4000)
    side.feed(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, h2.fields() + kept))
    assert side.told and side.goodbye() is None
    swelling = h2.fields() + b"\xbe" * 10_000
    assert not side.feed(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 3, swelling))


@pytest.mark.parametrize("kind", ["resets", "wrong heads", "settings", "pings"])
def test_a_flood_ends_its_connection(kind):
    side = Side(streams=1000)
    is_sound = True
    for number in range(3000):
        stream = 2 * number + 1
        is_sound = side.feed(
            {
                "resets": h2.head(stream) + h2.reset(stream),
                # The server itself resets these: no field has such a name.
                "wrong heads": h2.head(stream, UPPER="x"),
                "settings": h2.settings(s4=number),
                "pings": h2.frame(h2.PING, 0, 0, bytes(8)),
            }[kind]
        )
        if kind in ("resets", "wrong heads"):
            if any(one[0] == h2.GOAWAY for one in side.sent()):
                break
        if not is_sound:
            break
    assert number < 600 if kind in ("resets", "wrong heads") else number < 2999
    side.sent()
    assert not is_sound or side.session.is_over()


def test_a_client_that_takes_nothing_causes_only_so_many_frames():
    """Streams beyond those allowed are refused one by one, until the client knows how many are."""
    session = native.Session(10, MOST_HEAD, MOST_MESSAGE)
    flood = h2.hello() + b"".join(h2.head(stream) for stream in range(1, 40_000, 2))
    pieces = [flood[at : at + 65536] for at in range(0, len(flood), 65536)]
    for piece in pieces:
        native.scratch[: len(piece)] = piece
        if session.feed(len(piece)) is None:
            break
    assert piece is not pieces[-1]
    assert len(list(h2.frames(session.pull(1 << 30)))) < 11_000


def test_a_head_that_is_none_costs_its_stream_and_not_those_that_go_on():
    side = Side()
    side.feed(h2.head(1))
    side.session.want(1)
    side.feed(h2.head(3, True, UPPER="x"))  # no field has such a name
    assert [one[2] for one in side.sent() if one[0] == h2.RST_STREAM] == [3]
    payload = bytes(200_000)
    whole = h2.data(1, h2.message(payload))
    for at in range(0, len(whole), 40_000):
        assert side.feed(whole[at : at + 40_000]) and side.goodbye() is None
    assert side.told[-1][3] == payload


def test_what_is_no_http2_is_no_connection():
    session = native.Session(10, MOST_HEAD, MOST_MESSAGE)
    text = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    native.scratch[: len(text)] = text
    assert session.feed(len(text)) is None


def test_a_client_is_told_of_the_end_before_what_it_begins_is_ignored():
    side = Side()
    side.feed(h2.call(1, b"a"))
    side.session.leave(False)
    (first,) = [one for one in side.sent() if one[0] == h2.GOAWAY]
    assert int.from_bytes(first[3][:4], "big") == 2**31 - 1
    side.feed(h2.call(3, b"b"))
    side.session.leave(True)
    (last,) = [one for one in side.sent() if one[0] == h2.GOAWAY]
    assert int.from_bytes(last[3][:8], "big") == 3 << 32
    side.told.clear()
    side.feed(h2.call(5, b"c"))
    assert side.told == []
    for stream in (1, 3):
        assert side.session.answer(stream, b"")
    side.sent()
    assert side.session.is_over()


def test_wrong_arguments_are_refused():
    side = Side()
    side.feed(h2.call(1, b"a"))
    for call, error in [
        (lambda: side.session.feed(1 << 20), ValueError),
        (lambda: side.session.feed(-1), ValueError),
        (lambda: side.session.feed("x"), TypeError),
        (lambda: side.session.answer(1, "text"), TypeError),
        (lambda: side.session.answer(1), TypeError),
        (lambda: side.session.end(1, "text"), TypeError),
        (lambda: side.session.want("x"), TypeError),
        (lambda: native.Session(), TypeError),
        (lambda: native.limit(-1), OverflowError),
        (lambda: native.limit_coming(-1), OverflowError),
    ]:
        with pytest.raises(error):
            call()
    assert side.session.want(77) is False and not side.session.reset(77)


@pytest.mark.parametrize("seed", range(20))
def test_broken_bytes_break_nothing(seed):
    """Whatever comes, and whatever is done with what is told of it."""
    chance = random.Random(seed)
    good = h2.hello(s4=chance.choice([10, 1000, 1 << 20])) + b"".join(
        h2.head(stream, grpc_timeout=str(stream) + "S")
        + h2.data(stream, h2.message(bytes(chance.randrange(50_000))), chance.random() < 0.7)
        + (h2.reset(stream) if chance.random() < 0.3 else b"")
        for stream in range(1, 21, 2)
    )
    for _ in range(20):
        data = bytearray(good)
        for _ in range(chance.randint(0, 6)):
            data[chance.randrange(24, len(data))] = chance.randrange(256)
        side = Side.__new__(Side)
        side.session, side.told = native.Session(5, MOST_HEAD, MOST_MESSAGE), []
        at = 0
        while at < len(data):
            step = chance.choice([1, 9, 100, 5000, 65536])
            if not side.feed(bytes(data[at : at + step])):
                break
            at += step
            for stream, *_ in side.told:
                act = chance.randrange(6)
                if act == 0:
                    side.session.want(stream)
                elif act == 1:
                    side.session.answer(stream, bytes(chance.randrange(30_000)))
                elif act == 2:
                    side.session.send(stream, b"part")
                elif act == 3:
                    side.session.end(stream, chance.choice([None, b"13 x", b"2"]))
                elif act == 4:
                    side.session.reset(stream)
            side.told = side.told[-8:]
            side.session.pull(chance.choice([100, 1 << 20]))
            side.session.progress()
