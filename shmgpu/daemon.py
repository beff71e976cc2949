"""A broker that stands by itself: ``shmgpu up``.

Owns its life from the loading of modules to the end that a signal asks for. It has helpers and
places, and no child of its own; programs join through the door.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from shmgpu import core, door, functions, log, manifest
from shmgpu.errors import ConfigError
from shmgpu.launch import raise_outcome
from shmgpu.log import logger
from shmgpu.roles import RoleHost
from shmgpu.settings import Settings, refuse_unsafe

PLANNED = (
    *("helpers", "session", "devices", "arena", "window", "threads", "gpu_memory"),
    *("trace_records", "prefault", "huge_pages", "grace", "scratch", "seed"),
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


def up(
    modules: Sequence[str],
    *,
    path: str | os.PathLike[str] | None = None,
    slots: int = 64,
    group: int | None = None,
    **settings: Any,
) -> None:
    """Run a broker until SIGINT or SIGTERM asks it to end.

    Args:
        modules: names or files of the modules whose decorated functions it serves. A function
            named ``load`` in the first that has one is the session function.
        path: of the socket; see :func:`shmgpu.connect`.
        slots: how many programs may be joined at once.
        group: numeric id of a group that may join, too.
        settings: of :func:`shmgpu.launch`: helpers, devices, arena, window, threads, ...

    Raises:
        ConfigError, LaunchError, SessionError: it could not start.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came; it drained first.
    """
    refuse_unsafe("shmgpu up")
    loaded = [load_module(name) for name in modules]
    if settings.get("session") is None:
        settings["session"] = next(
            (m.load for m in loaded if callable(getattr(m, "load", None))), None
        )
    plan = Settings(children=0, slots=slots, **{name: settings.get(name) for name in PLANNED})
    functions.register_late()
    place = door.path_of(path)
    host = RoleHost(plan, [], (), settings.get("progress"), settings.get("trace_path"))
    before = log.role()
    log.set_role("parent")
    host.door = door.Door(place, group)
    known = manifest.of_this_process(plan.pools).write()
    try:
        host.on_ready = lambda: _tell_ready(place, plan)
        status = core.run(
            host,
            helper_pool=plan.helper_pool,
            min_credit=plan.min_credit,
            persistent=1,
            door_fd=host.door.fileno(),
            manifest_fd=known,
            door_gid=group or 0,
            **plan.for_core(),
        )
        raise_outcome(host, status)
    finally:
        os.close(known)
        host.door.close()
        log.set_role(before)
        host.close()


def _tell_ready(place: pathlib.Path, plan: Settings) -> None:
    logger.info("ready: %d helpers, %d places, at %s", plan.helpers, plan.slots, place)
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
