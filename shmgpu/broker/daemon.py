"""A broker that runs on its own: ``shmgpu up``.

Owns its life from loading the modules to the end that a signal requests: what it tells a service
manager, and what it reads again on SIGHUP. It has helpers and slots, never a child of its own;
programs join through its endpoint.
"""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from shmgpu import core, function_table
from shmgpu.attach import carry, endpoint, manifest
from shmgpu.broker import quotas
from shmgpu.broker.launch import raise_outcome
from shmgpu.broker.launch_config import LaunchConfig, make_room_for_descriptors, refuse_unsafe
from shmgpu.broker.role_host import RoleHost
from shmgpu.child import runtime
from shmgpu.common import logs, module_loader, parsers
from shmgpu.common.logs import logger
from shmgpu.common.settings import names, taken
from shmgpu.errors import ConfigError

P = ParamSpec("P")

BrokerEndpoint = endpoint.Endpoint | endpoint.PrivateEndpoint

PLANNED = names("ensure")
SHOWN = ("progress", "trace_path")  # settings of what is seen of it


def _held(run: Callable[P, None]) -> Callable[P, None]:
    """SIGHUP, which would end this process, does nothing until there are quotas to read again."""

    @functools.wraps(run)
    def runs(*args: P.args, **kwargs: P.kwargs) -> None:
        if threading.current_thread() is not threading.main_thread():
            return run(*args, **kwargs)  # which refuses that
        before = signal.signal(signal.SIGHUP, lambda number, frame: None)
        try:
            return run(*args, **kwargs)
        finally:
            signal.signal(signal.SIGHUP, before or signal.SIG_DFL)

    return runs


@_held
def up(
    served: Sequence[str],
    *,
    path: str | os.PathLike[str] | None = None,
    slots: int = 64,
    group: int | None = None,
    trust_group: bool = False,
    quotas_file: str | os.PathLike[str] | None = None,
    idle_timeout: float = 0.0,
    on_ready: Callable[[], None] | None = None,
    lent: Sequence[int] = (),
    carried: bytes = b"",
    words: Mapping[str, str] | None = None,
    **settings: Any,
) -> None:
    """Run a broker until SIGINT or SIGTERM asks it to end; it drains first.

    Args:
        served: names or files of the modules whose decorated functions it serves. A function
            named ``load`` in the first that has one is the session function.
        path: of the socket; see :func:`shmgpu.connect`.
        slots: how many programs may be joined at once.
        group: numeric id of a group that may join, too.
        trust_group: let its members call functions with ``pickle=True``, by which they can run any
            code as the user of this broker; and broadcast, which lasts when they have left.
        quotas_file: what users and programs may use at most; ``shmgpu/quotas.toml`` in the user's
            directory of configuration, where there is one. Read again on SIGHUP.
        idle_timeout: seconds after which it ends by itself when nobody has been joined, and no call
            open, for so long; 0: never.
        on_ready: called when programs can join.
        lent: descriptors that helpers close.
        carried: functions, and maybe a session, that the process which started this one pickled.
        words: what else its manifest says.
        settings: of :func:`shmgpu.launch`: helpers, devices, arena, window, threads, ...; session
            as a function or as ``"module:name"``; and max_helpers, how many helpers each pool may
            ever have.

    Raises:
        ConfigError, LaunchError, SessionError: it could not start; of a module that raised,
            :class:`shmgpu.common.module_loader.NotLoaded`.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came.
    """
    refuse_unsafe("shmgpu up")
    unknown = sorted(set(settings) - {*PLANNED, *SHOWN})
    if unknown:
        known = ", ".join((*PLANNED, "slots", "idle_timeout"))
        raise ConfigError(f"a broker has no setting {unknown[0]!r}: it has {known}")
    idle_timeout = parsers.parse_seconds(idle_timeout, "idle_timeout")
    trusted = parsers.parse_bool(trust_group, "trust_group")
    if trusted and group is None:
        raise ConfigError(
            "trust_group says that a group's members may run code as you, and no group may join: "
            "name it, too (--group), or omit trust_group"
        )
    limits = quotas.path_of(quotas_file)
    quotas.read(limits)  # refused early, and read once more when SIGHUP has it read
    socket_path = endpoint.path_of(path)
    endpoint.prepare(socket_path)
    with runtime.loading():
        loaded = [module_loader.load(name) for name in served]
        brought = pickle.loads(carried) if carried else {}
    refuse_unsafe("shmgpu up")  # they may have started a thread
    if settings.get("session") is None:
        settings["session"] = brought.get("settings", {}).get("session")
    if settings.get("session") is None:
        settings["session"] = next(
            (found for m in loaded if (found := carry.load_of(m)) is not None),
            None,
        )
    elif isinstance(settings["session"], str):
        settings["session"] = module_loader.named(settings["session"])
    plan = LaunchConfig(children=0, slots=slots, **taken("ensure", settings))
    words = words or {}
    if words.get("owner"):
        plan.take_functions()
    if served and not carried and not function_table.of_users():
        raise ConfigError(
            f"{', '.join(served)} decorates no function: name the module that uses @shmgpu.function"
        )
    if group is not None and not trusted:
        _refuse_pickles()
    host = RoleHost(plan, [], (), settings.get("progress"), settings.get("trace_path"))
    host.lent = list(lent)
    try:
        listener = endpoint.Endpoint(socket_path, group)
    except BaseException:
        host.close()
        raise

    told = ""  # to the service manager, once programs can join
    status = f"{plan.helpers_started} helpers, {slots} slots, at {socket_path}"

    def ready() -> None:
        nonlocal told
        told = status
        logger.info("ready: %s", status)
        notify(f"READY=1\nSTATUS={status}")
        if on_ready is not None:
            on_ready()

    host.on_ready = ready
    host.on_draining = lambda: notify("STOPPING=1\nSTATUS=finishing what helpers hold")

    def hung_up(number: int, frame: object) -> None:
        if core.role() != core.ROLE_HELPER:  # they inherit this
            reload_quotas(limits, told)

    signal.signal(signal.SIGHUP, hung_up)
    try:
        core.set_quotas(quotas.read(limits))
        serve(
            host,
            listener,
            manifest.of_this_process(
                plan.pools,
                _sessions_of(plan),
                devices=",".join(sorted({setup.device for setup in plan.setups})),
                **words,
            ),
            core.UNTIL_TOLD,
            group=group or 0,
            trusts_group=trusted,
            idle_timeout=idle_timeout,
        )
    finally:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        core.set_quotas([])


def _sessions_of(plan: LaunchConfig) -> list[Any]:
    """The functions that make its helpers' sessions, each once."""
    return list({id(s.session): s.session for s in plan.setups if s.session is not None}.values())


def _refuse_pickles() -> None:
    """What is unpickled here is a program, which would run as this user."""
    names = [manifest.name_of(one) for one in function_table.by_row.values() if one.pickle]
    if names:
        raise ConfigError(
            f"other users may join by --group, and whoever calls {', '.join(names)} could run any "
            "code as you, for it has pickle=True: pass plain values and arrays instead, or say "
            "--trust-group (trust_group=True) if every member of the group may do that"
        )


def serve(
    host: RoleHost,
    listener: BrokerEndpoint,
    known: manifest.Manifest,
    persistent: int,
    *,
    group: int = 0,
    trusts_group: bool = False,
    idle_timeout: float = 0.0,
) -> None:
    """Run the broker behind that endpoint to its end, and raise what :func:`up` does."""
    plan = host.plan
    before = logs.role()
    logs.set_role("parent")
    host.endpoint = listener
    descriptor = known.write()
    try:
        make_room_for_descriptors(plan.slots + plan.helpers)
        status = core.run(
            host,
            persistent=persistent,
            listener_fd=listener.fileno(),
            manifest_fd=descriptor,
            listener_gid=group,
            group_may_broadcast=trusts_group,
            idle_ns=int(idle_timeout * 1e9),
            **plan.for_core(),
        )
        raise_outcome(host, status)
    finally:
        os.close(descriptor)
        listener.close()
        logs.set_role(before)
        host.close()


def reload_quotas(limits: pathlib.Path | None, status: str) -> None:
    """Read the file again; if it cannot be read, the limits stay, and the log says so.

    Args:
        limits: the file.
        status: what the service manager shows of a broker whose quotas are in order; "" of one
            that is not ready, and tells it nothing.
    """
    # The service manager orders these messages by the clock (sd_notify(3), Type=notify-reload).
    if status:
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        rows = quotas.read(limits)
        core.set_quotas(rows)
    except ConfigError as error:
        refused = f"the quotas stay as they are: {' '.join(str(error).split())}"
        logger.error("%s", refused)
        status = status and refused
    else:
        logger.info("quotas read again: %d tables of %s", len(rows), limits or "no file")
    if status:
        notify(f"READY=1\nSTATUS={status}")


def notify(state: str) -> None:
    """Tell the service manager, where one asked to be told (``NOTIFY_SOCKET``, sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("the service manager could not be notified of %s (%s)", state, error)
