"""The generators of streaming models: those of callers that are gone are closed, and no others."""

from __future__ import annotations

from shmgpu import core
from shmgpu.serve.models.generators import Generators


def test_only_the_streams_of_children_that_left_are_closed(monkeypatch):
    closed = []

    def parts(name):
        try:
            yield name
            yield name
        finally:
            closed.append(name)

    rows = {
        0: {"generation": 1, "state": core.CHILD_RUNNING},
        1: {"generation": 2, "state": core.CHILD_RUNNING},  # its successor is there
        2: {"generation": 1, "state": core.CHILD_RUNNING + 1},
    }
    monkeypatch.setattr(core, "child_stats", rows.__getitem__)
    running = Generators()
    for slot, name in enumerate(("stays", "was replaced", "has ended")):
        running.open((slot, 1), 7, parts(name))
        assert running.next((slot, 1), 7) == (name,)
    running.forget_those_who_left()
    assert sorted(closed) == ["has ended", "was replaced"]
    assert len(running) == 1 and running.next((0, 1), 7) == ("stays",)
