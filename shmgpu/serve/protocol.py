"""The infer request and response of the Open Inference Protocol: bytes to tensors and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from shmgpu.serve import datatypes


class ProtocolError(Exception):
    """A request is wrong: the status to answer with, and why, in a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(slots=True)
class SharedMemoryRef:
    """Where in a registered region a tensor lies."""

    region: str
    offset: int
    byte_size: int


@dataclass(slots=True)
class InputTensor:
    """One input of a request."""

    name: str
    datatype: str
    shape: list[int]
    data: Any = None
    shm: SharedMemoryRef | None = None


@dataclass(slots=True)
class RequestedOutput:
    """One output that was asked for."""

    name: str
    binary: bool = False
    classification: int = 0
    shm: SharedMemoryRef | None = None


@dataclass(slots=True)
class InferRequest:
    """A request."""

    id: str
    parameters: dict[str, Any]
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] = field(default_factory=list)


@dataclass(slots=True)
class OutputTensor:
    """One output of a response."""

    name: str
    datatype: str
    shape: Sequence[int]
    array: Any


def parse_infer(body: memoryview, header_length: int | None, limits: Any = None) -> InferRequest:
    """Read a request's body."""
    end = len(body) if header_length is None else header_length
    if end > len(body):
        raise ProtocolError(400, "the body is shorter than Inference-Header-Content-Length says")
    try:
        head = orjson.loads(body[:end])
        offset = end
        inputs = []
        for one in head["inputs"]:
            parameters = one.get("parameters") or {}
            size = parameters.get("binary_data_size")
            if size is not None:
                data: Any = body[offset : offset + size]
                offset += size
                if len(data) < size:
                    raise ProtocolError(400, "the body ends before its tensors do")
            else:
                data = datatypes.from_json(
                    datatypes.DATATYPES[one["datatype"]], one["shape"], one["data"]
                )
            inputs.append(InputTensor(one["name"], one["datatype"], one["shape"], data))
        given = head.get("parameters") or {}
        every = bool(given.get("binary_data_output"))
        outputs = [
            RequestedOutput(
                one["name"], bool((one.get("parameters") or {}).get("binary_data", every))
            )
            for one in head.get("outputs") or ()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(400, f"the request cannot be read: {error}") from None
    return InferRequest(head.get("id", ""), given, inputs, outputs)


def build_infer(
    model_name: str, version: str, request: InferRequest, outputs: list[OutputTensor]
) -> tuple[list[Any], int | None]:
    """A response: buffers in order, and the length of its header where binary data follow."""
    binary = {one.name: one.binary for one in request.outputs}
    every = bool(request.parameters.get("binary_data_output"))
    tail: list[Any] = []
    described = []
    for one in outputs:
        datatype = datatypes.DATATYPES[one.datatype]
        entry: dict[str, Any] = {
            "name": one.name,
            "datatype": one.datatype,
            "shape": list(one.shape),
        }
        if binary.get(one.name, every):
            tensor = datatypes.encode(datatype, np.asarray(one.array))
            entry["parameters"] = {"binary_data_size": len(tensor)}
            tail.append(tensor)
        else:
            entry["data"] = orjson.Fragment(datatypes.to_json(datatype, np.asarray(one.array)))
        described.append(entry)
    head: dict[str, Any] = {
        "model_name": model_name,
        "model_version": version,
        "outputs": described,
    }
    if request.id:
        head["id"] = request.id
    data = orjson.dumps(head)
    return [data, *tail], len(data) if tail else None
