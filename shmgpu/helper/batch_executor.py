"""A batch run as one call: inputs joined on axis 0, outputs split again.

Owns what batching adds to an executor. Never forms a batch: the parent's scheduler does, in
`gather()` of csrc/broker/schedule.c, by a key that children compute. Children may err or lie, so
this file checks that the calls of a batch match.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.codec import arrays
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.layout import TreeLayout
from shmgpu.codec.pytree import TreeDef, flatten
from shmgpu.common.wording import kind_of
from shmgpu.errors import BadParams
from shmgpu.helper.batch_policy import LARGE_BYTES, BatchPolicy
from shmgpu.helper.decoded import DecodedCall, ServedFunction, check_rows
from shmgpu.helper.executor import Executor
from shmgpu.helper.mutation_check import MutationCheck

_ndarray = np.ndarray
_count = core.count_bytes
_COPIED_OUT = core.BYTES_COPIED_OUT
_now = time.perf_counter_ns


_Taken = tuple[
    int, DecodedCall, tuple[int, int, int]
]  # index in the batch, what was read, call's key


class BatchExecutor(Executor):
    """An executor that serves batches too; it takes the same arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policy = BatchPolicy()
        self._body_ns = 0  # that the function of the last joined run took

    def serve_batch(self, works: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """Run several calls as one: (status, value) for each.

        ``works`` holds (function, params, size, slot, generation, sequence) tuples. Inputs are
        concatenated on axis 0, outputs split on axis 0 by each call's rows; but large calls are
        run one after another where that was seen to take less.
        """
        outcomes: list[tuple[int, int] | None] = [None] * len(works)
        good: list[_Taken] = []
        memory, origin, known = self.memory, self.origin, self._decoded
        for index, (function, params, size, slot, generation, sequence) in enumerate(works):
            offset = params - origin
            block = memory[offset : offset + size]
            call: Any = known.get(block)
            try:
                if call is None or call.function != function or call.slot != slot:
                    call = self.reader.read(function, block, slot)
                if not isinstance(call, DecodedCall) or call.rows is None:
                    raise BadParams("the call has no rows that a batch could be made of")
            except BadParams as error:
                outcomes[index] = self.refuse(slot, error)
                continue
            except KeyError:
                outcomes[index] = (core.EBAD_FUNCTION, 0)
                continue
            good.append((index, call, (sequence, slot, generation)))
        for group in self._groups(good):
            target = self.functions[group[0][1].function]
            for (index, _, _), outcome in zip(group, self._run_group(target, group), strict=True):
                outcomes[index] = outcome
        return [outcome or (core.EBAD_PARAMS, core.UNREADABLE) for outcome in outcomes]

    def _groups(self, good: list[_Taken]) -> list[list[_Taken]]:
        """Those that go together, in order: one group, unless somebody lied about its key.

        Whose key is wrong must not cost the others their batch, nor whose number of rows is
        more than it said.
        """
        if good and _are_one_kind(good, self.functions[good[0][1].function].batch_max_rows):
            return [good]
        groups: list[list[_Taken]] = []
        rows: list[int] = []
        for taken in good:
            call = taken[1]
            more = call.rows or 0
            limit = self.functions[call.function].batch_max_rows
            for index, group in enumerate(groups):
                if rows[index] + more <= limit and _goes_with(group[0][1], call):
                    group.append(taken)
                    rows[index] += more
                    break
            else:
                groups.append([taken])
                rows.append(more)
        return groups

    def _run_group(self, target: ServedFunction, group: list[_Taken]) -> list[tuple[int, int]]:
        """Run calls of one kind: joined, unless running them one after another is faster."""
        first, calls = group[0][1], len(group)
        strategy = None
        if first.nbytes >= LARGE_BYTES and calls > 1 and not self.device.is_cuda:
            strategy = self._policy.strategy(first.function, first.kind, calls)
        if strategy is None:
            return self._run_batch(target, group)
        begun = _now()
        if strategy.is_joined():
            self._body_ns = 0
            outcomes = self._run_batch(target, group)
            took = _now() - begun
            strategy.was_joined(calls, took, took - self._body_ns)
        else:
            outcomes = [self._run_one(target, call, key) for _, call, key in group]
            strategy.was_apart(calls, _now() - begun)
        return outcomes

    def _run_one(
        self, target: ServedFunction, call: DecodedCall, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Run one of several that could have been joined."""
        if self.broken and self.last_error is not None:  # by one before it: the helper must end
            return self._put_error(call, self.last_error, key)
        self.helper.caller = key[1:]
        return self._serve_decoded(target, call, key)

    def _run_batch(self, target: ServedFunction, good: list[_Taken]) -> list[tuple[int, int]]:
        calls = [call for _, call, _ in good]
        helper = self.helper
        rows = [call.rows or 0 for call in calls]
        before = len(helper.later)
        try:
            gathered = self._gather(target, calls)
            leaves = gathered
            if target.mutates:  # whatever the function does to the shapes of its own
                leaves = [one.view() if type(one) is _ndarray else one.detach() for one in gathered]
            args, kwargs = calls[0].tree.build(leaves, calls[0].values)
            watch = MutationCheck(leaves) if self.watches and not target.mutates else None
            helper.out = helper.offered = None
            if calls[0].declared:
                helper.out = self._batch_out(target, calls[0], sum(rows))
            declared = helper.out
            helper.calls = len(good)
            begun = _now()
            try:
                result = target.body(helper, *args, **kwargs)
            finally:
                self._body_ns = _now() - begun
                helper.out = None
                helper.calls = 1
            if result is None and declared is not None:
                result = declared
            if target.mutates:
                self._scatter(calls, gathered, rows)
            elif watch is not None:
                watch.refuse_writes(target)
            if self._put_alike(calls, result):
                return [(core.OK, 0)] * len(good)
            parts = _split(_on_host(result), rows, target.name, target.pickle)
        except BaseException as error:
            del helper.later[before:]
            return [self._put_error(call, error, key) for _, call, key in good]
        outcomes = []
        for (_, call, key), part in zip(good, parts, strict=True):
            try:
                one = call.out_numpy
                if (
                    one is not None
                    and type(part) is _ndarray
                    and part.shape == one.shape
                    and part.dtype == one.dtype
                ):
                    one[...] = part
                    _count(_COPIED_OUT, one.nbytes)
                    outcomes.append((core.OK, 0))
                else:
                    outcomes.append(self.writer.put(target, call, part, key))
            except BaseException as error:
                outcomes.append(self._put_error(call, error, key))
        return outcomes

    def _put_alike(self, calls: list[DecodedCall], result: Any) -> bool:
        """Cut one array into the output buffers of calls of one kind, if it is what they expect."""
        first = calls[0]
        one = first.out_numpy
        if one is None or type(result) is not _ndarray or result.dtype != one.dtype:
            return False
        count = first.rows or 0
        if result.shape != (count * len(calls), *one.shape[1:]) or one.shape[0] != count:
            return False
        kind = first.kind
        if any(call.kind != kind for call in calls):
            return False
        start = 0
        for call in calls:
            end = start + count
            call.out_numpy[...] = result[start:end]
            start = end
        _count(_COPIED_OUT, result.nbytes)
        return True

    def _gather(self, target: ServedFunction, calls: list[DecodedCall]) -> list[Any]:
        gathered = []
        total = 0
        for position in range(len(calls[0].specs)):
            if target.arrays_kind == "numpy":
                joined = np.concatenate([call.views[position] for call in calls], axis=0)
                total += joined.nbytes
                joined.flags.writeable = target.mutates
            else:
                tensors = self.views.tensors
                joined = self.device.gather([tensors(call)[position] for call in calls])
                if not self.device.is_cuda:
                    total += joined.nbytes
            gathered.append(joined)
        if total:
            _count(core.BYTES_GATHERED, total)
        return gathered

    def _scatter(self, calls: list[DecodedCall], gathered: list[Any], rows: list[int]) -> None:
        """Write the rows of arguments that the function may have changed back to their callers."""
        for position, joined in enumerate(gathered):
            start = 0
            for call, count in zip(calls, rows, strict=True):
                part = joined[start : start + count]
                if type(joined) is _ndarray:
                    call.views[position][...] = part
                elif call.tensors is not None:
                    self.device.copy_out(call.tensors[position], part)
                start += count
            _count(_COPIED_OUT, joined.nbytes)

    def _batch_out(self, target: ServedFunction, call: DecodedCall, rows: int) -> Any:
        """Declared outputs of a batch: scratch arrays with everybody's rows."""
        outs: list[Any] = []
        for spec in call.hint.specs:
            shape = (rows, *spec.shape[1:])
            if target.arrays_kind == "numpy":
                outs.append(np.empty(shape, spec.dtype.numpy))
            else:
                import torch

                outs.append(torch.empty(shape, dtype=spec.dtype.torch, device=self.helper.device))
        return call.hint.tree.build(outs, ())


def _are_one_kind(good: list[_Taken], limit: int) -> bool:
    """Whether nothing but addresses differs between calls that are one batch in any case."""
    first = good[0][1]
    kind, function = first.kind, first.function
    return (first.rows or 0) * len(good) <= limit and all(
        call.kind == kind and call.function == function for _, call, _ in good
    )


def _goes_with(first: DecodedCall, other: DecodedCall) -> bool:
    if first.function != other.function:
        return False
    if first.tree is other.tree and not first.values:  # one signature: they differ in addresses
        return True
    return (
        first.tree.structure == other.tree.structure
        and _same_rows([spec for _, spec in first.specs], [spec for _, spec in other.specs])
        and first.declared == other.declared
        and (not first.declared or _same_outs(first.hint, other.hint))
        and first.value_bytes == other.value_bytes  # what was pickled may not be so again
    )


def _same_rows(specs: Sequence[ArraySpec], others: Sequence[ArraySpec]) -> bool:
    """Whether arrays differ in the number of their rows at most."""
    return all(
        a.dtype.name == b.dtype.name and a.shape[1:] == b.shape[1:]
        for a, b in zip(specs, others, strict=True)
    )


def _same_outs(hint: TreeLayout, other: TreeLayout) -> bool:
    """Whether the declared outputs of one call may stand for the other's."""
    return hint.tree.structure == other.tree.structure and _same_rows(hint.specs, other.specs)


def _on_host(result: Any) -> Any:
    """A CPU tensor as the NumPy array over its memory, which is cheaper to cut and copy."""
    if arrays.is_tensor(result) and result.device.type == "cpu":
        try:
            return result.detach().numpy()
        except (TypeError, RuntimeError):  # bfloat16, sparse, lazily conjugated
            pass
    return result


def _split(result: Any, rows: list[int], name: str, pickle: bool) -> list[Any]:
    """Cut each array of a batch's result on axis 0 into one part for each call."""
    total = sum(rows)
    if type(result) is _ndarray or arrays.is_tensor(result):
        check_rows(result, total, name)
        return _cut(result, rows)
    flat = flatten(result, arrays.is_array, pickle)
    if not flat.arrays:
        raise BadParams(
            f"{name} is batched, so it must return arrays with one row for each row it got: "
            f"it returned {kind_of(result)}"
        )
    for leaf in flat.arrays:
        check_rows(leaf, total, name)
    tree = TreeDef(bytes(flat.structure))
    columns = [_cut(leaf, rows) for leaf in flat.arrays]
    return [
        tree.build([column[index] for column in columns], flat.values) for index in range(len(rows))
    ]


def _cut(array: Any, rows: list[int]) -> list[Any]:
    parts = []
    start = 0
    for count in rows:
        parts.append(array[start : start + count])
        start += count
    return parts
