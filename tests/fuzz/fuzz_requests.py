"""Fuzz target: any bytes as an inference request are one that holds, or ProtocolError.

The first byte says how the others came: bit 0 by gRPC, else by HTTP; bit 1 held against a model;
bit 2, for HTTP, with the length of the JSON in two bytes more. A request that is read has elements
for its shapes, inside the bytes it was read from, and can be answered. Run by ``make fuzz``
(atheris, libFuzzer for Python) and, on the corpus, by ``make test``.
"""

from __future__ import annotations

import numpy as np

from shmgpu.serve.protocol import grpc_codec, http_codec
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.metadata import ModelMetadata, TensorMetadata
from shmgpu.serve.protocol.types import InferRequest, OutputTensor, ProtocolError, RequestLimits

LIMITS = RequestLimits()
GRPC, HELD, HAS_LENGTH = 1, 2, 4

MODEL = ModelMetadata(
    "all",
    inputs=(
        TensorMetadata("x", "FP32", (-1, 2)),
        TensorMetadata("text", "BYTES", (-1, 1), optional=True),
        TensorMetadata("half", "BF16", (-1, -1), optional=True),
    ),
    outputs=(
        TensorMetadata("y", "FP32", (-1, 2), labels=("no", "yes")),
        TensorMetadata("text", "BYTES", (-1, 1)),
    ),
    max_batch_size=8,
)
ONE = ModelMetadata("one", inputs=MODEL.inputs[:1], outputs=MODEL.outputs, max_batch_size=8)
OUTPUTS = [
    OutputTensor("y", "FP32", (2, 2), np.arange(4, dtype=np.float32).reshape(2, 2), ("no", "yes")),
    OutputTensor("text", "BYTES", (1, 1), np.array([[b"ok"]], dtype=object)),
]


def check(request: InferRequest, body: memoryview) -> None:
    """Each input has the elements that its shape promises, where the body has them."""
    first = np.frombuffer(body, np.uint8).__array_interface__["data"][0] if len(body) else 0
    for one in request.inputs:
        assert one.datatype in DATATYPES and all(extent >= 0 for extent in one.shape)
        if one.shm is not None:
            assert one.data is None and one.shm.offset >= 0 and one.shm.nbytes >= 0
            continue
        if isinstance(one.data, memoryview) and one.data.nbytes:
            start = np.frombuffer(one.data, np.uint8).__array_interface__["data"][0]
            assert first <= start <= first + len(body) - one.data.nbytes
        array = one.array()
        assert array.shape == tuple(one.shape)
        assert DATATYPES[one.datatype].storage == array.dtype


def over_http(flags: int, data: memoryview) -> None:
    length = None
    if flags & HAS_LENGTH:
        length, data = int.from_bytes(data[:2], "little"), data[2:]
    model = (ONE if length == 0 else MODEL) if flags & HELD else None
    request = http_codec.parse_infer(data, length, LIMITS, model)
    check(request, data)
    buffers, size = http_codec.build_infer("all", "1", request, OUTPUTS)
    assert size is None or size == len(buffers[0])


def over_grpc(flags: int, data: memoryview) -> None:
    whole = bytes(data)
    data = memoryview(whole)
    message, raw = grpc_codec.split_request(whole)
    request = grpc_codec.read_infer(message, raw, LIMITS, MODEL if flags & HELD else None)
    check(request, data)
    answer = b"".join(grpc_codec.build_infer("all", "1", request, OUTPUTS))
    shown = grpc_codec.MESSAGES["ModelInferResponse"].FromString(answer)
    assert len(shown.raw_output_contents) == len(shown.outputs)


def read(data: bytes) -> None:
    """Raises ProtocolError where it is no request."""
    (over_grpc if data[0] & GRPC else over_http)(data[0], memoryview(data)[1:])


def one_input(data: bytes) -> None:
    if not data:
        return
    try:
        read(data)
    except ProtocolError as error:
        assert error.status in (400, 413, 500) and error.sentence
        error.sentence.encode()  # a client is told it in UTF-8


def set_up() -> None:
    """Nothing is needed."""
