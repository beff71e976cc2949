"""Starting and ending a broker: ``launch``, ``init``, ``shutdown``.

Owns both ways to start, and the errors raised at the end. In ``launch`` the calling process becomes
the parent, which never runs the user's code; in ``init`` it becomes child 0 of a parent that is
forked from it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, TypeVar

from shmgpu import core, function_table
from shmgpu.attach import carry, membership, spawn
from shmgpu.attach.late import LatePort
from shmgpu.broker.events import describe_exit
from shmgpu.broker.launch_config import (
    LaunchConfig,
    make_room_for_descriptors,
    refuse_nested,
    refuse_unsafe,
    why_not_fork,
)
from shmgpu.broker.role_host import RoleHost
from shmgpu.child import runtime
from shmgpu.child.memory import LocalArena, SharedArena
from shmgpu.child.port import Port
from shmgpu.child.runtime import Runtime
from shmgpu.child.transport import BrokerTransport
from shmgpu.common import config, logs, parsers, seeding
from shmgpu.common import devices as device
from shmgpu.common.settings import taken
from shmgpu.common.termination import SIGNAL_BASE
from shmgpu.common.wording import counted
from shmgpu.errors import (
    ChildError,
    ConfigError,
    LaunchError,
    NotRunning,
    SessionError,
)
from shmgpu.helper.batch_executor import BatchExecutor
from shmgpu.helper.decoded import Helper
from shmgpu.helper.inline import InlineTransport

R = TypeVar("R")

OWN_ARENA = 'init(arena="{size}")'

# ---- launch --------------------------------------------------------------------------------


def launch(
    main: Callable[Concatenate[int, ...], R] | Sequence[Callable[Concatenate[int, ...], R]],
    *,
    children: int | None = None,
    helpers: int | Mapping[str, int] | None = None,
    session: Any = None,
    lazy: bool | Mapping[str, bool] | None = None,
    idle: float | Mapping[str, float] | None = None,
    devices: Any = None,
    arena: int | str | None = None,
    args: Sequence[Any] = (),
    seed: int | None = None,
    window: int | None = None,
    order: str | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
    prefault: bool | None = None,
    huge_pages: bool | None = None,
    grace: float | None = None,
    scratch: int | str | None = None,
    trace_records: int | None = None,
    trace_path: str | os.PathLike[str] | None = None,
    stats_into: dict[str, Any] | None = None,
    progress: bool | None = None,
    restart: str | None = None,
    max_restarts: int | None = None,
    slots: int = 0,
    debug: bool | None = None,
    debug_dir: str | os.PathLike[str] | None = None,
    tick_rate_ms: int | None = None,
) -> list[R]:
    """Fork helpers and children, run ``main`` in every child, and return the results.

    The calling process is the parent until the last child has ended.

    Args:
        main: called as ``main(rank, *args)`` in each child; or a list, one for each child.
        children: how many; by default as many as ``main`` lists.
        helpers: how many; or ``{"name": count}`` for several pools.
        session: ``session(helper)`` runs once in each helper; its return value becomes
            ``helper.session``. May be a dictionary by pool.
        lazy: make a helper's session at its first call. May be a dictionary by pool.
        idle: seconds without a call after which a helper that holds no tensors of a child gives
            its session and its device memory back, until the next call; 0: never. May be a
            dictionary by pool.
        devices: ``"cpu"``, ``"cuda:0"``, or a list that is assigned to helpers in turn; by
            default the machine's GPUs, else the CPU. May be a dictionary by pool.
        arena: bytes of each child's arena, as a number or ``"64MiB"``.
        args: more arguments of ``main``.
        seed: seeds random, numpy, torch and tensors, differently in each role; by default drawn at
            random. A child's own :func:`manual_seed` takes precedence.
        window: messages that a child may have in flight, 1 to 896.
        order: which waiting call is next: ``"turns"``, children take turns; ``"deadline"``, the
            one whose timeout ends first.
        threads: compute threads of each CPU helper; by default (cores - 1) / helpers.
        gpu_memory: limit on the device memory of each helper.
        prefault: take the pages of all arenas now, not at first touch.
        huge_pages: ask for transparent huge pages.
        grace: seconds from a request to end until SIGTERM, and at most as many until SIGKILL.
        scratch: bytes of each helper's scratch region.
        trace_records: calls that the trace remembers; 0 switches it off.
        trace_path: where to write the trace at the end, for Perfetto.
        stats_into: a dictionary that receives the final :func:`stats`.
        progress: draw a bar while helpers load; None means on a terminal only.
        restart: ``"never"``: a child that fails ends the launch. ``"on-failure"``: it is
            restarted, with the same rank and seed and a zeroed arena, as soon as no helper can
            write to the old one any more.
        max_restarts: how often one child is restarted before its failure ends the launch; 5.
        slots: how many processes that children start or fork may join at once, each with an
            arena of its own; see :func:`shmgpu.claim`.
        debug: record what tensors do; see :mod:`shmgpu.debug`.
        debug_dir: folder where each child leaves that record as a file at its end.
        tick_rate_ms: milliseconds of a tick in that record.

    Returns:
        What each child's main returned, in order of rank.

    Raises:
        ChildError: a child's main raised, was killed, or returned what cannot be returned.
        SessionError: a session function raised.
        ConfigError, LaunchError: a setting is wrong, or the broker could not be started.
        KeyboardInterrupt, SystemExit: the parent received SIGINT or SIGTERM.
    """
    asked = locals()
    refuse_unsafe("launch()")
    _check_outputs(trace_path, stats_into)
    mains = _mains(main, children)
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ConfigError(f"args={args!r} must be a tuple: write args=(x,) for one argument")
    plan = LaunchConfig(children=len(mains), **taken("broker", asked))
    function_table.register_late()
    make_room_for_descriptors(plan.slots + plan.helpers)
    host = RoleHost(plan, mains, tuple(args), progress, trace_path)
    before = logs.role()
    logs.set_role("parent")
    try:
        config.give(debug=debug, debug_dir=debug_dir, tick_rate_ms=tick_rate_ms, seed=seed)
        status = core.run(
            host,
            **host.open_private_endpoint(),
            **plan.for_core(),
        )
        if stats_into is not None and host.final_stats is not None:
            stats_into.update(host.final_stats)
        raise_outcome(host, status)
        return [_result(host, child) for child in range(plan.children)]
    finally:
        config.given.clear()
        logs.set_role(before)
        host.close()


def _check_outputs(trace_path: Any, stats_into: Any = None) -> None:
    """Raise ConfigError now for a file that could not be written at the end."""
    if stats_into is not None and not isinstance(stats_into, dict):
        raise ConfigError(f"stats_into={stats_into!r} must be a dictionary")
    if trace_path is None:
        return
    try:
        with open(parsers.parse_path(trace_path, "trace_path"), "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(
            f"trace_path={trace_path!r} cannot be written ({error}): name a file in a directory "
            "that you can write to"
        ) from None


def _mains(main: Any, children: int | None) -> list[Callable[..., Any]]:
    if isinstance(main, Sequence) and not isinstance(main, (str, bytes)):
        mains = list(main)
        if children is not None and config.resolve("children", children) != len(mains):
            raise ConfigError(
                f"main lists {counted(len(mains), 'function')}, but children={children}: omit "
                "children"
            )
        config.read("children", len(mains))
    else:
        mains = [main] * config.resolve("children", children)
    for item in mains:
        if not callable(item):
            raise ConfigError(f"main must be a function of the rank, not {item!r}")
        if isinstance(item, function_table.DeclaredFunction):
            raise ConfigError(
                f"main is {item!r}, which runs in helpers: pass the function that calls it"
            )
    return mains


def raise_outcome(host: RoleHost, status: int) -> None:
    """Raise what the broker's end calls for; return when it was a good one."""
    if host.error is not None:
        raise host.error
    if status >= 0:
        return
    if status == core.ESIGNALLED:
        number = core.stop_signal()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(SIGNAL_BASE + number)
    if status == core.ECHILD_FAILED and host.failures:
        raise _child_error(host, *host.failures[0])
    if status == core.ESESSION:
        raise _session_error(host)
    error = core.error_of(status, "", core.error_detail())
    if isinstance(error, (LaunchError, ConfigError)):
        raise error
    raise LaunchError(str(error)) from error


def _child_error(host: RoleHost, child: int, exit_status: int) -> ChildError:
    report = host.child_reports.read(child)
    if report is not None and report.kind != "result":
        return ChildError(
            f"child {child} failed: {report.message}", child, exit_status, report.traceback_text
        )
    how = describe_exit(exit_status)
    if exit_status == 0:
        how = "it exited before its main had ended (os._exit?)"
    return ChildError(
        f"child {child} failed: {how}",
        child,
        exit_status,
        host.last_words.get(child, ""),
    )


def _session_error(host: RoleHost) -> SessionError:
    numbers = [host.helper_failed] if host.helper_failed >= 0 else []
    for number in (*numbers, *range(host.plan.helpers)):
        report = host.helper_reports.read(number)
        if report is not None:
            where = report.traceback_text.rstrip()
            return SessionError(
                f"helper {number} could not make its session: {report.message}"
                + (f"\n\nIn the helper:\n{where}" if where else ""),
                number,
                report.traceback_text,
            )
    detail = core.error_detail() or "no reason was reported"
    return SessionError(f"a helper could not make its session: {detail}")


def _result(host: RoleHost, child: int) -> Any:
    report = host.child_reports.read(child)
    if report is None:
        raise ChildError(f"child {child} ended without leaving its result", child, 0)
    if report.kind != "result":
        raise ChildError(f"child {child}: {report.message}", child, 1, report.traceback_text)
    return report.value


# ---- init ----------------------------------------------------------------------------------


class Session:
    """A broker of which the calling process is child 0; leave it with :func:`shutdown`."""

    def __init__(self, host: RoleHost | None, backend: str | None) -> None:
        self._host = host
        self.backend = backend
        if backend is not None:
            runtime.require().extra["backend"] = backend
        self.pid = os.getpid()
        self.restore_environment: Callable[[], None] = lambda: None
        self.spawned: spawn.Spawned | None = None  # a broker that was not forked from this process
        self.grace = 0.0

    def shutdown(self) -> None:
        """As :func:`shutdown`."""
        shutdown()

    def __repr__(self) -> str:
        if _session is not self or runtime.current is None:
            return "<shmgpu session, shut down>"
        if runtime.current.inline:
            return "<shmgpu session, inline: functions run in this process>"
        if not is_running():
            return "<shmgpu session, whose broker is gone>"
        helpers = [core.helper_stats(n) for n in range(core.broker_stats()["helpers"])]
        ready = sum(core.HELPER_STATES[one["state"]] == "ready" for one in helpers)
        return f"<shmgpu session, running: {ready} of {counted(len(helpers), 'helper')} ready>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        shutdown()


_session: Session | None = None


@runtime.one_at_a_time
def init(
    helpers: int | Mapping[str, int] | None = None,
    session: Any = None,
    devices: Any = None,
    backend: str | None = None,
    arena: int | str | None = None,
    inline: bool = False,
    *,
    lazy: bool | Mapping[str, bool] | None = None,
    idle: float | Mapping[str, float] | None = None,
    seed: int | None = None,
    window: int | None = None,
    order: str | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
    prefault: bool | None = None,
    huge_pages: bool | None = None,
    grace: float | None = None,
    scratch: int | str | None = None,
    trace_records: int | None = None,
    trace_path: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    slots: int = 0,
    debug: bool | None = None,
    debug_dir: str | os.PathLike[str] | None = None,
    tick_rate_ms: int | None = None,
) -> Session:
    """Start helpers and make the calling process their child, until :func:`shutdown`.

    Args:
        helpers: as for :func:`launch`, and so are session, devices and arena.
        session: see there.
        devices: see there.
        backend: the library that computes tensors, ``"torch"`` or ``"numpy"``; by default what
            :func:`shmgpu.set_backend` says.
        arena: see there.
        inline: start no process: functions run in this one, for debuggers and unit tests.
        lazy: see :func:`launch` for this and all that follow.
        idle: see there.
        seed: see there. In the calling process only tensors are seeded, as in child 0; without a
            seed, an earlier :func:`manual_seed` applies.
        window: see there.
        order: see there.
        threads: see there.
        gpu_memory: see there.
        prefault: see there.
        huge_pages: see there.
        grace: see there.
        scratch: see there.
        trace_records: see there.
        trace_path: see there.
        progress: see there.
        slots: see there.
        debug: see there.
        debug_dir: see there.
        tick_rate_ms: see there.

    Returns:
        A context manager that calls :func:`shutdown`. Calls after its block are refused, as after
        :func:`shutdown`.

    Raises:
        SessionError: a session function raised.
        ConfigError, LaunchError: a setting is wrong, or the broker could not be started.

    Example:
        >>> with shmgpu.init(helpers=1):
        ...     shmgpu.rank(), shmgpu.is_running()
        (0, True)
        >>> shmgpu.is_running()
        False
    """
    asked = locals()
    if backend is not None and (not isinstance(backend, str) or backend not in ("torch", "numpy")):
        raise ConfigError(f'backend={backend!r} must be "torch" or "numpy"')
    inline = parsers.parse_bool(inline, "inline")
    with config.taken_back_on_failure():
        config.give(debug=debug, debug_dir=debug_dir, tick_rate_ms=tick_rate_ms)
        return _begin(taken("broker", asked), backend, inline, trace_path, progress, seed)


def _begin(
    wanted: dict[str, Any],
    backend: str | None,
    inline: bool,
    trace_path: Any,
    progress: bool | None,
    seed: int | None,
) -> Session:
    """Become the child of a broker, with what was asked of :func:`init`."""
    global _session
    own_seed = config.resolve("seed", seed)
    if own_seed is not None:
        seeding.seed_caller(own_seed)
    else:
        seeding.draw_afresh()
    if inline:
        runtime.refuse_while_loading()
        if runtime.current is not None or core.role() != core.ROLE_NONE:
            raise LaunchError("a broker is already running in this process: call shutdown() first")
    else:
        refuse_nested("init()")
        _check_outputs(trace_path)
        if why_not_fork("init()") or _openmp_pool_would_be_lost():
            _session = _start_by_exec(
                backend,
                **wanted,
                trace_path=None if trace_path is None else os.path.abspath(trace_path),
                progress=progress,
            )
            config.give(seed=seed)  # for those that are forked, and claim
            atexit.register(shutdown)
            return _session
    plan = LaunchConfig(children=1, **wanted)
    function_table.register_late()
    if inline:
        _start_inline(plan)
        _session = Session(None, backend)
    else:
        make_room_for_descriptors(plan.slots + plan.helpers)
        plan.take_functions()
        host = RoleHost(plan, [lambda rank: None], (), progress, trace_path)
        try:
            status = core.run(
                host,
                caller_is_child=1,
                **host.open_private_endpoint(),
                **plan.for_core(),
            )
            host.thaw()
            raise_outcome(host, status)
        except BaseException:
            core.forget_host()
            host.close()
            raise
        host.child_reports.close()
        host.child_stacks.close()
        host.close_meetings()
        address = host.private_address
        host.close_endpoint()
        port = LatePort(BrokerTransport(), SharedArena(0), plan.pools)
        port.arena.made_larger_by = OWN_ARENA
        runtime.start(Runtime(0, port, port.arena, plan.pools, endpoint=address))
        _session = Session(host, backend)
        if address:
            _session.restore_environment = _export(address)
    config.give(seed=seed)  # for those that are forked, and claim
    atexit.register(shutdown)
    return _session


def _openmp_pool_would_be_lost() -> bool:
    """Whether helpers forked here would have to compute with one thread for that reason."""
    return "torch" in sys.modules and device.cores() > 1 and device.openmp_pool_is_used(forks=True)


def _start_by_exec(backend: str | None, **settings: Any) -> Session:
    """An init() where forking is not safe: the parent is a fresh interpreter."""
    function_table.register_late()
    spawned, connection, address = spawn.start_private(settings)
    try:
        slot, link, known = membership.enter(connection, 0.0)
    except BaseException:
        spawned.end(0.0)
        raise
    link.arena.made_larger_by = OWN_ARENA
    function_table.resolve_by(known.row_of, None, obstacle=carry.obstacle)
    has_room = parsers.parse_slots(settings["slots"], "slots") > 0
    runtime.start(
        Runtime(slot, link, link.arena, dict(known.pools), endpoint=address if has_room else "")
    )
    session = Session(None, backend)
    session.spawned = spawned
    session.grace = config.resolve("grace", settings["grace"])
    if has_room:
        session.restore_environment = _export(address)
    return session


def _export(address: str) -> Callable[[], None]:
    """Let the programs that this one starts find the endpoint; undone by calling the result."""
    before = os.environ.get("SHMGPU_SOCKET")
    os.environ["SHMGPU_SOCKET"] = address

    def restore() -> None:
        if os.environ.get("SHMGPU_SOCKET") != address:
            return
        if before is None:
            del os.environ["SHMGPU_SOCKET"]
        else:
            os.environ["SHMGPU_SOCKET"] = before

    return restore


def _start_inline(plan: LaunchConfig) -> None:
    setup = plan.setups[0]
    arena = LocalArena(plan.arena)
    arena.made_larger_by = OWN_ARENA
    context = Helper(0, setup.device, setup.pool, 1)
    where = device.make(setup.device, setup.gpu_memory, [(arena.base, arena.capacity)])
    if setup.session is not None:
        try:
            context.session = setup.session(context)
        except Exception as error:
            raise SessionError(
                f"the session function raised {type(error).__name__}: {error}",
                0,
                traceback.format_exc(),
            ) from error
    function_table.find_bodies()
    executor = BatchExecutor(
        context,
        function_table.by_row,
        core.window_on(arena.base, arena.capacity),
        arena.base,
        lambda slot: (arena.base, arena.end),
        where,
        plan.parked,
        watches=config.resolve("debug"),
    )
    port = Port(InlineTransport(executor), arena, plan.pools)
    runtime.start(Runtime(0, port, arena, plan.pools, inline=True))


@runtime.one_at_a_time
def shutdown() -> None:
    """Leave the broker that :func:`init` started: helpers end, futures in flight fail.

    Arrays of the arena stay readable. Later calls raise NotRunning; they never join or start a
    broker by themselves, because it would lack this one's settings. :func:`ensure` or another
    :func:`init` starts again. Does nothing if no broker was started.
    """
    global _session
    current, session = _session, runtime.current
    if current is None:
        return
    _session = None
    atexit.unregister(shutdown)
    if current.pid != os.getpid():
        return
    runtime.end()
    config.given.clear()
    current.restore_environment()
    if session is not None:
        session.close(NotRunning(runtime.SHUT_DOWN))
    runtime.shut_down()
    if current._host is not None:
        status = core.leave()
        current._host.close()
        if status < 0 and status != core.ENOT_RUNNING:
            raise core.error_of(status, "the broker did not end in order")
    if current.spawned is not None:
        function_table.resolve_by(None, [])
        core.leave()
        current.spawned.end(4 * current.grace)


def is_running() -> bool:
    """Whether this process is a child that can call functions; false if its broker is gone."""
    return runtime.current is not None and not runtime.current.port.is_lost()


def rank() -> int:
    """This child's number, from 0."""
    return runtime.require().rank
