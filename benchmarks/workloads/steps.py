"""steps: programs as people write them, with the settings that they get, beside PyTorch.

Each program is one function of a module: shmgpu's or PyTorch's, and nothing else differs. PyTorch
runs with its default, a thread a core, and with one thread; what is asked holds against the better
of the two. The loss is read at every step unless it says otherwise.

``randn``: 784-128-10, batch 32, inputs drawn by each side's own generator; ``busy``: the same while
two other processes keep two cores busy. ``numpy``: inputs from NumPy. ``tenth``: the loss read
every tenth step. ``cnn``: two convolutions with batch norms, 64 images of 8 by 8. ``layers``: two
of ``TransformerEncoderLayer``, 16 texts of 64 characters. ``length``: one step of ``numpy`` with a
batch length never seen before. ``unread``: 20,000 additions to one tensor, the last of which is
read. ``deep``: forward and backward through 6,000 products.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure.figures import Figure, Group, ProbeFailed, Workload
from benchmarks.workloads.tensors import median_us, probe
from benchmarks.workloads.training import steps_a_second

BATCH = 32
CHARACTERS, PLACES, TEXTS, WIDTH = 97, 64, 16, 64
IMAGES = 64
UNREAD = 20_000
DEPTH = 6_000
NEW_LENGTHS = range(33, 33 + 60)

Step = Callable[[], Any]


def _trained(model: Any, optimiser: Any, loss_of: Any, data: Any) -> Step:
    """A step of training over what ``data()`` gives; it returns the loss, which nobody has read."""

    def step() -> Any:
        x, y = data()
        loss = loss_of(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss

    return step


def _read(step: Step, every: int = 1) -> Step:
    """The same, with the loss read at every so manyth step."""
    done = 0

    def reading() -> None:
        nonlocal done
        loss = step()
        done += 1
        if done % every == 0 and not loss.item() < 100:
            raise ProbeFailed("the loss became too large")

    return reading


def _mlp(gt: Any, data: Any) -> Step:
    nn = gt.nn
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = gt.optim.SGD(model.parameters(), lr=0.01)
    return _trained(model, optimiser, nn.functional.mse_loss, data)


def _drawn(gt: Any) -> Step:
    return _mlp(gt, lambda: (gt.randn(BATCH, 784), gt.randn(BATCH, 10)))


def _from_numpy(gt: Any) -> Callable[[int], Step]:
    """A step for any batch length."""
    import numpy as np

    rng = np.random.default_rng(0)
    length = BATCH

    def data() -> tuple[Any, Any]:
        x = rng.standard_normal((length, 784), dtype=np.float32)
        y = rng.standard_normal((length, 10), dtype=np.float32)
        return gt.from_numpy(x), gt.from_numpy(y)

    step = _read(_mlp(gt, data))

    def of_length(wanted: int) -> Step:
        nonlocal length
        length = wanted
        return step

    return of_length


def _cnn(gt: Any) -> Step:
    import numpy as np

    nn = gt.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    rng = np.random.default_rng(0)

    def data() -> tuple[Any, Any]:
        images = rng.standard_normal((IMAGES, 1, 8, 8), dtype=np.float32)
        return gt.from_numpy(images), gt.from_numpy(rng.integers(0, 10, IMAGES))

    optimiser = gt.optim.SGD(model.parameters(), lr=0.01)
    return _trained(model, optimiser, nn.functional.cross_entropy, data)


def _layers(gt: Any) -> Step:
    import numpy as np

    nn = gt.nn
    model = nn.Sequential(
        nn.Embedding(CHARACTERS, WIDTH),
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True),
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True),
        nn.Linear(WIDTH, CHARACTERS),
        nn.Flatten(0, 1),
    )
    rng = np.random.default_rng(0)

    def data() -> tuple[Any, Any]:
        text = rng.integers(0, CHARACTERS, (TEXTS, PLACES + 1))
        x, y = np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:].ravel())
        return gt.from_numpy(x), gt.from_numpy(y)

    optimiser = gt.optim.AdamW(model.parameters(), lr=1e-3)
    return _trained(model, optimiser, nn.functional.cross_entropy, data)


def _rate(make: Callable[[Any], Step], every: int = 1) -> Callable[[Any, float], dict[str, float]]:
    def measure(gt: Any, seconds: float) -> dict[str, float]:
        return {"rate": steps_a_second(_read(make(gt), every), seconds)}

    return measure


def _busy(gt: Any, seconds: float) -> dict[str, float]:
    from benchmarks.measure.processes import busy_neighbours

    step = _read(_drawn(gt))
    step()
    with busy_neighbours():
        return {"rate": steps_a_second(step, seconds)}


def _lengths(gt: Any, seconds: float) -> dict[str, float]:
    """The median of steps of which each has a new length; ``seconds`` does not matter."""
    of_length = _from_numpy(gt)
    for _ in range(50):
        of_length(BATCH)()
    took = []
    for length in NEW_LENGTHS:
        began = time.perf_counter_ns()
        of_length(length)()
        took.append((time.perf_counter_ns() - began) / 1000)
    return {"median": statistics.median(took)}


def _median(call_of: Callable[[Any], Step]) -> Callable[[Any, float], dict[str, float]]:
    def measure(gt: Any, seconds: float) -> dict[str, float]:
        return {"median": median_us(call_of(gt), seconds, 2)}

    return measure


def _unread(gt: Any) -> Step:
    def call() -> None:
        t = gt.zeros(1)
        for _ in range(UNREAD):
            t = t + 1
        if t.item() != UNREAD:
            raise ProbeFailed("a sum is wrong")

    return call


def _deep(gt: Any) -> Step:
    def call() -> None:
        x = gt.ones(4, requires_grad=True)
        t = x
        for _ in range(DEPTH):
            t = t * 1.0
        t.sum().backward()
        if x.grad.sum().item() != 4:
            raise ProbeFailed("a gradient is wrong")

    return call


PROGRAMS: dict[str, Callable[[Any, float], dict[str, float]]] = {
    "randn": _rate(_drawn),
    "busy": _busy,
    "numpy": lambda gt, seconds: {"rate": steps_a_second(_from_numpy(gt)(BATCH), seconds)},
    "tenth": _rate(_drawn, 10),
    "cnn": _rate(_cnn),
    "layers": _rate(_layers),
    "length": _lengths,
    "unread": _median(_unread),
    "deep": _median(_deep),
}


def run(seconds: float, program: str, library: str, threads: int | None = None) -> Any:
    """Run a program with a library; PyTorch with so many threads, or as many as it takes."""
    if library == "shmgpu":
        import shmgpu

        with shmgpu.init():
            return PROGRAMS[program](shmgpu, seconds)
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return PROGRAMS[program](torch, seconds)


def _group(program: str, asked: str, quick: bool = False, rounds: int | None = None) -> Group:
    """Each program with each library; what is asked holds beside both settings of PyTorch."""
    quantity, unit = ("median", "us") if asked.startswith("<") else ("rate", "1/s")
    here = "benchmarks.workloads.steps:run"
    ways: dict[str, dict[str, Any]] = {
        "shmgpu": {"library": "shmgpu"},
        "PyTorch": {"library": "torch"},
        "PyTorch, one thread": {"library": "torch", "threads": 1},
    }
    return Group(
        program,
        tuple(
            probe(name, here, {quantity: unit}, program=program, **settings)
            for name, settings in ways.items()
        ),
        tuple(
            Figure(name, ("shmgpu", quantity), (baseline, quantity), asked)
            for name, baseline in ((program, "PyTorch"), (f"{program}_one", "PyTorch, one thread"))
        ),
        quick=quick,
        quick_rounds=1,
        rounds=rounds,
    )


WORKLOAD = Workload(
    "steps",
    "programs as people write them, with defaults, beside PyTorch with its own and with one thread",
    (
        _group("randn", ">= 1.0", quick=True),
        _group("busy", ">= 0.7"),
        _group("numpy", ">= 1.1", quick=True),
        _group("tenth", ">= 1.2"),
        _group("cnn", ">= 0.9", quick=True),
        _group("layers", ">= 1.0"),
        _group("length", "<= 3", rounds=3),
        _group("unread", "<= 5", rounds=3),
        _group("deep", "<= 3", rounds=3),
    ),
)
