"""The protocol's gRPC messages: their classes, and the two that carry tensors.

Owns the classes. They are made when this module is imported, from the description that protoc made
of ``inference.proto``. That is a file of data, so any release of protobuf reads it; and it is
loaded into a pool of its own, so that Triton's client, whose messages have the same names, may be
imported beside it.

Protobuf copies every byte two or three times. So a request's tensors are cut out of its bytes
before protobuf parses the rest, and an answer's are put behind it: a message is a sequence of
fields, and the concatenation of two messages is one. Source: "Protocol Buffers: Encoding".

Pure as `protocol` is: bytes in, values out. Never lets protobuf see a tensor's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from shmgpu.serve.protocol import datatypes, http_codec
from shmgpu.serve.protocol.classification import best_classes
from shmgpu.serve.protocol.datatypes import DATATYPES, Datatype
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
    Scalar,
    SharedMemoryRef,
    refusal,
    show_name,
)
from shmgpu.serve.protocol.validation import check_request

_PROTO = Path(__file__).with_name("inference.proto")
DESCRIPTION = _PROTO.with_suffix(".binpb")


def _read() -> tuple[dict[str, Any], Any]:
    described = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTION.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    file = pool.FindFileByName(_PROTO.name)
    classes = {
        name: message_factory.GetMessageClass(found)
        for name, found in file.message_types_by_name.items()
    }
    return classes, file.services_by_name["GRPCInferenceService"]


MESSAGES, SERVICE = _read()

_InferRequest, _InferResponse = MESSAGES["ModelInferRequest"], MESSAGES["ModelInferResponse"]
_RAW_INPUT = _InferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_RAW_OUTPUT = _InferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_INFER_RESPONSE = (
    MESSAGES["ModelStreamInferResponse"].DESCRIPTOR.fields_by_name["infer_response"].number
)
MOST_FIELDS = 4096  # of a request, besides those of tensors: parameters, above all
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # how a field's value is written
_FIXED = {_FIXED64: 8, _FIXED32: 4}

# Where a tensor's elements are in its contents. FP16 and BF16 are raw only.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def split_request(
    data: bytes, limits: RequestLimits = DEFAULT_LIMITS
) -> tuple[Any, list[memoryview]]:
    """A ModelInferRequest without its raw_input_contents, and those, as views of the bytes.

    Raises:
        ProtocolError: status 400, the bytes are no such message, or beyond a limit; 413, protobuf
            would have too much to read.
    """
    try:
        rest, raw = _cut(memoryview(data), _RAW_INPUT, MOST_FIELDS + 4 * limits.tensors)
        size = sum(map(len, rest))
        if size > limits.message_bytes:
            raise ProtocolError(
                413,
                f"the request has {size} bytes besides raw_input_contents, and this server takes "
                f"{limits.message_bytes}: send tensors as raw_input_contents",
            )
        found = _InferRequest.FromString(b"".join(rest))
    except (IndexError, message.DecodeError):
        raise refusal(
            "the request is not a ModelInferRequest: send one as the protocol has it"
        ) from None
    for name in (found.model_name, found.model_version):
        if len(name) > limits.name_length:
            raise refusal(
                f"the model's name or version has {len(name)} characters, and this server takes "
                f"{limits.name_length}: shorten it"
            )
    return found, raw


def _cut(view: memoryview, wanted: int, most: int) -> tuple[list[memoryview], list[memoryview]]:
    """What is outside the fields of that number, and what is in them; IndexError at the end."""
    rest: list[memoryview] = []
    cut: list[memoryview] = []
    at = kept = fields = 0
    while at < len(view):
        fields += 1
        if fields > most:
            raise refusal(f"the request has more than {most} fields: send fewer tensors")
        start = at
        tag, at = _varint(view, at)
        kind, number = tag & 7, tag >> 3
        if kind == _VARINT:
            _, at = _varint(view, at)
        elif kind == _LENGTH:
            length, at = _varint(view, at)
            if length > len(view) - at:
                raise IndexError
            if number == wanted:
                rest.append(view[kept:start])
                cut.append(view[at : at + length])
                kept = at + length
            at += length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:  # groups, which no message of this protocol has
            raise IndexError
    rest.append(view[kept:])
    return rest, cut


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _field(number: int, length: int) -> bytes:
    """What stands before the bytes of a field."""
    written = bytearray()
    for value in (number << 3 | _LENGTH, length):
        while value > 0x7F:
            written.append(value & 0x7F | 0x80)
            value >>= 7
        written.append(value)
    return bytes(written)


def read_infer(
    request: Any,
    raw: Sequence[memoryview],
    limits: RequestLimits,
    model: ModelMetadata | None = None,
) -> InferRequest:
    """The request that a ModelInferRequest says, as `protocol.parse_infer` gives it.

    Args:
        request: the message, without its raw contents.
        raw: those, in order: one for each input that is not in shared memory; or none.
        limits: what a request may ask for.
        model: what it is held against.

    Raises:
        ProtocolError: status 400.
    """
    read = FieldReader(limits)
    for key, entries in (("inputs", request.inputs), ("outputs", request.outputs)):
        read.count(key, len(entries))
    result = read.request(request.id, _values(request.parameters))
    waiting = list(reversed(raw))
    for entry in request.inputs:
        result.inputs.append(_input(entry, read, waiting, bool(raw)))
    if waiting:
        raise refusal(
            f"the request has {len(raw)} raw_input_contents, {len(waiting)} more than inputs that "
            "are not in shared memory: send one for each",
        )
    for entry in request.outputs:
        result.outputs.append(
            read.output({"name": entry.name, "parameters": _values(entry.parameters)}, True)
        )
    read.finish(result, model)
    if model is not None:
        check_request(result, model)
    return result


def _values(parameters: Any) -> dict[str, Scalar | None]:
    values: dict[str, Scalar | None] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = getattr(parameter, choice) if choice else None
    return values


def _input(entry: Any, read: FieldReader, waiting: list[memoryview], is_raw: bool) -> InputTensor:
    described = {
        "name": entry.name,
        "datatype": entry.datatype,
        "shape": list(entry.shape),
        "parameters": _values(entry.parameters),
    }
    tensor, datatype, size = read.input(described)
    whose = f"input {show_name(tensor.name)}"
    has_contents = entry.HasField("contents")
    if size is not None:
        raise refusal(f"{whose} has 'binary_data_size', which belongs to HTTP: omit it")
    if tensor.shm is not None:
        if has_contents:
            raise refusal(f"{whose} has contents and lies in shared memory: omit one of them")
        return tensor
    try:
        if is_raw:
            if has_contents:
                raise ValueError("has contents beside raw_input_contents: send one of them")
            if not waiting:
                raise ValueError("has no raw_input_contents: send one for each input")
            tensor.data = waiting.pop()
            datatypes.check(datatype, tensor.shape, tensor.data)
        else:
            tensor.data = _contents(entry.contents, datatype, tensor.shape)
    except ValueError as error:
        raise refusal(f"{whose} {error}") from None
    return tensor


def _contents(contents: Any, datatype: Datatype, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    field_name = _CONTENTS.get(datatype.name)
    if field_name is None:
        raise ValueError(f"is {datatype.name}, which contents cannot carry: send it raw")
    for field, values in contents.ListFields():
        if field.name != field_name and len(values):
            raise ValueError(f"has {field.name}, and {datatype.name} elements are {field_name}")
    values = getattr(contents, field_name)
    wanted = datatypes.count(shape)
    if len(values) != wanted:
        raise ValueError(
            f"has {len(values)} elements in {field_name}, and its shape {list(shape)} has "
            f"{wanted}: "
            "correct the shape or the contents"
        )
    if datatype.kind == "bytes":
        array = np.empty(wanted, dtype=object)
        array[:] = list(values)
        return array.reshape(shape)
    return datatypes.from_numbers(datatype, values).reshape(shape)


def build_infer(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Sequence[OutputTensor],
    parameters: dict[str, Scalar] | None = None,
) -> list[bytes | memoryview]:
    """The bytes of a ModelInferResponse, as buffers in order.

    Arguments are those of `protocol.build_infer`. The outputs' elements are raw and are views of
    the arrays, which must not change until they are sent; an output in a region has none.

    Raises:
        ProtocolError: an output cannot be sent as it was asked for (400), or the model did not
            give it (500).
    """
    answer = _InferResponse(model_name=model_name, model_version=version, id=request.id)
    _set(answer.parameters, parameters or {})
    raw: list[bytes | memoryview] = []
    for wanted, output in http_codec.pair(model_name, request, outputs):
        datatype, shape, data = _raw(wanted, output)
        shown = answer.outputs.add(name=output.name, datatype=datatype.name, shape=shape)
        if wanted.shm is not None:
            _set(shown.parameters, _region_parameters(wanted.shm, output.nbytes))
        raw += [_field(_RAW_OUTPUT, len(data)), data]
    return [answer.SerializeToString(), *raw]


def _region_parameters(shm: SharedMemoryRef, nbytes: int) -> Parameters:
    """Those of an output that was written to a region."""
    return {
        "shared_memory_region": shm.region,
        "shared_memory_offset": shm.offset,
        "shared_memory_byte_size": nbytes,
    }


def _raw(
    wanted: RequestedOutput, output: OutputTensor
) -> tuple[Datatype, Sequence[int], bytes | memoryview]:
    datatype, array = DATATYPES[output.datatype], output.array
    if wanted.shm is not None:
        return datatype, output.shape, b""
    try:
        if wanted.classification:
            array = best_classes(output, wanted.classification)
            datatype = DATATYPES["BYTES"]
            return datatype, array.shape, datatypes.encode(datatype, array)
        if array is None:
            raise ValueError("has no elements to send, and was asked for in no region")
        data = array if isinstance(array, memoryview) else datatypes.encode(datatype, array)
        return datatype, output.shape, data
    except ValueError as error:
        raise refusal(f"output {show_name(output.name)} {error}") from None


def _set(parameters: Any, values: dict[str, Scalar]) -> None:
    for name, value in values.items():
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int):
            parameters[name].int64_param = value
        elif isinstance(value, float):
            parameters[name].double_param = value
        else:
            parameters[name].string_param = value


def in_stream(answer: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The bytes of the ModelStreamInferResponse that carries a ModelInferResponse."""
    return [_field(_INFER_RESPONSE, sum(map(len, answer))), *answer]
