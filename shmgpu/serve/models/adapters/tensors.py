"""What both torch adapters share: the import, and results as flat lists of tensors.

Owns the sentences for files that cannot be loaded. Never imports torch before one is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shmgpu.errors import ConfigError
from shmgpu.serve.models.adapters.sidecar import datatype_of, zeros
from shmgpu.serve.models.declaration import Tensor


def torch_for(path: str) -> Any:
    """The module torch.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"{path} needs torch, which is missing ({error}): install it") from None
    return torch


@contextlib.contextmanager
def opening(path: str, what: str) -> Iterator[None]:
    """Raises ConfigError when a framework cannot read a file."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = reason.partition(" This is an internal")[0]  # of torch, to whoever mends torch
        raise ConfigError(f"{path} cannot be loaded: {what} was expected ({reason})") from None


def reason_of(error: BaseException) -> str:
    """The last line of what torch says, which has the reason, without the error's type."""
    last = (str(error).strip() or "no reason").splitlines()[-1]
    return last.removeprefix(f"{type(error).__name__}: ")


def flat(result: Any) -> tuple[list[Any], list[str]]:
    """The tensors of a result, and their names where it is a dictionary (else no names)."""
    if isinstance(result, dict):
        return list(result.values()), [str(name) for name in result]
    return (list(result), []) if isinstance(result, (tuple, list)) else ([result], [])


def output_names(count: int) -> list[str]:
    """Of outputs that have none."""
    return ["output"] if count == 1 else [f"output_{index}" for index in range(count)]


def find_outputs(
    torch: Any, run: Any, helper: Any, inputs: list[Tensor], path: str
) -> list[Tensor]:
    """What the model of a file gives: it is run twice, on zeros of two sizes; what differs is open.

    Raises:
        ConfigError: it could not be run, so that its outputs must be declared.
    """
    seen = []
    for rows in (2, 3):
        sample = [
            _as_declared(torch, array, one).to(helper.device)
            for array, one in zip(zeros(inputs, rows, 6 + rows), inputs, strict=True)
        ]
        try:
            found, names = flat(run(helper, *sample))
            shapes = [tuple(one.shape) for one in found]
        except Exception as error:
            kind = type(error).__name__
            raise ConfigError(
                f"{path} could not be run on zeros to find out what it gives ({kind}: "
                f"{reason_of(error)}): "
                "correct the shapes and datatypes of its inputs, or declare datatypes and shapes "
                'of "outputs" beside it'
            ) from None
        seen.append(shapes)
    names = names or output_names(len(found))
    return [
        Tensor(
            name,
            datatype_of(one.dtype, name),
            tuple(-1 if a != b else a for a, b in zip(before, after, strict=True)),
        )
        for name, one, before, after in zip(names, found, *seen, strict=True)
    ]


def _as_declared(torch: Any, array: Any, one: Tensor) -> Any:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if one.datatype == "BF16" else tensor


def are_rows(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether axis 0 of all may have any length."""
    return all(one.shape and one.shape[0] == -1 for one in (*inputs, *outputs))
