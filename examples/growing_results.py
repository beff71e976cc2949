"""Where results go when nobody knows their size: remembered, grown, declared, or in place.

    python examples/growing_results.py

The room for a result is set aside in the caller's arena before the call. When it proves too small
the helper keeps the result until the caller has made room: the function never runs twice.
"""

import numpy as np

import shmgpu


@shmgpu.function(arrays="numpy")
def find(helper, x, limit):
    """The places where x is below the limit: anything from none to all of them."""
    helper.session["runs"] += 1
    return np.flatnonzero(x < limit)


@shmgpu.function
def runs(helper):
    return helper.session["runs"]


@shmgpu.function(arrays="numpy", out=lambda x: shmgpu.Declared(x.shape, "float32"))
def scale(helper, x):
    """The shape is known from the arguments, so the result is written where the caller reads it."""
    np.multiply(x, 2, out=helper.out)


@shmgpu.function(arrays="numpy")
def shift(helper, x):
    return x + 1


def worker(rank):
    x = shmgpu.arena.array(np.linspace(0, 1, 100_000, dtype="float32"))
    for limit in (0.001, 0.5, 1.5, 0.25):
        places = find(x, limit)
        print(f"below {limit}: {len(places)} places, {places.nbytes} bytes")
    print(f"4 calls, {runs()} runs")

    doubled = scale(x)
    assert doubled[-1] == 2

    y = shmgpu.arena.empty(x.shape)
    assert shift.options(out=y)(x) is y  # the same memory, call after call
    assert y[0] == 1
    print(f"declared and in place: {doubled.nbytes + y.nbytes} bytes")


if __name__ == "__main__":
    shmgpu.launch(worker, children=1, helpers=1, session=lambda helper: {"runs": 0})
