"""What pickles name by its module: a function and a network of a program's own."""

from __future__ import annotations

from typing import Any

import shmgpu
import shmgpu.nn


@shmgpu.function
def double(helper: shmgpu.Helper, x: Any) -> Any:
    """Two times ``x``."""
    return x * 2


class Network(shmgpu.nn.Module):
    """Two layers, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.bent = shmgpu.nn.Linear(4, 4), shmgpu.nn.Tanh()

    def forward(self, x: Any) -> Any:
        """The answer."""
        return self.wide(self.bent(self.wide(x)))
