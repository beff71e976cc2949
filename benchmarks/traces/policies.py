"""How far the textbook's policies get on a trace, with all the time of the world to search.

    python -m benchmarks.traces.policies cnn_training

prints, for each policy, the highest address that it took over the most bytes that were live. Blocks
have no headers and no alignment unless ``--header``, ``--align`` say so; neighbours that are free
are one. Each policy looks at every free block, which no allocator with a bound on its time does: so
what the best of them needs is what a request's order and sizes cost without knowledge of the future
(Wilson et al., "Dynamic Storage Allocation: A Survey and Critical Review", 1995).
"""

from __future__ import annotations

import argparse
import bisect
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.traces.form import events, peak_live_bytes

Free = list[tuple[int, int]]  # address and size of free blocks, by address
Choice = Callable[[Free, list[int]], int]  # which of those that are large enough

POLICIES: dict[str, Choice] = {
    "best fit": lambda free, fitting: min(fitting, key=lambda one: free[one][1]),
    "first fit": lambda free, fitting: fitting[0],
    "last fit": lambda free, fitting: fitting[-1],
    "worst fit": lambda free, fitting: max(fitting, key=lambda one: free[one][1]),
}


def footprint(lines: Iterable[str], choice: Choice, header: int = 0, align: int = 1) -> int:
    """Return the highest address that a policy takes, in bytes from its first.

    Args:
        lines: a trace.
        choice: of POLICIES.
        header: bytes before each block.
        align: what sizes are rounded up to.
    """
    free: Free = []
    taken: dict[int, tuple[int, int]] = {}
    end = highest = 0
    for block, nbytes in events(lines):
        if not nbytes:
            _give_back(free, *taken.pop(block))
            continue
        need = -(-(nbytes + header) // align) * align
        fitting = [index for index, (_, size) in enumerate(free) if size >= need]
        if fitting:
            index = choice(free, fitting)
            address, size = free[index]
            free[index : index + 1] = [(address + need, size - need)] if size > need else []
        else:
            touches = bool(free) and sum(free[-1]) == end
            address = free.pop()[0] if touches else end
            end = address + need
            highest = max(highest, end)
        taken[block] = address, need
    return highest


def _give_back(free: Free, address: int, size: int) -> None:
    index = bisect.bisect(free, (address, 0))
    if index < len(free) and address + size == free[index][0]:
        size += free.pop(index)[1]
    if index and sum(free[index - 1]) == address:
        free[index - 1] = free[index - 1][0], free[index - 1][1] + size
    else:
        free.insert(index, (address, size))


def main() -> None:
    """Print the ratio of each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trace", help="name of a recorded trace, such as cnn_training")
    parser.add_argument("--header", type=int, default=0, help="bytes before each block")
    parser.add_argument("--align", type=int, default=1, help="what sizes are rounded up to")
    given = parser.parse_args()
    path = Path(__file__).parent / f"{given.trace}.trace"
    if not path.is_file():
        parser.error(f"there is no recorded trace {given.trace!r} beside {Path(__file__).name}")
    lines = path.read_text(encoding="utf-8").splitlines()
    live = peak_live_bytes(lines)
    for name, choice in POLICIES.items():
        ratio = footprint(lines, choice, given.header, given.align) / live
        print(f"{name:10s} {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
