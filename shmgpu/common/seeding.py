"""Seeds of each role: for random, numpy, torch and tensors.

Owns ``TENSORS``, from which every random tensor takes its seed: helpers draw the numbers, and
children say from which seed. It is in this wing because a role is seeded before tensors are
imported. Never imports torch: a program that has not imported it needs no seed there.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np

from shmgpu.common.wording import kind_of

_64_BITS = (1 << 64) - 1
_63_BITS = (1 << 63) - 1


class Seeds:
    """One number for each draw, each greater by one than the last: so helpers can draw ahead.

    Whoever draws mixes it (:func:`mixed`): neighbours share nothing but that.

    Attributes:
        initial: the seed with which it began.
        state: the next number, of 63 bits.
    """

    __slots__ = ("initial", "state")

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, seed: int | None) -> None:
        """Begin where that seed says; None: anywhere."""
        self.initial = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self.state = mixed(self.initial) & _63_BITS

    def next(self) -> int:
        """The number of one draw."""
        number = self.state
        self.state = number + 1 & _63_BITS
        return number


def mixed(number: int) -> int:
    """SplitMix64's next number (Steele, Lea and Flood, OOPSLA 2014): every bit depends on all."""
    number = number + 0x9E3779B97F4A7C15 & _64_BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _64_BITS
    return number ^ number >> 31


TENSORS = Seeds()  # random, from the system, until the seed is known

_AFRESH, _OF_ROLE, _OF_USER = range(3)
_from = _AFRESH


def of_role(seed: int, role: str) -> int:
    """A seed for that role, of 63 bits: different in each, repeatable.

    With plain numbers: a hash of hashlib's writes to 110 KiB of pages that each child inherited.
    """
    made = mixed(seed & _64_BITS)
    for byte in role.encode():
        made = mixed(made ^ byte)
    return made >> 1


def seed_all(seed: int, role: str) -> None:
    """Seed random, numpy.random, torch and tensors for a role that is beginning."""
    mine = of_role(seed, role)
    random.seed(mine)
    np.random.seed(mine & 0xFFFFFFFF)
    _seed_tensors(mine, _OF_ROLE)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that looks for every kind of accelerator (2 MiB of pages a
        # child). A CUDA helper passes this seed on to its device.
        torch.default_generator.manual_seed(mine)


def seed_caller(seed: int) -> None:
    """Seed tensors of a process that becomes child 0; its other generators are the program's."""
    _seed_tensors(of_role(seed, "child 0"), _OF_ROLE)


def seed_by_user(seed: int) -> None:
    """Seed tensors with a program's own number, which holds in what it joins, and forks, too.

    Raises:
        TypeError: it is not a whole number.
    """
    if not hasattr(seed, "__index__"):
        raise TypeError(f"the seed must be a whole number, not {kind_of(seed)}")
    seed = seed.__index__()
    _seed_tensors(seed, _OF_USER)


def seed_joined(seed: int | None, slot: int) -> None:
    """Seed tensors of a process that has a slot in a broker it was not forked by.

    Once in its life: who loses a broker, and joins the next, does not draw the same again.
    """
    if seed is not None and _from == _AFRESH:
        _seed_tensors(of_role(seed, f"child {slot}"), _OF_ROLE)


def draw_afresh() -> None:
    """What tensors draw follows from nothing that is known, unless the program has seeded them."""
    if _from != _OF_USER:
        _seed_tensors(None, _AFRESH)


def _seed_tensors(seed: int | None, origin: int) -> None:
    global _from
    TENSORS.begin(seed)
    _from = origin


os.register_at_fork(after_in_child=draw_afresh)  # siblings are not to draw alike
