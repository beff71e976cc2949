"""Calls: what goes in, what comes out. Each test runs inline and through a real broker."""

from __future__ import annotations

import array
import gc
import mmap
import os
import time

import ml_dtypes
import numpy as np
import pytest
import torch

import shmgpu


@shmgpu.function(arrays="numpy")
def echo(helper, *args, **kwargs):
    if kwargs:
        return (args, kwargs)
    return args[0] if len(args) == 1 else args


@shmgpu.function
def echo_torch(helper, *args):
    return args[0] if len(args) == 1 else args


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def kind_of(helper, x):
    return f"{type(x).__name__} {x.dtype} {x.shape} {x.flags.c_contiguous}"


@shmgpu.function
def kind_of_torch(helper, x):
    return f"{type(x).__name__} {x.dtype} {tuple(x.shape)} {x.device}"


@shmgpu.function(arrays="numpy")
def raises(helper, kind, *args):
    raise {"value": ValueError, "key": KeyError, "own": OwnError}[kind](*args)


class OwnError(Exception):
    pass


@shmgpu.function(arrays="numpy")
def fill(helper, shape, value):
    return np.full(shape, value, np.float32)


@shmgpu.function(arrays="numpy")
def run_count(helper, nbytes):
    helper.session["count"] = helper.session.get("count", 0) + 1
    return np.full(nbytes, helper.session["count"], np.uint8)


@shmgpu.function(arrays="numpy", out=lambda x: shmgpu.Declared(x.shape, x.dtype))
def declared(helper, x):
    np.multiply(x, 2, out=helper.out)
    return helper.out


@shmgpu.function(arrays="numpy")
def into_room(helper, x):
    return np.add(x, x, out=helper.room)


@shmgpu.function
def tensor_into_room(helper, x):
    return torch.add(x, x, out=helper.room)


@shmgpu.function(out=(shmgpu.Declared((2, 2)), shmgpu.Declared(3, "int64")))
def declared_pair(helper, x):
    helper.out[0].fill_(1.5)
    helper.out[1][:] = torch.arange(3)


@shmgpu.function(arrays="numpy", out=(shmgpu.Declared(3), shmgpu.Declared(3)))
def swaps(helper):
    helper.out[0][:] = [1, 2, 3]
    helper.out[1][:] = [4, 5, 6]
    return helper.out[1], helper.out[0][::-1]


@shmgpu.function(out=(shmgpu.Declared(3), shmgpu.Declared(3)))
def swaps_torch(helper):
    helper.out[0][:] = torch.tensor([1, 2, 3])
    helper.out[1][:] = torch.tensor([4, 5, 6])
    return helper.out[1], helper.out[0]


@shmgpu.function(arrays="numpy", out=shmgpu.Declared(4))
def breaks_its_word(helper, n):
    return np.zeros(n, np.float32)


@shmgpu.function(arrays="numpy", pickle=True)
def with_pickle(helper, thing):
    return {type(thing).__name__, "seen"}


@shmgpu.function(arrays="numpy")
def returns_object(helper):
    return object()


@shmgpu.function(arrays="numpy")
def tamper(helper, x):
    x.shape = (x.size,)
    return x.shape


@shmgpu.function(arrays="numpy", mutates=True)
def write_into(helper, x):
    x[...] = 7


@shmgpu.function(arrays="numpy")
def who(helper):
    return (helper.id, helper.device, helper.pool, helper.generation, os.getpid())


def start(inline):
    return shmgpu.init(
        helpers=1, session=lambda helper: {}, devices="cpu", arena="16MiB", inline=inline
    )


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with start(request.param == "inline"):
        yield request.param


def used():
    gc.collect()
    return shmgpu.arena.stats()["used_bytes"]


DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "longdouble", "complex64", "complex128",
    "datetime64[ns]", "timedelta64[s]", "U3", "S4",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


@pytest.mark.table
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_every_dtype_come_back(running, dtype):
    dtype = np.dtype(dtype)
    data = np.arange(12).astype(dtype).reshape(3, 4) if dtype.kind not in "mM" else (
        np.arange(12, dtype="i8").astype(dtype).reshape(3, 4)
    )  # fmt: skip
    for _ in range(3):
        back = echo(data)
        assert back.dtype == dtype and back.tobytes() == data.tobytes()
    mine = shmgpu.arena.array(data)
    assert echo(mine).tobytes() == data.tobytes()


@pytest.mark.table
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
        torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
    ],
)  # fmt: skip
def test_tensors_of_every_dtype_come_back(running, dtype):
    data = torch.arange(12).to(torch.float32).to(dtype).reshape(3, 4)
    for _ in range(3):
        back = echo_torch(data)
        assert isinstance(back, torch.Tensor) and back.dtype == dtype and back.shape == (3, 4)
        assert torch.equal(back.to(torch.complex64), data.to(torch.complex64))


@pytest.mark.table
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((0, 5), "f4"),
        lambda: np.array(3.5),
        lambda: np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        lambda: np.arange(10)[::-1],
        lambda: np.arange(20)[::3],
        lambda: np.broadcast_to(np.arange(4.0), (3, 4)),
        lambda: np.arange(6, dtype=">i4"),
        lambda: np.frombuffer(b"\0" + bytes(range(8)), "<u4", offset=1),
        lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        lambda: np.arange(5.0).view(np.matrix),
        lambda: np.ones((1,) * 30),
    ],
)
def test_arrays_of_every_form_come_back(running, make):
    data = make()
    for _ in range(3):
        back = echo(data)
        assert back.shape == data.shape and np.array_equal(back, np.asarray(data))
        assert back.dtype == data.dtype.newbyteorder("=")


class Interface:
    def __init__(self, data):
        self.data = data
        self.__array_interface__ = data.__array_interface__


class Dlpack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **kwargs):
        return self.data.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


@pytest.mark.parametrize("wrap", [Interface, Dlpack, memoryview, lambda a: array.array("d", a)])
def test_anything_that_shows_its_memory_is_an_array(running, wrap):
    data = np.arange(5.0)
    assert np.array_equal(echo(wrap(data)), data)


@pytest.mark.table
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.tensor(2.5),
        lambda: torch.zeros(0, 3),
        lambda: torch.ones(3).expand(2, 3),
        lambda: (torch.arange(4.0) + 1j).conj(),
        lambda: torch.nn.Parameter(torch.ones(3)),
        lambda: torch.arange(4).to(torch.bfloat16)[::2],
    ],
)
def test_tensors_of_every_form_come_back(running, make):
    data = make()
    for _ in range(2):
        assert torch.equal(echo_torch(data), data.detach())


def test_arrays_get_the_type_that_the_function_asks_for(running):
    x = np.ones((2, 3), "f4")
    assert kind_of(x) == "ndarray float32 (2, 3) True"
    assert kind_of_torch(x) == "Tensor torch.float32 (2, 3) cpu"
    assert kind_of(torch.ones(2, 3)) == "ndarray float32 (2, 3) True"


def test_results_are_tensors_when_the_arguments_were(running):
    assert isinstance(add_one(np.ones(3)), np.ndarray)
    assert isinstance(add_one(torch.ones(3)), torch.Tensor)
    assert isinstance(echo_torch(np.ones(3)), np.ndarray)


def test_an_array_of_the_arena_is_not_copied(running):
    x = shmgpu.arena.zeros((4, 4))
    write_into(x)
    assert (x == 7).all()
    tensor = torch.from_numpy(shmgpu.arena.zeros(8))
    write_into(tensor)
    assert (tensor == 7).all()
    row = x[1]
    row[:] = 0
    write_into(row)
    assert (x == 7).all()
    y = np.zeros(4)
    write_into(y)
    assert (y == 0).all()


def test_trees_and_plain_values_come_back(running):
    tree = {"a": (1, 2.5, None, True), "b": [b"x", "y", {"z": range(3)}], 3: slice(1, None)}
    for _ in range(3):
        assert echo(tree) == tree
    args, kwargs = echo(1, "two", flag=False, array=np.arange(3))
    assert args == (1, "two") and kwargs["flag"] is False
    assert kwargs["array"].tolist() == [0, 1, 2]


def test_values_that_change_between_calls_arrive(running):
    x = shmgpu.arena.zeros(3)
    for value in [1, 2, 2, "a", "b" * 5000, "", 10**50, None, -0.0, 0.0]:
        back = echo(x, value)
        assert back[1] == value and str(back[1]) == str(value)


def test_several_arrays_in_and_out(running):
    a, b = shmgpu.arena.array(np.arange(5)), np.arange(6.0).reshape(2, 3)
    for _ in range(3):
        out = echo(a, b, a[1:3])
        assert [x.tolist() for x in out] == [a.tolist(), b.tolist(), [1, 2]]
    back = echo({"x": a, "y": [b, b]})
    assert back["y"][1].tolist() == b.tolist()


def test_results_of_changing_shape_come_back(running):
    for n in [1, 1000, 3, 100_000, 0, 5, 100_000, 7, 8, 9]:
        assert fill((n,), n).tolist() == [n] * n


def test_a_result_that_outgrows_its_room_runs_the_function_once(running):
    for expected, nbytes in enumerate([10, 2_000_000, 5, 3_000_000, 100_000], 1):
        result = run_count(nbytes)
        assert len(result) == nbytes and (result == expected).all()


def test_a_result_larger_than_the_arena_is_an_error_and_the_next_call_works(running):
    with pytest.raises(shmgpu.ArenaFull, match="larger arena"):
        fill((5_000_000,), 1)
    assert fill((3,), 1).tolist() == [1, 1, 1]


def test_memory_returns_when_results_are_garbage(running):
    x = shmgpu.arena.zeros(10_000)
    echo(x), add_one(x), fill((20_000,), 1), echo(x, "s"), echo_torch(torch.ones(5000))
    with pytest.raises(shmgpu.RemoteError):
        raises("value", "x" * 10_000)
    base = used()
    for _ in range(50):
        kept = [add_one(x), fill((20_000,), 1)]
        view = kept[0][5:]
        assert view[0] == 1
    del kept
    assert used() >= base + x.nbytes
    del view
    assert used() == base


def test_a_view_keeps_its_result_alive(running):
    tail = fill((1000,), 5)[-3:]
    for n in range(20):
        fill((1000,), n)
    assert tail.tolist() == [5, 5, 5]


def test_exceptions_bring_type_message_and_traceback(running):
    before = who()
    with pytest.raises(shmgpu.RemoteError) as caught:
        raises("value", "bad apple")
    assert caught.value.type_name == "ValueError"
    assert caught.value.matches(ValueError) and not caught.value.matches(Exception)
    assert caught.value.message == "bad apple"
    assert "in raises" in caught.value.traceback_text
    assert "executor.py" not in caught.value.traceback_text
    assert "bad apple" in str(caught.value)
    with pytest.raises(shmgpu.RemoteError) as caught:
        raises("own", "x" * 100_000)
    assert caught.value.type_name.endswith("OwnError") and caught.value.matches(OwnError)
    assert caught.value.message == "x" * 100_000
    assert who() == before  # the helper lives on


def test_inline_there_is_nothing_to_count():
    with (
        shmgpu.init(inline=True),
        pytest.raises(shmgpu.NotRunning, match=r"init\(inline=True\) starts no process"),
    ):
        shmgpu.stats()


def test_inline_exceptions_have_the_original_as_their_cause():
    with start(True):
        with pytest.raises(shmgpu.RemoteError) as caught:
            raises("key", 5)
        assert isinstance(caught.value.__cause__, KeyError)


def test_declared_outputs_are_written_in_place(running):
    x = shmgpu.arena.array(np.arange(5.0))
    for _ in range(3):
        assert declared(x).tolist() == [0, 2, 4, 6, 8]
    assert declared(np.ones((2, 2), "i4")).dtype == np.int32
    first, second = declared_pair(x)
    assert first.tolist() == [[1.5, 1.5], [1.5, 1.5]] and second.tolist() == [0, 1, 2]


def test_declared_outputs_may_be_returned_in_another_order(running):
    assert [x.tolist() for x in swaps()] == [[4, 5, 6], [3, 2, 1]]
    assert [x.tolist() for x in swaps_torch()] == [[4, 5, 6], [1, 2, 3]]


def test_a_function_that_returns_other_than_declared_is_not_truncated(running):
    assert breaks_its_word(4).shape == (4,)
    assert breaks_its_word(50_000).shape == (50_000,)


def test_a_result_can_go_where_the_caller_says(running):
    x = shmgpu.arena.zeros(5)
    for out in (shmgpu.arena.zeros(5), np.zeros(5, "f4"), shmgpu.arena.zeros((5, 2))[:, 0]):
        for step in (1, 2):
            x[:] = step
            assert add_one.options(out=out)(x) is out
            assert out.tolist() == [step + 1] * 5
    for wrong, what in (
        (shmgpu.arena.zeros(6), r"float32 \(6,\)"),
        (np.zeros((1, 5), "f4"), r"float32 \(1, 5\)"),
        (np.zeros(5, "f8"), r"float64 \(5,\)"),
    ):
        with pytest.raises(shmgpu.BadParams, match=rf"is float32 \(5,\), and out= is {what}"):
            add_one.options(out=wrong)(x)
        with pytest.raises(shmgpu.BadParams, match=rf"is float32 \(5,\), and out= is {what}"):
            add_one.options(out=wrong).submit(x).result()
    read_only = np.zeros(5, "f4")
    read_only.flags.writeable = False
    with pytest.raises(shmgpu.BadParams, match="read-only"):
        add_one.options(out=read_only)(x)
    assert add_one(x).tolist() == [3] * 5


def test_objects_are_refused_unless_pickle_was_asked_for(running):
    with pytest.raises(shmgpu.BadParams, match="pickle=True"):
        echo({1, 2})
    assert with_pickle({1, 2}) == {"set", "seen"}
    with pytest.raises(shmgpu.RemoteError, match="cannot be carried"):
        returns_object()
    with pytest.raises(shmgpu.BadParams, match="pickled"):
        with_pickle(lambda: 0)


@shmgpu.function(arrays="numpy")
def lengthened(helper, arrays, more):
    return [*arrays, *([np.ones(1)] * more)]


def test_a_call_and_its_result_have_a_bounded_number_of_arrays(running):
    most, sentence = [np.zeros(1)] * 4096, "a call can carry 4096 arrays, not 4097: stack some"
    for _ in range(2):  # such a call comes again
        assert len(lengthened(most, 0)) == 4096
        with pytest.raises(shmgpu.BadParams, match=sentence):
            lengthened([*most, np.ones(1)], 0)
        with pytest.raises(shmgpu.RemoteError, match=sentence):
            lengthened(most, 1)
    with pytest.raises(shmgpu.BadParams, match=sentence):
        lengthened.options(out=[np.zeros(1)] * 4097)(most, 1)


@pytest.mark.table
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([object()]),
        lambda: np.zeros(2, [("a", "f4")]),
        lambda: np.ma.array([1, 2], mask=[0, 1]),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        lambda: torch.nested.as_nested_tensor([torch.ones(2)], layout=torch.strided),
        lambda: torch._efficientzerotensor(2),
        lambda: object(),
        lambda: np.zeros(3, "V0"),
    ],
)
def test_what_cannot_be_put_in_the_arena_is_refused_in_a_sentence(running, make):
    with pytest.raises(shmgpu.BadParams, match=r": "):
        echo(make())
    assert add_one(np.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("calls_before", [0, 5])
def test_a_tensor_of_a_function_transform_is_refused_in_a_sentence(running, calls_before):
    for _ in range(calls_before):
        echo(torch.ones(3))
    with pytest.raises(shmgpu.BadParams, match="has no elements of its own"):
        torch.func.vmap(echo)(torch.ones(2, 3))
    with pytest.raises(shmgpu.BadParams, match="has no elements of its own"):
        torch.func.grad(lambda x: echo(x).sum())(torch.ones(3))
    assert add_one(torch.zeros(1)).tolist() == [1]


def test_an_argument_larger_than_the_arena_says_what_was_asked_and_free(running):
    with pytest.raises(shmgpu.ArenaFull) as caught:
        echo(np.zeros(5_000_000))
    assert caught.value.asked_bytes == 40_000_000
    assert 0 < caught.value.largest_bytes <= caught.value.free_bytes <= 16 << 20
    assert isinstance(caught.value, MemoryError)


def test_a_function_cannot_spoil_the_views_of_later_calls(running):
    x = shmgpu.arena.zeros((2, 3))
    for _ in range(3):
        assert tamper(x) == (6,)
    assert kind_of(x).startswith("ndarray float32 (2, 3)")


def test_copies_are_counted_and_nothing_is_marshalled():
    with start(False):
        x = shmgpu.arena.zeros(1000)
        echo(x)
        before = shmgpu.stats()["bytes"]
        echo(x)
        after = shmgpu.stats()["bytes"]
        assert after["copied_in"] == before["copied_in"]
        assert after["copied_out"] - before["copied_out"] == 4000
        echo(np.zeros(1000, "f4")[::2])
        assert shmgpu.stats()["bytes"]["copied_in"] - after["copied_in"] == 2000
        assert shmgpu.stats()["bytes"]["marshalled"] == 0


@pytest.mark.parametrize("function", [into_room, tensor_into_room])
def test_a_result_written_where_it_goes_is_not_copied(function):
    with start(False):
        x = shmgpu.arena.zeros(1000)
        function(x)
        before = shmgpu.stats()["bytes"]["copied_out"]
        for number in range(3):
            x[:] = number
            assert (np.asarray(function(x)) == 2 * number).all()
        assert shmgpu.stats()["bytes"]["copied_out"] == before


def test_the_helper_says_who_it_is(running):
    number, device, pool, generation, pid = who()
    assert (number, device, pool, generation) == (0, "cpu", "default", 1)
    assert (pid == os.getpid()) == (running == "inline")


def test_local_runs_the_original():
    assert add_one.local(None, 3) == 4


def test_a_full_arena_gives_back_what_is_only_kept_for_speed(running):
    for n in range(1, 60):
        add_one(np.zeros(n * 1000, "f4"))
    size = shmgpu.arena.stats()["capacity_bytes"] * 7 // 8
    block = shmgpu.arena.empty(size, "uint8")
    assert block.nbytes == size


@shmgpu.function(arrays="numpy")
def whose(helper, x):
    return x * 0 + helper.caller[0]


@shmgpu.function(arrays="numpy")
def whose_by_name(helper, *, x):
    return x * 0 + helper.caller[0]


@pytest.mark.parametrize("function", [whose, whose_by_name], ids=["whose", "whose_by_name"])
def test_a_function_knows_whose_call_it_runs(function):
    turns = mmap.mmap(-1, 4096)  # how many each has begun

    def run(rank):
        x, found = shmgpu.arena.zeros(4), set()
        for turn in range(1, 21):  # all together, so what came before was mostly another's
            turns[rank] = turn
            end = time.monotonic() + 20
            while min(turns[:3]) < turn:
                assert time.monotonic() < end, "the others are late"
                time.sleep(0.0005)
            made = function(x) if function is whose else function(x=x)
            found |= {int(one) for one in made}
        return found

    told = shmgpu.launch(run, children=3, helpers=1, devices="cpu", arena="1MiB")
    turns.close()
    assert all(len(own) == 1 for own in told) and len(set.union(*told)) == 3
