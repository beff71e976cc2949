"""Modules that hold others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shmgpu.nn.module import Module


class _Listed(Module):
    """Modules by their places."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int) -> Module:
        found: Module = list(self._modules.values())[index]
        return found

    def append(self, module: Module) -> None:
        """One more at the end."""
        self._modules[str(len(self._modules))] = module


class Sequential(_Listed):
    """Layers one after the other.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     model = shmgpu.nn.Sequential(shmgpu.nn.Linear(4, 8), shmgpu.nn.ReLU())
        ...     model(shmgpu.zeros(3, 4)).shape
        (3, 8)
    """

    def __init__(self, *layers: Module) -> None:
        super().__init__()
        for layer in layers:
            self.append(layer)

    def forward(self, x: Any) -> Any:
        """Through all of them."""
        for layer in self._modules.values():
            x = layer(x)
        return x


class ModuleList(_Listed):
    """Modules in a list, so that their parameters are found."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)
