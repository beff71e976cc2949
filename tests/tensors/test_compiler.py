"""The C compiler beside a helper: once for all, to the end, and never in the way of a program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from attach.brokers import until

from shmgpu.engine import native

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler")

SOURCE = "(long n, const unsigned long *p, const double *s) { ((float *)p[0])[0] = n; }"
SLOW = """#!/bin/sh
echo begun >> {log}
while [ -e {gate} ]; do sleep 0.01; done
exec {path} "$@"
"""
FAILING = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo half > "$2"
exit 3
"""


@pytest.fixture
def loops(monkeypatch, tmp_path):
    """Where compiled loops are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shmgpu" / "loops"


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Makes a script the compiler."""
    _, version = native.compiler()

    def made(text):
        script = tmp_path / "cc"
        script.write_text(text)
        script.chmod(0o700)
        monkeypatch.setattr(native, "compiler", lambda: (str(script), version))

    return made


@pytest.fixture
def slow(use, tmp_path):
    """A compiler that says in its log that it begins, and waits until its gate is gone."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    use(SLOW.format(gate=gate, log=log, path=native.compiler()[0]))
    gate.touch()
    log.touch()
    yield gate, log
    gate.unlink(missing_ok=True)


HELPER = """
import sys
from shmgpu.engine import native
native.compiler = lambda: tuple(sys.argv[1:3])
native.Library([sys.argv[3]]).wait()
"""


@contextlib.contextmanager
def helper():
    """A process, in a group of its own, that waits for its compiler."""
    words = [sys.executable, "-c", HELPER, *native.compiler(), SOURCE]
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def made(loops):
    return [one.name for one in loops.glob("*.so")]


def test_two_helpers_of_one_program_have_it_compiled_once(loops, slow):
    gate, log = slow
    both = [native.Library([SOURCE]) for _ in range(2)]
    until(log.read_text, "the compiler begins")
    gate.unlink()
    for one in both:
        one.wait()
        assert one.state == "ready" and len(one.functions) == 1
    assert log.read_text() == "begun\n" and len(made(loops)) == 1


def test_a_compiler_ends_its_work_though_its_helper_is_gone(loops, slow):
    """Else a short program starts the same compiler in each run, and never has what it makes."""
    gate, log = slow
    with helper():
        until(log.read_text, "the compiler begins")
    other = native.Library([SOURCE])  # of the next run: it waits for the first one's compiler
    gate.unlink()
    other.wait()
    assert other.state == "ready" and log.read_text() == "begun\n"
    assert {one.name for one in loops.iterdir()} == {native.LOCK, *made(loops)}


def test_ctrl_c_of_a_terminal_is_not_meant_for_the_compiler(loops, slow):
    gate, log = slow
    with helper() as pid:
        until(log.read_text, "the compiler begins")
        os.killpg(pid, signal.SIGINT)
    gate.unlink()
    until(lambda: made(loops), "it ends")


def test_a_compiler_that_fails_leaves_nothing(loops, use, caplog):
    use(FAILING)
    caplog.set_level("INFO")
    library = native.Library([SOURCE])
    library.wait()
    assert library.state == "failed" and library.functions == []
    assert "a chain of operations stays as it is" in caplog.text
    assert "cc ended with status 3" in caplog.text
    assert [one.name for one in loops.iterdir()] == [native.LOCK]


def test_a_compiler_without_an_end_is_ended(loops, slow, monkeypatch):
    monkeypatch.setattr(native, "SECONDS", 0.2)
    library = native.Library([SOURCE])
    library.wait()
    assert library.state == "failed"
    slow[0].unlink()
    monkeypatch.setattr(native, "SECONDS", 30)
    other = native.Library([SOURCE])  # nobody holds the lock any more
    other.wait()
    assert other.state == "ready" and slow[1].read_text() == "begun\n" * 2


def test_without_a_compiler_or_a_place_for_its_work_there_is_less(loops, monkeypatch, caplog):
    caplog.set_level("INFO")
    with monkeypatch.context() as patched:
        patched.setattr(native, "compiler", lambda: None)
        library = native.Library([SOURCE])
        library.wait()
    assert library.state == "failed" and "there is no C compiler" in caplog.text
    monkeypatch.setattr(native, "directory", lambda: None)
    library = native.Library([SOURCE])  # made for this process alone
    library.wait()
    assert library.state == "ready" and len(library.functions) == 1
    assert not loops.exists()


def test_what_is_kept_is_the_users_own(loops, monkeypatch):
    assert native.directory() == loops and loops.stat().st_mode & 0o777 == 0o700
    for mode in (0o720, 0o702):  # others could write there what helpers run
        loops.chmod(mode)
        assert native.directory() is None
    loops.chmod(0o755)
    assert native.directory() == loops
    monkeypatch.setattr(native.os, "geteuid", lambda: os.getuid() + 1)
    assert native.directory() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert native.directory() is None


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 1000), (9, 30), (9, 39)])
def test_what_was_not_used_for_longest_goes_first(loops, monkeypatch, most, most_bytes):
    monkeypatch.setattr(native, "MAX_FILES", most)
    monkeypatch.setattr(native, "MAX_FILE_BYTES", most_bytes)
    kept = native.directory()
    for number in range(5):
        one = kept / f"{number}.so"
        one.write_text("x" * 10)
        os.utime(one, (number, number))
    (kept / native.LOCK).write_text("x" * 1000)
    os.utime(kept / native.LOCK, (0, 0))
    native._sweep(kept)
    assert {one.name for one in kept.iterdir()} == {"2.so", "3.so", "4.so", native.LOCK}
    native._sweep(kept)
    assert len(list(kept.iterdir())) == 4
