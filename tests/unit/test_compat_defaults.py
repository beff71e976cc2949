"""What calls of other packages' names leave out means what it means there.

Those packages are not installed here: what their pages and signatures say is written down below.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

from shmgpu.tensors.tensor import Tensor

CONVOLUTION = {"stride": 1, "dilation": 1, "padding": 0}
POOLING = {"kernel_size": (2, 2), "stride": None, "dilation": 1, "padding": 0}
ADAM = {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-8}
NORMS = {"affine": True, "track_running_stats": True, "momentum": 0.1}
SAID = {
    "tinygrad.nn.BatchNorm": {"eps": 1e-5, **NORMS},
    "tinygrad.nn.optim.SGD": {"lr": 0.001, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
    "tinygrad.nn.optim.Adam": ADAM,
    "tinygrad.nn.optim.AdamW": {**ADAM, "weight_decay": 0.01},
    "tinygrad.nn.state.get_state_dict": {"prefix": ""},
    "tinygrad.nn.state.load_state_dict": {"strict": True},
    "tinygrad.helpers.getenv": {"default": 0},
    "tinygrad.helpers.colored": {"background": False},
    "tinygrad.methods.shard": {"axis": None},
    "tinygrad.methods.backward": {"gradient": None},
    "tinygrad.methods.mean": {"axis": None, "keepdim": False},
    "tinygrad.methods.METHODS.max": {"axis": None, "keepdim": False},
    "tinygrad.methods.METHODS.min": {"axis": None, "keepdim": False},
    "tinygrad.methods.METHODS.cat": {"dim": 0},
    "tinygrad.methods.METHODS.stack": {"dim": 0},
    "tinygrad.methods.conv2d": {"bias": None, "groups": 1, **CONVOLUTION},
    "tinygrad.methods.max_pool2d": POOLING,
    "tinygrad.methods.avg_pool2d": POOLING,
    "tinygrad.methods.linear": {"bias": None},
    "tinygrad.methods.dropout": {"p": 0.5},
    "tinygrad.methods.softmax": {"axis": -1, "dtype": None},
    "tinygrad.methods.log_softmax": {"axis": -1, "dtype": None},
    "tinygrad.methods.layernorm": {"axis": -1, "eps": 1e-5},
    "tinygrad.methods.transpose": {"dim0": 1, "dim1": 0},
    "tinygrad.methods.sparse_categorical_crossentropy": {
        "ignore_index": -1, "label_smoothing": 0.0, "reduction": "mean",
    },
    "tinygrad.tensor._uniform": {"low": 0.0, "high": 1.0},
    "tinygrad.tensor._integers": {"low": 0, "high": 10},
    "netcl.collectives.all_reduce": {"op": "sum", "overlap": False},
    "netcl.collectives.all_reduce_p2p": {"op": "sum"},
    "netcl.collectives.broadcast": {"root": 0},
    "netcl.replicas.broadcast_params": {"root": 0},
    "netcl.training.data_parallel_step": {"overlap": True, "compress": None},
    "gt.tensor": {"dtype": None, "requires_grad": False},
    "gt.from_numpy": {"requires_grad": False},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _methods_of_tensors_stay():
    """Whoever imports tinygrad's names changes those of all tensors."""
    before = dict(vars(Tensor))
    yield
    for name in vars(Tensor).keys() - before.keys():
        delattr(Tensor, name)
    for name, method in before.items():
        if vars(Tensor)[name] is not method:
            setattr(Tensor, name, method)


def named(path):
    """What a name below shmgpu.compat stands for; METHODS is a dictionary."""
    module, _, name = path.rpartition(".")
    where = importlib.import_module(f"shmgpu.compat.{module.removesuffix('.METHODS')}")
    return where.METHODS[name] if module.endswith(".METHODS") else getattr(where, name)


@pytest.mark.parametrize("path", SAID)
def test_what_is_left_out_is_what_it_is_there(path):
    found = inspect.signature(named(path)).parameters
    assert {name: found[name].default for name in SAID[path]} == SAID[path]
