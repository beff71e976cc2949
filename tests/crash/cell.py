"""One cell of the crash matrix: a small broker under load, one fault, and what everybody saw of it.

``python tests/crash/cell.py helper KILL in_function`` with the test build on PYTHONPATH runs one
cell and prints it as JSON; test_matrix.py holds what each cell must print. This process watches
from outside. It forks the *program*, which launches; whatever that leaves becomes this process's.
``cell.py --each`` runs a cell for each line of its input, in a process forked for it: the
interpreter starts once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import json
import mmap
import os
import sys
import threading
import time
import traceback

import numpy as np
import numpy.random  # at first use, else: in every cell

import shmgpu
from shmgpu import _core

CHILDREN, HELPERS = 3, 2
VICTIM = {"helper": "helper0", "child": "child1", "parent": "parent"}
LONG_S = 30.0  # nobody should wait so long
GONE_S = 2.0  # how soon every process must be gone once the program has ended
PR_SET_CHILD_SUBREAPER = 36

# Rows of a page that every process of a cell may read; in each row everybody has a word to write.
STARTED, ANSWERED, TIMED_OUT, ENDED, UNWOUND, RESUMED = range(6)


def a_page():
    return memoryview(mmap.mmap(-1, 4096)).cast("q")


_page = a_page()


def note(row, rank=0):
    _page[row * CHILDREN + rank] += 1


def noted(row):
    return sum(_page[row * CHILDREN : (row + 1) * CHILDREN])


def await_(condition, seconds=LONG_S):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


# ---- the load --------------------------------------------------------------------------------


def pass_point():
    _core.lib.shm_fault_pass(b"in_function")


# It is taken for hung after more than a busy machine makes it wait.
@shmgpu.function(arrays="numpy", mutates=True, hang_after=2.0)
def work(helper, x):
    x[0] += 1  # how often this call was run
    pass_point()
    return 3 * x + 1


class Load:
    """Calls of one child, several at a time, each result checked bit for bit."""

    def __init__(self, rank, timeout):
        self.random = np.random.default_rng(rank)
        self.call = work.options(timeout=timeout)
        self.rank = rank
        self.heard = collections.Counter()
        self.wrong = 0

    def round(self):
        sent = []
        for _ in range(6):
            x = shmgpu.arena.empty(32, "float64")
            self.random.random(out=x)
            x[0] = 0
            with self.hears():
                sent.append((x, self.call.submit(x)))
        pass_point()
        for x, future in sent:
            with self.hears():
                self.check(x, future.result(LONG_S))
        x = shmgpu.arena.zeros(32, "float64")
        with self.hears():
            self.check(x, self.call(x))

    @contextlib.contextmanager
    def hears(self):
        try:
            yield
        except shmgpu.ShmError as error:
            self.heard[type(error).__name__] += 1
            if isinstance(error, shmgpu.CallTimeout):
                note(TIMED_OUT, self.rank)

    def check(self, x, result):
        once = x[0] == 1
        if not (once and np.array_equal(result, 3 * x + 1)):
            self.wrong += 1
        note(ANSWERED, self.rank)


# ---- what a child does until, and then ---------------------------------------------------------


def a_helper_was_replaced():
    stats = shmgpu.stats()
    return stats["broker"]["helper_deaths"] > 0 and all(
        helper["state"] == 2 for helper in stats["helpers"]
    )


def the_victim_ended():
    return shmgpu.stats()["children"][1]["state"] == 2


UNTIL = {
    "a helper was replaced": a_helper_was_replaced,
    "a call timed out": lambda: noted(TIMED_OUT) > 0,
    "the victim ended": the_victim_ended,
    "it was resumed": lambda: noted(RESUMED) > 0,
    "some rounds": lambda: True,
    "the end": lambda: False,
}


def main(rank, cell):
    load = Load(rank, cell.timeout)
    until = UNTIL["some rounds" if rank == cell.victim_rank else cell.until]
    rounds = 0
    try:
        note(STARTED, rank)
        await_(lambda: noted(STARTED) >= CHILDREN)  # nobody is ended before it began
        while rounds < 10 or (not until() and rounds < 100_000):
            load.round()
            rounds += 1
        if cell.then_waits and rank != cell.victim_rank:
            time.sleep(LONG_S)  # to be told to end
        after = Load(rank, LONG_S)  # the next calls work
        after.round()
        load.wrong += after.wrong + sum(after.heard.values())
        note(ENDED, rank)
    except SystemExit:
        note(UNWOUND, rank)
        raise
    return {"heard": load.heard, "wrong": load.wrong}


# ---- the program -------------------------------------------------------------------------------


def belongings():
    """What a process must have no more of afterwards than before."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("/memfd:" in line for line in maps)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mappings": mapped,
    }


def more_than(before):
    return {name: count for name, count in belongings().items() if count > before[name]}


def by_launch(cell):
    """A launch() whose children all make calls."""
    stats: dict = {}
    results = shmgpu.launch(
        main,
        children=CHILDREN,
        helpers=HELPERS,
        args=(cell,),
        stats_into=stats,
        **cell.settings,
    )
    return results, stats


def by_init(cell):
    """An init() whose caller makes calls until its broker is gone."""
    load = Load(0, LONG_S)
    shmgpu.init(helpers=HELPERS, **cell.settings)
    try:
        while not load.heard:
            load.round()
        lost = {"helper_deaths": 0, "child_restarts": 0}  # with the parent that counted them
        return [{"heard": dict.fromkeys(load.heard, 1), "wrong": load.wrong}], {"broker": lost}
    finally:
        shmgpu.shutdown()


def one_call(rank):
    load = Load(rank, LONG_S)
    load.round()
    return not load.heard and not load.wrong


def next_broker_works(cell):
    if cell.way is by_launch:
        return all(shmgpu.launch(one_call, children=1, helpers=1, **cell.plain))
    # The thread that read replies may still be ending, and beside a thread init() does not fork.
    await_(lambda: threading.active_count() == 1, GONE_S)
    with shmgpu.init(helpers=1, **cell.plain):
        return one_call(0)


def program(cell):
    before = belongings()
    told = {"error": None, "heard": {}, "wrong": 0, "deaths": 0, "restarts": 0}
    try:
        results, stats = cell.way(cell)
        for result in results:
            told["wrong"] += result["wrong"]
            for name, count in result["heard"].items():
                told["heard"][name] = told["heard"].get(name, 0) + count
        told["deaths"] = stats["broker"]["helper_deaths"]
        told["restarts"] = stats["broker"]["child_restarts"]
    except shmgpu.ShmError as error:
        told["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    del os.environ["SHMGPU_FAULTS"]
    told["next"] = next_broker_works(cell)
    await_(lambda: not more_than(before), GONE_S)
    told["leaked"] = more_than(before)
    return told


# ---- watching ----------------------------------------------------------------------------------


def family():
    """{pid: state} of this process's descendants."""
    parents, states = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            states[int(name)], parents[int(name)] = fields[0], int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: states[pid] for pid in found if pid != os.getpid()}


def nothing_moves():
    seen = noted(ANSWERED)
    time.sleep(0.15)
    return noted(ANSWERED) == seen


RESUME = {
    "never": lambda: False,
    "a call timed out": lambda: noted(TIMED_OUT) > 0,
    "the others ended": lambda: noted(ENDED) == CHILDREN - 1,
    "nothing moves": nothing_moves,
}


def resume_stopped(when):
    """Let a stopped process go on when it is time for that."""
    stopped = [pid for pid, state in family().items() if state == "T"]
    if stopped and RESUME[when]():
        note(RESUMED)
        for pid in stopped:
            os.kill(pid, 18)  # SIGCONT
        return True
    return False


def reap(pid):
    """Exit of ``pid`` (negative: the signal) or None while it runs; reaps orphans on the way."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (got := os.waitpid(-1, os.WNOHANG))[0]:
            if got[0] == pid:
                status = os.waitstatus_to_exitcode(got[1])
    return status


def watch(cell):
    """Run the cell; what was seen of it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    names = set(os.listdir("/dev/shm"))
    end, told_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        with open(told_end, "w") as file:
            json.dump(program(cell), file)
        os._exit(0)
    os.close(told_end)
    seen = {"exit": None, "resumed": False}

    def program_ended():
        seen["exit"] = reap(pid)
        seen["resumed"] |= resume_stopped(cell.resume)
        return seen["exit"] is not None

    await_(program_ended)
    seen["gone"] = await_(lambda: reap(0) or not family(), GONE_S)
    for left in family():
        os.kill(left, 9)
    await_(lambda: reap(0) or not family(), GONE_S)
    with open(end) as file:
        told = file.read()
    seen.update(json.loads(told) if told else {})
    seen["ended"], seen["unwound"] = noted(ENDED), noted(UNWOUND)

    def new_names():
        return sorted(set(os.listdir("/dev/shm")) - names)

    await_(lambda: not new_names(), GONE_S)  # those of other programs come and go
    seen["names"] = new_names()
    return seen


def read_arguments(words):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=VICTIM)
    parser.add_argument("action", choices=["SEGV", "KILL", "ABRT", "STOP", "exit0"])
    parser.add_argument(
        "point", choices="before_read after_read in_function before_reply after_reply".split()
    )
    parser.add_argument("--way", choices=["launch", "init"], default="launch")
    parser.add_argument("--until", choices=UNTIL, default="some rounds", help="the load lasts")
    parser.add_argument("--resume", choices=RESUME, default="never", help="a stopped process")
    parser.add_argument("--timeout", type=float, default=LONG_S, help="of each call, seconds")
    parser.add_argument("--then-waits", action="store_true", help="children wait to be ended")
    parser.add_argument("--restart", choices=["never", "on-failure"])
    cell = parser.parse_args(words)
    cell.victim_rank = 1 if cell.role == "child" else None
    cell.way = {"launch": by_launch, "init": by_init}[cell.way]
    cell.plain = {"devices": "cpu", "arena": "1MiB", "trace_records": 0}
    cell.settings = dict(cell.plain)
    if cell.restart:
        cell.settings["restart"] = cell.restart
    return cell


def run(words):
    cell = read_arguments(words)
    os.environ["SHMGPU_FAULTS"] = f"{VICTIM[cell.role]}@{cell.point}={cell.action}#3"
    print(json.dumps(watch(cell)), flush=True)


def run_each(lines):
    """One line of output for each line of words."""
    global _page
    for line in lines:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _page = a_page()
                run(json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(pid, 0)[1]:
            print("{}", flush=True)  # it has said why


if __name__ == "__main__":
    if sys.argv[1:] == ["--each"]:
        run_each(iter(sys.stdin.readline, ""))
    else:
        run(sys.argv[1:])
