"""An inference request read, its answer written: the Open Inference Protocol, version 2, over HTTP.

Owns the shape of the two bodies as Triton speaks them: JSON, then the bytes of binary tensors one
after the other. Pure: bytes in, values out. It opens nothing, waits for nothing, never imports
torch, and raises nothing but `ProtocolError`, whatever the bytes.

Binary inputs are views of the request's body, binary outputs views of the model's arrays: no byte
of a tensor is copied here. Sources: KServe's "Open Inference Protocol" page, and Triton's pages of
the binary tensor, classification, shared-memory, sequence and schedule-policy extensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from shmgpu.serve.protocol import datatypes, json_reader
from shmgpu.serve.protocol.classification import best_classes
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.fields import FieldReader
from shmgpu.serve.protocol.metadata import ModelMetadata
from shmgpu.serve.protocol.types import (
    DEFAULT_LIMITS,
    InferRequest,
    InputTensor,
    OutputTensor,
    Parameters,
    ProtocolError,
    RequestedOutput,
    RequestLimits,
    SharedMemoryRef,
    refusal,
    show_name,
)
from shmgpu.serve.protocol.validation import check_request, raw_request

__all__ = [
    "InferRequest",
    "InputTensor",
    "OutputTensor",
    "ProtocolError",
    "RequestLimits",
    "RequestedOutput",
    "SharedMemoryRef",
    "build_infer",
    "parse_infer",
]


def parse_infer(
    body: memoryview | bytes | bytearray,
    header_length: int | None,
    limits: RequestLimits = DEFAULT_LIMITS,
    model: ModelMetadata | None = None,
) -> InferRequest:
    """Reads the body of an infer request.

    Args:
        body: all of it, decompressed.
        header_length: the value of ``Inference-Header-Content-Length``: bytes of JSON that come
            before the binary data. None where the header is missing: all is JSON. 0 says that
            all is the model's only input.
        limits: what a request may ask for.
        model: what the request is held against; without it names, datatypes and shapes are the
            client's word, and ``header_length`` 0 is refused.

    Raises:
        ProtocolError: status 400, and 413 where ``limits.header_length`` is exceeded.
    """
    view = memoryview(body)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if header_length == 0:
        request = raw_request(view, model)
    else:
        request = _parse(view, header_length, limits, model)
    if model is not None:
        check_request(request, model)
    return request


def _parse(
    view: memoryview,
    header_length: int | None,
    limits: RequestLimits,
    model: ModelMetadata | None,
) -> InferRequest:
    size = len(view) if header_length is None else header_length
    if size < 0 or size > len(view):
        raise refusal(
            f"Inference-Header-Content-Length is {size}, and the request has {len(view)} bytes: "
            "set it to the bytes of the JSON that begins the request"
        )
    if size > limits.header_length:
        raise ProtocolError(
            413,
            f"the request has {size} bytes of JSON, and this server takes {limits.header_length}: "
            "send the tensors as binary data",
        )
    header = json_reader.read_object(
        bytes(view[:size]),
        limits,
        "correct it, or say with the header Inference-Header-Content-Length where its JSON ends",
    )
    read = FieldReader(limits)
    request = read.request(header.get("id", ""), header.get("parameters"))
    rest = _Binary(view[size:])
    for entry in _entries(header, "inputs", read):
        request.inputs.append(_input(entry, rest, read))
    rest.finish()
    for entry in _entries(header, "outputs", read):
        request.outputs.append(read.output(entry, request.binary_output))
    read.finish(request, model)
    return request


class _Binary:
    """The bytes behind the JSON, handed out in order."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest
        self.total = len(rest)

    def take(self, name: str, size: int) -> memoryview:
        if size > len(self.rest):
            raise refusal(
                f"input {show_name(name)} says it has {size} bytes of binary data, and "
                f"{len(self.rest)} of the {self.total} behind the JSON are left: correct "
                "'binary_data_size' or Inference-Header-Content-Length"
            )
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def finish(self) -> None:
        if len(self.rest):
            raise refusal(
                f"{len(self.rest)} of the {self.total} bytes behind the JSON belong to no input: "
                "give each input its 'binary_data_size', or correct "
                "Inference-Header-Content-Length"
            )


def _entries(header: dict[str, Any], key: str, read: FieldReader) -> list[dict[str, Any]]:
    entries = header.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(type(entry) is dict for entry in entries):
        raise refusal(f"'{key}' is not an array of objects: give each tensor as one object")
    read.count(key, len(entries))
    return entries


def _input(entry: dict[str, Any], rest: _Binary, read: FieldReader) -> InputTensor:
    tensor, datatype, size = read.input(entry)
    whose = f"input {show_name(tensor.name)}"
    if ("data" in entry) + (size is not None) + (tensor.shm is not None) != 1:
        given = [
            word
            for word, there in (
                ("'data'", "data" in entry),
                ("'binary_data_size'", size is not None),
                ("'shared_memory_region'", tensor.shm is not None),
            )
            if there
        ]
        raise refusal(
            f"{whose} has {' and '.join(given) or 'no data'}: give it one of 'data', "
            "'binary_data_size' and 'shared_memory_region'"
        )
    try:
        if size is not None:
            tensor.data = rest.take(tensor.name, size)
            datatypes.check(datatype, tensor.shape, tensor.data)
        elif tensor.shm is None:
            tensor.data = datatypes.from_json(datatype, tensor.shape, entry["data"])
    except ValueError as error:
        raise refusal(f"{whose} {error}") from None
    return tensor


def build_infer(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Sequence[OutputTensor],
    parameters: Parameters | None = None,
) -> tuple[list[bytes | memoryview], int | None]:
    """Writes the body of an infer response.

    Args:
        model_name: of the model that ran.
        version: of that model.
        request: what is answered: it says which outputs, how, and its id.
        outputs: what the model gave; those not asked for are left out.
        parameters: the answer's own, if any.

    Returns:
        The buffers that make the body, in order, and the value of its
        ``Inference-Header-Content-Length`` header; None where no output is binary. Buffers of
        binary outputs are views of the arrays, which must not change until they are sent.

    Raises:
        ProtocolError: an output cannot be sent as it was asked for (400), or the model did not
            give it (500).
    """
    shown: list[dict[str, Any]] = []
    buffers: list[bytes | memoryview] = []
    for wanted, output in pair(model_name, request, outputs):
        try:
            shown.append(_show_output(output, wanted, buffers))
        except ValueError as error:
            raise refusal(f"output {show_name(output.name)} {error}") from None
    answer: dict[str, Any] = {"model_name": model_name, "model_version": version}
    if request.id:
        answer["id"] = request.id
    if parameters:
        answer["parameters"] = parameters
    answer["outputs"] = shown
    header = orjson.dumps(answer)
    return [header, *buffers], len(header) if buffers or _binary(shown) else None


def pair(
    model_name: str, request: InferRequest, outputs: Sequence[OutputTensor]
) -> Iterator[tuple[RequestedOutput, OutputTensor]]:
    """What was asked for, each beside what the model gave; all of that where nothing was named.

    Raises:
        ProtocolError: status 500; the model did not give it.
    """
    if not request.outputs:
        for output in outputs:
            yield RequestedOutput(output.name, request.binary_output), output
        return
    given = {output.name: output for output in outputs}
    for wanted in request.outputs:
        found = given.get(wanted.name)
        if found is None:
            raise ProtocolError(
                500,
                f"model {show_name(model_name)} gave no output {show_name(wanted.name)}: look at "
                "what its function returns",
            )
        yield wanted, found


def _binary(shown: Sequence[dict[str, Any]]) -> bool:
    return any("binary_data_size" in output.get("parameters", ()) for output in shown)


def _show_output(
    output: OutputTensor, wanted: RequestedOutput, buffers: list[bytes | memoryview]
) -> dict[str, Any]:
    datatype, shape, array = DATATYPES[output.datatype], output.shape, output.array
    if wanted.classification:
        array = best_classes(output, wanted.classification)
        datatype, shape = DATATYPES["BYTES"], array.shape
    shown: dict[str, Any] = {"name": output.name, "datatype": datatype.name, "shape": list(shape)}
    if wanted.shm is not None:
        # No parameters, as Triton: its client in C++ takes any for a binary tensor's.
        return shown
    if array is None:
        raise ValueError("has no elements to send, and was asked for in no region")
    if wanted.binary:
        data = array if isinstance(array, memoryview) else datatypes.encode(datatype, array)
        shown["parameters"] = {"binary_data_size": data.nbytes}
        if data.nbytes:
            buffers.append(data)
    else:
        if isinstance(array, memoryview):
            array = datatypes.decode(datatype, shape, array)
        shown["data"] = orjson.Fragment(datatypes.to_json(datatype, array))
    return shown
