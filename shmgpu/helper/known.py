"""Calls that were read before, as C runs them: arguments made, the function called, its result put.

Owns the choice of which calls these are: arrays, or tensors on the CPU, and plain values in plain
containers, and a result that is promised to be such arrays, or is one plain value. Any other, and
all where ``_quick`` is not used, the executor runs by itself; it puts what is not as promised.
Never runs a call.
"""

from __future__ import annotations

from typing import Any

from shmgpu import core
from shmgpu.child import quick
from shmgpu.helper.arena_views import ArenaViews
from shmgpu.helper.decoded import DecodedCall, ServedFunction

MAX_ARRAYS = 16  # of a result, as csrc/python/quick/quick.h has it


def known_call(target: ServedFunction, call: DecodedCall, views: ArenaViews) -> Any:
    """What runs a call from now on, a ``_quick.QuickKnown``; None: nothing quicker does."""
    if quick.why_not() or not call.tree.is_plain or (call.declared and call.hint is None):
        return None
    is_torch = target.arrays_kind != "numpy"
    if is_torch and not all(spec.dtype.has_torch for _, spec in call.specs):
        return None
    hint, form = call.hint, None
    outs: tuple[Any, ...] = ()
    if hint is not None:
        is_plain = call.is_plain and hint.tree.is_plain and not hint.tree.value_count
        if not is_plain or len(hint.specs) > MAX_ARRAYS:
            return None
        if is_torch and not all(spec.dtype.has_torch for spec in hint.specs):
            return None
        form, outs = hint.tree.build(range(len(hint.specs)), ()), tuple(views.numpy_outs(call))
        rows = call.rows if target.batch_max_rows else None
        if rows is not None and any(out.shape[:1] != (rows,) for out in outs):
            return None  # to be refused
    numbers = range(-1, -1 - len(call.values), -1)
    args, named = call.tree.build(range(len(call.specs)), numbers)
    args = (len(call.specs), *args)  # the helper, which follows the last array
    if is_torch:
        import torch  # already imported, as its functions get tensors

        quick.know_tensor(torch.Tensor)
        makers = views.tensors(call)
        rooms = [out.detach for out in views.torch_outs(call)] if outs else []
    else:
        makers, rooms = [view.view for view in call.views], [out.view for out in outs]
    return quick.native.QuickKnown(
        call.function,
        call.slot,
        target.body,
        args,
        named or None,
        tuple(makers),
        tuple(call.values),
        form,
        outs,
        tuple(rooms),
        tuple(out.nbytes for out in outs),
        core.address_of(views.memory) + call.output_offset,
        call.output_bytes,
        call.declared,
        bool(target.batch_max_rows),
        is_torch,
    )
