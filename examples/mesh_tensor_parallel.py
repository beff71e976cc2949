"""A layer's weights cut over two helpers, which train it as one device.

    python examples/mesh_tensor_parallel.py

The network is written for one device. A plan says which layer is cut by columns and which by rows;
what the helpers must exchange follows from that, and can be asked for before anything is sent.
"""

import numpy as np

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.distributed import (
    ColwiseParallel,
    CommDebugMode,
    RowwiseParallel,
    explain,
    init_device_mesh,
    parallelize_module,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((256, 16)).astype("float32")
Y = np.sin(X.sum(1, keepdims=True))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 512)
        self.down = nn.Linear(512, 1)

    def forward(self, x):
        return self.down(self.up(x).relu())


def train(model, steps=40):
    adam = optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = nn.mse_loss(model(gt.tensor(X)), gt.tensor(Y))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def main():
    with gt.init(helpers=2, devices="cpu"):
        gt.manual_seed(0)
        alone = train(Network())

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        gt.manual_seed(0)
        model = Network()
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh, plan)
        for name, one in model.named_parameters():
            print(f"{name} {one.shape} lies {one.placements}")

        with CommDebugMode() as met:
            scores = model(gt.tensor(X))
            print(explain(scores))
        print(f"forward: {met.get_comm_counts()}, {met.nbytes[0]:,} bytes each")

        losses = train(model)
        print(f"the losses are one helper's: {np.allclose(alone, losses, rtol=0.05, atol=1e-3)}")
        print(f"from {losses[0]:.3f} to {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
