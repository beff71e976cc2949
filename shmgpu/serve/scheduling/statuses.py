"""What a client is answered when something went wrong: one table from errors to statuses.

Owns the statuses, which are those of Triton's HTTP front end (gRPC's follow from them), and the
sentences. Never writes an answer.
"""

from __future__ import annotations

from shmgpu import errors
from shmgpu.common.logs import Pause, logger
from shmgpu.serve.models.errors import SequenceLost, TooManySequences
from shmgpu.serve.options import most_of
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.state.regions import RegionLost

# The first row that fits counts. A sentence of None: the error's own.
TABLE: tuple[tuple[type[BaseException], int, str | None], ...] = (
    (errors.RemoteError, 500, None),
    (errors.CallTimeout, 503, "Request timeout expired"),
    (errors.CallCancelled, 499, "the request was cancelled"),
    (errors.ArenaFull, 503, "the server has no memory left for this request: try again"),
    (errors.HelperDied, 503, "the process that computed this request has died: try again"),
    (errors.NoHelpers, 503, "no process is left that could compute this request"),
    (errors.NotRunning, 503, "the server is ending"),
    (
        errors.ResultTooLarge,
        500,
        "the answer is larger than a process may keep: ask for less, or set SHMGPU_PARKED to more",
    ),
    (errors.BadParams, 400, None),
    (errors.ShmError, 500, None),
)


# Errors that a helper raised and that are not the model's.
REMOTE = ((RegionLost, 400), (SequenceLost, 400), (TooManySequences, 503))


def answer_to(error: BaseException, body_bytes: int = 0) -> tuple[int, str]:
    """Status and sentence for an error; the sentence is text that any front end can carry.

    Args:
        error: what went wrong.
        body_bytes: what the request's own body takes of the worker's arena.
    """
    status, sentence = _never_fits(error, body_bytes) or _answer_to(error)
    # An exception's text may hold what UTF-8 does not, such as a file's name as the system gave it.
    return status, sentence.encode("utf-8", "backslashreplace").decode()


def _never_fits(error: BaseException, body_bytes: int) -> tuple[int, str] | None:
    """Of a request that an empty arena could not hold either: to try again would not help."""
    if not isinstance(error, errors.ArenaFull) or not error.capacity_bytes:
        return None
    needed = error.asked_bytes + body_bytes
    if needed <= most_of(error.capacity_bytes):
        return None
    return 500, (
        f"the request and its answer need {needed:,} bytes at once, and a worker has "
        f"{error.capacity_bytes:,} for all of them: ask for less, or start the server with a "
        "larger --arena"
    )


def _answer_to(error: BaseException) -> tuple[int, str]:
    if isinstance(error, ProtocolError):
        return error.status, error.sentence
    if isinstance(error, errors.RemoteError):
        for remote, status in REMOTE:
            if error.matches(remote):
                return status, error.message
        _log_traceback(error)
        if error.matches(errors.ConfigError):  # our own sentence, which names the model
            return 500, error.message
        if not _is_told:
            return 500, "the model's function failed: the server's log says why"
        return 500, f"{error.type_name}: {error.message}" if error.message else error.type_name
    for kind, status, sentence in TABLE:
        if isinstance(error, kind):
            return status, sentence or str(error)
    logger.error("a request failed in a worker", exc_info=error)
    return 500, "the server failed: its log says why"


_tracebacks = Pause(1.0)
_is_told = True  # what a model's function raised


def hide_exceptions() -> None:
    """From now on, clients of this process are not told what a model's function raised."""
    global _is_told
    _is_told = False


def raised_here(error: Exception, whose: str, doing: str, text: str) -> ProtocolError:
    """What a client is told of an exception of a model's code that runs in a worker.

    Args:
        error: it; a ValueError is the client's.
        whose: code it is, as "model 'x'".
        doing: what it was at.
        text: of the exception.
    """
    if isinstance(error, ValueError) and not isinstance(error, errors.ConfigError):
        return ProtocolError(400, f"{whose} refuses the inputs: {error}")
    logger.error("%s failed", doing, exc_info=error)
    why = text if _is_told else "the server's log says why"
    return ProtocolError(500, f"{doing} failed: {why}")


def _log_traceback(error: errors.RemoteError) -> None:
    """Where a model raised, in the log: clients are told only what was raised."""
    left_out = _tracebacks.passed()
    if left_out is not None:
        before = f" ({left_out} others before it are left out)" if left_out else ""
        logger.error("a model's function raised%s: %s", before, error.traceback_text.rstrip())
