"""Waits that are disturbed: storms of signals, hang-ups on idle pipes, pipes without a reader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import numpy as np
import pytest
from crash import programs
from crash.programs import say, until

import shmgpu

EVERY_S = 0.001


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def nap(helper, seconds):
    time.sleep(seconds)
    return seconds


@shmgpu.function(arrays="numpy")
def held(helper, gate):
    """It takes as long as whoever made the call needs it to."""
    say("held")
    until(lambda: gate[0], "somebody lets it go")


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8))
def double(helper, x):
    return 2 * x


@shmgpu.function(arrays="numpy")
def storms_seen(helper):
    return len(storm)


# ---- F24 -----------------------------------------------------------------------------------

storm = []  # what the handler of this process has counted


def begin_storm(helper=None):
    """A thousand signals a second in this process; timers are not inherited by a fork."""
    storm.clear()
    signal.signal(signal.SIGALRM, lambda number, frame: storm.append(number))
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)


@pytest.fixture
def calm():
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def calls_of_every_kind(rounds):
    """Each result is checked; the arguments are long enough that copying them is interrupted."""
    rows = np.arange(60_000.0).reshape(6, 10_000)

    async def awaits():
        return await asyncio.gather(*[add_one.aio(row) for row in rows])

    for _ in range(rounds):
        assert np.array_equal(add_one(rows), rows + 1)
        assert nap(0.003) == 0.003
        futures = [double.submit(rows[i : i + 1]) for i in range(6)]
        assert all(
            np.array_equal(f.result(20)[0], 2 * row) for f, row in zip(futures, rows, strict=True)
        )
        assert all(
            np.array_equal(a, row + 1) for a, row in zip(asyncio.run(awaits()), rows, strict=True)
        )
        assert [float(y[1]) for y in add_one.map(rows)] == [float(row[1]) + 1 for row in rows]
    gate = shmgpu.arena.zeros(1)
    with pytest.raises(shmgpu.CallTimeout):
        held.options(timeout=0.02)(gate)
    gate[0] = 1


def test_f24_a_storm_of_signals_in_every_process_changes_no_result(calm):
    def main(rank):
        begin_storm()
        calls_of_every_kind(30)
        seen = len(storm)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return seen, storms_seen()

    begin_storm()
    results = shmgpu.launch(
        main, children=2, helpers=2, session=begin_storm, devices="cpu", arena="16MiB"
    )
    in_parent = len(storm)
    # Handlers ran in each of them, all the time: in children, in helpers, in the parent.
    assert all(child > 50 and helper > 50 for child, helper in results)
    assert in_parent > 50


def test_f24_a_storm_over_init_and_shutdown_changes_nothing(calm):
    begin_storm()
    with shmgpu.init(helpers=2, session=begin_storm, devices="cpu", arena="16MiB"):
        calls_of_every_kind(10)
    assert len(storm) > 20


def blocked_init_call():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        assert add_one(np.zeros(1)).tolist() == [1]
        gate = shmgpu.arena.zeros(1)
        try:
            held(gate)
        except KeyboardInterrupt:
            say("interrupted", shmgpu.stats()["helpers"][0]["in_flight"])
        gate[0] = 1
        say(add_one(np.zeros(1)).tolist())


def test_f24_ctrl_c_interrupts_a_blocked_call_of_an_init_and_helpers_live():
    with programs.start(blocked_init_call) as program:
        assert program.line() == "held"
        os.killpg(program.pid, signal.SIGINT)  # as the terminal does: to the whole group
        out, errors = program.end()
        assert out.splitlines() == ["interrupted 1", "[1.0]"], errors


@shmgpu.function(arrays="numpy")
def interrupt_after(helper, seconds, gate):
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < until_ns:
        pass  # closer than a sleep
    os.kill(interrupted, signal.SIGINT)
    until(lambda: gate[0], "it was heard")


def has_calls_out():
    return any(helper["in_flight"] for helper in shmgpu.stats()["helpers"])


def test_f24_ctrl_c_is_heard_however_soon_after_the_call_it_comes():
    """What comes after the host's last look, and before the sleep, is not slept through."""
    global interrupted
    interrupted = os.getpid()
    with shmgpu.init(helpers=12, devices="cpu", arena="1MiB"):
        for microseconds in range(0, 60, 5):
            add_one(np.zeros(1))  # answered at once, so watching is thought to pay
            gate = shmgpu.arena.zeros(1)
            with pytest.raises(KeyboardInterrupt):
                interrupt_after(microseconds / 1e6, gate)
            until(has_calls_out, "the call is counted, which goes on")
            gate[0] = 1


# ---- F26 -----------------------------------------------------------------------------------


def own_pipes(mine):
    """Ends that this role has and the user's program had not."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("pipe:") and name not in mine:
                flags = int(open(f"/proc/self/fdinfo/{number}").read().split()[3], 8)
                found.append((int(number), flags & os.O_ACCMODE))
    return found


def names_of_pipes():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def expect_idle(pid):
    """It comes to rest: a loop that spins would take every one of these ticks."""

    def is_idle():
        before = programs.cpu_ticks(pid)
        time.sleep(0.3)
        return programs.cpu_ticks(pid) - before <= 1

    until(is_idle, "the process takes no processor time", 10)


MODES = {"reads": os.O_RDONLY, "writes": os.O_WRONLY}
CLOSED = [["reads"], ["writes"], ["reads", "writes"]]


def close_own(mine, closed):
    for number, mode in own_pipes(mine):
        if mode in [MODES[name] for name in closed]:
            os.close(number)


@pytest.mark.parametrize("closed", CLOSED, ids="+".join)
def test_f26_a_child_that_hangs_up_and_lives_on_costs_the_dispatcher_nothing(closed):
    mine = names_of_pipes()

    def main(rank):
        add_one(np.zeros(1))
        if rank == 0:
            close_own(mine, closed)
        expect_idle(os.getppid())
        return add_one(np.zeros(1)).tolist() if rank == 1 else None

    assert shmgpu.launch(main, children=2, devices="cpu", arena="1MiB") == [None, [1]]


@shmgpu.function(arrays="numpy")
def hang_up(helper, mine, closed):
    close_own(mine, closed)
    time.sleep(60)


@pytest.mark.parametrize("closed", CLOSED, ids="+".join)
def test_f26_a_helper_that_hangs_up_and_lives_on_costs_the_dispatcher_nothing(closed):
    mine = names_of_pipes()

    def main(rank):
        with pytest.raises((shmgpu.CallTimeout, shmgpu.HelperDied)):
            hang_up.options(timeout=0.2)(list(mine), closed)
        expect_idle(os.getppid())
        return add_one.options(timeout=10)(np.zeros(1)).tolist()

    launched = shmgpu.launch(main, children=1, helpers=2, devices="cpu", arena="1MiB", grace=0.2)
    assert launched == [[1]]


def test_f26_a_caller_whose_broker_has_gone_comes_to_rest():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        assert add_one.submit(np.zeros(1)).result().tolist() == [1]  # its reader thread runs
        parent = shmgpu.stats()["broker"]["parent_pid"]
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(shmgpu.BrokerDied):
            add_one(np.zeros(1))
        expect_idle(os.getpid())


# ---- F27 -----------------------------------------------------------------------------------


def sigpipe_as_in_a_shell_tool():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def main(rank):
        for _ in range(2):
            with pytest.raises(shmgpu.HelperDied):
                die()
            futures = [die.submit(), *[add_one.submit(np.zeros(1)) for _ in range(50)]]
            assert isinstance(futures[0].exception(20), shmgpu.HelperDied)
            assert all(future.result(20).tolist() == [1] for future in futures[1:])
        return rank

    say(shmgpu.launch(main, children=1, helpers=1, devices="cpu", arena="1MiB"))
    shmgpu.init(helpers=1, devices="cpu", arena="1MiB")
    add_one(np.zeros(1))
    parent = shmgpu.stats()["broker"]["parent_pid"]
    os.kill(parent, signal.SIGKILL)
    until(lambda: not programs.is_alive(parent), "the parent is gone")
    for call in (lambda: add_one(np.zeros(1)), lambda: add_one.submit(np.zeros(1)).result(5)):
        with pytest.raises(shmgpu.BrokerDied):
            call()
    shmgpu.shutdown()
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    say("the user's own pipe:")
    ends = os.pipe()
    os.close(ends[0])
    os.write(ends[1], b"x")
    say("not reached")


def test_f27_a_broken_pipe_of_ours_is_the_peers_death_and_the_users_own_stays_a_signal():
    done = programs.run(sigpipe_as_in_a_shell_tool)
    assert done.stdout.splitlines() == ["[0]", "the user's own pipe:"], done.stderr
    assert done.returncode == -signal.SIGPIPE


if __name__ == "__main__":
    programs.main(globals())
