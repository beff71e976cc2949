"""Collectives as rows of the table of operations: what helpers do together within one program.

Users' programs do not record them: :mod:`shmgpu.distributed` puts them into the programs that it
makes for the members of a mesh. Each takes two params first: its number, by which all members run
collectives in one order, and the members that take part, as ranks in the gang.

Owns the rows, and how arrays are packed before an exchange and unpacked after it. Never exchanges
anything: the gang does (:class:`shmgpu.ops.gang.Gang`). Never knows what a mesh is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from shmgpu.ops import gang
from shmgpu.ops.graph import Op, Params, Spec, spec_of
from shmgpu.ops.promotion import uint8

Specs = tuple[Spec, ...]
Shape = tuple[int, ...]

# How members' elements at one place become one; "avg" is for floats only.
REDUCTIONS = ("sum", "avg", "max", "min", "prod")


# ---- memory ------------------------------------------------------------------------------------


class _Library:
    """What packing asks of NumPy or torch."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._is_numpy = module.__name__ == "numpy"

    def empty(self, spec: Spec, like: Any) -> Any:
        if self._is_numpy:
            return self._module.empty(spec.shape, spec.dtype.numpy)
        return self._module.empty(spec.shape, dtype=spec.dtype.torch, device=like.device)

    def flat(self, x: Any) -> Any:
        if self._is_numpy:
            return self._module.ascontiguousarray(x).reshape(-1)
        x = x.contiguous()
        return x if x.dim() == 1 else x.view(-1)


def _part(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(start, stop))


def _resized(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _bounds(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)]


def _parts(x: Any, axis: int, bounds: Sequence[int]) -> list[Any]:
    """Views of what lies between neighbouring bounds of an axis."""
    return [x[_part(axis, start, stop)] for start, stop in pairwise(bounds)]


# How a member takes part: (library, specs, params, out) -> (arrays, out, wait) -> (finish,
# outcome); see _row().
Meeting = Callable[[_Library, Specs, Params, Spec], Callable[..., Any]]


def _row(name: str, rule: Any, meeting: Any, *, takes_out: bool = False) -> Op:
    """A row whose kernel is ``meeting(library, specs, params, out)``.

    That is (arrays, out, wait) -> (what waits for it or None, what gives the result after that).
    """

    def bind(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        meet = meeting(_Library(module), specs, params, out)

        def kernel(*arrays: Any, out: Any = None) -> Any:
            return meet(arrays, out, True)[1]()

        return kernel

    op = Op(name, rule, numpy=bind, torch=bind, takes_out=takes_out, is_collective=True)
    _MEETINGS[name] = meeting
    return op


_MEETINGS: dict[str, Any] = {}


# ---- all have all --------------------------------------------------------------------------------


def _meet_all_reduce(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, op = params

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        if out is None:
            out = library.empty(spec, arrays[0])
        flat = [library.flat(one) for one in arrays]
        finish = gang.current().all_reduce(number, members, op, flat, library.flat(out), wait=wait)
        return finish, lambda: out

    return meet


def _count(spec: Spec) -> int:
    return math.prod(spec.shape)


ALL_REDUCE = _row(
    "all_reduce", lambda specs, params: specs[0], _meet_all_reduce, takes_out=True
)  # params: number, members, reduction; and after a slash the algorithm, where one is asked for
ALL_REDUCE_MANY = _row(  # likewise; the outcomes lie end to end
    "all_reduce_many",
    lambda specs, params: spec_of(specs[0].dtype, (sum(map(_count, specs)),)),
    _meet_all_reduce,
    takes_out=True,
)


def _meet_all_gather(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, axis, lengths = params
    shape = specs[0].shape
    row = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :])
    counts = tuple([n * row for n in lengths])
    bounds = _bounds(counts)
    is_in_order = math.prod(shape[:axis]) == 1
    packed = spec_of(spec.dtype, (bounds[-1],))

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        if out is None:
            out = library.empty(spec, arrays[0])
        flat = library.flat(out) if is_in_order else library.empty(packed, arrays[0])
        own = [library.flat(arrays[0])]
        finish = gang.current().all_gather(number, members, counts, own, flat, wait=wait)

        def outcome() -> Any:
            if not is_in_order:
                for place, part in enumerate(_parts(out, axis, _bounds(lengths))):
                    piece = flat[bounds[place] : bounds[place + 1]]
                    part[...] = piece.reshape(_resized(shape, axis, lengths[place]))
            return out

        return finish, outcome

    return meet


ALL_GATHER = _row(  # params: number, members, axis, length of each member's piece along it
    "all_gather",
    lambda specs, params: spec_of(
        specs[0].dtype, _resized(specs[0].shape, params[2], sum(params[3]))
    ),
    _meet_all_gather,
    takes_out=True,
)


def _gathered_many(specs: Specs, params: Params) -> Spec:
    """Params: number, members, (axis, lengths) of each input."""
    total = 0
    for spec, (axis, lengths) in zip(specs, params[2], strict=True):
        total += math.prod(_resized(spec.shape, axis, sum(lengths)))
    return spec_of(specs[0].dtype, (total,))


def _meet_all_gather_many(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, pieces = params
    count = len(members)
    # How many elements of each input each member has; and how many a member has of all inputs.
    sizes = [
        [math.prod(_resized(one.shape, axis, n)) for n in lengths]
        for one, (axis, lengths) in zip(specs, pieces, strict=True)
    ]
    counts = tuple([sum(size[place] for size in sizes) for place in range(count)])

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        own = [library.flat(one) for one in arrays]
        flat = library.empty(spec, arrays[0])
        if out is None:
            out = library.empty(spec, arrays[0])
        finish = gang.current().all_gather(number, members, counts, own, flat, wait=wait)

        def outcome() -> Any:
            at = [0]
            for place in range(count):
                for size in sizes:
                    at.append(at[-1] + size[place])
            start = 0
            for which, (one, (axis, lengths)) in enumerate(zip(specs, pieces, strict=True)):
                shape = _resized(one.shape, axis, sum(lengths))
                whole = out[start : start + math.prod(shape)].reshape(shape)
                start += math.prod(shape)
                for place, part in enumerate(_parts(whole, axis, _bounds(lengths))):
                    begin = at[place * len(specs) + which]
                    piece = flat[begin : begin + sizes[which][place]]
                    part[...] = piece.reshape(_resized(one.shape, axis, lengths[place]))
            return out

        return finish, outcome

    return meet


ALL_GATHER_MANY = _row("all_gather_many", _gathered_many, _meet_all_gather_many, takes_out=True)


# ---- each has a part -----------------------------------------------------------------------------


def _meet_reduce_scatter(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, op, pieces, _ = params
    sizes = [
        [math.prod(_resized(one.shape, axis, n)) for n in lengths]
        for one, (axis, lengths) in zip(specs, pieces, strict=True)
    ]
    counts = tuple([sum(size[place] for size in sizes) for place in range(len(members))])

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        if out is None:
            out = library.empty(spec, arrays[0])
        cut = [
            _parts(one, axis, _bounds(lengths))
            for one, (axis, lengths) in zip(arrays, pieces, strict=True)
        ]
        flat = [library.flat(parts[place]) for place in range(len(members)) for parts in cut]
        finish = gang.current().reduce_scatter(
            number, members, op, counts, flat, library.flat(out), wait=wait
        )
        return finish, lambda: out

    return meet


REDUCE_SCATTER = _row(  # params: number, members, reduction, ((axis, lengths),), (own length,)
    "reduce_scatter",
    lambda specs, params: spec_of(
        specs[0].dtype, _resized(specs[0].shape, params[3][0][0], params[4][0])
    ),
    _meet_reduce_scatter,
    takes_out=True,
)


def _scattered_many(specs: Specs, params: Params) -> Spec:
    """Params: number, members, reduction, (axis, lengths) of each input, own length of each."""
    total = 0
    for spec, (axis, _), own in zip(specs, params[3], params[4], strict=True):
        total += math.prod(_resized(spec.shape, axis, own))
    return spec_of(specs[0].dtype, (total,))


REDUCE_SCATTER_MANY = _row(
    "reduce_scatter_many", _scattered_many, _meet_reduce_scatter, takes_out=True
)


def _meet_all_to_all(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, have_axis, have, want_axis, want, own = params
    shape = specs[0].shape
    row = math.prod(n for at, n in enumerate(shape) if at not in (have_axis, want_axis))
    sent = tuple([row * shape[have_axis] * n for n in want])
    received = tuple([row * n * own for n in have])
    bounds = _bounds(received)
    packed = spec_of(spec.dtype, (bounds[-1],))

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        if out is None:
            out = library.empty(spec, arrays[0])
        flat = [library.flat(part) for part in _parts(arrays[0], want_axis, _bounds(want))]
        got = library.empty(packed, arrays[0])
        finish = gang.current().all_to_all(number, members, sent, received, flat, got, wait=wait)

        def outcome() -> Any:
            for place, part in enumerate(_parts(out, have_axis, _bounds(have))):
                piece = got[bounds[place] : bounds[place + 1]]
                part[...] = piece.reshape(part.shape)
            return out

        return finish, outcome

    return meet


ALL_TO_ALL = _row(
    # Params: number, members; the axis that is cut now, and the lengths of its pieces; the axis
    # that is cut then, and the lengths of its pieces; this member's length along that axis.
    "all_to_all",
    lambda specs, params: spec_of(
        specs[0].dtype,
        _resized(
            _resized(specs[0].shape, params[2], sum(params[3])),
            params[4],
            params[6],
        ),
    ),
    _meet_all_to_all,
    takes_out=True,
)


def overlap(have: Sequence[int], want: Sequence[int], a: int, b: int) -> tuple[int, int]:
    """Between which places of an axis piece ``a`` of one cut and ``b`` of another have elements."""
    start = max(have[a], want[b])
    return start, max(min(have[a + 1], want[b + 1]), start)


def _meet_realign(library: _Library, specs: Specs, params: Params, spec: Spec) -> Any:
    number, members, axis, have, want, place, _ = params
    shape = specs[0].shape
    row = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :])
    others = range(len(members))
    outgoing = [overlap(have, want, place, other) for other in others]
    incoming = [overlap(have, want, other, place) for other in others]
    sent = tuple([row * (stop - start) for start, stop in outgoing])
    received = tuple([row * (stop - start) for start, stop in incoming])
    bounds = _bounds(received)
    packed = spec_of(spec.dtype, (bounds[-1],))

    def meet(arrays: Sequence[Any], out: Any, wait: bool) -> Any:
        if out is None:
            out = library.empty(spec, arrays[0])
        begin = have[place]
        flat = [
            library.flat(arrays[0][_part(axis, start - begin, stop - begin)])
            for start, stop in outgoing
        ]
        got = library.empty(packed, arrays[0])
        finish = gang.current().all_to_all(number, members, sent, received, flat, got, wait=wait)

        def outcome() -> Any:
            begin = want[place]
            for other, (start, stop) in enumerate(incoming):
                part = out[_part(axis, start - begin, stop - begin)]
                part[...] = got[bounds[other] : bounds[other + 1]].reshape(part.shape)
            return out

        return finish, outcome

    return meet


REALIGN = _row(
    # Params: number, members, axis; where it is cut now; where it is cut then; this member's place,
    # and its length then. The first and the last cut are the ends of what these members have
    # together.
    "realign",
    lambda specs, params: spec_of(specs[0].dtype, _resized(specs[0].shape, params[2], params[6])),
    _meet_realign,
    takes_out=True,
)

MANY = {
    ALL_REDUCE: ALL_REDUCE_MANY,
    ALL_GATHER: ALL_GATHER_MANY,
    REDUCE_SCATTER: REDUCE_SCATTER_MANY,
}


def named(name: str) -> Op:
    """The collective of that name."""
    return next(op for op in COLLECTIVES if op.name == name)


# ---- in two halves -------------------------------------------------------------------------------


def _bind_start(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    name, *rest = params
    outcome_spec = named(name).rule(specs, tuple(rest))
    meet = _MEETINGS[name](_Library(module), specs, tuple(rest), outcome_spec)
    library = _Library(module)

    def start(*arrays: Any) -> Any:
        finish, outcome = meet(arrays, None, False)

        def finished() -> Any:
            if finish is not None:
                finish()
            return outcome()

        gang.started()[rest[0]] = finished
        return library.empty(out, arrays[0])

    return start


def _bind_wait(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    number = params[1]
    return lambda started, *arrays: gang.started().pop(number)()


# A collective's beginning. Params: the collective's name, then its params. The output has no
# elements.
START = Op(
    "start",
    lambda specs, params: spec_of(uint8, (0,)),
    numpy=_bind_start,
    torch=_bind_start,
    is_collective=True,
)
# A collective's end. Inputs: the output of start, and the collective's own, so that they live until
# then.
WAIT = Op(
    "wait",
    lambda specs, params: named(params[0]).rule(specs[1:], params[1:]),
    numpy=_bind_wait,
    torch=_bind_wait,
    is_collective=True,
)

COLLECTIVES = (
    ALL_REDUCE,
    ALL_REDUCE_MANY,
    ALL_GATHER,
    ALL_GATHER_MANY,
    REDUCE_SCATTER,
    REDUCE_SCATTER_MANY,
    ALL_TO_ALL,
    REALIGN,
)
LOWERED = (*COLLECTIVES, START, WAIT)


# ---- bytes ---------------------------------------------------------------------------------------


def bytes_moved(op: Op, specs: Specs, params: Params, out: Spec, rank: int) -> int:
    """Bytes that a member takes from others in a collective; of ``start`` all, of ``wait`` none."""
    if op is WAIT:
        return 0
    if op is START:
        base = named(params[0])
        return bytes_moved(base, specs, params[1:], base.rule(specs, params[1:]), rank)
    others: int = len(params[1]) - 1
    if op in (ALL_REDUCE, ALL_REDUCE_MANY):  # a share reduced, the other shares fetched
        return 2 * out.nbytes * others // (others + 1)
    if op in (REDUCE_SCATTER, REDUCE_SCATTER_MANY):
        return out.nbytes * others
    if op in (ALL_GATHER, ALL_GATHER_MANY):
        return out.nbytes - sum(spec.nbytes for spec in specs)
    place = params[1].index(rank)
    if op is ALL_TO_ALL:
        own: int = out.nbytes * params[3][place] // max(sum(params[3]), 1)
        return out.nbytes - own
    start, stop = overlap(params[3], params[4], place, place)
    own = out.nbytes * (stop - start) // max(params[6], 1)
    return out.nbytes - own
