"""In a helper: how much memory the process has in use, so that loading a model can be measured.

Owns how it is measured: private memory of the process, and on a GPU what torch has allocated there.
What another library allocates on a GPU is not seen. Never imports torch.
"""

from __future__ import annotations

import pathlib
import sys

_STATUS = pathlib.Path("/proc/self/status")


def in_use(device: str) -> tuple[int, int]:
    """Bytes of the process's private memory, and of its memory on a device such as "cuda:0"."""
    return _private(_STATUS.read_text()), _on(device)


def _private(status: str) -> int:
    """Files that are mapped aside, such as libraries: they are shared, and can be dropped."""
    found = next((line for line in status.splitlines() if line.startswith("RssAnon:")), None)
    return int(found.split()[1]) << 10 if found is not None else 0


def _on(device: str) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return 0
    nbytes: int = torch.cuda.memory_allocated(device)
    return nbytes


def gpu_of(device: str) -> int | None:
    """The number of a device of CUDA's; None: it is the CPU."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None
