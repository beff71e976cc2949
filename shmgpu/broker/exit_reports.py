"""What a role reports at its end: a result, why there is none, or the stack it died with.

Owns anonymous memory files, one for each role. The parent makes them before it forks, and reads one
after its role has ended. A role writes its own file and closes the others. Results never pass
through a pipe, so their size does not matter.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any

from shmgpu.errors import LaunchError


@dataclass
class ExitReport:
    """How a role ended.

    Attributes:
        kind: ``"result"``, ``"error"``, or ``"unreturnable"`` for a result that has no pickle.
        value: the result.
        message: of the exception.
        traceback_text: of the exception.
    """

    kind: str
    value: Any = None
    message: str = ""
    traceback_text: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class MemoryFiles:
    """One anonymous memory file for each of ``count`` roles called ``name``."""

    def __init__(self, name: str, count: int) -> None:
        self._descriptors: list[int] = []
        try:
            for index in range(count):
                self._descriptors.append(os.memfd_create(f"shmgpu-{name}-{index}", os.MFD_CLOEXEC))
        except OSError as error:
            self.close()
            raise LaunchError(
                f"{count} {name} processes need more open files than are allowed "
                f"({error.strerror}): raise the limit with ulimit -n, or start fewer"
            ) from error

    def keep_only(self, index: int | None) -> None:
        """In a role: close the files of the others."""
        kept = self._descriptors[index] if index is not None else -1
        going = sorted({d for d in self._descriptors if d >= 0 and d != kept})
        # Descriptors made one after the other mostly have consecutive numbers, which are closed in
        # one call: each of a thousand children closes a thousand.
        first = 0
        for at in range(1, len(going) + 1):
            if at == len(going) or going[at] != going[at - 1] + 1:
                os.closerange(going[first], going[at - 1] + 1)
                first = at
        self._descriptors = [d if d == kept else -1 for d in self._descriptors]

    def close(self) -> None:
        """Close all that are open here."""
        self.keep_only(None)

    def forget(self, index: int) -> None:
        """Whoever has the slot next starts with nothing said."""
        os.ftruncate(self._descriptors[index], 0)

    def _contents(self, index: int) -> bytes | None:
        """All of it; None when it shrinks meanwhile."""
        descriptor = self._descriptors[index]
        size = os.fstat(descriptor).st_size
        parts = []
        done = 0
        while done < size:
            part = os.pread(descriptor, min(size - done, 1 << 30), done)
            if not part:
                return None
            parts.append(part)
            done += len(part)
        return b"".join(parts)


class Stacks(MemoryFiles):
    """Where a role's stack goes when a fatal signal ends it."""

    LIMIT = 64 << 10  # bytes of it that are told

    def __init__(self, name: str, count: int) -> None:
        super().__init__(f"{name}-stack", count)
        for descriptor in self._descriptors:
            # Processes of one slot share the file, but not a position in it: each appends.
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)

    def descriptor(self, index: int) -> int:
        """For :func:`faulthandler.enable`."""
        return self._descriptors[index]

    def take(self, index: int) -> str:
        """What is there, once; empty when no fatal signal came."""
        text = (self._contents(index) or b"")[: self.LIMIT]
        self.forget(index)
        return text.decode("utf-8", "replace").strip()


class Reports(MemoryFiles):
    """What each role has to say at its end."""

    def has_one(self, index: int) -> bool:
        """Whether anything was said."""
        return os.fstat(self._descriptors[index]).st_size > 0

    def write(self, index: int, report: ExitReport) -> bool:
        """Say how this role ended; False when a result could not be pickled."""
        ok = True
        try:
            data = pickle.dumps(report, protocol=5)
        except Exception as error:
            ok = False
            kind = type(report.value).__name__
            data = pickle.dumps(
                ExitReport(
                    "unreturnable",
                    None,
                    f"a {kind} cannot be returned from a child ({error}): return plain values "
                    "and arrays, or write it to a file",
                    traceback.format_exc(),
                )
            )
        descriptor = self._descriptors[index]
        os.ftruncate(descriptor, 0)
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, memoryview(data)[done : done + (1 << 30)], done)
        return ok

    def read(self, index: int) -> ExitReport | None:
        """What a role said; None when it said nothing, or nothing whole."""
        data = self._contents(index)
        if not data:
            return None
        try:
            report = pickle.loads(data)
        except Exception as error:
            return ExitReport(
                "unreturnable",
                None,
                f"what it returned cannot be read back ({type(error).__name__}: {error}): return "
                "objects of classes that the launching program can import",
                traceback.format_exc(),
            )
        return report if isinstance(report, ExitReport) else None
