"""netcl's collectives: functions of a list, in which each replica has a tensor.

Owns what they mean: the tensors are changed in place and keep their types. The program that calls
them knows all of the tensors, so nobody has to be waited for: members of a mesh each reduce their
part of the elements, where all of them lie. Never decides how pieces reach each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu.common.wording import counted
from shmgpu.distributed.placements import Replicate, Shard
from shmgpu.ops.promotion import is_float
from shmgpu.parallel.constraints import constrain
from shmgpu.parallel.device_mesh import HELPER, DeviceMesh, init_device_mesh
from shmgpu.parallel.tensors import mesh_of
from shmgpu.tensors import current
from shmgpu.tensors import tensor as tensors
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor

_call = tensors.FUNCTIONS
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": _call["add"],
    "mean": _call["add"],  # and then divided
    "max": _call["maximum"],
    "min": _call["minimum"],
    "prod": _call["mul"],
}


def all_reduce(tensors: list[Tensor], op: str = "sum", overlap: bool = False) -> Any:
    """Reduce tensors of one shape, in the list's order; each of them becomes the result.

    Args:
        tensors: one for each replica, of any type that ``op`` has; types are kept, and those of 16
            bits are added up in float32.
        op: ``"sum"``, ``"mean"`` (of floats), ``"max"``, ``"min"`` or ``"prod"``.
        overlap: go on while helpers are at work: the tensors lie on the mesh then, whole with each
            helper.

    Returns:
        The list; None where it is empty.

    Raises:
        ValueError: there is no such ``op``, the shapes differ, or a mean is asked of integers.
    """
    if not len(tensors):
        return None
    reduced([tensors], op, overlap=overlap)
    return tensors


def all_reduce_p2p(tensors: list[Tensor], op: str = "sum") -> Any:
    """As :func:`all_reduce`: helpers read each other's elements in memory that all of them see."""
    return all_reduce(tensors, op)


def broadcast(tensor: Any, root: int = 0) -> Any:
    """Have all tensors of a list become the one at ``root``, in their own types.

    What is no list is returned as it is.

    Raises:
        ValueError: the list has no such place, or the shapes differ.
    """
    if not isinstance(tensor, list):
        return tensor
    if not 0 <= root < len(tensor):
        among = counted(len(tensor), "tensor")
        raise ValueError(f"broadcast: there is no root {root} among {among}")
    _check_shapes("broadcast", tensor)
    for place, one in enumerate(tensor):
        if place != root:
            become(one, tensor[root])
    return tensor


def scatter(tensor: Any, chunks: int) -> list[Any]:
    """Cut a tensor along its first axis, into pieces that differ by at most one in length.

    Args:
        tensor: of one axis at least; of an array, the pieces are arrays.
        chunks: how many pieces.

    Raises:
        ValueError: there is no axis, or it is to be cut into no pieces.
    """
    if chunks < 1 or not tensor.ndim:
        raise ValueError(
            f"scatter: a tensor of shape {tuple(tensor.shape)} cannot be cut into {chunks} pieces: "
            "it needs an axis, and one piece at least"
        )
    if not isinstance(tensor, Tensor):
        return list(np.array_split(tensor, chunks, axis=0))
    size, more = divmod(tensor.shape[0], chunks)
    ends = [(place + 1) * size + min(place + 1, more) for place in range(chunks)]
    return [tensor[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def gather(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along their first axis.

    Raises:
        ValueError: there are none, or they differ in another axis.
    """
    if not len(tensors):
        raise ValueError("gather: there is no tensor to join: pass one for each replica")
    joined: Tensor = _call["cat"](list(tensors), 0)
    return joined


# ---- for the package ---------------------------------------------------------------------------


def reduced(
    lists: Sequence[Sequence[Tensor]],
    op: str,
    weights: Sequence[float] | None = None,
    overlap: bool = False,
) -> None:
    """Reduce several lists at once, in one message; see :func:`all_reduce`.

    ``weights``: of each replica, which add up to one; a mean's are equal unless given.
    """
    op = _checked(op)
    for one in lists:
        _check_shapes("all_reduce", one)
        if op == "mean" and not is_float(one[0].dtype):
            raise ValueError(
                f"all_reduce: the mean of {one[0].dtype.name} is no such number: convert it to a "
                "float type, or ask for a sum"
            )
    on_mesh = any(mesh_of(one) is not None for each in lists for one in each)
    mesh = None if on_mesh else _mesh(len(lists[0]))
    if mesh is not None:
        # Each is computed by the helper that holds what it is made of, and not by all of them.
        current.recorder().send()
    with no_grad():
        results = [_reduce(one, op, weights, mesh) for one in lists]
        arrays: list[Any] = list(results)
        if mesh is not None and overlap:
            arrays = [constrain(one, mesh, [Replicate()]) for one in results]
            current.recorder().send()
        elif mesh is not None:
            current.recorder().flush([one._node for one in results])
            arrays = [Tensor.__shmgpu_result__(current.elements(one._node)) for one in results]
        for each, result in zip(lists, arrays, strict=True):
            for tensor in each:
                become(tensor, result)


def become(one: Tensor, other: Any) -> None:
    """Have a tensor show the elements of another, in its own type; no gradient flows."""
    with no_grad():
        one.data = other if other.dtype is one.dtype else other.to(one.dtype)


def _checked(op: str) -> str:
    known = op.lower() if isinstance(op, str) else op
    if known not in OPS:
        raise ValueError(f"all_reduce: there is no op {op!r}: use one of {', '.join(OPS)}")
    return str(known)


def _check_shapes(what: str, given: Sequence[Tensor]) -> None:
    shapes = {tuple(one.shape) for one in given}
    if len(shapes) > 1:
        raise ValueError(f"{what}: the tensors have shapes {sorted(shapes)}: they must have one")


def _mesh(count: int) -> DeviceMesh | None:
    """One of as many helpers as there are replicas, or as there are helpers; None for one."""
    recorder = current.recorder()
    known = min(count, len(recorder.helpers))
    return init_device_mesh(HELPER, (known,)) if known > 1 else None


def _reduce(
    given: Sequence[Tensor], op: str, weights: Sequence[float] | None, mesh: DeviceMesh | None
) -> Tensor:
    """The result, of the first one's type; each member reduces its part of the elements."""
    first = given[0]
    parts: list[Any] = [one.detach() for one in given]
    if mesh is not None:
        parts = [constrain(one.reshape(-1), mesh, [Shard(0)]) for one in parts]
    dtype = first.dtype
    if is_float(dtype) and dtype.itemsize < 4:
        parts = [one.float() for one in parts]
    if weights is not None:
        parts = [one * share for one, share in zip(parts, weights, strict=True)]
    result = functools.reduce(OPS[op], parts)
    if op == "mean" and weights is None:
        result = result / len(parts)
    if result.dtype is not dtype:
        result = result.to(dtype)
    whole: Tensor = result if mesh is None else result.reshape(first.shape)
    return whole
