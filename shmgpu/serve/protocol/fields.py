"""Checks of what a request says, apart from its tensors' bytes: names, shapes, parameters, regions.

Owns the error sentence of each. Both front ends describe a tensor as JSON does, by ``name``,
``datatype``, ``shape`` and ``parameters``; where its elements lie is up to them. Never reads an
element.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.datatypes import DATATYPES, Datatype
from shmgpu.serve.protocol.metadata import ModelMetadata
from shmgpu.serve.protocol.types import (
    InferRequest,
    InputTensor,
    Parameters,
    RequestedOutput,
    RequestLimits,
    SharedMemoryRef,
    refusal,
    show_name,
)


class FieldReader:
    """Reads the descriptions of one request. Every method raises ProtocolError, status 400."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.strings = limits.strings  # BYTES elements that the request may still have

    def count(self, key: str, number: int) -> None:
        """Refuses more tensors than the limit."""
        if number > self.limits.tensors:
            raise refusal(
                f"the request has {number} {key}, and this server takes {self.limits.tensors}: "
                "put the values into fewer tensors"
            )

    def request(self, name: Any, given: Any) -> InferRequest:
        """The request without its tensors: its id and its parameters."""
        whose = "the request"
        parameters = self._parameters(given, whose)
        request = InferRequest(self._text(name, "'id'"), parameters)
        request.binary_output = _flag(parameters, "binary_data_output", whose)
        request.sequence_start = _flag(parameters, "sequence_start", whose)
        request.sequence_end = _flag(parameters, "sequence_end", whose)
        sequence = parameters.get("sequence_id")
        if not isinstance(sequence, str):
            sequence = _natural(parameters, "sequence_id", whose)
        request.sequence_id = sequence or 0
        request.priority = _natural(parameters, "priority", whose) or 0
        request.timeout_us = _natural(parameters, "timeout", whose) or 0
        if (request.sequence_start or request.sequence_end) and not request.sequence_id:
            raise refusal(
                "the request begins or ends a sequence without a 'sequence_id': give it the "
                "sequence's number or name"
            )
        if parameters:
            request.for_model = self._for_model(parameters)
        return request

    def _for_model(self, parameters: Parameters) -> str:
        """Those that are not this protocol's own, as JSON: one text, however many there are."""
        own = {
            key: value
            for key, value in parameters.items()
            if key not in _OF_THE_PROTOCOL and not key.startswith("triton_")
        }
        if not own:
            return ""
        text = json.dumps(own, separators=(",", ":"))
        if len(text) > self.limits.parameter_bytes:
            raise refusal(
                f"the request's parameters take {len(text)} bytes as JSON, and this server takes "
                f"{self.limits.parameter_bytes}: send what is long as an input"
            )
        return text

    def input(self, entry: dict[str, Any]) -> tuple[InputTensor, Datatype, int | None]:
        """An input without its elements, its datatype, and its ``binary_data_size``."""
        name = self._name(entry, "an input")
        whose = f"input {show_name(name)}"
        datatype = _datatype(entry.get("datatype"), whose)
        shape = self._shape(entry.get("shape"), whose)
        parameters = self._parameters(entry.get("parameters"), whose)
        elements = datatypes.count(shape)
        if datatype.kind == "bytes":
            self.strings -= elements
            if self.strings < 0:
                raise refusal(
                    f"{whose} brings the request's BYTES elements above the "
                    f"{self.limits.strings} that this server takes: send fewer in one request"
                )
        tensor = InputTensor(name, datatype.name, shape, parameters=parameters)
        size = None
        if parameters:
            tensor.shm = shm = self._place(parameters, whose)
            size = _natural(parameters, "binary_data_size", whose)
            parameters.pop("binary_data_size", None)
            if shm is not None and datatype.itemsize and shm.nbytes != elements * datatype.itemsize:
                raise refusal(
                    f"{whose} has an input byte size mismatch for {datatype.name} elements in the "
                    f"shape {list(shape)}. Expected {elements * datatype.itemsize}, got "
                    f"'shared_memory_byte_size' {shm.nbytes}: correct the size or the shape"
                )
        return tensor, datatype, size

    def output(self, entry: dict[str, Any], binary: bool) -> RequestedOutput:
        """An output that is asked for; ``binary`` unless it says otherwise."""
        name = self._name(entry, "an output")
        whose = f"output {show_name(name)}"
        parameters = self._parameters(entry.get("parameters"), whose)
        if not parameters:
            return RequestedOutput(name, binary)
        shm = self._place(parameters, whose)
        classes = _natural(parameters, "classification", whose) or 0
        if shm is not None and classes:
            raise refusal(
                f"{whose} asks for a classification in shared memory: omit either "
                "'classification' or 'shared_memory_region'"
            )
        binary = _flag(parameters, "binary_data", whose, binary)
        for read in ("classification", "binary_data"):
            parameters.pop(read, None)
        return RequestedOutput(name, binary and shm is None, classes, shm, parameters)

    def finish(self, request: InferRequest, model: ModelMetadata | None) -> None:
        """Refuses a request without inputs that needs some, and names that are there twice."""
        if not request.inputs and not (model is not None and model.needs_none):
            raise refusal("the request has no inputs: name at least one in 'inputs'")
        _once("input", [tensor.name for tensor in request.inputs])
        _once("output", [output.name for output in request.outputs])

    def _place(self, parameters: Parameters, whose: str) -> SharedMemoryRef | None:
        region = parameters.pop("shared_memory_region", None)
        size = _natural(parameters, "shared_memory_byte_size", whose)
        offset = _natural(parameters, "shared_memory_offset", whose)
        for read in ("shared_memory_byte_size", "shared_memory_offset"):
            parameters.pop(read, None)
        if region is None:
            if size is not None or offset is not None:
                raise refusal(
                    f"{whose} has a size or offset in shared memory, and no "
                    "'shared_memory_region': name the region"
                )
            return None
        text = self._text(region, f"'shared_memory_region' of {whose}")
        if not text or size is None:
            raise refusal(
                f"{whose} lies in shared memory that is not named: give 'shared_memory_region' "
                "and 'shared_memory_byte_size'"
            )
        return SharedMemoryRef(text, offset or 0, size)

    def _name(self, entry: dict[str, Any], noun: str) -> str:
        name = entry.get("name")
        if not name:
            raise refusal(f"{noun} has no name: give its 'name' as the model's metadata has it")
        return self._text(name, f"'name' of {noun}")

    def _text(self, value: Any, what: str) -> str:
        if not isinstance(value, str):
            raise refusal(f"{what} is not text: pass a string")
        if len(value) > self.limits.name_length:
            raise refusal(
                f"{what} has {len(value)} characters, and this server takes "
                f"{self.limits.name_length}: shorten it"
            )
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise refusal(f"{what} is not Unicode text: correct it") from None
        return value

    def _shape(self, value: Any, whose: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(extent) is int for extent in value):
            raise refusal(
                f"{whose} has no 'shape' of whole numbers: give one extent for each dimension"
            )
        if len(value) > self.limits.rank:
            raise refusal(
                f"{whose} has {len(value)} dimensions, and this server takes "
                f"{self.limits.rank}: send it with fewer"
            )
        elements = 1
        for extent in value:
            if extent < 0:
                raise refusal(
                    f"{whose} has the negative extent {extent} in its shape: give its real one"
                )
            elements *= max(extent, 1)
            if elements >= 1 << 60:
                raise refusal(
                    f"{whose} has a shape of more elements than memory has: correct the shape"
                )
        return tuple(value)

    def _parameters(self, value: Any, whose: str) -> Parameters:
        if not value and (value is None or type(value) is dict):
            return {}
        if type(value) is not dict:
            raise refusal(f"the 'parameters' of {whose} are not an object: give names and values")
        if len(value) > self.limits.parameters:
            raise refusal(
                f"{whose} has {len(value)} parameters, and this server takes "
                f"{self.limits.parameters}: send fewer"
            )
        for key, item in value.items():
            self._text(key, f"a parameter's name of {whose}")
            if type(item) not in _SCALARS:
                raise refusal(
                    f"parameter {show_name(key)} of {whose} is not a string, number or boolean: "
                    "give one"
                )
        return value


_SCALARS = {bool, int, float, str}

# What the server itself acts on.
_OF_THE_PROTOCOL = {
    "binary_data_output",
    "priority",
    "sequence_end",
    "sequence_id",
    "sequence_start",
    "timeout",
}


def _datatype(value: Any, whose: str) -> Datatype:
    row = DATATYPES.get(value) if isinstance(value, str) else None
    if row is None:
        shown = show_name(value) if isinstance(value, str) else "none that is text"
        raise refusal(f"{whose} has the datatype {shown}: give one of {', '.join(DATATYPES)}")
    return row


def _natural(parameters: Parameters, key: str, whose: str) -> int | None:
    value = parameters.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise refusal(f"'{key}' of {whose} is not a whole number from 0: correct it")
    return value


def _flag(parameters: Parameters, key: str, whose: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise refusal(f"'{key}' of {whose} is neither true nor false: correct it")
    return value


def _once(noun: str, names: Sequence[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice = next(name for name in names if names.count(name) > 1)
    raise refusal(f"{noun} {show_name(twice)} is given twice: give each {noun} once")
