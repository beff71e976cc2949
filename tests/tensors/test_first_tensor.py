"""The first tensor of a broker's life is made in a child: nothing of tensors was loaded before."""

from __future__ import annotations

import subprocess
import sys
import threading

import shmgpu
from shmgpu.child import runtime
from shmgpu.tensors import current

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


def test_threads_that_make_the_first_at_once_have_one_recorder(monkeypatch):
    """Else what one of them makes would belong to a recorder that is used no more."""
    helpers_of, made, makers = current._helpers, {}, []
    first, second = threading.Event(), threading.Event()

    class Extra(dict):
        def get(self, name, default=None):
            found = super().get(name, default)
            if name == "recorder" and found is None and first.is_set():
                second.set()  # that thread has been told that there is none
            return found

    def slow(means):
        makers.append(threading.current_thread().name)
        first.set()
        assert second.wait(20)
        return helpers_of(means)

    def make(number):
        one = shmgpu.ones(2) * number
        assert (one + 1).tolist() == [number + 1] * 2  # and the helper keeps what it is made of
        made[number] = one

    with shmgpu.init(inline=True, arena="8MiB"):
        monkeypatch.setattr(current, "_helpers", slow)
        monkeypatch.setattr(runtime.current, "extra", Extra(runtime.current.extra))
        threads = [threading.Thread(target=make, args=(n,), name=str(n)) for n in (1, 2)]
        threads[0].start()
        assert first.wait(20)
        threads[1].start()
        for thread in threads:
            thread.join(20)
        assert {number: one.tolist() for number, one in made.items()} == {1: [1, 1], 2: [2, 2]}
        assert makers == ["1"]
