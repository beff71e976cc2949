"""Models that ``torch.export.save`` wrote: such a file knows its inputs, outputs and open axes.

Owns how such a file is read and called. Never imports torch before one is loaded.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from shmgpu.errors import ConfigError
from shmgpu.serve.models.adapters import sidecar, tensors
from shmgpu.serve.models.declaration import MOST_ROWS, Model, Tensor


def load(helper: Any, path: str) -> Model:
    """The model of an exported program, on the helper's device.

    It is batched where axis 0 of all inputs and outputs was exported as one dynamic dimension.

    Raises:
        ConfigError: it is no such file, or takes what is no tensor.
    """
    torch = tensors.torch_for(path)
    from torch.utils import _pytree as pytree

    with tensors.opening(path, "a file of torch.export.save"), _raising_what_it_logs():
        program = torch.export.load(path)
    if helper.device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, helper.device)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    leaves = [one.arg for one in program.graph_signature.input_specs if one.kind.name == _USER]
    indices = [index for index, one in enumerate(leaves) if type(one).__name__ == "TensorArgument"]
    template = [getattr(one, "value", None) for one in leaves]
    found = [_tensor(leaves[index].name, values[leaves[index].name]) for index in indices]
    given = [one.arg for one in program.graph_signature.output_specs if one.kind.name == _OUTPUT]
    if not all(type(one).__name__ == "TensorArgument" for one in given):
        raise ConfigError(
            f"{path} returns something other than tensors: export a module that returns tensors"
        )
    structure = program.call_spec.out_spec
    names = (
        [str(key) for key in structure.context]
        if structure.type is dict and len(structure.context) == len(given)
        else tensors.output_names(len(given))
    )
    gives = [_tensor(name, values[one.name]) for name, one in zip(names, given, strict=True)]
    config = sidecar.read(path)
    inputs = config.tensors("inputs", found, by_name=False)
    outputs = config.tensors("outputs", gives, by_name=False)
    least, most = _rows(
        program, [values[leaves[index].name] for index in indices] + [values[o.name] for o in given]
    )
    in_spec = program.call_spec.in_spec
    helper.session = program.module()

    def serve(helper: Any, *arrays: Any) -> Any:
        rows = len(arrays[0]) if most else least
        if rows < least:
            arrays = tuple(_padded(torch, one, least) for one in arrays)
        flat = list(template)
        for index, one in zip(indices, arrays, strict=True):
            flat[index] = one
        args, kwargs = pytree.tree_unflatten(flat, in_spec)
        with torch.inference_mode():
            results = pytree.tree_leaves(helper.session(*args, **kwargs))
        return tuple(one[:rows] for one in results) if rows < least else tuple(results)

    return config.make(
        serve, inputs, outputs, arrays="torch", platform="pytorch_export", most_rows=most
    )


_USER, _OUTPUT = "USER_INPUT", "USER_OUTPUT"


@contextlib.contextmanager
def _raising_what_it_logs() -> Iterator[None]:
    """Torch logs why it cannot read a file, with a traceback, and then raises something vague."""
    logged: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            logged.append(error)
        return error is None

    log = logging.getLogger("torch.export")
    log.addFilter(keep)
    try:
        yield
    except Exception as error:
        raise (logged[0] if logged else error) from None
    finally:
        log.removeFilter(keep)


def _tensor(name: str, value: Any) -> Tensor:
    shape = tuple(extent if isinstance(extent, int) else -1 for extent in value.shape)
    return Tensor(name, sidecar.datatype_of(value.dtype, name), shape)


def _rows(program: Any, values: list[Any]) -> tuple[int, int]:
    """How few and how many rows the program takes as one: 0, 0 where axis 0 is no batch."""
    firsts: list[Any] = [one.shape[0] if len(one.shape) else 0 for one in values]
    if any(isinstance(one, int) for one in firsts) or len({str(one) for one in firsts}) > 1:
        return 0, 0
    bounds = program.range_constraints.get(firsts[0].node.expr)
    if bounds is None:  # it is computed from another axis
        return 0, 0
    # Unless it was given, the upper bound is an infinity, which is no int.
    most = int(min(bounds.upper, MOST_ROWS))
    # Two is the exporter's own bound, which it writes down and does not hold programs to.
    least = int(bounds.lower)
    return least if least > 2 else 1, most


def _padded(torch: Any, rows: Any, count: int) -> Any:
    """A batch as long as it was exported for at least, the last row, or one of zeros, repeated."""
    last = rows[-1:] if len(rows) else rows.new_zeros((1, *rows.shape[1:]))
    return torch.cat([rows, last.expand(count - len(rows), *rows.shape[1:])])
