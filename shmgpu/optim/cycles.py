"""Schedules in cycles: warm restarts, one cycle, and up and down repeatedly.

Owns their state. Never touches a parameter: only the rates and momenta of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shmgpu.optim.optimizer import Group, Optimizer
from shmgpu.optim.schedules import LRScheduler


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the rate to ``eta_min``, repeatedly (Loshchilov and Hutter, 2017).

    Args:
        optimizer: whose rates change.
        T_0: steps until the first restart.
        T_mult: by which each period is longer than the one before.
        eta_min: the lowest rate.
        last_epoch: the step to continue after.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ValueError(
                f"CosineAnnealingWarmRestarts: T_0={T_0} and T_mult={T_mult} must be 1 or more"
            )
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates at this point of the period."""
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Advance by one step, or to ``epoch``, which may be a fraction."""
        self._step_count += 1
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            self.T_cur, self.T_i = epoch, self.T_0
            while self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())


def _each(value: Any, optimizer: Optimizer, name: str) -> list[float]:
    """A number for each group."""
    listed = (
        list(value) if isinstance(value, (list, tuple)) else [value] * len(optimizer.param_groups)
    )
    if len(listed) != len(optimizer.param_groups):
        raise ValueError(f"{name} must be a number, or one for each of the optimiser's groups")
    return listed


def _check_momentum(optimizer: Optimizer, name: str) -> None:
    if not {"momentum", "betas"} & set(optimizer.defaults):
        raise ValueError(
            f"{name}: {type(optimizer).__name__} has no momentum: pass cycle_momentum=False"
        )


def _set_momentum(group: Group, momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _linear(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


ANNEAL = {"cos": _cosine, "linear": _linear}


class OneCycleLR(LRScheduler):
    """Up to ``max_lr``, then down to almost 0; momentum inversely (Smith, 2018).

    Args:
        optimizer: whose rates change.
        max_lr: the highest rate; a list for one of each group.
        total_steps: how many steps there will be; otherwise epochs * steps_per_epoch.
        epochs: number of epochs.
        steps_per_epoch: steps of each.
        pct_start: fraction of the steps in which rates rise.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        cycle_momentum: whether the momentum, or the first of Adam's betas, changes.
        base_momentum: its lowest value.
        max_momentum: its highest.
        div_factor: the highest rate divided by the first.
        final_div_factor: the first rate divided by the last.
        three_phase: return to the first rate as slowly as rates rose, then fall further.
        last_epoch: the step to continue after.

    Raises:
        ValueError: the number of steps is not given, or a setting is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps < 1 or not 0 <= pct_start <= 1:
            raise ValueError(
                f"OneCycleLR: total_steps={total_steps} must be 1 or more, and "
                f"pct_start={pct_start} 0 to 1"
            )
        if anneal_strategy not in ANNEAL:
            raise ValueError(
                f"OneCycleLR: anneal_strategy={anneal_strategy!r} must be 'cos' or 'linear'"
            )
        if cycle_momentum:
            _check_momentum(optimizer, "OneCycleLR")
        self.total_steps, self._anneal = total_steps, anneal_strategy
        self.cycle_momentum = cycle_momentum
        up = float(pct_start * total_steps) - 1
        # Each phase: its last step, and between which of a group's values it goes.
        self._phases: list[tuple[float, str, str, str, str]] = [
            (up, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        ]
        if three_phase:
            down = float(2 * pct_start * total_steps) - 2
            self._phases += [
                (down, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self._phases.append(
                (total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")
            )
        if last_epoch == -1:
            for group, most in zip(
                optimizer.param_groups, _each(max_lr, optimizer, "max_lr"), strict=True
            ):
                first = most / div_factor
                group.update(initial_lr=first, max_lr=most, min_lr=first / final_div_factor)
        if cycle_momentum:
            least = _each(base_momentum, optimizer, "base_momentum")
            most_of = _each(max_momentum, optimizer, "max_momentum")
            if last_epoch == -1:
                for group, low, high in zip(optimizer.param_groups, least, most_of, strict=True):
                    _set_momentum(group, high)
                    group.update(base_momentum=low, max_momentum=high)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates at this point of the cycle; the momentum is set, too.

        Raises:
            ValueError: all steps are done.
        """
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"OneCycleLR: step {self.last_epoch} is beyond the {self.total_steps} of the cycle"
            )
        start = 0.0
        for phase in self._phases:
            end, *names = phase
            if self.last_epoch <= end or phase is self._phases[-1]:
                break
            start = end
        share = (self.last_epoch - start) / (end - start) if end != start else 1.0
        anneal = ANNEAL[self._anneal]
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(anneal(group[names[0]], group[names[1]], share))
            if self.cycle_momentum:
                _set_momentum(group, anneal(group[names[2]], group[names[3]], share))
        return rates


def _triangular(x: float) -> float:
    return 1.0


def _triangular2(x: float) -> float:
    return float(1 / (2.0 ** (x - 1)))


class CyclicLR(LRScheduler):
    """Up from ``base_lr`` to ``max_lr`` and down, repeatedly (Smith, 2017).

    Args:
        optimizer: whose rates change.
        base_lr: the lowest rate; a list for one of each group, and so the next.
        max_lr: the highest rate.
        step_size_up: steps up.
        step_size_down: steps down; as many as up by default.
        mode: ``"triangular"``, ``"triangular2"`` (half as high each time) or ``"exp_range"``.
        gamma: of the latter: the factor for each step.
        scale_fn: a function in place of the mode.
        scale_mode: whether that is of the ``"cycle"`` or of ``"iterations"``.
        cycle_momentum: whether the momentum changes inversely.
        base_momentum: its lowest value.
        max_momentum: its highest.
        last_epoch: the step to continue after.
    """

    left_out = ("optimizer", "_custom")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(
                f"CyclicLR: mode={mode!r} must be 'triangular', 'triangular2' or 'exp_range'"
            )
        least = _each(base_lr, optimizer, "base_lr")
        self.max_lrs = _each(max_lr, optimizer, "max_lr")
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._custom = scale_fn
        self.scale_mode = (
            scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        )
        self.cycle_momentum = cycle_momentum
        self.base_momentums = _each(base_momentum, optimizer, "base_momentum")
        self.max_momentums = _each(max_momentum, optimizer, "max_momentum")
        if cycle_momentum:
            _check_momentum(optimizer, "CyclicLR")
        if last_epoch == -1:
            for group, low in zip(optimizer.param_groups, least, strict=True):
                group["lr"] = group["initial_lr"] = low
        super().__init__(optimizer, last_epoch)
        self.base_lrs = least

    def _scale(self, x: float) -> float:
        if self._custom is not None:
            return self._custom(x)
        if self.mode == "exp_range":
            return float(self.gamma**x)
        return _triangular(x) if self.mode == "triangular" else _triangular2(x)

    def get_lr(self) -> list[float]:
        """The rates at this point of the cycle; the momentum is set, too."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        rising = x <= self.step_ratio
        height = x / self.step_ratio if rising else (x - 1) / (self.step_ratio - 1)
        height *= self._scale(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                _set_momentum(group, high - (high - low) * height)
        both = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in both]
