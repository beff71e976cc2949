"""Failures of messages: which tensors are lost when a helper dies or an operation fails, and why.

Owns what marks a value as lost, and the sentences that a user reads about it. Never sends anything
again: the recorder and the placer of meshes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu import core
from shmgpu.errors import HelperDied, NotRunning, RemoteError
from shmgpu.ops.graph import Node
from shmgpu.ops.program_message import (
    UnknownProgram,
    UnknownTensor,
    failed_step,
    handles_not_made,
)
from shmgpu.tensors.message import HelperIncarnation, LostValue, MessageLike, RemoteValue, Spread

ANOTHER = (
    "this tensor belongs to another broker, library or process than the one that is used now: "
    "create it again from its .data there"
)


# ---- what an error says -------------------------------------------------------------------------


def is_death(error: BaseException) -> bool:
    """Whether it says that the helper died, or was replaced by one that holds nothing."""
    if isinstance(error, HelperDied) or is_let_go(error):
        return True
    if not isinstance(error, RemoteError):
        return False
    return error.matches(UnknownProgram) or error.matches(UnknownTensor)


def is_let_go(error: BaseException) -> bool:
    """Whether it says that the helper is gone because its pool was scaled."""
    return core.is_of(error, core.EHELPER_GONE)


# ---- values that are lost -----------------------------------------------------------------------


def error_of(node: Node, recorder: object) -> BaseException | None:
    """Why a value is lost; None where it is there, or can be computed."""
    value = node.value
    if type(value) is RemoteValue:
        if value.recorder is not recorder:
            node.value = value = LostValue(NotRunning(ANOTHER))
        elif value.life.is_over:
            node.value = value = LostValue(HelperDied(lost_with(value.life, [node])))
    elif type(value) is Spread and value.recorder is not recorder:
        node.value = value = LostValue(NotRunning(ANOTHER))
    return value.error if type(value) is LostValue else None


def are_lost(leaves: list[Node], recorder: object) -> bool:
    """Whether any of these values is lost."""
    for node in leaves:
        value = node.value
        if type(value) is RemoteValue:
            if value.recorder is not recorder or value.life.is_over:
                return True
        elif (
            type(value) is LostValue or type(value) is Spread
        ):  # a Spread here is another recorder's
            return True
    return False


def lose_what_follows(order: list[Node], recorder: object) -> None:
    """Lose each of these nodes that is made of a lost value; inputs first."""
    for node in order:
        for one in node.inputs:
            if one.value is not None:
                error = error_of(one, recorder)
                if error is not None:
                    lose(node, error)
                    break


def lose(node: Node, error: BaseException) -> None:
    """Mark a value as lost. A tensor that was to be changed in place keeps its earlier value."""
    node.value = LostValue(error)
    node.inputs = ()
    undo = node.undo
    if undo is None:
        return
    for told in undo[2:]:
        told()
    tensor, before = undo[0](), undo[1]
    while type(before.value) is LostValue and before.undo is not None:
        before = before.undo[1]
    if tensor is not None and tensor._node is node:
        tensor._become(before)


def lose_what_failed(
    message: MessageLike, error: RemoteError, kind: type[Any], nodes: Sequence[Node | None]
) -> bool:
    """Lose what an error names: values that were not made, or the operation that failed.

    Args:
        message: the message that failed.
        error: the helper's.
        kind: the class of values that helpers hold, for this sort of message.
        nodes: what each step of its program computes; None for a step that computes no node.

    Returns:
        Whether the error names anything.
    """
    handles, why = handles_not_made(error.message)
    if handles:
        told = RemoteError(error.type_name, why, error.traceback_text)
        for handle, one in message.residents:
            value: Any = one.value
            if handle in handles and type(value) is kind and value.handle == handle:
                lose(one, told)
        return True  # a value that is not found was taken back meanwhile, and will be computed
    step = failed_step(error.traceback_text)
    node = None if step is None or step >= len(nodes) else nodes[step]
    if node is None:
        return False
    assert node.op is not None
    text = f"{error.message} (in {node.op.name})"
    lose(node, RemoteError(error.type_name, text, error.traceback_text))
    return True


# ---- messages -----------------------------------------------------------------------------------


def cannot_fail_any_more(message: MessageLike) -> None:
    """Its nodes are computed: what tensors showed before them is not needed any more."""
    for node in (*message.kept, *message.read):
        node.undo = None


def nothing_was_done(message: MessageLike, kind: type[Any]) -> list[Node]:
    """Set the nodes of a message that nobody waited for back to what they were before it.

    Args:
        message: a message that helpers did nothing of.
        kind: the class of values that helpers hold, for this sort of message.

    Returns:
        The values that were donated to the message, and that are this child's again.
    """
    for node, inputs in message.cleared:
        if node.value is None or type(node.value) is kind:
            node.inputs = inputs
    for node in message.kept:
        if type(node.value) is kind:
            node.value = None
    back = [one for one in message.donated if type(one.value) is kind and not one.value.is_ours]
    for node in back:
        node.value.is_ours = True
    return back


# ---- what users read ----------------------------------------------------------------------------


def _end_of(life: HelperIncarnation) -> str:
    if life.was_let_go:
        return f"helper {life.number} was let go when its pool was scaled"
    return f"helper {life.number} has died"


def lost_with(life: HelperIncarnation, nodes: Sequence[Node]) -> str:
    """What a user reads of tensors that a helper held to its end."""
    shapes = ", ".join(f"{node.spec.dtype.name} {node.spec.shape}" for node in nodes[:8])
    return (
        f"{_end_of(life)}, and with it went tensors that it held ({shapes}"
        f"{', ...' if len(nodes) > 8 else ''}): create them again, or load the state_dict that was "
        "saved last"
    )


def given_up(life: HelperIncarnation) -> str:
    """What a user reads of a program that no helper lives long enough to run."""
    if life.was_let_go:
        return (
            f"{_end_of(life)}, and with it the last one that these tensors may live on: have it "
            "made again (shmgpu scale), or choose with gpu_workers() after shmgpu.disconnect()"
        )
    return "helpers died over these tensors again and again"
