"""Broadcasts of programs that joined: to all helpers, and to those that come later."""

from __future__ import annotations

import pytest
from attach.commands import Place

LOOK = """
import served_here, shmgpu
with shmgpu.connect():
    helpers = [row["state"] == 2 for row in shmgpu.stats()["helpers"]]
    print([served_here.see_weights.options(helpers=[n])()
           for n, is_up in enumerate(helpers) if is_up])
"""


@pytest.fixture
def place(tmp_path):
    """A directory with a broker of two helpers, which may be three."""
    place = Place(tmp_path)
    with place.up("--helpers", "2", "--max-helpers", "3", "--max-children", "4"):
        yield place


def send(place, value, then=""):
    return place.program(
        "import os, numpy as np, served_here, shmgpu\n"
        "shmgpu.connect()\n"
        f"print(served_here.set_weights.broadcast(np.full(1000, {value})), flush=True)\n{then}"
    )


def seen(place):
    return eval(place.program(LOOK), {})


def test_what_a_program_broadcast_stays_when_it_has_left(place):
    assert send(place, 3.0) == "1"
    status, said, _ = place.run(
        "-c",
        "import os, signal, numpy as np, served_here, shmgpu\n"
        "shmgpu.connect()\n"
        "print(served_here.set_weights.broadcast(np.full(1000, 4.0)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    assert (status, said) == (-9, "2\n")
    assert seen(place) == [(0, 2, 4.0), (1, 2, 4.0)]


def test_a_helper_that_scale_adds_has_it_before_it_serves(place):
    send(place, 5.0)
    assert place.run("shmgpu", "scale", "3")[0] == 0
    found = place.program(
        "import served_here, shmgpu\n"
        "with shmgpu.connect():\n"
        "    print(served_here.see_weights.options(helpers=[2])())\n"
    )
    assert eval(found, {}) == (2, 1, 5.0)
    assert place.run("shmgpu", "scale", "1")[0] == 0
    assert send(place, 6.0) == "2"  # it waits for no helper that is to go
    assert place.run("shmgpu", "scale", "3")[0] == 0
    found = place.program(
        "import served_here, shmgpu\n"
        "with shmgpu.connect():\n"
        "    print([served_here.see_weights.options(helpers=[n])() for n in range(3)])\n"
    )
    assert eval(found, {}) == [(n, 2, 6.0) for n in range(3)]


def test_a_failure_is_told_to_a_program_whose_arena_a_helper_has_never_seen(place):
    assert (
        place.program(
            "import numpy as np, served_here, shmgpu\n"
            "with shmgpu.connect():\n"
            "    try:\n"
            "        served_here.raise_after_the_first.broadcast('gate')\n"
            "    except shmgpu.BroadcastError as error:\n"
            "        print(error.type_name, error.message, error.has_effect)\n"
        )
        == "ValueError not here True"
    )
