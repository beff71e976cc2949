"""What a user would pick instead of shmgpu, each written as its own documentation suggests.

One file for each peer, and one table, ``PEERS``. All do the same work (``work.py``) and are counted
and timed by the same loops as shmgpu. Where a peer leaves a choice, several configurations are
measured, all are kept, and the peer's best is the one that shmgpu is held against; ``README.md``
says which and why. Never counts or times by a loop of its own.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import sizes
from benchmarks.measure.stage import Stage
from benchmarks.measure.stopwatch import Stopwatch
from benchmarks.measure.task import Task
from benchmarks.peers.work import Run

Outcome = dict[str, float]


@dataclass(frozen=True)
class Peer:
    """A peer: the module that has its ``measure``, what it needs, and the configurations tried.

    ``best`` names the configuration that did best where the others are held against it: by calls a
    second (``rate``), by a lone client's median time (``latency``), along ``payload``.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    configurations: Mapping[str, Mapping[str, Any]]
    best: Mapping[str, str]

    @property
    def key(self) -> str:
        """The name as it stands in rows' names."""
        return "".join(letter for letter in self.name.lower() if letter.isalnum())

    def label(self, configuration: str) -> str:
        """Return the peer and one of its configurations as they are written in a table."""
        return f"{self.name} ({configuration})"

    def slug(self, configuration: str) -> str:
        """Return a configuration as it stands in rows' names."""
        return "_".join(re.findall(r"\w+", configuration))


PEERS: tuple[Peer, ...] = (
    Peer(
        "SimpleQueue",
        "simple_queue",
        ("multiprocessing",),
        {
            "shared queue": {"queues": "shared"},
            "queue a worker": {"queues": "own"},
        },
        {"rate": "queue a worker", "latency": "shared queue", "payload": "shared queue"},
    ),
    Peer(
        "Pipe",
        "pipes",
        ("multiprocessing",),
        {"pickled": {"pickled": True}, "bare bytes": {"pickled": False}},
        {"rate": "bare bytes", "latency": "bare bytes", "payload": "bare bytes"},
    ),
    Peer(
        "Queue",
        "feeder_queue",
        ("multiprocessing",),
        {
            "queue answers": {"answers": "queue"},
            "pipe answers": {"answers": "pipe"},
            "shared memory": {"answers": "pipe", "shared_memory": True},
        },
        {"rate": "shared memory", "latency": "shared memory", "payload": "shared memory"},
    ),
    Peer(
        "torch.multiprocessing",
        "torch_queue",
        ("torch",),
        {
            "file_descriptor": {"strategy": "file_descriptor"},
            "file_system": {"strategy": "file_system"},
            "reused": {"strategy": "file_descriptor", "reused": True},
        },
        {"rate": "reused", "latency": "reused", "payload": "reused"},
    ),
    Peer(
        "ZeroMQ",
        "zeromq",
        ("zmq",),
        {
            "proxy": {"route": "proxy", "copy": False},
            "proxy, copies": {"route": "proxy", "copy": True},
            "proxy, 2 io threads": {"route": "proxy", "copy": False, "io_threads": 2},
            "direct": {"route": "direct", "copy": False},
        },
        {"rate": "proxy, copies", "latency": "direct", "payload": "direct"},
    ),
    Peer(
        "faster-fifo",
        "fifo",
        ("faster_fifo",),
        {
            "one at a time": {"batch": 1, "pickled": True},
            "64 at a time": {"batch": 64, "pickled": True},
            "64, bare bytes": {"batch": 64, "pickled": False},
        },
        {"rate": "64, bare bytes", "latency": "64, bare bytes", "payload": "64, bare bytes"},
    ),
    Peer(
        "iceoryx2",
        "iceoryx",
        ("iceoryx2",),
        {
            "events": {"waiting": "events", "in_place": True},
            "events, copied in": {"waiting": "events", "in_place": False},
            "polling": {"waiting": "polling", "in_place": True},
        },
        {"rate": "events", "latency": "polling", "payload": "polling"},
    ),
    Peer(
        "Ray",
        "ray_actors",
        ("ray",),
        {"arguments": {"put": False}, "references": {"put": True}},
        {"rate": "arguments", "latency": "arguments", "payload": "arguments"},
    ),
    Peer(
        "TorchRL",
        "torchrl_slots",
        ("torchrl", "tensordict"),
        {
            "copied": {"borrowed": False, "batch": 64},
            "borrowed": {"borrowed": True, "batch": 64},
            "borrowed, no batches": {"borrowed": True, "batch": 1},
        },
        {"rate": "borrowed", "latency": "borrowed, no batches", "payload": "borrowed"},
    ),
)


def find(name: str) -> Peer:
    """Return the peer of a name."""
    return next(peer for peer in PEERS if peer.name == name)


def run(
    name: str, configuration: str, clients: int, workers: int, payload_bytes: int, seconds: float
) -> Outcome:
    """Run one configuration on the work of ``calls``: ``x + 1`` of ``payload_bytes``.

    Returns ``rate`` and, for one client, ``median_us`` and ``p99_us``.
    """
    peer = find(name)
    module: Any = importlib.import_module(f"{__name__}.{peer.module}")
    stage = Stage(clients, seconds)
    stage.start_clock()  # before a session has threads
    with _session(module):
        task = Task("both", payload_bytes)
        module.measure(Run(task, clients, workers, stage), **peer.configurations[configuration])
        return stage.result()


def run_sizes(
    name: str, configuration: str, seconds: float, most_bytes: int = sizes.LARGEST_BYTES
) -> dict[str, float | str]:
    """Run one configuration with one client and one worker along all sizes; see ``sizes``."""
    peer = find(name)
    module: Any = importlib.import_module(f"{__name__}.{peer.module}")

    def median_us(task: Task) -> float:
        stopwatch = Stopwatch(seconds)
        module.measure(Run(task, 1, 1, stopwatch), **peer.configurations[configuration])
        return stopwatch.median_us()

    with _session(module):
        return sizes.along(median_us, most_bytes)


def _session(module: Any) -> Any:
    """Return what a peer wants to be inside of, for all runs of one interpreter."""
    return module.session() if hasattr(module, "session") else nullcontext()
