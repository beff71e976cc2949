"""A planned program as a Python function: straight-line source, no interpreter loop.

Owns the source and what its names mean, and which line does which step. Running it costs one call
for each unit, and nothing else. Never puts text of a child's into the source.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from shmgpu.engine import fusion, native
from shmgpu.engine import plan as planning
from shmgpu.engine.backends import Backend
from shmgpu.engine.plan import MIN_BUFFER, Options, ProgramPlan
from shmgpu.ops import gang
from shmgpu.ops.graph import Spec
from shmgpu.ops.program import Program
from shmgpu.ops.program_message import SOURCE

# (arrays, numbers) -> (what is read, what is kept; or what the rest needs, where there is a rest)
Run = Callable[[Sequence[Any], Sequence[Any]], tuple[tuple[Any, ...], Sequence[Any]]]
Rest = Callable[[Sequence[Any]], tuple[Any, ...]]

PLANNED = "<planned>"  # the name of the source; its lines are in the order of the plan


class Buffer:
    """Memory that lives as long as a compiled program knows it."""

    __slots__ = ("__weakref__", "nbytes", "raw")

    def __init__(self, raw: Any, nbytes: int) -> None:
        self.raw = raw
        self.nbytes = nbytes


class Pool:
    """Memory for values on the way. One program runs at a time, so all share it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[int, list[weakref.ref[Buffer]]] = {}

    def take(self, sizes: Sequence[int]) -> list[Buffer]:
        """A buffer for each size, all different."""
        used: dict[int, int] = {}
        taken = []
        for size in sizes:
            known = self._known.setdefault(size, [])
            at = used.get(size, 0)
            used[size] = at + 1
            buffer = known[at]() if at < len(known) else None
            if buffer is None:
                buffer = Buffer(self._backend.raw(size), size)
                known[at : at + 1] = [weakref.ref(buffer)]
            taken.append(buffer)
        return taken

    @property
    def buffers(self) -> list[int]:
        """Bytes of each buffer that is held."""
        found = []
        for size, known in list(self._known.items()):
            alive = [one for one in known if one() is not None]
            if alive:
                self._known[size] = alive
                found += [size] * len(alive)
            else:
                del self._known[size]
        return found


class Compiled:
    """A program that can be run.

    Attributes:
        run: (arrays, numbers) -> (read, kept), where ``rest`` is None.
        rest: of what is not needed for what is read: then ``run`` gives (read, live), and
            ``rest(live)`` gives what is kept. It empties ``live``.
        spoilt: slots of donated arrays that it writes over.
        homes: place in ``kept`` -> slot of the donated array that becomes it.
        intact: steps that are done before a donated array is written over.
        loops: how many chains of operations run as one loop.
        nbytes: of its buffers.
    """

    __slots__ = ("homes", "intact", "loops", "nbytes", "rest", "run", "spoilt")

    def __init__(
        self, run: Run, rest: Rest | None, plan: ProgramPlan, first: int, loops: int
    ) -> None:
        self.run = run
        self.rest = rest
        self.spoilt = plan.spoilt
        self.intact = _intact(plan, first)
        self.homes = plan.homes
        self.loops = loops
        self.nbytes = sum(plan.buffers)


class Fused:
    """A program's plan with chains of operations as loops in C, which are being compiled."""

    def __init__(self, program: Program, backend: Backend, options: Options) -> None:
        self.plan = planning.make(
            program, options, fusion.groups, backend.is_host, joints=backend.joints
        )
        specs = _specs(program)
        first_number = len(program.arrays)
        numbers = range(first_number, first_number + len(program.numbers))
        self.loops: dict[int, fusion.Loop] = {}
        self.is_whole = True  # every group became a loop
        for place, unit in enumerate(self.plan.units):
            if len(unit.slots) > 1 and unit.joint is None:
                loop = fusion.loop(unit, self.plan.steps, specs, numbers)
                if loop is None:
                    self.is_whole = False
                else:
                    self.loops[place] = loop
        self.sources = list(dict.fromkeys(loop.source for loop in self.loops.values()))
        bodies = dict.fromkeys(one for loop in self.loops.values() for one in loop.bodies)
        self.library: native.Library | None = None
        if self.is_whole and self.loops:
            self.library = native.Library(self.sources, list(bodies))


def compiled(
    program: Program,
    backend: Backend,
    pool: Pool,
    options: Options,
    fused: Fused | None = None,
    *,
    lends: bool = False,
) -> Compiled:
    """The program as one function; with the loops of ``fused``, which are ready, if given.

    ``lends``: what comes out may lie where the next run writes, or where an input lies: it is
    copied, or looked at, before.
    """
    # A replayed graph knows its arrays by their addresses, so small ones stay where they are, too.
    least = MIN_BUFFER if backend.is_host else 1
    plan = (
        fused.plan
        if fused
        else planning.make(program, options, None, backend.is_host, least, backend.joints)
    )
    specs = _specs(program)
    first_number = len(program.arrays)
    first = first_number + len(program.numbers)
    names = [f"a{i}" for i in range(first_number)]
    names += [f"n{i}" for i in range(len(program.numbers))]
    names += [f"v{slot}" for slot in range(first, len(specs))]
    for slot, same in plan.same_as.items():
        names[slot] = names[same]

    scope: dict[str, Any] = {"copy": backend.copy, "array": backend.array}
    lines = ["def run(arrays, numbers):"]
    steps: dict[int, int] = {}  # line -> the step that it does
    if program.arrays:
        lines.append(f"  {''.join(name + ', ' for name in names[:first_number])}= arrays")
    if program.numbers:
        lines.append(f"  {''.join(name + ', ' for name in names[first_number:first])}= numbers")
        for index, spec in enumerate(program.numbers):
            make = backend.number(spec.dtype)
            if make is not None:
                scope[f"t{index}"] = make
                lines.append(f"  n{index} = t{index}(n{index})")
    buffers = scope["buffers"] = pool.take(plan.buffers)

    def memory(slot: int) -> str | None:
        """The name of what the slot's value is written into."""
        if slot in plan.over:  # the input's own name: kernels compare with ``is``
            return names[plan.over[slot]]
        if slot in plan.buffer:
            raw = buffers[plan.buffer[slot]].raw
            scope[f"b{slot}"] = backend.shaped(raw, specs[slot])
            return f"b{slot}"
        return None

    # Of a device, what is read is copied out while the next program runs, and may be written over.
    look = "array" if backend.is_host or lends else "copy"
    read = "".join(f"{look}({names[slot]}), " for slot in program.read)
    has_rest = plan.early < len(plan.units)
    # One that was given nothing for good can be done again as it is, so its member does not wait
    # for the others. What it keeps of a call that is given up, the child's next message frees.
    commits = options.commits and bool(program.donated)
    if commits:
        scope["commit"] = gang.commit
    says = options.says and bool(program.read) and backend.is_host
    if says:
        scope["say"], scope["outside"] = gang.say, backend.outside
    for place, unit in enumerate(plan.units):
        if commits and place == plan.intact:
            lines.append("  commit()")
        if says and place == plan.said:
            lines.append(f"  with outside(): say(({read}))")
            read = ""  # there is nothing left to answer with
        if has_rest and place == plan.early:
            live = "".join(f"{name}, " for name in _live(plan, names, program.kept))
            lines.append(f"  return ({read}), [{live}]")
            lines.append("def rest(live):")
            lines.append(f"  {live}= live")
            lines.append("  live.clear()")
        steps[len(lines) + 1] = unit.slots[0] - first
        if fused and place in fused.loops:
            if unit.outputs:
                loop = fused.loops[place]
                scope[f"k{unit.slots[0]}"] = _call(backend, fused, loop, specs, unit.slots[0])
                given = "".join(names[one] + ", " for one in loop.arrays)
                numbers = "".join(names[one] + ", " for one in loop.numbers)
                outs = "".join(f"{memory(one)}, " for one in loop.outputs)
                lines.append(
                    f"  {''.join(names[one] + ', ' for one in loop.outputs)}= "
                    f"k{unit.slots[0]}(({given}), ({numbers}), ({outs}))"
                )
        elif unit.joint is not None:
            together = [plan.steps[slot] for slot in unit.slots]
            scope[f"k{unit.slots[0]}"] = unit.joint.torch(backend.module, together, specs)
            given = ", ".join(names[one] for step in together for one in step.inputs)
            outs = "".join(f"{names[one]}, " for one in unit.slots)
            lines.append(f"  {outs}= k{unit.slots[0]}({given})")
        else:
            (slot,) = unit.slots
            step = plan.steps[slot]
            scope[f"k{slot}"] = backend.kernel(
                step.op, tuple([specs[one] for one in step.inputs]), step.params, step.spec
            )
            words = []
            for index, one in enumerate(step.inputs):
                word = names[one]
                is_number = first_number <= one < first
                if is_number and backend.name == "torch" and index not in step.op.numbers:
                    scope[f"d{slot}_{index}"] = _lifted(backend, specs[one])
                    word = f"d{slot}_{index}({word})"
                words.append(word)
            out = memory(slot)
            if out is not None:
                words.append(f"out={out}")
            lines.append(f"  {names[slot]} = k{slot}({', '.join(words)})")
        gone = plan.gone[place]
        if gone:
            lines.append(f"  {' = '.join(names[one] for one in gone)} = None")
    if commits and plan.intact == len(plan.units):
        lines.append("  commit()")
    if says and plan.said == len(plan.units):
        lines.append(f"  with outside(): say(({read}))")
        read = ""
    kept = "".join(
        f"{'copy' if place in plan.copied and not lends else 'array'}({names[slot]}), "
        for place, slot in enumerate(program.kept)
    )
    lines.append(f"  return ({kept})" if has_rest else f"  return ({read}), ({kept})")
    scope["steps"] = steps, len(program.steps)
    exec(compile("\n".join(lines), PLANNED, "exec"), scope)
    loops = len(fused.loops) if fused else 0
    return Compiled(scope["run"], scope.get("rest"), plan, first, loops)


def step_of(error: BaseException) -> int | None:
    """Which step of a program raised it; as many as there are, where a line of none did."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == PLANNED:
            steps, count = traceback.tb_frame.f_globals["steps"]
            return int(steps.get(traceback.tb_lineno, count))
        traceback = traceback.tb_next
    return None


def raise_again(error: BaseException) -> NoReturn:
    """Raise it from a line that has the number of its step, counted from 1: a child reads it there.

    Only a failure pays for it: to number all lines of a program took most of the time in which one
    that is new was made ready.
    """
    step = step_of(error)
    if step is not None:
        # Popped: what a frame of the traceback holds must not hold the traceback.
        exec(compile("\n" * step + "raise errors.pop()", SOURCE, "exec"), {"errors": [error]})
    raise error


def _intact(plan: ProgramPlan, first: int) -> frozenset[int]:
    """The steps before the first that writes over what a handle names."""
    found: list[int] = []
    for unit in plan.units:
        found += [slot - first for slot in unit.slots]
        if any(plan.over.get(slot) in plan.spoilt for slot in unit.outputs):
            return frozenset(found[: -len(unit.slots)])
    return frozenset(found)


def _live(plan: ProgramPlan, names: list[str], kept: Sequence[int]) -> list[str]:
    """The names that mean something before the answer and are used after it."""
    used: dict[str, None] = {}
    made: set[str] = set()
    for unit in plan.units[plan.early :]:
        used.update((names[one], None) for one in unit.inputs if names[one] not in made)
        made.update(names[one] for one in unit.outputs)
    used.update((names[one], None) for one in kept if names[one] not in made)
    return list(used)


def _specs(program: Program) -> list[Spec]:
    return [*program.arrays, *program.numbers, *[step.spec for step in program.steps]]


def _call(
    backend: Backend, fused: Fused, loop: fusion.Loop, specs: list[Spec], slot: int
) -> native.LoopCall:
    assert fused.library is not None
    return native.LoopCall(
        backend,
        fused.library.functions[fused.sources.index(loop.source)],
        math.prod(specs[slot].shape),
        [specs[one] for one in loop.arrays],
        [specs[one] for one in loop.outputs],
        len(loop.numbers),
    )


def _lifted(backend: Backend, spec: Spec) -> Callable[[Any], Any]:
    dtype = spec.dtype.torch
    make = backend.module.scalar_tensor
    return lambda number: make(number, dtype=dtype)
