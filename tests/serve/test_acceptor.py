"""New connections are shared out among the workers, and none is lost to a worker that sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import uvloop
from serve import servers

from shmgpu.serve.frontend import acceptor
from shmgpu.serve.state.counters import ACCEPTED, CONNECTIONS, IS_ACCEPTING, OWN_FIELDS

MODEL = servers.MODELS / "simple.py"
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
AT_ONCE = 64
MOST = 0.65  # of the connections, that one of two workers may have


@pytest.fixture(scope="module", autouse=True)
def libuvs_pipe():
    """For signals, which stays in the process once a loop was made."""
    uvloop.new_event_loop().close()


@dataclass
class Place:
    """Where a server listens, and how one connects to it."""

    server: servers.Server
    address: Any
    tls: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
        made.settimeout(servers.DEADLINE_S)
        made.connect(self.address)
        return made

    def answer(self, connection: socket.socket) -> socket.socket:
        """The connection, which stays open, after it was answered."""
        if self.tls is not None:
            connection = self.tls.wrap_socket(connection, server_hostname="127.0.0.1")
        connection.sendall(READY)
        found = b""
        while not found.endswith(b"\r\n\r\n"):
            piece = connection.recv(4096)
            assert piece, found
            found += piece
        assert found.startswith(b"HTTP/1.1 200 "), found
        return connection

    def numbers(self, field: str = "connections") -> list[int]:
        return self.server.of_workers(field)

    def is_at_rest(self) -> bool:
        """Whether nobody is connected but those who are counted here."""
        return sum(self.numbers()) == 0

    def until_there_are(self, count: int) -> list[int]:
        servers.until(lambda: sum(self.numbers()) == count, f"{count} connections")
        return self.numbers()


@contextlib.contextmanager
def served(kind, folder, **flags):
    """A server with two workers, before anybody is connected."""
    tls = None
    if kind == "unix":
        flags["uds"] = folder / "socket"
    if kind == "tls":
        made = subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
            ],
            capture_output=True,
        )
        if made.returncode:
            pytest.skip("there is no openssl to make a certificate with")
        flags.update(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem")
        tls = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with servers.serving(MODEL, workers=2, helpers=1, **flags) as server:
        address = str(flags["uds"]) if kind == "unix" else (server.host, server.port)
        place = Place(server, address, tls)
        servers.until(lambda: place.numbers("is_accepting") == [1, 1], "both workers accept")
        servers.until(place.is_at_rest, "the look whether it is ready has ended")
        yield place


@contextlib.contextmanager
def held(place, count):
    """So many connections, opened at once, each answered, all open during the block."""
    with contextlib.ExitStack() as open_ones:
        made = [open_ones.enter_context(place.connect()) for _ in range(count)]
        yield [open_ones.enter_context(place.answer(one)) for one in made]


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_connections_opened_at_once_are_shared_out(tmp_path, kind):
    with served(kind, tmp_path) as place:
        with contextlib.ExitStack() as open_ones:
            for times in range(1, 5):
                open_ones.enter_context(held(place, AT_ONCE))
                found = place.until_there_are(times * AT_ONCE)
                if max(found) <= MOST * sum(found):
                    break
                # A worker had no turn on a busy machine: the next ones make up for it.
            assert max(found) <= MOST * sum(found), found
        place.until_there_are(0)


def test_a_worker_that_sleeps_keeps_nobody_waiting_and_gets_its_share_when_it_wakes(tmp_path):
    with served("tcp", tmp_path) as place, contextlib.ExitStack() as open_ones:
        first, second = place.server.children()[-2:]
        with servers.stopped(second):
            open_ones.enter_context(held(place, 40))
            assert place.until_there_are(40) == [40, 0], (first, second)
        for _ in range(300):  # on a busy machine it wakes late, and the other goes on meanwhile
            open_ones.enter_context(held(place, 1))
            found = place.numbers()
            if max(found) <= MOST * sum(found):
                break
        assert max(found) <= MOST * sum(found), found


def test_what_a_killed_worker_had_is_forgotten(tmp_path):
    with served("tcp", tmp_path) as place, contextlib.ExitStack() as open_ones:
        for times in range(1, 9):
            open_ones.enter_context(held(place, 20))
            before = place.until_there_are(times * 20)
            if min(before) > 0:
                break
        assert min(before) > 0, "nothing would be forgotten"
        victim = place.server.children()[-1]
        os.kill(victim, signal.SIGKILL)
        servers.until(lambda: place.numbers() == [before[0], 0], "another worker without any")


def test_a_worker_that_drains_takes_no_connections_and_the_other_does(tmp_path):
    with served("tcp", tmp_path, drain_timeout=60) as place, contextlib.ExitStack() as open_ones:
        gate = tmp_path / "gate"
        asked = (
            b'{"inputs": [{"name": "path", "datatype": "BYTES", "shape": [1], "data": ["%s"]}]}'
            % str(gate).encode()
        )
        waiting = open_ones.enter_context(place.connect())
        waiting.sendall(
            b"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(asked), asked)
        )
        drained = place.until_there_are(1).index(1)
        workers = place.server.children()[-2:]
        os.kill(workers[drained], signal.SIGTERM)
        servers.until(lambda: not place.numbers("is_accepting")[drained], "its listener is closed")
        with servers.stopped(workers[1 - drained]):
            made = [open_ones.enter_context(place.connect()) for _ in range(20)]
            time.sleep(0.1)  # in which the one that drains could take them
        for one in made:
            place.answer(one)
        assert place.numbers()[drained] == 1
        assert sum(place.numbers()) == 21
        gate.touch()
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200 ")


# ---- a listener by itself ------------------------------------------------------------------------


class Peer(asyncio.Protocol):
    """A connection of a listener's."""

    def __init__(self, seen):
        self.seen = seen

    def connection_made(self, transport):
        self.seen.add(self)

    def connection_lost(self, error):
        self.seen.discard(self)


@dataclass
class Room:
    """Listeners in this process, one for each of two workers, at one socket."""

    loop: Any
    listener: socket.socket
    own: np.ndarray[Any, Any]
    listeners: list[acceptor.Listener]

    def open(self, rank):
        seen = acceptor.Connections(self.own, rank)
        listener = self.listener.dup()
        self.listeners.append(
            acceptor.Listener(self.loop, listener, lambda: Peer(seen), None, seen)
        )
        seen.take_part(True)

    def connect(self):
        return socket.create_connection(self.listener.getsockname(), servers.DEADLINE_S)

    async def until(self, condition):
        async def come():
            while not condition():
                await asyncio.sleep(0.002)

        await asyncio.wait_for(come(), servers.DEADLINE_S)

    def counts(self):
        return self.own[:, CONNECTIONS].tolist()


def in_a_room(scenario):
    """Run a coroutine function with a room, and with what its connections are ended by."""

    async def run(listener):
        own = np.zeros((2, len(OWN_FIELDS)), np.uint64)
        room = Room(asyncio.get_running_loop(), listener, own, [])
        try:
            with contextlib.ExitStack() as open_ones:
                await scenario(room, open_ones)
        finally:
            for listener in room.listeners:
                listener.close()

    with (
        socket.create_server(("127.0.0.1", 0), backlog=512) as listener,
        contextlib.closing(uvloop.new_event_loop()) as loop,
    ):
        loop.run_until_complete(run(listener))


@pytest.mark.parametrize(
    ("mine", "others", "too_many"),
    [
        (1, [0], False),
        (2, [0], False),
        (3, [0], True),
        (3, [1], False),
        (36, [28], False),
        (38, [26], True),
        (5000, [], False),
        (3, [0, 0, 0, 0, 0, 0, 0], True),
        (10, [30, 0, 0], False),
    ],
)
def test_a_worker_has_too_many_beyond_its_share_and_some_slack(mine, others, too_many):
    own = np.zeros((1 + len(others) + 1, len(OWN_FIELDS)), np.uint64)
    own[:-1, IS_ACCEPTING] = 1  # the last drains, or has never begun: it counts for nothing
    own[:-1, CONNECTIONS] = [mine, *others]
    assert acceptor.Connections(own, 0).are_too_many() is too_many


def test_a_connection_counts_from_the_accept_on_until_its_end_or_its_handshakes(monkeypatch):
    now = 0.0
    monkeypatch.setattr(acceptor, "monotonic", lambda: now)
    own = np.zeros((1, len(OWN_FIELDS)), np.uint64)
    seen = acceptor.Connections(own, 0)
    for _ in range(3):
        seen.accepted()
    seen.add("one")
    assert seen.count() == own[0, ACCEPTED] == 3
    seen.discard("one")
    seen.discard("one")
    assert seen.count() == 2
    now = acceptor.HANDSHAKE_S + 2
    seen.accepted()
    seen.forget_failed()
    assert (seen.count(), own[0, ACCEPTED]) == (1, 4), "two never shook hands"


def test_connections_are_taken_though_those_they_are_left_to_never_come():
    async def scenario(room, open_ones):
        room.own[1, IS_ACCEPTING] = 1  # it hangs
        room.open(0)
        for _ in range(200):
            open_ones.enter_context(room.connect())
        await room.until(lambda: room.counts() == [200, 0])

    in_a_room(scenario)


@pytest.mark.parametrize("at_once", [1, 40])
@pytest.mark.parametrize("is_hung", [False, True])
def test_connections_go_to_whoever_has_fewer(is_hung, at_once):
    async def scenario(room, open_ones):
        room.own[1, IS_ACCEPTING] = is_hung
        room.open(0)
        for _ in range(124):
            open_ones.enter_context(room.connect())
        await room.until(lambda: room.counts() == [124, 0])
        room.open(1)  # the first has given up waiting for it, but not for ever
        for more in range(at_once, 41, at_once):
            for _ in range(at_once):
                open_ones.enter_context(room.connect())
            await room.until(lambda more=more: sum(room.counts()) == 124 + more)
        assert room.counts()[0] <= 124 + 8, "but for those that the first took meanwhile"

    in_a_room(scenario)


def test_a_connection_that_others_took_while_it_was_left_to_them_was_not_left_in_vain():
    async def scenario(room, open_ones):
        room.own[1, IS_ACCEPTING] = 1
        room.open(0)
        for _ in range(10):
            open_ones.enter_context(room.connect())
        await room.until(lambda: room.counts() == [10, 0])
        for _ in range(20):
            open_ones.enter_context(room.connect())
            for _ in range(5):  # turns of the loop: the listener has seen it
                await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):  # this process slept too long
                open_ones.enter_context(room.listener.accept()[0])
            await asyncio.sleep(2 * acceptor.WAIT_S)
        assert room.counts()[0] < 15

    in_a_room(scenario)


def test_an_acceptor_without_descriptors_waits_for_some_and_cuts_nobody_off(monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "_descriptors_left", lambda: 5)

    async def scenario(room, open_ones):
        room.open(0)
        made = [open_ones.enter_context(room.connect()) for _ in range(8)]
        await room.until(lambda: caplog.records)
        assert room.counts() == [5, 0]
        before = time.process_time()
        await asyncio.sleep(5 * acceptor.FULL_S)  # looks that find none
        assert time.process_time() - before < acceptor.FULL_S, "they are no busy loop"
        assert len(caplog.records) == 1
        for one in made[:4]:
            one.close()
        await room.until(lambda: room.own[0, ACCEPTED] == 8)
        assert room.counts() == [4, 0]

    with caplog.at_level(logging.WARNING, "shmgpu"):
        in_a_room(scenario)
    assert "no descriptors" in caplog.text


@pytest.mark.parametrize("count", range(7, 11))  # some of which leave it open, others watching
@pytest.mark.parametrize("turns", [0, 5])
def test_an_acceptor_that_is_closed_takes_nobody(caplog, count, turns):
    async def scenario(room, open_ones):
        room.own[1, IS_ACCEPTING] = 1
        room.open(0)
        for _ in range(count):
            open_ones.enter_context(room.connect())
        await room.until(lambda: room.counts() == [count, 0])
        (listener,) = room.listeners
        room.listeners.clear()
        open_ones.enter_context(room.connect())
        for _ in range(turns):  # of the loop: it waits
            await asyncio.sleep(0)
        listener.close()
        before = room.own[0, ACCEPTED]
        room.own[1, ACCEPTED] += 1  # another worker takes it
        open_ones.enter_context(room.connect())
        await asyncio.sleep(20 * acceptor.WAIT_S)
        assert room.own[0, ACCEPTED] == before
        assert not caplog.records

    in_a_room(scenario)
