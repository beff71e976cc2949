"""Commands for running brokers: change the number of helpers, pause, list brokers, end them.

Owns what ``shmgpu scale``, ``pause``, ``resume``, ``list`` and ``down`` do. C decides what scaling
and pausing mean (csrc/broker/process_table.h); a broker is ended by SIGTERM, and drains. Never
starts or ends a role itself.
"""

from __future__ import annotations

import os
import pathlib
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shmgpu import core
from shmgpu.attach import automatic, endpoint, manifest
from shmgpu.errors import ConfigError, LaunchError, NotRunning


@dataclass(frozen=True)
class ScaleResult:
    """What became of one pool."""

    pool: str
    before: int
    helpers: int

    def __str__(self) -> str:
        change = self.helpers - self.before
        what = "as before"
        if change > 0:
            what = f"{change} more: making {'its session' if change == 1 else 'their sessions'}"
        elif change < 0:
            ending = "ends when it has finished what it holds"
            if change < -1:
                ending = "end when they have finished what they hold"
            what = f"{-change} fewer: {'it' if change == -1 else 'they'} {ending}"
        plural = "s" * (self.helpers != 1)
        return f"pool {self.pool}: {self.helpers} helper{plural}, {what}"


def running(path: str | os.PathLike[str] | None = None) -> list[pathlib.Path]:
    """The sockets of the brokers that are meant; none where none listens.

    It is the one named, that of ``shmgpu up``, or else those that started by themselves.
    """
    socket_path = endpoint.path_of(path)
    connection = endpoint.connect(socket_path)
    if connection is None:
        return [] if path is not None else automatic.running(socket_path)
    connection.close()
    return [socket_path]


def all_running(path: str | os.PathLike[str] | None = None) -> list[pathlib.Path]:
    """The sockets of all brokers of the user: that of ``shmgpu up``, and those that programs made.

    With a path, the one that listens there alone.
    """
    found = running(path)
    socket_path = endpoint.path_of(path)
    if path is None and found == [socket_path]:
        found += automatic.running(socket_path)
    return found


@dataclass(frozen=True)
class Listed:
    """A broker that runs."""

    pid: int
    program: str
    path: pathlib.Path
    log: pathlib.Path | None

    def __str__(self) -> str:
        log = f"log     {self.log}" if self.log else "output  where it was started"
        by = f", started by {self.program}" if self.program else ""
        return f"process {self.pid}{by}\n  socket  {self.path}\n  {log}"


def listed(path: str | os.PathLike[str] | None = None) -> list[Listed]:
    """All brokers of the user, or the one at that path."""
    found = []
    for socket_path in all_running(path):
        known, connection = automatic.ask(socket_path), endpoint.connect(socket_path)
        if known is None or connection is None:  # it has just ended
            continue
        with connection:
            pid = _process_of(connection)
        log = endpoint.beside(socket_path, ".log")
        found.append(Listed(pid, known.program, socket_path, log if _prints_to(pid, log) else None))
    return found


def _prints_to(pid: int, log: pathlib.Path) -> bool:
    """Whether that is its output, and not what another broker left at the same path."""
    try:
        return os.path.samefile(f"/proc/{pid}/fd/1", log)
    except PermissionError:  # another user's
        return log.exists()
    except OSError:
        return False


def _process_of(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[0])


def process_at(path: str | os.PathLike[str]) -> int:
    """The process of the broker that listens there.

    Raises:
        NotRunning: none does.
        ConfigError: it is not a socket.
    """
    with _connect(_the_one(path)) as connection:
        return _process_of(connection)


def _the_one(path: str | os.PathLike[str] | None, also: str = "") -> pathlib.Path:
    found = running(path)
    if not found:
        raise NotRunning(endpoint.NOBODY.format(path=endpoint.path_of(path)))
    if len(found) > 1:
        told = ", ".join(map(automatic.described, found))
        raise ConfigError(
            f"{len(found)} brokers run that programs have started: name one with --path{also}; "
            f"they are {told}"
        )
    return found[0]


def _connect(socket_path: pathlib.Path) -> socket.socket:
    connection = endpoint.connect(socket_path)
    if connection is None:
        raise NotRunning(endpoint.NOBODY.format(path=socket_path))
    return connection


def scale(
    wanted: int | Mapping[str, int], *, path: str | os.PathLike[str] | None = None
) -> list[ScaleResult]:
    """Have pools of a running broker have so many helpers.

    Those that are missing are forked. One that is not needed any more gets nothing new, finishes
    what it holds, and ends.

    Args:
        wanted: how many; by the pool's name where there are several.
        path: of the broker's socket; see :func:`running`.

    Returns:
        What became of each pool, as soon as it has begun.

    Raises:
        NotRunning: no broker listens there.
        ConfigError: there is no such pool, it cannot have so many, or several brokers run.
        LaunchError: the broker is another user's.
    """
    socket_path = _the_one(path)
    pools = _pools_of(socket_path)
    if not isinstance(wanted, Mapping):
        if len(pools) > 1:
            raise ConfigError(
                f"the broker has the pools {', '.join(sorted(pools))}: say which, as in "
                f"{min(pools)}={wanted}"
            )
        wanted = {next(iter(pools)): wanted}
    _refuse_unknown(wanted, pools)
    done = []
    for name, helpers in wanted.items():
        with _connect(socket_path) as connection:
            before = core.ask_scale(connection.fileno(), pools[name], helpers)
        done.append(ScaleResult(name, before, helpers))
    return done


def pause(
    names: Sequence[str] = (), *, is_paused: bool = True, path: str | os.PathLike[str] | None = None
) -> list[str]:
    """Have pools of a running broker start no more calls, or go on.

    What helpers have begun they finish; calls that come wait, as long as their timeouts allow.

    Args:
        names: of the pools; none: all of them.
        is_paused: False has them go on.
        path: of the broker's socket; see :func:`running`.

    Returns:
        The names of the pools.

    Raises:
        NotRunning: no broker listens there.
        ConfigError: there is no such pool, or several brokers run.
        LaunchError: the broker is another user's.
    """
    socket_path = _the_one(path)
    pools = _pools_of(socket_path)
    chosen = list(names) or list(pools)
    _refuse_unknown(chosen, pools)
    for name in chosen:
        with _connect(socket_path) as connection:
            core.ask_pause(connection.fileno(), pools[name], is_paused)
    return chosen


def _pools_of(socket_path: pathlib.Path) -> dict[str, int]:
    with _connect(socket_path) as connection:
        _, descriptor = core.ask(connection.fileno())
    try:
        return dict(manifest.Manifest.read(descriptor).pools)
    finally:
        os.close(descriptor)


def _refuse_unknown(names: Iterable[str], pools: Mapping[str, int]) -> None:
    unknown = sorted(set(names) - set(pools))
    if unknown:
        raise ConfigError(
            f"the broker has no pool {unknown[0]!r}: its pools are {', '.join(sorted(pools))}"
        )


def down(*, path: str | os.PathLike[str] | None = None, timeout: float = 60.0) -> int:
    """Have a running broker finish what its helpers hold, and end; return when it has.

    Args:
        path: of the broker's socket; see :func:`running`.
        timeout: seconds to wait for that.

    Returns:
        The process number that it had.

    Raises:
        NotRunning: no broker listens there.
        LaunchError: it is another user's, or has not ended in time.
        ConfigError: several run, and none is named.
    """
    with _connect(_the_one(path, ", or all of them with --all")) as connection:
        pid = _process_of(connection)
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            raise LaunchError(f"the broker cannot be told to end ({error})") from error
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        until = time.monotonic() + timeout
        if not select.select([process], [], [], max(0.0, until - time.monotonic()))[0]:
            raise LaunchError(
                f"the broker, process {pid}, has not ended within {timeout:g} s: its log says what "
                "it waits for"
            )
    except PermissionError as error:
        raise LaunchError(
            f"the broker, process {pid}, is another user's: only they and root can end it"
        ) from error
    except ProcessLookupError:
        pass  # it has just ended
    finally:
        os.close(process)
    return pid
