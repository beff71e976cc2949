"""A planned program as a Python function: straight-line source, no interpreter loop.

Owns the source and what its names mean. Running it costs a call a step, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.engine import plan as planning
from shmgpu.engine.backends import Backend
from shmgpu.engine.plan import Options
from shmgpu.graph import Spec
from shmgpu.program import Program

Run = Callable[[Sequence[Any], Sequence[Any]], tuple[tuple[Any, ...], tuple[Any, ...]]]


class Pool:
    """Memory for values on the way. One program runs at a time, so all share it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._raw: dict[int, list[Any]] = {}

    def take(self, sizes: Sequence[int]) -> list[Any]:
        """A buffer for each size, all different."""
        used: dict[int, int] = {}
        taken = []
        for size in sizes:
            kept = self._raw.setdefault(size, [])
            at = used.get(size, 0)
            used[size] = at + 1
            if at == len(kept):
                kept.append(self._backend.raw(size))
            taken.append(kept[at])
        return taken

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(size * len(kept) for size, kept in self._raw.items())


def compiled(program: Program, backend: Backend, pool: Pool, options: Options) -> Run:
    """The function that runs it: (arrays, numbers) -> (kept, read)."""
    plan = planning.make(program, options)
    first_number = len(program.arrays)
    first = first_number + len(program.numbers)
    names = [f"a{i}" for i in range(first_number)]
    names += [f"n{i}" for i in range(len(program.numbers))]
    names += [f"v{slot}" for slot in range(first, first + len(program.steps))]
    for slot, same in plan.same_as.items():
        names[slot] = names[same]
    specs: list[Spec] = [*program.arrays, *program.numbers, *[s.spec for s in program.steps]]

    scope: dict[str, Any] = {"copy": backend.copy, "array": backend.array}
    lines = ["def run(arrays, numbers):"]
    if program.arrays:
        lines.append(f"  {''.join(name + ', ' for name in names[:first_number])}= arrays")
    if program.numbers:
        lines.append(f"  {''.join(name + ', ' for name in names[first_number:first])}= numbers")
        for index, spec in enumerate(program.numbers):
            make = backend.number(spec.dtype)
            if make is not None:
                scope[f"t{index}"] = make
                lines.append(f"  n{index} = t{index}(n{index})")
    buffers = pool.take(plan.buffers)
    for slot, step in plan.steps.items():
        scope[f"k{slot}"] = backend.kernel(
            step.op, tuple([specs[one] for one in step.inputs]), step.params, step.spec
        )
        words = []
        for place, one in enumerate(step.inputs):
            word = names[one]
            is_number = first_number <= one < first
            if is_number and backend.name == "torch" and place not in step.op.numbers:
                scope[f"d{slot}_{place}"] = _lifted(backend, specs[one])
                word = f"d{slot}_{place}({word})"
            words.append(word)
        if slot in plan.buffer:
            scope[f"b{slot}"] = backend.shaped(buffers[plan.buffer[slot]], step.spec)
            words.append(f"out=b{slot}")
        elif slot in plan.over:
            words.append(f"out={names[plan.over[slot]]}")
        lines.append(f"  {names[slot]} = k{slot}({', '.join(words)})")
        gone = [
            names[one]
            for one in dict.fromkeys((*step.inputs, slot))
            if plan.last[one] <= slot and not first_number <= one < first
        ]
        if gone:
            lines.append(f"  {' = '.join(gone)} = None")
    kept = []
    for slot in program.kept:
        origin = plan.same_as.get(slot, slot)
        kept.append(f"{'copy' if origin in plan.borrowed else 'array'}({names[slot]})")
    read = [f"array({names[slot]})" for slot in program.read]
    lines.append(
        f"  return ({''.join(k + ', ' for k in kept)}), ({''.join(r + ', ' for r in read)})"
    )
    exec(compile("\n".join(lines), "<program>", "exec"), scope)
    run: Run = scope["run"]
    return run


def _lifted(backend: Backend, spec: Spec) -> Callable[[Any], Any]:
    dtype = spec.dtype.torch
    make = backend.module.scalar_tensor
    return lambda number: make(number, dtype=dtype)
