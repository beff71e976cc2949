"""What the brokers that these tests start serve."""

from __future__ import annotations

import os
import time

import numpy as np

import shmgpu


def load(helper):
    if os.environ.get("SERVED_HERE_FAILS"):
        raise ValueError("the weights are gone")
    return os.getpid()


@shmgpu.function(arrays="numpy")
def double(helper, x):
    return 2 * x


@shmgpu.function(arrays="numpy")
def who(helper, x):
    return helper.session


@shmgpu.function(arrays="numpy")
def slow(helper, x, seconds):
    time.sleep(seconds)
    return np.array([helper.id, *x])


turns = 0  # in each helper: how many calls it has numbered


@shmgpu.function(arrays="numpy")
def numbered(helper, x):
    global turns
    turns += 1
    time.sleep(0.002)  # long enough that no helper is handed many ahead
    return np.array([turns])


@shmgpu.function(arrays="numpy")
def large(helper, x, size):
    return np.zeros(size, np.uint8)


@shmgpu.function(arrays="numpy")
def held(helper, x, gate, size=1):
    while not os.path.exists(gate):
        time.sleep(0.005)
    return np.full(size, helper.id, np.uint8)


@shmgpu.function(arrays="numpy")
def crash(helper, gate="."):
    while not os.path.exists(gate):
        time.sleep(0.005)
    os._exit(3)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8, max_delay=60))
def in_company(helper, x):
    return x


@shmgpu.function(arrays="numpy")
def set_weights(helper, weights):
    helper.weights = weights


@shmgpu.function(arrays="numpy")
def see_weights(helper):
    weights = getattr(helper, "weights", None)
    return helper.id, helper.version, -1.0 if weights is None else float(weights[0])


@shmgpu.function(arrays="numpy")
def raise_after_the_first(helper, gate):
    try:
        os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if helper.generation == 1:
            raise ValueError("not here") from None
