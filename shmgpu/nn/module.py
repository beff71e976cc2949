"""What a layer is: parameters, buffers and layers within, found by their names.

Owns that finding, and the dicts in which a model's state leaves and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor, tensor

State = dict[str, Tensor]


def Parameter(data: Any) -> Tensor:
    """A tensor of its own that collects gradients: what a layer learns."""
    if isinstance(data, Tensor):
        return data.detach().requires_grad_()
    return tensor(data, requires_grad=True)


class Module:
    """A layer, or a model made of them.

    Tensors that collect gradients and are set as attributes are its parameters; modules set as
    attributes are its children. Subclasses say in ``forward`` what it computes.
    """

    training: bool

    def __init__(self) -> None:
        self.__dict__["_parameters"] = {}
        self.__dict__["_buffers"] = {}
        self.__dict__["_modules"] = {}
        self.__dict__["training"] = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What it computes."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say in forward() what it computes"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``forward``."""
        return self.forward(*args, **kwargs)

    # ---- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            raise AttributeError(
                f"call super().__init__() before {type(self).__name__}.{name} is set"
            )
        for table in ("_parameters", "_buffers", "_modules"):
            known = tables[table].pop(name, None)
            if known is not None and table == "_buffers" and isinstance(value, Tensor):
                tables["_buffers"][name] = value
                return
        if isinstance(value, Module):
            tables["_modules"][name] = value
        elif isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            tables["_parameters"][name] = value
        else:
            object.__setattr__(self, name, value)
            return
        tables.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table, {}).get(name)
            if found is not None:
                return found
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            if self.__dict__[table].pop(name, None) is not None:
                return
        object.__delattr__(self, name)

    def register_buffer(self, name: str, value: Tensor | None) -> None:
        """A tensor that is part of the state and is not learned."""
        if value is not None:
            self._buffers[name] = value

    # ---- what is in it -------------------------------------------------------------------------

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all within, by their dotted names."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all within."""
        for _, module in self.named_modules():
            yield module

    def children(self) -> Iterator[Module]:
        """The modules directly within."""
        yield from self._modules.values()

    def _named(self, table: str) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, one in module.__dict__[table].items():
                if id(one) not in seen:
                    seen.add(id(one))
                    yield (f"{prefix}.{name}" if prefix else name), one

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All that is learned, by its dotted name."""
        yield from self._named("_parameters")

    def parameters(self) -> Iterator[Tensor]:
        """All that is learned."""
        for _, one in self.named_parameters():
            yield one

    # ---- training ------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget the gradients collected so far."""
        for one in self.parameters():
            one.grad = None

    def train(self, mode: bool = True) -> Module:
        """Whether layers that behave differently in training do so."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self) -> Module:
        """Not in training."""
        return self.train(False)

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Parameters and buffers by their dotted names, as tensors that no longer change."""
        state: State = {}
        for prefix, module in self.named_modules():
            for table in ("_parameters", "_buffers"):
                for name, one in module.__dict__[table].items():
                    state[f"{prefix}.{name}" if prefix else name] = one.detach()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take parameters and buffers from a dict of tensors, arrays or torch tensors.

        Raises:
            KeyError: names are missing or unknown (unless ``strict`` is off).
            ValueError: a shape differs.
        """
        own: dict[str, Tensor] = {}
        for prefix, module in self.named_modules():
            for table in ("_parameters", "_buffers"):
                for name, one in module.__dict__[table].items():
                    own[f"{prefix}.{name}" if prefix else name] = one
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if strict and (missing or unknown):
            raise KeyError(
                f"the state does not fit: missing {missing or 'nothing'}, unknown "
                f"{unknown or 'nothing'}"
            )
        for name, one in own.items():
            if name in state and tuple(state[name].shape) != one.shape:
                raise ValueError(
                    f"{name}: the state has the shape {tuple(state[name].shape)}, the model "
                    f"{one.shape}"
                )
        with no_grad():
            for name, one in own.items():
                if name in state:
                    value = state[name]
                    if arrays.is_tensor(value):
                        value = value.detach()
                    one.copy_(value)

    def extra_repr(self) -> str:
        """What the module's own line says of it."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self.extra_repr()}"]
        for name, module in self._modules.items():
            inner = repr(module).replace("\n", "\n  ")
            lines.append(f"\n  ({name}): {inner}")
        return "".join(lines) + ("\n)" if self._modules else ")")


def state_arrays(state: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """A state as NumPy arrays: what ``safetensors.numpy.save_file`` and ``np.savez`` take.

    They are copies of the program's own, which outlive the helper.
    """
    return {name: np.array(one.numpy()) for name, one in state.items()}


def state_tensors(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state as torch tensors on the CPU, copies: what ``load_state_dict`` of torch takes."""
    made = {}
    for name, one in state.items():
        dtype = one.dtype
        copied = np.array(one.numpy()).view(dtype.storage)
        made[name] = arrays.torch_view(copied, 0, arrays.Spec(dtype, one.shape))
    return made
