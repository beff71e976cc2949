"""tinygrad's devices: helpers by name, and meshes of several of them.

Owns what a name means: ``"helper:1"`` is helper 1, in any case of letters, and a tuple of names is
a mesh in that order. Never places a tensor that is on one device: helpers are chosen by where its
inputs lie.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from shmgpu.distributed.mesh import Mesh
from shmgpu.parallel.device_mesh import HELPER, DeviceMesh, mesh_of_helpers
from shmgpu.parallel.watching import set_algorithm
from shmgpu.tensors import current, devices

_NAMED = re.compile(rf"{HELPER}(?::(\d+))?", re.IGNORECASE)


class _Helpers:
    """What ``Device`` is.

    Attributes:
        DEFAULT: the kind of device that there is; a program may set it to a helper's name.
    """

    DEFAULT = HELPER

    def __getitem__(self, name: str) -> _Helpers:
        """For ``Device[name].synchronize()``."""
        number_of(name)
        return self

    def synchronize(self) -> None:
        """Wait until all that was recorded is computed."""
        current.recorder().flush([])


class GlobalCounters:
    """Accepted where programs reset it: ``shmgpu.stats()`` and ``CommDebugMode`` count."""

    @staticmethod
    def reset() -> None:
        """Does nothing."""


Device = _Helpers()


class DeviceName(str):
    """A device's name."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """What the helpers compute on, ``"cpu"`` or ``"cuda"``."""
        return devices.here().type


class DeviceNames(tuple[str, ...]):
    """The names of a mesh's members, in order."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """What they compute on."""
        return devices.here().type


def number_of(name: Any) -> int:
    """Which helper that is; the first one where the name has no number.

    Raises:
        ValueError: it is no helper's name.
    """
    named = _NAMED.fullmatch(name) if isinstance(name, str) else None
    if named is None:
        raise ValueError(
            f"there is no device {name!r}: devices are helpers, such as 'helper:0', and "
            "Device.DEFAULT is 'helper'"
        )
    return int(named[1] or 0)


def mesh_of_names(names: Sequence[str]) -> DeviceMesh:
    """The mesh of these helpers, in this order.

    Raises:
        ValueError: a name is no helper's, or stands twice.
        ConfigError: there are fewer helpers.
    """
    made = mesh_of_helpers([number_of(name) for name in names])
    if (algorithm := _asked_for()) is not None:
        placer: Any = current.recorder().placer
        if placer.algorithm != algorithm:
            set_algorithm(placer, algorithm)
    return made


def _asked_for() -> str | None:
    """The algorithm of all_reduces that tinygrad's variables ask for."""
    if os.environ.get("ALL2ALL") == "2":
        return "all_to_all"
    return {"2": "ring", "0": "naive"}.get(os.environ.get("RING", ""))


def names_of(mesh: Mesh) -> DeviceNames:
    """How its members are called."""
    return DeviceNames([f"{HELPER}:{number}" for number in mesh.helpers])
