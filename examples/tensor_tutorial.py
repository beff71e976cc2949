"""Tensors from the first line to a trained network, with what happens at each step.

    python examples/tensor_tutorial.py

Read it from top to bottom; it is also the test that everything works together.
"""

import numpy as np

import shmgpu as gt
from shmgpu import debug, nn, optim


def step(text):
    print(f"\n{text}")


def record():
    step("1. Writing an expression computes nothing. It is recorded.")
    a = gt.tensor([1.0, 2.0, 3.0])
    b = (a * 2 + 1).sum()
    print("   waiting:", ", ".join(row["op"] for row in debug.get_tape()))
    print("   the shape is known at once:", b.shape, b.dtype.name)

    step("2. Looking at it sends all that waits, as one message, and brings the answer.")
    print("   b =", b.item(), "; waiting now:", len(debug.get_tape()))


def refuse():
    step("3. What cannot be is refused in the line that says it, not when it is computed.")
    try:
        gt.ones(2, 3) + gt.ones(4)
    except ValueError as error:
        print("   ", error, sep="")


def own():
    step("4. tensor() copies, so nothing that you change later reaches it.")
    array = np.zeros(3, "float32")
    x = gt.tensor(array)
    array[:] = 7
    print("   x =", x.data.tolist())
    print("   and what you look at is read only:", not x.data.flags.writeable)


def differentiate():
    step("5. Gradients are recorded operations, so they can be differentiated again.")
    x = gt.tensor(3.0, requires_grad=True)
    (slope,) = gt.grad(x**3, x, create_graph=True)
    (bend,) = gt.grad(slope, x)
    print("   x^3 at 3: slope", slope.item(), "and bend", bend.item())


class Network(nn.Module):
    """Two layers; what is set in __init__ is found by parameters() and state_dict()."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(1, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(nn.tanh(self.hidden(x)))


def train():
    step("6. A network learns sin(3x). Weights stay in the helper; a step is one message.")
    model = Network()
    adam = optim.Adam(model.parameters(), lr=0.02)
    debug.enable()
    for count in range(1, 301):
        x = gt.rand(64, 1) * 2 - 1
        loss = nn.mse_loss(model(x), (3 * x).sin())
        adam.zero_grad()
        loss.backward()
        adam.step()
        if count % 100 == 0:
            print(f"   step {count}: loss {loss.item():.5f}")
    print(f"   {debug.verify()} operations were checked: each had its inputs at hand")
    debug.disable()
    return model


def keep(model):
    step("7. A state_dict is how a model outlives its helper; NumPy and torch read it.")
    arrays = nn.state_arrays(model.state_dict())
    copy = Network()
    copy.load_state_dict(arrays)
    with gt.no_grad():
        x = gt.tensor([[0.25]])
        print("   the same answer:", np.allclose(model(x).data, copy(x).data), end="")
        print(f", sin(0.75) = {np.sin(0.75):.2f}, learned {copy(x).item():.2f}")


if __name__ == "__main__":
    gt.manual_seed(1)
    with gt.init(helpers=1):  # without this the first tensor joins your broker, or starts one
        record()
        refuse()
        own()
        differentiate()
        keep(train())
