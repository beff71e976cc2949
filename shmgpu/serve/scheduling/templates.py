"""Requests that differ from an earlier one in nothing but the bytes of their tensors.

Owns what is remembered of such a request, by its JSON header: where its tensors lie, which is all
that the next one needs; and the JSON header of its answers, by their shapes. Of a request without
one, whose body is the model's only input, the number of bytes stands for it. A client that sends
one model the same shapes writes the same header each time, and parsing it again would cost more
than everything else that a worker does. Never sends a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.serve.models.response_parameters import is_packed
from shmgpu.serve.protocol import http_codec
from shmgpu.serve.protocol.types import InferRequest, InferResponse
from shmgpu.serve.scheduling.catalog import ServedModel

MOST_BYTES = 2048  # of a header that is worth remembering
MOST_HEADERS = 256  # remembered for each model
MOST_SHAPES = 64  # of answers, remembered for each header

Answer = tuple[list[Any], int | None]  # as of protocol.build_infer

_ndarray = np.ndarray
_OCTET = np.dtype("u1")


class RequestTemplate:
    """What is known of a header.

    Attributes:
        request: what it says, without inputs.
        whose: the first argument of its calls: the model's number, maybe with parameters.
        rows: of its tensors; 1 where the model is not batched.
        uses_regions: whether any tensor lies in a client's region.
        pieces: its inputs in the body: index among the call's arguments, dtype, shape, offset.
        total: bytes of the body.
        wanted: the outputs that are asked for: index among the model's, dtype, whether they go to
            a region.
    """

    __slots__ = (
        "_answers",
        "_args",
        "_version",
        "pieces",
        "request",
        "rows",
        "total",
        "uses_regions",
        "wanted",
        "whose",
    )

    def __init__(
        self,
        served: ServedModel,
        request: InferRequest,
        args: list[Any],
        pieces: list[Any],
        total: int,
        rows: int,
        version: int,
        in_regions: bool,
    ) -> None:
        self.request = request
        self.rows = rows
        self.uses_regions = in_regions
        self._args = args
        self.whose = args[0]
        self.pieces = pieces
        self.total = total
        # Regions are what they were as long as the table is; nothing else depends on it.
        self._version = version if self.uses_regions else None
        indices = served.output_index
        in_region = {one.name for one in request.outputs if one.shm is not None}
        names = [one.name for one in request.outputs] or list(indices)
        self.wanted = [
            (indices[name], served.outputs[indices[name]].storage, name in in_region)
            for name in names
        ]
        self._answers: dict[Any, tuple[bytes, int | None]] = {}

    def arguments(self, body: memoryview, version: int) -> tuple[Any, ...] | None:
        """What the call carries; None where the header does not say it any more.

        Args:
            body: of the request: it may be of another length than the header says.
            version: of the control table.
        """
        if len(body) != self.total or (self._version is not None and self._version != version):
            return None
        args = self._args.copy()
        for index, dtype, shape, offset in self.pieces:
            args[index] = _ndarray(shape, dtype, body, offset)
        return tuple(args)

    def answer(
        self, served: ServedModel, result: Any, response: Callable[[], InferResponse]
    ) -> Answer:
        """The body of the answer; ``response`` gives it in the general way."""
        if is_packed(result):  # parameters differ from answer to answer
            return self._general(served, response())
        results = (result,) if len(served.outputs) == 1 else result
        shapes = []
        tail = []
        for index, storage, is_in_region in self.wanted:
            array = results[index]
            if is_in_region:
                shapes.append(array)  # its shape, and how many bytes
                continue
            if type(array) is not _ndarray or array.dtype is not storage or not array.size:
                return self._general(served, response())
            shapes.append(array.shape)
            tail.append(array.reshape(-1).view(_OCTET).data)
        key = tuple(shapes)
        known = self._answers.get(key)
        if known is not None:
            head, header_length = known
            return [head, *tail], header_length
        buffers, header_length = self._general(served, response())
        if len(self._answers) < MOST_SHAPES:
            self._answers[key] = buffers[0], header_length
        return buffers, header_length

    def _general(self, served: ServedModel, response: InferResponse) -> Answer:
        buffers, header_length = http_codec.build_infer(
            served.name, served.version, self.request, response.outputs, response.parameters
        )
        return list(buffers), header_length


def key_of(body: memoryview | bytes | bytearray, header_length: int | None) -> bytes | int | None:
    """What a request is remembered by; None: it is not.

    Args:
        body: of the request, as it came.
        header_length: bytes of it that are JSON; None: all are; 0: none is.
    """
    if header_length == 0:
        return len(body)
    size = len(body) if header_length is None else header_length
    return bytes(body[:size]) if 0 < size <= MOST_BYTES else None


def remember(
    served: ServedModel,
    key: bytes | int,
    request: InferRequest,
    args: tuple[Any, ...],
    body: memoryview,
    version: int,
) -> None:
    """Keep what a request that was read in full says, where the next one may go by it.

    Args:
        served: the model.
        key: of :func:`key_of`.
        request: what was read.
        args: what its call carried; see :meth:`shmgpu.serve.scheduling.inference.Calls.start`.
        body: all of the request.
        version: of the control table, as it was when regions were looked up.
    """
    if served.prepare is not None or served.steps is not None:
        return
    pieces = []
    begin = offset = 0 if isinstance(key, int) else len(key)
    first = len(args) - len(served.inputs)  # before the inputs: the number, and where outputs go
    for one in request.inputs:
        if one.shm is not None:
            continue
        index = served.input_index[one.name]
        datatype = served.inputs[index]
        # Elements of these are looked at one by one; those of JSON are not in the body.
        if datatype.kind in ("bool", "bytes") or not isinstance(one.data, memoryview):
            return
        if (offset - begin) % datatype.itemsize or not one.data.nbytes:
            return
        pieces.append((index + first, datatype.storage, tuple(one.shape), offset))
        offset += one.data.nbytes
    if offset != len(body) or not _all_binary(served, request):
        return
    kept_args = list(args)
    for index, *_ in pieces:
        kept_args[index] = None
    rows = request.inputs[0].shape[0] if served.max_batch_size else 1
    kept = InferRequest(
        **{name: getattr(request, name) for name in request.__slots__ if name != "inputs"}
    )
    if len(served.templates) >= MOST_HEADERS:
        served.templates.clear()
    served.templates[key] = RequestTemplate(
        served, kept, kept_args, pieces, offset, rows, version, uses_regions(request)
    )


def uses_regions(request: InferRequest) -> bool:
    """Whether any tensor lies in a client's region."""
    return any(one.shm is not None for one in request.inputs) or any(
        one.shm is not None for one in request.outputs
    )


def _all_binary(served: ServedModel, request: InferRequest) -> bool:
    """Whether each output that is wanted is nothing but its bytes, or in a region."""
    indices = served.output_index
    if not request.outputs:
        return request.binary_output and all(one.itemsize for one in served.outputs)
    return all(
        one.shm is not None
        or (one.binary and not one.classification and served.outputs[indices[one.name]].itemsize)
        for one in request.outputs
    )
