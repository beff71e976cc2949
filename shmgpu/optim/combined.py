"""Schedules made of others, and the one that watches a metric: when it no longer improves.

Owns their state. Never touches a parameter: only the rates of groups.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from shmgpu.optim.optimizer import Optimizer
from shmgpu.optim.schedules import LRScheduler


class _Combined(LRScheduler):
    """Several schedules of one optimiser."""

    left_out = ("optimizer", "_schedulers")
    _schedulers: list[LRScheduler]

    def _check(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name}: give one schedule or more")
        found = schedulers[0].optimizer if optimizer is None else optimizer
        if any(one.optimizer is not found for one in schedulers):
            raise ValueError(f"{name}: all schedules must be of one optimiser")
        self._schedulers = list(schedulers)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and where the others are."""
        return {
            **super().state_dict(),
            "_schedulers": [one.state_dict() for one in self._schedulers],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where that state was taken."""
        super().load_state_dict(state_dict)
        for one, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            one.load_state_dict(state)


class SequentialLR(_Combined):
    """Schedules one after another.

    Args:
        optimizer: whose rates change.
        schedulers: the schedules.
        milestones: the steps at which the second and each later one begin.
        last_epoch: the step to continue after.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = self._check(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedules need {len(schedulers) - 1} milestones, "
                f"not {len(milestones)}"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        # Each schedule has made its first step; only that of the first one counts.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for one in schedulers:
            one.last_epoch -= 1
        schedulers[0]._step_count = 0
        schedulers[0].step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step."""
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        chosen = self._schedulers[place]
        begins = place and self._milestones[place - 1] == self.last_epoch
        chosen.step(0) if begins else chosen.step()
        self._last_lr = chosen.get_last_lr()


class ChainedScheduler(_Combined):
    """All schedules at each step, in order.

    Args:
        schedulers: the schedules.
        optimizer: whose rates change, that of the schedules by default.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self.optimizer = self._check(schedulers, optimizer)
        self._last_lr = self._rates

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step."""
        for one in self._schedulers:
            one.step()
        self._last_lr = self._rates


class ReduceLROnPlateau(LRScheduler):
    """Multiply rates by ``factor`` when a metric has not improved for ``patience`` steps.

    Args:
        optimizer: whose rates change.
        mode: ``"min"`` where less is better, ``"max"`` where more is.
        factor: by which rates are multiplied, below 1.
        patience: steps without improvement that are tolerated.
        threshold: by how much the metric must improve to count.
        threshold_mode: relative to the best one (``"rel"``), or absolute (``"abs"``).
        cooldown: steps after a change that are not counted.
        min_lr: the lowest rate; a list for one of each group.
        eps: smaller changes of a rate are skipped.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1:
            raise ValueError(f"ReduceLROnPlateau: factor={factor} must be below 1")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: mode={mode!r} must be 'min' or 'max', and "
                f"threshold_mode={threshold_mode!r} 'rel' or 'abs'"
            )
        self.optimizer = optimizer
        count = len(optimizer.param_groups)
        self.min_lrs = list(min_lr) if isinstance(min_lr, (list, tuple)) else [min_lr] * count
        if len(self.min_lrs) != count:
            raise ValueError(f"ReduceLROnPlateau: give one min_lr, or {count}")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.last_epoch = 0
        self._last_lr = self._rates
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def is_better(self, a: float, best: float) -> bool:
        """Whether a metric improves on the best one, by the threshold."""
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * a > sign * best * (1 + sign * self.threshold)
        return sign * a > sign * best + self.threshold

    def step(self, metrics: Any = None, epoch: int | None = None) -> None:  # type: ignore[override]
        """Advance by one step.

        Args:
            metrics: a number, or a tensor of one element, whose value is awaited.
            epoch: the step that this is.

        Raises:
            TypeError: there is no metric.
        """
        if metrics is None:
            raise TypeError("ReduceLROnPlateau.step takes the figure that it looks at")
        figure = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(figure, self.best):
            self.best, self.num_bad_epochs = figure, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            groups = zip(self.optimizer.param_groups, self.min_lrs, strict=True)
            for group, least in groups:
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates
