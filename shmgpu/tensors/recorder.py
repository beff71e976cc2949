"""The child's side of programs: what is recorded becomes messages here, and nowhere else.

Owns what waits to be computed, which helper holds which tensor, and which programs helpers know.
A flush makes one program and one message of all that a tensor still shows, or one for each part
that goes to another helper. Never computes a value, never walks back for a gradient. What is lost
with a helper is marked in :mod:`shmgpu.tensors.failures`.
"""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from shmgpu import core
from shmgpu.arena import NOWHERE, placed
from shmgpu.child import runtime
from shmgpu.child.futures import CallFuture
from shmgpu.child.memory import Arena
from shmgpu.child.port import Port
from shmgpu.child.raw_calls import RawCall
from shmgpu.codec import arrays
from shmgpu.codec.arrays import aligned
from shmgpu.errors import HelperDied, RemoteError
from shmgpu.functions import post
from shmgpu.ops.graph import Node
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.program_message import HEAD, UnknownProgram, handles_not_made, plain_numbers
from shmgpu.ops.program_message import handles as packed_handles
from shmgpu.tensors import functions
from shmgpu.tensors.failures import (
    are_lost,
    cannot_fail_any_more,
    error_of,
    given_up,
    is_death,
    is_let_go,
    lose,
    lose_what_failed,
    lose_what_follows,
    lost_with,
    nothing_was_done,
)
from shmgpu.tensors.message import (
    Held,
    HelperIncarnation,
    Known,
    LostValue,
    Message,
    Observer,
    Placer,
    RemoteValue,
)
from shmgpu.tensors.spreading import is_leaf, parts_of, spread
from shmgpu.tensors.walks import needed, outlived
from shmgpu.watch.stats import stats

MAX_PROGRAMS = 4096
IN_USE = core.HELPERS_THAT_SERVE + core.HELPERS_TO_COME
MAX_SENT = 32  # messages that nobody waits for
MAX_TRIES = 3  # of a program that changes nothing, when helpers die over it

logger = logging.getLogger("shmgpu")


class _Outcome(enum.Enum):
    """Of a message."""

    DONE = enum.auto()  # or nothing of it can be had
    DIED = enum.auto()  # the helper died; what is not lost by that is to be tried again
    FAILED = enum.auto()  # what made it fail is lost now; the rest is to be tried again


class DraftAgain(Exception):
    """What was given to a message is not there: it is drafted once more."""


observer: Observer | None = None  # a message costs one look at this


class Recorder:
    """One child's recorded work.

    Attributes:
        pending: nodes that a tensor came to show before they were computed.
        lives: the helpers that its tensors may live on, by number.
        handle: that the next tensor gets which is kept, by whichever helper.
        numbers, order: of programs, and of messages.
        execute: what helpers run.
        placer: has what lies on meshes computed; None without meshes.
        puts_leaves_in_turn: tensors made of no others go to the helpers in turn, as in GT.
    """

    def __init__(self, backend: str, helpers: Sequence[int]) -> None:
        self.pending: list[Node] = []
        self.puts_leaves_in_turn = False
        self._flags = 0
        self.lives = {number: HelperIncarnation(number) for number in helpers}
        self.execute = functions.EXECUTE[backend]
        self._programs: dict[tuple[Any, ...], Known] = {}
        self.numbers = itertools.count(1)
        self.handle = 1
        # Children begin with different helpers: what others hold is not known here.
        self._turn = 0 if runtime.current is None else runtime.current.rank
        self._chosen: HelperIncarnation | None = None  # for a part of its own
        self._steps = 0
        self._sent: deque[tuple[CallFuture[Any], Message]] = deque()
        self.order = itertools.count(1)
        self.lock = threading.RLock()
        self.placer: Placer | None = None
        reclaim = weakref.WeakMethod(self._reclaim)
        runtime.require().arena.reclaimers.append(lambda: bool((found := reclaim()) and found()))

    @property
    def helpers(self) -> tuple[int, ...]:
        """The numbers of those that its tensors may live on."""
        return tuple(self.lives)

    @property
    def flags(self) -> int:
        """Which optimisations helpers leave out, as bits; see the engine."""
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        # Helpers compile a program when they get its bytes, with these flags.
        if flags != self._flags:
            self._programs.clear()
        self._flags = flags

    def waiting(self) -> list[Node]:
        """What would be computed now, inputs first."""
        with self.lock:
            return needed([node for node in self.pending if node.owners and node.value is None])

    def taken(self) -> list[Node]:
        """All that is pending: from now on whoever asked for it answers for it."""
        pending, self.pending = self.pending, []
        return pending

    def forget_unshown(self) -> None:
        """Before what is pending is sent in several messages: drop what no tensor shows any more.

        No message takes it along, and what it is made of would count as known elsewhere.
        """
        shown = [node for node in self.taken() if node.owners]
        self.pending += shown

    # ---- when ----------------------------------------------------------------------------------

    def flush(self, wanted: Sequence[Node] = ()) -> None:
        """Compute what is wanted, and all that a tensor shows; return when it is there.

        Raises:
            HelperDied: what is wanted was held by a helper that is gone, or follows from it.
            RemoteError: an operation failed.
        """
        with self.lock:
            missing = [node for node in dict.fromkeys(wanted) if type(node.value) is not Held]
            self._compute(missing, wait=True)
            if not wanted:
                self._settle(0)  # of parts that were sent to other helpers
                while self.placer is not None and self.placer.settle(0):
                    self._compute([], wait=True)
            for node in missing:
                if type(node.value) is LostValue:
                    raise node.value.error

    def send(self) -> None:
        """Have all that a tensor shows computed, and do not wait for it."""
        with self.lock:
            self._compute([], wait=False)

    def step_done(self) -> None:
        """A step of training was recorded.

        One that nobody looks at is sent together with the next, so that the helper does not idle
        under a loop that never asks. Not earlier: a step that is looked at should be one message.
        And not by the clock: a loop's programs would never be the same twice.
        """
        self._steps += 1
        if self._steps > 1:
            self.send()

    def _compute(self, read: list[Node], wait: bool) -> None:
        if self._sent:
            self._settle(MAX_SENT)
        self._steps = 0
        if self.placer is not None:
            read = self.placer.compute(read, wait)
            if not read and not self.pending:
                return
        is_spread = len(self.lives) > 1 and bool(self.pending)
        try:
            self._compute_pending(read, wait, self._spread(read) if is_spread else None)
        finally:
            self._chosen = None

    def _spread(self, read: list[Node]) -> list[Node] | None:
        """Send all independent parts but the last, and choose the helper of that, which is read.

        Returns:
            What is to be computed, inputs first, where all of it is one part; else None.
        """
        self.forget_unshown()
        order = needed([*(n for n in self.pending if n.owners), *read])
        lives = list(self.lives.values())
        if self.puts_leaves_in_turn:
            for node in order:
                if node.owners and is_leaf(node) and node.op is not None:
                    self._turn += 1
                    self._send_part([node], lives[self._turn % len(lives)])
            return None
        parts = parts_of(order)
        if len(parts) < 2:
            return order
        self._turn += 1
        turn = self._turn % len(lives)
        planned = spread(parts, read, [*lives[turn:], *lives[:turn]], HelperIncarnation.is_idle)
        del order, parts  # what they refer to would count as known elsewhere
        while len(planned) > 1:
            life, part = planned.pop(0)
            self._send_part(part.nodes, life)
        self._chosen = planned[0][0]
        return None

    def _send_part(self, nodes: list[Node], life: HelperIncarnation) -> None:
        """These, with all that they need, to that helper; what a tensor shows of them is kept."""
        mine = set(nodes)
        others = [node for node in self.pending if node not in mine]
        self.pending, self._chosen = [node for node in nodes if node.owners], life
        del mine  # references to nodes are counted
        try:
            self._compute_pending([], False, nodes)
        finally:
            self.pending += others
            self._chosen = None

    def _compute_pending(
        self, read: list[Node], wait: bool, known: list[Node] | None = None
    ) -> None:
        roots: list[Node] = []
        tries = 0
        try:
            while True:
                roots = [n for n in (*roots, *self.taken()) if n.owners and n.value is None]
                order, known = known or needed([*roots, *read]), None
                draft = ProgramDraft(order, read, RemoteValue)
                if are_lost(draft.arrays, self):
                    lose_what_follows(order, self)
                    read = [node for node in read if error_of(node, self) is None]
                    continue
                if not order and not read:
                    return
                try:
                    message = self._message(draft)
                except DraftAgain:
                    continue
                outcome = self._deliver(message, wait)
                if outcome is _Outcome.DONE:
                    break
                tries += outcome is _Outcome.DIED
                if tries == MAX_TRIES:
                    self._spoil(message, HelperDied(given_up(message.life)))
                    break
        except BaseException:
            # Ctrl-C, a full arena: what was not done can be asked for again.
            self.pending = [node for node in roots if node.value is None] + self.pending
            raise
        done = [node for node in order if node not in message.alive]
        if not wait:
            message.cleared = [(node, node.inputs) for node in order]
        for node in done:  # computed or in nobody's hand, and no gradient to come: no history
            node.inputs = ()

    def _settle(self, at_most: int) -> None:
        """Hear of messages that nobody waited for, until so many are left."""
        while self._sent and (len(self._sent) > at_most or self._sent[0][0].done()):
            future, message = self._sent.popleft()
            error = future.exception()  # not raised: its traceback would keep the message alive
            if error is not None:
                if not isinstance(error, (HelperDied, RemoteError)) and not is_let_go(error):
                    raise error
                self._fell(message, error)
                continue
            if message.life.is_over:
                self._rehome(message)
            message.life.heard(message)
            cannot_fail_any_more(message)
            if observer is not None:
                observer.delivered(message, is_answered=True)

    def _reclaim(self) -> bool:
        """The arena is full: let go of what helpers may still read, once they do not."""
        with self.lock:
            lives = [life for life in self.lives.values() if life.reading]
            for life in lives:
                life.wait()
                life.reading = []
            return bool(lives)

    # ---- what is lost --------------------------------------------------------------------------

    def _fell(self, message: Message, error: BaseException) -> None:
        """A message that nobody waited for failed: it is sent again where a death allows that."""
        if not is_death(error):
            self._take_back(message)
            if not self._blame(message, error):
                self._spoil(message, error)
            if isinstance(error, RemoteError) and not handles_not_made(error.message)[0]:
                why = f"{error.type_name}: {error.message}"
                logger.warning("%s (in a step that nobody has looked at so far)", why)
            self.pending += [node for node in message.kept if node.owners and node.value is None]
            return
        self.bury(message.life, message.order, error)
        if message.handles or message.tries >= MAX_TRIES:
            self._spoil(message, HelperDied(lost_with(message.life, message.kept)))
            return
        if observer is not None:
            observer.failed(message, error)
        known, used = message.known, len(message.handles) + len(message.freed)
        numbers = message.head[HEAD.size + 8 * used :]
        message.life, message.freed = self._place([]), []
        message.head = HEAD.pack(known.number, self._flags, self.handle, 0, 0) + numbers
        self._deliver(message, wait=False)

    def _rehome(self, message: Message) -> None:
        """A message that waited while its helper died was done by the replacement."""
        if message.order < message.life.died_over:
            return
        number = message.life.number
        message.life = life = self.lives.setdefault(number, HelperIncarnation(number))
        life.told.add(message.known.number)
        for node in message.kept:
            if type(node.value) is RemoteValue and node.value.life.is_over:
                node.value.life = life
                life.nbytes += node.value.nbytes

    def bury(self, life: HelperIncarnation, order: int, error: BaseException) -> None:
        """That helper is dead; whoever has its number now, if anybody, holds nothing."""
        life.died_over = min(order, life.died_over) if life.is_over else order
        life.is_over = True
        life.was_let_go = is_let_go(error)
        life.reading = []
        if self.lives.get(life.number) is life:
            self.lives[life.number] = HelperIncarnation(life.number)
            if life.was_let_go:
                self._forget_absent()
            if observer is not None:
                observer.died(life.number)

    def _forget_absent(self) -> None:
        """Place nothing any more at helpers that were let go, as long as there are others."""
        rows = stats()["helpers"]
        there = {n: life for n, life in self.lives.items() if rows[n]["state"] in IN_USE}
        self.lives = there or self.lives

    def _take_back(self, message: Message) -> None:
        """Nothing of a message that nobody waited for was done: its nodes are what they were."""
        for node in nothing_was_done(message, RemoteValue):
            node.value.life.nbytes += node.value.nbytes

    def _blame(self, message: Message, error: BaseException) -> bool:
        """What made the message fail is lost: the operation, or what it was given.

        False where the error does not tell: memory ran out, or the quota.
        """
        if observer is not None:
            observer.failed(message, error)
        if not isinstance(error, RemoteError):
            return False
        return lose_what_failed(message, error, RemoteValue, message.nodes)

    def _spoil(self, message: Message, error: BaseException) -> None:
        """What the message would have made will not be."""
        if observer is not None:
            observer.failed(message, error)
        made = {*message.kept, *message.read}
        # Inputs first, so that no tensor goes back to a value that is lost, too.
        for node in message.nodes:
            if node.value is None or node in made:
                lose(node, error)
        for node in made.difference(message.nodes):  # moved, or only looked at
            lose(node, error)

    # ---- what is sent --------------------------------------------------------------------------

    def _message(self, draft: ProgramDraft) -> Message:
        order, read = draft.order, draft.read
        message = Message()
        message.life = self._place(draft.residents)
        if draft.residents:
            moved = [node for node in draft.residents if node.value.life is not message.life]
            if moved:
                for node in moved:
                    self.move(node)
                draft = ProgramDraft(order, read, RemoteValue)
        alive, kept = outlived(draft)
        message.alive = alive
        message.tries = 0
        message.read = read
        message.kept = kept = [node for node in kept if node not in read]
        message.known = self._known(draft.settled(kept, draft.unneeded(alive)))
        unneeded = message.life.unneeded
        message.freed = [unneeded.popleft() for _ in range(len(unneeded))] if unneeded else []
        message.nodes = order
        self._pack(message, draft)
        if observer is not None:
            observer.drafted(message, draft, is_move=False)
        return message

    def _known(self, draft: ProgramDraft) -> Known:
        """The program of that structure, made where there is none yet."""
        known = self._programs.get(draft.key)
        if known is None:
            program = draft.program(RemoteValue)
            if len(self._programs) >= MAX_PROGRAMS:
                self._programs.clear()
            known = self._programs[draft.key] = Known(
                next(self.numbers), program.encode(), plain_numbers(program)
            )
        return known

    def _pack(self, message: Message, draft: ProgramDraft) -> None:
        """Write down what is sent beside the program: what it is given, and what is let go of."""
        known = message.known
        message.donated = draft.donated
        message.residents = [(node.value.handle, node) for node in draft.residents]
        message.handles = handles = [handle for handle, _ in message.residents]
        message.cleared = []
        message.arrays = [node.value for node in draft.arrays if type(node.value) is Held]
        freed = [handle for handle, _ in message.freed]
        head = HEAD.pack(known.number, self._flags, self.handle, len(handles), len(freed))
        if handles or freed:
            head += packed_handles(len(handles) + len(freed)).pack(*handles, *freed)
        message.head = head + known.numbers.pack(*draft.numbers)

    def _place(self, leaves: list[Node]) -> HelperIncarnation:
        """The helper that holds most of what is used; the one that holds least where none does."""
        if leaves:
            held: dict[HelperIncarnation, int] = {}
            for node in leaves:
                life = node.value.life
                held[life] = held.get(life, 0) + node.spec.nbytes
            return max(held, key=held.__getitem__)
        if self._chosen is not None and not self._chosen.is_over:
            return self._chosen
        lives = list(self.lives.values())
        if len(lives) == 1:
            return lives[0]
        self._turn += 1
        turn = self._turn
        return min(
            (lives[(turn + place) % len(lives)] for place in range(len(lives))),
            key=lambda life: life.nbytes,
        )

    def move(self, node: Node) -> None:
        """Have a helper put a tensor into the arena, where another helper finds it.

        All helpers map the arena, so what one writes there is copied once and read by the other as
        it lies. The tensor stays there until an operation has made another of it.
        """
        message = Message()
        message.read, message.kept, message.freed, message.tries = [node], [], [], 0
        message.nodes = []
        message.life = node.value.life
        draft = ProgramDraft([], [node], RemoteValue).settled([], [])
        message.known = self._known(draft)
        self._pack(message, draft)
        if observer is not None:
            observer.drafted(message, draft, is_move=True)
        if self._deliver(message, wait=True) is not _Outcome.DONE:
            raise DraftAgain  # it is lost, or its own message was in flight and is sent again

    def put(self, node: Node, life: HelperIncarnation, handle: int) -> bool:
        """Have a helper keep what comes of the arena alone, under that handle; whether it does."""
        message = Message()
        message.read, message.kept, message.freed, message.tries = [], [node], [], 0
        message.nodes = [node]
        message.life = life
        draft = ProgramDraft([node], [], RemoteValue).settled([node], [])
        message.known = self._known(draft)
        after, self.handle = self.handle, handle
        try:
            self._pack(message, draft)
            return self._deliver(message, wait=True) is _Outcome.DONE
        finally:
            self.handle = after

    def _deliver(self, message: Message, wait: bool) -> _Outcome:
        """Send it. Returns its outcome; where nobody waits, DONE once it is sent.

        Never raises HelperDied or RemoteError: a tensor that is lost does so when it is read.
        """
        life, known = message.life, message.known
        message.order = next(self.order)
        message.tries += 1
        port = runtime.port
        if port is None or port.rejoins:
            port = runtime.require_port()
        code = b"" if known.number in life.told else known.code
        try:
            if not wait:
                raw = self._raw_call(message, code, port)
                self._sent.append((post(port, raw, message.arrays), message))
            else:
                try:
                    self._ask(message, code, port)
                except RemoteError as error:
                    if code or not error.matches(UnknownProgram):
                        raise
                    self._ask(message, known.code, port)
        except BaseException as error:
            if not isinstance(error, (HelperDied, RemoteError)) and not is_let_go(error):
                life.unneeded.extendleft(reversed(message.freed))
                raise
            if not is_death(error):
                for _, nbytes in message.freed:  # the helper has read so far
                    life.nbytes -= nbytes
                self._settle(0)  # its arguments may come from a message that failed in flight
                if self._blame(message, error):
                    return _Outcome.FAILED
                self._spoil(message, error)
                return _Outcome.DONE
            self.bury(life, message.order, error)
            if observer is not None:
                observer.failed(message, error)
            # Messages in flight beside it may be sent again, and then this one, too.
            self._settle(0)
            return _Outcome.DIED
        if wait:
            life.heard(message)
            cannot_fail_any_more(message)
        life.told.add(known.number)
        for _, nbytes in message.freed:
            life.nbytes -= nbytes
        for node in message.donated:
            node.value.is_ours = False
            life.nbytes -= node.spec.nbytes
        for handle, node in enumerate(message.kept, self.handle):
            node.value = RemoteValue(self, life, handle, node.spec.nbytes)
            life.nbytes += node.spec.nbytes
        self.handle += len(message.kept)
        if observer is not None:
            observer.delivered(message, is_answered=wait)
        return _Outcome.DONE

    def _raw_call(self, message: Message, code: bytes, port: Port) -> RawCall:
        """The message as it is sent."""
        arena = port.arena
        addresses = []
        for place, value in enumerate(message.arrays):
            if not arena.base <= value.address < arena.end:  # or of a broker that was left since
                value = message.arrays[place] = self.placed(value, arena)
            addresses.append(value.address)
        output_bytes = 0
        for node in message.read:
            output_bytes = aligned(output_bytes) + node.spec.nbytes
        raw = port.arguments.raw_call(self.execute, len(addresses), 1 << message.life.number)
        raw.fill(message.head, code, addresses, output_bytes, arena)
        return raw

    def placed(self, value: Held, arena: Arena) -> Held:
        """One from elsewhere, in the arena: for this message alone while that is crowded."""
        array, address = placed(value.array)
        if arena.is_crowded(array.nbytes):
            return Held(array, address)
        value.array, value.address = array, address
        return value

    def _ask(self, message: Message, code: bytes, port: Port) -> None:
        """Send it, wait, and take in what was read: the arrays lie one after the other."""
        raw = self._raw_call(message, code, port)
        address = raw.output_address
        output = port.send(raw, self.execute, message.arrays)
        if port.arena.is_crowded(len(output)):
            output, address = memoryview(bytearray(output)), NOWHERE
        place = 0
        for node in message.read:
            spec = node.spec
            node.value = Held(arrays.numpy_view(output, place, spec), address + place)
            place += aligned(spec.nbytes)
