"""Which way each operation is done: where all values of a program lie on a mesh.

Owns the choice. The rules say which ways there are, and lowering makes programs of the chosen ones;
this file never does either.

The axes of the mesh are handled one after the other. For each axis, the operations are visited in
the program's order, with a table for each value: what it costs to have the value in each placement.
An operation that can run on its inputs as they lie does so. Nothing is moved before it is needed,
so tensors that were cut stay cut, and weights stay where they are. If an operation cannot run on
its inputs as they lie, it takes the cheapest way. The cost includes the placements that the
program asks for later.

The choice is exact along chains. If several operations read a value, it is decided when the first
of them is visited. Once it was moved, the others have the moved value at no cost. So a value that
several operations want reduced is reduced for the first of them. A value that is made only of what
all members have whole may be computed by each of them again, such as a mask or a count of targets.

Costs are in bytes that a member receives from others (see :func:`moved`). Small additions decide
ties: fewer collectives first, then fewer slices, then less repeated work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmgpu.distributed.layout import Layout
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import LOCAL, PARTIALS, REPLICATE
from shmgpu.distributed.rules import RULES
from shmgpu.distributed.rules.base import Option, options_of
from shmgpu.ops.casting import ALIAS
from shmgpu.ops.graph import Op, Params, Spec
from shmgpu.ops.program import Program, Step
from shmgpu.ops.recomputing import CHECKPOINT
from shmgpu.ops.redistribution import FROM_LOCAL, REDISTRIBUTE, TO_LOCAL, axes_of

# Starting a collective takes as long as moving this many bytes, which is most of the cost for small
# tensors.
MEETING_BYTES = 4096
# The cost of work that all members repeat though they could share it, in bytes that could be moved
# meanwhile. Reading and writing memory is about as fast as exchanging it, and a core does some ten
# multiplications for each byte.
WORK_PER_BYTE, WORK_PER_PRODUCT = 0.25, 0.1
SLICE = 2.0**-6  # what is whole stays so, where nothing asks for a part
SCATTER = 2.0**-8  # and what is reduced is whole, unless a part is asked for
SHARE = 2.0**-20  # of equal ways the one with less work
FREE = 0.5  # below, nothing is moved
NEVER = 1e18  # more than anything else costs

Table = dict[int, float]  # code of a placement -> cost

PASSES = (ALIAS, CHECKPOINT)  # whose value is their first input's


def moved(have: int, want: int, nbytes: float, count: int, is_asked: bool = False) -> float:
    """The cost of having a value lie in another way; NEVER where only a program may ask for it.

    A reduction into parts is weighed as one that all have, unless a program asks for it: what is in
    parts is mostly wanted whole again.
    """
    if have == want:
        return 0.0
    if have == LOCAL or want < 0:
        return NEVER
    if count == 1:
        return 0.0
    if have == REPLICATE:
        return SLICE
    if have > 0:
        share = nbytes * (count - 1) / count
        return MEETING_BYTES + (share if want == REPLICATE else share / count)
    share = nbytes * (count - 1) / count
    if want > 0 and is_asked:
        return MEETING_BYTES + share
    return MEETING_BYTES + 2 * share + (SCATTER if want > 0 else 0.0)


class Ways:
    """The ways of one operation, as columns."""

    __slots__ = ("has_products", "options", "work")

    def __init__(self, op: Op, specs: tuple[Spec, ...], params: Params, out: Spec) -> None:
        rule = RULES.get(op)
        self.options = options_of(rule, specs, params, out)
        nbytes = out.nbytes + sum(spec.nbytes for spec in specs)
        self.has_products = rule is not None and rule.work is not None
        self.work = WORK_PER_BYTE * nbytes
        if rule is not None and rule.work is not None:
            self.work += WORK_PER_PRODUCT * rule.work(specs, out)


_known: dict[Any, Ways] = {}
MAX_KNOWN = 1 << 14


def ways_of(step: Step, specs: tuple[Spec, ...]) -> Ways:
    """Of an operation; the same object each time."""
    key = (step.op, step.params, specs)
    found = _known.get(key)
    if found is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        found = _known[key] = Ways(step.op, specs, step.params, step.spec)
    return found


# Operations whose params say how their input and output lie.
_SAID: dict[Op, Callable[[int], Option]] = {
    REDISTRIBUTE: lambda code: Option((code,), code),
    TO_LOCAL: lambda code: Option((code,), LOCAL),
    FROM_LOCAL: lambda code: Option((LOCAL,), code),
}


def _any_code(ndim: int) -> list[int]:
    """The codes of all placements that a tensor of so many axes may have."""
    return [REPLICATE, *range(1, 1 + ndim), *PARTIALS]


class Choice:
    """What was chosen along one axis of the mesh.

    Attributes:
        codes: of each slot's own placement.
        options: of each step.
        tables: of each slot, what every placement would have cost: for explanations.
        versions: of each slot, the placements that it is had in.
        remade: of each slot, the work of making it whole of what all have whole; infinite where it
            is made of anything else, or of products, which are what is to be shared.
    """

    __slots__ = ("codes", "options", "remade", "tables", "versions")

    def __init__(self, count: int) -> None:
        self.codes: list[int] = [REPLICATE] * count
        self.options: dict[int, Option] = {}
        self.tables: list[Table | None] = [None] * count
        self.versions: list[set[int]] = [set() for _ in range(count)]
        self.remade: list[float] = [math.inf] * count


def roots_of(program: Program) -> list[int]:
    """For each slot the one whose value it is.

    Operations that change only history are looked through, and equal ones on equal inputs are one:
    what is moved once need not be moved again.
    """
    first = len(program.arrays) + len(program.numbers)
    root = list(range(first))
    known: dict[Any, int] = {}
    for slot, step in enumerate(program.steps, first):
        if step.op in PASSES:
            root.append(root[step.inputs[0]])
            continue
        inputs = tuple([root[one] for one in step.inputs])
        # As text, in which 0.0 and -0.0 differ, and 1 and True.
        key = (step.op, inputs, repr(step.params) if step.params else "")
        root.append(known.setdefault(key, slot))
    return root


class _Axis:
    """The choice along one axis of the mesh."""

    def __init__(
        self,
        program: Program,
        axis: int,
        mesh: Mesh,
        leaves: Sequence[Layout],
        wanted: Mapping[int, Layout],
        root: list[int],
        shares: list[float],
    ) -> None:
        self.program = program
        self.axis = axis
        self.count = mesh.shape[axis]
        self.specs = program.specs
        self.first = len(program.arrays) + len(program.numbers)
        self.root = root
        self.nbytes = [spec.nbytes * share for spec, share in zip(self.specs, shares, strict=True)]
        self.choice = Choice(len(self.specs))
        self.open: dict[int, dict[int, tuple[float, Any]]] = {}
        self.uses = [0] * len(self.specs)
        self.wanted = wanted
        for slot, layout in enumerate(leaves):
            self._fix(slot, layout.codes[axis])
            if not program.resident[slot]:
                self.choice.remade[slot] = 0.0
        for slot in range(len(leaves), self.first):
            self._fix(slot, REPLICATE)
            self.choice.remade[slot] = 0.0
        for slot, step in enumerate(program.steps, self.first):
            if root[slot] == slot:
                for one in {root[one] for one in step.inputs}:
                    self.uses[one] += 1
        self.may_be_local = any(step.op is TO_LOCAL for step in program.steps) or any(
            LOCAL in layout.codes for layout in leaves
        )
        self.asked: set[int] = {root[slot] for slot in (*program.kept, *program.read)}
        for slot in self.asked:
            self.uses[slot] += 1

    def run(self) -> Choice:
        """Decide on all."""
        for slot, step in enumerate(self.program.steps, self.first):
            if self.root[slot] != slot:
                if slot in self.wanted and self.root[slot] in self.open:
                    self._settle_wanted(self.root[slot], self.wanted[slot])
                continue
            self._step(slot, step)
        for slot in [*self.open]:
            if slot in self.open:
                self._decide(slot, self._ending)
        return self.choice

    # ---- one operation ---------------------------------------------------------------------------

    def _step(self, slot: int, step: Step) -> None:
        inputs = tuple([self.root[one] for one in step.inputs])
        said = _SAID.get(step.op)
        if said is not None:
            layout: Layout = step.params[0]
            code = layout.codes[self.axis]
            options, work, is_remade = [said(code)], 0.0, False
            axes = axes_of(step.params) if step.op is REDISTRIBUTE else None
            if axes is not None and self.axis not in axes:
                options = [said(one) for one in _any_code(len(step.spec.shape))]
        else:
            ways = ways_of(step, tuple([self.specs[one] for one in step.inputs]))
            options, work, is_remade = ways.options, ways.work, not ways.has_products
            if self.may_be_local and self._has_local(inputs):
                options = [Option(tuple([self._only(one) for one in inputs]), LOCAL)]
        if is_remade:
            remade = self.choice.remade
            remade[slot] = work + sum([remade[one] for one in inputs])
        opened = [one for one in dict.fromkeys(inputs) if one in self.open]
        if len(opened) > 2:
            opened.sort(key=lambda one: self.nbytes[one])
            for one in opened[:-2]:
                self._close(one, self._leaning(one))
            opened = opened[-2:]
        table = self._table(slot, inputs, options, work, is_remade, opened)
        first_uses = [one for one in opened if self.uses[one] > 1 or one in self.wanted]
        if first_uses:
            best = min(table, key=lambda code: table[code][0])
            _, (_, states) = table[best]
            for one in first_uses:
                self._close(one, states[one])
            opened = [one for one in opened if one not in first_uses]
            table = self._table(slot, inputs, options, work, is_remade, opened)
        self.open[slot] = table
        if slot in self.wanted:
            self._settle_wanted(slot, self.wanted[slot])

    def _has_local(self, inputs: tuple[int, ...]) -> bool:
        return any(
            self.choice.codes[one] == LOCAL for one in inputs if one not in self.open
        ) or any(LOCAL in self.open[one] for one in inputs if one in self.open)

    def _only(self, slot: int) -> int:
        """The one way in which an input of what each does for itself lies."""
        codes = self.open[slot] if slot in self.open else (self.choice.codes[slot],)
        return LOCAL if LOCAL in codes else REPLICATE

    def _cost_to(self, slot: int, want: int, is_remade: bool) -> float:
        """Of a value that was decided on, or is made again where that may be."""
        nbytes, count, versions = self.nbytes[slot], self.count, self.choice.versions[slot]
        if want in versions:
            return 0.0
        cost = NEVER
        for have in versions:
            cost = min(cost, moved(have, want, nbytes, count))
        again = self.choice.remade[slot]
        return again + SLICE if is_remade and again < cost and want >= 0 else cost

    def _table(
        self,
        slot: int,
        inputs: tuple[int, ...],
        options: list[Option],
        work: float,
        is_remade: bool,
        opened: list[int],
    ) -> dict[int, tuple[float, Any]]:
        """The output's placements: of each the cost and (option, the placements of open inputs)."""
        count, codes = self.count, self.choice.codes
        decided = [(place, one) for place, one in enumerate(inputs) if one not in opened]
        is_twice = len(set(inputs)) < len(inputs)
        fixed: list[float] = []
        shares: list[float] = []  # of what others will have for nothing
        for option in options:
            cost = share = 0.0
            for place, one in decided:
                if is_twice and _is_again(inputs, option.inputs, place):
                    continue
                more = self._cost_to(one, option.inputs[place], is_remade)
                if more and self.uses[one] > 1 and codes[one] < 0:
                    share += more / self.uses[one]
                else:
                    cost += more
            shares.append(share)
            if option.moves:
                cost += sum([MEETING_BYTES + 2 * n * (count - 1) / count for n in option.moves])
            elif option.output > 0 and not any(option.inputs):
                cost += SLICE  # nothing asks for a part
            fixed.append(cost)
        again = 0.0  # work that each member repeats though it could be shared
        for one in inputs:
            if (self._leaning(one) if one in opened else codes[one]) > 0:
                again = work * (1 - 1 / count)
                break

        found: dict[int, tuple[float, Any]] = {}
        for states, before in self._states(opened):
            costs = fixed
            if states:
                costs = []
                for base, option in zip(fixed, options, strict=True):
                    for place, one in enumerate(inputs):
                        have = states.get(one)
                        if have is not None and not (
                            is_twice and _is_again(inputs, option.inputs, place)
                        ):
                            base += moved(have, option.inputs[place], self.nbytes[one], count)
                    costs.append(base)
            least = min(costs)
            limit = FREE if least < FREE else math.inf
            for option, cost, share in zip(options, costs, shares, strict=True):
                if cost >= limit:
                    continue
                total = before + cost + share + self._debt(slot, option.output)
                if option.label is None and option.output == REPLICATE:
                    total += again + SHARE
                else:
                    total += SHARE / count
                known = found.get(option.output)
                if known is None or total < known[0]:
                    found[option.output] = (total, (option, states))
        return found

    def _states(self, opened: list[int]) -> list[tuple[dict[int, int], float]]:
        """All ways in which open inputs may lie together, with what that costs."""
        if not opened:
            return [({}, 0.0)]
        (first_one, *rest) = opened
        first = [
            ({first_one: code}, cost - self._debt(first_one, code))
            for code, (cost, _) in self.open[first_one].items()
        ]
        if not rest:
            return first
        second = [
            (code, cost - self._debt(rest[0], code))
            for code, (cost, _) in self.open[rest[0]].items()
        ]
        return [
            ({**states, rest[0]: code}, before + cost)
            for states, before in first
            for code, cost in second
        ]

    def _debt(self, slot: int, code: int) -> float:
        """What is left to be paid, at least, of a value that is yet to be reduced."""
        if code >= 0 or code == LOCAL or self.count == 1:
            return 0.0
        return MEETING_BYTES + self.nbytes[slot] * (self.count - 1) / self.count

    # ---- decisions -------------------------------------------------------------------------------

    def _leaning(self, slot: int) -> int:
        """The placement that is the cheapest so far."""
        table = self.open[slot]
        return min(table, key=lambda code: table[code][0])

    def _decide(self, slot: int, further: Callable[[int, int], float]) -> None:
        """Decide on a value, with what is to come of it counted."""
        table = self.open[slot]
        for code, (cost, how) in table.items():
            table[code] = cost + further(slot, code), how
        self._close(slot, self._leaning(slot))

    def _ending(self, slot: int, code: int) -> float:
        """What is shown to a child, or kept, is not left to be reduced."""
        if slot in self.asked and code < 0 and code != LOCAL:
            whole = moved(code, REPLICATE, self.nbytes[slot], self.count)
            return whole - self._debt(slot, code)
        return 0.0

    def _settle_wanted(self, slot: int, layout: Layout) -> None:
        want = layout.codes[self.axis]
        nbytes = self.nbytes[slot]

        def further(slot: int, code: int) -> float:
            return moved(code, want, nbytes, self.count, True) - self._debt(slot, code)

        self._decide(slot, further)
        self._add(slot, want)

    def _add(self, slot: int, code: int) -> None:
        """The value is had like that as well."""
        self.choice.versions[slot].add(code)

    def _fix(self, slot: int, code: int) -> None:
        self.choice.codes[slot] = code
        self.choice.versions[slot].add(code)

    def _close(self, slot: int, code: int) -> None:
        """Decide on a value, and with it on those that only it is made of."""
        stack = [(slot, code)]
        while stack:
            slot, code = stack.pop()
            table = self.open.pop(slot)
            self.choice.tables[slot] = {one: cost for one, (cost, _) in table.items()}
            option, states = table[code][1]
            self.choice.options[slot] = option
            self._fix(slot, code)
            if code < 0 and slot in self.asked and slot not in self.wanted:
                self._add(slot, REPLICATE)  # as it will be in the end
            for one, state in states.items():
                if one in self.open:
                    stack.append((one, state))
            step = self.program.steps[slot - self.first]
            for place, one in enumerate(step.inputs):
                self._add(self.root[one], option.inputs[place])


def _is_again(inputs: tuple[int, ...], codes: tuple[int, ...], place: int) -> bool:
    """Whether an earlier input is the same value, wanted in the same way."""
    both = inputs[place], codes[place]
    return any((inputs[at], codes[at]) == both for at in range(place))


def choose(
    program: Program,
    mesh: Mesh,
    leaves: Sequence[Layout],
    wanted: Mapping[int, Layout],
) -> list[Choice]:
    """Placements along each axis of the mesh.

    Args:
        program: of whole tensors.
        mesh: on which it is done.
        leaves: how the arrays lie that it is given.
        wanted: how values shall lie that are asked for, by slot.
    """
    root = roots_of(program)
    shares = [1.0] * len(root)
    found = []
    for axis in range(mesh.ndim):
        choice = _Axis(program, axis, mesh, leaves, wanted, root, shares).run()
        found.append(choice)
        for slot, code in enumerate(choice.codes):
            if code > 0:
                shares[slot] /= mesh.shape[axis]
    return found
