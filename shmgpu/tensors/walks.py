"""Walks over recorded graphs: what has to be computed, and what a gradient may still need.

Owns no node, and never changes one. The walk that each message takes exists in C, too.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Set
from typing import Any

from shmgpu.ops.graph import Node, native
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.redistribution import RECORDED
from shmgpu.tensors.message import Spread

_NONE: frozenset[Node] = frozenset()

_number = operator.attrgetter("number")


def needed(roots: list[Node]) -> list[Node]:
    """What has to be computed for these, inputs first: numbers rise along the way."""
    if native is not None:
        found: list[Node] = native.needed(roots)
        return found
    seen = {node for node in roots if node.value is None}
    stack = list(seen)
    while stack:
        for one in stack.pop().inputs:
            if one.value is None and one not in seen:
                seen.add(one)
                stack.append(one)
    return sorted(seen, key=_number)


def is_on(mesh: Any, node: Node) -> bool:
    """Whether a value lies on that mesh, or something that it will be computed of."""
    met, stack = {node}, [node]
    while stack:
        one = stack.pop()
        value = one.value
        if value is None:
            if one.op in RECORDED and one.params[0].mesh is mesh:
                return True
            for each in one.inputs:
                if each not in met:
                    met.add(each)
                    stack.append(each)
        elif type(value) is Spread and value.layout.mesh is mesh:
            return True
    return False


def outlived(draft: ProgramDraft, *tables: Collection[Node]) -> tuple[Set[Node], list[Node]]:
    """Nodes that keep their history when the draft's program is done, and those that keep a value.

    The history: of those whose gradient may still be asked for, and of those that somebody has in
    hand (:meth:`ProgramDraft.in_hand`, which says what ``tables`` are).
    """
    alive, saved = graph_alive(draft) if draft.open_ends else (_NONE, _NONE)
    kept = draft.shown
    if saved:
        kept = [node for node in draft.order if node.owners or node in saved]
    known = draft.in_hand(kept, alive, *tables)
    return (alive.union(known) if known else alive), kept


def graph_alive(draft: ProgramDraft) -> tuple[frozenset[Node] | set[Node], Set[Node]]:
    """Nodes whose gradient may still be asked for, and those whose value it will need."""
    alive: set[Node] = set()
    saved: set[Node] = set()
    stack = draft.open_ends[:]
    while stack:
        node = stack.pop()
        if node in alive or node.leaf is not None or node.is_released or not node.needs_grad:
            continue
        alive.add(node)
        assert node.op is not None
        if "o" in node.op.saves:
            saved.add(node)
        for one in node.inputs:
            if "i" in node.op.saves:
                saved.add(one)
            stack.append(one)
    return alive, saved.intersection(draft.order)
