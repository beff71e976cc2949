"""Where each value of a program lies, and until when.

Pure policy over slots: which operations are done at all, which before the child is answered, which
are done together, which write into memory that is kept for the purpose (and which of it), which
over one of their own inputs, which into memory of their own. Never computes.

What must hold: memory that a handle names is named by no other handle, lies in no shared buffer,
and is no part of anything larger; so whoever is given a handle's array for good may write over it.
And what a program is given is whole until all that may fail has been done: a program that fails
there has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from shmgpu.engine import joint
from shmgpu.engine.joint import Joint
from shmgpu.ops.casting import ALIAS
from shmgpu.ops.graph import Op, Spec
from shmgpu.ops.program import Program, Step, bytes_over, needed_for
from shmgpu.ops.program_message import COMMITS, SAYS

NEVER = 1 << 62
MIN_BUFFER = 1024  # bytes: below, the allocator is as quick as a buffer
MIN_LATE_BYTES = 1 << 16  # that operations after the answer go over, or
MIN_LATE = 8  # how many there are: less is not worth an answer of its own


@dataclass(frozen=True)
class Options:
    """What may be done to a program; each gives equal results."""

    # Equal operations on equal inputs are done once, and by one kernel what one kernel gives.
    reuse_results: bool = True
    plan_memory: bool = True  # values without a reader left make room for others
    drop_unused: bool = True  # what nobody reads is not computed
    fuse: bool = True  # chains on elements become one loop, where there is a C compiler
    answer_early: bool = True  # what the child waits for is done first, the rest when it has that
    capture: bool = True  # what repeats on a device is launched as one, and answered as one
    commits: bool = False  # it is one member's part of a call that takes effect on all, or on none
    says: bool = False  # what is read is said to be there as soon as it is, before the answer

    @classmethod
    def of_flags(cls, flags: int) -> Options:
        """Bits 0 to 5 switch them off, in this order; others are of what members of a gang run."""
        switched = cls(*[not flags & 1 << bit for bit in range(6)])
        return replace(switched, commits=bool(flags & COMMITS), says=bool(flags & SAYS))


@dataclass(frozen=True)
class Unit:
    """What is done at once: one step, or several that were fused, or that one kernel does.

    Attributes:
        slots: the steps.
        inputs: slots that are read, each once.
        outputs: the steps' values that are seen outside.
        joint: the kernel of several steps.
    """

    slots: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    joint: Joint | None = None


# (steps by slot, specs by slot, slots done before the answer, first slot of a step) -> groups of
# slots; none has slots from both sides of the answer
Grouping = Callable[[dict[int, Step], Sequence[Spec], set[int], int], list[tuple[int, ...]]]


@dataclass
class ProgramPlan:
    """What is decided.

    Attributes:
        steps: those that are left, by slot.
        units: the same in the order in which they are done.
        early: how many units come before the answer; all, unless more is worth it.
        same_as: slots that are other slots' values.
        over: step's slot -> slot of the input in whose memory it writes.
        buffer: step's slot -> number of the buffer it writes into.
        buffers: bytes of each buffer.
        gone: for each unit, the slots that nobody reads after it.
        copied: places in ``kept`` of which a copy is kept, because the memory is not theirs alone.
        spoilt: donated arrays that are written over.
        homes: place in ``kept`` -> slot of the donated array that becomes it, memory and shape.
        intact: how many of the first units write over no donated array: all that may fail.
        said: after how many of the units all that is read is there. They are not done in another
            order for that, as members of a gang must meet in the same one.
    """

    steps: dict[int, Step] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    early: int = 0
    same_as: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    buffer: dict[int, int] = field(default_factory=dict)
    buffers: list[int] = field(default_factory=list)
    gone: list[tuple[int, ...]] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    spoilt: set[int] = field(default_factory=set)
    homes: dict[int, int] = field(default_factory=dict)
    intact: int = 0
    said: int = 0


def make(
    program: Program,
    options: Options,
    grouping: Grouping | None = None,
    reads_in_buffers: bool = True,
    min_buffer: int = MIN_BUFFER,
    joints: Sequence[Joint] = (),
) -> ProgramPlan:
    """Plan a program.

    ``grouping`` finds what is fused; ``reads_in_buffers``: what the child wants to see is copied
    before the next program runs; ``min_buffer``: bytes from which on memory is planned; ``joints``:
    what the library does in one call.
    """
    plan = ProgramPlan()
    first = len(program.arrays) + len(program.numbers)
    specs = [*program.arrays, *program.numbers, *[step.spec for step in program.steps]]
    _find_equal(program, plan, first, options.reuse_results)
    kept = [plan.same_as.get(slot, slot) for slot in program.kept]
    read = [plan.same_as.get(slot, slot) for slot in program.read]
    wanted = {*kept, *read}
    if options.drop_unused:
        _drop_unused(plan, wanted, first)
    early = _early(plan.steps, specs, read if options.answer_early else [])
    turns = _turns(plan.steps)
    joined = joint.groups(plan.steps, specs, early, first, joints if options.reuse_results else ())
    waiting = _waiting(plan.steps, turns, joined)
    groups = grouping(waiting, specs, early, first) if grouping else []
    units = _ordered(plan.steps, groups, joined, wanted, first, turns)
    plan.units = [unit for unit in units if unit.slots[0] in early]
    plan.early = len(plan.units)
    plan.units += [unit for unit in units if unit.slots[0] not in early]
    failing = [n for n, unit in enumerate(plan.units) if plan.steps[unit.slots[0]].op.may_fail]
    plan.intact = failing[-1] + 1 if failing else 0
    making = [n for n, unit in enumerate(plan.units) if not set(read).isdisjoint(unit.slots)]
    plan.said = making[-1] + 1 if making else 0

    # Views live where their first input does: a value's memory is its root's.
    root = {slot: slot for slot in range(len(specs))}
    last: dict[int, int] = {}
    for now, unit in enumerate(plan.units):
        if len(unit.slots) == 1 and plan.steps[unit.slots[0]].op.is_view:
            root[unit.slots[0]] = root[unit.inputs[0]]
        for one in unit.inputs:
            last[root[one]] = now
        for one in unit.outputs:
            last.setdefault(root[one], now)
    for slot in wanted:
        last[root[slot]] = NEVER
    stays = {root[slot] for slot in (kept if reads_in_buffers else wanted)}
    if options.plan_memory:
        _place(program, plan, specs, root, last, stays, min_buffer)
    numbers = range(len(program.arrays), first)
    for now, unit in enumerate(plan.units):
        seen = [one for one in (*unit.inputs, *unit.outputs) if one not in numbers]
        plan.gone.append(tuple([one for one in dict.fromkeys(seen) if last[root[one]] <= now]))

    taken: set[int] = set()
    for place, slot in enumerate(kept):
        origin = root[slot]
        is_given = origin < first and not (origin == slot and origin in program.donated)
        if is_given or origin in taken or not _is_whole(plan.steps, specs, slot, first):
            plan.copied.add(place)
        else:
            taken.add(origin)
            while origin in plan.over:
                origin = plan.over[origin]
            if origin in program.donated and root[slot] == slot:
                plan.homes[place] = origin
    return plan


def _find_equal(program: Program, plan: ProgramPlan, first: int, reuse: bool) -> None:
    known: dict[tuple[Op, tuple[int, ...], str], int] = {}
    for slot, step in enumerate(program.steps, first):
        inputs = tuple([plan.same_as.get(one, one) for one in step.inputs])
        if step.op is ALIAS:  # its history is the child's affair: the value is its input's
            plan.same_as[slot] = inputs[0]
            continue
        # As text, in which 0.0 and -0.0 differ, and 1 and True.
        is_once = not reuse or step.op.is_collective
        before = slot if is_once else known.setdefault((step.op, inputs, repr(step.params)), slot)
        if before == slot:
            is_same = inputs == step.inputs
            plan.steps[slot] = step if is_same else Step(step.op, inputs, step.params, step.spec)
        else:
            plan.same_as[slot] = before


def _drop_unused(plan: ProgramPlan, wanted: set[int], first: int) -> None:
    used: set[int] = set()
    stack = [slot for slot in wanted if slot >= first]
    stack += [slot for slot, step in plan.steps.items() if step.op.is_collective]
    while stack:
        slot = stack.pop()
        if slot not in used:
            used.add(slot)
            stack.extend(one for one in plan.steps[slot].inputs if one >= first)
    plan.steps = {slot: step for slot, step in plan.steps.items() if slot in used}


def _turns(steps: dict[int, Step]) -> dict[int, int]:
    """Of each collective but the first the one before it: all helpers do them in one order."""
    collectives = [slot for slot, step in steps.items() if step.op.is_collective]
    return dict(zip(collectives[1:], collectives, strict=False))


def _waiting(
    steps: dict[int, Step], turns: dict[int, int], joined: Iterable[tuple[int, ...]]
) -> dict[int, Step]:
    """The steps, as if each of these read the one that it waits for.

    And as if what one kernel does read all that this kernel reads.
    """
    found = dict(steps)
    for slots in joined:
        inputs = tuple(dict.fromkeys(one for slot in slots for one in steps[slot].inputs))
        for slot in slots:
            found[slot] = Step(steps[slot].op, inputs, steps[slot].params, steps[slot].spec)
    for slot, before in turns.items():
        step = steps[slot]
        found[slot] = Step(step.op, (*step.inputs, before), step.params, step.spec)
    return found


def _early(steps: dict[int, Step], specs: Sequence[Spec], read: list[int]) -> set[int]:
    """The steps before the answer: what is read needs them, or the rest is not worth one.

    What may fail is among them: the child hears of it before it builds on the rest.
    """
    early = needed_for([*read, *[n for n, step in steps.items() if step.op.may_fail]], steps)
    late = [step for slot, step in steps.items() if slot not in early and not step.op.is_view]
    is_worth_it = read and (bytes_over(late, specs) >= MIN_LATE_BYTES or len(late) >= MIN_LATE)
    return early if is_worth_it else set(steps)


def _ordered(
    steps: dict[int, Step],
    groups: list[tuple[int, ...]],
    joined: dict[tuple[int, ...], Joint],
    wanted: set[int],
    first: int,
    turns: dict[int, int],
) -> list[Unit]:
    """Units in an order in which inputs and earlier turns come first, else as recorded."""
    home = {slot: group for group in (*groups, *joined) for slot in group}
    readers: dict[int, list[int]] = {}
    for slot, step in steps.items():
        for one in step.inputs:
            readers.setdefault(one, []).append(slot)

    def unit_of(slots: tuple[int, ...]) -> Unit:
        if len(slots) == 1:  # as nearly all are
            return Unit(slots, tuple(dict.fromkeys(steps[slots[0]].inputs)), slots)
        own = set(slots)
        inputs = dict.fromkeys(one for slot in slots for one in steps[slot].inputs)
        outputs = [
            slot
            for slot in slots
            if slot in wanted or any(reader not in own for reader in readers.get(slot, ()))
        ]
        read = tuple([one for one in inputs if one not in own])
        return Unit(slots, read, tuple(outputs), joined.get(slots))

    units: list[Unit] = []
    done: set[int] = set()
    # A unit is placed as soon as a step outside of it needs it: depth first, without recursion.
    stack = [(slot,) if slot not in home else home[slot] for slot in reversed(steps)]
    while stack:
        slots = stack[-1]
        if slots[0] in done:
            stack.pop()
            continue
        unit = unit_of(slots)
        waits = [one for one in unit.inputs if one >= first and one not in done]
        if slots[0] in turns and turns[slots[0]] not in done:
            waits.append(turns[slots[0]])
        if waits:
            stack.extend(home.get(one, (one,)) for one in waits)
            continue
        done.update(slots)
        units.append(unit)
        stack.pop()
    return units


def _place(
    program: Program,
    plan: ProgramPlan,
    specs: Sequence[Spec],
    root: dict[int, int],
    last: dict[int, int],
    stays: set[int],
    min_buffer: int,
) -> None:
    free: dict[int, list[int]] = {}
    taken: dict[int, int] = {}  # root -> the buffer in which it lies
    ends: dict[int, list[int]] = {}
    for slot in {root[one] for unit in plan.units for one in (*unit.inputs, *unit.outputs)}:
        ends.setdefault(last[slot], []).append(slot)
    donated = set(program.donated)
    for now, unit in enumerate(plan.units):
        is_fused = len(unit.slots) > 1
        op = plan.steps[unit.slots[0]].op
        takes_out = unit.joint is None and (is_fused or op.takes_out)
        for slot in unit.outputs if takes_out else ():
            spec = specs[slot]
            if spec.nbytes < min_buffer:
                continue
            for one in unit.inputs if is_fused or op.in_place else ():
                usable = one in donated and now >= plan.intact if slot in stays else one in taken
                if (
                    usable
                    and root[one] == one
                    and last[one] == now
                    and specs[one] is spec
                    and one not in plan.spoilt
                    # A view of it among the other inputs would be read while it is written.
                    and all(other == one or root[other] != one for other in unit.inputs)
                ):
                    plan.over[slot] = one
                    plan.spoilt.add(one)
                    if one in taken:
                        taken[slot] = plan.buffer[slot] = taken.pop(one)
                    break
            else:
                if slot not in stays:
                    waiting = free.get(spec.nbytes)
                    if waiting:
                        number = waiting.pop()
                    else:
                        number = len(plan.buffers)
                        plan.buffers.append(spec.nbytes)
                    taken[slot] = plan.buffer[slot] = number
        for ended in ends.get(now, ()):
            number_of = taken.pop(ended, None)
            if number_of is not None:
                free.setdefault(plan.buffers[number_of], []).append(number_of)
    plan.spoilt &= donated


def _is_whole(steps: dict[int, Step], specs: Sequence[Spec], slot: int, first: int) -> bool:
    """Whether a value has each element of its memory once: not a part of it, not stretched."""
    while slot >= first and steps[slot].op.is_view:
        under = steps[slot].inputs[0]
        if specs[under].nbytes != specs[slot].nbytes:
            return False
        slot = under
    return True
