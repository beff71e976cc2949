"""Starts that cannot be, and what a start must not do twice: all or nothing, with the reason."""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import os
import pathlib
import resource
import sys
import threading

import numpy as np
import pytest
from crash import programs
from crash.programs import say

import shmgpu
from shmgpu.broker.role_host import RoleHost


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


def launch(main=lambda rank: add_one(np.zeros(1)).tolist(), **settings):
    settings = {"children": 2, "helpers": 2, "devices": "cpu", "arena": "1MiB", **settings}
    return shmgpu.launch(main, **settings)


def init(**settings):
    with shmgpu.init(**{"helpers": 2, "devices": "cpu", "arena": "1MiB", **settings}):
        return [add_one(np.zeros(1)).tolist()]


STARTS = pytest.mark.parametrize("start", [launch, init])


# ---- F28 -----------------------------------------------------------------------------------


def test_f28_a_start_with_threads_running_is_refused_and_names_them():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="busybody")
    thread.start()
    try:
        with pytest.raises(shmgpu.LaunchError, match=r"busybody") as caught:
            launch()
        assert "end these threads before it" in str(caught.value)
        assert init()[0] == [1]  # which starts a fresh interpreter then
    finally:
        stop.set()
        thread.join()
    assert launch()[0] == [1]


def use_a_pool_and_launch():
    import torch

    os.sched_getaffinity = lambda pid: {0, 1, 2}  # as where one helper has two
    torch.set_num_threads(2)
    big = torch.randn(1500, 1500)
    (big * big).sum()

    @shmgpu.function
    def work(helper, x):
        return torch.get_num_threads(), float((x * x).sum())

    def main(rank):
        return work(np.ones((1500, 1500), "f4"))

    say(launch(main, children=1, helpers=1, arena="16MiB"))


def use_a_pool_and_init():
    import torch

    os.sched_getaffinity = lambda pid: {0, 1, 2}
    torch.set_num_threads(2)
    big = torch.randn(1500, 1500)
    (big * big).sum()
    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB", threads=2):
        say(threads_of_helper(np.ones(1)), add_one(np.zeros(1)).tolist())


@shmgpu.function(arrays="numpy")
def threads_of_helper(helper, x):
    import torch

    return torch.get_num_threads()


def test_f28_an_init_after_a_used_openmp_pool_starts_afresh_and_helpers_have_their_threads():
    done = programs.run(use_a_pool_and_init)
    assert done.stdout.strip() == "2 [1.0]", done.stderr
    assert "OpenMP" not in done.stderr


def test_f28_a_launch_outside_the_main_thread_is_refused():
    refused = []

    def run():
        with pytest.raises(shmgpu.LaunchError) as caught:
            launch()
        refused.append(str(caught.value))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    [sentence] = refused
    assert "from the main thread, because it forks: call it there" in sentence


def test_f28_after_a_used_openmp_pool_helpers_compute_with_one_thread_and_a_warning():
    done = programs.run(use_a_pool_and_launch)
    assert done.stdout.strip() == "[(1, 2250000.0)]", done.stderr
    assert "OpenMP" in done.stderr and "one thread" in done.stderr


# ---- F29 -----------------------------------------------------------------------------------


def test_f29_a_start_after_cuda_was_initialised_is_refused_in_a_sentence(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(shmgpu.LaunchError, match="launch before the first CUDA operation"):
        launch()
    assert init()[0] == [1]  # which starts a fresh interpreter then
    monkeypatch.undo()
    assert launch()[0] == [1]


@pytest.mark.gpu
def test_f29_a_start_after_a_cuda_operation_is_refused_and_never_hangs():
    assert programs.result(use_cuda_and_launch) == ["refused"]


def use_cuda_and_launch():
    import torch

    torch.zeros(3, device="cuda").sum().item()
    with pytest.raises(shmgpu.LaunchError, match="CUDA is already initialised"):
        launch()
    say("refused")


# ---- F31 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "forks"), [(launch, 4), (init, 3)])
def test_f31_a_fork_that_fails_ends_the_start_with_its_reason(start, forks, monkeypatch, tmp_path):
    of_host = RoleHost.fork
    works = 0

    def fork(self):
        """The k-th of all processes together cannot be had."""
        with open(tmp_path / str(works), "a") as count:
            count.write("x")
        if (tmp_path / str(works)).stat().st_size > works:
            raise BlockingIOError(errno.EAGAIN, "no more processes for you")
        return of_host(self)

    monkeypatch.setattr(RoleHost, "fork", fork)
    while works < forks:
        with pytest.raises(shmgpu.LaunchError, match=r"fork.*Resource temporarily unavailable"):
            start()
        works += 1
    assert start()[0] == [1]


def launch_with_few_processes(limit):
    """The environment has linear algebra ask for one thread: it insists on what it asks for."""
    resource.setrlimit(resource.RLIMIT_NPROC, (int(limit), int(limit)))
    for start in (launch, init):
        try:
            start()
        except shmgpu.LaunchError as error:
            say("LaunchError", os.strerror(errno.EAGAIN) in str(error))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            say("nothing left")


def test_f31_a_user_who_may_have_no_more_processes_is_told(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can become a user who has no other processes")
    nobody = programs.needs(
        "setpriv", "--reuid=64321", "--regid=64321", "--clear-groups", "--inh-caps=-all"
    )
    if programs.run(say_hello, before=nobody).returncode != 0:
        pytest.skip("another user cannot read this checkout")
    nobody = ("env", "OPENBLAS_NUM_THREADS=1", *nobody)
    for limit in (1, 2):
        lines = programs.result(launch_with_few_processes, limit, before=nobody)
        assert lines == ["LaunchError True", "nothing left"] * 2


def say_hello():
    say("hello")


def launch_with_few_descriptors():
    """The limit is not of our making: the user's own files leave k numbers, k = 0, 1, ..."""
    limit = 300
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    launch()  # what is opened once and for all is open
    init()
    for start in (launch, init):
        worked, refused, spare = 0, 0, 0
        while worked < 3:
            gc.collect()
            nothing = os.open("/dev/null", os.O_RDONLY)
            files = [nothing, *(os.dup(nothing) for _ in range(limit - open_files() - spare))]
            before = open_files()
            try:
                assert start()[0] == [1]
                worked += 1
            except shmgpu.LaunchError as error:
                assert worked == 0 and "open files" in str(error), error
                refused += 1
            assert open_files() == before, (spare, open_files(), before)
            for file in files:
                os.close(file)
            try:
                os.waitpid(-1, os.WNOHANG)
                raise AssertionError("a process is left")
            except ChildProcessError:
                pass
            spare += 1
        say(start.__name__, refused > 10)


def open_files():
    return sum(1 for fd in range(300) if pathlib.Path(f"/proc/self/fd/{fd}").is_symlink())


def test_f31_with_too_few_descriptors_a_start_is_all_or_nothing():
    assert programs.result(launch_with_few_descriptors) == ["launch True", "init True"]


@STARTS
@pytest.mark.parametrize("number", [0, 1, 2])
def test_f31_a_session_that_raises_at_any_helper_is_the_error(start, number):
    def load(helper):
        if helper.id == number:
            raise RuntimeError(f"no model {number}")
        return helper.id

    with pytest.raises(shmgpu.SessionError, match=f"no model {number}") as caught:
        start(helpers=3, session=load)
    assert caught.value.helper == number
    assert "in load" in caught.value.traceback_text
    assert start(helpers=3)[0] == [1]


@STARTS
@pytest.mark.parametrize("number", [0, 2])
def test_f31_a_helper_that_ends_while_it_loads_is_the_error(start, number):
    def load(helper):
        if helper.id == number:
            os._exit(7)

    with pytest.raises(shmgpu.SessionError, match=f"helper {number} ended.* 7"):
        start(helpers=3, session=load)
    assert start()[0] == [1]


# ---- F34 -----------------------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def leave(helper):
    print("helper", end=" ")
    sys.exit(3)


def print_and_start(kind, path):
    libc = ctypes.CDLL(None)
    atexit.register(print, "at exit")
    libc.printf(b"of C ")  # into a pipe: it stays in the library's buffer
    file = open(path, "w")
    file.write("in a file\n")
    print("before", end=" ")

    def main(rank=0):
        print("child", end=" ")
        for _ in range(2):
            with pytest.raises((shmgpu.HelperDied, shmgpu.RemoteError)):
                leave()
        return add_one(np.zeros(1)).tolist()

    if kind == "launch":
        launch(main, children=3)
    else:
        with shmgpu.init(helpers=2, devices="cpu", arena="1MiB"):
            main()
    print("after")


@pytest.mark.parametrize(("kind", "children"), [("launch", 3), ("init", 1)])
def test_f34_nothing_buffered_is_printed_twice_and_no_exit_hook_runs_twice(
    kind, children, tmp_path
):
    done = programs.run(print_and_start, kind, tmp_path / "file")
    assert done.returncode == 0, done.stderr
    words = {"before": 1, "child": children, "after": 1, "at exit": 1, "of C": 1}
    words["helper"] = 2 * children
    assert {word: done.stdout.count(word) for word in words} == words, done.stdout
    assert (tmp_path / "file").read_text() == "in a file\n"


if __name__ == "__main__":
    programs.main(globals())
