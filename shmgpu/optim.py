"""Optimisers: what a step does to parameters, in PyTorch's formulas.

A step is recorded like anything else, so forward, backward and step travel as one program. Numbers
that change from step to step go beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shmgpu.codec import arrays
from shmgpu.tensors import current
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor, tensor, zeros

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


def __dir__() -> list[str]:
    return __all__


class Optimizer:
    """What all of them share: the parameters, their state, and its way out and back.

    Attributes:
        param_groups: one dict, with the parameters and the settings, which may be changed between
            steps (a learning rate's schedule).
        state: for each parameter's place, what is kept of it: tensors, and the count of steps.

    A step replaces each parameter and each tensor of its state by one operation in place: where
    what it follows from fails, all of them stay what they were.
    """

    def __init__(self, params: Iterable[Tensor], defaults: dict[str, Any]) -> None:
        listed = list(params)
        if not listed:
            raise ValueError(f"{type(self).__name__}: there are no parameters to change")
        for one in listed:
            if not isinstance(one, Tensor) or not one.is_leaf or not one.requires_grad:
                raise ValueError(
                    f"{type(self).__name__}: each parameter must be a tensor made with "
                    "requires_grad=True"
                )
        self.param_groups: list[dict[str, Any]] = [{"params": listed, **defaults}]
        self.state: list[dict[str, Any]] = [{} for _ in listed]

    def zero_grad(self) -> None:
        """Forget the gradients collected so far."""
        for one in self.param_groups[0]["params"]:
            one.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        (group,) = self.param_groups
        with no_grad():
            for one, state in zip(group["params"], self.state, strict=True):
                if one.grad is not None:
                    self._change(one, one.grad, state, group)
        current.recorder().step_done()

    def _change(
        self, one: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Settings and state, the parameters by their places."""
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        kept = [
            {k: v.detach() if isinstance(v, Tensor) else v for k, v in state.items()}
            for state in self.state
        ]
        return {"settings": settings, "state": kept}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take settings and state from another run of the same model: tensors, or arrays of them.

        Raises:
            ValueError: it is of another number of parameters.
        """
        if len(saved["state"]) != len(self.state):
            raise ValueError(
                f"the saved state is of {len(saved['state'])} parameters, this of {len(self.state)}"
            )
        self.param_groups[0].update(saved["settings"])
        self.state = [{k: _taken(v) for k, v in state.items()} for state in saved["state"]]


def _taken(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return tensor(value) if arrays.is_array(value) else value


def _check(name: str, **numbers: float) -> None:
    for key, number in numbers.items():
        if not 0 <= number < math.inf:
            raise ValueError(f"{name}: {key}={number!r} must be a number, 0 or more")


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        params: tensors that collect gradients.
        lr: learning rate.
        momentum: share of the last change that is kept.
        weight_decay: share of the parameter that is added to its gradient.
        nesterov: look ahead by the momentum (Sutskever et al., 2013, as PyTorch has it).

    Example:
        >>> with shmgpu.init(inline=True):
        ...     weight = shmgpu.tensor([1.0], requires_grad=True)
        ...     optimizer = shmgpu.optim.SGD([weight], lr=0.5)
        ...     (3 * weight).sum().backward()
        ...     optimizer.step()
        ...     weight.tolist()
        [-0.5]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        _check("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov=True needs a momentum")
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov},
        )

    def _change(
        self, one: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if group["weight_decay"]:
            grad = grad.add(one, alpha=group["weight_decay"])
        if group["momentum"]:
            if "momentum" not in state:
                state["momentum"] = zeros(*one.shape, dtype=one.dtype)
            kept = state["momentum"]
            kept.copy_(kept * group["momentum"] + grad)
            grad = grad.add(kept, alpha=group["momentum"]) if group["nesterov"] else kept
        one.add_(grad, alpha=-group["lr"])


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), in PyTorch's form.

    Args:
        params: tensors that collect gradients.
        lr: learning rate.
        betas: shares kept of the mean of gradients and of that of their squares.
        eps: added to the root of the latter.
        weight_decay: share of the parameter that is added to its gradient.
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        _check(type(self).__name__, lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{type(self).__name__}: betas={betas} must be at least 0 and below 1")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def _change(
        self, one: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        if not state:
            state.update(
                step=0,
                mean=zeros(*one.shape, dtype=one.dtype),
                square=zeros(*one.shape, dtype=one.dtype),
            )
        state["step"] += 1
        before = one
        if group["weight_decay"]:
            if self.decoupled:
                before = one * (1 - group["lr"] * group["weight_decay"])
            else:
                grad = grad.add(one, alpha=group["weight_decay"])
        mean, square = state["mean"], state["square"]
        mean.copy_((mean * beta1).add(grad, alpha=1 - beta1))
        square.copy_((square * beta2).add(grad * grad, alpha=1 - beta2))
        size = group["lr"] / (1 - beta1 ** state["step"])
        root = square.sqrt() * (1 / math.sqrt(1 - beta2 ** state["step"])) + group["eps"]
        one.copy_(before.add(mean / root, alpha=-size))


class AdamW(Adam):
    """Adam with the decay of weights apart from gradients (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
