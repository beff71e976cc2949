"""The nets themselves: a C harness and a leak guard that cannot fail would prove nothing."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]

C_TESTS = r"""
#include "harness.h"
TEST(passes) { CHECK(1); CHECK_EQ(3, (size_t)3); CHECK_STR_EQ("a", "a"); }
TEST(compares) { CHECK_EQ(3, 4); }
TEST(compares_text) { CHECK_STR_EQ("a", NULL); }
TEST(crashes) { raise(SIGSEGV); }
TEST_WITHIN(hangs, 1) { for (;;) pause(); }
TEST(skips) { SKIP("not here"); }
TEST(grandchild_fails) { if (fork() == 0) CHECK(0); else harness_sleep_ms(50); }
TEST(outlived) { if (fork() == 0) { sleep(60); _exit(0); } }
TEST(child_ends_in_time) { if (fork() == 0) { harness_sleep_ms(50); _exit(0); } }
TEST(exits_badly) { exit(3); }
"""

GUARD_TESTS = """
import ctypes, mmap, os, subprocess, threading, time
import pytest

kept = []


def test_nothing():
    pass


def test_descriptor():
    kept.append(os.open(os.devnull, os.O_RDONLY))


def test_zombie():
    if os.fork() == 0:
        os._exit(0)


def test_orphan():
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            time.sleep(1)
        os._exit(0)
    os.waitpid(child, 0)


def test_program():
    kept.append(subprocess.Popen(["sleep", "1"]))


def test_thread():
    threading.Thread(target=time.sleep, args=(1,), name="lazy").start()


def test_mapping():
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    c = ctypes.CDLL(None)  # Python's mmap keeps a descriptor, too
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    assert c.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0) != -1
    os.close(fd)


def test_name():
    open("NAME", "w").close()


def test_nothing():
    pass


def test_orphan_after_a_test_that_made_nothing():
    test_orphan()


@pytest.mark.leaks_ok("it is what this test is for")
def test_meant():
    kept.append(os.open(os.devnull, os.O_RDONLY))


@pytest.mark.leaks_ok
def test_meant_without_a_reason():
    pass


def test_soon_over():
    threading.Thread(target=time.sleep, args=(0.05,)).start()
"""


def test_the_c_harness_tells_every_way_to_fail(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source, program = tmp_path / "test_all.c", tmp_path / "test_all"
    source.write_text(C_TESTS)
    flags = "-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wconversion -Wshadow -Werror".split()
    subprocess.run([compiler, *flags, "-I", TESTS / "c", source, "-o", program], check=True)
    done = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=60)
    outcomes = re.findall(r"(?m)^(ok|FAIL|skip)\s+test_all: (\w+)$", done.stdout)
    assert {name: outcome for outcome, name in outcomes} == {
        "passes": "ok",
        "compares": "FAIL",
        "compares_text": "FAIL",
        "crashes": "FAIL",
        "hangs": "FAIL",
        "skips": "skip",
        "grandchild_fails": "FAIL",
        "outlived": "FAIL",
        "child_ends_in_time": "ok",
        "exits_badly": "FAIL",
    }
    assert done.stdout.endswith("test_all: 2 passed, 7 failed, 1 skipped\n")
    assert done.returncode == 1


def test_the_leak_guard_tells_what_was_left(tmp_path):
    guard = (TESTS / "conftest.py").read_text()
    assert "GRACE_S = 5.0" in guard
    (tmp_path / "conftest.py").write_text(guard.replace("GRACE_S = 5.0", "GRACE_S = 0.3"))
    left = pathlib.Path(f"/dev/shm/left-{os.getpid()}")
    (tmp_path / "test_leaks.py").write_text(GUARD_TESTS.replace("NAME", str(left)))
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {TESTS}\nmarkers =\n    leaks_ok\n    gpu\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rE", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    left.unlink(missing_ok=True)
    blamed = re.findall(r"(?m)^ERROR test_leaks.py::(\w+)", done.stdout)
    assert blamed == [
        "test_descriptor",
        "test_zombie",
        "test_orphan",
        "test_program",
        "test_thread",
        "test_mapping",
        "test_name",
        "test_orphan_after_a_test_that_made_nothing",
        "test_meant_without_a_reason",
    ], done.stdout
    for words in (
        "-> /dev/null",
        "nobody waited",
        "descendant",
        "sleep 1",
        "'lazy'",
        "mapping of /memfd:arena",
        str(left),
    ):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("pid", "before", "last", "come"),
    [
        (11, 10, 12, True),
        (12, 10, 12, True),
        (10, 10, 12, False),
        (13, 10, 12, False),
        (10, 10, 10, False),
        (32000, 31000, 400, True),
        (350, 31000, 400, True),
        (500, 31000, 400, False),
    ],
)
def test_the_leak_guard_looks_again_at_numbers_that_were_given_since(pid, before, last, come):
    place = importlib.util.spec_from_file_location("guard", TESTS / "conftest.py")
    guard = importlib.util.module_from_spec(place)
    place.loader.exec_module(guard)
    assert guard.turn_has_come(pid, before, last) == come
