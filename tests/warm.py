"""Programs that begin with torch imported: forks of a process that waits, not fresh interpreters.

Importing torch takes 2.2 s of processor time and an interpreter's own beginning 0.2 s, and in `make
test` 1,800 programs begin. So a worker of pytest starts one interpreter that imports torch and
nothing of ours, and waits. What a test then starts by :mod:`subprocess` as ``python -c``, ``-m`` or
a script becomes a fork of that one, with the arguments, the environment, the folder and the
descriptors that it would have had, and is the worker's own child: it is waited for and killed as
any other. ``--cold`` starts each as a user does; `make rough` does so with every test.

What is started in another way (with flags, ``preexec_fn``, another environment for OpenMP), and
what a test marked ``cold`` starts, begins as ever. Knows nothing of shmgpu, but where it lies: its
modules are run anew in each program, as their code was read before the fork (35 ms of each).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import inspect
import io
import itertools
import os
import pathlib
import pickle
import runpy
import socket
import struct
import subprocess
import sys
import threading
import types
import weakref
import zipfile
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_CHILD_SUBREAPER = 36
MOST_DESCRIPTORS = 250
FLAGS = {"-s"}  # that change nothing here: the user's own packages are never looked at
# Read when an interpreter or a library begins, and so too early for a fork.
EARLY = (
    "PYTHON",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH_",
    "LD_",
    "LC_",
    "LANG",
    "MALLOC_",
    "GLIBC_",
)
LATE = {"PYTHONPATH", "PYTHONUNBUFFERED"}  # which are followed here
# What the interpreter itself looks for when it ends.
KEPT = {"sys", "builtins", "__main__", "threading", "logging", "weakref"}

cold = False  # whether the test that runs now wants fresh interpreters
current: Warm | None = None  # this worker's


# ---- the worker's side -----------------------------------------------------------------------


class Warm:
    """The process that waits, and :class:`subprocess.Popen` made to use it."""

    def __init__(self) -> None:
        self.environment = early(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = ours
        self._begin = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        self._names = inspect.signature(self._begin)
        self.started = 0  # programs, so far
        self.adopted: set[int] = set()  # what others had started, and became ours as one began
        self._owner = os.getpid()  # whose child each fork is; what a test forks has none
        self._turn = threading.Lock()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal is the worker's
            )
        warm = self

        def begin(popen: Any, *args: Any) -> None:
            given = warm._names.bind(popen, *args).arguments
            is_mine = os.getpid() == warm._owner and not cold
            if not is_mine or (request := warm._request(given)) is None:
                warm._begin(popen, *args)
                return
            try:
                popen.pid = warm._start(*request)
                popen._child_created = True
            finally:
                ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                popen._close_pipe_fds(*(given[name] for name in ends))

        subprocess.Popen._execute_child = begin  # type: ignore[attr-defined]
        global current
        current = self

    def close(self) -> None:
        subprocess.Popen._execute_child = self._begin  # type: ignore[attr-defined]
        global current
        current = None
        self._line.close()
        self.process.wait()

    def _request(self, given: dict[str, Any]) -> tuple[dict[str, Any], list[int]] | None:
        """What the fork is to be, and the descriptors that it gets; None: it cannot be one."""
        words = given["args"]
        environment = inherited() if given["env"] is None else dict(given["env"])
        plain = (
            isinstance(words, (list, tuple))
            and all(isinstance(word, (str, os.PathLike)) for word in words)
            and str(words[0]) == sys.executable
            and given["executable"] in (None, sys.executable)
            and given["preexec_fn"] is None
            and given["close_fds"]
            and not given["shell"]
            and [given[name] for name in ("uid", "gid", "gids", "umask")] == [None, None, None, -1]
            and all(isinstance(one, str) for pair in environment.items() for one in pair)
            and early(environment) == self.environment
            and (given["cwd"] is None or os.path.isdir(given["cwd"]))
            and not customised(environment)
        )
        if not plain:
            return None
        words = [os.fspath(word) for word in words]
        program = words[1:]
        while program and program[0] in FLAGS:
            program.pop(0)
        folder = os.getcwd() if given["cwd"] is None else os.fspath(given["cwd"])
        if not (program and (program[0] in ("-c", "-m") or is_script(folder, program[0]))):
            return None
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        numbers = [*range(3), *given["pass_fds"]]
        sent = [number if end == -1 else end for number, end in enumerate(ends)]
        sent += given["pass_fds"]
        kept = [pair for pair in zip(numbers, sent, strict=True) if is_open(pair[1])]
        request = {
            "words": words,
            "program": program,
            "environment": environment,
            "folder": folder,
            "session": given["start_new_session"],
            "group": given.get("process_group", -1),
            "cores": os.sched_getaffinity(0),
            "numbers": [number for number, _ in kept],
            "parent": os.getpid(),
        }
        return request, [fd for _, fd in kept]

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The pid of a fork that is our own child."""
        with os.fdopen(os.memfd_create("a program to start"), "w+b") as file:
            pickle.dump(request, file)
            file.flush()
            # Whoever waits forks twice and ends the one between; its child is then handed to us.
            # So is, at this moment, a broker that a program begins: it forks twice, too.
            with self._turn:
                before = children()
                prctl(PR_SET_CHILD_SUBREAPER, 1)
                try:
                    fds = array.array("i", [file.fileno(), *descriptors])
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)
                    self._line.sendmsg([b"start"], [rights])
                    answer = self._line.recv(64)
                finally:
                    prctl(PR_SET_CHILD_SUBREAPER, 0)
                more = children() - before
        if not answer:
            raise RuntimeError("The process with torch that waits for tests has ended.")
        (pid,) = struct.unpack("i", answer)
        self.started += 1
        self.adopted |= more - {pid}
        return pid

    def strays(self) -> list[str]:
        """What of the environment is not what it was, and would have all programs begin cold.

        It is put right: whatever a library sets for itself as it is loaded, or a test forgot.
        """
        found = early(inherited())
        names = [
            name
            for name in sorted({*found, *self.environment})
            if found.get(name) != self.environment.get(name)
        ]
        for name in names:
            if name in self.environment:
                os.environ[name] = self.environment[name]
            else:
                os.environ.pop(name, None)
                os.unsetenv(name)  # of C alone, too
        return [f"{name}={found.get(name)}" for name in names]

    def wait_for_adopted(self) -> None:
        """Let those of the adopted go that have ended: nobody else waits for them."""
        for pid in list(self.adopted):
            try:
                is_over = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                is_over = True
            if is_over:
                self.adopted.remove(pid)


def children() -> set[int]:
    """Our own, of all our threads; none where the kernel doesn't tell."""
    found: set[int] = set()
    for path in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return found


def early(environment: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(EARLY) and name not in LATE
    }


def is_script(folder: str, word: str) -> bool:
    """Whether a word of the command line names a text, not a flag, a folder or an archive."""
    path = os.path.join(folder, word)
    return not word.startswith("-") and os.path.isfile(path) and not zipfile.is_zipfile(path)


def customised(environment: dict[str, str]) -> bool:
    """Whether a test put something where only an interpreter that begins looks for it."""
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(os.path.exists(os.path.join(one, "sitecustomize.py")) for one in folders)


def inherited() -> dict[str, str]:
    """What C has, too: a library may have set more than ``os.environ`` knows of."""
    pairs = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
    found = {}
    for pair in itertools.takewhile(bool, pairs):
        name, _, value = pair.partition(b"=")
        found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# ---- the process that waits ------------------------------------------------------------------


def wait_for_work(line: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; in a fork, what it is to be. None at the end."""
    while True:
        _, rights, _, _ = line.recvmsg(16, socket.CMSG_SPACE(4 * MOST_DESCRIPTORS))
        if not rights:
            return None
        fds = array.array("i")
        fds.frombytes(rights[0][2])
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if child := os.fork():
                os.write(tell, struct.pack("i", child))
                os._exit(0)
            os.close(told)
            os.close(tell)
            line.close()
            with open(fds[0], "rb") as file:
                file.seek(0)
                request = pickle.load(file)
            while os.getppid() == between:
                os.sched_yield()
            return {**request, "descriptors": list(fds[1:])}
        for fd in (*fds, tell):
            os.close(fd)
        os.waitpid(between, 0)
        line.send(os.read(told, 4))  # by now it is our starter's child
        os.close(told)


def become(request: dict[str, Any], base_path: list[str]) -> None:
    """Everything that a program is born with."""
    # First out of the way of the numbers that are wanted, then to them.
    numbers = request["numbers"]
    high = max([*numbers, *request["descriptors"], 2]) + 1
    moved = [move_up(fd, high) for fd in request["descriptors"]]
    os.closerange(0, high)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if request["session"]:
        os.setsid()
    if request["group"] not in (None, -1):
        os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    coerced = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}  # PEP 538
    os.environ.clear()
    os.environ.update({**coerced, **request["environment"]})
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        setattr(sys, name, stream(fd, mode))
        setattr(sys, f"__{name}__", getattr(sys, name))
    sys.orig_argv[:] = request["words"]
    more = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*(os.path.abspath(entry) for entry in more), *base_path]
    sys.path_importer_cache.clear()
    sys.modules["numpy"].random.seed()


def move_up(fd: int, least: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return moved


def stream(fd: int, mode: str) -> Any:
    """A standard stream as the interpreter makes it; None where the descriptor is closed."""
    if not is_open(fd):
        return None
    first = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[fd]
    held_back = not os.environ.get("PYTHONUNBUFFERED")
    return io.TextIOWrapper(
        open(fd, mode + "b", -1 if mode == "r" or held_back else 0, closefd=False),
        encoding=first.encoding,
        errors=first.errors,
        line_buffering=held_back and (fd == 2 or os.isatty(fd)),
        write_through=not held_back,
    )


def program_of(words: list[str]) -> Any:
    """A callable that is the program, in a ``__main__`` of its own."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    kind, rest = words[0], words[1:]
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = ["-m", *rest[1:]]
        return lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *rest[1:]]
        main.__loader__ = importlib.machinery.BuiltinImporter  # type: ignore[assignment]
        return lambda: exec(compile(rest[0], "<string>", "exec", 0, True), main.__dict__)
    sys.argv[:] = words
    path = os.path.abspath(kind)
    sys.path.insert(0, os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    return lambda: exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)


def without_our_frames(kind: Any, value: Any, traceback: Any) -> None:
    """As the interpreter shows what ended a program, which does not know that we ran it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, value.with_traceback(traceback), traceback)


def count_only_what_is_frozen_later() -> None:
    """To count what is frozen takes 10 ms, and of a program's own there is nothing at first."""
    count, freeze = gc.get_freeze_count, gc.freeze

    def freeze_and_count() -> None:
        gc.get_freeze_count = count
        freeze()

    gc.get_freeze_count, gc.freeze = int, freeze_and_count


def forget(modules: dict[str, Any]) -> None:
    """Last before the end: what was there at the beginning is not taken apart (0.25 s of torch)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    for name, module in modules.items():
        if sys.modules.get(name) is module and name not in KEPT:
            del sys.modules[name]


def stamp_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def read_before(folder: pathlib.Path) -> None:
    """Read the code of a package's modules, which is theirs unless their files change.

    Other modules are found as ever: this must not stand in their tracebacks.
    """
    plain, kept = importlib.machinery.SourceFileLoader, {}
    for path in map(str, folder.rglob("*.py")):
        kept[path] = stamp_of(path), plain("", path).get_code("")

    class ReadBefore(plain):  # type: ignore[misc, valid-type]
        def get_code(self, fullname: str) -> types.CodeType | None:
            stamp, code = kept.get(self.path, (None, None))
            is_as_it_was = stamp is not None and stamp == stamp_of(self.path)
            return code if is_as_it_was else super().get_code(fullname)

    ways = [
        (ReadBefore if loader is plain else loader, endings)
        for loader, endings in importlib._bootstrap_external._get_supported_file_loaders()  # type: ignore[attr-defined]
    ]

    def finder(path: str) -> Any:
        if not f"{path}/".startswith(f"{folder}/"):
            raise ImportError(path)
        return importlib.machinery.FileFinder(path, *ways)

    sys.path_hooks.insert(0, finder)


if __name__ == "__main__":
    base = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    import numpy  # noqa: F401
    import torch  # noqa: F401

    with contextlib.suppress(ImportError):  # what a program of ours imports sooner or later
        import cffi  # noqa: F401
        import httptools  # noqa: F401
        import ml_dtypes  # noqa: F401
        import orjson  # noqa: F401

    read_before(pathlib.Path(__file__).resolve().parent.parent / "shmgpu")
    gc.collect()
    gc.freeze()
    # A launch freezes and thaws: with torch thawed every collection takes 0.25 s, and the end some.
    gc.unfreeze = int  # does nothing
    count_only_what_is_frozen_later()
    for one in weakref.finalize._registry:  # type: ignore[attr-defined]
        one.atexit = False  # of torch's libraries, whose names live as long as the process
    atexit.register(forget, dict(sys.modules))
    LIBC.on_exit(LIBC._exit, None)  # nor are torch's statics destroyed: 0.15 s
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        its_request = wait_for_work(its_line)
    if its_request is not None:
        become(its_request, base)
        sys.excepthook = without_our_frames
        program_of(its_request["program"])()
