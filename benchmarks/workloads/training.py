"""training: steps a second of whole training loops, beside PyTorch eager in process.

Each helper has the threads that it has unless told, and eager as many; the inputs are drawn alike,
the loss is read at every step. ``mlp``: 784-128-10, batch 32, fresh inputs, squared error, SGD.
``transformer``: one of two blocks, 16 texts of 64 characters, cross-entropy, AdamW.
``busy``: what is left of ``mlp``'s rate while two other processes keep two cores busy, and how much
more processor time a step then takes, both times with a caller that sleeps while it waits
(``SHMGPU_SPIN=0``): one that watches does so alone only, which would hide what a step costs more.
``memory``: how much helper and child have grown over the steps.
``fair``: 32 children train models of their own on two helpers, no two alike, and each reads its
loss at every step. *Service* is counted as in ``workloads/fairness.py``: the messages of each that
were answered within the span. The dispatcher gives turns, not time, so a child whose model is ten
times as large holds its helper ten times as long, and yet nobody gets more turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure.figures import Figure, Group, ProbeFailed, Workload
from benchmarks.workloads.tensors import device_threads, probe

BATCH = 32
WARM_UPS = 50


def _mlp(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def steps_a_second(step: Any, seconds: float) -> float:
    """Return how many steps a second are done, after some that warm up for no longer than that."""
    count, began = 0, time.perf_counter()
    while count < 3 or (count < WARM_UPS and time.perf_counter() - began < seconds):
        step()
        count += 1
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        count += 1
    return count / (time.perf_counter() - began)


def step_of(
    model: Any, optimiser: Any, tensor: Any, loss_of: Any, batch: int = BATCH
) -> Callable[[], float]:
    """Return a step from 784 to 10 numbers over fresh inputs, of which ``tensor`` makes tensors."""
    import numpy as np

    rng = np.random.default_rng(0)

    def step() -> float:
        x = tensor(rng.standard_normal((batch, 784), dtype=np.float32))
        y = tensor(rng.standard_normal((batch, 10), dtype=np.float32))
        loss = loss_of(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        value = float(loss.item())
        if not value < 100:
            raise ProbeFailed(f"the loss became {value}")
        return value

    return step


def shmgpu_mlp(seconds: float, device: str = "cpu") -> dict[str, float]:
    """Return the steps a second through a helper."""
    import shmgpu
    from shmgpu import nn

    with shmgpu.init(helpers=1, devices=[device]):
        model = _mlp(nn)
        optimiser = shmgpu.SGD(model.parameters(), lr=0.01)
        return {
            "rate": steps_a_second(step_of(model, optimiser, shmgpu.tensor, nn.mse_loss), seconds)
        }


def eager_mlp(seconds: float, device: str = "cpu") -> dict[str, float]:
    """Return the same with PyTorch in this process."""
    import torch

    torch.set_num_threads(device_threads())
    model = _mlp(torch.nn).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = torch.nn.functional.mse_loss

    def tensor(array: Any) -> Any:
        return torch.from_numpy(array).to(device)

    return {"rate": steps_a_second(step_of(model, optimiser, tensor, loss_of), seconds)}


def shmgpu_busy(
    seconds: float, imports_first: bool = False, spins: bool = True
) -> dict[str, float]:
    """Return rate and processor time of a step beside busy processes: against alone."""
    os.environ["SHMGPU_SPIN"] = str(int(spins))
    if imports_first:
        import torch  # noqa: F401 - what it loads has read its environment before a broker starts

    import shmgpu
    from benchmarks.measure.processes import all_threads_ns, busy_neighbours
    from shmgpu import nn

    with shmgpu.init():
        model = _mlp(nn)
        step = step_of(model, shmgpu.SGD(model.parameters(), lr=0.01), shmgpu.tensor, nn.mse_loss)
        pids = [0, *(helper["pid"] for helper in shmgpu.stats()["helpers"])]

        def measure() -> tuple[float, float]:
            """Steps a second, and the nanoseconds that caller and helper took for one."""
            for _ in range(WARM_UPS):
                step()
            count, used, began = 0, sum(map(all_threads_ns, pids)), time.perf_counter()
            while time.perf_counter() - began < seconds:
                step()
                count += 1
            took = time.perf_counter() - began
            return count / took, (sum(map(all_threads_ns, pids)) - used) / count

        rate, ns = measure()
        with busy_neighbours():
            busy_rate, busy_ns = measure()
        return {"rate": busy_rate / rate, "processor": busy_ns / ns, "processor_us": busy_ns / 1000}


# ---- a small transformer: PyTorch's names on both sides --------------------------------------

WIDTH, HEADS, LAYERS, PLACES, CHARACTERS, TEXTS = 64, 4, 2, 64, 97, 16


def _transformer(nn: Any, attention: Any, arange: Any) -> Any:
    """Return a small transformer of the layers of that ``nn``."""

    class TransformerBlock(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.bent = nn.GELU()

        def forward(self, x: Any) -> Any:
            count, places, _ = x.shape
            parts = self.attention(self.before(x)).reshape(count, places, 3, HEADS, WIDTH // HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            seen = attention(query, key, value, is_causal=True)
            x = x + self.out(seen.permute(0, 2, 1, 3).reshape(count, places, WIDTH))
            return x + self.narrow(self.bent(self.wide(self.between(x))))

    class TextModel(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.what = nn.Embedding(CHARACTERS, WIDTH)
            self.where = nn.Embedding(PLACES, WIDTH)
            self.blocks = nn.ModuleList([TransformerBlock() for _ in range(LAYERS)])
            self.last, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)

        def forward(self, text: Any) -> Any:
            x = self.what(text) + self.where(arange(PLACES))
            for block in self.blocks:
                x = block(x)
            return self.scores(self.last(x)).reshape(-1, CHARACTERS)

    return TextModel()


def _text_step(model: Any, optimiser: Any, tensor: Any, loss_of: Any) -> Any:
    import numpy as np

    rng = np.random.default_rng(0)

    def step() -> float:
        text = rng.integers(0, CHARACTERS, (TEXTS, PLACES + 1))
        x, y = np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:].ravel())
        loss = loss_of(model(tensor(x)), tensor(y))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        value = float(loss.item())
        if not value < 100:
            raise ProbeFailed(f"the loss became {value}")
        return value

    return step


def shmgpu_transformer(seconds: float) -> dict[str, float]:
    """Return the steps a second of the transformer through a helper."""
    import shmgpu
    from shmgpu import nn

    with shmgpu.init(helpers=1, devices=["cpu"]):
        model = _transformer(nn, nn.scaled_dot_product_attention, shmgpu.arange)
        optimiser = shmgpu.optim.AdamW(model.parameters(), lr=1e-3)
        step = _text_step(model, optimiser, shmgpu.tensor, nn.cross_entropy)
        return {"rate": steps_a_second(step, seconds)}


def eager_transformer(seconds: float) -> dict[str, float]:
    """Return the same with PyTorch in this process."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(device_threads())
    model = _transformer(torch.nn, functional.scaled_dot_product_attention, torch.arange)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {
        "rate": steps_a_second(
            _text_step(model, optimiser, torch.from_numpy, functional.cross_entropy), seconds
        )
    }


def shmgpu_growth(seconds: float) -> dict[str, float]:
    """Return by how many MiB helper and child have grown from the 500th step to the last."""
    import shmgpu
    from benchmarks.measure.processes import resident_mib
    from shmgpu import nn

    with shmgpu.init(helpers=1, devices=["cpu"]):
        model = _mlp(nn)
        step = step_of(model, shmgpu.SGD(model.parameters(), lr=0.01), shmgpu.tensor, nn.mse_loss)
        pids = {"helper": shmgpu.stats()["helpers"][0]["pid"], "child": 0}
        for _ in range(500):
            step()
        before = {name: resident_mib(pid) for name, pid in pids.items()}
        for _ in range(int(max(seconds, 1) * 1000)):
            step()
        return {name: resident_mib(pid) - before[name] for name, pid in pids.items()}


TRAINERS, TRAINERS_HELPERS = 32, 2


def _trainer(number: int) -> Any:
    """Return the step of one of the children: widths, depth, activation and optimiser are its.

    Neighbours differ in width only: they live on different helpers, which so have as much to do.
    """
    import numpy as np

    import shmgpu
    from shmgpu import nn

    kind = number // TRAINERS_HELPERS
    widths = [8 + 4 * number] * (1 + kind % 3)
    pairs = zip([16, *widths], [*widths, 4], strict=True)
    layers = [nn.Linear(left, right) for left, right in pairs]
    activation = (shmgpu.relu, shmgpu.tanh, shmgpu.gelu)[kind // 3 % 3]
    make = (shmgpu.SGD, shmgpu.Adam)[kind % 2]
    optimiser = make(nn.Sequential(*layers).parameters(), lr=0.01)
    rng = np.random.default_rng(number)

    def step() -> float:
        x = shmgpu.tensor(rng.standard_normal((8, 16), dtype=np.float32))
        for layer in layers[:-1]:
            x = activation(layer(x))
        target = shmgpu.tensor(rng.standard_normal((8, 4), dtype=np.float32))
        loss = nn.mse_loss(layers[-1](x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return float(loss.item())

    return step


def shmgpu_fair(seconds: float) -> dict[str, float]:
    """Return Jain's index of what the children were answered, and the steps a second of all."""
    import numpy as np

    import shmgpu
    from benchmarks.measure.crowd import Crowd
    from benchmarks.measure.stage import shared_array
    from benchmarks.workloads.fairness import jain

    crowd = Crowd(TRAINERS, seconds)
    served = shared_array((TRAINERS,), "float64")

    def answered() -> list[int]:
        return [child["answered"] for child in shmgpu.stats()["children"][:TRAINERS]]

    def run(rank: int) -> None:
        if rank == TRAINERS:
            before, after = crowd.watch(answered)
            served[:] = np.subtract(after, before)
            return
        with crowd.ended_by_errors():
            step = _trainer(rank)
            for _ in range(3):  # what is sent at first is a program that nobody knows yet
                step()
            crowd.drive(rank, step)

    shmgpu.launch(
        run,
        children=TRAINERS + 1,
        helpers=TRAINERS_HELPERS,
        devices=["cpu"],
        arena="8MiB",
    )
    return {"jain": jain(served), "rate": crowd.result()["rate"]}


_RATE = {"rate": "1/s"}
_BUSY = {"rate": "of alone", "processor": "times alone", "processor_us": "us"}

WORKLOAD = Workload(
    "training",
    "training loops through a helper, beside PyTorch eager in process",
    (
        Group(
            "mlp",
            (
                probe("shmgpu", "benchmarks.workloads.training:shmgpu_mlp", _RATE),
                probe("PyTorch eager", "benchmarks.workloads.training:eager_mlp", _RATE),
            ),
            (Figure("mlp", ("shmgpu", "rate"), ("PyTorch eager", "rate"), ">= 1.0"),),
        ),
        Group(
            "busy",
            tuple(
                probe(
                    name if spins else f"{name}, asleep",
                    "benchmarks.workloads.training:shmgpu_busy",
                    _BUSY,
                    imports_first=first,
                    spins=spins,
                )
                for name, first in (("shmgpu", False), ("torch imported first", True))
                for spins in (True, False)
            ),
            (
                Figure("busy_rate", ("shmgpu", "rate"), asked=">= 0.35"),
                Figure("busy_processor", ("shmgpu, asleep", "processor"), asked="<= 1.3"),
                Figure("busy_rate_torch_first", ("torch imported first", "rate"), asked=">= 0.35"),
                Figure(
                    "busy_processor_torch_first",
                    ("torch imported first, asleep", "processor"),
                    asked="<= 1.3",
                ),
            ),
            seconds=1.0,
            quick_rounds=1,
        ),
        Group(
            "fair",
            (
                probe(
                    "shmgpu",
                    "benchmarks.workloads.training:shmgpu_fair",
                    {"jain": "index", "rate": "1/s"},
                ),
            ),
            (
                Figure("fair", ("shmgpu", "jain"), asked=">= 0.95"),
                Figure("fair_steps", ("shmgpu", "rate")),
            ),
            # Some forty turns for each: one more or less at the span's ends must not decide.
            seconds=1.5,
            rounds=3,
            quick_rounds=1,
        ),
        Group(
            "transformer",
            (
                probe("shmgpu", "benchmarks.workloads.training:shmgpu_transformer", _RATE),
                probe("PyTorch eager", "benchmarks.workloads.training:eager_transformer", _RATE),
            ),
            (Figure("transformer", ("shmgpu", "rate"), ("PyTorch eager", "rate"), ">= 0.95"),),
            quick=False,
        ),
        Group(
            "memory",
            (
                probe(
                    "shmgpu",
                    "benchmarks.workloads.training:shmgpu_growth",
                    {"helper": "MiB", "child": "MiB"},
                ),
            ),
            (
                Figure("helper_growth", ("shmgpu", "helper"), asked="<= 1"),
                Figure("child_growth", ("shmgpu", "child"), asked="<= 1"),
            ),
            seconds=10.0,
            rounds=1,
            quick=False,
        ),
    ),
)
