"""The server's own HTTP/2, by libnghttp2: what clients of gRPC do to a connection."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time

import numpy as np
import pytest
from serve import client_messages, servers
from serve import frames as h2
from serve.servers import connections

pytest.importorskip("shmgpu._http2", reason="there is no libnghttp2", exc_type=ImportError)
grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

MODEL = servers.MODELS / "simple.py"


def tensor(array):
    return client.InferInput("x", array.shape, "FP32").set_data_from_numpy(array)


def scale(array):
    """The message that asks the model `scale`."""
    return client_messages.built([tensor(array)], model_name="scale")


SMALL = scale(np.ones(4, np.float32))


@pytest.fixture(scope="module")
def server():
    """One worker, so that every connection is the same process's."""
    with servers.serving(
        MODEL,
        servers.MODELS / "large.py",
        workers=1,
        helpers=1,
        grpc_port=0,
        grpc_front="nghttp2",
        max_body="64MiB",
        arena="256MiB",
        send_timeout=1,
        receive_timeout=2,
    ) as running:
        yield running


@contextlib.contextmanager
def connected(server, **settings):
    """A connection that has said hello."""
    host, _, port = server.grpc_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=servers.DEADLINE_S) as made:
        made.sendall(h2.hello(**settings) + h2.frame(h2.SETTINGS, h2.ACK, 0))
        yield made


def answer(connection, stream):
    """What came of a stream until its end: bytes of data, the kind of its last frame."""
    found = b""
    for kind, flags, which, payload in h2.read_frames(connection):
        if which == stream:
            found += payload if kind == h2.DATA else b""
            if kind == h2.RST_STREAM or (kind in (h2.DATA, h2.HEADERS) and flags & h2.END_STREAM):
                return found, kind
    return found, None


def works(server):
    with contextlib.closing(client.InferenceServerClient(server.grpc_address)) as triton:
        x = np.arange(3, dtype=np.float32)
        return np.array_equal(triton.infer("scale", [tensor(x)]).as_numpy("y"), 2 * x)


def test_many_calls_of_one_connection_are_answered_each_with_its_own(server):
    with connected(server) as connection:
        streams = range(1, 200, 2)
        connection.sendall(
            b"".join(h2.call(one, scale(np.full(4, one, np.float32))) for one in streams)
        )
        found, ended = {}, set()
        for kind, flags, stream, payload in h2.read_frames(connection):
            if kind == h2.DATA:
                found[stream] = payload
            elif kind == h2.HEADERS and flags & h2.END_STREAM:
                ended.add(stream)
            if len(ended) == len(streams):
                break
    for one in streams:
        assert found[one].endswith(np.full(4, 2 * one, np.float32).tobytes())


def test_a_message_near_the_limit_goes_there_and_back(server):
    """Of 60 MiB, through windows of a megabyte; one beyond the limit is refused."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    x = np.arange(15 << 20, dtype=np.float32)
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        ask = channel.unary_unary(h2.INFER)
        found = ask(scale(x), timeout=servers.DEADLINE_S)
        assert found.endswith((2 * x[-1000:]).tobytes()) and len(found) > x.nbytes
        with pytest.raises(grpc.RpcError) as refused:
            ask(scale(np.zeros(17 << 20, np.float32)), timeout=servers.DEADLINE_S)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"content_type": "text/plain"}, b"415"),
        ({"content_type": None}, b"415"),
        ({":method": "GET"}, b"405"),
    ],
)
def test_what_is_no_call_is_answered_as_http_has_it(server, changed, status):
    with connected(server) as connection:
        connection.sendall(h2.head(1, True, **changed))
        for kind, flags, stream, payload in h2.read_frames(connection):
            if stream == 1:
                assert kind == h2.HEADERS and flags & h2.END_STREAM and status in payload
                break
    assert works(server)


def test_a_deadline_that_is_none_is_refused(server):
    with connected(server) as connection:
        for number, timeout in enumerate(["1", "S", "123456789S", "-1S", "1h", ""]):
            connection.sendall(h2.call(4 * number + 1, SMALL, grpc_timeout=timeout))
            assert answer(connection, 4 * number + 1) == (b"", h2.HEADERS), timeout
            connection.sendall(h2.call(4 * number + 3, SMALL, grpc_timeout="10S"))
            assert answer(connection, 4 * number + 3)[0]


def test_a_deadline_ends_a_call_that_its_client_does_not_end(server, gate):
    path = client.InferInput("path", [1], "BYTES")
    path.set_data_from_numpy(np.array([str(gate).encode()], dtype=object))
    message = client_messages.built([path], model_name="held")
    with servers.Held(server, gate):
        servers.until(lambda: server.pending() == 1, "the helper is busy")
        with connected(server) as connection:
            connection.sendall(h2.call(1, message, grpc_timeout="100m"))
            assert answer(connection, 1) == (b"", h2.HEADERS)
        servers.until(lambda: server.pending() == 1, "it is not in the queue any more")


def test_a_message_that_does_not_come_is_not_waited_for(server):
    with connected(server) as connection:
        connection.sendall(h2.head(1) + h2.data(1, h2.message(SMALL)[:-1], False))
        assert answer(connection, 1) == (b"", h2.HEADERS)
        connection.sendall(h2.head(3, True))
        assert answer(connection, 3) == (b"", h2.HEADERS)
        connection.sendall(h2.call(5, SMALL))
        assert answer(connection, 5)[0]


def ask_for(nbytes):
    count = client.InferInput("count", [1], "INT64").set_data_from_numpy(np.array([nbytes]))
    return client_messages.built([count], model_name="large")


def test_an_answer_that_its_client_opens_no_window_for_is_given_up(server):
    with connected(server, s4=100) as connection:
        connection.sendall(h2.call(1, ask_for(4000)))
        found, kind = answer(connection, 1)
        assert (len(found), kind) == (100, h2.RST_STREAM)
        connection.sendall(h2.settings(s4=100_000) + h2.call(3, ask_for(4000)))
        found, kind = answer(connection, 3)
        assert (len(found) > 4000, kind) == (True, h2.HEADERS)


@pytest.mark.parametrize(("count", "nbytes"), [(60, 4 << 20), (300, 2 << 20)])
def test_large_answers_of_one_connection_wait_until_there_is_room(server, count, nbytes):
    """There is room for half of 256 MiB; calls begin at their pace once one answer was seen."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        ask = channel.unary_unary(h2.INFER, response_deserializer=len)
        if count > 60:
            ask(ask_for(nbytes), timeout=servers.DEADLINE_S)
        asked = [ask.future(ask_for(nbytes), timeout=servers.DEADLINE_S) for _ in range(count)]
        assert all(one.result() > nbytes for one in asked)


def test_answers_whose_bytes_are_not_taken_end_their_connection(server):
    """They go no further than the sockets' buffers."""
    nbytes = 16 << 20
    with connected(server, s4=1 << 30) as connection:
        connection.sendall(h2.window(0, 1 << 30))
        connection.sendall(b"".join(h2.call(one, ask_for(nbytes)) for one in (1, 3, 5, 7)))
        servers.until(lambda: server.statistics("large")["inference_count"] >= 4, "they are made")
        assert works(server)
        host, port = connection.getsockname()
        end = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"

        def is_held():
            return any(end == remote and state == "01" for _, remote, state, _ in connections())

        servers.until(lambda: not is_held(), "the server has left")
        found = sum(len(payload) for *_, payload in h2.read_frames(connection))
        assert found < 4 * nbytes


def flood(server, sent):
    """Send it again and again, until the server has had enough."""
    with connected(server) as connection:
        connection.settimeout(servers.DEADLINE_S)
        stream = 1
        try:
            for _ in range(100):
                piece = b""
                for _ in range(100):
                    piece += sent(stream)
                    stream += 2
                connection.sendall(piece)
        except OSError:
            return True
        return any(kind == h2.GOAWAY for kind, *_ in h2.read_frames(connection))


@pytest.mark.parametrize(
    "sent",
    [
        lambda stream: h2.call(stream, SMALL) + h2.reset(stream),
        lambda stream: h2.head(stream) + h2.reset(stream),
        lambda stream: h2.head(stream) + h2.window(stream, 0),
    ],
    ids=["calls that are reset", "heads that are reset", "what the server must reset"],
)
def test_floods_end_their_connection_and_nothing_else(server, sent):
    assert flood(server, sent)
    assert works(server)
    servers.until(lambda: server.pending() == 0, "nothing of it is left")


def test_a_client_of_http_1_and_one_that_says_nothing_harm_nobody(server):
    host, _, port = server.grpc_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=servers.DEADLINE_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while connection.recv(4096):
            pass
    with socket.create_connection((host, int(port)), timeout=servers.DEADLINE_S):
        assert works(server)


def test_connections_are_encrypted_for_both_kinds_of_clients(certificate):
    aio = pytest.importorskip("tritonclient.grpc.aio")
    x = np.arange(100_000, dtype=np.float32)
    with servers.serving(
        MODEL, workers=1, helpers=1, grpc_port=0, grpc_front="nghttp2", **certificate
    ) as server:
        secure = {"ssl": True, "root_certificates": str(certificate["tls_cert"])}
        with contextlib.closing(
            client.InferenceServerClient(server.grpc_address, **secure)
        ) as triton:
            assert triton.is_server_ready()
            assert np.array_equal(triton.infer("scale", [tensor(x)]).as_numpy("y"), 2 * x)

        async def ask():
            async with aio.InferenceServerClient(server.grpc_address, **secure) as own:
                return await asyncio.gather(*(own.infer("scale", [tensor(x)]) for _ in range(8)))

        for result in asyncio.run(ask()):
            assert np.array_equal(result.as_numpy("y"), 2 * x)


# ---- the end ---------------------------------------------------------------------------------


class Loop(threading.Thread):
    """A client that asks as soon as it is answered, on one connection, until it is told to leave.

    Attributes:
        answered: how often it was.
        lost: calls that the server said it would answer, and has not.
    """

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.answered = 0
        self.lost = []
        self.start()

    def run(self):
        stream, last, is_answered = -1, None, True
        with connected(self.server) as connection:
            for kind, flags, which, payload in h2.read_frames(connection):
                if kind == h2.GOAWAY:
                    last = int.from_bytes(payload[:4], "big")
                elif kind == h2.HEADERS and flags & h2.END_STREAM and which == stream:
                    is_answered = True
                    self.answered += 1
                if is_answered and last is None:
                    stream += 2
                    connection.sendall(h2.call(stream, SMALL))
                    is_answered = False
        if not is_answered and (last is None or stream <= last):
            self.lost.append(stream)


def lose_none(server, clients):
    servers.end_amid(server, [Loop(server) for _ in range(clients)])


@pytest.mark.parametrize("workers", [1, 2])
def test_an_end_amid_calls_loses_none_that_was_sent(workers):
    flags = {"grpc_port": 0, "grpc_front": "nghttp2"}
    with servers.serving(MODEL, helpers=1, workers=workers, **flags) as server:
        lose_none(server, 16)


def test_a_client_that_does_not_listen_delays_no_end():
    """It asks on, whatever it is told, so that one of two calls is always under way."""
    seconds = client.InferInput("seconds", [1], "FP64").set_data_from_numpy(np.array([0.2]))
    message = client_messages.built([seconds], model_name="sleep")
    with servers.serving(MODEL, helpers=2, workers=1, grpc_port=0) as server:
        with connected(server) as connection:
            connection.sendall(h2.call(1, message))
            threading.Timer(0.1, connection.sendall, (h2.call(3, message),)).start()
            stream, goodbyes, told = 3, [], 0.0
            for kind, flags, _, payload in h2.read_frames(connection):
                if kind == h2.GOAWAY:
                    goodbyes.append(int.from_bytes(payload[:4], "big"))
                elif kind == h2.HEADERS and flags & h2.END_STREAM:
                    if stream == 5:
                        server.process.send_signal(signal.SIGTERM)
                        told = time.monotonic()
                    stream += 2
                    with contextlib.suppress(OSError):
                        connection.sendall(h2.call(stream, message))
        assert server.process.wait(servers.DEADLINE_S) == 0
        assert time.monotonic() - told < 5
        assert goodbyes[0] == 2**31 - 1 and goodbyes[-1] <= stream


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("time_", range(10))
def test_ten_ends_in_a_row_lose_none(time_):
    flags = {"grpc_port": 0, "grpc_front": "nghttp2", "workers": 1 + time_ % 2}
    with servers.serving(MODEL, helpers=2, **flags) as server:
        lose_none(server, 32)


def test_stock_clients_end_with_an_answer_or_a_word_that_nobody_listens():
    with servers.serving(MODEL, helpers=1, grpc_port=0, grpc_front="nghttp2") as server:
        said, answered = [], []

        def ask(number):
            with grpc.insecure_channel(server.grpc_address) as channel:
                call = channel.unary_unary(h2.INFER)
                while not said:
                    try:
                        answered.append(len(call(SMALL, timeout=servers.DEADLINE_S)))
                    except grpc.RpcError as error:
                        said.append(error.details())

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        servers.until(lambda: len(answered) > 200, "they ask")
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(servers.DEADLINE_S)
        assert server.process.wait(servers.DEADLINE_S) == 0
    assert all("failed to connect" in one.lower() for one in said), said
