"""Who is struck when, with what: the plan that a seed makes, and the process that carries it out.

The killer is forked before the launch and is none of the broker's roles. It finds its victims in
the ledger, signals them through pidfds, lets nobody stay stopped, and says when all is calm. It is
also the one who notices that a storm does not end.
"""

from __future__ import annotations

import heapq
import os
import pathlib
import random
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shmgpu.common.progress import ProgressBar

from .storm_ledger import Ledger

LIMIT_S = 45.0  # after the last blow: by then the storm must be over
TOGETHER = 0.4  # share of the blows
LET_GO_S = 20.0  # for one that was struck to be gone

# What may strike whom, and how often. SIGSTOP is followed by SIGCONT. (SIGTERM is not among them: a
# helper takes it from its parent alone.)
BLOWS = {signal.SIGKILL: 4, signal.SIGSEGV: 1, signal.SIGABRT: 1, signal.SIGSTOP: 3}
ACTIONS = {"helper": BLOWS, "child": BLOWS}


@dataclass(frozen=True)
class Blow:
    """After ``delay`` seconds, that signal for that role; for SIGSTOP, ``pause`` until SIGCONT."""

    delay: float
    role: str
    index: int
    signal: signal.Signals
    pause: float


def plan(seed: int, children: int, helpers: int, rate: float, spared: int = 0) -> Iterator[Blow]:
    """Blows without end, ``rate`` a second; the same for the same arguments.

    Some come in the same instant as the one before: a child and the helper that serves it, say.
    The first ``spared`` helpers get none.
    """
    choose = random.Random(f"{seed}/killer")
    while True:
        together = choose.random() < TOGETHER
        role = choose.choice(("helper", "child"))
        actions = ACTIONS[role]
        yield Blow(
            0.0 if together else choose.expovariate(rate * (1 - TOGETHER)),
            role,
            choose.randrange(spared, helpers) if role == "helper" else choose.randrange(children),
            choose.choices(list(actions), list(actions.values()))[0],
            choose.choice((0.001, 0.02, 0.2, 0.6)),
        )


def parent_of(pid: int) -> int:
    """0: it has ended, and its number may be another's since."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


def state_of(pid: int) -> str:
    """Where the kernel sees it: running or asleep, in which system call, with whom below it."""
    found = []
    for name in ("wchan", "syscall", f"task/{pid}/children"):
        try:
            found.append(f"{name} {pathlib.Path(f'/proc/{pid}/{name}').read_text().strip()}")
        except OSError:
            continue
    return ", ".join(found)


class Killer:
    """Carries a plan out, in a process of its own."""

    def __init__(self, name: str, ledger: Ledger, blows: Iterator[Blow], until_ns: int) -> None:
        self._name = name
        self._ledger = ledger
        self._blows = blows
        self._until_ns = until_ns
        self._stopped: list[tuple[float, int]] = []  # (when to go on, pidfd)
        self._struck: list[int] = []  # pidfds

    def start(self) -> int:
        """Fork it: its pid."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            self._run(parent)
            status = 0
        finally:
            os._exit(status)

    def _run(self, parent: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends, and so do we
        started = time.monotonic()
        with ProgressBar(int((self._until_ns - time.monotonic_ns()) / 1e9), self._name, "s") as bar:
            while not self._ledger.get("go") and not self._is_over(parent):
                time.sleep(0.01)
            for blow in self._blows:
                self._wait(blow.delay, parent)
                bar.update(int(time.monotonic() - started) - bar.count)
                if self._is_over(parent):
                    break
                self._strike(blow)
        self._calm_down(parent)
        self._watch(parent)

    def _is_over(self, parent: int) -> bool:
        return (
            time.monotonic_ns() >= self._until_ns
            or self._ledger.get("complaints") > 0
            or self._ledger.get("over") > 0
            or os.getppid() != parent
        )

    def _wait(self, seconds: float, parent: int) -> None:
        end = time.monotonic() + seconds
        while not self._is_over(parent):
            now = time.monotonic()
            while self._stopped and self._stopped[0][0] <= now:
                self._go_on(heapq.heappop(self._stopped)[1])
            if now >= end:
                return
            due = min(end, self._stopped[0][0]) if self._stopped else end
            time.sleep(min(0.1, max(0.0, due - now)))

    def _strike(self, blow: Blow) -> None:
        pids = self._ledger.helper_pid if blow.role == "helper" else self._ledger.child_pid
        pid = int(pids[blow.index])
        if pid == 0:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            # A number that came to be another's since: then that place has a new holder by now.
            if int(pids[blow.index]) != pid:
                raise ProcessLookupError
            signal.pidfd_send_signal(pidfd, blow.signal)
        except ProcessLookupError:
            os.close(pidfd)
            return
        if blow.signal == signal.SIGSTOP:
            self._ledger.add("stops")
            heapq.heappush(self._stopped, (time.monotonic() + blow.pause, pidfd))
        else:
            self._ledger.add("kills")
            self._struck = [fd for fd in self._struck if not self._is_gone(fd)]
            self._struck.append(pidfd)

    def _go_on(self, pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        except ProcessLookupError:
            pass
        os.close(pidfd)

    def _is_gone(self, pidfd: int, wait_s: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        gone = bool(poll.poll(wait_s * 1000))
        if gone:
            os.close(pidfd)
        return gone

    def _calm_down(self, parent: int) -> None:
        while self._stopped:
            self._go_on(heapq.heappop(self._stopped)[1])
        for pidfd in self._struck:
            if not self._is_gone(pidfd, LET_GO_S) and os.getppid() == parent:
                self._ledger.complain(f"one that was killed was still there {LET_GO_S:g} s later")
        self._ledger.set("calm", 1)

    def _watch(self, parent: int) -> None:
        """A storm that does not end is ended, with every stack in the log."""
        deadline = time.monotonic() + LIMIT_S
        while not self._ledger.get("over") and os.getppid() == parent:
            if time.monotonic() > deadline:
                self._ledger.complain(f"the storm did not end within {LIMIT_S:g} s")
                self._ledger.complain(f"its parent: {state_of(parent)}")
                roles = [*self._ledger.child_pid, *self._ledger.helper_pid]
                for pid in (parent, *filter(lambda one: parent_of(one) == parent, roles)):
                    os.kill(int(pid), signal.SIGUSR1)  # faulthandler's, registered
                    time.sleep(0.1)  # so that stacks do not mix
                for _ in range(2):  # the second one ends all at once
                    os.kill(parent, signal.SIGTERM)
                    time.sleep(1.0)
                return
            time.sleep(0.02)
