"""Programs come and go while others work: nobody's result is wrong, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from attach import brokers, served
from attach.brokers import until

import shmgpu

CYCLES = 100
GROWTH_KIB = 2048  # of a process: two of the arenas, of which each cycle fills one
WAIT_S = brokers.DEADLINE_S

WORKS = """
import sys, threading, numpy, shmgpu
from attach import served
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
own = int(sys.argv[1])
with shmgpu.connect({!r}):
    print("in", flush=True)
    x, turn, wrong = shmgpu.arena.empty(5000), 0, 0
    while not ends.is_set():
        turn += 1
        x[:] = own * 1000 + turn % 1000
        answers = [served.add_one(x), *(f.result() for f in [served.add_one.submit(x)])]
        wrong += sum((y != x + 1).any() for y in answers)
print("right" if not wrong and turn > 10 else f"{{wrong}} wrong of {{turn}}", flush=True)
"""


def held(pid: int) -> dict[str, int]:
    """What a process holds that could be held for nothing.

    Mappings of files only: how many pieces the allocator's own memory is in is its affair.
    """
    process = pathlib.Path(f"/proc/{pid}")
    maps = (process / "maps").read_text()
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "mappings": len(re.findall(r"^.* [1-9]\d* +/.*$", maps, re.MULTILINE)),
    }


def private_kib(pid: int) -> int:
    """Memory that is the process's own."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1])


def settled(pid: int) -> dict[str, int] | None:
    """What the process holds, once some looks in a row agree."""
    looks = [held(pid) for _ in range(5)]
    return looks[0] if all(look == looks[0] for look in looks) else None


def holds_no_more(pid: int, before: dict[str, int]) -> bool:
    """Than before; which may have been more than at rest, of who had just left."""
    now = settled(pid)
    return now is not None and all(now[kind] <= before[kind] for kind in now)


def cycle(path: pathlib.Path, number: int) -> None:
    """Come, call, and go: in order, by exiting, or by being killed with a call out."""
    if number % 5 < 3:
        with shmgpu.connect(path, wait=WAIT_S):
            everything = shmgpu.arena.empty(150_000)
            assert not everything.any(), "somebody else's data"
            everything[:] = number
            assert (served.add_one(everything[:100]) == number + 1).all()
            if number % 2:
                served.slow.submit(everything[:10], 0.01)  # given up
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            shmgpu.connect(path, wait=WAIT_S)
            everything = shmgpu.arena.empty(150_000)
            assert not everything.any(), "somebody else's data"
            everything[:] = number
            served.slow.submit(everything[:10], 0.01)
            if number % 5 == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            code = 0
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended == (-signal.SIGKILL if number % 5 == 3 else 0)


@pytest.mark.slow
@pytest.mark.fresh
def test_a_hundred_programs_come_and_go_under_load(tmp_path):
    path = tmp_path / "b.sock"
    with brokers.up(path, slots=4, helpers=2) as broker:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKS.format(str(path)), str(n)], env=brokers.environment(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for n in range(2)
        ]  # fmt: skip
        assert [worker.stdout.readline() for worker in workers] == ["in\n"] * 2
        for number in range(10):  # what is made once, at the first of a kind, is no leak
            cycle(path, number)
        with shmgpu.connect(path, wait=WAIT_S):
            helpers = [row["pid"] for row in shmgpu.stats()["helpers"]]
        gc.collect()  # a future that was dropped, and its call, know each other
        pids = [broker.pid, *helpers, os.getpid()]
        before = {pid: until(lambda pid=pid: settled(pid), "it has come to rest") for pid in pids}
        memory = {pid: private_kib(pid) for pid in pids}
        for number in range(CYCLES):
            cycle(path, number)
        gc.collect()
        for pid in pids:
            until(
                lambda pid=pid: holds_no_more(pid, before[pid]),
                f"{pids.index(pid)} of broker, helpers, me: {held(pid)} is {before[pid]} again",
            )
            assert private_kib(pid) - memory[pid] < GROWTH_KIB
        with shmgpu.connect(path, wait=WAIT_S):
            assert shmgpu.stats()["broker"]["helper_deaths"] == 0
            assert served.add_one(np.zeros(1)).tolist() == [1]
        outputs = [worker.communicate("", timeout=60) for worker in workers]
    assert [out for out, _ in outputs] == ["right\n", "right\n"], outputs
