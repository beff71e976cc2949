"""Where each value of a program lies, and until when.

Pure policy over slots: which step writes into memory that is kept for the purpose (and which of
it), which over one of its own inputs, which into memory of its own. Nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shmgpu.graph import Op
from shmgpu.program import Program, Step

NEVER = 1 << 62
MIN_BUFFER = 1024  # bytes: below, the allocator is as quick as a buffer


@dataclass(frozen=True)
class Options:
    """What may be done to a program; each gives equal results."""

    reuse_results: bool = True  # equal operations on equal inputs are done once
    plan_memory: bool = True  # values without a reader left make room for others


@dataclass
class Plan:
    """What is decided.

    Attributes:
        steps: those that are left, by slot.
        same_as: slots that are other slots' values.
        over: step's slot -> slot of the input in whose memory it writes.
        buffer: step's slot -> number of the buffer it writes into.
        buffers: bytes of each buffer.
        last: slot -> the last step that reads its memory; NEVER while it must stay.
        borrowed: kept slots that lie in memory that is not theirs, so that a copy is kept.
    """

    steps: dict[int, Step] = field(default_factory=dict)
    same_as: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    buffer: dict[int, int] = field(default_factory=dict)
    buffers: list[int] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    borrowed: set[int] = field(default_factory=set)


def make(program: Program, options: Options) -> Plan:
    """Plan a program."""
    plan = Plan()
    first = len(program.arrays) + len(program.numbers)
    _find_equal(program, plan, first, options.reuse_results)
    kept = {plan.same_as.get(slot, slot) for slot in program.kept}
    read = {plan.same_as.get(slot, slot) for slot in program.read}

    # Views live where their first input does: a value's memory is its root's.
    root = {slot: slot for slot in range(first + len(program.steps))}
    for slot, step in plan.steps.items():
        if step.op.is_view:
            root[slot] = root[step.inputs[0]]
    last: dict[int, int] = {}
    for slot, step in plan.steps.items():
        for one in step.inputs:
            last[root[one]] = slot
    for slot in (*kept, *read):
        last[root[slot]] = NEVER
    plan.last = {slot: last.get(root[slot], slot) for slot in (*range(first), *plan.steps)}

    donated = set(program.donated)
    if options.plan_memory:
        _place(program, plan, root, last, kept, donated, first)
    for slot in kept:
        origin = root[slot]
        given = origin < first and not (origin in donated and slot == origin)
        if given or origin in plan.buffer or _is_part(program, slot, origin, first):
            plan.borrowed.add(slot)
    return plan


def _find_equal(program: Program, plan: Plan, first: int, reuse: bool) -> None:
    known: dict[tuple[Op, tuple[int, ...], tuple[object, ...]], int] = {}
    for slot, step in enumerate(program.steps, first):
        inputs = tuple([plan.same_as.get(one, one) for one in step.inputs])
        key = (step.op, inputs, step.params)
        before = known.get(key) if reuse else None
        if before is not None:
            plan.same_as[slot] = before
            continue
        known[key] = slot
        plan.steps[slot] = Step(step.op, inputs, step.params, step.spec)


def _place(
    program: Program,
    plan: Plan,
    root: dict[int, int],
    last: dict[int, int],
    kept: set[int],
    donated: set[int],
    first: int,
) -> None:
    specs = [*program.arrays, *program.numbers, *[step.spec for step in program.steps]]
    kept_roots = {root[slot] for slot in kept}
    free: dict[int, list[int]] = {}
    taken: dict[int, int] = {}  # root -> the buffer in which it lies
    overwritten: set[int] = set()
    ends: dict[int, list[int]] = {}
    for slot in (*range(first), *plan.steps):
        if root[slot] == slot:
            ends.setdefault(last.get(slot, slot), []).append(slot)
    for slot, step in plan.steps.items():
        if step.op.takes_out and step.spec.nbytes >= MIN_BUFFER:
            stays = slot in kept_roots
            for one in step.inputs if step.op.in_place else ():
                home = root[one]
                dies = last[home] == slot and specs[one] is step.spec
                usable = home == one and home in donated if stays else home in taken
                # A view of it among the other inputs would be read while it is written.
                alone = all(other == one or root[other] != home for other in step.inputs)
                if dies and usable and alone and home not in overwritten and home == one:
                    plan.over[slot] = one
                    overwritten.add(home)
                    if home in taken:
                        taken[slot] = taken.pop(home)
                        plan.buffer[slot] = taken[slot]
                    break
            else:
                if not stays:
                    size = step.spec.nbytes
                    waiting = free.get(size)
                    if waiting:
                        number = waiting.pop()
                    else:
                        number = len(plan.buffers)
                        plan.buffers.append(size)
                    taken[slot] = plan.buffer[slot] = number
        for ended in ends.get(slot, ()):
            number_of = taken.pop(ended, None)
            if number_of is not None:
                free.setdefault(plan.buffers[number_of], []).append(number_of)


def _is_part(program: Program, slot: int, origin: int, first: int) -> bool:
    """Whether a kept value is a view on less than its memory: keeping it would keep the rest."""
    if slot == origin or origin < first:
        return False
    return program.steps[slot - first].spec.nbytes < program.steps[origin - first].spec.nbytes
