"""Runs programs whose tensors lie on a mesh: one message to all members. The recorder calls it.

Owns which of the recorded nodes lie on a mesh, how kept values lie, and what is done after a failed
message: it took effect on all members or on none, so it is drafted again without what is lost.
Never computes a value. It is called while the recorder's lock is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any

from shmgpu import core
from shmgpu.child import runtime
from shmgpu.child.futures import CallFuture
from shmgpu.child.gang_calls import GangCallPlan, outcome_of
from shmgpu.child.port import Port
from shmgpu.distributed.explaining import Explanation, explain
from shmgpu.distributed.layout import Layout, replicated
from shmgpu.distributed.lowered import Lowered
from shmgpu.distributed.lowering import lower
from shmgpu.distributed.mesh import Mesh
from shmgpu.errors import GangAborted, HelperDied, NotRunning, RemoteError
from shmgpu.functions import post
from shmgpu.ops.graph import Node
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.program_message import UnknownProgram, UnknownTensor
from shmgpu.ops.redistribution import RECORDED
from shmgpu.parallel.crossing import Hints, Turn, hints_of, in_the_arena
from shmgpu.parallel.mending import mend
from shmgpu.parallel.message import MeshMessage
from shmgpu.parallel.programs import MAX_PROGRAMS, MeshPrograms, Wanted, layouts_of
from shmgpu.tensors import recorder as recording
from shmgpu.tensors.devices import are_known_hosts
from shmgpu.tensors.failures import (
    ANOTHER,
    cannot_fail_any_more,
    error_of,
    is_death,
    is_let_go,
    lose,
    lose_what_failed,
    lose_what_follows,
)
from shmgpu.tensors.message import LostValue, RemoteValue, Spread, said
from shmgpu.tensors.recorder import MAX_SENT, DraftAgain, Recorder
from shmgpu.tensors.spreading import parts_of
from shmgpu.tensors.walks import needed, outlived

MAX_DEATHS = 3  # of a mesh's members in a row, over programs that change nothing

# So long results are waited for before it is seen whether the message has ended without them: a
# member that died says nothing.
LOOK_NS = 20_000_000


class MeshPlacer:
    """One recorder's work on meshes; see :class:`shmgpu.tensors.message.Placer`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._programs = MeshPrograms()
        self._plans: dict[Any, GangCallPlan] = {}
        self._meshes: dict[Any, Mesh | None] = {}  # of all of a structure; None: of no one
        self._sent: deque[tuple[CallFuture[Any], MeshMessage]] = deque()
        self._deaths = 0  # since a message was last answered
        self._hints: Hints = {}  # of what is on several meshes and being computed
        self.algorithm = "auto"  # of all_reduces
        self.watchers: list[Callable[[Lowered], None]] = []  # called with what is sent

    # ---- which ---------------------------------------------------------------------------------

    def compute(self, read: list[Node], wait: bool) -> list[Node]:
        """Have done what lies on a mesh of all that waits; what is left to be read elsewhere."""
        recorder = self._recorder
        held: list[Node] = []  # for later turns
        try:
            while True:
                if self._sent:
                    self.settle(MAX_SENT)
                recorder.forget_unshown()
                order = needed([*(n for n in recorder.pending if n.owners), *read])
                draft = ProgramDraft(order, read, Spread)
                only = self._mesh_of_all(draft)
                if only is not None:
                    roots = [node for node in recorder.taken() if node.owners]
                    if self._compute_on(only, roots, read, wait, draft):
                        return []
                    continue
                found, turns = self._by_mesh(order, read)
                del draft, order  # what they refer to would count as needed
                for turn in turns:
                    for node in turn.kept:
                        node.owners += 1
                    held += turn.kept
                is_done = all(turn.is_last for turn in turns)
                for mesh in [*found]:
                    mine = set(found.pop(mesh))
                    shown = [node for node in recorder.pending if node in mine and node.owners]
                    later = [node for node in held if node in mine]
                    roots = [*dict.fromkeys([*shown, *later])]
                    recorder.pending = [node for node in recorder.pending if node not in mine]
                    own = [node for node in read if node in mine or _lies_on(mesh, node)]
                    del mine
                    passed = [one for turn in turns for one in turn.passed.get(mesh, ())]
                    with in_the_arena(one for turn in turns for one in turn.brought.get(mesh, ())):
                        is_sent = self._compute_on(
                            mesh,
                            roots,
                            [*dict.fromkeys([*own, *passed])],
                            wait or bool(passed),
                        )
                    if not is_sent:
                        is_done = False
                        break  # what waits now is not what waited before
                    read = [node for node in read if node not in own]
                if is_done:
                    return read
        finally:
            self._hints.clear()
            for node in held:
                node.owners -= 1

    def explain(self, nodes: list[Node]) -> Explanation:
        """How these would be computed. ValueError where nothing is, or not on one mesh."""
        with self._recorder.lock:
            order = needed(nodes)
            meshes = meshes_of(order)
            if len(meshes) != 1:
                raise ValueError(
                    "explain: the tensors are computed already, or lie on no mesh: ask before they "
                    "are looked at"
                    if not meshes
                    else "explain: the tensors lie on different meshes"
                )
            asked = set(nodes)
            kept = [node for node in order if node in asked]
            draft = ProgramDraft(order, [], Spread).settled(kept, [])
            program = draft.program(Spread)
            wanted = {
                program.kept[place]: layout for place, layout in _wanted(draft, meshes[0]).items()
            }
            lowered = lower(program, meshes[0], layouts_of(draft.arrays), wanted)
            return explain(program, lowered)

    def _by_mesh(
        self, order: list[Node], read: list[Node]
    ) -> tuple[dict[Mesh, list[Node]], list[Turn]]:
        """What is to be computed on each mesh; and turns of what is of several."""
        found: dict[Mesh, list[Node]] = {}
        turns: list[Turn] = []
        for part in parts_of(order):
            meshes = meshes_of(part.nodes)
            if len(meshes) > 1 or (meshes and self._hints):
                self._hints.update(hints_of(part.nodes))
                turn = Turn(part.nodes, self._hints)
                turns.append(turn)
                for mesh in {**turn.nodes, **turn.passed}:
                    found.setdefault(mesh, []).extend(turn.nodes.pop(mesh, ()))
            elif meshes:
                found.setdefault(meshes[0], []).extend(part.nodes)
        for node in read:
            if type(node.value) is Spread:
                found.setdefault(node.value.layout.mesh, [])
        return found, turns

    def _mesh_of_all(self, draft: ProgramDraft) -> Mesh | None:
        """The mesh on which all of it is to be done; None where it takes a closer look to say."""
        if self._hints or not draft.order:
            return None
        key = (draft.structure, layouts_of(draft.arrays))
        try:
            mesh = self._meshes[key]
        except KeyError:
            if len(self._meshes) >= MAX_PROGRAMS:
                self._meshes.clear()
            mesh = self._meshes[key] = _mesh_of_all(draft.order)
        if mesh is None or not all(_is_to_be_on(mesh, node) for node in draft.read):
            return None
        return mesh

    # ---- one message ---------------------------------------------------------------------------

    def _compute_on(
        self,
        mesh: Mesh,
        roots: list[Node],
        read: list[Node],
        wait: bool,
        known: ProgramDraft | None = None,
    ) -> bool:
        """Send what waits on a mesh, all at once; False where it has to be sent once more.

        All of it, because a node that only others in the message need has no history after it.
        ``known``: of all that these need, where that was drafted before.
        """
        recorder = self._recorder
        try:
            while True:
                roots = [node for node in roots if node.owners and node.value is None]
                draft, known = known or ProgramDraft(needed([*roots, *read]), read, Spread), None
                order = draft.order
                if self._are_lost(draft.arrays):
                    lose_what_follows(order, recorder)
                    read = [node for node in read if type(node.value) is not LostValue]
                elif not order and not read:
                    return True
                elif not self._move_to_arena(draft.arrays):
                    break
            message = self._message(mesh, draft)
            if not self._deliver(message, wait):
                recorder.pending = [node for node in roots if node.value is None] + recorder.pending
                return False
        except BaseException:
            # Ctrl-C, a full arena: what was not done can be asked for again.
            recorder.pending = [node for node in roots if node.value is None] + recorder.pending
            raise
        done = [node for node in order if node not in message.alive]
        if message.is_out:
            message.cleared = [(node, node.inputs) for node in order]
        for node in done:  # computed or in nobody's hand, and no gradient to come: no history
            node.inputs = ()
        return True

    def _move_to_arena(self, leaves: list[Node]) -> bool:
        """Have what one helper holds alone lie where all members see it; whether anything does."""
        alone = [node for node in leaves if type(node.value) is RemoteValue]
        for node in alone:
            try:
                self._recorder.move(node)
            except DraftAgain:
                break
        return bool(alone)

    def _message(self, mesh: Mesh, draft: ProgramDraft) -> MeshMessage:
        recorder = self._recorder
        alive, kept = outlived(draft, self._hints)
        draft.settled(kept, self._unneeded(draft, alive))
        program = self._programs.of(
            mesh, draft, self._wanted(draft, mesh), recorder.numbers.__next__, self.algorithm
        )
        message = MeshMessage(program, draft, self._members(mesh), recorder.handle)
        recorder.handle += len(kept)
        message.alive = alive
        return message

    def _unneeded(self, draft: ProgramDraft, alive: Set[Node]) -> list[Node]:
        if not self._sent:
            return draft.unneeded(alive)
        held = dict.fromkeys(draft.residents, 0)
        for _, message in self._sent:
            message.count_into(held)
        return draft.unneeded(alive, held)

    def _wanted(self, draft: ProgramDraft, mesh: Mesh) -> Wanted:
        found = _wanted(draft, mesh)
        for place, node in enumerate(draft.kept if self._hints else ()):
            hint, of_leaf = self._hints.get(node, (None, False))
            if hint is not None and of_leaf and hint.mesh is mesh:  # a leaf of an earlier turn
                found.setdefault(place, hint)
        return tuple(sorted(found.items(), key=_place))

    def _members(self, mesh: Mesh) -> list[Any]:
        lives = self._recorder.lives
        gone = [number for number in mesh.helpers if number not in lives]
        if gone:
            raise HelperDied(
                f"helper {gone[0]} of the mesh was let go when its pool was scaled: make a mesh of "
                "those that there are"
            )
        return [lives[number] for number in mesh.helpers]

    def _deliver(self, message: MeshMessage, wait: bool) -> bool:
        """Send it, and have its outcome; of one that nobody waits for, that it is out.

        Where much is left to do once what is read is there, its end is not waited for either.

        Returns:
            Whether it is done: else it is to be drafted again, without what is lost.
        """
        recorder = self._recorder
        message.order = next(recorder.order)
        port = runtime.port
        if port is None or port.rejoins:
            port = runtime.require_port()
        message.take_freed()
        sent = False
        try:
            for place, value in enumerate(message.arrays):
                if not port.arena.base <= value.address < port.arena.end:
                    message.arrays[place] = recorder.placed(value, port.arena)
            program = message.program
            message.says = (
                wait
                and program.is_said_early
                and not self._hints
                and are_known_hosts(program.lowered.mesh.helpers)
            )
            message.is_out = not wait or message.says
            call = message.call(port, recorder.execute, self._plans, recorder.flags)
            outputs, words = [*zip(call.result, call.outputs, strict=True)], call.words
            sent = True
            if message.is_out:
                future = post(port, call, message.arrays)
                self._sent.append((future, message))
            else:
                port.send(call, recorder.execute, message.arrays)
        except BaseException as error:
            is_ours = isinstance(error, (HelperDied, RemoteError, GangAborted)) or is_let_go(error)
            if not outcome_of(error)[1]:
                message.give_freed_back()
            if not sent or not is_ours:
                raise
            return self._failed(message, error)
        message.delivered(recorder)
        if recording.observer is not None:
            recording.observer.spread(message, is_answered=not message.is_out)
        for watcher in self.watchers:
            watcher(program.lowered)
        if message.says:
            if not _are_said(words, future) and self.settle(0):
                return False
        elif wait:
            self._deaths = 0
            self._heard(message)
        if wait:
            self._look(message, port, outputs)
        return True

    def _look(self, message: MeshMessage, port: Port, outputs: Sequence[tuple[Any, int]]) -> None:
        """Take in what was read, from the members' output buffers and these buffers' addresses."""
        program = message.program
        buffers, addresses = zip(
            *[outputs[place] for place in program.lowered.mesh.places], strict=True
        )
        for place, node in enumerate(message.read):
            held = program.put_together(place, buffers, addresses, port.arena, message.says)
            if type(node.value) is Spread:
                node.value.whole = held
            else:
                node.value = held

    def _heard(self, message: MeshMessage) -> None:
        """All members have answered it."""
        lives = self._recorder.lives
        for rank, life in enumerate(message.lives):
            if life.is_over and message.order >= life.died_over and life.number in lives:
                # It waited while that one died, and was done by the replacement.
                message.lives[rank] = life = lives[life.number]
                life.told.add(message.program.number)
            life.heard(message)
        cannot_fail_any_more(message)

    # ---- what fails ----------------------------------------------------------------------------

    def settle(self, at_most: int) -> bool:
        """Hear of messages that nobody waited for, until so many are left.

        Returns:
            Whether any failed: what is not lost of them waits again.
        """
        failed: list[tuple[MeshMessage, BaseException]] = []
        while self._sent and (failed or len(self._sent) > at_most or self._sent[0][0].done()):
            future, message = self._sent.popleft()
            error = future.exception()
            if error is None:
                self._deaths = 0
                self._heard(message)
                if recording.observer is not None:
                    recording.observer.spread(message, is_answered=True)
            elif isinstance(error, (HelperDied, RemoteError, GangAborted)) or is_let_go(error):
                failed.append((message, error))  # and those that build on it will have failed, too
            else:
                raise error
        pending: list[Node] = []
        for message, error in reversed(failed):
            if not outcome_of(error)[1]:
                message.take_back()
                if recording.observer is not None:
                    recording.observer.undone(message, error)
            pending[:0] = message.kept
        for number, (message, error) in enumerate(failed):
            self._failed(message, error, follows=number > 0)
        again = [node for node in pending if node.owners and node.value is None]
        self._recorder.pending = again + self._recorder.pending
        return bool(failed)

    def _failed(self, message: MeshMessage, error: BaseException, follows: bool = False) -> bool:
        """Note what is lost by that; whether the message stands nevertheless.

        ``follows``: an earlier one failed, on which this one may build.
        """
        recorder = self._recorder
        helper, stands = outcome_of(error)
        places = [place for place, life in enumerate(message.lives) if life.number == helper]
        if stands:
            if not any(type(node.value) is Spread for node in message.kept):
                message.delivered(recorder)
            if is_death(error):
                for place in places:
                    recorder.bury(message.lives[place], message.order, error)
                self.settle(0)
                for node in message.kept:  # now, while the others live
                    if type(node.value) is Spread:
                        mend(recorder, node.value, node.spec)
            else:
                for node in message.kept:
                    lose(node, error)
            for node in message.read:
                if node.value is None:
                    lose(node, error)
            return not message.read  # these exist, and are looked at once more
        for life in message.lives:  # they hold it, or remember why it is not there
            life.unneeded.extend([(message.first + place, 0) for place in range(len(message.kept))])
        follows = self.settle(0) or follows  # its arguments may come from a message in flight
        if isinstance(error, RemoteError) and error.matches(UnknownProgram):
            for place in places:
                message.lives[place].told.clear()
            return False
        if follows and isinstance(error, RemoteError) and error.matches(UnknownTensor):
            # That member is alive, but lacks what the earlier message should have made.
            return False
        if is_death(error):
            # Messages that build on the first one find tensors missing: that is no other death.
            is_news = not all(message.lives[place].is_over for place in places) or not places
            self._deaths += is_news
            for place in places:
                recorder.bury(message.lives[place], message.order, error)
            if not is_news or self._deaths < MAX_DEATHS:
                return False
            error = HelperDied("helpers died over these tensors again and again")
        elif self._blame(message, error):
            return False
        for node in message.nodes:
            if node.value is None:
                lose(node, error)
        for node in message.read:
            lose(node, error)
        return False

    def _blame(self, message: MeshMessage, error: BaseException) -> bool:
        """What made the message fail is lost: the operation, or what it was given."""
        if isinstance(error, GangAborted):
            self._deaths += 1
            return self._deaths < MAX_DEATHS
        assert isinstance(error, RemoteError)
        sakes = message.program.lowered.sakes
        nodes = [message.nodes[place] if place >= 0 else None for place in sakes]
        return lose_what_failed(message, error, Spread, nodes)

    def _are_lost(self, leaves: list[Node]) -> bool:
        """Whether any of these values will never be there."""
        found = False
        for node in leaves:
            value = node.value
            if type(value) is Spread:
                error = self._error_of(node, value)
                if error is not None:
                    node.value = LostValue(error)
                    found = True
            elif type(value) is LostValue:
                found = True
            elif type(value) is RemoteValue:
                found = error_of(node, self._recorder) is not None or found
        return found

    def _error_of(self, node: Node, value: Spread) -> BaseException | None:
        if value.recorder is not self._recorder:
            return NotRunning(ANOTHER)
        dead = [life for life in value.lives if life.is_over]
        spec = node.spec
        if not dead or mend(self._recorder, value, spec):
            return None
        return HelperDied(
            f"helper {dead[0].number} has died, and with it went its piece of a tensor that lay "
            f"{value.layout} ({spec.dtype.name} {spec.shape}): create it again, or load the "
            "state_dict that was saved last"
        )


# ---- how things lie ----------------------------------------------------------------------------


def meshes_of(nodes: Sequence[Node]) -> list[Mesh]:
    """The meshes that these say, or that what they are made of lies on."""
    found: dict[Mesh, None] = {}
    for node in nodes:
        if node.op in RECORDED:
            found[node.params[0].mesh] = None
        for one in node.inputs:
            if type(one.value) is Spread:
                found[one.value.layout.mesh] = None
    return list(found)


def _mesh_of_all(order: Sequence[Node]) -> Mesh | None:
    """The mesh on which all of it is to be done; None where it takes a closer look to say.

    What is made of something on a mesh is on it, and so is what that is made of besides: two walks
    tell so of most steps of training.
    """
    mesh: Mesh | None = None
    on: set[Node] = set()
    for node in order:
        said_mesh = node.params[0].mesh if node.op in RECORDED else None
        for one in node.inputs:
            if one in on:
                on.add(node)
            elif type(one.value) is Spread:
                if said_mesh is None:
                    said_mesh = one.value.layout.mesh
                elif said_mesh is not one.value.layout.mesh:
                    return None
        if said_mesh is not None:
            if mesh is None:
                mesh = said_mesh
            elif mesh is not said_mesh:
                return None
            on.add(node)
    if len(on) < len(order):
        for node in reversed(order):
            if node in on:
                on.update([one for one in node.inputs if one.value is None])
    return mesh if len(on) == len(order) else None


def _is_to_be_on(mesh: Mesh, node: Node) -> bool:
    return node.value is None or _lies_on(mesh, node)


def _lies_on(mesh: Mesh, node: Node) -> bool:
    return type(node.value) is Spread and node.value.layout.mesh is mesh


def _wanted(draft: ProgramDraft, mesh: Mesh) -> dict[int, Layout]:
    """How what is kept shall lie: what was changed in place as before, gradients as their leaves.

    Of each the place among what is kept.
    """
    places: dict[Node, int] = {}
    found: dict[int, Layout] = {}
    for place, node in enumerate(draft.kept):
        places[node] = place
        layout = said(node)
        if layout is None and node.leaf is not None and node.undo is not None:
            layout = replicated(mesh)  # a parameter that nobody put anywhere is whole with each
        if layout is not None:
            found[place] = layout
    for node in (*draft.arrays, *draft.kept):
        tensor = None if node.leaf is None else node.leaf()
        if tensor is None or tensor.grad is None:
            continue
        of_grad = places.get(tensor.grad._node)
        layout = None if of_grad is None or of_grad in found else said(node)
        if of_grad is not None and layout is not None and layout.mesh is mesh:
            found[of_grad] = layout
    return found


def _are_said(words: Sequence[int], end: CallFuture[Any]) -> bool:
    """Wait until members say that their results are there; whether all did before the end."""
    for word in words:
        while (what := core.word_wait(word, LOOK_NS)) != core.SAID_RESULTS:
            if what == core.SAID_FAILED or end.done():
                return False
    return True


def _place(item: tuple[int, Any]) -> int:
    return item[0]


def begin(recorder: Recorder) -> None:
    """From now on there are meshes."""
    if recorder.placer is None:
        recorder.placer = MeshPlacer(recorder)
