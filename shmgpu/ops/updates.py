"""What optimisers do to each parameter: running means, and Adam's step.

Owns their rows. Each is one row instead of several operations: a step updates hundreds of tensors
alike, and the work of recording, sending and planning grows with their number. Never has a
gradient.
"""

from __future__ import annotations

from typing import Any

from shmgpu.ops.elementwise import row
from shmgpu.ops.graph import Node, Params, Spec, apply

Specs = tuple[Spec, ...]


def _numpy_mean(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return lambda mean, x, share, rest, out=None: np.add(mean * share, x * rest, out=out)


def _torch_mean(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    mul = torch.mul

    def kernel(mean: Any, x: Any, share: float, rest: float, out: Any = None) -> Any:
        if out is x:
            return x.mul_(rest).add_(mean, alpha=share)
        return mul(mean, share, out=out).add_(x, alpha=rest)

    return kernel


def _numpy_square(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return lambda mean, x, share, rest, out=None: np.add(mean * share, x * x * rest, out=out)


def _torch_square(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    mul = torch.mul

    def kernel(mean: Any, x: Any, share: float, rest: float, out: Any = None) -> Any:
        if out is x:
            return x.mul_(x).mul_(rest).add_(mean, alpha=share)
        return mul(mean, share, out=out).addcmul_(x, x, value=rest)

    return kernel


def _numpy_adam(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    def kernel(
        one: Any, mean: Any, square: Any, rate: Any, root: Any, eps: Any, out: Any = None
    ) -> Any:
        return np.add(one, mean / (np.sqrt(square) * root + eps) * rate, out=out)

    return kernel


def _torch_adam(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    sqrt, addcdiv = torch.sqrt, torch.addcdiv

    def kernel(
        one: Any, mean: Any, square: Any, rate: float, root: float, eps: float, out: Any = None
    ) -> Any:
        return addcdiv(one, mean, sqrt(square).mul_(root).add_(eps), value=rate, out=out)

    return kernel


RUNNING_MEAN = row("running_mean", numpy=_numpy_mean, torch=_torch_mean, numbers=(2, 3))
RUNNING_SQUARE = row("running_square", numpy=_numpy_square, torch=_torch_square, numbers=(2, 3))
ADAM_STEP = row("adam_step", numpy=_numpy_adam, torch=_torch_adam, numbers=(3, 4, 5))


def running_mean(mean: Node, value: Node, share: Node, rest: Node) -> Node:
    """``share`` of a mean as it was, and ``rest`` of what is new: two nodes of one value each."""
    return apply(RUNNING_MEAN, (mean, value, share, rest))


def running_square(mean: Node, value: Node, share: Node, rest: Node) -> Node:
    """The same of the squares of what is new."""
    return apply(RUNNING_SQUARE, (mean, value, share, rest))


def adam_step(one: Node, mean: Node, square: Node, rate: Node, root: Node, eps: Node) -> Node:
    """A parameter and ``rate`` times the mean, by ``root`` times the square's root plus ``eps``.

    Kingma and Ba, Adam, 2015; rate and root hold the corrections for the first steps.
    """
    return apply(ADAM_STEP, (one, mean, square, rate, root, eps))
