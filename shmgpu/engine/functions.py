"""The bodies of the functions that helpers run for tensors, and the engine behind them.

Owns the step from a call to the engine. :mod:`shmgpu.tensors.functions` declares these functions,
for those who call. Never imports torch before the first call.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from shmgpu import core
from shmgpu.common import config
from shmgpu.helper.decoded import Helper, RawRequest
from shmgpu.ops import gang as gangs
from shmgpu.ops.program_message import says_early

_KEPT = "shmgpu.engine"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
KEPT_PAGES_BYTES = 256 << 20  # free memory that may stay at the end of a helper's heap
# The greatest value that glibc accepts: larger arrays are mapped one by one.
MAPPED_BYTES = 32 << 20


def engine_of(helper: Helper, backend: str) -> Any:
    """The helper's engine of that backend, made at first use."""
    engines = helper.__dict__.setdefault(_KEPT, {})
    engine = engines.get(backend)
    if engine is None:
        from shmgpu.engine.backends import NumpyBackend, TorchBackend
        from shmgpu.engine.session import Engine

        made: Any = NumpyBackend() if backend == "numpy" else TorchBackend(helper.device)
        if made.is_host and core.role() == core.ROLE_HELPER:
            _keep_pages()
        engine = engines[backend] = Engine(made, config.resolve("resident"), _memory(made))
        helper.when_children_leave.append(lambda: _forget_those_who_left(engine))
        helper.keeps_something.append(engine.keeps_arrays)
    return engine


def _memory(backend: Any) -> int:
    """Bytes that there are on the device, or in the machine."""
    if backend.is_host:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(backend.module.cuda.get_device_properties(backend.device).total_memory)


def _forget_those_who_left(engine: Any) -> None:
    has_freed = False
    for slot, generation in engine.callers():
        row = core.child_stats(slot)
        if row["generation"] != generation or row["state"] != core.CHILD_RUNNING:
            engine.forget(slot)
            has_freed = True
    if has_freed:
        _give_back()


def _keep_pages() -> None:
    """Have the C library keep what is freed: the next step wants as much again.

    Else a step's larger arrays come from the system each time, and every page of them costs a fault
    (1,900 in a step of a small transformer, a tenth of its time). See :func:`_give_back`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_PAGES_BYTES)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)


def _give_back() -> None:
    """Have the C library return what is free to the system: it keeps tens of megabytes else."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def execute_torch(helper: Helper, request: RawRequest) -> Any:
    """Run a program with torch, on the helper's device."""
    return _execute(helper, request, "torch")


def execute_numpy(helper: Helper, request: RawRequest) -> Any:
    """Run a program with NumPy."""
    return _execute(helper, request, "numpy")


def _execute(helper: Helper, request: RawRequest, backend: str) -> Any:
    engine, gang = engine_of(helper, backend), request.gang
    run = engine.execute
    if gang is None:
        return run(helper.caller, request.head, request.code, request.array, helper.afterwards)
    with gangs.member_of(gang.programs, gang.commit, request.say):
        try:
            return run(helper.caller, request.head, request.code, request.array, helper.afterwards)
        except BaseException:
            if says_early(request.head):
                request.say_failed()
            raise


def device_of(helper: Helper) -> Any:
    """Where the helper's tensors live: ``"cpu"`` or ``"cuda:N"``."""
    return helper.device


def engine_figures(helper: Helper) -> Any:
    """What each engine of the helper holds and did: see :meth:`Engine.figures`.

    A row of another child than the caller says how much it holds, not what.
    """
    return [engine.figures() for engine in helper.__dict__.get(_KEPT, {}).values()]
