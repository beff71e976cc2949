"""What every request of a storm came to, in memory that outlives whoever wrote it.

One anonymous shared mapping, made before the launch. A child notes each request before it sends it
and again when it has ended; a helper notes each execution; so when either is killed, the ledger
still says what was under way. From it follow the promises that the storm holds the broker to:
every request ends exactly once, and none is executed more often than it may be.

Owns the mapping and these checks. Must never call the broker.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import Counter

import numpy as np

RING = 1 << 14  # requests of one child that are remembered; far more than can be under way
MAX_HELPERS = 16
NUMBER_BITS = 48  # of a token; the child's number lies above
COMPLAINT_BYTES = 1 << 16

# How a request ended. OPEN: not yet. LOST: its child was killed first. INTERRUPTED: by Ctrl-C.
OUTCOMES = ("open", "result", "raised", "died", "timed out", "cancelled", "refused", "lost")
OUTCOMES += ("interrupted",)
OPEN, RESULT, RAISED, DIED, TIMED_OUT, CANCELLED, REFUSED, LOST, INTERRUPTED = range(len(OUTCOMES))
ANY = 255  # executions of a lost request that another process than its child sent


class Ledger:
    """The mapping, as arrays.

    Attributes:
        child_pid, helper_pid: who holds each place now; 0: nobody has yet.
        quiet: 1 for each child that sends no more load.
        lost: requests that killed children left open, by child.
        hangs: requests that were meant to hang, by child.
        forks_killed: processes that children forked, and killed while they had places, by child.
        words: what the killer, the children and the program tell each other; see WORDS.
    """

    WORDS = ("go", "calm", "over", "kills", "stops", "complaints", "complaint_bytes")
    WORDS += ("scales", "scalings")

    def __init__(self, children: int, helpers: int) -> None:
        if helpers > MAX_HELPERS:
            raise ValueError(f"a ledger has room for {MAX_HELPERS} helpers, not {helpers}")
        self.children, self.helpers = children, helpers
        plan = {
            "words": ((len(self.WORDS),), "u8"),
            "child_pid": ((children,), "i8"),
            "helper_pid": ((helpers,), "i8"),
            "quiet": ((children,), "u1"),
            "lost": ((children,), "u8"),
            "hangs": ((children,), "u8"),
            "forks_killed": ((children,), "u8"),
            "number": ((children, RING), "u8"),
            "kind": ((children, RING), "u1"),
            "outcome": ((children, RING), "u1"),
            "ended": ((children, RING), "u1"),
            "frozen": ((children, RING), "u1"),
            "executions": ((children, RING, helpers), "u1"),
            "text": ((COMPLAINT_BYTES,), "u1"),
        }
        sizes = {
            name: -(-int(np.prod(shape)) * np.dtype(kind).itemsize // 64) * 64
            for name, (shape, kind) in plan.items()
        }
        self._map = mmap.mmap(-1, sum(sizes.values()))
        offset = 0
        for name, (shape, kind) in plan.items():
            view = np.frombuffer(self._map, kind, int(np.prod(shape)), offset).reshape(shape)
            setattr(self, name, view)
            offset += sizes[name]
        self.touch()

    def touch(self) -> None:
        """Take every page now, so that the ledger's own growth is nobody's."""
        np.frombuffer(self._map, "u1")[:: mmap.PAGESIZE] |= 0

    def get(self, word: str) -> int:
        return int(self.words[self.WORDS.index(word)])

    def set(self, word: str, value: int) -> None:
        self.words[self.WORDS.index(word)] = value

    def add(self, word: str, more: int = 1) -> None:
        """Only one process counts each word."""
        self.words[self.WORDS.index(word)] += more

    def complain(self, text: str) -> None:
        """A promise was broken. Two who complain at once may garble the text, never the count."""
        self.add("complaints")
        line = (text.replace("\n", " | ")[:1000] + "\n").encode()
        at = self.get("complaint_bytes")
        if at + len(line) <= COMPLAINT_BYTES:
            self.add("complaint_bytes", len(line))
            self.text[at : at + len(line)] = np.frombuffer(line, "u1")

    def complaints(self) -> list[str]:
        lines = self.text.tobytes().rstrip(b"\0").decode(errors="replace").splitlines()
        return lines if lines or not self.get("complaints") else ["(the text was lost)"]

    def note_execution(self, helper: int, token: int) -> None:
        """In a helper, first thing in every function."""
        child, number = token >> NUMBER_BITS, token & ((1 << NUMBER_BITS) - 1)
        cell = number % RING
        if child >= self.children or self.number[child, cell] != number:
            self.complain(f"helper {helper} executed request {number} of child {child}: unknown")
        else:
            self.executions[child, cell, helper] += 1


class Book:
    """One child's requests; those of an ``idempotent[kind]`` may be executed twice.

    Those of the kinds ``by_forks`` are sent by processes that it forked, which may outlive it.
    """

    def __init__(
        self,
        ledger: Ledger,
        child: int,
        idempotent: list[bool],
        by_forks: frozenset[int] = frozenset(),
    ) -> None:
        self.ledger, self.child = ledger, child
        self._idempotent = idempotent
        self._by_forks = by_forks
        self._lock = threading.Lock()
        self.number, self.kind = ledger.number[child], ledger.kind[child]
        self.outcome, self.ended = ledger.outcome[child], ledger.ended[child]
        self.frozen, self.executions = ledger.frozen[child], ledger.executions[child]
        self.first = self._next = int(self.number.max()) + 1
        self.outcomes: Counter[int] = Counter()  # of this generation

    # -- the child's --

    def begin(self, kind: int) -> int:
        """A request is about to be sent: its token, which its arguments carry."""
        with self._lock:
            number = self._next
            self._next += 1
            cell = number % RING
            if self.number[cell]:
                self._check(cell)
            self.number[cell] = 0  # a cell without a number says nothing, whoever is killed here
            self.outcome[cell] = OPEN
            self.ended[cell] = 0
            self.executions[cell] = 0
            self.kind[cell] = kind
            self.number[cell] = number
            return self.child << NUMBER_BITS | number

    def end(self, token: int, outcome: int) -> None:
        """It ended so. Whoever ends a request a second time breaks the storm's first promise."""
        cell = token % RING
        with self._lock:
            self.outcome[cell] = outcome
            self.ended[cell] += 1
            self.outcomes[outcome] += 1

    def inherit(self, window: int) -> int:
        """Of who had this place before: requests that it was killed over are lost; how many.

        They can be executed no more, or this generation would not run.
        """
        cells = np.flatnonzero((self.number != 0) & (self.outcome == OPEN))
        for cell in cells:
            is_by_fork = int(self.kind[cell]) in self._by_forks
            self.frozen[cell] = ANY if is_by_fork else self.executions[cell].sum()
            self.outcome[cell] = LOST
        self.ledger.lost[self.child] += len(cells)
        if len(cells) > window:
            self._complain(f"{len(cells)} requests were open in a child that was killed")
        return len(cells)

    # -- checks --

    def unfinished(self) -> list[int]:
        """Numbers of this generation's requests that have not ended."""
        mine = (self.number >= self.first) & (self.outcome == OPEN)
        return [int(number) for number in self.number[mine]]

    def check_all(self) -> None:
        """At the end: every request that is remembered."""
        for cell in np.flatnonzero(self.number):
            self._check(int(cell))

    def _check(self, cell: int) -> None:
        outcome, ended = int(self.outcome[cell]), int(self.ended[cell])
        runs = int(self.executions[cell].sum())
        most = 2 if self._idempotent[int(self.kind[cell])] else 1
        least = 1 if outcome in (RESULT, RAISED) else 0
        # One that was killed between noting how a request ended and that it did is excused.
        fewest = 1 if int(self.number[cell]) >= self.first else 0
        if outcome == OPEN:
            self._complain(f"{self._name(cell)} never ended")
        elif outcome == LOST:
            if self.frozen[cell] not in (runs, ANY):
                self._complain(f"{self._name(cell)} was executed after its child's successor began")
        elif not fewest <= ended <= 1:
            self._complain(f"{self._name(cell)} ended {ended} times")
        if not least <= runs <= most:
            self._complain(f"{self._name(cell)} was executed {runs} times, not {least} to {most}")

    def _name(self, cell: int) -> str:
        return (
            f"request {int(self.number[cell])} (kind {int(self.kind[cell])}, "
            f"{OUTCOMES[int(self.outcome[cell])]})"
        )

    def _complain(self, text: str) -> None:
        self.ledger.complain(f"child {self.child} (pid {os.getpid()}): {text}")
