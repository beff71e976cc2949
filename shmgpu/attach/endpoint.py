"""Where a broker can be joined: the socket's path, how it is made, and who may connect.

Owns the path in the user's runtime directory and the listening socket. C defines what is said over
a connection (csrc/ipc/attach_handshake.h). Never removes a socket at which a broker listens.
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
import time
from collections.abc import Iterable, Iterator

from shmgpu import core
from shmgpu.common.logs import logger
from shmgpu.errors import ConfigError, LaunchError

NAME = "broker.sock"
LONGEST = 100  # bytes of a path that a Unix socket can have, less those of a name while it is made
BACKLOG = 64
LOCKED_WITHIN_S = 30.0  # making a socket takes milliseconds
STARTED_WITHIN_S = 600.0  # loading models may take minutes
LOOK_AGAIN_S = 0.01
ANSWERS_WITHIN_S = 2.0  # in which a broker accepts, unless it is stopped or its queue is full
NOBODY = "no broker listens at {path}: start one with shmgpu up MODULE"
NO_SOCKET = "{} is not a socket, and was left as it is: pass the path of a broker's socket"


def runtime_directory() -> pathlib.Path:
    """Where the user's own socket lies, in a directory that is theirs alone; makes nothing.

    Raises:
        LaunchError: what lies there is no such directory.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = pathlib.Path(given) if given else pathlib.Path(f"/run/user/{os.getuid()}")
    if base.is_dir() and os.access(base, os.W_OK):
        directory = base / "shmgpu"
    else:
        directory = pathlib.Path(tempfile.gettempdir()) / f"shmgpu-{os.getuid()}"
        if given and given not in _warned_of:
            _warned_of.add(given)
            logger.warning(
                "XDG_RUNTIME_DIR=%s is not a directory that you can write to, so the broker's "
                "socket is looked for in %s",
                given,
                directory,
            )
    _refuse_shared(directory)
    return directory


_warned_of: set[str] = set()


def _refuse_shared(directory: pathlib.Path) -> None:
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LaunchError(
            f"the directory of the broker's socket cannot be looked at ({error}): set "
            "XDG_RUNTIME_DIR to one that is yours, or pass path="
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LaunchError(
            f"{directory} is not a directory that only you can write to: remove it, or pass path="
        )


def path_of_port(port: int) -> pathlib.Path:
    """The socket of a server that is known by a port's number, as GT's are."""
    return runtime_directory() / f"gt-{port}.sock"


def path_of(path: str | bytes | os.PathLike[str] | None) -> pathlib.Path:
    """The socket's path: the one given, that of ``SHMGPU_SOCKET``, or the user's own.

    Raises:
        ConfigError: what was given is no path, or too long.
        LaunchError: as :func:`runtime_directory`.
    """
    if path is not None and not isinstance(path, (str, bytes, os.PathLike)):
        raise ConfigError(f"path={path!r} is not a path: pass that of the broker's socket, as text")
    chosen = os.fsdecode(path) if path else os.environ.get("SHMGPU_SOCKET")
    if chosen and "\0" in chosen:
        raise ConfigError(
            f"path={chosen!r} holds a zero byte, which no path can: write an abstract socket's "
            "name with @"
        )
    found = pathlib.Path(chosen) if chosen else runtime_directory() / NAME
    try:
        length = len(os.fsencode(found))
    except UnicodeEncodeError:
        raise ConfigError(f"path={chosen!r} cannot be a file's name: pass another path") from None
    if length > LONGEST:
        raise ConfigError(_too_long(found, chosen))
    if str(found).startswith("@"):  # no file
        return found
    absolute = found.absolute()  # a process that is forked may work in another directory
    return absolute if len(os.fsencode(absolute)) <= LONGEST else found


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    """The file of that suffix that goes with the socket at ``path``, whatever that is called."""
    return path.with_name(path.name + suffix)


def prepare(path: pathlib.Path) -> None:
    """Make the user's own directory where the socket goes there, and nothing else.

    Raises:
        ConfigError: no broker can listen at ``path``; what lies there is left as it is.
        LaunchError: the directory cannot be made.
    """
    if str(path).startswith("@"):
        raise ConfigError(
            f"path={str(path)!r} names no file, and a broker's socket is one, so that its "
            "permissions say who may join: pass a path without @"
        )
    folder = path.parent
    try:
        if not folder.is_dir() and folder == runtime_directory():
            folder.mkdir(mode=0o700, exist_ok=True)
            _refuse_shared(folder)
        found = path.lstat() if folder.is_dir() else None
    except FileNotFoundError:
        return
    except OSError as error:
        raise LaunchError(f"no broker can be started at {path} ({error}): pass path=") from error
    if found is None:
        raise ConfigError(f"there is no directory {folder}: make it, or pass another path=")
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(NO_SOCKET.format(path))


def check_length(path: pathlib.Path) -> None:
    """Raise ConfigError for a path that no socket can have."""
    if len(os.fsencode(path)) > LONGEST:
        chosen = os.environ.get("SHMGPU_SOCKET")
        raise ConfigError(
            f"{_too_long(path, chosen)} (the socket of a broker that starts by itself has eleven "
            "more than that of shmgpu up)"
        )


def _too_long(path: pathlib.Path, chosen: str | None) -> str:
    if chosen:
        return f"path={str(path)!r} is too long for a Unix socket: use {LONGEST} bytes or fewer"
    return (
        f"the broker's socket would be {str(path)!r}, which is too long for a Unix socket: set "
        f"XDG_RUNTIME_DIR to a shorter directory, so that it has {LONGEST} bytes or fewer"
    )


def remove(path: pathlib.Path, inode: int = 0) -> None:
    """Take a socket away, and never what is none, nor another than that of the inode."""
    try:
        found = path.lstat()
        if stat.S_ISSOCK(found.st_mode) and inode in (0, found.st_ino):
            path.unlink()
    except FileNotFoundError:
        pass


def clear(path: pathlib.Path, suffixes: Iterable[str]) -> None:
    """Remove a broker's socket, and what it left beside it, where none listens there.

    Raises:
        LaunchError: somebody starts one there.
    """
    with locked(path, ".starting", 0.0), locked(path, limit=0.0):
        connection = connect(path)
        if connection is not None:
            connection.close()
            return
        remove(path)
        for suffix in suffixes:
            beside(path, suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: pathlib.Path, suffix: str = ".lock", limit: float | None = None) -> Iterator[None]:
    """One starter at a time: two that start at once end with one broker.

    It waits for its turn for ``limit`` seconds, ``LOCKED_WITHIN_S`` unless given: where others may
    write to the folder, the file may be theirs, and held for ever.

    Raises:
        ConfigError: as :func:`prepare`.
        LaunchError: as that, or its turn did not come.
    """
    prepare(path)
    file = beside(path, suffix)
    limit = LOCKED_WITHIN_S if limit is None else limit
    until = time.monotonic() + limit
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(file, flags, 0o600)
        except OSError as error:
            raise LaunchError(
                f"no broker can be started at {path} ({error}): pass another path="
            ) from error
        try:
            while not _is_locked(descriptor):
                if time.monotonic() > until:
                    raise LaunchError(
                        f"another program has held {file} for {limit:g} s, as one that starts a "
                        f"broker does: end that program (fuser {file} names it), or pass another "
                        "path="
                    )
                time.sleep(LOOK_AGAIN_S)
            if _is_called(file, descriptor):  # otherwise its last holder has removed it
                yield
                return
        finally:
            os.close(descriptor)


def _is_called(file: pathlib.Path, descriptor: int) -> bool:
    """Whether an open file still has that name."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)


def _is_locked(descriptor: int) -> bool:
    """Try to lock that file: whether this process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def connect(path: pathlib.Path | str, wait: float | None = 0.0) -> socket.socket | None:
    """A connection to the broker that listens there; None when none does.

    Args:
        path: of its socket.
        wait: seconds, beside :data:`ANSWERS_WITHIN_S`, for a slot in a queue that is full; None:
            for ever.

    Raises:
        ConfigError: what lies there is not a broker's socket, or another user's.
        NoAnswer: the queue is full, and stays so.
    """
    name = str(path)
    until = None if wait is None else time.monotonic() + wait + ANSWERS_WITHIN_S
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _connect_until(connection, "\0" + name[1:] if name.startswith("@") else name, until)
        if name.startswith("@"):
            _refuse_strangers(connection)
    except OSError as error:
        connection.close()
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if not name.startswith("@") and _is_no_socket(name):  # a file, too, refuses a connection
            raise ConfigError(NO_SOCKET.format(path)) from None
        if error.errno == errno.ECONNREFUSED:
            return None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"the broker at {path} belongs to another user, who has not let you in: start "
                "one of your own with shmgpu up"
            ) from error
        raise ConfigError(
            f"{path} is not a broker's socket ({error}): pass the right path="
        ) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_until(connection: socket.socket, address: str, until: float | None) -> None:
    """Connect, and try again while the queue is full.

    A connect() that waits for that knows no time limit, and one that a signal interrupts is no
    connection, though it looks like one to who asks only whether it failed.
    """
    connection.setblocking(False)
    pause = LOOK_AGAIN_S
    while True:
        try:
            connection.connect(address)
            connection.setblocking(True)
            return
        except BlockingIOError:  # EAGAIN: on a Unix socket, nothing has begun
            if until is not None and time.monotonic() >= until:
                raise core.NoAnswer(
                    "the broker does not answer, and as many wait for it as can (is it stopped?)"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, 5 * LOOK_AGAIN_S)


def _is_no_socket(name: str) -> bool:
    """Whether something else is known to lie there."""
    try:
        return not stat.S_ISSOCK(os.stat(name).st_mode)
    except OSError:
        return False


def is_trusted(connection: socket.socket) -> bool:
    """Whether the broker at the other end is this user's own, or root's."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.geteuid(), 0)


def _refuse_strangers(connection: socket.socket) -> None:
    """An abstract name has no owner: anybody may take one whose broker is gone."""
    if not is_trusted(connection):
        connection.close()
        raise LaunchError(
            "the socket of the broker that this process was started under is another user's by "
            "now: restart the program"
        )


class PrivateEndpoint:
    """A listening socket for the processes that a broker's own children fork.

    It has an abstract name, drawn at random and handed on by inheritance: nothing lies in a file
    system, so nothing is left there by a broker that is killed. Who may attach is decided by the
    peer's credentials, as at every endpoint.

    Attributes:
        address: what :func:`connect` takes.
    """

    def __init__(self) -> None:
        self.address = f"@shmgpu-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + self.address[1:])
        self._socket.listen(BACKLOG)

    @classmethod
    def of(cls, descriptor: int) -> PrivateEndpoint:
        """One that the process which started this one has made."""
        made = cls.__new__(cls)
        made._socket = socket.socket(fileno=descriptor)
        made.address = "@" + made._socket.getsockname()[1:].decode()
        return made

    def fileno(self) -> int:
        """The listening descriptor."""
        return self._socket.fileno()

    def release(self) -> None:
        """Close it."""
        self._socket.close()

    close = release


class Endpoint:
    """A listening socket at ``path``, removed when it is closed.

    Args:
        path: where; the socket that a dead broker left there is replaced, and nothing else.
        group: numeric id of a group that may connect, too; None: the user alone.

    Raises:
        ConfigError: something lies there that is no socket, or it has no directory.
        LaunchError: a broker listens there already, or the socket cannot be made.
    """

    def __init__(self, path: pathlib.Path, group: int | None = None) -> None:
        self.path = path
        # The socket gets its name only when it listens, so whoever finds it can connect.
        unfinished = beside(path, "." + secrets.token_hex(3))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with locked(path):
                other = connect(path)
                if other is not None:
                    other.close()
                    raise LaunchError(
                        f"a broker listens at {path} already: use it (shmgpu.connect()), end it, "
                        "or pass another path="
                    )
                remove(path)
                before = os.umask(0o177)
                try:
                    self._socket.bind(str(unfinished))
                finally:
                    os.umask(before)
                try:
                    if group is not None:
                        os.chown(unfinished, -1, group)
                        os.chmod(unfinished, 0o660)
                    self._socket.listen(BACKLOG)
                    self._inode = unfinished.lstat().st_ino
                    os.link(unfinished, path)  # but not a file that others have put there meanwhile
                finally:
                    remove(unfinished)
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
        """In a forked role: close the descriptor only."""
        self._socket.close()

    def close(self) -> None:
        """Close and remove it, not another broker's that has its name by now.

        As PID 1, the broker is not the process that made it.
        """
        if self._socket.fileno() >= 0:
            remove(self.path, self._inode)
        self._socket.close()
