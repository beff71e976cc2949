"""The optimisers: in PyTorch's formulas, and with its names for their state.

Owns one rule for each. Never reads a parameter or a gradient: a rule only records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shmgpu.ops.elementwise import abs, add, add_scaled, div, maximum, mul, sqrt, sub
from shmgpu.ops.graph import Node
from shmgpu.ops.updates import adam_step, running_mean, running_square
from shmgpu.optim.optimizer import Form, Group, Numbers, Optimizer, check, check_betas, count

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmgpu.optim.optimizer import Hints

State = dict[str, Any]
Nodes = tuple[Node, ...]


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        momentum: fraction of the last update that is added to the next.
        dampening: fraction of the gradient that is left out of the momentum.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        nesterov: use Nesterov momentum (Sutskever et al., 2013), in PyTorch's form.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
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

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        share = 1 - group["dampening"] if "momentum_buffer" in state else 1.0
        return group["nesterov"], (-group["lr"], group["momentum"], share)

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        rate, momentum, share = numbers
        if not kept:
            return (add_scaled(one, grad, rate),)
        last = running_mean(kept[0], grad, momentum, share)
        grad = add_scaled(grad, last, momentum) if form else last
        return last, add_scaled(one, grad, rate)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), in PyTorch's form.

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: decay rates of the running means of gradients and of their squares.
        eps: added to the square root of the latter.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        amsgrad: divide by the largest mean of squares so far (Reddi et al., 2018).
        maximize: maximise the objective instead.
        decoupled_weight_decay: decay weights separately from gradients, as :class:`AdamW`.
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
        **hints: Unpack[Hints],
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

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        beta1, beta2 = group["betas"]
        steps = count(state)
        rate, root = -group["lr"] / (1 - beta1**steps), 1 / math.sqrt(1 - beta2**steps)
        return None, (rate, root, group["eps"], beta1, 1 - beta1, beta2, 1 - beta2)

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        rate, root, eps, *shares = numbers
        mean, square = _moments(grad, kept, shares)
        greatest = (maximum(kept[2], square),) if len(kept) > 2 else ()
        bound = (square, *greatest)[-1]
        return mean, square, *greatest, adam_step(one, mean, bound, rate, root, eps)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

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
        **hints: Unpack[Hints],
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
    """Divides by the root of a running mean of squares (Tieleman and Hinton, 2012).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        alpha: decay rate of the running mean of squares.
        eps: added to its square root.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        momentum: fraction of the last update that is added to the next.
        centered: divide by the standard deviation (Graves, 2013).
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
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

    def _keeps(self, group: Group) -> tuple[str, ...]:
        centred = ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *centred, *(("momentum_buffer",) if group["momentum"] else ()))

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        count(state)
        alpha, momentum = group["alpha"], group["momentum"]
        form = (bool(group["centered"]), bool(momentum))
        return form, (-group["lr"], alpha, 1 - alpha, group["eps"], momentum)

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        (is_centred, has_momentum), (rate, share, rest, eps, momentum) = form, numbers
        spread = running_square(kept[0], grad, share, rest)
        made = [spread]
        if is_centred:
            mean = running_mean(kept[1], grad, share, rest)
            made.append(mean)
            spread = sub(spread, mul(mean, mean))
        change = div(grad, add(sqrt(spread), eps))
        if has_momentum:
            change = add(mul(kept[-1], momentum), change)
            made.append(change)
        return *made, add_scaled(one, change, rate)


class Adagrad(Optimizer):
    """Divides gradients by the root of the sum of their squares (Duchi et al., 2011).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        lr_decay: the rate is divided by 1 plus this times the steps before.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        initial_accumulator_value: initial value of the sums.
        eps: added to the square root.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
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

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _begin(self, group: Group) -> float:
        begin: float = group["initial_accumulator_value"]
        return begin

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        rate = group["lr"] / (1 + (count(state) - 1) * group["lr_decay"])
        return None, (-rate, group["eps"])

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        rate, eps = numbers
        total = add(kept[0], mul(grad, grad))
        return total, add_scaled(one, div(grad, add(sqrt(total), eps)), rate)


class Adadelta(Optimizer):
    """Scales updates by the running size of the last ones (Zeiler, 2012).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: by which the change is multiplied.
        rho: decay rate of both running means of squares.
        eps: added to both, before the root.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
    ) -> None:
        check("Adadelta", lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
        if rho > 1:
            raise ValueError(f"Adadelta: rho={rho} must be 0 to 1")
        super().__init__(
            params,
            {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
            hints,
        )

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        count(state)
        return None, (-group["lr"], group["rho"], 1 - group["rho"], group["eps"])

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        (square, delta), (rate, share, rest, eps) = kept, numbers
        square = running_square(square, grad, share, rest)
        change = mul(div(sqrt(add(delta, eps)), sqrt(add(square, eps))), grad)
        delta = running_square(delta, change, share, rest)
        return square, delta, add_scaled(one, change, rate)


def _moments(grad: Node, kept: Nodes, shares: list[Node]) -> tuple[Node, Node]:
    """The running means of gradients and of their squares."""
    return running_mean(kept[0], grad, *shares[:2]), running_square(kept[1], grad, *shares[2:])


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
        hints: Mapping[str, object],
    ) -> None:
        name = type(self).__name__
        check(name, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(name, betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize, **more}, hints)

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"


class Adamax(_Moments):
    """Adam with the infinity norm (Kingma and Ba, 2015).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: decay rates of the running mean of gradients and of their maximum.
        eps: added to each gradient's absolute value.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize, {}, hints)

    def _keeps(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        beta1, beta2 = group["betas"]
        rate = -group["lr"] / (1 - beta1 ** count(state))
        return None, (rate, beta1, 1 - beta1, beta2, group["eps"])

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        (mean, greatest), (rate, share, rest, beta2, eps) = kept, numbers
        mean = running_mean(mean, grad, share, rest)
        greatest = maximum(mul(greatest, beta2), add(abs(grad), eps))
        return mean, greatest, add_scaled(one, div(mean, greatest), rate)


class NAdam(_Moments):
    """Adam with Nesterov momentum (Dozat, 2016).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: decay rates of the running means of gradients and of their squares.
        eps: added to the square root of the latter.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        momentum_decay: how fast the momentum approaches the first of ``betas``.
        decoupled_weight_decay: decay weights separately from gradients.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
    ) -> None:
        check("NAdam", momentum_decay=momentum_decay)
        more = {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, maximize, more, hints)

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        beta1, beta2 = group["betas"]
        steps, decay, rate = count(state), group["momentum_decay"], -group["lr"]
        now, ahead = [beta1 * (1 - 0.5 * 0.96 ** (n * decay)) for n in (steps, steps + 1)]
        product = state["mu_product"] = state.get("mu_product", 1.0) * now
        rates = (rate * (1 - now) / (1 - product), rate * ahead / (1 - product * ahead))
        shares = (beta1, 1 - beta1, beta2, 1 - beta2)
        return None, (*rates, 1 / (1 - beta2**steps), group["eps"], *shares)

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        by_grad, by_mean, scale, eps, *shares = numbers
        mean, square = _moments(grad, kept, shares)
        root = add(sqrt(mul(square, scale)), eps)
        one = add_scaled(one, div(grad, root), by_grad)
        return mean, square, add_scaled(one, div(mean, root), by_mean)


class RAdam(_Moments):
    """Adam that omits the division until the mean of squares is reliable (Liu et al., 2020).

    Args:
        params: tensors that collect gradients, or dicts of them and of settings.
        lr: learning rate.
        betas: decay rates of the running means of gradients and of their squares.
        eps: added to the square root of the latter.
        weight_decay: L2 penalty: this times the parameter is added to its gradient.
        decoupled_weight_decay: decay weights separately from gradients.
        maximize: maximise the objective instead.
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
        **hints: Unpack[Hints],
    ) -> None:
        more = {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, lr, betas, eps, weight_decay, maximize, more, hints)

    def _numbers(self, state: State, group: Group) -> tuple[Form, Numbers]:
        beta1, beta2 = group["betas"]
        steps = count(state)
        rate, rest = -group["lr"] / (1 - beta1**steps), 1 - beta2**steps
        most = 2 / (1 - beta2) - 1
        length = most - 2 * steps * beta2**steps / rest  # of the mean, in steps
        is_trusted = length > 5
        if is_trusted:
            share = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
            rate *= math.sqrt(share * rest)
        return is_trusted, (rate, group["eps"], beta1, 1 - beta1, beta2, 1 - beta2)

    @staticmethod
    def _change(form: Form, one: Node, grad: Node, kept: Nodes, numbers: Nodes) -> Nodes:
        rate, eps, *shares = numbers
        mean, square = _moments(grad, kept, shares)
        change = div(mean, add(sqrt(square), eps)) if form else mean
        return mean, square, add_scaled(one, change, rate)
