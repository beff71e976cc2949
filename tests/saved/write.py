"""Writes what users of this version may keep: pickles, states of models, traces.

    python tests/saved/write.py FOLDER

A test loads what earlier versions wrote (tests/unit/test_saved.py). Run this with a release that
writes something new, into a new folder. Uses public names alone, so that any version can run it.
Never reads what it wrote.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np

import shmgpu
import shmgpu.debug
import shmgpu.errors
import shmgpu.nn
import shmgpu.optim
import shmgpu.serve

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import saved_functions

MODULES = (shmgpu, shmgpu.arena, shmgpu.debug, shmgpu.errors, shmgpu.nn, shmgpu.optim, shmgpu.serve)
LAZY = "Tensor tensor zeros ones arange cat where relu matmul no_grad grad SGD Adam manual_seed"


def public_names() -> dict[str, Any]:
    """Classes and functions under public names: a pickle holds each by its module and name."""
    found = {}
    for module in MODULES:
        names = list(getattr(module, "__all__", dir(module)))
        for name in names + LAZY.split() * (module is shmgpu):
            one = getattr(module, name, None)
            owner = str(getattr(one, "__module__", ""))
            if not name.startswith("_") and callable(one) and owner.startswith("shmgpu"):
                found[f"{module.__name__}.{name}"] = one
    return found


def instances() -> dict[str, Any]:
    """Objects that programs keep, by what they are."""
    tensor, nn = shmgpu.tensor, shmgpu.nn
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    shmgpu.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimiser = shmgpu.optim.Adam(model.parameters(), lr=0.01)
    loss = nn.mse_loss(model(tensor(values)), tensor(np.ones((2, 2), np.float32)))
    loss.backward()
    optimiser.step()
    return {
        "float32": tensor(values),
        "int64": tensor([1, 2, 3]),
        "bool": tensor([True, False]),
        "bfloat16": tensor([1.5, -2.0], dtype=shmgpu.bfloat16),
        "float16": tensor([1.5, -2.0], dtype=shmgpu.float16),
        "needs a gradient": tensor([1.0], requires_grad=True),
        "parameter": nn.Parameter(tensor([1.0, 2.0])),
        "model": model,
        "model's answer": model(tensor(values)).numpy(),
        "model's arrays": nn.state_arrays(model.state_dict()),
        "optimiser's state": optimiser.state_dict(),
        "momentum": momentum(values),
        "element type": shmgpu.float32,
        "batch": shmgpu.Batch(max_size=3),
        "declared": shmgpu.Declared((2, 3), "float32"),
        "function": saved_functions.double,
        "error of a function": remote_error(),
        "error": shmgpu.ArenaFull("the arena is full"),
    }


def momentum(values: Any) -> dict[str, Any]:
    """The state of an optimiser that keeps a momentum, after a step."""
    nn = shmgpu.nn
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimiser = shmgpu.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(shmgpu.tensor(values)).sum().backward()
    optimiser.step()
    return optimiser.state_dict()


def layers() -> dict[str, Any]:
    """A layer of each kind with its input; in the same order, what it answers."""
    nn, tensor = shmgpu.nn, shmgpu.tensor
    shmgpu.manual_seed(5)
    rows = tensor(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))
    image = tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4))
    labels = tensor([1, 0, 3])
    shares = rows.sigmoid()
    made = {
        "Linear": (nn.Linear(4, 2), rows),
        "Conv2d": (nn.Conv2d(2, 3, 3, padding=1), image),
        "MaxPool2d": (nn.MaxPool2d(2), image),
        "AvgPool2d": (nn.AvgPool2d(2), image),
        "Flatten": (nn.Flatten(), image),
        "Dropout": (nn.Dropout(0.5).eval(), rows),
        "Embedding": (nn.Embedding(5, 2), labels),
        "LayerNorm": (nn.LayerNorm(4), rows),
        "ReLU": (nn.ReLU(), rows),
        "GELU": (nn.GELU(approximate="tanh"), rows),
        "LeakyReLU": (nn.LeakyReLU(0.3), rows),
        "SiLU": (nn.SiLU(), rows),
        "Sigmoid": (nn.Sigmoid(), rows),
        "Tanh": (nn.Tanh(), rows),
        "Softmax": (nn.Softmax(dim=1), rows),
        "LogSoftmax": (nn.LogSoftmax(dim=1), rows),
        "MSELoss": (nn.MSELoss(), rows, rows * 2),
        "L1Loss": (nn.L1Loss(reduction="sum"), rows, rows * 2),
        "CrossEntropyLoss": (nn.CrossEntropyLoss(), rows, labels),
        "NLLLoss": (nn.NLLLoss(), rows, labels),
        "BCELoss": (nn.BCELoss(), shares, shares),
        "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), rows, shares),
        "ModuleList": (nn.Sequential(*nn.ModuleList([nn.Tanh(), nn.Linear(4, 4)])), rows),
        "of a program": (saved_functions.Network(), rows),
    }
    return {
        f"layer {name}": (layer, args, layer(*args).numpy())
        for name, (layer, *args) in made.items()
    }


def remote_error() -> BaseException:
    """What a call raises whose function has failed."""
    try:
        saved_functions.double(None)
    except shmgpu.RemoteError as error:
        return error
    raise AssertionError("the function did not fail")


def child(rank: int) -> float:
    """Call a few times, so that the trace has something to show."""
    return float(sum(saved_functions.double(np.ones(4, np.float32)).sum() for _ in range(3)))


def main(folder: pathlib.Path) -> None:
    """Write everything, and say what could not be pickled."""
    folder.mkdir(parents=True, exist_ok=True)
    kept: dict[str, bytes] = {}
    with shmgpu.init(helpers=1, devices=["cpu"]):
        for name, one in {**public_names(), **instances(), **layers()}.items():
            try:
                kept[name] = pickle.dumps(one, protocol=4)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                print(f"{name} is not pickled: {error}")
        shmgpu.debug.enable()
        (shmgpu.tensor([1.0, 2.0]) * 2 + 1).sum().item()
        shmgpu.debug.save_debug_trace(folder / "tensors.json")
        shmgpu.debug.disable()
    (folder / "pickles.json").write_text(
        json.dumps({name: data.hex() for name, data in kept.items()}, indent=1) + "\n"
    )
    shmgpu.launch(child, children=2, helpers=1, devices=["cpu"], trace_path=folder / "calls.json")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
