"""tinygrad's states: the tensors that an object has, by the names of its attributes.

Owns how they are found. Never changes one, but for :func:`load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shmgpu.nn.module import Module
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor


def get_state_dict(obj: Any, prefix: str = "", tensor_type: Any = Tensor) -> dict[str, Tensor]:
    """The tensors of an object, of its attributes, lists and dictionaries, by their path.

    Args:
        obj: a tensor, a layer, or any object that has some.
        prefix: begins all names.
        tensor_type: what counts as a tensor.
    """
    if isinstance(obj, tensor_type):
        return {prefix.strip("."): obj}
    if isinstance(obj, Module):
        named = [*obj.named_parameters(), *obj.named_buffers()]
        return {f"{prefix}{name}": one for name, one in named}
    if hasattr(obj, "_asdict"):
        parts: Any = obj._asdict()
    elif isinstance(obj, (list, tuple)):
        parts = {str(place): one for place, one in enumerate(obj)}
    else:
        parts = obj if isinstance(obj, dict) else getattr(obj, "__dict__", {})
    found: dict[str, Tensor] = {}
    for name, one in parts.items():
        found.update(get_state_dict(one, f"{prefix}{name}.", tensor_type))
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """The tensors of an object; see :func:`get_state_dict`. Optimisers take out what is none."""
    return list(get_state_dict(obj).values())


def load_state_dict(
    model: Any, state_dict: Mapping[str, Any], strict: bool = True, verbose: bool = False
) -> None:
    """Give a model's tensors these elements; each stays where it lies.

    Args:
        model: any object that has tensors.
        state_dict: by name, of the same shapes.
        strict: whether a tensor that is not among them is a mistake.
        verbose: accepted.

    Raises:
        KeyError: a tensor is missing.
        ValueError: shapes differ.
    """
    for name, one in get_state_dict(model).items():
        if name not in state_dict:
            if strict:
                raise KeyError(f"load_state_dict: there is no {name!r}: pass strict=False to skip")
            continue
        given = state_dict[name]
        if tuple(given.shape) != tuple(one.shape):
            raise ValueError(
                f"load_state_dict: {name!r} is of shape {tuple(one.shape)}, and "
                f"{tuple(given.shape)} is given"
            )
        with no_grad():
            one.copy_(given)
