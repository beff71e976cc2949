"""By what members of a gang exchange arrays: as their devices are."""

from __future__ import annotations

import pytest

from shmgpu.collectives import process_groups, staged
from shmgpu.collectives.choice import Backends
from shmgpu.collectives.shared_memory import SharedMemory


@pytest.mark.parametrize(
    ("devices", "meeting_fd", "kind"),
    [
        (["cpu", "cpu"], 5, "memory"),
        (["cpu", "cuda:0"], 5, "memory"),
        (["cuda:0", "cuda:1"], 5, "groups"),
        (["cuda:0", "cuda:1"], 0, "groups"),
        (["cuda:0", "cuda:1"], -1, "staged"),
        (["cuda:0", "cuda:0"], 5, "staged"),
        (["cuda:0", "cpu"], 5, "staged"),
    ],
)
def test_gpus_of_their_own_have_communicators_and_others_meet_in_host_memory(
    monkeypatch, devices, meeting_fd, kind
):
    monkeypatch.setattr(process_groups, "ProcessGroups", lambda *told: ("groups", told))
    monkeypatch.setattr(staged, "Staged", lambda device: ("staged", device))
    found = Backends(0, devices, meeting_fd).of((0, 1))
    if kind == "memory":
        assert isinstance(found, SharedMemory)
    elif kind == "groups":
        assert found == ("groups", (meeting_fd, (0, 1), 0))
    else:
        assert found == ("staged", devices[0])


def test_a_gang_has_one_backend_and_a_rank_in_it():
    backends = Backends(3, ["cpu"] * 4)
    assert backends.of((1, 3)) is backends.of((1, 3))
    programs = backends.programs_of((1, 3))
    assert programs is backends.programs_of((1, 3)) is not backends.programs_of((3, 1))
