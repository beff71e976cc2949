"""What Python does for the C supervisor: fork, run a role, receive events, end.

Owns the life of a forked role under Python, from ``os.fork`` to ``os._exit``, and the parent's
record of how roles ended. :mod:`shmgpu.broker.events` words events for the log. Never decides who
is replaced, signalled or given up: the supervisor does (csrc/broker/supervise.h).
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from shmgpu import core
from shmgpu.attach import manifest
from shmgpu.attach.endpoint import Endpoint, PrivateEndpoint
from shmgpu.broker import events
from shmgpu.broker.exit_reports import ExitReport, Reports, Stacks
from shmgpu.broker.launch_config import LaunchConfig
from shmgpu.child import runtime
from shmgpu.child.memory import SharedArena
from shmgpu.child.port import Port
from shmgpu.child.runtime import Runtime
from shmgpu.child.transport import BrokerTransport
from shmgpu.common import devices, logs, termination, wait_policy
from shmgpu.common.blas import BlasThreads
from shmgpu.common.logs import logger
from shmgpu.common.progress import ProgressBar, tell_terminal
from shmgpu.common.seeding import seed_all
from shmgpu.errors import NotRunning, RemoteError
from shmgpu.helper import process as helper
from shmgpu.watch import trace
from shmgpu.watch.stats import stats

FROZEN_FROM_THE_START = gc.get_freeze_count()  # some Pythons begin with a few hundred objects


class RoleHost(core.Host):
    """Forks roles and runs them."""

    def __init__(
        self,
        plan: LaunchConfig,
        mains: Sequence[Callable[..., Any]],
        args: tuple[Any, ...],
        progress: bool | None,
        trace_path: Any,
    ) -> None:
        self.plan = plan
        self.mains = mains
        self.args = args
        self.trace_path = trace_path
        with ExitStack() as made:  # all of them, or none is left open
            self.helper_reports = made.enter_context(closing(Reports("helper", plan.helpers)))
            self.child_reports = made.enter_context(closing(Reports("child", len(mains))))
            self.helper_stacks = made.enter_context(closing(Stacks("helper", plan.helpers)))
            self.child_stacks = made.enter_context(closing(Stacks("child", len(mains))))
            made.pop_all()
        self.failures: list[tuple[int, int]] = []  # (child, exit status), as they came
        self.helper_failed = -1
        self.error: BaseException | None = None
        self.endpoint: Endpoint | PrivateEndpoint | None = None  # where others may join
        self.manifest_fd = -1  # what they are told of this broker
        # Helpers that have a GPU each make communicators through it. It has no name, so nothing is
        # left behind.
        self.meeting_fd = os.memfd_create("shmgpu-meetings") if plan.has_gpus_apart else -1
        self.on_ready: Callable[[], None] | None = None
        self.on_draining: Callable[[], None] | None = None
        self.lent: list[int] = []  # descriptors of the parent's until it is ready
        self.final_stats: dict[str, Any] | None = None
        self.last_words: dict[int, str] = {}  # stacks that fatal signals left, by child
        self._causes = events.Causes()
        self._is_prepared = False  # the interpreter, for forking
        self._froze = False
        self._is_ready = False
        self._blas: BlasThreads
        self._progress = progress
        self._bar: ProgressBar | None = None

    # -- forking --

    def fork(self) -> int:
        """As ``os.fork``, with the interpreter made ready for it."""
        if not self._is_prepared:
            # Imported at first use by NumPy 2: once here, not in each role (4 MiB of pages and
            # 10 ms a child).
            importlib.import_module("numpy.random")
            self._blas = BlasThreads()
            self._blas.set(1)
            # A collection in each forked process would write to every page it inherited.
            gc.collect()
            # What the program has frozen itself stays so: thawing could not tell its objects from
            # ours.
            self._froze = not program_has_frozen()
            if self._froze:
                gc.freeze()
            self._is_prepared = True
        flush()
        with warnings.catch_warnings():
            # CPython warns of native threads, such as those of a linear algebra library, which
            # know how to be forked; Python's own were refused before.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()

    def thaw(self) -> None:
        """After all forks, in the process that forked."""
        if self._is_prepared:
            if self._froze:
                gc.unfreeze()
            self._is_prepared = False
            self._blas.restore()

    def is_done(self, child: int) -> bool:
        """A child owes its result, or why there is none; os._exit(0) leaves neither."""
        return self.child_reports.has_one(child)

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
        logs.set_role(f"helper {helper_number}")
        for descriptor in self.lent:
            os.close(descriptor)
        self.child_reports.close()
        self.child_stacks.close()
        self.close_endpoint()
        self.helper_reports.keep_only(helper_number)
        self.helper_stacks.keep_only(helper_number)
        faulthandler.enable(self.helper_stacks.descriptor(helper_number))
        runtime.stop(NotRunning(runtime.IN_HELPER))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.endpoint is not None:
            signal.signal(
                signal.SIGHUP, signal.SIG_IGN
            )  # the broker handles it: it reads its files again
        seed_all(plan.seed, f"helper {helper_number}")
        if not wait_policy.calm() and setup.threads > 1 and not plan.threads_given:
            logger.info("compute threads would spin while they wait: this helper has one")
            setup.threads = 1
            setup.share = None
        if setup.share is not None:
            setup.share.blas = self._blas
            setup.threads = setup.share.threads = setup.share.wanted()
        setup.meeting_fd = self.meeting_fd
        if setup.threads:
            self._blas.set(setup.threads)
        else:
            self._blas.restore()

        def report(message: str, traceback_text: str) -> None:
            self.helper_reports.write(
                helper_number, ExitReport("error", None, message, traceback_text)
            )

        return helper.run(helper_number, generation, setup, report)

    def run_child(self, child: int, generation: int) -> int:
        """In a child: its whole life."""
        plan = self.plan
        logs.set_role(f"child {child}")
        self.helper_reports.close()
        self.helper_stacks.close()
        self.close_endpoint()
        self.close_meetings()
        self.child_reports.keep_only(child)
        self.child_stacks.keep_only(child)
        faulthandler.enable(self.child_stacks.descriptor(child))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        devices.hide_from_children()
        devices.set_threads(1)
        seed_all(plan.seed, f"child {child}")
        port = Port(BrokerTransport(), SharedArena(child), plan.pools)
        address = self.private_address
        if address:
            os.environ["SHMGPU_SOCKET"] = address
        runtime.start(Runtime(child, port, port.arena, plan.pools, endpoint=address))
        status = 0
        try:
            termination.unwind()  # until here it ends the process
            result = self.mains[child](child, *self.args)
            _join_threads()
            if not self.child_reports.write(child, ExitReport("result", result)):
                status = 1
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if status == 0:
                self.child_reports.write(child, ExitReport("result", None))
            elif status != termination.STATUS:
                self._report_error(child, error)
        except BaseException as error:
            status = 1
            self._report_error(child, error)
        runtime.end()
        termination.end_at_once()
        return status

    def _report_error(self, child: int, error: BaseException) -> None:
        frames = error.__traceback__
        if frames is not None and frames.tb_next is not None:
            frames = frames.tb_next  # without this file's own
        text = "".join(traceback.format_exception(type(error), error, frames))
        try:  # the traceback below ends with all of it, the helper's own traceback too
            said = error.sentence if isinstance(error, RemoteError) else str(error)
        except Exception:
            said = "(its text could not be made)"
        message = f"{type(error).__name__}: {said}"
        self.child_reports.write(child, ExitReport("error", None, message, text))

    def open_private_endpoint(self) -> dict[str, Any]:
        """For :func:`core.run`: what lets processes that children fork join; maybe nothing."""
        if self.plan.slots == self.plan.children:
            return {}
        self.endpoint = PrivateEndpoint()
        self.manifest_fd = manifest.of_this_process(self.plan.pools).write()
        return {"listener_fd": self.endpoint.fileno(), "manifest_fd": self.manifest_fd}

    @property
    def private_address(self) -> str:
        """Where processes that children fork may join; empty: nowhere."""
        return self.endpoint.address if isinstance(self.endpoint, PrivateEndpoint) else ""

    def close_meetings(self) -> None:
        """Let go of the file by which helpers make communicators; its copies stay theirs."""
        if self.meeting_fd >= 0:
            os.close(self.meeting_fd)
            self.meeting_fd = -1

    def close_endpoint(self) -> None:
        """Close the endpoint, and what is handed out there."""
        if self.endpoint is not None:
            self.endpoint.release()
        if self.manifest_fd >= 0:
            os.close(self.manifest_fd)
            self.manifest_fd = -1

    # -- events --

    def on_event(self, event: dict[str, int]) -> None:
        """Log, draw, remember."""
        kind = core.EVENT_NAMES.get(event["kind"], "")
        remember = getattr(self, f"_on_{kind}", None)
        details = (remember(event) if remember is not None else None) or {}
        writer = events.WRITERS.get(kind)
        if writer is not None:
            writer(event, **details)

    def _on_helper_started(self, event: dict[str, int]) -> None:
        if event["generation"] == 1 and self._bar is None and not self._is_ready:
            self._bar = ProgressBar(
                self.plan.helpers_started, "helpers loading", "helpers", self._progress, delay=1.0
            )

    def _on_helper_ready(self, event: dict[str, int]) -> None:
        if self._bar is not None:
            self._bar.update()

    def _on_ready(self, event: dict[str, int]) -> None:
        self._is_ready = True
        self.lent.clear()
        self._end_bar()
        if self.on_ready is not None:
            self.on_ready()

    def _on_draining(self, event: dict[str, int]) -> None:
        self._end_bar()
        if event["exit_status"] == core.ESIGNALLED and core.stop_signal() == signal.SIGINT:
            tell_terminal(
                "shmgpu: ending as soon as helpers have finished the calls that they hold, or "
                f"after {self.plan.grace:g} s of grace; Ctrl-C again ends them at once"
            )
        if self.on_draining is not None:
            self.on_draining()

    def _on_idle(self, event: dict[str, int]) -> None:
        self._on_draining(event)

    def _on_helper_failed(self, event: dict[str, int]) -> dict[str, str]:
        self.helper_failed = event["index"]
        report = self.helper_reports.read(event["index"])
        return {"cause": report.message if report else "no reason was left"}

    def _on_helper_unloaded(self, event: dict[str, int]) -> None:
        self.plan.setups[event["index"]].is_lazy = True

    def _on_helper_died(self, event: dict[str, int]) -> dict[str, str]:
        return {
            "cause": self._causes.of(event),
            "stack": self.helper_stacks.take(event["index"]),
        }

    def _on_child_ended(self, event: dict[str, int]) -> dict[str, Any]:
        index = event["index"]
        if event["is_final"] and event["is_failure"]:
            self.failures.append((index, event["exit_status"]))
        cause = self._causes.of(event)
        stack = self.child_stacks.take(index)
        report = self.child_reports.read(index) if event["exit_status"] > 0 else None
        if report is not None and report.kind != "result":
            cause = f"{report.message} ({cause})"
        if event["is_final"]:  # the traceback of an exception is told with the ChildError
            self.last_words[index] = stack
        else:
            self.child_reports.forget(index)
            stack = stack or (report.traceback_text.rstrip() if report is not None else "")
        return {
            "cause": cause,
            "stack": stack,
            "is_told": report is not None,
            "restarts_left": self.plan.max_restarts - event["attempts"] - 1,
        }

    def _on_scaled(self, event: dict[str, int]) -> dict[str, str]:
        names = dict(enumerate(self.plan.pools))
        return {"pool": names.get(event["index"], str(event["index"]))}

    _on_scale_refused = _on_paused = _on_resumed = _on_scaled

    def _on_over(self, event: dict[str, int]) -> None:
        self._over()

    def _over(self) -> None:
        self._end_bar()
        self.final_stats = stats()
        if self.trace_path is not None:
            try:
                count = trace.write(self.trace_path)
            except OSError as error:  # no reason to lose what children returned
                logger.warning("the trace could not be written: %s", error)
            else:
                logger.info("%d calls were traced to %s", count, self.trace_path)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Give back what the host holds."""
        self._end_bar()
        self.thaw()
        self.close_endpoint()
        self.helper_reports.close()
        self.child_reports.close()
        self.helper_stacks.close()
        self.child_stacks.close()
        self.close_meetings()


_has_frozen = False


def program_has_frozen() -> bool:
    """Whether the program has ever told the collector to look past its objects.

    Once it has is enough: to count them takes 30 ms for a million.
    """
    global _has_frozen
    _has_frozen = _has_frozen or gc.get_freeze_count() > FROZEN_FROM_THE_START
    return _has_frozen


def flush() -> None:
    """Write out what stdio holds, so that no forked process writes it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def _join_threads() -> None:
    """As the interpreter does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
