"""Arguments are there to be read, unless a function says that it writes to them.

Whether a call runs by itself or in a batch, inline or in a helper, what the function may do to its
arguments is the same.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch

import shmgpu
from shmgpu.codec import arrays


@shmgpu.function(arrays="numpy")
def scale_in_place(helper, x):
    x /= 2
    return x


@shmgpu.function(arrays="numpy", batch=64)
def scale_rows_in_place(helper, x):
    x /= 2
    return x


@shmgpu.function(arrays="numpy")
def flags(helper, *args, **named):
    arrays = [*args, *named.get("more", ())]
    return [bool(x.flags.writeable) for x in arrays]


@shmgpu.function(arrays="numpy", out=lambda x: shmgpu.Declared(x.shape, x.dtype))
def fills_its_outputs(helper, x):
    np.multiply(x, 2, out=helper.out)


@shmgpu.function(arrays="numpy", mutates=True)
def doubles(helper, x, y=None):
    x *= 2
    if y is not None:
        y += 1
    return float(x.sum())


@shmgpu.function(arrays="numpy", mutates=True, batch=64)
def doubles_rows(helper, x):
    calls = helper.calls
    x *= 2
    x.shape = (x.size,)  # what it does to its own array's shape harms nobody
    return np.full(len(x) // 2, calls)


@shmgpu.function(mutates=True)
def doubles_tensor(helper, x):
    x.mul_(2)


@shmgpu.function(mutates=True, batch=64)
def doubles_tensor_rows(helper, x):
    calls = helper.calls
    x.mul_(2)
    rows = len(x)
    x.t_()
    return torch.full((rows,), calls)


@shmgpu.function
def adds_to_tensor(helper, x, y):
    y.add_(1)
    return x


@shmgpu.function(batch=64)
def adds_to_tensor_rows(helper, x):
    x.add_(1)
    return x


@shmgpu.function
def zeroes_one_of(helper, tree):
    tree["b"].zero_()


@shmgpu.function
def only_reads(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def waits(helper, seconds):
    time.sleep(seconds)


@shmgpu.function
def warnings_of_torch(helper, x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = x.sum()
    return [str(one.message) for one in caught] + [float(made)]


def start(inline, **settings):
    return shmgpu.init(helpers=1, devices="cpu", arena="8MiB", inline=inline, **settings)


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with start(request.param == "inline"):
        yield request.param


@pytest.fixture(params=["inline", "broker"])
def debugging(request):
    with start(request.param == "inline", debug=True):
        yield request.param


def together(function, arrays):
    """Submit behind a call that takes a while, so that a helper gets them as one batch."""
    first = waits.submit(0.2)
    futures = [function.submit(x) for x in arrays]
    first.result(20)
    return [future.result(20) for future in futures]


def in_arena(*values):
    return shmgpu.arena.array(np.array(values, "float32"))


# ---- as it is unless a function says otherwise -----------------------------------------------


def test_writing_to_an_argument_is_an_error_and_changes_nothing(running):
    x = in_arena(2, 4)
    for _ in range(5):  # the first calls go another way than those that repeat
        with pytest.raises(shmgpu.RemoteError, match="read-only"):
            scale_in_place(x)
    with pytest.raises(shmgpu.RemoteError, match="read-only"):
        scale_in_place(np.ones(3))
    with pytest.raises(shmgpu.RemoteError, match="read-only"):
        scale_in_place.submit(x).result(20)
    assert x.tolist() == [2, 4] and x.flags.writeable


def test_what_is_an_error_in_a_batch_is_one_alone(running):
    arrays = [in_arena([n, n]) for n in range(4)]
    with pytest.raises(shmgpu.RemoteError, match="read-only"):
        scale_rows_in_place(arrays[0])
    for future in [scale_rows_in_place.submit(x) for x in arrays]:
        with pytest.raises(shmgpu.RemoteError, match="read-only"):
            future.result(20)
    assert [x[0, 0] for x in arrays] == [0, 1, 2, 3]


def test_all_arrays_of_a_call_are_read_only_wherever_they_lie(running):
    x, y = in_arena(1), np.ones(5)
    tensor = torch.ones(3)
    for _ in range(3):
        assert flags(x) == [False]
        assert flags(x, y, tensor, y[::2], np.float64(1) + np.zeros(())) == [False] * 5
        assert flags(x, more=[y, np.zeros(0)]) == [False] * 3
        assert flags(shmgpu.ones(3)) == [False]


def test_outputs_stay_writable(running):
    x = in_arena(1, 2)
    assert fills_its_outputs(x).tolist() == [2, 4]
    y = in_arena(0, 0)
    assert fills_its_outputs.options(out=y)(x) is y and y.tolist() == [2, 4]


def test_tensors_are_made_without_a_word_from_torch(running):
    for x in (in_arena(1, 2), np.ones(2, "float32"), torch.ones(2)):
        for _ in range(3):
            assert warnings_of_torch(x)[:-1] == []
    x = in_arena(1, 2)
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warnings_of_torch(x) == [3.0]


def test_a_tensor_over_a_read_only_array_shares_its_memory_and_comes_without_a_word():
    x = np.arange(6.0).reshape(2, 3)
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = arrays.tensor_over(x)
        strided = arrays.tensor_over(x[:, ::2])
    assert tensor.data_ptr() == x.ctypes.data and strided.tolist() == [[0, 2], [3, 5]]
    del x
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]] and not arrays.tensor_over(np.zeros(0)).numel()


# ---- mutates=True ----------------------------------------------------------------------------


def test_what_a_function_that_mutates_writes_is_seen_by_its_caller(running):
    x, y = in_arena(1, 2), in_arena(5)
    for turn in range(1, 6):
        assert doubles(x, y) == 3 * 2**turn
        assert x.tolist() == [2**turn, 2 * 2**turn] and y.tolist() == [5 + turn]
    assert doubles.submit(x).result(20) == 3 * 64 and x.flags.writeable
    row = shmgpu.arena.zeros((2, 2)) + 0
    row = shmgpu.arena.array(row)
    row[1] = 3
    doubles(row[1])
    assert row.tolist() == [[0, 0], [6, 6]]
    doubles(x=x)
    assert x.tolist() == [128, 256]


def test_of_an_array_that_was_copied_in_the_copy_is_written_to(running):
    x = np.ones(3)
    for _ in range(3):
        assert doubles(x) == 6
    assert x.tolist() == [1, 1, 1]
    tensor = torch.ones(2)
    doubles_tensor(tensor)
    assert tensor.tolist() == [1, 1]


def test_rows_of_a_batch_are_written_back_to_their_callers(running):
    arrays = [in_arena(*[[n, -n]] * (n + 1)) for n in range(5)]
    counts = together(doubles_rows, arrays)
    for n, x in enumerate(arrays):
        assert x.tolist() == [[2 * n, -2 * n]] * (n + 1)
        assert counts[n].shape == (n + 1,)
    assert max(count[0] for count in counts) == (1 if running == "inline" else 5)
    alone = in_arena([1, 2])
    doubles_rows(alone)
    assert alone.tolist() == [[2, 4]]


def test_the_same_with_tensors(running):
    x = in_arena(1, 2)
    doubles_tensor(x)
    assert x.tolist() == [2, 4]
    own = torch.from_numpy(x)
    doubles_tensor(own)
    assert own.tolist() == [4, 8]
    arrays = [in_arena(*[[n, -n]] * (n + 1)) for n in range(5)]
    counts = together(doubles_tensor_rows, arrays)
    for n, one in enumerate(arrays):
        assert one.tolist() == [[2 * n, -2 * n]] * (n + 1)
    assert max(int(count[0]) for count in counts) == (1 if running == "inline" else 5)


def test_what_is_read_only_to_its_owner_is_not_mutated(running):
    x = in_arena(1, 2)
    x.flags.writeable = False
    for _ in range(2):
        with pytest.raises(shmgpu.BadParams, match="pass a copy"):
            doubles(x)
    if running == "broker":
        x.flags.writeable = True
        first = waits.submit(0.1)
        one = doubles.submit(x)
        with pytest.raises(shmgpu.BadParams, match="another call that is out has it"):
            doubles.submit(x)
        first.result(20)
        assert one.result(20) == 6


def test_the_elements_of_a_tensor_stay_as_they_are(running):
    x = shmgpu.ones(3) * 2
    shared = x + 0
    assert float(x.sum().data) == 6
    assert float(doubles(x)) == 12
    assert x.data.tolist() == [2, 2, 2] and shared.data.tolist() == [2, 2, 2]


def test_a_function_says_whether_it_mutates_as_yes_or_no():
    with pytest.raises(shmgpu.ConfigError, match="mutates='sometimes'"):
        shmgpu.function(mutates="sometimes")(lambda helper, x: x)


# ---- debug mode ------------------------------------------------------------------------------


def test_debug_mode_says_which_function_wrote_to_which_tensor(debugging):
    x, y = in_arena(1), in_arena(2)
    assert only_reads(x).tolist() == [2]
    with pytest.raises(shmgpu.RemoteError, match="adds_to_tensor wrote to its argument 'y'"):
        adds_to_tensor(x, y)
    with pytest.raises(shmgpu.RemoteError, match="adds_to_tensor_rows wrote to its array"):
        adds_to_tensor_rows(in_arena([1, 2]))
    for future in [adds_to_tensor_rows.submit(in_arena([n, n])) for n in range(4)]:
        with pytest.raises(shmgpu.RemoteError, match="adds_to_tensor_rows wrote to its array"):
            future.result(20)
    with pytest.raises(shmgpu.RemoteError, match="array 2 of its 2"):
        zeroes_one_of({"a": x, "b": y})
    doubles_tensor(x)
    assert x.tolist() == [2]
