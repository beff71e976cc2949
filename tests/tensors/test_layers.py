"""Every layer and loss of nn does what torch's does; an optimiser goes on where another stopped."""

from __future__ import annotations

import collections
import inspect
import pathlib

import numpy as np
import pytest
import torch
from tensors.against_torch import same

import shmgpu as gt
from shmgpu import nn, optim

RNG = np.random.default_rng(23)
ROWS = RNG.normal(size=(3, 4))
IMAGES = RNG.normal(size=(2, 4, 6, 6))
SHARES = RNG.uniform(0.1, 0.9, size=(3, 4))
CLASSES = np.array([1, 3, 0])
SIGNALS = RNG.normal(size=(2, 4, 7))
COUNTS = RNG.integers(0, 5, size=(3, 4)).astype(float)
SIGNS = np.array([1.0, -1.0, 1.0])

# Arguments of the layer, and what goes in. Two settings at least where there are any, so that one
# that is not handed on shows.
LAYERS = [
    ("Linear", (4, 3), {}, ROWS),
    ("Linear", (4, 3), {"bias": False}, ROWS),
    ("Conv2d", (4, 6, 3), {}, IMAGES),
    ("Conv2d", (4, 6, (2, 3)), {"stride": 2, "padding": 1, "groups": 2, "bias": False}, IMAGES),
    ("Conv2d", (4, 6, 2), {"dilation": 2, "padding": "same"}, IMAGES),
    ("Embedding", (5, 3), {}, CLASSES),
    ("LayerNorm", (4,), {}, ROWS),
    ("LayerNorm", ((3, 4),), {"eps": 0.1}, ROWS),
    ("LayerNorm", (4,), {"elementwise_affine": False}, ROWS),
    ("ReLU", (), {}, ROWS),
    ("LeakyReLU", (), {}, ROWS),
    ("LeakyReLU", (0.3,), {}, ROWS),
    ("GELU", (), {}, ROWS),
    ("GELU", (), {"approximate": "tanh"}, ROWS),
    ("SiLU", (), {}, ROWS),
    ("Sigmoid", (), {}, ROWS),
    ("Tanh", (), {}, ROWS),
    ("Softmax", (), {"dim": -1}, ROWS),
    ("Softmax", (0,), {}, ROWS),
    ("LogSoftmax", (), {"dim": -1}, ROWS),
    ("LogSoftmax", (0,), {}, ROWS),
    ("Flatten", (), {}, IMAGES),
    ("Flatten", (0, 2), {}, IMAGES),
    ("MaxPool2d", (2,), {}, IMAGES),
    ("MaxPool2d", (2,), {"stride": 1, "padding": 1, "dilation": 2}, IMAGES),
    ("AvgPool2d", (2,), {}, IMAGES),
    ("AvgPool2d", ((2, 3), 1, 1), {}, IMAGES),
    ("AvgPool2d", (3, 2, 1, True, False), {}, IMAGES),
    ("AvgPool2d", (3, 2), {"divisor_override": 4}, IMAGES),
    ("MaxPool2d", (3, 2, 1, 1, False, True), {}, IMAGES),
    ("Conv2d", (4, 3, 3), {"padding": (1, 2), "padding_mode": "reflect"}, IMAGES),
    ("Conv2d", (4, 3, (2, 3)), {"padding": "same", "padding_mode": "circular"}, IMAGES),
    ("Conv2d", (4, 3, 3), {"padding": "valid", "padding_mode": "replicate"}, IMAGES),
    ("Identity", (4,), {"more": 1}, ROWS),
    ("Embedding", (5, 3), {"padding_idx": -4}, CLASSES),
    ("LayerNorm", (4,), {"bias": False}, ROWS),
    ("RMSNorm", (4,), {}, ROWS),
    ("RMSNorm", ((3, 4),), {"eps": 0.1, "elementwise_affine": False}, ROWS),
    ("GroupNorm", (2, 4), {}, IMAGES),
    ("GroupNorm", (4, 4), {"eps": 0.1, "affine": False}, SIGNALS),
    ("InstanceNorm1d", (4,), {"affine": True}, SIGNALS),
    ("InstanceNorm2d", (4,), {}, IMAGES),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, IMAGES),
    ("BatchNorm1d", (4,), {}, ROWS),
    ("BatchNorm1d", (4,), {"momentum": None, "eps": 0.1}, SIGNALS),
    ("BatchNorm1d", (4,), {"bias": False, "momentum": 0.7}, ROWS),
    ("BatchNorm2d", (4,), {}, IMAGES),
    ("BatchNorm2d", (4,), {"affine": False, "track_running_stats": False}, IMAGES),
    ("Conv1d", (4, 6, 3), {}, SIGNALS),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2, "bias": False}, SIGNALS),
    ("Conv1d", (4, 6, 2), {"dilation": 2, "padding": "same"}, SIGNALS),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1}, SIGNALS),
    ("ConvTranspose2d", (4, 6, 3), {}, IMAGES),
    (
        "ConvTranspose2d",  # more rows and columns at the end than a stride
        (4, 6, (3, 2)),
        {"stride": (1, 2), "padding": (2, 1), "output_padding": (2, 2), "groups": 2, "dilation": 3},
        IMAGES,
    ),
    ("ConvTranspose1d", (4, 6, 3), {"output_padding": 1, "dilation": 2}, SIGNALS),
    (
        "ConvTranspose2d",
        (4, 6, (2, 3)),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "bias": False, "dilation": 2},
        IMAGES,
    ),
    ("MaxPool1d", (3,), {}, SIGNALS),
    ("MaxPool1d", (2, 1, 1, 2), {}, SIGNALS),
    ("AvgPool1d", (2,), {}, SIGNALS),
    ("AvgPool1d", (3, 2, 1), {}, SIGNALS),
    ("AvgPool1d", (3, 2, 1, True, False), {}, SIGNALS),
    ("MaxPool1d", (3, 2, 1, 1, False, True), {}, SIGNALS),
    ("Conv1d", (4, 3, 3), {"padding": 2, "padding_mode": "replicate"}, SIGNALS),
    ("AdaptiveAvgPool1d", (3,), {}, SIGNALS),
    ("AdaptiveAvgPool2d", (1,), {}, IMAGES),
    ("AdaptiveAvgPool2d", ((4, None),), {}, IMAGES),
    ("AdaptiveMaxPool1d", (3,), {}, SIGNALS),
    ("AdaptiveMaxPool2d", ((5, 2),), {}, IMAGES),
    ("Upsample", (), {"scale_factor": 2.0}, IMAGES),
    ("Upsample", ((4, 9),), {}, IMAGES),
    ("Upsample", (), {"scale_factor": 1.7}, SIGNALS),
    ("Upsample", (), {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}, IMAGES),
    ("Upsample", (5, None, "linear"), {}, SIGNALS),
    ("Embedding", (5, 3, None, None, 2.0, False, False), {}, CLASSES),
    ("PixelShuffle", (2,), {}, IMAGES),
    ("PixelUnshuffle", (3,), {}, IMAGES[0]),
    ("Unflatten", (1, (2, -1)), {}, IMAGES),
    ("ELU", (), {}, ROWS),
    ("ELU", (0.3,), {"inplace": False}, ROWS),
    ("CELU", (0.3,), {}, ROWS),
    ("SELU", (), {}, ROWS),
    ("Softplus", (), {}, ROWS),
    ("Softplus", (2.0, 0.5), {}, ROWS),
    ("Softplus", (1.0, 0.5), {}, ROWS),
    ("Softmin", (), {"dim": -1}, ROWS),
    ("Hardtanh", (), {}, ROWS),
    ("Hardtanh", (-0.3, 0.4), {}, ROWS),
    ("ReLU6", (), {}, 6 * ROWS),
    ("PReLU", (), {}, ROWS),
    ("PReLU", (4, 0.3), {}, IMAGES),
    ("Mish", (), {}, ROWS),
    ("LogSigmoid", (), {}, 9 * ROWS),
    ("Hardsigmoid", (), {}, 3 * ROWS),
    ("Hardswish", (), {}, 3 * ROWS),
    ("Softsign", (), {}, ROWS),
    ("Tanhshrink", (), {}, ROWS),
    ("Softshrink", (), {}, ROWS),
    ("Softshrink", (0.2,), {}, ROWS),
    ("Hardshrink", (), {}, ROWS),
    ("Hardshrink", (), {"lambd": 0.2}, ROWS),
    ("GLU", (), {}, ROWS),
    ("GLU", (1,), {}, IMAGES),
]
LOSSES = [
    ("MSELoss", ROWS, ROWS[::-1].copy()),
    ("L1Loss", ROWS, ROWS[::-1].copy()),
    ("CrossEntropyLoss", ROWS, CLASSES),
    ("NLLLoss", np.log(SHARES), CLASSES),
    ("BCELoss", SHARES, SHARES[::-1].copy()),
    ("BCEWithLogitsLoss", ROWS, SHARES),
]
# Losses with settings or more inputs: settings, and what goes in.
SETTINGS = [
    ("SmoothL1Loss", {"beta": 0.4}, ROWS, ROWS[::-1].copy()),
    ("SmoothL1Loss", {"beta": 0.0}, ROWS, ROWS[::-1].copy()),
    ("HuberLoss", {"delta": 0.4}, ROWS, ROWS[::-1].copy()),
    ("KLDivLoss", {"reduction": "batchmean"}, np.log(SHARES), SHARES[::-1].copy()),
    ("KLDivLoss", {"log_target": True, "reduction": "sum"}, np.log(SHARES), np.log(SHARES[::-1])),
    ("CrossEntropyLoss", {"ignore_index": 3}, ROWS, CLASSES),
    ("CrossEntropyLoss", {"label_smoothing": 0.2}, ROWS, CLASSES),
    ("CrossEntropyLoss", {"weight": SHARES[0], "label_smoothing": 0.2}, ROWS, CLASSES),
    ("CrossEntropyLoss", {"weight": SHARES[0], "ignore_index": 3}, ROWS, CLASSES),
    ("CrossEntropyLoss", {"weight": SHARES[0], "reduction": "none"}, ROWS, CLASSES),
    ("CrossEntropyLoss", {"weight": SHARES[0], "reduction": "sum"}, ROWS, SHARES),
    ("CrossEntropyLoss", {"weight": SHARES[0]}, IMAGES, RNG.integers(0, 4, (2, 6, 6))),
    ("NLLLoss", {"weight": SHARES[0], "ignore_index": 1}, np.log(SHARES), CLASSES),
    ("BCELoss", {"weight": SHARES[1]}, SHARES, SHARES[::-1].copy()),
    ("BCEWithLogitsLoss", {"weight": SHARES[1], "pos_weight": SHARES[0]}, ROWS, SHARES),
    ("PoissonNLLLoss", {}, ROWS, COUNTS),
    ("PoissonNLLLoss", {"log_input": False, "full": True}, SHARES, COUNTS),
    ("GaussianNLLLoss", {}, ROWS, ROWS[::-1].copy(), SHARES),
    ("GaussianNLLLoss", {"full": True, "eps": 0.5}, ROWS, ROWS[::-1].copy(), SHARES),
    ("CosineEmbeddingLoss", {}, ROWS, ROWS[::-1].copy(), SIGNS),
    ("CosineEmbeddingLoss", {"margin": -0.5, "reduction": "none"}, ROWS, SHARES, SIGNS),
    ("MarginRankingLoss", {"margin": 0.3}, ROWS[0, :3], ROWS[1, :3], SIGNS),
    ("HingeEmbeddingLoss", {"margin": 1.5}, ROWS[0, :3], SIGNS),
    ("SoftMarginLoss", {}, ROWS[0, :3], SIGNS),
    ("TripletMarginLoss", {"swap": True, "margin": 2.0}, ROWS, ROWS[::-1].copy(), SHARES),
    ("TripletMarginLoss", {"p": 3.0}, ROWS, ROWS[::-1].copy(), SHARES),
    ("CosineSimilarity", {"dim": 0}, ROWS, SHARES),
    ("PairwiseDistance", {}, ROWS, SHARES),
    ("PairwiseDistance", {"p": 3.0, "eps": 0.1, "keepdim": True}, ROWS, SHARES),
]
LATER = (
    "RNN LSTM GRU RNNCell LSTMCell GRUCell MultiheadAttention TransformerEncoder "
    "TransformerEncoderLayer"
).split()
# What is held against torch elsewhere, or stands in no formula: file, and a word of its tests.
ELSEWHERE = {
    "Dropout": "test_dropout_of_a_layer_is_in_training_only",
    "Dropout1d": "test_dropout_of_channels_drops_whole_ones",
    "Dropout2d": "test_dropout_of_channels_drops_whole_ones",
    **{
        name: "test_recurrent_and_attention_layers_have_a_file"
        for name in nn.__all__
        if name in LATER
    },
    "Bilinear": "test_a_bilinear_layer_is_torchs",
    "Sequential": "test_layers_in_a_row",
    "ModuleList": "test_layers_in_a_row",
    "ModuleDict": "test_modules_by_name",
    "ParameterList": "test_parameters_in_a_list",
    "Parameter": "test_parameters_in_a_list",
    "SGD": "test_an_optimiser_goes_on_where_another_run_stopped",
    "Adam": "test_an_optimiser_goes_on_where_another_run_stopped",
    "AdamW": "test_an_optimiser_goes_on_where_another_run_stopped",
}


def both(values, grads=True):
    """The same for us and for torch; floats collect gradients."""
    theirs = torch.tensor(values, dtype=None if values.dtype.kind == "i" else torch.float32)
    ours = gt.tensor(np.asarray(theirs))
    if grads and theirs.is_floating_point():
        return ours.requires_grad_(), theirs.requires_grad_()
    return ours, theirs


def agree(ours, theirs, given, *targets):
    """Both modules give the same, and so do the gradients of what went in and of the parameters."""
    x, want_x = both(given)
    pairs = [both(one, grads=False) for one in targets]
    out = ours(x, *[one for one, _ in pairs])
    want = theirs(want_x, *[one for _, one in pairs])
    same(out, want, 1e-4)
    if not want.requires_grad:
        return
    (out * out).sum().backward()
    (want * want).sum().backward()
    if want_x.grad is not None:
        same(x.grad, want_x.grad, 1e-4)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(one.grad, other.grad, 1e-4)
    ours.zero_grad()
    theirs.zero_grad()


def of(table):
    """The rows of a table by their layer: a broker is for all of them."""
    return {name: [row[1:] for row in table if row[0] == name] for name, *_ in table}.items()


@pytest.mark.table
@pytest.mark.parametrize(("name", "rows"), of(LAYERS), ids=[name for name, _ in of(LAYERS)])
def test_a_layer_does_what_torchs_does(name, rows):
    with gt.init(inline=True, arena="16MiB", threads=1):
        for arguments, settings, given in rows:
            ours = getattr(nn, name)(*arguments, **settings)
            theirs = getattr(torch.nn, name)(*arguments, **settings)
            theirs.load_state_dict(nn.state_tensors(ours.state_dict()))
            assert list(ours.state_dict()) == list(theirs.state_dict())
            for _ in range(2):  # the second time with what the first one left
                agree(ours, theirs, given)
            for key, one in ours.state_dict().items():
                same(one, theirs.state_dict()[key], 1e-4)
            agree(ours.eval(), theirs.eval(), given)
            ours.load_state_dict(theirs.state_dict())
            assert repr(ours).removesuffix(")") in repr(theirs)


@pytest.mark.parametrize(("name", "given", "target"), LOSSES, ids=[name for name, *_ in LOSSES])
def test_a_loss_is_torchs(name, given, target):
    with gt.init(inline=True, arena="16MiB", threads=1):
        agree(getattr(nn, name)(), getattr(torch.nn, name)(), given, target)
        for reduction in ("mean", "sum", "none"):
            theirs = getattr(torch.nn, name)(reduction=reduction)
            agree(getattr(nn, name)(reduction), theirs, given, target)


@pytest.mark.parametrize(("name", "rows"), of(SETTINGS), ids=[name for name, _ in of(SETTINGS)])
def test_a_loss_with_settings_is_torchs(name, rows):
    def made(package, settings, tensors):
        """The loss, with arrays among its settings as tensors."""
        known = {k: tensors(v) if isinstance(v, np.ndarray) else v for k, v in settings.items()}
        return getattr(package, name)(**known)

    with gt.init(inline=True, arena="16MiB", threads=1):
        for settings, *given in rows:
            ours = made(nn, settings, lambda v: gt.tensor(v.astype("float32")))
            theirs = made(torch.nn, settings, lambda v: torch.tensor(v, dtype=torch.float32))
            agree(ours, theirs, given[0], *given[1:])
            assert list(ours.state_dict()) == list(theirs.state_dict())


def test_a_bilinear_layer_is_torchs(engine):
    ours, theirs = nn.Bilinear(4, 4, 3), torch.nn.Bilinear(4, 4, 3)
    ours.load_state_dict(theirs.state_dict())
    agree(ours, theirs, ROWS, SHARES)
    left, right = np.ones((2, 5, 4), "float32"), np.full((2, 5, 4), 3, "float32")
    agree(ours, theirs, left, right)  # with any leading axes


@pytest.mark.parametrize("tracks", [True, False])
def test_running_statistics_begin_anew_when_they_are_reset(engine, tracks):
    layer = nn.BatchNorm1d(4, track_running_stats=tracks)
    before = {name: np.array(one.data) for name, one in layer.state_dict().items()}
    layer(gt.tensor(ROWS.astype("float32")))
    changed = {
        name for name, one in layer.state_dict().items() if not (one.data == before[name]).all()
    }
    assert changed == ({"running_mean", "running_var", "num_batches_tracked"} if tracks else set())
    layer.reset_running_stats()
    after = layer.state_dict()
    assert all((one.data == before[name]).all() for name, one in after.items())


def test_dropout_of_channels_drops_whole_ones(engine):
    channels = (50, 40)
    for layer, places in ((nn.Dropout1d(0.25), (3,)), (nn.Dropout2d(0.25), (3, 2))):
        x = gt.ones(*channels, *places)
        out = np.array(layer(x).data).reshape(*channels, -1)
        assert (out == out[..., :1]).all() and np.isclose(out.max(), 1 / 0.75)
        assert 0.7 < (out[..., 0] != 0).mean() < 0.8
        assert (layer.eval()(x).data == 1).all()
        single = layer.train()(x[0])
        assert single.shape == x.shape[1:] and (single.data == 0).any()


def test_dropout_that_drops_nothing_gives_the_tensor_itself(engine):
    x, image = gt.ones(2, 3), gt.ones(1, 2, 3)
    for layer in (nn.Dropout(0.0), nn.Dropout(0.5).eval()):
        assert layer(x) is x
        assert nn.Dropout1d(layer.p).train(layer.training)(image) is image
    assert nn.functional.dropout(x, 0.5, training=False) is gt.dropout(x, 0) is x
    assert nn.Dropout(0.5, inplace=True).eval()(x) is x and nn.Dropout(0.5)(x) is not x


def test_dropout_of_a_layer_is_in_training_only(engine):
    layer = nn.Dropout(0.25)
    x = gt.ones(100, 100)
    share = (layer(x).data != 0).mean()
    assert 0.7 < share < 0.8 and np.isclose(layer(x).data.max(), 1 / 0.75)
    assert 0.45 < (nn.Dropout()(x).data != 0).mean() < 0.55
    assert (layer.eval()(x).data == 1).all()
    assert (layer.train()(x).data == 0).any()


def test_layers_in_a_row(engine):
    first, second = nn.Linear(4, 3), nn.Tanh()
    row = nn.Sequential(first, second)
    x = gt.tensor(ROWS.astype("float32"))
    np.testing.assert_array_equal(row(x).data, second(first(x)).data)
    assert list(row) == [first, second] and row[0] is first and row[-1] is second and len(row) == 2
    row.append(nn.Flatten(0))
    assert row(x).shape == (9,)
    listed = nn.ModuleList([first])
    listed.append(nn.Linear(3, 2))
    assert [name for name, _ in listed.named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]
    assert row(x).shape != listed[1](first(x)).shape


def test_layers_with_names_in_a_row(engine):
    named = {"first": nn.Linear(4, 3), "second": nn.Tanh()}
    row = nn.Sequential(collections.OrderedDict(named))
    assert list(row.state_dict()) == ["first.weight", "first.bias"] and row.second is row[1]
    part = row[:1]
    assert isinstance(part, nn.Sequential) and list(part) == [row.first]
    row.insert(0, nn.Identity())
    assert [type(one).__name__ for one in row] == ["Identity", "Linear", "Tanh"]
    assert row.pop() is named["second"] and len(row) == 2
    row[0] = nn.ReLU()
    del row[1]
    assert [type(one).__name__ for one in row] == ["ReLU"]
    assert len(nn.ModuleList([nn.ReLU()]) + nn.ModuleList([nn.Tanh()])) == 2
    with pytest.raises(IndexError, match="no 3 in a list of 1"):
        row[3]
    with pytest.raises(TypeError, match="holds modules, not a float"):
        row.append(1.0)


def test_modules_by_name(engine):
    found = nn.ModuleDict({"a": nn.Linear(4, 3)})
    found["b"] = nn.ReLU()
    found.update([("c", nn.Linear(3, 2, bias=False))])
    assert list(found) == ["a", "b", "c"] and "b" in found and len(found) == 3
    assert list(found.state_dict()) == ["a.weight", "a.bias", "c.weight"]
    assert found.pop("b") is not None and list(found.keys()) == ["a", "c"]
    assert [name for name, _ in found.items()] == ["a", "c"] and len(list(found.values())) == 2
    del found["a"]
    found.clear()
    assert not len(found)


def test_parameters_in_a_list(engine):
    listed = nn.ParameterList([nn.Parameter(gt.ones(2)), gt.zeros(3)])
    assert [name for name, _ in listed.named_parameters()] == ["0", "1"]
    assert all(isinstance(one, nn.Parameter) for one in listed)
    assert not isinstance(gt.ones(2), nn.Parameter) and not isinstance(1, nn.Parameter)
    assert not nn.Parameter(gt.ones(2), requires_grad=False).requires_grad
    listed[0] = gt.ones(4)
    assert listed[0].requires_grad and listed[0].shape == (4,)


def test_an_activation_in_place_changes_what_it_is_given(engine):
    for name in ("ReLU", "ELU", "Hardtanh", "LeakyReLU", "SiLU"):
        ours, theirs = both(ROWS, grads=False)
        out = getattr(nn, name)(inplace=True)(ours)
        getattr(torch.nn, name)(inplace=True)(theirs)
        assert out is ours
        same(ours, theirs)
    x = gt.ones(50, 50)
    assert nn.Dropout(0.5, inplace=True)(x) is x and (x.data == 0).any()


def test_a_layer_of_another_element_type(engine):
    assert nn.Linear(4, 3, dtype="float64").weight.dtype.name == "float64"
    assert nn.Conv2d(4, 3, 2, dtype="float16", device="cpu").bias.dtype.name == "float16"
    norm = nn.BatchNorm2d(3, dtype="float64")
    assert {one.dtype.name for one in norm.state_dict().values()} == {"float64", "int64"}


def test_an_embedding_of_given_rows_is_frozen(engine):
    table = nn.Embedding.from_pretrained(ROWS.astype("float32"))
    assert not table.weight.requires_grad and list(table.state_dict()) == ["weight"]
    np.testing.assert_array_equal(table(gt.tensor([2])).data[0], ROWS[2].astype("float32"))
    assert (nn.Embedding(5, 3, padding_idx=-1).weight.data[4] == 0).all()


REFUSED = {
    "an odd GLU": (lambda: nn.GLU()(gt.ones(3)), "must have an even length"),
    "a batch of one": (lambda: nn.BatchNorm1d(3)(gt.ones(1, 3)), "more than one value"),
    "an image for BatchNorm1d": (lambda: nn.BatchNorm1d(3)(gt.ones(1, 3, 2, 2)), "2 or 3 axes"),
    "groups that do not divide": (lambda: nn.GroupNorm(3, 4), "must divide num_channels=4"),
    "cubic upsampling": (
        lambda: nn.Upsample(scale_factor=2, mode="bicubic")(gt.ones(1, 1, 2, 2)),
        "must be one of nearest, nearest-exact, bilinear",
    ),
    "indices of a pool": (
        lambda: nn.MaxPool2d(2, return_indices=True)(gt.ones(1, 2, 2)),
        "max_pool2d: return_indices=True must be False",
    ),
    "an embedding of short rows": (
        lambda: nn.Embedding(3, 2, max_norm=1.0),
        "Embedding: max_norm=1.0 must be None: limit the norms yourself",
    ),
    "keys beside the sequence": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
        "add_bias_kv=True must be False: put what all may look at",
    ),
    "a projected state": (
        lambda: nn.LSTM(4, 5, proj_size=2),
        "LSTM: proj_size=2 must be 0: put a Linear behind the layer",
    ),
    "a border of its own": (
        lambda: nn.Conv2d(1, 1, 2, padding_mode="mirror"),
        "must be 'zeros' or 'reflect' or 'replicate' or 'circular'",
    ),
    "too great an output_padding": (
        lambda: nn.ConvTranspose2d(1, 1, 2, output_padding=1)(gt.ones(1, 1, 2, 2)),
        "must be less than stride",
    ),
    "pixels of too few channels": (
        lambda: nn.PixelShuffle(2)(gt.ones(1, 3, 2, 2)),
        r"3 channels are no multiple of 2 \* 2",
    ),
    "pixels that do not come to an end": (
        lambda: nn.PixelUnshuffle(2)(gt.ones(1, 3, 2)),
        "3 rows, 2 columns: no multiples of 2",
    ),
    "pixels of a row": (lambda: nn.PixelShuffle(1)(gt.ones(3, 2)), r"takes \(..., C, H, W\)"),
    "no such padding row": (lambda: nn.Embedding(3, 2, 3), "none of the 3 rows"),
    "a weight of other classes": (
        lambda: nn.CrossEntropyLoss(gt.ones(3))(gt.ones(2, 4), gt.tensor([0, 1])),
        "one of each class",
    ),
    **{
        f"padding of {name} by its edges": (
            lambda name=name: getattr(nn, name)(1, 1, 2, padding_mode="circular"),
            f"{name}: padding_mode='circular' must be 'zeros'",
        )
        for name in ("ConvTranspose1d", "ConvTranspose2d")
    },
    "three sizes": (lambda: nn.Conv2d(1, 1, (1, 2, 3)), "must be a number, or 2"),
    "an adaptive pool of nothing": (lambda: nn.AdaptiveAvgPool2d(0)(gt.ones(1, 2, 2)), "2 numbers"),
    "a weight of PReLU": (lambda: nn.PReLU(num_parameters=3)(gt.ones(2, 4)), r"\(1,\) or \(4,\)"),
    "a transposed convolution of two axes": (
        lambda: nn.functional.conv_transpose2d(gt.ones(2, 2), gt.ones(1, 1, 2, 2)),
        r"must be \(N, C, H, W\) or \(C, H, W\)",
    ),
    "instances without places": (
        lambda: nn.functional.instance_norm(gt.ones(2, 3)),
        r"must be \(N, channels, ...\)",
    ),
    "a margin the wrong way round": (lambda: nn.Hardtanh(1.0, 0.0)(gt.ones(1)), "not be above"),
}


def test_layers_refuse_in_sentences(engine):
    for what, (call, words) in REFUSED.items():
        with pytest.raises(ValueError, match=words):
            call()
            pytest.fail(what)


def test_recurrent_and_attention_layers_have_a_file():
    text = (pathlib.Path(__file__).parent / "test_sequences.py").read_text(encoding="utf-8")
    assert all(name in text for name in LATER)


def test_every_layer_and_loss_is_held_against_torchs():
    """Whoever adds one adds a row above, or a test that ELSEWHERE names."""
    held = {name for name, *_ in [*LAYERS, *LOSSES, *SETTINGS]} | set(ELSEWHERE)
    public = {name for name in nn.__all__ if inspect.isclass(getattr(nn, name))}
    assert public - held == {"Module"}
    assert held <= public and all(callable(globals()[test]) for test in ELSEWHERE.values())


OPTIMISERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6}),
]


@pytest.mark.parametrize("carried", ["tensors", "arrays"])
@pytest.mark.parametrize(("name", "settings"), OPTIMISERS, ids=[f"{n}-{s}" for n, s in OPTIMISERS])
def test_an_optimiser_goes_on_where_another_run_stopped(name, settings, carried):
    """Three steps, a state that is saved and loaded, three more: as torch, which ran through."""
    start = ROWS.astype("float32")
    theirs = torch.tensor(start, requires_grad=True)
    step_theirs = getattr(torch.optim, name)([theirs], **settings)
    with gt.init(inline=True, arena="16MiB", threads=1):
        ours = gt.tensor(start).requires_grad_()
        step_ours = getattr(optim, name)([ours], **settings)

        def run(times):
            for _ in range(times):
                for one, step in ((ours, step_ours), (theirs, step_theirs)):
                    step.zero_grad()
                    (one * one * one).sum().backward()
                    step.step()

        run(3)
        saved = step_ours.state_dict()
        if carried == "arrays":
            saved = nn.state_arrays(saved)
        ours = gt.tensor(np.array(ours.data)).requires_grad_()
        step_ours = getattr(optim, name)([ours], lr=123.0)
        step_ours.load_state_dict(saved)
        run(3)
        np.testing.assert_allclose(ours.data, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_an_optimisers_state_of_another_model_is_refused(engine):
    one, two = (gt.ones(2, requires_grad=True) for _ in range(2))
    saved = optim.SGD([one, two]).state_dict()
    with pytest.raises(ValueError, match=r"of groups of \[2\] parameters, this of \[1\]"):
        optim.SGD([one]).load_state_dict(saved)


@pytest.mark.parametrize("name", ["Sequential", "ModuleList"])
@pytest.mark.parametrize(
    "change",
    [
        lambda made, layer: made.append(layer()),
        lambda made, layer: made.extend([layer(), layer()]),
        lambda made, layer: made.insert(0, layer()),
    ],
    ids=["append", "extend", "insert"],
)
def test_a_list_of_layers_that_is_filled_is_what_it_is_in_torch(name, change):
    ours, theirs = nn.Sequential(nn.ReLU()), torch.nn.Sequential(torch.nn.ReLU())
    if name == "ModuleList":
        ours, theirs = nn.ModuleList(ours), torch.nn.ModuleList(theirs)
    answer, there = change(ours, nn.GELU), change(theirs, torch.nn.GELU)
    assert answer is ours and there in (theirs, None)  # so that calls can follow each other
    assert [type(one).__name__ for one in ours] == [type(one).__name__ for one in theirs]
