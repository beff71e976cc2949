"""Rules of elements found by number. A table that is cut by rows is looked up by all members.

Each member finds the rows that it has, and takes zeros for the others: the outcome is the sum over
members. A number outside of the table is refused, as in a whole table: numbers below it count as
the first member's, and numbers above it as the last one's.

Owns these lookups. Never gathers a table.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import (
    Names,
    Rule,
    RuleBuilder,
    Scheme,
    Situation,
    Specs,
)
from shmgpu.ops import elementwise, indexing, ordering, rules, shaping
from shmgpu.ops.graph import Op, Params, Spec, spec_of
from shmgpu.ops.promotion import CATEGORY, FLOAT, bool_, int64

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_INDEX = spec_of(int64, ())


def rows_within(
    b: RuleBuilder, index: int, places: list[tuple[int, int]], length: int
) -> tuple[int, int]:
    """Where a number is of the member's own rows (all have ``length``), and which of these then."""

    def low(rank: int) -> int:
        first, last = places[rank]
        if first == last:
            return _MOST  # none is
        return _LEAST if first == 0 else first

    def high(rank: int) -> int:
        first, last = places[rank]
        return _MOST if last == length and first < last else last

    above = b.each(lambda rank: (elementwise.GE, (index, b.number(low(rank), _INDEX)), ()))
    below = b.each(lambda rank: (elementwise.LT, (index, b.number(high(rank), _INDEX)), ()))
    within = b.apply(elementwise.LOGICAL_AND, (above, below))
    moved = b.each(lambda rank: (elementwise.SUB, (index, b.number(places[rank][0], _INDEX)), ()))
    return within, moved


def _own(b: RuleBuilder, index: int, places: list[tuple[int, int]], length: int) -> tuple[int, int]:
    """Where a number is of the member's own rows, and which; the first one where it is not."""
    within, moved = rows_within(b, index, places, length)
    return within, b.apply(elementwise.WHERE, (within, moved, b.number(0, _INDEX)))


def _or_nothing(b: RuleBuilder, within: int, value: int, spec: Spec) -> int:
    """The value where it is the member's own, else 0."""
    nothing = -0.0 if CATEGORY[spec.dtype] == FLOAT else 0  # 0 would change -0
    return b.apply(elementwise.WHERE, (within, value, b.number(nothing, spec_of(spec.dtype, ()))))


def _as_column(b: RuleBuilder, value: int) -> int:
    """With an axis more at the end."""
    return b.each(lambda rank: (shaping.RESHAPE, (value,), ((*b.spec_at(value, rank).shape, 1),)))


def _sum_of(spec: Spec) -> str:
    """What adds elements of which all but one are 0."""
    return "max" if spec.dtype is bool_ else "sum"


# ---- rows of a table -------------------------------------------------------------------------


def _embedding(specs: Specs, params: Params, out: Spec) -> Scheme:
    index, table = specs
    columns = len(index.shape)
    rows = columns + 1
    free = tuple(range(columns))
    return Scheme(
        (free, (rows, columns)),
        (*free, columns),
        (*out.shape, table.shape[0]),
        reduced={rows: "sum"},
        split=frozenset((rows,)),
    )


def _split_embedding(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    index, table = inputs
    places = [ranges[0] for ranges in s.ins[1]]
    within, own = _own(b, index, places, s.specs[1].shape[0])
    found = b.apply(indexing.EMBEDDING, (own, table))
    return _or_nothing(b, _as_column(b, within), found, s.step.spec)


def _embedding_backward(specs: Specs, params: Params, out: Spec) -> Scheme:
    g, index = specs
    columns = len(index.shape)
    rows = columns + 1
    free = tuple(range(columns))
    return Scheme(
        ((*free, columns), free),
        (rows, columns),
        (*g.shape, out.shape[0]),
        reduced=dict.fromkeys(free, "sum"),
        split=frozenset((rows,)),
    )


def _split_embedding_backward(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    g, index = inputs
    places = [ranges[0] for ranges in s.out]
    within, own = _own(b, index, places, s.step.spec.shape[0])
    g = _or_nothing(b, _as_column(b, within), g, s.specs[0])
    return b.each(
        lambda rank: (
            indexing.EMBEDDING_BACKWARD,
            (g, own),
            (places[rank][1] - places[rank][0],),
        )
    )


# ---- along an axis ---------------------------------------------------------------------------


def _gather(specs: Specs, params: Params, out: Spec) -> Scheme:
    """The index's axes, where x has as much; and x's own axis, of which each has some rows."""
    x, index = specs
    (axis,) = params
    if not index.shape:
        return Scheme(((), ()), (), ())
    ndim = len(index.shape)
    rows = ndim
    names: list[int | None] = [
        at if at == axis or n == have else None
        for at, (n, have) in enumerate(zip(index.shape, x.shape, strict=True))
    ]
    mine = tuple([rows if at == axis else name for at, name in enumerate(names)])
    return Scheme(
        (mine, tuple(names)),
        tuple(names),
        (*index.shape, x.shape[axis]),
        reduced={rows: _sum_of(x)},
        split=frozenset((rows,)),
    )


def _split_gather(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    x, index = inputs
    (axis,) = s.step.params
    places = [ranges[axis] for ranges in s.ins[0]]
    within, own = _own(b, index, places, s.specs[0].shape[axis])
    found = b.apply(indexing.GATHER, (x, own), s.step.params)
    return _or_nothing(b, within, found, s.step.spec)


def _scatter_add(specs: Specs, params: Params, out: Spec) -> Scheme:
    """Of the index's own axis the parts add up; rows of x take what is theirs."""
    x, index, source = specs
    (axis,) = params
    if not index.shape:
        return Scheme(((), (), ()), (), ())
    ndim = len(index.shape)
    rows = ndim
    names: list[int | None] = []
    for at, n in enumerate(index.shape):
        is_whole = n == source.shape[at] and (at == axis or n == x.shape[at])
        names.append(at if is_whole else None)
    mine = tuple([rows if at == axis else name for at, name in enumerate(names)])
    return Scheme(
        (mine, tuple(names), tuple(names)),
        mine,
        (*index.shape, x.shape[axis]),
        reduced={axis: "sum"} if x.dtype is not bool_ else {},
        split=frozenset((rows,)),
    )


def _split_scatter_add(b: RuleBuilder, s: Situation, inputs: tuple[int, ...]) -> int:
    x, index, source = inputs
    (axis,) = s.step.params
    places = [ranges[axis] for ranges in s.out]
    within, own = _own(b, index, places, s.step.spec.shape[axis])
    # What lies beyond the index has no influence, and no place in ``within``.
    parts = s.specs[1].shape
    if parts != s.specs[2].shape:
        zeros = tuple([0] * len(parts))

        def corner(rank: int) -> tuple[Op, tuple[int, ...], Params]:
            shape = b.spec_at(own, rank).shape
            return shaping.SLICE, (source,), (zeros, shape, (1,) * len(shape))

        source = b.each(corner)
    source = _or_nothing(b, within, source, s.specs[2])
    return b.apply(indexing.SCATTER_ADD, (x, own, source), s.step.params)


# ---- square brackets -------------------------------------------------------------------------


def _indexed(
    shape: tuple[int, ...], indices: list[Spec], axes: tuple[int, ...]
) -> tuple[Names, list[Names], Names, tuple[int, ...]]:
    """Labels of x, of the indices and of what is indexed; and their lengths.

    Axes that are not indexed come first, then those of the indices.
    """
    found = rules.broadcast([one.shape for one in indices], "indexing")
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    mine = tuple([rest.index(axis) if axis in rest else None for axis in range(len(shape))])
    index_labels = tuple(range(len(rest), len(rest) + len(found)))
    theirs: list[Names] = []
    for one in indices:
        first = len(found) - len(one.shape)
        theirs.append(
            tuple(
                [
                    index_labels[at] if n == found[at] else None
                    for at, n in enumerate(one.shape, first)
                ]
            )
        )
    at = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    free = list(range(len(rest)))
    out = (*free[:at], *index_labels, *free[at:])
    return mine, theirs, out, (*[shape[axis] for axis in rest], *found)


def _index(specs: Specs, params: Params, out: Spec) -> Scheme:
    x, *indices = specs
    mine, theirs, names, lengths = _indexed(x.shape, indices, params[0])
    return Scheme((mine, *theirs), names, lengths)


def _index_put(specs: Specs, params: Params, out: Spec) -> Scheme:
    """What is added may come in parts; what replaces others must come in one order."""
    x, value, *indices = specs
    axes, accumulate = params
    mine, theirs, target, lengths = _indexed(x.shape, indices, axes)
    free = len(x.shape) - len(axes)
    if not accumulate:
        target = tuple([one if one is not None and one < free else None for one in target])
        theirs = [(None,) * len(one) for one in theirs]
    wide = _lengths_of(target, lengths)
    first = len(target) - len(value.shape)
    given = tuple(
        [
            target[at] if target[at] is not None and n == wide[at] else None
            for at, n in enumerate(value.shape, first)
        ]
    )
    reduced = dict.fromkeys(range(free, len(lengths)), "sum") if accumulate else {}
    return Scheme((mine, given, *theirs), mine, lengths, reduced=reduced)


def _lengths_of(names: Names, lengths: tuple[int, ...]) -> list[int]:
    return [-1 if one is None else lengths[one] for one in names]


# ---- places in an order ----------------------------------------------------------------------


def _searchsorted(specs: Specs, params: Params, out: Spec) -> Scheme:
    order, wanted = specs
    names = tuple(range(len(wanted.shape)))
    if len(order.shape) == 1:
        return Scheme(((None,), names), names, wanted.shape)
    return Scheme(((*names[:-1], None), names), names, wanted.shape)


def _is_added(specs: Specs, params: Params) -> bool:
    return specs[0].dtype is not bool_


RULES: dict[Op, Rule] = {
    indexing.EMBEDDING: Rule(_embedding, linear=((1,),), split=_split_embedding),
    indexing.EMBEDDING_BACKWARD: Rule(
        _embedding_backward, linear=((0,),), split=_split_embedding_backward
    ),
    indexing.GATHER: Rule(_gather, linear=((0,),), split=_split_gather),
    indexing.SCATTER_ADD: Rule(
        _scatter_add,
        linear=((0, 2),),
        if_linear=_is_added,
        once={0: "zero"},
        split=_split_scatter_add,
    ),
    indexing.INDEX: Rule(_index, linear=((0,),)),
    indexing.INDEX_PUT: Rule(_index_put, linear=((0, 1),), if_linear=_is_added, once={0: "zero"}),
    ordering.SEARCHSORTED: Rule(_searchsorted),
}
