"""What two threads make at the same moment is made once: what views share, tables of hooks.

The second thread comes when the first is in the middle of it. Either it waits there, or the first
goes on when it is done: so each test ends with and without what it tests.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import shmgpu as gt
from shmgpu.tensors import once, sharing

AFTER_A_FORK = """
import os, signal, threading
import shmgpu
from shmgpu.tensors import once

held, ends = threading.Event(), threading.Event()

def hold():
    with once.lock:
        held.set()
        ends.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)
    with shmgpu.init(inline=True, arena="8MiB"):
        print(shmgpu.ones(2, 3).T.shape, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
ends.set()
thread.join()
"""


class Meeting:
    """Two threads: the second begins when the first is :meth:`within`, which lasts until it met."""

    def __init__(self, monkeypatch):
        self.first, self.met = threading.Event(), threading.Event()
        self._lock = once.lock
        monkeypatch.setattr(once, "lock", self)

    def __enter__(self):
        if self.first.is_set() and not self._is_first():
            self.met.set()
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()

    def _is_first(self):
        return threading.current_thread().name == "first"

    def within(self):
        if self._is_first() and not self.first.is_set():
            self.first.set()
            assert self.met.wait(20)

    def run(self, first, second):
        """Both; whatever goes wrong in either is raised."""
        wrong = []

        def call(function, ends):
            try:
                function()
            except BaseException as error:
                wrong.append(error)
            if ends:
                self.met.set()

        threads = [
            threading.Thread(target=call, args=(first, False), name="first"),
            threading.Thread(target=call, args=(second, True), name="second"),
        ]
        threads[0].start()
        assert self.first.wait(20)
        threads[1].start()
        for thread in threads:
            thread.join(30)
        if wrong:
            raise wrong[0]


@pytest.fixture
def meeting(engine, monkeypatch):
    return Meeting(monkeypatch)


def in_the_middle_of(meeting, monkeypatch, owner, name):
    """The first thread that has called that method is in the middle of it."""
    real = getattr(owner, name)

    def call(self, *args):
        found = real(self, *args)
        meeting.within()
        return found

    monkeypatch.setattr(owner, name, call)


def test_the_first_views_of_a_tensor_share_its_elements(meeting, monkeypatch):
    in_the_middle_of(meeting, monkeypatch, sharing.Shared, "__init__")
    x, views = gt.ones(4), {}
    meeting.run(lambda: views.update(a=x[:2]), lambda: views.update(b=x[2:]))
    x += 1
    views["b"] *= 3
    assert views["a"].tolist() == [2, 2] and views["b"].tolist() == [6, 6]
    assert x.tolist() == [2, 2, 6, 6]


def test_the_first_views_of_a_view_that_is_all_that_is_left_share_its_elements(
    meeting, monkeypatch
):
    in_the_middle_of(meeting, monkeypatch, sharing.Shared, "alive")
    x, views = gt.zeros(6).view(2, 3), {}  # nobody has the six
    meeting.run(lambda: views.update(a=x[0]), lambda: views.update(b=x[1]))
    x += 1
    views["b"] *= 3
    assert views["a"].tolist() == [1] * 3 and x.tolist() == [[1] * 3, [3] * 3]


def test_a_view_that_is_taken_while_those_that_are_gone_are_looked_for_is_kept(meeting):
    x = gt.ones(4)
    views = {"kept": x[:1]}
    shared = x._shared

    def gone():
        meeting.within()

    shared._views += [gone] * (shared._most - len(shared._views))
    meeting.run(lambda: views.update(a=x[:2]), lambda: views.update(b=x[2:]))
    assert gone not in shared._views
    x += 1
    assert [views[name].tolist() for name in ("kept", "a", "b")] == [[2], [2, 2], [2, 2]]


@pytest.mark.parametrize("kind", ["leaf", "inner"])
def test_the_first_hooks_of_a_tensor_are_all_called(meeting, monkeypatch, kind):
    real, called = once.made_once, []

    def made_once(owner, name, make):
        return real(owner, name, lambda: (make(), meeting.within())[0])

    monkeypatch.setattr(once, "made_once", made_once)
    x = gt.ones(2, requires_grad=True)
    y = x if kind == "leaf" else x * 2
    meeting.run(
        lambda: y.register_hook(lambda g: called.append("a")),
        lambda: y.register_hook(lambda g: called.append("b")),
    )
    (y * 3).sum().backward()
    assert sorted(called) == ["a", "b"]


def test_views_are_taken_in_a_process_that_was_forked_while_one_was_taken():
    done = subprocess.run(
        [sys.executable, "-c", AFTER_A_FORK], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "(3, 2)", done.stderr
