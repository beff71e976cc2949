"""From which numbers random ones follow, in each role: those of random, numpy, torch and tensors.

Owns ``TENSORS``, of which each drawing of a tensor takes a seed: helpers draw, and children say
from what. It lies here because a role is seeded before the rooms of tensors are loaded.
"""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np

TENSORS = random.Random(0)  # outside of a launch the same in every run, as torch's


def of_role(seed: int, role: str) -> int:
    """A seed for that role, of 63 bits: different in each, repeatable."""
    digest = hashlib.blake2b(f"{seed}/{role}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int, role: str) -> None:
    """Seed random, numpy.random, torch and tensors for a role that is beginning."""
    mine = of_role(seed, role)
    random.seed(mine)
    np.random.seed(mine & 0xFFFFFFFF)
    TENSORS.seed(mine)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that looks for every kind of accelerator (2 MiB of pages a
        # child). A CUDA helper passes this seed on to its device.
        torch.default_generator.manual_seed(mine)


def seed_caller(seed: int) -> None:
    """Seed tensors of a process that becomes child 0; its other generators are the program's."""
    TENSORS.seed(of_role(seed, "child 0"))
