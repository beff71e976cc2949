"""What is saved comes back as it was, and others read it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import shmgpu as gt
from shmgpu import nn, optim

KINDS = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()


def test_a_models_state_is_a_plain_file_of_safetensors(engine, tmp_path):
    path = tmp_path / "model.safetensors"
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    gt.save(model.state_dict(), path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.safetensors"]
    read = safetensors.torch.load_file(path)
    twin = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    twin.load_state_dict(read)
    other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    other.load_state_dict(gt.load(path))
    np.testing.assert_array_equal(other[0].weight.data, model[0].weight.data)


def test_a_run_goes_on_from_a_file(engine, tmp_path):
    def made():
        model = nn.Linear(3, 2)
        step = optim.Adam(model.parameters(), lr=0.1)
        return model, step, optim.lr_scheduler.MultiStepLR(step, [1, 3])

    def train(parts, times):
        model, step, schedule = parts
        for _ in range(times):
            step.zero_grad()
            (model(gt.ones(4, 3)) ** 2).sum().backward()
            step.step()
            schedule.step()
        return np.array(model.weight.data)

    first, second = made(), made()
    train(first, 2)
    gt.save({str(n): one.state_dict() for n, one in enumerate(first)}, tmp_path / "run")
    saved = gt.load(tmp_path / "run")
    for number, one in enumerate(second):
        one.load_state_dict(saved[str(number)])
    np.testing.assert_array_equal(train(first, 3), train(second, 3))


def test_what_is_nested_comes_back_with_its_types(engine, tmp_path):
    path = tmp_path / "file"
    for kind in KINDS:
        one = gt.ones(2, 3).to(kind)
        gt.save([one, {"a": (1, 2.5, None, True, "x"), 3: one}, gt.zeros(0)], path)
        listed, inner, empty = gt.load(path)
        assert listed.dtype.name == kind and (listed.data == one.data).all()
        assert inner["a"] == (1, 2.5, None, True, "x") and inner[3].shape == (2, 3)
        assert empty.shape == (0,)
    gt.save({"a.b": gt.ones(1), "a": {"b": gt.zeros(1)}}, path)
    found = gt.load(path)
    assert found["a.b"].tolist() == [1] and found["a"]["b"].tolist() == [0]
    gt.save({"n": np.arange(3), "t": torch.ones(2)}, path)
    assert gt.load(path)["n"].tolist() == [0, 1, 2]
    gt.save(gt.ones(2), path)
    assert gt.load(path).tolist() == [1, 1]
    safetensors.numpy.save_file({"x": np.arange(4.0)}, path, {"format": "np"})
    assert gt.load(path)["x"].tolist() == [0, 1, 2, 3]


def test_what_cannot_be_saved_or_read_is_said(engine, tmp_path):
    path = tmp_path / "file"
    with pytest.raises(TypeError, match=r"inner\.1 is a Linear"):
        gt.save({"inner": [1, nn.Linear(1, 1)]}, path)
    with pytest.raises(TypeError, match="use strings or numbers"):
        gt.save({(1, 2): 3}, path)
    assert not list(tmp_path.iterdir())
    gt.save({"x": gt.ones(4)}, path)
    whole = path.read_bytes()
    wrong = (whole.replace(b"F32", b"F99"), whole.replace(b"[4]", b"[5]"))
    for damaged in (whole[:-1], whole[:5], bytes([255] * 64), *wrong):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="no whole file of safetensors"):
            gt.load(path)


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)
def test_files_that_are_open_are_written_and_read(engine, tmp_path):
    state = nn.Linear(3, 2).state_dict()
    held = io.BytesIO()
    gt.save(state, held)
    assert safetensors.numpy.load(held.getvalue()).keys() == state.keys()
    held.seek(0)
    assert (gt.load(held)["weight"].data == state["weight"].data).all()
    path = tmp_path / "file"
    with open(path, "wb") as file:
        gt.save([gt.ones(2), 3], file)
    with open(path, "rb") as file:
        found, number = gt.load(file)
    assert found.tolist() == [1, 1] and number == 3
    for wrong in (io.StringIO(), 7):
        with pytest.raises(TypeError, match="is no file: give a path, or a file that is open"):
            gt.load(wrong)
        with pytest.raises(TypeError, match="is no file: give a path, or a file that is open"):
            gt.save(gt.ones(1), wrong)
    with pytest.raises(ValueError, match=r"BytesIO.* is no whole file of safetensors"):
        gt.load(io.BytesIO(b"no"))


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)
def test_a_file_is_loaded_with_the_settings_that_torch_has(engine, tmp_path):
    path = tmp_path / "file"
    gt.save({"x": gt.ones(2)}, path)
    for place in (None, "cpu", "cuda:0", gt.device("cpu"), torch.device("cpu")):
        assert gt.load(path, place, weights_only=True)["x"].tolist() == [1, 1]
    assert gt.load(path, map_location="cpu", weights_only=False, mmap=True)["x"].shape == (2,)
    with pytest.raises(RuntimeError, match="name one of cpu"):
        gt.load(path, map_location="gpu")
    for moved in (lambda storage, place: storage, {"cuda:0": "cpu"}):
        with pytest.raises(TypeError, match=r"map_location is a .*: leave it out"):
            gt.load(path, map_location=moved)
    for way in (True, False):
        torch.save({"x": torch.ones(2)}, path, _use_new_zipfile_serialization=way)
        with pytest.raises(ValueError, match=r"torch\.save wrote it: read it with torch\.load"):
            gt.load(path)


def test_compile_gives_back_what_it_is_given():
    def call(x):
        return x

    assert gt.compile(call) is call
    assert gt.compile(mode="max-autotune")(call) is call
