"""States as what others take: NumPy arrays, torch tensors.

Owns these two conversions, of dicts and lists as deep as they are. Never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.tensors.tensor import Tensor


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same dicts, lists and tuples with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(one, change) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([mapped(one, change) for one in value])
    return value


def state_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as NumPy arrays: what ``safetensors.numpy.save_file`` and ``np.savez`` take.

    They are copies of the program's own, which outlive the helper. Of an optimiser's state, too.
    """
    made: dict[str, Any] = mapped(state, lambda one: np.array(one.numpy()))
    return made


def state_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as torch tensors on the CPU, copies: what ``load_state_dict`` of torch takes.

    Of a module, an optimiser or a scheduler.
    """
    made: dict[str, Any] = mapped(state, torch_tensor)
    return made


def torch_tensor(one: Tensor) -> Any:
    """A copy as a torch tensor on the CPU."""
    dtype = one.dtype
    copied = np.array(one.numpy()).view(dtype.storage)
    return arrays.torch_view(copied, 0, arrays.ArraySpec(dtype, one.shape))
