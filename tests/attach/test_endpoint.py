"""Where a broker's socket lies: what a start may replace there, and what nobody may touch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import tempfile
import threading

import numpy as np
import pytest
from attach import brokers, served, served_here
from attach.brokers import needs_root, said

import shmgpu
from shmgpu import core
from shmgpu.attach import control, endpoint, spawn
from shmgpu.cli import main as cli

UP = ("up", "--arena", "1MiB", "--devices", "cpu", "attach.served_here")


@pytest.fixture
def nowhere(monkeypatch):
    """No runtime directory exists, and the one for temporary files is the test's."""
    with tempfile.TemporaryDirectory() as folder:  # short enough for a socket's path
        monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.join(folder, "missing"))
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(endpoint, "_warned_of", set())
        yield pathlib.Path(folder)


def a_file(path):
    path.write_text("precious")


def a_link(path):
    path.with_name("target").write_text("precious")
    path.symlink_to("target")


@pytest.mark.parametrize("make", [a_file, a_link, pathlib.Path.mkdir])
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_what_is_no_socket_is_refused_and_left_as_it_is(tmp_path, make, detach, capsys):
    path = tmp_path / "notes.txt"
    make(path)
    before = sorted((one.name, one.lstat().st_mtime_ns) for one in tmp_path.iterdir())
    assert cli.main([*UP, *detach, "--path", str(path)]) == 1
    assert f"{path} is not a socket" in capsys.readouterr().err
    assert sorted((one.name, one.lstat().st_mtime_ns) for one in tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", ["/etc/passwd", b"/etc/passwd", "/etc"])
def test_what_is_no_socket_is_not_taken_for_a_broker_that_ended(path):
    with pytest.raises(shmgpu.ConfigError, match=r"/etc\S* is not a socket"):
        shmgpu.connect(path)


@pytest.mark.parametrize("name", ["x.log", "x.lock", "x.starting", "notes.txt", "plain"])
def test_a_socket_may_be_called_anything(tmp_path, name, capsys):
    neighbour = tmp_path / "notes.log"
    neighbour.write_text("precious")
    path = str(tmp_path / name)
    assert cli.main([*UP, "--detach", "--path", path]) == 0
    assert capsys.readouterr().out == f"a broker serves at {path}; its log is {path}.log\n"
    try:
        with shmgpu.connect(path):
            assert served_here.double(np.ones(1)).tolist() == [2]
    finally:
        assert cli.main(["down", "--path", path]) == 0
    assert neighbour.read_text() == "precious"
    assert os.path.exists(f"{path}.log")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--path", "@foo"], "pass a path without @"),
        (["--path", "missing/x.sock"], "there is no directory"),
        (["--group", "99999999999"], "--group 99999999999: no group has a number from 4294967295"),
    ],
)
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_place_that_cannot_be_had_is_refused_and_nothing_is_left(
    tmp_path, monkeypatch, words, sentence, detach, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHMGPU_SOCKET", str(tmp_path / "broker.sock"))
    assert cli.main([*UP, *detach, *words]) == 1
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_socket_whose_group_cannot_be_set_is_taken_away(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    with pytest.raises(shmgpu.LaunchError, match="cannot be made"):
        endpoint.Endpoint(tmp_path / "broker.sock", 1)
    assert [one.name for one in tmp_path.iterdir()] == ["broker.sock.lock"]


@pytest.mark.parametrize(
    ("path", "sentence"), [(5, "is not a path"), ("\0abc", "holds a zero byte")]
)
def test_what_is_no_path_is_refused_in_a_sentence(path, sentence):
    with pytest.raises(shmgpu.ConfigError, match=sentence):
        shmgpu.connect(path)


def test_a_path_may_be_bytes(tmp_path):
    with pytest.raises(shmgpu.NotRunning, match=f"no broker listens at {tmp_path}/none"):
        shmgpu.connect(os.fsencode(tmp_path / "none"))


def test_who_only_looks_for_a_broker_makes_nothing_and_hears_of_a_bad_directory(nowhere, caplog):
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.connect()
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.connect()
    assert list(nowhere.iterdir()) == []
    said = [one.getMessage() for one in caplog.records if "XDG_RUNTIME_DIR" in one.getMessage()]
    assert len(said) == 1 and f"XDG_RUNTIME_DIR={nowhere / 'missing'} is not a directory" in said[0]


def test_who_starts_one_makes_the_users_directory(nowhere):
    path = endpoint.path_of(None)
    with endpoint.locked(path):
        assert path.parent == nowhere / f"shmgpu-{os.getuid()}"
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_not_used(nowhere):
    squatted = nowhere / f"shmgpu-{os.getuid()}"
    squatted.mkdir()
    squatted.chmod(0o777)
    with pytest.raises(shmgpu.LaunchError, match="not a directory that only you can write to"):
        shmgpu.connect()


def test_a_socket_that_can_be_seen_lets_programs_in(tmp_path, monkeypatch):
    path = tmp_path / "broker.sock"
    seen = []

    class Watched(socket.socket):
        def listen(self, *backlog):
            seen.append(path.exists())
            super().listen(*backlog)

    monkeypatch.setattr(socket, "socket", Watched)
    listener = endpoint.Endpoint(path)
    assert seen == [False] and path.is_socket()
    with endpoint.connect(path):
        pass
    listener.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broker.sock.lock"]


def test_a_broker_that_ends_leaves_what_has_taken_its_place(tmp_path):
    path = tmp_path / "broker.sock"
    listener = endpoint.Endpoint(path)
    path.unlink()
    path.write_text("precious")
    listener.close()
    assert path.read_text() == "precious"


def test_a_socket_of_another_kind_is_no_brokers(tmp_path):
    path = tmp_path / "stream.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(shmgpu.ConfigError, match="not a broker's socket"):
            endpoint.Endpoint(path)
    assert path.exists()


def test_whoever_holds_a_lock_is_waited_for_no_longer_than_said(tmp_path, monkeypatch):
    """In a folder that others may write to, the file may be theirs."""
    monkeypatch.setattr(endpoint, "LOCKED_WITHIN_S", 0.05)
    monkeypatch.setattr(endpoint, "STARTED_WITHIN_S", 0.05)
    path = tmp_path / "b.sock"
    for suffix, start in [
        (".lock", lambda: endpoint.Endpoint(path)),
        (".starting", lambda: shmgpu.ensure(["attach.served_here"], path=path)),
        (".starting", lambda: shmgpu.ensure(["attach.served_here"], path=path, timeout=0.01)),
    ]:
        file = tmp_path / f"b.sock{suffix}"
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(shmgpu.LaunchError, match=rf"has held {file} for 0\.0[15] s"):
                start()
            assert not path.exists()
        endpoint.Endpoint(path).close()  # whose turn has come


@pytest.mark.parametrize("suffix", [".lock", ".starting", ".log"])
def test_a_link_beside_the_socket_is_not_followed(tmp_path, suffix):
    target = tmp_path / "target"
    (tmp_path / f"b.sock{suffix}").symlink_to(target)
    with pytest.raises(shmgpu.LaunchError, match=rf"b\.sock\{suffix}.*: pass"):
        shmgpu.ensure(["attach.served_here"], path=tmp_path / "b.sock", devices="cpu")
    assert not target.exists()


@needs_root
def test_a_log_that_is_another_users_is_not_written_to(tmp_path, monkeypatch):
    log = tmp_path / "b.sock.log"
    log.touch()
    os.chown(log, 12345, 12345)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)  # who finds the file there
    with pytest.raises(shmgpu.LaunchError, match=f"log {log} is another user's file: pass path="):
        spawn._open_log(log)


# ---- many at once ----------------------------------------------------------------------------

CROWD = """
import os, sys, numpy as np, shmgpu
from attach import served

place, count = sys.argv[1], int(sys.argv[2])
reading, writing = os.pipe()
with shmgpu.connect(place, wait=20):
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.write(writing, b".")
                with shmgpu.connect(place, wait=None if number % 2 else 300):
                    code = 0 if served.add_one(np.zeros(1)).tolist() == [1] else 2
            finally:
                os._exit(code)
        pids.append(pid)
    waiting = 0
    while waiting < count:
        waiting += len(os.read(reading, 999))
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in pids))
"""


def test_whoever_waits_for_a_place_gets_one_however_many_wait(tmp_path):
    path = tmp_path / "b.sock"
    with brokers.up(path, slots=1, helpers=1):
        assert said(f"import sys\nsys.argv = ['', {str(path)!r}, '80']\n{CROWD}").split() == ["80"]


@contextlib.contextmanager
def stopped_with_a_full_queue(path):
    """A broker that is stopped, and as many connections to it as it lets wait."""
    with brokers.up(path, slots=1, helpers=1) as broker, contextlib.ExitStack() as waiting:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                one.setblocking(False)
                try:
                    one.connect(str(path))
                except BlockingIOError:
                    break
            yield broker
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_a_broker_that_stands_with_a_full_queue_is_not_waited_for_without_end(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(endpoint, "ANSWERS_WITHIN_S", 0.1)
    path = tmp_path / "b.sock"
    with stopped_with_a_full_queue(path):
        for wait in (0, 0.1):
            with pytest.raises(shmgpu.LaunchError, match=r"does not answer.*stopped"):
                shmgpu.connect(path, wait=wait)
        with pytest.raises(shmgpu.LaunchError, match="does not answer"):
            control.scale(1, path=path)
        assert cli.main(["down", "--path", str(path)]) == 1
        assert "does not answer" in capsys.readouterr().err


def test_whoever_waits_for_ever_is_let_in_when_a_broker_that_stood_goes_on(tmp_path):
    path = tmp_path / "b.sock"
    outcome = []

    def join():
        with shmgpu.connect(path, wait=None):
            outcome.append(served.add_one(np.zeros(1)).tolist())

    with stopped_with_a_full_queue(path) as broker:
        thread = threading.Thread(target=join)
        thread.start()
        os.kill(broker.pid, signal.SIGCONT)
        thread.join(brokers.DEADLINE_S)
        assert not thread.is_alive()
    assert outcome == [[1.0]]


def test_ctrl_c_ends_the_wait_for_a_full_queue(tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    path = tmp_path / "b.sock"
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with stopped_with_a_full_queue(path):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                shmgpu.connect(path, wait=None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_was_let_in_late_is_connected_in_truth(tmp_path):
    """A connect() that a signal interrupts looks like one that has succeeded."""
    path = tmp_path / "b.sock"
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with stopped_with_a_full_queue(path):
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            with pytest.raises(core.NoAnswer):
                endpoint.connect(path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_waits_for_another_start_sleeps_between_its_looks(tmp_path, monkeypatch):
    path, slept = tmp_path / "broker.sock", []
    with contextlib.ExitStack() as held:
        held.enter_context(endpoint.locked(path))

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                held.close()

        monkeypatch.setattr(endpoint.time, "sleep", sleep)
        with endpoint.locked(path, limit=5.0):
            assert slept == [endpoint.LOOK_AGAIN_S] * 3


@pytest.mark.parametrize("error", [BlockingIOError(11, "no more processes"), KeyboardInterrupt()])
def test_an_interpreter_that_cannot_be_started_leaves_no_descriptor_open(
    tmp_path, monkeypatch, error
):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(spawn.subprocess, "Popen", refused)
    before = os.listdir("/proc/self/fd")
    with pytest.raises((shmgpu.LaunchError, KeyboardInterrupt)) as caught:
        spawn.spawn({}, words=["demo"], log=tmp_path / "broker.log")
    assert os.listdir("/proc/self/fd") == before
    assert caught.value is error or caught.value.__cause__ is error
