"""A program that the broker did not start joins it, calls, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from attach import brokers, served
from attach.brokers import said, until

import shmgpu
from shmgpu import core
from shmgpu.child import runtime
from shmgpu.watch import trace

LATELY = brokers.DEADLINE_S  # until then a place that was left is clean again


@contextlib.contextmanager
def taken(address: int, size: int):
    """Something else lies there in this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    private_anonymous_noreplace = 0x02 | 0x20 | 0x100000
    got = libc.mmap(address, size, 0, private_anonymous_noreplace, -1, 0)
    assert got == address
    yield
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


@pytest.fixture(params=["where the broker has it", "elsewhere"])
def joined(request, place):
    """This process is in the broker; its arena lies where the broker has it, or elsewhere."""
    with contextlib.ExitStack() as mappings:
        shmgpu.connect(place, wait=LATELY)
        while request.param == "elsewhere" and core.arena_shift() == 0:
            address = core.arena_base(core.child_id())
            shmgpu.disconnect()
            mappings.enter_context(taken(address, 4096))
            shmgpu.connect(place, wait=LATELY)
        yield
        shmgpu.disconnect()


def test_a_program_that_was_started_by_itself_calls_like_a_child(joined):
    x = shmgpu.arena.zeros((2, 3))
    for turn in range(4):  # the later ones take the short way
        x[...] = turn
        assert (served.add_one(x) == turn + 1).all()
    assert served.add_one(np.zeros(3)).tolist() == [1, 1, 1]  # copied in
    assert served.of_session(x)[0, 0] == 30
    assert served.tree((x, x), scale=2.0)["sum"].tolist() == (4 * x).tolist()
    assert served.tree([np.ones(1), np.ones(1)])["name"] == "both"


def test_a_membership_is_left_with_its_block(place):
    with shmgpu.connect(place, wait=LATELY) as membership:
        assert type(membership) is shmgpu.Membership and membership.path == str(place)
        assert shmgpu.is_running()
    assert not shmgpu.is_running()
    membership.disconnect()  # once more does nothing


def test_results_lie_where_the_client_says(joined):
    x, y = shmgpu.arena.zeros(100), shmgpu.arena.empty(100)
    assert served.add_one.options(out=y)(x) is y and (y == 1).all()
    elsewhere = np.empty(100, np.float32)
    assert served.add_one.options(out=elsewhere)(y) is elsewhere and (elsewhere == 2).all()


def test_results_that_outgrow_their_room_are_fetched(joined):
    for size in (1, 5000, 3, 60000, 0, 20000):
        assert served.counted(size).tolist() == list(range(size))
    futures = [served.counted.submit(size) for size in (1, 9000, 20000)]
    assert [len(future.result()) for future in futures] == [1, 9000, 20000]


def test_calls_that_do_not_wait_end(joined, tmp_path):
    x = shmgpu.arena.zeros(3)
    futures = [served.add_one.submit(x) for _ in range(100)]  # more than the window
    assert all(future.result().tolist() == [1, 1, 1] for future in futures)
    assert [y[0] for y in served.doubled.map([np.full((2, 1), i) for i in range(20)])] == [
        [2 * i] for i in range(20)
    ]

    async def gather():
        return await asyncio.gather(*(served.add_one.aio(x) for _ in range(10)))

    assert len(asyncio.run(gather())) == 10
    gate = tmp_path / "gate"
    with pytest.raises(shmgpu.CallTimeout, match="held"):
        served.held.options(timeout=0.05)(x, str(gate))
    with pytest.raises(shmgpu.CallTimeout, match="held"):
        served.held.options(timeout=0.05).submit(x, str(gate)).result()
    gate.touch()


def test_a_pool_is_found_by_its_name(joined):
    y, pool = served.in_second(shmgpu.arena.zeros(2))
    assert (y.tolist(), pool) == ([-1, -1], "second")


def test_a_message_by_hand_is_answered(joined):
    port = runtime.require_port()
    call = port.prepare(served.add_one, (shmgpu.arena.zeros(4),), {}, None)
    port.arguments.allocate_output(call)
    shmgpu.shm_send_msg(served.add_one, call.address)
    assert shmgpu.shm_read_msg() == (0, served.add_one.row, call.address)
    assert 1.0 in np.frombuffer(call.result, np.float32, 64)
    block = shmgpu.shm_malloc(64)
    block[:] = 255
    shmgpu.shm_send_msg(served.add_one, block)
    status, function, params = shmgpu.shm_read_msg()
    assert (function, params) == (served.add_one.row, block.address)
    assert shmgpu.status_name(status) == "SHM_EBAD_PARAMS"


def test_a_client_sees_the_brokers_statistics_and_trace(joined, tmp_path):
    before = shmgpu.stats()["broker"]["answered"]
    for _ in range(5):
        served.add_one(np.zeros(3))
    stats = shmgpu.stats()
    assert stats["broker"]["answered"] == before + 5
    mine = stats["children"][shmgpu.rank()]
    assert mine["pid"] == os.getpid() and mine["frames_sent"] >= 5
    shmgpu.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "add_one" in {event["name"] for event in events if event["ph"] == "X"}
    records = trace.read()
    assert shmgpu.write_trace(tmp_path / "two.json", records=records[-2:]) == 2


# ---- names ---------------------------------------------------------------------------------


def test_a_function_that_the_broker_lacks_is_an_error_that_names_what_it_has(place):
    @shmgpu.function(arrays="numpy")
    def nowhere(helper, x):
        return x

    with shmgpu.connect(place, wait=LATELY):
        with pytest.raises(shmgpu.BadFunction, match=r"has no .*:.*nowhere.*attach.served:add_one"):
            nowhere(np.zeros(1))
        assert served.add_one(np.zeros(1)).tolist() == [1]


def test_a_function_that_a_client_decorates_serves_in_a_broker_of_its_own_later(place):
    with shmgpu.connect(place, wait=LATELY):

        @shmgpu.function(arrays="numpy")
        def later(helper, x):
            return x + 5

    with shmgpu.init(devices="cpu", arena="1MiB"):
        assert later(np.zeros(1)).tolist() == [5]
        assert served.add_one(np.zeros(1)).tolist() == [1]


def test_a_script_is_called_what_the_broker_imported_it_as(place):
    path = pathlib.Path(served.__file__)
    done = subprocess.run(
        [sys.executable, path], env=brokers.environment(SHMGPU_SOCKET=str(place)),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "resolved\n", done.stderr


# ---- who may join, and when ----------------------------------------------------------------


def test_without_a_broker_the_error_says_how_to_start_one(tmp_path):
    with pytest.raises(shmgpu.NotRunning, match=r"no broker listens at .*shmgpu up"):
        shmgpu.connect(tmp_path / "none.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(shmgpu.NotRunning, match="no broker listens"):
        shmgpu.connect(tmp_path / "dead.sock")


def test_the_network_address_of_this_box_is_the_broker_of_this_box(place, monkeypatch):
    monkeypatch.setenv("SHMGPU_SOCKET", str(place))
    for given in (
        {"path": "localhost:29500"},
        {"path": "127.0.0.2:3"},
        {"host": "127.0.0.1", "port": 29500},
        {"host": socket.gethostname()},
        {"host": "LOCALHOST"},
        {},
    ):
        with shmgpu.connect(**given, wait=LATELY):
            assert served.add_one(np.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("given", [{"path": "gpubox:29500"}, {"host": "10.0.0.7", "port": 1}])
def test_another_box_is_refused_in_a_sentence(given):
    with pytest.raises(
        shmgpu.ConfigError, match="is another machine, and shmgpu shares memory within"
    ):
        shmgpu.connect(**given)


def test_a_process_is_in_one_broker_at_a_time(place):
    with shmgpu.connect(place, wait=LATELY):
        with pytest.raises(shmgpu.LaunchError, match="already in a broker: call disconnect"):
            shmgpu.connect(place)
        with pytest.raises(shmgpu.LaunchError, match="already in a broker"):
            shmgpu.claim()
        with pytest.raises(shmgpu.LaunchError, match=r"init\(\) cannot start a broker"):
            shmgpu.init()
        with pytest.raises(shmgpu.RemoteError, match="a helper serves one broker"):
            served.join_from_here()
        assert served.add_one(np.zeros(1)).tolist() == [1]


def test_a_child_of_a_launch_has_its_broker(place):
    def main(rank):
        with pytest.raises(shmgpu.LaunchError, match="already in a broker"):
            shmgpu.connect(place)
        return True

    assert shmgpu.launch(main, devices="cpu", arena="1MiB") == [True]


def test_a_full_broker_says_so_and_a_place_can_be_waited_for(tmp_path):
    client = f"""
import os, sys, shmgpu
with shmgpu.connect({str(tmp_path / "b.sock")!r}):
    print("in", flush=True)
    sys.stdin.read()
"""
    with brokers.up(tmp_path / "b.sock", slots=1, helpers=1):
        other = subprocess.Popen(
            [sys.executable, "-c", client], env=brokers.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert other.stdout.readline() == "in\n"
        with pytest.raises(shmgpu.LaunchError, match=r"every slot for a child is taken.*all 1 "):
            shmgpu.connect(tmp_path / "b.sock")
        with pytest.raises(shmgpu.LaunchError, match="no slot of the broker became free in time"):
            shmgpu.connect(tmp_path / "b.sock", wait=0.1)
        leaving = threading.Timer(0.1, other.communicate)
        leaving.start()
        with shmgpu.connect(tmp_path / "b.sock", wait=None):
            assert served.add_one(np.zeros(1)).tolist() == [1]
        leaving.join()


def test_waiting_for_a_place_can_be_interrupted(tmp_path):
    with brokers.up(tmp_path / "b.sock", slots=1, helpers=1):
        code = f"""
import os, signal, threading, shmgpu
first = shmgpu.connect({str(tmp_path / "b.sock")!r})
if os.fork() == 0:
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        shmgpu.claim(wait=None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        try:
            shmgpu.claim(wait=0)
        except shmgpu.LaunchError as error:
            print("full" if "taken" in str(error) else error, flush=True)
    os._exit(0)
os.wait()
"""
        assert said(code).splitlines() == ["interrupted", "full"]


# ---- leaving -------------------------------------------------------------------------------


def test_a_place_that_is_only_being_cleared_is_waited_for_though_nobody_asked_to_wait(tmp_path):
    with brokers.up(tmp_path / "b.sock", slots=1, helpers=1):
        shmgpu.connect(tmp_path / "b.sock")
        served.slow.submit(np.zeros(1), 0.3)
        until(lambda: shmgpu.stats()["broker"]["in_flight"], "a helper has it")
        shmgpu.disconnect()
        with shmgpu.connect(tmp_path / "b.sock"):
            assert served.add_one(np.zeros(1)).tolist() == [1]


def test_a_place_that_is_not_cleared_soon_is_taken(tmp_path):
    gate = tmp_path / "gate"
    with brokers.up(tmp_path / "b.sock", slots=1, helpers=1):
        shmgpu.connect(tmp_path / "b.sock")
        served.held.submit(np.zeros(1), str(gate))
        until(lambda: shmgpu.stats()["broker"]["in_flight"], "a helper has it")
        shmgpu.disconnect()
        with pytest.raises(shmgpu.LaunchError, match="no slot of the broker became free in time"):
            shmgpu.connect(tmp_path / "b.sock")
        gate.touch()


def test_f35_what_a_client_keeps_is_its_own_when_it_has_left(place):
    with shmgpu.connect(place, wait=LATELY):
        kept = served.add_one(shmgpu.arena.zeros(1000))
        rank = shmgpu.rank()
    assert (kept == 1).all()
    with pytest.raises(shmgpu.NotRunning, match=r"left its broker, .* call shmgpu.ensure\(\)"):
        served.add_one(kept)

    def in_the_same_place():
        shmgpu.connect(place, wait=LATELY)
        if shmgpu.rank() == rank:
            return True
        shmgpu.disconnect()
        return False

    until(in_the_same_place, "the place is free again")
    everything = shmgpu.arena.empty(200_000)
    assert not everything.any()
    kept[:] = 7
    assert not everything.any()
    shmgpu.disconnect()
    assert (kept == 7).all()


def test_calls_that_are_out_are_given_up(place, tmp_path):
    shmgpu.connect(place, wait=LATELY)
    x = shmgpu.arena.zeros(3)
    gate = tmp_path / "gate"
    future = served.held.submit(x, str(gate))
    errors = []

    def blocked():
        try:
            served.held(np.zeros(3), str(gate))
        except shmgpu.ShmError as error:
            errors.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    until(lambda: shmgpu.stats()["children"][shmgpu.rank()]["queued"], "both are out")
    shmgpu.disconnect()
    thread.join(brokers.DEADLINE_S)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [shmgpu.NotRunning]
    with pytest.raises(shmgpu.NotRunning, match="left its broker"):
        future.result()
    with shmgpu.connect(place, wait=LATELY):  # the helper is still busy, and that is all
        gate.touch()
        assert served.add_one(x).tolist() == [1, 1, 1]
    shmgpu.disconnect()


def test_a_broker_that_dies_is_told_of_and_another_can_be_joined(tmp_path):
    path = tmp_path / "b.sock"
    with brokers.up(path, helpers=1) as broker:
        shmgpu.connect(path)
        x = served.add_one(shmgpu.arena.zeros(3))
        future = served.slow.submit(x, 60)
        broker.kill()
        with pytest.raises(shmgpu.BrokerDied):
            served.add_one(x)
        with pytest.raises(shmgpu.BrokerDied):
            future.result(timeout=brokers.DEADLINE_S)
        assert x.tolist() == [1, 1, 1]
    shmgpu.disconnect()
    with pytest.raises(shmgpu.NotRunning, match="no broker listens"):
        shmgpu.connect(path)
    with brokers.up(path, helpers=1), shmgpu.connect(path):
        assert served.add_one(x).tolist() == [2, 2, 2]


def test_ctrl_c_ends_the_wait_and_not_the_place(place, tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.connect(place, wait=LATELY):
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            served.held(np.zeros(1), str(gate))
        timer.join()
        gate.touch()
        assert served.add_one(np.zeros(1)).tolist() == [1]


# ---- attached clients that die ------------------------------------------------------------------


DIES = """
import os, signal, sys, shmgpu
from attach import served
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: os.write(1, b"heard\\n"))
shmgpu.connect({!r}, wait=30)
x = shmgpu.arena.zeros(200_000)
x[:] = 42
future = served.slow.submit(x, {})
os.write(1, b"%d\\n" % shmgpu.rank())
{}
"""


def client_that(place, seconds, ending) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DIES.format(str(place), seconds, ending)],
        env=brokers.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "os._exit(1)", "sys.exit(0)"])
def test_f02_the_arena_of_a_client_that_dies_in_a_call_is_clean_for_the_next(tmp_path, ending):
    path = tmp_path / "b.sock"
    with brokers.up(path, slots=1, helpers=2):
        client = client_that(path, 0.3, ending)
        out, _ = client.communicate(timeout=brokers.DEADLINE_S)
        assert out.split()[0] == "0" and "heard" not in out
        with shmgpu.connect(path, wait=LATELY):  # its one place; while its call still runs
            everything = shmgpu.arena.empty(200_000)
            assert not everything.any()
            assert served.add_one(everything[:3]).tolist() == [1, 1, 1]
            del everything


def test_f35_a_client_is_never_signalled_not_even_when_the_broker_ends(tmp_path):
    path = tmp_path / "b.sock"
    lives = """
sys.stdin.readline()
try:
    served.add_one(x)
except shmgpu.BrokerDied:
    os.write(1, b"told\\n")
"""
    with brokers.up(path, helpers=1):
        client = client_that(path, 0, lives)
        assert client.stdout.readline() == "0\n"
    out, _ = client.communicate("go on\n", timeout=brokers.DEADLINE_S)
    assert (out, client.returncode) == ("told\n", 0)


ERRS = """
for name in os.listdir("/proc/self/fd"):
    try:
        if os.readlink("/proc/self/fd/" + name).startswith("pipe:") and int(name) > 2:
            for _ in range(4):
                os.write(int(name), b"\\xff" * 4096)
    except OSError:
        pass  # the end to read from, and what the broker has closed
try:
    while True:
        served.add_one(x[:4])
except shmgpu.BrokerDied:
    os.write(1, b"let go\\n")
sys.stdin.readline()
x[:] = 13
"""


def test_f35_the_arena_of_a_client_that_errs_is_given_to_nobody_while_it_lives(tmp_path):
    path = tmp_path / "b.sock"
    with brokers.up(path, slots=1, helpers=1):
        client = client_that(path, 0, ERRS)
        assert [client.stdout.readline() for _ in range(2)] == ["0\n", "let go\n"]
        with pytest.raises(shmgpu.LaunchError, match="slot"):
            shmgpu.connect(path, wait=0.2)
        client.communicate("go on\n", timeout=brokers.DEADLINE_S)
        with shmgpu.connect(path, wait=LATELY):
            assert not shmgpu.arena.empty(200_000).any()
            assert served.add_one(np.zeros(1)).tolist() == [1]


# ---- a first call that joins by itself ---------------------------------------------------------


@pytest.mark.parametrize("auto", ["join", "never"])
def test_the_first_call_of_a_program_joins_the_users_broker_where_one_runs(
    tmp_path, monkeypatch, auto
):
    path = tmp_path / "sock"
    monkeypatch.setenv("SHMGPU_SOCKET", str(path))
    monkeypatch.setenv("SHMGPU_AUTO", auto)
    monkeypatch.setattr(runtime, "why_not", shmgpu.NotRunning(runtime.NOT_RUNNING))  # as at first
    with pytest.raises(shmgpu.NotRunning, match="no broker is running"):
        served.add_one(np.zeros(1))
    with brokers.up(path):
        if auto == "never":
            with pytest.raises(shmgpu.NotRunning, match="no broker is running"):
                served.add_one(np.zeros(1))
            return
        assert served.add_one(np.arange(3)).tolist() == [1, 2, 3]
        assert shmgpu.is_running()
        shmgpu.disconnect()
        with pytest.raises(shmgpu.NotRunning, match="has left"):
            served.add_one(np.zeros(1))  # who has left on purpose is not taken back
