"""What a model learned goes to torch and to files of safetensors, and comes back, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import shmgpu as gt
from shmgpu import nn


class Ours(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.filters = nn.Conv2d(1, 2, 3)
        self.norm = nn.LayerNorm(4)
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False))
        self.register_buffer("count", gt.tensor(np.array(7)))
        self.scale = nn.Parameter(gt.randn(3, 2, dtype="bfloat16"))


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(5, 4)
        self.filters = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.LayerNorm(4)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2, bias=False)
        )
        self.register_buffer("count", torch.tensor(3))
        self.scale = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.bfloat16))


def bits(state):
    """Of each name: type, shape, and the elements as bytes, whatever library they are of."""
    found = {}
    for name, one in state.items():
        if isinstance(one, torch.Tensor):
            raw = one.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            raw = np.asarray(one.numpy() if isinstance(one, gt.Tensor) else one)
        kind = str(one.dtype).removeprefix("torch.")
        kind = getattr(one.dtype, "name", kind)
        found[name] = (kind, tuple(one.shape), raw.tobytes())
    return found


def test_a_state_of_torch_is_loaded_and_given_back(engine):
    ours, theirs, again = Ours(), Theirs(), Theirs()
    ours.load_state_dict(theirs.state_dict())
    assert bits(ours.state_dict()) == bits(theirs.state_dict())
    again.load_state_dict(nn.state_tensors(ours.state_dict()))
    assert bits(again.state_dict()) == bits(theirs.state_dict())


def test_torch_gets_copies_of_its_own(engine):
    ours = Ours()
    before = bits(ours.state_dict())
    for one in nn.state_tensors(ours.state_dict()).values():
        one.zero_()
    for one in nn.state_arrays(ours.state_dict()).values():
        one[...] = 0
    assert bits(ours.state_dict()) == before


@pytest.mark.parametrize("writer", ["ours", "numpy", "torch"])
@pytest.mark.parametrize("reader", ["numpy", "torch"])
def test_files_of_safetensors_are_written_and_read(engine, tmp_path, writer, reader):
    path = tmp_path / "model.safetensors"
    if writer == "ours":
        source = Ours().state_dict()
        safetensors.numpy.save_file(nn.state_arrays(source), path)
    elif writer == "numpy":
        source = nn.state_arrays(Ours().state_dict())
        safetensors.numpy.save_file(source, path)
    else:
        source = Theirs().state_dict()
        safetensors.torch.save_file(source, path)
    load = getattr(safetensors, reader).load_file
    model = Ours()
    model.load_state_dict(load(path))
    assert bits(model.state_dict()) == bits(source)


def test_a_state_that_does_not_fit_is_refused_by_name(engine):
    model, theirs = Ours(), Theirs()
    state = theirs.state_dict()
    missing = {name: one for name, one in state.items() if name != "norm.bias"}
    with pytest.raises(
        RuntimeError, match=r'for Ours:\n\tMissing key\(s\) in state_dict: "norm.bias"\.'
    ):
        model.load_state_dict(missing)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "more"\.'):
        model.load_state_dict({**state, "more": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"size mismatch for norm.bias: .* shape \(5,\) from"):
        model.load_state_dict({**state, "norm.bias": torch.zeros(5)})
