"""The backward pass: a walk over recorded nodes, which records their gradients as more nodes.

Owns the walk, and what makes two graphs equal for it: a graph like an earlier one gets the nodes
that the walk recorded there. Never sends, never computes a value. An operation's gradient is
defined in its row of the table (:mod:`shmgpu.ops`). A helper knows nothing of all this: to it the
operations of a gradient are operations like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.ops.creation import ones_like
from shmgpu.ops.elementwise import add
from shmgpu.ops.graph import Node, Scalar, native
from shmgpu.ops.recomputing import CHECKPOINT
from shmgpu.ops.shaping import SLICE_BACKWARD, slice_add
from shmgpu.ops.stretching import sum_to
from shmgpu.ops.templates import Templates
from shmgpu.tensors import once
from shmgpu.tensors.grad_mode import GradContext

RELEASED = (
    "the graph behind this tensor was released by an earlier backward(): pass retain_graph=True to "
    "that one, or compute the tensor again"
)


Hooks = dict[int, Callable[[Node], Node]]

_watched: list[bool] = []  # not empty once a hook looks at a gradient; others pay for one check


def watch() -> None:
    """From now on some tensor's gradient is looked at."""
    if not _watched:
        _watched.append(True)


def hooks_of(node: Node) -> Hooks:
    """What is called with a node's gradient, by numbers; not of a leaf, whose tensor has them."""
    watch()
    return _table(node)[0]


def retained_by(node: Node, is_asked: bool = True) -> Hooks:
    """What keeps a node's gradient, once its hooks were called, by the tensors that do so."""
    if is_asked:
        watch()
    return _table(node)[1] if is_asked or hasattr(node, "hooks") else {}


def _table(node: Node) -> tuple[Hooks, Hooks]:
    found: tuple[Hooks, Hooks] = once.made_once(node, "hooks", _no_hooks)
    return found


def _no_hooks() -> tuple[Hooks, Hooks]:
    return {}, {}


def _is_watched(node: Node) -> bool:
    """Whether a hook or a keeper is called with that node's gradient."""
    if node.leaf is not None:
        return bool(getattr(node.leaf(), "_hooks", None))
    return any(getattr(node, "hooks", ()))


def _hooked(g: Node, node: Node, is_backward: bool) -> Node:
    """The gradient as the hooks leave it: those of a leaf are its tensor's, whose node changes."""
    if node.leaf is not None:
        hooks: Any = getattr(node.leaf(), "_hooks", None)
        keepers: Hooks = {}
    else:
        hooks, keepers = getattr(node, "hooks", ({}, {}))
    for hook in list(hooks.values()) if hooks else ():
        g = hook(g)
    for keep in list(keepers.values()) if is_backward else ():
        keep(g)
    return g


def _order(roots: list[Node]) -> list[Node]:
    """What the roots' gradients flow through, inputs first."""
    if native is not None:
        order: list[Node] = native.ordered(roots, RELEASED)
        return order
    seen = {root for root in roots if root.needs_grad}
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node.leaf is not None:
            continue
        if node.is_released:
            raise RuntimeError(RELEASED)
        for one in node.inputs:
            if one.needs_grad and one not in seen:
                seen.add(one)
                stack.append(one)
    return sorted(seen, key=operator.attrgetter("number"))


_templates = Templates()


def gradients(
    outputs: Sequence[Node],
    seeds: Sequence[Node | None],
    *,
    create_graph: bool,
    retain_graph: bool | None,
    only: list[Node] | None = None,
) -> dict[Node, Node]:
    """The gradient of every leaf (or of those asked for) that the outputs depend on.

    A graph that is built as an earlier one has the gradients that were recorded for that one.
    ``retain_graph``: whether another call may follow; None: if ``create_graph``.

    Raises:
        RuntimeError: the graph was released before.
    """
    outputs, seeds = list(outputs), list(seeds)
    order = _order(outputs)

    def walk() -> list[Node]:
        found = _walk(order, outputs, seeds, only)
        return [*found, *found.values()]

    with GradContext(create_graph):
        is_plain = not create_graph and not (_watched and any(map(_is_watched, order)))
        structure = _structure(order, outputs, seeds, only) if is_plain else None
        if structure is None:
            results: Sequence[Node] = walk()
        else:
            results = _templates.record(*structure, walk)
    if not (create_graph if retain_graph is None else retain_graph):
        _release(order)
    half = len(results) // 2
    return dict(zip(results[:half], results[half:], strict=True))


def _release(order: list[Node]) -> None:
    """Their gradients were taken, and will not be taken again."""
    if native is not None:
        native.release(order)
        return
    for node in order:
        if node.leaf is None:
            node.is_released = True
            if node.value is not None:
                node.inputs = ()


def _structure(
    order: list[Node],
    outputs: list[Node],
    seeds: list[Node | None],
    only: list[Node] | None,
) -> tuple[tuple[Any, ...], list[Node]] | None:
    """A key that tells all that the walk looks at, and the nodes that it meets; None: it cannot.

    Of a plain number the rules see whether it is 0.
    """
    if native is not None:
        found: tuple[tuple[Any, ...], list[Node]] | None
        found = native.structure(order, outputs, seeds, only)
        return found
    places: dict[Node, int] = {}
    key: list[Any] = []

    def put(node: Node) -> None:
        place = places.get(node)
        if place is not None:
            key.append(place)
            return
        places[node] = len(places)
        key.append(node.spec)
        value = node.value
        key.append(bool(value.number) if type(value) is Scalar else None)

    for node in order:
        if node.op is CHECKPOINT:
            return None
        if node.leaf is not None or node.op is None:
            key += (node.spec, node.leaf is not None)
        else:
            key += (node.op, node.params)
            for one in node.inputs:
                put(one)
        places[node] = len(places)
    key.append(None)
    for output, seed in zip(outputs, seeds, strict=True):
        put(output)
        if seed is None:
            key.append(None)
        else:
            put(seed)
    if only is not None:
        key.append(None)
        key += [places[node] for node in only if node in places]
    return tuple(key), list(places)


def _walk(
    order: list[Node],
    outputs: Sequence[Node],
    seeds: Sequence[Node | None],
    only: Sequence[Node] | None,
) -> dict[Node, Node]:
    """Ask the rules, from the outputs back."""
    wanted = None if only is None else set(only)
    found: dict[Node, Node] = {}
    results: dict[Node, Node] = {}
    for output, seed in zip(outputs, seeds, strict=True):
        share = ones_like(output) if seed is None else seed
        before = found.get(output)
        found[output] = share if before is None else _sum(before, share)
    for node in reversed(order):
        g = found.pop(node, None)
        if g is None:
            continue
        if _watched:
            g = _hooked(g, node, wanted is None)
        if wanted is None:
            if node.leaf is not None:
                results[node] = g
        elif node in wanted:
            results[node] = g
        if node.leaf is not None or node.op is None:
            continue
        op = node.op
        rules = op.gradients
        for index, one in enumerate(node.inputs):
            rule = rules[index] if one.needs_grad else None
            if rule is not None:
                share = rule(g, node)
                if op.broadcasts and share.spec.shape != one.spec.shape:
                    share = sum_to(share, one.spec.shape)
                before = found.get(one)
                found[one] = share if before is None else _sum(before, share)
    return results


def _sum(share: Node, other: Node) -> Node:
    """Two shares of one value's gradient: what comes of a slice is added where it belongs.

    A value that is taken apart has a share of each part, and zeros elsewhere.
    """
    if other.op is not SLICE_BACKWARD:
        share, other = other, share
    if other.op is SLICE_BACKWARD and share.spec is other.spec:
        return slice_add(share, other.inputs[0], other.params[1:])
    return add(share, other)
