"""The first tensor of a broker's life is made in a child: nothing of tensors was loaded before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import shmgpu
def main(rank):
    return (shmgpu.ones(2) + rank).data.tolist()
print(shmgpu.launch(main, children=2, helpers=1, arena="8MiB"))
"""


def test_a_helper_that_knows_nothing_of_tensors_learns_it():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "[[1.0, 1.0], [2.0, 2.0]]", done.stderr
