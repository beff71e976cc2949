"""Quotas: what users and programs that join may use, from a file that is read again on SIGHUP."""

from __future__ import annotations

import ast
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from attach.commands import Place

from shmgpu import ConfigError
from shmgpu.broker import quotas

# Prints the KiB of its arena, and how many calls it had out before the first was answered.
USE = """
import os, numpy as np, served_here, shmgpu
shmgpu.connect()
free = shmgpu.arena.stats()["free_bytes"]
x = shmgpu.arena.zeros(1)
gate = f"used{os.getpid()}"
def sent(): return shmgpu.stats()["children"][shmgpu.rank()]["frames_sent"]
before = sent()
futures = [served_here.held.submit(x, gate) for _ in range(70)]
print(free // 1024, sent() - before)
open(gate, "w").close()
"""

ANSWERED = str((*[0] * 40, 0))  # 40 calls by helper 0, and no protocol error

# Does what it is told on standard input, and prints what came of it.
SERVANT = """
import pathlib, sys
import numpy as np, served_here, shmgpu
shmgpu.connect()
x = shmgpu.arena.zeros(1)
calls = []

def keep(size):
    try:
        return served_here.large(x, int(size)).nbytes
    except shmgpu.ShmError as error:
        return error

def counted(key):
    return shmgpu.stats()["children"][shmgpu.rank()][key]

def submit(gate, count):  # how many of these calls go out before any is answered
    before = counted("frames_sent")
    calls.extend(served_here.held.submit(x, gate) for _ in range(int(count)))
    return counted("frames_sent") - before

def number(count):  # once the broker has them
    before = counted("submitted")
    calls.extend(served_here.numbered.submit(x) for _ in range(int(count)))
    while counted("submitted") < before + int(count): pass

def results():
    found = [one.result(20)[0] for one in calls]
    calls.clear()
    return *map(int, found), counted("protocol_errors")

print("joined", flush=True)
for line in sys.stdin:
    name, *words = line.split()
    print(globals()[name](*words), flush=True)
"""


def written(tmp_path, text):
    path = tmp_path / "quotas.toml"
    path.write_text(text)
    return path


def test_a_table_is_read_as_rows(tmp_path):
    path = written(
        tmp_path,
        '[default]\narena = "64MiB"\nwindow = 32\n[user.root]\nweight = 4\n'
        '[program."train.py"]\nparked = 1_000_000\n[user.1234]\n',
    )
    assert quotas.read(path) == [
        {"arena_bytes": 64 << 20, "window": 32},
        {"weight": 4, "uid": 0, "has_uid": 1},
        {"uid": 1234, "has_uid": 1},
        {"parked_bytes": 1_000_000, "program": "train.py"},
    ]
    assert quotas.read(None) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[default]\nwindows = 3", "default.windows means nothing: use arena, parked"),
        ("[users.root]\nwindow = 3", "'users' means nothing"),
        ("[default]\nwindow = 0", "default.window must be a whole number from 1 to 896, not 0"),
        ("[default]\nwindow = true", "default.window must be a whole number"),
        ("[program.x]\nweight = 1001", "program.x.weight must be a whole number from 1 to 1000"),
        ('[default]\narena = "much"', "default.arena='much' is not a size"),
        ("[default]\nparked = 0", "omit it for no limit"),
        ("[default]\nrate = 0.5", "default.rate must be a whole number from 1 to 1000000000"),
        ("[user.nobody-is-called-so]\nwindow = 3", "there is no user of that name here"),
        ("user = 3", "user must be tables: write [user.NAME]"),
        ("[user]\nroot = 3", "user.root must be tables"),
        (f'[program."{"x" * 64}"]\nwindow = 3', "must be a name of 1 to 63 bytes"),
        ("[default", "is not TOML"),
    ],
)
def test_what_means_nothing_is_refused_by_name(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        quotas.read(path)
    assert sentence in str(caught.value) and str(path) in str(caught.value)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("quotas"))
    written(made.directory, "")
    for name in ("greedy.py", "other.py"):
        (made.directory / name).write_text(USE)
    for name in ("light.py", "heavy.py"):
        (made.directory / name).write_text(SERVANT)
    return made


@pytest.fixture(scope="module", autouse=True)
def broker(place):
    with place.up("--quotas", "quotas.toml", "--window", "64") as broker:
        yield broker


def put(place, broker, text):
    """Have the broker read that, or no file at all; what it tells when it has."""
    if text is None:
        (place.directory / "quotas.toml").unlink()
    else:
        written(place.directory, text)
    broker.process.send_signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in broker.hear("RELOADING=1")
    return broker.hear("READY=1")


def use(place, name):
    """KiB of the arena, and the window, that a program of that name has."""
    status, said, complained = place.run(name)
    assert status == 0, complained
    return [int(word) for word in said.split()]


def test_whoever_joins_gets_what_the_file_says_by_then(place, broker):
    put(place, broker, "")
    assert use(place, "greedy.py") == [1024, 64]
    put(
        place,
        broker,
        '[default]\nwindow = 32\n[program."greedy.py"]\nwindow = 8\narena = "256KiB"\n',
    )
    assert use(place, "other.py") == [1024, 32]
    assert use(place, "greedy.py") == [256, 8]


def test_a_program_cannot_say_itself_more_than_its_user_has(place, broker):
    user = os.getuid()
    put(place, broker, f'[user.{user}]\nwindow = 4\n[program."greedy.py"]\nwindow = 16\n')
    assert use(place, "greedy.py") == [1024, 4]
    put(place, broker, f'[user.{user + 1}]\nwindow = 4\n[program."greedy.py"]\nwindow = 16\n')
    assert use(place, "greedy.py") == [1024, 16]


def test_a_file_that_cannot_be_read_changes_nothing(place, broker):
    put(place, broker, '[program."greedy.py"]\nwindow = 8\n')
    for text, sentence in (
        ("[default]\nwindws = 1\n", "default.windws means nothing"),
        ("[user.nobody-is-called-so]\nwindow = 1\n", "there is no user of that name here"),
        (None, "quotas.toml cannot be read"),
    ):
        told = put(place, broker, text)
        assert "STATUS=the quotas stay as they are: " in told and sentence in told
        assert len(told.splitlines()) == 2
        assert use(place, "greedy.py") == [1024, 8]
    told = put(place, broker, "")
    assert "STATUS=1 helpers, 64 slots" in told
    assert use(place, "greedy.py") == [1024, 64]


def test_a_program_whose_quota_is_used_up_is_told_of_the_quota(place, broker):
    ask = (
        "import shmgpu\n"
        "shmgpu.connect()\n"
        "try: shmgpu.arena.zeros(1 << 21)\n"
        "except shmgpu.ArenaFull as error: print(error)\n"
    )
    put(place, broker, '[default]\narena = "256KiB"\n')
    assert "quota raised, which leaves it that much of the 1,048,576" in place.program(ask)
    put(place, broker, "")
    assert place.program(ask).endswith("shmgpu up --arena 16MiB")


RATE = 5

# As many calls at once as a second's, one more, and one when that is due.
HURRIED = f"""
import time, numpy as np, served_here, shmgpu
shmgpu.connect()
x = np.ones(1)

def outcome(call):
    return "answered" if call.exception() is None else type(call.exception()).__name__

calls = [served_here.double.submit(x) for _ in range({RATE} + 1)]
print(*map(outcome, calls))
error = calls[-1].exception()
print(error)
began = time.monotonic()
while True:  # the calls that are refused meanwhile cost nothing
    try:
        served_here.double(x)
        break
    except shmgpu.RateExceeded:
        time.sleep(0.01)
print(time.monotonic() - began < 5, shmgpu.stats()["broker"]["refused"] >= 1)
"""


def test_calls_beyond_a_rate_are_refused_and_those_within_it_are_not(place, broker):
    put(place, broker, f"[default]\nrate = {RATE}\n")
    outcomes, sentence, last = place.program(HURRIED).splitlines()
    assert outcomes.split() == ["answered"] * RATE + ["RateExceeded"]
    assert "the broker's quotas allow this program no more calls a second" in sentence
    assert last == "True True"
    put(place, broker, "")
    outcomes, *_ = place.program(HURRIED).splitlines()
    assert outcomes.split() == ["answered"] * (RATE + 1)


@contextlib.contextmanager
def running(place, name):
    """What to ask a servant of that name with."""
    program = subprocess.Popen(
        [sys.executable, name],
        env=place.environment,
        cwd=place.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(words):
        program.stdin.write(f"{words}\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    try:
        assert program.stdout.readline() == "joined\n"
        yield ask
    finally:
        program.stdin.close()
        program.wait(timeout=20)
        program.stdout.close()


def test_what_helpers_keep_for_a_program_changes_while_it_runs(place, broker):
    put(place, broker, "")
    with running(place, "light.py") as ask:
        assert ask("keep 100000") == "100000"  # kept by the helper until there was room
        put(place, broker, '[program."light.py"]\nparked = "64KiB"\n')
        assert "larger than a helper keeps" in ask("keep 400000")
        put(place, broker, "")
        assert ask("keep 400000") == "400000"


def test_the_window_changes_while_a_program_runs_and_no_call_is_lost_by_that(place, broker):
    put(place, broker, "")
    with running(place, "light.py") as ask:
        for number, (text, window) in enumerate(
            [("", 40), ("window = 8", 8), ("window = 16", 16), ("window = 3", 3), ("", 40)]
        ):
            put(place, broker, f'[program."light.py"]\n{text}\n')
            assert ask(f"submit gate{number} 40") == str(window)
            put(place, broker, '[program."light.py"]\nwindow = 4\n')  # with more than that out
            (place.directory / f"gate{number}").touch()
            assert ask("results") == ANSWERED


def test_what_was_sent_before_the_window_shrank_is_answered(place, broker):
    put(place, broker, "")
    with running(place, "light.py") as ask:
        broker.process.send_signal(signal.SIGSTOP)
        try:
            assert ask("submit shrunk 40") == "40"  # they lie in the pipe
            written(place.directory, '[program."light.py"]\nwindow = 4\n')
            broker.process.send_signal(signal.SIGHUP)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        broker.hear("READY=1")
        (place.directory / "shrunk").touch()
        assert ask("results") == ANSWERED


def test_the_weight_changes_while_a_program_runs(place, broker):
    put(place, broker, "")
    with running(place, "light.py") as light, running(place, "heavy.py") as heavy:
        put(place, broker, '[program."heavy.py"]\nweight = 8\n')
        assert light("submit weighed 1") == "1"  # nothing else runs until all are queued
        assert light("number 16") == heavy("number 16") == "None"
        (place.directory / "weighed").touch()
        lights = ast.literal_eval(light("results"))[1:-1]
        heavies = ast.literal_eval(heavy("results"))[:-1]
    before_the_last = sum(one < heavies[-1] for one in lights)
    assert before_the_last <= 4  # two turns, and what a helper was handed ahead; else all but one


def test_the_users_own_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert quotas.path_of(None) is None
    (tmp_path / "shmgpu").mkdir()
    path = written(tmp_path / "shmgpu", "")
    assert quotas.path_of(None) == path
    assert quotas.path_of("another.toml") == pathlib.Path("another.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)  # where it cannot even be looked
    with pytest.raises(ConfigError, match=r"quotas\.toml cannot be read: File name too long"):
        quotas.read(quotas.path_of(None))
