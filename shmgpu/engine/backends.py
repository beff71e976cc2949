"""The two libraries that compute: NumPy and torch.

Owns what differs between them beyond the kernels that the table names: how memory is had, how an
array of the arena becomes one of theirs, how a plain number is given to a kernel. Never decides
where a value lies: the plan does.
"""
# ruff: noqa: D102 - the protocol says what each is for

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from shmgpu.engine.joint import JOINTS, Joint
from shmgpu.ops.graph import Spec, spec_of
from shmgpu.ops.promotion import bfloat16, bool_, float16, float32

T = TypeVar("T")


class Driver(Protocol):
    """What captures work on a device, and launches it again as one."""

    def beside(self, work: Callable[[], T]) -> T:
        """Do the work where it would be captured: what it sets up must not be captured."""

    def capture(
        self, work: Callable[[], T], generators: Sequence[Any]
    ) -> tuple[Callable[[], None], T]:
        """Capture the work without doing it: (what does it later, what it gives then).

        It reads and writes where the arrays lie now, with the numbers of now. What it draws from
        the generators follows from their state then. Raises what the device, or the work, raises.
        """

    def copy(self, destinations: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy arrays of equal specs."""

    def put_numbers(self, destination: Any, values: Sequence[Any]) -> None:
        """Copy plain numbers into an array of one axis."""

    def finish(self) -> None:
        """Wait until the device has done everything."""


class Backend(Protocol):
    """What the engine asks of a library."""

    name: str
    module: Any
    is_host: bool  # arrays lie where C can reach them, and are copied out before they change
    joints: Sequence[Joint]  # what it does in one call

    def kernel(self, op: Any, specs: tuple[Spec, ...], params: Any, out: Spec) -> Any:
        """The operation as a callable."""

    def raw(self, nbytes: int) -> Any:
        """Memory for a buffer."""

    def shaped(self, raw: Any, spec: Spec) -> Any:
        """An array over the beginning of such memory."""

    def empty(self, spec: Spec) -> Any:
        """An array of its own, of no particular elements."""

    def dtype(self, spec: Spec) -> Any:
        """The library's own name of the element type."""

    def is_in_order(self, array: Any) -> bool:
        """Whether its elements lie one behind the other."""

    def in_order(self, array: Any) -> Any:
        """The same elements one behind the other: the array itself, or a copy."""

    def address(self, array: Any) -> int:
        """Where the elements begin."""

    def place(self, array: Any) -> Any:
        """Where its elements begin and how they lie: equal for what a graph cannot tell apart."""

    def number(self, dtype: Any) -> Any:
        """What makes of a plain number what kernels of that type take."""

    def copy(self, array: Any) -> Any:
        """The same elements in memory of their own."""

    def array(self, value: Any) -> Any:
        """What a kernel gave, as an array."""

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """While programs run."""

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """In the middle of that, for what is done for others than the program."""

    def driver(self) -> Driver | None:
        """What captures work on the device; None where doing it again is as quick."""


_HALVES = (float16, bfloat16)


def _wide(spec: Spec) -> Spec:
    return spec_of(float32, spec.shape) if spec.dtype in _HALVES else spec


def _halved(kernel: Any, out: Spec) -> Any:
    """A kernel of float32 for arrays of 16 bits: it rounds once, at the end, as torch's do."""
    halves = (np.dtype(np.float16), bfloat16.numpy if bfloat16.has_numpy else None)
    dtype = out.dtype.numpy

    def widened(*inputs: Any, out: Any = None) -> Any:
        y = kernel(*[x.astype(np.float32) if x.dtype in halves else x for x in inputs])
        if out is None:
            return np.asarray(y).astype(dtype, copy=False)
        out[...] = y
        return out

    return widened


class NumpyBackend:
    """On the CPU, with NumPy."""

    name = "numpy"
    module = np
    is_host = True
    joints = ()

    def kernel(self, op: Any, specs: tuple[Spec, ...], params: Any, out: Spec) -> Any:
        if op.is_collective or not any(spec.dtype in _HALVES for spec in (*specs, out)):
            return op.numpy(np, specs, params, out)
        if op.is_view:
            view, dtype = op.numpy(np, specs, params, out), specs[0].dtype.numpy
            return lambda x: view(np.asarray(x, dtype))  # plain numbers are wider until here
        wide = tuple([_wide(spec) for spec in specs])
        return _halved(op.numpy(np, wide, params, _wide(out)), out)

    def raw(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def shaped(self, raw: Any, spec: Spec) -> Any:
        return np.ndarray(spec.shape, spec.dtype.numpy, raw)

    def empty(self, spec: Spec) -> Any:
        return np.empty(spec.shape, spec.dtype.numpy)

    def dtype(self, spec: Spec) -> Any:
        return spec.dtype.numpy

    def is_in_order(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def in_order(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def place(self, array: Any) -> Any:
        return array.ctypes.data, array.strides

    def number(self, dtype: Any) -> Any:
        if dtype in _HALVES:
            return np.float32
        make = dtype.numpy.type
        if dtype.numpy.kind not in "iu":
            return make
        return lambda value: np.int64(value).astype(make)  # beyond the type it wraps, as in torch

    def copy(self, array: Any) -> Any:
        return np.array(array, order="C", copy=True)

    def array(self, value: Any) -> Any:
        return np.asarray(value)  # of no axes NumPy makes a number

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return np.errstate(all="ignore")  # infinities and NaN are values, as in torch

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def driver(self) -> Driver | None:
        return None


class TorchBackend:
    """On the helper's device, with torch."""

    name = "torch"
    joints = JOINTS

    def __init__(self, device: str) -> None:
        import torch

        self.module = torch
        self.device = torch.device(device)
        self.is_host = self.device.type == "cpu"
        self._inference = torch.inference_mode()  # programs do not nest, so one will do

    def kernel(self, op: Any, specs: tuple[Spec, ...], params: Any, out: Spec) -> Any:
        bind = op.torch_on_host if self.is_host else op.torch
        return bind(self.module, specs, params, out)

    def raw(self, nbytes: int) -> Any:
        return self.module.empty(nbytes, dtype=self.module.uint8, device=self.device)

    def shaped(self, raw: Any, spec: Spec) -> Any:
        return raw[: spec.nbytes].view(spec.dtype.torch).view(spec.shape)

    def empty(self, spec: Spec) -> Any:
        return self.module.empty(spec.shape, dtype=spec.dtype.torch, device=self.device)

    def dtype(self, spec: Spec) -> Any:
        return spec.dtype.torch

    def is_in_order(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def in_order(self, array: Any) -> Any:
        return array.contiguous()

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def place(self, array: Any) -> Any:
        return array.data_ptr(), array.stride()

    def number(self, dtype: Any) -> Any:
        # Kernels take Python's own; 1 for True would make a whole number of a bool.
        return bool if dtype is bool_ else None

    def copy(self, array: Any) -> Any:
        return array.clone(memory_format=self.module.contiguous_format)

    def array(self, value: Any) -> Any:
        return value

    def running(self) -> contextlib.AbstractContextManager[Any]:
        if self.is_host:
            return self._inference
        # Not on the CPU: under a device, torch runs a Python function at each call of its own.
        both = contextlib.ExitStack()
        both.enter_context(self._inference)
        both.enter_context(self.device)
        return both

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        # Views of arenas that are made here serve other calls, too.
        return self.module.inference_mode(mode=False)

    def driver(self) -> Driver | None:
        if self.is_host:
            return None
        from shmgpu.engine.cuda import CudaDriver

        return CudaDriver(self.module, self.device)
