"""Models train as they do in torch, step for step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shmgpu import nn, optim
from shmgpu.tensors import tensor as st


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(nn.relu(self.first(x)))


class TorchModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


OPTIMISERS = {
    "SGD": {"lr": 0.1},
    "SGD momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    "Adam": {"lr": 0.01, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01},
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_loss_falls_as_in_torch(engine, name):
    settings = OPTIMISERS[name]
    theirs = TorchModel()
    ours = Model()
    ours.load_state_dict(theirs.state_dict())
    kind = name.split()[0]
    step = getattr(optim, kind)(ours.parameters(), **settings)
    their_step = getattr(torch.optim, kind)(theirs.parameters(), **settings)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.standard_normal((5, 6)).astype("f4"), rng.standard_normal((5, 3)).astype("f4")
        loss = nn.mse_loss(ours(st.tensor(x)), st.tensor(y))
        step.zero_grad()
        loss.backward()
        step.step()
        their_loss = torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y))
        their_step.zero_grad()
        their_loss.backward()
        their_step.step()
        assert loss.item() == pytest.approx(their_loss.item(), rel=1e-4)
    for key, one in ours.state_dict().items():
        np.testing.assert_allclose(one.numpy(), theirs.state_dict()[key].numpy(), atol=1e-4)
