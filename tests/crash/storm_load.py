"""What the children of a storm ask, in every way there is to ask, and how they judge the answers.

KINDS is the table of functions, MIXES that of the ways. Every array carries its request's token in
its first word, so that a helper can note whose request it executes, and every result is compared
bit for bit with what this child computes itself. Which error is fair depends on the kind; any other
is a complaint in the ledger.

Owns the load of one child, from its first look at a zero arena to its last calm round.
Kills nobody.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import faulthandler
import functools
import gc
import os
import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import shmgpu
from shmgpu import core
from shmgpu.attach import control, endpoint
from shmgpu.child import runtime

from . import storm_ledger as ledgers
from .storm_ledger import (
    CANCELLED,
    DIED,
    INTERRUPTED,
    RAISED,
    REFUSED,
    RESULT,
    TIMED_OUT,
    Book,
    Ledger,
)

PATIENCE_S = 20.0  # for anything that must come by itself
WINDOWS = (32, 32, 2, 1)  # of which the seed draws one
AT_ONCE = 32  # requests that one of the ways below has under way, at most twice as many
SLOTS = 4  # for processes that children fork
ARENA_BYTES = 6 << 20
BIG_WORDS = 32768  # 256 KiB
POOLS = ("near", "far")

ledger: Ledger = None  # type: ignore[assignment]  # set before the launch; every role inherits it
touches_arenas = False  # whether a helper takes every page of every arena at its start
spared = 0  # the first helpers, which nobody kills, and which do not hang
hang_share = 0.08  # of the calls that may hang
only: tuple[str, ...] = ()  # names of MIXES; none: all, as often as that table says


# ---- what helpers run --------------------------------------------------------------------------


def answer(x: np.ndarray) -> np.ndarray:
    """What every function makes of its words."""
    return (x ^ (x >> np.uint64(7))) * np.uint64(0x9E3779B97F4A7C15)


def begun(helper: Any, x: np.ndarray) -> None:
    ledger.note_execution(helper.id, int(x.flat[0]))


def session(helper: Any) -> None:
    """Slow now and then, so that a helper is killed while it makes its session, too."""
    ledger.helper_pid[helper.id] = os.getpid()
    faulthandler.register(signal.SIGUSR1)
    for child in range(ledger.children if touches_arenas else 0):
        arena = np.frombuffer(core.window_on(core.arena_base(child), core.arena_bytes()), "u1")
        arena[::4096].max()
    time.sleep(random.choice((0, 0, 0.03)))


@shmgpu.function(arrays="numpy", pool="near")
def plain(helper, x):
    begun(helper, x)
    return answer(x)


@shmgpu.function(arrays="numpy", pool="near", idempotent=True)
def repeatable(helper, x):
    begun(helper, x)
    if x.size > 1 and x[1] % np.uint64(32) == 0:  # long enough to be killed over
        time.sleep(0.03)
    return answer(x)


@shmgpu.function(arrays="numpy", pool="near", batch=shmgpu.Batch(max_size=16))
def joined(helper, rows):
    for row in rows:
        if row[0]:  # the first row of each call carries its token
            begun(helper, row)
    return answer(rows)


@shmgpu.function(
    arrays="numpy",
    pool="near",
    idempotent=True,
    batch=shmgpu.Batch(max_size=16, max_delay=0.002),
)
def gathered(helper, rows):
    for row in rows:
        if row[0]:
            begun(helper, row)
    return answer(rows)


@shmgpu.function(arrays="numpy", pool="far")
def grown(helper, x, words):
    begun(helper, x)
    return answer(np.resize(x, words))


@shmgpu.function(arrays="numpy", pool="far", out=lambda x: shmgpu.Declared(x.shape, x.dtype))
def declared(helper, x):
    begun(helper, x)
    helper.out[...] = answer(x)


@shmgpu.function(arrays="numpy", pool="far")
def raising(helper, x):
    begun(helper, x)
    raise ValueError(f"token {int(x[0])}")


@shmgpu.function(arrays="numpy", pool="near")
def slow(helper, x):
    begun(helper, x)
    time.sleep(float(x[1] % np.uint64(8)) / 1000)
    return answer(x)


@shmgpu.function(arrays="numpy", pool="near", hang_after=0.3)
def hanging(helper, x):
    begun(helper, x)
    if x[1] == 1 and helper.id >= spared:
        time.sleep(PATIENCE_S)
    return answer(x)


@shmgpu.function(arrays="numpy", pool="near")
def from_fork(helper, x):
    begun(helper, x)
    return answer(x)


@dataclass(frozen=True)
class Kind:
    """A function, and the ways in which a call of it may fairly end."""

    function: Any
    fair: frozenset[int]
    idempotent: bool = False


def kind(function: Any, *more: int) -> Kind:
    return Kind(function, frozenset((RESULT, DIED, *more)), function.idempotent)


KINDS = (
    kind(plain, CANCELLED, TIMED_OUT),
    kind(repeatable),
    kind(joined, CANCELLED),
    kind(gathered, TIMED_OUT),
    kind(grown, REFUSED),
    kind(declared, REFUSED),
    Kind(raising, frozenset((RAISED, DIED))),
    kind(slow, CANCELLED, TIMED_OUT),
    kind(hanging),
    kind(from_fork),
)
NUMBER = {one.function: number for number, one in enumerate(KINDS)}
IDEMPOTENT = [one.idempotent for one in KINDS]
BY_FORKS = frozenset((NUMBER[from_fork],))

ENDS: dict[type[BaseException], int] = {
    shmgpu.HelperDied: DIED,
    shmgpu.RemoteError: RAISED,
    shmgpu.CallTimeout: TIMED_OUT,
    TimeoutError: TIMED_OUT,
    asyncio.TimeoutError: TIMED_OUT,
    concurrent.futures.CancelledError: CANCELLED,
    asyncio.CancelledError: CANCELLED,
    shmgpu.ArenaFull: REFUSED,
    shmgpu.ConfigError: REFUSED,
    shmgpu.NoHelpers: REFUSED,
    KeyboardInterrupt: INTERRUPTED,
}


# ---- one child ---------------------------------------------------------------------------------


class Caller:
    """One child's life: its book, its random choices, and how a request is made and judged."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank = rank
        self.book = Book(ledger, rank, IDEMPOTENT, BY_FORKS)
        self.stats = core.child_stats(rank)
        self.random = random.Random(f"{seed}/child/{rank}/{self.stats['generation']}")
        self.sent = CountedTransport(runtime.require_port().transport)
        self.fill = np.arange(BIG_WORDS, dtype="uint64")
        self.on_alarm: Callable[[], None] | None = None
        self.is_calling = False  # the main thread, and nothing of the storm's own is half done
        self.by_forks = 0  # requests that processes forked from this one sent, for themselves
        self.is_in_alarm = False
        self.took_s = 0.001  # a plain call, lately
        self.unjudged: dict[Any, Callable[..., None]] = {}
        signal.signal(signal.SIGALRM, self.alarm)

    def complain(self, text: str) -> None:
        ledger.complain(f"child {self.rank} (pid {os.getpid()}): {text}")

    # -- one request --

    def array(self, token: int, words: int = 8, in_arena: bool = True) -> np.ndarray:
        x = shmgpu.arena.empty(words, "uint64") if in_arena else np.empty(words, "uint64")
        np.add(self.fill[:words], np.uint64(token & 0xFFFF), out=x)
        x[0] = token
        return x

    def ask(
        self,
        function: Any,
        send: Callable[..., Any] | None = None,
        words: int = 8,
        rows: int = 0,
        in_arena: bool = True,
        second: int | None = None,
        words_out: int = 0,
        fair: frozenset[int] = frozenset(),
    ) -> Any:
        """Begin a request and send it with ``send`` (None: call and wait); what that returned.

        It may also end as ``fair`` says.
        """
        token = self.book.begin(NUMBER[function])
        try:
            x = self.array(token, words * max(rows, 1), in_arena)
        except shmgpu.ArenaFull:
            self.book.end(token, REFUSED)
            return None
        if second is not None:
            x[1] = second
        if rows:
            x = x.reshape(rows, words)
            x[1:, 0] = 0
        expected = answer(np.resize(x, words_out) if words_out else x)
        args = (x, words_out) if words_out else (x,)
        judge = functools.partial(self.judge, function, token, expected, fair)
        if send is None:
            self.attempt(judge, function, *args)
            return None
        try:
            return send(judge, *args)
        except (Exception, KeyboardInterrupt) as error:
            judge(None, error)
            return None

    def ask_bound(self, function: Any, helper: int, priority: int = 0) -> None:
        """As ask, of one helper, in front of or behind other calls."""
        bound = function.options(helpers=[helper], priority=priority)
        # One that was let go serves nobody.
        is_whole = not ledger.get("scales")
        send = functools.partial(self.attempt_with, bound)
        self.ask(function, send, fair=frozenset(() if is_whole else (REFUSED,)))

    def attempt_with(self, function: Any, judge: Callable[..., None], *args: Any) -> None:
        self.attempt(judge, function, *args)

    def attempt(self, judge: Callable[..., None], function: Any, *args: Any) -> None:
        try:
            result = self.call(function, *args)
        except (Exception, KeyboardInterrupt) as error:
            judge(None, error)
        else:
            judge(result, None)

    # -- signals --

    def call(self, function: Any, *args: Any) -> Any:
        """Within this a signal of the alarm does what it is to do."""
        if threading.current_thread() is not threading.main_thread():
            return function(*args)
        try:
            self.is_calling = True
            return function(*args)
        finally:
            self.is_calling = False

    def alarm(self, number: int, frame: Any) -> None:
        """Not within itself: what it does would be interrupted without end."""
        if self.is_calling and not self.is_in_alarm and self.on_alarm is not None:
            self.is_in_alarm = True
            try:
                self.on_alarm()
            finally:
                self.is_in_alarm = False
                self.is_calling = True

    def alarmed(self, action: Callable[[], None], within_s: float, body: Callable[[], Any]) -> None:
        """Run the body; somewhere in its calls ``action`` comes, as a signal handler."""
        self.on_alarm = action
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, within_s), within_s)
        try:
            body()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.on_alarm = None

    def submit(self, function: Any, settings: Any = None, **how: Any) -> Any:
        """As ask, with a future that is judged when it is done, by whoever reads its reply."""
        target = settings or function

        def send(judge: Callable[..., None], *args: Any) -> Any:
            future = self.call(target.submit, *args)
            self.unjudged[future] = judge
            future.add_done_callback(self.judge_future)
            return future

        return self.ask(function, send, **how)

    def judge_future(self, future: Any) -> None:
        """Once; an alarm that comes just before has it done by who waits for the future."""
        was_calling = threading.current_thread() is threading.main_thread() and self.is_calling
        if was_calling:
            self.is_calling = False
        judge = self.unjudged.pop(future, None)
        try:
            if judge is None:
                pass
            elif future.cancelled():
                judge(None, concurrent.futures.CancelledError())
            elif future.exception() is not None:
                judge(None, future.exception())
            else:
                judge(future.result(), None)
        except Exception as error:  # a future swallows what its callbacks raise
            self.complain(f"judging a future: {type(error).__name__}: {error}")
        finally:
            if was_calling:
                self.is_calling = True

    def judge(
        self,
        function: Any,
        token: int,
        expected: Any,
        fair: frozenset[int],
        result: Any,
        error: BaseException | None,
    ) -> None:
        """The request ended with that: is it fair, and right?"""
        fair |= KINDS[NUMBER[function]].fair
        if self.on_alarm is interrupt:
            fair |= {INTERRUPTED}
        outcome = RESULT if error is None else ENDS.get(type(error), ledgers.OPEN)
        number = token & 0xFFFFFFFF
        if outcome not in fair:
            text = f"{type(error).__name__}: {error}" if error else "a result"
            self.complain(f"request {number} of {function.name} ended with {text}")
        elif outcome == RESULT and not (
            result.dtype == expected.dtype and np.array_equal(result, expected)
        ):
            self.complain(f"request {number} of {function.name} has a wrong result")
        elif outcome == RAISED and f"token {token}" not in str(error):
            self.complain(f"request {number} of {function.name} got another's error: {error}")
        self.book.end(token, outcome)

    def gather(self, futures: list[Any]) -> None:
        waiting = [future for future in futures if future is not None]
        done, late = concurrent.futures.wait(waiting, PATIENCE_S)
        if late:
            self.complain(f"{len(late)} futures did not end within {PATIENCE_S:g} s")
        for future in done:
            self.judge_future(future)

    # -- its life --

    def storm(self, until_ns: int, pause_s: float) -> None:
        """Ask, in ways chosen at random, until it is time."""
        often = {name: often for name, (often, _) in MIXES.items()}
        names = list(only) or [name for name in often for _ in range(often[name])]
        while time.monotonic_ns() < until_ns and not ledger.get("complaints"):
            MIXES[self.random.choice(names)][1](self)
            if pause_s:
                time.sleep(pause_s * self.random.uniform(0.5, 1.5))

    def calm_round(self) -> None:
        """Nobody is killed any more: now every call must succeed."""
        before = self.book.outcomes.copy()
        for one in KINDS:
            if one.function is grown:
                self.ask(grown, words_out=100 + self.rank)
            elif one.function in (joined, gathered):
                self.ask(one.function, rows=2)
            elif one.function is from_fork:
                fork_one(self, is_killed=False)
            else:
                self.ask(one.function, second=0)
        for helper in range(ledger.helpers):  # each of them serves, too
            self.ask_bound(declared if helper == ledger.helpers - 1 else plain, helper)
        for outcome, count in (self.book.outcomes - before).items():
            if outcome not in (RESULT, RAISED):
                self.complain(
                    f"{count} calls after the storm ended with: {ledgers.OUTCOMES[outcome]}"
                )

    def settle_accounts(self) -> None:
        """Everything has ended: the dispatcher's counts and this child's must agree."""
        port = runtime.require_port()
        until(lambda: port.poll() == 0 and core.port_outstanding() == 0, self, "late replies")
        now = core.child_stats(self.rank)
        grown_by = {name: now[name] - self.stats[name] for name in now if type(now[name]) is int}
        sent = grown_by["submitted"]
        certain = sum(self.book.outcomes[one] for one in (RESULT, RAISED, DIED)) - self.by_forks
        uncertain = (TIMED_OUT, CANCELLED, REFUSED, INTERRUPTED)
        possible = certain + sum(self.book.outcomes[one] for one in uncertain)
        # A frame may have gone out whose sender was interrupted before it noted that, or after.
        cut = self.book.outcomes[INTERRUPTED]
        late = self.book.outcomes[TIMED_OUT]  # each may have said that it leaves the queue
        claims = {
            "every call that the dispatcher saw is answered": grown_by["answered"] == sent,
            "nothing of this child was dropped": grown_by["dropped"] == 0,
            "the dispatcher saw as many calls as the ledger": certain <= sent <= possible,
            "a frame was sent for each call, grow and cancel": -cut
            <= grown_by["frames_sent"] - sent - self.sent.grows
            <= self.sent.cancels + self.sent.abandons + late + cut,
            "a frame was received for each answer and each grow": -cut
            <= grown_by["frames_received"] - grown_by["answered"] - self.sent.grows
            <= self.sent.abandons + cut,
            "no request is open": not self.book.unfinished(),
        }
        for claim, holds in claims.items():
            if not holds:
                self.complain(
                    f"not so: {claim}; {grown_by}, {dict(self.book.outcomes)}, {vars(self.sent)}"
                )
        self.book.check_all()
        port.forget()
        gc.collect()
        left = shmgpu.arena.stats()
        if left["live_blocks"]:
            self.complain(f"{left['live_blocks']} blocks of the arena were never given back")


class CountedTransport:
    """How many frames other than calls this child sent."""

    def __init__(self, transport: Any) -> None:
        self.grows = self.cancels = self.abandons = 0
        for name in ("grow", "cancel", "abandon"):
            setattr(transport, name, self._counted(f"{name}s", getattr(transport, name)))

    def _counted(self, name: str, send: Callable[..., int]) -> Callable[..., int]:
        def counted(*args: int) -> int:
            status = send(*args)
            # Two threads may offer one buffer: what the second does is refused, and sends nothing.
            if status >= 0:
                setattr(self, name, getattr(self, name) + 1)
            return status

        return counted


def until(condition: Callable[[], Any], caller: Caller, what: str) -> None:
    """Wait for it; a complaint when it does not come."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            caller.complain(f"waited {PATIENCE_S:g} s for {what}")
            return
        time.sleep(0.005)


def is_serving(helper: int) -> bool:
    """Whether the broker calls it ready, and it is not dead already."""
    stats = core.helper_stats(helper)
    try:
        text = pathlib.Path(f"/proc/{stats['pid']}/stat").read_text()
    except OSError:
        return False
    return stats["state"] == 2 and text[text.rindex(")") + 2] not in "ZXT"


def main(rank: int, seed: int, until_ns: int, pause_s: float = 0.0) -> dict[str, int]:
    """A child of the storm: its requests by outcome."""
    ledger.child_pid[rank] = os.getpid()
    ledger.quiet[rank] = 0
    faulthandler.register(signal.SIGUSR1)
    caller = Caller(rank, seed)
    caller.book.inherit(2 * AT_ONCE + 8)
    room = shmgpu.arena.empty(shmgpu.arena.stats()["largest_free_bytes"], "uint8")
    if room.any():
        caller.complain("the arena was not zero at the start")
    del room
    ledger.set("go", 1)
    caller.storm(until_ns, pause_s)
    until(lambda: ledger.get("calm"), caller, "the killer to end")
    until(lambda: not ledger.get("scales"), caller, "the pools to be whole")
    ledger.quiet[rank] = 1
    until(ledger.quiet.all, caller, "the other children's last requests")
    helpers = range(ledger.helpers)
    until(lambda: all(map(is_serving, helpers)), caller, "every helper to be replaced")
    caller.calm_round()
    caller.settle_accounts()
    return {ledgers.OUTCOMES[outcome]: count for outcome, count in caller.book.outcomes.items()}


def scale(until_ns: int) -> None:
    """A child of its own, which nobody kills: has the first pool shrink and grow, then be whole."""
    whole = max(1, ledger.helpers - 1)
    choose = random.Random(until_ns)
    socket_path = endpoint.path_of(runtime.current.endpoint)
    while time.monotonic_ns() < until_ns and not ledger.get("complaints"):
        time.sleep(choose.uniform(0.05, 0.5))
        ledger.add("scalings")
        control.scale({"near": choose.randint(1, whole)}, path=socket_path)
    control.scale({"near": whole}, path=socket_path)
    ledger.set("scales", 0)
    while not ledger.quiet.all() and not ledger.get("over"):
        time.sleep(0.02)


# ---- the ways to ask ---------------------------------------------------------------------------


def one_by_one(caller: Caller) -> None:
    function = caller.random.choice((plain, repeatable))
    for _ in range(20):
        caller.ask(function)


def from_elsewhere(caller: Caller) -> None:
    """Arrays that do not lie in the arena."""
    for _ in range(5):
        caller.ask(plain, in_arena=False, words=caller.random.choice((1, 8, 500)))


def big(caller: Caller) -> None:
    caller.ask(caller.random.choice((plain, repeatable, declared)), words=BIG_WORDS)


def grows(caller: Caller) -> None:
    """Results that are larger, mostly, than those before them."""
    for _ in range(3):
        caller.ask(grown, words_out=caller.random.choice((1, 100, 5_000, BIG_WORDS)))
    sizes = [caller.random.choice((10, 1_000, 20_000)) for _ in range(6)]
    caller.gather([caller.submit(grown, words_out=size) for size in sizes])


def full_window(caller: Caller) -> None:
    """Twice what the window holds, of everything that is short."""
    functions = caller.random.choices((plain, repeatable, joined, declared), k=2 * AT_ONCE)
    caller.gather(
        [caller.submit(one, rows=caller.random.randint(1, 3) if one is joined else 0)
         for one in functions]
    )  # fmt: skip


def in_batches(caller: Caller) -> None:
    function = caller.random.choice((joined, gathered))
    caller.gather([caller.submit(function, rows=caller.random.randint(1, 5)) for _ in range(16)])


def errors(caller: Caller) -> None:
    caller.ask(raising)
    caller.gather([caller.submit(raising) for _ in range(5)])


def deadlines(caller: Caller) -> None:
    """Some pass while the call is queued, some while it runs, some not at all."""
    hasty = slow.options(timeout=caller.random.choice((0.0005, 0.003, 0.02)))
    caller.ask(slow, functools.partial(caller.attempt_with, hasty))
    futures = [caller.submit(slow, hasty) for _ in range(4)]
    futures += [caller.submit(plain, plain.options(timeout=0.001, priority=2)) for _ in range(4)]
    futures += [caller.submit(gathered, gathered.options(timeout=0.002), rows=2)]
    caller.gather(futures)


def second_thoughts(caller: Caller) -> None:
    """Cancelled at once, or when a helper may have begun."""
    futures = [caller.submit(caller.random.choice((slow, plain))) for _ in range(8)]
    futures += [caller.submit(joined, rows=2) for _ in range(4)]
    caller.random.shuffle(futures)
    for future in futures[:4]:
        future.cancel()
    time.sleep(caller.random.uniform(0, 0.005))
    for future in futures[4:8]:
        future.cancel()
    caller.gather(futures)


def by_threads(caller: Caller) -> None:
    def work(function: Any) -> None:
        for _ in range(5):
            caller.ask(function)

    threads = [threading.Thread(target=work, args=(one,)) for one in (plain, declared, slow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_loop(caller: Caller) -> None:
    """Tasks of asyncio, some of them cancelled."""

    async def one(function: Any, seconds: float | None = None) -> None:
        requests: list[Any] = []
        judges: list[Any] = []

        def send(judge: Callable[..., None], *args: Any) -> None:
            judges.append(judge)
            requests.append(function.aio(*args))

        caller.ask(function, send)
        if not requests:
            return
        try:
            result = await asyncio.wait_for(requests[0], seconds)
        except (Exception, asyncio.CancelledError) as error:
            judges[0](None, error)
        else:
            judges[0](result, None)

    async def several() -> None:
        tasks = [asyncio.ensure_future(one(plain)) for _ in range(8)]
        tasks += [asyncio.ensure_future(one(slow, 0.004)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(several())


def placed(caller: Caller) -> None:
    """Bound to one helper, which may be dead; before or behind others."""
    for _ in range(4):
        near = caller.random.randrange(max(1, ledger.helpers - 1))
        caller.ask_bound(plain, near, caller.random.randrange(4))


def memory(caller: Caller) -> None:
    """Arrays of one's own beside all this: nobody else writes to them."""
    kept = []
    for _ in range(10):
        x = shmgpu.arena.empty(caller.random.choice((1, 64, 5_000)), "uint64")
        x[...] = caller.random.getrandbits(63)
        kept.append((x, int(x[0])))
        caller.ask(plain)
    for x, value in kept:
        if (x != value).any():
            caller.complain("an array of this child's own was written to")


def hang(caller: Caller) -> None:
    hangs = caller.random.random() < hang_share
    ledger.hangs[caller.rank] += hangs
    caller.ask(hanging, second=int(hangs))


def interrupt() -> None:
    raise KeyboardInterrupt


def ctrl_c(caller: Caller) -> None:
    """An interrupt somewhere in a call, or in a submit; then the next, as if nothing had been."""

    def body() -> None:
        for function in caller.random.choices((plain, repeatable, slow), k=6):
            caller.ask(function)
        caller.ask(grown, words_out=caller.random.choice((100, 5_000)))
        caller.gather([caller.submit(plain) for _ in range(8)])

    caller.alarmed(interrupt, caller.random.choice((0.0003, 0.003)), body)


def in_handlers(caller: Caller) -> None:
    """A signal handler that calls, while the thread that it interrupts calls."""

    def body() -> None:
        for function in caller.random.choices((plain, slow, declared), k=6):
            caller.ask(function)
        caller.gather([caller.submit(plain) for _ in range(8)])

    action = caller.random.choice(
        (
            lambda: caller.ask(plain),
            lambda: caller.ask(grown, words_out=caller.random.choice((1, 5_000))),
        )
    )
    caller.alarmed(action, caller.random.choice((0.0005, 0.005)), body)


def in_callbacks(caller: Caller) -> None:
    """Callbacks of futures that call, while others fill the window with results that must grow."""
    called = threading.Semaphore(0)

    def again(future: Any) -> None:
        caller.ask(plain)
        called.release()

    first = [caller.submit(caller.random.choice((slow, plain))) for _ in range(4)]
    count = 0
    for future in first:
        if future is not None:
            future.add_done_callback(again)
            count += 1
    size = caller.random.choice((100, 2_000, 5_000))
    futures = [caller.submit(grown, words_out=size) for _ in range(AT_ONCE)]
    caller.ask(plain)
    for _ in range(count):
        if not called.acquire(timeout=PATIENCE_S):
            caller.complain(f"a callback's call did not end within {PATIENCE_S:g} s")
            return
    caller.gather(first + futures)


def cancels_at_the_end(caller: Caller) -> None:
    """Cancelled, or out of time, when the answer is just coming."""
    for _ in range(4):
        started = time.perf_counter()
        caller.ask(plain)
        caller.took_s += (time.perf_counter() - started - caller.took_s) / 8
        futures = [caller.submit(plain) for _ in range(4)]
        time.sleep(caller.took_s * caller.random.uniform(0, 2))
        for future in futures:
            if future is not None:
                future.cancel()
        hasty = plain.options(timeout=caller.took_s * caller.random.uniform(0.3, 1.5))
        caller.ask(plain, functools.partial(caller.attempt_with, hasty))
        futures += [caller.submit(plain, hasty) for _ in range(2)]
        caller.gather(futures)


def fork_one(caller: Caller, is_killed: bool) -> None:
    """A forked process claims a slot and asks; its requests are this child's, in the ledger."""
    tokens = [caller.book.begin(NUMBER[from_fork]) for _ in range(4)]
    caller.by_forks += len(tokens)
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            with shmgpu.claim(wait=PATIENCE_S):
                for token in tokens:
                    os.write(write, bytes((ask_in_fork(caller, token),)))
        except BaseException as error:
            if os.getppid() == parent:  # or it was killed, and nobody reads what came of it
                caller.complain(f"in a fork: {type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(write)
    if is_killed:
        time.sleep(caller.random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
    with open(read, "rb") as pipe:
        outcomes = pipe.read()
    if os.waitpid(pid, 0)[1] != 0:
        ledger.forks_killed[caller.rank] += 1
    elif len(outcomes) < len(tokens):
        caller.complain(f"a fork ended {len(outcomes)} requests of {len(tokens)}")
    for token, outcome in zip(tokens, outcomes.ljust(len(tokens), bytes((DIED,))), strict=True):
        caller.book.end(token, outcome)


def ask_in_fork(caller: Caller, token: int) -> int:
    """How the request ended, of the process that was forked."""
    x = caller.array(token)
    expected = answer(x)
    try:
        result = from_fork(x)
    except shmgpu.HelperDied:
        return DIED
    if not np.array_equal(result, expected):
        caller.complain(f"request {token & 0xFFFFFFFF} of a fork has a wrong result")
    return RESULT


def forks(caller: Caller) -> None:
    fork_one(caller, is_killed=caller.random.random() < 0.5)


MIXES: dict[str, tuple[int, Callable[[Caller], None]]] = {  # by name: how often, what
    "one by one": (4, one_by_one),
    "from elsewhere": (2, from_elsewhere),
    "big": (2, big),
    "grows": (2, grows),
    "full window": (3, full_window),
    "in batches": (3, in_batches),
    "errors": (1, errors),
    "deadlines": (2, deadlines),
    "second thoughts": (2, second_thoughts),
    "by threads": (1, by_threads),
    "in a loop": (2, in_a_loop),
    "placed": (2, placed),
    "memory": (1, memory),
    "hang": (1, hang),
    "cancels at the end": (2, cancels_at_the_end),
    "callbacks": (1, in_callbacks),
    "handlers": (1, in_handlers),
    "ctrl-c": (1, ctrl_c),
    "forks": (1, forks),
}
