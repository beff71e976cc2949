"""Takes each core away from all for random moments: ``python tests/stolen_time.py 20 0.5 400``.

A host that runs other machines does that to this one, and a burdened one does it to any process: it
stands still for up to half a second between two lines. A test that is right only where that does
not happen fails here. Owns one process for each core, of a real-time priority, which needs root's
rights. Never takes all the time there is, as the system's clocks and its kernel's work need some.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

PRIORITY = 10  # of the real-time ones, above all that has none


def steal(core: int, mean_s: float, share: float, most_s: float, seed: str) -> None:
    """Hold that core again and again, until whoever started this has ended."""
    parent = os.getppid()
    os.sched_setaffinity(0, {core})
    draws = random.Random(f"{seed} {core}")
    while os.getppid() == parent:
        time.sleep(draws.expovariate(share / mean_s / (1 - share)))
        end = time.monotonic() + min(draws.expovariate(1 / mean_s), most_s)
        while time.monotonic() < end:
            pass


def main(mean_ms: float = 20, share: float = 0.5, most_ms: float = 400) -> None:
    """Steal that share of the time of each core, so many milliseconds at once on average."""
    seed = os.environ.get("SEED") or str(random.randrange(10000))
    print(f"  stolen time: {share:.0%}, {mean_ms:g} ms at once, SEED={seed}", file=sys.stderr)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        sys.exit("  stolen time: none, as real-time priorities need root's rights")
    for core in os.sched_getaffinity(0):
        if os.fork() == 0:
            steal(core, mean_ms / 1e3, share, most_ms / 1e3, seed)
            os._exit(0)
    signal.pause()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
