"""What a child forked: it shares the arena while the child lives, and never a successor's (F02)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import shmgpu

DEADLINE_S = 20.0


def wait_for(path):
    """Until somebody has made that file."""
    deadline = time.monotonic() + DEADLINE_S
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"nobody made {path}"
        time.sleep(0.005)


def touch(path):
    open(path, "w").close()


@shmgpu.function(arrays="numpy")
def total(helper, x):
    return float(x.sum())


@shmgpu.function(arrays="numpy")
def total_once(helper, x, began, go):
    touch(began)
    wait_for(go)
    return float(x.sum())


def fork(body):
    """Run it in a forked process, which outlives no test."""
    pid = os.fork()
    if pid != 0:
        return pid
    signal.alarm(int(DEADLINE_S))
    try:
        body()
    finally:
        os._exit(0)


def test_f02_what_a_dead_child_forked_never_writes_into_its_successors_arena(tmp_path):
    born, wrote, over = (str(tmp_path / name) for name in ("born", "wrote", "over"))

    def child(rank):
        if not os.path.exists(born):
            x = shmgpu.arena.zeros(1000)
            assert total(x) == 0

            def writes_on():
                touch(born)
                while not os.path.exists(over):
                    x[:] = 666.0
                    touch(wrote)
                    time.sleep(0.001)

            fork(writes_on)
            wait_for(born)
            os._exit(3)
        own = shmgpu.arena.zeros(1000)
        seen = set()
        for _ in range(3):  # it writes now, while we look
            os.unlink(wrote) if os.path.exists(wrote) else None
            wait_for(wrote)
            seen |= {total(own), float(own.max()), float(total(shmgpu.arena.zeros(1000)))}
        touch(over)
        return seen, shmgpu.stats()["children"][0]["generation"]

    try:
        found = shmgpu.launch(child, helpers=2, devices="cpu", arena="1MiB", restart="on-failure")
    finally:
        touch(over)
    assert found == [({0.0}, 2)]


def resident_bytes():
    """Of arenas, as this process maps them."""
    found, is_arena = 0, False
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            is_arena = "shmgpu-arena" in line
        elif is_arena and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_f02_an_arena_is_given_back_though_a_daemon_of_its_dead_child_keeps_it(tmp_path):
    born, gone, over = (str(tmp_path / name) for name in ("born", "gone", "over"))

    def child(rank):
        if not os.path.exists(born):
            x = shmgpu.arena.empty(24 << 20, np.uint8)
            x[:] = 1

            def stays():
                assert x.all() and resident_bytes() >= 24 << 20
                touch(born)
                while resident_bytes() > 0:
                    time.sleep(0.005)
                touch(gone)
                wait_for(over)

            fork(stays)
            wait_for(born)
            os._exit(3)
        wait_for(gone)  # while we have its place
        return shmgpu.stats()["broker"]["cleared_bytes"] >= 24 << 20

    try:
        assert shmgpu.launch(
            child, helpers=1, devices="cpu", arena="32MiB", restart="on-failure"
        ) == [True]
    finally:
        touch(over)


@pytest.mark.parametrize("busy", [0, 1])
def test_f02_a_helper_that_was_busy_when_a_place_changed_hands_serves_the_new_memory(
    tmp_path, busy
):
    born, ready, began, go = (str(tmp_path / name) for name in ("born", "ready", "began", "go"))

    def changes(rank):
        x = shmgpu.arena.zeros(1000)
        if not os.path.exists(born):
            assert [total.options(helpers=[h])(x) for h in (0, 1)] == [0, 0]
            touch(ready)
            wait_for(began)
            touch(born)
            os._exit(3)
        assert total.options(helpers=[1 - busy])(x + 1) == 1000
        touch(go)
        return [total.options(helpers=[h])(shmgpu.arena.zeros(1000) + h) for h in (0, 1)]

    def keeps_busy(rank):
        wait_for(ready)
        return total_once.options(helpers=[busy])(np.ones(3), began, go)

    found = shmgpu.launch(
        [changes, keeps_busy], helpers=2, devices="cpu", arena="1MiB", restart="on-failure"
    )
    assert found == [[0.0, 1000.0], 3.0]


def test_f02_many_lives_in_one_place_leave_nothing_with_the_helpers(tmp_path):
    lives = tmp_path / "lives"

    @shmgpu.function(arrays="numpy")
    def looks(helper, x):
        maps = open("/proc/self/maps").read().count("shmgpu-arena")
        return np.array([maps, len(os.listdir("/proc/self/fd")), x.sum()])

    def child(rank):
        with lives.open("a") as file:
            file.write("x")
        x = shmgpu.arena.zeros(1000)
        assert not x.any()
        end = time.monotonic() + DEADLINE_S
        while (seen := looks(x + 1).tolist())[0] > 1 and time.monotonic() < end:
            pass  # on a busy machine the helper may have let go of the last life a moment later
        x[:] = 7
        if lives.stat().st_size < 5:
            os._exit(3)
        return seen

    [(maps, descriptors, found)] = shmgpu.launch(
        child, helpers=1, devices="cpu", arena="1MiB", restart="on-failure"
    )
    once = shmgpu.launch(
        lambda rank: looks(shmgpu.arena.zeros(1000)).tolist(), helpers=1, devices="cpu"
    )
    assert (maps, found) == (1, 1000)
    assert descriptors == once[0][1]


def test_while_its_child_lives_what_it_forked_reads_and_writes_the_arena():
    def child(rank):
        x = shmgpu.arena.zeros(8)
        context = multiprocessing.get_context("fork")

        def adds(index):
            x[index] += index + 1

        for index in range(8):
            one = context.Process(target=adds, args=(index,))
            one.start()
            one.join(DEADLINE_S)
            assert one.exitcode == 0
        with context.Pool(2) as pool:  # its workers see what the child writes, and the other way
            x += 1
            seen = pool.map(float, x)
        return seen, total(x)

    expected = [float(index + 2) for index in range(8)]
    assert shmgpu.launch(child, devices="cpu", arena="1MiB") == [(expected, sum(expected))]


def test_the_workers_of_a_loader_fill_arrays_of_the_childs_arena():
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            self.rows[index] = index  # in a worker's process
            return torch.from_numpy(self.rows[index].copy())

    def child(rank):
        rows = shmgpu.arena.empty((12, 4))
        loader = torch.utils.data.DataLoader(
            Rows(rows), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        read = [float(batch.sum()) for batch in loader]
        return read, [total(rows[start : start + 4]) for start in (0, 4, 8)]

    expected = [4.0 * sum(range(start, start + 4)) for start in (0, 4, 8)]
    assert shmgpu.launch(child, devices="cpu", arena="1MiB") == [(expected, expected)]


# The hook stands before any of ours, and the signal comes while the interpreter sorts itself out.
TOLD_AS_IT_BEGINS = """
import os, signal
is_armed = False

def told():
    if is_armed:
        os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(after_in_child=told)
import shmgpu

def main(rank):
    global is_armed
    is_armed = True
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

print(shmgpu.launch(main, devices="cpu", arena="1MiB"))
"""


def test_sigterm_ends_what_a_child_forked_however_early_it_comes():
    done = subprocess.run(
        [sys.executable, "-c", TOLD_AS_IT_BEGINS], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (f"[{-signal.SIGTERM}]\n", "")


def test_pools_of_a_child_end_as_often_as_they_are_made():
    def child(rank):
        for _ in range(20):
            with multiprocessing.get_context("fork").Pool(2):
                pass
        return True

    assert shmgpu.launch(child, devices="cpu", arena="1MiB") == [True]


@shmgpu.function(arrays="numpy")
def ends_what_it_forked(helper):
    pid = fork(lambda: time.sleep(DEADLINE_S))  # only the signal ends it in time
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_sigterm_ends_what_a_session_forked():
    ended = shmgpu.launch(lambda rank: ends_what_it_forked(), devices="cpu", arena="1MiB")
    assert ended == [-signal.SIGTERM]
