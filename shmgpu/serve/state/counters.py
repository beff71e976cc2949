"""Counters that change with every request: one row for each process, summed on demand.

Owns a shared region with a row for each worker and each helper, so that each number has one writer
and never needs a lock. A row outlives the process that writes it.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from shmgpu.watch.server_counters import CounterFile

MOST_MODELS = 256  # that have ever been served: a model keeps its index when it is reloaded
MOST_ROWS = 256  # batches are counted by their rows up to here; a larger one counts as the last

# What is counted for each model. Durations are nanoseconds.
FIELDS = (
    "success_count",  # requests answered
    "success_ns",  # from the request's last byte to the answer's first
    "fail_count",
    "fail_ns",
    "refused_count",  # of the failed: before they were handed over
    "full_count",  # of the refused: because too many were waiting
    "expired_count",  # of the failed: because their time was over
    "cancel_count",
    "cancel_ns",
    "inference_count",  # rows; requests where the model is not batched
    "call_ns",  # in workers: from handing over to the result, queueing included
    "pending_0",  # requests handed over and not answered, of the source with that parity
    "pending_1",
    "cache_hit_count",  # of the answered: from the response cache
    "cache_hit_ns",  # from the request's last byte until the result was found
    "cache_miss_count",  # requests that it was asked for in vain
    "cache_miss_ns",  # of asking, and of keeping the result
    "exec_count",  # in helpers: executions, each of one batch
    "exec_requests",  # requests that were in them
    "input_ns",  # in helpers, of each execution times its requests
    "infer_ns",
    "output_ns",
    "graph_replayed",  # in helpers, of models that ask for CUDA graphs: executions by their fate
    "graph_no_device",
    "graph_not_captured",
    "graph_unseen_shape",
    "last_ms",  # Unix time of the last request, milliseconds
)
INDEX = {name: number for number, name in enumerate(FIELDS)}
GAUGES = {"last_ms"}
# What workers count besides.
OWN_FIELDS = (
    "is_accepting",  # whether the worker takes connections, over HTTP as all of these
    "connections",  # that are open
    "accepted",  # connections, ever
)
IS_ACCEPTING, CONNECTIONS, ACCEPTED = range(len(OWN_FIELDS))
# What helpers count for each model and each number of rows.
BATCH_FIELDS = ("exec_count", "input_ns", "infer_ns", "output_ns")
# What helpers count for each place of a part in a stream: each a count and nanoseconds.
PART_FIELDS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
MOST_PARTS = 256  # the last place stands for all that follow, too
MOST_GPUS = 64


class Counters:
    """The region; made once, before the first fork.

    Args:
        workers, helpers: how many processes count; workers are the first writers.
    """

    def __init__(self, workers: int, helpers: int) -> None:
        writers = workers + helpers
        # What `shmgpu top` finds.
        self.file = CounterFile(writers, MOST_MODELS, FIELDS, workers, OWN_FIELDS)
        self.rows: np.ndarray[Any, Any] = self.file.numbers
        self.own: np.ndarray[Any, Any] = self.file.own  # by worker and OWN_FIELDS
        # Pages come with the first use: a server of three models has a few of these.
        self.by_rows = _shared((writers, MOST_MODELS, MOST_ROWS, len(BATCH_FIELDS)))
        self.by_parts = _shared((writers, MOST_MODELS, MOST_PARTS, len(PART_FIELDS), 2))
        # Bytes that loading took in each helper: of its own memory, then of each GPU's.
        self.memory = _shared((writers, MOST_MODELS, 1 + MOST_GPUS))

    def of(self, writer: int) -> memoryview:
        """A writer's row: a flat memoryview of 64-bit numbers, at model * len(FIELDS) + field."""
        return memoryview(self.rows[writer].reshape(-1))

    def batches_of(self, writer: int) -> memoryview:
        """As :meth:`of`, by rows: at ``batch_offset(model, rows)`` + field of BATCH_FIELDS."""
        return memoryview(self.by_rows[writer].reshape(-1))

    def parts_of(self, writer: int) -> memoryview:
        """As :meth:`of`, by parts: at ``part_offset(model, place)`` + 2 * field of PART_FIELDS."""
        return memoryview(self.by_parts[writer].reshape(-1))

    def part_totals(self, model: int) -> dict[int, dict[str, tuple[int, int]]]:
        """Count and nanoseconds of a streaming model's parts, by their place in the stream."""
        sums = self.by_parts[:, model].sum(axis=0)
        return {
            int(place): {
                name: (int(count), int(ns))
                for name, (count, ns) in zip(PART_FIELDS, sums[place], strict=True)
            }
            for place in np.flatnonzero(sums[:, :, 0].any(axis=1))
        }

    def memory_totals(self, model: int) -> tuple[int, dict[int, int]]:
        """Bytes that loading a model took in all helpers: of their own memory, and of each GPU."""
        own, *gpus = map(int, self.memory[:, model].sum(axis=0))
        return own, {number: nbytes for number, nbytes in enumerate(gpus) if nbytes}

    def batches(self, model: int) -> dict[int, int]:
        """A model's executions by their rows."""
        return {rows: sums["exec_count"] for rows, sums in self.batch_totals(model).items()}

    def batch_totals(self, model: int) -> dict[int, dict[str, int]]:
        """What was counted of a model's executions, by their rows."""
        sums = self.by_rows[:, model].sum(axis=0)
        return {
            int(index) + 1: dict(zip(BATCH_FIELDS, map(int, sums[index]), strict=True))
            for index in np.flatnonzero(sums[:, 0])
        }

    def total(self, model: int) -> dict[str, int]:
        """A model's counters, of all writers together."""
        block = self.rows[:, model, :]
        sums = block.sum(axis=0)
        return {
            name: int(block[:, number].max() if name in GAUGES else sums[number])
            for name, number in INDEX.items()
        }

    def pending(self, model: int, parity: int) -> int:
        """Requests that workers have handed over and not seen answered; see entry_of."""
        return int(self.rows[:, model, INDEX["pending_0"] + parity].sum())

    def close(self) -> None:
        """Make them impossible to find."""
        self.file.close()

    def clear_held(self, writer: int) -> None:
        """A worker restarts: what its predecessor held is neither pending nor open any more."""
        self.rows[writer, :, INDEX["pending_0"] : INDEX["pending_1"] + 1] = 0
        self.own[writer, [IS_ACCEPTING, CONNECTIONS]] = 0


def batch_offset(model: int, rows: int) -> int:
    """Where the counts of a model's executions of so many rows begin."""
    return (model * MOST_ROWS + min(rows, MOST_ROWS) - 1) * len(BATCH_FIELDS)


def part_offset(model: int, place: int) -> int:
    """Where the counts of a streaming model's parts at that place begin."""
    return (model * MOST_PARTS + min(place, MOST_PARTS - 1)) * len(PART_FIELDS) * 2


def _shared(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, np.uint64, mmap.mmap(-1, int(np.prod(shape)) * 8))
