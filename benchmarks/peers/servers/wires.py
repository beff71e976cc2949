"""What goes over the wire to a server: how a request for the model is written, an answer read.

The model doubles float32 items. A peer is spoken to in the simplest binary form it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.httpload import Answer, HttpRequest

HEADER_LENGTH = "Inference-Header-Content-Length"
OCTETS = {"Content-Type": "application/octet-stream"}
GRPC = {"content-type": "application/grpc", "te": "trailers"}
MODEL, INPUT, OUTPUT = "double", "x", "y"
INFER = f"/v2/models/{MODEL}/infer"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WireFormat:
    """One way to write the request that holds ``x``, and to read the answer to it."""

    write: Callable[[Floats], HttpRequest]
    read: Callable[[Answer], Floats]


def raw(path: str) -> WireFormat:
    """Return the wire of bare items: no type, no shape."""
    return WireFormat(
        lambda x: HttpRequest(path, x.tobytes(), OCTETS),
        lambda answer: np.frombuffer(answer.body, "float32"),
    )


def msgpack(path: str) -> WireFormat:
    """Return the wire of a msgpack map of an array's type, shape and bytes."""

    def write(x: Floats) -> HttpRequest:
        from msgpack import packb

        described = {"dtype": x.dtype.name, "shape": x.shape, "data": x.tobytes()}
        return HttpRequest(path, packb(described), {"Content-Type": "application/msgpack"})

    def read(answer: Answer) -> Floats:
        from msgpack import unpackb

        given = unpackb(answer.body)
        return np.frombuffer(given["data"], given["dtype"]).reshape(given["shape"])

    return WireFormat(write, read)


def _inference(tensor: dict[str, Any], wanted: dict[str, Any], tail: bytes) -> HttpRequest:
    """Return a request of the Open Inference Protocol, binary bytes behind the JSON header."""
    header = json.dumps(
        {"inputs": [tensor], "outputs": [{"name": OUTPUT, "parameters": wanted}]},
        separators=(",", ":"),
    ).encode()
    headers = {**OCTETS, HEADER_LENGTH: str(len(header))}
    return HttpRequest(INFER, header + tail, headers)


# A row of a batch, as models are served that batch.
def _tensor(x: Floats, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": INPUT, "shape": [1, len(x)], "datatype": "FP32", "parameters": parameters}


def binary() -> WireFormat:
    """Return the Open Inference Protocol's wire with its binary tensor extension, both ways."""
    return WireFormat(
        lambda x: _inference(
            _tensor(x, {"binary_data_size": x.nbytes}), {"binary_data": True}, x.tobytes()
        ),
        _read_binary,
    )


def _read_binary(answer: Answer) -> Floats:
    end = int(answer.headers[HEADER_LENGTH.lower()])
    (tensor,) = json.loads(answer.body[:end])["outputs"]
    assert tensor["parameters"]["binary_data_size"] == len(answer.body) - end
    return np.frombuffer(answer.body[end:], "float32").reshape(tensor["shape"])[0]


def headless() -> WireFormat:
    """Return the protocol's wire without a JSON header: the body is the only input's bytes."""
    return WireFormat(
        lambda x: HttpRequest(INFER, x.tobytes(), {**OCTETS, HEADER_LENGTH: "0"}), _read_binary
    )


def numbers() -> WireFormat:
    """Return the protocol's wire with all numbers as JSON, both ways."""

    def write(x: Floats) -> HttpRequest:
        tensor = {"name": INPUT, "shape": [1, len(x)], "datatype": "FP32", "data": x.tolist()}
        body = json.dumps({"inputs": [tensor]}).encode()
        return HttpRequest(INFER, body, {"Content-Type": "application/json"})

    def read(answer: Answer) -> Floats:
        (tensor,) = json.loads(answer.body)["outputs"]
        return np.array(tensor["data"], "float32")

    return WireFormat(write, read)


def _message(x: Floats, where: dict[str, Any] | None = None, put: Any = None) -> HttpRequest:
    """Return a ModelInfer call; tensors in regions where ``where`` and ``put`` name them."""
    from shmgpu.serve.protocol.grpc_codec import MESSAGES

    message = MESSAGES["ModelInferRequest"](model_name=MODEL)
    tensor = message.inputs.add(name=INPUT, datatype="FP32", shape=[1, len(x)])
    wanted = message.outputs.add(name=OUTPUT)
    if where is None:
        message.raw_input_contents.append(x.tobytes())
    for parameters, named in ((tensor.parameters, where), (wanted.parameters, put)):
        for name, value in (named or {}).items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(parameters[name], kind, value)
    return HttpRequest(GRPC_INFER, message.SerializeToString(), GRPC)


def grpc_raw() -> WireFormat:
    """Return the protocol's wire over gRPC, tensors as raw bytes both ways."""

    def read(answer: Answer) -> Floats:
        from shmgpu.serve.protocol.grpc_codec import MESSAGES

        message = MESSAGES["ModelInferResponse"].FromString(answer.body)
        return np.frombuffer(message.raw_output_contents[0], "float32")

    return WireFormat(_message, read)


def _where(region: str, nbytes: int) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": nbytes}


def grpc_shared(input_region: str, output_region: str, output: Floats) -> WireFormat:
    """Return the wire of :func:`shared` over gRPC."""
    return WireFormat(
        lambda x: _message(x, _where(input_region, x.nbytes), _where(output_region, x.nbytes)),
        lambda _answer: output,
    )


def shared(input_region: str, output_region: str, output: Floats) -> WireFormat:
    """Return the wire of a client whose tensors lie in regions that the server knows by name.

    ``output`` is the client's own view of the output region.
    """
    return WireFormat(
        lambda x: _inference(
            _tensor(x, _where(input_region, x.nbytes)), _where(output_region, x.nbytes), b""
        ),
        lambda _answer: output,
    )
