"""What calls carry of tensors, and what models' functions get and return.

Owns the conversions between the two: texts as bytes, bfloat16 as bits, arrays as tensors; and the
check of what a model returned against what it declares. Never runs a model, never knows a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.codec.arrays import is_array
from shmgpu.common.wording import kind_of
from shmgpu.errors import ConfigError
from shmgpu.helper.decoded import Helper
from shmgpu.serve.models.declaration import Model, Tensor
from shmgpu.serve.protocol import datatypes


def as_array(model: Model, sample: Any, helper: Helper) -> Any:
    """An input as the model wants it: a tensor on the helper's device, or as it is."""
    if model.arrays != "torch" or sample is None:
        return sample
    import torch

    if isinstance(sample, np.ndarray) and not sample.flags.writeable:
        return arrays.tensor_over(sample).to(helper.device)
    return torch.as_tensor(sample).to(helper.device)


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """A model's output as a NumPy array; bfloat16 as its bits."""
    if isinstance(array, np.ndarray) or not hasattr(array, "detach"):
        return np.asarray(array)
    import torch

    tensor = array.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    found: np.ndarray[Any, Any] = tensor.numpy()
    return found


def encoded(model: Model, declared: Tensor, output: Any) -> tuple[tuple[int, ...], memoryview]:
    """The shape and the bytes of an output that calls do not carry.

    Args:
        model: that made it.
        declared: what it says of the output.
        output: as :func:`in_order` gives it.

    Raises:
        ConfigError: it has another type than the model declares.
    """
    if declared.datatype == "BYTES":
        shape, data = output
        return shape, data.data
    datatype, array = datatypes.DATATYPES[declared.datatype], on_host(output)
    is_bf16 = datatype.name == "BF16" and array.dtype.itemsize == 2
    if array.dtype != datatype.storage and not is_bf16:
        raise ConfigError(
            f"model {model.name!r} returned {array.dtype} for output {declared.name!r}, which is "
            f"declared as {datatype.name}"
        )
    return array.shape, datatypes.encode(datatype, array)


def elements(carried: Any) -> Any:
    """A BYTES tensor, carried as (its shape, its bytes), as an array of objects."""
    shape, data = carried
    data = np.asarray(data)
    return datatypes.decode(datatypes.DATATYPES["BYTES"], shape, data.data)


def bfloat16(array: Any) -> Any:
    """A BF16 tensor, carried as bits; stays so if NumPy has no such type."""
    if not isinstance(array, np.ndarray):
        import torch

        return array.view(torch.bfloat16) if array.dtype == torch.int16 else array
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.int16 else array


ARRIVING: dict[str, Callable[[Any], Any]] = {"BYTES": elements, "BF16": bfloat16}


def shapes_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of each input; None for one that is omitted."""
    return tuple(None if one is None else tuple(one.shape) for one in inputs)


def rows_of(model: Model, inputs: Sequence[Any]) -> int | None:
    """Rows of a batch, the same in every input that is given; None: there is no batch."""
    return next(len(one) for one in inputs if one is not None) if model.max_batch_size else None


def in_order(model: Model, result: Any, rows: int | None = None) -> Any:
    """What a model returned, as calls carry it: one array, or one for each output, in order.

    Args:
        model: that returned it.
        result: as it came.
        rows: of the batch, which each output must have; None: there is no batch.

    Raises:
        ConfigError: it is not what the model declares.
    """
    outputs = model.outputs
    if isinstance(result, dict):
        missing = [one.name for one in outputs if one.name not in result]
        if missing:
            raise ConfigError(f"model {model.name!r} returned no output {missing[0]!r}")
        result = tuple(result[one.name] for one in outputs)
    if len(outputs) == 1 and not isinstance(result, tuple):
        # A list is the one array's elements, or a list of that array.
        is_listed = isinstance(result, list) and len(result) == 1 and is_array(result[0])
        result = result if is_listed else (result,)
    if not isinstance(result, (tuple, list)) or len(result) != len(outputs):
        what = f"{len(result)} values" if isinstance(result, (tuple, list)) else _kind(result)
        wanted = "one array" if len(outputs) == 1 else f"a tuple of {len(outputs)} arrays"
        raise ConfigError(
            f"model {model.name!r} returned {what}: return {wanted}, as it declares its outputs"
        )
    found = tuple(
        _carried(model, one, part, rows) for one, part in zip(outputs, result, strict=True)
    )
    return found[0] if len(outputs) == 1 else found


def _kind(value: Any) -> str:
    return "None" if value is None else kind_of(value)


def _carried(model: Model, declared: Tensor, array: Any, rows: int | None) -> Any:
    """An output as calls carry it: BYTES as (its shape, its bytes), BF16 as its bits."""
    if declared.datatype == "BYTES":
        array = np.asarray(array, dtype=object)
        data = datatypes.join(array.reshape(-1).tolist())
        carried: Any = tuple(array.shape), np.frombuffer(data, np.uint8)
    elif not is_array(array):
        raise ConfigError(
            f"model {model.name!r} returned {_kind(array)} for output {declared.name!r}: return "
            "an array"
        )
    elif declared.datatype != "BF16":
        carried = array
    elif not isinstance(array, np.ndarray):
        import torch

        carried = array.to(torch.bfloat16).view(torch.int16)
    else:
        is_wide = array.dtype == np.float32
        carried = datatypes.round_bf16(array) if is_wide else array.view(np.int16)
    if rows is not None and (shape := getattr(array, "shape", None)) is not None:
        if not shape or shape[0] != rows:
            raise ConfigError(
                f"model {model.name!r} got {rows} rows and returned the shape {list(shape)} for "
                f"output {declared.name!r}: return one row for each"
            )
    return carried
