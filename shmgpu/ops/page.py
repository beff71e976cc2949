"""The page of operations (``README.md`` beside this file), written from the table.

Run ``python -m shmgpu.ops.page`` after a row was added or changed; a test says when that was
forgotten. Nothing else imports this.
"""

from __future__ import annotations

import inspect
import pathlib
import types
from typing import Any

from shmgpu import ops
from shmgpu.ops.graph import Op

PAGE = pathlib.Path(__file__).with_name("README.md")

HEAD = """\
# The operations

Written by `python -m shmgpu.ops.page`; do not edit. Each row of the table stands in the file of its
family, beside the functions that record it, and says all there is to know of an operation: the rule
from its inputs' shapes and types to its output's, a kernel of NumPy and one of torch, and the
gradient of each input. Children ask rules and gradients, helpers ask rules and kernels; the tests
and this page are made from the same rows.

Functions that have no row are recorded as several operations, gradients and all.

*Rule* decides on the output's shape and type: one that several rows share has a name. *NumPy* and
*torch* compute it: a name is a function of the library as it is, *own* one that is written in the
row's file. *Gradients*: for each input, yes or a dash. *Keeps* is what they
look at again. *Memory* says where the output lies: a *view* on the first input, *given* into a
buffer that the plan chose, *over* an input of the same shape that nobody needs any more, or its
*own*.
"""


def records(family: types.ModuleType) -> list[str]:
    """The family's functions that record something, with their parameters."""
    found = []
    for name, value in vars(family).items():
        is_own = inspect.isfunction(value) and value.__module__ == family.__name__
        if is_own and not name.startswith("_") and str(inspect.signature(value)).endswith(RECORDED):
            found.append(f"`{name}({', '.join(inspect.signature(value).parameters)})`")
    return found


RECORDED = ("-> 'Node'", "-> 'tuple[Node, ...]'", "-> 'Node | Found'", "-> 'Found'")


def _gradients(op: Op) -> str:
    rules = op.gradients
    if len(rules) == 0:
        return "none"
    if len(rules) > 8 or not isinstance(rules, tuple):
        return "each input" if len(rules) > 8 else f"the first {len(rules)}"
    return ", ".join("—" if rule is None else "yes" for rule in rules)


def _memory(op: Op) -> str:
    if op.is_view:
        return "view"
    if op.in_place:
        return "over"
    return "given" if op.takes_out else "own"


def _rule(op: Op) -> str:
    """A rule that several rows share, by its name."""
    name = op.rule.__qualname__.partition(".")[0]
    return OWN if name.startswith(("_", "<")) else name


def _kernel(binder: Any) -> str:
    """A function of the library as it is, by its name."""
    name = getattr(binder, "library_name", None)
    return OWN if name is None else f"`{name}`"


OWN = "own"
_KEEPS = {"": "—", "i": "inputs", "o": "output", "io": "inputs, output"}


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for family in ops.FAMILIES:
        name = family.__name__.rpartition(".")[2]
        parts.append(f"\n## {name}\n\n[{name}.py]({name}.py): {_sentence(family)}\n")
        rows = [op for op in vars(family).values() if isinstance(op, Op) and home(op) is family]
        if rows:
            parts.append(
                "\n| operation | rule | NumPy | torch | gradients | keeps | memory |\n"
                "|---|---|---|---|---|---|---|\n"
            )
            parts.extend(
                f"| `{op.name}` | {_rule(op)} | {_kernel(op.numpy)} | {_kernel(op.torch)} "
                f"| {_gradients(op)} | {_KEEPS[op.saves]} | {_memory(op)} |\n"
                for op in rows
            )
        functions = records(family)
        if functions:
            parts.append("\nRecorded by " + ", ".join(functions) + ".\n")
    return "".join(parts)


def home(op: Op) -> types.ModuleType:
    """The family in whose file the row stands: others may import it."""
    (found,) = [
        family for family in ops.FAMILIES if op in vars(family).values() and _defines(family, op)
    ]
    return found


def _defines(family: types.ModuleType, op: Op) -> bool:
    name = next(name for name, value in vars(family).items() if value is op)
    return f"\n{name} = " in inspect.getsource(family) or f"\n{name}: Op = " in inspect.getsource(
        family
    )


def _sentence(family: types.ModuleType) -> str:
    """The first sentence of what a family says of itself."""
    first = (family.__doc__ or "").partition("\n\n")[0]
    return " ".join(first.split())


def main() -> None:
    """Write the page."""
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
