"""One launch with NumPy arrays and no torch: `make abi` runs it under every CPython it finds."""

import sys

import numpy as np

import shmgpu
from shmgpu.child import quick


@shmgpu.function(arrays="numpy")
def add_one(helper, values):
    return values + 1


def worker(rank):
    values = shmgpu.arena.zeros((4, 8), "float32")
    values += rank
    for _ in range(9):  # the third and all that follow are made in C
        answers = [add_one(values) for _ in range(9)]
    assert quick.why_not() == "", quick.why_not()
    assert all((answer == answers[0]).all() for answer in answers)
    return float(np.asarray(answers[0]).sum())


if __name__ == "__main__":
    sums = shmgpu.launch(worker, children=3, helpers=2, devices=["cpu"], arena="1MiB")
    if sums != [32.0, 64.0, 96.0]:
        sys.exit(f"The sums should be 32, 64 and 96, not {sums}.")
    print(
        f"  {sys.implementation.name} {sys.version.split()[0]}: shmgpu {shmgpu.__version__} works"
    )
