"""What the figures were measured on: machine, GPUs, limits, versions, settings, load, commit.

Everything is read, nothing is changed; what cannot be read is None.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.measure.native import ROOT, compiler, flags

# shmgpu, what it stands on, and every peer; a package that is not installed is None.
PACKAGES = (
    "shmgpu",
    "cffi",
    "numpy",
    "torch",
    "faster-fifo",
    "httptools",
    "iceoryx2",
    "litserve",
    "mosec",
    "msgpack",
    "pyzmq",
    "ray",
    "simpy",
    "tensordict",
    "torchrl",
    "uvicorn",
    "uvloop",
)


def describe() -> dict[str, Any]:
    """Return the environment as plain data."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "hypervisor": "hypervisor" in (_read("/proc/cpuinfo") or ""),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "container": _container_limits(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "gpus": _gpus(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("SHMGPU_")},
        "packages": {name: _version(name) for name in PACKAGES},
        "compiler": _first_line([compiler(), "--version"]),
        "flags": " ".join(flags()),
    }


def summary(environment: dict[str, Any]) -> str:
    """Return the environment in two lines for the terminal."""
    packages = [f"{name} {v}" for name, v in environment["packages"].items() if v]
    load = environment["load_average"][0]
    return (
        f"{environment['cpu']}, {environment['cores_allowed']} of {environment['cores']} cores, "
        f"Linux {environment['kernel']}, load {load:.2f}, commit {environment['commit']}\n"
        f"Python {environment['python']}, {', '.join(packages)}"
    )


def busy_warning(environment: dict[str, Any]) -> str | None:
    """Return a sentence when other work is likely to disturb the figures."""
    load = environment["load_average"][0]
    if load <= 0.5 * environment["cores_allowed"]:
        return None
    return f"The machine is busy (load {load:.2f}): ratios hold better than values, both spread."


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _first_line(command: list[str], folder: Path | None = None) -> str | None:
    lines = _lines(command, folder)
    return lines[0] if lines else None


def _lines(command: list[str], folder: Path | None = None) -> list[str] | None:
    """Return what the command printed; None where it is not there or failed."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def _gpus() -> list[str]:
    """Return each GPU's name, driver and memory, as nvidia-smi says them."""
    wanted = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return _lines(["nvidia-smi", *wanted]) or []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _commit() -> str | None:
    commit = _first_line(["git", "rev-parse", "--short=12", "HEAD"], ROOT)
    if commit is None:
        return None
    changed = _first_line(["git", "status", "--porcelain", "--untracked-files=no"], ROOT)
    return f"{commit}+changes" if changed else commit


def _container_limits() -> dict[str, str | None]:
    """Return the control group's limits, of version 2 or else of version 1."""
    group = Path("/sys/fs/cgroup")
    own = re.search(r"^0::(/.*)$", _read("/proc/self/cgroup") or "", re.MULTILINE)
    folders = [group / own[1].lstrip("/"), group] if own else [group]
    names = {"cpu": ("cpu.max", "cpu/cpu.cfs_quota_us"), "memory": ("memory.max", "")}
    limits: dict[str, str | None] = {}
    for what, (name, old_name) in names.items():
        found = [_read(folder / name) for folder in folders]
        found.append(_read(group / (old_name or "memory/memory.limit_in_bytes")))
        limits[what] = next((text for text in found if text), None)
    return limits
