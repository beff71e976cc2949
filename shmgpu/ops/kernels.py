"""How a row says which function of NumPy or torch computes it.

Owns the common ways to say so. Never imports torch: a kernel is given the module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Binder = Callable[..., Any]


def named(name: str) -> Binder:
    """The module's function of that name (dotted for one of a module within), as it is."""
    path = name.split(".")

    def bind(module: Any, *_: Any) -> Any:
        found = module
        for part in path:
            found = getattr(found, part)
        return found

    bind.__dict__["library_name"] = name  # for the page of operations
    return bind


def over_axes(name: str, axes: str, keep: str) -> Binder:
    """A reduction with params (axes, keepdim), under the keywords the module has for them."""

    def bind(module: Any, specs: Any, params: Any, out: Any) -> Any:
        return partial(getattr(module, name), **{axes: params[0], keep: params[1]})

    bind.__dict__["library_name"] = name  # for the page of operations
    return bind


def numpy_reduction(name: str) -> Binder:
    """NumPy's reduction of that name."""
    return over_axes(name, "axis", "keepdims")


def torch_reduction(name: str) -> Binder:
    """Torch's reduction of that name."""
    return over_axes(name, "dim", "keepdim")


def given(make: Callable[..., Any]) -> Binder:
    """``make(params)`` is the kernel: for those that need neither the module nor specs."""
    return lambda module, specs, params, out: make(params)


def numpy_erf(np: Any) -> Any:
    """The error function, which NumPy has not: SciPy's, or Python's for each element."""
    try:
        from scipy.special import erf
    except ImportError:
        import math

        return np.vectorize(math.erf, otypes=["float64"])
    return erf
