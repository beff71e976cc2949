"""Starting and ending a broker: ``launch``, ``init``, ``shutdown``.

Owns what Python lends the C supervisor (forking, running a role, hearing of events, ending a
process) and everything that is checked before the first fork. In ``launch`` the calling process
becomes the parent, which runs nothing of the user's; in ``init`` it becomes child 0 of a parent
forked from it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import hashlib
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shmgpu import config, core, device, functions, helper, log, runtime, trace
from shmgpu.desk import Desk, Helper
from shmgpu.errors import (
    ChildError,
    ConfigError,
    LaunchError,
    NotRunning,
    SessionError,
)
from shmgpu.helper import Setup
from shmgpu.inline import InlineWire
from shmgpu.log import logger
from shmgpu.memory import LocalArena, SharedArena
from shmgpu.port import BrokerWire, Port
from shmgpu.progress import Bar
from shmgpu.reports import Report, Reports
from shmgpu.runtime import Runtime
from shmgpu.stats import stats

SIGNAL_BASE = 128


# ---- what was asked for ----------------------------------------------------------------------


class Plan:
    """Everything about a broker that is decided before the first fork."""

    def __init__(
        self,
        *,
        children: int,
        helpers: Any,
        session: Any,
        devices: Any,
        arena: Any,
        window: Any,
        threads: Any,
        gpu_memory: Any,
        trace_records: Any,
        prefault: Any,
        huge_pages: Any,
        grace: Any,
        scratch: Any,
        seed: Any,
    ) -> None:
        config.warn_unknown()
        log.configure()
        self.children = children
        counts = _pools(helpers)
        self.pools = {name: index for index, name in enumerate(counts)}
        self.helper_pool = [self.pools[name] for name in counts for _ in range(counts[name])]
        self.helpers = len(self.helper_pool)
        if self.helpers > core.MAX_HELPERS:
            raise ConfigError(
                f"helpers asks for {self.helpers} processes: use {core.MAX_HELPERS} or fewer"
            )
        self.arena = config.resolve("arena", arena)
        if self.arena < 1:
            raise ConfigError("arena=0 leaves children no memory: use 64MiB or so")
        self.window = config.resolve("window", window)
        self.trace_records = config.resolve("trace_records", trace_records)
        self.prefault = config.resolve("prefault", prefault)
        self.huge_pages = config.resolve("huge_pages", huge_pages)
        self.grace = config.resolve("grace", grace)
        self.scratch = config.resolve("scratch", scratch)
        self.parked = config.resolve("parked")
        seed = config.resolve("seed", seed)
        self.seed = int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else seed
        device.prepare_environment()
        if any(f.arrays_kind == "torch" for f in functions.by_row.values()):
            _import_torch()
        self.setups: list[Setup] = []
        threads = config.resolve("threads", threads)
        gpu_memory = config.resolve("gpu_memory", gpu_memory)
        names: list[str] = []
        for name, count in counts.items():
            names += device.choose(_of_pool(devices, name, counts, "devices"), count)
        on_cpu = sum(name == "cpu" for name in names)
        share = threads or max(1, device.cores() // max(on_cpu, 1))
        if share > 1 and on_cpu and device.openmp_pool_is_used():
            logger.warning(
                "an OpenMP pool was used in this process before the launch, and a forked "
                "process cannot use it: CPU helpers compute with one thread (launch before the "
                "first large CPU operation to give them %d)",
                share,
            )
            share = 1
        for number, place in enumerate(names):
            pool = list(counts)[self.helper_pool[number]]
            made = _of_pool(session, pool, counts, "session")
            if made is not None and not callable(made):
                raise ConfigError(
                    f"session={made!r} must be a function of one argument, the helper"
                )
            self.setups.append(
                Setup(
                    made,
                    place,
                    pool,
                    share if place == "cpu" else 0,
                    gpu_memory,
                    self.parked,
                    children,
                )
            )
        # A GPU helper holds two messages, so that copy and compute can overlap.
        self.min_credit = [1] * len(counts)
        for number, place in enumerate(names):
            if place != "cpu":
                self.min_credit[self.helper_pool[number]] = 2

    def settings(self) -> dict[str, int]:
        """For :func:`core.run`."""
        return {
            "child_count": self.children,
            "helper_count": self.helpers,
            "pool_count": len(self.pools),
            "arena_bytes": self.arena,
            "scratch_bytes": self.scratch,
            "window": self.window,
            "trace_records": self.trace_records,
            "prefault": int(self.prefault),
            "huge_pages": int(self.huge_pages),
            "grace_ns": int(self.grace * 1e9),
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
            str(name): config.SETTINGS["helpers"].parse(count, f"helpers[{name!r}]")
            for name, count in helpers.items()
        }
    return {"default": config.resolve("helpers", helpers)}


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


def _refuse_unsafe(what: str) -> None:
    """Raise LaunchError where a broker cannot be started."""
    role = core.role()
    if role in (core.ROLE_CHILD, core.ROLE_HELPER, core.ROLE_PARENT) or runtime.current:
        where = {core.ROLE_HELPER: "a helper", core.ROLE_CHILD: "a child"}.get(
            role, "a process that has one"
        )
        raise LaunchError(
            f"{what} cannot start a broker inside {where}: start one broker, from the main "
            "program, and call shutdown() before starting another"
        )
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError(
            f"{what} must be called from the main thread, because it forks: call it there"
        )
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if others:
        raise LaunchError(
            f"{what} forks, and forking while Python threads run can hang what is forked: end "
            f"these threads first, or start them afterwards: {', '.join(sorted(others))}"
        )
    device.refuse_initialised_cuda()


# ---- what Python lends the supervisor -------------------------------------------------------


class RoleHost(core.Host):
    """Forks roles and runs them."""

    def __init__(
        self,
        plan: Plan,
        mains: Sequence[Callable[..., Any]],
        args: tuple[Any, ...],
        progress: bool | None,
        trace_path: Any,
    ) -> None:
        self.plan = plan
        self.mains = mains
        self.args = args
        self.trace_path = trace_path
        self.helper_reports = Reports("helper", plan.helpers)
        self.child_reports = Reports("child", len(mains))
        self.failures: list[tuple[int, int]] = []  # (child, exit status), as they came
        self.helper_failed = -1
        self.error: BaseException | None = None
        self.final_stats: dict[str, Any] | None = None
        self._frozen = False
        self._progress = progress
        self._bar: Bar | None = None

    # -- forking --

    def fork(self) -> int:
        """As ``os.fork``, with the interpreter made ready for it."""
        if not self._frozen:
            # Imported at first use by NumPy 2: once here, not in each role (4 MiB of pages and
            # 10 ms a child).
            importlib.import_module("numpy.random")
            # A collection in each forked process would write to every page it inherited.
            gc.collect()
            gc.freeze()
            self._frozen = True
        flush()
        with warnings.catch_warnings():
            # CPython warns of native threads, such as those of a linear algebra library, which
            # know how to be forked; Python's own were refused before.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()

    def thaw(self) -> None:
        """After all forks, in the process that forked."""
        if self._frozen:
            gc.unfreeze()
            self._frozen = False

    def exit(self, status: int) -> None:
        """End a role: what it printed is written, nothing of the parent's runs."""
        flush()
        os._exit(status & 0xFF)

    def failed(self, error: BaseException) -> None:
        """A callback raised: the launch ends with that."""
        if self.error is None:
            self.error = error

    def on_signal(self) -> int:
        """Let Python run its handlers."""
        # Python has run its handlers by the time this returns; one that raises ends in failed().
        return 0

    # -- roles --

    def run_helper(self, helper_number: int, generation: int) -> int:
        """In a helper: its whole life."""
        plan = self.plan
        setup = plan.setups[helper_number]
        log.set_role(f"helper {helper_number}")
        self.child_reports.close()
        self.helper_reports.keep_only(helper_number)
        runtime.stop(NotRunning(runtime.IN_HELPER))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        seed_all(plan.seed, f"helper {helper_number}")

        def report(message: str, traceback_text: str) -> None:
            self.helper_reports.write(helper_number, Report("error", None, message, traceback_text))

        return helper.run(helper_number, generation, setup, report)

    def run_child(self, child: int, generation: int) -> int:
        """In a child: its whole life."""
        plan = self.plan
        log.set_role(f"child {child}")
        self.helper_reports.close()
        self.child_reports.keep_only(child)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end_by_signal)
        device.hide_from_children()
        device.set_threads(1)
        seed_all(plan.seed, f"child {child}")
        port = Port(BrokerWire(), SharedArena(child), plan.pools)
        runtime.start(Runtime(child, port, port.arena, plan.pools))
        status = 0
        try:
            result = self.mains[child](child, *self.args)
            _join_threads()
            if not self.child_reports.write(child, Report("result", result)):
                status = 1
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if status == 0:
                self.child_reports.write(child, Report("result", None))
            elif status != SIGNAL_BASE + signal.SIGTERM:
                self._report_error(child, error)
        except BaseException as error:
            status = 1
            self._report_error(child, error)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return status

    def _report_error(self, child: int, error: BaseException) -> None:
        frames = error.__traceback__
        if frames is not None and frames.tb_next is not None:
            frames = frames.tb_next  # without this file's own
        text = "".join(traceback.format_exception(type(error), error, frames))
        message = f"{type(error).__name__}: {error}"
        self.child_reports.write(child, Report("error", None, message, text))

    # -- events --

    def on_event(self, event: dict[str, int]) -> None:
        """Log, draw, remember."""
        kind = core.EVENT_NAMES.get(event["kind"], "")
        index = event["index"]
        if kind == "helper_started" and event["generation"] == 1 and self._bar is None:
            self._bar = Bar(
                self.plan.helpers, "helpers loading", "helpers", self._progress, delay=1.0
            )
        elif kind == "helper_ready":
            if self._bar is not None:
                self._bar.update()
            logger.info("helper %d is ready (process %d)", index, event["pid"])
        elif kind == "ready":
            self._end_bar()
        elif kind == "helper_failed":
            self.helper_failed = index
            report = self.helper_reports.read(index)
            why = report.message if report else "no reason was left"
            logger.error("helper %d could not make its session: %s", index, why)
        elif kind == "helper_died":
            name = core.function_name(event["function"]) if event["function"] else ""
            logger.error(
                "helper %d ended (%s)%s; death %d of this helper; it is replaced",
                index,
                describe_exit(event["exit_status"]),
                f" while it ran {name}" if name else "",
                event["deaths"],
            )
        elif kind == "helper_hung":
            logger.error("helper %d hangs: it is ended and replaced", index)
        elif kind == "child_ended":
            if event["exit_status"] != 0:
                self.failures.append((index, event["exit_status"]))
        elif kind == "child_protocol":
            logger.error("child %d broke the protocol: it is ended", index)
        elif kind == "draining":
            self._end_bar()
            logger.info("the broker drains")
        elif kind == "over":
            self._over()

    def _over(self) -> None:
        self._end_bar()
        self.final_stats = stats()
        if self.trace_path is not None:
            count = trace.write(self.trace_path)
            logger.info("%d calls were traced to %s", count, self.trace_path)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Give back what the host holds."""
        self._end_bar()
        self.thaw()
        self.helper_reports.close()
        self.child_reports.close()


def flush() -> None:
    """Write out what stdio holds, so that no forked process writes it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def seed_all(seed: int, role: str) -> None:
    """Seed random, numpy.random and torch for a role; different in each, repeatable."""
    digest = hashlib.blake2b(f"{seed}/{role}".encode(), digest_size=8).digest()
    mine = int.from_bytes(digest, "little") >> 1
    random.seed(mine)
    np.random.seed(mine & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that looks for every kind of accelerator (2 MiB of pages a
        # child). A CUDA helper passes this seed on to its device.
        torch.default_generator.manual_seed(mine)


def describe_exit(status: int) -> str:
    """``exit status 3``, or ``killed by SIGKILL``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _end_by_signal(number: int, frame: Any) -> None:
    """SIGTERM in a child: unwind, so that its finally blocks run."""
    raise SystemExit(SIGNAL_BASE + number)


def _join_threads() -> None:
    """As the interpreter does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


# ---- launch --------------------------------------------------------------------------------


def launch(
    main: Callable[..., Any] | Sequence[Callable[..., Any]],
    *,
    children: int | None = None,
    helpers: int | Mapping[str, int] | None = None,
    session: Any = None,
    devices: Any = None,
    arena: int | str | None = None,
    args: Sequence[Any] = (),
    seed: int | None = None,
    window: int | None = None,
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
) -> list[Any]:
    """Fork helpers and children, run ``main`` in every child, return what they returned.

    The calling process becomes the parent until the last child has ended.

    Args:
        main: called as ``main(rank, *args)`` in each child; or a list, one for each child.
        children: how many; as many as ``main`` lists, unless given.
        helpers: how many; or ``{"name": count}`` for several pools.
        session: ``session(helper)`` runs once in each helper; what it returns is
            ``helper.session``. May be a dictionary by pool.
        devices: ``"cpu"``, ``"cuda:0"``, or a list that helpers take turns with; the machine's
            GPUs unless given, else the CPU. May be a dictionary by pool.
        arena: bytes of each child's arena, as a number or ``"64MiB"``.
        args: more arguments of ``main``.
        seed: from which random, numpy and torch are seeded in each role.
        window: messages that a child may have outstanding, 1 to 896.
        threads: compute threads of each CPU helper; cores / helpers unless given.
        gpu_memory: cap on the device memory of each helper.
        prefault: populate all arenas now rather than at first touch.
        huge_pages: ask for transparent huge pages.
        grace: seconds that an orderly end may take before TERM, and TERM before KILL.
        scratch: bytes of each helper's scratch region.
        trace_records: calls that the trace remembers; 0 switches it off.
        trace_path: where to write the trace at the end, for Perfetto.
        stats_into: a dictionary that gets the final :func:`stats`.
        progress: draw a bar while helpers load; None means on a terminal only.

    Returns:
        What each child's main returned, in order of rank.

    Raises:
        ChildError: a child's main raised, was killed, or returned what cannot be returned.
        SessionError: a session function raised.
        ConfigError, LaunchError: what was asked for cannot be had.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came.
    """
    _refuse_unsafe("launch()")
    mains = _mains(main, children)
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ConfigError(f"args={args!r} must be a tuple: write args=(x,) for one argument")
    plan = Plan(
        children=len(mains),
        helpers=helpers,
        session=session,
        devices=devices,
        arena=arena,
        window=window,
        threads=threads,
        gpu_memory=gpu_memory,
        trace_records=trace_records,
        prefault=prefault,
        huge_pages=huge_pages,
        grace=grace,
        scratch=scratch,
        seed=seed,
    )
    host = RoleHost(plan, mains, tuple(args), progress, trace_path)
    before = log.role()
    log.set_role("parent")
    try:
        status = core.run(
            host, helper_pool=plan.helper_pool, min_credit=plan.min_credit, **plan.settings()
        )
        if stats_into is not None and host.final_stats is not None:
            stats_into.update(host.final_stats)
        _raise_outcome(host, status)
        return [_result(host, child) for child in range(plan.children)]
    finally:
        log.set_role(before)
        host.close()


def _mains(main: Any, children: int | None) -> list[Callable[..., Any]]:
    if isinstance(main, Sequence) and not isinstance(main, (str, bytes)):
        mains = list(main)
        if children is not None and config.resolve("children", children) != len(mains):
            raise ConfigError(
                f"main lists {len(mains)} functions and children={children}: leave children away"
            )
        config.SETTINGS["children"].parse(len(mains), "children")
    else:
        mains = [main] * config.resolve("children", children)
    for item in mains:
        if not callable(item):
            raise ConfigError(f"main must be a function of the rank, not {item!r}")
        if isinstance(item, functions.Function):
            raise ConfigError(
                f"main is {item!r}, which runs in helpers: pass the function that calls it"
            )
    return mains


def _raise_outcome(host: RoleHost, status: int) -> None:
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
    return ChildError(f"child {child} failed: {describe_exit(exit_status)}", child, exit_status)


def _session_error(host: RoleHost) -> SessionError:
    numbers = [host.helper_failed] if host.helper_failed >= 0 else []
    for number in (*numbers, *range(host.plan.helpers)):
        report = host.helper_reports.read(number)
        if report is not None:
            return SessionError(
                f"helper {number} could not make its session: {report.message}\n\n"
                f"In the helper:\n{report.traceback_text.rstrip()}",
                number,
                report.traceback_text,
            )
    detail = core.error_detail() or "no reason was left"
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

    def __init__(self, host: RoleHost | None, backend: str) -> None:
        self._host = host
        self.backend = backend
        self.pid = os.getpid()

    def shutdown(self) -> None:
        """As :func:`shutdown`."""
        shutdown()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        shutdown()


_session: Session | None = None


def init(
    helpers: int | Mapping[str, int] | None = None,
    session: Any = None,
    devices: Any = None,
    backend: str = "torch",
    arena: int | str | None = None,
    inline: bool = False,
    *,
    seed: int | None = None,
    window: int | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
    prefault: bool | None = None,
    huge_pages: bool | None = None,
    grace: float | None = None,
    scratch: int | str | None = None,
    trace_records: int | None = None,
    trace_path: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Session:
    """Start helpers and make the calling process their child, until :func:`shutdown`.

    Args:
        helpers: as for :func:`launch`, and so are session, devices and arena.
        session: see there.
        devices: see there.
        backend: engine of the tensor calls, ``"torch"`` or ``"numpy"``.
        arena: see there.
        inline: start no process: functions run in this one, for debuggers and unit tests.
        seed: see :func:`launch` for this and all that follow.
        window: see there.
        threads: see there.
        gpu_memory: see there.
        prefault: see there.
        huge_pages: see there.
        grace: see there.
        scratch: see there.
        trace_records: see there.
        trace_path: see there.
        progress: see there.

    Returns:
        A context manager that calls :func:`shutdown`.

    Raises:
        SessionError: a session function raised.
        ConfigError, LaunchError: what was asked for cannot be had.
    """
    global _session
    if backend not in ("torch", "numpy"):
        raise ConfigError(f'backend={backend!r} must be "torch" or "numpy"')
    if inline:
        if runtime.current is not None or core.role() != core.ROLE_NONE:
            raise LaunchError("a broker is running in this process already: call shutdown() first")
    else:
        _refuse_unsafe("init()")
    plan = Plan(
        children=1,
        helpers=helpers,
        session=session,
        devices=devices,
        arena=arena,
        window=window,
        threads=threads,
        gpu_memory=gpu_memory,
        trace_records=trace_records,
        prefault=prefault,
        huge_pages=huge_pages,
        grace=grace,
        scratch=scratch,
        seed=seed,
    )
    if inline:
        _start_inline(plan)
        _session = Session(None, backend)
    else:
        host = RoleHost(plan, [lambda rank: None], (), progress, trace_path)
        try:
            status = core.run(
                host,
                helper_pool=plan.helper_pool,
                min_credit=plan.min_credit,
                caller_is_child=1,
                **plan.settings(),
            )
            host.thaw()
            _raise_outcome(host, status)
        except BaseException:
            core.forget_host()
            host.close()
            raise
        host.child_reports.close()
        port = Port(BrokerWire(), SharedArena(0), plan.pools)
        runtime.start(Runtime(0, port, port.arena, plan.pools))
        _session = Session(host, backend)
    atexit.register(shutdown)
    return _session


def _start_inline(plan: Plan) -> None:
    setup = plan.setups[0]
    arena = LocalArena(plan.arena)
    context = Helper(0, setup.device, setup.pool, 1)
    place = device.make(setup.device, setup.gpu_memory, [(arena.base, arena.capacity)])
    if setup.session is not None:
        try:
            context.session = setup.session(context)
        except Exception as error:
            raise SessionError(
                f"the session function raised {type(error).__name__}: {error}",
                0,
                traceback.format_exc(),
            ) from error
    desk = Desk(
        context,
        functions.by_row,
        core.window_on(arena.base, arena.capacity),
        arena.base,
        lambda slot: (arena.base, arena.end),
        place,
        plan.parked,
    )
    port = Port(InlineWire(desk), arena, plan.pools)
    runtime.start(Runtime(0, port, arena, plan.pools, inline=True))


def shutdown() -> None:
    """Leave the broker that :func:`init` started: helpers end, futures that are out fail.

    Arrays of the arena stay readable. Does nothing when no broker was started.
    """
    global _session
    current, session = _session, runtime.current
    if current is None:
        return
    _session = None
    atexit.unregister(shutdown)
    if current.pid != os.getpid():
        return
    if session is not None:
        session.port.close(NotRunning(runtime.SHUT_DOWN))
        session.port.join()
        session.port.forget()
    runtime.shut_down()
    if current._host is not None:
        status = core.leave()
        current._host.close()
        if status < 0 and status != core.ENOT_RUNNING:
            raise core.error_of(status, "the broker did not end in order")


def is_running() -> bool:
    """Whether this process is a child that can call functions."""
    return runtime.current is not None


def rank() -> int:
    """This child's number, from 0."""
    return runtime.require().rank
