"""The settings of a broker, each one row: its type, default, variable, meaning, and who takes it.

Owns the one list from which the parameters of ``launch`` and ``init``, the flags of ``shmgpu up``,
``doctor`` and ``serve``, the ``SHMGPU_`` variables and the tables on the pages are made or held
against. Never resolves a value (:mod:`shmgpu.common.config` does), and never acts on one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.common.parsers import (
    one_of,
    parse_bool,
    parse_bytes,
    parse_path_or_none,
    parse_seconds,
    parse_slots,
    parse_text,
    whole,
)

PREFIX = "SHMGPU_"


@dataclass(frozen=True)
class Setting:
    """One row.

    Attributes:
        name: as a parameter; ``--name`` as a flag; ``SHMGPU_NAME`` as a variable.
        takers: who takes it, in words: ``launch``, ``init`` and ``ensure``; the commands ``up``,
            ``doctor`` and ``serve``; and ``broker``, of which a LaunchConfig is made.
        type: of the parameter, in Python's notation; None is always allowed too.
        meaning: one phrase, as Markdown, for the pages and for ``--help``.
        parse: reads a value, given the name of its source for errors; None where only the code
            that takes it can.
        default: what holds without argument and variable, as text or value; None: none.
        has_variable: whether the environment may say it.
        metavar: what a flag's help shows; "": a switch.
        detail: what the page adds.
    """

    name: str
    takers: str
    type: str
    meaning: str
    parse: Callable[[Any, str], Any] | None = None
    default: Any = None
    has_variable: bool = True
    metavar: str = "N"
    detail: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that says it; "" where none does."""
        return PREFIX + self.name.upper() if self.has_variable else ""

    def is_taken_by(self, taker: str) -> bool:
        """Whether that function or command takes it."""
        return taker in self.takers.split()


def _argument(name: str, takers: str, type: str, meaning: str, **more: Any) -> Setting:
    """A row that no variable can say."""
    return Setting(name, takers, type, meaning, has_variable=False, **more)


def _only_variable(
    name: str, parse: Callable[[Any, str], Any], default: Any, meaning: str, detail: str = ""
) -> Setting:
    """A row that no function takes."""
    return Setting(name, "", "", meaning, parse, default, detail=detail)


ROWS: tuple[Setting, ...] = (
    Setting(
        *("children", "launch doctor", "int"),
        f"child processes to fork, 1 to {core.MAX_CHILDREN}",
        whole(1, core.MAX_CHILDREN),
        1,
        detail="; by default as many as `main` lists",
    ),
    Setting(
        *("helpers", "launch init broker ensure up doctor serve", "int | Mapping[str, int]"),
        f"helper processes to fork, 1 to {core.MAX_HELPERS}",
        whole(1, core.MAX_HELPERS),
        1,
        detail='; or `{"name": count}` for pools',
    ),
    _argument(
        *("max_helpers", "broker ensure up", "int | Mapping[str, int]"),
        "the most helpers that `shmgpu scale` may ask for",
    ),
    _argument(
        *("session", "launch init broker ensure up", "Any"),
        "the function that makes each helper's session",
        metavar="MODULE:NAME",
        detail=": `session(helper)` runs once in each helper; may be a dictionary by pool",
    ),
    Setting(
        *("lazy", "launch init broker ensure up", "bool | Mapping[str, bool]"),
        "make a helper's session at its first call, not at the start",
        parse_bool,
        False,
        metavar="",
        detail="; may be a dictionary by pool; see [sessions that come and "
        "go](../helper/README.md#sessions-that-come-and-go)",
    ),
    Setting(
        *("idle", "launch init broker ensure up", "float | Mapping[str, float]"),
        "seconds without a call after which a helper gives its session and its device memory back, "
        "until the next call; 0: never",
        parse_seconds,
        0.0,
        detail="; may be a dictionary by pool",
    ),
    _argument(
        *("devices", "launch init broker ensure up doctor serve", "Any"),
        "devices that are assigned to helpers in turn, such as `cuda:0,cuda:1` or `cpu`",
        metavar="NAMES",
        detail=": one, or a list; may be a dictionary by pool; by default the GPUs, else the CPU",
    ),
    Setting(
        *("arena", "launch init broker ensure up doctor serve", "int | str"),
        "memory of each child's arena, such as 64MiB",
        parse_bytes,
        "64MiB",
        metavar="SIZE",
        detail="; a number is bytes",
    ),
    _argument("args", "launch", "Sequence[Any]", "more arguments of `main`"),
    Setting(
        *("seed", "launch init broker ensure", "int"),
        "seed from which each process gets its own; without one they are random",
        whole(0, (1 << 63) - 1),
        detail=". It seeds random, numpy, torch and tensors; in the process that calls `init`, "
        "only tensors",
    ),
    Setting(
        *("window", "launch init broker ensure up doctor", "int"),
        f"messages that a child may have in flight, 1 to {core.MAX_WINDOW}",
        whole(1, core.MAX_WINDOW),
        64,
    ),
    Setting(
        *("order", "launch init broker ensure up", "str"),
        "which waiting call is next: `turns`, children take turns; `deadline`, the one whose "
        "timeout ends first",
        one_of("turns", "deadline"),
        "turns",
        metavar="ORDER",
        detail="; see [the order of calls](../child/README.md#the-order-of-calls)",
    ),
    Setting(
        *("threads", "launch init broker ensure up doctor serve", "int"),
        "compute threads of each CPU helper; 0: (cores - 1) / helpers",
        whole(0, 1024),
        0,
    ),
    Setting(
        *("gpu_memory", "launch init broker ensure up doctor", "int | str"),
        "limit on each helper's device memory; 0: none",
        parse_bytes,
        0,
        metavar="SIZE",
    ),
    Setting(
        *("prefault", "launch init broker ensure doctor", "bool"),
        "take the pages of all arenas at launch, not at first touch",
        parse_bool,
        False,
        metavar="",
    ),
    Setting(
        *("huge_pages", "launch init broker ensure doctor", "bool"),
        "ask for transparent huge pages",
        parse_bool,
        False,
        metavar="",
    ),
    Setting(
        *("grace", "launch init broker ensure", "float"),
        "seconds from a request to end until SIGTERM is sent, and at most as many from SIGTERM "
        "until SIGKILL",
        parse_seconds,
        5.0,
    ),
    Setting(
        *("restart", "launch broker", "str"),
        "what becomes of a child that failed: `never` ends the launch, `on-failure` restarts it",
        one_of("never", "on-failure"),
        "never",
    ),
    Setting(
        *("max_restarts", "launch broker", "int"),
        "how often one child is restarted before its failure ends the launch",
        whole(1, 1000000),
        5,
        detail="; a life of ten seconds or more resets the count. The first restart comes at once, "
        "the next after 0.05 s, doubling up to 5 s",
    ),
    _argument(
        *("slots", "launch init broker", "int"),
        "how many processes that children start or fork may join at once",
        parse=parse_slots,
        detail="; see [forked processes](../attach/README.md#forked-processes)",
    ),
    Setting(
        *("max_children", "up", "int"),
        "programs that may be joined at once",
        whole(1, core.MAX_CHILDREN),
        detail=", in a broker of `shmgpu up` (64) or one that a first call started (none: as many "
        "as have arenas in half of the memory, 64 at most)",
    ),
    Setting(
        *("scratch", "launch init broker ensure doctor", "int | str"),
        "size of the region through which each helper exchanges data with the others, as "
        "`all_reduce` does",
        parse_bytes,
        "4MiB",
        metavar="SIZE",
        detail="; its pages are taken when they are first used. 0 switches that off",
    ),
    Setting(
        *("trace_records", "launch init broker ensure", "int"),
        "calls that the trace remembers; 0 switches it off",
        whole(0, core.MAX_TRACE),
        65536,
    ),
    _argument(
        *("trace_path", "launch init", "str | os.PathLike[str]"),
        "where the trace is written at the end",
    ),
    Setting(
        *("debug", "launch init", "bool"),
        "record what tensors do, for `shmgpu.debug`",
        parse_bool,
        False,
        detail="; refuse functions that "
        "[write to their arguments](../helper/README.md#what-a-function-may-write-to)",
    ),
    Setting(
        *("debug_dir", "launch init", "str | os.PathLike[str]"),
        "folder where each child leaves that record as a file at its end",
        parse_path_or_none,
        "",
    ),
    Setting(
        *("tick_rate_ms", "launch init", "int"),
        "milliseconds of a tick in that record, 1 to 60000",
        whole(1, 60_000),
        10,
    ),
    _argument(
        *("stats_into", "launch", "dict[str, Any]"),
        "a dictionary that receives the final `stats()`",
    ),
    Setting(
        *("progress", "launch init", "bool"),
        "draw progress bars, on a terminal only",
        parse_bool,
        True,
        metavar="",
    ),
    _argument(
        *("inline", "init", "bool"), "start no process: functions run in this one", metavar=""
    ),
    _argument(
        *("backend", "init", "str"),
        'the library that computes [tensors](../tensors/README.md), `"torch"` or `"numpy"`; by '
        "default what `set_backend` says",
    ),
    _only_variable(
        "auto",
        one_of("join", "start", "never"),
        "start",
        "what the first call of a program in no broker does",
        ": `start` one where none runs, and join it; only `join` one that runs; or `never`",
    ),
    _only_variable(
        "idle_timeout",
        parse_seconds,
        60.0,
        "seconds without a joined program after which a broker that a first call started ends; "
        "0: never",
    ),
    _only_variable(
        "log",
        parse_text,
        "",
        "level from which the logger `shmgpu` prints to standard error",
    ),
    _only_variable(
        "parked",
        parse_bytes,
        "256MiB",
        "bytes of results that a helper keeps while they wait for larger output buffers",
    ),
    _only_variable(
        "dump_arenas",
        parse_bool,
        False,
        "core dumps hold arenas and scratch regions, to look at them in a debugger",
    ),
    _only_variable(
        "quick_calls",
        parse_bool,
        True,
        "calls like an earlier one are made in C",
        "; `0`: through Python, as all others are",
    ),
    _only_variable(
        "spin",
        parse_bool,
        True,
        "a lone caller watches for an answer that usually comes within 0.4 ms (of several "
        "helpers as one device: 0.2), and the broker for its next call that does within 0.1 ms, "
        "on idle cores",
        "; `0`: it always sleeps, which is slower and leaves its core to others",
    ),
    _only_variable(
        "resident",
        parse_bytes,
        0,
        "bytes of tensors that a helper holds for one child at most; 0: no limit",
    ),
)

BY_NAME = {row.name: row for row in ROWS}


def names(taker: str) -> tuple[str, ...]:
    """The settings that a function or command takes, in the order of the list."""
    return tuple(row.name for row in ROWS if row.is_taken_by(taker))


def taken(taker: str, given: dict[str, Any]) -> dict[str, Any]:
    """Those of a function's arguments (its ``locals()``) that it hands on to ``taker``."""
    return {name: given[name] for name in names(taker) if name in given}
