"""From a reply to what the caller gets, or to the error that is raised.

Owns the reading of what a helper wrote into a call's output buffer. Arrays of a result are views on
that buffer, which goes back to the arena when the last of them is garbage. Never trusts that a
result has the promised layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu import core
from shmgpu.child.plans import Call, CallPlan
from shmgpu.codec import arrays, layout
from shmgpu.codec.arrays import ArraySource, ArraySpec
from shmgpu.codec.layout import TreeLayout
from shmgpu.codec.pytree import flatten
from shmgpu.errors import ArenaFull, BadParams, RemoteError


def result_of(call: Call, status: int, value: int, cause: BaseException | None) -> Any:
    """What a reply means: the result, or the exception it raises."""
    if status == core.OK:
        return _read_result(call, value)
    if status == core.EREMOTE:
        raise _read_error(call, value, cause)
    name = core.function_name(call.plan.row)
    if status == core.ENO_MEMORY and value:
        raise ArenaFull(
            f"{name}: there is no memory to keep what is broadcast: "
            f"{_read_error(call, value, None).message}"
        )
    if status == core.ETIMEOUT:
        raise core.error_of(core.ETIMEOUT, name)
    if status == core.EBAD_PARAMS and value == core.UNREADABLE:
        raise BadParams(
            f"{name}: the helper refused the arguments, because what was sent is not a call "
            "of this function there: end a broker that other code started (shmgpu down) and "
            "call again; its log says what was found"
        )
    if status == core.EBAD_PARAMS:
        raise core.error_of(status, f"{name}: the helper refused the arguments")
    raise core.error_of(status, name)


def _read_result(call: Call, value: int) -> Any:
    plan = call.plan
    out = call.out
    if value == 0:
        hint = call.signature.hint
        if hint is None:
            return None
        if out is not None:
            if call.result is not out:
                _copy_out(hint, call.result, out)
            return out
        leaves = [
            _leaf(call.result, offset, spec, plan)
            for spec, offset in zip(hint.specs, hint.offsets, strict=True)
        ]
        return hint.tree.build(leaves, ())
    found, values, start = layout.read_result(call.result, value, plan.pickle)
    if out is not None:
        raise wrong_output(call, _named(found.specs))
    leaves = [
        _leaf(call.result, start + offset, spec, plan)
        for spec, offset in zip(found.specs, found.offsets, strict=True)
    ]
    plan.learn(found, value)
    return found.tree.build(leaves, values)


def _leaf(buffer: Any, offset: int, spec: ArraySpec, plan: CallPlan) -> Any:
    if plan.result is not None and spec.dtype.has_numpy:
        return plan.result(arrays.numpy_view(buffer, offset, spec))
    if plan.as_torch and spec.dtype.has_torch:
        return arrays.torch_view(buffer, offset, spec)
    if not spec.dtype.has_numpy and arrays.torch_module() is not None:
        return arrays.torch_view(buffer, offset, spec)
    return arrays.numpy_view(buffer, offset, spec)


def _read_error(call: Call, value: int, cause: BaseException | None) -> RemoteError:
    try:
        _, values, _ = layout.read_result(call.result, value, False)
        type_name, message, traceback_text = values
    except (BadParams, ValueError, TypeError):
        return RemoteError("an exception", "its text did not arrive", "")
    error = RemoteError(str(type_name), str(message), str(traceback_text))
    if cause is not None:
        error.__cause__ = cause
    return error


def wrong_output(call: Call, result: str) -> BadParams:
    """What is raised of a call whose ``out=`` is not like its result."""
    hint = call.signature.hint
    given = _named(hint.specs) if hint is not None else "something else"
    return BadParams(
        f"the function's result is {result}, and out= is {given}: pass one of the same shape and "
        "dtype, or omit out="
    )


def _named(specs: Sequence[ArraySpec]) -> str:
    return ", ".join([f"{one.dtype.name} {one.shape}" for one in specs]) or "no array"


def _copy_out(hint: TreeLayout, buffer: Any, out: Any) -> None:
    """Copy a result into arrays of the user's that do not lie in the arena."""
    leaves = flatten(out, arrays.is_array).arrays
    for leaf, spec, offset in zip(leaves, hint.specs, hint.offsets, strict=True):
        ArraySource(leaf).memory[...] = arrays.storage_view(buffer, offset, spec)
