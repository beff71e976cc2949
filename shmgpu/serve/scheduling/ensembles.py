"""Ensembles: models that are a Python function, run in a worker, that calls other models.

Owns the course of such a request. What one model gives is a view of the worker's arena and is
handed to the next where it lies. The function is a coroutine: while it waits, the worker serves
others. Never runs a model itself: each of its calls is a request like any other, with its own
place in the queue.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from shmgpu.common.wording import kind_of
from shmgpu.errors import CallTimeout, ShmError
from shmgpu.serve.models import response_parameters
from shmgpu.serve.models.request_context import Scalar, context_of
from shmgpu.serve.models.response_parameters import ResponseContext
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.protocol.types import (
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    ProtocolError,
)
from shmgpu.serve.protocol.validation import check_request
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.inference import LEFT, Calls
from shmgpu.serve.scheduling.pending import Outcome
from shmgpu.serve.scheduling.statuses import raised_here
from shmgpu.serve.scheduling.templates import uses_regions

MOST_DEPTH = 8  # ensembles that call each other


class ModelAnswer(dict[str, Any]):
    """The outputs of a model by name.

    Attributes:
        parameters: of its answer.
    """

    def __init__(self, response: InferResponse) -> None:
        super().__init__((one.name, _array(one)) for one in response.outputs)
        self.parameters: Mapping[str, Scalar] = response.parameters


class ModelCalls:
    """What an ensemble's function gets first: ``await call("name", x=array)``.

    Attributes:
        parameters: of the request, as ``helper.request.parameters`` of other models.
        response: takes parameters of the answer, as ``helper.response`` of other models.
    """

    def __init__(self, calls: Calls, request: InferRequest, depth: int) -> None:
        self._calls = calls
        self._request = request
        self._depth = depth
        self.parameters: Mapping[str, Any] = context_of(request.for_model).parameters
        self.response = ResponseContext()

    async def __call__(self, name: str, /, version: str = "", **inputs: Any) -> ModelAnswer:
        """The outputs of a model of this server, by name, for inputs by name.

        Args:
            name: of the model.
            version: of it; by default the highest.
            **inputs: arrays of the input's dtype and shape; BYTES as an array of ``bytes``.

        Raises:
            ProtocolError: there is no such model, or it does not take these inputs.
            ShmError: what the model raised, and what else can end a call.
        """
        if self._depth >= MOST_DEPTH:
            raise ProtocolError(
                500, f"ensembles call each other {MOST_DEPTH} deep: '{name}' is one too many"
            )
        calls = self._calls
        served = calls.catalog.find(name, version, status=500)
        tensors = [_input(served, key, value) for key, value in inputs.items()]
        asked = InferRequest(
            inputs=tensors, priority=self._request.priority, for_model=self._request.for_model
        )
        check_request(asked, served.metadata)
        answered: asyncio.Future[InferResponse] = calls.loop.create_future()

        def outcome(response: Any, error: BaseException | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(response)

        pending = calls.start(served, asked, calls.now(), outcome, self._depth + 1)
        try:
            return ModelAnswer(await answered)
        except asyncio.CancelledError:
            pending.cancel()
            raise


def _input(served: ServedModel, name: str, value: Any) -> InputTensor:
    index = served.input_index.get(name)
    if index is None:
        raise ProtocolError(500, f"model '{served.name}' has no input '{name}'")
    datatype, array = served.inputs[index], np.asarray(value)
    if array.dtype != datatype.storage:
        raise ProtocolError(
            500,
            f"input '{name}' of model '{served.name}' is {datatype.name}, and the ensemble gives "
            f"{array.dtype}: convert it",
        )
    return InputTensor(name, datatype.name, array.shape, array)


def _array(one: OutputTensor) -> Any:
    if isinstance(one.array, memoryview):
        return datatypes.decode(datatypes.DATATYPES[one.datatype], one.shape, one.array)
    return one.array


class EnsembleRun:
    """One request to an ensemble, on its way; to front ends it is as any other that is pending."""

    def __init__(
        self,
        calls: Calls,
        served: ServedModel,
        request: InferRequest,
        started_ns: int,
        outcome: Outcome,
        depth: int,
    ) -> None:
        if uses_regions(request):
            raise ProtocolError(
                400,
                f"model '{served.name}' is an ensemble: send its tensors with the request, not in "
                "shared memory",
            )
        self.traceparent = b""
        self.args: tuple[Any, ...] = ()
        self._calls = calls
        self._served = served
        self._request = request
        self._started_ns = started_ns
        self._outcome = outcome
        self._queue = served.queue_of(request)
        calls.accounting.begin(self._queue)
        self._task = calls.loop.create_task(self._run(ModelCalls(calls, request, depth)))

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        self._task.cancel()

    async def _run(self, call: ModelCalls) -> None:
        calls, served = self._calls, self._served
        accounting, begun = calls.accounting, calls.now()
        response: Any = None
        error: Exception | None = None
        try:
            seconds = calls.timeout_of(served, self._request)
            response = await asyncio.wait_for(self._made(call), seconds)
        except asyncio.CancelledError:
            accounting.leave(self._queue)
            accounting.cancelled(served, self._started_ns)
            self._trace(LEFT)
            return
        except asyncio.TimeoutError:
            error = CallTimeout("the ensemble took too long")
        except (ProtocolError, ShmError) as wrong:
            error = wrong
        accounting.leave(self._queue)
        if error is None:
            call_ns = calls.now() - begun
            accounting.succeed(served, 1, call_ns)
            try:
                self._outcome(response, None)
                accounting.told(served, self._started_ns)
            except Exception as wrong:  # such as text that JSON cannot carry
                accounting.revoke(served, 1, call_ns)
                error = wrong
        if error is not None:
            accounting.failed(served, self._started_ns, error)
            self._outcome(None, error)
        self._trace(error)

    async def _made(self, call: ModelCalls) -> InferResponse:
        """What the function returns, as an answer."""
        served = self._served
        given = {one.name: one.array() for one in self._request.inputs}
        args = [given.get(one.name) for one in served.metadata.inputs]
        assert served.steps is not None
        try:
            result = served.steps(call, *args)
            if inspect.isawaitable(result):
                result = await result
        except (ProtocolError, ShmError):
            raise
        except Exception as error:
            whose = f"ensemble '{served.name}'"
            raise raised_here(error, whose, whose, repr(error)) from None
        told = call.response.parameters
        parameters = response_parameters.checked(told, f"ensemble '{served.name}'", None)
        return InferResponse(_outputs(served, result), parameters)

    def _trace(self, error: BaseException | None) -> None:
        named = self._served.name, self._served.version, self._request.id
        self._calls.trace(0, self._started_ns, self.traceparent, named, error)


def _outputs(served: ServedModel, result: Any) -> list[OutputTensor]:
    declared = served.metadata.outputs
    if isinstance(result, dict):
        result = [result.get(one.name) for one in declared]
    elif len(declared) == 1 and not isinstance(result, (tuple, list)):
        result = [result]
    if not isinstance(result, (tuple, list)) or len(result) != len(declared):
        raise ProtocolError(
            500,
            f"ensemble '{served.name}' returned {kind_of(result)}: return "
            f"{len(declared)} arrays, as it declares its outputs",
        )
    return [_output(served, one, array) for one, array in zip(declared, result, strict=True)]


def _output(served: ServedModel, declared: TensorMetadata, value: Any) -> OutputTensor:
    datatype, array = datatypes.DATATYPES[declared.datatype], np.asarray(value)
    if value is None or array.dtype != datatype.storage or not declared.fits(array.shape):
        raise ProtocolError(
            500,
            f"ensemble '{served.name}' returned {array.dtype} of the shape {list(array.shape)} for "
            f"output '{declared.name}', which is declared as {datatype.name} of the shape "
            f"{list(declared.shape)}",
        )
    return OutputTensor(declared.name, datatype.name, array.shape, array, declared.labels)
