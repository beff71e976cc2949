"""Every function of nn.functional, with every argument it has by name, gives what PyTorch's gives.

A row is the function, what it takes by position, and its other arguments by name. Each of those
must change what comes out, or it would be no test of it.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same

import shmgpu as gt
from shmgpu.errors import RemoteError
from shmgpu.nn import functional as F

pytestmark = pytest.mark.operations

DRAWN = np.random.default_rng(11)


def floats(*shape):
    return DRAWN.uniform(-2, 2, shape).astype("float32")


def chances(*shape):
    return DRAWN.uniform(0.1, 0.9, shape).astype("float32")


LINE, IMAGE = floats(2, 4, 12), floats(2, 4, 8, 8)
ROWS, TARGET, LABELS = floats(5, 4), floats(5, 4), np.array([0, 3, 1, 2, 3])
SIGNS = np.array([1.0, -1, 1, -1, 1], "float32")
FOUR, SHIFT, SPREAD = chances(4), floats(4), chances(4)
EACH_ROW = {"weight": FOUR, "bias": SHIFT}
REDUCED = {"reduction": "sum"}
EDGES = {"ceil_mode": True, "count_include_pad": False}

TABLE = [
    ("adaptive_avg_pool1d", [LINE, 3], {}),
    ("adaptive_avg_pool2d", [IMAGE, (3, 2)], {}),
    ("adaptive_max_pool1d", [LINE, 3], {}),
    ("adaptive_max_pool2d", [IMAGE, (3, 2)], {}),
    ("avg_pool1d", [LINE, 3], {"stride": 2, "padding": 1}),
    ("avg_pool1d", [LINE[0], 3], {}),
    ("max_pool1d", [LINE[0], 3], {}),
    ("avg_pool2d", [IMAGE, (3, 2)], {"stride": (1, 2), "padding": 1}),
    ("avg_pool1d", [LINE[:, :, :11], 4], EDGES | {"padding": 2}),
    ("avg_pool2d", [IMAGE[0], 4], EDGES | {"padding": 1}),
    ("avg_pool2d", [IMAGE, 3], {"ceil_mode": True}),
    ("avg_pool2d", [IMAGE, (3, 2)], {"divisor_override": 5, "ceil_mode": True}),
    ("max_pool2d", [IMAGE, 3], {"ceil_mode": True, "stride": 2, "dilation": 2}),
    ("max_pool2d", [IMAGE[:, :, :5], (2, 3)], {"ceil_mode": True, "stride": (3, 2), "padding": 1}),
    ("max_pool1d", [LINE, 3], {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}),
    ("max_pool2d", [IMAGE, 3], {"stride": (1, 2), "padding": 1, "dilation": (2, 1)}),
    (
        "batch_norm",
        [IMAGE, SHIFT, SPREAD],
        EACH_ROW | {"training": True, "eps": 0.5},
    ),
    ("group_norm", [IMAGE, 2], EACH_ROW | {"eps": 0.5}),
    ("instance_norm", [IMAGE], EACH_ROW | {"eps": 0.5}),
    (
        "instance_norm",
        [IMAGE],
        {"running_mean": SHIFT, "running_var": SPREAD, "use_input_stats": False},
    ),
    ("layer_norm", [ROWS, (4,)], EACH_ROW | {"eps": 0.5}),
    ("rms_norm", [ROWS, (4,)], {"weight": FOUR, "eps": 0.5}),
    ("normalize", [ROWS], {"p": 3.0, "dim": 0, "eps": 2.2}),
    ("linear", [ROWS, floats(3, 4)], {"bias": floats(3)}),
    (
        "conv1d",
        [LINE, floats(6, 2, 3)],
        {"bias": floats(6), "stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    ),
    ("conv1d", [LINE[0], floats(6, 4, 3)], {"padding": 1}),
    (
        "conv2d",
        [IMAGE, floats(6, 2, 3, 2)],
        {"bias": floats(6), "stride": (1, 2), "padding": 1, "dilation": (2, 1), "groups": 2},
    ),
    (
        "conv_transpose1d",
        [LINE, floats(4, 3, 3)],
        {
            "bias": floats(6), "stride": 2, "padding": 1, "output_padding": 1, "groups": 2,
            "dilation": 2,
        },
    ),
    (
        "conv_transpose2d",
        [IMAGE, floats(4, 3, 3, 2)],
        {
            "bias": floats(6), "stride": 2, "padding": 1, "output_padding": (1, 0),
            "groups": 2, "dilation": (2, 1),
        },
    ),
    ("embedding", [np.array([0, 2, 1]), floats(4, 3)], {}),
    ("one_hot", [LABELS], {"num_classes": 6}),
    ("pixel_shuffle", [IMAGE, 2], {}),
    ("pixel_unshuffle", [IMAGE, 2], {}),
    ("pad", [IMAGE, (1, 2, 0, 1)], {"value": 2.5}),
    ("pad", [IMAGE, (1, 7, 0, 3)], {"mode": "reflect"}),
    ("pad", [IMAGE, (1, 8, -2, 3)], {"mode": "circular"}),
    ("pad", [LINE, (15, 0)], {"mode": "replicate"}),
    ("interpolate", [IMAGE], {"size": (5, 3)}),
    ("interpolate", [IMAGE], {"scale_factor": 2.0}),
    ("interpolate", [IMAGE], {"size": (5, 11), "mode": "nearest-exact"}),
    ("interpolate", [LINE], {"size": 7, "mode": "linear", "align_corners": True}),
    ("interpolate", [IMAGE], {"size": (20, 3), "mode": "bilinear"}),
    ("interpolate", [IMAGE], {"scale_factor": (1.3, 0.6), "mode": "bilinear"}),
    (
        "interpolate",
        [IMAGE],
        {"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True},
    ),
    ("interpolate", [IMAGE[None]], {"size": (3, 9, 5), "mode": "trilinear"}),
    *((name, [ROWS], {}) for name in (
        "hardsigmoid", "hardswish", "logsigmoid", "mish", "relu", "relu6", "selu", "sigmoid",
        "silu", "softsign", "tanh", "tanhshrink",
    )),
    ("celu", [ROWS], {"alpha": 0.5}),
    ("elu", [ROWS], {"alpha": 0.5}),
    ("gelu", [ROWS], {"approximate": "tanh"}),
    ("glu", [LINE], {"dim": 0}),
    ("hardshrink", [ROWS], {"lambd": 1.0}),
    ("hardtanh", [ROWS], {"min_val": -0.3, "max_val": 1.3}),
    ("leaky_relu", [ROWS], {"negative_slope": 0.3}),
    ("prelu", [ROWS, FOUR], {}),
    ("softplus", [ROWS], {"beta": 3.0, "threshold": 2.0}),
    ("softshrink", [ROWS], {"lambd": 1.0}),
    ("threshold", [ROWS, 0.5, -7.0], {}),
    ("softmax", [ROWS], {"dim": 0, "dtype": "float64"}),
    ("log_softmax", [ROWS], {"dim": 0, "dtype": "float64"}),
    ("softmin", [ROWS], {"dim": 0}),
    ("cosine_similarity", [ROWS, TARGET], {"dim": 0, "eps": 30.0}),
    ("pairwise_distance", [ROWS, TARGET], {"p": 3.0, "eps": 0.5, "keepdim": True}),
    (
        "scaled_dot_product_attention",
        [floats(2, 4, 3, 5), floats(2, 2, 6, 5), floats(2, 2, 6, 5)],
        {"attn_mask": floats(3, 6), "scale": 0.3, "enable_gqa": True},
    ),
    (
        "scaled_dot_product_attention",
        [floats(2, 3, 5), floats(2, 3, 5), floats(2, 3, 5)],
        {"is_causal": True},
    ),
    ("binary_cross_entropy", [chances(5, 4), chances(5, 4)], {"weight": FOUR} | REDUCED),
    (
        "binary_cross_entropy_with_logits",
        [ROWS, chances(5, 4)],
        {"weight": FOUR, "pos_weight": SPREAD} | REDUCED,
    ),
    (
        "cosine_embedding_loss",
        [ROWS, TARGET, SIGNS],
        {"margin": -0.5} | REDUCED,
    ),
    (
        "cross_entropy",
        [ROWS, LABELS],
        {"weight": FOUR, "ignore_index": 1, "label_smoothing": 0.2} | REDUCED,
    ),
    (
        "gaussian_nll_loss",
        [ROWS, TARGET, chances(5, 4)],
        {"full": True, "eps": 0.5} | REDUCED,
    ),
    ("hinge_embedding_loss", [ROWS[:, 0], SIGNS], {"margin": 2.5} | REDUCED),
    ("huber_loss", [ROWS, TARGET], {"delta": 0.5} | REDUCED),
    ("kl_div", [ROWS, chances(5, 4)], {"log_target": True} | REDUCED),
    ("l1_loss", [ROWS, TARGET], REDUCED),
    ("margin_ranking_loss", [ROWS[:, 0], ROWS[:, 1], SIGNS], {"margin": 0.5} | REDUCED),
    ("mse_loss", [ROWS, TARGET], REDUCED),
    ("nll_loss", [ROWS, LABELS], {"weight": FOUR, "ignore_index": 1} | REDUCED),
    (
        "poisson_nll_loss",
        [chances(5, 4), chances(5, 4) * 4],
        {"log_input": False, "full": True, "eps": 0.5} | REDUCED,
    ),
    ("smooth_l1_loss", [ROWS, TARGET], {"beta": 0.5} | REDUCED),
    ("soft_margin_loss", [ROWS[:, 0], SIGNS], REDUCED),
    (
        "triplet_margin_loss",
        [ROWS, TARGET, floats(5, 4)],
        {"margin": 2.5, "p": 3.0, "eps": 0.5, "swap": True} | REDUCED,
    ),
]  # fmt: skip
MUST_BE_GIVEN = {
    "softmax dim": {"dim": 1},
    "log_softmax dim": {"dim": 1},
    "softmin dim": {"dim": 1},
    "interpolate size": {"size": 4},
    "interpolate scale_factor": {"scale_factor": 1.5},
    "interpolate mode": {"align_corners": None},
}
BY_SHAPES = {"groups", "enable_gqa", "recompute_scale_factor"}  # the others would not fit without
FIXED = {  # settings of PyTorch's, whose defaults are the only values
    "adaptive_max_pool1d": {"return_indices": True},
    "adaptive_max_pool2d": {"return_indices": True},
    "max_pool1d": {"return_indices": True},
    "max_pool2d": {"return_indices": True},
    "interpolate": {"antialias": True},
    "embedding": {"max_norm": 1.0, "norm_type": 1.0, "scale_grad_by_freq": True, "sparse": True},
}
TOGETHER = {"running_mean", "running_var", "use_input_stats"}
RANDOM = {  # each has a test of its own
    "alpha_dropout", "dropout", "dropout1d", "dropout2d", "gumbel_softmax",
}  # fmt: skip
ELSEWHERE = {
    "inplace": "test_layers.py: an activation in place changes what it is given",
    "batch_norm momentum": "test_modules.py, by what becomes of the running statistics",
    "instance_norm momentum": "below",
    "gumbel_softmax eps": "it changes nothing",
    "embedding padding_idx": "below: it says which row has no gradient",
    "scaled_dot_product_attention dropout_p": "below: it draws",
}


def called(module, make, name, given, settings):
    """By torch, or by us."""
    given = [make(one) if isinstance(one, np.ndarray) else one for one in given]
    by_name = {
        key: make(value) if isinstance(value, np.ndarray) else value
        for key, value in settings.items()
    }
    if by_name.get("dtype") == "float64":
        by_name["dtype"] = torch.float64 if module is torch.nn.functional else gt.float64
    return getattr(module, name)(*given, **by_name)


def ours(name, given, settings):
    return called(F, lambda a: gt.tensor(np.array(a)), name, given, settings)


def theirs(name, given, settings):
    return called(torch.nn.functional, lambda a: torch.tensor(a), name, given, settings)


def without(name, settings, key):
    """The row without an argument; one that must be given gets another value."""
    others = {one: value for one, value in settings.items() if one != key}
    return others | MUST_BE_GIVEN.get(f"{name} {key}", {})


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_function_with_all_its_arguments_is_torchs(engine, row):
    same(ours(*row), theirs(*row))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # torch's, of kl_div
@pytest.mark.parametrize("engine", ["numpy"], indirect=True)
@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_each_argument_changes_what_a_function_gives(engine, row):
    name, given, settings = row
    full = ours(*row)
    for key in settings.keys() - BY_SHAPES - TOGETHER:
        less = (name, given, without(name, settings, key))
        one = ours(*less)
        same(one, theirs(*less))
        unlike = one.shape != full.shape or one.dtype != full.dtype
        assert unlike or not np.array_equal(one.data, full.data), f"{name}: {key} does nothing"


def test_each_function_and_each_argument_of_it_has_a_row():
    rows = {name: set() for name, *_ in TABLE}
    for name, given, settings in TABLE:
        names = list(inspect.signature(getattr(F, name)).parameters)
        rows[name] |= {*names[: len(given)], *settings}
    assert set(F.__all__) - set(rows) - RANDOM == set()
    missing = [
        f"{name} {key}"
        for name, known in rows.items()
        for key in inspect.signature(getattr(F, name)).parameters
        if key not in known | {"args", "kwargs", "inplace"} | FIXED.get(name, {}).keys()
        and f"{name} {key}" not in ELSEWHERE
    ]
    assert missing == []


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)
@pytest.mark.parametrize("name", FIXED)
def test_a_setting_that_has_one_value_takes_that_and_refuses_others(engine, name):
    given = next(row[1] for row in TABLE if row[0] == name)
    more = {"mode": "bilinear", "size": 3} if name == "interpolate" else {}
    for key, wrong in FIXED[name].items():
        usual = inspect.signature(getattr(torch.nn.functional, name)).parameters.get(key)
        default = False if usual is None else usual.default
        same(ours(name, given, more | {key: default}), theirs(name, given, more))
        with pytest.raises(ValueError, match=f"^{name}: {key}={wrong} must be {default}: "):
            ours(name, given, more | {key: wrong})


CURVED = [row for row in TABLE if {"ceil_mode", "mode", "count_include_pad"} & row[2].keys()]
CURVED.append(("interpolate", [LINE], {"size": 1, "mode": "linear", "align_corners": True}))


@pytest.mark.parametrize("row", CURVED, ids=[row[0] for row in CURVED])
def test_the_gradient_through_edges_and_lines_is_torchs(engine, row):
    name, (given, *more), settings = row
    agree(lambda f, x: getattr(f.nn.functional, name)(x, *more, **settings), given)


def test_borders_that_the_elements_do_not_suffice_for_are_refused(engine):
    for mode, most in (("reflect", 7), ("circular", 8), ("replicate", 50)):
        assert F.pad(gt.ones(1, 8), (most, 0), mode=mode).shape == (1, 8 + most)
        if most < 50:
            with pytest.raises(ValueError, match=f"{mode}' has too few elements on axis 1 of"):
                F.pad(gt.ones(1, 8), (most + 1, 0), mode=mode)
    with pytest.raises(ValueError, match="must be one of constant, reflect, circular, replicate"):
        F.pad(gt.ones(1, 8), (1, 0), mode="mirror")
    with pytest.raises(ValueError, match="must be one of nearest, nearest-exact, linear"):
        F.interpolate(gt.ones(1, 1, 8), 4, mode="bilinear")
    with pytest.raises(ValueError, match="align_corners=False must be None"):
        F.interpolate(gt.ones(1, 1, 8), 4, align_corners=False)
    with pytest.raises(TypeError, match="the tensor is int64, and must be of floats"):
        F.interpolate(gt.ones(1, 1, 8).long(), 4, mode="linear")
    with pytest.raises(ValueError, match="divisor_override=0 divides by 0"):
        F.avg_pool2d(gt.ones(1, 1, 8, 8), 2, divisor_override=0)


@pytest.mark.parametrize("wrong", [-0.5, 1.5, float("nan")])
def test_the_cross_entropy_of_what_is_no_probability_is_refused(engine, wrong):
    target = gt.tensor([1.0, 1.0, 0.0])
    assert gt.nn.binary_cross_entropy(gt.tensor([0.0, 1.0, 0.5]), target).item() > 30
    with pytest.raises(RemoteError, match=r"must be probabilities, 0 to 1|between 0 and 1"):
        gt.nn.binary_cross_entropy(gt.tensor([0.5, wrong, 0.5]), target).item()


def test_a_row_of_an_embedding_that_is_padding_gets_no_gradient(engine):
    rows = gt.ones(4, 3).requires_grad_()
    F.embedding(gt.tensor([1, 2, 1]), rows, padding_idx=1).sum().backward()
    assert rows.grad.data.sum(1).tolist() == [0, 0, 3, 0]


def test_attention_that_drops_leaves_out_some_and_makes_up_for_it(engine):
    ones = gt.ones(64, 32, 16)
    kept = F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.25).data
    assert len(np.unique(kept.round(4))) > 5 and abs(kept.mean() - 1) < 0.02
    assert (F.scaled_dot_product_attention(ones, ones, ones).data.round(4) == 1).all()


def test_running_statistics_of_instances_move_by_the_momentum(engine):
    mean, variance = gt.zeros(4), gt.ones(4)
    their_mean, their_variance = torch.zeros(4), torch.ones(4)
    F.instance_norm(gt.tensor(IMAGE), mean, variance, momentum=0.3)
    torch.nn.functional.instance_norm(torch.tensor(IMAGE), their_mean, their_variance, momentum=0.3)
    same(mean, their_mean)
    same(variance, their_variance)


@pytest.mark.parametrize("name", ["dropout", "dropout1d", "dropout2d", "alpha_dropout"])
def test_what_is_dropped_is_so_much_and_nothing_outside_of_training(engine, name):
    given = gt.ones(200, 50, 2) if name == "dropout1d" else gt.ones(200, 50, 2, 1)
    function = getattr(F, name)
    dropped = function(given, p=0.2, training=True).data
    smallest = (dropped == dropped.min()).mean()
    assert abs(smallest - 0.2) < 0.02
    assert abs(dropped.mean() - 1) < 0.05 or name == "alpha_dropout"
    assert (function(given, p=0.2, training=False).data == 1).all()
    if name.endswith("d"):  # whole channels
        assert (dropped == dropped[:, :, :1]).all()


def test_drawing_of_one_class_is_as_sharp_as_its_temperature(engine):
    scores = gt.tensor(np.tile(np.array([0.0, 1.0], "float32"), (4000, 1)))
    sharp, blunt = (F.gumbel_softmax(scores, tau=tau).data for tau in (0.1, 10.0))
    assert abs((sharp[:, 1] > 0.5).mean() - 1 / (1 + np.exp(-1))) < 0.03
    assert sharp.max(1).mean() > 0.9 and blunt.max(1).mean() < 0.65
    along = F.gumbel_softmax(scores, hard=True, dim=0).data
    assert along.sum(0).tolist() == [1.0, 1.0]
