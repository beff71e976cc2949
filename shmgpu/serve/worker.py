"""A worker: a child of the broker with an event loop, its connections, and its way to helpers.

Owns the loop and the order of a worker's end: not ready first, then no new connections, then
the answers that are out, then the connections. It never imports torch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvloop

from shmgpu import runtime
from shmgpu.logs import logger
from shmgpu.serve.catalog import Catalog
from shmgpu.serve.counters import Counters
from shmgpu.serve.edge import SCRATCH_BYTES, Connection, Limits
from shmgpu.serve.infer import Calls
from shmgpu.serve.lifecycle import Lifecycle
from shmgpu.serve.requests import DEFAULT_LIMITS
from shmgpu.serve.routes import Front
from shmgpu.serve.rows import Rows
from shmgpu.serve.table import Table

LOOK_S = 0.02  # between looks whether the last answer has gone out

TEND_S = 0.25  # between looks whether a signal asked for something


@dataclass
class Plan:
    """What all workers of a server share, decided before the first fork.

    Attributes:
        listeners: bound sockets; every worker accepts from all of them.
        options: what the command line said; see :mod:`shmgpu.serve.flags`.
        pools: numbers of the helpers, by the pool's name; the first is the default one.
    """

    listeners: list[socket.socket]
    table: Table
    counters: Counters
    rows: Rows
    options: argparse.Namespace
    pools: dict[str, list[int]]


def main(rank: int, plan: Plan) -> None:
    """Be worker ``rank`` until told to end."""
    plan.counters.clear_pending(rank)
    with contextlib.closing(uvloop.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_Worker(rank, plan, loop).run())
    if not plan.table.is_draining:
        logger.warning("told to end while the server goes on: another worker takes the place")
        raise SystemExit(1)


class _Worker:
    def __init__(self, rank: int, plan: Plan, loop: Any) -> None:
        self.plan = plan
        self.loop = loop
        self.port = runtime.require_port()
        catalog = Catalog(plan.table, plan.rows)
        self.calls = Calls(
            self.port,
            catalog,
            plan.counters.of(rank),
            -(-plan.options.max_queue // plan.options.workers),
            plan.options.timeout,
            loop,
        )
        lifecycle = Lifecycle(
            self.port, plan.table, plan.counters, plan.rows, plan.pools, plan.options.models
        )
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.front = Front(
            self.calls,
            catalog,
            plan.counters,
            DEFAULT_LIMITS,
            lifecycle,
            plan.options,
            self.scratch,
        )
        self.limits = Limits(plan.options.max_body, plan.options.max_header)
        self.connections: set[Connection] = set()
        self.told = asyncio.Event()

    async def run(self) -> None:
        loop, plan = self.loop, self.plan
        loop.add_signal_handler(signal.SIGTERM, self.told.set)
        for descriptor in self.port.wire.descriptors():
            loop.add_reader(descriptor, self.port.poll)
        servers = [await loop.create_server(self._connect, sock=one) for one in plan.listeners]
        self.front.catalog.refresh()
        tending = loop.create_task(self._tend())
        await self.told.wait()
        tending.cancel()
        self.front.is_leaving = True
        await asyncio.sleep(plan.options.drain_delay)
        for server in servers:
            server.close()
        await self._drained(plan.options.drain_timeout)
        for connection in list(self.connections):
            connection.transport.close()
        for descriptor in self.port.wire.descriptors():
            loop.remove_reader(descriptor)

    async def _tend(self) -> None:
        """What is looked after besides requests."""
        while True:
            await asyncio.sleep(TEND_S)
            try:
                await self.front.lifecycle.reload_when_asked()
            except Exception:
                logger.exception("a worker could not look after its server")

    def _connect(self) -> Connection:
        answer: Callable[..., None] = self.front.answer
        take = self.front.lanes.take
        return Connection(
            answer, self.port.arena, self.limits, self.scratch, self.connections, take
        )

    async def _drained(self, seconds: float) -> None:
        """Wait until nothing that was received waits for its answer."""
        until = self.loop.time() + seconds
        while any(one.waiting or one.request for one in self.connections):
            if self.loop.time() >= until:
                logger.warning(
                    "%d connections still wait for an answer after %g s: they are closed",
                    len(self.connections),
                    seconds,
                )
                return
            await asyncio.sleep(LOOK_S)
