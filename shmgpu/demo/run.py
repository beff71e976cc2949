"""The demo from beginning to end: train, serve, prove, compare, report.

Owns the order of these steps. Never does one of them itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import dataclass
from typing import Any

import torch

from shmgpu.common import devices as device
from shmgpu.demo import digits, network, queues, report, serve
from shmgpu.demo.audit import Audit, audit
from shmgpu.errors import ShmError

REQUIRED_ACCURACY = 0.97
SEED = 0


class CannotWrite(ShmError):
    """A file that the demo was told to write cannot be written."""


@dataclass(frozen=True)
class DemoOptions:
    """What the command line may say.

    Attributes:
        trace: where the trace goes.
        children, helpers: how many processes.
        seconds: how long each side serves.
        device: of the helpers, such as ``"cpu"``; None for the machine's GPUs, else the CPU.
        baseline: whether to do the same work through ``multiprocessing``.
        json: file for what was measured, or None.
        epochs: passes of the training.
        show: draw progress bars; None means on a terminal only.
    """

    trace: str
    children: int = 32
    helpers: int = 2
    seconds: float = 5.0
    device: str | None = None
    baseline: bool = True
    json: str | None = None
    epochs: int = network.EPOCHS
    show: bool | None = None


def run(options: DemoOptions) -> int:
    """Run the demo and print what it shows.

    Returns:
        The exit status: 0, or 1 when the accuracy is below 97 % or the byte proof fails.

    Raises:
        ShmError: it could not be run to its end.
    """
    for path in (options.trace, options.json):
        if path is not None:
            _refuse_unwritable(path)
    train, held_out = digits.load(SEED)
    environment = {
        "shmgpu": importlib.metadata.version("shmgpu"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": device.cores(),
        "machine": platform.machine(),
    }
    print(
        f"shmgpu {environment['shmgpu']}, Python {environment['python']}, "
        f"torch {environment['torch']}, {environment['cores']} cores ({environment['machine']})"
    )
    print(
        f"Handwritten digits, {digits.IMAGE_SHAPE[1]} x {digits.IMAGE_SHAPE[2]} pixels: "
        f"{len(train):,} to train on, {len(held_out):,} held out",
        flush=True,
    )

    used, weights = serve.trained_weights(
        train, seed=SEED, epochs=options.epochs, device=options.device, show=options.show
    )
    print(
        f"Trained in a helper on {used}: {options.epochs} epochs, "
        f"{sum(value.size for value in weights.values()):,} weights",
        flush=True,
    )

    served = serve.classified(
        held_out,
        weights,
        children=options.children,
        helpers=options.helpers,
        seconds=options.seconds,
        device=options.device,
        trace=options.trace,
        show=options.show,
    )
    ours = report.measured(served.outcome, served.mean_batch, payload_in_pipes=False)
    theirs = None
    if options.baseline:
        seen, mean_batch = queues.classify(
            held_out,
            weights,
            clients=options.children,
            workers=options.helpers,
            batch=serve.BATCH,
            device=used,
            seconds=options.seconds,
            show=options.show,
        )
        theirs = report.measured(seen, mean_batch, payload_in_pipes=True)
    proof = audit(served)

    print(
        f"{options.children} child processes, {options.helpers} helpers, "
        f"{options.seconds:g} s, {served.outcome.calls:,} calls of one image"
    )
    for part in (report.comparison(ours, theirs), report.copies(served), report.proof(proof)):
        print(f"\n{part}")
    print(
        f"\nTrace of the last {min(served.outcome.all_calls, serve.TRACED_CALLS):,} calls: "
        f"{os.path.abspath(options.trace)} (open it in Perfetto: ui.perfetto.dev)",
        flush=True,
    )

    failed = failures(served.outcome.accuracy, proof)
    if options.json:
        _write_json(
            options.json,
            {
                "environment": {**environment, "device": used},
                "options": vars(options),
                "shmgpu": ours,
                "multiprocessing": theirs,
                "bytes": served.bytes,
                "proof": report.as_data(proof),
                "failures": failed,
            },
        )
    for failure in failed:
        print(f"FAILED: {failure}")
    return 1 if failed else 0


def failures(accuracy: float, proof: Audit) -> list[str]:
    """What makes the demo end with status 1, in sentences."""
    found = proof.differences
    if not accuracy >= REQUIRED_ACCURACY:
        found.append(
            f"the accuracy is {100 * accuracy:.2f} %, "
            f"and {100 * REQUIRED_ACCURACY:.0f} % is asked for"
        )
    return found


def _refuse_unwritable(path: str) -> None:
    """Say now, rather than when the work is done, that a file cannot be written."""
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise CannotWrite(
            f"{path} cannot be written ({error.strerror}): name another file"
        ) from error


def _write_json(path: str, data: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
        file.write("\n")
