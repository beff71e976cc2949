"""On which helpers a program's tensors live: GT's ``gpu_workers``, and ``set_backend``'s device.

Owns how helpers are asked for. If no broker runs, one is started with what is wanted. If one runs,
it is asked for more helpers; if it may not make them, the error says why. Never takes a helper from
another program: if the broker has more, this program uses as many as it asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shmgpu import core
from shmgpu.attach import control, membership
from shmgpu.child import runtime
from shmgpu.common import config
from shmgpu.common.devices import name_of
from shmgpu.errors import ConfigError, LaunchError, NotRunning, ShmError
from shmgpu.tensors import current, functions
from shmgpu.watch.stats import stats

DEVICE = "tensor device"
COMES_WITHIN_S = 60.0
LOOK_AGAIN_S = 0.02


def gpu_workers(n: int) -> None:
    """Have this program's tensors live on ``n`` helpers; before the first of them is made.

    Where this program is in no broker, it joins yours, or starts one with ``n`` helpers. Where the
    broker has fewer, it is asked for more, as by ``shmgpu scale``.

    Raises:
        RuntimeError: there are tensors already.
        ConfigError: ``n`` is no number of helpers, or the broker cannot have so many.
    """
    count = config.read("helpers", n, "gpu_workers(n)")
    if runtime.current is not None and "recorder" in runtime.current.extra:
        raise RuntimeError(
            "gpu_workers() chooses where tensors will live, and there are some already: call it "
            "before the first is made"
        )
    means = _member(helpers=count)
    if not means.inline and len(_fit(means)) < count:
        _grow(means, count)
    current.use_helpers(_fit(means)[:count])


def set_backend(name: str, device: Any = None) -> None:
    """Which library computes tensors from now on, and where.

    Args:
        name: ``"torch"`` or ``"numpy"``.
        device: ``"cpu"``, ``"cuda:0"``, ...: this program's tensors live on helpers that have it.
            A program that is in no broker joins yours, or starts one whose helpers have it. On any
            unless given. NumPy computes on the CPU, whatever its helper has.

    Raises:
        ValueError: there is no such library here, or it does not compute on that device.
        ConfigError: there is no such device, or no helper has it.
        RuntimeError: there are tensors already, and helpers of theirs have another device.
    """
    current.check_backend(name)
    place = None if device is None else name_of(device)
    if name == "numpy" and place not in (None, "cpu"):
        raise ValueError(f'NumPy computes on the CPU only, not on {place}: use "torch" there')
    if name == "torch" and place is not None:
        _live_on(place)
    current.use_backend(name)


def _live_on(place: str) -> None:
    means = _member(devices=[place])
    have = {number: _device_of(number) for number in _ready(means)}
    if place not in have.values():
        raise ConfigError(
            f'set_backend(device="{place}"): the broker\'s helpers have '
            f"{', '.join(sorted(set(have.values())))}: name one of these, or start a broker with "
            f'devices="{place}"'
        )
    if "recorder" in means.extra and any(
        have.get(number) != place for number in current.recorder().helpers
    ):
        raise RuntimeError(
            f'set_backend(device="{place}") chooses where tensors will live, and there are some '
            "on other devices already: call it before the first is made"
        )
    means.extra[DEVICE] = place
    fit = [number for number in have if have[number] == place]
    current.use_helpers(fit[: len(means.extra.get("tensor helpers", have))])  # as many as before


def _device_of(number: int) -> str:
    return str(functions.device_of.options(helpers=[number])())


def _member(**settings: Any) -> runtime.Runtime:
    """This program's place in a broker; in one that is started with these settings, if need be."""
    if runtime.current is None and config.resolve("auto") == "start":
        membership.ensure(**settings, idle_timeout=config.resolve("idle_timeout"))
    if runtime.current is None:
        runtime.require_port()
    return runtime.require()


def _of_first_pool(states: Sequence[int]) -> list[int]:
    """The numbers of the first pool's helpers that are in one of these states."""
    rows = stats()["helpers"]
    return [n for n, row in enumerate(rows) if row["pool"] == 0 and row["state"] in states]


def _ready(means: runtime.Runtime) -> list[int]:
    """The numbers of the first pool's helpers that can be asked."""
    return [0] if means.inline else _of_first_pool(core.HELPERS_THAT_SERVE)


def _fit(means: runtime.Runtime) -> list[int]:
    """Those of them that have the device which this program asked for."""
    place = means.extra.get(DEVICE)
    return [n for n in _ready(means) if place in (None, _device_of(n))]


def _grow(means: runtime.Runtime, count: int) -> None:
    have = len(_fit(means))
    few = f"gpu_workers({count}): the broker has {have} helper{'s' * (have != 1)}, and "
    if have + len(_of_first_pool(core.HELPERS_TO_COME)) < count:
        _ask_for_more(means.endpoint, count, few)
    until = time.monotonic() + COMES_WITHIN_S
    while len(_fit(means)) < count:
        if time.monotonic() > until:
            raise ShmError(
                f"{few}the others were not ready within {COMES_WITHIN_S:g} s: see the broker's log"
            )
        time.sleep(LOOK_AGAIN_S)


def _ask_for_more(endpoint: str, count: int, few: str) -> None:
    if not endpoint or endpoint.startswith("@"):
        raise ConfigError(
            f"{few}one of init() or launch() has no more than it was started with: start it with "
            f"helpers={count}"
        )
    try:
        control.scale(count, path=endpoint)
    except (ConfigError, LaunchError, NotRunning) as error:
        raise ConfigError(f"{few}it makes no more: {error}") from error
