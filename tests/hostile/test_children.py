"""Hostile children in Python: raw frames, blocks, values, and random bytes over the whole arena.

Child 0 attacks, child 1 calls all the while and holds every result against its own arithmetic,
bit for bit. What is attacked with comes from hypothesis, so a failure shrinks to its cause.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import pathlib
import signal
import struct
import threading
import time

import amount
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shmgpu
from shmgpu import core, function_table
from shmgpu.child import runtime
from shmgpu.child.gang_calls import GangCall, GangCallPlan, MemberBlock
from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec, is_array
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import Signature, TreeLayout
from shmgpu.codec.pytree import encode_values, flatten
from shmgpu.tensors.functions import EXECUTE

FRAME = struct.Struct("<QQQHBBIBBHIQQQ")  # csrc/ipc/frame.h
CALL, GROW = 1, 2
BROADCAST = 32  # a flag of a CALL
OPTIONS = {"helpers": 1, "devices": "cpu", "arena": "1MiB"}


@shmgpu.function(arrays="numpy")
def mix(helper, x, salt):
    return x * np.uint64(6364136223846793005) + np.uint64(salt)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8))
def mix_rows(helper, x):
    if len(x) > 8:
        raise ValueError("a batch has eight rows at most")
    return x * np.uint64(6364136223846793005) + np.uint64(1)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8), out=lambda x: x)
def mix_declared(helper, x):
    helper.out[...] = x + np.uint64(1)


@shmgpu.function(arrays="numpy")
def anything(helper, *args, **kwargs):
    return args


@shmgpu.function(arrays="numpy")
def count_days(helper, times, start):
    return (times - start).astype("m8[D]").astype("i8")


@shmgpu.function(arrays="numpy")
def how_many(helper, size):
    return np.zeros(size, np.uint8)


def raw_call(row, params, sequence=1, rows=1, key=0, pool=0, placement=0, flags=0) -> bytes:
    return FRAME.pack(row, params, sequence, 0, pool, CALL, 0, 0, flags, 0, rows, key, 0, placement)


def pipes_of(pid: int) -> dict[int, str]:
    """Number and name of each end of a pipe that a process holds."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if target.startswith("pipe:"):
            found[int(number)] = target
    return found


def is_written(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def own_pipes() -> tuple[int, int]:
    """The descriptors of this child's request and reply pipe.

    The parent has the request pipe's other end. What libraries of other tests make anew in whoever
    is forked (libuv its pipe for signals), it has not.
    """
    of_the_broker = set(pipes_of(os.getppid()).values()) - _before
    mine = {number for number, pipe in pipes_of(os.getpid()).items() if pipe in of_the_broker}
    [request] = filter(is_written, mine)
    return request, core.port_fd()


_before: set[str] = set()


def note_pipes() -> None:
    """Before a launch: the pipes that are somebody else's, pytest's among them."""
    _before.clear()
    _before.update(pipes_of(os.getpid()).values())


class Shared:
    """A page that all processes of a test see."""

    def __init__(self) -> None:
        self._words = np.frombuffer(mmap.mmap(-1, 4096), np.int64)

    def __getitem__(self, index: int) -> int:
        return int(self._words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value


OVER, CHECKED = 0, 1


def verify(shared: Shared) -> int:
    """Child 1: call until the attack is over; every result must be right."""
    rng = np.random.default_rng(1)
    canary = shmgpu.arena.array(np.arange(1000, dtype="u8"))
    checked = 0
    while not shared[OVER] or checked < 20:
        x = shmgpu.arena.array(rng.integers(0, 2**63, (2, 16), dtype="u8"))
        expected = x * np.uint64(6364136223846793005) + np.uint64(1)
        assert np.array_equal(mix(x, 1), expected)
        assert np.array_equal(mix_rows(x), expected)
        assert np.array_equal(mix_declared(x), x + np.uint64(1))
        assert np.array_equal(canary, np.arange(1000, dtype="u8"))
        checked += 1
        shared[CHECKED] = checked
    return checked


def under_attack(attack, **options) -> dict:
    """Run attack() in child 0 while child 1 verifies; the broker's statistics at the end."""
    shared = Shared()
    note_pipes()

    def main(rank):
        if rank == 1:
            return verify(shared)
        try:
            return attack()
        finally:
            shared[OVER] = 1

    stats: dict = {}
    results = shmgpu.launch(main, children=2, stats_into=stats, **{**OPTIONS, **options})
    assert results[1] >= 20
    assert stats["broker"]["helper_deaths"] == 0
    return stats


class Attacker:
    """In child 0: raw frames out, raw replies in, as many as may be out."""

    def __init__(self, child: int = 0) -> None:
        self.request, self.reply = own_pipes()
        self.tokens: dict[int, tuple[int, int]] = {}  # of results that wait for room
        self.base = core.arena_base(child)
        self.size = core.arena_bytes()
        self.block = shmgpu.shm_malloc(64 << 10)
        self.memory = core.window_on(self.base, self.size)

    def send(self, frame: bytes, keep: bool = False) -> int:
        """One frame, and the reply to it: its status, 0 or negative.

        A result that waits for room is given up, or else it holds a place in the window.
        """
        token, _, sequence, helper, *_, status, _, _, _, _ = self._exchange(frame)
        self.tokens[sequence] = token, helper
        if -status == core.ENEEDS_SPACE and not keep:
            self.grow(sequence, 0)
        return -status

    def grow(self, sequence: int, params: int) -> int:
        token, helper = self.tokens[sequence]
        frame = FRAME.pack(token, params, sequence, helper, 0, GROW, 0, 0, 0, 0, 0, 0, 0, 0)
        return -self._exchange(frame)[9]

    def fetch(self, sequence: int, size: int) -> int:
        """Make room for a result that waits for it."""
        block = make_block((1,), [], (self.base + self.size - size, size))
        self.block[: len(block)] = np.frombuffer(block, np.uint8)
        return self.grow(sequence, self.block.address)

    def _exchange(self, frame: bytes) -> tuple:
        os.write(self.request, frame)
        got = b""
        while len(got) < FRAME.size:
            got += os.read(self.reply, FRAME.size - len(got))
        return FRAME.unpack(got)

    def send_block(self, function, data: bytes, keep: bool = False, **fields) -> int:
        self.block[: len(data)] = np.frombuffer(data, np.uint8)
        return self.send(raw_call(function.row, self.block.address, **fields), keep)


def examples(count: int):
    return settings(
        max_examples=amount.examples(count),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def make_block(args, addresses, room, hint=None, declared=False) -> bytes:
    """The block that a call of args would write, with these addresses in it."""
    flat = flatten((args, {}), is_array)
    specs = [ArraySpec(by_name(str(a.dtype)), a.shape) for a in flat.arrays]
    signature = Signature(TreeLayout(bytes(flat.structure), specs), hint, declared)
    values = encode_values(flat.values)
    data = bytearray(layout.block_bytes(signature, values))
    layout.write_constant(data, signature, values)
    struct.pack_into(f"<QQ{len(addresses)}Q", data, 8, *room, *addresses)
    return bytes(data)


words = st.one_of(
    st.sampled_from([0, 1, 7, 8, 64, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 8, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)


# ---- frames --------------------------------------------------------------------------------


def test_f12_an_address_that_is_no_functions_row_is_never_called():
    def attack():
        own = Attacker()

        near = st.integers(-4096, 4096).filter(bool).map(lambda by: (mix.row + by) % 2**64)
        rows = set(function_table.by_row)

        @examples(60)
        @given(st.one_of(words, near).filter(lambda address: address not in rows))
        def forge(address):
            assert own.send(raw_call(address, own.block.address)) == core.EBAD_FUNCTION

        forge()

    under_attack(attack)


def test_f13_parameters_that_are_not_a_block_of_ones_own_arena_are_refused():
    def attack():
        own = Attacker()
        end = own.base + own.size

        @examples(60)
        @given(st.one_of(words, st.integers(-(2**16), 0).map(lambda by: by * 8 + 8)))
        def point(params):
            address = params if params > 0 else (own.base if params % 16 else end) + params
            inside = own.base <= address <= end - 8 and address % 8 == 0
            status = own.send(raw_call(mix.row, address % 2**64))
            assert status == core.EBAD_PARAMS or inside

        own.memory[own.size - 8 : own.size] = struct.pack("<II", 4096, 1)  # runs over the end
        assert own.send(raw_call(mix.row, end - 8)) == core.EBAD_PARAMS
        for address in (0, own.base + 1, own.base - 8, end, end + 8, 2**64 - 8):
            assert own.send(raw_call(mix.row, address)) == core.EBAD_PARAMS
        point()

    under_attack(attack)


def test_f14_arrays_and_results_in_another_childs_arena_are_refused():
    def attack():
        own = Attacker()
        other = core.arena_base(1)
        x = np.zeros((4, 4), "u8")
        mine = own.block.address + 4096
        good = make_block((x, 1), [mine], (mine, 4096))
        assert own.send_block(mix, good) == core.OK
        for address in (
            other,
            other + 4096,
            other + own.size - x.nbytes,
            other - 64,
            0,
            2**64 - 64,
        ):
            argument = make_block((x, 1), [address], (mine, 4096))
            assert own.send_block(mix, argument) == core.EBAD_PARAMS
            room = make_block((x, 1), [mine], (address, 4096))
            assert own.send_block(mix, room) == core.EBAD_PARAMS
            assert own.send(raw_call(mix.row, address)) == core.EBAD_PARAMS
        for size in (own.size, 2**63, 2**64 - 1):
            assert own.send_block(mix, make_block((x, 1), [mine], (mine, size))) == core.EBAD_PARAMS

    under_attack(attack)


def reads_no_reply(count: int, pipe_bytes: int = 0) -> None:
    """Child 0 has `count` calls answered and looks at none until child 1 has made fifty more."""
    shared = Shared()
    note_pipes()

    def main(rank):
        if rank == 1:
            return verify(shared)
        own = Attacker()
        if pipe_bytes:
            fcntl.fcntl(own.reply, fcntl.F_SETPIPE_SZ, pipe_bytes)
        x = np.zeros((2, 16), "u8")
        mine = own.block.address + 4096
        block = make_block((x, 1), [mine], (mine + 4096, 4096))
        own.block[: len(block)] = np.frombuffer(block, np.uint8)
        for sequence in range(count):
            os.write(own.request, raw_call(mix.row, own.block.address, sequence + 1))
        checked = shared[CHECKED]
        await_that(lambda: shared[CHECKED] >= checked + 50)
        got = b""
        while len(got) < count * FRAME.size:
            got += os.read(own.reply, 4096)
        assert own.send(raw_call(mix.row, own.block.address)) == core.OK  # its window is free again
        shared[OVER] = 1
        replies = [FRAME.unpack_from(got, at) for at in range(0, len(got), FRAME.size)]
        assert sorted(reply[2] for reply in replies) == list(range(1, count + 1))
        assert {-reply[9] for reply in replies} <= {core.OK, core.ENEEDS_SPACE}

    stats: dict = {}
    shmgpu.launch(main, children=2, window=count, stats_into=stats, **OPTIONS)
    assert stats["broker"]["protocol_errors"] == 0


def test_f08_a_child_that_never_reads_its_replies_holds_nobody_up_and_is_not_ended():
    reads_no_reply(512)


def test_f25_replies_that_do_not_fit_a_full_pipe_arrive_when_there_is_room_again():
    reads_no_reply(512, pipe_bytes=4096)


def test_f07_random_frames_end_the_child_that_sent_them_and_leave_the_others_results():
    shared = Shared()
    note_pipes()

    def main(rank):
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of child 0 ends the launch
            return verify(shared)
        own = Attacker()
        rng = np.random.default_rng(7)
        while shared[CHECKED] < 20:  # the other one is at work before the storm begins
            time.sleep(0.001)
        while True:
            os.write(own.request, rng.bytes(FRAME.size * int(rng.integers(1, 8))))

    pid = os.fork()
    if pid == 0:  # the clock: this process becomes the parent, which must have no thread
        await_that(lambda: shared[CHECKED] >= 20)
        time.sleep(1.0)
        shared[OVER] = 1
        os._exit(0)
    try:
        with pytest.raises(shmgpu.ChildError) as caught:
            shmgpu.launch(main, children=2, grace=20, **OPTIONS)
        assert caught.value.rank == 0 and caught.value.exit_status == -signal.SIGKILL
        assert shared[CHECKED] >= 20
    finally:
        os.waitpid(pid, 0)


# ---- blocks and values ---------------------------------------------------------------------


@pytest.mark.parametrize("function", [mix, mix_rows, mix_declared, anything], ids=lambda f: f.name)
def test_f16_random_bytes_as_a_block_are_an_error_at_worst(function):
    def attack():
        own = Attacker()
        x = np.zeros((2, 16), "u8")
        mine = own.block.address + 8192
        hint = TreeLayout(b"A", [ArraySpec(by_name("uint64"), (2, 16))])
        good = make_block((x, 1, "text"), [mine], (mine, 4096), hint, True)

        @examples(150)
        @given(st.data())
        def damage(data):
            block = bytearray(good)
            if data.draw(st.booleans()):
                block = bytearray(data.draw(st.binary(min_size=8, max_size=200)))
                block[:4] = len(block).to_bytes(4, "little")
            for _ in range(data.draw(st.integers(0, 4))):
                at = data.draw(st.integers(4, len(block) - 1))
                block[at] = data.draw(st.integers(0, 255))
            own.send_block(function, bytes(block), key=data.draw(st.sampled_from([0, 1])))

        damage()

    stats = under_attack(attack)
    assert stats["broker"]["protocol_errors"] == 0


def test_f16_random_bytes_as_a_broadcast_are_an_error_at_worst():
    def attack():
        own = Attacker()
        x = np.zeros((2, 16), "u8")
        mine = own.block.address + 8192
        hint = TreeLayout(b"A", [ArraySpec(by_name("uint64"), (2, 16))])
        promising = make_block((x, 1, "text"), [mine], (mine, 4096), hint, True)
        good = make_block((x, 1, "text"), [mine], (mine, 4096))
        assert own.send_block(anything, promising, flags=BROADCAST) == core.EBAD_PARAMS
        assert own.send_block(anything, good, flags=BROADCAST) == core.OK
        own.send_block(EXECUTE["numpy"], good, flags=BROADCAST)  # reads blocks itself

        @examples(60)
        @given(st.data())
        def damage(data):
            block = bytearray(data.draw(st.sampled_from([good, promising])))
            for _ in range(data.draw(st.integers(1, 4))):
                at = data.draw(st.integers(4, len(block) - 1))
                block[at] = data.draw(st.integers(0, 255))
            own.send_block(anything, bytes(block), flags=BROADCAST)

        damage()

    stats = under_attack(attack)
    assert stats["broker"]["protocol_errors"] == 0


def test_f16_a_shape_that_numpy_refuses_costs_its_own_call_only():
    def attack():
        own = Attacker()
        call = TreeLayout(
            b"t\x02\0\0\0t\x01\0\0\0Ad\0\0\0\0",
            [ArraySpec(by_name("float64"), (0, 1 << 46, 1 << 46))],
        )
        signature = Signature(call, None, False)
        data = bytearray(layout.block_bytes(signature, b""))
        layout.write_constant(data, signature, b"")
        struct.pack_into("<QQQ", data, 8, own.base, 4096, own.base)
        assert own.send_block(anything, bytes(data)) == core.EBAD_PARAMS

    under_attack(attack)


def test_f16_a_time_unit_of_zero_which_numpy_divides_by_is_no_element_type():
    def attack():
        own = Attacker()
        times = np.zeros(4, "M8[9s]")
        block = make_block((times, times[0]), [own.base + 65536], (own.base, 4096))
        assert own.send_block(count_days, block) in (core.OK, core.ENEEDS_SPACE)
        for wrong in (b"[0s]", b"[-s]"):
            assert own.send_block(count_days, block.replace(b"[9s]", wrong)) == core.EBAD_PARAMS

    under_attack(attack)


def test_f16_a_pickle_in_a_block_is_never_loaded(tmp_path):
    mark = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(mark),))

    def attack():
        import pickle

        own = Attacker()
        code = pickle.dumps(Evil())
        value = b"P" + len(code).to_bytes(4, "little") + code
        block = make_block((1,), [], (own.base, 4096))
        block = block[: -len(encode_values([1]))] + value
        block = len(block).to_bytes(4, "little") + block[4:]
        fields = bytearray(block)
        struct.pack_into("<I", fields, layout.constant_at(0) + 4, len(value))
        assert own.send_block(anything, bytes(fields)) == core.EBAD_PARAMS

    under_attack(attack)
    assert not mark.exists()


def test_f11_a_call_with_anothers_batch_key_does_not_spoil_the_others_batch():
    def attack():
        own = Attacker()
        mine = own.block.address + 8192
        one, huge = (
            TreeLayout(b"A", [ArraySpec(by_name("uint64"), (0, 1 << 40))]),
            np.zeros((900, 16), "u8"),
        )
        wrong = [
            make_block((np.zeros((2, 3), "f4"),), [mine], (mine, 4096)),  # other rows
            make_block((huge,), [own.base], (own.base, own.size)),  # more than it says
            make_block((np.zeros((2, 16), "u8"),), [mine], (mine, 4096), one, True),
        ]
        for function in (mix_rows, mix_declared):
            x = shmgpu.arena.zeros((2, 16), "u8")
            function(x)  # teaches this child the key that the other child's calls have
            key = next(iter(function.plans.values())).batch_key(b"")
            for _ in range(100):
                for block in wrong:
                    own.send_block(function, block, key=key)

    under_attack(attack)


# ---- the whole arena -----------------------------------------------------------------------


def test_f11_random_bytes_over_the_whole_arena_harm_nobody_else():
    def attack():
        own = Attacker()
        x = np.zeros((2, 16), "u8")
        mine = own.base + 65536
        block = make_block((x, 1), [mine], (mine + 8192, 4096))
        stop = threading.Event()
        rng = np.random.default_rng(3)

        def scribble():
            whole = np.frombuffer(own.memory, np.uint8)
            while not stop.is_set():
                whole[:] = np.frombuffer(rng.bytes(len(whole)), np.uint8)
                own.memory[4096 : 4096 + len(block)] = block  # so that some calls are let in

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            statuses = [own.send(raw_call(mix.row, own.base + 4096)) for _ in range(500)]
        finally:
            stop.set()
            thread.join()
        assert shmgpu.arena.stats()["live_blocks"] > 0
        assert set(statuses) <= {core.OK, core.EBAD_PARAMS, core.EREMOTE, core.ENEEDS_SPACE}

    under_attack(attack)


def test_f15_a_block_that_is_rewritten_during_its_call_is_believed_once():
    """Shapes, lengths and addresses flip all the while; only what was checked is used."""

    def attack():
        own = Attacker()
        x, y = np.zeros((2, 16), "u8"), np.zeros((64, 16), "u8")
        mine = own.base + 65536
        forms = [
            make_block((x, 1), [mine], (mine + 8192, 4096)),
            make_block((y, 1), [mine], (mine + 16384, 16384)),
            make_block((x, 1), [core.arena_base(1)], (mine, 4096)),
            make_block((x, 1), [mine], (core.arena_base(1), 4096)),
            b"\xff" * 64,
        ]
        stop = threading.Event()

        def rewrite():
            while not stop.is_set():
                for form in forms:
                    own.memory[4096 : 4096 + len(form)] = form

        thread = threading.Thread(target=rewrite)
        thread.start()
        try:
            seen, sent, until = set(), 0, time.monotonic() + 20
            # On a busy machine the rewriting thread may get no turn for many calls in a row.
            while sent < 600 or not {core.OK, core.EBAD_PARAMS} <= seen:
                assert time.monotonic() < until, seen
                seen.add(own.send(raw_call(mix.row, own.base + 4096)))
                sent += 1
        finally:
            stop.set()
            thread.join()

    under_attack(attack)


# ---- what a helper remembers ---------------------------------------------------------------


def memory_of_helper(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such line")


@shmgpu.function(arrays="numpy")
def pid_of(helper, *args):
    return os.getpid()


def test_f11_no_child_fills_a_helpers_memory_with_what_it_remembers():
    with shmgpu.init(helpers=1, devices="cpu", arena="16MiB"):
        pid = pid_of()
        pid_of(b"\0" * 1_000_000)
        before = memory_of_helper(pid)
        for n in range(200):  # each a block of its own, and each a megabyte
            pid_of(n.to_bytes(4, "little") * 250_000)
        assert memory_of_helper(pid) < before + (64 << 20)


def test_f11_two_calls_under_one_number_do_not_use_up_the_place_of_parked_results(monkeypatch):
    monkeypatch.setenv("SHMGPU_PARKED", "2MiB")

    def parks(own, sequence):
        block = make_block((300_000,), [], (own.base, 0))  # no room: the helper keeps the result
        assert own.send_block(how_many, block, keep=True, sequence=sequence) == core.ENEEDS_SPACE

    def attack():
        own = Attacker()
        for _ in range(40):
            parks(own, 1)

    def main(rank):
        if rank == 0:
            attack()
            shared[OVER] = 1
            return
        await_that(lambda: shared[OVER])
        own = Attacker(1)
        for sequence in (5, 6, 7):
            parks(own, sequence)
        for sequence in (5, 6, 7):  # each is still there
            assert own.fetch(sequence, 400_000) == core.OK

    shared = Shared()
    note_pipes()
    shmgpu.launch(main, children=2, window=64, **OPTIONS)


# ---- late results --------------------------------------------------------------------------


@shmgpu.function(arrays="numpy", out=lambda x, gate: x)
def waits(helper, x, gate):
    pathlib.Path(gate + ".begun").touch()
    until = time.monotonic() + 20
    while not os.path.exists(gate) and time.monotonic() < until:
        time.sleep(0.002)
    helper.out[...] = 0x5A


def await_that(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def used():
    gc.collect()
    return shmgpu.arena.stats()["used_bytes"]


def answers(function):
    return function(np.ones(8, "u8"), 1).shape == (8,)


def by_timeout(x, gate):
    with pytest.raises(shmgpu.CallTimeout):
        waits.options(timeout=1)(x, gate)


def by_cancel(x, gate):
    future = waits.submit(x, gate)
    await_that(lambda: os.path.exists(gate + ".begun"))
    assert future.cancel()


def by_interrupt(x, gate):
    def interrupt():
        await_that(lambda: os.path.exists(gate + ".begun"))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        waits(x, gate)
    thread.join()


@pytest.mark.parametrize("leave", [by_timeout, by_cancel, by_interrupt])
def test_f37_a_late_result_lands_in_memory_that_is_still_the_calls_and_is_freed_then(
    leave, tmp_path
):
    with shmgpu.init(helpers=1, devices="cpu", arena="8MiB"):
        warm = str(tmp_path / "warm")
        pathlib.Path(warm).touch()
        waits(shmgpu.arena.zeros(1 << 20, "u1"), warm)
        waits.submit(shmgpu.arena.zeros(1 << 20, "u1"), warm).result(20)
        mix(shmgpu.arena.zeros(8, "u8"), 1)
        base = used()
        gate = str(tmp_path / "gate")
        leave(shmgpu.arena.zeros(1 << 20, "u1"), gate)
        await_that(lambda: os.path.exists(gate + ".begun"))
        assert used() >= base + (2 << 20)  # the caller has gone on, the call has not
        rest = []
        while shmgpu.arena.stats()["largest_free_bytes"] > 1 << 19:
            rest.append(shmgpu.arena.empty(1 << 16, "u1"))
            rest[-1][:] = 0x6B
        pathlib.Path(gate).touch()
        # Whoever calls takes in what came late.
        await_that(lambda: answers(mix) and used() <= base + len(rest) * (1 << 16) + 4096)
        assert all((block == 0x6B).all() for block in rest)
        rest.clear()
        assert used() <= base + 4096


# ---- the allocator -------------------------------------------------------------------------


def test_f09_an_array_that_cannot_be_had_says_what_was_asked_and_what_is_free():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        before = used()
        for size in (2**20 + 1, 2**40, 2**46):
            with pytest.raises(shmgpu.ArenaFull) as caught:
                shmgpu.arena.empty(size, "u1")
            assert caught.value.asked_bytes == size
            assert 0 < caught.value.largest_bytes <= caught.value.free_bytes <= 2**20
        for size in (0, -1, 2**63, 2**64):
            with pytest.raises(shmgpu.BadParams, match="block of"):
                shmgpu.shm_malloc(size)
        assert shmgpu.arena.empty((0, 5)).size == 0
        with pytest.raises(shmgpu.ShmError):
            shmgpu.arena.empty((2**40, 2**40))
        assert used() == before
        assert mix(np.ones(3, "u8"), 1).shape == (3,)


def test_f10_a_block_is_freed_once_by_its_own_address_and_by_nothing_else():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        block = shmgpu.shm_malloc(4096)
        block[...] = 7
        for wrong in (block.address + 64, block.address + 1, core.arena_base(0) - 64, 64):
            assert core.free(wrong) == core.EBAD_FREE
        assert (np.asarray(block) == 7).all()
        shmgpu.shm_free(block)
        with pytest.raises(shmgpu.BadFree):
            shmgpu.shm_free(block)
        assert mix(np.ones(3, "u8"), 1).shape == (3,)


# ---- F43 -------------------------------------------------------------------------------------


@shmgpu.function(arrays="numpy")
def much(helper, x):
    return np.zeros(1 << 20)


@settings(
    max_examples=amount.examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    parts=st.lists(
        st.tuples(st.binary(max_size=80), st.binary(max_size=200)), min_size=2, max_size=2
    ),
    arity=st.integers(0, 3),
    which=st.sampled_from(["numpy", "torch", "mix", "rows"]),
)
def _gang_of_nonsense(parts, arity, which):
    port = runtime.require_port()
    target = {**EXECUTE, "mix": mix, "rows": mix_rows}[which]
    plan = GangCallPlan(target.row, 0, [0, 1], target.name, port.transport.number)
    call = GangCall(plan, port.arena)
    addresses = [port.arena.base + 64 * i for i in range(arity)]
    call.fill([MemberBlock(head, code, addresses) for head, code in parts], port.arena)
    with pytest.raises(shmgpu.ShmError):
        port.send(call, target, call)


def test_f43_members_refuse_blocks_of_nonsense_and_keep_no_result_back():
    with shmgpu.init(**{**OPTIONS, "helpers": 2, "arena": "16MiB"}):
        _gang_of_nonsense()
        x = shmgpu.arena.array(np.arange(8, dtype=np.uint64))
        port = runtime.require_port()
        prepared = port.prepare(much, (x,), {}, None)
        size = layout.block_bytes(prepared.signature, b"")
        begin = layout.parts_at(1)
        signature = bytes(prepared.block[begin:size])
        plan = GangCallPlan(much.row, 0, [0, 1], much.name, port.transport.number)
        call = GangCall(plan, port.arena)  # a good call of a function that is none of a gang's
        call.fill([MemberBlock(signature, b"", [core.address_of(x)])] * 2, port.arena)
        with pytest.raises(shmgpu.ResultTooLarge):
            port.send(call, much, x)
        prepared.release()
        assert mix(x, 3).tolist() == (x * np.uint64(6364136223846793005) + np.uint64(3)).tolist()
        assert sum(row["deaths"] for row in shmgpu.stats()["helpers"]) == 0
