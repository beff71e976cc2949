"""A learner gives new weights to all helpers, while actors call them: the versions never fall.

Two helpers hold a small network. The learner fits its own copy to a sine and, every 100 steps,
broadcasts the weights: each helper runs ``set_weights`` once, and from one instant on calls run
only where that has happened. The actors watch their predictions become better. In the middle one
helper is killed: the one that replaces it has the last weights before it serves.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

import shmgpu

PUSHES, STEPS, ACTORS = 8, 100, 4


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def load(helper):
    return network().to(helper.device)


@shmgpu.function
def set_weights(helper, weights):
    helper.session.load_state_dict(weights)


@shmgpu.function
def predict(helper, x):
    with torch.inference_mode():
        return helper.session(x), helper.version


def learner():
    net = network()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for push in range(PUSHES):
        for _ in range(STEPS):
            x = 6 * torch.rand(64, 1) - 3
            loss = torch.nn.functional.mse_loss(net(x), x.sin())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        version = set_weights.broadcast(net.state_dict())
        assert version == push + 1
        if version == PUSHES // 2:
            os.kill(shmgpu.stats()["helpers"][0]["pid"], signal.SIGKILL)
    return loss.item()


def actor():
    x = torch.linspace(-3, 3, 32)[:, None]
    errors, seen = {}, 0
    while seen < PUSHES:
        try:
            y, version = predict(x)
        except shmgpu.HelperDied:
            continue  # the call that was executing: it is made again
        assert version >= seen
        seen = version
        errors[version] = (y - x.sin()).square().mean().item()
    return errors


def worker(rank) -> Any:  # the learner's last loss; an actor's errors, by version
    return learner() if rank == 0 else actor()


if __name__ == "__main__":
    loss, *seen = shmgpu.launch(worker, children=1 + ACTORS, helpers=2, session=load, devices="cpu")
    errors = {version: error for one in seen for version, error in one.items()}
    print(f"the actors saw {len(errors)} versions, and none after a later one")
    print(
        f"with version {PUSHES} their error is {errors[PUSHES]:.4f}; the learner's was {loss:.4f}"
    )
