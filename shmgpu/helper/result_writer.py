"""What a function returned, written to where its caller reads it.

Owns the writing of results into output buffers: as promised, or preceded by a description of
themselves; and what happens to a result that is too large for its buffer. Never writes outside the
buffer that a checked block names, and never cuts a result short.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.codec import arrays, layout
from shmgpu.codec.layout import TreeLayout
from shmgpu.codec.pytree import LONE_VALUE, PLAIN_TYPES, encode_value, encode_values, flatten
from shmgpu.errors import BadParams
from shmgpu.helper.arena_views import ArenaViews
from shmgpu.helper.decoded import (
    DecodedCall,
    Device,
    Leaf,
    RawRequest,
    ServedFunction,
    check_rows,
)
from shmgpu.helper.parked_results import Key, Parking

_count = core.count_bytes
_COPIED_OUT = core.BYTES_COPIED_OUT


class ResultWriter:
    """Writes the results of all calls, for one helper.

    Args:
        views: of the arenas in which the output buffers lie.
        device: where results may be.
        parking: keeps those that are too large for their buffers.

    Attributes:
        parks: whether a result that is too large may wait for a larger buffer.
    """

    def __init__(self, views: ArenaViews, device: Device, parking: Parking) -> None:
        self.parks = True
        self._views = views
        self._device = device
        self._parking = parking

    @contextlib.contextmanager
    def parking_nothing(self) -> Iterator[None]:
        """Meanwhile a result that is too large is refused: the call ends where others end."""
        self.parks = False
        try:
            yield
        finally:
            self.parks = True

    def put(
        self, target: ServedFunction, call: DecodedCall, result: Any, key: Key
    ) -> tuple[int, int]:
        """Write what a call's function returned: (status, value) for shm_helper_finish.

        Raises:
            BadParams: the function is batched, and the result has not a row for each of the call's.
        """
        if call.hint is not None and self._put_as_promised(target, call, result):
            return core.OK, 0
        if type(result) in PLAIN_TYPES and not target.batch_max_rows:
            found = layout.plain_layout(LONE_VALUE)
            description = layout.describe_result(found, encode_value(result))
            return self._put_described(core.OK, call, found, description, (), key)
        flat = flatten(result, arrays.is_array, target.pickle)
        rows = call.rows
        # For a lone call, too: otherwise the function would fail only under load.
        if target.batch_max_rows and rows is not None:
            if not flat.arrays:
                check_rows(np.empty(()), rows, target.name)
            for leaf in flat.arrays:
                check_rows(leaf, rows, target.name)
        leaves = [Leaf(leaf) for leaf in flat.arrays]
        hint = call.hint
        if (
            hint is not None
            and not flat.values
            and hint.tree.structure == flat.structure
            and all(leaf.spec == spec for leaf, spec in zip(leaves, hint.specs, strict=True))
        ):
            self._put_expected(call, leaves)
            return core.OK, 0
        found = TreeLayout(bytes(flat.structure), [leaf.spec for leaf in leaves])
        description = layout.describe_result(found, encode_values(flat.values, target.pickle))
        return self._put_described(core.OK, call, found, description, leaves, key)

    def _put_as_promised(self, target: ServedFunction, call: DecodedCall, result: Any) -> bool:
        """Write a result if it is quickly seen to be what was promised."""
        leaves = call.hint.tree.take_arrays(result)
        if leaves is None:
            return False
        is_numpy = target.arrays_kind == "numpy"
        if is_numpy and not call.is_plain:
            return False
        outs = self._views.numpy_outs(call) if is_numpy else self._views.torch_outs(call)
        rows = call.rows if target.batch_max_rows else None
        to_copy = []
        for leaf, out in zip(leaves, outs, strict=True):
            if type(leaf) is not type(out) or leaf.shape != out.shape or leaf.dtype != out.dtype:
                return False
            if rows is not None and (not out.shape or out.shape[0] != rows):
                return False  # to be refused
            if is_numpy:
                # What is not of the function's own making may be where it goes, as helper.room is.
                is_there = leaf.base is not None and _same_memory(out, leaf)
                may_overlap = leaf.base is not None
            else:
                if leaf.layout is not out.layout:
                    return False
                is_there = leaf.data_ptr() == out.data_ptr() and leaf.is_contiguous()
                may_overlap = True
            if is_there:
                continue
            if call.declared and may_overlap:
                return False  # perhaps helper.out in another order, which copying would destroy
            to_copy.append((leaf, out))
        for leaf, out in to_copy:
            if is_numpy:
                out[...] = leaf
            else:
                self._device.copy_out(out, leaf.detach())
            _count(_COPIED_OUT, out.nbytes)
        return True

    def put_values(
        self, status: int, call: DecodedCall | RawRequest, values: tuple[Any, ...], key: Key
    ) -> tuple[int, int]:
        """Write plain values, with the status that tells the caller what they are."""
        flat = flatten(values, arrays.is_array)
        found = TreeLayout(bytes(flat.structure), ())
        description = layout.describe_result(found, encode_values(flat.values))
        return self._put_described(status, call, found, description, (), key)

    def put_raw(self, request: RawRequest, result: Sequence[Any]) -> None:
        """Write a raw call's result, arrays, each at the next multiple of 64.

        Raises:
            BadParams: they do not fit the output buffer.
        """
        offset, end = request.output_offset, request.output_offset + request.output_bytes
        kept = self._views.kept
        for array in result:
            nbytes = array.nbytes
            if offset + nbytes > end:
                raise BadParams("the output buffer is smaller than the result")
            out = kept.get((offset, array.dtype, array.shape))
            if out is None:
                out = self._views.output_like(offset, array)
            if type(array) is np.ndarray:
                out[...] = array
            else:
                self._device.copy_out(out, array)
            _count(_COPIED_OUT, nbytes)
            offset += arrays.aligned(nbytes)

    def _put_expected(self, call: DecodedCall, leaves: Sequence[Leaf]) -> None:
        """Copy a result of the promised layout to where it goes, unless it lies there already."""
        for index, leaf in enumerate(leaves):
            if not leaf.spec.nbytes:
                continue
            out: Any
            if leaf.is_torch:
                out = self._views.torch_outs(call)[index]
                if out.data_ptr() == leaf.array.data_ptr() and leaf.array.is_contiguous():
                    continue
            else:
                out = self._views.numpy_outs(call)[index]
                if _same_memory(out, leaf.array):
                    continue
            if call.declared and leaf.may_overlap:
                # It may be helper.out in another order, which copying would destroy.
                for other in leaves[index:]:
                    other.detach()
            if leaf.is_torch:
                self._device.copy_out(out, leaf.array)
            else:
                out[...] = leaf.array
            _count(_COPIED_OUT, leaf.spec.nbytes)

    def _put_described(
        self,
        status: int,
        call: DecodedCall | RawRequest,
        found: TreeLayout,
        description: bytes,
        leaves: Sequence[Leaf],
        key: Key,
    ) -> tuple[int, int]:
        needed = layout.result_bytes(description, found)
        if needed <= call.output_bytes:
            offset, memory = call.output_offset, self._views.memory
            if leaves and any(leaf.may_overlap for leaf in leaves):
                # What the function returned may lie where the result goes.
                blob = self._blob(needed, found, description, leaves)
                memory[offset : offset + needed] = memoryview(blob).cast("B")
            else:
                self._write(memory, offset, found, description, leaves)
            _count(_COPIED_OUT, needed)
            return status, needed
        if not self.parks or not self._parking.make_place(key, needed):
            return core.ETOO_LARGE, needed
        self._parking.put(key, self._blob(needed, found, description, leaves), status)
        return core.ENEEDS_SPACE, needed

    def _blob(
        self, size: int, found: TreeLayout, description: bytes, leaves: Sequence[Leaf]
    ) -> Any:
        blob = np.empty(size, np.uint8)
        self._write(blob.data, 0, found, description, leaves)
        self._device.finish()
        return blob

    def _write(
        self,
        buffer: Any,
        begin: int,
        found: TreeLayout,
        description: bytes,
        leaves: Sequence[Leaf],
    ) -> None:
        buffer[begin : begin + len(description)] = description
        if not leaves:
            return
        start = begin + arrays.aligned(len(description))
        for leaf, spec, offset in zip(leaves, found.specs, found.offsets, strict=True):
            if leaf.is_torch:
                self._device.copy_out(arrays.torch_view(buffer, start + offset, spec), leaf.array)
            else:
                arrays.storage_view(buffer, start + offset, spec)[...] = leaf.storage()


def _same_memory(out: Any, array: Any) -> bool:
    return bool(array.flags.c_contiguous) and core.address_of(out) == core.address_of(array)
