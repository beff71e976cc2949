"""A discrete-event model of the broker: dispatcher, helpers, children, and the cores they share.

simpy keeps the clock and the queues for cores and GPUs; this file says what each process does and
what that costs. It follows the C sources (the dispatcher's turn, the policy's credit, the helper's
held replies) but counts *bursts*, not instructions: a burst is what a process does between two
points at which somebody else can notice it. So the number of events grows with the messages that
are simulated, never with the simulated time, and 1,000 children take seconds.

All times are microseconds. What is not in it: memory (payloads, caches, NUMA), the kernel's choice
of a core (one run queue serves all cores, first come first served), batching by key, priorities,
deaths, and the watching of a lone caller (`spin()` in port.c), which C's plain calls do not do.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import simpy

# What a process does: it waits for one event after the other.
Steps: TypeAlias = "Generator[simpy.Event, Any, None]"

# The dispatcher's and the helper port's own constants, as csrc has them.
EVENTS = 256
BURST = 64
CREDIT_BUDGET_US = 200.0
CREDIT_AHEAD_US = 50_000.0
CREDIT_UNKNOWN_US = 1e6
CREDIT_FLOOR_US = 0.4
CREDIT_MAX = 512
RUN = 16
HOLD_REPLIES_US = 100.0

# The kernel's: who has waited so long for a core is moved to one that falls idle.
MIGRATION_US = 500.0

JITTER = 0.1  # of every burst, either way: without it processes march in step as none do
# What is used for more than this share is what limits: few processes, which wait for each
# other, never fill two cores. A helper that waits for a core is busy too, so cores win a near tie.
SATURATED = 0.75
NEAR_TIE = 0.1
KINDS = ("device", "core")


@dataclass(frozen=True)
class Costs:
    """What things cost on a machine, in microseconds; calibration.py says where they come from.

    A *transfer* is one read or write of a pipe, however many frames it carries.
    """

    turn: float = 0.4  # the dispatcher: one turn of its loop, whatever it finds
    transfer: float = 0.4
    dispatcher_frame: float = 0.03
    helper_frame: float = 0.07
    child_frame: float = 0.04
    switch: float = 1.4  # a process runs where another did
    wake_busy: float = 0.35  # for the waker, where every core is taken
    wake_idle: float = 0.8  # for the waker, where a core must be woken too
    start_idle: float = 0.6  # for the woken, before it runs on a core that slept
    ask: float = 1.6  # a helper: to have a device begin
    late: float = 1.6  # a device's answer, beyond the time asked for
    slice: float = 250.0  # a process that ran so long gives way to one that waits for its core


@dataclass(frozen=True)
class SimulatedMachine:
    """A machine: its cores and its GPUs; with none, every helper has a device to itself."""

    cores: int
    gpus: int = 0

    def __post_init__(self) -> None:
        """Refuse what no machine is."""
        if self.cores < 1 or self.gpus < 0:
            raise ValueError("a machine has 1 core or more, and 0 GPUs or more")


@dataclass(frozen=True)
class ClosedLoad:
    """What is asked of a broker: ``children``, each with ``window`` calls out at any time.

    A call takes ``service_us`` of a helper. ``kind`` is "device" where it waits without a core, as
    for a GPU, and "core" where it computes.
    """

    children: int
    helpers: int
    window: int = 1
    service_us: float = 0.0
    kind: str = "device"

    def __post_init__(self) -> None:
        """Refuse what no broker runs."""
        from shmgpu import core  # here, so that the suite can be listed where it is not built

        for given, most, said in (
            (self.children, core.MAX_CHILDREN, "a broker has {} children"),
            (self.helpers, core.MAX_HELPERS, "a broker has {} helpers"),
            (self.window, core.MAX_WINDOW, "a child has {} calls out"),
        ):
            if not 1 <= given <= most:
                raise ValueError(f"{said.format(f'1 to {most:,}')}, not {given:,}")
        if not 0 <= self.service_us < math.inf:
            raise ValueError(f"a service takes 0 us or more, not {self.service_us}")
        if self.kind not in KINDS:
            raise ValueError(f"a service is of kind {' or '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True)
class Outcome:
    """What a load came to, simulated or measured.

    Rates are calls a second, ``*_us`` microseconds: the latencies of a call, and what each role has
    used of the cores a call. ``turns`` of the dispatcher a call. ``busy`` is the share of the time
    that a helper was in the function, ``dispatcher`` of its one core, ``cpu`` of all cores.
    """

    rate: float
    mean_us: float
    median_us: float
    p99_us: float
    dispatcher_us: float
    helpers_us: float
    children_us: float
    turns: float
    busy: float
    cores: int

    @property
    def shares(self) -> dict[str, float]:
        """How much of each resource is used."""
        used_us = self.dispatcher_us + self.helpers_us + self.children_us
        return {
            "dispatcher": self.rate * self.dispatcher_us / 1e6,
            "helpers": self.busy,
            "cpu": self.rate * used_us / 1e6 / self.cores,
        }

    @property
    def saturated(self) -> str:
        """What limits the rate: the resource used most, or "nothing" (more children bring more)."""
        shares = self.shares
        name = max(shares, key=lambda name: shares[name] + NEAR_TIE * (name == "cpu"))
        return name if shares[name] >= SATURATED else "nothing"

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {**asdict(self), "shares": self.shares, "saturated": self.saturated}


# A call is (child, when it was sent): a tuple, for there are many.
Call = tuple[int, float]


class Policy:
    """schedule.c in small: children in turn, the least loaded helper, credit by service time."""

    def __init__(self, load: ClosedLoad) -> None:
        self.queues: list[deque[Call]] = [deque() for _ in range(load.children)]
        self.ring: deque[int] = deque()  # children with something queued
        self.queued = 0
        self.in_flight = [0] * load.helpers
        self.outstanding_us = [0.0] * load.helpers
        self.estimate_us = 0.0
        self.run_left = self.run_helper = 0

    def enqueue(self, call: Call) -> None:
        """Take a call in."""
        queue = self.queues[call[0]]
        if not queue:
            self.ring.append(call[0])
        queue.append(call)
        self.queued += 1

    def _has_credit(self, helper: int) -> bool:
        held = self.in_flight[helper]
        if held < 1:
            return True
        if self.outstanding_us[helper] < CREDIT_BUDGET_US:
            return held < CREDIT_MAX
        return (
            held == 1
            and self.outstanding_us[helper] <= CREDIT_AHEAD_US
            and self.queued > len(self.in_flight)
        )

    def _choose(self) -> int | None:
        if self.run_left > 0:
            if self._has_credit(self.run_helper):
                return self.run_helper
            self.run_left = 0
        best = None
        for helper in range(len(self.in_flight)):
            if self._has_credit(helper) and (
                best is None
                or (self.outstanding_us[helper], self.in_flight[helper])
                < (self.outstanding_us[best], self.in_flight[best])
            ):
                best = helper
        return best

    def next(self) -> tuple[int, tuple[Call, float]] | None:
        """Return the helper that is to be handed a call, and the call with its estimate."""
        if self.queued == 0 or (helper := self._choose()) is None:
            return None
        child = self.ring.popleft()
        call = self.queues[child].popleft()
        if self.queues[child]:
            self.ring.append(child)
        self.queued -= 1
        estimate = max(self.estimate_us, CREDIT_FLOOR_US) if self.estimate_us else CREDIT_UNKNOWN_US
        self.in_flight[helper] += 1
        self.outstanding_us[helper] += estimate
        if self.run_left > 0:
            self.run_left -= 1
        elif estimate * RUN < CREDIT_BUDGET_US:
            self.run_helper, self.run_left = helper, RUN - 1
        return helper, (call, estimate)

    def finished(self, helper: int, estimate_us: float, service_us: float) -> None:
        """Take note that a call has ended, and of how long it took."""
        self.in_flight[helper] -= 1
        left = self.outstanding_us[helper] - estimate_us
        self.outstanding_us[helper] = max(0.0, left) if self.in_flight[helper] else 0.0
        known = self.estimate_us
        if known == 0:
            self.estimate_us = service_us
        elif service_us > known:
            self.estimate_us += (service_us - known) / 2
        else:
            self.estimate_us -= (known - service_us) / 8


@dataclass
class SimulatedProcess:
    """A process of the broker."""

    core: int = 0  # where it runs, or ran
    bell: simpy.Event | None = None  # it sleeps until somebody has something for it
    owed_us: float = 0.0  # done already, and to be waited for together with what comes next
    ran_us: float = 0.0  # since it got its core
    used_us: float = 0.0  # of a core, ever
    pipe: deque[Any] = field(default_factory=deque)  # what lies there for it to read


class Broker:
    """The processes of one broker under one load on one machine."""

    def __init__(
        self, load: ClosedLoad, machine: SimulatedMachine, costs: Costs, seed: int
    ) -> None:
        import simpy  # only here, so that the suite can be listed where it is not installed

        self.load, self.machine, self.costs = load, machine, costs
        self.env = simpy.Environment()
        # For each core, who waits for it: since when, who, and what tells it that it has it.
        self.waiting: list[deque[tuple[float, SimulatedProcess, simpy.Event]]]
        self.waiting = [deque() for _ in range(machine.cores)]
        self.waiters = 0
        self.idle = dict.fromkeys(range(machine.cores))
        self.gpus = [simpy.Resource(self.env, 1) for _ in range(machine.gpus)]
        self.random = random.Random(seed).random
        self.policy = Policy(load)
        self.parent = SimulatedProcess()
        self.helpers = [SimulatedProcess() for _ in range(load.helpers)]
        self.children = [SimulatedProcess() for _ in range(load.children)]
        self.ready: dict[tuple[str, int], None] = {}  # pipes the dispatcher has to read, in order
        self.requests: list[list[Call]] = [[] for _ in range(load.children)]
        self.answers: list[list[tuple[Call, float, float]]] = [[] for _ in range(load.helpers)]
        self.turns = 0
        self.busy_us = 0.0
        self.sent = self.answered = 0
        self.latencies: list[float] = []
        self.env.process(self._dispatch())
        for number in range(load.helpers):
            self.env.process(self._help(number))
        for number in range(load.children):
            self.env.process(self._call(number))

    # ---- cores ----

    def _work(self, process: SimulatedProcess, cost: float) -> Steps:
        """Compute for what is owed and ``cost``; at the end of a slice, let others have a turn."""
        left = (process.owed_us + cost) * (1 + JITTER * (2 * self.random() - 1))
        process.owed_us = 0.0
        process.used_us += left
        while process.ran_us + left > self.costs.slice:
            part = max(0.0, self.costs.slice - process.ran_us)
            yield self.env.timeout(part)
            left -= part
            process.ran_us = 0.0
            if self.waiting[process.core]:
                if self.idle:
                    self._run_next(process.core, self.idle.popitem()[0])
                    continue
                turn = self._queue(process)
                self._run_next(process.core, process.core)
                yield turn
                process.owed_us += self.costs.switch
        process.ran_us += left
        yield self.env.timeout(left)

    def _queue(self, process: SimulatedProcess) -> simpy.Event:
        turn = self.env.event()
        self.waiting[process.core].append((self.env.now, process, turn))
        self.waiters += 1
        return turn

    def _run_next(self, queue: int, core: int) -> None:
        """Let the first of that queue have that core."""
        _, process, turn = self.waiting[queue].popleft()
        self.waiters -= 1
        process.core = core
        turn.succeed()

    def _take_core(self, process: SimulatedProcess) -> Steps:
        """Have an idle core, best the last one; else wait where fewest wait, best there too."""
        if self.idle:
            if process.core not in self.idle:
                process.core = next(reversed(self.idle))
            del self.idle[process.core]
            process.owed_us += self.costs.start_idle
        else:
            fewest = min(map(len, self.waiting))
            if len(self.waiting[process.core]) > fewest:
                process.core = next(i for i, w in enumerate(self.waiting) if len(w) == fewest)
            yield self._queue(process)
            process.owed_us += self.costs.switch
        process.ran_us = 0.0

    def _give_core(self, process: SimulatedProcess) -> None:
        """Let the next one run; who waited long elsewhere is taken over by a core without work."""
        if self.waiting[process.core]:
            self._run_next(process.core, process.core)
            return
        if self.waiters:
            for queue, waiting in enumerate(self.waiting):
                if waiting and self.env.now - waiting[0][0] > MIGRATION_US:
                    self._run_next(queue, process.core)
                    return
        self.idle[process.core] = None

    def _sleep(self, process: SimulatedProcess) -> Steps:
        """Block until somebody rings."""
        process.bell = self.env.event()
        self._give_core(process)
        yield process.bell
        yield from self._take_core(process)

    def _wake_us(self, sleeper: SimulatedProcess) -> float:
        if sleeper.bell is None:
            return 0.0
        return self.costs.wake_idle if self.idle else self.costs.wake_busy

    def _wake(self, sleeper: SimulatedProcess) -> None:
        if sleeper.bell is not None:
            sleeper.bell.succeed()
            sleeper.bell = None

    # ---- the dispatcher ----

    def _dispatch(self) -> Steps:
        me, costs, policy = self.parent, self.costs, self.policy
        yield from self._take_core(me)
        while True:
            if not self.ready:
                yield from self._work(me, 0.0)
                if not self.ready:
                    yield from self._sleep(me)
            self.turns += 1
            ready = list(self.ready)[:EVENTS]
            for peer in ready:
                del self.ready[peer]
            yield from self._work(me, costs.turn + len(ready) * costs.transfer)
            replies: dict[int, list[Call]] = {}
            for kind, number in ready:
                if kind == "child":
                    calls, self.requests[number] = self.requests[number], []
                    for call in calls:
                        policy.enqueue(call)
                else:
                    done, self.answers[number] = self.answers[number], []
                    for call, estimate, service in done:
                        policy.finished(number, estimate, service)
                        replies.setdefault(call[0], []).append(call)
                    calls = [call for call, _, _ in done]
                me.owed_us += len(calls) * costs.dispatcher_frame
            handed: dict[int, list[tuple[Call, float]]] = {}
            while (given := policy.next()) is not None:
                handed.setdefault(given[0], []).append(given[1])
            for number in sorted(handed):
                helper = self.helpers[number]
                yield from self._work(me, costs.transfer + self._wake_us(helper))
                helper.pipe.extend(handed[number])
                self._wake(helper)
            for number in reversed(replies):  # the last to become due is written first
                child = self.children[number]
                yield from self._work(me, costs.transfer + self._wake_us(child))
                child.pipe.extend(replies[number])
                self._wake(child)

    def _tell_dispatcher(self, kind: str, number: int) -> None:
        self.ready.setdefault((kind, number))
        self._wake(self.parent)

    # ---- a helper ----

    def _help(self, number: int) -> Steps:
        me, costs, load = self.helpers[number], self.costs, self.load
        replies: list[tuple[Call, float, float]] = []
        first_reply_us = 0.0
        is_short = False
        yield from self._take_core(me)
        while True:
            if not me.pipe:
                yield from self._sleep(me)
            taken = [me.pipe.popleft() for _ in range(min(len(me.pipe), 4 * BURST))]
            yield from self._work(me, costs.transfer)
            for place, (call, estimate) in enumerate(taken):
                began = self.env.now
                me.owed_us += costs.helper_frame
                if load.service_us > 0:
                    yield from self._serve(me, number)
                service = self.env.now - began if load.service_us > 0 else costs.helper_frame
                self.busy_us += service
                is_short = service < HOLD_REPLIES_US
                if not replies:
                    first_reply_us = self.env.now
                replies.append((call, estimate, service))
                is_last = place + 1 == len(taken)
                held_us = self.env.now + me.owed_us - first_reply_us
                if is_last or len(replies) == BURST or not is_short or held_us > HOLD_REPLIES_US:
                    yield from self._work(me, costs.transfer + self._wake_us(self.parent))
                    self.answers[number].extend(replies)
                    replies = []
                    self._tell_dispatcher("helper", number)

    def _serve(self, me: SimulatedProcess, number: int) -> Steps:
        """Run the function once."""
        if self.load.kind == "core":
            yield from self._work(me, self.load.service_us)
            return
        yield from self._work(me, self.costs.ask)
        self._give_core(me)
        took = self.load.service_us + self.costs.late
        if self.gpus:
            with self.gpus[number % len(self.gpus)].request() as mine:
                yield mine
                yield self.env.timeout(took)
        else:
            yield self.env.timeout(took)
        yield from self._take_core(me)
        yield from self._work(me, 0.0)

    # ---- a child ----

    def _call(self, number: int) -> Steps:
        me, costs = self.children[number], self.costs
        ready = self.load.window
        yield from self._take_core(me)
        while True:
            began = self.env.now
            wake_us = self._wake_us(self.parent)
            yield from self._work(me, costs.transfer + ready * costs.child_frame + wake_us)
            self.requests[number].extend([(number, began)] * ready)
            self.sent += ready
            self._tell_dispatcher("child", number)
            if not me.pipe:
                yield from self._work(me, 0.0)
                if not me.pipe:
                    yield from self._sleep(me)
            yield from self._work(me, costs.transfer)
            ready = min(len(me.pipe), BURST)
            for _ in range(ready):
                self.latencies.append(self.env.now - me.pipe.popleft()[1])
            self.answered += ready

    # ---- a run ----

    def run_until(self, answered: int, tick: Callable[[int], None] | None = None) -> None:
        """Simulate until that many calls have been answered; ``tick`` hears how many more were."""
        told = self.answered
        while self.answered < answered:
            self.env.step()
            if tick is not None and self.answered - told >= 500:
                tick(self.answered - told)
                told = self.answered
        if tick is not None:
            tick(self.answered - told)

    def used_us(self) -> tuple[float, float, float]:
        """Return what dispatcher, helpers and children have used of the cores."""
        helpers = sum(helper.used_us for helper in self.helpers)
        return self.parent.used_us, helpers, sum(child.used_us for child in self.children)


def calls_of(load: ClosedLoad) -> tuple[int, int]:
    """Return how many calls are simulated before the span that counts, and in it.

    Before: until every call that a child may have out was answered twice, so that the estimates of
    service times have settled. In it: enough for a tail, and some rounds of all children.
    """
    out = load.children * load.window
    return max(500, 2 * out), max(2000, 3 * out)


def predict(
    load: ClosedLoad,
    machine: SimulatedMachine,
    costs: Costs,
    *,
    seed: int = 1,
    calls: tuple[int, int] | None = None,
    tick: Callable[[int], None] | None = None,
) -> Outcome:
    """Simulate ``load`` on ``machine``; the same seed gives the same outcome."""
    before, counted = calls or calls_of(load)
    broker = Broker(load, machine, costs, seed)
    broker.run_until(before, tick)
    began, answered = broker.env.now, broker.answered
    used, turns, busy = broker.used_us(), broker.turns, broker.busy_us
    broker.latencies.clear()
    broker.run_until(answered + counted, tick)
    span = broker.env.now - began
    done = broker.answered - answered
    latencies = sorted(broker.latencies)
    dispatcher, helpers, children = (
        (now - then) / done for now, then in zip(broker.used_us(), used, strict=True)
    )
    return Outcome(
        rate=done / span * 1e6,
        mean_us=sum(latencies) / len(latencies),
        median_us=latencies[len(latencies) // 2],
        p99_us=latencies[len(latencies) - 1 - len(latencies) // 100],
        dispatcher_us=dispatcher,
        helpers_us=helpers,
        children_us=children,
        turns=(broker.turns - turns) / done,
        busy=(broker.busy_us - busy) / span / load.helpers,
        cores=machine.cores,
    )
