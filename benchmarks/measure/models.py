"""Models whose cost is a fixed part and a part per row, which is what batching lives on.

Each is made in the process that uses it, is called with an array of rows, and says what one row
costs, so that load can be offered as a multiple of what one helper can do without batching.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class BatchModel(Protocol):
    """What ``batching`` needs to know of a model."""

    arrays: str  # what its rows come as: "numpy" or "torch"
    width: int  # elements of a row, float32

    def make(self) -> Callable[[Any], Any]:
        """Return the model, ready to be called with (rows, width); it answers with as many rows."""

    def row_s(self) -> float:
        """Return what a call with one row costs, in seconds."""


def calibrated_sleep() -> Callable[[float], None]:
    """Return a sleep that takes what it is told: how late the kernel wakes us is taken off."""
    late = []
    for _ in range(21):
        began = time.monotonic()
        time.sleep(0.0005)
        late.append(time.monotonic() - began - 0.0005)
    usual = statistics.median(late)
    return lambda seconds: time.sleep(max(0.0, seconds - usual))


@dataclass(frozen=True)
class Sleeping:
    """A session that waits for its device: it takes ``fixed_s`` and ``per_row_s``, and no core.

    Answers with the rows plus one.
    """

    fixed_s: float = 0.002
    per_row_s: float = 20e-6
    arrays: str = "numpy"
    width: int = 16

    def make(self) -> Callable[[Any], Any]:
        sleep = calibrated_sleep()

        def run(rows: Any) -> Any:
            sleep(self.fixed_s + self.per_row_s * len(rows))
            return rows + 1

        return run

    def row_s(self) -> float:
        return self.fixed_s + self.per_row_s


@dataclass(frozen=True)
class Perceptron:
    """A deep, narrow network in PyTorch; on the CPU with one thread.

    Its layers are many and small, so that most of a row's cost is that of being called at all.
    """

    layers: int = 64
    arrays: str = "torch"
    width: int = 128

    def make(self, device: str = "cpu") -> Callable[[Any], Any]:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        stack: list[Any] = []
        for _ in range(self.layers):
            stack += [torch.nn.Linear(self.width, self.width), torch.nn.ReLU()]
        network = torch.nn.Sequential(*stack).eval().to(device)

        def run(rows: Any) -> Any:
            with torch.inference_mode():
                return network(rows)

        return run

    def row_s(self) -> float:
        import torch

        run, row = self.make(), torch.zeros(1, self.width)
        took = []
        for _ in range(50):
            began = time.perf_counter()
            run(row)
            took.append(time.perf_counter() - began)
        return statistics.median(took[10:])


MODELS: dict[str, BatchModel] = {"sleep": Sleeping(), "torch": Perceptron()}
