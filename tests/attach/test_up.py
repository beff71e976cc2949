"""``shmgpu up`` and ``down``: a broker that stands by itself, from its start to its end."""

from __future__ import annotations

import configparser
import ctypes
import json
import os
import pathlib
import re
import signal
import stat

import pytest
from attach.commands import Place, until
from crash.programs import is_alive

from shmgpu.cli import main as cli
from shmgpu.watch import monitor

SERVED = "attach.served_here"
ROOT = pathlib.Path(__file__).resolve().parents[2]
CALL = (
    "import numpy as np, served_here, shmgpu\n"
    "with shmgpu.connect():\n"
    "    print(served_here.double(np.arange(3.0)).tolist())\n"
)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_broker_tells_when_it_is_ready_serves_and_drains_on_sigterm(place):
    with place.up("--helpers", "2") as broker:
        assert "STATUS=2 helpers, 64 slots" in broker.heard[-1]
        assert broker.process.stdout.readline().startswith(f"a broker serves at {place.path}")
        assert stat.S_IMODE(place.path.stat().st_mode) == 0o600
        assert place.program(CALL) == "[0.0, 2.0, 4.0]"
        member = place.start(
            "-c",
            "import numpy as np, served_here, shmgpu\n"
            "shmgpu.connect()\n"
            "one = served_here.slow.submit(np.zeros(1), 0.5)\n"
            "while shmgpu.stats()['broker']['in_flight'] == 0: pass\n"
            "print('asked', flush=True)\n"
            "print(one.result().tolist())\n",
        )
        assert member.stdout.readline() == "asked\n"
        broker.process.send_signal(signal.SIGTERM)
        broker.hear("STOPPING=1")
        said, complained = member.communicate(timeout=20)
        assert member.returncode == 0, complained
        assert re.fullmatch(r"\[[01]\.0, 0\.0\]\n", said)
        broker.end()
    assert not place.path.exists()


THREADS = """
import ctypes, shmgpu
libc = ctypes.CDLL(None)
for _ in range(2):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.sleep, ctypes.c_void_p(1000))

@shmgpu.function(arrays="numpy")
def f(helper):
    return 1
"""


def test_signals_that_a_librarys_thread_gets_are_heard(place):
    (place.directory / "has_threads.py").write_text(THREADS)
    with place.up("has_threads.py") as broker:
        pid = broker.process.pid
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
        libc = ctypes.CDLL(None)
        for thread, number, told in zip(
            threads[-2:],
            (signal.SIGHUP, signal.SIGTERM),
            ("RELOADING=1", "STOPPING=1"),
            strict=True,
        ):
            assert libc.tgkill(pid, thread, number) == 0
            broker.hear(told)
        broker.end()


def test_a_module_that_starts_a_python_thread_is_refused(place):
    (place.directory / "busy.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, name='ticker', daemon=True).start()\n"
    )
    status, _, complained = place.run("shmgpu", "up", "busy.py", "served_here")
    assert status == 1 and "threads run can hang" in complained and "ticker" in complained


def test_down_ends_it_and_says_who_it_was(place):
    with place.up() as broker:
        status, said, _ = place.run("shmgpu", "down")
        assert (status, said) == (0, f"the broker, process {broker.process.pid}, has ended\n")
        broker.end()
    status, _, complained = place.run("shmgpu", "down")
    assert status == 1 and "no broker listens at" in complained


def test_a_second_broker_at_the_same_place_is_refused(place):
    with place.up():
        status, _, complained = place.run("shmgpu", "up", "served_here")
        assert status == 1 and "a broker listens at" in complained and "already" in complained
        assert place.program(CALL) == "[0.0, 2.0, 4.0]"


def test_what_a_killed_broker_left_is_replaced(place):
    with place.up() as broker:
        broker.process.kill()
        broker.process.wait()
        assert place.path.exists()
        with place.up():
            assert place.program(CALL) == "[0.0, 2.0, 4.0]"
        broker.process.returncode = 0  # that end was asked for


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no_such_module"], "no_such_module cannot be imported"),
        (["no_such_file.py"], "no_such_file.py is not a file"),
        (["--group", "nobody-is-called-so", SERVED], "there is no such group"),
        (["--session", "attach.served_here:double_not", SERVED], "has no function double_not"),
        (["--quotas", "missing.toml", SERVED], "missing.toml cannot be read"),
        (["--max-helpers", "other=2", SERVED], "names the pool 'other'"),
        (
            ["--helpers", "4", "--max-helpers", "2", SERVED],
            "max_helpers allows pool default 2, and",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_sentence(place, words, sentence, monkeypatch, capsys):
    # In this process: nothing of it is started.
    monkeypatch.setenv("SHMGPU_SOCKET", str(place.path))
    assert cli.main(["up", "--arena", "1MiB", *words]) == 1
    assert sentence in capsys.readouterr().err
    assert not place.path.exists()


def test_modules_without_a_function_are_refused(place):
    status, _, complained = place.run("shmgpu", "up", "json")
    assert status == 1 and "json decorates no function" in complained


def test_a_session_that_cannot_be_made_is_told_with_its_traceback(place):
    status, _, complained = place.run("shmgpu", "up", "served_here", SERVED_HERE_FAILS="1")
    assert status == 1 and "the weights are gone" in complained


def test_detach_returns_when_it_serves_and_tells_why_when_it_does_not(place):
    words = ("shmgpu", "up", "--detach", "--arena", "1MiB", "served_here")
    status, _, complained = place.run(*words, SERVED_HERE_FAILS="1")
    assert status == 1 and "the weights are gone" in complained
    status, said, complained = place.run(*words)
    assert status == 0 and str(place.path) in said, complained
    assert place.program(CALL) == "[0.0, 2.0, 4.0]"
    place.program(
        "import contextlib, served_here, shmgpu\n"
        "with shmgpu.connect(), contextlib.suppress(shmgpu.HelperDied):\n"
        "    served_here.crash()\n"
    )
    _, listed, _ = place.run("shmgpu", "list")
    pid, log = re.fullmatch(r"process (\d+).*\n  socket .*\n  log     (.*)\n", listed).groups()
    os.kill(int(pid), signal.SIGINT)
    until(lambda: not is_alive(int(pid)), "it ends")
    written = pathlib.Path(log).read_text()
    assert "KeyboardInterrupt" not in written
    time = r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
    lines = rf"(?sm){time} process {pid} serves$.*{time},\d+ helper_died role="
    assert re.search(lines, written), written


def test_brokers_that_run_apart_are_told_from_each_other_by_what_they_serve(place):
    words = ("shmgpu", "up", "--detach", "--arena", "1MiB", "served_here")
    paths = [str(place.directory / name) for name in ("one.sock", "two.sock")]
    try:
        for path in paths:
            status, _, complained = place.run(*words, "--path", path)
            assert status == 0, complained
        commands = [one.command for one in monitor.find()]
        for path in paths:
            assert f"shmgpu up served_here --path {path}" in commands
    finally:
        for path in paths:
            place.run("shmgpu", "down", "--path", path)


def test_a_hangup_while_modules_load_does_not_end_it(place):
    (place.directory / "served_late.py").write_text(
        "import os, signal, served_here\nos.kill(os.getpid(), signal.SIGHUP)\n"
    )
    with place.up("served_late") as broker:
        assert not any("RELOADING" in told for told in broker.heard)
        broker.process.send_signal(signal.SIGHUP)
        broker.hear("RELOADING=1")
        broker.hear("READY=1")


def test_the_package_is_the_command(place):
    status, said, complained = place.run("-m", "shmgpu", "up", "--help")
    assert status == 0 and said.startswith("usage: shmgpu up"), complained


def test_the_service_file_is_well_formed():
    text = (ROOT / "examples" / "shmgpu.service").read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    assert service["Type"] == "notify-reload"
    program, command = service["ExecStart"].split()[:2]
    assert os.path.basename(program) == "shmgpu" and command == "up"
    assert service["KillMode"] == "mixed"
    assert unit["Install"]["WantedBy"] == "default.target"


def test_no_descriptor_is_left_by_programs_that_come_and_go(place):
    with place.up() as broker:
        fds = pathlib.Path("/proc", str(broker.process.pid), "fd")
        place.program(CALL)
        before = len(list(fds.iterdir()))
        place.program("for _ in range(20):\n" + CALL.replace("\n", "\n    ").join(["    ", ""]))
        # Of the first program some may have been open still.
        until(lambda: len(list(fds.iterdir())) <= before, "descriptors are closed")


def test_pools_are_called_by_their_names(place):
    longest = "ü" * 20  # more bytes than are kept, and a letter at the cut
    with place.up("--helpers", f"small=1,{longest}=1") as broker:
        words = ("shmgpu", "top", str(broker.process.pid), "--once", "--interval", "0.1")
        rows = json.loads(place.run(*words, "--json")[1])["helpers"]
        assert [(row["pool"], row["pool_name"]) for row in rows] == [(0, "small"), (1, "ü" * 15)]
        status, shown, complained = place.run(*words)
        assert status == 0, complained
        assert re.search(r"^ *0 +ready +small ", shown, re.M), shown


def test_a_session_is_made_for_the_first_program_and_given_back_after_the_last(place):
    with place.up("--lazy", "--idle", "0.05", SHMGPU_LOG="info") as broker:
        words = ("shmgpu", "top", str(broker.process.pid), "--once", "--interval", "0.1")
        assert re.search(r"^ *0 +unloaded ", place.run(*words)[1], re.M)
        told = place.program(
            "import numpy as np, served_here, shmgpu\n"
            "shmgpu.connect()\n"
            "row = lambda: shmgpu.stats()['helpers'][0]\n"
            "first = served_here.who(np.zeros(1))\n"
            "while row()['generation'] == 1: pass\n"
            "print(first != served_here.who(np.zeros(1)) == row()['pid'], row()['deaths'])\n"
        )
        assert told == "True 0"
        broker.process.send_signal(signal.SIGTERM)
        assert 'helper_unloaded role="helper 0"' in broker.end()


def test_ctrl_c_while_a_detached_broker_starts_ends_that_too(place):
    (place.directory / "slow.py").write_text(
        "import os, pathlib, time\n"
        "import shmgpu\n"
        "@shmgpu.function(arrays='numpy')\n"
        "def nothing(helper): ...\n"
        "def load(helper):\n"
        "    time.sleep(60)\n"
        "pathlib.Path('loading').write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    words = ("shmgpu", "up", "--detach", "--arena", "1MiB", "--devices", "cpu", "slow.py")
    program = place.start(*words)
    loading = place.directory / "loading"
    until(lambda: loading.exists() and loading.read_text(), "the broker loads its module")
    program.send_signal(signal.SIGINT)
    _, complained = program.communicate(timeout=30)
    assert program.returncode == cli.INTERRUPTED
    assert "interrupted: the broker was told to end" in complained
    until(lambda: not is_alive(int(loading.read_text())), "the broker has ended")
