"""A broker that stands by itself: ``shmgpu up``.

Owns its life from the loading of modules to the end that a signal asks for: what it tells a service
manager, and what it reads anew on SIGHUP. It has helpers and places, and no child of its own;
programs join through the door.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from shmgpu import core, door, functions, log, manifest, quotas, runtime
from shmgpu.errors import ConfigError
from shmgpu.launch import raise_outcome
from shmgpu.log import logger
from shmgpu.roles import RoleHost
from shmgpu.settings import Settings, make_room_for_descriptors, refuse_unsafe

Entrance = door.Door | door.PrivateDoor

PLANNED = (
    *("helpers", "session", "devices", "arena", "window", "threads", "gpu_memory"),
    *("trace_records", "prefault", "huge_pages", "grace", "scratch", "seed", "max_helpers"),
)


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, or a file by its path; raises ConfigError.

    A file is imported under its stem, as a program that is run is called by those who join.
    """
    path = pathlib.Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"{name} cannot be imported ({error}): name a module, or a file ending in .py"
            ) from error
        finally:
            sys.path.remove(os.getcwd())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{name} is no file: name a module, or a file ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _named(name: str) -> Callable[..., Any]:
    """The session function that ``module:name`` names; raises ConfigError."""
    module, _, attribute = name.rpartition(":")
    if not module:
        raise ConfigError(f"session={name!r} must be MODULE:NAME")
    loaded = sys.modules.get(pathlib.Path(module).stem) if module.endswith(".py") else None
    found = getattr(loaded or load_module(module), attribute, None)
    if not callable(found):
        raise ConfigError(f"session={name!r}: {module} has no function {attribute}")
    return cast("Callable[..., Any]", found)


def up(
    modules: Sequence[str],
    *,
    path: str | os.PathLike[str] | None = None,
    slots: int = 64,
    group: int | None = None,
    quotas_file: str | os.PathLike[str] | None = None,
    on_ready: Callable[[], None] | None = None,
    lent: Sequence[int] = (),
    **settings: Any,
) -> None:
    """Run a broker until SIGINT or SIGTERM asks it to end; it drains first.

    Args:
        modules: names or files of the modules whose decorated functions it serves. A function
            named ``load`` in the first that has one is the session function.
        path: of the socket; see :func:`shmgpu.connect`.
        slots: how many programs may be joined at once.
        group: numeric id of a group that may join, too.
        quotas_file: what users and programs may use at most; ``shmgpu/quotas.toml`` in the user's
            directory of configuration, where there is one. Read again on SIGHUP.
        on_ready: called when programs can join.
        lent: descriptors that helpers close.
        settings: of :func:`shmgpu.launch`: helpers, devices, arena, window, threads, ...; session
            as a function or as ``"module:name"``; and max_helpers, how many helpers each pool may
            ever have.

    Raises:
        ConfigError, LaunchError, SessionError: it could not start.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came.
    """
    refuse_unsafe("shmgpu up")
    limits = quotas.path_of(quotas_file)
    rows = quotas.read(limits)
    place = door.path_of(path)
    with runtime.loading():
        loaded = [load_module(name) for name in modules]
    refuse_unsafe("shmgpu up")  # they may have started a thread
    if settings.get("session") is None:
        settings["session"] = next(
            (m.load for m in loaded if callable(getattr(m, "load", None))), None
        )
    elif isinstance(settings["session"], str):
        settings["session"] = _named(settings["session"])
    plan = Settings(children=0, slots=slots, **{name: settings.get(name) for name in PLANNED})
    functions.register_late()
    if not functions.by_row:
        raise ConfigError(
            f"{', '.join(modules)} decorates no function: name the module in which "
            "@shmgpu.function stands"
        )
    host = RoleHost(plan, [], (), settings.get("progress"), settings.get("trace_path"))
    host.lent = list(lent)
    try:
        entrance = door.Door(place, group)
    except BaseException:
        host.close()
        raise

    def ready() -> None:
        text = f"{plan.helpers_started} helpers, {slots} places, at {place}"
        logger.info("ready: %s", text)
        notify(f"READY=1\nSTATUS={text}")
        if on_ready is not None:
            on_ready()

    host.on_ready = ready
    host.on_draining = lambda: notify("STOPPING=1\nSTATUS=finishing what helpers hold")
    before = signal.signal(signal.SIGHUP, lambda number, frame: reload_quotas(limits))
    try:
        core.set_quotas(rows)
        serve(host, entrance, manifest.of_this_process(plan.pools), core.UNTIL_TOLD, group or 0)
    finally:
        signal.signal(signal.SIGHUP, before or signal.SIG_DFL)
        core.set_quotas([])


def serve(
    host: RoleHost, entrance: Entrance, known: manifest.Manifest, persistent: int, group: int = 0
) -> None:
    """Run the broker behind that door to its end, and raise what :func:`up` does."""
    plan = host.plan
    before = log.role()
    log.set_role("parent")
    host.door = entrance
    descriptor = known.write()
    try:
        make_room_for_descriptors(plan.slots + plan.helpers)
        status = core.run(
            host,
            helper_pool=plan.helper_pool,
            helper_absent=plan.helper_absent,
            min_credit=plan.min_credit,
            persistent=persistent,
            door_fd=entrance.fileno(),
            manifest_fd=descriptor,
            door_gid=group,
            **plan.for_core(),
        )
        raise_outcome(host, status)
    finally:
        os.close(descriptor)
        entrance.close()
        log.set_role(before)
        host.close()


def reload_quotas(limits: pathlib.Path | None) -> None:
    """Read the file anew; what cannot be read leaves the limits as they are."""
    # The service manager orders these by the clock (sd_notify(3), Type=notify-reload).
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        rows = quotas.read(limits)
        core.set_quotas(rows)
    except ConfigError as error:
        logger.error("the quotas stay as they are: %s", error)
    else:
        logger.info("quotas read anew: %d tables of %s", len(rows), limits or "no file")
    notify("READY=1")


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
            logger.warning("the service manager could not be told %s (%s)", state, error)
