"""A program of whole tensors as one program for each member of a mesh.

Owns what replaces each operation: the operation on pieces, and moves that bring its inputs to where
they are needed. :func:`lower` is a pure function: it never sends, keeps nothing and knows no
helper. The programs of all members have the same operations in the same places. Only shapes and
params differ, where members' pieces do. All members run the collectives in one order, in which
they are numbered.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from shmgpu.distributed import buckets
from shmgpu.distributed.builder import REDUCTION_OF, Builder, neutral
from shmgpu.distributed.choice import MEETING_BYTES, choose, roots_of
from shmgpu.distributed.draft import Entry, common
from shmgpu.distributed.layout import Bounds, Layout, Ranges, even_bounds, replicated
from shmgpu.distributed.lowered import Lowered, Placed, Writer
from shmgpu.distributed.meeting import add_move, once
from shmgpu.distributed.mesh import Mesh
from shmgpu.distributed.moves import Move, path
from shmgpu.distributed.placements import (
    PARTIAL_CODES,
    PARTIALS,
    REPLICATE,
    Local,
    Placement,
    of_code,
)
from shmgpu.distributed.rules import RULES
from shmgpu.distributed.rules.base import OUT, Option, Rule, Scheme, Situation, shape_of
from shmgpu.ops.graph import Op, Params, Spec
from shmgpu.ops.program import Program, Step
from shmgpu.ops.redistribution import FROM_LOCAL, REDISTRIBUTE, TO_LOCAL, axes_of, unit_of

SUM = PARTIAL_CODES["sum"]
MAX_PARTS_BYTES = 1024  # of a sum whose parts are read


class _Lowering:
    """One program on its way to its members."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        leaves: Sequence[Layout],
        wanted: Mapping[int, Layout],
    ) -> None:
        self.program = program
        self.mesh = mesh
        self.wanted = wanted
        self.choices = choose(program, mesh, leaves, wanted)
        self.b = Builder(program, mesh, leaves)
        self.specs = program.specs
        self.first = len(program.arrays) + len(program.numbers)
        self.root = roots_of(program)
        self.whole = replicated(mesh)
        self.local = Layout(mesh, [Local()] * mesh.ndim)
        # Values that exist only while they are used: the unit of each, and where it is now.
        self.lent = {
            slot: unit
            for slot, step in enumerate(program.steps, self.first)
            if step.op is REDISTRIBUTE and (unit := unit_of(step.params)) is not None
        }
        self.had: dict[int, dict[Layout, int]] = {slot: {} for slot in self.lent}
        self.remade = [max(costs) for costs in zip(*[c.remade for c in self.choices], strict=True)]
        # For each value, the layouts in which it exists, and where; the first is its own.
        self.versions: list[dict[Layout, int]] = []
        for slot, layout in enumerate(leaves):
            self.versions.append({})
            if program.resident[slot]:
                self.versions[slot][layout] = slot
            else:  # given whole to all members, so it exists in that layout, too
                self.versions[slot][self.whole] = slot
                self.version(slot, layout)
        self.versions.extend({self.whole: slot} for slot in range(len(leaves), self.first))
        self.placed: list[Placed] = []

    def run(self) -> None:
        """Lower each operation."""
        for slot, step in enumerate(self.program.steps, self.first):
            self.b.step = slot - self.first
            if self.root[slot] == slot:
                lowered = _OTHERWISE.get(step.op, _Lowering._step)
                self.versions.append(lowered(self, slot, step))
            else:  # it is another operation's value: asking for it asks for that
                self.placed.append(((self.lies(slot),) * len(step.inputs), self.lies(slot)))
                self.versions.append({})
            if slot in self.wanted:  # at once: what is there early can be moved early
                self.version(slot, self.wanted[slot])
            self.b.step = -1

    # ---- operations that only say how something lies ---------------------------------------------

    def _redistribute(self, slot: int, step: Step) -> dict[Layout, int]:
        layout: Layout = step.params[0]
        axes = axes_of(step.params)
        if axes is not None:
            layout = self._as_it_comes(slot, step, axes)
        self.placed.append(((self.lies(step.inputs[0]),), layout))
        if slot in self.lent:
            return self.had[slot]  # moved when it is used
        return {layout: self.version(step.inputs[0], layout)}

    def _as_it_comes(self, slot: int, step: Step, axes: tuple[int, ...]) -> Layout:
        """How it shall lie where that is said of some axes of the mesh alone."""
        codes = [choice.options[slot].output for choice in self.choices]
        free = [axis for axis in range(self.mesh.ndim) if axis not in axes]
        cuts = []
        for have in self.versions[self.root[step.inputs[0]]]:
            if all(have.codes[axis] == codes[axis] for axis in free):
                for dim, bounds in have.cuts:
                    its = tuple([axis for axis, code in enumerate(codes) if code == 1 + dim])
                    if have.axes_of(dim) == its:
                        cuts.append((dim, bounds))
                break
        return Layout(self.mesh, map(of_code, codes), cuts)

    def _to_local(self, slot: int, step: Step) -> dict[Layout, int]:
        self.placed.append((step.params[:1], self.local))
        return {self.local: self.version(step.inputs[0], step.params[0])}

    def _from_local(self, slot: int, step: Step) -> dict[Layout, int]:
        self.placed.append(((self.local,), step.params[0]))
        return {step.params[0]: self.version(step.inputs[0], self.local)}

    def _lend(self, unit: int) -> None:
        """Have what a unit needs for now, together, and let go of what others had."""
        for slot, its in self.lent.items():
            if its != unit:
                self.had[slot].clear()
                continue
            step = self.program.steps[slot - self.first]
            source = self.root[step.inputs[0]]
            if self.had[slot] or source >= len(self.versions):
                continue  # it is there, or not yet made
            layout: Layout = step.params[0]
            known, spec = self.versions[source], self.specs[slot]
            _, moves = self._way(known, layout, spec)
            value = known[moves[0].have if moves else layout]
            for move in moves:
                value = add_move(self.b, move, value, spec)
            self.had[slot][layout] = value

    # ---- versions --------------------------------------------------------------------------------

    def lies(self, slot: int) -> Layout:
        """How a value lies of itself."""
        root = self.root[slot]
        if root in self.lent:
            layout: Layout = self.program.steps[root - self.first].params[0]
            return layout
        known = self.versions[root]
        # What is given whole lies as it was said to, if it was.
        return list(known)[1] if root < self.first and len(known) > 1 else next(iter(known))

    def version(self, slot: int, want: Layout) -> int:
        """The value, lying that way: moved there from where that costs least."""
        root = self.root[slot]
        known = self.versions[root]
        found = known.get(want)
        if found is not None:
            return found
        spec = self.specs[root]
        if root in self.lent and not known:
            source = self.program.steps[root - self.first].inputs[0]
            if want in self.versions[self.root[source]]:
                return self.version(source, want)
            self._lend(self.lent[root])
            return self.version(root, want)
        best, moves = self._way(known, want, spec)
        if self.remade[root] < best and self.whole not in known and not want.is_partial:
            known[self.whole] = self._again(root)
            _, moves = self._way(known, want, spec)
        for move in moves:
            value = known[move.have]
            if move.want not in known:
                known[move.want] = add_move(self.b, move, value, spec)
        return known[want]

    def _way(
        self, known: dict[Layout, int], want: Layout, spec: Spec
    ) -> tuple[float, tuple[Move, ...]]:
        """The moves from where a value lies to where it is wanted, and what they cost."""
        found: list[tuple[float, tuple[Move, ...]]] = []
        for have in known:
            moves = path(have, want, spec.shape)
            cost = 1e-3 * len(moves)
            for move in moves:
                if move.is_meeting:
                    cost += move.nbytes(spec.nbytes) + MEETING_BYTES
            found.append((cost, moves))
        return min(found, key=operator.itemgetter(0))

    def _again(self, slot: int) -> int:
        """The value whole, made once more of what all have whole."""
        step = self.program.steps[slot - self.first]
        inputs = [self.version(one, self.whole) for one in step.inputs]
        return self.b.apply(step.op, inputs, step.params)

    def ending(self, slot: int, is_read: bool = False) -> Layout:
        """How a value lies that is kept or read: as asked, or as it comes, but not partial."""
        asked = self.wanted.get(slot)
        if asked is not None and not (is_read and asked.is_partial):
            return asked
        root = self.root[slot]
        if root in self.lent:  # a value that exists for a while is kept in its other layout
            return self.ending(self.program.steps[root - self.first].inputs[0], is_read)
        known = self.versions[root]
        for layout in known:
            if not layout.is_partial:
                return layout
        placed = [
            of_code(REPLICATE if code in PARTIALS else code) for code in next(iter(known)).codes
        ]
        return Layout(self.mesh, placed, next(iter(known)).cuts)

    def parts_of_a_sum(self, slot: int) -> Layout | None:
        """How a small value lies that nobody has yet but in parts, which have to be added."""
        known = self.versions[self.root[slot]]
        layout, spec = next(iter(known)), self.specs[slot]
        is_sum = len(known) == 1 and {SUM} <= set(layout.codes) <= {SUM, REPLICATE}
        is_wide = spec.dtype.name in ("float32", "float64")  # others are added as wider ones
        return layout if is_sum and is_wide and spec.nbytes <= MAX_PARTS_BYTES else None

    # ---- one operation ---------------------------------------------------------------------------

    def _step(self, slot: int, step: Step) -> dict[Layout, int]:
        options = [choice.options[slot] for choice in self.choices]
        rule = RULES.get(step.op)
        if not any(option.output or any(option.inputs) for option in options):
            return self._done(step, [self.whole] * len(step.inputs), self.whole)
        if any(option.output < PARTIAL_CODES["prod"] for option in options):
            return self._local(step, options)
        assert rule is not None
        specs = tuple([self.specs[one] for one in step.inputs])
        scheme = rule.scheme(specs, step.params, step.spec)
        axes: dict[int, tuple[int, ...]] = {}
        for axis, option in enumerate(options):
            if option.label is not None:
                axes[option.label] = (*axes.get(option.label, ()), axis)
        bounds = {label: self._bounds(step, scheme, label, cut) for label, cut in axes.items()}
        wants = [
            self._layout(
                [option.inputs[place] for option in options],
                scheme.inputs[place] if place < len(scheme.inputs) else (),
                place,
                spec,
                scheme,
                bounds,
            )
            for place, spec in enumerate(specs)
        ]
        out = self._layout(
            [option.output for option in options], scheme.output, OUT, step.spec, scheme, bounds
        )
        inputs = [self.version(one, want) for one, want in zip(step.inputs, wants, strict=True)]
        self.placed.append((tuple(wants), out))
        return {out: self._made(step, specs, rule, scheme, axes, options, inputs, wants, out)}

    def _local(self, step: Step, options: list[Option]) -> dict[Layout, int]:
        """What each does for itself."""
        placed = []
        for place in range(len(step.inputs)):
            codes = [option.inputs[place] for option in options]
            placed.append(Layout(self.mesh, map(of_code, codes)))
        out = Layout(self.mesh, [of_code(option.output) for option in options])
        return self._done(step, placed, out)

    def _done(self, step: Step, wants: list[Layout], out: Layout) -> dict[Layout, int]:
        """The same operation with each member, of whatever it has."""
        inputs = [self.version(one, want) for one, want in zip(step.inputs, wants, strict=True)]
        self.placed.append((tuple(wants), out))
        return {out: self.b.apply(step.op, inputs, step.params)}

    def _bounds(
        self, step: Step, scheme: Scheme, label: int, axes: tuple[int, ...]
    ) -> Bounds | None:
        """Where a label is cut: where the input is that costs most to move; None for evenly."""
        length = scheme.lengths[label]
        best: tuple[float, Bounds] | None = None
        for place, names in enumerate(scheme.inputs):
            if label not in names:
                continue
            dim = names.index(label)
            one = step.inputs[place]
            for have in self.versions[self.root[one]]:
                if have.axes_of(dim) != axes:
                    continue
                spec = self.specs[one]
                bounds = have.bounds(dim, spec.shape[dim])
                how = scheme.maps.get((place, dim))
                if how is not None:
                    even = even_bounds(length, [self.mesh.shape[axis] for axis in axes])
                    is_even = how.of_label(even) == bounds  # and many others may be, too
                    bounds = even if is_even else how.to_label(bounds, length)
                cost = min(spec.nbytes, self.remade[self.root[one]])
                if best is None or cost > best[0]:
                    best = cost, bounds
                break
        return None if best is None else best[1]

    def _layout(
        self,
        codes: list[int],
        names: tuple[int | None, ...],
        place: int,
        spec: Spec,
        scheme: Scheme,
        bounds: dict[int, Bounds | None],
    ) -> Layout:
        """How an input (or the output) lies, whose labels are cut like that."""
        placements: list[Placement] = [of_code(code) for code in codes]
        cuts = []
        for dim, label in enumerate(names):
            if label is None or label not in bounds or 1 + dim not in codes:
                continue
            cut = bounds[label]
            how = scheme.maps.get((place, dim))
            if how is not None:
                if cut is None:
                    axes = [axis for axis, code in enumerate(codes) if code == 1 + dim]
                    cut = even_bounds(
                        scheme.lengths[label], [self.mesh.shape[axis] for axis in axes]
                    )
                cut = how.of_label(cut)
            if cut is not None:
                cuts.append((dim, cut))
        return Layout(self.mesh, placements, cuts)

    def _made(
        self,
        step: Step,
        specs: tuple[Spec, ...],
        rule: Rule,
        scheme: Scheme,
        axes: dict[int, tuple[int, ...]],
        options: list[Option],
        inputs: list[int],
        wants: list[Layout],
        out: Layout,
    ) -> int:
        """The operation on pieces that lie right."""
        b = self.b
        dropped: set[int] = set()
        sums: tuple[int, ...] = ()
        if rule.once:
            for place, how in rule.once.items():
                sums = tuple(
                    [
                        axis
                        for axis, option in enumerate(options)
                        if PARTIALS.get(option.output) == "sum"
                        and place < len(inputs)
                        and option.inputs[place] == REPLICATE
                        and self.mesh.shape[axis] > 1
                    ]
                )
                if sums and how == "zero":
                    inputs[place] = once(b, inputs[place], sums)
                elif sums:
                    dropped.add(place)
        if any(label in scheme.split for label in axes):
            assert rule.split is not None
            situation = Situation(
                step,
                specs,
                self.mesh,
                axes,
                tuple([want.pieces(spec.shape) for want, spec in zip(wants, specs, strict=True)]),
                out.pieces(step.spec.shape),
            )
            return rule.split(b, situation, tuple(inputs))
        slots = tuple(inputs)
        local_out = out.local_specs(step.spec)
        if (
            not dropped
            and not isinstance(local_out, tuple)
            and not any(type(b.draft.specs[one]) is list for one in slots)
        ):
            params = self._params(step, rule, specs, wants, out)
            if type(params) is not list:
                return b.add(Entry(step.op, slots, params, local_out))
        params = self._params(step, rule, specs, wants, out)
        few = tuple([one for place, one in enumerate(slots) if place not in dropped])
        kind = REDUCTION_OF.get(step.op)

        def made(rank: int) -> tuple[Op, tuple[int, ...], Params, Spec]:
            spec = local_out[rank] if isinstance(local_out, tuple) else local_out
            own = slots if not dropped or self.mesh.is_first(rank, sums) else few
            if 0 in spec.shape and 0 not in step.spec.shape:
                return b.filled(spec, 0)
            is_of_nothing = any(
                0 in b.spec_at(one, rank).shape and 0 not in whole.shape
                for one, whole in zip(own, specs, strict=False)
            )
            if kind is not None and is_of_nothing and (len(own) < 3 or 2 not in rule.once):
                return b.filled(spec, neutral(kind, spec))  # but a bias is added to nothing
            return step.op, own, params[rank] if type(params) is list else params, spec  # type: ignore[return-value]

        columns = zip(*[made(rank) for rank in b.ranks], strict=True)
        ops, ins, rests, shapes = (common(column) for column in columns)
        return b.add(Entry(ops, ins, rests, shapes))

    def _params(
        self, step: Step, rule: Rule, specs: tuple[Spec, ...], wants: list[Layout], out: Layout
    ) -> Params | list[Params]:
        """The params of each member, or of all."""
        if rule.local is None:
            return step.params
        pieces = [want.pieces(spec.shape) for want, spec in zip(wants, specs, strict=True)]
        outs = out.pieces(step.spec.shape)
        found: list[Params] = []
        for rank in self.b.ranks:
            ins: list[Ranges] = [piece[rank] for piece in pieces]
            if 0 in shape_of(outs[rank]) and 0 not in step.spec.shape:
                found.append(())  # nothing is done
            else:
                found.append(rule.local(step.params, ins, outs[rank]))
        params: Params | list[Params] = common(found)
        return params


_OTHERWISE: dict[Op, Callable[[_Lowering, int, Step], dict[Layout, int]]] = {
    REDISTRIBUTE: _Lowering._redistribute,
    TO_LOCAL: _Lowering._to_local,
    FROM_LOCAL: _Lowering._from_local,
}


def lower(
    program: Program,
    mesh: Mesh,
    leaves: Sequence[Layout | None],
    wanted: Mapping[int, Layout] | None = None,
    *,
    bucket_bytes: int = buckets.BUCKET_BYTES,
    overlap: bool = False,
    algorithm: str = "auto",
    reads_parts: bool = False,
) -> Lowered:
    """The programs of a mesh's members that do together what ``program`` does.

    Args:
        program: of whole tensors.
        mesh: on which it is done.
        leaves: how each of its arrays lies (None: replicated). What lies in the arena is given
            whole to all, and lies as it is said to by slices.
        wanted: how values shall lie, by slot: what is updated in place lies as before, a gradient
            as its leaf. What is kept or read and stands not here lies as it comes, but not partial.
        bucket_bytes: of collectives that are done as one.
        overlap: whether collectives begin as early and are waited for as late as can be.
        algorithm: how members do an all_reduce; each way gives the same bits.
        reads_parts: of small sums that are read, whether each member writes its part, which waits
            for nobody, instead of one member the sum.

    Raises:
        ValueError: a layout is of another mesh, or not of the tensor; or what is read is each
            member's own.
    """
    lies = [replicated(mesh) if one is None else one for one in leaves]
    asked = dict(wanted or {})
    _check(program, mesh, lies, asked)
    lowering = _Lowering(program, mesh, lies, asked)
    lowering.run()
    kept = [lowering.ending(slot) for slot in program.kept]
    read = [
        (reads_parts and lowering.parts_of_a_sum(slot)) or lowering.ending(slot, is_read=True)
        for slot in program.read
    ]
    if lowering.local in read:
        raise ValueError(
            "a value is looked at that is each helper's own: say how the pieces make a tensor first"
        )
    roots = [
        lowering.version(slot, layout)
        for slot, layout in (
            *zip(program.kept, kept, strict=True),
            *zip(program.read, read, strict=True),
        )
    ]
    draft = lowering.b.draft
    order = buckets.needed(draft, roots)
    if bucket_bytes:
        order, moved = buckets.bucketed(draft, order, bucket_bytes)
        roots = [moved.get(one, one) for one in roots]
    if algorithm != "auto":
        buckets.name_algorithm(draft, order, algorithm)
    if overlap:
        order, moved = buckets.overlapped(draft, order)
        roots = [moved.get(one, one) for one in roots]
    return Writer(
        draft,
        order,
        roots,
        tuple(lies),
        kept,
        read,
        tuple(lowering.placed),
        tuple(lowering.choices),
    ).lowered(algorithm)


def _check(
    program: Program, mesh: Mesh, leaves: list[Layout], wanted: Mapping[int, Layout]
) -> None:
    if len(leaves) != len(program.arrays):
        raise ValueError(
            f"the program has {len(program.arrays)} arrays, and {len(leaves)} layouts are given"
        )
    specs = program.specs
    first = len(program.arrays) + len(program.numbers)
    said = [(step.params[0], step.spec) for step in program.steps if step.op is REDISTRIBUTE]
    said += [(step.params[0], step.spec) for step in program.steps if step.op is FROM_LOCAL]
    said += [
        (step.params[0], specs[step.inputs[0]]) for step in program.steps if step.op is TO_LOCAL
    ]
    said += zip(leaves, program.arrays, strict=True)
    said += [(layout, specs[slot]) for slot, layout in wanted.items()]
    for layout, spec in said:
        if layout.mesh is not mesh:
            raise ValueError(
                f"a tensor lies on {layout.mesh}, and the operation is done on {mesh}: have all "
                "of its tensors on one mesh"
            )
        layout.pieces(spec.shape)
    if any(not 0 <= slot < len(specs) or len(program.arrays) <= slot < first for slot in wanted):
        raise ValueError("a layout is asked for of what is no tensor of the program")
