"""Arrays and blocks in this child's arena: ``shmgpu.arena``, and the C interface's memory calls.

Arrays made here are passed to helpers without a copy. Their memory goes back to the arena when
they, and all views of them, are garbage.

Owns these functions and their checks. Never allocates in another process's arena.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child import memory, runtime
from shmgpu.codec import arrays, dtypes
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import DType
from shmgpu.common.wording import kind_of
from shmgpu.errors import BadFree, BadParams

__all__ = ["Block", "array", "empty", "frombuffer", "shm_free", "shm_malloc", "stats", "zeros"]


def __dir__() -> list[str]:
    return __all__


Shape = int | tuple[int, ...]

NOWHERE = -(1 << 62)  # an address that lies in no arena, whatever is added to it


def _spec(shape: Any, dtype: Any) -> ArraySpec:
    return ArraySpec(dtypes.of_any(dtype), arrays.axes_of(shape))


def empty(shape: Shape, dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """An uninitialised C-contiguous array in this child's arena, 64-byte aligned.

    Args:
        shape: lengths of the axes; one number for a vector.
        dtype: a name, or a NumPy or torch dtype; ``"bfloat16"`` needs ml_dtypes.

    Raises:
        ArenaFull: the arena has no free block of that size.
        BadParams: the shape or dtype is impossible.
        NotRunning: this process has no arena.
    """
    spec = _spec(shape, dtype)
    kind = spec.dtype.numpy
    buffer, _ = runtime.joined().arena.allocate(max(spec.nbytes, 1))
    return np.ndarray(spec.shape, kind, buffer)


def zeros(shape: Shape, dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """The same as :func:`empty`, filled with zeros."""
    made = empty(shape, dtype)
    made[...] = np.zeros((), made.dtype)
    return made


def array(data: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A copy of an array, tensor or nested list in this child's arena, counted as copied in.

    Args:
        data: anything that NumPy can convert to an array, or a CPU tensor.
        dtype: element type of the copy; by default that of the data.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     shmgpu.arena.array([1, 2, 3], "float32")
        array([1., 2., 3.], dtype=float32)
    """
    made, _ = placed(data, None if dtype is None else dtypes.of_any(dtype))
    return made


def placed(data: Any, dtype: DType | None = None) -> tuple[np.ndarray[Any, Any], int]:
    """As :func:`array`: the copy, and its address."""
    return _copied(data, dtype, runtime.joined().arena.allocate)


def kept(data: Any, dtype: DType | None = None) -> tuple[np.ndarray[Any, Any], int]:
    """As :func:`placed`; in ordinary memory, at NOWHERE, while the arena is crowded."""
    arena = runtime.joined().arena

    def allocate(nbytes: int) -> tuple[Any, int]:
        return (bytearray(nbytes), NOWHERE) if arena.is_crowded(nbytes) else arena.allocate(nbytes)

    return _copied(data, dtype, allocate)


def _copied(
    data: Any, dtype: DType | None, allocate: Callable[[int], tuple[Any, int]]
) -> tuple[np.ndarray[Any, Any], int]:
    if type(data) is not np.ndarray and not arrays.is_array(data):
        data = arrays.of_lists(data)
    if type(data) is np.ndarray:
        kind = dtypes.of_numpy(data.dtype)
    else:
        source = arrays.ArraySource(data)
        kind, data = source.spec.dtype, source.memory
        if kind.name in dtypes.EXTENSIONS:
            data = data.view(kind.numpy)
    target = dtype or kind
    nbytes = data.size * target.itemsize
    buffer, address = allocate(nbytes or 1)
    made = np.ndarray(data.shape, target.numpy, buffer)
    made[...] = data
    core.count_bytes(core.BYTES_COPIED_IN, nbytes)
    return made, address


def stats() -> dict[str, int]:
    """Bytes and counts of this child's allocator: capacity_bytes, used_bytes, free_bytes, ..."""
    return runtime.require().arena.stats()


# Live blocks by address: freeing by address frees one of these, and never the memory of an array.
_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


class Block(np.ndarray[Any, Any]):
    """Bytes of this child's arena: an array of uint8 that knows its address.

    :func:`shm_free` frees it; otherwise it is freed when it is garbage.
    """

    _owner: Any = None

    @property
    def address(self) -> int:
        """The address of its first byte; the same in this child and in all helpers."""
        return core.address_of(self)


def shm_malloc(nbytes: int) -> Block:
    """A block of this child's arena, 64-byte aligned.

    Raises:
        BadParams: nbytes is 0, negative or not a number.
        ArenaFull: the arena has no free block of that size.
    """
    size = memory.checked_size(nbytes)
    owner, buffer, address = runtime.joined().arena.block(size)
    block = np.ndarray.__new__(Block, (size,), np.uint8, buffer)
    block._owner = owner
    _blocks[address] = block
    return block


def shm_free(block: Block | int) -> None:
    """Free a block at once, without waiting for it to be garbage.

    As in C, nothing may use the block afterwards, nor any array made over it.

    Args:
        block: what :func:`shm_malloc` returned, or its address.

    Raises:
        BadFree: it was freed before, is part of a block, or is not a block of this arena.
    """
    runtime.require()
    if isinstance(block, int):
        found = _blocks.get(block)
        if found is None:
            raise BadFree(
                f"no block from shm_malloc begins at {block:#x}, or it was freed before: "
                "arrays and results are freed automatically when they are garbage"
            )
        block = found
    if not isinstance(block, Block):
        raise BadFree("shm_free frees what shm_malloc returned: this is something else")
    if isinstance(block.base, np.ndarray):
        raise BadFree("shm_free frees a whole block: this is a view of one")
    owner, block._owner = block._owner, None
    if owner is None:
        raise BadFree("the block was freed before: free each block once")
    _blocks.pop(block.address, None)
    core.release(owner)


def frombuffer(block: Any, dtype: Any = "uint8", shape: Shape | None = None) -> Any:
    """A NumPy array over a block, without a copy.

    Args:
        block: a :class:`Block`, or any writable buffer.
        dtype: element type.
        shape: lengths of the axes; by default one axis, of all bytes.

    Raises:
        BadParams: the block is too small for that shape, or its bytes are no whole elements.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     block = shmgpu.shm_malloc(8)
        ...     numbers = shmgpu.frombuffer(block, "uint16")
        ...     numbers[:] = 258
        ...     block.tolist()
        [2, 1, 2, 1, 2, 1, 2, 1]
    """
    kind = dtypes.of_any(dtype)
    try:
        data = memoryview(block).cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise BadParams(
            f"{kind_of(block)} is not a block of bytes ({error}): pass what shm_malloc() "
            "returned, or a contiguous buffer"
        ) from None
    if shape is None:
        if len(data) % kind.itemsize:
            raise BadParams(
                f"the block's {len(data):,} bytes are no whole {kind.name}, of {kind.itemsize} "
                "bytes each: give shape=, or a block of another length"
            )
        shape = (len(data) // kind.itemsize,)
    spec = _spec(shape, kind)
    if spec.nbytes > len(data):
        raise BadParams(
            f"the shape {spec.shape} of {kind.name} needs {spec.nbytes:,} bytes, and the block "
            f"has {len(data):,}: use a smaller shape"
        )
    return np.ndarray(spec.shape, kind.numpy, data)
