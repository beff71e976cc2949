"""The C core as Python sees it: the only importer of the compiled binding.

Owns every crossing into C: it turns status codes into exceptions, addresses into integers, and C
structures into opaque handles. The names that the hot paths use (:data:`port_call`,
:data:`helper_step`, ...) are the C functions themselves, because one more Python frame in a call
would cost more than the call. Never decides anything; nothing above this file knows cffi.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from shmgpu import errors, installed

try:
    import shmgpu._core as _binding
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ImportError(
        f"shmgpu's compiled core could not be loaded ({error}): {installed.what_to_do()}"
    ) from error

_ffi: Any = _binding.ffi
_lib: Any = _binding.lib

# ---- outcomes ---------------------------------------------------------------------------

OK: int = _lib.SHM_OK
EAGAIN: int = _lib.SHM_EAGAIN
EINTR: int = _lib.SHM_EINTR
EARENA_FULL: int = _lib.SHM_EARENA_FULL
EBAD_FREE: int = _lib.SHM_EBAD_FREE
EBAD_SIZE: int = _lib.SHM_EBAD_SIZE
EBAD_FUNCTION: int = _lib.SHM_EBAD_FUNCTION
EBAD_PARAMS: int = _lib.SHM_EBAD_PARAMS
EWINDOW: int = _lib.SHM_EWINDOW
ETIMEOUT: int = _lib.SHM_ETIMEOUT
ECANCELLED: int = _lib.SHM_ECANCELLED
EHELPER_DIED: int = _lib.SHM_EHELPER_DIED
EBROKER_DIED: int = _lib.SHM_EBROKER_DIED
EREMOTE: int = _lib.SHM_EREMOTE
ENEEDS_SPACE: int = _lib.SHM_ENEEDS_SPACE
ENOT_CHILD: int = _lib.SHM_ENOT_CHILD
ENOT_HELPER: int = _lib.SHM_ENOT_HELPER
ENESTED: int = _lib.SHM_ENESTED
EBAD_CONFIG: int = _lib.SHM_EBAD_CONFIG
ENO_CHILD_SLOT: int = _lib.SHM_ENO_CHILD_SLOT
EREFUSED: int = _lib.SHM_EREFUSED
ENO_MEMORY: int = _lib.SHM_ENO_MEMORY
ESYSTEM: int = _lib.SHM_ESYSTEM
ESEALED: int = _lib.SHM_ESEALED
ETABLE_FULL: int = _lib.SHM_ETABLE_FULL
ECHILD_FAILED: int = _lib.SHM_ECHILD_FAILED
ESESSION: int = _lib.SHM_ESESSION
ESIGNALLED: int = _lib.SHM_ESIGNALLED
ESTOPPED: int = _lib.SHM_ESTOPPED
EBAD_POOL: int = _lib.SHM_EBAD_POOL
ENO_HELPERS: int = _lib.SHM_ENO_HELPERS
ENOT_RUNNING: int = _lib.SHM_ENOT_RUNNING
ETOO_LARGE: int = _lib.SHM_ETOO_LARGE
EPLACEMENT: int = _lib.SHM_EPLACEMENT
EHELPER_GONE: int = _lib.SHM_EHELPER_GONE
EABORTED: int = _lib.SHM_EABORTED
EBAD_GANG: int = _lib.SHM_EBAD_GANG

# Value of a reply whose status is EBAD_PARAMS: the block lies in the arena, but the function cannot
# read it. 0: it does not lie in the arena.
UNREADABLE = 1

HAS_FAULTS = hasattr(_lib, "shm_fault_arm")  # the test build, in which roles can be made to die

CHILD_RUNNING: int = _lib.SHM_CHILD_RUNNING
HELPER_GIVEN_UP: int = _lib.SHM_HELPER_GIVEN_UP
HELPER_LEAVING: int = _lib.SHM_HELPER_LEAVING
HELPER_ABSENT: int = _lib.SHM_HELPER_ABSENT
MAX_HELPERS: int = _lib.SHM_MAX_HELPERS
MAX_POOLS: int = _lib.SHM_MAX_POOLS
MAX_CHILDREN: int = _lib.SHM_MAX_CHILDREN
MAX_WINDOW: int = _lib.SHM_MAX_WINDOW
MAX_BATCH: int = _lib.SHM_MAX_BATCH
MAX_TRACE: int = _lib.SHM_MAX_TRACE
NO_HELPER: int = _lib.SHM_NO_HELPER  # in a trace record
FRAME_BYTES: int = _lib.SHM_FRAME_BYTES  # what a message takes of a pipe
UNIT_NS: int = _lib.SHM_UNIT_NS  # of started_units and finished_units in a trace record
ALIGNMENT: int = _lib.SHM_ALIGNMENT  # of blocks of an arena
GUARD_BYTES: int = _lib.SHM_GUARD_BYTES  # addresses between two arenas without huge pages

ROLE_NONE: int = _lib.SHM_ROLE_NONE
ROLE_PARENT: int = _lib.SHM_ROLE_PARENT
ROLE_HELPER: int = _lib.SHM_ROLE_HELPER
ROLE_CHILD: int = _lib.SHM_ROLE_CHILD

BYTES_GATHERED: int = _lib.SHM_BYTES_GATHERED
BYTES_COPIED_IN: int = _lib.SHM_BYTES_COPIED_IN
BYTES_COPIED_OUT: int = _lib.SHM_BYTES_COPIED_OUT
BYTES_HOST_TO_DEVICE: int = _lib.SHM_BYTES_HOST_TO_DEVICE
BYTES_DEVICE_TO_HOST: int = _lib.SHM_BYTES_DEVICE_TO_HOST


def _words(enumeration: str, prefix: str) -> list[str]:
    """The words of a C enumeration that counts from 0: ``SHM_HELPER_GIVEN_UP`` is "given up"."""
    numbers: dict[str, int] = _ffi.typeof(f"enum {enumeration}").relements
    names = sorted(numbers, key=numbers.__getitem__)
    return [name.removeprefix(prefix).replace("_", " ").lower() for name in names]


_CODES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}


def _format_of(structure: str, wanted: Collection[str] | None = None) -> str:
    """For :mod:`struct`: the wanted fields of a C structure, all of them unless said."""
    code, end = "<", 0
    for name, field in _ffi.typeof(structure).fields:
        if field.type.kind == "primitive" and (wanted is None or name in wanted):
            code += "x" * (field.offset - end) + _CODES[field.type.cname]
            end = field.offset + _ffi.sizeof(field.type)
    size: int = _ffi.sizeof(structure)
    return code + "x" * (size - end)


BLOCK_FORMAT = _format_of("shm_block_t")  # what stands before the addresses
BLOCK_RESULT: int = _ffi.offsetof("shm_block_t", "result")

CHILD_STATES = _words("shm_child_state", "SHM_CHILD_")
HELPER_STATES = _words("shm_helper_state", "SHM_HELPER_")
BYTES_NAMES = [word.replace(" ", "_") for word in _words("shm_bytes_kind", "SHM_BYTES_")][:-1]

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
}


reworded: dict[int, str] = {}  # what to do about a status, where this process has another answer


def status_name(status: int) -> str:
    """Name of a status code, such as ``"SHM_EARENA_FULL"``."""
    name: bytes = _ffi.string(_lib.shm_status_name(_checked_status(status)))
    return name.decode()


def status_text(status: int) -> str:
    """Sentence of a status code, without the full stop."""
    text: bytes = _ffi.string(_lib.shm_status_text(_checked_status(status)))
    return text.decode()


def _checked_status(status: Any) -> int:
    if not isinstance(status, int):
        raise errors.BadParams(f"a status is a whole number, not a {type(status).__name__}")
    return status if -(1 << 31) <= status < 1 << 31 else 1  # no code has so many digits


def error_detail() -> str:
    """What the library knows beyond the status of its last failure; may be empty."""
    pointer = _lib.shm_error_detail()
    if pointer == _ffi.NULL:
        return ""
    text: bytes = _ffi.string(pointer)
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


# ---- memory ---------------------------------------------------------------------------------

_UINTPTR = _ffi.typeof("uintptr_t")
_CHARS = _ffi.typeof("char *")
_CHAR_ARRAY = _ffi.typeof("char[]")
_cast = _ffi.cast
_from_buffer = _ffi.from_buffer
_buffer = _ffi.buffer
_new_owned = _ffi.new_allocator(_lib.shm_malloc, _lib.shm_free, should_clear_after_alloc=False)


from_buffer: Callable[[Any], Any] = _from_buffer  # for port_repeat; ValueError when strided


def address_of(exporter: Any) -> int:
    """Where the bytes of a C-contiguous buffer exporter begin; ValueError when they are strided."""
    return int(_cast(_UINTPTR, _from_buffer(exporter)))


def allocate(size_bytes: int) -> tuple[Any, int]:
    """A block of the calling child's arena: (owner, address).

    The owner exports the block's bytes through the buffer protocol; the block goes back to the
    arena when the owner, and everything that holds its buffer, is garbage. Raises MemoryError
    (a plain one) when the library refuses; ask :func:`last_status` why.
    """
    owned = _new_owned(_CHAR_ARRAY, size_bytes)
    return _buffer(owned), int(_cast(_UINTPTR, owned))


def allocate_block(size_bytes: int) -> tuple[Any, Any, int]:
    """As :func:`allocate`, for blocks that may be freed early: (owner, buffer, address)."""
    owned = _new_owned(_CHAR_ARRAY, size_bytes)
    return owned, _buffer(owned), int(_cast(_UINTPTR, owned))


def shrink(buffer: Any, size_bytes: int) -> None:
    """Give back the tail of a block that :func:`allocate` gave; its address stays."""
    _lib.shm_realloc(_from_buffer(buffer), size_bytes)


def release(owner: Any) -> None:
    """Free what :func:`allocate_block` or :func:`wrap` gave, now."""
    _ffi.release(owner)


def wrap(address: int, size_bytes: int, give_back: Callable[[Any], object]) -> tuple[Any, Any]:
    """(owner, buffer) over somebody else's memory, who is told when both are garbage."""
    owner = _ffi.gc(_cast(_CHARS, address), give_back)
    return owner, _buffer(owner, size_bytes)


def window_on(address: int, size_bytes: int) -> Any:
    """A writable buffer over memory that nobody owns here, such as all arenas."""
    return _buffer(_cast(_CHARS, address), size_bytes)


def last_status() -> int:
    """Why this thread's last allocation failed."""
    return int(_lib.shm_last_status())


def malloc(size_bytes: int) -> int:
    """shm_malloc: the block's address, or 0."""
    return int(_cast(_UINTPTR, _lib.shm_malloc(size_bytes)))


def free(address: int) -> int:
    """shm_free: a status."""
    return int(_lib.shm_free(_cast("void *", address)))


def _as_dict(pointer: Any, kind: str) -> dict[str, int]:
    return {
        name: int(getattr(pointer, name))
        for name, field in _ffi.typeof(kind).fields
        if field.type.kind == "primitive"
    }


def arena_stats() -> dict[str, int]:
    """The calling child's allocator statistics, bytes and counts."""
    stats = _ffi.new("shm_arena_stats_t *")
    check(_lib.shm_get_arena_stats(stats), "the arena's statistics could not be read")
    return _as_dict(stats, "shm_arena_stats_t")


def arena_check() -> int:
    """Status of the allocator's own check of every invariant."""
    return int(_lib.shm_check())


def arena_base(child: int) -> int:
    """Address of a child's arena."""
    return int(_lib.shm_arena_base(child))


def arena_bytes() -> int:
    """Bytes of each arena."""
    return int(_lib.shm_arena_bytes())


def reservation() -> tuple[int, int]:
    """(address, bytes) of the reservation in which all arenas lie."""
    return int(_lib.shm_reservation_base()), int(_lib.shm_reservation_bytes())


def check_memory(size_bytes: int) -> None:
    """Raise LaunchError, in a sentence, when the machine cannot give that much to arenas."""
    status = _lib.shm_check_memory(size_bytes)
    if status < 0:
        fail(status, "", error_detail())


# ---- functions and roles ---------------------------------------------------------------------

_kept: list[Any] = []  # C keeps pointers into these for as long as the process lives


def register_function(
    name: str,
    *,
    batch_max_rows: int = 0,
    batch_delay_ns: int = 0,
    hang_after_ns: int = 0,
    idempotent: bool = False,
) -> tuple[int, int]:
    """Make a row in the function table: (status, the row's address)."""
    text = _ffi.new("char[]", name.encode())
    config = _ffi.new("shm_function_config_t *")
    config.name = text
    config.params_size = _ffi.sizeof("shm_block_t")
    config.batch_max_rows = batch_max_rows
    config.batch_delay_ns = batch_delay_ns
    config.hang_after_ns = hang_after_ns
    config.flags = _lib.SHM_FUNCTION_IDEMPOTENT if idempotent else 0
    row = _ffi.new("uint64_t *")
    _kept.append(text)
    status = int(_lib.shm_register_function(config, row))
    return status, int(row[0])


def function_name(row: int) -> str:
    """Name of a row, or ``""``."""
    pointer = _lib.shm_function_name(row)
    if pointer == _ffi.NULL:
        return ""
    name: bytes = _ffi.string(pointer)
    return name.decode("utf-8", "replace")


def role() -> int:
    """What this process is: one of the ROLE_ constants."""
    return int(_lib.shm_get_role())


def child_id() -> int:
    """Number of this child, or a status."""
    return int(_lib.shm_get_child_id())


def helper_id() -> int:
    """Number of this helper, or a status."""
    return int(_lib.shm_get_helper_id())


# ---- the port (a child's calls) --------------------------------------------------------------

port_call: Callable[[Any, int, int, Any], int] = _lib.shm_port_call
port_repeat: Callable[[Any, Any, Any], int] = _lib.shm_port_repeat
port_wait: Callable[[int, int, Any], int] = _lib.shm_port_wait
port_abandon: Callable[[int], int] = _lib.shm_port_abandon
port_grow: Callable[[int, int, int], int] = _lib.shm_port_grow
port_cancel: Callable[[int], int] = _lib.shm_port_cancel
port_fd: Callable[[], int] = _lib.shm_port_fd
port_event_fd: Callable[[], int] = _lib.shm_port_event_fd
port_window: Callable[[], int] = _lib.shm_port_window
port_is_lost: Callable[[], int] = _lib.shm_port_is_lost
port_outstanding: Callable[[], int] = _lib.shm_port_outstanding
count_bytes: Callable[[int, int], None] = _lib.shm_count_bytes
port_submit: Callable[[Any, int, int, int, Any], int] = _lib.shm_port_submit
port_number: Callable[[], int] = _lib.shm_port_number
port_await: Callable[[int, int], int] = _lib.shm_port_await
port_take_end: Callable[[int], Any] = _lib.shm_port_take_end  # .sequence is 0 where there is none
port_take_growing: Callable[[int], Any] = _lib.shm_port_take_growing


def new_reply() -> Any:
    """Room for one reply: .sequence, .ticket, .value, .token, .status, .helper, .gang."""
    return _ffi.new("shm_reply_t *")


# Room for a sequence, at index 0: what port_submit tells.
new_sequence: Callable[[], Any] = functools.partial(_ffi.new, _ffi.typeof("uint64_t *"))


def new_repeat(config: Any, params: int, argument_bytes: int, room_bytes: int, reply: Any) -> Any:
    """The description of a call that repeats, for :data:`port_repeat`; keep ``reply`` alive."""
    return _ffi.new("shm_repeat_t *", [config[0], params, argument_bytes, room_bytes, reply])


def new_call_config(
    function: int,
    pool: int,
    priority: int = 0,
    placement: int = 0,
    port: int = 0,
    gang: bool = False,
) -> Any:
    """What does not change between calls of one signature; .batch_key and .rows may be set."""
    config = _ffi.new("shm_call_config_t *")
    config.gang = gang
    config.port = port
    config.function = function
    config.pool = pool
    config.priority = priority
    config.placement = placement
    return config


def send_message(function: int, params: int) -> int:
    """shm_send_msg: a status."""
    message = _ffi.new("shm_msg_t *")
    message.func_ptr = _cast("shm_func_t", function)
    message.params = _cast("void *", params)
    return int(_lib.shm_send_msg(message))


def read_message() -> tuple[int, int, int]:
    """shm_read_msg: (status, func_ptr, params)."""
    message = _ffi.new("shm_msg_t *")
    status = int(_lib.shm_read_msg(message))
    return (
        status,
        int(_cast(_UINTPTR, message.func_ptr)),
        int(_cast(_UINTPTR, message.params)),
    )


# ---- a helper's calls -------------------------------------------------------------------------

helper_ready: Callable[[int], int] = _lib.shm_helper_ready
helper_step: Callable[[Any, int, int, int], int] = _lib.shm_helper_step
helper_take: Callable[[Any, int, int], int] = _lib.shm_helper_take
helper_finish: Callable[[int, int, int], int] = _lib.shm_helper_finish
helper_go_on: Callable[[], int] = _lib.shm_helper_go_on
helper_goes_on: Callable[[int], int] = _lib.shm_helper_goes_on

WORK_GANG: int = _lib.SHM_WORK_GANG  # a kind of work; any other kind that is not 0 is a grow
WORK_FORMAT = _format_of("shm_work_t")
WORK_BYTES: int = _ffi.sizeof("shm_work_t")
# What one call alone needs of it.
ONE_WORK_FORMAT = _format_of(
    "shm_work_t", {"function", "params", "sequence", "block_bytes", "generation", "slot", "kind"}
)


def new_works(capacity: int) -> tuple[Any, Any]:
    """Room for one batch of works: (handle for helper_step, buffer to unpack from)."""
    works = _ffi.new("shm_work_t[]", capacity)
    return works, _buffer(works)


# ---- gangs: calls that run on several helpers at once ------------------------------------------

GANG_COMMITTED: int = _lib.SHM_GANG_COMMITTED
GANG_ABORTED: int = _lib.SHM_GANG_ABORTED
GANG_BLOCK_FORMAT = _format_of("shm_gang_block_t")  # what stands before the offsets
GANG_BLOCK_VERSION = 1


def _numbers(enumeration: str, prefix: str) -> dict[str, int]:
    """Words and numbers of a C enumeration, without its last, which counts them."""
    numbers: dict[str, int] = _ffi.typeof(f"enum {enumeration}").relements
    words = {name.removeprefix(prefix).lower(): int(number) for name, number in numbers.items()}
    return {word: number for word, number in words.items() if number < len(words) - 1}


COLLECTIVES = _numbers("shm_collective_kind", "SHM_")
COLLECTIVE_DTYPES = _numbers("shm_dtype", "SHM_")
REDUCTIONS = _numbers("shm_reduction", "SHM_REDUCE_")
ALGORITHMS = _numbers("shm_algorithm", "SHM_ALGORITHM_")

gang_collective: Callable[[Any, Any, Any], int] = _lib.shm_gang_collective
gang_start: Callable[[Any, Any, Any], int] = _lib.shm_gang_start
gang_wait: Callable[[int, int], int] = _lib.shm_gang_wait
gang_commit: Callable[[], int] = _lib.shm_gang_commit
gang_abort: Callable[[], int] = _lib.shm_gang_abort
gang_state: Callable[[], int] = _lib.shm_gang_state
gang_epoch: Callable[[], int] = _lib.shm_gang_epoch


def new_collective(**fields: Any) -> Any:
    """A description for :data:`gang_collective`; sequences fill its arrays from the front."""
    made = _ffi.new("shm_collective_t *")
    for name, value in fields.items():
        if isinstance(value, int):
            setattr(made, name, value)
        else:
            for index, one in enumerate(value):
                getattr(made, name)[index] = one
    return made


def pointer(address: int) -> Any:
    """An address, for :data:`gang_collective`; 0 is none."""
    return _cast("void *", address)


# ---- the scoreboard --------------------------------------------------------------------------


def broker_stats() -> dict[str, int]:
    """Counters of the dispatcher."""
    stats = _ffi.new("shm_broker_stats_t *")
    check(_lib.shm_get_broker_stats(stats), "the statistics could not be read")
    return _as_dict(stats, "shm_broker_stats_t")


def child_stats(child: int) -> dict[str, Any]:
    """Counters of one child; ``bytes`` is a dict by kind."""
    stats = _ffi.new("shm_child_stats_t *")
    check(_lib.shm_get_child_stats(child, stats), "the statistics could not be read")
    row: dict[str, Any] = _as_dict(stats, "shm_child_stats_t")
    row["bytes"] = dict(zip(BYTES_NAMES, (int(n) for n in stats.bytes), strict=True))
    return row


def helper_stats(helper: int) -> dict[str, Any]:
    """Counters of one helper, and its pool's name; ``bytes`` is a dict by kind."""
    stats = _ffi.new("shm_helper_stats_t *")
    check(_lib.shm_get_helper_stats(helper, stats), "the statistics could not be read")
    row: dict[str, Any] = _as_dict(stats, "shm_helper_stats_t")
    name = _ffi.string(stats.pool_name).decode(errors="ignore")  # it may be cut within a letter
    row["pool_name"] = name or str(row["pool"])
    row["bytes"] = dict(zip(BYTES_NAMES, (int(n) for n in stats.bytes), strict=True))
    return row


def read_trace(start: int = 0, limit: int = 1 << 20) -> tuple[int, list[dict[str, int]]]:
    """Records of the trace ring from number ``start`` on: (next number, records)."""
    chunk = 4096
    out = _ffi.new("shm_trace_record_t[]", chunk)
    cursor = _ffi.new("uint64_t *", start)
    records: list[dict[str, int]] = []
    while len(records) < limit:
        count = check(_lib.shm_read_trace(cursor, out, chunk), "the trace could not be read")
        records.extend(_as_dict(out[i], "shm_trace_record_t") for i in range(count))
        if count < chunk:
            break
    return int(cursor[0]), records


# Name, NumPy's name of the type and offset of each field of a trace record.
TRACE_FIELDS = [
    (name, field.type.cname.removesuffix("_t"), field.offset)
    for name, field in _ffi.typeof("shm_trace_record_t").fields
]
TRACE_BYTES: int = _ffi.sizeof("shm_trace_record_t")


def read_trace_bytes(start: int, limit: int) -> tuple[int, Any]:
    """At most ``limit`` trace records from number ``start`` on, as they lie: (next, buffer)."""
    out = _ffi.new("shm_trace_record_t[]", max(1, limit))
    cursor = _ffi.new("uint64_t *", start)
    count = check(_lib.shm_read_trace(cursor, out, limit), "the trace could not be read")
    return int(cursor[0]), _buffer(out)[: count * TRACE_BYTES]


def function_names() -> dict[int, str]:
    """Names of the scoreboard's functions by row."""
    rows = _ffi.new("shm_function_row_t[]", _lib.SHM_MAX_FUNCTIONS)
    count = check(
        _lib.shm_get_functions(rows, _lib.SHM_MAX_FUNCTIONS), "the functions could not be read"
    )
    return {
        int(rows[i].function): _ffi.string(rows[i].name).decode("utf-8", "replace")
        for i in range(count)
    }


def monitor_open(descriptor: int) -> None:
    """Read, from here on, the scoreboard in that file instead of one of our own.

    Raises:
        ShmError: it holds no scoreboard, or one of another version.
        LaunchError: this process has a broker.
    """
    status = int(_lib.shm_monitor_open(descriptor))
    if status < 0:
        fail(status, "", error_detail())


def monitor_close() -> None:
    """Let go of what :func:`monitor_open` opened."""
    _lib.shm_monitor_close()


# ---- running ---------------------------------------------------------------------------------


class Host:
    """What Python lends the supervisor: override the methods; see shm_host_t in the header.

    One host is in use at a time. An exception in a callback must not cross C: :meth:`failed`
    is told of it, and the callback's value is then the one that stops the broker.
    """

    def fork(self) -> int:
        """As ``os.fork``."""
        raise NotImplementedError

    def run_helper(self, helper: int, generation: int) -> int:
        """In the helper: its exit status."""
        raise NotImplementedError

    def run_child(self, child: int, generation: int) -> int:
        """In the child: its exit status."""
        raise NotImplementedError

    def on_event(self, event: dict[str, int]) -> None:
        """In the parent: something happened."""

    def on_signal(self) -> int:
        """In the parent: Python's handlers have run; non-zero stops the broker."""
        return 0

    def is_done(self, child: int) -> bool:
        """In the parent: whether a child that exited with 0 has left what it owes."""
        return True

    def exit(self, status: int) -> None:
        """In a role: end the process."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """A callback raised."""


_host: Host | None = None


def _on_error(kind: Any, error: BaseException | None, traceback: Any) -> None:
    if _host is not None and error is not None:
        _host.failed(error.with_traceback(traceback))


def _current() -> Host:
    assert _host is not None
    return _host


@_ffi.def_extern(error=-1, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_fork() -> int:
    try:
        return _current().fork()
    except OSError as error:  # not a failure of the host: the core may try again later
        _ffi.errno = error.errno
        return -1


@_ffi.def_extern(error=70, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_run_helper(helper: int, generation: int) -> int:
    return _current().run_helper(helper, generation)


@_ffi.def_extern(error=70, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_run_child(child: int, generation: int) -> int:
    return _current().run_child(child, generation)


@_ffi.def_extern(onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_on_event(event: Any) -> None:
    _current().on_event(_as_dict(event, "shm_event_t"))


@_ffi.def_extern(error=1, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_on_signal() -> int:
    return _current().on_signal()


@_ffi.def_extern(error=0, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_is_done(child: int) -> int:
    return int(_current().is_done(child))


@_ffi.def_extern(onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_exit(status: int) -> None:
    _current().exit(status)


EVENT_NAMES = {
    int(getattr(_lib, "SHM_EVENT_" + name)): name.lower()
    for name in (
        "HELPER_STARTED",
        "HELPER_READY",
        "HELPER_FAILED",
        "HELPER_DIED",
        "CHILD_STARTED",
        "CHILD_ENDED",
        "READY",
        "DRAINING",
        "HELPER_HUNG",
        "CHILD_PROTOCOL",
        "OVER",
        "CHILD_CLEARED",
        "HELPER_DELAYED",
        "CHILD_DELAYED",
        "CHILD_JOINED",
        "CHILD_LEFT",
        "CHILD_REFUSED",
        "HELPER_RETIRED",
        "SCALED",
        "IDLE",
        "SCALE_REFUSED",
    )
}
REASON_HUNG = int(_lib.SHM_REASON_HUNG)
REASON_PROTOCOL = int(_lib.SHM_REASON_PROTOCOL)
REASON_ENDING = int(_lib.SHM_REASON_ENDING)
RESTARTS = {
    "never": int(_lib.SHM_RESTART_NEVER),
    "on-failure": int(_lib.SHM_RESTART_ON_FAILURE),
}


POOL_NAME_BYTES: int = _ffi.sizeof(_ffi.new("shm_helper_stats_t *").pool_name)
UNTIL_TOLD = int(_lib.SHM_UNTIL_TOLD)
UNTIL_FIRST_LEFT = int(_lib.SHM_UNTIL_FIRST_LEFT)
MAX_QUOTAS = int(_lib.SHM_MAX_QUOTAS)
MAX_WEIGHT = int(_lib.SHM_MAX_WEIGHT)


def run(
    host: Host,
    *,
    helper_pool: list[int],
    min_credit: list[int],
    helper_absent: Sequence[bool],
    pool_names: Sequence[str],
    **settings: int,
) -> int:
    """shm_run: become the parent, or (``caller_is_child=1``) fork one. Returns the status."""
    global _host
    config = _ffi.new("shm_config_t *")
    for name, value in settings.items():
        try:
            setattr(config, name, value)
        except OverflowError:
            fail(EBAD_CONFIG, f"{name}={value}")
    for index, pool in enumerate(helper_pool):
        config.helper_pool[index] = pool
    for index, credit in enumerate(min_credit):
        config.min_credit[index] = credit
    for index, absent in enumerate(helper_absent):
        config.helper_absent[index] = absent
    for index, pool_name in enumerate(pool_names):
        config.pool_name[index] = pool_name.encode()[: POOL_NAME_BYTES - 1]
    table = _ffi.new("shm_host_t *")
    table.fork = _lib.shmpy_fork
    table.run_helper = _lib.shmpy_run_helper
    table.run_child = _lib.shmpy_run_child
    table.on_event = _lib.shmpy_on_event
    table.on_signal = _lib.shmpy_on_signal
    table.is_done = _lib.shmpy_is_done
    table.exit = _lib.shmpy_exit
    _host = host
    keep_for_the_broker = (config, table)
    _kept.append(keep_for_the_broker)
    try:
        return int(_lib.shm_run(config, table))
    finally:
        if not settings.get("caller_is_child"):
            _host = None
            _kept.remove(keep_for_the_broker)


class NoAnswer(errors.LaunchError):
    """Somebody listens there and says nothing."""


class NoPlace(errors.LaunchError):
    """All places are taken, or as many wait for one as can."""


def dump_arenas(wanted: bool) -> None:
    """shm_dump_arenas: whether core dumps hold the arenas that are mapped from here on."""
    _lib.shm_dump_arenas(int(wanted))


def new_descriptor() -> Any:
    """Room for a descriptor, at index 0; -1 until there is one."""
    return _ffi.new("int *", -1)


def join(connection_fd: int, program: str, wait_ns: int, manifest: Any) -> None:
    """shm_join: become a child of the broker behind that socket, and be given its manifest."""
    while True:  # Python's signal handlers run between
        status = int(_lib.shm_join(connection_fd, program.encode(), wait_ns, 1, manifest))
        if status != EINTR:
            break
    if status == ETIMEOUT:
        raise NoAnswer(
            "the broker was not joined: it does not answer (is it still loading, or stopped?)"
        )
    if status < 0:
        error = error_of(status, "the broker was not joined", error_detail())
        raise NoPlace(str(error)) if status == ENO_CHILD_SLOT else error


def disown() -> None:
    """shm_disown: in a forked process, let go of the place that was the forking one's."""
    check(int(_lib.shm_disown()), "what was inherited could not be let go")


def ask(connection_fd: int, pool: int = 0) -> tuple[int, int]:
    """shm_ask: how many helpers the pool is to have, and the manifest's descriptor."""
    before, manifest = _ffi.new("int *"), _ffi.new("int *")
    status = int(_lib.shm_ask(connection_fd, pool, before, manifest))
    if status < 0:
        raise error_of(status, "the broker did not answer", error_detail())
    return int(before[0]), int(manifest[0])


def ask_scale(connection_fd: int, pool: int, helpers: int) -> int:
    """shm_ask_scale: how many helpers the pool was to have before."""
    before = _ffi.new("int *")
    status = int(_lib.shm_ask_scale(connection_fd, pool, helpers, before))
    if status < 0:
        raise error_of(status, "the broker was not scaled", error_detail())
    return int(before[0])


def ask_retire(connection_fd: int) -> None:
    """shm_ask_retire: have the broker end when nobody is joined."""
    status = int(_lib.shm_ask_retire(connection_fd))
    if status < 0:
        raise error_of(status, "the broker was not told to end", error_detail())


def set_quotas(rows: Sequence[Mapping[str, Any]]) -> None:
    """shm_set_quotas: the whole table anew, of members of shm_quota_t."""
    table = _ffi.new("shm_quota_t[]", max(1, len(rows)))
    for index, row in enumerate(rows):
        for name, value in row.items():
            setattr(table[index], name, value.encode() if isinstance(value, str) else value)
    check(_lib.shm_set_quotas(table, len(rows)), "the quotas were not taken")


def parked_limit(child: int) -> int:
    """Bytes of that child's results that a helper keeps; 0: as of anybody."""
    stats = _ffi.new("shm_child_stats_t *")
    return int(stats.parked_limit) if _lib.shm_get_child_stats(child, stats) == 0 else 0


def maps_old_arena(child: int) -> bool:
    """Whether that slot has changed hands, and this helper maps the memory of who was there."""
    stats = _ffi.new("shm_child_stats_t *")
    known = _lib.shm_get_child_stats(child, stats) == 0
    return known and int(stats.arenas) != int(_lib.shm_arena_version(child))


def arena_shift() -> int:
    """What an address here lacks to be the broker's; 0 but in a process that joined elsewhere."""
    return int(_lib.shm_arena_shift())


def leave() -> int:
    """shm_leave: a status."""
    status = int(_lib.shm_leave())
    forget_host()
    return status


def forget_host() -> None:
    """No callback will come any more."""
    global _host
    _host = None


def stop_signal() -> int:
    """After ESIGNALLED: which signal."""
    return int(_lib.shm_stop_signal())
