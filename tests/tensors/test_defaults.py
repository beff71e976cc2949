"""What a call leaves out means what it means in PyTorch: every default is the one there."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.tensors.tensor import FUNCTIONS

MISSING = inspect.Parameter.empty
WRITTEN_IN_PYTHON = {
    "nn": (nn, torch.nn),
    "nn.functional": (nn.functional, torch.nn.functional),
    "nn.init": (nn.init, torch.nn.init),
    "optim": (optim, torch.optim),
    "optim.lr_scheduler": (optim.lr_scheduler, torch.optim.lr_scheduler),
}
OTHERWISE = {
    "Parameter data": "there is none without",
    "Parameter.norm p": "the same by another name: 'fro'",
    "ReduceLROnPlateau.step metrics": "a sentence asks for it where it is left out",
    "TransformerEncoderLayer activation": "torch's is the function of that name",
    "softmax dim": "torch guesses the axis, with a warning: here it is said",
    "log_softmax dim": "as for softmax",
    "softmin dim": "as for softmax",
    "round decimals": "torch's overload without them rounds to whole numbers",
    "dropout p": "that of torch.nn.functional; torch.dropout has none",
    "transpose dim0": "torch has none",
    "transpose dim1": "torch has none",
}
MEANT = {"correction": 1, "nan": 0.0}  # by None, in torch's C++


def parameters(call):
    """Of a function, or of a class and of those that it passes arguments on to, by name."""
    calls = reversed(call.__mro__) if inspect.isclass(call) else [call]
    found = {}
    for one in calls:
        with contextlib.suppress(ValueError):  # written in C
            found |= inspect.signature(one).parameters
    return found


def defaults(call):
    """Of each argument that has one, by name."""
    return {
        name: one.default for name, one in parameters(call).items() if one.default is not MISSING
    }


def both(ours, theirs):
    """Names in both that can be called, and methods of what is a class, with the two."""
    for name in dir(ours):
        one, other = getattr(ours, name), getattr(theirs, name, None)
        if not name.startswith("_") and callable(one) and callable(other):
            yield name, one, other
            if inspect.isclass(one) and inspect.isclass(other):
                yield from ((f"{name}.{method}", *two) for method, *two in both(one, other))


@pytest.mark.parametrize("where", WRITTEN_IN_PYTHON)
def test_defaults_are_those_of_torchs_signatures(where):
    compared, unlike = 0, []
    for name, one, other in both(*WRITTEN_IN_PYTHON[where]):
        known, expected = parameters(other), defaults(other)
        for argument, value in defaults(one).items():
            if argument in known:
                compared += 1
                if value != expected.get(argument, MISSING):
                    unlike.append(f"{name} {argument}")
    assert set(unlike) <= set(OTHERWISE), [one for one in unlike if one not in OTHERWISE]
    assert compared >= 20


def schemas(name):
    """What torch's functions and methods in C++ take."""
    return torch._C._jit_get_schemas_for_operator(f"aten::{name}")


def in_schemas(name, argument):
    """The defaults of an argument, of all overloads; [1, 1] is written 1 here."""
    for schema in schemas(name):
        for one in schema.arguments:
            if one.name == argument:
                value = one.default_value if one.has_default_value() else MISSING
                if isinstance(value, list) and len(set(value)) == 1:
                    value = value[0]
                yield MEANT.get(argument) if value is None else value


@pytest.mark.parametrize("where", ["functions", "methods"])
def test_numbers_that_are_left_out_are_those_of_torchs_schemas(where):
    calls = FUNCTIONS if where == "functions" else vars(gt.Tensor)
    compared, unlike = 0, []
    for name, call in calls.items():
        if name.startswith("_") or not inspect.isfunction(call):
            continue
        for argument, value in defaults(call).items():
            known = list(in_schemas(name, argument))
            if known and isinstance(value, (bool, int, float)):
                compared += 1
                if value not in known:
                    unlike.append(f"{name} {argument}")
    assert set(unlike) <= set(OTHERWISE), [one for one in unlike if one not in OTHERWISE]
    assert compared >= 50
