"""Advice that is added to an exception that a function raised in its helper.

Owns the guesses at misunderstandings of shmgpu itself: a session that was never made, a function
without a parameter for the helper. A guess follows the exception's own text in parentheses, and is
made only where the traceback supports it. Never changes the exception.
"""

from __future__ import annotations

import inspect
import os
import pathlib
import traceback
from types import FrameType, TracebackType
from typing import Any

from shmgpu.errors import BadParams
from shmgpu.function_table import session_maker_beside
from shmgpu.helper.mutation_check import NamedFunction

OURS = str(pathlib.Path(__file__).parents[1]) + os.sep

NO_SESSION = (
    " (helper.session is None: it is what the session function returned, and that is a function "
    "called load beside the decorated ones, or what session= names)"
)
SESSION_NOT_NAMED = (
    " (helper.session is None: {name}(helper) stands beside the function, and launch() and init() "
    "take it where they are told session={name}; a program's first call takes one called load)"
)


def user_frames(error: BaseException, *own: str) -> TracebackType | None:
    """The traceback from the user's function on, without frames of the files that called it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace or error.__traceback__


def is_about_result(error: BaseException) -> bool:
    """Whether it was raised over what the function had returned, and not within the function."""
    if not isinstance(error, BadParams):
        return False
    return all(_is_ours(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def hint(error: BaseException, message: str, target: NamedFunction | None, session: Any) -> str:
    """What to say after the exception's text; "" where there is nothing to guess.

    Args:
        error: what the function raised.
        message: its text.
        target: the function; None where it is not known.
        session: the helper's.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if session is None and "NoneType" in message and _uses_session(frames):
        name = session_maker_beside(getattr(target, "body", None))
        return SESSION_NOT_NAMED.format(name=name) if name else NO_SESSION
    return "" if target is None else _about_parameters(frames, message, target, error)


def _uses_session(frames: list[FrameType]) -> bool:
    """Whether what raised has to do with ``helper.session``, by its code or its callers'."""
    return any("session" in one.f_code.co_names for one in frames if not _is_ours(one))


def _about_parameters(
    frames: list[FrameType], message: str, target: NamedFunction, error: BaseException
) -> str:
    """A function that was written, or called, as if it had no parameter for the helper."""
    was_called = any(not _is_ours(one) for one in frames)
    misfits = isinstance(error, TypeError) and not was_called and f"{target.name}() " in message
    if not misfits and "'Helper'" not in message:
        return ""
    try:
        names = list(inspect.signature(target.body).parameters)
    except (TypeError, ValueError):
        return ""
    if names and names[0] not in ("helper", "self", "_", "_helper"):
        called = ", ".join(["helper", *names])
        return (
            " (a decorated function's first parameter is the helper that runs it, which callers "
            f"leave out: if {names[0]} is an argument, write def {target.name}({called}))"
        )
    if not misfits:
        return ""
    return f" (the helper counts, which callers leave out: they pass {', '.join(names[1:]) or '-'})"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)
