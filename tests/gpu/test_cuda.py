"""What holds only where a CUDA device is: registered arenas, DMA, shared devices, clean children.

The test process itself never touches CUDA: a process that did could not launch.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import shmgpu
from shmgpu.common import devices

DEVICES = devices.available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="this machine shows no CUDA device"),
]

MIB = 1 << 20


@shmgpu.function
def double(helper, x):
    return x * 2


@shmgpu.function
def where_am_i(helper, x):
    return {"device": str(x.device), "helper": helper.id, "pid": os.getpid()}


@shmgpu.function(arrays="numpy")
def is_pinned(helper, x):
    import torch

    return torch.from_numpy(x).is_pinned()


@shmgpu.function(batch=shmgpu.Batch(max_size=64))
def row_sums(helper, x):
    return x.sum(dim=1)


@shmgpu.function
def allocate(helper, gibibytes):
    import torch

    return torch.empty(gibibytes << 30, dtype=torch.uint8, device=helper.device).numel()


@shmgpu.function
def generation(helper):
    return helper.generation


def run(child, **options):
    settings = {"children": 1, "helpers": 1, "devices": ["cuda:0"], "arena": "64MiB"}
    return shmgpu.launch(child, **{**settings, **options})


def test_an_arena_is_registered_with_the_driver_where_it_lies():
    def child(rank):
        return is_pinned(shmgpu.arena.zeros((1024,), "float32"))

    assert run(child) == [True]


def test_copies_are_counted_once_each_way_and_the_arena_is_read_in_place():
    def child(rank):
        x = shmgpu.arena.empty((4 * MIB,), "float32")
        x[:] = np.arange(4 * MIB, dtype="float32")
        result = double(x)
        assert np.array_equal(result, x * 2)
        counted = shmgpu.stats()["bytes"]
        return counted["host_to_device"], counted["device_to_host"], counted["copied_in"]

    [(to_device, to_host, copied_in)] = run(child)
    assert to_device == to_host == 16 * MIB
    assert copied_in == 0


def test_arguments_arrive_on_the_helpers_device():
    def child(rank):
        return where_am_i(shmgpu.arena.zeros((2,), "float32"))["device"]

    assert run(child) == ["cuda:0"]


def test_several_helpers_share_one_device():
    def child(rank):
        x = shmgpu.arena.zeros((1 << 20,), "float32")
        x[:] = rank
        seen = {where_am_i(x)["helper"] for _ in range(50)}
        assert float(double(x)[7]) == 2 * rank
        return seen

    seen = run(child, children=8, helpers=3)
    assert set().union(*seen) == {0, 1, 2}


def test_rows_of_many_children_are_gathered_on_the_device():
    def child(rank):
        x = shmgpu.arena.zeros((3, 5), "float32")
        x[:] = rank
        for _ in range(20):
            assert np.array_equal(row_sums(x), np.full(3, 5.0 * rank, "float32"))
        return True

    assert all(run(child, children=16))


def test_children_have_no_context_on_any_device():
    def child(rank):
        import torch

        helper = where_am_i(shmgpu.arena.zeros((2,), "float32"))["pid"]
        assert not torch.cuda.is_available()
        listed = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        return os.getpid(), helper, listed

    for child_pid, _, listed in run(child, children=2):
        assert str(child_pid) not in listed


def test_out_of_device_memory_is_the_callers_error_and_the_helper_lives_on():
    def child(rank):
        with pytest.raises(shmgpu.RemoteError) as caught:
            allocate(1 << 14)
        assert "OutOfMemory" in caught.value.type_name
        assert float(double(shmgpu.arena.array([21.0], "float32"))[0]) == 42.0
        return generation()

    assert run(child) == [1]


def test_gpu_memory_caps_what_a_helper_may_take():
    def child(rank):
        with pytest.raises(shmgpu.RemoteError):
            allocate(4)
        return True

    assert run(child, gpu_memory="1GiB") == [True]


def test_launch_is_refused_once_cuda_is_initialised_here():
    code = (
        "import torch, shmgpu\n"
        "torch.zeros(1, device='cuda')\n"
        "try:\n"
        "    shmgpu.launch(lambda rank: None, children=1, helpers=1)\n"
        "except shmgpu.LaunchError as error:\n"
        "    print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("refused: CUDA is already initialised")
