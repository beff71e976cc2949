"""Batches: calls of many children run as one, and each caller gets its own rows back.

    python examples/batching.py

The model here takes 4 ms however many rows it gets, as a GPU often does. A greedy batch takes what
is queued when a helper comes free. A delay lets a call wait for company, which a lone caller pays.
"""

import time

import numpy as np

import shmgpu

CHILDREN, CALLS = 16, 10


def forward(rows):
    time.sleep(0.004)
    return rows.sum(axis=1, keepdims=True)


@shmgpu.function(arrays="numpy")
def one_by_one(helper, rows):
    return forward(rows)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32))
def greedy(helper, rows):
    return forward(rows)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32, max_delay=0.01))
def patient(helper, rows):
    return forward(rows)


def worker(rank, function):
    rows = shmgpu.arena.empty((1 + rank % 3, 8), "float32")  # callers need not agree on axis 0
    rows[...] = rank
    for _ in range(CALLS):
        sums = function(rows)
        assert np.array_equal(sums, rows.sum(axis=1, keepdims=True))  # mine, and only mine


if __name__ == "__main__":
    for function in (one_by_one, greedy, patient):
        stats = {}
        started = time.monotonic()
        shmgpu.launch(worker, children=CHILDREN, helpers=1, args=(function,), stats_into=stats)
        seconds = time.monotonic() - started
        batched, batches = stats["helpers"][0]["batched"], stats["helpers"][0]["batches"]
        runs = CHILDREN * CALLS - batched + batches
        print(f"{function.name:>10}: {CHILDREN * CALLS} calls in {runs} runs, {seconds:.2f} s")
