"""F32: a storm, short; that its ledger notices what a storm is to notice; and what is counted of
calls whose child is killed."""

from __future__ import annotations

import itertools
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from crash.storm_killer import plan
from crash.storm_ledger import CANCELLED, DIED, RESULT, RING, Book, Ledger

import shmgpu

TESTS = pathlib.Path(__file__).resolve().parents[1]
SEEDS = [32, secrets.randbelow(1 << 31)]


@pytest.mark.parametrize("seed", SEEDS, ids=["fixed", "random"])
def test_f32_every_promise_holds_in_a_storm(seed):
    run = subprocess.run(
        [sys.executable, "-m", "crash.storm", "--seconds", "3", "--seed", str(seed)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    assert "every promise kept" in run.stdout


def test_a_seed_makes_one_plan():
    def blows(seed):
        return list(itertools.islice(plan(seed, 8, 3, 5.0), 4_000))

    assert blows(7) == blows(7) != blows(8)
    assert {blow.role for blow in blows(7)} == {"helper", "child"}
    assert sum(blow.delay for blow in blows(7)) == pytest.approx(800, rel=0.15)


# ---- the ledger --------------------------------------------------------------------------------

ONCE, TWICE = 0, 1  # kinds


@pytest.fixture
def ledger():
    return Ledger(2, 2)


@pytest.fixture
def book(ledger):
    return Book(ledger, 1, [False, True])


def check(book):
    book.check_all()
    return " ".join(book.ledger.complaints())


def test_a_ledger_of_which_all_is_well_has_no_complaint(ledger, book):
    for kind, runs, outcome in ((ONCE, 1, RESULT), (TWICE, 2, RESULT), (ONCE, 0, DIED)):
        token = book.begin(kind)
        for helper in range(runs):
            ledger.note_execution(helper, token)
        book.end(token, outcome)
    assert book.unfinished() == [] and check(book) == ""


def test_a_request_that_never_ends_is_noticed(book):
    book.begin(ONCE)
    assert book.unfinished() == [1] and "never ended" in check(book)


def test_a_request_that_ends_twice_is_noticed(book):
    token = book.begin(ONCE)
    book.end(token, DIED)
    book.end(token, CANCELLED)
    assert "ended 2 times" in check(book)


@pytest.mark.parametrize(("kind", "runs"), [(ONCE, 2), (TWICE, 3), (ONCE, 0)])
def test_a_result_of_too_many_executions_or_none_is_noticed(ledger, book, kind, runs):
    token = book.begin(kind)
    for _ in range(runs):
        ledger.note_execution(0, token)
    book.end(token, RESULT)
    assert f"executed {runs} times" in check(book)


def test_an_execution_after_the_childs_successor_began_is_noticed(ledger, book):
    token = book.begin(ONCE)
    successor = Book(ledger, 1, [False, True])
    assert successor.inherit(window=1) == 1 and check(successor) == ""
    ledger.note_execution(1, token)
    assert "after its child's successor began" in check(successor)


def test_more_open_requests_than_a_child_can_have_are_noticed(ledger, book):
    for _ in range(3):
        book.begin(ONCE)
    Book(ledger, 1, [False, True]).inherit(window=2)
    assert "3 requests were open" in check(book)


def test_what_is_forgotten_is_checked_first(ledger, book):
    first = book.begin(ONCE)
    for _ in range(RING):
        book.end(book.begin(ONCE), DIED)
    assert "never ended" in " ".join(ledger.complaints())
    ledger.note_execution(0, first)
    assert "unknown" in " ".join(ledger.complaints())


# ---- what is counted ---------------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def many(helper, count):
    return np.ones(count)


def test_f32_a_call_that_waits_for_room_when_its_child_dies_is_counted_as_dropped(tmp_path):
    """Each call that was submitted is counted as answered or as dropped."""
    mark = tmp_path / "mark"

    def waits_for_room(rank):
        if mark.exists():
            return "restarted"
        mark.touch()
        many.submit(1_000)  # no call of this signature was answered yet: it will ask for room
        os.kill(os.getpid(), signal.SIGSTOP)

    def killer(rank):
        deadline = time.monotonic() + 30
        while shmgpu.stats()["helpers"][0]["finished"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(shmgpu.stats()["children"][0]["pid"], signal.SIGKILL)

    counted: dict = {}
    results = shmgpu.launch(
        [waits_for_room, killer],
        helpers=1,
        devices="cpu",
        arena="1MiB",
        restart="on-failure",
        stats_into=counted,
    )
    assert results[0] == "restarted"
    for row in (counted["broker"], counted["children"][0]):
        assert (row["submitted"], row["answered"], row["dropped"]) == (1, 0, 1)
    assert counted["broker"]["in_flight"] == 0
