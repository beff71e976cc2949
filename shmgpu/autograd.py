"""Gradients under the names of ``torch.autograd``.

Owns :func:`backward` of several tensors; the others are those of :mod:`shmgpu`. Never computes.
An operation's gradient is defined in its row, in :mod:`shmgpu.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.common.wording import counted
from shmgpu.tensors.base import backward_from
from shmgpu.tensors.grad_mode import enable_grad, no_grad, set_grad_enabled
from shmgpu.tensors.tensor import Tensor, grad

__all__ = ["backward", "enable_grad", "grad", "no_grad", "set_grad_enabled"]


def __dir__() -> list[str]:
    return __all__


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Compute gradients of several tensors at once, and add them to ``grad`` of every leaf.

    Args:
        tensors: those to differentiate, or one.
        grad_tensors: the gradient with respect to each, or None for ones; by default ones.
        retain_graph: keep what a second call needs; by default as ``create_graph``.
        create_graph: make the gradients differentiable themselves.

    Raises:
        RuntimeError: nothing that a tensor depends on requires a gradient, or the graph was
            released.
        ValueError: a gradient's shape is not its tensor's, or there is not one for each.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     x = shmgpu.tensor([1.0, 2.0], requires_grad=True)
        ...     shmgpu.autograd.backward([x.sum(), (x * x).sum()])
        ...     x.grad.tolist()
        [3.0, 5.0]
    """
    outs = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = [grad_tensors] if isinstance(grad_tensors, Tensor) else grad_tensors
    seeds = [None] * len(outs) if given is None else list(given)
    if len(seeds) != len(outs):
        raise ValueError(
            f"backward: {counted(len(seeds), 'gradient')} for {counted(len(outs), 'tensor')}: give "
            "one for each"
        )
    backward_from(outs, seeds, retain_graph, create_graph, "a tensor")
