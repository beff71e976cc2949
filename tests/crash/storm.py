"""A storm: children ask, in every way there is, while helpers and children are killed at random.

    cd tests && python -m crash.storm --seconds 120 --seed 7

The same seed makes the same plan of kills and the same choices in the children; when each of them
comes to pass is the machine's affair. Ends with one line and status 0 when every promise was kept:

- every submitted request ended exactly once, with a right result or an error that is fair;
- none was executed more often than it may be, none after its child's place was given away;
- a restarted child found an arena of zeros; at the end every block of every arena had come back;
- children, dispatcher and log agree on what they counted;
- after the storm every call succeeds;
- no descriptor, process, thread, mapping or name is left.

Otherwise it says which was broken, with which seed, and keeps the trace.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import pathlib
import random
import resource
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import conftest  # the leak guard's lists

import shmgpu
from shmgpu.broker.launch_config import LaunchConfig

from . import storm_load as load
from .storm_killer import Killer, plan
from .storm_ledger import Book, Ledger

LEFT_S = 5.0  # what ends by itself within that is no leak


class Counting(logging.Handler):
    """The broker's log: events by kind, and the last lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.kinds: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=300)

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event is not None:
            self.kinds[event["kind"]] += 1
        self.lines.append(f"{time.monotonic():.4f} {record.getMessage()}")

    def attach(self) -> None:
        logger = logging.getLogger("shmgpu")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


def never_give_up() -> None:
    """Helpers die here far more often than the rule allows that ends a launch over a model that
    cannot live, and none of these deaths is the model's fault."""
    as_it_is = LaunchConfig.for_core

    def patient(settings: LaunchConfig) -> dict[str, int]:
        return {**as_it_is(settings), "max_deaths": 1_000_000, "death_window_ns": 100_000_000}

    LaunchConfig.for_core = patient  # type: ignore[method-assign]


def run(
    name: str,
    seed: int,
    seconds: float,
    children: int,
    helpers: int,
    rate: float,
    trace: pathlib.Path,
    window: int,
    pause_s: float = 0.0,
    also: Sequence[Callable[[int], Any]] = (),
    scales: bool = False,
    spared: int = 0,
    **settings: Any,
) -> tuple[Ledger, Counting, dict[str, Any], list[Any]]:
    """The launch itself: its ledger, log, final statistics, and what the children returned.

    ``also`` are more mains, of children that nobody kills, and the first ``spared`` helpers live
    through it all. What went wrong is in the ledger.
    """
    load.ledger = ledger = Ledger(children, helpers)
    load.spared = spared
    ledger.set("scales", int(scales))
    log = Counting()
    log.attach()
    never_give_up()
    # The killer's last means, which may come when the launch has just ended.
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    killer = Killer(name, ledger, plan(seed, children, helpers, rate, spared), until_ns).start()
    stats: dict[str, Any] = {}
    results: list[Any] = []

    def main(rank: int) -> Any:
        return load.main(rank, seed, until_ns, pause_s)

    def scaler(rank: int) -> None:
        load.scale(until_ns)

    more = [*also, scaler] if scales else list(also)
    try:
        results = shmgpu.launch(
            [main] * children + more,
            helpers={"near": max(1, helpers - 1), "far": 1},
            session=load.session,
            devices="cpu",
            threads=1,
            window=window,
            slots=load.SLOTS,
            arena=load.ARENA_BYTES,
            seed=seed,
            restart="on-failure",
            max_restarts=1_000_000,
            stats_into=stats,
            trace_path=trace,
            progress=False,
            **settings,
        )
    except (shmgpu.ShmError, SystemExit, KeyboardInterrupt) as error:
        ledger.complain(f"the launch ended with {type(error).__name__}: {error}")
    finally:
        ledger.set("over", 1)
        os.waitpid(killer, 0)
    return ledger, log, stats, results


# ---- the promises ------------------------------------------------------------------------------


def check_counts(ledger: Ledger, log: Counting, stats: dict[str, Any], window: int) -> None:
    """What the dispatcher counted must be consistent, and what the log told."""
    broker, children, helpers = stats["broker"], stats["children"], stats["helpers"]
    told = log.kinds
    deaths = broker["child_deaths"]

    def total(rows: list[dict[str, Any]], name: str) -> int:
        return sum(row[name] for row in rows)

    claims = {
        "submitted == answered + dropped": broker["submitted"]
        == broker["answered"] + broker["dropped"],
        "nothing is queued or in flight": broker["queued"] == broker["in_flight"] == 0,
        "nobody broke the protocol": broker["protocol_errors"] == 0,
        "helper_deaths == the helpers' deaths": broker["helper_deaths"] == total(helpers, "deaths"),
        "helper_deaths == helper_died in the log": broker["helper_deaths"] == told["helper_died"],
        "helper_hangs == helper_hung in the log": broker["helper_hangs"] == told["helper_hung"],
        "helper_respawns == helper_respawned in the log": broker["helper_respawns"]
        == told["helper_respawned"],
        "every dead helper was replaced": 0
        <= broker["helper_respawns"] - broker["helper_deaths"]
        <= ledger.get("scalings") * len(helpers),
        "child_deaths == child_failed in the log": deaths == told["child_failed"],
        "every dead child was restarted": deaths
        == broker["child_restarts"]
        == total(children, "restarts")
        == told["child_restarted"],
        "every arena that was cleared was some slot's": broker["arenas_cleared"]
        == total(children, "arenas"),
        "nobody died who was not killed": broker["helper_deaths"] + deaths
        <= ledger.get("kills") + broker["helper_hangs"],
        "no helper was taken for hung that was not": broker["helper_hangs"]
        <= int(ledger.hangs.sum()) + ledger.get("stops"),
        "no payload went through a pipe": stats["bytes"]["marshalled"] == 0,
    }
    for name in ("submitted", "answered", "failed", "dropped"):
        claims[f"the children's {name} add up to the broker's"] = (
            total(children, name) == broker[name]
        )
    forks_killed = int(ledger.forks_killed.sum()) + deaths  # theirs end with who forked them
    for slot, row in enumerate(children):
        ends = row["restarts"] if row["pid"] or slot < ledger.children else forks_killed
        claims[f"child {slot}: submitted == answered + dropped"] = (
            row["submitted"] == row["answered"] + row["dropped"]
        )
        # Of what is forked here, each that died; of others, each but one that is there at the end.
        least, most = row["generation"] - 1, row["generation"]
        if slot < ledger.children:
            least = most = row["restarts"]
        claims[f"child {slot}: its arena was cleared once for each who left it"] = (
            least <= row["arenas"] <= most
        )
        claims[f"child {slot}: at most a window was dropped a death"] = (
            row["dropped"] <= window * ends
        )
    for claim, holds in claims.items():
        if not holds:
            ledger.complain(f"not so: {claim}; {broker}, {dict(told)}")


def check_ledger(ledger: Ledger) -> None:
    """Every request that the ledger remembers, of every generation."""
    for child in range(ledger.children):
        book = Book(ledger, child, load.IDEMPOTENT)
        if book.unfinished():
            ledger.complain(f"child {child} left requests open: {book.unfinished()[:5]}")
        book.check_all()


def check_nothing_left(ledger: Ledger, before: conftest.Left) -> None:
    """As the leak guard of the tests does."""
    deadline = time.monotonic() + LEFT_S
    while left := [shown for key, shown in conftest.everything().items() if key not in before]:
        if time.monotonic() > deadline:
            ledger.complain(f"left behind: {', '.join(sorted(left))}")
            return
        gc.collect()
        time.sleep(0.02)


# ---- the program -------------------------------------------------------------------------------


def arguments(about: str, seconds: float, rate: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, help="drawn and printed unless given")
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--helpers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=rate, help="blows a second, in all")
    parser.add_argument("--window", type=int, help="of each child; the seed draws it unless given")
    parser.add_argument("--only", default="", help="names of MIXES, with commas between them")
    return parser


def begin(name: str, options: argparse.Namespace) -> int:
    """Say which seed it is."""
    seed = secrets.randbelow(1 << 31) if options.seed is None else int(options.seed)
    print(f"{name}: seed {seed}, {options.seconds:g} s", flush=True)
    return seed


def main() -> int:
    parser = arguments(__doc__, seconds=120, rate=5)
    parser.add_argument(
        "--scale",
        action=argparse.BooleanOptionalAction,
        help="pools shrink and grow; the seed draws whether, unless given",
    )
    options = parser.parse_args()
    seed = begin("storm", options)
    if options.scale is None:
        options.scale = random.Random(f"{seed}/scale").random() < 0.5
    return weather("storm", options, seed)[0]


def weather(
    name: str, options: argparse.Namespace, seed: int, **more: Any
) -> tuple[int, list[Any]]:
    """Run it and check every promise: the exit status, and what the children returned."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    trace = pathlib.Path(tempfile.gettempdir(), f"{name}-{seed}.trace.json")
    before = conftest.everything()
    window = options.window or random.Random(f"{seed}/window").choice(load.WINDOWS)
    load.only = tuple(filter(None, options.only.split(",")))
    ledger, log, stats, results = run(
        name,
        seed,
        options.seconds,
        options.children,
        options.helpers,
        options.rate,
        trace,
        window,
        scales=options.scale,
        **more,
    )
    if stats:
        check_counts(ledger, log, stats, window)
    check_ledger(ledger)
    check_nothing_left(ledger, before)
    complaints = ledger.complaints()
    if complaints:
        events = trace.with_suffix("").with_suffix(".log")
        events.write_text("\n".join(log.lines))
        print(f"{name}: seed {seed}: broken:", file=sys.stderr)
        for line in complaints[:20]:
            print(f"  {line}", file=sys.stderr)
        print(f"Trace and log: {trace} {events}", file=sys.stderr)
        print(
            f"Again: cd tests && python -m crash.{name} --seconds {options.seconds:g} "
            f"--seed {seed} --children {options.children} --helpers {options.helpers} "
            f"--rate {options.rate:g} --window {window}"
            + (f" --only {options.only!r}" if options.only else "")
            + (" --scale" if options.scale else ""),
            file=sys.stderr,
        )
        return 1, results
    trace.unlink()
    print(f"{name}: seed {seed}: every promise kept: {summary(ledger, stats)}", flush=True)
    return 0, results


def summary(ledger: Ledger, stats: dict[str, Any]) -> str:
    broker = stats["broker"]
    return (
        f"{broker['submitted']:,} requests, "
        f"{broker['failed']:,} errors, {int(ledger.lost.sum())} lost with their child; "
        f"{ledger.get('kills')} kills, {ledger.get('stops')} stops, "
        f"{broker['helper_deaths']} helper deaths ({broker['helper_hangs']} hung), "
        f"{broker['child_deaths']} child deaths, {broker['requeued']} calls handed over anew, "
        f"{broker['retried']} retried"
    )


if __name__ == "__main__":
    sys.exit(main())
