"""Devices in PyTorch's spelling: the names of where tensors live.

Owns :class:`device`, and the answer to where this program's tensors are computed. Arguments called
``device`` are accepted throughout and change nothing; :func:`shmgpu.set_backend` chooses. Never
moves a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shmgpu.child import runtime
from shmgpu.tensors import current, functions

KINDS = ("cpu", "cuda", "mps", "meta", "xpu")  # PyTorch's words for them
_NAMED = re.compile(r"([a-z]+)(?::(\d+))?")
FOUND = "device of tensors"  # in a runtime's extra: by helper, for it costs a call


class device:
    """A device's name: ``device("cpu")``, ``device("cuda:1")``, ``device("cuda", 1)``.

    Attributes:
        type: "cpu", "cuda", ...
        index: which of them; None where that is not said.

    Raises:
        RuntimeError: there is no such kind of device.
    """

    __slots__ = ("index", "type")

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, int) and not isinstance(type, bool):
            type, index = "cuda", type
        if hasattr(type, "type"):
            type, index = type.type, type.index
        named = _NAMED.fullmatch(type) if isinstance(type, str) else None
        if named is None or named[1] not in KINDS:
            raise RuntimeError(
                f"device({type!r}): name one of {', '.join(KINDS)}, with a number as in cuda:0"
            )
        if index is not None and named[2] is not None:
            raise RuntimeError(f"device({type!r}, {index}): the number is given twice")
        self.type: str = named[1]
        self.index: int | None = index if named[2] is None else int(named[2])

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, device):
            return NotImplemented
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> Any:
        return device, (str(self),)


def is_device(given: Any) -> bool:
    """Whether that names a device, and not an element type."""
    if isinstance(given, device):
        return True
    name = str(getattr(given, "type", given))  # PyTorch's have such an attribute, too
    return name.partition(":")[0] in KINDS


def accepted(given: Any) -> None:
    """RuntimeError where what was passed as ``device`` names none."""
    if given is not None and type(given) is not device:
        device(given)


def here() -> device:
    """Where this program's tensors live: the device of its helpers, of the first if they differ."""
    return of_helper(current.recorder().helpers[0])


def are_known_hosts(numbers: Sequence[int]) -> bool:
    """Whether all of these helpers are known to compute on the CPU. None is asked."""
    means = runtime.require()
    if means.extra.get("backend", current.backend()) == "numpy":
        return True
    found: dict[int, device] = means.extra.get(FOUND, {})
    return all(number in found and found[number].type == "cpu" for number in numbers)


def of_helper(number: int) -> device:
    """Where that helper computes tensors. It is asked once."""
    means = runtime.require()
    if means.extra.get("backend", current.backend()) == "numpy":
        return device("cpu")
    found: dict[int, device] = means.extra.setdefault(FOUND, {})
    if number not in found:
        found[number] = device(functions.device_of.options(helpers=[number])())
    return found[number]
