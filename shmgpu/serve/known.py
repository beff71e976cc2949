"""Requests that differ from an earlier one in nothing but the bytes of their tensors.

Owns what is remembered of such a request, by its JSON header: where its tensors lie, which is all
that the next one needs; and the JSON header of its answers, by their shapes. A client that sends
the same model the same shapes writes the same header each time, and reading it anew would cost
more than everything else that a worker does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.serve import protocol
from shmgpu.serve.catalog import Served
from shmgpu.serve.requests import InferRequest, OutputTensor

MOST_BYTES = 2048  # of a header that is worth remembering
MOST_HEADERS = 256  # remembered for each model
MOST_SHAPES = 64  # of answers, remembered for each header

Answer = tuple[list[Any], int | None]  # as of protocol.build_infer

_ndarray = np.ndarray
_OCTET = np.dtype("u1")


class Known:
    """What is known of a header.

    Attributes:
        request: what it says, without inputs.
        rows: of its tensors; 1 where the model is not batched.
        pieces: its inputs: place among the call's arguments, dtype, shape, offset in the body.
        total: bytes of the body.
        wanted: the outputs that are asked for: place among the model's, dtype.
    """

    __slots__ = ("_answers", "_arity", "pieces", "request", "rows", "total", "wanted")

    def __init__(
        self, served: Served, request: InferRequest, pieces: list[Any], total: int, rows: int
    ) -> None:
        self.request = request
        self.rows = rows
        self.pieces = pieces
        self.total = total
        self._arity = len(served.inputs)
        places = served.output_places
        wanted = [places[one.name] for one in request.outputs] or list(range(len(served.outputs)))
        self.wanted = [(place, served.outputs[place].storage) for place in wanted]
        self._answers: dict[Any, bytes] = {}

    def arguments(self, served: Served, body: memoryview) -> tuple[Any, ...] | None:
        """What the call carries; None where the body is not as long as that header says."""
        if len(body) != self.total:
            return None
        args: list[Any] = [None] * (self._arity + 1)
        args[0] = served.number
        for place, dtype, shape, offset in self.pieces:
            args[place] = _ndarray(shape, dtype, body, offset)
        return tuple(args)

    def answer(
        self, served: Served, result: Any, outputs: Callable[[], list[OutputTensor]]
    ) -> Answer:
        """The body of the answer; ``outputs`` gives them in the general way."""
        results = (result,) if len(served.outputs) == 1 else result
        shapes = []
        tail = []
        for place, storage in self.wanted:
            array = results[place]
            if type(array) is not _ndarray or array.dtype is not storage or not array.size:
                return self._general(served, outputs())
            shapes.append(array.shape)
            tail.append(array.reshape(-1).view(_OCTET).data)
        key = tuple(shapes)
        head = self._answers.get(key)
        if head is not None:
            return [head, *tail], len(head)
        buffers, header_length = self._general(served, outputs())
        if header_length is not None and len(self._answers) < MOST_SHAPES:
            self._answers[key] = buffers[0]
        return buffers, header_length

    def _general(self, served: Served, outputs: list[OutputTensor]) -> Answer:
        buffers, header_length = protocol.build_infer(
            served.name, served.version, self.request, outputs
        )
        return list(buffers), header_length


def remember(served: Served, header: bytes, request: InferRequest, body: memoryview) -> None:
    """Keep what a request that was read in full says, where the next one may go by it."""
    pieces = []
    offset = len(header)
    for one in request.inputs:
        place = served.places[one.name]
        datatype = served.inputs[place]
        # Elements of these are looked at one by one; those of JSON are not in the body.
        if datatype.kind in ("bool", "bytes") or not isinstance(one.data, memoryview):
            return
        if (offset - len(header)) % datatype.itemsize or not one.data.nbytes:
            return
        pieces.append((place + 1, datatype.storage, tuple(one.shape), offset))
        offset += one.data.nbytes
    if not pieces or offset != len(body) or not _all_binary(served, request):
        return
    rows = request.inputs[0].shape[0] if served.max_batch_size else 1
    kept = InferRequest(
        **{name: getattr(request, name) for name in request.__slots__ if name != "inputs"}
    )
    if len(served.known) >= MOST_HEADERS:
        served.known.clear()
    served.known[header] = Known(served, kept, pieces, offset, rows)


def _all_binary(served: Served, request: InferRequest) -> bool:
    """Whether each output that is wanted is nothing but its bytes behind the header."""
    places = served.output_places
    if any(one.classification or one.shm or not one.binary for one in request.outputs):
        return False
    if not request.outputs and not request.binary_output:
        return False
    names = [one.name for one in request.outputs] or list(places)
    return all(served.outputs[places[name]].itemsize for name in names)
