"""Which operations on elements become one loop, and that loop in C.

Owns both. A group has steps of one shape. Its steps may run together if nothing outside the group
lies between two of them, and if no two groups wait for each other.

The loop goes over blocks that fit the first cache, and within a block over a few operations at a
time: with one loop body of a thousand operations each would wait for the one before, and with one
loop for each operation every value would be loaded and stored. Each such body is a function, so
that a compiler takes a time in proportion to them, and those that are alike are compiled once.
Never changes a result by a bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from shmgpu.engine.expressions import C_TYPES, OF_ALL, OF_FLOATS
from shmgpu.engine.plan import Unit
from shmgpu.ops.graph import Spec
from shmgpu.ops.program import Step
from shmgpu.ops.promotion import bool_, float64

BLOCK = 256  # elements
AT_ONCE = 16  # operations in one loop body
MAX_STEPS = 2048  # of one group
MAX_WAITING = 64  # values of a block that wait for a later loop body
NEAR = 16  # how many steps may lie between two members of a group that do not use each other
MIN_BYTES = 2048  # of a value; for smaller values only longer chains pay
MIN_STEPS = 4  # of such a longer chain


def groups(
    steps: dict[int, Step], specs: Sequence[Spec], early: set[int], first: int
) -> list[tuple[int, ...]]:
    """The slots of each group of two steps or more that pays; each within ``early``, or without."""
    found: list[list[int]] = []
    waits: list[int] = []  # group -> mask of the groups whose values it reads, directly
    kinds: list[tuple[tuple[int, ...], bool]] = []  # shape, and which side of the answer
    home: dict[int, int] = {}
    behind: dict[int, int] = {}  # slot in no group -> mask of the groups that come before it
    for slot, step in steps.items():
        before = 0
        for one in step.inputs:
            before |= 1 << home[one] if one in home else behind.get(one, 0)
        if not _is_fusable(step, specs):
            behind[slot] = before
            continue
        kind = (step.spec.shape, slot in early)
        near = dict.fromkeys(home[one] for one in reversed(step.inputs) if one in home)
        if found and slot - found[-1][-1] <= NEAR:
            near.setdefault(len(found) - 1)
        for group in near:
            if kinds[group] != kind or len(found[group]) >= MAX_STEPS:
                continue
            others = 0
            for one in step.inputs:
                if one in home:
                    others |= 1 << home[one] if home[one] != group else 0
                else:
                    others |= behind.get(one, 0)
            if not _reaches(others, waits) >> group & 1:
                break
        else:
            group, others = len(found), before
            found.append([])
            waits.append(0)
            kinds.append(kind)
        found[group].append(slot)
        waits[group] |= others
        home[slot] = group
    return [
        tuple(group)
        for group in found
        if len(group) >= (2 if steps[group[0]].spec.nbytes >= MIN_BYTES else MIN_STEPS)
    ]


def _reaches(mask: int, waits: list[int]) -> int:
    """These groups, and those that come before them."""
    seen, new = 0, mask
    while new:
        seen |= new
        found = 0
        while new:
            low = new & -new
            found |= waits[low.bit_length() - 1]
            new ^= low
        new = found & ~seen
    return seen


def _is_fusable(step: Step, specs: Sequence[Spec]) -> bool:
    name, shape = step.op.name, step.spec.shape
    inputs = [specs[one] for one in step.inputs]
    if any(one.dtype not in C_TYPES for one in (step.spec, *inputs)):
        return False
    if name not in OF_ALL and (name not in OF_FLOATS or any(one.dtype is bool_ for one in inputs)):
        return False
    return step.spec.nbytes > 0 and all(one.shape == shape or is_one(one) for one in inputs)


def is_one(spec: Spec) -> bool:
    """Whether there is one element, that all others meet."""
    return spec.nbytes == spec.dtype.itemsize


@dataclass(frozen=True)
class Loop:
    """A function of C: what it is given, and its source but for its name.

    Attributes:
        arrays: slots of the arrays that it reads, in the order of their addresses.
        numbers: slots of the plain numbers.
        outputs: slots of what it writes.
        source: parameters and body.
        bodies: the functions that it calls, which others may call, too.
    """

    arrays: tuple[int, ...]
    numbers: tuple[int, ...]
    outputs: tuple[int, ...]
    source: str
    bodies: tuple[str, ...] = ()


def loop(unit: Unit, steps: dict[int, Step], specs: Sequence[Spec], numbers: range) -> Loop | None:
    """The unit in C; None where too many values would wait at a time."""
    arrays = tuple([one for one in unit.inputs if one not in numbers])
    given = tuple([one for one in unit.inputs if one in numbers])
    place = {slot: at for at, slot in enumerate(unit.slots)}
    whole = specs[unit.slots[0]].shape
    # Names by place, so that equal chains of different programs have one source.
    names = {slot: f"v{at}" for slot, at in place.items()}
    lines = ["(long n, const unsigned long *p, const double *s) {"]
    single: dict[int, str] = {}  # what is one number for all elements, and how it is had
    for at, one in enumerate(given):
        names[one] = f"s{at}"
        single[one] = f"s[{at}]"
    full: dict[int, str] = {}  # what has an element for each
    for at, one in enumerate(arrays):
        names[one] = f"x{at}"
        kind = _c(specs[one])
        if specs[one].shape == whole and not is_one(specs[one]):
            full[one] = f"a{at}"
            lines.append(f"  const {kind} *a{at} = (const {kind} *)p[{at}];")
        else:
            single[one] = f"*(const {kind} *)p[{at}]"
    for at, one in enumerate(unit.outputs):
        kind = _c(specs[one])
        lines.append(f"  {kind} *o{at} = ({kind} *)p[{len(arrays) + at}];")

    if len(unit.slots) <= AT_ONCE:
        # An output may take the memory of an input only if each element lies where the same element
        # of the input does.
        lines += _singles(unit.slots, steps, specs, names, single)
        lines += ["#pragma GCC ivdep", "  for (long i = 0; i < n; i++) {"]
        loads = {one: f"{name}[i]" for one, name in full.items()}
        lines += _body(unit.slots, steps, specs, names, loads)
        lines += [f"    o{at}[i] = {names[one]};" for at, one in enumerate(unit.outputs)]
        lines.append("  }\n}")
        return Loop(arrays, given, unit.outputs, "\n".join(lines))
    chunks = [unit.slots[at : at + AT_ONCE] for at in range(0, len(unit.slots), AT_ONCE)]
    final = len(chunks)
    last = dict.fromkeys(unit.outputs, final)
    for number, chunk in enumerate(chunks):
        for slot in chunk:
            for one in steps[slot].inputs:
                last[one] = max(last.get(one, 0), number)
    waiting, kinds, bodies, calls = _bodies(chunks, last, steps, specs, full, single)
    if len(kinds) > MAX_WAITING:
        return None
    lines.append(f"  for (long i = 0; i < n; i += {BLOCK}) {{")
    lines.append(f"    const long m = n - i < {BLOCK} ? n - i : {BLOCK};")
    lines += [f"    {kind} t{at}[{BLOCK}];" for at, kind in enumerate(kinds)]
    lines += calls
    # All inputs of the block have been read: an output may lie where one of them does.
    lines += [
        f"    for (long j = 0; j < m; j++) o{at}[i + j] = t{waiting[one]}[j];"
        for at, one in enumerate(unit.outputs)
    ]
    lines.append("  }\n}")
    return Loop(arrays, given, unit.outputs, "\n".join(lines), tuple(bodies))


def _bodies(
    chunks: list[tuple[int, ...]],
    last: dict[int, int],
    steps: dict[int, Step],
    specs: Sequence[Spec],
    full: dict[int, str],
    single: dict[int, str],
) -> tuple[dict[int, int], list[str], dict[str, None], list[str]]:
    """A function for each chunk of a block, and its call.

    Returns:
        Where values wait for later chunks, the types of these places, the functions, the calls.
    """
    waiting: dict[int, int] = {}
    kinds: list[str] = []
    free: dict[str, list[int]] = {}
    bodies: dict[str, None] = {}
    calls: list[str] = []
    for number, chunk in enumerate(chunks):
        read = dict.fromkeys(one for slot in chunk for one in steps[slot].inputs)
        # Names and parameters by place, so that equal chunks are one function.
        names = {slot: f"v{at}" for at, slot in enumerate(chunk)}
        loads: dict[int, str] = {}
        parameters, given = ["long m"], ["m"]
        for at, one in enumerate([one for one in read if one not in names]):
            if one in single:
                names[one] = f"s{at}"
                parameters.append(f"const {_local(specs[one])} s{at}")
                given.append(single[one])
            else:
                names[one], loads[one] = f"x{at}", f"p{at}[j]"
                parameters.append(f"const {_c(specs[one])} *restrict p{at}")
                given.append(f"{full[one]} + i" if one in full else f"t{waiting[one]}")
        lines = _body(chunk, steps, specs, names, loads)
        for at, slot in enumerate([slot for slot in chunk if last.get(slot, 0) > number]):
            kind = _c(specs[slot])
            places = free.get(kind)
            if places:
                waiting[slot] = places.pop()
            else:
                waiting[slot] = len(kinds)
                kinds.append(kind)
            parameters.append(f"{kind} *restrict o{at}")
            given.append(f"t{waiting[slot]}")
            lines.append(f"      o{at}[j] = {names[slot]};")
        text = "\n".join(
            [
                f"({', '.join(parameters)}) {{",
                "    for (long j = 0; j < m; j++) {",
                *lines,
                "    }\n}",
            ]
        )
        name = f"b{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        bodies[f"static __attribute__((noinline)) void {name}{text}"] = None
        calls.append(f"    {name}({', '.join(given)});")
        for one in read:
            if one in waiting and one not in chunk and last[one] == number:
                free.setdefault(_c(specs[one]), []).append(waiting[one])
    return waiting, kinds, bodies, calls


def _singles(
    chunk: tuple[int, ...],
    steps: dict[int, Step],
    specs: Sequence[Spec],
    names: dict[int, str],
    single: dict[int, str],
) -> list[str]:
    return [
        f"  const {_local(specs[one])} {names[one]} = {single[one]};"
        for one in dict.fromkeys(one for slot in chunk for one in steps[slot].inputs)
        if one in single
    ]


def _body(
    chunk: tuple[int, ...],
    steps: dict[int, Step],
    specs: Sequence[Spec],
    names: dict[int, str],
    loads: dict[int, str],
) -> list[str]:
    """What a loop does with one element: ``loads`` says where the values of earlier loops lie."""
    lines = []
    for one in dict.fromkeys(one for slot in chunk for one in steps[slot].inputs):
        if one in loads:
            lines.append(f"      const {_local(specs[one])} {names[one]} = {loads[one]};")
    for slot in chunk:
        step = steps[slot]
        words = [names[one] for one in step.inputs]
        name = step.op.name
        suffix = "" if step.spec.dtype is float64 else "f"
        text = (OF_FLOATS.get(name) or OF_ALL[name]).format(*words, f=suffix)
        lines.append(f"      const {_local(step.spec)} {names[slot]} = {text};")
    return lines


def _c(spec: Spec) -> str:
    return C_TYPES[spec.dtype]


def _local(spec: Spec) -> str:
    return "_Bool" if spec.dtype is bool_ else C_TYPES[spec.dtype]
