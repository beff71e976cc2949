"""An import or include only ever points down, and every file has its row in the table.

The table is in order, from the ground up: a file may use what stands above it (a lower floor),
never what stands below. Files of a wing stand together, so wings form no circle either. The second
column says in whose processes a file runs: child, helper, parent, any. What runs in any uses only
what does; what runs in a child uses nothing that runs in helpers alone, and the other way round;
the parent starts both and may use all. Whoever adds a file adds a row, and says with its place what
it may know.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "shmgpu"

# A row room stands for room.h and room.c, and for room_part.c where that has no row of its own.
CORE = """
shmgpu                              any
callbacks                           parent

base/clock                          any
base/status                         any
base/error_detail                   any
base/fault                          any
base/descriptor                     any
base/passing                        any

memory/available                    any
memory/tlsf                         any
memory/arena                        any

ipc/scoreboard                      any
ipc/frame                           any
ipc/pipe                            any
ipc/function_table                  any
ipc/attach_handshake                any

process/process                     any
process/pid1                        parent
process/signals                     any
process/role                        any

child/heap                          child
child/reply_queue                   child
child/adaptive_spin                 child
child/port                          child
child/attach                        child

helper/helper_port                  helper

broker/schedule                     parent
broker/dispatch                     parent
broker/process_table                parent
broker/quota                        parent
broker/listener                     parent
broker/supervise                    parent
broker/launch                       parent

api                                 parent
"""

PYTHON = """
installed                           any
errors                              any
core                                any

common/config                       any
common/logs                         any
common/progress                     any
common/seeding                      any
common/termination                  any
common/wait_policy                  any
common/blas                         any
common/devices                      any
common/module_loader                any

codec/dtypes                        any
codec/pytree                        any
codec/arrays                        any
codec/layout                        any

child/memory                        child
child/plans                         child
child/prepared                      child
child/transport                     child
child/tickets                       child
child/raw_calls                     child
child/arguments                     child
child/results                       child
child/replies                       child
child/port                          child
child/futures                       child
child/runtime                       child

arena                               child
functions                           any

helper/decoded                      helper
helper/mutation_check               helper
helper/parked_results               helper
helper/hints                        helper
helper/shares                       helper
helper/executor                     helper
helper/batch_policy                 helper
helper/batch_executor               helper
helper/process                      helper
helper/inline                       helper

attach/hosts                        any
attach/endpoint                     any
attach/sources                      any
attach/carry                        any
attach/identity                     any
attach/manifest                     any
attach/spawn                        any
attach/automatic                    child
attach/control                      child
attach/membership                   child
attach/__init__                     any

watch/stats                         any
watch/trace                         any
watch/server_counters               any
watch/monitor                       any
watch/tables                        any
watch/screen                        any
watch/top                           any
watch/timeline                      any

broker/exit_reports                 any
broker/events                       parent
broker/quotas                       parent
broker/launch_config                parent
broker/role_host                    parent
broker/launch                       parent
broker/daemon                       parent
broker/spawn_main                   parent
broker/spawn_bootstrap              parent

ops/graph                           any
ops/kernels                         any
ops/casting                         any
ops/promotion                       any
ops/rules                           any
ops/shaping                         any
ops/stretching                      any
ops/creation                        any
ops/elementwise                     any
ops/reductions                      any
ops/linear                          any
ops/indexing                        any
ops/rearranging                     any
ops/activations                     any
ops/normalising                     any
ops/windows                         any
ops/ordering                        any
ops/losses                          any
ops/attention                       any
ops/__init__                        any
ops/page                            any
ops/program                         any

engine/cuda                         helper
engine/backends                     helper
engine/plan                         helper
engine/expressions                  helper
engine/fusion                       helper
engine/native                       helper
engine/compile                      helper
engine/cuda_graphs                  helper
engine/session                      helper
engine/functions                    any

tensors/interop                     child
tensors/autograd                    child
tensors/recorder                    child
tensors/tensor                      child
tensors/factories                   child
tensors/placement                   child
tensors/debug/ledger                child
tensors/debug/tape                  child
tensors/debug/ticks                 child
tensors/debug/saved                 child
tensors/debug/__init__              child
tensors/__init__                    child

optim                               child
nn/module                           child
nn/containers                       child
nn/layers                           child
nn/losses                           child
nn/simple                           child
nn/__init__                         child
debug                               child
messages                            any

doctor/probes                       any
doctor/machine                      any
doctor/plan                         any
doctor/verdict                      any
doctor/forking                      any
doctor/gpus                         any
doctor/kernel                       any
doctor/memory                       any
doctor/processors                   any
doctor/limits                       parent
doctor/__init__                     parent

demo/digits                         any
demo/stage                          any
demo/network                        any
demo/queues                         any
demo/serve                          parent
demo/audit                          parent
demo/report                         parent
demo/run                            parent

serve/options                       any
serve/protocol/datatypes            any
serve/protocol/metadata             any
serve/protocol/types                any
serve/protocol/validation           any
serve/protocol/classification       any
serve/protocol/fields               any
serve/protocol/http_codec           child
serve/protocol/grpc_codec           child
serve/state/control_table           any
serve/state/log_settings            child
serve/state/regions                 any
serve/state/counters                any
serve/state/repository              any
serve/models/region_maps            helper
serve/models/sequences              any
serve/models/declaration            any
serve/models/preprocessing          any
serve/models/adapters/sidecar       helper
serve/models/adapters/tensors       helper
serve/models/adapters/exported      helper
serve/models/adapters/onnx          helper
serve/models/adapters/torchscript   helper
serve/models/adapters/__init__      helper
serve/models/generators             helper
serve/models/cuda_graphs            helper
serve/models/runner                 helper
serve/models/functions              any
serve/models/__init__               any
serve/scheduling/catalog            child
serve/scheduling/templates          child
serve/scheduling/cache              child
serve/scheduling/statuses           child
serve/scheduling/inference          child
serve/scheduling/lifecycle          child
serve/scheduling/streams            child
serve/telemetry/metrics             child
serve/telemetry/spans               child
serve/frontend/documents            child
serve/frontend/connection           child
serve/frontend/acceptor             child
serve/frontend/generate             child
serve/frontend/coalescing           child
serve/frontend/fast_path            child
serve/frontend/access_log           child
serve/frontend/routes               child
serve/frontend/openapi              child
serve/frontend/grpc_server          child
serve/worker                        child
serve/server                        parent
serve/__init__                      any

cli/main                            parent
former                              any
__init__                            any
__main__                            parent
"""

# (lower file, higher file): upward uses that still stand, each with its reason. Empty is best.
UPWARD: dict[tuple[str, str], str] = {
    (
        "watch/timeline",
        "tensors/debug/saved",
    ): "one number of a trace, which belongs to watch/trace",
    (
        "tensors/recorder",
        "tensors/debug/__init__",
    ): "SHMGPU_DEBUG; what observes belongs below both",
    ("tensors/debug/ledger", "tensors/debug/tape"): "a type; the tape's rows belong below both",
    ("serve/options", "serve/server"): "the command itself, which belongs to cli/",
}

# (user, used): uses across who runs where that still stand, each with its reason. Empty is best.
ACROSS: dict[tuple[str, str], str] = {
    # Children call a Function and helpers run it; the rows of the table belong below both.
    ("functions", "child/runtime"): "the port of who calls",
    ("functions", "child/arguments"): "what a call may be given",
    ("functions", "child/futures"): "what .submit() and .aio() return",
    ("functions", "child/plans"): "a signature's plan",
    ("functions", "child/prepared"): "calls like the last one",
    ("functions", "child/raw_calls"): "calls of which no two are alike",
    ("functions", "child/port"): "a type",
    ("messages", "arena"): "messages are sent from an arena and read anywhere",
    ("messages", "child/runtime"): "messages are sent from an arena and read anywhere",
    # The engine's functions are called by children as a user's are; their bodies belong to helpers.
    ("engine/functions", "helper/decoded"): "the type of their first argument",
    ("engine/functions", "engine/backends"): "their bodies",
    ("engine/functions", "engine/session"): "their bodies",
    (
        "tensors/recorder",
        "engine/session",
    ): "the form of a program's message, which belongs to ops/",
    (
        "watch/timeline",
        "tensors/debug/saved",
    ): "one number of a trace, which belongs to watch/trace",
    # The server's functions are called by its workers; their bodies belong to helpers.
    ("serve/models/functions", "child/plans"): "what workers call them with",
    ("serve/models/functions", "child/prepared"): "what workers call them with",
    ("serve/models/functions", "serve/models/runner"): "their bodies",
    (
        "serve/scheduling/catalog",
        "serve/models/runner",
    ): "limits and errors, which belong below both",
    ("serve/scheduling/inference", "serve/models/runner"): "an error, which belongs below both",
    ("serve/scheduling/lifecycle", "serve/models/runner"): "errors, which belong below both",
    ("serve/scheduling/streams", "serve/models/generators"): "the mark of an end",
    ("serve/options", "serve/server"): "the command itself, which belongs to cli/",
}

USES = {
    "any": {"any"},
    "child": {"any", "child"},
    "helper": {"any", "helper"},
    "parent": {"any", "child", "helper", "parent"},
}

needs_sources = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="the package's sources are not beside these tests"
)


def rows_of(table: str) -> dict[str, str]:
    """In order: the file, and where it runs."""
    rows = dict(line.split() for line in table.splitlines() if line)
    assert len(rows) == sum(bool(line) for line in table.splitlines()), "a row stands twice"
    return rows


C_ROWS, PYTHON_ROWS = rows_of(CORE), rows_of(PYTHON)


def c_files() -> list[pathlib.Path]:
    return sorted(CSRC.rglob("*.[ch]"))


def python_files() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def python_room(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def c_room(path: pathlib.Path) -> str:
    """The file's own row, or that of the room that it is a part of."""
    name = path.relative_to(CSRC).with_suffix("").as_posix()
    return name if name in C_ROWS else name.rpartition("_")[0] or name


def c_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and room of every ``#include "wing/room.h"``."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+["<]([\w./-]+)[">]', line)
        if include and (CSRC / include.group(1)).exists():
            found.append((number, c_room(CSRC / include.group(1))))
    return found


def python_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and file of every import of this package, lazily and by ``importlib``, too."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = ("shmgpu", *inside)[: len(inside) + 2 - node.level]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            first = node.args[0] if node.args else None
            names = [str(first.value)] if isinstance(first, ast.Constant) else []
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "shmgpu":
                found.append((node.lineno, _file_of(PACKAGE, name)))
    return found


@functools.cache
def _file_of(package: pathlib.Path, name: str) -> str:
    """What a dotted name is asked of: a module, or the package that has it as a name."""
    parts = name.split(".")[1:]
    if parts[:1] == ["_core"]:
        return "_core"
    while parts:
        place = package.joinpath(*parts)
        if place.with_suffix(".py").exists():
            return "/".join(parts)
        if (place / "__init__.py").exists():
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "__init__"  # `from shmgpu import launch` asks the package itself


def needs_no_row(path: pathlib.Path) -> bool:
    """A package's first file that says what the package is, and nothing else."""
    return path.name == "__init__.py" and not python_uses(path)


Use = tuple[pathlib.Path, int, str, str]  # file and line, who uses, what is used


def all_uses() -> list[Use]:
    found = []
    for files, room_of, uses, rows in (
        (c_files, c_room, c_uses, C_ROWS),
        (python_files, python_room, python_uses, PYTHON_ROWS),
    ):
        for path in files():
            here = room_of(path)
            for line, used in uses(path):
                if here in rows and used in rows and used != here:
                    found.append((path.relative_to(ROOT), line, here, used))
    return found


def points_up(use: Use) -> bool:
    path, _, here, used = use
    rows = list(C_ROWS if path.parts[0] == "csrc" else PYTHON_ROWS)
    return rows.index(used) > rows.index(here)


def goes_across(use: Use) -> bool:
    path, _, here, used = use
    if path.name == "__init__.py":  # names what a package offers, to whomever
        return False
    rows = C_ROWS if path.parts[0] == "csrc" else PYTHON_ROWS
    return rows[used] not in USES[rows[here]]


@needs_sources
@pytest.mark.parametrize(
    ("files", "room_of", "rows"),
    [(c_files, c_room, C_ROWS), (python_files, python_room, PYTHON_ROWS)],
    ids=["c", "python"],
)
def test_every_file_has_a_row_in_the_table_and_every_row_a_file(files, room_of, rows):
    strangers = [
        str(path.relative_to(ROOT))
        for path in files()
        if room_of(path) not in rows and not needs_no_row(path)
    ]
    assert not strangers, (
        f"{strangers} stand on no floor: add a row to the table in tests/unit/test_layering.py."
    )
    assert not rows.keys() - {room_of(path) for path in files()}


@pytest.mark.parametrize("rows", [C_ROWS, PYTHON_ROWS], ids=["c", "python"])
def test_the_files_of_a_wing_stand_together(rows):
    """With no use that points up, there is then no circle of wings."""
    for depth in (1, 2, 3):
        seen: list[str] = []
        for name in rows:
            wing = "/".join(name.split("/")[:-1][:depth])
            if wing.count("/") == depth - 1 and wing and wing not in seen[-1:]:
                assert wing not in seen, f"{name} stands apart from the other files of {wing}/"
                seen.append(wing)
            elif not wing or wing.count("/") != depth - 1:
                seen.append("")


@needs_sources
def test_nothing_points_up():
    wrong = [use for use in all_uses() if points_up(use) and use[2:] not in UPWARD]
    told = [f"{path}:{line}: {here} is below {used}" for path, line, here, used in wrong]
    assert not wrong, "\n".join(["These point up:", *told])


@needs_sources
def test_nothing_uses_what_runs_elsewhere():
    wrong = [use for use in all_uses() if goes_across(use) and use[2:] not in ACROSS]
    both = {**C_ROWS, **PYTHON_ROWS}
    told = [
        f"{path}:{line}: {here} runs in {both[here]}, {used} in {both[used]}"
        for path, line, here, used in wrong
    ]
    assert not wrong, "\n".join(["These use what runs elsewhere:", *told])


@needs_sources
def test_every_exception_is_needed():
    uses = all_uses()
    assert UPWARD.keys() <= {use[2:] for use in uses if points_up(use)}
    assert ACROSS.keys() <= {use[2:] for use in uses if goes_across(use)}


@needs_sources
def test_only_core_knows_the_binding():
    users = {
        path.name for path in python_files() for _, room in python_uses(path) if room == "_core"
    }
    assert users <= {"core.py"}, f"Only shmgpu/core.py imports shmgpu._core, not {sorted(users)}."
    for folder in ("benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "shmgpu._core" not in path.read_text(encoding="utf-8"), path


def test_the_guard_sees_an_upward_import(tmp_path, monkeypatch):
    """The reader of imports finds each spelling; else the tests above prove nothing."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").write_text("")
    (tmp_path / "broker" / "launch.py").write_text("")
    (tmp_path / "debug.py").write_text("")
    low = tmp_path / "broker" / "errors.py"
    low.write_text(
        "import shmgpu.broker.launch\n"
        "from shmgpu.broker import launch\n"
        "from shmgpu.broker.launch import run\n"
        "from . import launch\n"
        "from .launch import run\n"
        "importlib.import_module('shmgpu.broker.launch')\n"
        "def later():\n"
        "    from .. import debug\n"
        "    from ..debug import enable\n"
        "    from shmgpu import _core, run\n"
    )
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert sorted(python_uses(low)) == [
        *((line, "broker/launch") for line in range(1, 7)),
        (8, "debug"),
        (9, "debug"),
        (10, "__init__"),
        (10, "_core"),
    ]
