"""Checkpoints: parts of a model that are computed again for their gradients, and not kept.

Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016. Owns what is done again, and with
which seeds. Never sends, never computes a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.common import seeding
from shmgpu.ops.casting import alias
from shmgpu.ops.creation import zeros_like
from shmgpu.ops.graph import Node, grad_mode
from shmgpu.ops.recomputing import checkpointed
from shmgpu.tensors import autograd
from shmgpu.tensors.grad_mode import enable_grad
from shmgpu.tensors.tensor import Tensor


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function, and for its gradients call it again: what it computes within is not kept.

    Args:
        function: of tensors, with one tensor or a tuple of them for a result. It is called twice,
            and must do the same both times.
        args: its arguments.
        use_reentrant: accepted, and changes nothing.
        preserve_rng_state: have it draw the same numbers both times, as dropout needs.
        kwargs: its named arguments.

    Returns:
        What the function returns.

    Raises:
        RuntimeError: in ``backward``, if ``create_graph=True`` asks for gradients of the gradients.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     x = shmgpu.tensor([1.0, 2.0], requires_grad=True)
        ...     y = shmgpu.checkpoint(lambda x: (x * x).exp(), x)
        ...     y.sum().backward()
        ...     x.grad.shape
        (2,)
    """
    if not grad_mode.enabled:
        return function(*args, **kwargs)
    seeds = seeding.TENSORS.state if preserve_rng_state else None
    fresh = _fresh(args)
    out = function(*fresh, **kwargs)
    given = {id(one): old for one, old in zip(fresh, args, strict=True)}

    def kept(place: int, one: Any) -> Any:
        if not isinstance(one, Tensor) or not one.requires_grad:
            return one
        leaves = _leaves(one._node)
        # Who a gradient belongs to: an argument, or a parameter that the function uses.
        owners = [leaf.leaf() for leaf in leaves]
        nodes = [given[id(t)]._node if id(t) in given else t._node for t in owners]
        at = [_place(fresh, t) for t in owners]
        again = _Recomputation(
            function, args, kwargs, seeds, place, list(zip(at, owners, strict=True))
        )
        return Tensor(checkpointed(alias(one._node), tuple(nodes), again))

    if isinstance(out, (tuple, list)):
        return type(out)([kept(place, one) for place, one in enumerate(out)])
    return kept(-1, out)


def _fresh(args: tuple[Any, ...]) -> list[Any]:
    """The arguments without their history."""
    return [
        one.detach().requires_grad_() if isinstance(one, Tensor) and one.requires_grad else one
        for one in args
    ]


def _place(fresh: list[Any], tensor: Tensor) -> int:
    """Which argument that is; -1 for a parameter."""
    return next((place for place, one in enumerate(fresh) if one is tensor), -1)


def _leaves(root: Node) -> list[Node]:
    """The leaves that collect gradients under a node."""
    found, seen, stack = [], {root}, [root]
    while stack:
        node = stack.pop()
        if node.leaf is not None:
            if node.leaf() is not None:
                found.append(node)
            continue
        for one in node.inputs:
            if one.needs_grad and one not in seen:
                seen.add(one)
                stack.append(one)
    return sorted(found, key=lambda node: node.number)


class _Recomputation:
    """One output's gradients, by calling the function again."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seeds: Any,
        place: int,
        owners: list[tuple[int, Tensor]],
    ) -> None:
        self._call = (function, args, kwargs)
        self._seeds = seeds
        self._place = place
        self._arguments = [at for at, _ in owners]
        self._parameters = [None if at >= 0 else one for at, one in owners]
        self._last: tuple[Node, list[Node]] | None = None

    def __call__(self, g: Node, node: Node) -> list[Node]:
        """The gradient of each leaf; asked once for each of them, and found once."""
        if grad_mode.enabled:
            raise RuntimeError(
                "checkpoint: there are no gradients of gradients through it: call the function "
                "itself where create_graph=True is needed"
            )
        if self._last is None or self._last[0] is not g:
            self._last = (g, self._found(g, node))
        return self._last[1]

    def _found(self, g: Node, node: Node) -> list[Node]:
        function, args, kwargs = self._call
        fresh = _fresh(args)
        now = seeding.TENSORS.state
        if self._seeds is not None:
            seeding.TENSORS.state = self._seeds
        try:
            with enable_grad():
                out = function(*fresh, **kwargs)
        finally:
            if self._seeds is not None:
                seeding.TENSORS.state = now
        one = out if self._place < 0 else out[self._place]
        shares = autograd.gradients([one._node], [g], create_graph=False, retain_graph=True)
        by_owner = {id(leaf.leaf()): share for leaf, share in shares.items()}
        owners = [
            fresh[at] if at >= 0 else known
            for at, known in zip(self._arguments, self._parameters, strict=True)
        ]
        return [
            by_owner.get(id(owner)) or zeros_like(leaf)
            for owner, leaf in zip(owners, node.inputs[1:], strict=True)
        ]


def compile(model: Any = None, **options: Any) -> Any:
    """The function or module itself: what tensors do is compiled anyway.

    All that is recorded between two looks at a value becomes one program, which helpers compile
    once for each structure. This is here so that a script for PyTorch runs.

    Args:
        model: a function or a module; without one a decorator is returned.
        options: ``mode=``, ``fullgraph=``, ``dynamic=`` and so on: accepted, and change nothing.
    """
    return model if model is not None else lambda found: found
