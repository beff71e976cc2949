"""In a worker: which new connections it accepts, so that all workers have about as many.

All workers listen at one socket. A new connection wakes them all, and the first one to accept gets
it. A worker that is awake anyway would accept many in a row, and clients that keep their
connections would load it permanently. So each worker's number of connections is visible to all, and
a worker that has clearly more than its share leaves the next connection to the others for a moment,
once; after that it accepts whatever the numbers say. A worker that hangs, or was killed, costs a
client that moment, and never a connection. A socket for each worker (SO_REUSEPORT) would not help:
its queue would be stuck with its worker, the kernel would distribute clients by chance, and Unix
sockets have no such option.

Owns a worker's listening sockets, and the count of its connections. uvloop accepts, since each
accept in Python would cost as much again. To leave a connection to others, a worker closes its
server, which costs little, and polls the socket until a connection is waiting.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from shmgpu.common.logs import logger
from shmgpu.serve.state.counters import ACCEPTED, CONNECTIONS, IS_ACCEPTING

BACKLOG = 1024  # connections that wait to be accepted
SLACK = 1.0  # connections beyond its share that a worker may have ...
SLACK_PART = 0.125  # ... or this part of the share, if that is more
WAIT_S = 0.002  # to leave a connection to the others; libuv's clock has whole milliseconds
MOST_IN_A_ROW = 16  # accepted without another wait if the others accept nothing
HANDSHAKE_S = 10.0  # that TLS may take to begin
SPARE_DESCRIPTORS = 32  # for what a worker opens besides connections
FULL_S = 0.1  # between looks whether there are descriptors again


class Connections(set[Any]):
    """The open connections of a worker; all workers see how many there are.

    Those count that were accepted and are not open yet: their TLS handshake is under way.

    Args:
        own: the numbers of all workers, in memory that they share; see Counters.own.
        rank: this worker's row there.
    """

    def __init__(self, own: np.ndarray[Any, Any], rank: int) -> None:
        super().__init__()
        self.is_leaving = False  # answers are the last of their connections
        self._all = own
        self._own = memoryview(own[rank])
        # When connections that are not open yet were accepted. uvloop reports the end of a TLS
        # handshake only if it succeeded; the others are given up here after the time that uvloop
        # allows.
        self._opening: deque[float] = deque()

    def accepted(self) -> None:
        """One was accepted; it will be added when it is open."""
        self._opening.append(monotonic())
        self._own[ACCEPTED] += 1
        self._own[CONNECTIONS] += 1

    def add(self, one: Any) -> None:
        """It is open."""
        if self._opening:
            self._opening.pop()  # the last: those that stay are rather too old than too young
        set.add(self, one)

    def discard(self, one: Any) -> None:
        """It has ended."""
        if one in self:
            set.discard(self, one)
            self._own[CONNECTIONS] -= 1

    def forget_failed(self) -> None:
        """Give up those that were not open in time; call it now and then."""
        until = monotonic() - HANDSHAKE_S - 1
        while self._opening and self._opening[0] < until:
            self._opening.popleft()
            self._own[CONNECTIONS] -= 1

    def take_part(self, takes_part: bool) -> None:
        """Say whether this worker accepts connections."""
        self._own[IS_ACCEPTING] = takes_part

    def count(self) -> int:
        """How many this worker has."""
        return self._own[CONNECTIONS]

    def are_too_many(self) -> bool:
        """Whether this worker has clearly more than its share."""
        mine: int = self._own[CONNECTIONS]
        if mine <= SLACK:
            return False
        those = [row[CONNECTIONS] for row in self._all.tolist() if row[IS_ACCEPTING]]
        share: float = sum(those) / max(1, len(those))
        return mine > share + max(SLACK, SLACK_PART * share)

    def taken_by_others(self) -> int:
        """How many connections the other workers have ever accepted."""
        return int(self._all[:, ACCEPTED].sum()) - self._own[ACCEPTED]


class Listener:
    """One listening socket of a worker: open, or watched while the connections are for others.

    Args:
        loop: uvloop's.
        listener: the socket; it is this process's own, and closed with the listener.
        connect: makes the protocol of a connection; never raises.
        tls: what connections are encrypted by; None: they are not.
        connections: of the worker.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        connections: Connections,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._connect = connect
        self._tls = tls
        self._connections = connections
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_leaving = False
        self._queue = select.poll()  # readable while a connection waits
        self._queue.register(listener, select.POLLIN)
        self._most = _descriptors_left()
        self._was_full = False
        self._left = 0  # connections to accept whatever the others have
        self._in_a_row = 1  # of them after the next wait in vain
        self._taken = 0  # by others, when the wait began
        self._open()

    async def leave(self, seconds: float) -> None:
        """Accept what waits in the queue, for so long at most; then take no connections any more.

        All workers do so at about the same time, and the parent has closed the socket before: what
        was in the queue when the last of them closed it would be lost with it.
        """
        self._is_leaving = True
        if self._timer is not None:
            self._timer.cancel()
        until = monotonic() + seconds
        while self._queue.poll(0) and monotonic() < until:
            if self._server is None and (self._opening is None or self._opening.done()):
                self._loop.remove_reader(self._listener)
                self._open()
            await asyncio.sleep(WAIT_S)  # a worker that is full leaves them to the others
        self.close()

    def close(self) -> None:
        """Take no connections any more; those in the queue are for other workers."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._loop.remove_reader(self._listener)
        self._listener.close()

    # ---- open --------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opening = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        if self._is_closed:
            return
        try:
            self._server = await self._loop.create_server(
                self._accepted,
                sock=self._listener.dup(),  # it is closed with the server
                backlog=BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_S if self._tls else None,
            )
        except OSError:
            logger.exception("a worker cannot listen, and tries again")
            self._wait(FULL_S, self._watch)

    def _accepted(self) -> asyncio.BaseProtocol:
        connections = self._connections
        connections.accepted()
        if self._left:
            self._left = self._left - 1 if connections.taken_by_others() == self._taken else 0
        is_full = connections.count() >= self._most
        has_share = not self._left and not self._is_leaving and connections.are_too_many()
        if is_full or has_share:
            self._loop.call_soon(self._shut)
        return self._connect()

    def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._watch()

    # ---- watched -----------------------------------------------------------------------------

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._seen)

    def _seen(self) -> None:
        """A connection can be accepted."""
        connections = self._connections
        if connections.count() >= self._most:
            self._wait(FULL_S, self._watch)
            if not self._was_full:
                self._was_full = True
                logger.warning(
                    "a worker has %d connections and no descriptors for more: raise the limit on "
                    "open files, or give fewer --max-connections",
                    connections.count(),
                )
        elif connections.are_too_many():
            self._taken = connections.taken_by_others()
            self._wait(WAIT_S, self._waited)
        else:
            self._in_a_row = 1
            self._loop.remove_reader(self._listener)
            self._open()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._listener)  # it stays readable
        self._timer = self._loop.call_later(seconds, then)

    def _waited(self) -> None:
        if self._connections.taken_by_others() != self._taken or not self._queue.poll(0):
            self._in_a_row = 1
            self._watch()  # they are awake: whatever is there now came later
            return
        self._left = self._in_a_row
        self._in_a_row = min(self._in_a_row + 1, MOST_IN_A_ROW)
        self._open()


def _descriptors_left() -> int:
    """How many connections there are descriptors for."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, most - len(os.listdir("/proc/self/fd")) - SPARE_DESCRIPTORS)
