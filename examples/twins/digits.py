"""A convolutional network with batch normalisation learns handwritten digits.

    python examples/twins/beside.py digits

The digits are scikit-learn's: 1,797 pictures of 8 x 8 pixels. Nothing but the imports names shmgpu.
"""

import numpy as np
from sklearn.datasets import load_digits

import shmgpu as torch
from shmgpu import nn, optim
from shmgpu.nn import functional as F

STEPS, BATCH, RATE = 60, 64, 0.05
FOUND = load_digits()
PICTURES = (FOUND.images / 16).astype("float32")[:, None]
IS_TEST = np.arange(len(PICTURES)) % 5 == 0


def layer(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Network(nn.Module):
    """(count, 1, 8, 8) -> (count, 10) scores."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(layer(1, 16), layer(16, 32, stride=2), layer(32, 32))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.head(self.pool(self.layers(x)))


def make():
    return Network()


def train(model, steps):
    """The loss of each step."""
    rng = np.random.default_rng(0)
    pictures, digits = PICTURES[~IS_TEST], FOUND.target[~IS_TEST]
    optimiser = optim.SGD(
        model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    schedule = optim.lr_scheduler.OneCycleLR(optimiser, max_lr=RATE, total_steps=steps + 1)
    model.train()
    for _ in range(steps):
        chosen = rng.choice(len(pictures), BATCH, replace=False)
        scores = model(torch.from_numpy(pictures[chosen]))
        loss = F.cross_entropy(scores, torch.from_numpy(digits[chosen]), label_smoothing=0.05)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        yield loss.item()


@torch.no_grad()
def score(model):
    """The share of pictures that it has not seen and reads rightly."""
    model.eval()
    scores = model(torch.from_numpy(PICTURES[IS_TEST]))
    return (scores.argmax(1) == torch.from_numpy(FOUND.target[IS_TEST])).float().mean().item()
