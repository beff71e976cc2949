"""Tensors in one page: made, computed, looked at, differentiated.

    python examples/tensors_basic.py

A line that computes only records. What is recorded becomes one message when somebody looks: at
`.data`, at `.item()`, at what print() shows. A program written for GT runs with its import changed.
"""

import numpy as np

import shmgpu as gt


def main():
    a = gt.tensor([[1, 2], [3, 4]], requires_grad=True)  # whole numbers become float32
    b = gt.tensor([[5, 6], [7, 8]], requires_grad=True)
    c = a @ b  # recorded
    c.backward()  # recorded, too: a matrix is seeded with ones
    print("a @ b =", c.data.tolist())  # computed: forward and backward are one message
    print("gradient of a:", a.grad.data.numpy().tolist())

    x = gt.from_numpy(np.linspace(-1, 1, 5, dtype="float32"))
    print("relu:", x.relu().data.tolist(), "sum of squares:", (x * x).sum().item())

    weights = gt.randn(3, 3, requires_grad=True)
    loss = ((weights - gt.eye(3)) ** 2).mean()
    for _ in range(50):
        loss = ((weights - gt.eye(3)) ** 2).mean()
        loss.backward()
        weights -= 2.0 * weights.grad  # a step of training, in place
        weights.grad = None
    print(f"after 50 steps the loss is {loss.item():.6f}")

    try:
        gt.ones(2, 3) @ gt.ones(2, 3)
    except ValueError as error:  # raised where it was written, and not where it is computed
        print("refused:", error)


if __name__ == "__main__":
    with gt.init(helpers=1):  # left out, the first tensor joins your broker, or starts one
        gt.manual_seed(0)
        main()
