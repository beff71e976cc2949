"""How many helpers a program's tensors live on: GT's ``gpu_workers``.

Owns the asking: starts a broker with so many where none runs, has a running one make more where it
may have them, and says in a sentence where it may not. Never takes a helper from anybody: of a
broker that has more, this program uses as many as it asked for.
"""

from __future__ import annotations

import time

from shmgpu import attach, config, control, lazy, runtime
from shmgpu.errors import ConfigError, LaunchError, NotRunning, ShmError
from shmgpu.stats import stats

READY = 2  # a shm_helper_state: its session is made
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
    count = config.SETTINGS["helpers"].parse(n, "gpu_workers(n)")
    if runtime.current is not None and "recorder" in runtime.current.extra:
        raise RuntimeError(
            "gpu_workers() chooses where tensors will live, and there are some already: call it "
            "before the first is made"
        )
    if runtime.current is None and config.resolve("auto") == "start":
        attach.ensure(helpers=count, idle_timeout=config.resolve("idle_timeout"))
    means = runtime.current
    if means is None:
        runtime.require_port()
        means = runtime.require()
    if not means.inline and len(_ready()) < count:
        _grow(means.door, count)
    lazy.use_helpers([0] if means.inline else _ready()[:count])


def _ready() -> list[int]:
    """The numbers of the first pool's helpers that can be asked."""
    rows = stats()["helpers"]
    return [n for n, row in enumerate(rows) if row["pool"] == 0 and row["state"] == READY]


def _grow(door: str, count: int) -> None:
    have = len(_ready())
    few = f"gpu_workers({count}): the broker has {have} helper{'s' * (have != 1)}, and "
    if not door or door.startswith("@"):
        raise ConfigError(
            f"{few}only one of shmgpu up can have more later: start it with helpers={count}"
        )
    try:
        control.scale(count, path=door)
    except (ConfigError, LaunchError, NotRunning) as error:
        raise ConfigError(f"{few}it makes no more: {error}") from error
    until = time.monotonic() + COMES_WITHIN_S
    while len(_ready()) < count:
        if time.monotonic() > until:
            raise ShmError(
                f"{few}the others were not ready within {COMES_WITHIN_S:g} s: see the broker's log"
            )
        time.sleep(LOOK_AGAIN_S)
