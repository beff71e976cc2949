"""Mixed precision, as torch.amp: operations in a lower float type, and losses scaled for it.

Owns ``autocast`` and ``GradScaler``, not the list of operations that are lowered. Never computes:
casts and scalings are recorded like every other operation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.ops.promotion import bfloat16, float16
from shmgpu.optim import Optimizer
from shmgpu.tensors import autocasting
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

__all__ = ["GradScaler", "autocast"]


def __dir__() -> list[str]:
    return __all__


USUAL = {"cpu": bfloat16, "cuda": float16}  # of each device, as torch has it


class autocast(contextlib.ContextDecorator):
    """A context in which products of matrices and convolutions are done in a lower float type.

    What loses too much in that, as a softmax, a sum or a loss, is done in float32; anything else in
    the type that it is given. Parameters stay what they are, and so do float64 tensors. It holds
    for this thread.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``, which decides about the type only; or the type itself.
        dtype: ``"float16"`` or ``"bfloat16"``; as torch's for the device unless given.
        enabled: False casts nothing, also within another such context.
        cache_enabled: accepted, and changes nothing.

    Raises:
        ValueError: the type is another one.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     x = shmgpu.ones(2, 2)
        ...     with shmgpu.amp.autocast("bfloat16"):
        ...         y = x @ x
        ...     y.dtype.name
        'bfloat16'
    """

    def __init__(
        self,
        device_type: Any = "cuda",
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        device = str(device_type).partition(":")[0]
        if device in USUAL:
            found = USUAL[device] if dtype is None else dtypes.of_any(dtype)
        else:
            found = dtypes.of_any(device_type)
        if found not in (float16, bfloat16):
            raise ValueError(f"autocast: dtype={found.name!r} must be 'float16' or 'bfloat16'")
        self._dtype = found if enabled else None
        self._before: list[Any] = []

    def __enter__(self) -> autocast:
        self._before.append(autocasting.mode.dtype)
        autocasting.mode.dtype = self._dtype
        return self

    def __exit__(self, *error: object) -> None:
        autocasting.mode.dtype = self._before.pop()


class GradScaler:
    """Scales losses, lest small gradients are lost in float16; skips steps where one overflows.

    Args:
        device: accepted, and changes nothing.
        init_scale: the scale at first.
        growth_factor: by which it grows after enough good steps.
        backoff_factor: by which it shrinks after a step with a gradient that is not finite.
        growth_interval: how many good steps are enough.
        enabled: False scales nothing, and skips no step.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1 or not 0 < backoff_factor < 1:
            raise ValueError(
                f"GradScaler: growth_factor={growth_factor} must be above 1, and "
                f"backoff_factor={backoff_factor} between 0 and 1"
            )
        self._enabled = enabled
        self._scale, self._growth_tracker = init_scale, 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._found: dict[Optimizer, bool] = {}  # of those unscaled: whether all was finite

    def scale(self, outputs: Any) -> Any:
        """A loss, or several, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)([self.scale(one) for one in outputs])

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of that optimiser's parameters by the scale, to clip them, say.

        It looks whether they are finite, and so waits for them.

        Raises:
            RuntimeError: it was done already since the last ``update()``.
        """
        if not self._enabled:
            return
        if optimizer in self._found:
            raise RuntimeError("unscale_() was called already since the last update()")
        found = []
        with no_grad():
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        one.grad.mul_(1 / self._scale)
                        found.append(FUNCTIONS["isfinite"](one.grad).all())
        self._found[optimizer] = not found or bool(FUNCTIONS["stack"](found).all())

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The optimiser's step, unless a gradient is not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if optimizer not in self._found:
            self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs) if self._found[optimizer] else None

    def update(self, new_scale: float | None = None) -> None:
        """The next step's scale: less after one that was skipped, more after many that were not."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not all(self._found.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale = grown if math.isfinite(grown) else self._scale
                self._growth_tracker = 0
        self._found.clear()

    def get_scale(self) -> float:
        """By what losses are multiplied now."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale and the settings, as torch's scaler has them."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where that state was taken, of this library or of torch."""
        if self._enabled:
            self._scale = float(state_dict["scale"])
            self._growth_factor = state_dict["growth_factor"]
            self._backoff_factor = state_dict["backoff_factor"]
            self._growth_interval = state_dict["growth_interval"]
            self._growth_tracker = state_dict["_growth_tracker"]
