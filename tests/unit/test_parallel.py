"""Tests side by side: what one worker's make is not seen by another's, and who asks for it has the
machine alone."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
OPTIONS = "-p no:cacheprovider -p xdist -q -rE -n 2 --dist loadfile"

# Two files, a worker each. Every `meet` waits until the other file's test has come as far.
BESIDE = """
import json, os, pathlib, time
import pytest

PLACE = pathlib.Path(__file__).parent
ME, OTHER = NAMES
NAME = pathlib.Path(f"/dev/shm/parallel-{os.getppid()}-{ME}")


def meet(what):
    (PLACE / f"{what}-{ME}").touch()
    deadline = time.monotonic() + 30
    while not (PLACE / f"{what}-{OTHER}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_names_and_sockets_are_its_own():
    meet("begin")
    NAME.touch()
    runtime = pathlib.Path(os.environ["XDG_RUNTIME_DIR"])
    (PLACE / f"runtime-{ME}").write_text(str(runtime))
    meet("made")
    assert not NAME.with_name(f"parallel-{os.getppid()}-{OTHER}").exists()
    assert runtime.is_dir() and not any(runtime.iterdir())
    assert (PLACE / f"runtime-{OTHER}").read_text() != str(runtime)
    meet("end")
    NAME.unlink()


def test_only_one_of_them_leaves_something():
    meet("two")
    if ME == "a":
        NAME.touch()
    meet("left")


def note(what):
    with open(PLACE / "times", "a") as file:
        file.write(json.dumps([what, time.monotonic()]) + "\\n")


@pytest.mark.parametrize("number", range(5))
def test_another(number):
    meet("three") if number == 0 else None
    note("begin")
    time.sleep(0.02)
    note("end")


@pytest.mark.alone
def test_alone():
    note("begin alone")
    time.sleep(0.1)
    note("end alone")


@pytest.mark.parametrize("number", range(5))
def test_and_others(number):
    note("begin")
    time.sleep(0.02)
    note("end")
"""


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    """The folder and what pytest said, of two files run by two workers."""
    place = tmp_path_factory.mktemp("beside")
    guard = (TESTS / "conftest.py").read_text()
    (place / "conftest.py").write_text(guard.replace("GRACE_S = 5.0", "GRACE_S = 0.3"))
    for names in (("a", "b"), ("b", "a")):
        (place / f"test_{names[0]}.py").write_text(BESIDE.replace("NAMES", repr(names)))
    ini = "markers =\n    leaks_ok\n    gpu\n    alone\n"
    (place / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n{ini}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS.split(), str(place)],
        cwd=place,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "no /dev/shm of its own" in done.stdout + done.stderr:
        pytest.skip("this user may not mount a /dev/shm")
    return place, done.stdout + done.stderr


def test_workers_see_only_what_their_own_tests_made_and_left(side_by_side):
    _, said = side_by_side
    blamed = re.findall(r"(?m)^ERROR (\S+)", said)
    assert blamed == ["test_a.py::test_only_one_of_them_leaves_something"], said
    assert "26 passed, 1 error" in said


def test_who_is_alone_has_no_other_test_beside_him(side_by_side):
    place, said = side_by_side
    noted = sorted(map(json.loads, (place / "times").read_text().splitlines()), key=lambda n: n[1])
    words = [what for what, _ in noted]
    begins = [at for at, what in enumerate(words) if what == "begin alone"]
    assert len(begins) == 2, said
    for at in begins:
        assert words[at + 1] == "end alone"
        assert words[:at].count("begin") == words[:at].count("end")
    # The others did run at the same time, or this would have shown nothing.
    assert "begin begin" in " ".join(words)


def load_conftest():
    place = importlib.util.spec_from_file_location("guard", TESTS / "conftest.py")
    guard = importlib.util.module_from_spec(place)
    place.loader.exec_module(guard)
    return guard


@pytest.fixture
def items():
    return [
        types.SimpleNamespace(nodeid=f"tests/test_{file}.py::test_{number}")
        for file in "abcdefgh"
        for number in range(4)
    ]


def file_of(item):
    return item.nodeid.partition("::")[0]


def test_a_seed_makes_one_order_in_which_files_are_whole(items):
    shuffle = load_conftest().shuffle
    assert shuffle(items, 7) == shuffle(items, 7)
    assert shuffle(items, 7) != shuffle(items, 8) != items
    assert sorted(map(id, shuffle(items, 7))) == sorted(map(id, items))
    files = list(map(file_of, shuffle(items, 7)))
    assert sum(a != b for a, b in itertools.pairwise(files)) == len(set(files)) - 1
    assert files != list(map(file_of, items))


def test_the_parts_of_a_run_are_the_whole_and_share_no_file(items):
    part_of = load_conftest().part_of
    parts = [part_of(items, 7, f"{which}/3") for which in (1, 2, 3)]
    assert all(parts) and sorted(map(id, itertools.chain(*parts))) == sorted(map(id, items))
    assert sum(len(set(map(file_of, part))) for part in parts) == 8
    assert parts[0] != part_of(items, 8, "1/3")
