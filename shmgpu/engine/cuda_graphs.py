"""Programs that repeat on a device: captured once, replayed with one launch from then on.

Owns which program is captured, when, and what a replay must be given; the capturing itself is that
of :mod:`shmgpu.engine.capture`. A program that cannot be captured runs as any other, and the reason
is counted. Never changes what a program computes.

A graph knows addresses and plain numbers, not names. So a program is first watched: an array that
lies elsewhere from run to run (what was sent always does), or a number that changes, *moves*. What
moves is copied into arrays of the graph's own before each replay. What stays, above all weights
that a training step writes over, is used where it lies. Seeds are set in generators that the graph
knows. Outputs are copied out at once, because the next replay overwrites them, except a donated
array that was written over: that one is handed out as it is.

A graph belongs to one child, whose arrays it knows. Memory for intermediate values is shared by all
graphs: they are replayed one after the other, on one stream.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shmgpu.engine.backends import Backend, Driver
from shmgpu.engine.capture import Capture, NotCapturable, reason_of
from shmgpu.engine.compile import Compiled, Pool, compiled
from shmgpu.engine.foresight import seeds_of
from shmgpu.engine.plan import Options
from shmgpu.ops.creation import DRAWN
from shmgpu.ops.graph import Op, Params, Spec, spec_of
from shmgpu.ops.program import Program, Step
from shmgpu.ops.promotion import bfloat16, float16, float32

WATCHED = 2  # runs of a child's program before it proves to repeat
LEAST_STEPS = 3  # operations: fewer are launched as quickly as a graph with its copies
MAX_KNOWN = 4096  # programs of children that are watched; the least recently used goes first
MAX_GRAPHS = 128  # likewise
MAX_BYTES = 1 << 30  # of the arrays that belong to graphs
# Graphs that a program may lose because something changed; then all its arrays are copied.
MAX_CHANGES = 2
MAX_REASONS = 64  # kinds of fallbacks that are told apart

FEW = f"it has fewer than {LEAST_STEPS} operations, which are launched as quickly one by one"
LARGE = f"its inputs and outputs have more than {MAX_BYTES >> 20} MiB"
CHANGED = "what had stayed the same until it was captured has changed: it is captured again"
PLAIN = "a plain number of {} changes from run to run"
SEEDED = "{} is seeded by a tensor"
OTHER = "another reason"

Results = tuple[tuple[Any, ...], Sequence[Any]]  # what is read, what is kept
Caller = tuple[int, int]


class Runnable(Protocol):
    """A program as the engine knows it."""

    program: Program
    compiled: Compiled | None
    flags: int


def as_one(options: Options) -> Options:
    """The options of a program that is captured, or may be: it is answered as a whole."""
    return replace(options, answer_early=False)


# ---- programs whose numbers are arrays -----------------------------------------------------------

_HALVES = (float16, bfloat16)


def _add_scaled(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    return lambda a, b, alpha, out=None: torch.addcmul(a, b, alpha, out=out)


def _running_mean(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    return lambda mean, x, share, rest, out=None: torch.add(mean * share, x * rest, out=out)


def _running_square(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    return lambda mean, x, share, rest, out=None: torch.add(mean * share, x * x * rest, out=out)


def _adam_step(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    def kernel(
        one: Any, mean: Any, square: Any, rate: Any, root: Any, eps: Any, out: Any = None
    ) -> Any:
        return torch.addcmul(one, mean / (square.sqrt() * root + eps), rate, out=out)

    return kernel


def _full(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
    shape, dtype = out.shape, out.dtype.torch
    return lambda value: torch.empty(shape, dtype=dtype).copy_(value)


# Operations whose kernels take a plain number only -> kernels that take an array without axes.
# None: there is none, because torch asks the device for such a number.
_KERNELS: dict[str, Any] = {
    "add_scaled": _add_scaled,
    "running_mean": _running_mean,
    "running_square": _running_square,
    "adam_step": _adam_step,
    "full": _full,
    "arange": None,
    "linspace": None,
}


def _widened(kernel: Any, torch: Any, dtype: Any) -> Any:
    """Done in float32 and rounded once, as with a plain number, which 16 bits do not round."""

    def wide(*inputs: Any, out: Any = None) -> Any:
        y = kernel(*[one.float() if one.dtype is dtype else one for one in inputs]).to(dtype)
        return y if out is None else out.copy_(y)

    return wide


@functools.cache
def of_arrays(op: Op) -> Op | None:
    """The same operation, its plain numbers given as arrays without axes; None: there is none."""
    make = _KERNELS.get(op.name, op.torch)
    if make is None:
        return None

    def torch_kernel(torch: Any, specs: Any, params: Params, out: Spec) -> Any:
        kernel = make(torch, specs, params, out)
        is_half = out.dtype in _HALVES and op.name != "full"
        return _widened(kernel, torch, out.dtype.torch) if is_half else kernel

    return Op(
        op.name,
        op.rule,
        numpy=op.numpy,
        torch=torch_kernel,
        in_place=op.in_place,
        takes_out=op.takes_out,
    )


@dataclass(frozen=True)
class Seed:
    """A kernel that draws, and the place among the numbers of what seeds it."""

    place: int
    kernel: Any


def capturable(
    program: Program, moving: set[int], backend: Backend
) -> tuple[Program, list[int], list[Seed]]:
    """The program with the numbers of these places as arrays behind the others.

    Returns:
        It, the places that became arrays (an operation's numbers are of one kind), in order, and
        what is seeded before each run.

    Raises:
        NotCapturable: an operation takes such a number only from the host.
    """
    n_arrays, n_numbers = len(program.arrays), len(program.numbers)

    def place_of(slot: int) -> int | None:
        return slot - n_arrays if 0 <= slot - n_arrays < n_numbers else None

    lifted = set(moving)
    for step in program.steps:
        places = {place_of(one) for one in step.inputs} - {None}
        if step.op not in DRAWN and places & lifted:
            lifted.update(place for place in places if place is not None)
    order = sorted(lifted)
    slots = {slot: slot for slot in range(n_arrays)}
    rest = [place for place in range(n_numbers) if place not in lifted]
    for new, place in enumerate((*order, *rest), n_arrays):
        slots[n_arrays + place] = new

    seeds: list[Seed] = []
    draws: dict[tuple[Op, int, str], Op] = {}

    def draw(step: Step) -> Op:
        place = place_of(step.inputs[0])
        if place is None:
            raise NotCapturable(SEEDED.format(step.op.name))
        key = (step.op, place, repr(step.params))
        if key not in draws:
            kernel = backend.kernel(step.op, (program.numbers[place],), step.params, step.spec)
            seeds.append(Seed(place, kernel))
            draws[key] = Op(
                step.op.name, step.op.rule, numpy=step.op.numpy, torch=lambda *_: kernel.draw
            )
        return draws[key]

    steps = []
    for step in program.steps:
        if step.op in DRAWN:
            steps.append(replace(step, op=draw(step), inputs=()))
            continue
        op: Op | None = step.op
        if any(place_of(one) in lifted for one in step.inputs):
            op = of_arrays(step.op)
            if op is None:
                raise NotCapturable(PLAIN.format(step.op.name))
        assert op is not None
        inputs = tuple([slots.get(one, one) for one in step.inputs])
        steps.append(replace(step, op=op, inputs=inputs))
    made = Program(
        arrays=(*program.arrays, *[_as_array(program.numbers[place]) for place in order]),
        resident=(*program.resident, *[False] * len(order)),
        donated=program.donated,
        numbers=tuple([program.numbers[place] for place in rest]),
        steps=tuple(steps),
        kept=program.kept,
        read=program.read,
    )
    return made, order, seeds


def _as_array(number: Spec) -> Spec:
    return spec_of(float32, ()) if number.dtype in _HALVES else number


# ---- a captured program --------------------------------------------------------------------------


class CapturedProgram:
    """A program with its graph, arrays of the graph's own for what moves, and how it is replayed.

    Args:
        moving: slots of arrays that are copied into the graph's own.
        numbers: places of numbers that are.

    Attributes:
        capture: of the graph.
        nbytes: of its own arrays, and of its outputs.
    """

    def __init__(
        self,
        ready: Runnable,
        backend: Backend,
        driver: Driver,
        pool: Pool,
        moving: set[int],
        numbers: set[int],
    ) -> None:
        program, lifted, self._seeds = capturable(ready.program, numbers, backend)
        specs = program.specs
        self._outputs = [specs[slot] for slot in (*program.read, *program.kept)]
        self.nbytes = sum(spec.nbytes for spec in self._outputs)
        self.nbytes += sum(program.arrays[slot].nbytes for slot in moving)
        if self.nbytes > MAX_BYTES:
            raise NotCapturable(LARGE)
        self._backend = backend
        self._compiled = compiled(
            program, backend, pool, as_one(Options.of_flags(ready.flags)), lends=True
        )
        self._own = {slot: backend.empty(program.arrays[slot]) for slot in sorted(moving)}
        self._n_read = len(program.read)
        self._homes = {
            self._n_read + place: slot
            for place, slot in self._compiled.homes.items()
            if slot not in moving
        }
        self._rest = [place for place in range(len(ready.program.numbers)) if place not in lifted]
        # Numbers of one type lie in one array, so that they are brought with one copy.
        by_type: dict[Spec, list[int]] = {}
        for place in lifted:
            by_type.setdefault(_as_array(ready.program.numbers[place]), []).append(place)
        self._vectors: list[tuple[Any, list[int], list[Any]]] = []
        views: dict[int, Any] = {}
        for spec, places in by_type.items():
            vector = backend.empty(spec_of(spec.dtype, (len(places),)))
            self._vectors.append((vector, places, []))
            views.update((place, vector[at]) for at, place in enumerate(places))
        self._numbers = [views[place] for place in lifted]
        self._passed: dict[int, int] = {}  # place of an output -> slot of the array that it is
        self.capture: Capture[Results] = Capture(driver)
        self.results: Results = ((), ())

    @property
    def generators(self) -> list[Any]:
        """Of what is drawn."""
        return [seed.kernel.generator for seed in self._seeds]

    def load(self, driver: Driver, given: Sequence[Any], numbers: Sequence[Any]) -> None:
        """Copy what moves to where the graph reads it."""
        if self._own:
            driver.copy(list(self._own.values()), [given[slot] for slot in self._own])
        for vector, places, last in self._vectors:
            values = [numbers[place] for place in places]
            if values != last:
                last[:] = values
                driver.put_numbers(vector, values)
        for seed in self._seeds:
            seed.kernel.seed(numbers[seed.place])

    def work(self, given: Sequence[Any], numbers: Sequence[Any]) -> Results:
        """What is captured: the program, on what was loaded and on what stays where it is."""
        arrays = [self._own.get(slot, array) for slot, array in enumerate(given)]
        return self._compiled.run(
            [*arrays, *self._numbers], [numbers[place] for place in self._rest]
        )

    def unload(self, driver: Driver, given: Sequence[Any], results: Results) -> Results:
        """The outputs, in memory that no replay writes to."""
        there: list[Any] = []
        fresh: list[Any] = []
        out: list[Any] = []
        for place, array in enumerate(itertools.chain(*results)):
            home = self._homes.get(place)
            if home is not None:
                out.append(given[home])
            else:
                own = self._backend.empty(self._outputs[place])
                out.append(own)
                fresh.append(own)
                there.append(array if array is not None else given[self._passed[place]])
        if fresh:
            driver.copy(fresh, there)
        return tuple(out[: self._n_read]), tuple(out[self._n_read :])

    def keep(self, given: Sequence[Any], results: Results) -> None:
        """Note where a replay writes; holds no array that the child may free."""
        slots = {id(array): slot for slot, array in enumerate(given) if slot not in self._own}
        outputs = list(itertools.chain(*results))
        for place, array in enumerate(outputs):
            if id(array) in slots:
                self._passed[place] = slots[id(array)]
            if id(array) in slots or place in self._homes:
                outputs[place] = None
        self.results = tuple(outputs[: self._n_read]), outputs[self._n_read :]


class Repeated:
    """A program that a child may repeat.

    Attributes:
        runs: until now.
        is_given_up: it cannot be captured.
        changes: how often something in it changed that had seemed to stay the same.
        captured: made once it has repeated.
    """

    __slots__ = (
        "_last_numbers",
        "_last_places",
        "_moving",
        "_moving_numbers",
        "_ready",
        "_seeds",
        "captured",
        "changes",
        "is_given_up",
        "runs",
    )

    def __init__(self, ready: Runnable) -> None:
        self._ready = ready
        program = ready.program
        self._moving = {slot for slot, stays in enumerate(program.resident) if not stays}
        self._moving_numbers: set[int] = set()
        self._seeds = seeds_of(program)
        self._last_places: list[Any] = []
        self._last_numbers = b""
        self.runs = 0
        self.changes = 0
        self.is_given_up = len(program.steps) < LEAST_STEPS
        self.captured: CapturedProgram | None = None

    def places(self, backend: Backend, given: Sequence[Any]) -> list[Any]:
        """Where each array lies that is not known to move."""
        return [
            None if slot in self._moving else backend.place(array)
            for slot, array in enumerate(given)
        ]

    def has_changed(self, places: list[Any], numbers: bytes) -> bool:
        """Whether anything changed since the last run that had not before; remembers what.

        ``numbers``: 8 bytes each.
        """
        before, self._last_places = self._last_places, places
        numbers_before, self._last_numbers = self._last_numbers, numbers
        if not self.runs or (places == before and numbers == numbers_before):
            return False
        arrays = {
            slot
            for slot, (one, other) in enumerate(zip(places, before, strict=True))
            if one != other and slot not in self._moving
        }
        found = {
            place
            for place in range(len(numbers) // 8)
            if place not in self._moving_numbers
            and place not in self._seeds
            and numbers[8 * place : 8 * place + 8] != numbers_before[8 * place : 8 * place + 8]
        }
        self._moving |= arrays
        self._moving_numbers |= found
        return bool(arrays or found)

    def let_all_move(self) -> None:
        """Something else changes each time: assume that nothing stays."""
        program = self._ready.program
        self._moving = set(range(len(program.arrays)))
        fixed = {
            one - len(program.arrays)
            for step in program.steps
            for one in step.inputs
            if of_arrays(step.op) is None
        }
        self._moving_numbers |= set(range(len(program.numbers))) - self._seeds - fixed

    def prepare(self, backend: Backend, driver: Driver, pool: Pool) -> CapturedProgram:
        """The program ready to be captured, by what is known to move; may raise NotCapturable."""
        self.captured = CapturedProgram(
            self._ready, backend, driver, pool, self._moving, self._moving_numbers
        )
        return self.captured


# ---- all of them ---------------------------------------------------------------------------------


class Graphs:
    """The graphs of one engine.

    Attributes:
        captured: graphs made.
        replays: runs that were replays.
        fallbacks: reason -> how many programs of children run as they are, or were captured again.
    """

    def __init__(self, backend: Backend, driver: Driver, pool: Pool) -> None:
        self._backend = backend
        self._driver = driver
        self._pool = pool
        self._known: OrderedDict[tuple[Caller, Runnable], Repeated] = OrderedDict()
        self._graphs: OrderedDict[Repeated, None] = OrderedDict()
        self.captured = 0
        self.replays = 0
        self.fallbacks: dict[str, int] = {}

    def run(
        self,
        caller: Caller,
        ready: Runnable,
        given: list[Any],
        numbers: Sequence[Any],
        packed: bytes,
    ) -> Results:
        """Run the program in its compiled form, or replay it; ``packed``: its numbers as bytes."""
        assert ready.compiled is not None
        one = self._known.get((caller, ready))
        if one is None:
            one = self._known[caller, ready] = Repeated(ready)
            if len(self._known) > MAX_KNOWN:
                self._drop(self._known.popitem(last=False)[1])
        else:
            self._known.move_to_end((caller, ready))
        if not one.is_given_up:
            captured = self._captured(one, given, packed)
            if captured is not None:
                results = self._run(one, captured, given, numbers)
                if results is not None:
                    return captured.unload(self._driver, given, results)
        elif one.runs == WATCHED:
            self._count(FEW)
        one.runs += 1
        return ready.compiled.run(given, numbers)

    def _captured(self, one: Repeated, given: list[Any], packed: bytes) -> CapturedProgram | None:
        """What it runs as; None while it is watched, and if it cannot be captured."""
        has_changed = one.has_changed(one.places(self._backend, given), packed)
        if one.runs < WATCHED:
            return None
        if has_changed and one.captured is not None:
            self._drop(one)
            self._count(CHANGED)
            one.changes += 1
            if one.changes == MAX_CHANGES:
                one.let_all_move()
        if one.captured is not None:
            self._graphs.move_to_end(one)
            return one.captured
        try:
            captured = one.prepare(self._backend, self._driver, self._pool)
        except Exception as error:  # NotCapturable; or no memory for arrays of its own, say
            self._give_up(one, reason_of(error))
            return None
        self._graphs[one] = None
        self._evict()
        return captured

    def _run(
        self, one: Repeated, captured: CapturedProgram, given: list[Any], numbers: Sequence[Any]
    ) -> Results | None:
        """Run it; None if it cannot be captured, and then nothing was done."""
        captured.load(self._driver, given, numbers)
        work = functools.partial(captured.work, given, numbers)
        one.runs += 1
        capture = captured.capture
        if capture.replay is None:
            if not capture.is_warm:
                return capture.warm_up(work)
            try:
                captured.keep(given, capture.capture(work, captured.generators))
            except Exception as error:
                self._give_up(one, reason_of(error))
                return None
            self.captured += 1
        assert capture.replay is not None
        capture.replay()
        self.replays += 1
        return captured.results

    # ---- dropping ------------------------------------------------------------------------------

    def drop(self, ready: Runnable) -> None:
        """Drop a program's graphs: the program itself is dropped."""
        self._forget(lambda key: key[1] is ready)

    def forget(self, slot: int) -> None:
        """Drop a child's graphs: the child is gone."""
        self._forget(lambda key: key[0][0] == slot)

    def _forget(self, meant: Callable[[tuple[Caller, Runnable]], bool]) -> None:
        for key in [key for key in self._known if meant(key)]:
            self._drop(self._known.pop(key))

    def _drop(self, one: Repeated) -> None:
        if one in self._graphs:
            del self._graphs[one]
            self._driver.finish()  # the device may still be running it
        one.captured = None

    def _evict(self) -> None:
        """Drop the least recently used; its program has to prove again that it repeats."""
        while len(self._graphs) > 1 and (len(self._graphs) > MAX_GRAPHS or self.nbytes > MAX_BYTES):
            oldest = next(iter(self._graphs))
            self._drop(oldest)
            oldest.runs = 0

    def _give_up(self, one: Repeated, reason: str) -> None:
        self._drop(one)
        one.is_given_up = True
        one.runs = WATCHED + 1
        self._count(reason)

    def _count(self, reason: str) -> None:
        if reason not in self.fallbacks and len(self.fallbacks) >= MAX_REASONS:
            reason = OTHER
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1

    # ---- figures -------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Graphs that can be replayed."""
        return sum(
            one.captured is not None and one.captured.capture.replay is not None
            for one in self._graphs
        )

    @property
    def nbytes(self) -> int:
        """Of the arrays that graphs have of their own, and of their outputs."""
        return sum(one.captured.nbytes for one in self._graphs if one.captured is not None)
