"""What a machine says of itself: limits, cgroups, memory, devices, this interpreter.

Owns the reading of ``/proc``, ``/sys`` and ``/dev``; never judges or changes anything. Every file
is looked up under ``root``, so that tests can describe machines that nobody has. CUDA is never
touched in this process: a process of its own asks for the GPUs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.child import quick
from shmgpu.common import devices as device
from shmgpu.common import extensions
from shmgpu.doctor import probes

GPU_ANSWER_S = 120.0  # importing torch and making a context, on a busy machine

# Capabilities by number, as in the kernel's capability.h.
CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 14, 21, 24

# Runs in a process of its own, which CUDA may spoil for forking as it likes.
_ASK_GPUS = """
import ctypes, json, torch
found = []
if torch.cuda.is_available():
    driver = ctypes.CDLL("libcuda.so.1")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        device, mode = ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(mode), 20, device)
        name = torch.cuda.get_device_name(index)
        found.append({"name": name, "total": total, "free": free, "mode": mode.value})
print(json.dumps({"cuda": torch.version.cuda, "devices": found}))
"""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as helpers will see it; ``mode`` is the driver's compute mode, 0 for shared."""

    name: str
    total: int  # bytes, as is what follows
    free: int
    mode: int = 0


@dataclass(frozen=True)
class Gpus:
    """What torch sees: its CUDA release, ``""`` when it was built without; why it saw nothing."""

    cuda: str = ""
    devices: tuple[Gpu, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Headroom:
    """How many bytes or tasks are left, of how many in all, and what limits them."""

    left: int
    total: int
    limited_by: str


@dataclass(frozen=True)
class Interpreter:
    """The Python process that would become the parent."""

    pid: int = 2
    version: str = "3.12.0"
    is_free_threaded: bool = False
    has_role: bool = False
    other_threads: tuple[str, ...] = ()
    tracer: str = ""
    has_openmp_pool: bool = False
    has_cuda: bool = False
    why_not_quick: str = ""  # calls that repeat go through Python, and that is why
    has_grpc: bool = True  # what a server needs for clients of gRPC
    why_no_http2: str = ""  # a server leaves HTTP/2 to grpcio, and that is why


class Machine:
    """This machine, or one described by the files under ``root`` and by an environment."""

    def __init__(self, root: str = "", environ: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.environ = os.environ if environ is None else environ

    # -- files --

    def text(self, path: str) -> str:
        """What a file holds, without white space at its ends; empty when it cannot be read."""
        try:
            with open(self.root + path, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """The number a file begins with; None when there is none, as in ``max``."""
        return _number(self.text(path).partition(" ")[0])

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError:
            return []

    def may_use(self, path: str) -> bool:
        """Whether a device file can be read and written."""
        return os.access(self.root + path, os.R_OK | os.W_OK)

    def field(self, path: str, key: str) -> str:
        """The rest of the line ``key: rest``."""
        for line in self.text(path).splitlines():
            name, colon, rest = line.partition(":")
            if colon and name == key:
                return rest.strip()
        return ""

    def kib_field(self, path: str, key: str) -> int | None:
        """A field in kB, as bytes."""
        kib = _number(self.field(path, key).partition(" ")[0])
        return None if kib is None else kib * 1024

    # -- this process --

    @property
    def release(self) -> str:
        """The kernel's, such as ``6.1.0-amd64``."""
        return self.text("/proc/sys/kernel/osrelease")

    def limit(self, name: str) -> tuple[int | None, int | None]:
        """Soft and hard limit by the name that ``/proc/self/limits`` has; None: unlimited."""
        for line in self.text("/proc/self/limits").splitlines():
            if line.startswith(name + " "):
                soft, hard = line[len(name) :].split()[:2]
                return _number(soft), _number(hard)
        return None, None

    def is_capable(self, *capabilities: int) -> bool:
        """Whether this process has one of these capabilities."""
        held = int(self.field("/proc/self/status", "CapEff") or "0", 16)
        return any(held >> capability & 1 for capability in capabilities)

    @property
    def is_filtered(self) -> bool:
        """Whether a seccomp filter decides about system calls."""
        return self.field("/proc/self/status", "Seccomp") == "2"

    def open_files(self) -> int:
        """Descriptors of this process."""
        return len(self.names("/proc/self/fd"))

    def tasks_of_user(self) -> int:
        """Threads of all processes with our user id."""
        mine = self.field("/proc/self/status", "Uid").split()[:1]
        count = 0
        for name in self.names("/proc"):
            if name.isdecimal():
                path = f"/proc/{name}/status"
                if self.field(path, "Uid").split()[:1] == mine:
                    count += _number(self.field(path, "Threads")) or 0
        return count

    # -- cgroups --

    def cgroup_directories(self, controller: str) -> Iterator[tuple[str, bool]]:
        """Directories of our cgroup and its ancestors with whether they are of version 2."""
        for line in self.text("/proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                roots, is_v2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], True
            elif controller in controllers.split(","):
                roots, is_v2 = [f"/sys/fs/cgroup/{controller}"], False
            else:
                continue
            parts = [part for part in path.split("/") if part]
            for root in roots:
                for depth in range(len(parts), -1, -1):
                    yield "/".join([root, *parts[:depth]]), is_v2

    def memory_headroom_of_cgroup(self) -> Headroom | None:
        """The tightest memory limit over us, page cache that would be given back left out."""
        spares = []
        for directory, is_v2 in self.cgroup_directories("memory"):
            limit_name, usage_name, cache_name = (
                ("memory.max", "memory.current", "inactive_file")
                if is_v2
                else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            )
            limit = self.number(f"{directory}/{limit_name}")
            if limit is None or limit >= 1 << 62:  # version 1 has no word for "none"
                continue
            used = self.number(f"{directory}/{usage_name}") or 0
            for line in self.text(f"{directory}/memory.stat").splitlines():
                key, _, value = line.partition(" ")
                if key == cache_name:
                    used -= min(used, _number(value) or 0)
            spares.append(
                Headroom(max(0, limit - used), limit, f"the cgroup's limit in {directory}")
            )
        return min(spares, key=lambda spare: spare.left, default=None)

    def memory_throttle(self) -> Headroom | None:
        """The tightest ``memory.high``, above which the kernel slows processes down."""
        spares = []
        for directory, is_v2 in self.cgroup_directories("memory"):
            high = self.number(f"{directory}/memory.high") if is_v2 else None
            if high is not None:
                used = self.number(f"{directory}/memory.current") or 0
                spares.append(Headroom(max(0, high - used), high, f"{directory}/memory.high"))
        return min(spares, key=lambda spare: spare.left, default=None)

    def task_headroom_of_cgroup(self) -> Headroom | None:
        """The tightest limit on tasks over us."""
        spares = []
        for directory, _ in self.cgroup_directories("pids"):
            limit = self.number(f"{directory}/pids.max")
            if limit is not None:
                used = self.number(f"{directory}/pids.current") or 0
                spares.append(Headroom(max(0, limit - used), limit, f"{directory}/pids.max"))
        return min(spares, key=lambda spare: spare.left, default=None)

    # -- memory --

    def memory_headrooms(self) -> list[Headroom]:
        """What each limit leaves, the tightest first, as csrc/memory/available.c reckons it."""
        spares = []
        available = self.kib_field("/proc/meminfo", "MemAvailable")
        if available is not None:
            available += self.kib_field("/proc/meminfo", "SwapFree") or 0
            total = self.kib_field("/proc/meminfo", "MemTotal") or available
            spares.append(Headroom(available, total, "the machine"))
        cgroup = self.memory_headroom_of_cgroup()
        if cgroup is not None:
            spares.append(cgroup)
        if self.number("/proc/sys/vm/overcommit_memory") == 2:
            limit = self.kib_field("/proc/meminfo", "CommitLimit")
            if limit is not None:
                used = self.kib_field("/proc/meminfo", "Committed_AS") or 0
                left = max(0, limit - used)
                spares.append(Headroom(left, limit, "the commit limit (vm.overcommit_memory=2)"))
        return sorted(spares, key=lambda spare: spare.left)

    # -- processors --

    def affinity(self) -> int:
        """Cores that this process may run on."""
        count = 0
        for part in self.field("/proc/self/status", "Cpus_allowed_list").split(","):
            first, _, last = part.partition("-")
            if first.isdecimal():
                count += int(last or first) - int(first) + 1
        return max(count, 1)

    def quota(self) -> float | None:
        """Cores' worth of time that the tightest cgroup over us allows; None: all."""
        quotas = []
        for directory, is_v2 in self.cgroup_directories("cpu"):
            if is_v2:
                taken, _, period = self.text(f"{directory}/cpu.max").partition(" ")
            else:
                taken = self.text(f"{directory}/cpu.cfs_quota_us")
                period = self.text(f"{directory}/cpu.cfs_period_us")
            if taken.isdecimal() and period.isdecimal() and int(period) > 0:
                quotas.append(int(taken) / int(period))
        return min(quotas, default=None)

    def cores_for_launch(self) -> int:
        """Cores as :mod:`shmgpu.common.devices` counts them, which shares them out to helpers."""
        if not self.root:
            return device.cores()
        taken, _, period = self.text("/sys/fs/cgroup/cpu.max").partition(" ")
        count = self.affinity()
        if taken.isdecimal() and period.isdecimal():
            count = min(count, max(1, int(taken) // int(period)))
        return count

    # -- what is asked, rather than read --

    def why_refused(self, probe: str) -> str:
        """As :func:`shmgpu.doctor.probes.why_refused`."""
        return probes.why_refused(probe)

    def why_not_reserved(self, size_bytes: int) -> str:
        """Nothing when that many addresses can be reserved, else what the kernel said."""
        try:
            probes.reserve(size_bytes)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
        return ""

    def pipe_bytes(self) -> int:
        """As :func:`shmgpu.doctor.probes.pipe_bytes`; 0 when no pipe can be made."""
        try:
            return probes.pipe_bytes()
        except OSError:
            return 0

    def shared_memory_bytes(self) -> int | None:
        """Size of the file system at /dev/shm; None when there is none."""
        try:
            found = os.statvfs(self.root + "/dev/shm")
        except OSError:
            return None
        return found.f_blocks * found.f_frsize

    @functools.cached_property
    def interpreter(self) -> Interpreter:
        """This very process."""
        torch = sys.modules.get("torch")
        return Interpreter(
            pid=os.getpid(),
            version=sys.version.split()[0],
            is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            has_role=core.role() != core.ROLE_NONE,
            other_threads=tuple(
                sorted(
                    one.name for one in threading.enumerate() if one is not threading.main_thread()
                )
            ),
            tracer=_tracer(),
            has_openmp_pool=device.openmp_pool_is_used(),
            has_cuda=torch is not None and bool(torch.cuda.is_initialized()),
            why_not_quick=quick.why_not(),
            has_grpc=importlib.util.find_spec("grpc") is not None,
            why_no_http2=extensions.why_no_http2(),
        )

    def torch_version(self) -> str:
        """Of the torch that would be imported; empty when there is none. Imports nothing."""
        if "torch" in sys.modules:
            return str(getattr(sys.modules["torch"], "__version__", "unknown"))
        if importlib.util.find_spec("torch") is None:
            return ""
        try:
            return importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    @functools.cached_property
    def gpu_files(self) -> list[str]:
        """Device files of GPUs that CUDA could use."""
        names = [f"/dev/{name}" for name in self.names("/dev")]
        return [
            name
            for name in names
            if name == "/dev/dxg"
            or (name.startswith("/dev/nvidia") and name.removeprefix("/dev/nvidia").isdecimal())
        ]

    @functools.cached_property
    def gpus(self) -> Gpus:
        """What torch sees of them, asked in another process; nothing is asked where none are."""
        if not self.gpu_files or not self.torch_version():
            return Gpus()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _ASK_GPUS],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=GPU_ANSWER_S,
                env={**self.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "0"},
            )
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
                return Gpus(error=lines[-1])
            told = json.loads(done.stdout.splitlines()[-1])
            return Gpus(told["cuda"] or "", tuple(Gpu(**one) for one in told["devices"]))
        except subprocess.TimeoutExpired:
            return Gpus(error=f"torch did not answer within {GPU_ANSWER_S:.0f} seconds")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            return Gpus(error=str(error))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _tracer() -> str:
    """Who follows every line of this process, if anybody does."""
    function: Any = sys.gettrace()
    if function is not None:
        return str(getattr(type(function), "__module__", "") or "a trace function")
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for number in range(6):
            tool = monitoring.get_tool(number)
            if tool is not None:
                return str(tool)
    return ""
