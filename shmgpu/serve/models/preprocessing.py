"""What workers do to a request's inputs before helpers get them: a model's ``prepare``.

Owns finding that function, in a module of its own so that a worker need not open the model's file,
and the check of what it returned. It runs in the worker's loop, so it should take no longer than
tokenising a sentence, and never import torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shmgpu.common import module_loader
from shmgpu.common.wording import kind_of
from shmgpu.errors import ConfigError
from shmgpu.serve.models.request_context import Scalar
from shmgpu.serve.models.response_parameters import checked
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import TensorMetadata

Prepare = Callable[..., Any]


class PreparedInputs:
    """What a model's ``prepare`` may return: inputs of its function, and what clients are told.

    Attributes:
        arrays: those that the model declares in ``prepared=``: one, a tuple in order, or a
            dictionary by name.
        parameters: of the answer, such as how much of a text was cut off; as
            ``helper.response.parameters``: a plain value by name, or a list with one for each row.
    """

    def __init__(self, arrays: Any, parameters: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.parameters = parameters


def find(reference: str, model: str, key: str = "prepare") -> Prepare:
    """The function that a model names.

    A file beside the model's is read anew for each source, so that it is reloaded with its model.

    Args:
        reference: ``"module:function"``.
        model: the path of the model's file.
        key: which of the model's parameters names it.

    Raises:
        ConfigError: there is none.
    """
    module_name, _, name = reference.partition(":")
    folder = os.path.dirname(model)
    file = os.path.join(folder, *module_name.split(".")) + ".py"
    try:
        if os.path.exists(file):
            if folder not in sys.path:
                sys.path.insert(0, folder)  # what it imports may lie there, too
            module = module_loader.anew(module_name, file)
        else:
            module = importlib.import_module(module_name)
        found = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'{key}="{reference}" of {model} cannot be found ({error}): name a module beside the '
            "model, or one that is installed, and a function of it"
        ) from None
    if not callable(found):
        raise ConfigError(f'{key}="{reference}" of {model} is not a function')
    prepare: Prepare = found
    return prepare


def call(
    prepare: Prepare, inputs: Sequence[Any], expected: Sequence[TensorMetadata], rows: int | None
) -> tuple[list[np.ndarray[Any, Any]], dict[str, Scalar]]:
    """What a model's function is to get, in order, and parameters of the answer.

    Args:
        prepare: the model's.
        inputs: a request's, in order; BYTES as an array of ``bytes`` objects.
        expected: what it declares that ``prepare`` returns.
        rows: of the request; None where the model is not batched.

    Raises:
        ConfigError: it returned something else. What it raises itself passes through.
    """
    result, told = prepare(*inputs), {}
    if isinstance(result, PreparedInputs):
        told = checked(result.parameters, "prepare", rows)
        result = result.arrays
    if isinstance(result, dict):
        missing = [one.name for one in expected if one.name not in result]
        if missing:
            raise ConfigError(f"prepare returned no {missing[0]!r}")
        result = [result[one.name] for one in expected]
    elif isinstance(result, np.ndarray):
        result = [result]
    if not isinstance(result, (tuple, list)) or len(result) != len(expected):
        raise ConfigError(
            f"prepare must return {len(expected)} arrays, as the model declares in prepared=, not "
            f"{kind_of(result)}"
        )
    arrays = [_checked(array, one, rows) for array, one in zip(result, expected, strict=True)]
    return arrays, told


def _checked(
    array: Any, declared: TensorMetadata, rows: int | None
) -> np.ndarray[Any, np.dtype[Any]]:
    found = np.asarray(array, datatypes.DATATYPES[declared.datatype].storage)
    if not declared.fits(found.shape) or (rows is not None and len(found) != rows):
        wanted = list(declared.shape)
        raise ConfigError(
            f"prepare returned {declared.name!r} with the shape {list(found.shape)}, and the model "
            f"declares {wanted}" + ("" if rows is None else f" for {rows} rows")
        )
    return found
