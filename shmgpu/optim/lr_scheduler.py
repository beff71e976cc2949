"""Learning rate schedules, as torch.optim.lr_scheduler: ``step()`` sets the next rate.

Owns these names. Never defines a schedule: the files beside this one do.
"""

from __future__ import annotations

from shmgpu.optim.combined import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from shmgpu.optim.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from shmgpu.optim.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


def __dir__() -> list[str]:
    return __all__
