"""Train a network on handwritten digits, on two helpers as one device: each has half of a batch.

    python examples/mesh_data_parallel.py

The program is that of one device, but that a batch is cut: parameters that nobody put anywhere are
whole with each helper. Forward, backward and step are one message to both. In each they meet four
times: once for all gradients and the loss, three times for the batch norm, which takes its means
over the whole batch, as it would on one device.
"""

import numpy as np
from sklearn.datasets import load_digits

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.distributed import CommDebugMode, Shard, distribute_tensor, init_device_mesh

EPOCHS, BATCH = 8, 60


def load():
    """Pictures and digits, to learn from and to be tested with."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[:, None]
    is_test = np.arange(len(images)) % 5 == 0
    return images[~is_test], digits.target[~is_test], images[is_test], digits.target[is_test]


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(mesh=None):
    """Losses by step, and the accuracy on the test pictures."""
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    images, digits, test_images, test_digits = load()
    model = network()

    def cut(batch):
        return gt.tensor(batch) if mesh is None else distribute_tensor(batch, mesh, [Shard(0)])

    adam = optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(images), BATCH):  # the last one is smaller, and odd
            chosen = order[start : start + BATCH]
            loss = nn.cross_entropy(model(cut(images[chosen])), cut(digits[chosen]))
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
    model.eval()
    with gt.no_grad():
        found = model(cut(test_images)).argmax(1).numpy()
    return losses, float((found == test_digits).mean())


def main():
    with gt.init(helpers=2, devices="cpu"):
        alone, _ = train()
        mesh = init_device_mesh("cpu", (2,))
        with CommDebugMode() as met:
            losses, accuracy = train(mesh)
    steps = len(losses)
    meetings = {kind: count / steps for kind, count in met.get_comm_counts().items()}
    print(f"meetings in a step: {', '.join(f'{n:.1f} {kind}' for kind, n in meetings.items())}")
    print(f"the losses are one helper's: {np.allclose(alone, losses, rtol=0.05, atol=0.01)}")
    print(f"accuracy on pictures it has not seen: {accuracy:.2%}")


if __name__ == "__main__":
    main()
