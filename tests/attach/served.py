"""What the brokers of these tests serve; also a program that calls it by another module's name."""

from __future__ import annotations

import os
import time

import numpy as np

import shmgpu


def load(helper):
    return 10.0


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def of_session(helper, x):
    return x * helper.session


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=64))
def doubled(helper, x):
    return 2 * x


@shmgpu.function(arrays="numpy")
def counted(helper, size):
    return np.arange(size, dtype=np.int64)


@shmgpu.function(arrays="numpy")
def tree(helper, pair, scale=1.0):
    first, second = pair
    return {"sum": (first + second) * scale, "name": "both"}


@shmgpu.function(arrays="numpy")
def slow(helper, x, seconds):
    time.sleep(seconds)
    return x + 1


@shmgpu.function(arrays="numpy")
def held(helper, x, gate):
    """It takes until somebody makes that file."""
    while not os.path.exists(gate):
        time.sleep(0.005)
    return x + 1


@shmgpu.function(arrays="numpy")
def join_from_here(helper):
    shmgpu.connect()


@shmgpu.function(arrays="numpy", pool="second")
def in_second(helper, x):
    return x - 1, helper.pool


if __name__ == "__main__":  # its functions are __main__'s, and the broker's attach.served's
    with shmgpu.connect():
        assert add_one(np.zeros(2)).tolist() == [1, 1]
    os.write(1, b"resolved\n")


@shmgpu.function(arrays="numpy")
def set_weights(helper, weights):
    helper.weights = weights


@shmgpu.function(arrays="numpy")
def see_weights(helper):
    weights = getattr(helper, "weights", None)
    return helper.id, helper.version, -1.0 if weights is None else float(weights[0])
