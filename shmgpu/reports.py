"""What a role has to say at its end: a result, or why there is none.

Owns one anonymous memory file for each role, made by the parent before it forks and read by
it after the role has ended. A role writes its own and closes the others'; nothing of this
goes through a pipe, so the size of a result does not matter.
"""

from __future__ import annotations

import os
import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
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


class Reports:
    """One memory file for each of ``count`` roles called ``name``."""

    def __init__(self, name: str, count: int) -> None:
        self._descriptors: list[int] = []
        try:
            for index in range(count):
                self._descriptors.append(os.memfd_create(f"shmgpu-{name}-{index}", os.MFD_CLOEXEC))
        except OSError:
            self.close()
            raise

    def keep_only(self, index: int | None) -> None:
        """In a role: close the files of the others."""
        for other, descriptor in enumerate(self._descriptors):
            if other != index and descriptor >= 0:
                os.close(descriptor)
                self._descriptors[other] = -1

    def close(self) -> None:
        """Close all that are open here."""
        self.keep_only(None)

    def write(self, index: int, report: Report) -> bool:
        """Say how this role ended; False when a result could not be pickled."""
        ok = True
        try:
            data = pickle.dumps(report, protocol=5)
        except Exception as error:
            ok = False
            kind = type(report.value).__name__
            data = pickle.dumps(
                Report(
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

    def read(self, index: int) -> Report | None:
        """What a role said; None when it said nothing, or nothing whole."""
        descriptor = self._descriptors[index]
        size = os.fstat(descriptor).st_size
        if size == 0:
            return None
        parts = []
        done = 0
        while done < size:
            part = os.pread(descriptor, min(size - done, 1 << 30), done)
            if not part:
                return None
            parts.append(part)
            done += len(part)
        try:
            report = pickle.loads(b"".join(parts))
        except Exception as error:
            return Report(
                "unreturnable",
                None,
                f"what it returned cannot be read back ({type(error).__name__}: {error}): return "
                "objects of classes that the launching program can import",
                traceback.format_exc(),
            )
        return report if isinstance(report, Report) else None
