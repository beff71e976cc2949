"""What a rule says: which axes of an operation's inputs and output belong together.

A *label* names an axis that inputs and the output share, like a letter in ``einsum``. If one axis
is cut, all axes with its label are cut alike, and all other axes are whole. The operation reduces
over a label that the output does not have: the outcome is partial then. Axes without a label are
whole wherever the operation is done.

An input that is declared *linear* may be partial, and makes the output partial. All other inputs
are reduced first, because a maximum of sums is not the sum of maxima.

Owns the form of rules. Never knows an operation by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shmgpu.distributed.layout import Bounds, Ranges
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.placements import PARTIAL_CODES, REPLICATE
from shmgpu.ops.graph import Op, Params, Spec
from shmgpu.ops.program import Step

Specs = tuple[Spec, ...]
Names = tuple[int | None, ...]  # the labels of a tensor's axes; None of one that is whole

OUT = -1  # where an input's number would stand

SUMS = ("sum", "avg")  # partial reductions that a linear operation accepts and passes on
ANY = ("sum", "avg", "max", "min", "prod")  # and one that only moves elements


class Scaled:
    """An axis of which so many places belong to each of its label."""

    __slots__ = ("factor",)

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def of_label(self, bounds: Bounds) -> Bounds:
        """Where the axis is cut when its label is cut here."""
        return tuple([n * self.factor for n in bounds])

    def to_label(self, bounds: Bounds, length: int) -> Bounds:
        """Where the label is cut when the axis is cut here, or near."""
        return tuple([-(-n // self.factor) for n in bounds])


class Taken:
    """An axis that has places ``start``, ``start + step``, ... of its label, ``count`` of them."""

    __slots__ = ("count", "start", "step")

    def __init__(self, start: int, step: int, count: int) -> None:
        self.start = start
        self.step = step
        self.count = count

    def of_label(self, bounds: Bounds) -> Bounds:
        """Where the axis is cut when its label is cut here."""
        return tuple([min(max(-(-(n - self.start) // self.step), 0), self.count) for n in bounds])

    def to_label(self, bounds: Bounds, length: int) -> Bounds:
        """Where the label, ``length`` long, is cut when the axis is cut here."""
        inner = [min(self.start + self.step * n, length) for n in bounds[1:-1]]
        # Cuts before the first element that was taken, or after the last, may be at any of those
        # places.
        return (0, *inner, length)


@dataclass(frozen=True)
class Scheme:
    """The labels of one operation on inputs of given shapes.

    Attributes:
        inputs, output: the labels of their axes.
        lengths: of each label.
        reduced: label -> how what its pieces give is reduced.
        maps: (input, or OUT; axis) -> how the axis follows from its label, where it is not that.
        split: labels that are cut only by doing the operation in parts: see :attr:`Rule.split`.
        moves: label -> the bytes of each reduction within these parts.
    """

    inputs: tuple[Names, ...]
    output: Names
    lengths: tuple[int, ...]
    reduced: Mapping[int, str] = field(default_factory=dict)
    maps: Mapping[tuple[int, int], Scaled | Taken] = field(default_factory=dict)
    split: frozenset[int] = frozenset()
    moves: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """One operation whose labels are cut somehow, as :attr:`Rule.split` sees it.

    Attributes:
        step: the operation on whole tensors.
        specs: of its inputs, whole.
        mesh: on which it is done.
        axes: label -> the axes of the mesh that cut it.
        ins: for each input what members have of it, by rank.
        out: likewise of the output.
    """

    step: Step
    specs: Specs
    mesh: Mesh
    axes: Mapping[int, tuple[int, ...]]
    ins: tuple[tuple[Ranges, ...], ...]
    out: tuple[Ranges, ...]

    def cut_by(self, labels: Sequence[int]) -> tuple[int, ...]:
        """The axes of the mesh that cut any of these labels, in order."""
        return tuple(sorted(axis for label in labels for axis in self.axes.get(label, ())))


Made = tuple[Op, tuple[int, ...], Params]


class RuleBuilder(Protocol):
    """Adds operations to the local programs; values are numbers of slots, one for all members."""

    def apply(self, op: Op, inputs: Sequence[int], params: Params = ()) -> int:
        """The same operation with each member; of empty pieces what leaves others as they are."""

    def each(self, make: Callable[[int], Made]) -> int:
        """An operation for each rank."""

    def number(self, value: complex, spec: Spec) -> int:
        """A plain number that is the same each time."""

    def all_reduce(self, value: int, op: str, axes: tuple[int, ...]) -> int:
        """Reduced along axes of the mesh."""

    def spec_at(self, value: int, rank: int) -> Spec:
        """Type and shape of a member's value."""


SchemeOf = Callable[[Specs, Params, Spec], Scheme]
Split = Callable[[RuleBuilder, Situation, tuple[int, ...]], int]
Localise = Callable[[Params, Sequence[Ranges], Ranges], Params]


@dataclass(frozen=True)
class Rule:
    """How an operation is done on pieces.

    Attributes:
        scheme: (inputs' specs, params, output's spec) -> labels.
        linear: groups of inputs that may be partial together; EVERY: all of them at once.
        kinds: reductions that pass.
        if_linear: (inputs' specs, params) -> whether ``linear`` holds.
        local: (params, each input's ranges, the output's) -> a member's params; those of the whole
            where None.
        once: input -> "drop" or "zero": where the outcome is partial and this input is not, the
            first member alone has it; others do without, or have zeros.
        split: does the operation in parts, where a label asks for it; see :attr:`Scheme.split`.
        work: (inputs' specs, output's) -> multiplications.
    """

    scheme: SchemeOf
    linear: tuple[tuple[int, ...], ...] = ()
    kinds: tuple[str, ...] = SUMS
    if_linear: Callable[[Specs, Params], bool] | None = None
    local: Localise | None = None
    once: Mapping[int, str] = field(default_factory=dict)
    split: Split | None = None
    work: Callable[[Specs, Spec], int] | None = None


EVERY: tuple[tuple[int, ...], ...] = ((-1,),)


@dataclass(frozen=True)
class Option:
    """One way to do an operation along one axis of a mesh.

    Attributes:
        inputs, output: codes of their placements.
        label: that is cut; None where none is.
        moves: bytes of each all_reduce within.
    """

    inputs: tuple[int, ...]
    output: int
    label: int | None = None
    moves: tuple[int, ...] = ()


def options_of(rule: Rule | None, specs: Specs, params: Params, out: Spec) -> list[Option]:
    """All ways, the one without any cut first."""
    whole = Option((REPLICATE,) * len(specs), REPLICATE)
    if rule is None:
        return [whole]
    found = [whole]
    scheme = rule.scheme(specs, params, out)
    for label in range(len(scheme.lengths)):
        inputs = tuple([1 + names.index(label) if label in names else 0 for names in scheme.inputs])
        if label in scheme.output:
            output = 1 + scheme.output.index(label)
        elif label in scheme.reduced:
            output = PARTIAL_CODES[scheme.reduced[label]]
        elif label in scheme.split:
            output = REPLICATE
        else:
            continue
        if not any(inputs) and label not in scheme.output:
            continue  # of another form of the operation
        found.append(Option(inputs, output, label, scheme.moves.get(label, ())))
    if rule.if_linear is None or rule.if_linear(specs, params):
        for group in rule.linear:
            among = range(len(specs)) if group == (-1,) else group
            if max(among) >= len(specs):
                continue  # of an input that may be missing
            for kind in rule.kinds:
                code = PARTIAL_CODES[kind]
                inputs = tuple([code if place in among else 0 for place in range(len(specs))])
                found.append(Option(inputs, code))
    return found


# ---- schemes that many rows share ------------------------------------------------------------


def aligned(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Axes counted from the last, where inputs are not stretched along them."""
    shape = out.shape
    ndim = len(shape)
    inputs = []
    for spec in specs:
        first = ndim - len(spec.shape)
        inputs.append(
            tuple(
                [label if n == shape[label] else None for label, n in enumerate(spec.shape, first)]
            )
        )
    return Scheme(tuple(inputs), tuple(range(ndim)), shape)


def along(axis_of: Callable[[Params], int]) -> SchemeOf:
    """All inputs of the output's shape, one axis of which is whole."""

    def scheme(specs: Specs, params: Params, out: Spec) -> Scheme:
        axis = axis_of(params)
        names = tuple([None if at == axis else at for at in range(len(out.shape))])
        return Scheme((names,) * len(specs), names, out.shape)

    return scheme


def shape_of(ranges: Ranges) -> tuple[int, ...]:
    """Lengths of what lies in these ranges."""
    return tuple([stop - start for start, stop in ranges])


def elements(spec: Spec) -> int:
    """How many there are."""
    return math.prod(spec.shape)


def local_shape_at(place: int) -> Localise:
    """Params of which that one is the output's shape."""

    def local(params: Params, ins: Sequence[Ranges], out: Ranges) -> Params:
        return (*params[:place], shape_of(out), *params[place + 1 :])

    return local
