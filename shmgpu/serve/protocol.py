"""An inference request read, its answer written: the Open Inference Protocol, version 2.

Owns the shape of the two bodies as Triton speaks them over HTTP: JSON, then the bytes of binary
tensors one after the other. Pure: bytes in, values out. It opens nothing, waits for nothing, never
imports torch, and raises nothing but `ProtocolError`, whatever the bytes.

Binary inputs are views of the request's body, binary outputs views of the model's arrays: no byte
of a tensor is copied here. Sources: KServe's "Open Inference Protocol" page, and Triton's pages of
the binary tensor, classification, shared-memory, sequence and schedule-policy extensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from shmgpu.serve import datatypes
from shmgpu.serve.datatypes import DATATYPES, Datatype
from shmgpu.serve.metadata import ANY, ModelMetadata, TensorMetadata

Scalar = bool | int | float | str
Parameters = dict[str, Scalar]


class ProtocolError(Exception):
    """A request that cannot be served.

    Attributes:
        status: the HTTP status code.
        sentence: what was wrong and what to do; the client's ``error``.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask of the parser; each breach is status 400.

    Attributes:
        tensors: inputs, and outputs, of one request.
        name_length: characters of a tensor's or region's name and of the request's id.
        rank: dimensions of a shape.
        json_depth: arrays and objects inside each other.
        parameters: of the request, and of each tensor.
        strings: elements of BYTES tensors in one request: each costs far more than its bytes.
        header_length: bytes of JSON before binary data, or of a request without such data.
    """

    tensors: int = 256
    name_length: int = 1024
    rank: int = 32
    json_depth: int = 64
    parameters: int = 64
    strings: int = 1 << 20
    header_length: int = 64 << 20


@dataclass(slots=True)
class SharedMemoryRef:
    """Bytes of a registered region: ``offset`` and ``nbytes`` within what was registered."""

    region: str
    offset: int
    nbytes: int


@dataclass(slots=True)
class InputTensor:
    """One input.

    Attributes:
        name: as the model calls it.
        datatype: a name of `DATATYPES`.
        shape: extents.
        data: a view of the request's body in the binary encoding, checked; or an array, of
            ``DATATYPES[datatype].storage``, that JSON gave; None where ``shm`` holds the bytes.
        shm: where they lie instead.
        parameters: the tensor's other parameters.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | np.ndarray[Any, Any] | None = None
    shm: SharedMemoryRef | None = None
    parameters: Parameters = field(default_factory=dict)

    def array(self) -> np.ndarray[Any, Any]:
        """Its elements as an array; nothing is copied but BYTES."""
        if isinstance(self.data, np.ndarray):
            return self.data
        assert self.data is not None, "the elements lie in a region"
        return datatypes.decode(DATATYPES[self.datatype], self.shape, self.data)


@dataclass(slots=True)
class RequestedOutput:
    """One output that the client asked for.

    Attributes:
        name: as the model calls it.
        binary: its bytes follow the JSON.
        classification: this many best classes are wanted, not the tensor; 0 for the tensor.
        shm: the region that takes its bytes.
        parameters: the output's other parameters.
    """

    name: str
    binary: bool = False
    classification: int = 0
    shm: SharedMemoryRef | None = None
    parameters: Parameters = field(default_factory=dict)


@dataclass(slots=True)
class InferRequest:
    """One inference request.

    Attributes:
        id: the client's own, given back with the answer; empty for none.
        parameters: the request's, all of them.
        inputs: in the request's order.
        outputs: those asked for; empty for all that the model has.
        binary_output: outputs are binary unless they say otherwise.
        sequence_id: of a stateful model's sequence; 0 for none.
        sequence_start: it begins with this request.
        sequence_end: it ends with this request.
        priority: 1 is the highest; 0 is the model's own.
        timeout_us: microseconds that it may wait in the queue; 0 is for ever.
    """

    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    inputs: list[InputTensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    binary_output: bool = False
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0


@dataclass(slots=True)
class OutputTensor:
    """One output of the model.

    Attributes:
        name: as the model calls it.
        datatype: a name of `DATATYPES`.
        shape: extents.
        array: its elements; or their bytes in the binary encoding; None where they were written
            to the region that the request named.
        labels: of its classes.
        nbytes: of what was written to that region.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: np.ndarray[Any, Any] | memoryview | None
    labels: tuple[str, ...] = ()
    nbytes: int = 0


def parse_infer(
    body: memoryview | bytes | bytearray,
    header_length: int | None,
    limits: Limits = Limits(),
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
        request = _raw(view, model)
    else:
        request = _parse(view, header_length, limits)
    if model is not None:
        check_request(request, model)
    return request


def _parse(view: memoryview, header_length: int | None, limits: Limits) -> InferRequest:
    size = len(view) if header_length is None else header_length
    if size < 0 or size > len(view):
        raise _bad(
            f"Inference-Header-Content-Length is {size}, and the request has {len(view)} bytes: "
            "set it to the bytes of the JSON that begins the request"
        )
    if size > limits.header_length:
        raise ProtocolError(
            413,
            f"the request has {size} bytes of JSON, and this server takes {limits.header_length}: "
            "send the tensors as binary data",
        )
    header = _load(view[:size])
    if not isinstance(header, dict):
        raise _bad("the request is no JSON object: send one with 'inputs'")
    _check_depth(header, limits)
    request = InferRequest(
        id=_text(header.get("id", ""), "'id'", limits),
        parameters=_parameters(header.get("parameters"), "the request", limits),
    )
    _read_parameters(request)
    rest = _Binary(view[size:])
    strings = limits.strings
    for entry in _entries(header, "inputs", limits):
        tensor = _input(entry, rest, limits, strings)
        if tensor.datatype == "BYTES":
            strings -= datatypes.count(tensor.shape)
        request.inputs.append(tensor)
    rest.finish()
    for entry in _entries(header, "outputs", limits):
        request.outputs.append(_output(entry, request.binary_output, limits))
    for noun, names in (
        ("input", [tensor.name for tensor in request.inputs]),
        ("output", [output.name for output in request.outputs]),
    ):
        _once(noun, names)
    if not request.inputs:
        raise _bad("the request has no inputs: name at least one in 'inputs'")
    return request


def _load(header: memoryview) -> Any:
    try:
        return orjson.loads(header)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    # Triton's clients write numbers that are not finite as NaN and Infinity, which are no JSON.
    text = bytes(header)
    if b"NaN" in text or b"Infinity" in text:
        try:
            return json.loads(text.decode())
        except (ValueError, RecursionError):
            pass
    raise _bad(
        f"the request is not JSON ({reason}): mend it, or say with the header "
        "Inference-Header-Content-Length where its JSON ends"
    )


def _check_depth(header: dict[str, Any], limits: Limits) -> None:
    """Refuses JSON that is nested too deeply, tensors' data aside: their shapes bound it."""
    level: list[Any] = [header]
    for _ in range(limits.json_depth):
        deeper: list[Any] = []
        for value in level:
            items: Iterable[Any] = value
            if type(value) is dict:
                items = (item for key, item in value.items() if key != "data")
            deeper += [item for item in items if type(item) is dict or type(item) is list]
        if not deeper:
            return
        level = deeper
    raise _bad(
        f"the request's JSON is nested deeper than {limits.json_depth}: send tensors flat, or as "
        "binary data"
    )


class _Binary:
    """The bytes behind the JSON, handed out in order."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest
        self.total = len(rest)

    def take(self, name: str, size: int) -> memoryview:
        if size > len(self.rest):
            raise _bad(
                f"input {_show(name)} says it has {size} bytes of binary data, and "
                f"{len(self.rest)} of the {self.total} behind the JSON are left: correct "
                "'binary_data_size' or Inference-Header-Content-Length"
            )
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def finish(self) -> None:
        if len(self.rest):
            raise _bad(
                f"{len(self.rest)} of the {self.total} bytes behind the JSON belong to no input: "
                "give each input its 'binary_data_size', or correct "
                "Inference-Header-Content-Length"
            )


def _entries(header: dict[str, Any], key: str, limits: Limits) -> list[dict[str, Any]]:
    entries = header.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(type(entry) is dict for entry in entries):
        raise _bad(f"'{key}' is no array of objects: give each tensor as one object")
    if len(entries) > limits.tensors:
        raise _bad(
            f"the request has {len(entries)} {key}, and this server takes {limits.tensors}: "
            "put the values into fewer tensors"
        )
    return entries


def _input(entry: dict[str, Any], rest: _Binary, limits: Limits, strings: int) -> InputTensor:
    name = _name(entry, "an input", limits)
    whose = f"input {_show(name)}"
    datatype = _datatype(entry.get("datatype"), whose)
    shape = _shape(entry.get("shape"), whose, limits)
    parameters = _parameters(entry.get("parameters"), whose, limits)
    if datatype.kind == "bytes" and datatypes.count(shape) > strings:
        raise _bad(
            f"{whose} brings the request's BYTES elements above the {limits.strings} that this "
            "server takes: send fewer in one request"
        )
    shm = _region(parameters, whose, limits)
    size = _natural(parameters.pop("binary_data_size", None), "'binary_data_size'", whose)
    given = [
        word
        for word, there in (
            ("'data'", "data" in entry),
            ("'binary_data_size'", size is not None),
            ("'shared_memory_region'", shm is not None),
        )
        if there
    ]
    if len(given) != 1:
        raise _bad(
            f"{whose} has {' and '.join(given) or 'no data'}: give it one of 'data', "
            "'binary_data_size' and 'shared_memory_region'"
        )
    tensor = InputTensor(name, datatype.name, shape, shm=shm, parameters=parameters)
    try:
        if shm is not None:
            if (
                datatype.kind != "bytes"
                and shm.nbytes != datatypes.count(shape) * datatype.itemsize
            ):
                raise ValueError(
                    f"has 'shared_memory_byte_size' {shm.nbytes}, and {datatype.name} elements in "
                    f"the shape {list(shape)} take {datatypes.count(shape) * datatype.itemsize}"
                )
        elif size is not None:
            tensor.data = rest.take(name, size)
            datatypes.check(datatype, shape, tensor.data)
        else:
            tensor.data = datatypes.from_json(datatype, shape, entry["data"])
    except ValueError as error:
        raise _bad(f"{whose} {error}") from None
    return tensor


def _output(entry: dict[str, Any], binary: bool, limits: Limits) -> RequestedOutput:
    name = _name(entry, "an output", limits)
    whose = f"output {_show(name)}"
    parameters = _parameters(entry.get("parameters"), whose, limits)
    shm = _region(parameters, whose, limits)
    classes = _natural(parameters.pop("classification", None), "'classification'", whose)
    if shm is not None and classes:
        raise _bad(
            f"{whose} asks for a classification in shared memory: leave one of "
            "'classification' and 'shared_memory_region' away"
        )
    asked = _flag(parameters.pop("binary_data", binary), "'binary_data'", whose)
    return RequestedOutput(name, asked and shm is None, classes or 0, shm, parameters)


def _region(parameters: Parameters, whose: str, limits: Limits) -> SharedMemoryRef | None:
    region = parameters.pop("shared_memory_region", None)
    size = _natural(
        parameters.pop("shared_memory_byte_size", None), "'shared_memory_byte_size'", whose
    )
    offset = _natural(parameters.pop("shared_memory_offset", None), "'shared_memory_offset'", whose)
    if region is None:
        if size is not None or offset is not None:
            raise _bad(
                f"{whose} has a size or offset in shared memory, and no "
                "'shared_memory_region': name the region"
            )
        return None
    text = _text(region, f"'shared_memory_region' of {whose}", limits)
    if not text or size is None:
        raise _bad(
            f"{whose} lies in shared memory without its place: give 'shared_memory_region' and "
            "'shared_memory_byte_size'"
        )
    return SharedMemoryRef(text, offset or 0, size)


def _read_parameters(request: InferRequest) -> None:
    parameters, whose = request.parameters, "the request"
    request.binary_output = _flag(
        parameters.get("binary_data_output", False), "'binary_data_output'", whose
    )
    request.sequence_start = _flag(
        parameters.get("sequence_start", False), "'sequence_start'", whose
    )
    request.sequence_end = _flag(parameters.get("sequence_end", False), "'sequence_end'", whose)
    sequence = parameters.get("sequence_id", 0)
    if not isinstance(sequence, str):
        sequence = _natural(sequence, "'sequence_id'", whose) or 0
    request.sequence_id = sequence or 0
    request.priority = _natural(parameters.get("priority"), "'priority'", whose) or 0
    request.timeout_us = _natural(parameters.get("timeout"), "'timeout'", whose) or 0
    if (request.sequence_start or request.sequence_end) and not request.sequence_id:
        raise _bad(
            "the request begins or ends a sequence without a 'sequence_id': give it the "
            "sequence's number or name"
        )


# Values of the JSON


def _bad(sentence: str) -> ProtocolError:
    return ProtocolError(400, sentence)


def _show(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


def _once(noun: str, names: Sequence[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice = next(name for name in names if names.count(name) > 1)
    raise _bad(f"{noun} {_show(twice)} is there twice: give each {noun} once")


def _name(entry: dict[str, Any], noun: str, limits: Limits) -> str:
    if not entry.get("name"):
        raise _bad(f"{noun} has no name: give its 'name' as the model's metadata has it")
    return _text(entry["name"], f"'name' of {noun}", limits)


def _text(value: Any, what: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise _bad(f"{what} is no text: give it as a string")
    if len(value) > limits.name_length:
        raise _bad(
            f"{what} has {len(value)} characters, and this server takes {limits.name_length}: "
            "shorten it"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad(f"{what} is no Unicode text: correct it") from None
    return value


def _datatype(value: Any, whose: str) -> Datatype:
    row = DATATYPES.get(value) if isinstance(value, str) else None
    if row is None:
        shown = _show(value) if isinstance(value, str) else "none that is text"
        raise _bad(f"{whose} has the datatype {shown}: give one of {', '.join(DATATYPES)}")
    return row


def _shape(value: Any, whose: str, limits: Limits) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(extent) is int for extent in value):
        raise _bad(f"{whose} has no 'shape' of whole numbers: give one extent for each dimension")
    return check_shape(value, whose, limits)


def check_shape(shape: Sequence[int], whose: str, limits: Limits) -> tuple[int, ...]:
    """The shape, if a tensor can have it; ``whose`` begins the sentence of the error."""
    if len(shape) > limits.rank:
        raise _bad(
            f"{whose} has {len(shape)} dimensions, and this server takes {limits.rank}: "
            "send it with fewer"
        )
    elements = 1
    for extent in shape:
        if extent < 0:
            raise _bad(f"{whose} has the negative extent {extent} in its shape: give its real one")
        elements *= max(extent, 1)
        if elements >= 1 << 60:
            raise _bad(f"{whose} has a shape of more elements than memory has: correct the shape")
    return tuple(shape)


def _parameters(value: Any, whose: str, limits: Limits) -> Parameters:
    if value is None:
        return {}
    if type(value) is not dict:
        raise _bad(f"the 'parameters' of {whose} are no object: give names and values")
    if len(value) > limits.parameters:
        raise _bad(
            f"{whose} has {len(value)} parameters, and this server takes {limits.parameters}: "
            "send fewer"
        )
    for key, item in value.items():
        _text(key, f"a parameter's name of {whose}", limits)
        if type(item) not in (bool, int, float, str):
            raise _bad(
                f"parameter {_show(key)} of {whose} is no string, number or boolean: give one"
            )
    return value


def _natural(value: Any, what: str, whose: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise _bad(f"{what} of {whose} is no whole number from 0: correct it")
    return value


def _flag(value: Any, what: str, whose: str) -> bool:
    if type(value) is not bool:
        raise _bad(f"{what} of {whose} is neither true nor false: correct it")
    return value


# Against the model


def _raw(view: memoryview, model: ModelMetadata | None) -> InferRequest:
    """The request whose whole body is the model's only input."""
    if model is None:
        raise _bad("Inference-Header-Content-Length is 0, and this request needs its JSON")
    if len(model.inputs) != 1:
        raise _bad(
            f"model {_show(model.name)} has {len(model.inputs)} inputs, and a request of binary "
            "data alone can carry one: send the JSON that says which is which"
        )
    tensor = model.inputs[0]
    datatype = DATATYPES[tensor.datatype]
    whose = f"input {_show(tensor.name)}"
    shape = list(tensor.shape)
    if model.max_batch_size and shape and shape[0] == ANY:
        shape[0] = 1
    data: memoryview | np.ndarray[Any, Any] = view
    if datatype.kind == "bytes":
        # The body is the one element, without its length.
        shape = [1 if extent == ANY else extent for extent in shape]
        if datatypes.count(shape) != 1:
            raise _bad(
                f"{whose} has the shape {list(tensor.shape)}, and a request of binary data alone "
                "carries one BYTES element: send the JSON that gives the shape"
            )
        data = np.empty(tuple(shape), dtype=object)
        data.reshape(-1)[0] = bytes(view)
        return InferRequest(inputs=[InputTensor(tensor.name, datatype.name, tuple(shape), data)])
    if shape.count(ANY) > 1:
        raise _bad(
            f"{whose} has the shape {list(tensor.shape)}, of which a request of binary data alone "
            "can leave one extent open: send the JSON that gives the shape"
        )
    if ANY in shape:
        row = datatype.itemsize * datatypes.count([extent for extent in shape if extent != ANY])
        if row == 0 or len(view) % row:
            raise _bad(
                f"{whose} takes a multiple of {row} bytes for its shape {list(tensor.shape)}, and "
                f"the request has {len(view)}: correct the data"
            )
        shape[shape.index(ANY)] = len(view) // row
    try:
        datatypes.check(datatype, shape, view)
    except ValueError as error:
        raise _bad(f"{whose} {error}") from None
    return InferRequest(inputs=[InputTensor(tensor.name, datatype.name, tuple(shape), view)])


def check_request(request: InferRequest, model: ModelMetadata) -> None:
    """Raises ProtocolError, status 400, unless the model takes and gives what the request names."""
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for tensor in request.inputs:
        _check_input(tensor, inputs.get(tensor.name), model)
    sent = {tensor.name for tensor in request.inputs}
    missing = [
        tensor.name for tensor in model.inputs if tensor.name not in sent and not tensor.optional
    ]
    if missing:
        raise _bad(
            f"model {_show(model.name)} needs {_list('input', missing)}, which the request has "
            "not: send it"
        )
    outputs = {tensor.name: tensor for tensor in model.outputs}
    for output in request.outputs:
        found = outputs.get(output.name)
        if found is None:
            raise _bad(
                f"unexpected output {_show(output.name)}: model {_show(model.name)} has "
                f"{_list('output', list(outputs))}"
            )
        if output.classification and found.datatype in _NO_CLASSES:
            raise _bad(
                f"output {_show(output.name)} is {found.datatype}, of which there are no best "
                "classes: leave 'classification' away"
            )


_NO_CLASSES = ("BOOL", "BYTES")


def _check_input(tensor: InputTensor, wanted: TensorMetadata | None, model: ModelMetadata) -> None:
    if wanted is None:
        raise _bad(
            f"unexpected input {_show(tensor.name)}: model {_show(model.name)} has "
            f"{_list('input', [known.name for known in model.inputs])}"
        )
    if tensor.datatype != wanted.datatype:
        raise _bad(
            f"input {_show(tensor.name)} is {tensor.datatype}, and model {_show(model.name)} takes "
            f"{wanted.datatype}: convert it"
        )
    if not wanted.fits(tensor.shape):
        raise _bad(
            f"unexpected shape {list(tensor.shape)} for input {_show(tensor.name)}: model "
            f"{_show(model.name)} takes {list(wanted.shape)}, where -1 is any"
        )
    if model.max_batch_size and tensor.shape and tensor.shape[0] > model.max_batch_size:
        raise _bad(
            f"input {_show(tensor.name)} has {tensor.shape[0]} rows, and model "
            f"{_show(model.name)} takes {model.max_batch_size}: send them in several requests"
        )


def _list(noun: str, names: Sequence[str]) -> str:
    shown = ", ".join(_show(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{noun if len(names) == 1 else noun + 's'} {shown}" if names else f"no {noun}s"


# The answer


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
    given = {output.name: output for output in outputs}
    asked: Sequence[RequestedOutput] = request.outputs or [
        RequestedOutput(output.name, request.binary_output) for output in outputs
    ]
    shown: list[dict[str, Any]] = []
    buffers: list[bytes | memoryview] = []
    for wanted in asked:
        output = given.get(wanted.name)
        if output is None:
            raise ProtocolError(
                500,
                f"model {_show(model_name)} gave no output {_show(wanted.name)}: look at what its "
                "function returns",
            )
        try:
            shown.append(_show_output(output, wanted, buffers))
        except ValueError as error:
            raise ProtocolError(400, f"output {_show(output.name)} {error}") from None
    answer: dict[str, Any] = {"model_name": model_name, "model_version": version}
    if request.id:
        answer["id"] = request.id
    if parameters:
        answer["parameters"] = parameters
    answer["outputs"] = shown
    header = orjson.dumps(answer)
    return [header, *buffers], len(header) if buffers or _binary(shown) else None


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
        shown["parameters"] = {
            "shared_memory_region": wanted.shm.region,
            "shared_memory_offset": wanted.shm.offset,
            "shared_memory_byte_size": output.nbytes,
        }
    elif array is None:
        raise ValueError("has no elements to send, and was asked for in no region")
    elif wanted.binary:
        data = array if isinstance(array, memoryview) else datatypes.encode(datatype, array)
        shown["parameters"] = {"binary_data_size": data.nbytes}
        if data.nbytes:
            buffers.append(data)
    else:
        if isinstance(array, memoryview):
            array = datatypes.decode(datatype, shape, array)
        shown["data"] = orjson.Fragment(datatypes.to_json(datatype, array))
    return shown


def best_classes(output: OutputTensor, classes: int) -> np.ndarray[Any, Any]:
    """The classification extension: ``score:index`` or ``score:index:label``, the best first.

    Args:
        output: scores of shape [classes], or [rows, ...] where all but the rows are classes.
        classes: how many of the best are wanted.

    Returns:
        An array of ``bytes`` of shape [classes] or [rows, classes].

    Raises:
        ValueError: the output's elements have no order.
    """
    datatype = DATATYPES[output.datatype]
    if datatype.name in _NO_CLASSES or output.array is None:
        raise ValueError(
            f"is {datatype.name}, of which there are no best classes: leave 'classification' away"
        )
    array = output.array
    if isinstance(array, memoryview):
        array = datatypes.decode(datatype, output.shape, array)
    if datatype.name == "BF16":
        array = datatypes.widen_bf16(np.ascontiguousarray(array).view(np.int16))
    batched = array.ndim > 1
    rows = array.reshape(array.shape[0] if batched else 1, -1) if array.size else array
    if not array.size:
        return np.empty((array.shape[0], 0) if batched else (0,), dtype=object)
    classes = min(classes, rows.shape[1])
    write = "%d:%d" if datatype.kind == "int" else "%f:%d"
    found = np.empty((rows.shape[0], classes), dtype=object)
    for number, row in enumerate(rows):
        for place, index in enumerate(_best(row, classes)):
            text = write % (row[index], index)
            if index < len(output.labels):
                text = f"{text}:{output.labels[index]}"
            found[number, place] = text.encode()
    return found if batched else found[0]


def _best(row: np.ndarray[Any, Any], classes: int) -> list[int]:
    """Indices of the greatest scores, the lower first among equals; NaN is the least."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    ascending = np.argsort(row[::-1], kind="stable")
    return (len(row) - 1 - ascending[::-1][:classes]).tolist()  # type: ignore[no-any-return]
