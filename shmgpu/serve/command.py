"""``shmgpu serve``: the launch.

Owns what is decided before the first fork: models' files, listening sockets, the control table and
the counters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from shmgpu import core, daemon, functions, logs
from shmgpu.errors import LaunchError
from shmgpu.launch import raise_outcome
from shmgpu.roles import RoleHost
from shmgpu.serve import repository, worker
from shmgpu.serve.counters import Counters
from shmgpu.serve.repository import entry_of
from shmgpu.serve.rows import Rows
from shmgpu.serve.runner import Opening
from shmgpu.serve.table import Table
from shmgpu.settings import Settings, make_room_for_descriptors, refuse_unsafe

FOR_EVER = 1_000_000  # restarts of a worker
WINDOW = 512  # messages that a worker may have outstanding
SPARE_S = 2.0  # of the end, beyond what workers may take for it


def run(options: argparse.Namespace) -> int:
    """Serve until told to end: the exit status."""
    try:
        serve(options)
    except SystemExit as ended:
        if ended.code != 128 + 15:
            raise
    return 0


def serve(options: argparse.Namespace) -> None:
    """Be the parent of a server until SIGINT or SIGTERM; what it needs is made and given back here.

    SIGHUP has all models loaded anew.

    Raises:
        ConfigError, LaunchError, SessionError: it could not start.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came.
    """
    refuse_unsafe("shmgpu serve")
    sources = repository.find_all(options.models)
    with contextlib.ExitStack() as held:
        table = Table({})
        held.callback(table.close)
        listener = held.enter_context(_listening(options))
        rows = Rows(options.hang_after)
        functions.register_late()
        counters: list[Counters] = []
        plan = Settings(
            children=options.workers,
            helpers=options.helpers,
            session=lambda helper: Opening(table, counters[0], options.workers)(helper),
            devices=options.devices.split(",") if options.devices else None,
            arena=options.arena,
            window=WINDOW,
            threads=options.threads,
            gpu_memory=None,
            trace_records=None,
            prefault=None,
            huge_pages=None,
            grace=options.drain_delay + options.drain_timeout + SPARE_S,
            scratch=None,
            seed=None,
            restart="on-failure",
            max_restarts=FOR_EVER,
        )
        counters.append(Counters(options.workers + plan.helpers))
        pools: dict[str, list[int]] = {name: [] for name in plan.pools}
        for number, setup in enumerate(plan.setups):
            pools[setup.pool].append(number)
        with table.change() as state:
            state.update(first_state(repository.in_pools(sources, list(pools))))
        shared = worker.Plan([listener], table, counters[0], rows, options, pools)
        host = RoleHost(plan, [worker.main] * options.workers, (shared,), None, None)
        held.callback(host.close)
        before = logs.role()
        logs.set_role("parent")
        held.callback(logs.set_role, before)
        where = _address(listener)
        status = f"{plan.helpers} helpers, {options.workers} workers, at {where}"

        def ready() -> None:
            print(f"ready: {status}", flush=True)
            daemon.notify(f"READY=1\nSTATUS={status}")

        def draining() -> None:
            table.begin_draining()
            daemon.notify("STOPPING=1\nSTATUS=answering what was asked")

        host.on_ready = ready
        host.on_draining = draining

        def reload(number: int, frame: object) -> None:
            if core.role() == core.ROLE_PARENT:  # helpers and workers inherit this
                table.ask_reload()

        held.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, reload))
        make_room_for_descriptors(plan.slots + plan.helpers)
        raise_outcome(host, core.run(host, persistent=core.UNTIL_TOLD, **plan.for_core()))


def first_state(sources: Sequence[repository.Source]) -> dict[str, Any]:
    """What the control table begins with."""
    return {
        "sources": {str(number): entry_of(source) for number, source in enumerate(sources, 1)},
        "next_source": len(sources) + 1,
        "indices": {},
        "regions": {},
        "settings": {},
    }


@contextlib.contextmanager
def _listening(options: argparse.Namespace) -> Iterator[socket.socket]:
    """The socket that all workers accept from."""
    if options.uds:
        listener = socket.socket(socket.AF_UNIX)
        place: Any = options.uds
        where = options.uds
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
    else:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        where = f"{options.host}:{options.port}"
    try:
        with listener:
            try:
                listener.bind(place)
                listener.listen(1024)
            except OSError as error:
                raise LaunchError(
                    f"the server cannot listen at {where} ({error.strerror}): choose another"
                ) from error
            print(f"listening on {_address(listener)}", flush=True)
            yield listener
    finally:
        if options.uds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(options.uds)


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
