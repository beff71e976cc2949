"""Inference as a worker does it: a request's tensors to a helper, its answer to the client.

Owns the check of a request against its model's declaration, the call, and its limits (queue,
deadline, a client that leaves). Never knows HTTP or gRPC: both front ends pass an
:class:`InferRequest` and a function that takes the outcome.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.child.arguments import CallOptions
from shmgpu.child.port import Port
from shmgpu.codec import arrays
from shmgpu.codec.arrays import ArraySpec
from shmgpu.errors import CallCancelled, RemoteError, ShmError
from shmgpu.serve.models import preprocessing
from shmgpu.serve.models.errors import Unloaded
from shmgpu.serve.models.request_context import renumbered, whose
from shmgpu.serve.models.response_parameters import unpack
from shmgpu.serve.models.sequences import choose, standing
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.protocol.types import (
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    ProtocolError,
)
from shmgpu.serve.scheduling.accounting import Accounting
from shmgpu.serve.scheduling.cache import Cache, digest
from shmgpu.serve.scheduling.catalog import Catalog, ServedModel
from shmgpu.serve.scheduling.pending import Outcome, Pending
from shmgpu.serve.scheduling.rows import ServerFunction
from shmgpu.serve.scheduling.statuses import raised_here
from shmgpu.serve.scheduling.templates import RequestTemplate, uses_regions
from shmgpu.serve.state.regions import Regions

_now = time.monotonic_ns

MAX_PRIORITY = 3
LEFT = ProtocolError(499, "the client has left")
_ATTRIBUTES = ("model.name", "model.version", "request.id")  # of spans


class Calls:
    """The inferences of one worker.

    Args:
        port: of the worker.
        catalog: of models.
        accounting: of the worker's requests.
        timeout: seconds until a request is answered with an error; None: never.
        loop: the worker's.
        regions: clients' shared memory.
        pools: numbers of the helpers, by the pool's name; the first is the default one.
        cache: of results; None: none are kept.
    """

    def __init__(
        self,
        port: Port,
        catalog: Catalog,
        accounting: Accounting,
        timeout: float | None,
        loop: Any,
        regions: Regions,
        pools: dict[str, list[int]],
        cache: Cache | None = None,
    ) -> None:
        self.port = port
        self.catalog = catalog
        self.accounting = accounting
        self.timeout = timeout
        self.loop = loop
        self.regions = regions
        self.pools = pools
        self.cache = cache
        self.ensemble: Any = None  # see shmgpu.serve.scheduling.ensembles
        self.now = _now
        self.spans: Any = None  # see shmgpu.serve.telemetry.spans; None: no spans are made

    def start(
        self,
        served: ServedModel,
        request: InferRequest,
        started_ns: int,
        outcome: Outcome,
        depth: int = 0,
    ) -> Pending:
        """Hand a request over.

        ``outcome`` is told once, unless the request is cancelled; before this returns if the
        request cannot be sent.

        Args:
            served: the model.
            request: what is asked.
            started_ns: when its last byte had come.
            outcome: told of the end.
            depth: how many ensembles it is inside of.

        Raises:
            ProtocolError: the request does not fit the model, or the queue is full.
            ShmError: it cannot be carried.
        """
        self.accounting.admit(served.queue_of(request))
        if served.streams:
            raise ProtocolError(
                400,
                f"model '{served.name}' answers in parts: use generate_stream, or the stream of "
                "gRPC",
            )
        if served.steps is not None:
            run: Pending = self.ensemble(self, served, request, started_ns, outcome, depth)
            return run
        args = self.arguments(served, request)
        rows = request.inputs[0].shape[0] if served.max_batch_size else 1
        return self._begin(Pending(self, served, request, args, rows, started_ns, outcome))

    def start_known(
        self,
        served: ServedModel,
        template: RequestTemplate,
        args: tuple[Any, ...],
        started_ns: int,
        outcome: Outcome,
    ) -> Pending:
        """As :meth:`start`, for a request that is known but for its tensors' bytes."""
        self.accounting.admit(served.queue_of(template.request))
        return self._begin(
            Pending(
                self, served, template.request, args, template.rows, started_ns, outcome, template
            )
        )

    def _begin(self, pending: Pending) -> Pending:
        """Answer from the cache, or send."""
        if self.cache is None or not pending.served.cache or not self._is_cached(pending):
            self._send(pending)
        return pending

    def _send(self, pending: Pending) -> None:
        served = pending.served
        pending.sent_ns = now = _now()
        options = self.options(served, pending.request)
        if pending.is_late:
            options = self._options_of_late(pending, now)
        template = pending.template
        in_regions = uses_regions(pending.request) if template is None else template.uses_regions
        target: ServerFunction = served.in_regions if in_regions else served
        if served.sequence:
            target, options = served.in_sequence, self._pinned(pending, options)
        self.accounting.begin(pending.queue)
        try:
            call = self.port.submit(target, pending.args, {}, options, pending, False, False)
        except BaseException:
            self._out(pending)
            raise
        if pending.is_over:  # it could not be sent, and has been told so
            return
        pending.call = call
        if self.spans is not None:
            pending.message = call.sequence  # 0 while it waits for the window: no parts
        timeout = None if options is None else options.timeout
        delay = 0.0 if pending.is_late else pending.queue.delay_of(pending.request)
        if delay and (timeout is None or delay < timeout):
            left = max(delay - (now - pending.started_ns) / 1e9, 0.0)  # less, if sent again
            pending.timer = self.loop.call_later(left, self._delay, pending)
        elif timeout is not None:
            pending.timer = self.loop.call_later(timeout, self.expire, pending)

    def _is_cached(self, pending: Pending) -> bool:
        """Whether a request's result is here; then its outcome is told soon."""
        served, template, cache = pending.served, pending.template, self.cache
        if uses_regions(pending.request) if template is None else template.uses_regions:
            return False
        assert cache is not None
        begun = _now()
        pending.digest = digest(pending.args)
        result = cache.get(served.number, pending.digest)
        if result is None:
            self.accounting.missed(served, begun)
            return False
        self.loop.call_soon(self._found, pending, result)
        return True

    def _found(self, pending: Pending, result: Any) -> None:
        """Answer from the cache."""
        if pending.is_over:
            return
        pending.is_over = True
        passed = _now() - pending.started_ns
        self.accounting.hit(pending.served, passed)
        try:
            pending.outcome(self._answer(pending, result), None)
        except Exception as wrong:  # such as text that JSON cannot carry
            self.accounting.revoke_hit(pending.served, passed)
            pending.outcome(None, wrong)
        if self.spans is not None:
            self._trace(pending, None)

    def _keep(self, pending: Pending, result: Any) -> None:
        """A result that may be kept, before its memory goes back."""
        assert self.cache is not None
        begun = _now()
        self.cache.put(pending.served.number, pending.digest, result)
        self.accounting.kept(pending.served, begun)

    def _answer(self, pending: Pending, result: Any) -> Any:
        """What the outcome is told."""
        served, template = pending.served, pending.template
        if template is None:
            return self.response(served, pending.request, result)
        return template.answer(
            served, result, lambda: self.response(served, pending.request, result)
        )

    def _pinned(self, pending: Pending, options: CallOptions | None) -> CallOptions:
        """To the helper of the request's sequence; no priority, which would change the order."""
        served = pending.served
        name = _name_of_sequence(pending.request)
        helper = choose(
            served.name, name, standing(self.pools[served.pool or next(iter(self.pools))])
        )
        return CallOptions(options.timeout if options else None, placement=1 << helper)

    def _again(self, pending: Pending) -> bool:
        """Send a call again whose model was replaced on its way; False: there is none now."""
        old = pending.served
        try:
            served = self.catalog.find(old.name, old.version)
            if served is old or served.metadata != old.metadata:
                return False
            if served.prepared != old.prepared:
                return False
            pending.served = served
            pending.queue = served.queue_of(pending.request)
            pending.args = (renumbered(pending.args[0], served.number), *pending.args[1:])
            self._send(pending)
        except (ProtocolError, ShmError):
            return False
        return True

    def ended(self, pending: Pending, result: Any, error: BaseException | None) -> None:
        """A call has ended, well or not."""
        served, accounting = pending.served, self.accounting
        now = _now()
        self._out(pending)
        if isinstance(error, RemoteError) and error.matches(Unloaded):
            if self._again(pending):
                return
        if pending.is_late and isinstance(error, CallCancelled):
            try:
                return self._send(pending)
            except ShmError as wrong:
                error = wrong
        pending.is_over = True
        answer: Any = None
        if error is None:
            try:
                answer = self._answer(pending, result)
                if pending.digest:
                    self._keep(pending, result)
            except Exception as wrong:
                error = wrong
        if error is None:
            call_ns = now - pending.sent_ns
            accounting.succeed(served, pending.rows, call_ns)
            try:
                pending.outcome(answer, None)
            except Exception as wrong:  # such as text that JSON cannot carry
                accounting.revoke(served, pending.rows, call_ns)
                error = wrong
        if error is None:
            accounting.told(served, pending.started_ns)
        else:
            self._failed(pending, error)
        self._trace(pending, error)

    def _failed(self, pending: Pending, error: BaseException) -> None:
        self.accounting.failed(pending.served, pending.started_ns, error)
        pending.outcome(None, error)

    def send_alone(self, pending: Pending) -> None:
        """Send again, by itself, a request that was under way with others."""
        self._out(pending)
        try:
            self._send(pending)
        except ShmError as error:
            pending.is_over = True
            self._failed(pending, error)

    def _trace(self, pending: Pending, error: BaseException | None) -> None:
        named = pending.served.name, pending.served.version, pending.request.id
        self.trace(pending.message, pending.started_ns, pending.traceparent, named, error)

    def trace(
        self,
        message: int,
        started_ns: int,
        traceparent: bytes,
        named: tuple[str, str, str],
        error: BaseException | None,
    ) -> None:
        """Have a request's span made; ``named``: model, version, and the request's id, if any."""
        if self.spans is not None:
            attributes = {
                key: value for key, value in zip(_ATTRIBUTES, named, strict=True) if value
            }
            self.spans.ended(message, started_ns, traceparent, attributes, error)

    def refused(
        self,
        served: ServedModel | None,
        started_ns: int,
        traceparent: bytes,
        named: tuple[str, str, str],
        error: BaseException,
    ) -> None:
        """A request was answered with an error before it was handed over.

        ``served``: None where no such model was found.
        """
        if served is not None:
            named = served.name, served.version, named[2]
            self.accounting.refused(served, started_ns, error)
        self.trace(0, started_ns, traceparent, named, error)

    def cancel(self, pending: Pending) -> None:
        """Give a call up; its outcome is not told."""
        call = pending.call
        if call is None:  # it is over, or was found in the cache and is to be told
            pending.is_over = True
            return
        if not self.port.cancel(call):
            return
        self._out(pending)
        self.accounting.cancelled(pending.served, pending.started_ns)
        self._trace(pending, LEFT)

    def _out(self, pending: Pending) -> None:
        """A call is not pending any more."""
        pending.call = None
        self.accounting.leave(pending.queue)
        if pending.timer is not None:
            pending.timer.cancel()
            pending.timer = None

    def expire(self, pending: Pending) -> None:
        """The time of a call is over."""
        if pending.call is not None:
            self.port.expire(pending.call)

    def _delay(self, pending: Pending) -> None:
        """The time of a request is over: from now on it waits behind all others."""
        if pending.call is None:
            return
        pending.is_late = True
        rest = self._options_of_late(pending, _now())
        pending.timer = None
        if rest is not None and rest.timeout is not None:
            pending.timer = self.loop.call_later(rest.timeout, self.expire, pending)
        self.port.recall(pending.call)

    def _options_of_late(self, pending: Pending, now: int) -> CallOptions | None:
        """What is left of the server's time-out, and no priority."""
        if self.timeout is None:
            return None
        return CallOptions(max(self.timeout - (now - pending.started_ns) / 1e9, 1e-3))

    def timeout_of(self, served: ServedModel, request: InferRequest) -> float | None:
        """Seconds that a request may take; None: as long as it wants."""
        timeout = self.timeout
        queue = served.queue_of(request)
        asked = 0.0 if queue.delays else queue.timeout_of(request)
        if asked:
            timeout = asked if timeout is None else min(timeout, asked)
        return timeout

    def options(self, served: ServedModel, request: InferRequest) -> CallOptions | None:
        """Time-out and priority of a request; the protocol's priority 1 comes first."""
        timeout = self.timeout_of(served, request)
        priority = max(0, MAX_PRIORITY + 1 - request.priority) if request.priority else 0
        if timeout is None and not priority:
            return None
        return CallOptions(timeout, priority)

    # ---- inputs --------------------------------------------------------------------------

    def arguments(self, served: ServedModel, request: InferRequest) -> tuple[Any, ...]:
        """What the call carries: the model's number, then its inputs in order.

        Parameters of the request that its function gets stand beside the number.
        """
        if served.max_batch_size:
            counts = {one.shape[0] for one in request.inputs}
            if len(counts) > 1:
                raise ProtocolError(
                    400,
                    f"model '{served.name}' is batched: its inputs must have equally many rows, "
                    f"not {sorted(counts)}",
                )
        args: list[Any] = [None] * len(served.inputs)
        for one in request.inputs:
            index = served.input_index[one.name]
            datatype = served.inputs[index]
            args[index] = (
                self._argument(datatype, one)
                if served.prepare is None
                else _in_request(served, one)
            )
        if served.prepare is not None:
            args = _prepared(served, request, args)
        first = whose(served.number, request.for_model)
        if served.sequence:
            if not request.sequence_id:
                raise ProtocolError(
                    400,
                    f"inference request to model '{served.name}' must specify a non-zero or "
                    "non-empty correlation ID: give it a sequence_id",
                )
            return (
                first,
                self._region_outputs(served, request),
                _name_of_sequence(request),
                request.sequence_start,
                request.sequence_end,
                *args,
            )
        if uses_regions(request):
            return (first, self._region_outputs(served, request), *args)
        return (first, *args)

    def _argument(self, datatype: datatypes.Datatype, one: InputTensor) -> Any:
        if one.shm is not None:
            return {"in": self.regions.locate(one.shm, f"input {one.name!r}"), "shape": one.shape}
        if not datatype.itemsize:
            return self._bytes(one)
        array = one.array()
        return array if array.flags.aligned else self._copy(datatype, array)

    def _copy(self, datatype: datatypes.Datatype, array: Any) -> Any:
        """A copy, at an aligned address, of an array that begins at any byte."""
        buffer, _ = self.port.arena.allocate(max(array.nbytes, 1))
        copied = arrays.numpy_view(buffer, 0, _spec(array))
        copied[...] = array
        return copied

    def _bytes(self, one: InputTensor) -> Any:
        """BYTES travel as (their shape, their bytes)."""
        data = one.data
        if isinstance(data, np.ndarray):
            return one.shape, np.frombuffer(datatypes.join(data.reshape(-1).tolist()), np.uint8)
        assert data is not None
        return one.shape, np.frombuffer(data, np.uint8)

    def _region_outputs(self, served: ServedModel, request: InferRequest) -> tuple[Any, ...]:
        """Which outputs go where in regions."""
        return tuple(
            (served.output_index[one.name], *self.regions.locate(one.shm, f"output {one.name!r}"))
            for one in request.outputs
            if one.shm is not None
        )

    # ---- outputs -------------------------------------------------------------------------

    def response(self, served: ServedModel, request: InferRequest, result: Any) -> InferResponse:
        """What a model returned, as the request wants it."""
        result, parameters = unpack(result)
        return InferResponse(
            self._outputs(served, request, result), {**request.for_answer, **parameters}
        )

    def _outputs(
        self, served: ServedModel, request: InferRequest, result: Any
    ) -> list[OutputTensor]:
        asked = request.outputs
        results = (result,) if len(served.outputs) == 1 else result
        wanted = (
            [served.output_index[one.name] for one in asked]
            if asked
            else range(len(served.outputs))
        )
        in_regions = {served.output_index[one.name] for one in asked if one.shm is not None}
        outputs = []
        for index in wanted:
            declared, datatype = served.metadata.outputs[index], served.outputs[index]
            array = results[index]
            if index in in_regions:
                nbytes, *shape = array.tolist()
                shape = tuple(shape)
                _check_shape(served, declared, shape)
                outputs.append(
                    OutputTensor(declared.name, datatype.name, shape, None, nbytes=nbytes)
                )
                continue
            if not datatype.itemsize:  # as bytes, which may be what is wanted
                shape, array = tuple(array[0]), array[1].data
            else:
                if array.dtype != datatype.storage:
                    array = _as(datatype, array, served.name, declared.name)
                shape = array.shape
            _check_shape(served, declared, shape)
            outputs.append(
                OutputTensor(declared.name, datatype.name, shape, array, declared.labels)
            )
        return outputs


def _name_of_sequence(request: InferRequest) -> str:
    """Number 5 and text "5" are two sequences."""
    return repr(request.sequence_id)


def _in_request(served: ServedModel, one: InputTensor) -> Any:
    """An input of a model that prepares it here, where regions are not mapped."""
    if one.shm is not None:
        raise ProtocolError(
            400,
            f"model '{served.name}' prepares its inputs before a helper gets them: send input "
            f"'{one.name}' with the request, not in shared memory",
        )
    return one.array()


def _prepared(served: ServedModel, request: InferRequest, inputs: list[Any]) -> list[Any]:
    """What the model's function gets instead of a request's inputs."""
    assert served.prepare is not None
    rows = request.inputs[0].shape[0] if served.max_batch_size else None
    try:
        arrays, request.for_answer = preprocessing.call(
            served.prepare, inputs, served.prepared, rows
        )
        return list(arrays)
    except ProtocolError:
        raise
    except Exception as error:
        model = f"model '{served.name}'"
        raise raised_here(error, model, f"preparing inputs of {model}", str(error)) from None


def _spec(array: Any) -> ArraySpec:
    return arrays.ArraySource(array).spec


def _check_shape(served: ServedModel, declared: TensorMetadata, shape: Sequence[int]) -> None:
    if not declared.fits(shape):
        raise ProtocolError(
            500,
            f"model '{served.name}' returned the shape {list(shape)} for output "
            f"'{declared.name}', which is declared as {list(declared.shape)}",
        )


def _as(datatype: datatypes.Datatype, array: Any, model: str, name: str) -> Any:
    """An output of another dtype than was declared."""
    if datatype.name == "BF16" and array.dtype.itemsize == 2:
        return array.view(datatype.storage)
    raise ProtocolError(
        500,
        f"model '{model}' returned {array.dtype} for output '{name}', which is declared as "
        f"{datatype.name}",
    )
