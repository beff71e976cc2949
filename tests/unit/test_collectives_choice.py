"""By what members of a gang exchange arrays: as their devices are."""

from __future__ import annotations

import types

import numpy as np
import pytest

from shmgpu import core
from shmgpu.codec.dtypes import by_name
from shmgpu.collectives import process_groups, shared_memory, staged
from shmgpu.collectives.choice import Backends
from shmgpu.collectives.operations import CollectiveSpec
from shmgpu.collectives.shared_memory import SharedMemory
from shmgpu.errors import BadParams, GangAborted


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


# ---- arrays of a collective in host memory ----------------------------------------------------


@pytest.fixture
def ran(monkeypatch):
    """What the core is told of each collective; ``ends`` is what it answers."""
    told = types.SimpleNamespace(calls=[], ends=0)

    def noted(name):
        def note(*args):
            told.calls.append((name, *args))
            return told.ends

        return note

    for name in ("gang_collective", "gang_start", "gang_wait"):
        monkeypatch.setattr(core, name, noted(name))
    monkeypatch.setattr(core, "pointer", int)
    monkeypatch.setattr(shared_memory, "_NOTHING", 0)
    return told


def prepared(kind, counts, received=None, rank=0, **said):
    spec = CollectiveSpec(kind, by_name("float32"), counts, received or counts, "sum", **said)
    return SharedMemory().prepare(spec, rank, 2)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_collective_is_told_of_where_its_arrays_lie(ran):
    given, got = np.zeros(4, "f4"), np.zeros(4, "f4")
    one = prepared("all_reduce", (4, 4))
    one.run(7, given, got)
    ((name, described, *places),) = ran.calls
    assert name == "gang_collective" and described.id == 7
    assert places == [address(given), address(got)]
    ran.ends = 3  # the number that it is waited for by
    started = one.start(8, given, got)
    assert described.id == 8 and started[0] == 3 and started[1] is given and started[2] is got
    ran.ends = 0
    one.wait(9, started)
    assert ran.calls[-1] == ("gang_wait", 3, 9)


def test_a_collective_that_fails_says_so_at_each_of_its_steps(ran):
    given, got = np.zeros(4, "f4"), np.zeros(4, "f4")
    one, ran.ends = prepared("all_reduce", (4, 4)), core.EABORTED
    for call in (
        lambda: one.run(7, given, got),
        lambda: one.start(7, given, got),
        lambda: one.wait(7, (3, given, got)),
    ):
        with pytest.raises(GangAborted):
            call()


def test_who_gets_a_broadcast_names_a_target_and_its_root_may(ran):
    got = np.zeros(4, "f4")
    for rank, source, target, places in (
        (0, got, None, [address(got), 0]),
        (0, got, got, [address(got), address(got)]),
        (1, None, got, [0, address(got)]),
    ):
        prepared("broadcast", (4,), rank=rank).run(1, source, target)
        assert ran.calls[-1][2:] == tuple(places)


def read_only():
    made = np.zeros(4, "f4")
    made.flags.writeable = False
    return made


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (np.zeros(4, "f4"), read_only(), "target of a all_reduce cannot be written to"),
        (np.zeros(8, "f4")[::2], np.zeros(4, "f4"), "an array of a all_reduce is not contiguous"),
        (np.zeros(4, "f4"), np.zeros(8, "f4")[::2], "an array of a all_reduce is not contiguous"),
        (None, np.zeros(4, "f4"), "needs an array for what it gives"),
        (np.zeros(5, "f4"), np.zeros(4, "f4"), "gives 4 elements here, and its array has 5"),
        (np.zeros(4, "f4"), np.zeros(3, "f4"), "gets 4 elements here, and its array has 3"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(ran, source, target, words):
    with pytest.raises(BadParams, match=words):
        prepared("all_reduce", (4, 4)).run(1, source, target)
    assert not ran.calls


def test_a_tensor_that_does_not_fit_is_refused(ran):
    torch = pytest.importorskip("torch")
    with pytest.raises(BadParams, match="a tensor of a all_reduce is not contiguous"):
        prepared("all_reduce", (4, 4)).run(1, torch.zeros(8)[::2], torch.zeros(4))


def test_an_array_of_nothing_lies_nowhere(ran):
    prepared("all_reduce", (0, 0)).run(1, np.zeros((0, 3), "f4").T, np.zeros(0, "f4"))
    assert ran.calls[-1][2:] == (0, 0)
