"""Schedules by a formula: the learning rate after so many steps, in PyTorch's formulas.

Owns these formulas. Each step starts from the rate that a group has, so that schedules can be
combined; only ``step(epoch)``, which jumps, starts from the first one. Never touches a parameter.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from shmgpu.common.wording import kind_of
from shmgpu.optim.optimizer import Optimizer

Rule = Callable[[int], float]


class LRScheduler:
    """What all of them share.

    Attributes:
        optimizer: whose groups' learning rates change.
        last_epoch: steps so far, from 0.
        base_lrs: the groups' rates at first.
    """

    left_out: tuple[str, ...] = ("optimizer",)  # attributes that the state does not have

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} takes an optimiser, not {kind_of(optimizer)}")
        self.optimizer = optimizer
        for place, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"{type(self).__name__}: to go on after step {last_epoch}, group {place} needs "
                    "an 'initial_lr': load the optimiser's state first"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[float] = []
        self.step()

    @property
    def _rates(self) -> list[float]:
        """What the groups have now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """The groups' next rates, computed from the current ones."""
        raise NotImplementedError

    def _at_once(self) -> list[float]:
        """The same from the first ones, for a schedule that can tell."""
        return self.get_lr()

    def _first(self) -> list[float]:
        """What they are when the schedule begins, or goes on from a state of the optimiser."""
        return self.get_lr()

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step, or to ``epoch``."""
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
            rates = self._first() if self._step_count == 1 else self.get_lr()
        else:
            self.last_epoch = epoch
            rates = self._at_once()
        self._set(rates)

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = rates

    def get_last_lr(self) -> list[float]:
        """The groups' rates, as this schedule set them last."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Settings and progress, without the functions that were passed to it."""
        return {k: v for k, v in self.__dict__.items() if k not in self.left_out}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of this library's or torch's scaler."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k not in self.left_out})


class _Given(LRScheduler):
    """By functions of the step, one for each group."""

    left_out = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Rule | list[Rule], last_epoch: int = -1
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = (
            list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        )
        if len(self.lr_lambdas) != count:
            raise ValueError(
                f"{type(self).__name__}: give a function, or {count}, not {len(self.lr_lambdas)}"
            )
        super().__init__(optimizer, last_epoch)


class LambdaLR(_Given):
    """The first rate times a function of the step.

    Args:
        optimizer: whose rates change.
        lr_lambda: the function; a list of them, one for each group.
        last_epoch: the step to continue after.
    """

    def get_lr(self) -> list[float]:
        """As the functions say."""
        rules = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * rule(self.last_epoch) for base, rule in rules]


class MultiplicativeLR(_Given):
    """The last rate times a function of the step; arguments as for :class:`LambdaLR`."""

    def get_lr(self) -> list[float]:
        """As the functions say."""
        rules = zip(self._rates, self.lr_lambdas, strict=True)
        return [rate * rule(self.last_epoch) for rate, rule in rules]

    def _first(self) -> list[float]:
        return self._rates


class _Scaled(LRScheduler):
    """All groups' rates times the same."""

    def _factor(self) -> float:
        """Of this step to the one before."""
        raise NotImplementedError

    def _whole(self) -> float:
        """Of this step to the first rate."""
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        """The rates times this step's factor."""
        factor = self._factor()
        return self._rates if factor == 1 else [rate * factor for rate in self._rates]

    def _at_once(self) -> list[float]:
        factor = self._whole()
        return [base * factor for base in self.base_lrs]


class StepLR(_Scaled):
    """Multiply rates by ``gamma`` every ``step_size`` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return 1.0 if self.last_epoch == 0 or self.last_epoch % self.step_size else self.gamma

    def _whole(self) -> float:
        return self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(_Scaled):
    """Multiply rates by ``gamma`` at each of the ``milestones``."""

    def __init__(
        self, optimizer: Optimizer, milestones: list[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return float(self.gamma ** self.milestones.get(self.last_epoch, 0))

    def _whole(self) -> float:
        return self.gamma ** bisect_right(
            sorted(Counter(self.milestones).elements()), self.last_epoch
        )


class ConstantLR(_Scaled):
    """The rate times ``factor`` for ``total_iters`` steps, then the rate itself."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"ConstantLR: factor={factor} must be above 0, and 1 at most")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        if self.last_epoch == 0:
            return self.factor
        return 1 / self.factor if self.last_epoch == self.total_iters else 1.0

    def _whole(self) -> float:
        return self.factor if self.last_epoch < self.total_iters else 1.0


class LinearLR(_Scaled):
    """From ``start_factor`` to ``end_factor`` in even steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(
                f"LinearLR: start_factor={start_factor} must be above 0, and it and "
                f"end_factor={end_factor} 1 at most"
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        rise = self.end_factor - self.start_factor
        if self.last_epoch == 0:
            return self.start_factor
        if self.last_epoch > self.total_iters:
            return 1.0
        return 1 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)

    def _first(self) -> list[float]:
        return self.get_lr() if self.last_epoch == 0 else self._rates

    def _whole(self) -> float:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share


class ExponentialLR(_Scaled):
    """Multiply rates by ``gamma`` at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        return self.gamma

    def _whole(self) -> float:
        return self.gamma**self.last_epoch

    def _first(self) -> list[float]:
        return self._rates


class PolynomialLR(_Scaled):
    """Down to 0 within ``total_iters`` steps, by the remaining fraction to the power ``power``."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def _left(self, step: int) -> float:
        return float((1 - min(step, self.total_iters) / self.total_iters) ** self.power)

    def _factor(self) -> float:
        if self.last_epoch > self.total_iters:
            return 1.0
        return self._left(self.last_epoch) / self._left(self.last_epoch - 1)

    def _whole(self) -> float:
        return self._left(self.last_epoch)

    def _first(self) -> list[float]:
        return self._rates


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the rate to ``eta_min`` and back (Loshchilov and Hutter, 2017).

    Args:
        optimizer: whose rates change.
        T_max: steps of half a period.
        eta_min: the lowest rate.
        last_epoch: the step to continue after.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, step: int) -> float:
        return 1 + math.cos(math.pi * step / self.T_max)

    def get_lr(self) -> list[float]:
        """What the last rates become."""
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # up again, from nothing
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            both = zip(self._rates, self.base_lrs, strict=True)
            return [rate + (base - self.eta_min) * rise for rate, base in both]
        factor = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [factor * (rate - self.eta_min) + self.eta_min for rate in self._rates]

    def _at_once(self) -> list[float]:
        share = self._height(self.last_epoch) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def _first(self) -> list[float]:
        return self._rates
