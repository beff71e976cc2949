"""What tensors can do in tinygrad's spelling: sharding, and methods that are functions elsewhere.

Owns the table of these methods, and puts them on all tensors. Never defines an operation: each is
recorded by a function of the package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.compat.tinygrad.device import Device, DeviceName, mesh_of_names, names_of, number_of
from shmgpu.compat.tinygrad.tensor import Tensor as Facade
from shmgpu.compat.tinygrad.tensor import placed
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.placements import Placement, Replicate, Shard
from shmgpu.nn import functional as F
from shmgpu.ops.promotion import is_float
from shmgpu.parallel.constraints import constrain
from shmgpu.parallel.tensors import layout_of, mesh_of, put
from shmgpu.tensors import current
from shmgpu.tensors import tensor as tensors
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

_backward, _to = Tensor.backward, Tensor.to


# ---- where a tensor lies -----------------------------------------------------------------------


def shard(self: Tensor, devices: Sequence[str], axis: int | None = None) -> Tensor:
    """The same elements on several devices: cut along an axis, or whole on each.

    Args:
        self: on one device.
        devices: names of helpers, ``("helper:0", "helper:1")``; of one, the tensor is returned.
        axis: which axis is cut, into pieces that may differ in length by one; None: no axis is.

    Raises:
        RuntimeError: it is on several devices already.
        ValueError: there is no such device, or no such axis.
    """
    if mesh_of(self) is not None:
        raise RuntimeError(
            "can't shard a multi-device tensor: it is sharded already, and redistribute() moves it"
        )
    if len(devices) == 1:
        number_of(devices[0])
        return self
    return constrain(self, mesh_of_names(devices), [_placement(axis)])


def shard_(self: Tensor, devices: Sequence[str], axis: int | None = None) -> Tensor:
    """As :func:`shard`, in place; returns the tensor."""
    if mesh_of(self) is not None or len(devices) == 1:
        shard(self, devices, axis)
    else:
        put(self, mesh_of_names(devices), [_placement(axis)])
    return self


def shard_like(self: Tensor, y: Tensor) -> Tensor:
    """As another tensor lies: the tensor itself if it does, or if the other is on one device."""
    theirs = layout_of(y)
    if theirs is None or layout_of(self) is theirs:
        return self
    return shard(self, names_of(theirs.mesh), _axis_of(theirs))


def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
    """On the devices that are named, whole on each; otherwise as PyTorch's."""
    device = options.get("device", args[0] if args else None)
    if isinstance(device, (tuple, list)):
        if mesh_of(self) is None:
            return shard(self, device, None)
        mesh = mesh_of_names(device)
        return constrain(self, mesh, [Replicate()])
    if isinstance(device, str) and device.partition(":")[0].lower() == Device.DEFAULT:
        number_of(device)
        whole: Tensor = self.full_tensor()
        return whole
    return self if device is None and not options else _to(self, *args, **options)


def to_(self: Tensor, device: Any) -> Tensor:
    """As :func:`to`, in place: a parameter stays the tensor that it is."""
    placed(self, device)
    return self


def _device(self: Tensor) -> Any:
    """The name of its device, or a tuple of several."""
    mesh = mesh_of(self)
    return DeviceName(Device.DEFAULT) if mesh is None else names_of(mesh)


def _axis(self: Tensor) -> int | None:
    """Which axis is cut; None where it is whole on each device, or on one."""
    layout = layout_of(self)
    return None if layout is None else _axis_of(layout)


def _bounds(self: Tensor) -> tuple[tuple[int, int], ...]:
    """Where each device's piece begins and ends along the axis that is cut."""
    layout, axis = layout_of(self), _axis(self)
    if layout is None or axis is None:
        raise RuntimeError("bounds: the tensor is not cut along an axis: shard() cuts it")
    cut = [layout.piece(rank, self.shape)[axis] for rank in range(layout.mesh.size)]
    return tuple([(one.start, one.stop) for one in cut])


def _placement(axis: int | None) -> Placement:
    return Replicate() if axis is None else Shard(axis)


def _axis_of(layout: Layout) -> int | None:
    one = layout.placements[0]
    return one.dim if isinstance(one, Shard) else None


# ---- what a tensor does ------------------------------------------------------------------------


def backward(self: Tensor, gradient: Any = None, **options: Any) -> Tensor:
    """As PyTorch's, and the tensor is returned."""
    _backward(self, gradient, **options)
    return self


def sequential(self: Tensor, ll: Sequence[Callable[[Any], Any]]) -> Any:
    """What the last of these functions makes, each of what the one before made."""
    return functools.reduce(lambda x, function: function(x), ll, self)


def realize(self: Tensor, *lst: Tensor) -> Tensor:
    """Have all that was recorded be computed, without waiting; returns the tensor."""
    current.recorder().send()
    return self


def assign(self: Tensor, x: Any) -> Tensor:
    """Take another tensor's elements, in place; no gradient flows."""
    with no_grad():
        return self.copy_(x)


def mean(self: Tensor, axis: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    """The mean; of integers and truth values in float32."""
    axis = options.pop("dim", axis)
    x = self if is_float(self.dtype) else self.float()
    found: Tensor = FUNCTIONS["mean"](x, axis, keepdim, **options)
    return found


def _values(name: str) -> Callable[..., Any]:
    alone, of_two = FUNCTIONS[f"a{name}"], FUNCTIONS[name]

    def reduce(self: Tensor, axis: Any = None, keepdim: bool = False, **options: Any) -> Any:
        if isinstance(axis, Tensor):  # PyTorch's, of two tensors
            return of_two(self, axis)
        return alone(self, options.pop("dim", axis), keepdim, **options)

    reduce.__doc__ = f"The {name}imum along axes, values alone."
    return reduce


def cast(self: Tensor, dtype: Any) -> Tensor:
    """In another element type."""
    return _to(self, dtype)


def dot(self: Tensor, w: Tensor) -> Tensor:
    """The matrix product."""
    found: Tensor = FUNCTIONS["matmul"](self, w)
    return found


def linear(self: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Times a weight of shape (in, out), plus a bias."""
    found = dot(self, weight) if weight.ndim > 1 else self * weight
    return found if bias is None else found + bias


def conv2d(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = 0,
) -> Tensor:
    """Convolution of (N, C, H, W), in tinygrad's order of arguments."""
    found: Tensor = F.conv2d(self, weight, bias, stride, padding, dilation, groups)
    return found


def max_pool2d(
    self: Tensor, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0
) -> Tensor:
    """The maximum of each window, of 2 by 2 unless given."""
    found: Tensor = F.max_pool2d(self, kernel_size, stride, padding, dilation)
    return found


def avg_pool2d(
    self: Tensor, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0
) -> Tensor:
    """The mean of each window, of 2 by 2 unless given.

    Raises:
        ValueError: windows with gaps.
    """
    if dilation not in (1, (1, 1)):
        raise ValueError(f"avg_pool2d: windows have no gaps here, and dilation={dilation} is given")
    found: Tensor = F.avg_pool2d(self, kernel_size, stride, padding)
    return found


def dropout(self: Tensor, p: float = 0.5) -> Tensor:
    """Zeroes elements in training; the tensor itself otherwise."""
    found: Tensor = F.dropout(self, p, Facade.training)
    return found


def softmax(self: Tensor, axis: int = -1, dtype: Any = None, **options: Any) -> Tensor:
    """Softmax along an axis, the last unless given."""
    found: Tensor = FUNCTIONS["softmax"](self, options.pop("dim", axis), dtype, **options)
    return found


def log_softmax(self: Tensor, axis: int = -1, dtype: Any = None, **options: Any) -> Tensor:
    """The logarithm of :func:`softmax`."""
    found: Tensor = FUNCTIONS["log_softmax"](self, options.pop("dim", axis), dtype, **options)
    return found


def sparse_categorical_crossentropy(
    self: Tensor,
    Y: Tensor,
    ignore_index: int = -1,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of scores (..., classes) and the numbers of classes."""
    scores, classes = self, Y
    if self.ndim != 2:
        scores, classes = self.reshape(-1, self.shape[-1]), Y.reshape(-1)
    found: Tensor = F.cross_entropy(
        scores,
        classes.long(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return found


def layernorm(self: Tensor, axis: int = -1, eps: float = 1e-5) -> Tensor:
    """To mean 0 and variance 1 from that axis on."""
    found: Tensor = F.layer_norm(self, self.shape[axis:], eps=eps)
    return found


def joined(name: str) -> Callable[..., Any]:
    """``x.cat(y, z, dim=0)`` and ``x.stack(y)``."""
    function = FUNCTIONS[name]

    def join(self: Tensor, *others: Tensor, dim: int = 0) -> Any:
        return function([self, *others], dim)

    join.__doc__ = f"As :func:`shmgpu.{name}` of this tensor and others."
    return join


def transpose(self: Tensor, dim0: int = 1, dim1: int = 0) -> Any:
    """Two axes exchanged, the first two unless given."""
    return FUNCTIONS["transpose"](self, dim0, dim1)


# ---- the table ---------------------------------------------------------------------------------

METHODS: dict[str, Any] = {
    one.__name__: one
    for one in (
        assign, avg_pool2d, backward, cast, conv2d, dot, dropout, layernorm, linear, log_softmax,
        max_pool2d, mean, realize, sequential, shard, shard_, shard_like, softmax,
        sparse_categorical_crossentropy, to, to_, transpose,
    )
}  # fmt: skip
METHODS |= {name: _values(name) for name in ("max", "min")}
METHODS |= {name: joined(name) for name in ("cat", "stack")}
METHODS |= {name: getattr(F, name) for name in ("elu", "gelu", "leaky_relu", "one_hot", "silu")}
METHODS |= {"swish": F.silu, "cross_entropy": F.cross_entropy}
METHODS |= {"axis": property(_axis), "bounds": property(_bounds), "device": property(_device)}


def install() -> None:
    """Have all tensors have them."""
    for name, method in METHODS.items():
        setattr(tensors.Tensor, name, method)
