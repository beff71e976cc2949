"""What a check can say.

Owns the three degrees and the form of a finding: a sentence, and the command that mends the fault.
Never checks anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shmgpu.doctor.machine import Machine
from shmgpu.doctor.plan import Plan

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True)
class Verdict:
    """What a check says; ``fix`` is the command, or the change, that mends what is not fine."""

    status: str
    sentence: str
    fix: str = ""


@dataclass(frozen=True)
class Finding(Verdict):
    """A verdict under the name of its check."""

    group: str = field(default="", kw_only=True)
    name: str = field(default="", kw_only=True)


def fine(sentence: str) -> Verdict:
    """Nothing to do."""
    return Verdict(OK, sentence)


def warn(sentence: str, fix: str) -> Verdict:
    """It works, but slower, or not for long."""
    return Verdict(WARNING, sentence, fix)


def fail(sentence: str, fix: str) -> Verdict:
    """It would be refused, or end."""
    return Verdict(FAILURE, sentence, fix)


@dataclass(frozen=True)
class Check:
    """A row of the table."""

    group: str
    name: str
    judge: Callable[[Machine, Plan], Verdict]
