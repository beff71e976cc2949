"""The proof that no payload passed between processes: frames counted inside, bytes outside.

Each child and helper counts the frames that it sends and receives. The watcher has read from /proc
how many bytes each of them, and the parent between them, moved by system calls. A frame has 64
bytes, so the bytes must be 64 times the frames; if they are not, something else has passed. Owns
the two sums and their comparison. Never counts anything itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmgpu import core
from shmgpu.demo.serve import Served

FRAME_BYTES = core.FRAME_BYTES


@dataclass(frozen=True)
class ProcessTraffic:
    """One process's frames as the broker counted them, and its bytes as /proc did."""

    kind: str
    number: int
    frames_out: int
    frames_in: int
    written: int | None
    read: int | None

    @property
    def readable(self) -> bool:
        """Whether /proc said how many bytes it moved."""
        return self.written is not None and self.read is not None

    def differences(self) -> Iterator[str]:
        """A sentence for each direction in which frames and bytes disagree."""
        name = self.kind if self.kind == "parent" else f"{self.kind} {self.number}"
        for verb, frames, count in (
            ("wrote", self.frames_out, self.written),
            ("read", self.frames_in, self.read),
        ):
            expected = frames * FRAME_BYTES
            if count is not None and count != expected:
                yield (
                    f"{name} {verb} {count:,} bytes, and its {frames:,} frames are "
                    f"{expected:,}: {count - expected:+,} bytes"
                )


@dataclass(frozen=True)
class Audit:
    """Every process of a run, and what the copy sites counted as marshalled."""

    processes: tuple[ProcessTraffic, ...]
    marshalled: int

    @property
    def confirmed(self) -> bool:
        """Whether /proc could be asked about every process."""
        return all(process.readable for process in self.processes)

    @property
    def differences(self) -> list[str]:
        """What speaks against the claim, in sentences; empty when nothing does."""
        found = [line for process in self.processes for line in process.differences()]
        if self.marshalled:
            found.insert(0, f"copy sites counted {self.marshalled:,} marshalled bytes")
        return found

    def of_kind(self, kind: str) -> ProcessTraffic:
        """All processes of a kind as one; ``number`` is how many there are."""
        rows = [process for process in self.processes if process.kind == kind]
        written = [row.written for row in rows if row.written is not None]
        read = [row.read for row in rows if row.read is not None]
        return ProcessTraffic(
            kind,
            len(rows),
            sum(row.frames_out for row in rows),
            sum(row.frames_in for row in rows),
            sum(written) if len(written) == len(rows) else None,
            sum(read) if len(read) == len(rows) else None,
        )


def audit(served: Served) -> Audit:
    """Set what was counted inside beside what was read outside."""
    traffic = iter(served.outcome.traffic)
    processes = []
    for kind, key in (("child", "children"), ("helper", "helpers")):
        for number, (before, after) in enumerate(
            zip(served.before[key], served.after[key], strict=True)
        ):
            seen = next(traffic)
            processes.append(
                ProcessTraffic(
                    kind,
                    number,
                    after["frames_sent"] - before["frames_sent"],
                    after["frames_received"] - before["frames_received"],
                    seen.written,
                    seen.read,
                )
            )
    # What the parent passes on is what all others send.
    seen = next(traffic)
    processes.append(
        ProcessTraffic(
            "parent",
            0,
            sum(process.frames_in for process in processes),
            sum(process.frames_out for process in processes),
            seen.written,
            seen.read,
        )
    )
    return Audit(tuple(processes), served.bytes["marshalled"])
