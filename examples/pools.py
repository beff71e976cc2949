"""Two pools: a small model answers, and a large one is asked where the small one is unsure.

    python examples/pools.py

Helpers of one pool are alike; each pool has its own session, and may have its own devices.
"""

import numpy as np

import shmgpu


def load_small(helper):
    return np.array([0.5], "float32")  # stands for a model of a few layers


def load_large(helper):
    return np.linspace(0, 1, 1001, dtype="float32")  # stands for one of many


@shmgpu.function(arrays="numpy", pool="small", batch=shmgpu.Batch(max_size=64))
def quick(helper, x):
    """A guess for each row, and how sure it is."""
    return (x > helper.session).astype("float32"), np.abs(x - helper.session)


@shmgpu.function(arrays="numpy", pool="large")
def thorough(helper, x):
    return np.searchsorted(helper.session, x.ravel()).astype("float32")[:, None] / 1000


def worker(rank):
    x = shmgpu.arena.array(np.random.random((100, 1)).astype("float32"))
    guesses, sureness = quick(x)
    unsure = sureness[:, 0] < 0.1
    if unsure.any():
        guesses[unsure] = thorough(x[unsure])
    return int(unsure.sum())


if __name__ == "__main__":
    asked = shmgpu.launch(
        worker,
        children=8,
        helpers={"small": 1, "large": 2},
        session={"small": load_small, "large": load_large},
        seed=1,
    )
    print(f"of {100 * len(asked)} rows, {sum(asked)} went on to the large model")
