"""What a client is answered when something went wrong: one table from errors to statuses.

Statuses are those that Triton's HTTP front end uses; gRPC's follow from them.
"""

from __future__ import annotations

from shmgpu import errors
from shmgpu.logs import logger
from shmgpu.serve.regions import RegionLost
from shmgpu.serve.requests import ProtocolError
from shmgpu.serve.sequences import SequenceLost, TooManySequences


def told_as(kind: type[BaseException]) -> str:
    """The `RemoteError.type_name` of an error that a helper raised."""
    return f"{kind.__module__}.{kind.__qualname__}"


# The first row that fits counts. A sentence of None: the error's own.
TABLE: tuple[tuple[type[BaseException], int, str | None], ...] = (
    (errors.RemoteError, 500, None),
    (errors.CallTimeout, 503, "Request timeout expired"),
    (errors.CallCancelled, 499, "the request was cancelled"),
    (errors.ArenaFull, 503, "the server has no memory left for this request: try again"),
    (errors.HelperDied, 503, "the process that computed this request has died: try again"),
    (errors.NoHelpers, 503, "no process is left that could compute this request"),
    (errors.NotRunning, 503, "the server is ending"),
    (errors.ResultTooLarge, 500, None),
    (errors.BadParams, 400, None),
    (errors.ShmError, 500, None),
)


# Errors that a helper raised, by the name of their type: those that are not the model's.
REMOTE = {told_as(RegionLost): 400, told_as(SequenceLost): 400, told_as(TooManySequences): 503}


def answer_to(error: BaseException) -> tuple[int, str]:
    """Status and sentence for an error."""
    if isinstance(error, ProtocolError):
        return error.status, error.sentence
    if isinstance(error, errors.RemoteError):
        if error.type_name in REMOTE:
            return REMOTE[error.type_name], error.message
        return 500, f"{error.type_name}: {error.message}"
    for kind, status, sentence in TABLE:
        if isinstance(error, kind):
            return status, sentence or str(error)
    logger.error("a request failed in a worker", exc_info=error)
    return 500, "the server failed: its log says why"
