"""Killed parents, killed callers, killed everything: who ends, who lives on, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import numpy as np
import pytest
from crash import programs
from crash.programs import is_alive, say, until

import shmgpu

GONE_WITHIN_S = 2.0


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy", mutates=True)
def hang(helper, x):
    say("hung", os.getpid())
    x[0] = 1  # for a caller that waits for it: a request in flight need not have begun
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(60)


def say_pid(helper):
    say("helper", os.getpid())


# ---- F03 -----------------------------------------------------------------------------------


def launch_with_busy_idle_and_hung_helpers():
    def main(rank):
        x = shmgpu.arena.zeros(4)
        say("child", os.getpid())
        if rank == 0:
            hang(x)
        while rank == 1:
            add_one(x)
        time.sleep(60)

    shmgpu.launch(main, children=3, helpers=3, session=say_pid, devices="cpu", arena="1MiB")


def test_f03_when_the_parent_of_a_launch_is_killed_every_role_is_gone_within_two_seconds():
    with programs.start(launch_with_busy_idle_and_hung_helpers) as program:
        lines = [line.split() for line in program.lines(7)]  # three helpers, three children, a hang
        pids = {int(pid) for _, pid in lines}
        assert len(pids) == 6 and all(map(is_alive, pids))
        os.kill(program.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)), "every role is gone", GONE_WITHIN_S)
        assert programs.of_session(program.pid) == []


def init_whose_parent_is_killed():
    shmgpu.init(helpers=3, session=say_pid, devices="cpu", arena="1MiB")
    x = shmgpu.arena.zeros(3)
    submitted = hang.submit(shmgpu.arena.zeros(1))
    say("parent", shmgpu.stats()["broker"]["parent_pid"])

    async def awaits():
        await add_one.aio(x)

    with contextlib.suppress(shmgpu.BrokerDied):
        hang(shmgpu.arena.zeros(1))
        raise AssertionError("a call ended well without a broker")
    for call in (
        lambda: submitted.result(5),
        lambda: add_one(x),
        lambda: add_one.submit(x).result(5),  # raises at once, or its future does
        lambda: asyncio.run(awaits()),
    ):
        with pytest.raises(shmgpu.BrokerDied):
            call()
    say("died", x.tolist())
    shmgpu.shutdown()
    with shmgpu.init(devices="cpu", arena="1MiB"):
        say("again", add_one(x).tolist())


def test_f03_the_caller_of_an_init_lives_on_and_every_way_to_call_is_broker_died():
    with programs.start(init_whose_parent_is_killed) as program:
        lines = [line.split() for line in program.lines(6)]
        pids = {int(line[1]) for line in lines if line[0] in ("helper", "parent")}
        [parent] = [int(line[1]) for line in lines if line[0] == "parent"]
        os.kill(parent, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)), "parent and helpers are gone", GONE_WITHIN_S)
        out, errors = program.end()
        assert out.splitlines() == ["died [0.0, 0.0, 0.0]", "again [1.0, 1.0, 1.0]"], errors
        assert program.process.returncode == 0


# ---- F22 -----------------------------------------------------------------------------------


def busy_launch():
    def main(rank):
        x = shmgpu.arena.zeros(1000)
        say("child", rank)
        while True:
            add_one(x)

    shmgpu.launch(main, children=3, helpers=2, devices="cpu", arena="1MiB")


def busy_init():
    with shmgpu.init(helpers=2, devices="cpu", arena="1MiB"):
        say("child", 0)
        while True:
            add_one(shmgpu.arena.zeros(1000))


@pytest.mark.parametrize(("program", "roles"), [(busy_launch, 3), (busy_init, 1)])
def test_f22_after_a_kill_of_everything_no_name_and_no_process_is_left(program, roles, tmp_path):
    names = set(os.listdir("/dev/shm"))

    def no_more_names():  # those of other programs come and go
        return set(os.listdir("/dev/shm")) <= names

    with programs.start(program, cwd=tmp_path) as running:
        running.lines(roles)
        everybody = programs.of_session(running.pid)
        assert len(everybody) == 6 if program is busy_launch else 4
        until(no_more_names, "there is no name while it runs, either")
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not programs.of_session(running.pid), "all are gone")
    until(no_more_names, "no name is left")
    assert os.listdir(tmp_path) == []


# ---- F35 -----------------------------------------------------------------------------------

HEARD = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]


def pipes():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                found.add(int(number))
    return found


def disconnects(own):
    for number in own:
        os.close(number)


def dies(own):
    os.kill(os.getpid(), signal.SIGKILL)


def writes_nonsense(own):
    for number in own:
        with contextlib.suppress(OSError):  # one of the two is for reading
            while True:
                os.write(number, b"\xff" * 4096)


def kills_the_parent(own):
    os.kill(shmgpu.stats()["broker"]["parent_pid"], signal.SIGKILL)


def user_forks_a_worker(how):
    """As a web server forks its workers: each starts what it needs by itself."""
    worker = os.fork()
    if worker != 0:
        _, status = os.waitpid(worker, 0)
        say("worker ended", os.waitstatus_to_exitcode(status))
        until(lambda: len(programs.of_session(os.getsid(0))) == 1, "the broker is gone")
        say("alone")
        return
    for number in HEARD:
        signal.signal(number, lambda number, frame: say("heard", number))
    before = pipes()
    shmgpu.init(helpers=2, devices="cpu", arena="1MiB")
    x = shmgpu.arena.zeros(3)
    own = pipes() - before
    assert len(own) == 2
    hang.submit(x)
    until(lambda: x[0] == 1, "it is executed")
    globals()[how](own)
    until(lambda: len(programs.of_session(os.getsid(0))) == 2, "the broker is gone")
    try:
        add_one(x)
    except shmgpu.BrokerDied:
        say("told")
    sys.stdout.flush()
    os._exit(0)


@pytest.mark.parametrize("how", ["disconnects", "dies", "writes_nonsense", "kills_the_parent"])
def test_f35_a_process_that_the_user_forked_is_cleaned_up_after_and_never_signalled(how):
    out = programs.result(user_forks_a_worker, how)
    assert out[0].startswith("hung")
    told = [] if how == "dies" else ["told"]
    status = -signal.SIGKILL if how == "dies" else 0
    assert out[1:] == [*told, f"worker ended {status}", "alone"]


def gives_up_its_helpers():
    for number in HEARD:
        signal.signal(number, lambda number, frame: say("heard", number))
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        for _ in range(20):
            try:
                leave()
            except shmgpu.HelperDied:
                continue
            except shmgpu.ShmError as error:
                say("ended", type(error).__name__)
                break
    say("lives")


@shmgpu.function(arrays="numpy")
def leave(helper):
    os.kill(os.getpid(), signal.SIGKILL)


def test_f35_a_caller_is_not_signalled_when_its_broker_gives_up():
    ended, lives = programs.result(gives_up_its_helpers)
    assert ended in ("ended NoHelpers", "ended BrokerDied") and lives == "lives"


def test_f35_a_call_made_in_the_process_itself_serves_again_after_all_that():
    with shmgpu.init(devices="cpu", arena="1MiB"):
        assert add_one(np.zeros(1)).tolist() == [1]


if __name__ == "__main__":
    programs.main(globals())
