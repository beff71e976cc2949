"""The arena as users see it: arrays, blocks, messages; what is misused is refused."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
import torch

import shmgpu


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def total(helper, x):
    return float(x.sum())


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB", inline=request.param == "inline"):
        yield request.param


@pytest.fixture
def broker():
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        yield


def live():
    gc.collect()
    return shmgpu.arena.stats()["live_blocks"]


def test_arrays_are_aligned_and_of_the_asked_type(running):
    for shape in [3, (), (0,), (2, 0, 3), (4, 5), np.int64(7)]:
        for dtype in ["float32", np.float64, bool, "bfloat16", torch.float16, "datetime64[ns]"]:
            made = shmgpu.arena.empty(shape, dtype)
            expected = np.empty(shape).shape
            assert made.shape == expected and made.flags.c_contiguous and made.flags.writeable
            assert made.__array_interface__["data"][0] % 64 == 0
    assert shmgpu.arena.empty(2, "bfloat16").dtype == ml_dtypes.bfloat16
    assert shmgpu.arena.empty(2, torch.bfloat16).dtype == ml_dtypes.bfloat16
    assert (shmgpu.arena.zeros((3, 3), "int16") == 0).all()


def test_array_copies_what_it_is_given(running):
    data = np.arange(6.0).reshape(2, 3)
    for source in (data, data.T, data.tolist(), torch.from_numpy(data), data[::-1]):
        made = shmgpu.arena.array(source)
        assert np.array_equal(made, np.asarray(source)) and made.flags.c_contiguous
    assert shmgpu.arena.array(data, "int32").dtype == np.int32
    assert shmgpu.arena.array([1, 2], "bfloat16").tolist() == [1, 2]
    assert shmgpu.arena.array(torch.ones(2).bfloat16()).dtype == ml_dtypes.bfloat16
    assert shmgpu.arena.array(torch.ones(2).bfloat16(), "float32").tolist() == [1, 1]
    assert shmgpu.arena.array(5).shape == ()


@pytest.mark.table
@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        (-1, "float32", shmgpu.BadParams),
        ((2, -3), "float32", shmgpu.BadParams),
        (1.5, "float32", shmgpu.BadParams),
        ("3", "float32", shmgpu.BadParams),
        ((1,) * 65, "float32", shmgpu.BadParams),
        (3, "float33", shmgpu.BadParams),
        (3, object, shmgpu.BadParams),
        (3, "O", shmgpu.BadParams),
        (3, [("a", "f4")], shmgpu.BadParams),
        (1 << 62, "float64", shmgpu.BadParams),
        ((1 << 40, 1 << 40), "float64", shmgpu.BadParams),
        (1 << 40, "float64", shmgpu.ArenaFull),
        (2_000_000, "float64", shmgpu.ArenaFull),
    ],
    ids=str,
)
def test_impossible_arrays_are_refused_in_a_sentence(running, shape, dtype, error):
    before = live()
    with pytest.raises(error, match="dtype object are Python" if dtype in (object, "O") else r" "):
        shmgpu.arena.empty(shape, dtype)
    assert live() == before


def test_lists_that_make_no_array_are_refused_in_a_sentence(running):
    before = live()
    for lists, words in (
        ([[1], [1, 2]], "of one depth must be of one length"),
        ([1, None], "made of NoneType: give numbers"),
        ([2**70], "integers of more than 64 bits"),
    ):
        with pytest.raises(shmgpu.BadParams, match=words):
            shmgpu.arena.array(lists)
    assert live() == before


def test_a_block_is_read_as_whole_elements(running):
    assert shmgpu.frombuffer(shmgpu.shm_malloc(12), "float32").shape == (3,)
    assert shmgpu.frombuffer(shmgpu.shm_malloc(10), "float32", 2).shape == (2,)
    with pytest.raises(shmgpu.BadParams, match="10 bytes are no whole float32, of 4 bytes"):
        shmgpu.frombuffer(shmgpu.shm_malloc(10), "float32")


def test_memory_returns_when_the_last_view_is_garbage(running):
    before = live()
    made = shmgpu.arena.zeros(1000)
    tensor = torch.from_numpy(made)[5:]
    view = memoryview(made)
    del made
    assert live() == before + 1
    del view
    assert live() == before + 1
    tensor += 1
    del tensor
    assert live() == before


def test_a_block_is_bytes_with_an_address(running):
    block = shmgpu.shm_malloc(100)
    assert len(block) == 100 and memoryview(block).nbytes == 100
    assert block.address % 64 == 0 and block.address == block.ctypes.data
    numbers = shmgpu.frombuffer(block, "float32", (5, 5))
    numbers[...] = 2
    assert total(numbers) == 50
    assert add_one(numbers).sum() == 75
    assert shmgpu.frombuffer(block, "int16").shape == (50,)
    assert bytes(block[:4]) == np.float32(2).tobytes()
    before = live()
    del numbers
    shmgpu.shm_free(block)
    assert live() == before - 1


def test_a_block_that_is_garbage_is_freed(running):
    before = live()
    shmgpu.shm_malloc(100)
    assert live() == before


def test_frees_of_what_is_no_block_are_refused_and_change_nothing(running):
    block = shmgpu.shm_malloc(64)
    shmgpu.shm_free(block)
    other = shmgpu.shm_malloc(4096)
    for wrong in (block, other[64:], np.zeros(4, "u1"), "text", shmgpu.arena.zeros(3)):
        with pytest.raises(shmgpu.BadFree, match=r" "):
            shmgpu.shm_free(wrong)
    other[:] = 1
    assert total(other) == 4096
    shmgpu.shm_free(other)


def test_a_block_is_freed_by_its_address_as_by_itself(running):
    before = live()
    block = shmgpu.shm_malloc(256)
    address = block.address
    for wrong in (address + 64, 4096, 0, -1, 1 << 46, 1 << 70, address + 1, True):
        with pytest.raises(shmgpu.BadFree, match=r" "):
            shmgpu.shm_free(wrong)
    shmgpu.shm_free(address)
    for freed in (address, block):
        with pytest.raises(shmgpu.BadFree, match="before"):
            shmgpu.shm_free(freed)
    assert live() == before
    mine = shmgpu.arena.zeros(64)  # takes the place, maybe
    del block
    gc.collect()
    other = shmgpu.arena.zeros(64) + 0
    assert live() == before + 1 and not np.shares_memory(mine, other)


def test_what_an_array_lies_in_is_not_freed_by_address(running):
    x, y = shmgpu.arena.zeros(100), add_one(np.zeros(100, "f4"))
    block = shmgpu.shm_malloc(64)
    for address in (x.ctypes.data, y.ctypes.data):
        with pytest.raises(shmgpu.BadFree, match="freed automatically"):
            shmgpu.shm_free(address)
    again = shmgpu.arena.zeros(100)
    assert not np.shares_memory(again, x) and not np.shares_memory(again, y)
    del block
    gc.collect()
    if running == "broker":
        assert shmgpu.core.arena_check() == 0


@pytest.mark.table
@pytest.mark.parametrize("size", [0, -1, 1 << 63, 1 << 70, "8", 1.5, None])
def test_impossible_sizes_are_refused_in_a_sentence(running, size):
    with pytest.raises(shmgpu.BadParams, match=r" "):
        shmgpu.shm_malloc(size)


@pytest.mark.parametrize("size", [5 << 20, 1 << 40, (1 << 63) - 1])
def test_a_block_larger_than_the_arena_says_what_there_is(running, size):
    with pytest.raises(shmgpu.ArenaFull, match="largest") as caught:
        shmgpu.shm_malloc(size)
    assert caught.value.asked_bytes == size
    assert caught.value.largest_bytes > 3 << 20


def test_a_view_larger_than_its_block_is_refused(running):
    with pytest.raises(shmgpu.BadParams, match="smaller"):
        shmgpu.frombuffer(shmgpu.shm_malloc(10), "float64", (2,))


# ---- messages: forging is possible with them, and hurts nobody -------------------------------


def outcome(function, params):
    shmgpu.shm_send_msg(function, params)
    return shmgpu.status_name(shmgpu.shm_read_msg()[0])


def test_a_forged_function_is_never_called(broker):
    block = shmgpu.shm_malloc(64)
    block[:] = 0
    for forged in (1, 4096, add_one.row + 8, add_one.row - 64, (1 << 64) - 1, id(add_one)):
        assert outcome(forged, block) == "SHM_EBAD_FUNCTION"
    assert add_one(np.zeros(1)).tolist() == [1]


def test_forged_parameters_are_refused(broker):
    block = shmgpu.shm_malloc(4096)
    block[:] = 0
    base = shmgpu.core.arena_base(0)
    end = base + shmgpu.core.arena_bytes()
    for forged in (0, 8, block.address + 1, end, end - 8, base - 4096, id(block), (1 << 64) - 8):
        assert outcome(add_one, forged) == "SHM_EBAD_PARAMS"
    length = shmgpu.frombuffer(block, "uint32", (1,))
    for claimed in (0, 1, 23, 24, 64, 4096, 4 << 20, (1 << 32) - 1):
        length[0] = claimed
        assert outcome(add_one, block) == "SHM_EBAD_PARAMS"
    assert add_one(np.zeros(1)).tolist() == [1]


def test_random_parameter_blocks_are_refused_and_the_helper_lives(broker):
    random = np.random.default_rng(0)
    block = shmgpu.shm_malloc(512)
    words = shmgpu.frombuffer(block, "uint32", (1,))
    for _ in range(300):
        block[:] = random.integers(0, 256, 512, "uint8")
        words[0] = random.integers(24, 513)
        assert outcome(add_one, block) == "SHM_EBAD_PARAMS"
    assert add_one(np.zeros(1)).tolist() == [1]
    assert shmgpu.stats()["broker"]["helper_deaths"] == 0


def test_a_damaged_good_block_is_refused_or_answered_and_the_helper_lives(broker):
    from shmgpu.child import runtime

    random = np.random.default_rng(1)
    port = runtime.require_port()
    x = shmgpu.arena.zeros(16)
    call = port.prepare(add_one, (x, "text", {"k": [1, 2.5]}), {}, None)
    port.arguments.allocate_output(call)
    size = int.from_bytes(call.block[0:4], "little")
    good = bytes(call.block[0:size])
    block = shmgpu.shm_malloc(size)
    for _ in range(500):
        damaged = bytearray(good)
        for _ in range(random.integers(1, 4)):
            damaged[random.integers(0, size)] = random.integers(0, 256)
        block[:] = np.frombuffer(bytes(damaged), "u1")
        assert outcome(add_one, block) in (
            "SHM_EBAD_PARAMS",
            "SHM_EREMOTE",
            "SHM_ENEEDS_SPACE",
            "SHM_OK",
        )
    assert add_one(x).tolist() == [1] * 16
    assert shmgpu.stats()["broker"]["helper_deaths"] == 0


def test_reading_when_nothing_is_out_is_an_error(broker):
    with pytest.raises(shmgpu.ShmError):
        shmgpu.shm_read_msg()


def test_a_window_that_is_full_is_an_error_in_a_sentence(broker):
    block = shmgpu.shm_malloc(64)
    block[:] = 0
    shmgpu.shm_send_msg(add_one, block)
    with pytest.raises(shmgpu.ShmError, match="window"):
        for _ in range(1000):
            shmgpu.shm_send_msg(add_one, block)
    while True:
        try:
            shmgpu.shm_read_msg()
        except shmgpu.ShmError:
            break
