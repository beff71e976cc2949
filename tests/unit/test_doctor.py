"""shmgpu doctor: each check on a machine made up for it, and a few on this one."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.metadata
import importlib.util
import itertools
import json
import mmap
import os
import pathlib
import platform
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import shmgpu
from shmgpu import core, doctor, errors
from shmgpu.broker.launch_config import descriptors_needed
from shmgpu.child import quick
from shmgpu.cli import doctor as findings
from shmgpu.cli import main as cli
from shmgpu.common import devices
from shmgpu.doctor import machine as machines
from shmgpu.doctor import probes
from shmgpu.doctor.machine import Gpu, Gpus, Interpreter, Machine
from shmgpu.doctor.plan import GIB, MIB, Plan, size

ROOT = pathlib.Path(__file__).resolve().parents[2]
CGROUP = "sys/fs/cgroup"
THP = "sys/kernel/mm/transparent_hugepage"

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max file size             unlimited            unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             63000                63000                processes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
Max address space         unlimited            unlimited            bytes
"""

STATUS = """\
Name:\tpython
Uid:\t1000\t1000\t1000\t1000
Threads:\t1
VmSize:\t  200000 kB
VmData:\t  100000 kB
CapEff:\t0000000000000000
Seccomp:\t0
Cpus_allowed_list:\t0-7
"""

MEMINFO = """\
MemTotal:       16777216 kB
MemAvailable:   12582912 kB
SwapFree:              0 kB
CommitLimit:     8388608 kB
Committed_AS:    4194304 kB
"""

# A healthy machine: 8 cores, 16 GiB of which 12 are free, an ordinary user, cgroup 2, no GPU.
HEALTHY = {
    "proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
    "proc/self/limits": LIMITS,
    "proc/self/status": STATUS,
    "proc/self/cgroup": "0::/user.slice/job\n",
    "proc/self/uid_map": "         0          0 4294967295\n",
    "proc/self/oom_score_adj": "0\n",
    "proc/self/coredump_filter": "00000033\n",
    "proc/self/fd/0": "",
    "proc/loadavg": "0.10 0.20 0.30 1/400 12345\n",
    "proc/meminfo": MEMINFO,
    "proc/sys/fs/file-nr": "2000\t0\t800000\n",
    "proc/sys/fs/pipe-max-size": "1048576\n",
    "proc/sys/fs/pipe-user-pages-soft": "16384\n",
    "proc/sys/fs/pipe-user-pages-hard": "0\n",
    "proc/sys/kernel/core_pattern": "core\n",
    "proc/sys/kernel/threads-max": "120000\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
    f"{THP}/shmem_enabled": "always within_size [advise] never deny force\n",
    f"{CGROUP}/user.slice/job/memory.max": "max\n",
    f"{CGROUP}/user.slice/job/memory.current": "1000000\n",
    f"{CGROUP}/user.slice/job/pids.max": "max\n",
    f"{CGROUP}/user.slice/job/cpu.max": "max 100000\n",
}
GPU_FILES = {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""}
A100 = Gpu("A100", 80 * GIB, 79 * GIB)


class MadeUp(Machine):
    """A machine of files, on which every probe succeeds unless it is named as refused."""

    def __init__(self, root, files=(), *, refused=(), environ=(), torch="2.13.0", **facts):
        super().__init__(str(root), dict(environ))
        for name, text in {**HEALTHY, **dict(files)}.items():
            if text is None:
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.refused, self.torch, self.pipe = dict(refused), torch, facts.pop("pipe", 65536)
        self.interpreter = facts.pop("interpreter", Interpreter())
        self.gpus = facts.pop("gpus", Gpus())
        assert not facts

    def why_refused(self, probe):
        assert probe in probes.PROBES
        return self.refused.get(probe, "")

    def why_not_reserved(self, size_bytes):
        return self.refused.get("reserve", "")

    def pipe_bytes(self):
        return self.pipe

    def torch_version(self):
        return self.torch


def finding(machine, plan, name):
    [found] = [one for one in doctor.examine(plan, machine) if one.name == name]
    return found


def limits(name, value, hard=None):
    """The file of limits with another one."""
    both = f"{value} {hard or value}"
    text, count = re.subn(rf"(?m)^({name} +)\S+ +\S+", rf"\g<1>{both}", LIMITS)
    assert count == 1
    return {"proc/self/limits": text}


def status(key, value):
    text, count = re.subn(rf"(?m)^({key}:\s+).*", rf"\g<1>{value}", STATUS)
    assert count == 1
    return {"proc/self/status": text}


def meminfo(**kib):
    text = MEMINFO
    for key, value in kib.items():
        text = re.sub(rf"(?m)^({key}:\s+)\d+", rf"\g<1>{value}", text)
    return {"proc/meminfo": text}


OK, WARNING, FAILURE = doctor.OK, doctor.WARNING, doctor.FAILURE
JOB = f"{CGROUP}/user.slice/job"
V1 = {"proc/self/cgroup": "5:memory:/box\n4:pids:/box\n3:cpu,cpuacct:/box\n0::/\n"}
CUDA = {"files": GPU_FILES, "gpus": Gpus("12.8", (A100, A100))}

# (check, what differs from the healthy machine, the plan, status, word of the sentence, of the fix)
ROWS = [
    ("release", {"files": {"proc/sys/kernel/osrelease": "5.4.0-1"}}, {}, FAILURE, "older", "5.10"),
    ("release", {"files": {"proc/sys/kernel/osrelease": "5.10.0"}}, {}, OK, "5.10.0", ""),
    ("release", {"files": {"proc/sys/kernel/osrelease": None}}, {}, WARNING, "read", "uname"),
    ("memory files", {"refused": {"memory_file": "not permitted"}}, {}, FAILURE, "not permitted",
     "vm.memfd_noexec"),
    ("memory files",
     {"refused": {"memory_file": "not permitted"}, "files": status("Seccomp", 2)}, {}, FAILURE,
     "not permitted", "seccomp"),
    ("processes", {"refused": {"process_descriptor": "not implemented"}}, {}, FAILURE,
     "not implemented", "Linux 5.10"),
    ("death signal", {"refused": {"death_signal": "no"}}, {}, FAILURE, "parent", "Linux"),
    ("futexes", {"refused": {"futex": "no"}}, {}, FAILURE, "futexes", "Linux"),
    ("precise waits", {"refused": {"precise_wait": "no"}}, {}, WARNING, "millisec", "5.11"),
    ("population", {"refused": {"populate": "no"}}, {}, OK, "nothing asks", ""),
    ("population", {"refused": {"populate": "no"}}, {"prefault": True}, WARNING, "longer", "5.14"),
    ("clock",
     {"files": {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}}, {},
     WARNING, "hpet", "echo tsc"),
    ("open files", {}, {"children": 1000}, OK, "raises", ""),
    ("open files", {"files": limits("Max open files", 64)}, {}, FAILURE, "limit is 64",
     "ulimit -n"),
    ("open files", {"files": limits("Max open files", "unlimited")}, {}, OK, "any number", ""),
    ("files of the system", {"files": {"proc/sys/fs/file-nr": "799990 0 800000"}}, {}, FAILURE,
     "10 left", "fs.file-max"),
    ("user's processes", {"files": limits("Max processes", 3)}, {"children": 8}, FAILURE,
     "9 processes", "ulimit -u 15 (as root; for good"),
    ("user's processes", {"files": limits("Max processes", 3, 63000)}, {"children": 8}, FAILURE,
     "9 processes", "ulimit -u 15 (for good"),
    ("user's processes", {"files": limits("Max processes", 5)}, {}, WARNING, "threads",
     "ulimit -u"),
    ("user's processes",
     {"files": {**limits("Max processes", 3), **status("CapEff", "0000000001000000")}},
     {"children": 8}, OK, "not hold", ""),
    ("user's processes", {"files": limits("Max processes", "unlimited")}, {}, OK, "not limit", ""),
    ("user's processes",
     {"files": {**limits("Max processes", 20), "proc/7/status": "Uid:\t1000 0 0 0\nThreads:\t3\n",
                "proc/8/status": "Uid:\t0 1000 1000 1000\nThreads:\t9\n"}},
     {}, OK, "room for 17 tasks", ""),
    ("cgroup's processes",
     {"files": {f"{JOB}/pids.max": "40", f"{JOB}/pids.current": "20"}}, {"children": 32}, FAILURE,
     "room for 20", "--pids-limit"),
    ("cgroup's processes",
     {"files": {f"{CGROUP}/user.slice/pids.max": "30", f"{CGROUP}/user.slice/pids.current": "9"}},
     {"children": 32}, FAILURE, "user.slice/pids.max", "48"),
    ("cgroup's processes",
     {"files": {**V1, f"{CGROUP}/pids/box/pids.max": "8", f"{CGROUP}/pids/box/pids.current": "2"}},
     {"children": 8}, FAILURE, "room for 6", "pids/box/pids.max"),
    ("system's processes", {"files": {"proc/sys/kernel/pid_max": "410"}}, {"children": 32},
     FAILURE, "kernel.pid_max", "sysctl kernel.pid_max"),
    ("system's processes", {"files": {"proc/sys/kernel/pid_max": "99"}}, {}, FAILURE,
     "room for 0", "sysctl kernel.pid_max"),
    ("system's processes",
     {"files": {"proc/sys/kernel/pid_max": "9", "proc/loadavg": "0.10 0.20 0.30"}},
     {"children": 8}, WARNING, "room for 9", "sysctl kernel.pid_max"),
    ("system's processes", {"files": {"proc/sys/kernel/threads-max": "404"}}, {"children": 2},
     WARNING, "threads", "kernel.threads-max"),
    ("pipes", {}, {"children": 512, "window": 896}, WARNING, "window of 64", "pages-soft=32832"),
    ("pipes", {}, {"children": 512}, OK, "holds 64", ""),
    ("pipes", {}, {"children": 400, "window": 896}, OK, "holds 960", ""),
    ("pipes", {"files": status("CapEff", "0000000001000000")}, {"children": 512, "window": 896},
     OK, "holds 960", ""),
    ("pipes", {"files": {"proc/sys/fs/pipe-max-size": "4096"}}, {"window": 128}, WARNING,
     "window of 64", "fs.pipe-max-size"),
    ("pipes", {"pipe": 8192}, {"window": 65}, WARNING, "window of 64", "pages-soft"),
    ("pipes", {"pipe": 8192, "files": {"proc/sys/fs/pipe-max-size": "65536"}}, {"window": 65},
     WARNING, "window of 64", "pages-soft"),
    ("pipes", {"files": {"proc/sys/fs/pipe-max-size": None}}, {"window": 128}, OK, "960", ""),
    ("pipes", {"files": {"proc/sys/fs/pipe-user-pages-soft": None}}, {"window": 128}, OK, "960",
     ""),
    ("pipes", {"files": {"proc/sys/fs/pipe-user-pages-hard": "100"}}, {"children": 30}, FAILURE,
     "62 pipes", "pages-hard"),
    ("pipes", {"pipe": 0}, {}, FAILURE, "cannot", "sysctl"),
    ("addresses", {"files": limits("Max address space", 1 << 30)}, {"children": 16}, FAILURE,
     "limit leaves 828", "ulimit -v"),
    ("addresses", {"refused": {"reserve": "Cannot allocate memory"}}, {}, FAILURE, "Cannot",
     "ulimit -v"),
    ("addresses", {"files": {**GPU_FILES, **limits("Max address space", 1 << 36)},
                   "gpus": CUDA["gpus"]}, {}, WARNING, "CUDA", "ulimit -v"),
    ("mappings", {"files": {"proc/sys/vm/max_map_count": "1000"}}, {"children": 800}, FAILURE,
     "1,603 of them", "vm.max_map_count"),
    ("mappings", {"files": {"proc/sys/vm/max_map_count": "1000"}}, {}, WARNING, "1,000",
     "vm.max_map_count"),
    ("file size", {"files": limits("Max file size", 1 << 20)}, {}, FAILURE, "64 MiB", "ulimit -f"),
    ("processor time", {"files": limits("Max cpu time", 3600)}, {}, WARNING, "3,600", "ulimit -t"),
    ("core files", {"files": limits("Max core file size", "unlimited")}, {"children": 32},
     WARNING, "2.004 GiB", "coredump_filter"),
    ("core files", {"files": {"proc/sys/kernel/core_pattern": "|/bin/collect %p"}},
     {"children": 32}, WARNING, "2.004 GiB", "ulimit -c 1"),
    ("core files", {"files": {**limits("Max core file size", "unlimited"),
                              "proc/self/coredump_filter": "00000031"}}, {"children": 32}, OK,
     "core file", ""),
    ("core files", {"files": {**limits("Max core file size", "unlimited"),
                              "proc/self/coredump_filter": "00000020"}}, {"children": 32}, OK,
     "core file", ""),
    ("arenas", {}, {"children": 32, "arena": GIB}, FAILURE, "12 GiB to give", 'arena="383MiB"'),
    ("arenas", {"files": {f"{JOB}/memory.max": str(GIB), f"{JOB}/memory.current": str(GIB // 2)}},
     {"children": 32}, FAILURE, "512 MiB to", "docker run --memory"),
    ("arenas", {"files": {f"{JOB}/memory.max": str(GIB), f"{JOB}/memory.current": str(GIB),
                          f"{JOB}/memory.stat": f"anon 1\ninactive_file {GIB}\n"}}, {}, OK,
     "1 GiB to give", ""),
    ("arenas", {"files": {f"{CGROUP}/user.slice/memory.max": str(MIB)}}, {}, FAILURE,
     "1 MiB to give", "arena"),
    ("arenas", {"files": {**V1, f"{CGROUP}/memory/box/memory.limit_in_bytes": str(MIB),
                          f"{CGROUP}/memory/box/memory.usage_in_bytes": "0"}}, {}, FAILURE,
     "memory/box", "arena"),
    ("arenas", {"files": {**V1, f"{CGROUP}/memory/box/memory.limit_in_bytes":
                          "9223372036854771712"}}, {}, OK, "the machine", ""),
    ("arenas", {"files": {"proc/sys/vm/overcommit_memory": "2"}}, {"children": 80}, FAILURE,
     "commit limit", "vm.overcommit_memory=0"),
    ("arenas", {"files": {"proc/meminfo": None}}, {}, WARNING, "read", "mount"),
    ("with processes", {"files": meminfo(MemAvailable=2200000)}, {"children": 32}, WARNING,
     "2.191 GiB", "smaller arenas"),
    ("cgroup", {"files": {f"{JOB}/memory.max": str(GIB), f"{JOB}/memory.current": "1050000000"}},
     {}, WARNING, "left", "MemoryMax"),
    ("cgroup", {"files": {f"{JOB}/memory.high": str(MIB), f"{JOB}/memory.current": "0"}}, {},
     WARNING, "slows", "memory.high"),
    ("swap", {"files": meminfo(MemAvailable=1000000, SwapFree=4000000)}, {"children": 32},
     WARNING, "swapped", "smaller"),
    ("swap", {"files": meminfo(MemAvailable=1000)}, {}, OK, "do not depend", ""),
    ("overcommit", {"files": {"proc/sys/vm/overcommit_memory": "2"}}, {"children": 60}, WARNING,
     "61 forks", "vm.overcommit_memory=0"),
    ("overcommit", {"files": {"proc/sys/vm/overcommit_memory": "2"}}, {}, OK, "every fork", ""),
    ("huge pages", {}, {"huge_pages": True}, OK, "advise", ""),
    ("huge pages", {"files": {f"{THP}/shmem_enabled": "always advise [never] deny"}},
     {"huge_pages": True}, WARNING, "never", "echo advise | sudo tee /sys"),
    ("huge pages", {"files": {f"{THP}/hugepages-2048kB/shmem_enabled": "always [never] inherit"}},
     {"huge_pages": True}, WARNING, "never", "hugepages-2048kB"),
    ("huge pages", {"files": {f"{THP}/hugepages-2048kB/shmem_enabled": "always [inherit]"}},
     {"huge_pages": True}, OK, "advise", ""),
    ("huge pages", {"files": {f"{THP}/shmem_enabled": None}}, {"huge_pages": True}, WARNING,
     "no transparent", "CONFIG"),
    ("huge pages", {"files": {f"{THP}/shmem_enabled": "[never]"}}, {}, OK, "not asked", ""),
    ("/dev/shm", {}, {}, OK, "none of it", ""),
    ("out of memory", {"refused": {"oom_score": "Read-only file system"}}, {}, WARNING,
     "Read-only", "writable"),
    ("out of memory", {"files": {"proc/self/oom_score_adj": "1000"}}, {}, WARNING, "1000",
     "oom_score_adj"),
    ("out of memory", {"files": {"proc/self/oom_score_adj": "-500"}}, {}, OK, "before the", ""),
    ("cores", {}, {"helpers": 2}, OK, "3 threads", ""),
    ("cores", {"files": status("Cpus_allowed_list", "0-1,5")}, {}, OK, "3 cores", ""),
    ("cores", {"files": status("Cpus_allowed_list", "3")}, {}, WARNING, "1 core", "cores"),
    ("cores", {"files": status("Cpus_allowed_list", "3")}, {"helpers": 2, "threads": 1}, WARNING,
     "no faster", "helpers=1"),
    ("cores", {"files": {f"{JOB}/cpu.max": "150000 100000"}}, {}, WARNING, "1.5 cores",
     "SHMGPU_THREADS=1"),
    ("cores", {"files": {**V1, f"{CGROUP}/cpu/box/cpu.cfs_quota_us": "200000",
                         f"{CGROUP}/cpu/box/cpu.cfs_period_us": "100000"}}, {}, WARNING,
     "2 cores", "SHMGPU_THREADS=2"),
    ("cores", {"files": {**V1, f"{CGROUP}/cpu/box/cpu.cfs_quota_us": "-1",
                         f"{CGROUP}/cpu/box/cpu.cfs_period_us": "100000"}}, {}, OK, "8 cores", ""),
    ("cores", {}, {"helpers": 12}, WARNING, "no faster", "helpers=8"),
    ("cores", {}, {"helpers": 2, "threads": 8}, WARNING, "8 threads", "SHMGPU_THREADS=4"),
    ("cores", CUDA, {"helpers": 2}, OK, "no helper computes", ""),
    ("torch", {"torch": ""}, {}, WARNING, "numpy", "pip install torch"),
    ("torch", {"torch": ""}, {"devices": ["cuda:0"]}, FAILURE, "CUDA", "pip install torch"),
    ("device files", {}, {"devices": ["cuda:0"]}, FAILURE, "no GPU", "--gpus all"),
    ("device files", {}, {"devices": ["cpu"]}, OK, "on the CPU", ""),
    ("device files", {"files": {"dev/nvidia0": ""}}, {"devices": [0]}, FAILURE, "uvm", "modprobe"),
    ("device files", CUDA, {}, OK, "/dev/nvidia1", ""),
    ("visibility", CUDA, {}, OK, "cuda:1 A100, 80 GiB", ""),
    ("visibility", CUDA, {"devices": ["cuda:2"]}, FAILURE, "sees 2 devices", "CUDA_VISIBLE"),
    ("visibility", {**CUDA, "environ": {"CUDA_VISIBLE_DEVICES": ""}}, {"devices": [0]}, FAILURE,
     "hides", "unset"),
    ("visibility", {"files": GPU_FILES, "gpus": Gpus(error="no driver")}, {}, WARNING,
     "no driver", "nvidia-smi"),
    ("visibility", {"files": GPU_FILES, "gpus": Gpus(error="no driver")}, {"devices": [0]},
     FAILURE, "no driver", "nvidia-smi"),
    ("visibility", {"files": GPU_FILES}, {}, WARNING, "without CUDA", "pip install"),
    ("visibility", {"files": GPU_FILES, "gpus": Gpus("12.8")}, {}, WARNING, "driver", "driver"),
    ("memory caps", CUDA, {"helpers": 4, "gpu_memory": 50 * GIB}, FAILURE,
     "2 helpers may take 50 GiB each of cuda:0, 100 GiB in all, and it has 80 GiB",
     'gpu_memory="40448MiB"'),
    ("memory caps", CUDA, {"helpers": 4, "gpu_memory": 30 * GIB}, OK, "cuda:1: 61 GiB", ""),
    ("memory caps", CUDA, {"helpers": 4}, WARNING, "without a cap", "gpu_memory"),
    ("memory caps", CUDA, {"helpers": 2}, OK, "of 79 GiB free", ""),
    ("memory caps", {**CUDA, "gpus": Gpus("12", (Gpu("T4", 16 * GIB, 4 * GIB),))},
     {"gpu_memory": 8 * GIB}, WARNING, "4 GiB of 16 GiB are free", "nvidia-smi"),
    ("memory caps", {**CUDA, "gpus": Gpus("12", (Gpu("T4", 16 * GIB, 4 * GIB),))},
     {"gpu_memory": 8 * GIB, "helpers": 2}, WARNING, "4 GiB of 16 GiB are free",
     'gpu_memory="1536MiB"'),
    ("compute mode", {**CUDA, "gpus": Gpus("12", (Gpu("T4", GIB, GIB, 3),))}, {"helpers": 2},
     FAILURE, "one process", "-i 0 -c DEFAULT"),
    ("compute mode", {**CUDA, "gpus": Gpus("12", (Gpu("T4", GIB, GIB, 1),))}, {"helpers": 2},
     FAILURE, "one process", "-i 0 -c DEFAULT"),
    ("compute mode", {**CUDA, "gpus": Gpus("12", (Gpu("T4", GIB, GIB, 3),))}, {}, OK, "no GPU",
     ""),
    ("compute mode", {**CUDA, "gpus": Gpus("12", (Gpu("T4", GIB, GIB, 2),))}, {}, FAILURE,
     "no process", "DEFAULT"),
    ("locked memory", CUDA, {}, WARNING, "8 MiB", "ulimit -l"),
    ("locked memory", CUDA, {"devices": ["cpu"]}, OK, "no helper", ""),
    ("locked memory", {**CUDA, "files": {**GPU_FILES, **status("CapEff", "0000000000004000")}},
     {}, OK, "may be locked", ""),
    ("interpreter", {"interpreter": Interpreter(is_free_threaded=True)}, {}, FAILURE,
     "free-threaded", "ordinary"),
    ("quick calls", {"interpreter": Interpreter(why_not_quick=quick.SWITCHED_OFF)}, {}, WARNING,
     "SHMGPU_QUICK_CALLS", "unset"),
    ("quick calls", {"interpreter": Interpreter(why_not_quick=quick.NOT_BUILT)}, {}, WARNING,
     "not built", "install shmgpu once more"),
    ("quick calls", {"interpreter": Interpreter(why_not_quick=quick.OTHER_ARRAYS)}, {}, WARNING,
     "keeps the fields", "report it"),
    ("gRPC calls", {}, {}, OK, "by libnghttp2", ""),
    ("gRPC calls", {"interpreter": Interpreter(why_no_http2="no such file")}, {}, WARNING,
     "grpcio (no such file), which takes six times", "apt-get install libnghttp2-14"),
    ("gRPC calls", {"interpreter": Interpreter(has_grpc=False, why_no_http2="no such file")}, {},
     OK, "is not installed, either", ""),
    ("broker", {"interpreter": Interpreter(has_role=True)}, {}, FAILURE, "broker", "shutdown"),
    ("threads", {"interpreter": Interpreter(other_threads=("pump",))}, {}, FAILURE, "pump",
     "before"),
    ("OpenMP", {"interpreter": Interpreter(has_openmp_pool=True)}, {}, WARNING, "one thread",
     "before"),
    ("CUDA", {"interpreter": Interpreter(has_cuda=True)}, {}, FAILURE, "initialised", "before"),
    ("tracing", {"interpreter": Interpreter(tracer="coverage")}, {}, WARNING, "coverage",
     "inline=True"),
    ("tracing", {"environ": {"COVERAGE_PROCESS_START": "x"}}, {}, WARNING, "COVERAGE", "inline"),
    ("environment", {"environ": {"KMP_INIT_AT_FORK": "FALSE"}}, {}, WARNING, "OpenMP", "unset"),
    ("environment", {"environ": {"KMP_INIT_AT_FORK": "TRUE"}}, {}, OK, "", ""),
    ("environment", {"environ": {"LD_PRELOAD": "libfast.so"}}, {}, WARNING, "libfast", "unset"),
    ("process 1", {"interpreter": Interpreter(pid=1)}, {}, OK, "as an init", ""),
    ("debuggers", {"files": {"proc/sys/kernel/yama/ptrace_scope": "2"}}, {}, WARNING, "=2",
     "ptrace_scope=1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "machine", "plan", "expected", "word", "fix"),
    ROWS,
    ids=[f"{index}-{row[0]}" for index, row in enumerate(ROWS)],
)
def test_a_check_says_what_is_wrong_and_what_mends_it(
    name, machine, plan, expected, word, fix, tmp_path
):
    devices = plan.get("devices", [])
    sizes = {key: value for key, value in plan.items() if key != "devices"}
    found = finding(MadeUp(tmp_path, **machine), Plan.resolve(devices, **sizes), name)
    assert (found.status, word in found.sentence) == (expected, True), found
    assert fix in found.fix, found
    assert bool(found.fix) == (expected != OK)
    assert "\n" not in found.sentence + found.fix


def soft(name):
    return lambda n: {"files": limits(name, n)}


def contents(path, text="{}", **kib):
    return lambda n: {"files": {**meminfo(**kib), path: text.format(n)}}


def kib(key, **others):
    return lambda n: {"files": meminfo(**{**others, key: n})}


def a_gpu(total=100 * GIB, free=100 * GIB):
    return {"files": GPU_FILES, "gpus": Gpus("12", (Gpu("T4", total, free),))}


EIGHT, FULL, TWO_CAPS = {"children": 8}, {"children": 800}, {"helpers": 2, "gpu_memory": GIB}
PAYLOAD = Plan().payload

# (check, the machine by a number, the plan, the number, the status just below it, that from it on)
BOUNDS = [
    ("open files", soft("Max open files"), EIGHT, descriptors_needed(9, 1), FAILURE, OK),
    ("files of the system", contents("proc/sys/fs/file-nr", "2000 0 {}"), EIGHT,
     2000 + descriptors_needed(9, 0) + 8 * 9, FAILURE, OK),
    ("user's processes", soft("Max processes"), EIGHT, 9, FAILURE, WARNING),
    ("user's processes", soft("Max processes"), EIGHT, 8 + 7, WARNING, OK),
    ("user's processes", lambda n: {**CUDA, "files": {**GPU_FILES, **limits("Max processes", n)}},
     {"devices": ["cuda:0"], "helpers": 2}, 1 + 2 * 9, WARNING, OK),
    ("cgroup's processes", contents(f"{JOB}/pids.max"), EIGHT, 9, FAILURE, WARNING),
    ("cgroup's processes", contents(f"{JOB}/pids.max"), EIGHT, 8 + 7, WARNING, OK),
    ("system's processes", contents("proc/sys/kernel/pid_max"), EIGHT, 400 + 9, FAILURE, WARNING),
    ("system's processes", contents("proc/sys/kernel/threads-max"), EIGHT, 400 + 15, WARNING, OK),
    ("pipes", contents("proc/sys/fs/pipe-user-pages-hard"), {}, 2 * 2 * 16, FAILURE, OK),
    ("pipes", contents("proc/sys/fs/pipe-user-pages-soft"), {"window": 65}, 64, WARNING, OK),
    ("pipes", contents("proc/sys/fs/pipe-max-size"), {"window": 65}, 3 * 4096, WARNING, OK),
    ("pipes", lambda n: {"pipe": n}, {"window": 65}, 3 * 4096, WARNING, OK),
    ("pipes", lambda n: {"pipe": n}, {}, 4096, FAILURE, OK),
    ("pipes", lambda n: {"pipe": 8192}, lambda n: {"window": n}, 65, OK, WARNING),
    ("addresses", soft("Max address space"), {}, Plan().addresses + 200000 * 1024, FAILURE, OK),
    ("mappings", contents("proc/sys/vm/max_map_count"), FULL, 2 * 801 + 1, FAILURE, WARNING),
    ("mappings", contents("proc/sys/vm/max_map_count"), FULL, 1603 + 4096, WARNING, OK),
    ("mappings", contents("proc/sys/vm/max_map_count"), {**FULL, "scratch": 0}, 2 * 800 + 1,
     FAILURE, WARNING),
    ("file size", soft("Max file size"), {}, 64 * MIB, FAILURE, OK),
    ("file size", soft("Max file size"), {"scratch": 65 * MIB}, 65 * MIB, FAILURE, OK),
    ("core files", contents("proc/sys/kernel/core_pattern", "|core"),
     lambda n: {"arena": n, "scratch": 0}, GIB - 4095, OK, WARNING),
    ("arenas", kib("MemAvailable"), {}, PAYLOAD // 1024, FAILURE, OK),
    ("with processes", kib("MemAvailable"), {}, (PAYLOAD + 68 * MIB) // 1024, WARNING, OK),
    ("with processes", lambda n: {**CUDA, "files": {**GPU_FILES, **meminfo(MemAvailable=n)}},
     {"devices": ["cuda:0", "cpu"], "helpers": 3, "children": 2},
     (Plan(2, 3).payload + 2 * 4 * MIB + 64 * MIB + 2 * GIB) // 1024, WARNING, OK),
    ("swap", kib("MemAvailable", SwapFree=1), {}, PAYLOAD // 1024, WARNING, OK),
    ("cgroup", lambda n: {"files": {f"{JOB}/memory.max": f"{n}",
                                    f"{JOB}/memory.current": f"{9 * MIB}"}},
     {}, 10 * MIB - 1, WARNING, OK),
    ("cgroup", contents(f"{JOB}/memory.high"), {}, PAYLOAD + 1000000, WARNING, OK),
    ("overcommit", lambda n: {"files": {"proc/sys/vm/overcommit_memory": "2",
                                        **meminfo(CommitLimit=n)}},
     {}, 4194304 + PAYLOAD // 1024 + 2 * 100000, WARNING, OK),
    ("overcommit", lambda n: {"files": {"proc/sys/vm/overcommit_memory": "2",
                                        **status("VmData", "0 kB"), **meminfo(CommitLimit=n)}},
     {}, 4194304 + PAYLOAD // 1024, WARNING, OK),
    ("out of memory", contents("proc/self/oom_score_adj"), {}, 1000, OK, WARNING),
    ("cores", contents(f"{JOB}/cpu.max", "{} 1000"), {"threads": 1}, 2000, WARNING, OK),
    ("cores", contents(f"{JOB}/cpu.max", "{} 1000"), {"helpers": 4, "threads": 1}, 4000, WARNING,
     OK),
    ("cores", contents(f"{JOB}/cpu.max", "{} 1000"), {"helpers": 2, "threads": 2}, 4000, WARNING,
     OK),
    ("locked memory", lambda n: {**CUDA, "files": {**GPU_FILES, **limits("Max locked memory", n)}},
     {}, PAYLOAD, WARNING, OK),
    ("memory caps", lambda n: a_gpu(total=n), TWO_CAPS, 2 * GIB, FAILURE, OK),
    ("memory caps", lambda n: a_gpu(free=n), TWO_CAPS, 3 * GIB, WARNING, OK),
    ("visibility", lambda n: a_gpu(), lambda n: {"devices": [f"cuda:{n}"]}, 1, OK, FAILURE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "machine", "plan", "bound", "below", "from_it_on"),
    BOUNDS,
    ids=[f"{index}-{row[0]}" for index, row in enumerate(BOUNDS)],
)
def test_a_check_changes_its_mind_at_its_bound(
    name, machine, plan, bound, below, from_it_on, tmp_path
):
    def status_at(number):
        settings = {"devices": [], **(plan(number) if callable(plan) else plan)}
        made_up = MadeUp(tmp_path / str(number), **machine(number))
        return finding(made_up, Plan.resolve(**settings), name).status

    found = [status_at(number) for number in (bound - 1, bound, bound + 1)]
    assert found == [below, from_it_on, from_it_on]


def test_checks_of_a_group_stand_together():
    groups = [group for group, _ in itertools.groupby(check.group for check in doctor.CHECKS)]
    assert groups == ["kernel", "limits", "memory", "processors", "GPUs", "forking"]


def test_every_check_that_can_complain_is_made_to():
    assert {check.name for check in doctor.CHECKS} - {row[0] for row in ROWS} == {"settings"}
    complained = {row[0] for row in ROWS if row[3] != OK}
    assert {row[0] for row in ROWS} - complained == {"/dev/shm", "process 1"}


def test_a_healthy_machine_has_nothing_to_complain_of(tmp_path):
    plan = Plan(children=32, helpers=2)
    assert [one for one in doctor.examine(plan, MadeUp(tmp_path)) if one.status != OK] == []


def test_an_empty_machine_is_judged_without_a_traceback(tmp_path):
    (tmp_path / "proc").mkdir()
    found = doctor.examine(Plan(), MadeUp(tmp_path, dict.fromkeys(HEALTHY)))
    assert len(found) == len(doctor.CHECKS)


def test_a_device_file_that_is_shut_is_named(tmp_path, monkeypatch):
    machine = MadeUp(tmp_path, **CUDA)
    monkeypatch.setattr(machine, "may_use", lambda path: path != "/dev/nvidia1")
    found = finding(machine, Plan(devices=("cuda:0",)), "device files")
    assert found.status == FAILURE and "/dev/nvidia1 may not" in found.sentence
    assert "chmod a+rw /dev/nvidia1" in found.fix


def test_an_unknown_variable_is_told_of(monkeypatch):
    monkeypatch.setenv("SHMGPU_ARENAS", "1GiB")
    found = finding(Machine(), Plan(), "settings")
    assert found.status == WARNING and found.fix == "unset SHMGPU_ARENAS"


def test_a_plan_takes_what_is_not_said_from_the_environment(monkeypatch):
    monkeypatch.setenv("SHMGPU_CHILDREN", "7")
    monkeypatch.setenv("SHMGPU_ARENA", "1MiB")
    plan = Plan.resolve(arena="2MiB")
    assert (plan.children, plan.helpers, plan.arena, plan.window) == (7, 1, 2 * MIB, 64)
    monkeypatch.setenv("SHMGPU_HELPERS", "many")
    with pytest.raises(errors.ConfigError, match="SHMGPU_HELPERS"):
        Plan.resolve()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (64 * MIB, "64 MiB"), (3 * GIB // 2, "1.5 GiB")]
)
def test_sizes_are_said_in_binary_units(count, text):
    assert size(count) == text


# ---- this machine --------------------------------------------------------------------------


def test_kernel_features_work_where_these_tests_do():
    needed = set(probes.PROBES) - {"precise_wait", "populate", "oom_score"}
    assert {name: probes.why_refused(name) for name in needed} == dict.fromkeys(needed, "")


def refused(*_, **__):
    raise PermissionError(errno.EPERM, "not in here")


@pytest.mark.parametrize(
    ("probe", "module", "call"),
    [
        ("memory_file", os, "memfd_create"),
        ("memory_file", fcntl, "fcntl"),
        ("memory_file", mmap, "mmap"),
        ("process_descriptor", os, "pidfd_open"),
        ("process_descriptor", select, "epoll"),
        ("process_descriptor", signal, "pidfd_send_signal"),
        ("process_descriptor", os, "waitid"),
        ("populate", mmap, "mmap"),
    ],
)
def test_each_call_that_a_feature_takes_may_be_refused(probe, module, call, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(module, call, refused)
        found = probes.why_refused(probe)
    assert found == "not in here"


@pytest.mark.parametrize("probe", ["death_signal", "futex", "precise_wait"])
def test_what_the_c_library_is_refused_is_told(probe, monkeypatch):
    class Library:
        def refuses(self, *_):
            ctypes.set_errno(errno.EPERM)
            return -1

        prctl = syscall = refuses

    monkeypatch.setattr(probes, "_libc", Library)
    assert probes.why_refused(probe) == os.strerror(errno.EPERM)


@pytest.mark.parametrize("option", [probes.PR_SET_PDEATHSIG, probes.PR_GET_PDEATHSIG])
def test_either_half_of_a_feature_may_be_refused(option, monkeypatch):
    class Library:
        def prctl(self, asked, *_):
            ctypes.set_errno(errno.EPERM)
            return -1 if asked == option else 0

    monkeypatch.setattr(probes, "_libc", Library)
    assert probes.why_refused("death_signal") == os.strerror(errno.EPERM)


def test_a_probe_leaves_the_process_as_it_is():
    def death_signal():
        asked = ctypes.c_int(0)
        assert probes._libc().prctl(probes.PR_GET_PDEATHSIG, ctypes.byref(asked), 0, 0, 0) == 0
        return asked.value

    before = death_signal()
    try:
        for number in (0, signal.SIGURG):
            probes._libc().prctl(probes.PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)
            assert probes.why_refused("death_signal") == "" and death_signal() == number
    finally:
        probes._libc().prctl(probes.PR_SET_PDEATHSIG, ctypes.c_ulong(before), 0, 0, 0)
    open_before = os.listdir("/proc/self/fd")
    for name in probes.PROBES:
        probes.why_refused(name)
    probes.pipe_bytes()
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


@pytest.mark.parametrize(("used", "left"), [(0, 100), (99, 1), (100, 0), (101, 0)])
def test_where_all_is_used_nothing_is_left(tmp_path, used, left):
    proc, job = tmp_path / "proc", tmp_path / JOB
    for directory in (proc / "self", proc / "sys/vm", job):
        directory.mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/user.slice/job\n")
    (proc / "sys/vm/overcommit_memory").write_text("2\n")
    (proc / "meminfo").write_text(f"CommitLimit: 100 kB\nCommitted_AS: {used} kB\n")
    for name in ("memory.max", "memory.high", "pids.max"):
        (job / name).write_text("100\n")
        (job / f"{name.partition('.')[0]}.current").write_text(f"{used}\n")
    machine = Machine(str(tmp_path))
    for found in (
        machine.memory_headroom_of_cgroup(),
        machine.memory_throttle(),
        machine.task_headroom_of_cgroup(),
    ):
        assert (found.left, found.total) == (left, 100)
    committed = [one for one in machine.memory_headrooms() if "commit" in one.limited_by]
    assert [(one.left, one.total) for one in committed] == [(left * 1024, 100 * 1024)]


def test_what_a_probe_finds_out_by_itself_is_said_in_its_words(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert probes.why_refused("futex") == "vax is not known to shmgpu"

    def refuses():
        raise ValueError("unknown advice")

    monkeypatch.setitem(probes.PROBES, "populate", refuses)
    assert probes.why_refused("populate") == "unknown advice"


def test_a_memory_file_that_its_seals_do_not_protect_is_none(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", lambda *_: 0)
        found = probes.why_refused("memory_file")
    assert found == "a sealed file could be shrunk"


def test_a_probe_that_fails_says_why():
    with pytest.raises(OSError, match="Cannot allocate"):
        probes.reserve(1 << 50)
    assert "Cannot allocate" in Machine().why_not_reserved(1 << 50)


def test_memory_is_counted_as_the_core_counts_it():
    with pytest.raises(errors.LaunchError) as refused:
        core.check_memory(1 << 62)
    [told] = re.findall(r"has (\d+) MiB to give", str(refused.value))
    assert Machine().memory_headrooms()[0].left / MIB == pytest.approx(int(told), rel=0.1)


@pytest.mark.parametrize(
    ("quota", "share"), [("max 100000", 1000), ("250000 100000", 2), ("1000 100000", 1), ("", 1000)]
)
def test_cores_are_counted_as_a_launch_counts_them(quota, share, tmp_path, monkeypatch):
    path = tmp_path / "sys/fs/cgroup/cpu.max"
    path.parent.mkdir(parents=True)
    path.write_text(quota)
    monkeypatch.setattr(Machine, "affinity", lambda self: 8)
    assert Machine(str(tmp_path)).cores_for_launch() == min(8, share)
    monkeypatch.undo()
    assert Machine().cores_for_launch() == devices.cores()


def test_without_descriptors_no_pipe_has_a_size():
    assert Machine().pipe_bytes() > 0
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        found = Machine().pipe_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == 0


def test_torch_s_version_is_told_without_importing_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.1"))
    assert Machine().torch_version() == "9.1"
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 8")
    assert Machine().torch_version() == "torch 8"

    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert Machine().torch_version() == "unknown"
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert Machine().torch_version() == ""


@pytest.mark.parametrize("huge_pages", [False, True])
def test_addresses_are_counted_as_the_core_counts_them(huge_pages):
    plan = Plan(children=2, helpers=1, arena=100_000, scratch=5000, huge_pages=huge_pages)
    reserved = shmgpu.launch(
        lambda rank: core.reservation()[1],
        children=2, helpers=1, arena=100_000, scratch=5000, huge_pages=huge_pages, devices="cpu",
    )  # fmt: skip
    assert reserved == [plan.addresses] * 2


def test_threads_and_tracers_of_this_process_are_seen():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="pump")
    thread.start()
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        seen = Machine().interpreter
    finally:
        sys.settrace(before)
        stop.set()
        thread.join()
    assert "pump" in seen.other_threads and seen.tracer
    assert seen.version == platform.python_version()
    assert Machine().interpreter.other_threads == ()


@pytest.mark.parametrize(
    ("numbers", "said"), [((), ""), ((0,), "tool 0"), ((5,), "tool 5"), ((3, 4), "tool 3")]
)
def test_a_tool_that_monitors_this_process_is_named(numbers, said, monkeypatch):
    def get_tool(number):
        assert 0 <= number < 6
        return f"tool {number}" if number in numbers else None

    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setattr(sys, "monitoring", SimpleNamespace(get_tool=get_tool), raising=False)
    assert machines._tracer() == said


def test_a_plan_has_no_settings_but_those_of_a_launch():
    with pytest.raises(TypeError, match="a plan has no setting 'colour'"):
        Plan.resolve(colour="red", taste="sweet")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            'print(\'noise\\n{"cuda": "12.8", "devices": '
            '[{"name": "A", "total": 2, "free": 1, "mode": 0}]}\')',
            Gpus("12.8", (Gpu("A", 2, 1),)),
        ),
        ("raise RuntimeError('no driver')", Gpus(error="RuntimeError: no driver")),
        ("print('[]')", None),
        ("import os; os._exit(7)", Gpus(error="it ended with 7")),
    ],
    ids=["found", "raised", "nonsense", "killed"],
)
def test_gpus_are_asked_for_in_another_process(code, expected, tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(machines, "_ASK_GPUS", code)
    got = Machine(str(tmp_path)).gpus
    assert got == expected if expected else got.error and not got.devices


def test_gpus_that_do_not_answer_in_time_are_said_not_to(tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(machines, "_ASK_GPUS", "import time; time.sleep(60)")
    monkeypatch.setattr(machines, "GPU_ANSWER_S", 0.01)
    error = Machine(str(tmp_path)).gpus.error
    assert error == "torch did not answer within 0 seconds"


# ---- the command ---------------------------------------------------------------------------


def run(*arguments, shell="", user=(), **settings):
    """shmgpu doctor in a process of its own, under limits that a shell sets first."""
    command = [*user, sys.executable, "-m", "shmgpu.cli.main", "doctor", *arguments]
    return subprocess.run(
        ["bash", "-c", f'{shell or ":"} && exec "$@"', "bash", *command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **settings,
    )  # fmt: skip


def statuses(done):
    assert done.stdout, done.stderr
    return {one["name"]: one["status"] for one in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("limit", "arguments", "name"),
    [
        ("ulimit -n 64", [], "open files"),
        ("ulimit -v 8000000", ["--children", "16", "--arena", "1GiB"], "addresses"),
        ("ulimit -f 16", [], "file size"),
    ],
)
def test_a_limit_that_is_too_low_ends_with_status_1(limit, arguments, name):
    done = run("--json", *arguments, shell=limit)
    assert done.returncode == 1, done.stderr
    assert statuses(done)[name] == FAILURE


def test_an_ordinary_user_may_run_it_and_is_held_to_limits_on_processes():
    user = ()
    if os.geteuid() == 0:
        user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        code = [*user, sys.executable, "-c", "import shmgpu"]
        if not shutil.which("setpriv") or subprocess.run(code, capture_output=True).returncode:
            pytest.skip("no other user can import shmgpu from here")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = run("--json", "--children", "300", shell="ulimit -u 200", user=user, env=environment)
    assert done.returncode == 1, done.stderr
    assert statuses(done)["user's processes"] == FAILURE


# Installs a seccomp filter that refuses one system call with EPERM, and goes on as another program.
FILTERED = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x00050001),
        (0x06, 0, 0, 0x7FFF0000)]
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(rules)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):
    sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine())


@pytest.mark.skipif(MEMFD_CREATE is None, reason="the system call has another number here")
def test_a_system_call_that_a_filter_refuses_is_found_by_trying():
    """As in a container whose seccomp profile does not know memory files."""
    done = run(
        "--json", "--devices", "cpu", user=(sys.executable, "-c", FILTERED, str(MEMFD_CREATE))
    )
    if done.returncode == 77:
        pytest.skip("no seccomp filter can be installed here")
    assert done.returncode == 1, done.stderr
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["name"] == "memory files"]
    assert found["status"] == FAILURE and "not permitted" in found["sentence"]
    assert "seccomp" in found["fix"]


LAUNCH = 'import shmgpu; shmgpu.launch(lambda rank: 0, children=20, arena="64KiB", devices="cpu")'


def test_the_doctor_and_launch_agree_about_open_files():
    refused = run("--children", "20", shell="ulimit -n 64")
    [needed] = re.findall(r"(\d+) open files may be needed, and the hard limit", refused.stdout)
    judged = run("--children", "20", shell=f"ulimit -n {needed}")
    assert judged.returncode == 0, judged.stdout
    for limit, is_enough in ((int(needed), True), (int(needed) - 8, False)):
        launched = subprocess.run(
            ["bash", "-c", f'ulimit -n {limit} && exec "$@"', "bash", sys.executable, "-c", LAUNCH],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (launched.returncode == 0) == is_enough, launched.stderr


@pytest.mark.cold
def test_it_imports_no_torch_where_there_is_no_gpu():
    code = (
        "import sys; from shmgpu import doctor; "
        "doctor.examine(doctor.Plan(devices=('cpu',))); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("arguments", [["--children", "0"], ["--arena", "big"], ["--devices", "x"]])
def test_wrong_sizes_end_with_usage_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *arguments])
    assert ended.value.code == 2
    assert "usage: shmgpu doctor" in capsys.readouterr().err


def test_a_wrong_variable_ends_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("SHMGPU_WINDOW", "wide")
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith("shmgpu: SHMGPU_WINDOW")


def test_json_holds_the_plan_and_every_finding(capsys):
    cli.main(["doctor", "--json", "--children", "3", "--devices", "cpu"])
    told = json.loads(capsys.readouterr().out)
    assert told["plan"]["children"] == 3 and told["plan"]["devices"] == ["cpu"]
    assert [one["name"] for one in told["findings"]] == [check.name for check in doctor.CHECKS]
    assert told["failures"] == sum(one["status"] == FAILURE for one in told["findings"])
    assert set(told["findings"][0]) == {"group", "name", "status", "sentence", "fix"}


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals(variables, coloured):
    environment = {**os.environ, "TERM": "xterm", **variables}
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "shmgpu.cli.main", "doctor", "--devices", "cpu"]
        with subprocess.Popen(command, stdout=theirs, env=environment) as process:
            os.close(theirs)
            printed = b""
            try:
                while piece := os.read(ours, 65536):
                    printed += piece
            except OSError:
                pass  # so a terminal says that nobody has it open any more
        assert process.returncode in (0, 1)
    finally:
        os.close(ours)
    assert b"release" in printed
    assert (b"\x1b[" in printed) == coloured


def test_text_is_plain_and_a_line_for_each_finding_in_a_pipe(tmp_path):
    found = doctor.examine(Plan(children=32, arena=GIB), MadeUp(tmp_path))
    text = findings.show(Plan(children=32, arena=GIB), found)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert len([line for line in lines if re.match(r"  (ok|warning|failure) ", line)]) == len(found)
    [failed] = [index for index, line in enumerate(lines) if line.startswith("  failure  arenas")]
    assert lines[failed + 1].strip().startswith('fix: arena="383MiB"')
    assert lines[-1].endswith(" 1 failure.")


def test_text_is_folded_at_a_terminals_width(tmp_path):
    found = doctor.examine(Plan(children=32, arena=GIB), MadeUp(tmp_path))
    text = findings.show(Plan(), found, width=80)
    assert max(map(len, text.splitlines())) <= 80


def test_text_is_folded_only_where_a_column_of_twenty_is_left(tmp_path):
    found = doctor.examine(Plan(), MadeUp(tmp_path))
    plain = findings.show(Plan(), found)
    margin = 2 + len("failure") + 2 + max(len(one.name) for one in found) + 2
    assert findings.show(Plan(), found, width=margin + 20) == plain
    assert findings.show(Plan(), found, width=margin + 21) != plain


def test_quiet_text_holds_only_what_is_not_fine(tmp_path):
    found = doctor.examine(Plan(children=32, arena=GIB), MadeUp(tmp_path))
    text = findings.show(Plan(), found, quiet=True)
    assert "failure  arenas" in text and "  ok " not in text
    assert findings.show(Plan(), [one for one in found if one.status == OK], quiet=True)


PAGE = ROOT / "shmgpu" / "doctor" / "README.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the package's pages are not here")
def test_the_pages_sample_is_what_it_prints(tmp_path):
    """On a machine with one GPU, in a container that may have 40 tasks and 16 GiB."""
    page = PAGE.read_text(encoding="utf-8")
    [(arguments, sample)] = re.findall(r"(?s)```console\n\$ shmgpu doctor (.*?)\n(.*?)```", page)
    files = {
        **GPU_FILES,
        "proc/self/cgroup": "0::/\n",
        f"{CGROUP}/pids.max": "40\n",
        f"{CGROUP}/pids.current": "5\n",
        f"{CGROUP}/memory.max": f"{16 * GIB}\n",
        f"{CGROUP}/memory.current": f"{GIB}\n",
        f"{THP}/shmem_enabled": "always within_size advise [never] deny force\n",
        **limits("Max locked memory", "unlimited"),
        **meminfo(MemTotal=64 << 20, MemAvailable=60 << 20),
    }
    machine = MadeUp(tmp_path, files, gpus=Gpus("12.8", (A100,)))
    options = cli._parser().parse_args(["doctor", *arguments.split()])
    plan = Plan.resolve(**{name: getattr(options, name) for name in Plan.__dataclass_fields__})
    assert sample == findings.show(plan, doctor.examine(plan, machine), quiet=options.quiet) + "\n"
