"""ONNX files, run by onnxruntime: such a file knows its inputs, outputs and open axes.

Owns how such a file is read and called. Never imports onnxruntime before one is loaded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from shmgpu.common.logs import logger
from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError
from shmgpu.serve.models.adapters import sidecar, tensors
from shmgpu.serve.models.declaration import MOST_ROWS, Model, Tensor

DATATYPES = {  # onnxruntime's names for elements that it exchanges as NumPy arrays
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


def load(helper: Any, path: str) -> Model:
    """The model of an ONNX file, on the helper's device where onnxruntime has a provider for it.

    It is batched where axis 0 of all inputs and outputs is one open dimension.

    Raises:
        ConfigError: it is no such file, has elements that the protocol has not, or onnxruntime is
            missing.
    """
    # It would open a database in the user's folder, and report from there: not from a server.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"{path} needs onnxruntime, which is missing ({error}): {with_extra('onnx')}"
        ) from None
    settings = onnxruntime.SessionOptions()
    # A helper's share of the cores, as the broker set it for libraries that are loaded later.
    settings.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    # Nor do they spin where they wait for one another: others need the cores.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.log_severity_level = 3
    with tensors.opening(path, "an ONNX model"):
        helper.session = onnxruntime.InferenceSession(
            path, settings, providers=_providers(onnxruntime, helper.device)
        )
    config = sidecar.read(path)
    takes, gives = helper.session.get_inputs(), helper.session.get_outputs()
    inputs = config.tensors("inputs", [_tensor(one, path) for one in takes], by_name=True)
    outputs = config.tensors("outputs", [_tensor(one, path) for one in gives], by_name=True)
    names, wanted = [one.name for one in takes], [one.name for one in gives]
    is_text = [one.datatype == "BYTES" for one in inputs]

    def serve(helper: Any, *arrays: Any) -> Any:
        feed = {
            name: _text(array) if text else array
            for name, array, text in zip(names, arrays, is_text, strict=True)
        }
        return tuple(helper.session.run(wanted, feed))

    firsts = {str(one.shape[0]) for one in (*takes, *gives) if one.shape}
    return config.make(
        serve,
        inputs,
        outputs,
        arrays="numpy",
        platform="onnxruntime_onnx",
        most_rows=MOST_ROWS if len(firsts) == 1 and tensors.are_rows(inputs, outputs) else 0,
    )


def _tensor(one: Any, path: str) -> Tensor:
    datatype = DATATYPES.get(one.type)
    if datatype is None:
        raise ConfigError(
            f"{one.name!r} of {path} is {one.type}, which cannot be served: convert it inside the "
            f"model to one of {', '.join(DATATYPES.values())}"
        )
    return Tensor(one.name, datatype, tuple(n if isinstance(n, int) else -1 for n in one.shape))


def _providers(onnxruntime: Any, device: str) -> list[Any]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        logger.warning(
            "this onnxruntime has no provider for %s, so the model runs on the CPU: install "
            "onnxruntime-gpu",
            device,
        )
        return ["CPUExecutionProvider"]
    index = int(device.partition(":")[2] or 0)
    return [("CUDAExecutionProvider", {"device_id": index}), "CPUExecutionProvider"]


def _text(array: Any) -> Any:
    decoded = [one.decode() if isinstance(one, bytes) else one for one in array.reshape(-1)]
    return np.array(decoded, object).reshape(array.shape)
