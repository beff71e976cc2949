"""The demo's work through shmgpu: what a user's own program looks like.

Two functions run in helpers. The first launch has one child and one helper, which trains the
network; the second has many children, whose images are classified by a few helpers. Owns both.
Never uses anything of shmgpu that is not public.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shmgpu import arena
from shmgpu.broker.launch import launch
from shmgpu.common.progress import ProgressBar
from shmgpu.demo import network
from shmgpu.demo.digits import Split
from shmgpu.demo.network import Network, Weights
from shmgpu.demo.stage import ClientStage, Measured
from shmgpu.function_table import Batch
from shmgpu.functions import function
from shmgpu.helper.decoded import Helper
from shmgpu.watch.stats import stats

BATCH = 32
TRACED_CALLS = 1 << 14  # the last ones: a trace of more is slow to open

Stats = dict[str, Any]
Array = Any  # a NumPy array where a child gives it, a tensor where a helper gets it


@function()
def train(
    helper: Helper, images: Array, labels: Array, seed: int, epochs: int, show: bool | None
) -> tuple[str, dict[str, Array]]:
    """Train a network on the helper's device: (the device, the weights by name)."""
    with ProgressBar(epochs, "training", "epoch", show) as bar:
        trained = network.train(images, labels, seed, epochs, bar.update)
    return helper.device, dict(trained.state_dict())


@function(batch=Batch(max_size=BATCH))
def classify(helper: Helper, images: Array) -> Array:
    """Scores (n, 10) of images (n, 1, 8, 8); calls of several children run as one batch."""
    with torch.inference_mode():
        return helper.session(images)


def trained_weights(
    split: Split,
    *,
    seed: int,
    epochs: int = network.EPOCHS,
    device: str | None = None,
    show: bool | None = None,
) -> tuple[str, Weights]:
    """Train in a helper: (the device it chose, the weights)."""

    def child(rank: int) -> tuple[str, Weights]:
        images, labels = arena.array(split.images), arena.array(split.labels)
        used, weights = train(images, labels, seed, epochs, show)
        return used, {name: np.array(value) for name, value in weights.items()}

    [(used, weights)] = launch(
        child,
        children=1,
        helpers=1,
        devices=device,
        arena="16MiB",
        threads=1,
        seed=seed,
        progress=show,
    )
    return used, weights


@dataclass(frozen=True)
class Served:
    """What children saw, and what the broker counted before and after they were served."""

    outcome: Measured
    before: Stats
    after: Stats

    @property
    def mean_batch(self) -> float:
        """Messages that a helper ran as one, on average."""
        finished, batches, batched = (
            sum(row[name] for row in self.after["helpers"])
            - sum(row[name] for row in self.before["helpers"])
            for name in ("finished", "batches", "batched")
        )
        # The broker counts as batches those of more than one message.
        runs = batches + finished - batched
        return finished / runs if runs else 0.0

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes at each copy site while the children were served."""
        return {
            name: count - self.before["bytes"][name] for name, count in self.after["bytes"].items()
        }


def classified(
    held_out: Split,
    weights: Weights,
    *,
    children: int,
    helpers: int,
    seconds: float,
    device: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    show: bool | None = None,
) -> Served:
    """Let child processes classify the held-out images, one image a call.

    Raises:
        ChildError, SessionError, StageFailed: a process failed.
    """
    stage = ClientStage(children, helpers, seconds, "through shmgpu", show, watch_parent=True)

    def session(helper: Helper) -> Network:
        stage.enter_server(helper.id)
        return network.with_weights(weights, helper.device)

    def child(rank: int) -> tuple[Stats, Stats] | None:
        images = arena.array(held_out.images[rank::children])
        noted: list[Stats] = []

        def ask(index: int) -> int:
            return int(classify(images[index : index + 1]).argmax())

        def note() -> None:
            if rank == 0:
                noted.append(stats())

        stage.drive(rank, ask, held_out.labels[rank::children], at_start=note, at_end=note)
        return (noted[0], noted[1]) if rank == 0 else None

    with stage:
        found = launch(
            child,
            children=children,
            helpers=helpers,
            session=session,
            devices=device,
            arena="4MiB",
            trace_records=TRACED_CALLS,
            trace_path=trace,
            progress=show,
        )[0]
    assert found is not None  # the first child's
    return Served(stage.outcome(), *found)
