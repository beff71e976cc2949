"""Collectives of tensors on a device through host memory: for helpers that share a GPU.

NCCL refuses two ranks on one device. So a tensor is copied into host memory that the device can
reach directly, exchanged there as any (:mod:`shmgpu.collectives.shared_memory`), and copied back.
Owns that memory, kept from one collective to the next. Never hands it to anybody else.
"""

from __future__ import annotations

from typing import Any

from shmgpu.collectives.operations import CollectiveSpec, group_of
from shmgpu.collectives.shared_memory import PreparedInMemory, SharedMemory

MAX_KEPT = 64 << 20  # bytes of host memory that idle collectives keep


class Staged:
    """The backend.

    Args:
        device: where tensors live, such as ``"cuda:0"``; on ``"cpu"`` it does the same, in vain.
    """

    name = "staged"

    def __init__(self, device: str) -> None:
        self.device = device
        self._memory = SharedMemory()
        self._kept: dict[tuple[Any, int], list[Any]] = {}
        self._kept_bytes = 0

    def prepare(self, collective: CollectiveSpec, rank: int, size: int) -> PreparedStaged:
        """Make one ready; arrays are torch's, on the device."""
        return PreparedStaged(self, self._memory.prepare(collective, rank, size), rank, size)

    def finish(self) -> None:
        """What was copied to the device is there before whatever is enqueued later."""

    def take(self, like: Any, elements: int) -> Any:
        """Host memory for so many elements of a tensor's type."""
        idle = self._kept.get((like.dtype, elements))
        if idle:
            taken = idle.pop()
            self._kept_bytes -= taken.numel() * taken.element_size()
            return taken
        import torch

        return torch.empty(elements, dtype=like.dtype, pin_memory=like.device.type == "cuda")

    def give_back(self, *buffers: Any) -> None:
        """It may be used again, or is too much to keep."""
        for buffer in buffers:
            nbytes = buffer.numel() * buffer.element_size()
            if self._kept_bytes + nbytes <= MAX_KEPT:
                self._kept_bytes += nbytes
                self._kept.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)


class PreparedStaged:
    """One collective, ready to be run."""

    __slots__ = ("_gets", "_gives", "_inner", "_stage", "collective")

    def __init__(self, stage: Staged, inner: PreparedInMemory, rank: int, size: int) -> None:
        self.collective = inner.collective
        self._stage = stage
        self._inner = inner
        own, members = group_of(inner.collective, rank, size)
        self._gives, self._gets = inner.collective.elements(own, members)

    def run(self, number: int, source: Any, target: Any) -> None:
        """Take part in it; see :class:`Prepared`."""
        given, got = self._staged(source, target)
        self._inner.run(number, given, got)
        self._end(given, got, target)

    def start(self, number: int, source: Any, target: Any) -> Any:
        """The first half of it."""
        given, got = self._staged(source, target)
        return self._inner.start(number, given, got), given, got, target

    def wait(self, number: int, started: Any) -> None:
        """The rest of it."""
        inner, given, got, target = started
        self._inner.wait(number, inner)
        self._end(given, got, target)

    def _staged(self, source: Any, target: Any) -> tuple[Any, Any]:
        given = got = None
        if source is not None and self._gives:
            given = self._stage.take(source, source.numel())
            given.copy_(source.reshape(-1))  # waits for the device: others read it at once
        if target is not None and self._gets:
            got = self._stage.take(target, target.numel())
        return given, got

    def _end(self, given: Any, got: Any, target: Any) -> None:
        if got is not None:
            target.copy_(got.view(target.shape))  # waits as well, so the memory may be used again
        self._stage.give_back(*(one for one in (given, got) if one is not None))
