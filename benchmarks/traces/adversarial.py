"""Make the traces that are meant to hurt: patterns on which allocators are known to do badly.

No program did this; each trace is a pattern taken to its extreme, made from a seed, the same on
every machine and Python. They are written when they are needed and not kept.

    python -m benchmarks.traces.adversarial FOLDER     write all, and print their distribution
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.traces.form import Trace, table

SEED = 20260101
KIB, MIB = 1 << 10, 1 << 20
LIVE = 1_000
STEPS = 20_000


class Chooser:
    """Numbers from a seed, made of ``random()`` alone: its sequence is promised for all Pythons."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """Return a number from 0 to ``bound`` - 1."""
        return int(self._random() * bound)

    def log_uniform(self, least: int, most: int) -> int:
        """Return a number between the two; each octave is as likely as any other."""
        octaves = (most // least).bit_length() - 1
        octave = least << self.below(octaves)
        return octave + self.below(octave)

    def pop(self, blocks: list[int]) -> int:
        """Take any block out of the list."""
        index = self.below(len(blocks))
        blocks[index], blocks[-1] = blocks[-1], blocks[index]
        return blocks.pop()


def comb(trace: Trace, chooser: Chooser) -> None:
    """Fill 16 MiB, free every other block, fill up with twice the size; 1 KiB to 128 KiB, twice.

    No hole that is left holds the next size unless its neighbour goes: Robson's adversary (1974),
    which leaves any allocator that cannot move blocks with more holes than blocks.
    """
    for _ in range(2):
        live: list[int] = []
        kept_bytes = 0
        for size in (KIB << doublings for doublings in range(8)):
            fresh = [trace.allocate(size) for _ in range((16 * MIB - kept_bytes) // size)]
            for block in fresh[::2]:
                trace.free(block)
            live += fresh[1::2]
            kept_bytes += size * len(fresh[1::2])
        while live:
            trace.free(chooser.pop(live))


def growing(trace: Trace, chooser: Chooser) -> None:
    """Let 16 buffers double from some 100 B to 2 MiB, as growing lists do; then begin again.

    The new one is there before the old one goes, and the buffers take turns: the holes that one
    leaves never hold its next size.
    """
    blocks: list[tuple[int, int]] = []  # block, bytes
    for step in range(STEPS // 2):
        if step < 16:
            blocks.append((trace.allocate(64), 64))
            continue
        which = chooser.below(len(blocks))
        block, nbytes = blocks[which]
        nbytes = 64 + chooser.below(64) if nbytes > MIB else 2 * nbytes
        blocks[which] = (trace.allocate(nbytes), nbytes)
        trace.free(block)


def straddling(trace: Trace, chooser: Chooser) -> None:
    """Ask for sizes one byte below, at and above the borders of size classes, 64 B to 128 KiB.

    The borders are the powers of two and the sixteenths between them. What was freed from one side
    of a border does not serve the other, unless an allocator looks further.
    """
    live: list[int] = []
    for _ in range(STEPS):
        octave = 64 << chooser.below(11)
        border = octave + octave // 16 * chooser.below(16)
        live.append(trace.allocate(border + chooser.below(3) - 1))
        if len(live) > LIVE // 2:
            trace.free(chooser.pop(live))


def _sizes_in_order(trace: Trace, chooser: Chooser, free_one: Callable[[deque[int]], int]) -> None:
    live: deque[int] = deque()
    goal = LIVE
    for step in range(STEPS):
        if step % 250 == 0:
            goal = LIVE // 4 + chooser.below(LIVE)
        live.append(trace.allocate(chooser.log_uniform(64, 64 * KIB)))
        for _ in range(2):
            if len(live) > goal:
                trace.free(free_one(live))


def lifo(trace: Trace, chooser: Chooser) -> None:
    """Free the youngest of some 750 blocks first; sizes log-uniform from 64 B to 64 KiB."""
    _sizes_in_order(trace, chooser, lambda live: live.pop())


def fifo(trace: Trace, chooser: Chooser) -> None:
    """Free the oldest of some 750 blocks first; the sizes of ``lifo``."""
    _sizes_in_order(trace, chooser, lambda live: live.popleft())


def scattered(trace: Trace, chooser: Chooser) -> None:
    """Free any of some 750 blocks; the sizes of ``lifo``."""
    other = Chooser(SEED + 1)  # so that the sizes stay those of `lifo`

    def any_of(live: deque[int]) -> int:
        index = other.below(len(live))
        live[index], live[-1] = live[-1], live[index]
        return live.pop()

    _sizes_in_order(trace, chooser, any_of)


def few_huge(trace: Trace, chooser: Chooser) -> None:
    """Ask for one block of 2 to 8 MiB in 200, the others 64 B to 1 KiB; two huge ones live at most.

    Small blocks live long, and settle in the hole that a huge one left.
    """
    small: list[int] = []
    huge: deque[int] = deque()
    for step in range(STEPS):
        if step % 200 == 0:
            if len(huge) == 2:
                trace.free(huge.popleft())
            huge.append(trace.allocate(2 * MIB + chooser.below(6 * MIB)))
        else:
            small.append(trace.allocate(chooser.log_uniform(64, KIB)))
        if len(small) > 4 * LIVE:
            trace.free(chooser.pop(small))


PATTERNS: dict[str, Callable[[Trace, Chooser], None]] = {
    pattern.__name__: pattern
    for pattern in (comb, growing, straddling, lifo, fifo, scattered, few_huge)
}


def make(name: str) -> str:
    """Return the text of the trace of that name."""
    pattern = PATTERNS[name]
    trace = Trace(f"{name}: {(pattern.__doc__ or '').splitlines()[0]}")
    pattern(trace, Chooser(SEED))
    return trace.text()


def write(name: str, folder: Path) -> Path:
    """Write the trace of that name into ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.trace"
    path.write_text(make(name))
    return path


def main(arguments: Sequence[str]) -> None:
    """Write all and describe them, as the module's docstring says."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m benchmarks.traces.adversarial FOLDER")
    print(table(write(name, Path(arguments[0])) for name in PATTERNS))


if __name__ == "__main__":
    main(sys.argv[1:])
