"""Writes stubs of what is made as the package runs: ``python tests/stubs.py``.

Operations become functions and methods of tensors by a table, and layers get their arguments from
another; what a call gives depends on what it was given. Type checkers cannot see either, so they
read these files instead. Nothing at run time does. ``--check`` writes nothing, and fails where a
stub is not what would be written.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import shmgpu
from shmgpu import distributed, nn
from shmgpu.nn import containers, functional, losses, simple
from shmgpu.tensors import base, elements
from shmgpu.tensors.tensor import DTYPES, FUNCTIONS, Tensor

PACKAGE = pathlib.Path(shmgpu.__file__).resolve().parent
MADE = '''"""{} For type checkers only.

Made by tests/stubs.py: change that, and run it.
"""
'''

# ---- calls of functions that helpers run ---------------------------------------------------------

# What a function declares of its first arguments, what it may be given instead, and how many first
# arguments there may be of that kind.
KINDS = (("torch.Tensor", "Given", 4), ("NDArray[Any]", "Other", 2))
RESULTS = ("{}", "tuple[{0}, {0}]", "tuple[{0}, {0}, {0}]", "list[{}]", "dict[str, {}]")
# Ways to call: what each gives of the result. That of a broadcast is dropped.
WAYS = {
    "__call__": ("{}", "Run in a helper and wait for the result."),
    "submit": ("CallFuture[{}]", "Send the call without waiting; never blocks."),
    "aio": ("Started[{}]", "Send the call from a running event loop; returns an awaitable."),
}

CALLS = """
# mypy: disable-error-code="overload-overlap"
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch
from numpy.typing import NDArray

from shmgpu.child.futures import CallFuture, Started
from shmgpu.tensors.base import Tensor

P = ParamSpec("P")
Q = ParamSpec("Q")  # after the first arguments, which are arrays
R = TypeVar("R")
X = TypeVar("X")

# A function of torch tensors may be called with these, and one of arrays with those: its results
# are then of that kind, too.
Array = NDArray[Any] | Tensor
Given = TypeVar("Given", NDArray[Any], Tensor)
Other = TypeVar("Other", torch.Tensor, Tensor)

# The type of the function itself: mypy looks only there at what its first arguments are.
B = TypeVar("B", covariant=True)

class Ways(Generic[P, R, B]):
    \"\"\"The ways to call a function that helpers run.\"\"\"
"""

EXACT = "*args: P.args, **kwargs: P.kwargs"
REST = "*args: Q.args, **kwargs: Q.kwargs"
MAP_REST = "*more: Iterable[Any], in_flight: int | None = None, progress: bool | None = None"


def forms() -> Iterator[tuple[str, str, int, str, str]]:
    """Each kind and number of arrays with each result: declared, and what is given and got."""
    for declared, given, most in KINDS:
        for count in range(1, most + 1):
            for result in RESULTS:
                yield declared, given, count, result.format(declared), result.format(given)
            yield declared, given, count, "R", "R"


def _overload(name: str, self: str, parameters: str, result: str, doc: str = "") -> list[str]:
    end = f'\n        """{doc}"""' if doc else " ..."
    return ["    @overload", f"    def {name}(self: {self}, {parameters}) -> {result}:{end}"]


def _taking(declared: str, count: int, result: str) -> str:
    """The type of a function whose first arguments are arrays."""
    first = ", ".join([declared] * count)
    body = f"Callable[Concatenate[Any, {first}, ...], Any]"
    return f"Ways[Concatenate[{first}, Q], {result}, {body}]"


def calls() -> str:
    """typed_calls.pyi."""
    lines = [MADE.format("What calls take and give."), CALLS.strip("\n")]
    for name, (gives, doc) in WAYS.items():
        lines += _overload(name, "Ways[P, R, Any]", EXACT, gives.format("R"), doc)
        for declared, given, count, result, got in forms():
            arrays = ", ".join(f"{letter}: {given}" for letter in "abcd"[:count])
            self = _taking(declared, count, result)
            lines += _overload(name, self, f"{arrays}, /, {REST}", gives.format(got))
        lines.append("")
    doc = "Call with each item (or tuple of items) and yield the results in order."
    for declared, given, count, result, got in forms():
        if count == 1:
            items = f"items: Iterable[{given}], /, {MAP_REST}"
            lines += _overload("map", _taking(declared, 1, result), items, f"Iterator[{got}]")
    items = f"items: Iterable[X], /, {MAP_REST}"
    lines += [*_overload("map", _taking("X", 1, "R"), items, "Iterator[R]", doc), ""]
    doc = "As :func:`shmgpu.broadcast`."
    lines += _overload("broadcast", "Ways[P, R, Any]", EXACT, "int", doc)
    for declared, given, _ in KINDS:
        self = _taking(declared, 1, "Any")
        lines += _overload("broadcast", self, f"a: {given}, /, {REST}", "int")
    lines += ["", "class Calls(Ways[P, R, Callable[Concatenate[Any, P], R]], Generic[P, R]): ..."]
    return "\n".join(lines) + "\n"


# ---- operations ----------------------------------------------------------------------------------

OPERATIONS = """
import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, SupportsIndex, overload

from shmgpu.codec.dtypes import DType
from shmgpu.distributed.placements import Placement
from shmgpu.parallel.device_mesh import DeviceMesh
from shmgpu.parallel.tensors import Placements
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.factories import Sizes
from shmgpu.tensors.generators import Generator

class SupportsArray(Protocol):
    \"\"\"An array of NumPy, a tensor of torch.\"\"\"
    def __array__(self) -> Any: ...

Array = Tensor | SupportsArray
Number = builtins.complex

class Found(NamedTuple):
    \"\"\"Elements, and where they were.\"\"\"
    values: Tensor
    indices: Tensor

class Extremes(NamedTuple):
    \"\"\"The smallest and the largest element.\"\"\"
    min: Tensor
    max: Tensor
"""

BUILTINS = "bool complex float int str tuple type"
# Those whose result depends on the arguments: parameters after the first one, and results.
FORMS = {
    "max": (
        ("dim: None = None, keepdim: bool = False", "Tensor"),
        ("dim: int, keepdim: bool = False", "Found"),
        ("*, axis: int, keepdims: bool = False", "Found"),
        ("other: Array", "Tensor"),
        ("dim: Sequence[int], keepdim: bool = False", "Tensor"),
    ),
    "median": (
        ("dim: None = None, keepdim: bool = False", "Tensor"),
        ("dim: int, keepdim: bool = False", "Found"),
    ),
}
FORMS["min"] = FORMS["max"]
WHERE = (("", "tuple[Tensor, ...]"), ("input: Array | Number, other: Array | Number", "Tensor"))
OTHER = "other: Array | Number"
OPERATORS = "add sub mul truediv pow mod floordiv matmul and or xor lshift rshift".split()
COMPARISONS = "lt le gt ge".split()
ALIASES = {"dim": "axis", "keepdim": "keepdims"}  # NumPy's names, which are taken, too


def _words(annotation: Any, is_result: bool = False) -> str:
    """An annotation as the stub has it, where names of tensors' methods hide Python's own."""
    text = str(annotation).replace("typing.", "")
    if not is_result:
        text = re.sub(r"\bTensor\b", "Array", text)
        text = re.sub(r"\bcomplex\b", "Number", text)
    text = text.replace("(values, indices)", "Found")
    return re.sub(rf"(?<![.\w])({BUILTINS.replace(' ', '|')})\b", r"builtins.\1", text)


def _default(value: Any) -> str:
    return "..." if not isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _parameters(call: Callable[..., Any], first: str) -> str:
    """The parameters but the first one, which is ``self`` or as said."""
    signature = inspect.signature(call)
    own = list(signature.parameters.values())
    listed = [first] if first else []
    is_keyword = False
    for place, one in enumerate(own[1:], 1):
        name = one.name
        if place == 1 and len(name) == 1 and name in "by":
            name = "other"
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            name, is_keyword = f"*{name}", True
        elif one.kind is inspect.Parameter.VAR_KEYWORD:
            name = f"**{name}"
        elif one.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            listed.append("*")
            is_keyword = True
        text = f"{name}: {_words(one.annotation)}"
        if one.default is not inspect.Parameter.empty:
            text += f" = {_default(one.default)}"
        listed.append(text)
    for name, also in ALIASES.items():
        found = signature.parameters.get(name) if hasattr(call, "__wrapped__") else None
        if found is not None and found.default is not inspect.Parameter.empty:
            listed += ["*"] * (not is_keyword)
            is_keyword = True
            listed.append(f"{also}: {_words(found.annotation)} = {_default(found.default)}")
    return ", ".join(listed)


def _first(signature: inspect.Signature) -> str:
    """The first parameter of a function: PyTorch calls it ``input`` where we have a letter."""
    one = next(iter(signature.parameters.values()))
    name = "input" if len(one.name) == 1 else one.name
    star = "*" if one.kind is inspect.Parameter.VAR_POSITIONAL else ""
    return f"{star}{name}: {_words(one.annotation)}"


def declared(name: str, call: Callable[..., Any], is_method: bool = False) -> list[str]:
    """An operation, as a function or a method."""
    signature = inspect.signature(call)
    first = "self" if is_method else _first(signature)
    if name == "where":
        forms = (
            [("self, condition: Array, other: Array | Number", "Tensor")]
            if is_method
            else [
                (", ".join(filter(None, ("condition: Array", rest))), result)
                for rest, result in WHERE
            ]
        )
    elif name in FORMS:
        forms = [(f"{first}, {_words(rest, True)}", result) for rest, result in FORMS[name]]
    else:
        forms = [(_parameters(call, first), _words(signature.return_annotation, True))]
    before = ["@overload"] * (len(forms) > 1)
    made = []
    for parameters, result in forms:
        made += [*before, f"def {name}({parameters}) -> {result}: ..."]
    return made


def _in_text(module: types.ModuleType) -> set[str]:
    """The methods that the text of a module defines, which type checkers see themselves."""
    tree = ast.parse(inspect.getsource(module))
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}


def _method(name: str, known: set[str]) -> list[str]:
    value = inspect.getattr_static(Tensor, name)
    plain = name.removesuffix("_")
    if name in known or name.startswith("_"):
        return []
    if isinstance(value, property):
        result = inspect.signature(value.fget).return_annotation
        return ["@property", f"def {name}(self) -> {_words(result, True)}: ..."]
    if not callable(getattr(Tensor, name)):
        return []
    if not inspect.isfunction(value):  # one of the casts
        return [f"def {name}(self) -> Tensor: ..."]
    if name != plain and plain in FUNCTIONS:
        parameters = _parameters(FUNCTIONS[plain], "self")
        return [f"def {name}({parameters}) -> Tensor: ..."]
    return declared(name, value, is_method=True)


def operations() -> str:
    """tensors/typed_operations.pyi."""
    importlib.import_module("shmgpu.parallel.tensors")  # which adds methods, too
    lines = [MADE.format("Operations, as functions and as methods of tensors.")]
    lines += [OPERATIONS.strip("\n"), "", "class Operations:"]
    lines.append('    """The methods of tensors that are made of functions."""')
    known = {name for one in (base, elements) for name in _in_text(one)}
    for operator in OPERATORS:
        for form in ("", "r", "i"):
            lines.append(f"    def __{form}{operator}__(self, {OTHER}) -> Tensor: ...")
    for operator in COMPARISONS:
        lines.append(f"    def __{operator}__(self, {OTHER}) -> Tensor: ...")
    for operator in ("eq", "ne"):
        lines.append(
            f"    def __{operator}__(self, other: object) -> Tensor: ...  # type: ignore[override]"
        )
    lines.append("    def __hash__(self) -> builtins.int: ...")
    for operator in ("neg", "abs", "invert"):
        lines.append(f"    def __{operator}__(self) -> Tensor: ...")
    for name in vars(Tensor):
        lines += ["    " + line for line in _method(name, known)]
    lines.append("")
    for name, call in FUNCTIONS.items():
        lines += declared(name, call)
    lines += ["", *[f"{name}: DType" for name in DTYPES]]
    return "\n".join(lines) + "\n"


# ---- layers --------------------------------------------------------------------------------------

LAYERS = """
from typing import Any

import shmgpu.nn.attention
import shmgpu.nn.convolution
import shmgpu.nn.layers
import shmgpu.nn.losses
import shmgpu.nn.normalisation
import shmgpu.nn.recurrent
import shmgpu.nn.simple
from shmgpu.tensors.base import Tensor
"""
# Settings that are one number or one for each axis.
SIZES = frozenset("kernel_size stride padding dilation output_size size scale_factor".split())
# What layers give where that is not one tensor.
GIVES = {
    "GRU": "tuple[Tensor, Tensor]",
    "LSTM": "tuple[Tensor, tuple[Tensor, Tensor]]",
    "LSTMCell": "tuple[Tensor, Tensor]",
    "MultiheadAttention": "tuple[Tensor, Tensor | None]",
    "RNN": "tuple[Tensor, Tensor]",
}


def _setting(name: str, value: Any) -> str:
    """A setting of a layer, by its default."""
    is_open = value is None or name in SIZES
    return f"{name}: {'Any' if is_open else type(value).__name__} = {value!r}"


def _settings(cls: Any) -> list[str]:
    """Of a layer whose settings stand in a table."""
    buffers = getattr(cls, "buffers_of", ())
    kept = [f"{name}: Tensor | None = None" for name in buffers]
    return [*kept[:1], *[_setting(*one) for one in cls.defaults], *kept[1:]]


def _inputs(cls: Any) -> str:
    """What a layer is called with."""
    if issubclass(cls, losses._Loss):
        call = inspect.signature(getattr(functional, cls.function))
        needed = [one for one in call.parameters.values() if one.default is one.empty]
        return ", ".join(f"{one.name}: {one.annotation}" for one in needed)
    parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    return ", ".join(str(one).replace("'", "") for one in parameters)


def _is_layer(value: Any) -> bool:
    """Whether it is a module that computes something of its own."""
    is_module = isinstance(value, type) and issubclass(value, nn.Module)
    return is_module and value.__module__ not in (nn.Module.__module__, containers.__name__)


def layers() -> str:
    """nn/typed_layers.pyi."""
    lines = [MADE.format("Layers as they are made and called."), LAYERS.strip("\n")]
    for name in nn.__all__:
        cls = getattr(nn, name)
        if not _is_layer(cls) or cls is nn.Identity:
            continue
        lines += ["", f"class {name}({cls.__module__}.{name}):"]
        if issubclass(cls, (simple._Operation, losses._Loss)):
            made = ", ".join(["self", *_settings(cls)])
            lines.append(f"    def __init__({made}) -> None: ...")
        given = ", ".join(["self", _inputs(cls)])
        lines.append(f"    def __call__({given}) -> {GIVES.get(name, 'Tensor')}: ...")
    return "\n".join(lines) + "\n"


def layer_functions() -> str:
    """nn/typed_functional.pyi."""
    lines = [MADE.format("Layers as functions.")]
    lines += ["import builtins", "from collections.abc import Sequence"]
    lines += ["from typing import Any", "", "from shmgpu.tensors.base import Tensor"]
    lines += ["from shmgpu.tensors.typed_operations import Array, Number", ""]
    for name, call in functional.FOUND.items():
        if name not in vars(functional):
            whole = getattr(call, "records_as", call)
            more = ", inplace: builtins.bool = False" if whole is not call else ""
            (line,) = declared(name, whole)
            lines.append(line.replace(") ->", f"{more}) ->"))
    return "\n".join(lines) + "\n"


# ---- names that are loaded when they are asked for -----------------------------------------------


def _loaded(names: dict[str, str]) -> list[str]:
    return [f"from shmgpu.{module} import {name} as {name}" for name, module in names.items()]


def names() -> str:
    """typed_names.pyi."""
    lines = [MADE.format("The names of shmgpu that are loaded when they are first named.")]
    lines += ["import builtins"]
    lines += [f"from shmgpu import {one} as {one}" for one in sorted(shmgpu._LAZY_MODULES)]
    lines += _loaded(shmgpu._TENSOR_NAMES)
    lines.append("from shmgpu.tensors.typed_operations import (")
    lines += [f"    {name} as {name}," for name in (*FUNCTIONS, *DTYPES)]
    lines.append(")")
    kinds = {tuple: "type[builtins.tuple[builtins.int, ...]]", None: "None"}
    for name, value in shmgpu._CONSTANTS.items():
        kind = "builtins.float" if isinstance(value, float) else kinds[value]
        lines.append(f"{name}: {kind}")
    return "\n".join(lines) + "\n"


def distributed_names() -> str:
    """distributed/typed_names.pyi."""
    lines = [MADE.format("The names of shmgpu.distributed, which are loaded when first named.")]
    return "\n".join([*lines, *_loaded(distributed._NAMES)]) + "\n"


def nn_names() -> str:
    """nn/typed_names.pyi."""
    lines = [MADE.format("The operations that are in shmgpu.nn, too.")]
    also = {**{name: name for name in FUNCTIONS}, **nn._ALSO}
    lines.append("from shmgpu.tensors.typed_operations import (")
    lines += [f"    {of} as {name}," for name, of in also.items()]
    return "\n".join([*lines, ")"]) + "\n"


STUBS = {
    "typed_calls.pyi": calls,
    "typed_names.pyi": names,
    "distributed/typed_names.pyi": distributed_names,
    "nn/typed_functional.pyi": layer_functions,
    "nn/typed_layers.pyi": layers,
    "nn/typed_names.pyi": nn_names,
    "tensors/typed_operations.pyi": operations,
}


def main(arguments: list[str]) -> int:
    """Write the stubs, or look whether they are as they would be written."""
    made = {PACKAGE / path: text() for path, text in STUBS.items()}
    if arguments != ["--check"]:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(PACKAGE.parent)} is not what tests/stubs.py makes: run it")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
