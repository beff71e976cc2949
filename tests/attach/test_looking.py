"""Looking for a broker, waiting for one, starting one, telling one of several: without any."""

from __future__ import annotations

import contextlib
import errno
import importlib.machinery
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import types
import weakref

import pytest

from shmgpu import core
from shmgpu.attach import (
    automatic,
    carry,
    control,
    endpoint,
    manifest,
    membership,
    redefined,
    spawn,
)
from shmgpu.errors import BrokerDied, ConfigError, LaunchError, NotRunning, SessionError

PATH = pathlib.Path("/nowhere/broker.sock")


# ---- what a path may be -----------------------------------------------------------------------


def test_a_path_may_be_as_long_as_a_sockets_can(monkeypatch, tmp_path):
    monkeypatch.chdir("/")
    longest = "/" + "x" * (endpoint.LONGEST - 1)
    assert endpoint.path_of(longest) == pathlib.Path(longest)
    endpoint.check_length(pathlib.Path(longest))
    with pytest.raises(ConfigError, match=f"too long for a Unix socket: use {endpoint.LONGEST}"):
        endpoint.path_of(longest + "x")
    monkeypatch.delenv("SHMGPU_SOCKET", raising=False)
    with pytest.raises(ConfigError, match=r"set XDG_RUNTIME_DIR to a shorter directory.*eleven"):
        endpoint.check_length(pathlib.Path(longest + "x"))
    # One that is not absolute is made so where that is short enough, and stays otherwise.
    assert endpoint.path_of(longest[1:]) == pathlib.Path(longest)
    assert endpoint.path_of(longest[1:] + "x") == pathlib.Path(longest[1:] + "x")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (5, "path=5 is not a path: pass that of the broker's socket, as text"),
        ("a\0b", "holds a zero byte, which no path can"),
        ("\ud800", "cannot be a file's name: pass another path"),
    ],
)
def test_what_is_no_path_says_why(path, words):
    with pytest.raises(ConfigError, match=words):
        endpoint.path_of(path)


def test_a_directory_that_is_no_place_for_a_socket_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"cannot be looked at \(.*\): set XDG_RUNTIME_DIR"):
        endpoint._refuse_shared(tmp_path / "file" / "shmgpu")
    endpoint._refuse_shared(tmp_path / "absent")
    open_to_all = tmp_path / "open"
    for mode, is_refused in ((0o700, False), (0o755, False), (0o720, True), (0o702, True)):
        open_to_all.mkdir(exist_ok=True)
        open_to_all.chmod(mode)
        with pytest.raises(LaunchError) if is_refused else contextlib.nullcontext():
            endpoint._refuse_shared(open_to_all)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    open_to_all.chmod(0o700)
    with pytest.raises(LaunchError, match="is not a directory that only you can write to"):
        endpoint._refuse_shared(open_to_all)


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("@name", ConfigError, "names no file, and a broker's socket is one"),
        ("file/broker.sock", ConfigError, "there is no directory .*file: make it"),
        ("absent/broker.sock", ConfigError, "there is no directory .*absent: make it"),
        ("file", ConfigError, "file is not a socket, and was left as it is"),
        ("x" * 300, LaunchError, "no broker can be started at .*: pass path="),
    ],
)
def test_where_no_socket_can_be_made_a_start_says_so(tmp_path, path, kind, words):
    (tmp_path / "file").write_text("")
    place = pathlib.Path(path if path.startswith("@") else tmp_path / path)
    with pytest.raises(kind, match=words):
        endpoint.prepare(place)


def listening(path):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    made.listen(1)
    return made


def test_what_a_broker_left_is_cleared_away_unless_one_listens_there(tmp_path):
    path = tmp_path / "broker.sock"
    for name in (".log", ".sources"):
        endpoint.beside(path, name).write_text("")
    with listening(path):
        endpoint.clear(path, [".log"])
        assert path.exists() and endpoint.beside(path, ".log").exists()
    endpoint.clear(path, [".log", ".absent"])
    assert not path.exists() and not endpoint.beside(path, ".log").exists()
    assert endpoint.beside(path, ".sources").exists()


def test_only_the_socket_that_is_meant_is_removed(tmp_path):
    path = tmp_path / "broker.sock"
    endpoint.remove(path)
    path.write_text("")
    endpoint.remove(path)
    assert path.exists(), "it is no socket"
    path.unlink()
    with listening(path):
        inode = path.lstat().st_ino
        endpoint.remove(path, inode + 1)
        assert stat.S_ISSOCK(path.lstat().st_mode), "it is another one"
        endpoint.remove(path, inode)
        assert not path.exists()


def test_a_lock_whose_file_is_gone_or_another_is_none(tmp_path):
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert endpoint._is_called(path, descriptor)
        path.unlink()
        assert not endpoint._is_called(path, descriptor)
        path.write_text("")
        assert not endpoint._is_called(path, descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOENT, None),
        (errno.ENOTDIR, None),
        (errno.ECONNREFUSED, None),
        (errno.EACCES, "belongs to another user, who has not let you in"),
        (errno.EPERM, "belongs to another user, who has not let you in"),
        (errno.EPROTOTYPE, "is not a broker's socket .*: pass the right path="),
    ],
)
def test_why_nobody_answers_is_told_apart(monkeypatch, number, words):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(endpoint, "_connect_until", refused)
    if words is None:
        assert endpoint.connect(PATH) is None
    else:
        with pytest.raises(ConfigError, match=words):
            endpoint.connect(PATH)
    assert os.listdir("/proc/self/fd") == before


def test_an_abstract_name_of_another_user_is_refused(monkeypatch):
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(endpoint, "_connect_until", lambda *_: None)
    monkeypatch.setattr(endpoint, "is_trusted", lambda connection: False)
    with pytest.raises(LaunchError, match="is another user's by now: restart the program"):
        endpoint.connect("@name")
    assert os.listdir("/proc/self/fd") == before


def test_a_broker_is_trusted_that_is_ones_own_or_roots(monkeypatch):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        mine = os.geteuid()
        assert endpoint.is_trusted(one)
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert endpoint.is_trusted(one) == (mine == 0)


# ---- one of several ---------------------------------------------------------------------------


def test_who_means_one_of_several_brokers_names_it(monkeypatch):
    monkeypatch.setattr(control, "running", lambda path: [])
    with pytest.raises(NotRunning, match=f"no broker listens at {PATH}: start one"):
        control._the_one(PATH)
    monkeypatch.setattr(control, "running", lambda path: [PATH])
    assert control._the_one(None) == PATH
    monkeypatch.setattr(control, "running", lambda path: [PATH, PATH])
    monkeypatch.setattr(automatic, "described", lambda path: f"<{path}>")
    with pytest.raises(
        ConfigError, match=f"2 brokers run .*: name one with --path or all; they are <{PATH}>, <"
    ):
        control._the_one(None, " or all")


def test_pools_are_scaled_and_paused_by_their_names(monkeypatch):
    asked = []
    monkeypatch.setattr(control, "_the_one", lambda path, also="": PATH)
    monkeypatch.setattr(control, "_pools_of", lambda path: {"b": 1, "a": 0})
    monkeypatch.setattr(control, "_connect", lambda path: socket.socket())
    monkeypatch.setattr(core, "ask_scale", lambda fd, *told: asked.append(told) or 7)
    monkeypatch.setattr(core, "ask_pause", lambda fd, *told: asked.append(told))
    with pytest.raises(ConfigError, match="has the pools a, b: say which, as in a=3"):
        control.scale(3)
    for change in (control.scale, control.pause):
        with pytest.raises(ConfigError, match="has no pool 'c': its pools are a, b"):
            change({"a": 1, "d": 1, "c": 1})
    assert asked == []
    (done,) = control.scale({"b": 3})
    assert (done.pool, done.before, done.helpers) == ("b", 7, 3) and asked == [(1, 3)]
    del asked[:]
    assert control.pause() == ["b", "a"] and asked == [(1, True), (0, True)]
    del asked[:]
    assert control.pause(["a"], is_paused=False) == ["a"] and asked == [(0, False)]
    monkeypatch.setattr(control, "_pools_of", lambda path: {"only": 2})
    assert control.scale(4)[0].pool == "only" and asked[1:] == [(2, 4)]


def test_a_broker_that_does_not_end_in_time_is_told_of(monkeypatch):
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print(1, flush=True)\n"
            "signal.pause()\n",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        child.stdout.read(1)
        monkeypatch.setattr(control, "_the_one", lambda path, also="": PATH)
        monkeypatch.setattr(control, "_connect", lambda path: contextlib.nullcontext())
        monkeypatch.setattr(control, "_process_of", lambda connection: child.pid)
        before = os.listdir("/proc/self/fd")
        with pytest.raises(
            LaunchError, match=f"process {child.pid}, has not ended within 0.01 s: its log says"
        ):
            control.down(timeout=0.01)
        monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, number: child.kill())
        assert control.down(timeout=20) == child.pid
        assert os.listdir("/proc/self/fd") == before
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    with pytest.raises(LaunchError, match="the broker cannot be told to end"):
        control.down()  # its number is nobody's any more


def test_a_log_is_a_brokers_that_prints_there(monkeypatch, tmp_path):
    log = tmp_path / "log"
    assert not control._prints_to(os.getpid(), log)
    log.write_text("")
    assert not control._prints_to(os.getpid(), log)

    def hidden(*_):
        raise PermissionError

    monkeypatch.setattr(os.path, "samefile", hidden)
    assert control._prints_to(1, log) and not control._prints_to(1, tmp_path / "absent")


# ---- waiting for one --------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """No broker anywhere, and no time passes."""
    begun = types.SimpleNamespace(starts=[], answers=[None], joined=[])

    def connect(*_):
        return begun.answers.pop(0) if len(begun.answers) > 1 else begun.answers[0]

    def wait_in(*_):
        found = begun.joined.pop(0) if begun.joined else BrokerDied("it ends")
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(endpoint, "connect", connect)
    monkeypatch.setattr(endpoint, "locked", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(spawn, "start", lambda *told, **settings: begun.starts.append(settings))
    monkeypatch.setattr(membership, "_wait_in", wait_in)
    monkeypatch.setattr(membership, "SETTLES_WITHIN_S", 0.0)
    monkeypatch.setattr(membership, "LOOK_AGAIN_S", 0.0)
    return begun


class Shared:
    """The broker that programs like this one share."""

    socket_path = PATH
    settings = {"session": None}

    def __init__(self, begun, runs=False):
        self.begun, self._runs, self.grown = begun, runs, []

    def runs(self):
        return self._runs

    def start(self, timeout):
        self.begun.starts.append({"timeout": timeout})
        self._runs = True

    def grow(self, pools):
        self.grown.append(pools)


def test_a_broker_that_ends_before_it_can_be_joined_is_not_started_for_ever(alone):
    with pytest.raises(LaunchError, match=f"brokers at {PATH} end before they can be joined"):
        membership.ensure(path=PATH)
    assert len(alone.starts) == 2 and alone.starts[0]["slots"] > 0


def test_one_that_is_ending_is_waited_for(alone):
    told = []
    joined = types.SimpleNamespace(caution_asked=told.append)
    alone.answers = ["a connection"]
    alone.joined = [core.NoAnswer("it loads"), joined]
    assert membership.ensure(path=PATH, session="load") is joined
    assert alone.starts == [] and told == ["load"]
    for error in (BrokerDied("it ends"), core.NoAnswer("it loads")):
        alone.joined = [error] * 9
        with pytest.raises(type(error)):
            membership.ensure(path=PATH)


def test_the_one_that_programs_share_is_started_once_and_joined(alone, monkeypatch):
    joined = types.SimpleNamespace(manifest=types.SimpleNamespace(pools={"p": 1}))
    shared = Shared(alone)
    monkeypatch.setattr(automatic, "SharedBroker", lambda base, settings: shared)
    alone.answers = [None, None, "a connection"]
    alone.joined = [joined]
    assert membership._share(PATH, 0.0, 2.5, False, {}) is joined
    assert alone.starts == [{"timeout": 2.5}] and shared.grown == [{"p": 1}]


def test_one_that_is_shared_and_ends_before_it_can_be_joined_is_told_of(alone, monkeypatch):
    shared = Shared(alone, runs=True)
    monkeypatch.setattr(automatic, "SharedBroker", lambda base, settings: shared)
    with pytest.raises(LaunchError, match="end before they can be joined: read their log"):
        membership._share(PATH, 0.0, None, False, {})
    alone.answers = [None, "a connection"] * 9
    with pytest.raises(BrokerDied, match="it ends"):
        membership._share(PATH, 0.0, None, False, {})


def test_where_the_shared_one_is_full_it_says_how_there_is_room(alone, monkeypatch):
    monkeypatch.setattr(automatic, "SharedBroker", lambda base, settings: Shared(alone, True))
    alone.answers, alone.joined = [None, "a connection"], [core.NoPlace("it is full")]
    with pytest.raises(core.NoPlace, match=r"it is full: shmgpu.ensure\(wait=SECONDS\) waits"):
        membership._share(PATH, 0.0, None, False, {})
    alone.answers, alone.joined = ["a connection"], [core.NoPlace("it is full")]
    with pytest.raises(core.NoPlace, match=r"it is full$"):  # of shmgpu up
        membership._share(PATH, 0.0, None, False, {})


@pytest.mark.parametrize(
    ("current", "said"),
    [(None, "left"), (False, "joined"), (True, "its broker is gone"), ("another", "left")],
)
def test_a_membership_says_whether_it_lasts(monkeypatch, current, said):
    one = object.__new__(membership.Membership)
    one.path = "/x"
    port = types.SimpleNamespace(is_lost=lambda: current)
    runs = None if current is None else types.SimpleNamespace(port=port)
    monkeypatch.setattr(membership.runtime, "current", runs)
    monkeypatch.setattr(membership, "_membership", None if current == "another" else one)
    assert repr(one) == f"<shmgpu membership of /x, {said}>"
    monkeypatch.setattr(membership, "_membership", None)


# ---- what a broker that starts by itself is given ----------------------------------------------


@pytest.mark.parametrize(
    ("helpers", "most"),
    [
        (None, automatic.MAX_HELPERS),
        (1, automatic.MAX_HELPERS),
        (automatic.MAX_HELPERS + 1, automatic.MAX_HELPERS + 1),
        ({"a": 1}, {"a": automatic.MAX_HELPERS}),
        (
            dict.fromkeys("abcdefgh", 1) | {"a": 30},
            dict.fromkeys("abcdefgh", core.MAX_HELPERS // 8) | {"a": 30},
        ),
    ],
)
def test_pools_may_grow_as_far_as_all_of_them_can(helpers, most):
    assert automatic._most_of(helpers) == most


def test_helpers_are_counted_where_a_program_or_its_environment_names_some(monkeypatch):
    monkeypatch.delenv("SHMGPU_HELPERS", raising=False)
    assert automatic._counts(None) is None
    assert automatic._counts(3) == 3
    assert automatic._counts({5: 2}) == {"5": 2}
    with pytest.raises(ConfigError, match=r"helpers\['a'\]"):
        automatic._counts({"a": "many"})
    monkeypatch.setenv("SHMGPU_HELPERS", "2")
    assert automatic._counts(None) == 2


def test_where_memory_runs_out_other_brokers_are_named(monkeypatch):
    one = types.SimpleNamespace(
        base=PATH, settings={}, _helpers=1, socket_path=PATH, key="k", owner="", _retire=list
    )
    error = SessionError("CUDA out of memory", 3, "Traceback")

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(spawn, "start", fails)
    monkeypatch.setattr(automatic, "_sweep", lambda base: None)
    monkeypatch.setattr(automatic, "_end_idle", lambda base: None)
    monkeypatch.setattr(automatic, "described", lambda path: f"<{path}>")
    monkeypatch.setattr(automatic, "running", lambda base: [])
    with pytest.raises(SessionError) as caught:
        automatic.SharedBroker.start(one, None)
    assert caught.value is error
    monkeypatch.setattr(automatic, "running", lambda base: [PATH])
    with pytest.raises(SessionError, match=f"out of memory; you have other .*: <{PATH}>: end") as (
        caught
    ):
        automatic.SharedBroker.start(one, None)
    assert (caught.value.helper, caught.value.traceback_text) == (3, "Traceback")


def test_who_does_not_answer_any_more_is_asked_nothing(monkeypatch):
    monkeypatch.setattr(endpoint, "connect", lambda path: None)
    assert automatic._asked(PATH, 0, 5) == 5 and automatic._asked(PATH, 0) == 0
    assert not automatic._answers(PATH)

    def refused(path):
        raise ConfigError("it is none")

    monkeypatch.setattr(endpoint, "connect", refused)
    assert not automatic._answers(PATH)
    assert automatic.running(pathlib.Path("/absent/broker.sock")) == []


# ---- what cannot be started or handed over ------------------------------------------------------


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_manifest_leaves_no_descriptor_but_the_one_that_it_gives(monkeypatch):
    one, before = manifest.Manifest({"m:f": 1}, {"default": 0}), descriptors()
    read_only = one.write()
    assert manifest.Manifest.read(read_only).rows == {"m:f": 1}
    with pytest.raises(OSError):
        os.write(read_only, b"x")
    os.close(read_only)
    assert descriptors() == before
    opened = os.open

    def no_proc(path, *rest):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", no_proc)
    sealed = one.write()  # without /proc the seals alone must do
    with pytest.raises(PermissionError):
        os.write(sealed, b"x")
    os.close(sealed)

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(manifest.fcntl, "fcntl", refused)
    with pytest.raises(PermissionError):
        one.write()
    assert descriptors() == before


@pytest.mark.parametrize(("number", "closed"), [(0, [0]), (7, [7]), (-1, [])])
def test_what_was_handed_over_by_a_broker_that_was_not_joined_is_closed(
    monkeypatch, number, closed
):
    """Number 0 is that of any descriptor where a program runs without standard input."""
    told = []

    def join(connection, program, wait_ns, descriptor):
        descriptor[0] = number
        raise NotRunning("no")

    here, there = socket.socketpair()
    with there, monkeypatch.context() as patched:
        patched.setattr(core, "join", join)
        patched.setattr(os, "close", told.append)
        with pytest.raises(NotRunning):
            membership.enter(here, None)
    assert told == closed and here.fileno() == -1


class Ended(BaseException):
    """As Ctrl-C, which may come at any time."""


def test_a_private_broker_that_cannot_be_started_leaves_no_connection(monkeypatch):
    def fails(*_, **__):
        raise Ended

    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(spawn, "connect", fails)
        with pytest.raises(Ended):
            spawn._start_private(b"")
    assert descriptors() == before
    monkeypatch.setattr(spawn, "spawn", fails)
    with pytest.raises(Ended):
        spawn._start_private(b"")
    assert descriptors() == before


@pytest.mark.parametrize("has_forked", [False, True])
def test_a_start_that_is_interrupted_ends_the_broker_that_it_forked(
    monkeypatch, tmp_path, has_forked
):
    told, killed = [], []

    class Popen:
        pid = 0

        def __init__(self, *_, pass_fds, **__):
            if has_forked:
                os.write(pass_fds[0], b"4242\n")

        def wait(self, timeout=None):
            told.append("waits")
            if len(told) == 1:
                raise Ended

        def kill(self):
            told.append("is killed")

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(spawn, "_number_told", lambda report: 4242 if has_forked else 0)
    monkeypatch.setattr(spawn.Spawned, "abandon", lambda self: killed.append(self._pid))
    before = descriptors()
    with pytest.raises(Ended):
        spawn.spawn({}, words=["init"], log=tmp_path / "log")
    assert told == ["waits", "is killed", "waits"] and descriptors() == before
    assert killed == [4242 if has_forked else 0]


def test_a_broker_that_prints_here_has_said_why_itself():
    one = spawn.Spawned(None, -1, None, 0, 0)
    assert one._last_words() == ": what it printed says why"


@pytest.mark.parametrize("error", [ImportError, ValueError])
def test_a_module_that_an_importer_cannot_look_for_is_not_importable(monkeypatch, error):
    class Finder:
        def find_spec(self, name, path, target):
            raise error

    monkeypatch.setattr(sys, "meta_path", [object(), Finder(), *sys.meta_path])
    assert carry.find_spec("json", None) is None and not carry.is_importable("json")
    assert carry.is_importable("shmgpu.core") and not carry.is_importable("__main__")


def test_modules_of_an_importer_of_ones_own_go_together(monkeypatch):
    class Loader:
        pass

    for name in ("own_one", "own_other"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, Loader())
        monkeypatch.setitem(sys.modules, name, module)
    assert carry.found_alike("own_one") == {"own_one", "own_other"}
    assert carry.found_alike("json") == {"json"}
    assert carry.found_alike("sys") == {"sys"}
    assert carry.found_alike("nowhere_at_all") == set()


def test_a_program_that_was_changed_says_what_of_it_is_kept():
    class Slots:
        __slots__ = ()

    class Own:
        pass

    assert redefined._kept(5) == 5 and isinstance(redefined._kept(Own()), weakref.ref)
    slots = Slots()
    assert redefined._kept(slots) is slots  # nothing refers to it weakly
