"""C at hand: loops are compiled in a thread beside, loaded when they are ready, kept on disk.

Owns the compiler's command line, the directory of what it made, and how a loop is called. Where
there is no compiler, or it fails, programs run without; that is never an error.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from shmgpu.common.logs import logger

# Nothing that would change a result: no reassociation, no a * b + c in one rounding.
FLAGS = (
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
    "-w",
    "-x",
    "c",
)
MAX_FILES = 512
MAX_FILE_BYTES = 64 << 20
SECONDS = 120  # after which a compiler is given up
LOCK = "lock"  # a file among those that were made; who compiles holds it
# What is made has its name when it is whole, or not at all.
TO_THE_END = """
seconds=$1 compiler=$2 part=$3 made=$4
shift 4
timeout "$seconds" nice -n 10 "$compiler" "$@" "$part.c" -o "$part" && mv "$part" "$made"
status=$?
rm -f "$part" "$part.c"
exit $status
"""

Function = Callable[[int, Any, Any], None]


@lru_cache(maxsize=1)
def compiler() -> tuple[str, str] | None:
    """The C compiler's path, and what it says of itself; None where there is none."""
    path = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if path is None:
        return None
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return path, told.stdout.partition("\n")[0]


@lru_cache(maxsize=1)
def _machine() -> str:
    """What -march=native depends on."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))})
    return "\n".join([platform.machine(), *told])


def directory() -> pathlib.Path | None:
    """Where compiled loops are kept: the user's own, and nobody else may write there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(base) / "shmgpu" / "loops"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = path.stat()
    except OSError:
        return None
    return path if told.st_uid == os.geteuid() and not told.st_mode & 0o022 else None


class Library:
    """Loops of one program, on their way from source to functions.

    Attributes:
        state: "waiting", "ready" or "failed".
        functions: one for each source, once it is ready.
    """

    def __init__(self, sources: Sequence[str], bodies: Sequence[str] = ()) -> None:
        """``sources``: parameters and body of each; ``bodies``: functions that they call."""
        self.state = "waiting"
        self.functions: list[Function] = []
        self._text = "\n".join([*bodies, *(f"void k{at}{one}" for at, one in enumerate(sources))])
        self._count = len(sources)
        self._thread = threading.Thread(target=self._make, name="shmgpu-cc", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is ready or has failed."""
        self._thread.join()

    def _make(self) -> None:
        try:
            self.functions = _functions(self._text, self._count)
            self.state = "ready"
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            logger.info("a chain of operations stays as it is: %s", error)
            self.state = "failed"


def _functions(text: str, count: int) -> list[Function]:
    found = compiler()
    if found is None:
        raise RuntimeError("there is no C compiler")
    path, version = found
    key = "\0".join(["1", path, version, " ".join(FLAGS), _machine(), text])
    name = hashlib.sha256(key.encode()).hexdigest()[:40] + ".so"
    kept = directory()
    if kept is not None:
        made = kept / name
        if not made.exists():
            # One compiler at a time for all of a user's helpers: two of one program would make the
            # same twice, and whoever computes needs the cores more.
            with (kept / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not made.exists():
                    _compile(path, text, made, lock.fileno())
                    _sweep(kept)
        os.utime(made)
        return _load(made, count)
    with tempfile.TemporaryDirectory() as here:
        made = pathlib.Path(here) / name
        _compile(path, text, made)
        return _load(made, count)


def _compile(path: str, text: str, made: pathlib.Path, *held: int) -> None:
    """Behind whatever else wants the cores, and to the end, though this helper should end before.

    A program of a second would otherwise start the same compiler in each run, and never have what
    it makes. ``held``: descriptors that stay open until then.
    """
    part = made.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    source = part.with_name(f"{part.name}.c")  # whole before the compiler begins: through a pipe a
    source.write_text(text)  # helper that dies could leave it half of a program
    done = subprocess.run(
        ["sh", "-c", TO_THE_END, "sh", str(SECONDS), path, str(part), str(made), *FLAGS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=held,
        start_new_session=True,  # neither Ctrl-C nor the end of a terminal is meant for it
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{path} ended with status {done.returncode}")


def _load(made: pathlib.Path, count: int) -> list[Function]:
    library = ctypes.CDLL(str(made))
    functions: list[Function] = []
    for at in range(count):
        function = library[f"k{at}"]
        function.restype = None
        function.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        functions.append(function)
    return functions


def _sweep(kept: pathlib.Path) -> None:
    """Drop what was not used for longest beyond MAX_FILES and MAX_FILE_BYTES."""
    files = []
    for one in kept.iterdir():  # also what a compiler left whose helper was killed
        try:
            told = one.stat()
        except OSError:
            continue
        if one.name != LOCK:
            files.append((told.st_mtime, told.st_size, one))
    files.sort(reverse=True)
    total = 0
    for number, (_, size, one) in enumerate(files):
        total += size
        if number >= MAX_FILES or total > MAX_FILE_BYTES:
            one.unlink(missing_ok=True)


class LoopCall:
    """A loop with its arguments' memory: called with arrays, numbers and what to write into."""

    __slots__ = ("_addresses", "_backend", "_count", "_function", "_numbers", "_outs", "_specs")

    def __init__(
        self,
        backend: Any,
        function: Function,
        count: int,
        specs: Sequence[Any],
        outs: Sequence[Any],
        numbers: int,
    ) -> None:
        """``count``: elements; ``specs``: of the arrays; ``outs``: of what is written."""
        self._backend = backend
        self._function = function
        self._count = count
        self._specs = [(spec, backend.dtype(spec)) for spec in specs]
        self._outs = [(spec, backend.dtype(spec)) for spec in outs]
        self._addresses = (ctypes.c_ulong * max(1, len(specs) + len(outs)))()
        self._numbers = (ctypes.c_double * max(1, numbers))()

    def __call__(
        self, arrays: Sequence[Any], numbers: Sequence[Any], outs: Sequence[Any]
    ) -> list[Any]:
        """What was written: ``outs``, and memory of its own for each that is None."""
        addresses, backend = self._addresses, self._backend
        held = []  # copies live until the loop is over
        at = 0
        for array, (spec, dtype) in zip(arrays, self._specs, strict=True):
            # C trusts what it is told, so an array that is not what the program says is refused
            # here.
            if tuple(array.shape) != spec.shape or array.dtype != dtype:
                raise ValueError("an array is not what the program's operations say it is")
            array = backend.in_order(array)
            held.append(array)
            addresses[at] = backend.address(array)
            at += 1
        written = []
        for out, (spec, dtype) in zip(outs, self._outs, strict=True):
            if (
                out is None
                or out.dtype != dtype
                or tuple(out.shape) != spec.shape
                or not backend.is_in_order(out)
            ):
                out = backend.empty(spec)
            written.append(out)
            addresses[at] = backend.address(out)
            at += 1
        for at, number in enumerate(numbers):
            self._numbers[at] = number
        self._function(self._count, addresses, self._numbers)
        return written
