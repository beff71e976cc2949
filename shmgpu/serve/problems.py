"""What a client is answered when something went wrong: one table from errors to statuses.

Statuses are those that Triton's HTTP front end uses; gRPC's follow from them.
"""

from __future__ import annotations

from shmgpu import errors
from shmgpu.serve.requests import ProtocolError

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


def answer_to(error: BaseException) -> tuple[int, str]:
    """Status and sentence for an error."""
    if isinstance(error, ProtocolError):
        return error.status, error.sentence
    if isinstance(error, errors.RemoteError):
        return 500, f"{error.type_name}: {error.message}"
    for kind, status, sentence in TABLE:
        if isinstance(error, kind):
            return status, sentence or str(error)
    return 500, "the server failed: its log says why"
