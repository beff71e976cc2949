"""What a test starts as a fork of the process that waits is what a fresh interpreter would be."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import warm

SELF = """
import json, os, sys
def fds():
    return {n: os.path.exists(f"/proc/self/fd/{n}") for n in range(3, 40)}
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "orig": sys.orig_argv[1:], "name": __name__,
    "file": globals().get("__file__"), "folder": os.getcwd(), "environment": dict(os.environ),
    "main": sorted(n for n in globals() if n.startswith("__")), "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "fds": fds(),
    "streams": [[s and (s.encoding, s.errors, s.line_buffering)]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "ours": [n for n in sys.modules if n.startswith("shmgpu")],
    "interrupt": repr(__import__("signal").getsignal(2)),
}))
"""
ENDS = {
    "raises": "def f():\n  1 / 0\nf()",
    "a cause": "try:\n  {}[1]\nexcept KeyError as e:\n  raise ValueError('no') from e",
    "is interrupted": "import os; os.kill(os.getpid(), 2); import time; time.sleep(9)",
    "a status": "import sys; sys.exit(7)",
    "a sentence": "import sys; sys.exit('this is why')",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "at the end": "import atexit; atexit.register(print, 'last')\nprint('first')",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "taken apart": "class A:\n  def __del__(self): print('gone')\na = A()",
    "syntax": "def",
    "annotations": "def f(x: not_there): pass",  # our own __future__ is not its
    "at once": "import os\nprint('held back'); os._exit(0)",
}


@pytest.fixture(scope="module")
def waiting():
    """A process that waits: the worker's own, where it has one."""
    if warm.current is not None:
        yield warm.current
        return
    with contextlib.closing(warm.Warm()) as one:
        yield one


@pytest.fixture
def both(waiting, monkeypatch):
    """Runs a program in both ways and gives both ends; the first must have been a fork."""

    def run(*words, **settings):
        ends = []
        for cold in (False, True):
            monkeypatch.setattr(warm, "cold", cold)
            before = waiting.started
            ends.append(
                subprocess.run([sys.executable, *words], capture_output=True, text=True, **settings)
            )
            assert waiting.started == before + (not cold)
        return ends

    return run


@pytest.mark.parametrize("kind", ["-c", "-m", "script", "folder/script"])
@pytest.mark.parametrize("session", [False, True])
def test_it_is_born_as_a_fresh_interpreter_is(both, tmp_path, monkeypatch, kind, session):
    (tmp_path / "folder").mkdir()
    for name in ("program.py", "folder/program.py"):
        (tmp_path / name).write_text(SELF)
    monkeypatch.chdir(tmp_path)
    words = {"-c": ["-c", SELF], "-m": ["-m", "program"], "script": ["program.py"]}
    words = [*words.get(kind, ["folder/program.py"]), "an argument", "--flag"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/more", "AS": "given"}
    for given in ({}, {"env": environment}, {"cwd": "/"} if kind == "-c" else {}):
        with open(tmp_path / "kept", "w") as file:
            ends = both(*words, start_new_session=session, pass_fds=[file.fileno()], **given)
        said = [json.loads(one.stdout) for one in ends]
        assert [one.returncode for one in ends] == [0, 0] and not ends[0].stderr
        for name in said[0]:
            assert said[0][name] == said[1][name], name
        assert said[0]["parent"] == os.getpid() and said[0]["ours"] == []


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_it_ends_as_a_fresh_interpreter_does(both, program):
    warm_end, cold_end = both("-c", program)
    assert warm_end.returncode == cold_end.returncode
    assert warm_end.stdout == cold_end.stdout
    assert without_source(warm_end.stderr) == without_source(cold_end.stderr)


def without_source(text):
    """From 3.13 on a traceback shows lines of a program that is given by -c; it knows no others."""
    return re.sub(r"^    .*\n", "", text, flags=re.M) if sys.version_info >= (3, 13) else text


def test_a_module_that_is_not_there_is_told_of_as_ever(both):
    warm_end, cold_end = both("-m", "there_is_none_of_this_name")
    assert (warm_end.returncode, warm_end.stderr) == (cold_end.returncode, cold_end.stderr)


def test_streams_may_be_files_pipes_or_closed(both, tmp_path):
    program = "import sys; print(sys.stdin.read()); print('error', file=sys.stderr)"
    warm_end, cold_end = both("-c", program, input="given")
    assert (warm_end.stdout, warm_end.stderr) == (cold_end.stdout, cold_end.stderr)
    assert warm_end.stdout == "given\n"


def test_it_is_signalled_and_waited_for_as_any_child(waiting):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM


def test_threads_start_programs_at_once(waiting):
    said = []

    def start(number):
        done = subprocess.run(
            [sys.executable, "-c", f"import os; print({number}, os.getppid())"],
            capture_output=True,
            text=True,
        )
        said.append((done.returncode, done.stdout.split()))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(said) == [(0, [str(number), str(os.getpid())]) for number in range(8)]


def test_what_is_adopted_as_a_program_starts_is_waited_for(waiting, monkeypatch):
    adopted = []
    set_option = warm.prctl

    def prctl(option, value):
        set_option(option, value)
        if value:  # a program starts just now, and somebody else's child loses its parent
            shell = ["/bin/sh", "-c", "sleep 1000 >/dev/null & echo $!"]
            adopted.append(int(subprocess.check_output(shell)))

    monkeypatch.setattr(warm, "prctl", prctl)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert adopted[0] in waiting.adopted
    os.kill(adopted[0], signal.SIGKILL)
    while waiting.adopted:
        waiting.wait_for_adopted()
    with pytest.raises(ProcessLookupError):
        os.kill(adopted[0], 0)


UNLIKE = {
    "a function before": {"preexec_fn": int},
    "threads": {"env": {"OMP_NUM_THREADS": "3"}},
    "hashes": {"env": {"PYTHONHASHSEED": "3"}},
    "descriptors": {"close_fds": False},
    "umask": {"umask": 0o77},
}


@pytest.mark.parametrize("settings", UNLIKE.values(), ids=UNLIKE)
def test_what_a_fork_could_not_be_is_started_as_ever(waiting, settings):
    before = waiting.started
    if "env" in settings:
        settings = {"env": {**os.environ, **settings["env"]}}
    subprocess.run([sys.executable, "-c", ""], check=True, **settings)
    assert waiting.started == before


def test_flags_of_the_interpreter_are_not_a_fork_s(waiting):
    before = waiting.started
    subprocess.run([sys.executable, "-O", "-c", "assert False"], check=True)
    assert waiting.started == before


def test_a_folder_and_an_archive_are_run_as_ever(waiting, tmp_path):
    before = waiting.started
    (tmp_path / "__main__.py").write_text("print(__name__)")
    shutil.make_archive(str(tmp_path / "program"), "zip", tmp_path, "__main__.py")
    for path in (tmp_path, tmp_path / "program.zip"):
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
        assert done.stdout == "__main__\n"
    assert waiting.started == before


def test_a_process_that_a_test_forked_starts_its_own(waiting):
    if (child := os.fork()) == 0:
        status = 1
        try:
            done = subprocess.run(
                [sys.executable, "-c", "import os; print(os.getppid())"], capture_output=True
            )
            status = 0 if int(done.stdout) == os.getpid() else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_torch_is_there_without_its_import(both):
    warm_end, cold_end = both("-c", "import sys; print('torch' in sys.modules)")
    assert (warm_end.stdout, cold_end.stdout) == ("True\n", "False\n")
