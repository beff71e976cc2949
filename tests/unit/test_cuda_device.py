"""What is enqueued on a GPU, and what waits for what: on a stand-in, which does nothing by itself.

Work on its streams is done when something waits for it, and only as far as it has to be.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from shmgpu import core
from shmgpu.common import devices

GPU, HOST = (SimpleNamespace(type=kind) for kind in ("cuda", "cpu"))
ARENA = 1 << 20  # where it lies, and how large it is


class Stream:
    """Work in order, done as late as possible."""

    def __init__(self, device=None):
        self.work, self.done = [], 0

    def run_to(self, end):
        while self.done < end:
            self.done += 1
            self.work[self.done - 1]()

    def synchronize(self):
        self.run_to(len(self.work))

    def wait_stream(self, other):
        end = len(other.work)
        self.work.append(lambda: other.run_to(end))


class Event:
    def record(self, stream):
        self.stream, self.end = stream, len(stream.work)

    def synchronize(self):
        self.stream.run_to(self.end)


class Array:
    """As much of a tensor as is used."""

    def __init__(self, values, device, address):
        self.values, self.device, self.address = values, device, address
        self.users = []

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    nbytes = property(lambda self: self.values.nbytes)

    def data_ptr(self):
        return self.address

    def contiguous(self):
        return self

    def view(self, kind):
        values = self.values.reshape(kind) if isinstance(kind, tuple) else self.values.view(kind)
        return Array(values, self.device, self.address)

    def __getitem__(self, rows):
        return Array(self.values[rows], self.device, self.address)

    def record_stream(self, stream):
        self.users.append(stream)

    def copy_(self, other, non_blocking=False):
        if self.device is other.device is HOST:
            self.values[...] = other.values
            return
        stream = Torch.cuda.current_stream()
        stream.work.append(lambda: self.values.__setitem__(..., other.values))
        if not non_blocking:
            stream.synchronize()


class Driver:
    """Registers all but what lies too high."""

    def __init__(self):
        self.registered = set()

    def cudaHostRegister(self, address, size, flags):
        if address > ARENA:
            return 2
        self.registered.add(address)
        return 0

    def cudaHostUnregister(self, address):
        self.registered.remove(address)
        return 0


class Cuda:
    Stream, Event = Stream, Event

    def __init__(self):
        self.said, self.now, self.is_broken, self.driver = [], Stream(), False, Driver()

    def __getattr__(self, name):
        return lambda *given: self.said.append((name, *given))

    def get_device_properties(self, index):
        return SimpleNamespace(total_memory=1000 * (1 + index))

    def cudart(self):
        return self.driver

    def current_stream(self, device=None):
        return self.now

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    def synchronize(self, index):
        if self.is_broken:
            raise RuntimeError(f"CUDA error on {index}")


class Torch:
    """The module."""

    uint8 = np.uint8
    cuda: Cuda
    made: list[int]

    @staticmethod
    def initial_seed():
        return 77

    @staticmethod
    def device(kind, index):
        return GPU if kind == "cuda" else None

    @staticmethod
    def empty(size, dtype, device=HOST, pin_memory=False):
        Torch.made.append(size)
        assert pin_memory == (device is HOST)
        return Array(np.full(size, 99, dtype), device, 1 << 40)


@pytest.fixture
def cuda(monkeypatch):
    """The stand-in, and what it counts as copied."""
    monkeypatch.setattr(Torch, "cuda", Cuda(), raising=False)
    monkeypatch.setattr(Torch, "made", [], raising=False)
    monkeypatch.setitem(sys.modules, "torch", Torch)
    counted = Torch.cuda.counted = []
    monkeypatch.setattr(core, "count_bytes", lambda site, size: counted.append((site, size)))
    return Torch.cuda


def in_arena(values, at=0):
    return Array(np.array(values, "float32"), HOST, ARENA + at)


def elsewhere(values):
    return Array(np.array(values, "float32"), HOST, 1 << 50)


@pytest.fixture
def device(cuda):
    return devices.make("cuda:1", 0, [(ARENA, ARENA)])


def after(stream):
    """Note when the stream comes to this place."""
    told = []
    stream.work.append(lambda: told.append(stream))
    return told


@pytest.mark.parametrize(("memory", "share"), [(0, None), (500, 0.25), (9000, 1.0)])
def test_a_helper_takes_its_device_and_no_more_memory_than_it_may(cuda, memory, share):
    device = devices.make("cuda:1", memory, [(ARENA, ARENA)])
    assert device.is_cuda and device.index == 1 and device.device is GPU
    shares = [] if share is None else [("set_per_process_memory_fraction", share, 1)]
    assert cuda.said == [("set_device", 1), ("init",), ("manual_seed", 77), *shares]
    assert cuda.driver.registered == {ARENA}
    assert devices.make("cuda", 0, []).index == 0
    assert not devices.make("cpu", 0, []).is_cuda


def test_what_is_computed_next_has_the_argument_and_nobody_waits_before(cuda, device):
    before = after(cuda.now)
    made = device.to_device(in_arena([[1, 2], [3, 4]]))
    assert made.device is GPU and made.shape == (2, 2) and made.dtype == "float32"
    assert (made.values == 99).all() and not before
    device.stream.run_to(len(device.stream.work))
    assert before  # its memory may be in use by what was enqueued before
    made.values[...] = 99
    made = device.to_device(in_arena([5, 6]))
    after(cuda.now)
    cuda.now.synchronize()
    assert made.values.tolist() == [5, 6] and made.users == [device.stream]
    assert cuda.counted == [(core.BYTES_HOST_TO_DEVICE, 16), (core.BYTES_HOST_TO_DEVICE, 8)]


def test_rows_of_several_lie_in_one(cuda, device):
    before = after(cuda.now)
    made = device.gather([in_arena([[1, 2]]), in_arena([[3, 4], [5, 6]], 64), in_arena([[7, 8]])])
    assert made.shape == (4, 2) and made.device is GPU and not before
    device.stream.synchronize()
    assert before
    cuda.now.synchronize()
    assert made.values.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert made.users == [device.stream]
    assert [size for _, size in cuda.counted] == [8, 16, 8]


def test_memory_outside_the_arenas_goes_through_a_pinned_buffer(cuda, device, caplog):
    with caplog.at_level(logging.WARNING, "shmgpu"):
        first = device.to_device(elsewhere([1, 2, 3]))
        second = device.to_device(elsewhere([4, 5]))  # the first must have left the buffer
        large = device.to_device(elsewhere(np.arange(1 << 18) + 7.0))
        larger = device.to_device(elsewhere(np.arange((1 << 18) + 1) + 9.0))
    cuda.now.synchronize()
    assert first.values.tolist() == [1, 2, 3] and second.values.tolist() == [4, 5]
    assert large.values[-1] == (1 << 18) + 6 and larger.values[-1] == (1 << 18) + 9
    assert [one for one in Torch.made if isinstance(one, int)] == [1 << 20, (1 << 20) + 4]
    assert not caplog.records  # a broadcast's file is never registered, and needs no advice


def test_an_arena_that_cannot_be_registered_is_told_of_and_another_is_used_as_it_lies(cuda, caplog):
    with caplog.at_level(logging.WARNING, "shmgpu"):
        device = devices.make("cuda:0", 0, [(ARENA, ARENA), (4 * ARENA, ARENA)])
    assert "registering 1,048,576 bytes of an arena failed with status 2" in caplog.text
    device.to_device(in_arena([1]))
    assert len(Torch.made) == 1 and len(caplog.records) == 1


def test_a_result_is_copied_when_it_is_computed_and_is_there_when_all_is_finished(cuda, device):
    result = Array(np.zeros(2, "float32"), GPU, 1 << 40)
    cuda.now.work.append(lambda: result.values.__setitem__(..., [8, 9]))
    room = in_arena([0, 0])
    device.copy_out(room, result)
    assert room.values.tolist() == [0, 0] and result.users == [device.stream]
    event = device.take_event()
    assert device.take_event() is None
    event.synchronize()
    assert room.values.tolist() == [8, 9]
    assert cuda.counted == [(core.BYTES_DEVICE_TO_HOST, 8)]


def test_who_changes_its_arguments_has_its_answer_after_they_were_read(cuda, device):
    argument = in_arena([1, 2])
    made = device.to_device(argument)
    device.finish()
    argument.values[...] = 0
    assert made.values.tolist() == [1, 2]
    device.finish()
    assert device.take_event() is None


def test_results_that_need_no_stream_are_there_at_once(cuda, device):
    room = in_arena([0, 0])
    device.copy_out(room, elsewhere([1, 2]))
    assert room.values.tolist() == [1, 2] and not cuda.counted
    device.copy_out(room, Array(np.zeros(0, "float32"), GPU, 1 << 40))
    assert not cuda.counted
    device.copy_out(unregistered := elsewhere([0]), Array(np.ones(1, "float32"), GPU, 1 << 40))
    assert unregistered.values.tolist() == [1]
    empty = device.to_device(in_arena([]))
    assert empty.shape == (0,)
    assert device.take_event() is None
    assert cuda.counted == [(core.BYTES_DEVICE_TO_HOST, 4)]
    like = device.new_like(in_arena([[1, 2]]))
    assert (like.shape, like.dtype, like.device) == ((1, 2), np.dtype("float32"), GPU)


def test_arenas_of_those_who_left_are_let_go_of(cuda):
    old = set()
    device = devices.make("cuda", 0, [(ARENA, ARENA)], old.__contains__)
    old.add(0)
    device.let_go_of_old_arenas()
    assert not cuda.driver.registered and not device.is_registered(in_arena([1]))


def test_a_device_that_reports_errors_is_asked_whether_others_follow(cuda, device, caplog):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    cuda.OutOfMemoryError = MemoryError
    assert not device.failed(ValueError("CUDA error"))
    assert not device.failed(error)
    cuda.is_broken = True
    with caplog.at_level(logging.ERROR, "shmgpu"):
        assert device.failed(error)
    assert "is beyond use: this helper ends and is replaced" in caplog.text
    cuda.said.clear()
    for lack in (MemoryError(), RuntimeError("CUDA error: out of memory")):
        assert not device.failed(lack)
    assert cuda.said == [("empty_cache",)] * 2
