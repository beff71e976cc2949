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
MODEL, INPUT, OUTPUT = "double", "x", "y"

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
    return HttpRequest(f"/v2/models/{MODEL}/infer", header + tail, headers)


# A row of a batch, as models are served that batch.
def _tensor(x: Floats, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": INPUT, "shape": [1, len(x)], "datatype": "FP32", "parameters": parameters}


def binary() -> WireFormat:
    """Return the Open Inference Protocol's wire with its binary tensor extension, both ways."""

    def read(answer: Answer) -> Floats:
        end = int(answer.headers[HEADER_LENGTH.lower()])
        (tensor,) = json.loads(answer.body[:end])["outputs"]
        assert tensor["parameters"]["binary_data_size"] == len(answer.body) - end
        return np.frombuffer(answer.body[end:], "float32").reshape(tensor["shape"])[0]

    return WireFormat(
        lambda x: _inference(
            _tensor(x, {"binary_data_size": x.nbytes}), {"binary_data": True}, x.tobytes()
        ),
        read,
    )


def shared(input_region: str, output_region: str, output: Floats) -> WireFormat:
    """Return the wire of a client whose tensors lie in regions that the server knows by name.

    ``output`` is the client's own view of the output region.
    """

    def where(region: str, nbytes: int) -> dict[str, Any]:
        return {"shared_memory_region": region, "shared_memory_byte_size": nbytes}

    return WireFormat(
        lambda x: _inference(
            _tensor(x, where(input_region, x.nbytes)), where(output_region, x.nbytes), b""
        ),
        lambda _answer: output,
    )
