"""The optimisers: in PyTorch's formulas, and with its names for what they keep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from shmgpu.optim.optimizer import (
    Group,
    Optimizer,
    check,
    check_betas,
    count,
    decayed,
    follow,
    kept,
    put,
)
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

State = dict[str, Any]
maximum = FUNCTIONS["maximum"]


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        momentum: share of the last change that is kept.
        dampening: share of the gradient that does not enter the momentum.
        weight_decay: share of the parameter that is added to its gradient.
        nesterov: look ahead by the momentum (Sutskever et al., 2013, as PyTorch has it).
        maximize: climb instead.
        hints: ``foreach``, ``differentiable``, ``fused``: accepted, and change nothing.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     weight = shmgpu.tensor([1.0], requires_grad=True)
        ...     optimizer = shmgpu.optim.SGD([weight], lr=0.5)
        ...     (3 * weight).sum().backward()
        ...     optimizer.step()
        ...     weight.tolist()
        [-0.5]
    """

    hints = ("foreach", "differentiable", "fused")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        check("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (not momentum or dampening):
            raise ValueError("SGD: nesterov=True needs a momentum, and no dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
            hints,
        )

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        before, grad = decayed(one, grad, group)
        momentum = group["momentum"]
        if momentum:
            share = 1 - group["dampening"] if "momentum_buffer" in state else 1.0
            last = kept(state, "momentum_buffer", one)
            put(last, (last * momentum).add(grad, alpha=share)._node)
            grad = grad.add(last, alpha=momentum) if group["nesterov"] else last
        put(one, before.add(grad, alpha=-group["lr"])._node)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), in PyTorch's form.

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: shares kept of the mean of gradients and of that of their squares.
        eps: added to the root of the latter.
        weight_decay: share of the parameter that is added to its gradient.
        amsgrad: divide by the greatest mean of squares so far (Reddi et al., 2018).
        maximize: climb instead.
        decoupled_weight_decay: decay weights apart from gradients, as :class:`AdamW`.
        hints: ``foreach``, ``capturable``, ``differentiable``, ``fused``: accepted, and change
            nothing.
    """

    hints = ("foreach", "capturable", "differentiable", "fused")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        **hints: Any,
    ) -> None:
        name = type(self).__name__
        check(name, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(name, betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
            hints,
        )

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        beta1, beta2 = group["betas"]
        steps = count(state)
        before, grad = decayed(one, grad, group)
        mean = follow(state, "exp_avg", grad, beta1, one)
        square = follow(state, "exp_avg_sq", grad * grad, beta2, one)
        if group["amsgrad"]:
            greatest = kept(state, "max_exp_avg_sq", one)
            square = put(greatest, maximum(greatest, square)._node)
        root = square.sqrt() * (1 / math.sqrt(1 - beta2**steps)) + group["eps"]
        put(one, before.add(mean / root, alpha=-group["lr"] / (1 - beta1**steps))._node)


class AdamW(Adam):
    """Adam with the decay of weights apart from gradients (Loshchilov and Hutter, 2019)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=True,
            **hints,
        )


class RMSprop(Optimizer):
    """By the root of the running mean of squares (Tieleman and Hinton, 2012), as PyTorch has it.

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        alpha: share kept of the mean of squares.
        eps: added to its root.
        weight_decay: share of the parameter that is added to its gradient.
        momentum: share of the last change that is kept.
        centered: divide by the deviation (Graves, 2013).
        maximize: climb instead.
        hints: ``foreach``, ``capturable``, ``differentiable``: accepted, and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        check("RMSprop", lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "maximize": maximize,
            },
            hints,
        )

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        count(state)
        before, grad = decayed(one, grad, group)
        spread = follow(state, "square_avg", grad * grad, group["alpha"], one)
        if group["centered"]:
            mean = follow(state, "grad_avg", grad, group["alpha"], one)
            spread = spread - mean * mean
        change = grad / (spread.sqrt() + group["eps"])
        if group["momentum"]:
            last = kept(state, "momentum_buffer", one)
            change = put(last, (last * group["momentum"] + change)._node)
        put(one, before.add(change, alpha=-group["lr"])._node)


class Adagrad(Optimizer):
    """By the root of the sum of squares (Duchi et al., 2011).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        lr_decay: the rate is divided by 1 plus this times the steps before.
        weight_decay: share of the parameter that is added to its gradient.
        initial_accumulator_value: what the sums begin with.
        eps: added to the root.
        maximize: climb instead.
        hints: ``foreach``, ``differentiable``, ``fused``: accepted, and change nothing.
    """

    hints = ("foreach", "differentiable", "fused")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        check(
            "Adagrad",
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "maximize": maximize,
            },
            hints,
        )

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        steps = count(state)
        before, grad = decayed(one, grad, group)
        total = kept(state, "sum", one, group["initial_accumulator_value"])
        put(total, (total + grad * grad)._node)
        rate = group["lr"] / (1 + (steps - 1) * group["lr_decay"])
        put(one, before.add(grad / (total.sqrt() + group["eps"]), alpha=-rate)._node)


class Adadelta(Optimizer):
    """Changes as great as the last ones, by the gradients' size (Zeiler, 2012).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: by which the change is multiplied.
        rho: share kept of both means of squares.
        eps: added to both, before the root.
        weight_decay: share of the parameter that is added to its gradient.
        maximize: climb instead.
        hints: ``foreach``, ``capturable``, ``differentiable``: accepted, and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        check("Adadelta", lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
        if rho > 1:
            raise ValueError(f"Adadelta: rho={rho} must be 0 to 1")
        super().__init__(
            params,
            {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
            hints,
        )

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        count(state)
        rho, eps = group["rho"], group["eps"]
        before, grad = decayed(one, grad, group)
        square = follow(state, "square_avg", grad * grad, rho, one)
        change = (kept(state, "acc_delta", one) + eps).sqrt() / (square + eps).sqrt() * grad
        follow(state, "acc_delta", change * change, rho, one)
        put(one, before.add(change, alpha=-group["lr"])._node)


class _Moments(Optimizer):
    """What the kin of Adam share: two running means, and how weights decay."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        maximize: bool,
        more: dict[str, Any],
        hints: dict[str, Any],
    ) -> None:
        name = type(self).__name__
        check(name, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(name, betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize, **more}, hints)


class Adamax(_Moments):
    """Adam by the greatest gradient, which fades (Kingma and Ba, 2015).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: shares kept of the mean of gradients and of the greatest.
        eps: added to each gradient's size.
        weight_decay: share of the parameter that is added to its gradient.
        maximize: climb instead.
        hints: ``foreach``, ``capturable``, ``differentiable``: accepted, and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize, {}, hints)

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        beta1, beta2 = group["betas"]
        steps = count(state)
        before, grad = decayed(one, grad, group)
        mean = follow(state, "exp_avg", grad, beta1, one)
        greatest = kept(state, "exp_inf", one)
        put(greatest, maximum(greatest * beta2, grad.abs() + group["eps"])._node)
        put(one, before.add(mean / greatest, alpha=-group["lr"] / (1 - beta1**steps))._node)


class NAdam(_Moments):
    """Adam that looks ahead by its momentum (Dozat, 2016).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: shares kept of the mean of gradients and of that of their squares.
        eps: added to the root of the latter.
        weight_decay: share of the parameter that is added to its gradient.
        momentum_decay: how fast the momentum comes near the first of ``betas``.
        decoupled_weight_decay: decay weights apart from gradients.
        maximize: climb instead.
        hints: ``foreach``, ``capturable``, ``differentiable``: accepted, and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        check("NAdam", momentum_decay=momentum_decay)
        more = {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, maximize, more, hints)

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        beta1, beta2 = group["betas"]
        steps, decay = count(state), group["momentum_decay"]
        before, grad = decayed(one, grad, group)
        now, ahead = [beta1 * (1 - 0.5 * 0.96 ** (n * decay)) for n in (steps, steps + 1)]
        product = state["mu_product"] = state.get("mu_product", 1.0) * now
        mean = follow(state, "exp_avg", grad, beta1, one)
        square = follow(state, "exp_avg_sq", grad * grad, beta2, one)
        root = (square * (1 / (1 - beta2**steps))).sqrt() + group["eps"]
        before = before.add(grad / root, alpha=-group["lr"] * (1 - now) / (1 - product))
        put(one, before.add(mean / root, alpha=-group["lr"] * ahead / (1 - product * ahead))._node)


class RAdam(_Moments):
    """Adam that does without squares until their mean can be trusted (Liu et al., 2020).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: shares kept of the mean of gradients and of that of their squares.
        eps: added to the root of the latter.
        weight_decay: share of the parameter that is added to its gradient.
        decoupled_weight_decay: decay weights apart from gradients.
        maximize: climb instead.
        hints: ``foreach``, ``capturable``, ``differentiable``: accepted, and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **hints: Any,
    ) -> None:
        more = {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, maximize, more, hints)

    def _change(self, one: Tensor, grad: Tensor, state: State, group: Group) -> None:
        beta1, beta2 = group["betas"]
        steps = count(state)
        before, grad = decayed(one, grad, group)
        mean = follow(state, "exp_avg", grad, beta1, one)
        square = follow(state, "exp_avg_sq", grad * grad, beta2, one)
        rate, rest = group["lr"] / (1 - beta1**steps), 1 - beta2**steps
        most = 2 / (1 - beta2) - 1
        length = most - 2 * steps * beta2**steps / rest  # of the mean, in steps
        if length <= 5:
            put(one, before.add(mean, alpha=-rate)._node)
            return
        share = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        root = square.sqrt() + group["eps"]
        put(one, before.add(mean / root, alpha=-rate * math.sqrt(share * rest))._node)
