"""Programs that people start when they please share the two helpers of one broker.

The broker is started with this file, and then as many copies of it as you like, each from a
terminal of its own::

    shmgpu up --helpers 2 examples/multi_user.py
    python examples/multi_user.py ann
    python examples/multi_user.py bob
"""

from __future__ import annotations

import sys
import zlib

import numpy as np

import shmgpu

ROUNDS, AT_ONCE = 50, 4


def load(helper):  # once in each helper of the broker; a copy of this program never runs it
    return np.random.default_rng(7).standard_normal((64, 10), dtype="float32")


@shmgpu.function(arrays="numpy")
def scores(helper, rows):
    return rows @ helper.session, helper.id


def main(user: str) -> None:
    weights = load(None)  # only to check the answers
    random = np.random.default_rng(zlib.crc32(user.encode()))
    helpers = set()
    with shmgpu.connect(wait=30):  # this process is one of the broker's children, until it leaves
        blocks = [shmgpu.arena.empty((8, 64), "float32") for _ in range(AT_ONCE)]
        for _ in range(ROUNDS):
            for block in blocks:
                random.standard_normal(dtype="float32", out=block)
            for block, (answer, helper) in zip(blocks, scores.map(blocks), strict=True):
                if not np.allclose(answer, block @ weights, atol=1e-4):
                    sys.exit(f"{user}: a wrong answer from helper {helper}")
                helpers.add(helper)
    print(f"{user}: {ROUNDS * AT_ONCE} right answers from helpers {sorted(helpers)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "somebody")
