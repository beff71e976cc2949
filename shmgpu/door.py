"""Where a broker can be joined: the socket's place, its making, and who may knock.

Owns the path in the user's runtime directory and the listening socket. What is said through it is
C's (csrc/guest.h).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator

from shmgpu.errors import ConfigError, LaunchError

NAME = "broker.sock"
LONGEST = 100  # bytes of a path that a Unix socket can have, and some to spare
BACKLOG = 64


def runtime_directory() -> pathlib.Path:
    """A directory that is this user's alone, made if need be; raises LaunchError."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = pathlib.Path(given) if given else pathlib.Path(f"/run/user/{os.getuid()}")
    if base.is_dir() and os.access(base, os.W_OK):
        place = base / "shmgpu"
    else:
        place = pathlib.Path(tempfile.gettempdir()) / f"shmgpu-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        raise LaunchError(
            f"no directory for the broker's socket can be made ({error}): set XDG_RUNTIME_DIR to "
            "one that is yours, or pass path="
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LaunchError(
            f"{place} is not a directory that only you can write to: remove it, or pass path="
        )
    return place


def path_of(path: str | os.PathLike[str] | None) -> pathlib.Path:
    """The socket's path: the one given, that of ``SHMGPU_SOCKET``, or the user's own."""
    chosen = path or os.environ.get("SHMGPU_SOCKET")
    found = pathlib.Path(chosen) if chosen else runtime_directory() / NAME
    if len(os.fsencode(found)) > LONGEST:
        raise ConfigError(
            f"path={str(found)!r} is too long for a Unix socket: use {LONGEST} bytes or fewer"
        )
    if str(found).startswith("@"):  # no file
        return found
    absolute = found.absolute()  # a process that is forked may work in another directory
    return absolute if len(os.fsencode(absolute)) <= LONGEST else found


@contextlib.contextmanager
def locked(path: pathlib.Path, suffix: str = ".lock") -> Iterator[None]:
    """One starter at a time: two that start at once end with one broker."""
    try:
        descriptor = os.open(path.with_suffix(suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(
            f"no broker can be started at {path} ({error}): pass another path="
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def knock(path: pathlib.Path | str) -> socket.socket | None:
    """A connection to the broker that listens there; None when none does."""
    name = str(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + name[1:] if name.startswith("@") else name)
        if name.startswith("@"):
            _refuse_strangers(connection)
    except OSError as error:
        connection.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            return None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"the broker at {path} belongs to another user, who has not let you in: start "
                "one of your own with shmgpu up"
            ) from error
        raise ConfigError(f"{path} is no broker's socket ({error}): pass the right path=") from None
    return connection


def _refuse_strangers(connection: socket.socket) -> None:
    """An abstract name has no owner: anybody may take one whose broker is gone."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (os.geteuid(), 0):
        connection.close()
        raise LaunchError(
            "the socket of the broker that this process was started under is another user's by "
            "now: start the program anew"
        )


class PrivateDoor:
    """A listening socket for the processes that a broker's own children fork.

    It has an abstract name, drawn at random and handed on by inheritance: nothing lies in a file
    system, so nothing is left there by a broker that is killed. Who may enter is decided by the
    peer's credentials, as at every door.

    Attributes:
        address: what :func:`knock` takes.
    """

    def __init__(self) -> None:
        self.address = f"@shmgpu-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + self.address[1:])
        self._socket.listen(BACKLOG)

    @classmethod
    def of(cls, descriptor: int) -> PrivateDoor:
        """One that the process which started this one has made."""
        door = cls.__new__(cls)
        door._socket = socket.socket(fileno=descriptor)
        door.address = "@" + door._socket.getsockname()[1:].decode()
        return door

    def fileno(self) -> int:
        """The listening descriptor."""
        return self._socket.fileno()

    def release(self) -> None:
        """Let go of it."""
        self._socket.close()

    close = release


class Door:
    """A listening socket at ``path``, removed when it is closed.

    Args:
        path: where; what a dead broker left there is replaced.
        group: numeric id of a group that may knock, too; None: the user alone.

    Raises:
        LaunchError: a broker listens there already, or the socket cannot be made.
    """

    def __init__(self, path: pathlib.Path, group: int | None = None) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with locked(path):
                other = knock(path)
                if other is not None:
                    other.close()
                    raise LaunchError(
                        f"a broker listens at {path} already: use it (shmgpu.connect()), end it, "
                        "or pass another path="
                    )
                path.unlink(missing_ok=True)
                before = os.umask(0o177)
                try:
                    self._socket.bind(str(path))
                finally:
                    os.umask(before)
                if group is not None:
                    os.chown(path, -1, group)
                    os.chmod(path, 0o660)
                self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise LaunchError(f"the broker's socket {path} cannot be made ({error})") from error
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The listening descriptor."""
        return self._socket.fileno()

    def release(self) -> None:
        """In a forked role: let go of the descriptor only."""
        self._socket.close()

    def close(self) -> None:
        """Close and remove it. As PID 1, the broker is not the process that made it."""
        if self._socket.fileno() >= 0:
            self.path.unlink(missing_ok=True)
        self._socket.close()
