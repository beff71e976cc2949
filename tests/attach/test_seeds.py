"""What tensors draw in programs that join a broker: afresh, or as a seed and a place say."""

from __future__ import annotations

import json

import pytest
from attach.commands import starting_by_themselves

DRAW = """
import json
import shmgpu as gt

def draw(_=0):
    return gt.randn(3).tolist()
"""
ONE = DRAW + "print(json.dumps(draw()))"
# Four at once, each at a place of its own, forked from a process that is in no broker.
FORKED = (
    DRAW
    + """
import multiprocessing
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(4)
    told = fork.SimpleQueue()
    def one():
        told.put(draw())
        barrier.wait(60)
    for process in (all_of_them := [fork.Process(target=one) for _ in range(4)]):
        process.start()
    drawn = [told.get() for _ in range(4)]
    for process in all_of_them:
        process.join()
    print(json.dumps(sorted(drawn)))
"""
)
CLAIMED = """
import json, os
import shmgpu as gt

def two(rank):
    rows = []
    for _ in range(2):
        read, write = os.pipe()
        if os.fork() == 0:
            with gt.claim(wait=30):
                os.write(write, json.dumps(gt.randn(2).tolist()).encode())
            os._exit(0)
        rows.append(os.read(read, 4096).decode())
        os.wait()
    return rows

print(json.dumps(gt.launch(two, children=1, devices="cpu", slots=1, seed={seed})))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with starting_by_themselves(tmp_path_factory.mktemp("seeds")) as made:
        yield made


def drawn(place, code, **more):
    return json.loads(place.program(code, **more))


@pytest.mark.slow
def test_a_program_that_joins_draws_afresh_and_with_a_seed_the_same_again(place):
    assert drawn(place, ONE) != drawn(place, ONE)
    first = drawn(place, ONE, SHMGPU_SEED="5")
    assert drawn(place, ONE, SHMGPU_SEED="5") == first
    assert drawn(place, ONE, SHMGPU_SEED="6") != first


def test_forked_processes_draw_each_its_own_and_with_a_seed_as_their_places_say(place):
    assert len({tuple(row) for row in drawn(place, FORKED)}) == 4
    seeded = drawn(place, FORKED, SHMGPU_SEED="5")
    assert len({tuple(row) for row in seeded}) == 4
    assert drawn(place, FORKED, SHMGPU_SEED="5") == seeded


def test_what_a_program_has_seeded_itself_holds_when_it_joins(place):
    own = ONE.replace("gt\n", "gt\ngt.manual_seed(1)\n", 1)
    assert drawn(place, own) == drawn(place, own, SHMGPU_SEED="5")


def test_processes_that_claim_draw_afresh_unless_their_launch_has_a_seed(place):
    ((first, second),) = drawn(place, CLAIMED.format(seed=None))
    assert first != second
    seeded = drawn(place, CLAIMED.format(seed=5))
    assert drawn(place, CLAIMED.format(seed=5)) == seeded


def test_init_without_a_seed_draws_afresh(place):
    code = "import shmgpu as gt; gt.init(inline=True); print(gt.randn(3).tolist())"
    assert drawn(place, code) != drawn(place, code)
