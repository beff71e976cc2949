"""A worker: a child of the broker with an event loop, its connections, and its port to helpers.

Owns the loop and the order in which a worker ends: first it is not ready, then it takes no new
connections, then it sends the answers that are due, then it closes its connections. It never
imports torch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import uvloop

from shmgpu.child import runtime
from shmgpu.common import termination
from shmgpu.common.logs import logger
from shmgpu.serve.frontend import pages, routes
from shmgpu.serve.frontend.acceptor import Connections, Listener
from shmgpu.serve.frontend.access_log import AccessLog
from shmgpu.serve.frontend.body_memory import BodyMemory
from shmgpu.serve.frontend.connection import SCRATCH_BYTES, Connection, ConnectionLimits, end_slow
from shmgpu.serve.frontend.routes import Front
from shmgpu.serve.protocol.types import DEFAULT_LIMITS
from shmgpu.serve.scheduling.accounting import Accounting
from shmgpu.serve.scheduling.cache import Cache
from shmgpu.serve.scheduling.catalog import Catalog
from shmgpu.serve.scheduling.ensembles import EnsembleRun
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.lifecycle import Lifecycle
from shmgpu.serve.scheduling.rows import FunctionRows
from shmgpu.serve.scheduling.statuses import hide_exceptions
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import Counters
from shmgpu.serve.state.imported_modules import ImportedModules
from shmgpu.serve.state.log_settings import apply_log
from shmgpu.serve.state.regions import Regions
from shmgpu.serve.state.source_watch import Seen, SourceWatch

LOOK_S = 0.02  # between looks whether the last answer has gone out
TEND_S = 0.25  # between looks whether a signal asked for something


@dataclass
class WorkerConfig:
    """What all workers of a server share, decided before the first fork.

    Attributes:
        listeners: bound sockets; every worker accepts from all of them.
        grpc_address: where gRPC is listened for; empty: nowhere.
        options: what the command line said; see :mod:`shmgpu.serve.options`.
        pools: numbers of the helpers, by the pool's name; the first is the default one.
        token: that clients must bear; empty: none.
        tls: what connections are encrypted by; None: they are not.
        files: of models, as they were before they were loaded; None: they are not watched.
        grpc_listener: a bound socket, from which every worker accepts gRPC's connections; None:
            grpcio listens.
        grpc_tls: what those are encrypted by.
    """

    listeners: list[socket.socket]
    table: ControlTable
    counters: Counters
    rows: FunctionRows
    grpc_address: str
    options: argparse.Namespace
    pools: dict[str, list[int]]
    token: bytes = b""
    tls: ssl.SSLContext | None = None
    files: Seen | None = None
    grpc_listener: socket.socket | None = None
    grpc_tls: ssl.SSLContext | None = None


def main(rank: int, plan: WorkerConfig) -> None:
    """Be worker ``rank`` until told to end, and then end as one that was."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the loop listens for it
    plan.counters.clear_held(rank)
    if plan.options.hide_errors:
        hide_exceptions()
    with contextlib.closing(uvloop.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_Worker(rank, plan, loop).run())
    # Only the parent knows whether it was told to end, too. If not, it replaces this worker.
    raise SystemExit(termination.STATUS)


class _Worker:
    def __init__(self, rank: int, plan: WorkerConfig, loop: Any) -> None:
        self.plan = plan
        self.loop = loop
        self.port = runtime.require_port()
        modules = ImportedModules() if plan.options.reload else None
        catalog = Catalog(plan.table, plan.rows, modules)
        regions = Regions(
            plan.table, plan.options.allow_client_shm, plan.options.max_client_regions
        )
        catalog.when_changed.append(regions.refresh)
        self.calls = Calls(
            self.port,
            catalog,
            Accounting(
                plan.counters.of(rank),
                -(-plan.options.max_queue // plan.options.workers),
                plan.options.workers,
            ),
            plan.options.timeout,
            loop,
            regions,
            plan.pools,
            Cache(plan.options.response_cache) if plan.options.response_cache else None,
        )
        self.calls.ensemble = EnsembleRun
        if plan.options.otel:  # imported after the fork only: it has threads
            from shmgpu.serve.telemetry import spans

            self.calls.spans = spans.exporting(rank)
        lifecycle = Lifecycle(
            self.port, plan.table, plan.counters, plan.rows, plan.pools, plan.options.models
        )
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.front = Front(
            self.calls,
            catalog,
            plan.counters,
            replace(
                DEFAULT_LIMITS,
                tensors=plan.options.max_tensors,
                json_depth=plan.options.max_json_depth,
            ),
            lifecycle,
            plan.options,
            self.scratch,
            regions,
            plan.token,
        )
        self.front.routes = routes.ROUTES + pages.ROUTES
        options = plan.options
        self.watch: SourceWatch | None = None
        if plan.files is not None and rank == 0:
            self.watch = SourceWatch(plan.table, plan.files)
        self.limits = ConnectionLimits(
            options.max_body,
            options.max_header,
            -(-options.max_connections // options.workers),
            options.idle_timeout,
            options.receive_timeout,
            options.send_timeout,
        )
        self.memory = BodyMemory(self.port.arena, self.limits.connections, self.limits.body_bytes)
        self.access = AccessLog(options.access_log) if options.access_log else None
        self.connections = Connections(plan.counters.own, rank)
        self.told = asyncio.Event()
        self.settings_of = -1  # version of the table whose log settings hold here

    async def run(self) -> None:
        loop, plan = self.loop, self.plan
        loop.add_signal_handler(signal.SIGTERM, self.told.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for descriptor in self.port.transport.descriptors():
            loop.add_reader(descriptor, self.port.poll)
        rpc = await self._listen_for_grpc()
        listeners = [
            Listener(loop, one, self._connect, plan.tls, self.connections) for one in plan.listeners
        ]
        if plan.grpc_listener is not None:
            connect = self._grpc_connections()
            listeners.append(
                Listener(loop, plan.grpc_listener, connect, plan.grpc_tls, self.connections)
            )
        self.connections.take_part(True)
        self.front.catalog.refresh()
        tending = loop.create_task(self._tend())
        await self.told.wait()
        tending.cancel()
        self.front.is_leaving = True
        await asyncio.sleep(plan.options.drain_delay)
        self.connections.take_part(False)
        self.connections.is_leaving = True
        await asyncio.gather(
            *(listener.leave(plan.options.drain_timeout) for listener in listeners)
        )
        stopped = asyncio.ensure_future(rpc.stop(plan.options.drain_timeout)) if rpc else None
        await self._drained(plan.options.drain_timeout)
        if stopped is not None:
            await stopped
        if self.calls.spans is not None:
            await loop.run_in_executor(None, self.calls.spans.close)
        self.front.aside.close()
        self.front.regions.close()
        for connection in list(self.connections):
            connection.transport.close()
        for descriptor in self.port.transport.descriptors():
            loop.remove_reader(descriptor)
        if self.access is not None:
            self.access.write()

    async def _tend(self) -> None:
        """What is looked after besides requests."""
        while True:
            await asyncio.sleep(TEND_S)
            end_slow(self.connections)
            self.connections.forget_failed()
            if self.access is not None:
                self.access.write()
            try:
                if self.calls.spans is not None:
                    self.calls.spans.make()
                if self.settings_of != self.plan.table.version:
                    self.settings_of = self.plan.table.version
                    apply_log(self.plan.table)
                if self.watch is not None:
                    self.watch.look()
                await self.front.lifecycle.reload_when_asked()
            except Exception:
                logger.exception("a worker could not look after its server")

    def _grpc_connections(self) -> Callable[[], asyncio.BaseProtocol]:
        """What makes connections of gRPC's; protobuf is imported after the fork only."""
        from shmgpu.serve.frontend.http2_calls import Http2Calls
        from shmgpu.serve.frontend.http2_connection import Http2Connection

        calls = Http2Calls(self.front, self.access)
        return lambda: Http2Connection(calls, self.limits, self.connections)

    async def _listen_for_grpc(self) -> Any:
        """The server by grpcio, if there is to be one; that is imported after the fork only."""
        if not self.plan.grpc_address or self.plan.grpc_listener is not None:
            return None
        from shmgpu.serve.frontend import grpc_server as rpc

        server = rpc.GrpcServer(
            self.front, self.plan.grpc_address, self.plan.options.max_body, self.access
        )
        await server.start()
        return server

    def _connect(self) -> Connection:
        answer: Callable[..., None] = self.front.answer
        return Connection(
            answer,
            self.memory,
            self.limits,
            self.scratch,
            self.connections,
            # Requests on the fast path are answered past the log.
            self.front.fast_path.take if self.access is None else _take_none,
            self.front.admit if self.plan.token else None,
            self.access,
        )

    async def _drained(self, seconds: float) -> None:
        """Wait until nothing that was received waits for its answer, and idle clients are told."""
        until = monotonic() + seconds
        while [one for one in list(self.connections) if not one.leave(monotonic())]:
            if monotonic() >= until:
                logger.warning(
                    "%d connections still wait for an answer after %g s: they are closed",
                    len(self.connections),
                    seconds,
                )
                return
            await asyncio.sleep(LOOK_S)


def _take_none(connection: Connection, count: int) -> bool:
    """Every request goes the general way."""
    return False
