"""Independent parts of what was recorded: which there are, and which helper computes each.

All that one result needs stays together, and so do operations that use the same tensor of a helper,
so that weights are not moved from step to step. Owns the parts and the choice of helpers. Never
sends.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence

from shmgpu.ops.graph import Node, Scalar
from shmgpu.tensors.message import Held, HelperIncarnation, RemoteValue

# Operations on one element. A smaller part is computed before another helper could begin with it.
MIN_WORK = 1 << 18

_number = operator.attrgetter("number")


class Part:
    """Nodes that have nothing to do with those of another part.

    Attributes:
        nodes: what is to be computed, inputs first once it is known where.
        held: bytes that each helper holds of what they use.
        work: operations on one element, as far as shapes tell.
    """

    __slots__ = ("held", "nodes", "work")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.held: dict[HelperIncarnation, int] = {}
        self.work = 0

    def take(self, other: Part) -> None:
        """Its nodes, too."""
        self.nodes += other.nodes
        self.work += other.work
        for life, nbytes in other.held.items():
            self.held[life] = self.held.get(life, 0) + nbytes

    def weigh(self, lives: Collection[HelperIncarnation]) -> None:
        """Note how much there is to do, and what these helpers hold for it."""
        seen: set[int] = set()
        for node in self.nodes:
            self.work += work_of(node)
            for one in node.inputs:
                if type(one.value) is RemoteValue and id(one) not in seen:
                    seen.add(id(one))
                    life = one.value.life
                    if life in lives:
                        self.held[life] = self.held.get(life, 0) + one.spec.nbytes


def work_of(node: Node) -> int:
    """How many operations on one element it takes; of other than products, one for each."""
    count = math.prod(node.spec.shape)
    name = "" if node.op is None else node.op.name
    if name in ("matmul", "linear"):
        return count * node.inputs[0].spec.shape[-1]
    if name.startswith("conv2d"):
        return count * math.prod(node.inputs[1].spec.shape[1:])
    return count


def is_leaf(node: Node) -> bool:
    """Whether it is made of numbers, and of arrays that all helpers see, alone."""
    return all(type(one.value) in (Scalar, Held) for one in node.inputs)


def parts_of(order: Sequence[Node]) -> list[Part]:
    """What is to be computed, inputs first, in its independent parts."""
    labels: dict[Node, int] = {}  # of each node; local, because references to nodes are counted
    # For each label an equal one that is not greater; the least points to itself.
    same: list[int] = []
    find = labels.get
    for node in order:
        mine = -1
        for one in node.inputs:
            theirs = find(one)
            if theirs is None:
                if type(one.value) is not RemoteValue:
                    continue  # a number, or an array that all helpers see
                if mine < 0:
                    mine = len(same)
                    same.append(mine)
                labels[one] = mine
                continue
            while same[theirs] != theirs:
                theirs = same[theirs]
            if mine < 0 or mine == theirs:
                mine = theirs
            elif mine < theirs:
                same[theirs] = mine
            else:
                same[mine] = theirs
                mine = theirs
        if mine < 0:
            mine = len(same)
            same.append(mine)
        labels[node] = mine
    for label, less in enumerate(same):  # the least label of each part comes before the others
        same[label] = same[less]
    found: dict[int, Part] = {}
    for node in order:
        found.setdefault(same[labels[node]], Part()).nodes.append(node)
    return list(found.values())


def spread(
    parts: list[Part],
    read: Iterable[Node],
    lives: Sequence[HelperIncarnation],
    is_idle: Callable[[HelperIncarnation], bool],
) -> list[tuple[HelperIncarnation, Part]]:
    """Which helper computes what: one part for each; the one with what is read stands last.

    Args:
        parts: all that is to be computed.
        read: nodes that the child waits for: they are one part, with all that they need.
        lives: the helpers, those that are to be preferred first.
        is_idle: whether a helper has nothing to do.
    """
    wanted = set(read)
    first, others = Part(), []
    for part in parts:
        part.weigh(lives)
        if wanted.isdisjoint(part.nodes):
            others.append(part)
        else:
            first.take(part)
    small = [part for part in others if not part.held and part.work < MIN_WORK]
    others = [part for part in others if part.held or part.work >= MIN_WORK]
    base = first if first.nodes or not others else others[0]
    for part in small:
        base.take(part)
    if first.nodes:
        others.insert(0, first)
    planned: dict[HelperIncarnation, Part] = {}
    free = [part for part in others if not part.held]
    idle = [life for life in lives if is_idle(life)] if free else []

    def place(part: Part, life: HelperIncarnation) -> None:
        planned.setdefault(life, Part()).take(part)

    for part in others:
        if part.held:
            place(part, max(part.held, key=part.held.__getitem__))
    for part in free:
        place(
            part,
            min(
                idle or lives,
                key=lambda life: (planned[life].work if life in planned else 0, life.nbytes),
            ),
        )
    for part in planned.values():
        part.nodes.sort(key=_number)
    return sorted(planned.items(), key=lambda each: not wanted.isdisjoint(each[1].nodes))
