"""Where tensors lie, computed again from the instructions alone.

Owns the check that helpers compute only on what they hold: it reads the rows in order, as a
bookkeeper would. Never asks the recorder.
"""

from __future__ import annotations

from collections.abc import Iterable

from shmgpu.errors import ShmError
from shmgpu.tensors.debug.rows import Instruction


class Unsound(ShmError):
    """An operation was given what was not there."""


class Ledger:
    """Handles and the tensors under them, as far as the rows have been read."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], int] = {}  # (helper, handle) -> tensor
        self._homes: dict[int, int] = {}  # tensor -> helper
        self._in_arena: set[int] = set()  # tensors of _homes that the arena has, too
        self._message = 0
        self._local: set[int] = set()  # what the message being read may take

    def copy(self) -> Ledger:
        """One that goes on from here."""
        made = Ledger()
        made._held, made._homes = dict(self._held), dict(self._homes)
        made._in_arena, made._local = set(self._in_arena), set(self._local)
        made._message = self._message
        return made

    def apply(self, row: Instruction) -> str:
        """Read the next row: what is wrong with it, as a sentence, or nothing."""
        wrong = ""
        if row.message != self._message and row.kind != "MOVE":
            self._message, self._local = row.message, set()
        if row.kind == "MOVE":
            if self._held.get((row.source, row.handle)) != row.tensor:
                wrong = f"helper {row.source} does not hold what it is to give away"
            self._in_arena.add(row.tensor)
        elif row.kind == "LOAD":
            home = self._homes.get(row.tensor)
            if home is not None and row.tensor not in self._in_arena:
                wrong = f"it lies with helper {home}, and no MOVE or READ brought it to the arena"
            self._local.add(row.tensor)
        elif row.kind == "USE":
            if self._held.get((row.helper, row.handle)) != row.tensor:
                home = self._homes.get(row.tensor)
                where = "nowhere" if home is None else f"with helper {home}"
                wrong = f"handle {row.handle} is not that tensor's there: it lies {where}"
            self._local.add(row.tensor)
        elif row.kind == "RUN":
            absent = [one for one in row.inputs if one not in self._local]
            if absent:
                wrong = f"{row.call} takes #{absent[0]}, which is not there"
            self._local.add(row.tensor)
        elif row.kind == "KEEP":
            self._held[row.helper, row.handle] = row.tensor
            self._homes[row.tensor] = row.helper
        elif row.kind == "READ":
            if row.tensor in self._homes:
                self._in_arena.add(row.tensor)
        elif row.kind in ("FREE", "REUSE"):
            self._let_go(row.helper, row.handle)
        elif row.kind == "DIED":
            for helper, handle in [key for key in self._held if key[0] == row.helper]:
                self._let_go(helper, handle)
        return wrong

    def _let_go(self, helper: int, handle: int) -> None:
        tensor = self._held.pop((helper, handle), None)
        if tensor is not None and self._homes.get(tensor) == helper:
            del self._homes[tensor]
            self._in_arena.discard(tensor)


def check(before: Ledger, rows: Iterable[Instruction]) -> int:
    """Read all rows: how many operations there were.

    Raises:
        Unsound: an operation's input was not with its helper, and no MOVE brought it there.
    """
    ledger = before.copy()
    count = 0
    for row in rows:
        wrong = ledger.apply(row)
        if wrong:
            raise Unsound(
                f"message {row.message}, {row.kind} #{row.tensor} on helper {row.helper}: {wrong}"
            )
        count += row.kind == "RUN"
    return count
