"""The demo's model: a small convolutional network, how it is trained and how it is carried.

Plain PyTorch that knows nothing of shmgpu: the same code runs in helpers and in the workers of the
``multiprocessing`` baseline. Never runs a tensor operation in a process that forks afterwards (its
thread pool would not survive the fork): everything here is called in helpers and workers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from shmgpu.demo.digits import CLASSES, IMAGE_SHAPE

Weights = dict[str, NDArray[np.float32]]

EPOCHS = 40
BATCH = 32
PEAK_RATE = 0.01


class Network(nn.Module):
    """Two convolutions and one linear layer: (n, 1, 8, 8) -> scores (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv2d(1, 16, 3, padding=1)
        self.far = nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.out = nn.Linear(32 * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Scores (logits) of the digits 0 to 9 for each image."""
        x = functional.relu(self.near(images))
        x = functional.relu(self.far(x))
        scores: Tensor = self.out(x.flatten(1))
        return scores


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to one pixel either way on both axes, zeros moving in."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (1, 1, 1, 1))
    corner = torch.randint(0, 3, (2, len(images), 1), generator=generator).to(images.device)
    rows = corner[0] + torch.arange(height, device=images.device)
    columns = corner[1] + torch.arange(width, device=images.device)
    each = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[each, 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def train(
    images: Tensor,
    labels: Tensor,
    seed: int,
    epochs: int = EPOCHS,
    each_epoch: Callable[[], object] = lambda: None,
) -> Network:
    """Train a network on the device that the images are on.

    AdamW under a one-cycle learning rate (Smith and Topin, 2019), on images shifted by up to a
    pixel. The same seed, device and number of threads give the same weights.

    Args:
        images: float32 (n, 1, 8, 8).
        labels: int64 (n,).
        seed: of the initial weights, the order of the images and the shifts.
        epochs: passes over the images.
        each_epoch: called after each pass.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = Network().to(images.device)
    steps = epochs * -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
    network.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator).to(images.device)
        for indices in torch.split(order, BATCH):
            scores = network(shifted(images[indices], generator))
            loss = functional.cross_entropy(scores, labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        each_epoch()
    return network.eval()


def weights_of(network: Network) -> Weights:
    """The network's parameters by name, as arrays that any process can hold."""
    return {name: value.cpu().numpy() for name, value in network.state_dict().items()}


def with_weights(weights: Weights, device: str) -> Network:
    """A network for answering, on a device; its first answers are already behind it."""
    network = Network()
    # A copy: whoever gave the arrays keeps them.
    network.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    network.to(device).eval()
    with torch.inference_mode():
        for rows in (1, 2, 32):
            network(torch.zeros(rows, *IMAGE_SHAPE, device=device))
    return network


def accuracy(network: Network, images: Tensor, labels: Tensor) -> float:
    """Share of the images that the network puts in the right class."""
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).float().mean())
