"""Memory for bodies: nobody holds much of the arena with bytes that were announced and not sent."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import re
import socket

import numpy as np
import pytest
from serve import servers

from shmgpu.child.memory import LocalArena
from shmgpu.errors import ArenaFull
from shmgpu.serve.frontend.body_memory import BodyMemory

MIB = 1 << 20
POST = b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "simple.py", workers=1, helpers=1, arena="64MiB", max_body="16MiB"
    ) as running:
        yield running


@contextlib.contextmanager
def sent(server, *pieces):
    """A connection on which these were sent, and nothing more."""
    with socket.create_connection((server.host, server.port), timeout=servers.DEADLINE_S) as made:
        for piece in pieces:
            made.sendall(piece)
        yield made


def ask(server, values, is_chunked=False):
    x = {"name": "x", "datatype": "FP32", "shape": [values.size]}
    header = json.dumps(
        {
            "inputs": [{**x, "parameters": {"binary_data_size": values.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    whole = header + values.tobytes()
    body = whole
    if is_chunked:
        body = (whole[at : at + 100_000] for at in range(0, len(whole), 100_000))
    connection = http.client.HTTPConnection(server.host, server.port, timeout=servers.DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(
            "POST",
            "/v2/models/scale/infer",
            body,
            {"Inference-Header-Content-Length": str(len(header))},
        )
        response = connection.getresponse()
        return response.status, response.read()


def private_kib(server):
    """Of the worker's memory, what is not shared with others."""
    pid = server.children()[-1]
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", text)[1])


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("count", [1, 5_000, 100_000, 3_000_000])
def test_bodies_of_any_length_arrive(server, count, is_chunked):
    values = np.random.default_rng(count).standard_normal(count).astype("f4")
    status, answer = ask(server, values, is_chunked)
    assert status == 200, answer[:200]
    assert answer.endswith((values * 2).tobytes())


def test_who_announces_much_and_sends_little_keeps_nobody_out(server):
    """Twenty announce five times the arena together."""
    values = np.ones(2_000_000, "f4")
    with contextlib.ExitStack() as held:
        for _ in range(20):
            head = POST + b"Content-Length: %d\r\n\r\n" % (15 * MIB)
            held.enter_context(sent(server, head + b"{" * 100))
        for is_chunked in (False, True, False):
            status, answer = ask(server, values, is_chunked)
            assert status == 200, answer[:200]


def test_those_whose_bytes_come_late_are_answered_all_the_same(server):
    """Ten bodies at once, a piece of each in turn: most of them grow as they come."""
    values = np.arange(300_000, dtype="f4")
    x = {"name": "x", "datatype": "FP32", "shape": [values.size]}
    header = json.dumps({"inputs": [{**x, "parameters": {"binary_data_size": values.nbytes}}]})
    body = header.encode() + values.tobytes()
    size = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (
        len(header),
        len(body),
    )
    with contextlib.ExitStack() as held:
        for _ in range(2):  # these hold what is given ahead
            held.enter_context(sent(server, POST + b"Content-Length: %d\r\n\r\n" % (8 * MIB)))
        connections = [held.enter_context(sent(server, POST + size)) for _ in range(10)]
        for at in range(0, len(body), 150_000):
            for one in connections:
                one.sendall(body[at : at + 150_000])
        for one in connections:
            response = http.client.HTTPResponse(one)
            response.begin()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            assert answer["outputs"][0]["data"][-1] == 2 * values[-1]


def test_chunked_bodies_lie_in_the_arena(server):
    """Four megabytes of each of eight that do not end; before, all of it in the worker's own."""
    ask(server, np.ones(1_000_000, "f4"), is_chunked=True)
    before = private_kib(server)
    chunk = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(sent(server, head, *[chunk] * 4))
        assert ask(server, np.ones(10, "f4"))[0] == 200  # what was sent before was received
        assert private_kib(server) - before < 8 << 10


def test_more_chunked_bodies_than_the_arena_holds_are_503_and_forgotten(server):
    chunk = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    refused = 0
    with contextlib.ExitStack() as held:
        for _ in range(8):
            connection = held.enter_context(sent(server, head))
            with contextlib.suppress(OSError):
                for _ in range(15):
                    connection.sendall(chunk)
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                refused += b" 503 " in connection.recv(100)
    assert refused
    servers.until(lambda: ask(server, np.ones(2_000_000, "f4"))[0] == 200, "there is room again")


def memory(capacity, connections=64, most=4 * MIB):
    return BodyMemory(LocalArena(capacity), connections, most)


def test_what_is_given_ahead_is_a_quarter_of_the_arena():
    made = memory(16 * MIB)
    bodies = [made.begin(2 * MIB, None) for _ in range(8)]
    assert [len(body.view) for body in bodies] == [2 * MIB] * 2 + [made.first] * 6
    assert made.ahead == 4 * MIB
    for body in bodies:
        body.close()
    assert made.ahead == 0


def test_one_body_may_be_larger_than_that():
    made = memory(4 * MIB)
    body = made.begin(3 * MIB, None)
    assert len(body.view) == 3 * MIB
    body.close()


@pytest.mark.parametrize("header_length", [None, 0, 7, 64, 100])
def test_a_body_that_grows_keeps_its_bytes_and_its_alignment(header_length):
    made = memory(16 * MIB)
    first = made.begin(4 * MIB, None)
    body = made.begin(MIB, header_length)
    wanted = np.random.default_rng(3).bytes(MIB)
    for at in range(0, MIB, 10_000):
        body.put(wanted[at : at + 10_000])
        # It never has much more than twice what has come.
        assert len(body.view) <= max(made.first, 2 * body.filled)
    found = body.close()
    assert bytes(found) == wanted
    address = np.frombuffer(found, np.uint8).ctypes.data + (header_length or 0)
    assert address % 64 == 0
    first.close()


def test_a_body_of_unknown_length_grows_to_the_largest_there_may_be():
    made = memory(16 * MIB, most=MIB + 10)
    body = made.begin(-1, None)
    body.put(bytes(MIB))
    body.put(bytes(10))
    assert len(body.view) == MIB + 10
    assert len(body.close()) == MIB + 10
    for _ in range(40):
        made.begin(-1, None).close()
    with pytest.raises(ArenaFull):
        memory(64 << 10, connections=1).begin(MIB, None)
