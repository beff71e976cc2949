"""Requests of clients that err, leave and dawdle, by the hundred; then a good one is answered."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import socket
import struct

import pytest
from serve import servers

MODEL = servers.MODELS / "simple.py"
REQUESTS = [500, pytest.param(10_000, marks=pytest.mark.slow)]
CLIENTS = 48
SLACK_BYTES = 1 << 20  # that workers may keep ready for the next calls

TARGETS = [
    b"/v2/models/scale/infer",
    b"/v2/models/add_sub/infer",
    b"/v2/models/upper/infer",
    b"/v2/models/nobody/infer",
    b"/v2/models/scale/versions/9/infer",
    b"/v2/models/%2e%2e/infer",
    b"/v2/repository/index",
    b"/v2/health/ready",
    b"/v2",
    b"/",
    b"*",
    b"/v2/models//infer",
    b"/\xff\xfe",
]


def tensor(chance):
    """The JSON of an input, often wrong in one way."""
    made = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}
    wrong = chance.choice(
        [
            {},
            {},
            {"name": chance.choice(["y", "", None, "x" * 5000])},
            {"datatype": chance.choice(["FP31", "BYTES", 7, None])},
            {"shape": chance.choice([[-1], [2], [3, 1], "3", [1e9], [2**63], None])},
            {"data": chance.choice([[1, 2], ["a", "b", "c"], None, {"a": 1}, [[1], [2], [3]]])},
            {"parameters": {"binary_data_size": chance.choice([12, -1, 2**40, "12"])}},
            {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 12}},
        ]
    )
    return {**made, **wrong}


def body(chance):
    """A body, and what is said of its JSON's length."""
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.randrange(200)), chance.choice([None, 0, 5, 10**6])
    if kind < 0.2:
        return b"[" * chance.randrange(500), None
    asked = {"inputs": [tensor(chance) for _ in range(chance.choice([0, 1, 1, 1, 2]))]}
    if chance.random() < 0.2:
        asked["outputs"] = chance.choice([[{"name": "y"}], [{"name": "z"}], [7], {}, None])
    if chance.random() < 0.2:
        asked["parameters"] = chance.choice([{"timeout": 1}, {"priority": -1}, [], {"a": None}])
    data = json.dumps(asked).encode()
    if chance.random() < 0.3:
        return data + chance.randbytes(12), len(data)
    return data, None


def request(chance):
    """The bytes of one request, broken or not."""
    data, header_length = body(chance)
    head = [chance.choice([b"POST", b"POST", b"POST", b"GET", b"BREW"]) + b" "]
    head[0] += chance.choice(TARGETS[:3] if chance.random() < 0.7 else TARGETS)
    head[0] += chance.choice([b" HTTP/1.1"] * 9 + [b" HTTP/9.9"])
    length = len(data) if chance.random() < 0.9 else chance.choice([0, 3, len(data) + 7, -1])
    if chance.random() < 0.1:
        head.append(b"Transfer-Encoding: chunked")
        data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        if chance.random() < 0.3:
            data = data[: chance.randrange(len(data))]
    else:
        head.append(b"Content-Length: %d" % length)
    if header_length is not None:
        head.append(b"Inference-Header-Content-Length: %d" % header_length)
    for line, likely in [
        (b"Host: x", 0.95),
        (b"Connection: close", 0.2),
        (b"Content-Encoding: gzip", 0.03),
        (b"Accept-Encoding: gzip", 0.05),
        (b"Expect: 100-continue", 0.03),
        (b"Upgrade: h2c", 0.02),
        (b"X-" + chance.randbytes(9), 0.03),
        (b"X: " + b"x" * 9000, 0.02),
    ]:
        if chance.random() < likely:
            head.append(line)
    return b"\r\n".join(head) + b"\r\n\r\n" + data


async def misbehave(server, chance):
    """One connection: a request or a few, in pieces or not, waited for or not."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        for _ in range(chance.choice([1, 1, 1, 2, 4])):
            data = request(chance)
            if chance.random() < 0.1:
                data = data[: chance.randrange(len(data))]
            if chance.random() < 0.1:
                for at in range(0, len(data), 150):
                    writer.write(data[at : at + 150])
                    await writer.drain()
                    await asyncio.sleep(0)
            else:
                writer.write(data)
            if chance.random() < 0.6:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(reader.read(65536), 0.2)
        if chance.random() < 0.3:  # gone without a word
            gone = writer.get_extra_info("socket")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def storm(server, seed, requests):
    left = iter(range(requests))

    async def client(number):
        chance = random.Random(f"{seed}/{number}")
        for _ in left:
            await misbehave(server, chance)

    await asyncio.gather(*[client(number) for number in range(CLIENTS)])


def good(server):
    one = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    status, _, answer = server.ask(
        "POST", "/v2/models/scale/infer", json.dumps({"inputs": [one]}).encode()
    )
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"] == [2, 4]


def used_bytes(server):
    samples = server.samples().items()
    found = [value for (name, _), value in samples if name == "shmgpu_arena_used_bytes"]
    assert len(found) == 2
    return sum(found)


def descriptors(server):
    """What the server's processes hold open, by process: files, and connections of clients.

    Eventfds are left out: a port makes its own when first two of its threads wait at once,
    and keeps it. So are the other sockets: they were there before the first client. And so is
    /dev/null, which nothing of the server opens: twice one more was seen there, of a library's.
    """
    mine = f":{server.port:04X}"
    connected = {
        f"socket:[{inode}]": f"client {remote}, state {state}"
        for local, remote, state, inode in servers.connections()
        if local.endswith(mine) and not remote.endswith(":0000")
    }
    held = []
    for pid in server.children():
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it was closed just now
                target = os.readlink(entry)
                if target == os.devnull:
                    continue
                if not target.startswith("socket:") and "eventfd" not in target:
                    held.append((pid, target))
                elif target in connected:
                    held.append((pid, connected[target]))
    return collections.Counter(held)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("requests", REQUESTS)
def test_bad_requests_leave_a_server_that_answers_and_has_lost_nothing(requests):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with servers.serving(MODEL, receive_timeout=2, max_json_depth=16) as server:
        servers.until(lambda: all(server.of_workers("is_accepting")), "each worker has opened all")
        for _ in range(20):
            good(server)
        processes, open_before = server.children(), descriptors(server)
        used_before = used_bytes(server)
        asyncio.run(storm(server, seed, requests))
        good(server)
        assert server.children() == processes, "a process died"
        servers.until(
            lambda: descriptors(server) <= open_before,
            lambda: f"{descriptors(server) - open_before} are closed",
        )
        servers.until(
            lambda: used_bytes(server) <= used_before + SLACK_BYTES, "the arenas are empty again"
        )
        assert server.pending() == 0
