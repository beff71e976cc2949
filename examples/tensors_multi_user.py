"""Programs of several people train models of their own on the helpers of one broker.

The broker is started once, and then as many copies of this as you like, each in a terminal:

    shmgpu up --helpers 2 examples/multi_user.py
    python examples/tensors_multi_user.py ann
    python examples/tensors_multi_user.py bob

Nobody sees anybody's tensors, and helpers take turns with the children. What a program held is
freed when it leaves, in whatever way it does.
"""

import sys
import zlib

import shmgpu as gt

STEPS = 40


def main(user):
    gt.manual_seed(zlib.crc32(user.encode()))
    with gt.connect(wait=30):
        truth, guess = gt.randn(8, 1), gt.zeros(8, 1, requires_grad=True)
        first = None
        for _ in range(STEPS):
            x = gt.randn(64, 8)
            loss = gt.mse_loss(x @ guess, x @ truth)
            loss.backward()
            guess -= 0.1 * guess.grad
            guess.grad = None
            first = first or loss.item()
        last = loss.item()
    if last > first / 100:
        sys.exit(f"{user}: the loss went only from {first:.3f} to {last:.3f}")
    print(f"{user}: {STEPS} steps, the loss went from {first:.3f} to {last:.6f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "somebody")
