"""Requests that differ from an earlier one in nothing but the bytes of their tensors.

Owns what is remembered of such a request, by its JSON header: where its tensors lie, which is all
that the next one needs; and the JSON header of its answers, by their shapes. Of a request without
one, whose body is the model's only input, the number of bytes stands for it. Over gRPC, what comes
before the tensors is the header. A client that sends one model the same shapes writes the same
header each time, and parsing it again would cost more than everything else that a worker does.
Never sends a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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
        args: what a call carries; None for each input in the body.
        omits: whether an optional input is left away.
        told: by their order in ``wanted``, what the last result says of outputs in regions.
    """

    __slots__ = (
        "_answers",
        "_version",
        "args",
        "omits",
        "pieces",
        "request",
        "rows",
        "told",
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
        omits: bool,
    ) -> None:
        self.request = request
        self.rows = rows
        self.uses_regions = in_regions
        self.args = args
        self.omits = omits
        self.told: list[bytes] = []
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
        self._answers: dict[Any, tuple[Any, int | None]] = {}

    def arguments(self, body: memoryview, version: int) -> tuple[Any, ...] | None:
        """What the call carries; None where the header does not say it any more.

        Args:
            body: of the request: it may be of another length than the header says.
            version: of the control table.
        """
        if len(body) != self.total or (self._version is not None and self._version != version):
            return None
        args = self.args.copy()
        for index, dtype, shape, offset in self.pieces:
            args[index] = _ndarray(shape, dtype, body, offset)
        return tuple(args)

    def answer(
        self, served: ServedModel, result: Any, response: Callable[[], InferResponse]
    ) -> Answer:
        """The body of the answer; ``response`` gives it in the general way."""
        self.told = []
        if is_packed(result):  # parameters differ from answer to answer
            return self._general(served, response())
        results = (result,) if len(served.outputs) == 1 else result
        shapes = []
        tail = []
        for index, storage, is_in_region in self.wanted:
            array = results[index]
            if is_in_region:
                shapes.append(array.tobytes())  # how many bytes, and its shape
                continue
            if type(array) is not _ndarray or array.dtype is not storage or not array.size:
                return self._general(served, response())
            shapes.append(array.shape)
            tail.append(array.reshape(-1).view(_OCTET).data)
        key = tuple(shapes)
        self.told = [one for one in shapes if isinstance(one, bytes)]
        known = self._answers.get(key)
        if known is not None:
            kept, header_length = known
            return self.filled(kept, tail), header_length
        buffers, header_length = self._general(served, response())
        if len(self._answers) < MOST_SHAPES:
            self._answers[key] = self.emptied(buffers), header_length
        return buffers, header_length

    def emptied(self, buffers: list[Any]) -> Any:
        """What is kept of an answer's body for those of the same shapes."""
        return buffers[0]

    def filled(self, kept: Any, tail: list[Any]) -> list[Any]:
        """A body of that kind, with the outputs' bytes."""
        return [kept, *tail]

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
    begin = offset = 0 if isinstance(key, int) else len(key)
    places = []
    for data in in_body(request):
        places.append(offset)
        offset += 0 if data is None else data.nbytes
    if offset != len(body) or not _all_binary(served, request):
        return
    made = template_of(RequestTemplate, served, request, args, places, offset, version)
    if made is None or any((place - begin) % dtype.itemsize for _, dtype, _, place in made.pieces):
        return
    if len(served.templates) >= MOST_HEADERS:
        served.templates.clear()
    served.templates[key] = made


def in_body(request: InferRequest) -> list[memoryview | None]:
    """The bytes of each input that lies in no region; None where JSON gave its elements."""
    return [
        one.data if isinstance(one.data, memoryview) else None
        for one in request.inputs
        if one.shm is None
    ]


Template = TypeVar("Template", bound=RequestTemplate)


def template_of(
    kind: type[Template],
    served: ServedModel,
    request: InferRequest,
    args: tuple[Any, ...],
    places: Sequence[int],
    total: int,
    version: int,
) -> Template | None:
    """A template of a request that was read in full; None where the next one must be read, too.

    Args:
        kind: how answers are written.
        served: the model.
        request: what was read.
        args: what its call carried.
        places: where the inputs that lie in no region begin in the request's bytes.
        total: how many bytes those are.
        version: of the control table.
    """
    if served.prepare is not None or served.steps is not None:
        return None
    pieces = []
    first = len(args) - len(served.inputs)  # before the inputs: the number, and where outputs go
    given = [one for one in request.inputs if one.shm is None]
    for one, offset in zip(given, places, strict=True):
        index = served.input_index[one.name]
        datatype = served.inputs[index]
        # Elements of these are looked at one by one; those of JSON are not in the body.
        if datatype.kind in ("bool", "bytes") or not isinstance(one.data, memoryview):
            return None
        if not one.data.nbytes:
            return None
        pieces.append((index + first, datatype.storage, tuple(one.shape), offset))
    kept_args = list(args)
    for index, *_ in pieces:
        kept_args[index] = None
    rows = request.inputs[0].shape[0] if served.max_batch_size else 1
    kept = InferRequest(
        **{name: getattr(request, name) for name in request.__slots__ if name != "inputs"}
    )
    omits = len(request.inputs) < len(served.inputs)
    return kind(served, kept, kept_args, pieces, total, rows, version, uses_regions(request), omits)


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
