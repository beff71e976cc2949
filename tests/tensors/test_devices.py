"""Devices in PyTorch's spelling: their names, what takes them, and where tensors say they are."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn

NAMES = ["cpu", "cuda", "cuda:1", "mps", "meta"]


@pytest.mark.parametrize("name", NAMES)
def test_a_device_is_named_as_torch_names_it(name):
    ours, theirs = gt.device(name), torch.device(name)
    assert (str(ours), repr(ours), ours.type, ours.index) == (
        str(theirs), repr(theirs), theirs.type, theirs.index
    )  # fmt: skip
    assert ours == gt.device(ours) == gt.device(theirs) == copy.deepcopy(ours)
    assert pickle.loads(pickle.dumps(ours)) == ours and hash(ours) == hash(gt.device(name))
    assert ours != gt.device("xpu") and ours != name


def test_a_device_by_kind_and_number():
    assert gt.device("cuda", 2) == gt.device("cuda:2") == gt.device(2)
    for wrong in ("gpu", "cuda:x", "", "cuda:", None, True, 1.5):
        with pytest.raises(RuntimeError, match="name one of"):
            gt.device(wrong)
    with pytest.raises(RuntimeError, match="twice"):
        gt.device("cuda:1", 2)


MAKERS = {
    "zeros": lambda d: gt.zeros(2, device=d),
    "ones": lambda d: gt.ones(2, device=d),
    "empty": lambda d: gt.empty(2, device=d),
    "full": lambda d: gt.full((2,), 1.0, device=d),
    "rand": lambda d: gt.rand(2, device=d),
    "randn": lambda d: gt.randn(2, device=d),
    "arange": lambda d: gt.arange(2, device=d),
    "linspace": lambda d: gt.linspace(0, 1, 2, device=d),
    "eye": lambda d: gt.eye(2, device=d),
    "zeros_like": lambda d: gt.zeros_like(gt.ones(2), device=d),
    "full_like": lambda d: gt.full_like(gt.ones(2), 3.0, device=d),
    "tensor": lambda d: gt.tensor([1.0], device=d),
    "as_tensor": lambda d: gt.as_tensor([1.0], device=d),
    "randint": lambda d: gt.randint(3, (2,), device=d),
    "randperm": lambda d: gt.randperm(2, device=d),
    "normal": lambda d: gt.normal(0.0, 1.0, (2,), device=d),
    "new_zeros": lambda d: gt.ones(2).new_zeros(3, device=d),
    "new_tensor": lambda d: gt.ones(2).new_tensor([1], device=d),
    "new_full": lambda d: gt.ones(2).new_full((2,), 1.0, device=d),
    "Generator": lambda d: gt.Generator(device=d),
    "to": lambda d: gt.ones(2).to(d),
    "cuda": lambda d: gt.ones(2).cuda(d),
    "Linear": lambda d: nn.Linear(2, 2, device=d),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_makes_tensors_takes_a_device_and_refuses_what_is_none(engine, name):
    for given in (None, "cpu", "cuda:0", gt.device("cpu"), torch.device("cuda", 1)):
        MAKERS[name](given)
    if name != "Linear":
        with pytest.raises((RuntimeError, gt.BadParams)):
            MAKERS[name]("gpu7")


def test_a_tensor_says_where_it_is_computed(engine):
    x = gt.ones(2)
    assert x.device == gt.device("cpu") and not x.is_cuda
    assert gt.arange(3, device=x.device).device == x.device
    assert gt.Generator().device == x.device
    assert not gt.cuda.is_available() and gt.cuda.device_count() == 0
    gt.cuda.synchronize()
    gt.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="not on a CUDA device"):
        gt.cuda.current_device()


def test_of_a_program_in_no_broker_the_machine_is_asked_and_nothing_started():
    assert gt.cuda.is_available() == torch.cuda.is_available()
    assert gt.cuda.device_count() == torch.cuda.device_count()
    assert not gt.is_running()


def test_to_is_the_tensor_itself_where_nothing_changes(engine):
    x = gt.ones(2)
    for same in (
        x.to("cpu"), x.to(gt.float32), x.to(gt.device("cpu"), gt.float32), x.to(x), x.float(),
        x.to(device="cuda", dtype=None), x.type_as(x), x.cpu(), x.to("cpu", None, True), x.cuda(),
    ):  # fmt: skip
        assert same is x
    y = x.to("cpu", copy=True)
    y += 1
    assert x.tolist() == [1, 1]


def test_to_another_type_by_each_way_to_say_so(engine):
    x = gt.tensor([1.5, -2.5])
    for made in (
        x.to("float64"), x.to(gt.float64), x.to(gt.double), x.to(torch.float64), x.double(),
        x.to("cpu", gt.float64), x.to(device="cpu", dtype=gt.float64), x.type(gt.float64),
        x.to(gt.ones(1, dtype="float64")), x.to(np.float64),
    ):  # fmt: skip
        assert made.dtype == gt.float64 and made.tolist() == [1.5, -2.5]
    for short, kind in (("short", "int16"), ("char", "int8"), ("byte", "uint8"), ("long", "int64")):
        assert getattr(gt.ones(1), short)().dtype.name == kind
    assert x.type() == "shmgpu.float32"
    with pytest.raises(gt.BadParams, match="is not a dtype"):
        x.to("no such type")


def test_types_have_torch_s_other_names():
    for name in "half float double short int long bfloat16".split():
        assert getattr(gt, name).name == str(getattr(torch, name)).removeprefix("torch.")


def test_numbers_that_have_names():
    for name in ("inf", "pi", "e"):
        assert getattr(gt, name) == getattr(torch, name)
    assert np.isnan(gt.nan) and gt.newaxis is None
