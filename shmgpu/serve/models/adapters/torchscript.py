"""Models that ``torch.jit.save`` wrote.

Owns how such a file is read and called. It names its inputs, but neither their shapes nor their
dtypes: a file beside it does. Its outputs are found out by running it. Never imports torch before
such a file is loaded.
"""

from __future__ import annotations

from typing import Any

from shmgpu.errors import ConfigError
from shmgpu.serve.models.adapters import sidecar, tensors
from shmgpu.serve.models.declaration import MOST_ROWS, Model, Tensor


def load(helper: Any, path: str) -> Model:
    """The model of a TorchScript file, on the helper's device.

    Raises:
        ConfigError: it is no such file, or too little is known of its inputs.
    """
    torch = tensors.torch_for(path)
    with tensors.opening(path, "a file of torch.jit.save"):
        helper.session = torch.jit.load(path, map_location=helper.device).eval()
    config = sidecar.read(path)
    inputs = config.tensors("inputs", _names(helper.session, path), by_name=False)

    def run(helper: Any, *arrays: Any) -> Any:
        try:
            with torch.inference_mode():
                return helper.session(*arrays)
        except RuntimeError as error:
            # The interpreter's text is a traceback with its files: of use in the log alone.
            raise RuntimeError(tensors.reason_of(error)) from error

    found: list[Tensor | str] = []
    if not config.says_all("outputs"):
        found.extend(tensors.find_outputs(torch, run, helper, inputs, path))
    outputs = config.tensors("outputs", found, by_name=False)

    def serve(helper: Any, *arrays: Any) -> Any:
        return tuple(tensors.flat(run(helper, *arrays))[0])

    return config.make(
        serve,
        inputs,
        outputs,
        arrays="torch",
        platform="pytorch_libtorch",
        most_rows=MOST_ROWS if tensors.are_rows(inputs, outputs) else 0,
    )


def _names(module: Any, path: str) -> list[str | Any]:
    """Of the inputs that the model must have."""
    arguments = [one for one in module.forward.schema.arguments[1:] if not one.has_default_value()]
    for one in arguments:
        if str(one.type) != "Tensor":
            raise ConfigError(
                f"input {one.name!r} of {path} is {one.type}, and only tensors can be served: "
                "script a module around it that takes tensors"
            )
    return [one.name for one in arguments]
