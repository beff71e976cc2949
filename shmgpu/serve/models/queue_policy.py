"""How the requests of one priority wait: how many at once, how long, and what comes then.

Owns the declaration and its checks. Never counts a request: workers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shmgpu.errors import ConfigError

LEVELS = 4  # of priority; requests that name none, or more, are of the last one
MOST_TIMEOUT_MS = 86_400_000  # a day
ACTIONS = ("REJECT", "DELAY")


@dataclass(frozen=True)
class QueuePolicy:
    """How requests of one priority wait, in the words of Triton's ``priority_queue_policy``.

    Args:
        max_queue_size: those that may wait or run at once, divided among workers; a request beyond
            is answered 503. 0: as many as ``--max-queue`` lets the server take.
        default_timeout_ms: the time of a request that names no ``timeout``; 0: it has none.
        timeout_action: ``"REJECT"``: a request that is not finished by then is answered 503;
            ``"DELAY"``: one that no helper has been given by then waits behind all others.
        allow_timeout_override: whether a request's own ``timeout`` counts.

    Raises:
        ConfigError: a value is impossible.
    """

    max_queue_size: int = 0
    default_timeout_ms: float = 0.0
    timeout_action: str = "REJECT"
    allow_timeout_override: bool = True

    def __post_init__(self) -> None:
        size, time = self.max_queue_size, self.default_timeout_ms
        if type(size) is not int or size < 0:
            raise ConfigError(
                f"max_queue_size={size!r} must be requests, 0 for as many as the server takes"
            )
        if type(time) not in (int, float) or not 0 <= time <= MOST_TIMEOUT_MS:
            raise ConfigError(f"default_timeout_ms={time!r} must be 0 to {MOST_TIMEOUT_MS}")
        if self.timeout_action not in ACTIONS:
            raise ConfigError(f'timeout_action={self.timeout_action!r} must be "REJECT" or "DELAY"')
        if type(self.allow_timeout_override) is not bool:
            raise ConfigError(
                f"allow_timeout_override={self.allow_timeout_override!r} must be True or False"
            )
        object.__setattr__(self, "default_timeout_ms", float(time))


def checked(policies: Mapping[int, QueuePolicy] | None, in_order: bool) -> dict[int, QueuePolicy]:
    """A model's policies by priority.

    Args:
        policies: as declared.
        in_order: whether its requests must not overtake each other, or answer in parts.

    Raises:
        ConfigError: they are none, or not possible for that model.
    """
    if not isinstance(policies, (Mapping, type(None))):
        raise ConfigError(
            f"it must be policies by priority, {{1: QueuePolicy()}}, not {policies!r}"
        )
    for level, policy in (policies or {}).items():
        if type(level) is not int or not 1 <= level <= LEVELS:
            raise ConfigError(
                f"{level!r} is no priority: use 1 to {LEVELS}, where {LEVELS} stands for requests "
                "that name none"
            )
        if not isinstance(policy, QueuePolicy):
            raise ConfigError(f"priority {level} must have a QueuePolicy, not {policy!r}")
        if in_order and policy.timeout_action == "DELAY":
            raise ConfigError(
                f'priority {level} cannot have timeout_action="DELAY" where a model keeps '
                'sequences or answers in parts: use "REJECT"'
            )
    return dict(policies or {})


def described(policies: dict[int, QueuePolicy]) -> dict[str, dict[str, Any]]:
    """As plain data, by the priority as text: so JSON carries it."""
    return {str(level): asdict(policy) for level, policy in sorted(policies.items())}
