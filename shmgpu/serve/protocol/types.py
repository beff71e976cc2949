"""Requests and answers as plain values, once they have been read.

Owns the types that both front ends, HTTP and gRPC, and the workers behind them share. Never reads
bytes, never calls anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.datatypes import DATATYPES

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
class RequestLimits:
    """What one request may ask of the parser; each breach is status 400.

    Attributes:
        tensors: inputs, and outputs, of one request.
        name_length: characters of a tensor's or region's name and of the request's id.
        rank: dimensions of a shape.
        json_depth: arrays and objects inside each other.
        parameters: of the request, and of each tensor.
        parameter_bytes: of those that the model's function gets, as JSON.
        strings: elements of BYTES tensors in one request: each costs far more than its bytes.
        json_values: values of a request's JSON, flat arrays of numbers aside: those are read in
            steps, and everything else at once.
        json_containers: arrays and objects of a request's JSON.
        json_keys: names in all of its objects.
        json_texts: strings in it, names too.
        json_text: bytes of it, flat arrays of numbers aside.
        message_bytes: of a message over gRPC, raw tensors aside.
        header_length: bytes of JSON before binary data, or of a request without such data.
    """

    tensors: int = 256
    name_length: int = 1024
    rank: int = 32
    json_depth: int = 64
    parameters: int = 64
    parameter_bytes: int = 1 << 16
    strings: int = 1 << 20
    json_values: int = 1 << 20
    json_containers: int = 1 << 18
    json_keys: int = 1 << 16
    json_texts: int = 1 << 19
    json_text: int = 32 << 20
    message_bytes: int = 4 << 20
    header_length: int = 64 << 20


DEFAULT_LIMITS = RequestLimits()


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

    def join(self) -> None:
        """Have BYTES that JSON gave in the binary encoding, as a call carries them."""
        if self.datatype == "BYTES" and isinstance(self.data, np.ndarray):
            self.data = memoryview(datatypes.join(self.data.reshape(-1).tolist()))


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
        for_model: the parameters that the model's function gets, as JSON; empty for none.
        for_answer: parameters of the answer, as far as preparing the inputs told them.
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
    for_model: str = ""
    for_answer: Parameters = field(default_factory=dict)


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

    def is_long(self, most: int) -> bool:
        """Whether there are more bytes than that to be written out."""
        return self.array is not None and self.array.nbytes > most


@dataclass(slots=True)
class InferResponse:
    """What one request is answered with, or one part of it.

    Attributes:
        outputs: as the request wants them.
        parameters: of the answer.
    """

    outputs: list[OutputTensor]
    parameters: Parameters = field(default_factory=dict)


def refusal(sentence: str) -> ProtocolError:
    """A request that is the client's to correct."""
    return ProtocolError(400, sentence)


def show_name(name: str) -> str:
    """A name in a sentence: quoted, and cut where it is long."""
    return repr(cut_name(name))


def cut_name(name: str) -> str:
    """A name, cut where it is long."""
    return name if len(name) <= 80 else f"{name[:77]}..."
