"""The names of ``torch.cuda`` that programs ask before they compute.

Owns the answers. Programs need none of them: :func:`shmgpu.set_backend` and the broker decide where
tensors live. Never initialises CUDA: only helpers hold devices.
"""

from __future__ import annotations

from typing import Any

from shmgpu.child import runtime
from shmgpu.common import devices as machine
from shmgpu.tensors import current, devices
from shmgpu.tensors.tensor import manual_seed

__all__ = [
    "current_device",
    "device_count",
    "empty_cache",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "synchronize",
]

manual_seed_all = manual_seed


def __dir__() -> list[str]:
    return __all__


def is_available() -> bool:
    """Whether tensors are computed on a CUDA device; in no broker, whether the machine has one."""
    if runtime.current is None:
        return machine.available() > 0
    return devices.here().type == "cuda"


def device_count() -> int:
    """On how many CUDA devices tensors live; in no broker, how many the machine has."""
    if runtime.current is None:
        return machine.available()
    found = {devices.of_helper(number) for number in current.recorder().helpers}
    return sum(one.type == "cuda" for one in found)


def current_device() -> int:
    """The number of the CUDA device that tensors are computed on.

    Raises:
        RuntimeError: they are computed on none.
    """
    here = devices.here()
    if here.type != "cuda":
        raise RuntimeError(f"tensors are computed on {here}, not on a CUDA device")
    return here.index or 0


def synchronize(device: Any = None) -> None:
    """Compute everything that was recorded, and wait for it."""
    devices.accepted(device)
    current.recorder().flush()


def empty_cache() -> None:
    """Does nothing: helpers return memory as they need to."""
