"""What a model's function gets of what a call carries, and what its results are carried as."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shmgpu.serve.models import conversion

HELPER = SimpleNamespace(device="cpu")
TORCH, NUMPY = SimpleNamespace(arrays="torch"), SimpleNamespace(arrays="numpy")


@pytest.mark.parametrize("writeable", [True, False])
def test_a_tensor_lies_where_the_array_does_and_nobody_is_warned(writeable):
    sample = np.arange(3.0)
    sample.flags.writeable = writeable
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = conversion.as_array(TORCH, sample, HELPER)
    finally:
        torch.set_warn_always(before)
    assert made.data_ptr() == sample.ctypes.data and made.tolist() == [0, 1, 2]


def test_what_is_not_torchs_stays_as_it_is():
    sample = np.arange(3.0)
    assert conversion.as_array(NUMPY, sample, HELPER) is sample
    assert conversion.as_array(TORCH, None, HELPER) is None
    assert conversion.as_array(TORCH, [1, 2], HELPER).tolist() == [1, 2]


def test_bits_are_a_tensor_of_bfloat16_where_there_is_such_a_type(monkeypatch):
    bits = np.array([0x3F80, 0x4000], np.int16)  # 1 and 2
    assert conversion.bfloat16(torch.from_numpy(bits)).tolist() == [1, 2]
    others = torch.zeros(2), np.zeros(2, np.float32)
    assert all(conversion.bfloat16(one) is one for one in others)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert conversion.bfloat16(bits) is bits
    stand_in = SimpleNamespace(bfloat16=np.dtype("V2"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", stand_in)
    assert conversion.bfloat16(bits).dtype == "V2" and conversion.bfloat16(others[1]) is others[1]


def test_results_come_to_the_host_with_bfloat16_as_bits():
    array = np.arange(2.0)
    assert conversion.on_host(array) is array
    assert conversion.on_host([1, 2]).tolist() == [1, 2]
    found = conversion.on_host(torch.ones(2, requires_grad=True))
    assert found.dtype == np.float32 and found.tolist() == [1, 1]
    assert conversion.on_host(torch.ones(1, dtype=torch.bfloat16)).tolist() == [0x3F80]
