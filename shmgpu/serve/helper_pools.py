"""Which helpers a server has, and on which devices: pools, from what its command line says.

Owns the step from ``--helpers``, ``--devices`` and ``MODEL@NAME`` to pools. Never starts a helper,
never asks whether a device exists: the launch does.
"""

from __future__ import annotations

from dataclasses import replace

from shmgpu.common.devices import name_of
from shmgpu.errors import ConfigError
from shmgpu.serve.state.repository import ModelSource

DEFAULT = "default"  # of models that name neither a pool nor a device


def pools_of(
    sources: list[ModelSource],
    helpers: int | dict[str, int],
    devices: list[str] | dict[str, list[str]] | None,
) -> tuple[list[ModelSource], int | dict[str, int], list[str] | dict[str, list[str]] | None]:
    """The sources with the pools that they are for; helpers and devices as a launch takes them.

    Where the helpers are a number, a model may name a device instead of a pool: that device gets a
    pool of its own name, whatever it was called, with so many helpers; models that name none share
    the first pool, whose helpers are on ``devices``.

    Raises:
        ConfigError: what was said does not fit together.
    """
    if isinstance(helpers, dict):
        return sources, helpers, devices
    on_device = [_device_in(one.pool) for one in sources]
    named = list(dict.fromkeys(filter(None, on_device)))
    if not named:
        return sources, helpers, devices
    if isinstance(devices, dict):
        raise ConfigError(
            "--devices names pools, and a model its device: give the pools to --helpers, too, or "
            "say MODEL@POOL"
        )
    sources = [
        replace(one, pool=device or one.pool)
        for one, device in zip(sources, on_device, strict=True)
    ]
    on: dict[str, list[str]] = {name: [name] for name in named}
    counts = dict.fromkeys(named, helpers)
    if all(on_device):
        if devices is not None:
            raise ConfigError("each model names its device, so --devices is for none: omit it")
        return sources, counts, on
    first = {} if devices is None else {DEFAULT: devices}
    return sources, {DEFAULT: helpers, **counts}, {**first, **on}


def _device_in(pool: str) -> str:
    """The device that a pool's name is; empty: it is none."""
    try:
        return name_of(pool)
    except ConfigError:
        return ""
