"""Tensors that share elements: a tensor and its views, and a change of one seen in the others.

Owns what they share, and :func:`view`, which makes a tensor that shows part of another. Which part
that is, :mod:`shmgpu.ops.views` says. Never computes, never looks at a value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from shmgpu.ops import casting, graph, shaping, views
from shmgpu.ops.casting import alias
from shmgpu.ops.graph import Node
from shmgpu.tensors import once
from shmgpu.tensors.grad_mode import GradContext

# The class is above this file: a new tensor gets the class of an existing one.
Tensor: TypeAlias = Any
T = TypeVar("T", bound=Any)


def _nobody() -> None:
    """In place of the tensor that views were taken from, where that is gone."""


class Shared:
    """What a tensor and the views of it share: a change of one in place is seen in all of them.

    Nothing is shared in memory: the changed part is put back into the whole, and each view shows
    its part of that anew, when it is looked at. So a step in place costs the view's bytes.

    What is shared with whom is looked at and changed by one thread at a time
    (:data:`shmgpu.tensors.once.lock`): else two that take the first views of a tensor would share
    with one each.
    """

    __slots__ = ("_lies", "_most", "_shape", "_views", "_whole")

    def __init__(self, whole: Tensor, lies: views.Chain = ()) -> None:
        """``lies``: how the whole showed part of another, of which nothing else is left."""
        self._whole: Callable[[], Tensor | None] = weakref.ref(whole)
        self._views: list[weakref.ref[Tensor]] = []
        self._most = 16  # until those that are gone are looked for
        self._shape = whole.shape
        self._lies = lies

    def add(self, one: Tensor) -> None:
        """One more view."""
        if len(self._views) >= self._most:
            self._views = [known for known in self._views if known() is not None]
            self._most = 16 + 2 * len(self._views)
        self._views.append(weakref.ref(one))

    def leave(self, one: Tensor) -> None:
        """It shows other elements from now on; views of it keep those that they show."""
        with once.lock:
            if one._view is None:
                self._whole = _nobody
            else:
                self._views = [known for known in self._views if known() is not one]
            one._shared = one._view = None

    def alive(self) -> list[Tensor]:
        """Those that are still there."""
        return [one for known in self._views if (one := known()) is not None]

    def layout(self, chain: views.Chain) -> Any:
        """Where the elements of such a view lie: see :func:`shmgpu.ops.views.layout`."""
        return views.layout(self._shape, (*self._lies, *chain))

    def is_contiguous(self, one: Tensor) -> bool:
        """Whether its elements lie one behind the other, in their order."""
        place = self.layout(one._view or ())
        return place is not None and bool(place.flags.c_contiguous)

    def would_copy(self, chain: views.Chain) -> bool:
        """Whether no stride an axis tells the order of such a view's elements."""
        turned = (*self._lies, *chain)[1:]  # a whole that is reshaped first has any shape
        return any(op is shaping.RESHAPE for op, _ in turned) and self.layout(chain) is None

    def of_the_last(self, one: Tensor) -> Shared:
        """These, or, where of the whole nothing but that view is left, what is shared from it on.

        Of ``arange(6).view(2, 3)`` nobody has the six: further views are views of the two rows.
        """
        if one._view is None or self._whole() is not None or len(self.alive()) > 1:
            return self
        if views.is_expanded(one._view):
            place = self.layout(one._view)
            if place is None or views.overlaps_itself(place):
                return self
        return self._from(one)

    def _from(self, one: Tensor) -> Shared:
        """That view is the whole from now on, and lies as it did."""
        found = Shared(one, (*self._lies, *one._view))
        found._shape = self._shape
        one._view = None
        return found

    def write(self, changed: Tensor, node: Node) -> None:
        """One of them was changed in place.

        Raises:
            RuntimeError: that cannot be seen where it should be.
        """
        whole, chain = self._whole(), changed._view
        if chain is None:
            changed._replace(node)
            self._show_again(changed)
            return
        place = self.layout(chain)
        if place is not None and views.overlaps_itself(place):
            raise RuntimeError(
                "several elements of an expanded tensor are one: clone() it before it is changed "
                "in place"
            )
        if whole is None:
            self._write_alone(changed, node, chain)
            return
        root, is_detached = whole._node, any(op is casting.ALIAS for op, _ in chain)
        if is_detached and root.needs_grad and root.leaf is None:
            raise RuntimeError(
                "a detached view of a tensor that gradients flow through was changed in place: "
                "change a clone() of it"
            )
        if root.leaf is not None and not is_detached and graph.grad_mode.enabled:
            raise RuntimeError(
                "a view of a tensor that collects gradients was changed in place: do it under "
                "no_grad()"
            )
        with GradContext(graph.grad_mode.enabled and not is_detached):
            whole._replace(views.put_back(root, chain, node), checks=False)
            self._show_again(whole)

    def _show_again(self, whole: Tensor) -> None:
        for one in self.alive():
            assert one._view is not None
            one._replace(views.again(whole._node, one._view), checks=False)

    def _write_alone(self, changed: Tensor, node: Node, chain: views.Chain) -> None:
        """Nobody shows the whole any more: fine, unless another view shows the same elements."""
        for other in self.alive():
            if other is not changed and views.overlap(
                self.layout(chain), self.layout(other._view or ())
            ):
                raise RuntimeError(
                    "two views share elements of a tensor that is gone, and one was changed in "
                    "place: keep the tensor itself, or clone() the view"
                )
        with once.lock:
            changed._shared = self._from(changed)
        changed._replace(node)


def snapshot(of: T) -> T:
    """The same elements now, through which no gradients flow, in a tensor of its own."""
    made: T = type(of)(alias(of._node))
    return made


def turn(of: T, node: Node) -> T:
    """Have a tensor show its elements in another shape, in place.

    Raises:
        RuntimeError: it collects gradients, or there are views of it, which would have to turn.
    """
    if node is of._node:
        return of
    chain = views.chain_from(of._node, node)
    with once.lock:
        if of._shared is not None and of._view is None:
            if of._shared.alive():
                raise RuntimeError(
                    "a tensor changes its shape in place while there are views of it: take the "
                    "other shape as a tensor of its own, as in y = x.unsqueeze(0)"
                )
            of._shared = None
    of._replace(node)
    if of._view is not None and chain is not None:
        of._view = (*of._view, *chain)
    return of


def view(of: T, node: Node, chain: views.Chain | None = None, always: bool = False) -> T:
    """The tensor that shows the node: a view where its elements lie among those of another.

    Where PyTorch would copy (an order of elements that one stride an axis cannot tell), it is a
    tensor of its own.

    Args:
        of: the tensor whose elements they may be.
        node: what is shown.
        chain: how it shows them, where the node itself does not tell.
        always: PyTorch has a view in any case, though operations of the chain alone would copy.
    """
    if chain is None:
        # Before it is shown: with it, all that was recorded may be sent, and forget its inputs.
        chain = views.chain_from(of._node, node)
    made: T = type(of)(node)
    if chain is None:
        return made
    with once.lock:
        shared = of._shared
        shared = of._shared = Shared(of) if shared is None else shared.of_the_last(of)
        if of._view is not None:
            chain = (*of._view, *chain)
        if always or not shared.would_copy(chain):
            made._shared, made._view = shared, chain
            shared.add(made)
    return made
