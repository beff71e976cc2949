"""Mixed precision of fully sharded models: in which types layers compute, and gradients are added.

Owns the policy, and the casts of parameters, of what goes into a module and of what comes out of
it. Never gathers a parameter, and never says how one lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.distributed.layout import Layout
from shmgpu.ops.casting import cast
from shmgpu.ops.promotion import is_float
from shmgpu.ops.redistribution import redistribute
from shmgpu.tensors.tensor import Tensor


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The types of a fully sharded module, as PyTorch's policy of that name has them.

    Parameters keep their type, and so do their gradients and an optimiser's state; each member
    casts its part of them before they are gathered, so fewer bytes move.

    Args:
        param_dtype: the module computes in this type; None: in its parameters' own.
        reduce_dtype: each member's part of a gradient is cast to this type before the parts are
            added; None: to ``param_dtype``.
        output_dtype: what the module returns is cast to this type, if it is of floats; None: as it
            comes.
        cast_forward_inputs: whether its arguments are cast to ``param_dtype``, if they are of
            floats, also within lists, tuples and dicts.

    Raises:
        TypeError: a type is not one of floats.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            given = getattr(self, name)
            if given is None:
                continue
            found = dtypes.of_any(given)
            if not is_float(found):
                raise TypeError(
                    f"MixedPrecisionPolicy: {name}={found.name!r} must be a type of floats, such "
                    "as 'bfloat16'"
                )
            object.__setattr__(self, name, found)

    def gathered(
        self, parameters: Mapping[Tensor, tuple[Layout, Layout]], unit: int | None
    ) -> dict[Tensor, Tensor]:
        """Parameters as the module uses them: whole, in its type; with their gradients' way back.

        Args:
            parameters: how each is to lie, and how it lies.
            unit: of what is gathered together, and again for gradients; None of what is kept.
        """
        # All are cast before any is gathered: nothing stands between what is gathered together.
        lower = {one: cast(one._node, self._type(self.param_dtype, one)) for one in parameters}
        made: dict[Tensor, Tensor] = {}
        for one, (whole, cut) in parameters.items():
            own, compute = one.dtype, lower[one].spec.dtype
            reduced = self._type(self.reduce_dtype or compute, one)
            back = None if own is compute is reduced else (reduced, cut, own)
            made[one] = Tensor(redistribute(lower[one], whole, unit, back=back))
        return made

    def _type(self, wanted: DType | None, parameter: Tensor) -> DType:
        own: DType = parameter.dtype
        return wanted if wanted is not None and is_float(own) else own

    def inputs(self, args: Any, kwargs: Any) -> Any:
        """A call's arguments as the module is given them."""
        dtype = self.param_dtype if self.cast_forward_inputs else None
        return _cast(args, dtype), _cast(kwargs, dtype)

    def outputs(self, value: Any) -> Any:
        """What the module returned, as its caller gets it."""
        return _cast(value, self.output_dtype)


def _cast(value: Any, dtype: DType | None) -> Any:
    """Tensors of floats in another type, wherever they stand in lists, tuples and dicts."""
    if dtype is None:
        return value
    if isinstance(value, Tensor):
        return value.to(dtype) if is_float(value.dtype) else value
    if isinstance(value, dict):
        return {key: _cast(one, dtype) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        made = [_cast(one, dtype) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value
