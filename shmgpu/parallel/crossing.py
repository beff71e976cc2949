"""Programs over several meshes: on which each operation is done, and what passes between them.

What one mesh has and another needs passes through the arena, whole: as in a pipeline, where each
mesh has some of the layers. So such a program is done in turns, each of what needs nothing more
from another mesh. Owns the choice of meshes and of turns. Never sends.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shmgpu.distributed.layout import Layout
from shmgpu.distributed.mesh import Mesh
from shmgpu.ops.graph import Node
from shmgpu.ops.redistribution import RECORDED, REDISTRIBUTE
from shmgpu.tensors.message import Spread, said

# Of what is to be computed how it would lie well, and whether it has to be on that mesh.
Hints = dict[Node, tuple[Layout, bool]]

_number = operator.attrgetter("number")


def homes_of(nodes: Sequence[Node], hints: Hints) -> dict[Node, Mesh]:
    """The mesh on which each is done, inputs first.

    Where that is said, there, and a gradient where its leaf is; else where what it is made of lies.
    Where that is on several meshes, there where the outcome is moved to at once; else by what is
    there already, such as a weight; else where most of it lies, or the oldest. What is made of
    nothing on a mesh is done where it is used first.

    ``hints``: see :func:`hints_of`.
    """
    homes: dict[Node, Mesh] = {}
    there: set[Node] = set()  # made of what is there
    for node in nodes:
        layout = said(node)
        if layout is not None:
            homes[node] = layout.mesh
            continue
        if node.op in RECORDED:
            homes[node] = node.params[0].mesh
            continue
        weights: dict[Mesh, tuple[bool, int]] = {}
        is_there = True
        for one in sorted(node.inputs, key=_number):
            mesh = mesh_of(one, homes)
            if mesh is not None:
                has = type(one.value) is Spread or one in there
                had, nbytes = weights.get(mesh, (False, 0))
                weights[mesh] = had or has, nbytes + one.spec.nbytes
                is_there = is_there and has
        if not weights:
            continue
        if is_there:
            there.add(node)
        hint, must_be = hints.get(node, (None, False))
        if hint is not None and (must_be or len(weights) > 1):
            homes[node] = hint.mesh
        else:
            homes[node] = max(weights, key=weights.__getitem__)
    free = {node for node in nodes if node not in homes}
    for node in reversed(nodes):  # the first use is seen last
        home = homes.get(node)
        if home is not None:
            homes.update(dict.fromkeys(free.intersection(node.inputs), home))
    anywhere = next(iter(homes.values()))
    for node in nodes:  # what no mesh uses, but what one uses may be a part of it
        if node not in homes:
            made_of = [homes[one] for one in node.inputs if one in homes]
            homes[node] = made_of[0] if made_of else anywhere
    return homes


def mesh_of(node: Node, homes: dict[Node, Mesh]) -> Mesh | None:
    """Where a value lies, or is to be computed; None where any mesh may have it."""
    if type(node.value) is Spread:
        mesh: Mesh = node.value.layout.mesh
        return mesh
    return homes.get(node)


def hints_of(nodes: Sequence[Node]) -> Hints:
    """Where outcomes are moved to at once; and where those are to be that are a leaf's gradient."""
    found: Hints = {}
    for node in nodes:
        if node.op is REDISTRIBUTE:
            found.setdefault(node.inputs[0], (node.params[0], False))
        for one in node.inputs:
            tensor: Any = None if one.leaf is None else one.leaf()
            layout = None if tensor is None or tensor.grad is None else said(one)
            if layout is not None:
                found[tensor.grad._node] = layout, True
    return found


class Turn:
    """What can be done now of nodes on several meshes.

    Attributes:
        nodes: by mesh.
        passed: what other meshes need next, by the mesh that has it.
        brought: what others have that is in the arena by now, by the mesh that needs it.
        kept: what later turns need, besides what tensors show.
        is_last: nothing is left.
    """

    def __init__(self, nodes: Sequence[Node], hints: Hints) -> None:
        homes = homes_of(nodes, hints)
        late: set[Node] = set()
        self.nodes: dict[Mesh, list[Node]] = {}
        self.passed: dict[Mesh, dict[Node, None]] = {}
        self.brought: dict[Mesh, dict[Node, None]] = {}
        for node in nodes:
            home = homes[node]
            for one in node.inputs:
                theirs = mesh_of(one, homes)
                if one in late:
                    late.add(node)
                elif theirs is not None and theirs is not home:
                    if type(one.value) is Spread and one.value.whole is not None:
                        self.brought.setdefault(home, {})[one] = None
                    else:
                        late.add(node)
                        self.passed.setdefault(theirs, {})[one] = None
            if node not in late:
                self.nodes.setdefault(home, []).append(node)
        self.kept = {one for node in late for one in node.inputs if one.value is None} - late
        self.is_last = not late


@contextlib.contextmanager
def in_the_arena(nodes: Iterable[Node]) -> Iterator[None]:
    """Have these be given as what the arena has of them, for a while: their mesh is another."""
    before = {node: node.value for node in nodes if type(node.value) is Spread}
    for node, value in before.items():
        node.value = value.whole
    try:
        yield
    finally:
        for node, value in before.items():
            node.value = value
