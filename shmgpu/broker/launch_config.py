"""Everything about a broker that is decided, or refused, before the first fork.

Owns the configuration made of the settings that were asked for. Never forks.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Mapping
from typing import Any

from shmgpu import core, function_table
from shmgpu.child import runtime
from shmgpu.common import config, logs, parsers
from shmgpu.common import devices as device
from shmgpu.common.logs import logger
from shmgpu.errors import ConfigError, LaunchError
from shmgpu.helper.process import Setup
from shmgpu.helper.shares import Share

# Descriptors in the parent for each role: the memory of its arena or scratch region, one end of
# each of its two pipes, a pidfd, and the file for its report; for a helper also one end of a
# socket.
DESCRIPTORS_OF_A_ROLE = 6
DESCRIPTORS_TO_SPARE = 16 + 64  # of the broker itself; of the user's own later files


class LaunchConfig:
    """Everything about a broker that is decided before the first fork."""

    def __init__(self, *, children: int, slots: Any = None, **asked: Any) -> None:
        """Resolve settings by their rows in :mod:`shmgpu.common.settings`; None: not asked for.

        Raises:
            ConfigError, LaunchError: a setting is wrong, or no broker can be started so.
        """
        config.warn_unknown()
        logs.configure()
        self.children = children
        self.slots = children + parsers.parse_slots(0 if slots is None else slots, "slots")
        started = _pools(asked.pop("helpers", None))
        counts = _most_of_pools(asked.pop("max_helpers", None), started)
        session, devices = asked.pop("session", None), asked.pop("devices", None)
        lazy, idle = asked.pop("lazy", None), asked.pop("idle", None)
        self.pools = {name: index for index, name in enumerate(counts)}
        self.helper_pool = [self.pools[name] for name in counts for _ in range(counts[name])]
        # A slot that no helper has at the start: the pool may be given more while it runs.
        self.helper_absent = [
            number >= started[name] for name in counts for number in range(counts[name])
        ]
        self.helpers = len(self.helper_pool)
        self.helpers_started = sum(started.values())
        if self.helpers > core.MAX_HELPERS:
            raise ConfigError(
                f"helpers asks for {self.helpers} processes: use {core.MAX_HELPERS} or fewer"
            )

        def resolve(name: str) -> Any:
            return config.resolve(name, asked.pop(name, None))

        self.arena: int = resolve("arena")
        if self.arena < 1:
            raise ConfigError("arena=0 leaves children no memory: use 64MiB or so")
        self.window: int = resolve("window")
        self.order: str = resolve("order")
        self.trace_records: int = resolve("trace_records")
        self.prefault: bool = resolve("prefault")
        self.huge_pages: bool = resolve("huge_pages")
        self.grace: float = resolve("grace")
        self.scratch: int = resolve("scratch")
        self.parked: int = config.resolve("parked")
        core.dump_arenas(config.resolve("dump_arenas"))
        core.allow_spinning(config.resolve("spin"))
        self.restart: str = resolve("restart")
        self.max_restarts: int = resolve("max_restarts")
        seed = resolve("seed")
        self.seed = int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else seed
        device.prepare_environment()
        takes_tensors = any(one.arrays_kind == "torch" for one in function_table.of_users())
        if takes_tensors or runtime.computes_with_torch:
            _import_torch()
        self.setups: list[Setup] = []
        self.has_gpus_apart = False  # two helpers have a GPU each
        threads = resolve("threads")
        self.threads_given = threads > 0
        gpu_memory = resolve("gpu_memory")
        if asked:
            raise TypeError(f"a broker has no setting {min(asked)!r}")
        names: list[str] = []
        for name, count in counts.items():
            names += device.choose(_of_pool(devices, name, counts, "devices"), count)
        on_cpu = sum(
            name == "cpu" and not absent
            for name, absent in zip(names, self.helper_absent, strict=True)
        )
        cores = device.cores()
        share = threads or device.threads_of_helper(cores, on_cpu)
        is_shared = not threads
        if share > 1 and on_cpu and device.openmp_pool_is_used(forks=True):
            logger.warning(
                "an OpenMP pool was used in this process before the launch, and a forked "
                "process cannot use it: CPU helpers compute with one thread (launch before the "
                "first large CPU operation to give them %d)",
                share,
            )
            share = 1
            is_shared = False
        gpus = {device_name for device_name in names if device_name != "cpu"}
        self.has_gpus_apart = len(gpus) > 1
        computing = [number for number, device_name in enumerate(names) if device_name == "cpu"]
        for number, device_name in enumerate(names):
            pool = list(counts)[self.helper_pool[number]]
            made = _of_pool(session, pool, counts, "session")
            if made is not None and not callable(made):
                raise ConfigError(
                    f"session={made!r} must be a function of one argument, the helper"
                )
            self.setups.append(
                Setup(
                    made,
                    device_name,
                    pool,
                    share if device_name == "cpu" else 0,
                    gpu_memory,
                    self.parked,
                    self.slots,
                    Share(number, computing, cores, share)
                    if is_shared and device_name == "cpu"
                    else None,
                    tuple(names),
                )
            )
        for setup in self.setups:
            setup.is_lazy = config.resolve("lazy", _of_pool(lazy, setup.pool, counts, "lazy"))
            setup.idle = config.resolve("idle", _of_pool(idle, setup.pool, counts, "idle"))
        # A GPU helper holds two messages, so that copy and compute can overlap.
        self.min_credit = [1] * len(counts)
        for number, device_name in enumerate(names):
            if device_name != "cpu":
                self.min_credit[self.helper_pool[number]] = 2

    def take_functions(self) -> None:
        """Of a broker that serves one program: its helpers take what that defines later."""
        for setup in self.setups:
            setup.takes_functions = True

    def for_core(self) -> dict[str, Any]:
        """For :func:`core.run`."""
        return {
            "helper_pool": self.helper_pool,
            "helper_absent": self.helper_absent,
            "pool_names": list(self.pools),
            "min_credit": self.min_credit,
            "child_count": self.children,
            "slot_count": self.slots,
            "helper_count": self.helpers,
            "pool_count": len(self.pools),
            "arena_bytes": self.arena,
            "scratch_bytes": self.scratch,
            "window": self.window,
            "trace_records": self.trace_records,
            "prefault": int(self.prefault),
            "huge_pages": int(self.huge_pages),
            "grace_ns": max(1, int(self.grace * 1e9)),  # 0 would mean the default
            "restart": core.RESTARTS[self.restart],
            "max_restarts": self.max_restarts,
            "by_deadline": int(self.order == "deadline"),
        }


def _pools(helpers: Any) -> dict[str, int]:
    if helpers is None or isinstance(helpers, str):
        helpers = config.resolve("helpers", helpers)
    if isinstance(helpers, Mapping):
        if not helpers:
            raise ConfigError("helpers={} names no pool: use helpers=1")
        if len(helpers) > core.MAX_POOLS:
            raise ConfigError(f"helpers has {len(helpers)} pools: use {core.MAX_POOLS} or fewer")
        return {
            str(name): config.read("helpers", count, f"helpers[{name!r}]")
            for name, count in helpers.items()
        }
    return {"default": config.resolve("helpers", helpers)}


def _most_of_pools(most: Any, started: Mapping[str, int]) -> dict[str, int]:
    """How many helpers each pool may ever have: as it starts with, unless more are named."""
    counts = dict(started)
    if most is None:
        return counts
    if not isinstance(most, Mapping):
        most = dict.fromkeys(started, most)
    unknown = sorted(set(map(str, most)) - set(counts))
    if unknown:
        raise ConfigError(
            f"max_helpers names the pool {unknown[0]!r}, and the helpers form {sorted(counts)}"
        )
    for name, value in most.items():
        number = config.read("helpers", value, f"max_helpers[{name!r}]")
        if number < started[str(name)]:
            raise ConfigError(
                f"max_helpers allows pool {name} {number}, and it is to start with "
                f"{started[str(name)]}: raise it, or ask for fewer helpers"
            )
        counts[str(name)] = number
    return counts


def _of_pool(value: Any, pool: str, counts: Mapping[str, int], name: str) -> Any:
    """What a setting says for one pool: the value itself, or its row of a dictionary."""
    if not isinstance(value, Mapping):
        return value
    unknown = sorted(set(map(str, value)) - set(counts))
    if unknown:
        raise ConfigError(
            f"{name} names the pool {unknown[0]!r}, and the helpers form {sorted(counts)}"
        )
    return value.get(pool)


def _import_torch() -> None:
    """Once before the fork is cheaper than once in every helper."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise LaunchError(
            f"a function gets torch tensors, and torch cannot be imported ({error}): install "
            'torch, or decorate with arrays="numpy"'
        ) from error


def refuse_unsafe(what: str) -> None:
    """Raise LaunchError where a broker cannot be started."""
    reason = why_not_fork(what)
    if not (reason and _is_interactive()):  # it never can be there, whatever was left before
        refuse_nested(what)
    if reason:
        raise LaunchError(reason)


def refuse_nested(what: str) -> None:
    """Raise LaunchError where this process is in a broker, or about to be one."""
    runtime.refuse_while_loading()
    role = core.role()
    forked = runtime.inherited_endpoint is not None
    if runtime.current is not None and runtime.current.if_lost:
        raise LaunchError(
            f"{what} cannot start a broker in a process that has joined one, as the first call of "
            "a program in none does: call shmgpu.disconnect() before"
        )
    if role in (core.ROLE_CHILD, core.ROLE_HELPER, core.ROLE_PARENT) or runtime.current or forked:
        where = {
            core.ROLE_HELPER: "a helper",
            core.ROLE_CHILD: "a child",
            core.ROLE_NONE: "a process that was forked from a child" if forked else "",
        }.get(role) or "a process that has one"
        raise LaunchError(
            f"{what} cannot start a broker inside {where}: start one broker, from the main "
            "program, and call shutdown() before starting another"
        )


def why_not_fork(what: str) -> str:
    """What makes a fork of this process unsafe, as a sentence; "" when nothing does."""
    if threading.current_thread() is not threading.main_thread():
        return f"{what} must be called from the main thread, because it forks: call it there"
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if others and _is_interactive():
        return (
            f"{what} forks, and a notebook, or a prompt of IPython, has threads of its own, which "
            "can hang what is forked: call decorated functions here without it, as they are (they "
            "run in helpers of a broker that the first call joins or starts), or after "
            f"shmgpu.init(), which forks nothing here; what needs {what} goes into a script, which "
            "a cell can run: !python script.py"
        )
    if others:
        return (
            f"{what} forks, and forking while Python threads run can hang what is forked, because "
            "a lock that one of them holds stays locked there: end these threads before it, or "
            f"start them after it: {', '.join(sorted(others))}"
        )
    if device.cuda_is_initialised():
        return (
            "CUDA is already initialised in this process, and a forked process cannot use it: "
            "launch before the first CUDA operation, and leave CUDA to the helpers"
        )
    return ""


def _is_interactive() -> bool:
    """Whether IPython runs this process: a notebook's kernel, or its own prompt."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return found is not None and found() is not None


def descriptors_needed(roles: int, open_now: int) -> int:
    """How many descriptors a parent of that many helpers and children may have open."""
    return DESCRIPTORS_OF_A_ROLE * roles + DESCRIPTORS_TO_SPARE + open_now


def make_room_for_descriptors(roles: int) -> None:
    """Raise the soft limit on open files as far as a broker needs.

    Raises:
        LaunchError: the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        open_now = len(os.listdir("/proc/self/fd"))
    except OSError:
        open_now = 0
    needed = descriptors_needed(roles, open_now)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"{roles} helpers and children need {needed} open files, and the limit is {hard}: "
            f"raise it with ulimit -n {needed}, or start fewer"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
