"""The GPU as ``gpu`` needs it: whether there is one, its memory, and MPS.

Nothing here initialises CUDA in the process that calls it: a process that did could not fork.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure.figures import Unavailable
from benchmarks.measure.native import tail

NO_DEVICE = "this machine shows no CUDA device"
MPS_CONTROL = "nvidia-cuda-mps-control"
LIMIT_S = 30.0
_DIRECTORIES = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}


def need_driver() -> None:
    """Raise Unavailable where no driver is loaded: this asks nobody, and so costs nothing."""
    if not Path("/dev/nvidiactl").exists():
        raise Unavailable(NO_DEVICE)


def need_cuda() -> None:
    """Raise Unavailable unless torch can use a CUDA device here."""
    from shmgpu.common import devices

    if devices.available() == 0:
        raise Unavailable(f"{NO_DEVICE} that torch can use")


def mebibytes_of(text: str) -> float:
    """Read what nvidia-smi answers for one device: a number of MiB without its unit.

    Unavailable where the driver keeps it to itself (``[N/A]``).
    """
    try:
        return float(text.strip().splitlines()[0])
    except (IndexError, ValueError):
        raise Unavailable(f"nvidia-smi does not say how much memory is used: {text!r}") from None


def memory_used_mib(index: int = 0) -> float:
    """Return how much of a device's memory all processes together use, contexts included.

    As NVML sees it: what one process's allocator holds leaves out the context, which is most of a
    small model's cost, and in a container NVML cannot tell processes apart.
    """
    if shutil.which("nvidia-smi") is None:
        raise Unavailable("nvidia-smi, which says how much memory is used, is not there")
    options = [f"--id={index}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        ["nvidia-smi", *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return mebibytes_of(done.stdout)


def pids_of(text: str) -> list[int]:
    """Return the process numbers in what MPS's control program answers to ``get_server_list``."""
    return [int(line) for line in text.split() if line.isdigit()]


def mps_servers() -> list[int]:
    """Return the process numbers of MPS's servers: there is one once a client has connected."""
    return pids_of(_control("get_server_list"))


def _control(command: str) -> str:
    done = subprocess.run(
        [MPS_CONTROL],
        input=command + "\n",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout


def _start_daemon(errors: Path) -> None:
    # A file: the daemon keeps what it is given open, and a pipe would not end before it does.
    with errors.open("w") as file:
        try:
            done = subprocess.run(
                [MPS_CONTROL, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{MPS_CONTROL} does not start within {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{MPS_CONTROL} does not start: {tail(errors.read_text())}")


@contextmanager
def mps() -> Iterator[None]:
    """Have processes forked in the block use MPS, by a daemon that is theirs alone.

    Its pipes and logs lie in a folder of their own, so a daemon of the machine's stays as it is.
    Raises Unavailable where it cannot run.
    """
    if shutil.which(MPS_CONTROL) is None:
        raise Unavailable(f"{MPS_CONTROL} is not installed")
    before = {name: os.environ.get(name) for name in _DIRECTORIES}
    with tempfile.TemporaryDirectory(prefix="shmgpu-mps-") as folder:
        for name, part in _DIRECTORIES.items():
            path = Path(folder) / part
            path.mkdir()
            os.environ[name] = str(path)
        try:
            _start_daemon(Path(folder) / "stderr")
            try:
                yield
            finally:
                _control("quit")
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
