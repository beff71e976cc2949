"""One program's function ends helper after helper: the broker, which others rely on, goes on."""

from __future__ import annotations

import pytest
from attach.commands import Place

PROGRAM = """
import numpy as np, served_here, shmgpu

def crashed():
    try:
        served_here.crash()
    except shmgpu.HelperDied:
        return True

with shmgpu.connect():
    assert all(crashed() for _ in range(4))
    last = served_here.crash.submit("gate")
    waits = served_here.double.submit(np.ones(1))
    while shmgpu.stats()["broker"]["queued"] == 0: pass
    open("gate", "w").close()
    assert type(last.exception(timeout=20)) is shmgpu.HelperDied
    print(type(waits.exception(timeout=20)).__name__)
    print(served_here.double(np.ones(1)).tolist())
    assert crashed()
    print(served_here.double(np.ones(1)).tolist(), shmgpu.stats()["helpers"][0]["deaths"])
"""


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_helpers_that_die_again_and_again_do_not_end_a_broker_that_stands_by_itself(place):
    with place.up("--helpers", "1") as broker:
        said = place.program(PROGRAM).splitlines()
        assert said == ["NoHelpers", "[2.0]", "[2.0] 6"]
        place.program(
            "import numpy as np, served_here, shmgpu\n"
            "with shmgpu.connect():\n"
            "    served_here.double(np.ones(1))\n"
        )
        broker.process.terminate()
        told = broker.end().splitlines()
    given_up = [line for line in told if "given up, and tried again in" in line]
    assert len(given_up) == 2, told  # one line each


def test_a_helper_of_several_is_tried_again_while_the_rest_of_the_pool_serves(place):
    with place.up("--helpers", "2"):
        assert (
            place.program(
                PROGRAM.split("    last =")[0].replace("range(4)", "range(12)")
                + "    print(served_here.double(np.ones(1)).tolist())\n"
                + "    while any(row['state'] != 2 for row in shmgpu.stats()['helpers']): pass\n"
            )
            == "[2.0]"
        )
