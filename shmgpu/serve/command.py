"""``shmgpu serve``: the launch.

Owns what is decided before the first fork: models' files, listening sockets, the control table and
the counters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from shmgpu.errors import ConfigError, LaunchError
from shmgpu.launch import launch
from shmgpu.logs import logger
from shmgpu.serve import repository, worker
from shmgpu.serve.counters import Counters
from shmgpu.serve.rows import Rows
from shmgpu.serve.runner import Opening
from shmgpu.serve.table import Table

FOR_EVER = 1_000_000  # restarts of a worker


def run(options: argparse.Namespace) -> int:
    """Serve until told to end: the exit status."""
    try:
        serve(options)
    except SystemExit as ended:
        if ended.code != 128 + 15:
            raise
    return 0


def serve(options: argparse.Namespace) -> None:
    """Launch the server; the calling process is its parent."""
    if options.workers < 1:
        raise ConfigError("--workers=0 leaves nobody to speak to clients: use 1 or more")
    sources = repository.find_all(options.models)
    state = {
        "sources": {
            str(number): {**source.as_dict(), "state": "LOADING", "reason": "", "models": []}
            for number, source in enumerate(sources, 1)
        },
        "indices": {},
        "regions": {},
        "settings": {},
    }
    with contextlib.ExitStack() as held:
        table = Table(state)
        held.callback(table.close)
        listener = held.enter_context(_listening(options))
        helpers = options.helpers
        helper_count = sum(helpers.values()) if isinstance(helpers, dict) else helpers
        counters = Counters(options.workers + helper_count)
        plan = worker.Plan([listener], table, counters, Rows(options.hang_after), options)
        logger.info("serving %d model files on %s", len(sources), _address(listener))
        launch(
            worker.main,
            children=options.workers,
            helpers=helpers,
            session=Opening(table, counters, options.workers),
            devices=options.devices.split(",") if options.devices else None,
            threads=options.threads,
            arena=options.arena,
            window=512,
            args=(plan,),
            grace=options.drain_delay + options.drain_timeout + 2.0,
            restart="on-failure",
            max_restarts=FOR_EVER,
        )


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
