"""What is done to all parameters, or gradients, at once; and to sequences of several lengths.

Owns these functions. Never waits for a value unless it is asked to check one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from shmgpu.nn.utils import rnn
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import FUNCTIONS, Tensor, tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]


def __dir__() -> list[str]:
    return __all__


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [one for one in listed if one.grad is not None]


def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all tensors together, as if they were one vector.

    Args:
        tensors: of floats.
        norm_type: the order p of the norm; infinity for the largest absolute value.
    """
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not listed:
        return tensor(0.0)
    with no_grad():
        if norm_type == math.inf:
            found: Tensor = FUNCTIONS["stack"]([one.abs().amax() for one in listed]).amax()
            return found
        powers = [(one * one if norm_type == 2 else one.abs() ** norm_type).sum() for one in listed]
        total = FUNCTIONS["stack"](powers).sum()
        found = total.sqrt() if norm_type == 2 else total ** (1 / norm_type)
        return found


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their total norm is at most ``max_norm``.

    Args:
        parameters: whose gradients are meant.
        max_norm: gradients of a smaller total norm are unchanged.
        norm_type: the order p of the norm; infinity for the largest absolute value.
        error_if_nonfinite: wait for the norm, and raise if it is not finite.
        foreach: accepted, and changes nothing.

    Returns:
        The total norm before, () of floats; it is not computed until it is read.

    Raises:
        RuntimeError: the norm is not finite, and ``error_if_nonfinite`` is set.
    """
    found = _with_gradients(parameters)
    norm = get_total_norm([one.grad for one in found if one.grad is not None], norm_type)
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}")
    with no_grad():
        share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for one in found:
            assert one.grad is not None
            one.grad.mul_(share.to(one.grad.dtype))
    return norm


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit each element of the gradients to -``clip_value`` to ``clip_value``."""
    with no_grad():
        for one in _with_gradients(parameters):
            assert one.grad is not None
            one.grad.copy_(one.grad.clamp(-clip_value, clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters' elements as one vector."""
    found: Tensor = FUNCTIONS["cat"]([one.reshape(-1) for one in parameters])
    return found


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Set the parameters from such a vector; ValueError if its length differs."""
    listed = list(parameters)
    if vec.shape != (sum(one.numel() for one in listed),):
        raise ValueError(
            f"vector_to_parameters: the vector {vec.shape} has not the "
            f"{sum(one.numel() for one in listed)} elements of the parameters"
        )
    start = 0
    with no_grad():
        for one in listed:
            one.copy_(vec[start : start + one.numel()].reshape(one.shape))
            start += one.numel()
