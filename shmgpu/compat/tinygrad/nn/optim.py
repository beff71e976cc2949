"""tinygrad's optimisers: those of :mod:`shmgpu.optim`, over what of a list can be trained.

Owns which tensors that is: what collects gradients, and where nothing does, all floats. Never steps
outside of ``Tensor.train()``, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu import optim
from shmgpu.compat.tinygrad.tensor import Tensor as Facade
from shmgpu.ops.promotion import is_float
from shmgpu.optim import Optimizer
from shmgpu.tensors.tensor import Tensor


class TrainingOptimizer:
    """An optimiser that only steps in ``Tensor.train()``.

    Attributes:
        params: what is stepped.
        buffers: what else was among the tensors.
        inner: the package's optimiser.
    """

    def __init__(self, params: Sequence[Tensor], make: Any, **settings: Any) -> None:
        different = list(dict.fromkeys(params))
        self.params = [one for one in different if one.requires_grad]
        if not self.params:  # tensors that were made by hand
            self.params = [one.requires_grad_() for one in different if is_float(one.dtype)]
        if not self.params:
            raise ValueError("an optimiser needs a tensor of a float type that it can train")
        self.buffers = [one for one in different if one not in set(self.params)]
        self.inner: Optimizer = make(self.params, **settings)

    @property
    def lr(self) -> float:
        """The learning rate, which may be set."""
        return float(self.inner.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = float(value)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.inner.zero_grad()

    def step(self) -> None:
        """Change the parameters.

        Raises:
            RuntimeError: outside of ``Tensor.train()``.
        """
        if not Facade.training:
            raise RuntimeError(
                "Tensor.training must be enabled to use the optimizer: call step() within "
                "'with Tensor.train():'"
            )
        self.inner.step()

    def schedule_step(self) -> list[Tensor]:
        """A step; what is to be computed because of it."""
        self.step()
        return self.params


def SGD(
    params: Sequence[Tensor],
    lr: float = 0.001,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> TrainingOptimizer:
    """Gradient descent; ``options`` are tinygrad's (``fused``, ...), accepted."""
    return TrainingOptimizer(
        params, optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def Adam(
    params: Sequence[Tensor],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    **options: Any,
) -> TrainingOptimizer:
    """Adam; ``options`` are accepted."""
    return TrainingOptimizer(params, optim.Adam, lr=lr, betas=(b1, b2), eps=eps)


def AdamW(
    params: Sequence[Tensor],
    lr: float = 0.001,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    **options: Any,
) -> TrainingOptimizer:
    """Adam with decoupled weight decay; ``options`` are accepted."""
    return TrainingOptimizer(
        params, optim.AdamW, lr=lr, betas=(b1, b2), eps=eps, weight_decay=weight_decay
    )
