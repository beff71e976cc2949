"""Train on two helpers with netcl's names: replicas of a model, and a step of all of them at once.

    python examples/netcl_replicas.py

What a loop over netcl's replicas does one after the other is one message to both helpers here: each
runs forward and backward on its rows, they meet for the mean of all gradients, and each makes the
step. A batch of 61 rows is 31 and 30, and each row counts alike.
"""

import numpy as np
from sklearn.datasets import load_digits

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.compat.netcl import (
    all_reduce,
    data_parallel_step,
    prepare_replicas,
    replicate_params,
    shard_batch,
    sync_grads,
)
from shmgpu.distributed import CommDebugMode

EPOCHS, BATCH = 6, 61


def load():
    """Pictures and digits, to learn from and to be tested with."""
    digits = load_digits()
    images, is_test = (digits.data / 16).astype("float32"), np.arange(len(digits.target)) % 5 == 0
    return images[~is_test], digits.target[~is_test], images[is_test], digits.target[is_test]


def train():
    """A model, and the losses of its replicas' steps."""
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    images, digits, _, _ = load()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    adam = optim.Adam(model.parameters(), lr=3e-3)
    replicas = prepare_replicas(model, adam, n_replicas=2)
    losses = []
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(images), BATCH):
            chosen = order[start : start + BATCH]
            batch = images[chosen], digits[chosen]
            losses.append(data_parallel_step(replicas, batch, loss_fn=nn.cross_entropy).item())
    return model, losses


def by_hand():
    """The mean gradient of two replicas of one weight, on a batch of 3 rows."""
    replicas = replicate_params([gt.zeros(1, requires_grad=True)], ["helper:0", "helper:1"])
    parts = shard_batch(np.array([[3.0], [6.0], [9.0]], dtype="float32"), 2)
    for (weight,), rows in zip(replicas, parts, strict=True):
        (gt.tensor(rows) * weight).mean().backward()
    sync_grads(replicas, weights=[len(rows) for rows in parts])
    return [weight.grad.item() for (weight,) in replicas]


def main():
    with gt.init(helpers=2, devices="cpu"):
        given = [gt.full((2,), 1.0), gt.full((2,), 2.0)]
        all_reduce(given)
        print(f"all_reduce: {given[0].tolist()} and {given[1].tolist()}")
        print(f"mean of gradients of 2 rows and of 1: {by_hand()}")
        with CommDebugMode() as met:
            model, losses = train()
        print(f"meetings in {len(losses)} steps: {met.get_comm_counts()}")
        _, _, images, digits = load()
        with gt.no_grad():
            found = model(gt.tensor(images)).argmax(1).numpy()
        print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
        print(f"accuracy on pictures it has not seen: {(found == digits).mean():.2%}")


if __name__ == "__main__":
    main()
