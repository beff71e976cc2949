"""Train a convolutional network on handwritten digits, in a helper, and draw how it went.

    python examples/digits_network.py [PICTURE.png]

The digits are scikit-learn's: 1,797 pictures of 8 x 8 pixels, of which every fifth is kept for the
test. Forward, backward and Adam's step are recorded here and run there, one message a step.
"""

import pathlib
import sys

import numpy as np
from sklearn.datasets import load_digits

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.common.progress import ProgressBar

EPOCHS, BATCH = 40, 64


class Network(nn.Module):
    """Two convolutions, two layers: (count, 1, 8, 8) -> (count, 10) scores."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4, 64)
        self.scores = nn.Linear(64, 10)

    def forward(self, x):
        x = nn.max_pool2d(nn.relu(self.first(x)), 2)
        x = nn.max_pool2d(nn.relu(self.second(x)), 2)
        return self.scores(nn.relu(self.hidden(x.flatten(1))))


def load():
    """Pictures and digits, to learn from and to be tested with."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[:, None]
    is_test = np.arange(len(images)) % 5 == 0
    return images[~is_test], digits.target[~is_test], images[is_test], digits.target[is_test]


def accuracy(model, images, digits):
    with gt.no_grad():
        return float((model(gt.tensor(images)).argmax(1).numpy() == digits).mean())


def train(progress=None):
    """The model, its losses by step, and its accuracy on the test pictures by epoch."""
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    images, digits, test_images, test_digits = load()
    model = Network()
    adam = optim.Adam(model.parameters(), lr=2e-3)
    losses, accuracies = [], []
    steps = len(images) // BATCH
    with ProgressBar(EPOCHS * steps, "training", "steps", progress) as bar:
        for _ in range(EPOCHS):
            order = rng.permutation(len(images))
            for step in range(steps):
                chosen = order[step * BATCH : (step + 1) * BATCH]
                scores = model(gt.tensor(images[chosen]))
                loss = nn.cross_entropy(scores, gt.tensor(digits[chosen]))
                adam.zero_grad()
                loss.backward()
                adam.step()
                losses.append(loss.item())
                bar.update()
            accuracies.append(accuracy(model, test_images, test_digits))
    return model, losses, accuracies


def draw(path, losses, accuracies):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(losses, linewidth=0.8)
    left.set(xlabel="step", ylabel="loss", yscale="log")
    right.plot(range(1, len(accuracies) + 1), accuracies, marker="o")
    right.set(xlabel="epoch", ylabel="accuracy on the test pictures")
    figure.savefig(path, dpi=120)


def main():
    with gt.init(helpers=1, devices=["cpu"]):
        _, losses, accuracies = train()
    print(f"accuracy on pictures it has not seen: {accuracies[-1]:.2%}")
    if len(sys.argv) > 1:
        draw(pathlib.Path(sys.argv[1]), losses, accuracies)
    return accuracies[-1]


if __name__ == "__main__":
    main()
