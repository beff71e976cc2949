"""A program: the operations that a helper is asked for at once, without the graph they came from.

Owns what travels. :func:`gather` turns nodes into a program and a list of its inputs. A program is
written (:meth:`Program.encode`) and read (:func:`decode`) once for each structure, and is named by
a number from then on. Never believes what it reads: each operation's rule is asked again.

A *slot* is the position of a value in the program. The inputs have the first ones: arrays (in the
arena, or resident in the helper), then plain numbers; each operation has one of its own after
these.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

from shmgpu import ops
from shmgpu.codec import dtypes
from shmgpu.codec.pytree import decode_values, encode_values
from shmgpu.errors import BadParams
from shmgpu.ops.graph import Node, Op, Params, Scalar, Spec, native, spec_of
from shmgpu.ops.promotion import TYPES

MAX_STEPS = 1 << 16
MAX_AXES = 64
MAX_BYTES = 1 << 46  # of one value: more than any machine has

_TYPES = {dtype.name: dtype for dtype in TYPES}
_PLAIN = (bool, int, float, str, type(None))  # that params are made of


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
        """Its bytes, as :func:`decode` reads them."""
        flat: list[Any] = []

        def put(items: Iterable[Any]) -> None:
            listed = list(items)
            flat.append(len(listed))
            flat.extend(listed)

        def put_spec(spec: Spec) -> None:
            flat.append(spec.dtype.name)
            put(spec.shape)

        flat.append(len(self.arrays))
        for spec in self.arrays:
            put_spec(spec)
        put(self.resident)
        put(self.donated)
        put(spec.dtype.name for spec in self.numbers)
        flat.append(len(self.steps))
        for step in self.steps:
            flat.append(step.op.name)
            put(step.inputs)
            _put_params(flat, step.params)
        put(self.kept)
        put(self.read)
        return encode_values([len(flat), *flat])


def _put_params(flat: list[Any], params: Params) -> None:
    flat.append(len(params))
    for one in params:
        if isinstance(one, tuple):
            flat.append("(")
            _put_params(flat, one)
        elif isinstance(one, dtypes.DType):
            flat.append("d")
            flat.append(one.name)
        else:
            flat.append("v")
            flat.append(one)


class _ProgramReader:
    """Takes values one after the other; BadParams for one of another type."""

    def __init__(self, flat: list[Any]) -> None:
        self._flat = flat
        self._at = 0

    def take(self, kind: type) -> Any:
        if self._at >= len(self._flat) or type(self._flat[self._at]) is not kind:
            raise BadParams("the program is damaged")
        self._at += 1
        return self._flat[self._at - 1]

    def plain(self) -> Any:
        if self._at >= len(self._flat) or type(self._flat[self._at]) not in _PLAIN:
            raise BadParams("the program is damaged")
        self._at += 1
        return self._flat[self._at - 1]

    def dtype(self) -> dtypes.DType:
        # Only those that tensors have; and rules compare them as objects.
        dtype = _TYPES.get(self.take(str))
        if dtype is None:
            raise BadParams("the program has an element type that tensors do not have")
        return dtype

    def count(self) -> int:
        n: int = self.take(int)
        if not 0 <= n <= len(self._flat) - self._at:
            raise BadParams("the program is damaged")
        return n

    def listed(self, kind: type) -> tuple[Any, ...]:
        return tuple([self.take(kind) for _ in range(self.count())])

    def params(self, depth: int = 0) -> Params:
        if depth > 4:
            raise BadParams("the program is damaged")
        found: list[Any] = []
        for _ in range(self.count()):
            tag = self.take(str)
            if tag == "(":
                found.append(self.params(depth + 1))
            elif tag == "d":
                found.append(self.dtype())
            else:
                found.append(self.plain())
        return tuple(found)

    def end(self) -> None:
        if self._at != len(self._flat):
            raise BadParams("the program is damaged")


def decode(data: bytes) -> Program:
    """The program of these bytes.

    Raises:
        BadParams: it is none, or does what no child records.
    """
    try:
        (count,) = decode_values(data[:9], 1)
        if type(count) is not int or not 0 <= count <= len(data):
            raise BadParams("the program is damaged")
        flat = decode_values(data, count + 1)[1:]
    except (TypeError, ValueError) as error:
        raise BadParams("the program is damaged") from error
    reader = _ProgramReader(flat)
    arrays = []
    for _ in range(reader.count()):
        dtype = reader.dtype()
        arrays.append(_checked(dtype, reader.listed(int)))
    resident = reader.listed(bool)
    donated = reader.listed(int)
    numbers = [spec_of(reader.dtype(), ()) for _ in range(reader.count())]
    specs = [*arrays, *numbers]
    steps = []
    count = reader.count()
    if count > MAX_STEPS:
        raise BadParams(f"a program has {MAX_STEPS} operations at most")
    for _ in range(count):
        op = ops.TABLE.get(reader.take(str))
        inputs = reader.listed(int)
        params = reader.params()
        if op is None or any(not 0 <= slot < len(specs) for slot in inputs):
            raise BadParams("the program has an operation that is not known here")
        try:
            spec = op.rule(tuple([specs[slot] for slot in inputs]), params)
            _checked(spec.dtype, spec.shape)
        except BadParams:
            raise
        except Exception as error:
            raise BadParams(f"the program is damaged: {error}") from error
        steps.append(Step(op, inputs, params, spec))
        specs.append(spec)
    kept, read = reader.listed(int), reader.listed(int)
    reader.end()
    sound = (
        len(resident) == len(arrays)
        and all(0 <= slot < len(specs) for slot in (*kept, *read))
        and not any(0 <= slot - len(arrays) < len(numbers) for slot in (*kept, *read))
        and len(set(donated)) == len(donated)
        and all(0 <= slot < len(arrays) and resident[slot] for slot in donated)
    )
    if not sound:
        raise BadParams("the program is damaged")
    return Program(tuple(arrays), resident, donated, tuple(numbers), tuple(steps), kept, read)


def _checked(dtype: dtypes.DType, shape: tuple[int, ...]) -> Spec:
    """The spec, if memory could hold such a value: a rule may have been given anything."""
    sound = len(shape) <= MAX_AXES and all(type(n) is int and 0 <= n < MAX_BYTES for n in shape)
    if not sound or dtype.name not in _TYPES or math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise BadParams(f"a value of the shape {tuple(shape)!s:.200} cannot be")
    return spec_of(dtype, shape)


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
                    if place < 0:
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

    def unneeded(self, alive: Set[Node]) -> list[Node]:
        """Residents that nothing knows besides operations that are over after this.

        CPython counts references exactly: those of a leaf that are not the inputs of such
        operations are somebody else's. (No two nodes share one tuple of inputs: see
        :func:`shmgpu.ops.graph.apply`.)

        Args:
            alive: nodes whose gradient may still be asked for.
        """
        if not self.residents:
            return []
        if native is not None:
            # Besides the inputs: the arrays and the residents.
            found: list[Node] = native.unneeded(self._mark, self.order, self.residents, alive, 2)
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
        # Besides the inputs: four tables of the draft, the candidates, the loop's name, and the
        # argument of getrefcount; of the value, the node and the argument.
        return [
            node
            for node in candidates
            if sys.getrefcount(node) <= uses[node] + 7 and sys.getrefcount(node.value) <= 2
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
