"""Optimisers: what a step does to parameters, in PyTorch's formulas; and schedules of rates.

A step is recorded like anything else, so forward, backward and step travel as one program. Numbers
that change from step to step go beside it. Never computes, never waits for a value.
"""

from __future__ import annotations

from shmgpu.optim import lr_scheduler
from shmgpu.optim.optimizer import Optimizer
from shmgpu.optim.rules import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "lr_scheduler",
]


def __dir__() -> list[str]:
    return __all__
