"""What a few lines of tensors become: the tape that is recorded, and what a helper makes of it.

    python examples/tape_demo.py

The tape that waits is always known. What was sent before is known while debugging is on.
"""

import shmgpu as gt
from shmgpu import debug


def main():
    debug.enable()
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    weight = gt.ones(2, 1, requires_grad=True)
    loss = ((x @ weight).relu() * 0.5).mean()
    print("Nothing has been computed yet.\n")
    debug.print_tape()

    loss.backward()  # gradients are operations like any other
    weight -= 0.1 * weight.grad
    print(f"\nloss {loss.item()}: forward, backward and step were one message\n")
    debug.print_output_queue()
    print()
    debug.print_handles()
    print(f"\n{debug.verify()} operations, each with its inputs at hand")


if __name__ == "__main__":
    with gt.init(helpers=1):
        main()
