"""The generate extension: a plain JSON object in, one out; or many, as server-sent events.

Owns the mapping between such objects and inference requests. Keys that are inputs of the model
become tensors, a plain value one of one element; all others are parameters, as in Triton's
extension (protocol/extension_generate.md of its server repository). Never calls a helper: the
scheduler does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import orjson

from shmgpu.serve.frontend.request import Request, error_body
from shmgpu.serve.protocol import datatypes, http_codec
from shmgpu.serve.protocol.metadata import ANY
from shmgpu.serve.protocol.types import (
    InferRequest,
    InferResponse,
    OutputTensor,
    ProtocolError,
    RequestLimits,
)
from shmgpu.serve.scheduling.catalog import ServedModel
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.statuses import answer_to
from shmgpu.serve.scheduling.streams import Stream

EVENTS = b"text/event-stream; charset=utf-8"
FRESH = b"Cache-Control: no-cache\r\n"


def read(found: dict[str, Any], served: ServedModel, limits: RequestLimits) -> InferRequest:
    """The inference that a JSON object asks for.

    Raises:
        ProtocolError: it does not fit the model.
    """
    inputs, parameters = [], {}
    given = dict(found)
    request_id = given.pop("id", "")
    more = given.pop("parameters", {})
    if not isinstance(more, dict):
        raise ProtocolError(400, "'parameters' must be an object")
    for one in served.metadata.inputs:
        if one.name not in given:
            if one.optional:
                continue
            raise ProtocolError(400, f"the request has no '{one.name}', an input of the model")
        data = given.pop(one.name)
        shape = _shape(data)
        if shape == ():
            # A plain value is one element, in as many dimensions as the input has.
            shape, data = (1,) * max(len(one.shape), 1), [data]
        elif len(shape) == 1:
            shape = _of_the_model(shape[0], one.shape)
        inputs.append({"name": one.name, "datatype": one.datatype, "shape": shape, "data": data})
    for key, value in {**given, **more}.items():
        if isinstance(value, (str, int, float)):
            parameters[key] = value
        else:
            raise ProtocolError(
                400, f"'{key}' is not an input of the model, and as a parameter it must be plain"
            )
    body = orjson.dumps({"id": request_id, "parameters": parameters, "inputs": inputs})
    return http_codec.parse_infer(memoryview(body), None, limits, served.metadata)


def _shape(data: Any) -> tuple[int, ...]:
    """Lengths of nested lists, by their first elements: the codec checks all others."""
    shape = []
    while isinstance(data, list):
        shape.append(len(data))
        data = data[0] if data else None
    return tuple(shape)


def _of_the_model(count: int, declared: Sequence[int]) -> tuple[int, ...]:
    """The shape of a flat list: as declared, open lengths 1, but for the last one that is open.

    A list that has no such shape keeps its own, and is refused for it.
    """
    fixed = math.prod(length for length in declared if length != ANY)
    if len(declared) < 2 or not count or not fixed or count % fixed:
        return (count,)
    shape = [1 if length == ANY else length for length in declared]
    if ANY in declared:
        last = max(axis for axis, length in enumerate(declared) if length == ANY)
        shape[last] = count // fixed
    return tuple(shape) if math.prod(shape) == count else (count,)


def show(served: ServedModel, request: InferRequest, response: InferResponse) -> bytes:
    """A part of the answer as a JSON object: an output of one element as a plain value.

    Parameters stand beside the outputs, as in Triton's; an output of the same name comes first.
    """
    shown: dict[str, Any] = dict(response.parameters)
    if request.id:
        shown["id"] = request.id
    shown |= {"model_name": served.name, "model_version": served.version}
    for one in response.outputs:
        try:
            shown[one.name] = _plain(one)
        except ValueError as error:
            raise ProtocolError(400, f"output '{one.name}' {error}") from None
    return orjson.dumps(shown)


def _plain(one: OutputTensor) -> Any:
    """An output's elements in order; the only one as itself."""
    datatype, array = datatypes.DATATYPES[one.datatype], one.array
    if isinstance(array, memoryview):
        array = datatypes.decode(datatype, one.shape, array)
    assert array is not None
    values = datatypes.to_json(datatype, array)
    return orjson.Fragment(values[1:-1] if array.size == 1 else values)


class Generation:
    """One request of the extension, on its way.

    Args:
        calls: of the worker.
        served: the model.
        asked: what is asked of it.
        request: whom to answer.
        is_stream: as events, one for each part; otherwise one object for one part.
    """

    def __init__(
        self,
        calls: Calls,
        served: ServedModel,
        asked: InferRequest,
        request: Request,
        is_stream: bool,
    ) -> None:
        self.served = served
        self.asked = asked
        self.request = request
        self.is_stream = is_stream
        self._shown: bytes | None = None
        self._has_begun = False
        self._stream = Stream(
            calls,
            served,
            asked,
            time.monotonic_ns(),
            self._part,
            self._end,
            request.headers.get(b"traceparent", b""),
        )

    def begin(self) -> None:
        """Hand it over; see :meth:`Stream.begin`."""
        self._stream.begin()
        self.request.on_disconnect = self._stream.cancel

    def _part(self, response: InferResponse) -> None:
        try:
            shown = show(self.served, self.asked, response)
            if self._shown is not None:
                raise ProtocolError(
                    400,
                    f"model '{self.served.name}' answers in several parts: use generate_stream",
                )
        except ProtocolError as error:
            self._stream.cancel(error)
            self._end(error)
            return
        if not self.is_stream:
            self._shown = shown
            self._stream.more()
            return
        if not self._has_begun:
            self._has_begun = True
            self.request.begin(200, EVENTS, FRESH)
        self.request.send(_event(shown), self._stream.more)

    def _end(self, error: BaseException | None) -> None:
        request = self.request
        if error is None and self.is_stream:
            if not self._has_begun:
                request.begin(200, EVENTS, FRESH)
            request.end()
        elif error is None:
            request.reply(200, [self._shown or error_body("the model gave no answer")])
        else:
            status, sentence = answer_to(error, len(request.body))
            if self._has_begun:  # the status is out: the error is an event like any other
                request.send(_event(error_body(sentence)), request.end)
            else:
                request.reply(status, [error_body(sentence)])


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
