"""Train on two helpers with tinygrad's names: its multi-GPU example, on handwritten digits.

    python examples/tinygrad_digits.py

Against the original, imports and the data differ, and the network is as small as the pictures. The
devices are helpers: "helper:0" and "helper:1". A step is one message to both of them.
"""

import numpy as np
from sklearn.datasets import load_digits

import shmgpu
from shmgpu.compat.tinygrad import Device, GlobalCounters, Tensor, TinyJit, nn
from shmgpu.compat.tinygrad.helpers import getenv, trange

GPUS = tuple(f"{Device.DEFAULT}:{i}" for i in range(getenv("GPUS", 2)))


class Model:
    def __init__(self):
        self.layers = [
            nn.Conv2d(1, 16, 3), Tensor.relu,
            nn.Conv2d(16, 16, 3), Tensor.relu,
            nn.BatchNorm(16), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(64, 10),
        ]  # fmt: skip

    def __call__(self, x):
        return x.sequential(self.layers)


def digits():
    found = load_digits()
    images = (found.images / 16).astype("float32")[:, None]
    is_test = np.arange(len(images)) % 5 == 0
    parts = images[~is_test], found.target[~is_test], images[is_test], found.target[is_test]
    return [Tensor(part) for part in parts]


def main():
    Tensor.manual_seed(3)
    X_train, Y_train, X_test, Y_test = digits()
    X_test.shard_(GPUS, axis=0)  # 360 pictures, for 2 helpers or for 7
    Y_test.shard_(GPUS, axis=0)

    model = Model()
    for x in nn.state.get_state_dict(model).values():
        x.to_(GPUS)  # a copy of the model on every device
    opt = nn.optim.Adam(nn.state.get_parameters(model), lr=3e-3)

    @TinyJit
    def train_step():
        with Tensor.train():
            opt.zero_grad()
            samples = Tensor.randint(getenv("BS", 101), high=X_train.shape[0])
            Xt, Yt = X_train[samples].shard_(GPUS, axis=0), Y_train[samples].shard_(GPUS, axis=0)
            loss = model(Xt).sparse_categorical_crossentropy(Yt).backward()
            opt.step()
            return loss

    @TinyJit
    def get_test_acc():
        return (model(X_test).argmax(axis=1) == Y_test).mean() * 100

    losses, test_acc = [], float("nan")
    for i in (t := trange(getenv("STEPS", 120))):
        GlobalCounters.reset()
        loss = train_step()
        if i % 10 == 9:
            test_acc = get_test_acc().item()
        losses.append(loss.item())
        t.set_description(f"loss: {losses[-1]:6.2f} test_accuracy: {test_acc:5.2f}%")
    print(f"the weights lie on {', '.join(model.layers[0].weight.device)}")
    print(f"loss from {losses[0]:.2f} to {losses[-1]:.2f}")
    print(f"accuracy on pictures it has not seen: {test_acc:.2f}%")


if __name__ == "__main__":
    with shmgpu.init(helpers=len(GPUS), devices="cpu"):
        main()
