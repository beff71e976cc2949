"""Which helpers a server has, and on which devices: pools, from what its command line says.

Owns the step from ``--helpers``, ``--devices`` and ``MODEL@NAME`` to pools. Never starts a helper,
never asks whether a device exists: the launch does.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmgpu.common.devices import name_of
from shmgpu.errors import ConfigError
from shmgpu.serve.state.repository import ModelSource

DEFAULT = "default"  # of models that name neither a pool nor a device


def pools_of(
    sources: Sequence[ModelSource],
    helpers: int | dict[str, int],
    devices: list[str] | dict[str, list[str]] | None,
) -> tuple[int | dict[str, int], list[str] | dict[str, list[str]] | None]:
    """Helpers and devices as a launch takes them.

    Where the helpers are a number, a model may name a device instead of a pool: that device gets a
    pool of its own name, with so many helpers; models that name none share the first pool, whose
    helpers are on ``devices``.

    Raises:
        ConfigError: what was said does not fit together.
    """
    if isinstance(helpers, dict):
        return helpers, devices
    named = list(dict.fromkeys(one.pool for one in sources if _is_device(one.pool)))
    if not named:
        return helpers, devices
    if isinstance(devices, dict):
        raise ConfigError(
            "--devices names pools, and a model its device: give the pools to --helpers, too, or "
            "say MODEL@POOL"
        )
    on: dict[str, list[str]] = {name: [name_of(name)] for name in named}
    counts = dict.fromkeys(named, helpers)
    if all(_is_device(one.pool) for one in sources):
        if devices is not None:
            raise ConfigError("each model names its device, so --devices is for none: omit it")
        return counts, on
    first = {} if devices is None else {DEFAULT: devices}
    return {DEFAULT: helpers, **counts}, {**first, **on}


def _is_device(name: str) -> bool:
    try:
        return bool(name) and bool(name_of(name))
    except ConfigError:
        return False
