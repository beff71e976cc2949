"""Recurrent layers, attention and encoders do what torch's do, with its weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same

import shmgpu as gt
from shmgpu import nn
from shmgpu.nn.utils.rnn import unpad_sequence

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(29)
STEPS = RNG.normal(size=(4, 2, 3))  # (L, N, features)
TOLERANCE = 2e-4


def flat(out):
    """The tensors in an outcome, in order; None has none."""
    if isinstance(out, (tuple, list)):
        return list(itertools.chain.from_iterable(map(flat, out)))
    return [] if out is None else [out]


def both(values):
    theirs = torch.tensor(values, dtype=torch.float32)
    return gt.tensor(np.asarray(theirs)).requires_grad_(), theirs.requires_grad_()


def alike(ours, theirs, *given, **masks):
    """Equal weights, then equal outcomes and gradients, in training and after it."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(nn.state_tensors(ours.state_dict()))
    tensors = [
        [both(one) for one in group] if isinstance(group, tuple) else both(group) for group in given
    ]
    mine = [[a for a, _ in one] if isinstance(one, list) else one[0] for one in tensors]
    yours = [[b for _, b in one] if isinstance(one, list) else one[1] for one in tensors]
    plain = {k: gt.tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
    torchs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
    outs = flat(ours(*mine, **plain)), flat(theirs(*yours, **torchs))
    assert len(outs[0]) == len(outs[1])
    for out, want in zip(*outs, strict=True):
        same(out, want, TOLERANCE)
    sum((one * one).sum() for one in outs[0]).backward()
    sum((one * one).sum() for one in outs[1]).backward()
    for one, other in zip(flat(mine), flat(yours), strict=True):
        same(one.grad, other.grad, TOLERANCE)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(one.grad, other.grad, TOLERANCE)
    ours.zero_grad()
    theirs.zero_grad()


def test_recurrent_layers_are_torchs(engine):
    for name, more in (
        ("RNN", {}),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"batch_first": True, "proj_size": 0}),
        ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ):
        ours, theirs = getattr(nn, name)(3, 5, **more), getattr(torch.nn, name)(3, 5, **more)
        assert repr(ours) == repr(theirs)
        alike(ours, theirs, STEPS)
        alike(ours, theirs, STEPS[:, 0])
        count = more.get("num_layers", 1) * (2 if more.get("bidirectional") else 1)
        rows = 4 if more.get("batch_first") else 2
        begin = RNG.normal(size=(2, count, rows, 5))
        alike(ours, theirs, STEPS, tuple(begin) if name == "LSTM" else begin[0])


def test_dropout_between_recurrent_layers_is_in_training_only(engine):
    layer = nn.GRU(3, 5, 2, dropout=0.5)
    x = gt.tensor(STEPS.astype("float32"))
    assert (layer(x)[0].data != layer(x)[0].data).any()
    layer.eval()
    assert (layer(x)[0].data == layer(x)[0].data).all()


def test_cells_are_torchs(engine):
    for name in ("RNNCell", "LSTMCell", "GRUCell"):
        ours, theirs = getattr(nn, name)(3, 5), getattr(torch.nn, name)(3, 5)
        assert repr(ours) == repr(theirs)
        begin = RNG.normal(size=(2, 2, 5))
        alike(ours, theirs, STEPS[0])
        alike(ours, theirs, STEPS[0, 0])
        alike(ours, theirs, STEPS[0], tuple(begin) if name == "LSTMCell" else begin[0])
    with pytest.raises(ValueError, match="must be 'tanh' or 'relu'"):
        nn.RNNCell(3, 5, nonlinearity="sin")
    with pytest.raises(ValueError, match=r"the state must be 2 tensor\(s\) of \(5,\)"):
        nn.LSTMCell(3, 5)(gt.ones(3), gt.ones(5))
    with pytest.raises(ValueError, match="must have 2 or 3 axes, the last of 3"):
        nn.LSTM(3, 5)(gt.ones(2, 4))


def test_sequences_of_several_lengths_are_padded_as_torchs_are(engine):
    rows = [RNG.normal(size=(n, 2)).astype("float32") for n in (2, 4, 0)]
    for settings in ({}, {"batch_first": True, "padding_value": 7.0}, {"padding_side": "left"}):
        ours, theirs = [gt.tensor(one, requires_grad=True) for one in rows], map(torch.tensor, rows)
        found = nn.utils.rnn.pad_sequence(ours, **settings)
        same(found, torch.nn.utils.rnn.pad_sequence(list(theirs), **settings), TOLERANCE)
        (found * found).sum().backward()
        np.testing.assert_allclose(ours[1].grad.data, 2 * rows[1], rtol=1e-6)
    back = unpad_sequence(nn.utils.rnn.pad_sequence(ours), gt.tensor([2, 4, 0]))
    assert [one.tolist() for one in back] == [one.tolist() for one in rows]
    with pytest.raises(ValueError, match="differ in their first axis only"):
        nn.utils.rnn.pad_sequence([gt.ones(2, 3), gt.ones(2)])
    with pytest.raises(ValueError, match='must be "left" or "right"'):
        nn.utils.rnn.pad_sequence(ours, padding_side="top")
    with pytest.raises(ValueError, match="2 lengths are not for 1 sequences"):
        unpad_sequence(gt.ones(1, 3), [1, 2], batch_first=True)


CAUSAL = np.triu(np.ones((4, 4), bool), 1)
ADDED = RNG.normal(size=(4, 4)).astype("float32")
PADDED = np.array([[False, False, False, True], [False, True, False, False]])
ONE_EMPTY, ALL_EMPTY = PADDED | [[True], [False]], PADDED | True


def test_attention_of_several_heads_is_torchs(engine):
    x = RNG.normal(size=(4, 2, 6))
    for name, more, masks in (
        ("MultiheadAttention", {}, {}),
        ("MultiheadAttention", {"bias": False}, {"attn_mask": CAUSAL, "need_weights": False}),
        (
            "MultiheadAttention",
            {"add_bias_kv": False, "add_zero_attn": False},
            {"attn_mask": ADDED, "average_attn_weights": False},
        ),
        ("MultiheadAttention", {}, {"key_padding_mask": PADDED}),
        ("MultiheadAttention", {}, {"key_padding_mask": ALL_EMPTY, "need_weights": False}),
        ("MultiheadAttention", {}, {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False}),
        ("MultiheadAttention", {}, {"attn_mask": RNG.normal(size=(6, 4, 4)).astype("float32")}),
    ):
        ours, theirs = (getattr(one, name)(6, 3, **more) for one in (nn, torch.nn))
        alike(ours, theirs, x, x, x, **masks)
    ours, theirs = (
        one.MultiheadAttention(6, 2, batch_first=True, kdim=5, vdim=3) for one in (nn, torch.nn)
    )
    alike(ours, theirs, x, RNG.normal(size=(4, 7, 5)), RNG.normal(size=(4, 7, 3)))
    alike(ours, theirs, x[0], RNG.normal(size=(7, 5)), RNG.normal(size=(7, 3)))
    with pytest.raises(ValueError, match=r"attn_mask \(2, 2\) must be \(2, 7\)"):
        ours(gt.ones(1, 2, 6), gt.ones(1, 7, 5), gt.ones(1, 7, 3), attn_mask=gt.ones(2, 2))


def test_a_causal_attention_needs_no_mask(engine):
    layer = nn.MultiheadAttention(6, 3, batch_first=True)
    x = gt.tensor(RNG.normal(size=(2, 4, 6)).astype("float32"))
    found, _ = layer(x, x, x, is_causal=True)
    want, _ = layer(x, x, x, attn_mask=gt.tensor(CAUSAL))
    np.testing.assert_allclose(found.data, want.data, atol=1e-6)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "settings",
    [{}, {"norm_first": True, "activation": "gelu", "bias": False}, {"layer_norm_eps": 0.5}],
)
def test_encoders_are_torchs(engine, settings):
    def made(package):
        layer = package.TransformerEncoderLayer(
            6, 3, dim_feedforward=8, dropout=0.0, batch_first=True, **settings
        )
        return package.TransformerEncoder(
            layer, 2, package.LayerNorm(6), enable_nested_tensor=False, mask_check=False
        )

    ours, theirs = made(nn), made(torch.nn)
    x = RNG.normal(size=(2, 4, 6))
    alike(ours, theirs, x)
    alike(ours, theirs, x, mask=CAUSAL, src_key_padding_mask=PADDED & False)
    alike(ours.layers[0], theirs.layers[0], x, src_mask=CAUSAL)
    alike(ours.layers[0], theirs.layers[0], x, src_key_padding_mask=ONE_EMPTY)
    alike(ours.eval(), theirs.train(), x)  # torch's way of inference is another
    assert ours.layers[0].linear1.weight is not ours.layers[1].linear1.weight
    with pytest.raises(ValueError, match="must be one of relu, gelu"):
        nn.TransformerEncoderLayer(6, 3, activation="sin")


def test_heads_of_keys_may_be_shared(engine):
    q, k, v = (
        RNG.normal(size=(2, 4, 3, 5)),
        RNG.normal(size=(2, 2, 6, 5)),
        RNG.normal(size=(2, 2, 6, 5)),
    )
    agree(
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True),
        q, k, v, tol=1e-4,
    )  # fmt: skip
    with pytest.raises(ValueError, match="must divide those of the query"):
        gt.scaled_dot_product_attention(
            gt.ones(1, 4, 3, 5), gt.ones(1, 3, 6, 5), gt.ones(1, 3, 6, 5), enable_gqa=True
        )


LARGE = {
    "Linear": (200, 300),
    "Embedding": (300, 200),
    "Conv1d": (40, 50, 9),
    "Conv2d": (20, 30, 7),
    "ConvTranspose2d": (20, 30, 7),
    "RNN": (120, 110),
    "LSTM": (120, 110),
    "GRU": (120, 110),
    "MultiheadAttention": (160, 4),
    "MultiheadAttention of other widths": (160, 4),
    "TransformerEncoderLayer": (160, 4, 200),
}


@pytest.mark.parametrize("name", LARGE)
def test_weights_begin_as_spread_as_torchs(engine, name):
    """By their largest (of an even spread, its bound) and by their standard deviation."""
    kind = name.split()[0]
    named = {"kdim": 250, "vdim": 60} if " " in name else {}
    ours, theirs = (getattr(one, kind)(*LARGE[name], **named) for one in (nn, torch.nn))
    found, wanted = (
        {key: np.asarray(value.detach()) for key, value in layer.named_parameters()}
        for layer in (ours, theirs)
    )
    assert found.keys() == wanted.keys()
    for key, weight in wanted.items():
        if weight.size > 1000:
            for of in (lambda w: abs(w).max(), np.std):
                if kind == "Embedding" and of is not np.std:
                    continue  # normally spread: the largest is chance
                assert of(found[key]) == pytest.approx(of(weight), rel=0.03), key
        elif weight.std() == 0:
            assert (found[key] == weight).all(), key
