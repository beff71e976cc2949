"""A helper's side of a call: check a private copy of its block, run the function, write the result.

Owns the decoding of what children sent, the views on their arenas, and results that were too large
for their output buffers (parked until the child offers larger ones). ``inline=True`` uses the same
code. Never trusts a block: only a private copy is read, every address is checked against the
sender's own arena, and only then is a view made.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.codec import arrays, dtypes, layout
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.layout import ParameterBlock, Signature, TreeLayout
from shmgpu.codec.pytree import decode_values, encode_values, flatten
from shmgpu.collectives.choice import Backends
from shmgpu.common.logs import logger
from shmgpu.errors import BadParams, GangAborted, remote_name
from shmgpu.helper.decoded import (
    DecodedCall,
    Device,
    Helper,
    Leaf,
    RawRequest,
    ServedFunction,
    check_rows,
    rows_of,
)
from shmgpu.helper.gang import GangMember
from shmgpu.helper.hints import hint, user_frames
from shmgpu.helper.mutation_check import MutationCheck
from shmgpu.helper.parked_results import Parking

_count = core.count_bytes
_COPIED_OUT = core.BYTES_COPIED_OUT
_DONE = (core.OK, 0)

MAX_DECODED = 4096  # whole blocks remembered, all functions together
MAX_REMEMBERED = 1 << 16  # bytes of a block, or of a signature, that is worth remembering
MAX_KEPT = 8 << 20  # bytes of all that are remembered
MAX_VIEWS = 4096  # on arrays of raw calls
MAX_TRACEBACK = 200_000  # characters


class Executor:
    """Serves calls for one helper.

    Args:
        helper: what functions get as their first argument.
        functions: by row.
        memory: buffer over the memory in which all arenas lie.
        origin: address of its first byte.
        bounds: gives (first, last + 1) address of a child's arena.
        device: where tensors go.
        parked_limit: bytes of results that may wait for a larger output buffer.
        backends: how members of a gang exchange arrays; None: this helper is never one.
    """

    def __init__(
        self,
        helper: Helper,
        functions: dict[int, Any],
        memory: Any,
        origin: int,
        bounds: Callable[[int], tuple[int, int]],
        device: Device,
        parked_limit: int = 256 << 20,
        backends: Backends | None = None,
    ) -> None:
        self.helper = helper
        self.functions = functions
        self.memory = memory
        self._read_only = memoryview(memory).toreadonly()
        self.watches = False  # look whether a function wrote to tensors that it may only read
        self.origin = origin
        self.device = device
        self.last_error: BaseException | None = None
        self.broken = False
        self.refusals = 0
        self.late_failures = 0
        self._bounds_of = bounds
        self._bounds: dict[int, tuple[int, int]] = {}
        self._signatures: dict[bytes, Signature] = {}
        self._signature_bytes = 0
        self._decoded: dict[bytes, DecodedCall] = {}
        self._decoded_bytes = 0
        # One plain array in, after any plain values, and one out: all that the helper's loop
        # needs to run the call itself,
        # (function, slot, body, values, argument, result, its shape, its dtype, its bytes).
        self.quick: dict[bytes, tuple[Any, ...]] = {}
        self._views: dict[tuple[Any, ...], Any] = {}
        self._parking = Parking(parked_limit)
        self._backends = backends
        self._gang: GangMember | None = None  # that the call is of which runs

    # ---- one call ------------------------------------------------------------------------

    def read(self, params: int, size: int) -> bytes:
        """A private copy of a parameter block; only the copy is looked at from here on."""
        offset = params - self.origin
        block: bytes = self.memory[offset : offset + size]
        return block

    def serve(
        self, function: int, block: bytes, slot: int, generation: int, sequence: int
    ) -> tuple[int, int]:
        """Run one call: (status, value) for shm_helper_finish."""
        call = self._decoded.get(block)
        key = (sequence, slot, generation)
        self.helper.caller = (slot, generation)
        if call is None or call.function != function or call.slot != slot:
            try:
                admitted = self._admit(function, block, slot)
            except BadParams as error:
                self._refused(slot, error)
                return core.EBAD_PARAMS, core.UNREADABLE
            except KeyError:
                return core.EBAD_FUNCTION, 0
            if isinstance(admitted, RawRequest):
                return self._serve_raw(self.functions[function], admitted, key)
            call = admitted
        return self._serve_decoded(self.functions[function], call, key)

    def serve_gang(
        self,
        mask: int,
        ticket: int,
        function: int,
        block: bytes,
        slot: int,
        generation: int,
        sequence: int,
    ) -> tuple[int, int]:
        """Run one call that the helpers of ``mask`` run at once, as one of them."""
        assert self._backends is not None
        self._gang = GangMember(mask, ticket, self.helper.id, self._backends)
        try:
            outcome = self.serve(function, block, slot, generation, sequence)
            if outcome == _DONE:
                self._gang.settle()
            return outcome
        except GangAborted:
            return core.EABORTED, 0
        finally:
            self._gang = None

    def _serve_decoded(
        self, target: ServedFunction, call: DecodedCall, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Run one call that was read."""
        before = len(self.helper.later)
        try:
            expected = self.helper.room = self._expected(target, call)
            if call.simple:
                result = target.body(self.helper, *self._leaves(target, call))
            else:
                result = self._run(target, call)
            one = call.out_torch
            if (
                one is not None
                and type(result) is type(one)
                and result.dtype is one.dtype
                and result.shape == one.shape
                and result.layout is one.layout
            ):
                if result is not expected:
                    self.device.copy_out(one, result.detach())
                    _count(_COPIED_OUT, one.nbytes)
                return _DONE
            return self._put(target, call, result, key)
        except BaseException as error:
            del self.helper.later[before:]
            return self._put_error(call, error, key)

    def _serve_raw(
        self, target: ServedFunction, request: RawRequest, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        self.helper.room = None
        request.gang = self._gang
        try:
            self._put_plainly(request, target.body(self.helper, request))
            return _DONE
        except BaseException as error:
            self.helper.later.clear()
            return self._put_error(request, error, key)

    def put(
        self, block: bytes, function: int, result: Any, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        """A call of :attr:`quick` gave something else than was expected of it."""
        call = self._decoded[block]
        try:
            return self._put(self.functions[function], call, result, key)
        except BaseException as error:
            return self._put_error(call, error, key)

    def put_error(
        self, block: bytes, error: BaseException, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        """A call of :attr:`quick` raised."""
        self.helper.later.clear()
        return self._put_error(self._decoded[block], error, key)

    def _expected(self, target: ServedFunction, call: DecodedCall) -> Any:
        """Where a result of one array goes, as the function may fill it; None: there is no such."""
        if target.arrays_kind == "numpy":
            return None if call.out_numpy is None else call.out_numpy.view()
        if call.out_torch is None or self.device.is_cuda:
            return None
        return call.out_torch.detach()

    def _run(self, target: ServedFunction, call: DecodedCall) -> Any:
        """Call the function the general way."""
        leaves = self._leaves(target, call)
        args, kwargs = call.tree.build(leaves, call.values)
        helper = self.helper
        helper.out = None
        if call.declared:
            helper.out = call.hint.tree.build(self._outs(target, call), ())
        watch = MutationCheck(leaves) if self.watches and not target.mutates else None
        try:
            result = target.body(helper, *args, **kwargs)
            if watch is not None:
                watch.refuse_writes(target)
            elif target.mutates and self.device.is_cuda and call.tensors is not None:
                for tensor, leaf in zip(call.tensors, leaves, strict=True):
                    self.device.copy_out(tensor, leaf)
            return helper.out if result is None and call.declared else result
        finally:
            helper.out = None

    def _leaves(self, target: ServedFunction, call: DecodedCall) -> list[Any]:
        if target.arrays_kind == "numpy":
            return [view.view() for view in call.views]
        if call.tensors is None:
            call.tensors = [
                arrays.torch_view(self.memory, offset, spec) for offset, spec in call.specs
            ]
        if self.device.is_cuda:
            return [self.device.to_device(tensor) for tensor in call.tensors]
        return [tensor.detach() for tensor in call.tensors]

    def _outs(self, target: ServedFunction, call: DecodedCall) -> list[Any]:
        if target.arrays_kind == "numpy":
            return [view.view() for view in self._numpy_outs(call)]
        tensors = self._torch_outs(call)
        if self.device.is_cuda:
            return [self.device.new_like(tensor) for tensor in tensors]
        return [tensor.detach() for tensor in tensors]

    def _numpy_outs(self, call: DecodedCall) -> list[Any]:
        if call.numpy_outs is None:
            call.numpy_outs = [
                arrays.storage_view(self.memory, call.output_offset + offset, spec)
                if not spec.dtype.has_numpy
                else arrays.numpy_view(self.memory, call.output_offset + offset, spec)
                for spec, offset in zip(call.hint.specs, call.hint.offsets, strict=True)
            ]
        return call.numpy_outs

    def _torch_outs(self, call: DecodedCall) -> list[Any]:
        if call.torch_outs is None:
            call.torch_outs = [
                arrays.torch_view(self.memory, call.output_offset + offset, spec)
                for spec, offset in zip(call.hint.specs, call.hint.offsets, strict=True)
            ]
        return call.torch_outs

    def _refused(self, slot: int, error: BadParams) -> None:
        """Log the 1st, 2nd, 4th, 8th, ... refusal, so that no child can flood the log."""
        self.refusals += 1
        if self.refusals & (self.refusals - 1) == 0:
            logger.warning(
                "a call of child %d was refused: %s (refusal %d)", slot, error, self.refusals
            )

    # ---- reading a block -----------------------------------------------------------------

    def bounds(self, slot: int) -> tuple[int, int]:
        """First and last + 1 address of a child's arena."""
        found = self._bounds.get(slot)
        if found is None:
            found = self._bounds[slot] = self._bounds_of(slot)
        return found

    def _admit(self, function: int, data: bytes, slot: int) -> DecodedCall | RawRequest:
        """Read a block; BadParams for any that cannot be, KeyError when there is no function."""
        target = self.functions[function]
        try:
            if target.takes_raw_calls:
                return self._open(target, data, slot)
            return self._decode(function, target, data, slot)
        except BadParams:
            raise
        except Exception as error:  # a shape that NumPy refuses: no block may end a helper
            raise BadParams(
                f"the parameter block could not be read ({type(error).__name__})"
            ) from error

    def _signature_of(self, data: bytes) -> Signature:
        signature = self._signatures.get(data)
        if signature is None:
            signature = Signature.read(data)
            if len(data) <= MAX_REMEMBERED:
                self._signature_bytes += len(data)
                if len(self._signatures) >= MAX_DECODED or self._signature_bytes > MAX_KEPT:
                    self._signatures.clear()
                    self._signature_bytes = len(data)
                self._signatures[data] = signature
        return signature

    def _open(self, target: ServedFunction, data: bytes, slot: int) -> RawRequest:
        """A request: what is in it is its function's business, where arrays lie is not."""
        block = ParameterBlock(data)
        bounds = self.bounds(slot)
        look = self._numpy_view if target.arrays_kind == "numpy" else self._tensor
        return RawRequest(
            data, block, bounds, self._output_buffer(block, *bounds), self.origin, look
        )

    def _numpy_view(self, offset: int, spec: ArraySpec) -> Any:
        return self._view((np, offset, spec), self._numpy_argument, offset, spec)

    def _numpy_argument(self, memory: Any, offset: int, spec: ArraySpec) -> Any:
        return arrays.numpy_view(self._read_only, offset, spec)

    def _tensor(self, offset: int, spec: ArraySpec) -> Any:
        tensor = self._view((offset, spec), arrays.torch_view, offset, spec)
        return self.device.to_device(tensor) if self.device.is_cuda else tensor

    def _view(
        self, key: tuple[Any, ...], make: Callable[..., Any], offset: int, spec: ArraySpec
    ) -> Any:
        """A view on an arena: addresses are used again and again, and so are views."""
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            view = self._views[key] = make(self.memory, offset, spec)
        return view

    def _decode(self, function: int, target: ServedFunction, data: bytes, slot: int) -> DecodedCall:
        block = ParameterBlock(data)
        signature = self._signature_of(block.signature)
        specs = signature.arguments.specs
        if len(specs) != len(block.addresses):
            raise BadParams("the parameter block's arrays and addresses do not agree")
        first, end = self.bounds(slot)
        origin = self.origin
        specs_at = []
        for address, spec in zip(block.addresses, specs, strict=True):
            if not first <= address <= end - spec.nbytes:
                raise BadParams("an argument does not lie in the caller's own arena")
            specs_at.append((address - origin, spec))
        call = DecodedCall()
        call.function = function
        call.slot = slot
        call.output_offset, call.output_bytes = self._output_buffer(block, first, end)
        call.hint = signature.hint
        call.declared = signature.declared
        if call.hint is not None and call.hint.nbytes > call.output_bytes:
            raise BadParams("the output buffer is smaller than the promised result")
        call.specs = specs_at
        call.nbytes = sum(spec.nbytes for spec in specs)
        call.kind = data[layout.constant_at(len(specs_at)) :]
        call.rows = rows_of(specs)
        call.tree = signature.arguments.tree
        call.values = decode_values(
            data, call.tree.value_count, block.values_at, len(data), target.pickle
        )
        if target.arrays_kind == "numpy":
            memory = self.memory if target.mutates else self._read_only
            call.views = [arrays.numpy_view(memory, offset, spec) for offset, spec in specs_at]
        needs_care = self.watches or (target.mutates and self.device.is_cuda)
        call.simple = not (call.declared or needs_care) and call.tree.is_flat_arguments()
        if call.hint is not None and call.hint.tree.is_one_array and not call.declared:
            call.out_numpy = self._numpy_outs(call)[0]
            if target.arrays_kind == "torch" and call.hint.specs[0].dtype.has_torch:
                call.out_torch = self._torch_outs(call)[0]
        if not target.pickle and not any(type(v) is bytearray for v in call.values):
            self._remember(data, call, target)
        return call

    def _remember(self, data: bytes, call: DecodedCall, target: ServedFunction) -> None:
        if len(data) > MAX_REMEMBERED:
            return
        self._decoded_bytes += len(data)
        if len(self._decoded) >= MAX_DECODED or self._decoded_bytes > MAX_KEPT:
            self._decoded.clear()
            self.quick.clear()
            self._decoded_bytes = len(data)
        self._decoded[data] = call
        out = call.out_numpy
        if out is not None and call.views is not None and call.tree.is_values_and_array():
            self.quick[data] = (
                call.function,
                call.slot,
                target.body,
                tuple(call.values),
                call.views[0],
                out,
                out.shape,
                out.dtype,
                out.nbytes,
            )

    def _output_buffer(self, block: ParameterBlock, first: int, end: int) -> tuple[int, int]:
        address, size = block.result_address, block.result_bytes
        if not (first <= address <= end and size <= end - address):
            raise BadParams("the output buffer does not lie in the caller's own arena")
        return address - self.origin, size

    # ---- putting a result ----------------------------------------------------------------

    def _put_plainly(self, request: RawRequest, result: Sequence[Any]) -> None:
        """Write a raw call's result, arrays, each at the next multiple of 64."""
        offset, end = request.output_offset, request.output_offset + request.output_bytes
        for array in result:
            nbytes = array.nbytes
            if offset + nbytes > end:
                raise BadParams("the output buffer is smaller than the result")
            out = self._views.get((offset, array.dtype, array.shape))
            if out is None:
                out = self._view_like(offset, array)
            if type(array) is np.ndarray:
                out[...] = array
            else:
                self.device.copy_out(out, array)
            _count(_COPIED_OUT, nbytes)
            offset += arrays.aligned(nbytes)

    def _view_like(self, offset: int, array: Any) -> Any:
        is_numpy = type(array) is np.ndarray
        dtype = (dtypes.of_numpy if is_numpy else dtypes.of_torch)(array.dtype)
        make = arrays.numpy_view if is_numpy else arrays.torch_view
        key = (offset, array.dtype, array.shape)
        return self._view(key, make, offset, ArraySpec(dtype, tuple(array.shape)))

    def _put(
        self, target: ServedFunction, call: DecodedCall, result: Any, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        flat = flatten(result, arrays.is_array, target.pickle)
        rows = call.rows
        if target.batch_max_rows and rows is not None:  # alone, too: or it would fail under load
            if not flat.arrays:
                check_rows(np.empty(()), rows, target.name)
            for leaf in flat.arrays:
                check_rows(leaf, rows, target.name)
        leaves = [Leaf(leaf) for leaf in flat.arrays]
        hint = call.hint
        if (
            hint is not None
            and not flat.values
            and hint.tree.structure == flat.structure
            and all(leaf.spec == spec for leaf, spec in zip(leaves, hint.specs, strict=True))
        ):
            self._put_expected(call, leaves)
            return core.OK, 0
        found = TreeLayout(bytes(flat.structure), [leaf.spec for leaf in leaves])
        description = layout.describe_result(found, encode_values(flat.values, target.pickle))
        return self._put_described(core.OK, call, found, description, leaves, key)

    def _put_expected(self, call: DecodedCall, leaves: Sequence[Leaf]) -> None:
        """Copy a result of the promised layout to where it goes, unless it lies there already."""
        for index, leaf in enumerate(leaves):
            if not leaf.spec.nbytes:
                continue
            out: Any
            if leaf.is_torch:
                out = self._torch_outs(call)[index]
                if out.data_ptr() == leaf.array.data_ptr() and leaf.array.is_contiguous():
                    continue
            else:
                out = self._numpy_outs(call)[index]
                if _same_memory(out, leaf.array):
                    continue
            if call.declared and leaf.may_overlap:
                # It may be helper.out in another order, which copying would destroy.
                for other in leaves[index:]:
                    other.detach()
            if leaf.is_torch:
                self.device.copy_out(out, leaf.array)
            else:
                out[...] = leaf.array
            _count(_COPIED_OUT, leaf.spec.nbytes)

    def _put_described(
        self,
        status: int,
        call: DecodedCall | RawRequest,
        found: TreeLayout,
        description: bytes,
        leaves: Sequence[Leaf],
        key: tuple[int, int, int],
    ) -> tuple[int, int]:
        needed = layout.result_bytes(description, found)
        if needed <= call.output_bytes:
            offset = call.output_offset
            if any(leaf.may_overlap for leaf in leaves):
                # What the function returned may lie where the result goes.
                blob = self._blob(needed, found, description, leaves)
                self.memory[offset : offset + needed] = memoryview(blob).cast("B")
            else:
                self._write(self.memory, offset, found, description, leaves)
            _count(_COPIED_OUT, needed)
            return status, needed
        if self._gang is not None or not self._parking.make_place(key, needed):
            return core.ETOO_LARGE, needed  # of a gang nothing waits: its members end together
        self._parking.put(key, self._blob(needed, found, description, leaves), status)
        return core.ENEEDS_SPACE, needed

    def _blob(
        self, size: int, found: TreeLayout, description: bytes, leaves: Sequence[Leaf]
    ) -> Any:
        blob = np.empty(size, np.uint8)
        self._write(blob.data, 0, found, description, leaves)
        self.device.finish()
        return blob

    def _write(
        self,
        buffer: Any,
        begin: int,
        found: TreeLayout,
        description: bytes,
        leaves: Sequence[Leaf],
    ) -> None:
        buffer[begin : begin + len(description)] = description
        start = begin + arrays.aligned(len(description))
        for leaf, spec, offset in zip(leaves, found.specs, found.offsets, strict=True):
            if leaf.is_torch:
                self.device.copy_out(arrays.torch_view(buffer, start + offset, spec), leaf.array)
            else:
                arrays.storage_view(buffer, start + offset, spec)[...] = leaf.storage()

    def _put_error(
        self, call: DecodedCall | RawRequest, error: BaseException, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        if self._gang is not None and isinstance(error, GangAborted):
            return core.EABORTED, 0  # another member is the reason, and tells it
        self.last_error = error
        self.broken = self.device.failed(error) or self.broken
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.broken = True
        try:
            text = "".join(
                traceback.format_exception(type(error), error, user_frames(error, __file__))
            )
            message = _message(error)
            if self._gang is None:
                text = text[-MAX_TRACEBACK:]
            else:  # it fits where its result would go, or is not told
                message = message[: call.output_bytes // 8]
                text = text[-max(1, call.output_bytes // 4 - len(message) - 64) :]
            target = self.functions.get(call.function) if isinstance(call, DecodedCall) else None
            message += hint(error, message, target, self.helper.session)
            values = (remote_name(type(error)), message, text)
            flat = flatten(values, arrays.is_array)
            found = TreeLayout(bytes(flat.structure), ())
            description = layout.describe_result(found, encode_values(flat.values))
            return self._put_described(core.EREMOTE, call, found, description, (), key)
        except Exception:
            logger.exception("an exception could not be sent to its caller")
            return core.EREMOTE, 0

    def do_later(self) -> None:
        """Do what functions have left for the time after their answers, which are out."""
        later = self.helper.later
        while later:
            work, failed = later.pop(0)
            try:
                work()
            except BaseException as error:
                self.last_error = error
                self.broken = self.device.failed(error) or self.broken
                if isinstance(error, (SystemExit, KeyboardInterrupt)):
                    self.broken = True
                self._log_late(error)
                if failed is not None:
                    failed(error)

    def _log_late(self, error: BaseException) -> None:
        """Log the 1st, 2nd, 4th, 8th, ... failure, so that no child can flood the log."""
        self.late_failures += 1
        if self.late_failures & (self.late_failures - 1) == 0:
            logger.error(
                "work that was deferred until its call was answered failed (failure %d)",
                self.late_failures,
                exc_info=error,
            )

    def fail(self, work: tuple[int, ...], error: BaseException) -> tuple[int, int]:
        """A served call turned out to have failed on the device: the outcome it gets instead."""
        function, params, size, slot, generation, sequence = work
        block = self.read(params, size)
        try:
            call = self._decoded.get(block) or self._admit(function, block, slot)
        except (BadParams, KeyError):
            return core.EREMOTE, 0
        if isinstance(call, DecodedCall) and call.slot != slot:
            return core.EREMOTE, 0
        return self._put_error(call, error, (sequence, slot, generation))

    # ---- parked results ------------------------------------------------------------------

    def grow(
        self, params: int, size: int, slot: int, generation: int, sequence: int
    ) -> tuple[int, int]:
        """The child offers a buffer for a parked result (params == 0: it does not want it)."""
        parked = self._parking.take((sequence, slot, generation))
        if parked is None or params == 0:
            return (core.OK, 0) if params == 0 else (core.ETOO_LARGE, 0)
        blob, status = parked.blob, parked.status
        offset = params - self.origin
        data = self.memory[offset : offset + size]
        try:
            offset, available = self._output_buffer(ParameterBlock(data), *self.bounds(slot))
        except BadParams as error:
            self._refused(slot, error)
            return core.EBAD_PARAMS, core.UNREADABLE
        needed = len(blob)
        if needed > available:
            return core.EBAD_PARAMS, core.UNREADABLE
        self.memory[offset : offset + needed] = memoryview(blob)
        _count(_COPIED_OUT, needed)
        return status, needed


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TRACEBACK]
    except Exception:
        return "(its text could not be made)"


def _same_memory(out: Any, array: Any) -> bool:
    return bool(array.flags.c_contiguous) and core.address_of(out) == core.address_of(array)
