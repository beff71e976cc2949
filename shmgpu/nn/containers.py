"""Modules that hold others, or parameters.

Owns how they name and order what they hold. Never computes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shmgpu.common.wording import kind_of
from shmgpu.nn.module import Module, Parameter
from shmgpu.tensors.tensor import Tensor


def _place(index: Any, count: int) -> int:
    """A place counted from the start; IndexError where there is none."""
    place = operator.index(index)
    if not -count <= place < count:
        raise IndexError(f"there is no {place} in a list of {count}")
    return place % count


class _Listed(Module):
    """Parts by their places, in one of a module's tables."""

    _table = "_modules"

    def _parts(self) -> list[Any]:
        return list(self.__dict__[self._table].values())

    def _fill(self, parts: Iterable[Any]) -> None:
        self.__dict__[self._table].clear()
        for part in parts:
            self.append(part)

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(parts)

    def __len__(self) -> int:
        return len(self.__dict__[self._table])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts())

    def __contains__(self, part: Any) -> bool:
        return any(part is one for one in self._parts())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(self._parts()[index])
        return self._parts()[_place(index, len(self))]

    def __setitem__(self, index: int, part: Any) -> None:
        table = self.__dict__[self._table]
        table[list(table)[_place(index, len(self))]] = self._checked(part)

    def __delitem__(self, index: int | slice) -> None:
        parts = self._parts()
        del parts[index]
        self._fill(parts)

    def _checked(self, part: Any) -> Any:
        if not isinstance(part, Module):
            raise TypeError(f"{type(self).__name__} holds modules, not {kind_of(part)}")
        return part

    def append(self, part: Any) -> Any:
        """One more at the end."""
        self.__dict__[self._table][str(len(self))] = self._checked(part)
        return self

    def extend(self, parts: Iterable[Any]) -> Any:
        """Several more at the end."""
        for part in list(parts):
            self.append(part)
        return self

    def insert(self, index: int, part: Any) -> Any:
        """One more before that place."""
        parts = self._parts()
        parts.insert(index, part)
        self._fill(parts)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove one, and return it."""
        parts = self._parts()
        part = parts.pop(index)
        self._fill(parts)
        return part

    def __iadd__(self, parts: Iterable[Any]) -> Any:
        return self.extend(parts)

    def __add__(self, parts: Iterable[Any]) -> Any:
        return type(self)([*self._parts(), *parts])


class Sequential(_Listed):
    """Layers one after the other.

    Args:
        *layers: the layers; or one dict of them, whose keys are their names.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     model = shmgpu.nn.Sequential(shmgpu.nn.Linear(4, 8), shmgpu.nn.ReLU())
        ...     model(shmgpu.zeros(3, 4)).shape
        (3, 8)
    """

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            for name, layer in layers[0].items():
                self.add_module(name, self._checked(layer))
        else:
            self.extend(layers[0] if len(layers) == 1 and isinstance(layers[0], list) else layers)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return super().__getitem__(index)

    def forward(self, x: Any) -> Any:
        """The input passed through all layers in order."""
        for layer in self._modules.values():
            x = layer(x)
        return x


class ModuleList(_Listed):
    """Modules in a list, so that their parameters are found."""


class ModuleDict(Module):
    """Modules by their names, so that their parameters are found.

    Args:
        modules: a dict of them, or pairs of a name and a module.
    """

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        self.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        found: Module = self._modules[name]
        return found

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """The names and the modules."""
        return self._modules.items()

    def pop(self, name: str) -> Module:
        """Remove one, and return it."""
        found: Module = self._modules.pop(name)
        return found

    def clear(self) -> None:
        """Remove all."""
        self._modules.clear()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add these modules; they replace those of the same names."""
        for name, module in dict(modules).items():
            self[name] = module


class ParameterList(_Listed):
    """Parameters in a list, so that they are found.

    Args:
        parts: tensors; those that do not collect gradients are made to.
    """

    _table = "_parameters"

    def _checked(self, part: Any) -> Any:
        is_one = isinstance(part, Tensor) and part.requires_grad and part.is_leaf
        return part if is_one else Parameter(part)

    def extra_repr(self) -> str:
        """The types and shapes."""
        return ", ".join(f"{one.dtype.name} {one.shape}" for one in self)
