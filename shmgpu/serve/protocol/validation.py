"""A request checked against the model that it is for.

Owns what a model's metadata says of a request: names, datatypes and shapes that must agree, and the
shape of a request that is binary data alone. Never calls a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.metadata import ANY, ModelMetadata, TensorMetadata
from shmgpu.serve.protocol.types import InferRequest, InputTensor, refusal, show_name

UNORDERED = ("BOOL", "BYTES")  # datatypes that have no best classes


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
        raise refusal(
            f"expected {len(model.inputs)} inputs but got {len(sent)} inputs for model "
            f"{show_name(model.name)}: it needs {_list('input', missing)} as well"
        )
    outputs = {tensor.name: tensor for tensor in model.outputs}
    for output in request.outputs:
        found = outputs.get(output.name)
        if found is None:
            raise refusal(
                f"unexpected output {show_name(output.name)}: model {show_name(model.name)} has "
                f"{_list('output', list(outputs))}"
            )
        if output.classification and found.datatype in UNORDERED:
            raise refusal(
                f"output {show_name(output.name)} is {found.datatype}, of which there are no best "
                "classes: omit 'classification'"
            )


def _check_input(tensor: InputTensor, wanted: TensorMetadata | None, model: ModelMetadata) -> None:
    if wanted is None:
        raise refusal(
            f"unexpected input {show_name(tensor.name)}: model {show_name(model.name)} has "
            f"{_list('input', [known.name for known in model.inputs])}"
        )
    if tensor.datatype != wanted.datatype:
        raise refusal(
            f"input {show_name(tensor.name)} is {tensor.datatype}, and model "
            f"{show_name(model.name)} takes {wanted.datatype}: convert it"
        )
    if not wanted.fits(tensor.shape):
        raise refusal(
            f"unexpected shape {list(tensor.shape)} for input {show_name(tensor.name)}: model "
            f"{show_name(model.name)} takes {list(wanted.shape)}, where -1 is any"
        )
    if model.max_batch_size and tensor.shape and tensor.shape[0] > model.max_batch_size:
        raise refusal(
            f"input {show_name(tensor.name)} has {tensor.shape[0]} rows, and model "
            f"{show_name(model.name)} takes {model.max_batch_size}: send them in several requests"
        )


def _list(noun: str, names: Sequence[str]) -> str:
    shown = ", ".join(show_name(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{noun if len(names) == 1 else noun + 's'} {shown}" if names else f"no {noun}s"


def raw_request(view: memoryview, model: ModelMetadata | None) -> InferRequest:
    """The request whose whole body is the model's only input; raises ProtocolError, status 400.

    It is answered with binary outputs: who sends no JSON wants none to read numbers from.
    """
    if model is None:
        raise refusal("Inference-Header-Content-Length is 0, and this request needs its JSON")
    if len(model.inputs) != 1:
        raise refusal(
            f"model {show_name(model.name)} has {len(model.inputs)} inputs, and a request of "
            "binary data alone can carry one: send the JSON that says which is which"
        )
    tensor = model.inputs[0]
    datatype = DATATYPES[tensor.datatype]
    whose = f"input {show_name(tensor.name)}"
    shape = list(tensor.shape)
    if model.max_batch_size and shape and shape[0] == ANY:
        shape[0] = 1
    data: memoryview | np.ndarray[Any, Any] = view
    if datatype.kind == "bytes":
        # The body is the one element, without its length. How many it is cannot be seen, so the
        # model must say: Triton refuses an open extent, too.
        if ANY in shape or datatypes.count(shape) != 1:
            raise refusal(
                f"{whose} has the shape {list(tensor.shape)}, and a request of binary data alone "
                "carries one BYTES element: send the JSON that gives the shape"
            )
        data = np.empty(tuple(shape), dtype=object)
        data.reshape(-1)[0] = bytes(view)
        return _binary(InputTensor(tensor.name, datatype.name, tuple(shape), data))
    if shape.count(ANY) > 1:
        raise refusal(
            f"{whose} has the shape {list(tensor.shape)}, of which a request of binary data alone "
            "can leave one extent open: send the JSON that gives the shape"
        )
    if ANY in shape:
        row = datatype.itemsize * datatypes.count([extent for extent in shape if extent != ANY])
        if row == 0 or len(view) % row:
            raise refusal(
                f"{whose} takes a multiple of {row} bytes for its shape {list(tensor.shape)}, and "
                f"the request has {len(view)}: correct the data"
            )
        shape[shape.index(ANY)] = len(view) // row
    try:
        datatypes.check(datatype, shape, view)
    except ValueError as error:
        raise refusal(f"{whose} {error}") from None
    return _binary(InputTensor(tensor.name, datatype.name, tuple(shape), view))


def _binary(tensor: InputTensor) -> InferRequest:
    return InferRequest(inputs=[tensor], binary_output=True)
