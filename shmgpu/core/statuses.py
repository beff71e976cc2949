"""Status codes, and the exceptions that stand for them.

Owns which error a code becomes. Never says what to do in its own words: the sentences are C's, or
an attached program's (:data:`reworded`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from shmgpu import errors
from shmgpu.core.binding import ffi, lib

OK: int = lib.SHM_OK
EAGAIN: int = lib.SHM_EAGAIN
EINTR: int = lib.SHM_EINTR
EARENA_FULL: int = lib.SHM_EARENA_FULL
EBAD_FREE: int = lib.SHM_EBAD_FREE
EBAD_SIZE: int = lib.SHM_EBAD_SIZE
EBAD_FUNCTION: int = lib.SHM_EBAD_FUNCTION
EBAD_PARAMS: int = lib.SHM_EBAD_PARAMS
EWINDOW: int = lib.SHM_EWINDOW
ETIMEOUT: int = lib.SHM_ETIMEOUT
ECANCELLED: int = lib.SHM_ECANCELLED
EHELPER_DIED: int = lib.SHM_EHELPER_DIED
EBROKER_DIED: int = lib.SHM_EBROKER_DIED
EREMOTE: int = lib.SHM_EREMOTE
ENEEDS_SPACE: int = lib.SHM_ENEEDS_SPACE
ENOT_CHILD: int = lib.SHM_ENOT_CHILD
ENOT_HELPER: int = lib.SHM_ENOT_HELPER
ENESTED: int = lib.SHM_ENESTED
EBAD_CONFIG: int = lib.SHM_EBAD_CONFIG
ENO_CHILD_SLOT: int = lib.SHM_ENO_CHILD_SLOT
EREFUSED: int = lib.SHM_EREFUSED
ENO_MEMORY: int = lib.SHM_ENO_MEMORY
ESYSTEM: int = lib.SHM_ESYSTEM
ESEALED: int = lib.SHM_ESEALED
ETABLE_FULL: int = lib.SHM_ETABLE_FULL
ECHILD_FAILED: int = lib.SHM_ECHILD_FAILED
ESESSION: int = lib.SHM_ESESSION
ESIGNALLED: int = lib.SHM_ESIGNALLED
ESTOPPED: int = lib.SHM_ESTOPPED
EBAD_POOL: int = lib.SHM_EBAD_POOL
ENO_HELPERS: int = lib.SHM_ENO_HELPERS
ENOT_RUNNING: int = lib.SHM_ENOT_RUNNING
ETOO_LARGE: int = lib.SHM_ETOO_LARGE
EPLACEMENT: int = lib.SHM_EPLACEMENT
EHELPER_GONE: int = lib.SHM_EHELPER_GONE
EABORTED: int = lib.SHM_EABORTED
EBAD_GANG: int = lib.SHM_EBAD_GANG
ENOT_ALLOWED: int = lib.SHM_ENOT_ALLOWED
EQUEUE_FULL: int = lib.SHM_EQUEUE_FULL
ERATE: int = lib.SHM_ERATE

# Value of a reply whose status is EBAD_PARAMS: the block lies in the arena, but the function cannot
# read it. 0: it does not lie in the arena.
UNREADABLE = 1

_ERRORS: dict[int, type[errors.ShmError]] = {
    EARENA_FULL: errors.ArenaFull,
    EBAD_FREE: errors.BadFree,
    EBAD_SIZE: errors.BadParams,
    EBAD_FUNCTION: errors.BadFunction,
    EBAD_PARAMS: errors.BadParams,
    ETIMEOUT: errors.CallTimeout,
    ECANCELLED: errors.CallCancelled,
    EHELPER_DIED: errors.HelperDied,
    EBROKER_DIED: errors.BrokerDied,
    ESTOPPED: errors.BrokerDied,
    ENOT_CHILD: errors.NotRunning,
    ENOT_HELPER: errors.NotRunning,
    ENOT_RUNNING: errors.NotRunning,
    ENESTED: errors.LaunchError,
    EBAD_CONFIG: errors.ConfigError,
    ENO_CHILD_SLOT: errors.LaunchError,
    EREFUSED: errors.LaunchError,
    ENO_MEMORY: errors.LaunchError,
    ESEALED: errors.BadFunction,
    ETABLE_FULL: errors.BadFunction,
    ESESSION: errors.SessionError,
    EBAD_POOL: errors.ConfigError,
    EPLACEMENT: errors.ConfigError,
    ENO_HELPERS: errors.NoHelpers,
    EHELPER_GONE: errors.NoHelpers,
    ETOO_LARGE: errors.ResultTooLarge,
    EABORTED: errors.GangAborted,
    EBAD_GANG: errors.BadParams,
    ENOT_ALLOWED: errors.NotAllowed,
    EQUEUE_FULL: errors.QueueFull,
    ERATE: errors.RateExceeded,
}


reworded: dict[int, str] = {}  # what to do about a status, where this process has another answer


def status_name(status: int) -> str:
    """Name of a status code, such as ``"SHM_EARENA_FULL"``."""
    name: bytes = ffi.string(lib.shm_status_name(_checked_status(status)))
    return name.decode()


def status_text(status: int) -> str:
    """Sentence of a status code, without the full stop."""
    text: bytes = ffi.string(lib.shm_status_text(_checked_status(status)))
    return text.decode()


def _checked_status(status: Any) -> int:
    if not isinstance(status, int):
        raise errors.BadParams(f"a status is a whole number, not a {type(status).__name__}")
    return status if -(1 << 31) <= status < 1 << 31 else 1  # no code has so many digits


def error_detail() -> str:
    """What the library knows beyond the status of its last failure; may be empty."""
    pointer = lib.shm_error_detail()
    if pointer == ffi.NULL:
        return ""
    text: bytes = ffi.string(pointer)
    return text.decode("utf-8", "replace")


def error_of(status: int, about: str = "", detail: str = "") -> errors.ShmError:
    """The exception that stands for a status; ``about`` opens the sentence, ``detail`` ends it."""
    sentence = reworded.get(status) or status_text(status)
    if about:
        sentence = f"{about}: {sentence}"
    if detail:
        sentence = f"{sentence} ({detail})"
    error = _ERRORS.get(status, errors.ShmError)(sentence)
    error._status = status
    return error


def fail(status: int, about: str = "", detail: str = "") -> NoReturn:
    """Raise :func:`error_of`."""
    raise error_of(status, about, detail)


def check(status: int, about: str = "") -> int:
    """Return a status that is no failure; raise the exception of one that is."""
    if status < 0:
        raise error_of(status, about)
    return status


def is_of(error: BaseException, status: int) -> bool:
    """Whether :func:`error_of` made it for that status, where several share a class."""
    return isinstance(error, errors.ShmError) and error._status == status
