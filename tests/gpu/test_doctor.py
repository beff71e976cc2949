"""shmgpu doctor where a CUDA device is: what it sees, and that this process stays without CUDA."""

from __future__ import annotations

import pytest
import torch

from shmgpu import doctor
from shmgpu.common import devices
from shmgpu.doctor.machine import Machine

DEVICES = devices.available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="this machine shows no CUDA device"),
]


def statuses(plan, machine):
    return {one.name: one.status for one in doctor.examine(plan, machine)}


def test_gpus_are_seen_as_helpers_will_see_them():
    gpus = Machine().gpus
    assert not gpus.error and gpus.cuda == torch.version.cuda
    assert len(gpus.devices) == DEVICES
    assert all(0 < gpu.free <= gpu.total and gpu.name for gpu in gpus.devices)
    assert not torch.cuda.is_initialized()


def test_caps_are_added_up_against_the_devices_memory():
    machine = Machine()
    total = machine.gpus.devices[0].total
    plan = doctor.Plan(helpers=2, devices=("cuda:0",), gpu_memory=total * 2 // 3)
    assert statuses(plan, machine)["memory caps"] == doctor.FAILURE
    beyond = doctor.Plan(devices=(f"cuda:{DEVICES}",))
    assert statuses(beyond, machine)["visibility"] == doctor.FAILURE
