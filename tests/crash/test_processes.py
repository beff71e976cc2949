"""Processes and descriptors: who holds what, who hears of an end, who reaps, who is signalled."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from crash import programs
from crash.programs import is_alive, say, until

import shmgpu
from shmgpu.broker.launch_config import LaunchConfig

HANG_AFTER_S = 0.3


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def nap(helper, seconds):
    time.sleep(seconds)


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def who(helper):
    return helper.id, os.getpid(), held()


def launch(main, **settings):
    settings = {"children": 1, "devices": "cpu", "arena": "1MiB", **settings}
    return shmgpu.launch(main, **settings)


def every_helper(count):
    """What ``who`` says in each helper: a lone caller is always served by the same one."""
    seen = {}
    while len(seen) < count:
        futures = [nap.submit(0.001) for _ in range(count)] + [who.submit() for _ in range(50)]
        for future in futures[count:]:
            number, pid, descriptors = future.result()
            seen[number] = (pid, descriptors)
        for future in futures[:count]:
            future.result()
    return seen


# ---- F17 -----------------------------------------------------------------------------------


def held(pid="self"):
    """Open descriptors of a process: number -> what it is."""
    found = {}
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):  # the listing's own
            found[int(number)] = os.readlink(f"{folder}/{number}")
    return found


def kinds(descriptors):
    """What they are, without what tells one from another."""
    return sorted(re.sub(r"[\d\[\]-]+", "", name) for name in descriptors.values())


def own_kinds(role):
    """Two ends of pipes, the files of its last report and its last stack; a child's clock; an end
    of what new arenas are passed through to a helper."""
    files = [f"/memfd:shmgpu{role}{what} (deleted)" for what in ("", "stack")]
    if role == "child":
        return [*files, "anon_inode:timerfd", "pipe:", "pipe:"]
    return [*files, "pipe:", "pipe:", "socket:"]


def beyond(descriptors, users):
    """Those that are not the user's, who must have kept his."""
    assert users.items() <= descriptors.items()
    return {n: name for n, name in descriptors.items() if n not in users}


def ends_of(kind, descriptors):
    return {name for name in descriptors.values() if name.startswith(kind)}


@pytest.fixture
def users(tmp_path):
    """Descriptors of the user's own, inheritable and not, of several kinds."""
    one, other = socket.socketpair()
    with open(tmp_path / "file", "w") as file, one, other:
        os.set_inheritable(one.fileno(), True)
        ends = os.pipe()
        yield file
        for end in ends:
            os.close(end)


@pytest.mark.fresh
def test_f17_each_role_holds_its_own_descriptors_and_the_users_and_no_others(users):
    mine = held()

    def main(rank):
        return beyond(held(), mine), beyond(held(os.getppid()), mine), every_helper(3)

    results = launch(main, children=3, helpers=3)
    roles = [own for own, _, _ in results]
    parent = max((parent for _, parent, _ in results), key=len)
    assert [kinds(own) for own in roles] == [own_kinds("child")] * 3
    helpers = [beyond(descriptors, mine) for _, descriptors in results[0][2].values()]
    assert [kinds(own) for own in helpers] == [own_kinds("helper")] * 3
    for kind, count in (("pipe:", 12), ("socket:", 3)):
        ends = [ends_of(kind, own) for own in (*roles, *helpers)]
        assert sum(map(len, ends)) == len(set().union(*ends)) == count  # each is one role's only
    pipes = [ends_of("pipe:", own) for own in (*roles, *helpers)]
    assert set().union(*pipes) <= ends_of("pipe:", parent)
    assert held() == mine


def held_before_and_after(respawns, monkeypatch):
    of_settings = LaunchConfig.for_core
    without_give_up = {"death_window_ns": 1, "max_deaths": 10 * respawns}
    monkeypatch.setattr(
        LaunchConfig, "for_core", lambda self: {**of_settings(self), **without_give_up}
    )
    logger = logging.getLogger("shmgpu")
    monkeypatch.setattr(logger, "disabled", True)
    mine = held()

    def look():
        helpers = [kinds(beyond(descriptors, mine)) for _, descriptors in every_helper(2).values()]
        parent = beyond(held(os.getppid()), mine)
        mappings = pathlib.Path(f"/proc/{os.getppid()}/maps").read_text().count("shmgpu-")
        return kinds(beyond(held(), mine)), helpers, kinds(parent), mappings

    def main(rank):
        before = look()
        deaths = 0
        while deaths < respawns:
            futures = [die.submit() for _ in range(50)]
            deaths += sum(isinstance(f.exception(30), shmgpu.HelperDied) for f in futures)
        return before, look(), shmgpu.stats()["broker"]["helper_deaths"]

    [(before, after, deaths)] = launch(main, helpers=2)
    assert deaths >= respawns
    return before, after


@pytest.mark.fresh
def test_f17_after_many_respawns_every_role_holds_what_it_held(users, monkeypatch):
    before, after = held_before_and_after(200, monkeypatch)
    assert after == before


@pytest.mark.fresh
@pytest.mark.slow
def test_after_a_thousand_respawns_every_role_holds_what_it_held(users, monkeypatch):
    before, after = held_before_and_after(1000, monkeypatch)
    assert after == before


# ---- F18 -----------------------------------------------------------------------------------


def leave_a_copy_behind():
    """A process that holds all pipes of its role open: their end tells nobody of a death."""
    copy = os.fork()
    if copy == 0:
        time.sleep(60)
        os._exit(0)
    return copy


@shmgpu.function(arrays="numpy")
def die_but_leave_a_copy(helper, path):
    pathlib.Path(path).write_text(str(leave_a_copy_behind()))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def copies(tmp_path):
    yield tmp_path
    for path in tmp_path.iterdir():
        pid = int(path.read_text())
        assert is_alive(pid)  # so its pipes were open all the time
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_f18_a_child_that_dies_is_noticed_at_once_whoever_was_forked_later(copies):
    def main(rank):
        if rank == 0:
            (copies / "copy").write_text(str(leave_a_copy_behind()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(shmgpu.ChildError, match="SIGKILL") as caught:
        launch(main, children=4)
    assert caught.value.rank == 0 and time.monotonic() - start < 30


def test_f18_a_helper_that_dies_is_noticed_at_once_whoever_was_forked_later(copies):
    def main(rank):
        with pytest.raises(shmgpu.HelperDied):
            die_but_leave_a_copy.options(timeout=30)(str(copies / "copy"))
        return add_one(np.zeros(1)).tolist()

    assert launch(main, helpers=3) == [[1]]


# ---- F19 -----------------------------------------------------------------------------------


def zombies_of(parent):
    found = set()
    for name in os.listdir("/proc"):
        fields = programs.stat(int(name)) if name.isdigit() else []
        if fields and fields[0] == "Z" and fields[1] == str(parent):
            found.add(int(name))
    return found


def test_f19_no_zombie_is_left_and_the_users_subprocesses_keep_their_exit_status():
    during = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(33)"])
    forked = os.fork()
    if forked == 0:
        os._exit(34)
    after = subprocess.Popen(["sleep", "60"])

    def main(rank):
        parent = os.getppid()
        users = {during.pid, forked}
        until(lambda: users <= zombies_of(parent), "the user's have ended")
        for _ in range(3):
            with pytest.raises(shmgpu.HelperDied):
                die()
            add_one(np.zeros(1))
        until(lambda: zombies_of(parent) == users, "every helper that died is reaped")
        return True

    try:
        assert launch(main, children=2, helpers=2) == [True, True]
        assert during.wait() == 33
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 34
        assert after.poll() is None
    finally:
        after.kill()
    assert after.wait() == -signal.SIGKILL


def test_f19_the_caller_of_an_init_keeps_its_subprocesses_exit_status():
    with shmgpu.init(helpers=2, devices="cpu"):
        users = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(35)"])
        with pytest.raises(shmgpu.HelperDied):
            die()
        assert add_one(np.zeros(1)).tolist() == [1]
        until(lambda: zombies_of(os.getpid()) == {users.pid}, "it has ended")
    assert users.wait() == 35 and zombies_of(os.getpid()) == set()


# ---- F20 -----------------------------------------------------------------------------------


@pytest.fixture
def sigchld_ignored():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    signal.signal(signal.SIGCHLD, before)


@shmgpu.function(arrays="numpy")
def nap_visibly(helper, folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(60)


def kill_all_helpers(count, folder):
    """Kill them while each executes; returns what an add says afterwards."""
    folder.mkdir()
    out = [nap_visibly.submit(str(folder)) for _ in range(count)]
    until(lambda: len(os.listdir(folder)) == count, "all execute")
    for pid in os.listdir(folder):
        os.kill(int(pid), signal.SIGKILL)
    assert all(isinstance(future.exception(20), shmgpu.HelperDied) for future in out)
    return add_one(np.zeros(2)).tolist()


def test_f20_with_sigchld_ignored_all_helpers_may_die_at_once(sigchld_ignored, tmp_path):
    def main(rank):
        return kill_all_helpers(3, tmp_path / "a") if rank == 0 else add_one(np.ones(2)).tolist()

    assert launch(main, children=2, helpers=3) == [[1, 1], [2, 2]]
    with shmgpu.init(helpers=3, devices="cpu"):
        assert kill_all_helpers(3, tmp_path / "b") == [1, 1]


def test_f20_with_sigchld_ignored_it_is_known_how_a_child_ended(sigchld_ignored):
    with pytest.raises(shmgpu.ChildError, match="SIGKILL") as caught:
        launch(lambda rank: os.kill(os.getpid(), signal.SIGKILL))
    assert caught.value.exit_status == -signal.SIGKILL


# ---- F21 -----------------------------------------------------------------------------------


@shmgpu.function(arrays="numpy", hang_after=HANG_AFTER_S)
def hang(helper, path):
    pathlib.Path(path).write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGALRM)
    time.sleep(60)


def a_pid_is_used_again(folder):
    """A handler of the user's reaps a helper that died, and a stranger gets its pid.

    The broker, which could not know, takes the helper for hung when the handler returns.
    """
    place = pathlib.Path(folder, "helper")
    strangers = []

    def handler(number, frame):
        helper = int(place.read_text())
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)
        while not strangers or strangers[-1].pid != helper:
            assert len(strangers) < 100, "the pid could not be had again"
            pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(helper - 1))
            strangers.append(subprocess.Popen(["sleep", "60"]))
        time.sleep(2 * HANG_AFTER_S)

    def main(rank):
        with pytest.raises(shmgpu.HelperDied):
            hang(str(place))
        return add_one(np.zeros(1)).tolist()

    signal.signal(signal.SIGALRM, handler)
    say(launch(main))
    say([stranger.poll() for stranger in strangers if stranger.pid == int(place.read_text())])


def test_f21_a_stranger_that_got_the_pid_of_a_dead_role_is_never_signalled(tmp_path):
    namespace = programs.needs("unshare", "-rpf", "--kill-child", "--mount-proc")
    probe = ("sh", "-c", "echo 300 >/proc/sys/kernel/ns_last_pid")
    if subprocess.run([*namespace, *probe], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow to choose the next pid")
    not_first = ("sh", "-c", '"$@"; exit $?', "sh")
    out = programs.result(a_pid_is_used_again, tmp_path, before=(*namespace, *not_first))
    assert out == ["[[1.0]]", "[None]"]


# ---- whoever leaves, and whoever comes then ----------------------------------------------------


def leaves_while_another_has_a_copy():
    """A process that is being forked has copies of the parent's descriptors, for as long as it
    takes to close them: here for much longer."""
    armed = mmap.mmap(-1, 1)
    keep, end = os.pipe()

    def keep_copies():
        if armed[0]:
            armed[0] = 0
            if os.fork() == 0:
                os.read(keep, 1)
                os._exit(0)

    os.register_at_fork(after_in_child=keep_copies)

    def client(towards, back):
        with shmgpu.claim():
            os.write(back, b"%d" % os.getpid())
            os.read(towards, 1)
            try:
                os.write(back, b"%d" % add_one(np.zeros(1))[0])
            except shmgpu.BrokerDied:
                os.write(back, b"0")
        os.write(back, b"left")
        os.read(towards, 1)
        os._exit(0)

    def begin():
        asked, ask = os.pipe()
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                client(asked, tell)
            finally:
                os._exit(1)
        os.read(told, 20)
        return pid, ask, told

    with shmgpu.init(helpers=1, slots=1):
        first, ask, told = begin()
        armed[0] = 1
        with contextlib.suppress(shmgpu.HelperDied):
            die()
        until(lambda: not armed[0], "a copy is kept")
        os.write(ask, b"x")
        assert [os.read(told, 1), os.read(told, 4)] == [b"1", b"left"]
        second, ask_second, told_second = begin()  # in the same place
        os.write(ask, b"x")
        os.waitpid(first, 0)
        time.sleep(0.05)  # what must not come has no end to wait for
        os.write(ask_second, b"x")
        say(os.read(told_second, 1) == b"1")
        os.write(ask_second, b"x")
        os.write(end, b"x")
        say(os.waitpid(second, 0)[1])


def test_the_end_of_a_program_that_has_left_is_nobody_elses():
    assert programs.result(leaves_while_another_has_a_copy) == ["True", "0"]


if __name__ == "__main__":
    programs.main(globals())
