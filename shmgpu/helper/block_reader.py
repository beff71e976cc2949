"""Parameter blocks that children sent: checked, and read into what an executor runs.

Owns that check, and what is remembered of blocks and signatures that come again. Never trusts a
block: only a private copy is read, and every address is checked against the sender's own arena
before a view is made of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from shmgpu.codec import layout
from shmgpu.codec.layout import ParameterBlock, Signature
from shmgpu.codec.pytree import decode_values
from shmgpu.common.logs import logger
from shmgpu.errors import BadParams
from shmgpu.helper.arena_views import ArenaViews
from shmgpu.helper.decoded import DecodedCall, RawRequest, ServedFunction, rows_of
from shmgpu.helper.known import known_call

MAX_DECODED = 4096  # whole blocks remembered, all functions together
MAX_REMEMBERED = 1 << 16  # bytes of a block, or of a signature, that is worth remembering
MAX_KEPT = 8 << 20  # bytes of all that are remembered


class BlockReader:
    """Reads the blocks of all children, for one helper.

    Args:
        functions: by row.
        views: makes the views that a decoded call holds.
        bounds_of: gives (first, last + 1) address of a child's arena.
        watches: whether calls are checked for writes to tensors that they may only read.
        is_cuda: whether functions get tensors on a CUDA device.

    Attributes:
        decoded: calls that were read, by their blocks.
        quick: those with plain arrays and values in and one array out, as all that the helper's
            loop needs to run them itself: (function, slot, body, values, the array that follows
            them, or where in them to put which arrays, result, its shape, its dtype, its bytes).
        known: what runs others in C, or None, of those that came a second time.
        refusals: how many blocks were refused.
    """

    def __init__(
        self,
        functions: dict[int, Any],
        views: ArenaViews,
        bounds_of: Callable[[int], tuple[int, int]],
        watches: bool,
        is_cuda: bool,
    ) -> None:
        self.decoded: dict[bytes, DecodedCall] = {}
        self.quick: dict[bytes, tuple[Any, ...]] = {}
        self.known: dict[bytes, Any] = {}
        self.refusals = 0
        self._functions = functions
        self._views = views
        self._bounds_of = bounds_of
        self._bounds: dict[int, tuple[int, int]] = {}
        self._watches = watches
        self._is_cuda = is_cuda
        self._but_values: dict[bytes, DecodedCall] = {}  # by blocks up to their plain values
        self._decoded_bytes = 0
        self._signatures: dict[bytes, Signature] = {}
        self._signature_bytes = 0

    def read(self, function: int, data: bytes, slot: int) -> DecodedCall | RawRequest:
        """Read a block.

        Args:
            function: row of the function that it is for.
            data: a private copy of the block.
            slot: of the child that sent it.

        Raises:
            BadParams: it cannot be read, or names memory outside the child's arena.
            KeyError: there is no such function.
        """
        target = self._functions[function]
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

    def output_of(self, data: bytes, slot: int) -> tuple[int, int]:
        """Where the output buffer that a block names lies, and its bytes.

        Raises:
            BadParams: it does not lie in the child's arena.
        """
        return self._output_buffer(ParameterBlock(data), *self._arena_of(slot))

    def refused(self, slot: int, error: BadParams) -> None:
        """Log the 1st, 2nd, 4th, 8th, ... refusal, so that no child can flood the log."""
        self.refusals += 1
        if self.refusals & (self.refusals - 1) == 0:
            logger.warning(
                "a call of child %d was refused: %s (refusal %d)", slot, error, self.refusals
            )

    def _arena_of(self, slot: int) -> tuple[int, int]:
        """First and last + 1 address of a child's arena."""
        found = self._bounds.get(slot)
        if found is None:
            found = self._bounds[slot] = self._bounds_of(slot)
        return found

    def _open(self, target: ServedFunction, data: bytes, slot: int) -> RawRequest:
        """A raw call: its contents are its function's business, where its arrays lie is not."""
        block = ParameterBlock(data)
        bounds = self._arena_of(slot)
        views = self._views
        look = views.array if target.arrays_kind == "numpy" else views.tensor
        output = self._output_buffer(block, *bounds)
        return RawRequest(data, block, bounds, output, views.origin, look)

    def _decode(self, function: int, target: ServedFunction, data: bytes, slot: int) -> DecodedCall:
        block = ParameterBlock(data)
        at = block.values_at
        if at < len(data) and (known := self._but_values.get(data[:at])) is not None:
            if known.function == function and known.slot == slot:
                values = self._values_of(known, block, data, target.pickle)
                return known.with_values(values, data[layout.constant_at(len(known.specs)) :])
        signature = self._signature_of(block.signature)
        specs = signature.arguments.specs
        if len(specs) != len(block.addresses):
            raise BadParams("the parameter block's arrays and addresses do not agree")
        first, end = self._arena_of(slot)
        origin = self._views.origin
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
        constant_at = layout.constant_at(len(specs_at))
        call.kind = data[constant_at:]
        call.values_at = block.values_at - constant_at
        call.rows = rows_of(specs)
        call.tree = signature.arguments.tree
        if target.arrays_kind == "numpy":
            call.views = self._views.arguments(specs_at, writeable=target.mutates)
        is_general = call.declared or self._needs_care(target)
        call.places = None if is_general else call.tree.flat_arguments()
        call.set_values(self._values_of(call, block, data, target.pickle))
        call.is_plain = call.hint is not None and all(
            spec.dtype.has_numpy for spec in call.hint.specs
        )
        if call.hint is not None and call.hint.tree.is_one_array and not call.declared:
            call.out_numpy = self._views.numpy_outs(call)[0]
            if target.arrays_kind == "torch" and call.hint.specs[0].dtype.has_torch:
                call.out_torch = self._views.torch_outs(call)[0]
        if not target.pickle and not any(type(v) is bytearray for v in call.values):
            self._remember(data, call, target, block.values_at)
        return call

    @staticmethod
    def _values_of(
        call: DecodedCall, block: ParameterBlock, data: bytes, allow_pickle: bool
    ) -> list[Any]:
        return decode_values(data, call.tree.value_count, block.values_at, len(data), allow_pickle)

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

    def _remember(
        self, data: bytes, call: DecodedCall, target: ServedFunction, values_at: int
    ) -> None:
        if len(data) > MAX_REMEMBERED:
            return
        self._decoded_bytes += len(data)
        if len(self.decoded) >= MAX_DECODED or self._decoded_bytes > MAX_KEPT:
            self.decoded.clear()
            self.quick.clear()
            self.known.clear()
            self._but_values.clear()
            self._decoded_bytes = len(data)
        self.decoded[data] = call
        self.known.pop(data, None)  # it may be another function's
        if values_at < len(data):
            self._but_values[data[:values_at]] = call
        out = call.out_numpy
        if out is None or call.views is None or call.places is None:
            return
        # Of the commonest, one array behind values, the loop makes the arguments more quickly.
        is_last = call.places == [len(call.values)]
        self.quick[data] = (
            call.function,
            call.slot,
            target.body,
            call.values if is_last else call.template,
            call.views[0] if is_last else None,
            None if is_last else tuple(zip(call.places, call.views, strict=True)),
            out,
            out.shape,
            out.dtype,
            out.nbytes,
        )

    def know(self, data: bytes, call: DecodedCall) -> Any:
        """What runs in C from now on a call that came again; None: nothing does."""
        target = self._functions[call.function]
        is_on_device = self._is_cuda and target.arrays_kind != "numpy"
        known = None
        if not (is_on_device or self._needs_care(target)):
            with contextlib.suppress(Exception):  # shapes that NumPy refuses, as the executor says
                known = known_call(target, call, self._views)
        self.known[data] = known
        return known

    def _needs_care(self, target: ServedFunction) -> bool:
        """Whether more is to be done about its arrays than to pass them."""
        return self._watches or (target.mutates and self._is_cuda)

    def _output_buffer(self, block: ParameterBlock, first: int, end: int) -> tuple[int, int]:
        address, size = block.result_address, block.result_bytes
        if not (first <= address <= end and size <= end - address):
            raise BadParams("the output buffer does not lie in the caller's own arena")
        return address - self._views.origin, size
