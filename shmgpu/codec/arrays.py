"""Arrays of every make, seen as one: element type, shape, and where the bytes are.

Owns the reading of users' arrays (NumPy, torch, DLPack, ``__array_interface__``, buffers) and the
making of views over memory. Never allocates or copies by itself, and never imports torch but where
a tensor is already in hand or was asked for.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.codec.pytree import ValueReader
from shmgpu.errors import BadParams

MAX_BYTES = 1 << 47
ALIGNMENT = core.ALIGNMENT


class ArraySpec:
    """Element type and shape of a C-contiguous array.

    Attributes:
        dtype: element type.
        shape: lengths of the axes.
        nbytes: bytes of the whole.
    """

    __slots__ = ("_encoded", "dtype", "nbytes", "shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.nbytes = math.prod(shape) * dtype.itemsize
        if self.nbytes > MAX_BYTES or any(n < 0 or n > MAX_BYTES for n in shape):
            raise BadParams(f"an array of shape {shape} is larger than any arena")
        self._encoded = b""

    def encode(self) -> bytes:
        """Its bytes on the wire."""
        if not self._encoded:
            name = self.dtype.name.encode()
            self._encoded = b"".join(
                (
                    bytes((len(name),)),
                    name,
                    bytes((len(self.shape),)),
                    *[n.to_bytes(8, "little") for n in self.shape],
                )
            )
        return self._encoded

    @classmethod
    def read(cls, reader: ValueReader) -> ArraySpec:
        """The spec at the cursor; raises BadParams for anything else."""
        try:
            name = reader.take(reader.u8()).decode("ascii")
        except UnicodeDecodeError:
            raise BadParams("the parameter block names no element type") from None
        dtype = dtypes.by_name(name)
        ndim = reader.u8()
        if ndim > 64:
            raise BadParams("the parameter block has an array of more than 64 axes")
        return cls(dtype, tuple(reader.u64() for _ in range(ndim)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ArraySpec)
            and self.shape == other.shape
            and self.dtype.name == other.dtype.name
        )

    def __hash__(self) -> int:
        return hash((self.dtype.name, self.shape))

    def __repr__(self) -> str:
        return f"ArraySpec({self.dtype.name}, {self.shape})"


def axes_of(shape: Any) -> tuple[int, ...]:
    """Lengths of the axes of a shape as a user writes it; raises BadParams."""
    try:
        axes: tuple[int, ...] = (
            (shape.__index__(),)
            if hasattr(shape, "__index__") and not getattr(shape, "ndim", 0)
            else tuple(n.__index__() for n in shape)
        )
    except (AttributeError, TypeError):
        raise BadParams(f"shape={shape!r} must be whole numbers") from None
    if any(n < 0 for n in axes):
        raise BadParams(f"shape={shape!r} has a negative length")
    if len(axes) > 64:
        raise BadParams(f"an array can have 64 axes, not {len(axes)}")
    return axes


def torch_module() -> Any:
    """The torch module if the user has imported it, else None."""
    return sys.modules.get("torch")


def tensor_type() -> Any:
    """torch's, once it is there: not while another thread is importing torch; else None."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a torch tensor."""
    tensor = tensor_type()
    return tensor is not None and isinstance(leaf, tensor)


def is_plain_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor whose bytes can be passed as they lie."""
    return (
        type(leaf) is tensor_type()
        and leaf.is_cpu
        and leaf.layout is torch_module().strided
        and not leaf.is_nested
        and leaf.is_contiguous()
        and not leaf.requires_grad
        and not leaf.is_conj()
        and not leaf.is_neg()
    )


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of any make; NumPy's scalars are plain values."""
    if isinstance(leaf, np.ndarray):
        return True
    if isinstance(leaf, (np.generic, type)):
        return False
    if is_tensor(leaf) or isinstance(leaf, (memoryview, array.array)):
        return True
    if hasattr(type(leaf), "__shmgpu_array__"):
        return True
    return hasattr(leaf, "__dlpack__") or hasattr(leaf, "__array_interface__")


def of_lists(data: Any) -> np.ndarray[Any, Any]:
    """A number, or nested lists of them, as an array; raises BadParams where they make none."""
    try:
        made = np.asarray(data)
    except ValueError as error:
        raise BadParams(
            f"the lists do not make an array: those of one depth must be of one length ({error})"
        ) from None
    if made.dtype.hasobject:
        kinds = [type(one) for one in made.flat if not isinstance(one, (int, float))]
        what = kinds[0].__name__ if kinds else "integers of more than 64 bits"
        raise BadParams(
            f"an array cannot be made of {what}: give numbers, lists of them, an array or a tensor"
        )
    return made


class ArraySource:
    """One array of the caller's: its spec, and its memory as a NumPy array.

    Attributes:
        spec: element type and shape.
        memory: NumPy array over the same bytes (``spec.dtype.storage`` for types that NumPy
            lacks), strided as the original is.
        address: where a C-contiguous, aligned original begins; None when it must be copied.
        is_torch: whether the original is a tensor of torch.
        result: makes of an array in the arena what results are beside the original; None for
            arrays. Where there is one, nobody but the call keeps the memory.
    """

    __slots__ = ("address", "is_torch", "memory", "result", "spec")

    def __init__(self, leaf: Any) -> None:
        self.is_torch = is_tensor(leaf)
        self.result: Callable[[Any], Any] | None = getattr(type(leaf), "__shmgpu_result__", None)
        if self.result is not None:
            leaf = leaf.__shmgpu_array__()
        if self.is_torch:
            self.spec, self.memory = _read_tensor(leaf)
        else:
            self.spec, self.memory = _read_array(leaf)
        memory = self.memory
        self.address: int | None = None
        if memory.flags.c_contiguous and memory.flags.aligned and memory.dtype.isnative:
            self.address = core.address_of(memory)


def _read_tensor(tensor: Any) -> tuple[ArraySpec, np.ndarray[Any, Any]]:
    torch = torch_module()
    if getattr(tensor, "is_quantized", False):
        raise BadParams(
            f"a quantized tensor ({tensor.dtype}) cannot be carried: convert it with dequantize() "
            "first"
        )
    if tensor.is_nested:
        raise BadParams(
            "a nested tensor cannot be carried: pass tensor.unbind(), or one that is padded "
            "(torch.nested.to_padded_tensor)"
        )
    if tensor.layout is not torch.strided:
        raise BadParams(
            f"a {tensor.layout} tensor cannot be carried: convert it with to_dense() first"
        )
    if tensor.device.type != "cpu":
        raise BadParams(
            f"a tensor on {tensor.device} cannot be carried: only helpers own devices, "
            "so pass tensor.cpu()"
        )
    if tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled():
        raise BadParams(
            "a tensor that is part of an autograd graph cannot be carried (its gradient would "
            "be lost): pass tensor.detach()"
        )
    dtype = dtypes.of_torch(tensor.dtype)
    try:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        spec = ArraySpec(dtype, tuple(tensor.shape))
        if dtype.name in dtypes.EXTENSIONS:
            tensor = tensor.view(getattr(torch, dtypes.EXTENSION_STORAGE[dtype.itemsize]))
        return spec, tensor.numpy()
    except (TypeError, RuntimeError) as error:  # those of torch.func, and their like
        raise BadParams(
            f"the {type(tensor).__name__} has no elements of its own that could be carried "
            f"({error}): pass a plain tensor"
        ) from error


def _read_array(leaf: Any) -> tuple[ArraySpec, np.ndarray[Any, Any]]:
    if not isinstance(leaf, np.ndarray):
        leaf = _to_numpy(leaf)
    elif _is_masked(leaf):
        raise BadParams(
            "a masked array would lose its mask on the way: pass array.filled() or "
            "its data and mask"
        )
    memory = leaf.view(np.ndarray) if type(leaf) is not np.ndarray else leaf
    spec = ArraySpec(dtypes.of_numpy(memory.dtype), memory.shape)
    if spec.dtype.name in dtypes.EXTENSIONS:
        memory = memory.view(spec.dtype.storage)
    return spec, memory


def _is_masked(leaf: np.ndarray[Any, Any]) -> bool:
    """Whether it is a masked array; asking must not import numpy.ma, which takes 10 ms."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(leaf, masked.MaskedArray)


def _to_numpy(leaf: Any) -> np.ndarray[Any, Any]:
    name = type(leaf).__name__
    try:
        if hasattr(leaf, "__array_interface__") or isinstance(leaf, (memoryview, array.array)):
            return np.asarray(leaf)
        return np.from_dlpack(leaf)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise BadParams(
            f"the {name} could not be read as an array ({error}): pass a NumPy array or a "
            "CPU tensor"
        ) from error


# ---- views ---------------------------------------------------------------------------------


def numpy_view(buffer: Any, offset: int, spec: ArraySpec) -> np.ndarray[Any, Any]:
    """A NumPy array over buffer[offset:], in its own dtype."""
    return np.ndarray(spec.shape, spec.dtype.numpy, buffer, offset)


def storage_view(buffer: Any, offset: int, spec: ArraySpec) -> np.ndarray[Any, Any]:
    """The same in a dtype that NumPy always has."""
    return np.ndarray(spec.shape, spec.dtype.storage, buffer, offset)


def torch_view(buffer: Any, offset: int, spec: ArraySpec) -> Any:
    """A tensor over buffer[offset:]; it keeps the buffer alive."""
    import torch

    dtype = spec.dtype.torch
    tensor = torch.from_numpy(storage_view(buffer, offset, spec))
    return tensor.view(dtype) if spec.dtype.name in dtypes.EXTENSIONS else tensor


class _Writable:
    """The memory of a read-only array, for those who promise to leave it alone."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        about = dict(array.__array_interface__)
        about["data"] = (about["data"][0], False)
        self.__array_interface__ = about
        self.array = array  # is kept for as long as this is


def tensor_over(array: np.ndarray[Any, Any]) -> Any:
    """A tensor over the same bytes; torch knows no read-only ones, and would warn of an array."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


def aligned(size_bytes: int) -> int:
    """Rounded up to where the next array may begin."""
    return (size_bytes + ALIGNMENT - 1) & -ALIGNMENT
