"""Whole programs as a user of GT writes them: no broker runs, nothing is started by hand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shmgpu.attach import automatic, control

FIRST = """
import shmgpu as gt

a = gt.randn(100, 100)
b = gt.randn(100, 100)
c = a @ b
print(c[:4, :4].shape)
"""

GRADIENTS = """
import shmgpu as gt

x = gt.tensor([[1, 2], [3, 4]], requires_grad=True)
y = x * x
y.backward()
print(x.grad.data.numpy().tolist())
"""

CONNECTED = """
import shmgpu as gt

gt.connect("localhost:12345")
gt.set_backend("numpy")
print((gt.tensor([1, 2]) + gt.ones(2)).data.numpy().tolist())
gt.disconnect()
"""

TRAINED = """
import shmgpu as gt
from shmgpu.nn import Linear, Module, SGD

gt.gpu_workers(1)
gt.set_verbosity(1)

class Line(Module):
    def __init__(self):
        super().__init__()
        self.fit = Linear(1, 1)

    def forward(self, x):
        return self.fit(x)

model, x = Line(), gt.rand(32, 1)
optimizer = SGD(model.parameters(), lr=0.5)
for step in range(200):
    loss = ((model(x) - (2 * x + 1)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item() < 1e-3)
"""

SHOWN = {
    "first": (FIRST, "(4, 4)"),
    "gradients": (GRADIENTS, "[[2.0, 4.0], [6.0, 8.0]]"),
    "connected": (CONNECTED, "[2.0, 3.0]"),
    "trained": (TRAINED, "True"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A socket at which the first program that ran started a broker."""
    path = tmp_path_factory.mktemp("broker") / "broker.sock"
    assert run(FIRST, path).returncode == 0
    yield path
    for one in automatic.running(path):
        control.down(path=one)


def run(text, place):
    given = {name: value for name, value in os.environ.items() if "SHMGPU_" not in name}
    given.update(SHMGPU_SOCKET=str(place), SHMGPU_ARENA="8MiB")
    return subprocess.run(
        [sys.executable, "-c", text], env=given, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("name", SHOWN)
def test_a_program_runs_with_its_import_changed(name, place):
    text, shown = SHOWN[name]
    done = run(text, place)
    assert done.stdout.strip() == shown, done.stderr
