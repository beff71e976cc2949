"""Every operation on special numbers, in every type and layout: both engines do what torch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors import differential
from tensors.differential import SUBJECTS, Drawn, compare, draw

import shmgpu as gt
from shmgpu.ops import elementwise

pytestmark = pytest.mark.operations
SEEDS = range(3)


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_a_random_call_does_what_torch_does(engine, name):
    for seed in SEEDS:
        drawn = draw(seed, name)
        wrong = compare(drawn)
        assert not wrong, f"seed {seed} of {drawn}:\n{wrong}"


def test_a_call_follows_from_its_seed_and_seeds_reach_everything():
    assert str(draw(11)) == str(draw(11)) != str(draw(12))
    drawn = [draw(seed) for seed in range(3000)]
    assert {one.name for one in drawn} == set(SUBJECTS)
    assert {kind for one in drawn for kind in one.dtypes} >= {*differential.FLOATS, "bool", "uint8"}
    assert {layout for one in drawn for layout in one.layouts} == set(differential.LAYOUTS)
    floats = [a for one in drawn for a in one.arrays if a.dtype.kind == "f"]
    for is_there in (np.isnan, np.isposinf, np.isneginf, lambda a: np.abs(a) > 1e37):
        assert sum(bool(is_there(a).any()) for a in floats) > 20
    assert sum((np.signbit(a) & (a == 0)).any() for a in floats) > 20
    assert sum(((a != 0) & (np.abs(a) < 1e-39)).any() for a in floats) > 20
    assert sum(0 in a.shape for a in floats) > 20
    assert any(len(set(one.dtypes) & set(differential.FLOATS)) > 1 for one in drawn)


def test_what_is_wrong_is_seen(engine, monkeypatch):
    """In a value, in a gradient, in a type, in a shape, and where one fails."""
    array = np.array([[1.0, -2.0], [np.nan, 0.5]])

    def found(ours, theirs):
        call = lambda f, x: (theirs if f is differential.THEIRS else ours)(x)  # noqa: E731
        monkeypatch.setitem(SUBJECTS, "told", (call, (array,)))
        return compare(Drawn("told", [array], ["float32"], ["transposed"], 1))

    assert found(lambda x: x * 2, lambda x: x * 2) == ""
    assert found(lambda x: x * 2, lambda x: x * 2.001).startswith("the value is ")
    assert found(lambda x: x.abs() * 0 + x.detach(), lambda x: x).startswith("a gradient is ")
    assert found(lambda x: x.detach() * 2, lambda x: x * 2).startswith("it has no gradients")
    assert found(lambda x: x.double(), lambda x: x).startswith("the value is float64 (2, 2)")
    assert found(lambda x: x[0], lambda x: x).startswith("the value is float32 (2,)")
    assert found(lambda x: x.reshape(3), lambda x: x).startswith("it failed: ValueError")
    assert found(lambda x: x > 0, lambda x: x < 0).startswith("the value is ")
    assert found(lambda x: x, lambda x: x.reshape(3)) == ""


def test_the_program_tells_the_seed_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["differential", "--seconds", "2", "--seed", "5", "--only", "sqrt"]
    )
    before = torch.get_num_threads()
    assert differential.main() == 0
    assert "stat::number_of_executed_units" in capsys.readouterr().out
    monkeypatch.setattr(
        elementwise.SQRT, "numpy", lambda np, *_: lambda x, out=None: np.sqrt(x, out=out) * 2
    )
    monkeypatch.setattr(
        elementwise.SQRT, "torch", lambda torch, *_: lambda x, out=None: torch.sqrt(x) * 2
    )
    monkeypatch.setattr("sys.argv", ["differential", "--seed", "5", "--only", "sqrt"])
    assert differential.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("seed ") and "sqrt of float" in said and "and not" in said
    torch.set_num_threads(before)
    gt.set_backend("torch")
