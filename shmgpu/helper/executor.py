"""A helper's side of a call: its function is run, and becomes an outcome that can be answered.

Owns the running of functions, what becomes of their exceptions, and work that is deferred until a
call is answered. What a block asks for is read by :mod:`shmgpu.helper.block_reader`, results are
written by :mod:`shmgpu.helper.result_writer`; ``inline=True`` uses the same code. Never lets a
function's exception out, and never touches a block or a buffer itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from shmgpu import core
from shmgpu.collectives.choice import Backends
from shmgpu.common.logs import logger
from shmgpu.errors import BadParams, GangAborted, remote_name
from shmgpu.helper import late
from shmgpu.helper.arena_views import ArenaViews
from shmgpu.helper.block_reader import BlockReader
from shmgpu.helper.decoded import DecodedCall, Device, Helper, RawRequest, ServedFunction
from shmgpu.helper.gang import GangMember
from shmgpu.helper.hints import hint, is_about_result, user_frames
from shmgpu.helper.mutation_check import MutationCheck
from shmgpu.helper.parked_results import Key, Parking
from shmgpu.helper.result_writer import ResultWriter

_count = core.count_bytes
_COPIED_OUT = core.BYTES_COPIED_OUT
_DONE = (core.OK, 0)
OWN_FILES = (__file__, late.__file__)  # of the frames around a user's function
_UNTRIED = object()
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
        watches: look whether a function wrote to tensors that it may only read.
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
        watches: bool = False,
    ) -> None:
        self.helper = helper
        self.functions = functions
        self.memory = memory
        self.origin = origin
        self.device = device
        self.watches = watches
        self.last_error: BaseException | None = None
        self.broken = False
        self.views = ArenaViews(memory, origin, device)
        self.reader = BlockReader(functions, self.views, bounds, watches, device.is_cuda)
        self.quick = self.reader.quick
        self._decoded = self.reader.decoded
        self._known = self.reader.known
        self._parking = Parking(parked_limit)
        self.writer = ResultWriter(self.views, device, self._parking)
        self._put_raw = self.writer.put_raw
        self._late_failures = 0
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
            found = self.find(function, block, slot)
            if isinstance(found, RawRequest):
                return self._serve_raw(self.functions[function], found, key)
            if isinstance(found, tuple):
                return found
            call = found
        else:
            known = self._known.get(block, _UNTRIED)
            if known is _UNTRIED:
                known = self.reader.know(block, call)
            if known is not None:
                return self._serve_known(known, call, key)
        return self._serve_decoded(self.functions[function], call, key)

    def find(
        self, function: int, block: bytes, slot: int
    ) -> DecodedCall | RawRequest | tuple[int, int]:
        """The call in a block; (status, value) to answer where there is none."""
        try:
            return self.reader.read(function, block, slot)
        except BadParams as error:
            return self.refuse(slot, error)
        except KeyError:
            return core.EBAD_FUNCTION, 0

    def refuse(self, slot: int, error: BadParams) -> tuple[int, int]:
        """(status, value) to answer to a block that says nonsense, which is logged."""
        self.reader.refused(slot, error)
        return core.EBAD_PARAMS, core.UNREADABLE

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
        self._gang = gang = GangMember(mask, ticket, self.helper.id, self._backends)
        self.writer.parks = False  # the call ends where others end
        try:
            outcome = self.serve(function, block, slot, generation, sequence)
            if outcome == _DONE:
                gang.settle()
            return outcome
        except GangAborted:
            return core.EABORTED, 0
        finally:
            self.writer.parks = True
            self._gang = None

    def _serve_known(self, known: Any, call: DecodedCall, key: Key) -> tuple[int, int]:
        """Have C run one call."""
        before = len(self.helper.later)
        try:
            result = known.run(self.helper)
            if result is known:
                return core.OK, known.written
            return self.writer.put(self.functions[call.function], call, result, key)
        except BaseException as error:
            del self.helper.later[before:]
            return self._put_error(call, error, key)

    def _serve_decoded(
        self, target: ServedFunction, call: DecodedCall, key: Key
    ) -> tuple[int, int]:
        """Run one call that was read."""
        before = len(self.helper.later)
        try:
            expected = self.helper.offered = self._expected(target, call)
            if call.places is not None:
                arguments = leaves = self._leaves(target, call)
                if call.values:
                    arguments = call.template.copy()
                    for place, leaf in zip(call.places, leaves, strict=True):
                        arguments[place] = leaf
                result = target.body(self.helper, *arguments)
            else:
                result = self.run(target, call)
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
            return self.writer.put(target, call, result, key)
        except BaseException as error:
            del self.helper.later[before:]
            return self._put_error(call, error, key)

    def _serve_raw(self, target: ServedFunction, request: RawRequest, key: Key) -> tuple[int, int]:
        self.helper.offered = None
        request.gang = self._gang
        request.put = self._put_raw
        try:
            self._put_raw(request, target.body(self.helper, request))
            return _DONE
        except BaseException as error:
            self.helper.later.clear()
            return self._put_error(request, error, key)

    def put(self, block: bytes, function: int, result: Any, key: Key) -> tuple[int, int]:
        """A call of :attr:`quick` gave something else than was expected of it."""
        call = self._decoded[block]
        try:
            return self.writer.put(self.functions[function], call, result, key)
        except BaseException as error:
            return self._put_error(call, error, key)

    def put_error(self, block: bytes, error: BaseException, key: Key) -> tuple[int, int]:
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

    def run(self, target: ServedFunction, call: DecodedCall) -> Any:
        """Call the function the general way: what it returns."""
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
        tensors = self.views.tensors(call) if call.tensors is None else call.tensors
        if self.device.is_cuda:
            return [self.device.to_device(tensor) for tensor in tensors]
        return [tensor.detach() for tensor in tensors]

    def _outs(self, target: ServedFunction, call: DecodedCall) -> list[Any]:
        if target.arrays_kind == "numpy":
            return [view.view() for view in self.views.numpy_outs(call)]
        tensors = self.views.torch_outs(call)
        if self.device.is_cuda:
            return [self.device.new_like(tensor) for tensor in tensors]
        return [tensor.detach() for tensor in tensors]

    def grow(
        self, params: int, size: int, slot: int, generation: int, sequence: int
    ) -> tuple[int, int]:
        """The child offers a buffer for a parked result (params == 0: it does not want it)."""
        parked = self._parking.take((sequence, slot, generation))
        if parked is None or params == 0:
            return (core.OK, 0) if params == 0 else (core.ETOO_LARGE, 0)
        try:
            offset, available = self.reader.output_of(self.read(params, size), slot)
        except BadParams as error:
            return self.refuse(slot, error)
        needed = len(parked.blob)
        if needed > available:
            return core.EBAD_PARAMS, core.UNREADABLE
        self.memory[offset : offset + needed] = memoryview(parked.blob)
        _count(_COPIED_OUT, needed)
        return parked.status, needed

    # ---- exceptions ----------------------------------------------------------------------

    def _put_error(
        self, call: DecodedCall | RawRequest, error: BaseException, key: Key
    ) -> tuple[int, int]:
        """Write what a function raised to where its result would go."""
        if self._gang is not None and isinstance(error, GangAborted):
            return core.EABORTED, 0  # another member is the reason, and reports it
        return self.put_failure(call, error, key)

    def put_failure(
        self, call: DecodedCall | RawRequest | None, error: BaseException, key: Key
    ) -> tuple[int, int]:
        """The same; None: nobody waits for it."""
        self._look_at(error)
        if call is None:
            return core.EREMOTE, 0
        try:
            text = ""
            if not is_about_result(error):
                frames = user_frames(error, *OWN_FILES)
                text = "".join(traceback.format_exception(type(error), error, frames))
            message = _message(error)
            if self.writer.parks:
                text = text[-MAX_TRACEBACK:]
            else:  # what does not fit the output buffer is not reported
                message = message[: call.output_bytes // 8]
                text = text[-max(1, call.output_bytes // 4 - len(message) - 64) :]
            target = self.functions.get(call.function) if isinstance(call, DecodedCall) else None
            message += hint(error, message, target, self.helper.session)
            values = (remote_name(type(error)), message, text)
            return self.writer.put_values(core.EREMOTE, call, values, key)
        except Exception:
            logger.exception("an exception could not be sent to its caller")
            return core.EREMOTE, 0

    def fail(self, work: tuple[int, ...], error: BaseException) -> tuple[int, int]:
        """A served call turned out to have failed on the device: the outcome it gets instead."""
        function, params, size, slot, generation, sequence = work
        block = self.read(params, size)
        try:
            call = self._decoded.get(block) or self.reader.read(function, block, slot)
        except (BadParams, KeyError):
            return core.EREMOTE, 0
        if isinstance(call, DecodedCall) and call.slot != slot:
            return core.EREMOTE, 0
        return self._put_error(call, error, (sequence, slot, generation))

    def _look_at(self, error: BaseException) -> None:
        """Decide whether the helper can go on after it."""
        self.last_error = error
        self.broken = self.device.failed(error) or self.broken
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.broken = True

    # ---- deferred work -------------------------------------------------------------------

    def do_later(self) -> None:
        """Do what functions have left for the time after their answers, which are out."""
        later = self.helper.later
        while later:
            work, failed = later.pop(0)
            try:
                work()
            except BaseException as error:
                self._look_at(error)
                self._log_late(error)
                if failed is not None:
                    failed(error)

    def _log_late(self, error: BaseException) -> None:
        """Log the 1st, 2nd, 4th, 8th, ... failure, so that no child can flood the log."""
        self._late_failures += 1
        if self._late_failures & (self._late_failures - 1) == 0:
            logger.error(
                "work that was deferred until its call was answered failed (failure %d)",
                self._late_failures,
                exc_info=error,
            )


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TRACEBACK]
    except Exception:
        return "(its text could not be made)"
