"""Views on children's arenas: the arrays that calls name, as NumPy arrays and torch tensors.

Owns the buffer over the memory in which all arenas lie, and the views that are kept, because the
same addresses come again and again. Never checks an address: :mod:`shmgpu.helper.block_reader` has,
before anybody asks for a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.codec import arrays, dtypes
from shmgpu.codec.arrays import ArraySpec
from shmgpu.helper.decoded import DecodedCall, Device

MAX_VIEWS = 4096  # on arrays of raw calls


class ArenaViews:
    """Makes them, for one helper.

    Attributes:
        memory: buffer over the memory in which all arenas lie.
        read_only: the same, for arrays that a function may only read.
        origin: address of its first byte.
        kept: views on arrays of raw calls, by where they lie and what they are.
    """

    def __init__(self, memory: Any, origin: int, device: Device) -> None:
        self.memory = memory
        self.read_only = memoryview(memory).toreadonly()
        self.origin = origin
        self.kept: dict[tuple[Any, ...], Any] = {}
        self._device = device

    # ---- of decoded calls ----------------------------------------------------------------

    def arguments(self, specs: list[tuple[int, ArraySpec]], writeable: bool) -> list[Any]:
        """A NumPy array for each (offset, spec)."""
        memory = self.memory if writeable else self.read_only
        return [arrays.numpy_view(memory, offset, spec) for offset, spec in specs]

    def tensors(self, call: DecodedCall) -> list[Any]:
        """The call's arguments as tensors on the CPU."""
        if call.tensors is None:
            call.tensors = [
                arrays.torch_view(self.memory, offset, spec) for offset, spec in call.specs
            ]
        return call.tensors

    def numpy_outs(self, call: DecodedCall) -> list[Any]:
        """Where the promised result goes, as NumPy arrays."""
        if call.numpy_outs is None:
            call.numpy_outs = [
                arrays.storage_view(self.memory, call.output_offset + offset, spec)
                if not spec.dtype.has_numpy
                else arrays.numpy_view(self.memory, call.output_offset + offset, spec)
                for spec, offset in zip(call.hint.specs, call.hint.offsets, strict=True)
            ]
        return call.numpy_outs

    def torch_outs(self, call: DecodedCall) -> list[Any]:
        """Where the promised result goes, as tensors on the CPU."""
        if call.torch_outs is None:
            call.torch_outs = [
                arrays.torch_view(self.memory, call.output_offset + offset, spec)
                for spec, offset in zip(call.hint.specs, call.hint.offsets, strict=True)
            ]
        return call.torch_outs

    # ---- of raw calls --------------------------------------------------------------------

    def array(self, offset: int, spec: ArraySpec) -> Any:
        """An argument of a raw call as a read-only NumPy array."""
        return self._view((np, offset, spec), self._argument, offset, spec)

    def tensor(self, offset: int, spec: ArraySpec) -> Any:
        """An argument of a raw call as a tensor on the helper's device."""
        tensor = self._view((offset, spec), arrays.torch_view, offset, spec)
        return self._device.to_device(tensor) if self._device.is_cuda else tensor

    def output_like(self, offset: int, array: Any) -> Any:
        """Where an array of a raw call's result goes: an array or tensor of its kind."""
        is_numpy = type(array) is np.ndarray
        dtype = (dtypes.of_numpy if is_numpy else dtypes.of_torch)(array.dtype)
        make = arrays.numpy_view if is_numpy else arrays.torch_view
        key = (offset, array.dtype, array.shape)
        return self._view(key, make, offset, ArraySpec(dtype, tuple(array.shape)))

    def _argument(self, memory: Any, offset: int, spec: ArraySpec) -> Any:
        return arrays.numpy_view(self.read_only, offset, spec)

    def _view(
        self, key: tuple[Any, ...], make: Callable[..., Any], offset: int, spec: ArraySpec
    ) -> Any:
        view = self.kept.get(key)
        if view is None:
            if len(self.kept) >= MAX_VIEWS:
                self.kept.clear()
            view = self.kept[key] = make(self.memory, offset, spec)
        return view
