"""Starting a broker by exec: a fresh interpreter, where forking this one is not safe.

Owns the request that the new process receives (a memory file), and the wait until it reports that
it serves, or why it cannot. :mod:`shmgpu.broker.spawn_main` is the other side. Never continues in a
copy of this process, whose threads, locks and device the copy would lack.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any, TypeVar

from shmgpu import errors
from shmgpu.attach import carry, endpoint
from shmgpu.attach.endpoint import PrivateEndpoint, connect
from shmgpu.common import config
from shmgpu.common import module_loader as modules
from shmgpu.errors import ConfigError, LaunchError, SessionError

T = TypeVar("T")

ENDS_WITHIN_S = 5.0  # a broker that was told to; then it is killed
LOG_LINES = 20  # of a broker's log that are told when it did not start

# The program of the new interpreter: a file, so that its command line says what it serves.
PACKAGE = str(pathlib.Path(__file__).parents[1])  # the new interpreter may find another one
BOOTSTRAP = str(pathlib.Path(PACKAGE, "broker", "spawn_bootstrap.py"))


class NotFoundThere(LaunchError):
    """What was carried names a module that the broker's interpreter does not find.

    Attributes:
        module: its name.
    """

    def __init__(self, message: str, module: str) -> None:
        super().__init__(message)
        self.module = module


class NotInTime(LaunchError):
    """Nobody waits for a broker any longer that is not ready."""


class Spawned:
    """A process that was started and says on a pipe how it fares."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        report: int,
        log: pathlib.Path | None,
        log_begins: int,
        pid: int = 0,
    ) -> None:
        self.process = process
        self._pid = pid  # of one that outlives this process; 0: it is this one's child, or nowhere
        self._report = report
        self._log = log
        self._log_begins = log_begins  # the text before that is from earlier starts

    def wait_ready(self, timeout: float | None) -> None:
        """Return when programs can join.

        Raises:
            LaunchError, SessionError, ConfigError: as the broker did; or it ended without a word.
            NotInTime: it goes on starting.
        """
        until = None if timeout is None else time.monotonic() + timeout
        said = b""
        try:
            while not said.endswith(b"\n"):
                left = None if until is None else max(0.0, until - time.monotonic())
                if not select.select([self._report], [], [], left)[0]:
                    raise NotInTime(
                        f"the broker was not ready within {timeout:g} s{self._last_words()}"
                    )
                piece = os.read(self._report, 65536)
                if not piece:
                    raise LaunchError(f"the broker ended before it was ready{self._last_words()}")
                said += piece
        finally:
            os.close(self._report)
        told = json.loads(said)
        if "error" in told:
            raise self._error(told)

    def abandon(self) -> None:
        """Nobody waits for one that was to outlive this process: have it end, however far it is.

        Returns when it has ended, because the next program may start another one there.
        """
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self._pid)
            try:
                signal.pidfd_send_signal(process, signal.SIGTERM)
                if not select.select([process], [], [], ENDS_WITHIN_S)[0]:
                    signal.pidfd_send_signal(process, signal.SIGKILL)  # and so end its helpers
                    select.select([process], [], [], ENDS_WITHIN_S)
            finally:
                os.close(process)

    def end(self, timeout: float) -> None:
        """Wait until it has ended, for so many seconds; then kill it, and its helpers with it."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _last_words(self) -> str:
        if self._log is None:
            return ": what it printed says why"
        try:
            with open(self._log, "rb") as file:
                file.seek(self._log_begins)
                lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            lines = []
        return f"; its log, {self._log}, ends:\n" + "\n".join(lines) if lines else ""

    def _error(self, told: Mapping[str, Any]) -> Exception:
        kind = getattr(errors, str(told["error"]), None)
        message = str(told["message"])
        if kind is SessionError:
            return SessionError(message, int(told["helper"]), str(told["traceback"]))
        if isinstance(kind, type) and issubclass(kind, (LaunchError, ConfigError)):
            return kind(message)
        message += f"; the traceback is in {self._log}" if self._log else ""
        return NotFoundThere(message, told["module"]) if "module" in told else LaunchError(message)


def spawn(
    request: Mapping[str, Any],
    *,
    words: Sequence[str],
    log: pathlib.Path | None = None,
    lent: Sequence[int] = (),
) -> Spawned:
    """Start an interpreter with that request; ``lent`` descriptors keep their numbers there.

    Its command line ends in ``words``, for whoever looks at the processes of this machine.
    With a log the process has that for its output and outlives this one; without, it shares this
    one's, and is this one's child.
    """
    config.warn_unknown()
    file = os.memfd_create("shmgpu-request", os.MFD_CLOEXEC)
    report, reporting = os.pipe2(os.O_CLOEXEC)
    output: IO[bytes] | None = None
    log_begins = pid = 0
    process: subprocess.Popen[bytes] | None = None
    environment = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
    environment["SHMGPU_AUTO"] = "never"  # a script that calls as it is loaded: not in the broker
    try:
        with open(file, "wb", closefd=False) as out:
            pickle.dump(
                {
                    **request,
                    "outlives": log is not None,
                    "report": reporting,
                    "sys_path": [_as_it_was(entry) for entry in sys.path],
                    "package": PACKAGE,
                },
                out,
            )
        os.lseek(file, 0, os.SEEK_SET)
        if log is not None:
            output = open(_open_log(log), "wb")
            log_begins = os.fstat(output.fileno()).st_size
        process = subprocess.Popen(
            # -I, -O, -X dev and the like apply there, too, as they do to processes of
            # multiprocessing.
            [sys.executable, *_flags(), BOOTSTRAP, *words],
            stdin=file,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=[reporting, *lent],
            start_new_session=True,  # what is typed at a terminal is this program's
        )
        if log is not None:
            process.wait()  # it has forked the broker, or failed to
            pid = _number_told(report)
    except OSError as error:
        os.close(report)
        raise LaunchError(f"no interpreter could be started for the broker ({error})") from error
    except BaseException:
        if process is not None and log is not None:
            process.kill()
            process.wait()
            Spawned(process, -1, log, 0, pid or _number_told(report)).abandon()
        os.close(report)
        raise
    finally:
        os.close(file)
        os.close(reporting)
        if output is not None:
            output.close()
    return Spawned(process, report, log, log_begins, pid)


def _number_told(report: int) -> int:
    """The process that an interpreter which has ended forked; 0 where it did not come to that."""
    line = b""
    while not line.endswith(b"\n") and select.select([report], [], [], 0)[0]:
        line += os.read(report, 1)
    return int(line or 0)


def _flags() -> list[str]:
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _as_it_was(entry: str) -> str:
    """An entry of ``sys.path`` that means the same elsewhere; an importer's own mark stays one."""
    return modules.absolute(entry) if not entry or os.path.exists(entry) else entry


def _open_log(log: pathlib.Path) -> int:
    """Its descriptor. In a folder that others may write to, the name may be theirs.

    Raises:
        LaunchError: it is a link, or another user's file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(log, flags, 0o600)
    except OSError as error:
        raise LaunchError(f"the broker's log cannot be written ({error}): pass path=") from error
    if os.fstat(descriptor).st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        os.close(descriptor)
        raise LaunchError(f"the broker's log {log} is another user's file: pass path=")
    os.set_blocking(descriptor, True)
    return descriptor


# ---- a broker for all programs of the user ---------------------------------------------------


def start(
    modules: Sequence[str] | None,
    path: pathlib.Path,
    *,
    timeout: float | None = None,
    key: str = "",
    owner: str = "",
    **settings: Any,
) -> None:
    """Start a broker at ``path`` that outlives this process; return when programs can join.

    Without modules it serves this process's functions: those of a script are carried over by
    value, so that what the script does is not done there, too. Its output goes to a file beside the
    socket, called like that and ``.log``. With a key it records what it loads. An
    ``owner`` is the process that alone uses it.
    """
    endpoint.prepare(path)
    session = settings.pop("session", None)
    words = ["up", *(modules or [sys.argv[0]]), "--path", str(path)]

    session_by_name = session if isinstance(session, str) else None

    def begin(carried: bytes) -> None:
        request = {
            "modules": [_absolute(name) for name in modules or ()],
            "carried": carried,
            "settings": {**settings, "session": session_by_name, "path": str(path)},
            "key": key,
            "owner": owner,
            "program": os.path.basename(sys.argv[0]),
        }
        spawned = spawn(request, words=words, log=endpoint.beside(path, ".log"))
        try:
            spawned.wait_ready(timeout)
        except (KeyboardInterrupt, SystemExit, NotInTime):
            spawned.abandon()
            raise

    asked: dict[str, Any] = {"session": None if session_by_name else session}
    if modules is None:
        if session is None:
            asked["session"] = carry.session_here()
            if asked["session"] is None:
                carry.warn_of_unnamed_session()
        carry.name_apart()
        _until_found(lambda unfindable: begin(carry.pack(asked, unfindable)))
    elif asked["session"] is not None:
        with_session = functools.partial(carry.pack, asked, only_session=True)
        _until_found(lambda unfindable: begin(with_session(unfindable)))
    else:
        begin(b"")


def _absolute(module: str) -> str:
    return modules.absolute(module) if module.endswith(".py") else module


# ---- a broker for this process alone -----------------------------------------------------------


def start_private(settings: Mapping[str, Any]) -> tuple[Spawned, socket.socket, str]:
    """Start a broker for this process: it, a connection to it, and its address.

    Functions in modules are imported there; those that cannot be (a notebook's, a script's) are
    carried over by value, and one that cannot be carried either is left out, with a warning.

    Raises:
        ConfigError: the session cannot be carried.
    """
    carry.name_apart()
    return _until_found(lambda unfindable: _start_private(carry.pack(settings, unfindable)))


def _start_private(carried: bytes) -> tuple[Spawned, socket.socket, str]:
    # This process is connected from the start, so the broker ends when this process does, whenever
    # that is.
    listener = PrivateEndpoint()
    try:
        connection = connect(listener.address)
    except BaseException:
        listener.close()
        raise
    assert connection is not None
    try:
        spawned = spawn(
            {"carried": carried, "listener": listener.fileno(), "owner": str(os.getpid())},
            words=["init", sys.argv[0]],
            lent=[listener.fileno()],
        )
    except BaseException:
        connection.close()
        raise
    finally:
        listener.close()
    try:
        spawned.wait_ready(None)
    except BaseException:
        connection.close()
        spawned.end(0.0)
        raise
    return spawned, connection, listener.address


def _until_found(begin: Callable[[Collection[str]], T]) -> T:
    """Start with what can be imported going by name, and by value what is not found there."""
    unfindable: set[str] = set()
    while True:
        try:
            return begin(unfindable)
        except NotFoundThere as error:
            more = carry.found_alike(error.module) - unfindable
            if not more:
                raise
            unfindable |= more
