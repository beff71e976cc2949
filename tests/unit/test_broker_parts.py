"""What is decided before the first fork, and what roles get of the process that forked them."""

from __future__ import annotations

import gc
import os
import signal
import types

import pytest

from shmgpu import core
from shmgpu.broker import exit_reports, launch, launch_config, role_host
from shmgpu.child import runtime
from shmgpu.errors import ChildError, ConfigError, LaunchError, SessionError


@pytest.fixture
def cores(monkeypatch):
    """A machine of eight cores and two GPUs, in a process without a thread of OpenMP."""

    def choose(asked, count):
        names = asked or ["cpu"]
        return [names[number % len(names)] for number in range(count)]

    monkeypatch.setattr(launch_config.device, "choose", choose)
    monkeypatch.setattr(launch_config.device, "cores", lambda: 8)
    monkeypatch.setattr(launch_config.device, "openmp_pool_is_used", lambda forks: False)


def plan(**settings):
    return launch_config.LaunchConfig(**{"children": 1, "arena": "1MiB", **settings})


@pytest.mark.parametrize(
    ("devices", "helpers", "apart", "credit"),
    [
        (["cpu"], 2, False, [1]),
        (["cuda:0"], 2, False, [2]),
        (["cuda:0", "cpu"], 2, False, [2]),
        (["cuda:0", "cuda:1"], 1, False, [2]),
        (["cuda:0", "cuda:1"], 2, True, [2]),
        ({"a": ["cpu"], "b": ["cuda:1"]}, {"a": 1, "b": 2}, False, [1, 2]),
        ({"a": ["cuda:0"], "b": ["cuda:1"]}, {"a": 1, "b": 1}, True, [2, 2]),
    ],
)
def test_helpers_of_gpus_hold_two_calls_and_meet_where_they_have_one_each(
    cores, devices, helpers, apart, credit
):
    made = plan(devices=devices, helpers=helpers)
    assert made.has_gpus_apart == apart and made.min_credit == credit
    assert all(setup.devices == made.setups[0].devices for setup in made.setups)
    assert made.setups[0].devices == tuple(setup.device for setup in made.setups)


def test_threads_that_are_asked_for_are_what_each_helper_has(cores):
    made = plan(helpers=2, threads=3)
    assert made.threads_given
    assert [(one.threads, one.share) for one in made.setups] == [(3, None)] * 2


def test_cores_are_shared_among_those_that_compute_on_them(cores):
    made = plan(devices=["cpu", "cuda:0", "cpu"], helpers=3)
    assert not made.threads_given
    assert [one.threads for one in made.setups] == [made.setups[0].threads, 0, 3]
    assert [one.share is None for one in made.setups] == [False, True, False]
    assert made.setups[0].threads > 1


def test_a_pool_of_openmp_that_forks_cannot_use_leaves_one_thread(cores, monkeypatch, caplog):
    monkeypatch.setattr(launch_config.device, "openmp_pool_is_used", lambda forks: forks)
    made = plan(helpers=2)
    assert [(one.threads, one.share) for one in made.setups] == [(1, None)] * 2
    assert "CPU helpers compute with one thread" in caplog.text
    caplog.clear()
    plan(helpers=2, threads=1)
    plan(helpers=2, devices=["cuda:0"])
    assert not caplog.text


def test_slots_are_for_children_and_for_those_who_join(cores):
    assert plan(children=3).slots == 3 and plan(children=3, slots=2).slots == 5
    assert {one.children for one in plan(children=3, slots=2).setups} == {5}


def test_there_are_as_many_helpers_as_there_may_be(cores):
    made = plan(helpers=core.MAX_HELPERS, threads=1)
    assert len(made.setups) == made.helpers == made.helpers_started == core.MAX_HELPERS
    with pytest.raises(ConfigError, match=f"{core.MAX_HELPERS + 1} processes: use"):
        plan(helpers={"a": core.MAX_HELPERS, "b": 1})


def test_a_session_is_a_function(cores):
    with pytest.raises(ConfigError, match="session=5 must be a function of one argument"):
        plan(session=5)
    made = plan(session={"a": print}, helpers={"a": 1, "b": 1})
    assert [one.session for one in made.setups] == [print, None]


@pytest.mark.parametrize(("grace", "told"), [(0, 1), (2.5, 2_500_000_000)])
def test_the_core_is_told_what_was_asked_for(cores, grace, told):
    made = plan(grace=grace, helpers={"a": 1, "b": 2}, order="deadline", huge_pages=False)
    settings = made.for_core()
    assert settings["grace_ns"] == told  # 0 would mean the default
    assert settings["helper_pool"] == [0, 1, 1] and settings["pool_names"] == ["a", "b"]
    assert (settings["helper_count"], settings["pool_count"]) == (3, 2)
    assert (settings["by_deadline"], settings["huge_pages"]) == (1, 0)
    assert not plan().for_core()["by_deadline"]


@pytest.mark.parametrize(
    ("role", "current", "forked", "where"),
    [
        (core.ROLE_NONE, None, False, ""),
        (core.ROLE_HELPER, None, False, "inside a helper"),
        (core.ROLE_CHILD, None, False, "inside a child"),
        (core.ROLE_PARENT, None, False, "inside a process that has one"),
        (core.ROLE_NONE, types.SimpleNamespace(if_lost=None), False, "inside a process that has"),
        (core.ROLE_NONE, None, True, "inside a process that was forked from a child"),
        (core.ROLE_CHILD, types.SimpleNamespace(if_lost=print), False, "that has joined one"),
    ],
)
def test_a_broker_in_a_broker_is_refused(monkeypatch, role, current, forked, where):
    monkeypatch.setattr(core, "role", lambda: role)
    monkeypatch.setattr(runtime, "current", current)
    monkeypatch.setattr(runtime, "inherited_endpoint", "there" if forked else None)
    if not where:
        launch_config.refuse_nested("init()")
        return
    with pytest.raises(LaunchError, match=rf"^init\(\) cannot start a broker .*{where}"):
        launch_config.refuse_nested("init()")


# ---- how it ended -------------------------------------------------------------------------------


class Ended:
    """A host whose broker has ended."""

    def __init__(self, failures=(), error=None):
        self.error, self.failures, self.helper_failed = error, list(failures), -1
        none = types.SimpleNamespace(read=lambda index: None)
        self.child_reports = self.helper_reports = none
        self.last_words = {2: "frames"}
        self.plan = types.SimpleNamespace(helpers=1)


@pytest.mark.parametrize(
    ("status", "number", "kind", "words"),
    [
        (core.ESIGNALLED, signal.SIGINT, KeyboardInterrupt, None),
        (core.ESIGNALLED, signal.SIGTERM, SystemExit, "143"),
        (core.ECHILD_FAILED, 0, ChildError, "child 2 failed: "),
        (core.ESESSION, 0, SessionError, None),
        (core.EBAD_CONFIG, 0, ConfigError, None),
        (core.ENO_MEMORY, 0, LaunchError, None),
        (core.EBROKER_DIED, 0, LaunchError, None),
    ],
)
def test_an_end_that_was_not_a_good_one_is_raised(monkeypatch, status, number, kind, words):
    monkeypatch.setattr(core, "stop_signal", lambda: number)
    host = Ended([(2, signal.SIGKILL + 128), (3, 1)])
    with pytest.raises(kind, match=words) as caught:
        launch.raise_outcome(host, status)
    if kind is ChildError:
        assert (caught.value.rank, caught.value.traceback_text) == (2, "frames")


@pytest.mark.parametrize("status", [0, 1])
def test_a_good_end_raises_only_what_was_raised_meanwhile(status):
    launch.raise_outcome(Ended(), status)
    with pytest.raises(ZeroDivisionError):
        launch.raise_outcome(Ended(error=ZeroDivisionError()), status)


# ---- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_frozen", [False, True])
def test_a_process_is_made_ready_once_for_all_its_forks_and_is_then_as_it_was(
    monkeypatch, has_frozen
):
    told = []
    blas = types.SimpleNamespace(
        set=lambda count: told.append(("threads", count)), restore=lambda: told.append("restored")
    )
    monkeypatch.setattr(role_host, "BlasThreads", lambda: blas)
    monkeypatch.setattr(role_host, "program_has_frozen", lambda: has_frozen)
    monkeypatch.setattr(role_host, "flush", lambda: told.append("flush"))
    monkeypatch.setattr(os, "fork", lambda: told.append("fork") or 7)
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: told.append(name))
    host = object.__new__(role_host.RoleHost)
    host._is_prepared = host._froze = False
    host.thaw()
    assert told == []
    assert host.fork() == host.fork() == 7
    made_ready = [("threads", 1), "collect", *([] if has_frozen else ["freeze"])]
    assert told == [*made_ready, "flush", "fork", "flush", "fork"]
    del told[:]
    host.thaw()
    host.thaw()
    assert told == [*([] if has_frozen else ["unfreeze"]), "restored"]


@pytest.mark.parametrize("kept", [None, 0, 2, 4])
def test_a_role_keeps_its_own_file_and_no_others(kept):
    one = exit_reports.MemoryFiles("role", 2)
    between = os.open(os.devnull, os.O_RDONLY)  # theirs are not consecutive
    more = exit_reports.MemoryFiles("role", 3)
    one._descriptors += more._descriptors
    descriptors = list(one._descriptors)
    one.keep_only(kept)

    def is_open(descriptor):
        try:
            os.fstat(descriptor)
        except OSError:
            return False
        return True

    assert [is_open(d) for d in descriptors] == [number == kept for number in range(5)]
    assert is_open(between)
    one.close()
    assert not any(map(is_open, descriptors)) and is_open(between)
    os.close(between)


def test_where_there_are_too_few_descriptors_none_is_kept(monkeypatch):
    make, made = os.memfd_create, []

    def few(name, flags):
        if len(made) == 2:
            raise OSError(24, "Too many open files")
        made.append(make(name, flags))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", few)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        LaunchError, match=r"3 child processes need more open files .*Too many open"
    ):
        exit_reports.MemoryFiles("child", 3)
    assert len(os.listdir("/proc/self/fd")) == before
