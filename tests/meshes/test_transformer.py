"""A small transformer that learns characters ends where one helper's does, under each form."""

from __future__ import annotations

import numpy as np
import pytest
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu import nn
from shmgpu.distributed import (
    ColwiseParallel,
    Replicate,
    RowwiseParallel,
    SequenceParallel,
    Shard,
    distribute_tensor,
    fully_shard,
    parallelize_module,
)

LETTERS, PLACES, WIDE, HEADS, BATCH = 12, 8, 16, 4, 6
TEXT = np.random.default_rng(2).integers(0, LETTERS, (BATCH, PLACES + 1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.query, self.key, self.value = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.out = nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def heads(self, y):
        return y.reshape(BATCH, PLACES, HEADS, WIDE // HEADS).transpose(1, 2)

    def forward(self, x):
        y = self.before(x)
        found = gt.scaled_dot_product_attention(
            *(self.heads(layer(y)) for layer in (self.query, self.key, self.value)), is_causal=True
        )
        x = x + self.out(found.transpose(1, 2).reshape(BATCH, PLACES, WIDE))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDE), nn.Embedding(PLACES, WIDE)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.scores = nn.LayerNorm(WIDE), nn.Linear(WIDE, LETTERS)

    def forward(self, text):
        x = self.letters(text) + self.places(gt.arange(PLACES))
        for layer in self.layers:
            x = layer(x)
        return self.scores(self.norm(x))


def trained(change, place):
    """Losses, and the final parameters."""
    gt.manual_seed(5)
    model = Transformer()
    change(model)
    opt = gt.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        scores = model(place(TEXT[:, :-1]))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), place(TEXT[:, 1:]).flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses, [one.numpy().copy() for one in model.parameters()]


@pytest.fixture(scope="module")
def alone():
    with gt.init(inline=True, arena="16MiB", threads=1):
        return trained(lambda model: None, gt.tensor)


def tensor_plan():
    columns = {f"layers.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}
    rows = {f"layers.*.{name}": RowwiseParallel() for name in ("out", "down")}
    return {**columns, **rows, "letters": RowwiseParallel(), "scores": ColwiseParallel()}


def sequence_plan():
    return {
        **tensor_plan(),
        "letters": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.before": SequenceParallel(),
        "layers.*.after": SequenceParallel(),
        "layers.*.out": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
    }


def cut_by(plan):
    return lambda mesh, model: parallelize_module(model, mesh, plan())


def sharded(mesh, model):
    for layer in [*model.layers, model]:
        fully_shard(layer, mesh=mesh)


FORMS = {
    "data": (lambda mesh, model: None, Shard(0)),
    "tensor": (cut_by(tensor_plan), Replicate()),
    "sequence": (cut_by(sequence_plan), Replicate()),
    "fully sharded": (sharded, Shard(0)),
}


@pytest.mark.parametrize("helpers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FORMS)
def test_a_transformer_ends_where_one_helper_s_does(form, helpers, alone):
    change, batch = FORMS[form]
    with broker_of(helpers) as broker:
        mesh = broker.mesh(helpers)
        losses, parameters = trained(
            lambda model: change(mesh, model), lambda text: distribute_tensor(text, mesh, [batch])
        )
    np.testing.assert_allclose(losses, alone[0], rtol=2e-4)
    for got, want in zip(parameters, alone[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)
