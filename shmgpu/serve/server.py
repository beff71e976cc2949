"""``shmgpu serve``: the launch.

Owns what is decided before the first fork: models' files, listening sockets, the control table and
the counters. Never answers a request: workers do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import resource
import signal
import socket
import ssl
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shmgpu import core, function_table
from shmgpu.broker import daemon
from shmgpu.broker.launch import raise_outcome
from shmgpu.broker.launch_config import (
    LaunchConfig,
    descriptors_needed,
    make_room_for_descriptors,
    refuse_unsafe,
)
from shmgpu.broker.role_host import RoleHost
from shmgpu.child import runtime
from shmgpu.common import extensions, logs
from shmgpu.common.logs import logger
from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError, LaunchError
from shmgpu.serve import worker
from shmgpu.serve.frontend.acceptor import BACKLOG
from shmgpu.serve.helper_pools import pools_of
from shmgpu.serve.models.runner import Opening
from shmgpu.serve.overview import counted, overview
from shmgpu.serve.scheduling.rows import FunctionRows
from shmgpu.serve.state import repository, source_watch
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import Counters
from shmgpu.serve.state.repository import entry_of

LOOPBACK = ("127.0.0.1", "::1", "localhost")
FOR_EVER = 1_000_000  # restarts of a worker
WINDOW = 512  # messages that a worker may have outstanding
SPARE_S = 2.0  # of the end, beyond what workers may take for it


def run(options: argparse.Namespace) -> int:
    """Serve until told to end: the exit status."""
    serve(options)
    return 0


def serve(options: argparse.Namespace) -> None:
    """Be the parent of a server until SIGINT or SIGTERM; what it needs is made and given back here.

    SIGHUP has all models loaded anew.

    Raises:
        ConfigError, LaunchError, SessionError: it could not start.
    """
    refuse_unsafe("shmgpu serve")
    _check_installed("the server", "prometheus_client")
    _check_access_log(options.access_log)
    if options.otel:
        _check_otel()
    sources = repository.find_all(options.models)
    _warn_of_open_address(options)
    token, tls = _token(options.token_file), _tls(options.tls_cert, options.tls_key)
    with contextlib.ExitStack() as held:
        table = ControlTable({})
        held.callback(table.close)
        listener = held.enter_context(_listening(options))
        grpc_listener, grpc_address = held.enter_context(_grpc_port(options))
        rows = FunctionRows(options.hang_after)
        function_table.register_late()
        counters: list[Counters] = []
        runtime.computes_with_torch = False  # model files import torch, in helpers

        def session(helper: Any) -> Any:
            listener.close()  # held here, it would be connected to when no worker listens any more
            if grpc_listener is not None:
                grpc_listener.close()
            opening = Opening(
                table,
                counters[0],
                options.workers,
                options.max_sequences,
                options.sequence_idle,
                options.models_per_file,
                options.max_batch_size,
                options.reload,
            )
            return opening(helper)

        sources, helpers, devices = pools_of(sources, options.helpers, options.devices)
        plan = LaunchConfig(
            children=options.workers,
            helpers=helpers,
            session=session,
            lazy=False,  # what a session finds in the models is what the server tells of them
            idle=0,
            devices=devices,
            arena=options.arena,
            window=WINDOW,
            threads=options.threads,
            grace=options.drain_delay + options.drain_timeout + SPARE_S,
            restart="on-failure",
            max_restarts=FOR_EVER,
        )
        counters.append(Counters(options.workers, plan.helpers))
        held.callback(counters[0].close)
        pools: dict[str, list[int]] = {name: [] for name in plan.pools}
        on: dict[str, list[str]] = {name: [] for name in plan.pools}
        for number, setup in enumerate(plan.setups):
            pools[setup.pool].append(number)
            on[setup.pool].append(setup.device)
        with table.change() as state:
            state.update(first_state(repository.in_pools(sources, list(pools)), on))
        files = source_watch.seen(table.read()[1]) if options.reload else None
        shared = worker.WorkerConfig(
            [listener],
            table,
            counters[0],
            rows,
            grpc_address,
            options,
            pools,
            token,
            tls,
            files,
            grpc_listener,
            _tls(options.tls_cert, options.tls_key, "h2"),
        )
        host = RoleHost(plan, [worker.main] * options.workers, (shared,), None, None)
        held.callback(host.close)
        before = logs.role()
        logs.set_role("parent")
        held.callback(logs.set_role, before)
        where = _address(listener)
        status = (
            f"{counted(plan.helpers, 'helper')}, {counted(options.workers, 'worker')}, at {where}"
        )

        def ready() -> None:
            print(f"ready: {status}", flush=True)
            print(overview(table.read()[1], where, grpc_address, options), flush=True)
            daemon.notify(f"READY=1\nSTATUS={status}")

        def draining() -> None:
            listener.close()  # workers answer what waits in its queue, and close it, too
            table.begin_draining()
            daemon.notify("STOPPING=1\nSTATUS=answering what was asked")

        host.on_ready = ready
        host.on_draining = draining

        def reload(number: int, frame: object) -> None:
            if core.role() == core.ROLE_PARENT:  # helpers and workers inherit this
                table.ask_reload()

        held.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, reload))
        roles = plan.slots + plan.helpers
        make_room_for_descriptors(roles)
        _allow_connections(-(-options.max_connections // options.workers), roles)
        outcome = core.run(host, persistent=core.UNTIL_TOLD, **plan.for_core())
        if outcome != core.ESIGNALLED or host.error is not None:
            raise_outcome(host, outcome)


def first_state(
    sources: Sequence[repository.ModelSource], devices: dict[str, list[str]]
) -> dict[str, Any]:
    """What the control table begins with; ``devices`` are those of helpers, by their pool."""
    return {
        "devices": devices,
        "sources": {str(number): entry_of(source) for number, source in enumerate(sources, 1)},
        "next_source": len(sources) + 1,
        "indices": {},
        "regions": {},
        "settings": {},
    }


def _token(path: str | None) -> bytes:
    """What clients must bear; empty where they need not."""
    if path is None:
        return b""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the token's file {path} cannot be read ({error.strerror})") from None
    if not token:
        raise ConfigError(f"the token's file {path} is empty: write a long random text into it")
    return token


def _warn_of_open_address(options: argparse.Namespace) -> None:
    """Say so where anyone who reaches this machine may ask anything that is allowed."""
    is_open = not options.uds or options.grpc_port is not None
    if is_open and options.host not in LOOPBACK and options.token_file is None:
        logger.warning(
            "the server listens at %s, beyond this machine, and asks for no token: give "
            "--token-file and --tls-cert, or put a proxy before it that asks",
            options.host,
        )


def _allow_connections(most: int, roles: int) -> None:
    """Raise the soft limit on open files, which workers inherit, as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # As many again may be told that they are too many.
    wanted = descriptors_needed(roles, len(os.listdir("/proc/self/fd"))) + 2 * most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and wanted > hard:
        logger.warning(
            "each worker may have %d connections, and the limit on open files is %d: raise it, "
            "or give fewer --max-connections",
            most,
            hard,
        )
        wanted = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tls(certificate: str | None, key: str | None, *protocols: str) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together: give both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate cannot be used ({error})") from None
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def _check_installed(who: str, *packages: str) -> None:
    """Raises LaunchError unless there are packages that only workers import."""
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ImportError:  # what it lies in is missing, too
            found = None
        if found is None:
            raise LaunchError(
                f"{who} needs a package that is missing ({package}): {with_extra('serve')}"
            )


def _check_access_log(path: str | None) -> None:
    """Raises ConfigError unless workers will be able to write to it."""
    if path in (None, "-"):
        return
    try:  # opening a pipe that nobody reads would block
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o640))
    except OSError as error:
        raise ConfigError(f"the access log {path} cannot be written ({error.strerror})") from None


def _check_otel() -> None:
    """Raises LaunchError or ConfigError, unless workers will be able to export spans."""
    try:
        from shmgpu.serve.telemetry import spans
    except ImportError as error:
        raise LaunchError(
            f"--otel needs a package that is missing ({error.name}): {with_extra('otel')}"
        ) from None
    spans.exporter().shutdown()


@contextlib.contextmanager
def _listening(options: argparse.Namespace) -> Iterator[socket.socket]:
    """The socket that all workers accept from."""
    if options.uds:
        listener = socket.socket(socket.AF_UNIX)
        address: Any = options.uds
        where = options.uds
        _clear(options.uds)
    else:
        family, address = _found(options.host, options.port)
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        where = f"{options.host}:{options.port}"
    try:
        with listener:
            try:
                listener.bind(address)
                listener.listen(BACKLOG)
            except OSError as error:
                raise LaunchError(
                    f"the server cannot listen at {where} ({error.strerror or error}): choose "
                    "another"
                ) from error
            print(f"listening on {_address(listener)}", flush=True)
            yield listener
    finally:
        if options.uds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(options.uds)


def _found(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Family and address of what ``--host`` says."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise LaunchError(
            f"the server cannot listen at {host} ({why}): choose another --host"
        ) from None
    return family, address


def _clear(path: str) -> None:
    """Remove a socket that a server has left; whatever else lies there stays."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise LaunchError(f"{path} is not a socket: name another path for --uds, or remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
        else:
            raise LaunchError(f"another server listens at {path}: name another for --uds")


@contextlib.contextmanager
def _grpc_port(options: argparse.Namespace) -> Iterator[tuple[socket.socket | None, str]]:
    """The socket that all workers accept gRPC's connections from, and its address.

    There is no socket for grpcio, where each worker listens at one of its own; and without
    ``--grpc-port`` there is no address either.
    """
    if options.grpc_port is None:
        yield None, ""
        return
    _check_installed("--grpc-port", "google.protobuf")
    missing = extensions.why_no_http2()
    if options.grpc_front == "nghttp2" and missing:
        raise LaunchError(
            f"--grpc-front nghttp2 cannot be had ({missing}): install libnghttp2, or leave it out"
        )
    is_own = not missing and options.grpc_front != "grpcio"
    if not is_own:
        _check_installed("--grpc-port", "grpc")
    family, address = _found(options.host, options.grpc_port)
    try:
        with socket.socket(family) as probe:  # another server's port is no port to share
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        holder = socket.socket(family)
        if is_own:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(address)
            holder.listen(BACKLOG)
        else:  # it never listens: it holds the port while workers come and go
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(address)
    except OSError as error:
        raise LaunchError(
            f"the server cannot listen at {options.host}:{options.grpc_port} ({error.strerror}): "
            "choose another --grpc-port"
        ) from error
    with holder:
        text = _address(holder).removeprefix("http://")
        print(f"listening on grpc://{text}", flush=True)
        yield (holder if is_own else None), text


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
