"""Joining a broker that runs already: ``connect``, ``disconnect``, ``claim``.

Owns a process's membership: the handshake through the door, the functions' rows while it lasts, and
its end. A member is a child like any other, but the broker did not fork it and never signals it.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from shmgpu import core, door, functions, log, manifest, runtime
from shmgpu.errors import ConfigError, LaunchError, NotRunning
from shmgpu.memory import SharedArena
from shmgpu.port import Port
from shmgpu.runtime import Runtime
from shmgpu.wire import BrokerWire

HERE = {None, "", "localhost", "127.0.0.1", "::1"}


class Membership:
    """This process's place in a broker; leave it with :func:`disconnect`, or as a context."""

    def __init__(self, path: str, known: manifest.Manifest) -> None:
        self.path = path
        self.manifest = known
        self.pid = os.getpid()
        self._rows_before = [(f, f.row) for f in functions.by_row.values()]

    def resolve(self, target: functions.Function[Any, Any]) -> int:
        """The row of a function in the broker's table; 0 when it has none of that name."""
        return self.manifest.rows.get(manifest.name_of(target), 0)

    def restore(self) -> None:
        """Functions have this process's own rows again."""
        for target, row in self._rows_before:
            target.row = row

    def disconnect(self) -> None:
        """As :func:`disconnect`."""
        disconnect()

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, *exc: object) -> None:
        disconnect()


_membership: Membership | None = None


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    wait: float | None = 0.0,
    host: str | None = None,
    port: int | None = None,
) -> Membership:
    """Join the broker that listens at ``path``: this process becomes one of its children.

    Args:
        path: of the broker's socket; ``SHMGPU_SOCKET``, or the one in the user's runtime
            directory, unless given. ``"localhost:29500"`` and the like mean that one, too.
        wait: seconds to wait for a free place when all are taken; None waits for ever.
        host: accepted for this box (``"localhost"``), refused for another.
        port: accepted and not needed: there is no network between processes of one box.

    Returns:
        A context manager that calls :func:`disconnect`.

    Raises:
        NotRunning: no broker listens there.
        LaunchError: this process is in a broker already, or the broker refused: all places are
            taken, another user's, another version.
        ConfigError: another host, or no socket.
    """
    global _membership
    if isinstance(path, str) and ":" in path and "/" not in path:
        host, path = path.rpartition(":")[0], None
    if host not in HERE:
        raise ConfigError(
            f"host={host!r} is another box, and shmgpu shares memory within one: start a broker "
            "there (shmgpu up) and connect() from a program that runs there"
        )
    if core.role() != core.ROLE_NONE or runtime.current is not None:
        raise LaunchError(
            "this process is in a broker already: call disconnect() or shutdown() first"
        )
    place = door.path_of(path)
    connection = door.knock(place)
    if connection is None:
        raise NotRunning(f"no broker listens at {place}: start one with shmgpu up MODULE")
    log.configure()
    wait_ns = -1 if wait is None else int(wait * 1e9)
    with connection:
        descriptor = core.join(connection.fileno(), os.path.basename(sys.argv[0]), wait_ns)
    try:
        known = manifest.Manifest.read(descriptor)
        os.close(descriptor)
        slot = core.child_id()
        link = Port(BrokerWire(), SharedArena(slot), dict(known.pools))
    except BaseException:
        core.leave()
        raise
    _membership = Membership(str(place), known)
    functions.resolve_by(_membership.resolve, sorted(known.rows))
    runtime.start(Runtime(slot, link, link.arena, dict(known.pools)))
    atexit.register(disconnect)
    return _membership


def disconnect() -> None:
    """Leave the broker that :func:`connect` joined; arrays of the arena stay readable.

    Calls that are out are given up. Does nothing when no broker was joined.
    """
    global _membership
    left, current = _membership, runtime.current
    if left is None:
        return
    _membership = None
    atexit.unregister(disconnect)
    if left.pid != os.getpid():
        return
    functions.resolve_by(None, [])
    left.restore()
    if current is not None:
        current.port.close(NotRunning(runtime.SHUT_DOWN))
        current.port.join()
        current.port.forget()
    runtime.shut_down()
    core.leave()
