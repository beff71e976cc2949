"""The control table: what clients see of the server's state, whichever worker they ask.

Owns one memory file that the parent makes before the first fork and keeps for as long as the server
lives, so the death of a worker or helper never loses it. A writer holds its lock, which the kernel
releases if it dies, writes the whole state into the half that nobody reads, and then advances the
version: readers see the state before or the state after. Reading costs a look at the version; the
state is decoded only when that has changed.

Never holds anything that changes with every request: see :mod:`shmgpu.serve.state.counters`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import orjson

from shmgpu.errors import ConfigError

# Its first words, each written whole: what packs a struct clears its place first, and others read
# meanwhile. The version; bytes of the even half, of the odd half; then, apart from the state, as
# the parent writes them and must not wait for a lock: whether the server ends, and how many reloads
# were asked for. The long lock guards how many of those are done.
_VERSION, _SIZES, _DRAINING, _ASKED, _DONE = 0, 1, 3, 4, 5
_HEAD_BYTES = 64
HALF_BYTES = 4 << 20


class ControlTable:
    """The table; made once, before the first fork."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._file = os.memfd_create("shmgpu-serve", os.MFD_CLOEXEC)
        os.ftruncate(self._file, _HEAD_BYTES + 2 * HALF_BYTES)
        self._memory = mmap.mmap(self._file, _HEAD_BYTES + 2 * HALF_BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._long = os.memfd_create("shmgpu-serve-lock", os.MFD_CLOEXEC)
        self._is_held = False
        self._mutex = threading.Lock()
        self._seen = -1
        self._state: dict[str, Any] = {}
        self._write(0, state)

    @property
    def version(self) -> int:
        """How often it was changed."""
        return self._words[_VERSION]

    def read(self) -> tuple[int, dict[str, Any]]:
        """Version and state, which the caller must not change."""
        while self._seen != self.version:
            version = self.version
            half = version & 1
            start = _HEAD_BYTES + half * HALF_BYTES
            data = self._memory[start : start + self._words[_SIZES + half]]
            if version == self.version:  # two changes later this half would be overwritten
                self._state = orjson.loads(data)
                self._seen = version
        return self._seen, self._state

    @contextlib.contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """The state, to be changed in place; it is published when the block ends without error."""
        with self._mutex:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                version, state = self.read()
                state = orjson.loads(orjson.dumps(state))
                yield state
                self._write(version + 1, state)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _write(self, version: int, state: dict[str, Any]) -> None:
        data = orjson.dumps(state)
        if len(data) > HALF_BYTES:
            raise ConfigError(
                f"the server's state has {len(data):,} bytes and may have {HALF_BYTES:,}: serve "
                "fewer models, or register fewer regions"
            )
        half = version & 1
        start = _HEAD_BYTES + half * HALF_BYTES
        self._memory[start : start + len(data)] = data
        self._words[_SIZES + half] = len(data)
        self._words[_VERSION] = version

    def try_hold(self) -> bool:
        """Take the long lock, under which models are loaded and unloaded; False: it is taken."""
        if self._is_held:
            return False
        try:
            fcntl.lockf(self._long, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._is_held = True
        return True

    def let_go(self) -> None:
        """Give the long lock back."""
        self._is_held = False
        fcntl.lockf(self._long, fcntl.LOCK_UN)

    @property
    def is_draining(self) -> bool:
        """Whether the server is on its way to its end."""
        return self._words[_DRAINING] != 0

    def begin_draining(self) -> None:
        """The server is on its way to its end."""
        self._words[_DRAINING] = 1

    def ask_reload(self) -> None:
        """Ask for a reload of all models, which a worker will do."""
        self._words[_ASKED] = self.reloads_asked + 1

    @property
    def reloads_asked(self) -> int:
        """How often that was asked for."""
        return self._words[_ASKED]

    @property
    def reloads_done(self) -> int:
        """How many of those are done; whoever sets it holds the long lock."""
        return self._words[_DONE]

    @reloads_done.setter
    def reloads_done(self, count: int) -> None:
        self._words[_DONE] = count

    def close(self) -> None:
        """Give it back."""
        self._words.release()
        self._memory.close()
        os.close(self._file)
        os.close(self._long)
