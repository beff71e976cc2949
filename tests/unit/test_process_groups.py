"""Collectives through torch.distributed: on the CPU by gloo, with a thread for each member."""

from __future__ import annotations

import os
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch import distributed

from shmgpu import core
from shmgpu.codec.dtypes import by_name
from shmgpu.collectives import process_groups
from shmgpu.collectives.operations import CollectiveSpec
from shmgpu.errors import BadParams, GangAborted

HELPERS = (4, 5, 7)
INT = by_name("int64")
REDUCED = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


class Waited:
    """A work of gloo's as one of NCCL's, which is complete some time after the stream waits."""

    def __init__(self, work):
        self.work, self.looks = work, 2

    def wait(self):
        if self.work is not None:  # a send of gloo's is waited for once
            self.work.wait()
            self.work = None

    def is_completed(self):
        self.looks -= 1
        return self.looks < 0


class Gloo:
    """A communicator in NCCL's place."""

    class Options:
        """As NCCL's."""

    def __init__(self, store, rank, size, options):
        assert options._timeout == process_groups.NEVER
        self.group = distributed.ProcessGroupGloo(store, rank, size, timedelta(seconds=20))

    def __getattr__(self, name):
        enqueue = getattr(self.group, name)
        return lambda *given: Waited(enqueue(*given))


@pytest.fixture
def gang(monkeypatch):
    """What the broker says of it: changed by tests."""
    told = types.SimpleNamespace(epoch=3, state=core.GANG_COMMITTED)
    monkeypatch.setattr(core, "gang_epoch", lambda: told.epoch)
    monkeypatch.setattr(core, "gang_state", lambda: told.state)
    return told


@pytest.fixture
def members(gang, monkeypatch):
    """A backend for each, which meet in one file."""
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", Gloo, raising=False)
    fd = os.memfd_create("meeting")
    made = [process_groups.ProcessGroups(fd, HELPERS, rank) for rank in range(3)]
    yield made
    made.clear()  # and with them their communicators' sockets
    os.close(fd)


def each(members, run):
    """Have each do it at once; what they return."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(run, members, timeout=60))


def taking_part(members, specs, given, rooms):
    """Each runs its collective; what lies in each one's target then."""
    targets = [None if room is None else torch.full((room,), -1) for room in rooms]

    def run(member):
        rank = member.rank
        prepared = member.prepare(specs[rank], rank, len(HELPERS))
        source = None if given[rank] is None else torch.tensor(given[rank], dtype=torch.int64)
        prepared.run(1, source, targets[rank])
        member.finish()

    each(members, run)
    return [None if one is None else one.tolist() for one in targets]


def of(kind, **more):
    return CollectiveSpec(kind, INT, **more)


def test_kinds_do_what_they_say_with_pieces_of_any_length(members):
    many = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
    for specs, given, wanted in (
        ([of("barrier")] * 3, [None] * 3, [None] * 3),
        *(
            (
                [of("all_reduce", counts=(3,), reduction=name)] * 3,
                many,
                [REDUCED[name](many, axis=0).tolist()] * 3,
            )
            for name in REDUCED
        ),
        (
            [of("all_gather", counts=(2, 2, 2))] * 3,
            [[4, 5], [6, 7], [8, 9]],
            [[4, 5, 6, 7, 8, 9]] * 3,
        ),
        ([of("all_gather", counts=(2, 0, 1))] * 3, [[7, 8], [], [9]], [[7, 8, 9]] * 3),
        (
            [of("reduce_scatter", counts=(2, 0, 1))] * 3,
            many,
            [[111, 222], [], [333]],
        ),
        (
            [of("reduce_scatter", counts=(0, 2, 1), reduction="max")] * 3,
            many,
            [[], [100, 200], [300]],
        ),
        (
            [
                of("all_to_all", counts=(1, 2, 0), received=(1, 0, 3)),
                of("all_to_all", counts=(0, 1, 1), received=(2, 1, 0)),
                of("all_to_all", counts=(3, 0, 1), received=(0, 1, 1)),
            ],
            [[1, 2, 3], [4, 5], [6, 7, 8, 9]],
            [[1, 6, 7, 8], [2, 3, 4], [5, 9]],
        ),
        (
            [of("scatter", counts=(1, 2, 0), root=1)] * 3,
            [None, [5, 6, 7], None],
            [[5], [6, 7], []],
        ),
        (
            [of("gather", counts=(1, 0, 2), root=2)] * 3,
            [[5], [], [6, 7]],
            [None, None, [5, 6, 7]],
        ),
    ):
        rooms = [None if one is None else len(one) for one in wanted]
        assert taking_part(members, specs, given, rooms) == wanted, specs[0]


def test_who_broadcasts_may_want_it_elsewhere_or_where_it_is(members):
    specs = [of("broadcast", counts=(2,), root=1)] * 3
    for rooms in ([2, None, 2], [2, 2, 2]):
        found = taking_part(members, specs, [None, [6, 7], None], rooms)
        assert found == [None if room is None else [6, 7] for room in rooms]


def test_a_mean_is_of_all_members_in_place_too(members):
    spec = CollectiveSpec("all_reduce", counts=(2,), reduction="mean")

    def run(member):
        given = torch.tensor([1.0, 2.0]) * member.rank
        prepared = member.prepare(spec, member.rank, 3)
        prepared.run(1, given, given)
        return given.tolist()

    assert each(members, run) == [[1.0, 2.0]] * 3


def test_some_members_are_a_group_in_the_order_that_is_said(members):
    specs = [
        of("all_gather", counts=(1, 2), group=(2, 0)),
        of("barrier"),
        of("all_gather", counts=(1, 2), group=(2, 0)),
    ]

    def run(member):
        rank = member.rank
        if rank == 1:
            return None
        given, target = torch.tensor([[7, 8], [], [9]][rank]), torch.zeros(3, dtype=torch.int64)
        member.prepare(specs[rank], rank, 3).run(1, given, target)
        return target.tolist()

    assert each(members, run) == [[9, 7, 8], None, [9, 7, 8]]
    with pytest.raises(BadParams, match="rank 1 takes no part in this all_gather"):
        members[1].prepare(specs[0], 1, 3)


@pytest.mark.parametrize("root", [0, 1])
def test_a_send_has_two_ends(members, root):
    specs = [of(kind, counts=(2,), group=(1, 2), root=root) for kind in ("send", "recv")]

    def run(member):
        if member.rank == 0:
            return None
        sends = member.rank - 1 == root
        array = torch.tensor([3, 4]) if sends else torch.zeros(2, dtype=torch.int64)
        prepared = member.prepare(specs[not sends], member.rank, 3)
        prepared.run(1, array if sends else None, None if sends else array)
        empty = member.prepare(of(specs[not sends].kind, counts=(0,), group=(1, 2)), member.rank, 3)
        empty.run(2, array[:0], array[:0])
        return array.tolist()

    assert each(members, run) == [None, [3, 4], [3, 4]]


def test_arrays_of_other_lengths_are_refused(members):
    prepared = members[0].prepare(of("all_gather", counts=(1, 2, 3)), 0, 3)
    for source, target, sentence in (
        (torch.zeros(2), torch.zeros(6), "gives 1 elements here, and its array has 2"),
        (torch.zeros(1), torch.zeros(5), "gets 6 elements here, and its array has 5"),
        (torch.zeros(1), None, "needs an array for what it gets"),
    ):
        with pytest.raises(BadParams, match=sentence):
            prepared.run(1, source, target)
    prepared = members[1].prepare(of("broadcast", counts=(2,), root=1), 1, 3)
    with pytest.raises(BadParams, match="gets 2 elements here, and its array has 3"):
        prepared.run(1, torch.zeros(2), torch.zeros(3))


class Work:
    """Is done when it has been looked at so often."""

    def __init__(self, looks):
        self.looks, self.waited = looks, 0

    def is_completed(self):
        self.looks -= 1
        return self.looks < 0

    def wait(self):
        self.waited += 1


def test_what_was_enqueued_is_waited_for_once(gang):
    backend = process_groups.ProcessGroups(-1, HELPERS, 0)
    works = [backend.enqueue(Work(looks)) for looks in (3, 0)]
    backend.finish()
    backend.finish()
    assert [(one.looks, one.waited) for one in works] == [(-1, 1), (-1, 1)]


class Group:
    """Notes what becomes of it."""

    made: list = []

    def __init__(self, store, rank, size, more):
        self.told = store, rank, size, more
        self.aborted = False
        self.made.append(self)

    def abort(self):
        self.aborted = True

    class Options:
        """As NCCL's."""


@pytest.fixture
def nccl(gang, monkeypatch):
    """Communicators are made of NCCL, which this machine may lack."""
    monkeypatch.setattr(Group, "made", [])
    stores = types.SimpleNamespace(set_timeout=lambda limit: None)
    found = types.SimpleNamespace(
        FileStore=lambda path, size: stores if (path, size) == ("/proc/self/fd/9", -1) else None,
        PrefixStore=lambda prefix, store: prefix,
        ProcessGroupNCCL=Group,
    )
    monkeypatch.setattr(process_groups.importlib, "import_module", lambda name: found)
    return process_groups.ProcessGroups(9, HELPERS, 2)


def test_a_communicator_is_of_those_processes_that_there_are_now(nccl, gang):
    first = nccl.group((0, 2))
    assert nccl.group((0, 2)) is first
    store, rank, size, options = first.told
    assert (store, rank, size) == ("4-5-7/0-2/3", 1, 2)
    assert options._timeout == process_groups.NEVER
    assert nccl.group((2, 0)).told[:3] == ("4-5-7/2-0/3", 0, 2)
    gang.epoch = 4  # a member was replaced
    assert nccl.group((0, 2)).told[0] == "4-5-7/0-2/4"
    assert len(Group.made) == 3 and not any(one.aborted for one in Group.made)


def test_who_waits_for_a_call_that_is_given_up_lets_go_of_all(nccl, gang):
    groups = [nccl.group((0, 2)), nccl.group((1, 2))]
    endless = [nccl.enqueue(Work(1 << 30)) for _ in range(2)]
    gang.state = core.GANG_ABORTED
    with pytest.raises(GangAborted):
        nccl.finish()
    assert all(one.aborted for one in groups)
    assert not any(one.waited for one in endless)
    nccl.finish()  # nothing is left to wait for
    assert nccl.group((0, 2)) is not groups[0]


def test_on_a_device_what_comes_next_is_put_in_line_and_nobody_waits(nccl, gang, monkeypatch):
    """The device's stream waits, which ``wait`` of NCCL's work arranges at once."""
    work = Work(1 << 30)
    monkeypatch.setattr(Group, "barrier", lambda self: work, raising=False)
    nccl.prepare(of("barrier"), 2, 3).run(1, None, None)
    assert work.waited == 1 and work.looks == 1 << 30
