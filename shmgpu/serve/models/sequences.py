"""Sequences: requests that belong together, and what a model keeps from one to the next.

Owns both ends. Workers choose a sequence's helper by the sequence's name alone, so every worker
chooses the same one, and need not share anything. That helper keeps the state, in a dictionary that
is passed to the model's function. Never copies a state to another process: when the helper is
replaced, or the model reloaded, the sequence is lost, and its next request is told so.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from shmgpu import core
from shmgpu.serve.models.errors import SequenceLost, TooManySequences

Key = tuple[int, str]  # number of the model, name of the sequence


def choose(model: str, name: str, helpers: Iterable[int]) -> int:
    """The helper of a sequence, by the highest random weight (rendezvous hashing).

    When a helper is no longer among them, only its own sequences go elsewhere.
    """
    text = f"{model}\n{name}".encode()

    def weight(helper: int) -> bytes:
        return hashlib.blake2b(text, digest_size=8, salt=helper.to_bytes(8, "little")).digest()

    return max(helpers, key=weight)


def standing(helpers: list[int]) -> list[int]:
    """Those that serve, or will again; all of them where none does, and the call will say why."""
    given_up = core.HELPER_GIVEN_UP
    return [one for one in helpers if core.helper_stats(one)["state"] != given_up] or helpers


class Sequences:
    """All that one helper keeps.

    Args:
        most: sequences at once.
        idle_s: seconds without a request until a sequence is dropped, when the next one comes.
    """

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._kept: OrderedDict[Key, tuple[float, dict[Any, Any]]] = OrderedDict()  # oldest first

    def state(self, key: Key, model: str, starts: bool) -> dict[Any, Any]:
        """What a sequence keeps; an empty dictionary at its start, even if it exists.

        Raises:
            SequenceLost: it was not begun here.
            TooManySequences: it cannot begin.
        """
        self._drop_idle()
        if starts:
            if key not in self._kept and len(self._kept) >= self._most:
                raise TooManySequences(
                    f"model '{model}' cannot begin sequence {key[1]}: its process keeps "
                    f"{self._most} already: end some, or try again"
                )
            state: dict[Any, Any] = {}
        else:
            found = self._kept.get(key)
            if found is None:
                raise SequenceLost(
                    f"inference request for sequence {key[1]} to model '{model}' must specify the "
                    "START flag on the first request of the sequence: it was never begun, has "
                    "been idle too long, or its process or model was replaced meanwhile"
                )
            state = found[1]
        self._kept[key] = time.monotonic(), state
        self._kept.move_to_end(key)
        return state

    def end(self, key: Key) -> None:
        """Forget one."""
        self._kept.pop(key, None)

    def forget(self, number: int) -> None:
        """A model was taken away, and its sequences with it."""
        for key in [one for one in self._kept if one[0] == number]:
            del self._kept[key]

    def _drop_idle(self) -> None:
        oldest = time.monotonic() - self._idle_s
        while self._kept:
            key = next(iter(self._kept))
            if self._kept[key][0] >= oldest:
                return
            del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)
