"""The form of a trace: how it is written, read and described.

One event a line: ``+BYTES`` allocates, ``-AGE`` frees the block that was allocated AGE
allocations ago (1 is the latest). Lines that begin with ``#`` say where it is from. Blocks still
alive at the end are the replayer's to free.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

HEADINGS = (
    "| trace | allocations | frees | distinct sizes | min | 25 % | median | 75 % | 99 % "
    "| max (bytes) | lifetime p50 / p90 / max (allocations) | peak live |"
)


class Trace:
    """A trace that is being written: ``lines`` so far. A block is known by its number, from 0."""

    def __init__(self, about: str) -> None:
        self.lines = [f"# {about}"]
        self.count = 0

    def allocate(self, nbytes: int) -> int:
        """Write an allocation and return the block."""
        self.lines.append(f"+{nbytes}")
        self.count += 1
        return self.count - 1

    def free(self, block: int) -> None:
        """Write that ``block`` is freed."""
        self.lines.append(f"-{self.count - block}")

    def text(self) -> str:
        """Return the trace as it is kept."""
        return "\n".join(self.lines) + "\n"


def events(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield (block, bytes) for each allocation and (block, 0) for each free."""
    count = 0
    for line in lines:
        if line.startswith("+"):
            yield count, int(line[1:])
            count += 1
        elif line.startswith("-"):
            yield count - int(line[1:]), 0


def peak_live_bytes(lines: Iterable[str]) -> int:
    """Return the most bytes that were asked for and not yet freed."""
    sizes: list[int] = []
    live = peak = 0
    for block, nbytes in events(lines):
        if nbytes:
            sizes.append(nbytes)
        live += nbytes or -sizes[block]
        peak = max(peak, live)
    return peak


def describe(path: Path) -> str:
    """Return a Markdown table row: counts, sizes' quantiles, lifetimes, peak live bytes."""
    lines = path.read_text().splitlines()
    sizes: list[int] = []
    lifetimes: list[int] = []
    for block, nbytes in events(lines):
        if nbytes:
            sizes.append(nbytes)
        else:
            lifetimes.append(len(sizes) - block)
    size = statistics.quantiles(sizes, n=100, method="inclusive")
    life = statistics.quantiles(lifetimes, n=100, method="inclusive")
    cells = [
        path.stem, len(sizes), len(lifetimes), len(set(sizes)), min(sizes), round(size[24]),
        round(size[49]), round(size[74]), round(size[98]), max(sizes),
        f"{life[49]:.0f} / {life[89]:.0f} / {max(lifetimes)}",
        f"{peak_live_bytes(lines) / 2**20:.2f} MiB",
    ]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(paths: Iterable[Path]) -> str:
    """Return the Markdown table of traces, a row each."""
    return "\n".join([HEADINGS, "|" + "---|" * 12, *map(describe, paths)])
