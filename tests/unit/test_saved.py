"""What an earlier version wrote is read by this one: pickles, states of models, traces.

The files in tests/saved were written by tests/saved/write.py with the version that a folder is
named after.
"""

from __future__ import annotations

import functools
import importlib
import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import shmgpu
from shmgpu import nn, optim
from shmgpu.cli import main

SAVED = pathlib.Path(__file__).resolve().parents[1] / "saved"
HIDDEN = "shmgpu.tensor"  # in 0.1.0 a name in shmgpu.tensors, which is a module today
VERSIONS = sorted(folder.name for folder in SAVED.iterdir() if (folder / "pickles.json").exists())


sys.path.append(str(SAVED))  # where the program's functions and classes are
importlib.import_module("saved_functions")  # before the broker starts, as programs do


@functools.cache
def pickles(version: str) -> dict[str, bytes]:
    """What was pickled, by what it is."""
    text = (SAVED / version / "pickles.json").read_text(encoding="utf-8")
    return {name: bytes.fromhex(data) for name, data in json.loads(text).items()}


def load(version: str, name: str) -> Any:
    return pickle.loads(pickles(version)[name])


@pytest.fixture(scope="module", autouse=True)
def broker():
    with shmgpu.init(helpers=1, devices=["cpu"]):
        yield


def test_there_is_something_to_load():
    assert VERSIONS
    assert all(len(pickles(version)) > 150 for version in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_pickle_loads(version):
    for name in pickles(version):
        one = load(version, name)
        if name.startswith("shmgpu.") and name != HIDDEN:
            module, _, attribute = name.rpartition(".")
            assert one is getattr(sys.modules[module], attribute, one), name


@pytest.mark.parametrize("version", VERSIONS)
def test_tensors_have_their_elements_types_and_marks(version):
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(load(version, "float32").numpy(), values)
    assert load(version, "int64").tolist() == [1, 2, 3]
    assert load(version, "bool").tolist() == [True, False]
    for name in ("bfloat16", "float16"):
        one = load(version, name)
        assert (one.tolist(), one.dtype.name) == ([1.5, -2.0], name)
    assert load(version, "needs a gradient").requires_grad
    assert load(version, "parameter").tolist() == [1.0, 2.0]


def layers() -> list[tuple[str, str]]:
    return [
        (version, name)
        for version in VERSIONS
        for name in pickles(version)
        if name.startswith("layer ")
    ]


@pytest.mark.parametrize(("version", "name"), layers())
def test_layers_answer_what_they_answered(version, name):
    layer, inputs, answer = load(version, name)
    np.testing.assert_allclose(layer(*inputs).numpy(), answer, rtol=1e-5, atol=1e-6)
    assert repr(layer)
    assert layer.train() is layer
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_answers_trains_on_and_takes_the_arrays_of_its_state(version):
    model, values = load(version, "model"), load(version, "float32")
    answer = load(version, "model's answer")
    np.testing.assert_allclose(model(values).numpy(), answer, rtol=1e-5)
    fresh = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    fresh.load_state_dict({k: shmgpu.tensor(v) for k, v in load(version, "model's arrays").items()})
    np.testing.assert_allclose(fresh(values).numpy(), answer, rtol=1e-5)
    seen = []
    model.register_forward_hook(lambda module, args, out: seen.append(out))
    model(values).sum().backward()
    assert len(seen) == 1
    assert all(one.grad is not None for one in model.parameters())


@pytest.mark.parametrize("version", VERSIONS)
def test_optimisers_go_on_from_their_saved_states(version):
    model = load(version, "model")
    adam = optim.Adam(model.parameters(), lr=1.0)
    adam.load_state_dict(load(version, "optimiser's state"))
    assert adam.param_groups[0]["lr"] == 0.01
    kept = adam.state_dict()["state"][0]
    assert float(kept["step"]) == 1
    assert kept["exp_avg"].shape == (4, 3) and float(kept["exp_avg_sq"].sum()) > 0
    sgd = optim.SGD(model.parameters(), lr=1.0)
    sgd.load_state_dict(load(version, "momentum"))
    assert sgd.param_groups[0]["momentum"] == 0.9
    assert sgd.state_dict()["state"][0]["momentum_buffer"].shape == (4, 3)
    for optimiser in (adam, sgd):
        model(load(version, "float32")).sum().backward()
        optimiser.step()


@pytest.mark.parametrize("version", VERSIONS)
def test_other_objects_say_what_they_said(version):
    assert load(version, "element type").name == "float32"
    assert pickle.loads(pickle.dumps(shmgpu.float32)) is shmgpu.float32
    assert load(version, "batch") == shmgpu.Batch(max_size=3)
    assert repr(load(version, "declared")) == repr(shmgpu.Declared((2, 3), "float32"))
    assert load(version, "function")(np.ones(2, np.float32)).tolist() == [2, 2]
    assert str(load(version, "error")) == "the arena is full"
    assert load(version, "error of a function").matches(TypeError)


@pytest.mark.parametrize("version", VERSIONS)
def test_traces_are_read_and_summed_up(version, capsys):
    files = [str(SAVED / version / name) for name in ("calls.json", "tensors.json")]
    assert main.main(["trace", *files]) == 0
    told = capsys.readouterr().out
    assert "6 calls in" in told and "double" in told
    assert "operations in" in told
