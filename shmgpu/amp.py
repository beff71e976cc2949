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
    """A context in which matrix products and convolutions run in a lower float type.

    Operations that lose too much precision there (softmax, sums, losses) run in float32, all others
    in the type of their inputs. Parameters and float64 tensors keep their type. The context applies
    to this thread.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``, which only selects the type; or the type.
        dtype: ``"float16"`` or ``"bfloat16"``; as torch's for the device by default.
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
    """Scales losses so that small gradients do not underflow in float16; skips steps that overflow.

    Args:
        device: accepted, and changes nothing.
        init_scale: the scale at first.
        growth_factor: multiplies the scale after enough good steps.
        backoff_factor: multiplies the scale after a step with a gradient that is not finite.
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
        """Divide the gradients of the optimiser's parameters by the scale, to clip them, say.

        It waits for the gradients, to check whether they are finite.

        Raises:
            RuntimeError: already done since the last ``update()``.
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
        """Adapt the scale: lower after a skipped step, higher after many good ones."""
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
        """The current scale."""
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
        """Continue from a state of this library's or torch's scaler."""
        if self._enabled:
            self._scale = float(state_dict["scale"])
            self._growth_factor = state_dict["growth_factor"]
            self._backoff_factor = state_dict["backoff_factor"]
            self._growth_interval = state_dict["growth_interval"]
            self._growth_tracker = state_dict["_growth_tracker"]
