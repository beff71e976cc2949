"""Quotas: what users and programs that join may use, from a file that is read again on SIGHUP."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
from attach.commands import Place

from shmgpu import ConfigError, quotas

# Prints the KiB of its arena, and how many calls it had out before the first was answered.
USE = """
import numpy as np, served_here, shmgpu
shmgpu.connect()
free = shmgpu.arena.stats()["free_bytes"]
x = shmgpu.arena.zeros(1)
def counted(): return shmgpu.stats()["children"][shmgpu.rank()]
before, out = counted(), 0
futures = [served_here.slow.submit(x, 0.2) for _ in range(70)]
while (row := counted())["answered"] == before["answered"]:
    out = row["submitted"] - before["submitted"]
print(free // 1024, out)
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
        ('[default]\narena = "much"', "default.arena='much' is no size"),
        ("[default]\nparked = 0", "leave it away for no limit"),
        ("[user.nobody-is-called-so]\nwindow = 3", "there is no user of that name here"),
        ("user = 3", "user must be tables: write [user.NAME]"),
        ("[user]\nroot = 3", "user.root must be tables"),
        (f'[program."{"x" * 64}"]\nwindow = 3', "must be a name of 1 to 63 bytes"),
        ("[default", "is no TOML"),
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
    (made.directory / "large.py").write_text(
        "import sys, numpy as np, served_here, shmgpu\n"
        "shmgpu.connect()\n"
        "print('joined', flush=True)\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        print(served_here.large(np.zeros(1), int(line)).nbytes, flush=True)\n"
        "    except shmgpu.ShmError as error:\n"
        "        print(error, flush=True)\n"
    )
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
    assert "STATUS=1 helpers, 64 places" in told
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
    assert place.program(ask).endswith("or launch with a larger arena=")


def test_what_helpers_keep_for_a_program_changes_while_it_runs(place, broker):
    import subprocess
    import sys

    put(place, broker, "")
    program = subprocess.Popen(
        [sys.executable, "large.py"],
        env=place.environment,
        cwd=place.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(size):
        program.stdin.write(f"{size}\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    try:
        assert program.stdout.readline() == "joined\n"
        assert ask(100_000) == "100000"  # kept by the helper until there was room
        put(place, broker, '[program."large.py"]\nparked = "64KiB"\n')
        assert "larger than a helper keeps" in ask(400_000)
        put(place, broker, "")
        assert ask(400_000) == "400000"
    finally:
        program.stdin.close()
        program.wait(timeout=20)
        program.stdout.close()


def test_the_users_own_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert quotas.path_of(None) is None
    (tmp_path / "shmgpu").mkdir()
    path = written(tmp_path / "shmgpu", "")
    assert quotas.path_of(None) == path
    assert quotas.path_of("another.toml") == pathlib.Path("another.toml")
