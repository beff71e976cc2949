"""Two helpers, a tensor on each, and the MOVE that brings them together.

    python examples/multi_helper_tape.py

A tensor without a home goes to the helper that holds least. An operation runs where most of its
inputs' bytes lie; the others are moved there first, through memory that both helpers map.
"""

import shmgpu as gt
from shmgpu import debug


def main():
    debug.enable()
    gt.manual_seed(0)
    large = gt.randn(300, 200)
    large.shape, large.sum().item()  # looked at, so it has been made: on one helper
    small = gt.randn(200, 50)
    small.sum().item()  # and this on the other
    for row in debug.get_handles():
        print(f"#{row['tensor']} {row['shape']} lies with helper {row['helper']}")

    product = large @ small
    print(f"the product's shape is {product.data.shape}\n")
    debug.print_output_queue()

    [move] = [row for row in debug.get_output_queue() if row["kind"] == "MOVE"]
    assert move["tensor"] == small.id  # the smaller one travels
    print(f"\n#{small.id} was moved from helper {move['source']} to {move['helper']}; ", end="")
    print(f"{debug.verify()} operations had their inputs at hand")


if __name__ == "__main__":
    with gt.init(helpers=2):
        main()
