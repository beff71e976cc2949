"""All errors that the package raises: one tree; each message says what was wrong and what to do.

Owns the classes. Never decides which one a status code becomes: core/statuses.py does.
"""

from __future__ import annotations

__all__ = [
    "ArenaFull",
    "BadFree",
    "BadFunction",
    "BadParams",
    "BroadcastError",
    "BrokerDied",
    "CallCancelled",
    "CallTimeout",
    "ChildError",
    "ConfigError",
    "GangAborted",
    "HelperDied",
    "LaunchError",
    "NoHelpers",
    "NotAllowed",
    "NotRunning",
    "QueueFull",
    "RateExceeded",
    "RemoteError",
    "ResultTooLarge",
    "SessionError",
    "ShmError",
]


def __dir__() -> list[str]:
    return __all__


class ShmError(Exception):
    """The root of the tree: any error that shmgpu itself detects."""

    _status = 0  # of the C core; see core.is_of
    _helper = -1  # of a call on several helpers: the helper that failed
    _is_committed = False  # and whether the call took effect nevertheless


class ConfigError(ShmError, ValueError):
    """A setting, from an argument or a ``SHMGPU_*`` variable, is out of range."""


class LaunchError(ShmError):
    """The broker could not be started; nothing is left running."""


class SessionError(LaunchError):
    """A helper's session function raised.

    Attributes:
        helper: the helper's number.
        traceback_text: the traceback in the helper, as text.
    """

    def __init__(self, message: str, helper: int = -1, traceback_text: str = "") -> None:
        super().__init__(message)
        self.helper = helper
        self.traceback_text = traceback_text


class NotRunning(ShmError):
    """A call needs a broker, and this process has none."""


class BrokerDied(NotRunning):
    """The parent process is gone; this process continues without it."""


class ArenaFull(ShmError, MemoryError):
    """The caller's arena has no free block of the requested size.

    Attributes:
        asked_bytes: the size of the request.
        free_bytes: all free bytes together.
        largest_bytes: the largest request that would have succeeded.
        capacity_bytes: the size of the arena, used and free.
    """

    def __init__(
        self,
        message: str,
        asked_bytes: int = 0,
        free_bytes: int = 0,
        largest_bytes: int = 0,
        capacity_bytes: int = 0,
    ) -> None:
        super().__init__(message)
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.largest_bytes = largest_bytes
        self.capacity_bytes = capacity_bytes


class BadFree(ShmError, ValueError):
    """A block was freed twice, or is not a block of this arena."""


class BadFunction(ShmError):
    """The function is not in the table that was sealed when the broker started."""


class BadParams(ShmError, ValueError):
    """An argument, a result or a parameter block cannot be carried."""


class HelperDied(ShmError):
    """The helper died while it executed this call; the next call goes to another helper."""


class GangAborted(ShmError):
    """A call on several helpers was given up before any of it took effect."""


class NoHelpers(ShmError):
    """Every helper that could serve the call is gone: given up, or removed by ``shmgpu scale``."""


class NotAllowed(ShmError, PermissionError):
    """The broker belongs to another user, who does not let this program do that."""


class QueueFull(ShmError):
    """As many calls of the function wait as its ``max_queue`` says."""


class RateExceeded(ShmError):
    """The broker's quotas allow this program no more calls a second."""


class CallTimeout(ShmError, TimeoutError):
    """The call did not end before its deadline."""


class CallCancelled(ShmError):
    """The call was removed from the queue before a helper started it."""


class ResultTooLarge(ShmError):
    """The result is larger than a helper keeps, or was fetched too late."""


def remote_name(kind: type[BaseException]) -> str:
    """The name by which an exception's type travels from helpers to callers."""
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


class RemoteError(ShmError):
    """The function raised in the helper.

    Attributes:
        type_name: the original exception's type, such as ``"ValueError"``.
        message: the original exception's text.
        traceback_text: the traceback in the helper, as text.

    Example:
        >>> @shmgpu.function(arrays="numpy")
        ... def check(helper, x):
        ...     raise ValueError("these are too few")
        >>> with shmgpu.init(inline=True):
        ...     try:
        ...         check(np.ones(1))
        ...     except shmgpu.RemoteError as error:
        ...         print(error.type_name, "-", error.message)
        ValueError - these are too few
    """

    def __init__(self, type_name: str, message: str, traceback_text: str = "") -> None:
        super().__init__(type_name, message, traceback_text)
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text

    def matches(self, kind: type[BaseException]) -> bool:
        """Whether the original exception was of exactly this type; a base class does not match."""
        return self.type_name == remote_name(kind)

    @property
    def sentence(self) -> str:
        """What happened, without the traceback."""
        if not self.traceback_text and self.matches(BadParams):
            return f"what the function returned is refused: {self.message}"
        return f"the function raised {self.type_name} in the helper: {self.message}"

    def __str__(self) -> str:
        text = self.sentence
        if self.traceback_text:
            text += "\n\nIn the helper:\n" + self.traceback_text.rstrip()
        return text


class BroadcastError(RemoteError):
    """The function raised in one of the helpers that a broadcast was for; that one is replaced.

    Attributes:
        helper: number of the helper.
        has_effect: False: it was the first, and nothing has changed. True: the broadcast stands:
            all others have it, and the one that takes this helper's place gets it before it serves.
    """

    def __init__(
        self,
        type_name: str,
        message: str,
        traceback_text: str = "",
        helper: int = -1,
        has_effect: bool = False,
    ) -> None:
        super().__init__(type_name, message, traceback_text)
        self.helper = helper
        self.has_effect = has_effect

    @property
    def sentence(self) -> str:
        """What happened, and what has become of the broadcast, without the traceback."""
        outcome = (
            "the broadcast stands, and the helper that replaces this one gets it before it serves"
            if self.has_effect
            else "nothing has changed, and that helper is replaced"
        )
        return (
            f"the function raised {self.type_name} in helper {self.helper}: {self.message} "
            f"({outcome})"
        )


class ChildError(ShmError):
    """A child's main raised, was killed, or returned what cannot be returned.

    Attributes:
        rank: the child's number, from 0.
        exit_status: the process's exit status, or minus the signal that ended it.
        traceback_text: the traceback in the child, as text; empty if there is none.
    """

    def __init__(
        self, message: str, rank: int = -1, exit_status: int = 1, traceback_text: str = ""
    ) -> None:
        super().__init__(message, rank, exit_status, traceback_text)
        self.message = message
        self.rank = rank
        self.exit_status = exit_status
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        if not self.traceback_text:
            return self.message
        return f"{self.message}\n\nIn child {self.rank}:\n{self.traceback_text.rstrip()}"
