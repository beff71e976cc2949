"""Train a network, lose the helper that held it, and go on from the last checkpoint.

    python examples/train_mlp.py

One step, forward and backward and the optimiser's, is one message. Weights stay in the helper, so
when it dies they are gone: `HelperDied` names them. A checkpoint is a `state_dict`, fetched now and
then; the helper's replacement starts from that.
"""

import os
import signal

import numpy as np

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.common.progress import ProgressBar

EPOCHS, STEPS, BATCH = 6, 150, 128
DIES_IN = 3  # epoch in which the helper is killed


class Network(nn.Module):
    """Whether a point of the plane lies in the ring."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 64)
        self.second = nn.Linear(64, 1)

    def forward(self, x):
        return self.second(nn.relu(self.first(x)))


def draw(rng, count):
    points = rng.uniform(-1.5, 1.5, (count, 2)).astype("float32")
    radius = np.hypot(*points.T)
    return points, ((0.5 < radius) & (radius < 1.2)).astype("float32")[:, None]


def checkpoint(model, adam):
    """Arrays of the program's own, which outlive the helper. To outlive the program: np.savez."""
    return nn.state_arrays(model.state_dict()), nn.state_arrays(adam.state_dict())


def restore(weights, state):
    model = Network()
    model.load_state_dict(weights)
    adam = optim.Adam(model.parameters())
    adam.load_state_dict(state)
    return model, adam


def train(model, adam, rng, bar, killer=None):
    for step in range(STEPS):
        x, y = draw(rng, BATCH)
        loss = nn.mse_loss(model(gt.tensor(x)), gt.tensor(y))
        adam.zero_grad()
        loss.backward()
        adam.step()
        bar.update()
        if killer is not None and step == STEPS // 2:
            killer()
    return loss.item()


def kill_the_helper():
    os.kill(gt.stats()["helpers"][0]["pid"], signal.SIGKILL)


def main():
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    model = Network()
    adam = optim.Adam(model.parameters(), lr=0.02)
    saved = checkpoint(model, adam)
    epoch, killer = 0, kill_the_helper
    with ProgressBar(EPOCHS * STEPS, "training", "steps") as bar:
        while epoch < EPOCHS:
            try:
                loss = train(model, adam, rng, bar, killer if epoch == DIES_IN else None)
                saved = checkpoint(model, adam)
            except gt.HelperDied as error:
                print("lost:", str(error).partition(",")[0])
                killer = None  # once is enough
                model, adam = restore(*saved)
                continue
            epoch += 1
            print(f"epoch {epoch}: loss {loss:.4f}")
    x, y = draw(rng, 2000)
    with gt.no_grad():
        right = ((model(gt.tensor(x)).data > 0.5) == (y > 0.5)).mean()
    print(f"right: {100 * right:.1f} % of 2000 new points")


if __name__ == "__main__":
    with gt.init(helpers=1):
        main()
