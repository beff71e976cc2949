"""A program: the operations that a helper is asked for at once, without the graph they came from.

Owns what travels. :func:`gather` turns nodes into a program and a list of its inputs. A program is
written (:meth:`Program.encode`) and read (:func:`decode`) once for each structure, and is named by
a number from then on. Never believes what it reads: each operation's rule is asked again.

A *slot* is the position of a value in the program. The inputs have the first ones: arrays (in the
arena, or resident in the helper), then plain numbers; each operation has one of its own after
these.
"""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from shmgpu import ops
from shmgpu.codec import dtypes
from shmgpu.errors import BadParams
from shmgpu.ops.graph import Node, Op, Params, Scalar, Spec, native, spec_of
from shmgpu.ops.promotion import TYPES

MAX_STEPS = 1 << 16
MAX_AXES = 64
MAX_DEPTH = 4  # of params
MAX_BYTES = 1 << 46  # of one value: more than any machine has

_TYPES = {dtype.name: dtype for dtype in TYPES}
_TYPE = "d"  # the name under which params have an element type
_DAMAGED = "the program is damaged"


@dataclass(frozen=True)
class Step:
    """One operation: its row, the slots it reads, its params, and what comes out."""

    op: Op
    inputs: tuple[int, ...]
    params: Params
    spec: Spec


@dataclass(frozen=True)
class Program:
    """Straight-line code.

    Attributes:
        arrays: specs of the arrays given; ``resident`` says which of them the helper holds.
        donated: slots of resident arrays that nobody needs afterwards.
        numbers: types of the plain numbers given.
        steps: operations, in an order in which inputs come first.
        kept: slots that stay resident.
        read: slots that the child wants to see.
    """

    arrays: tuple[Spec, ...]
    resident: tuple[bool, ...]
    donated: tuple[int, ...]
    numbers: tuple[Spec, ...]
    steps: tuple[Step, ...]
    kept: tuple[int, ...]
    read: tuple[int, ...]

    @property
    def specs(self) -> list[Spec]:
        """Of each slot."""
        return [*self.arrays, *self.numbers, *[step.spec for step in self.steps]]

    def encode(self) -> bytes:
        """Its bytes, as :func:`decode` reads them: JSON, which C writes and reads in no time."""
        steps = [(one.op.name, one.inputs, _written(one.params)) for one in self.steps]
        arrays = [(spec.dtype.name, spec.shape) for spec in self.arrays]
        numbers = [spec.dtype.name for spec in self.numbers]
        parts = arrays, self.resident, self.donated, numbers, steps, self.kept, self.read
        return json.dumps(parts, separators=(",", ":")).encode("ascii")


def _written(params: Params) -> list[Any]:
    """As JSON has it: a tuple is a list, an element type an object of one name."""
    return [
        _written(one)
        if isinstance(one, tuple)
        else {_TYPE: one.name}
        if isinstance(one, dtypes.DType)
        else one
        for one in params
    ]


def _read(params: Any, depth: int = 0) -> Params:
    """The other way."""
    if type(params) is not list or depth > MAX_DEPTH:
        raise BadParams(_DAMAGED)
    found: list[Any] = []
    for one in params:
        kind = type(one)
        if kind is list:
            found.append(_read(one, depth + 1))
        elif kind is dict:
            found.append(_dtype(one.get(_TYPE)))
        else:
            found.append(one)
    return tuple(found)


def _dtype(name: Any) -> dtypes.DType:
    # Only those that tensors have; and rules compare them as objects.
    found = _TYPES.get(name) if type(name) is str else None
    if found is None:
        raise BadParams("the program has an element type that tensors do not have")
    return found


def _listed(values: Any, kind: type) -> tuple[Any, ...]:
    if type(values) is not list or not {*map(type, values)} <= {kind}:
        raise BadParams(_DAMAGED)
    return tuple(values)


def decode(data: bytes) -> Program:
    """The program of these bytes.

    Raises:
        BadParams: it is none, or does what no child records.
    """
    try:
        found = json.loads(data)
        arrays, resident, donated, numbers, steps, kept, read = found
        given = [(_dtype(name), _listed(shape, int)) for name, shape in arrays]
        listed = [(name, inputs, params) for name, inputs, params in steps]
    except BadParams:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise BadParams(_DAMAGED) from error
    leaves = [_checked(dtype, shape) for dtype, shape in given]
    plain = [spec_of(_dtype(name), ()) for name in _listed(numbers, str)]
    specs = [*leaves, *plain]
    if len(listed) > MAX_STEPS:
        raise BadParams(f"a program has {MAX_STEPS} operations at most")
    made = []
    for name, slots, written in listed:
        op = ops.TABLE.get(name) if type(name) is str else None
        inputs, params = _listed(slots, int), _read(written)
        if op is None or any(not 0 <= slot < len(specs) for slot in inputs):
            raise BadParams("the program has an operation that is not known here")
        try:
            spec = op.rule(tuple([specs[slot] for slot in inputs]), params)
            _checked(spec.dtype, spec.shape)
        except BadParams:
            raise
        except Exception as error:
            raise BadParams(f"the program is damaged: {error}") from error
        made.append(Step(op, inputs, params, spec))
        specs.append(spec)
    resident, donated = _listed(resident, bool), _listed(donated, int)
    kept, read = _listed(kept, int), _listed(read, int)
    sound = (
        len(resident) == len(leaves)
        and all(0 <= slot < len(specs) for slot in (*kept, *read))
        and not any(0 <= slot - len(leaves) < len(plain) for slot in (*kept, *read))
        and len(set(donated)) == len(donated)
        and all(0 <= slot < len(leaves) and resident[slot] for slot in donated)
    )
    if not sound:
        raise BadParams(_DAMAGED)
    return Program(tuple(leaves), resident, donated, tuple(plain), tuple(made), kept, read)


def _checked(dtype: dtypes.DType, shape: tuple[int, ...]) -> Spec:
    """The spec, if memory could hold such a value: a rule may have been given anything."""
    sound = len(shape) <= MAX_AXES and all(type(n) is int and 0 <= n < MAX_BYTES for n in shape)
    if not sound or dtype.name not in _TYPES or math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise BadParams(f"a value of the shape {tuple(shape)!s:.200} cannot be")
    return spec_of(dtype, shape)


def _counts(nodes: Sequence[object]) -> list[int]:
    """How often each is referred to; by whoever asks, too."""
    return [sys.getrefcount(one) for one in nodes]


_ASKED = _counts([object()])[0] - 1  # by whoever asks, without the sequence
_number = operator.attrgetter("number")


def _count_behind(order: list[Node], ours: dict[Node, int]) -> None:
    """Count references to steps that are there because an operation in place may fail.

    They are those of what it replaced, and of what that is made of, as far as nobody else knows it.
    All of these have their history again when it fails.
    """
    behind: dict[Node, int] = {}  # what is no step, and without a value

    def refer(node: Node, is_input: bool = True) -> None:
        before = () if node.undo is None else node.undo[1:2]
        for one in (*before, *(node.inputs if is_input else ())):
            if one in ours:
                ours[one] += 1
            elif one in behind:
                behind[one] += 1

    def meet(node: Node, is_input: bool = True) -> list[Node]:
        before = () if node.undo is None else node.undo[1:2]
        linked = (*before, *(node.inputs if is_input else ()))
        return [one for one in linked if one.value is None and one not in ours]

    waiting = [one for node in order for one in meet(node, False)]
    while waiting:
        found = [one for one in dict.fromkeys(waiting) if one not in behind]
        behind.update(dict.fromkeys(found, 0))
        waiting = [one for node in found for one in meet(node)]
        del found  # references are counted
    for node in order:
        refer(node, False)
    listed = sorted(behind, key=_number, reverse=True)  # what refers to a node has a higher number
    for place, count in enumerate(_counts(listed)):
        # Besides these: the table and the list.
        if count - _ASKED <= behind[listed[place]] + 2:
            refer(listed[place])


def needed_for(slots: Iterable[int], steps: Mapping[int, Step]) -> set[int]:
    """The slots of steps whose values these slots need, their own among them."""
    found: set[int] = set()
    stack = [slot for slot in slots if slot in steps]
    while stack:
        slot = stack.pop()
        if slot not in found:
            found.add(slot)
            stack.extend([one for one in steps[slot].inputs if one in steps])
    return found


def bytes_over(steps: Iterable[Step], specs: Sequence[Spec]) -> int:
    """Bytes that operations read and write: none where they make a view."""
    return sum(
        step.spec.nbytes + sum(specs[one].nbytes for one in step.inputs)
        for step in steps
        if not step.op.is_view
    )


class ProgramDraft:
    """Nodes on their way to a program: its key, and what it is given.

    Made in two steps: what it is given decides where it runs and what is kept.

    Attributes:
        key: equal for equal structures, once it is :meth:`settled`.
        arrays: leaves that are arrays, in the order of their slots.
        residents: those of them that a helper holds.
        shown: what is to be computed and a tensor shows.
        open_ends: those of them whose gradient may still be asked for.
        numbers: the plain numbers, in the order of their slots.
        donated: those of ``residents`` that nobody needs afterwards.
    """

    __slots__ = (
        "_code",
        "_mark",
        "_places",
        "_uses",
        "arrays",
        "donated",
        "kept",
        "key",
        "numbers",
        "open_ends",
        "order",
        "read",
        "residents",
        "shown",
    )

    kept: list[Node]
    donated: list[Node]
    key: tuple[Any, ...]

    def __init__(self, order: list[Node], read: list[Node], is_resident: type) -> None:
        """``order``: what is to be computed, inputs first; ``read``: what the child looks at."""
        self.order = order
        self.read = read
        if native is not None:
            (
                self._mark,
                self._code,
                self.arrays,
                self.residents,
                self.numbers,
                self.shown,
                self.open_ends,
            ) = native.draft(order, read, is_resident)
            return
        arrays: list[Node] = []
        residents: list[Node] = []
        numbers: list[Any] = []
        shown: list[Node] = []
        open_ends: list[Node] = []
        uses: dict[Node, int] = {}
        places: dict[Node, int] = {}
        # Steps have the places 0, 1, 2, ...; arrays -1, -3, -5, ...; numbers -2, -4, -6, ... Final
        # slots are known only when all nodes have been seen, but the key does not need them.
        code: list[Any] = []
        append = code.append
        place_of = places.get
        for step, node in enumerate(order):
            if node.owners:
                shown.append(node)
                if node.needs_grad and not node.is_released:
                    open_ends.append(node)
            append(node.op)
            append(node.params)
            for one in node.inputs:
                place = place_of(one)
                if place is not None:
                    append(place)
                    uses[one] += 1
                    continue
                uses[one] = 1
                kind = type(one.value)
                append(one.spec)
                append(kind)
                if kind is Scalar:
                    numbers.append(one.value.number)
                    places[one] = -2 * len(numbers)
                else:
                    arrays.append(one)
                    places[one] = 1 - 2 * len(arrays)
                    if kind is is_resident:
                        residents.append(one)
            places[node] = step
            uses[node] = 0
        for one in read:
            if one not in places:
                uses[one] = 0
                kind = type(one.value)
                arrays.append(one)
                places[one] = 1 - 2 * len(arrays)
                append(one.spec)
                append(kind)
                if kind is is_resident:
                    residents.append(one)
        self.arrays = arrays
        self.residents = residents
        self.numbers = numbers
        self.shown = shown
        self.open_ends = open_ends
        self._uses = uses
        self._places = places
        self._code = code

    @property
    def structure(self) -> tuple[Any, ...]:
        """Equal for drafts whose operations, and what they are given, are alike."""
        return tuple(self._code)

    def settled(self, kept: list[Node], donated: list[Node]) -> ProgramDraft:
        """Itself, with all that makes its key."""
        self.kept = kept
        self.donated = donated
        if native is not None:
            self.key = native.places(self._mark, self._code, kept, self.read, donated)
            return self
        place_of = self._places.__getitem__
        # No spec, kind or operation is equal to a number, so no two programs have the same tuple.
        self.key = (
            *self._code,
            None,
            *map(place_of, kept),
            None,
            *map(place_of, self.read),
            None,
            *map(place_of, donated),
        )
        return self

    def in_hand(self, kept: list[Node], *tables: Collection[Node]) -> list[Node]:
        """What somebody knows of what will have no value, and what this is made of.

        Between two operations a thread holds nodes that no tensor shows, and so does a backward
        pass while a hook reads a gradient. They are computed with what is sent next, so they need
        their history, and what it begins with. As in :meth:`unneeded`, references tell.

        Args:
            kept: the nodes whose values are kept; what is read has one, too.
            tables: whose references to each of these nodes, one for each table, are ours.
        """
        order = self.order
        if native is not None:
            told: list[Node] = native.in_hand(self._mark, order, kept, self.read, tables, 1)
            return told
        counts = _counts(order)
        ours = dict.fromkeys(order, 0)
        _count_behind(order, ours)
        for table in tables:
            for one in table:
                if one in ours:
                    ours[one] += 1
        # Besides these and the inputs: the order, and two tables of the draft.
        needed = {
            node
            for node, count in zip(order, counts, strict=True)
            if count - _ASKED > self._uses[node] + ours[node] + 3
        }
        valued = {*kept, *self.read}
        found = []
        for node in reversed(order):
            if node in needed and node not in valued:
                found.append(node)
                needed.update([one for one in node.inputs if one in ours])
        return found

    def unneeded(self, alive: Set[Node], held: dict[Node, int] | None = None) -> list[Node]:
        """Residents that nothing knows besides operations that are over after this.

        CPython counts references exactly: those of a leaf that are not the inputs of such
        operations are somebody else's. (No two nodes share one tuple of inputs: see
        :func:`shmgpu.ops.graph.apply`.)

        Args:
            alive: nodes whose gradient may still be asked for.
            held: how often messages that are under way refer to each resident: that is nobody's
                business either. Which have ended by now is chance, and programs are not.
        """
        if not self.residents:
            return []
        if native is not None:
            # Besides the inputs: the arrays and the residents.
            found: list[Node] = native.unneeded(
                self._mark, self.order, self.residents, alive, 2, held
            )
            return found
        candidates = [node for node in self.residents if not node.owners]
        uses = self._uses
        for node in self.order:
            if node.undo is not None and node.undo[1] in uses:
                uses[node.undo[1]] += 1
        for node in alive:
            for one in node.inputs:
                if one in uses:
                    uses[one] -= 1
        # Besides the inputs: four tables of the draft, and the candidates; of the value, the node
        # and the argument of getrefcount.
        counts = _counts(candidates)
        return [
            node
            for node, count in zip(candidates, counts, strict=True)
            if count - _ASKED
            <= uses[node] + 5 + (0 if held is None else held[node] + 1)  # and as its key
            and sys.getrefcount(node.value) <= 2
        ]

    def program(self, is_resident: type) -> Program:
        """The program itself: made once for each key."""
        slots: dict[Node, int] = {}
        for node in self.arrays:
            slots[node] = len(slots)
        specs = []
        for node in self.order:
            for one in node.inputs:
                if type(one.value) is Scalar and one not in slots:
                    slots[one] = len(slots)
                    specs.append(one.spec)
        steps = []
        for node in self.order:
            assert node.op is not None
            inputs = tuple([slots[one] for one in node.inputs])
            steps.append(Step(node.op, inputs, node.params, node.spec))
            slots[node] = len(slots)
        return Program(
            arrays=tuple([node.spec for node in self.arrays]),
            resident=tuple([type(node.value) is is_resident for node in self.arrays]),
            donated=tuple([slots[node] for node in self.donated]),
            numbers=tuple(specs),
            steps=tuple(steps),
            kept=tuple([slots[node] for node in self.kept]),
            read=tuple([slots[node] for node in self.read]),
        )
