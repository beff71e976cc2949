"""An import or include only ever points down, and every file has its row in the table."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "shmgpu"

# From the ground up. A file may use what stands above it in these lists (a lower floor), never
# what stands below. Whoever adds a room adds a row, and says with its place what it may know.
C_ROOMS = [
    "shmgpu",  # the public header: types and prototypes only
    "callbacks",  # read by cffi, included by nobody
    "clock",
    "status",
    "detail",
    "fault",  # the test build's; nothing in a normal one
    "memory",
    "tlsf",
    "descriptor",
    "passing",
    "board",
    "arena",
    "frame",
    "heap",
    "channel",
    "registry",
    "schedule",
    "process",
    "init",
    "replies",
    "spin",
    "port",
    "desk",
    "dispatch",
    "signals",
    "role",
    "crew",
    "guest",
    "quota",
    "door",
    "supervise",
    "join",
    "launch",
    "api",
]

PYTHON_ROOMS = [
    "installed",
    "errors",
    "core",
    "config",
    "logs",
    "progress",
    "seeds",
    "dtypes",
    "values",
    "arrays",
    "layout",
    "memory",
    "plans",
    "repeats",
    "wire",
    "tickets",
    "letters",
    "arguments",
    "results",
    "replies",
    "port",
    "futures",
    "runtime",
    "arena",
    "waiting",
    "blas",
    "device",
    "shares",
    "functions",
    "entries",
    "watching",
    "parking",
    "hints",
    "desk",
    "joins",
    "batches",
    "modules",
    "helper",
    "inline",
    "reports",
    "events",
    "box",
    "door",
    "sources",
    "carry",
    "identity",
    "manifest",
    "quotas",
    "spawn",
    "automatic",
    "stats",
    "trace",
    "figures",
    "monitor",
    "views",
    "screen",
    "top",
    "settings",
    "termination",
    "roles",
    "attach",
    "launch",
    "daemon",
    "spawned",
    "starter",
    "control",
    "graph",
    "ops",
    "program",
    "engine",
    "residents",
    "lazy",
    "autograd",
    "interop",
    "tensors",
    "factories",
    "optim",
    "nn",
    "workers",
    "debug",
    "timeline",
    "talk",
    "doctor",
    "demo",
    "serve",
    "cli",
    "__init__",
    "__main__",
]

# Inside the server, which is one room to the others.
SERVE_ROOMS = [
    "flags",
    "datatypes",
    "metadata",
    "requests",
    "fitting",
    "classes",
    "reading",
    "protocol",
    "messages",
    "table",
    "settings",
    "regions",
    "windows",
    "sequences",
    "problems",
    "models",
    "preparing",
    "repository",
    "adapters",
    "settings",
    "counters",
    "feeds",
    "recordings",
    "runner",
    "rows",
    "catalog",
    "known",
    "cache",
    "spans",
    "infer",
    "lifecycle",
    "streams",
    "describe",
    "metrics",
    "edge",
    "accepting",
    "generate",
    "benches",
    "lanes",
    "access",
    "routes",
    "openapi",
    "rpc",
    "worker",
    "command",
    "__init__",  # names what model files import, when they ask for it
]

# (lower file, higher file): upward uses that are meant, each with its reason. Empty is best.
ALLOWED: dict[tuple[str, str], str] = {}

needs_sources = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="the package's sources are not beside these tests"
)


def c_files() -> list[pathlib.Path]:
    return sorted([*CSRC.glob("*.c"), *CSRC.glob("*.h")])


def python_files() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def python_room(path: pathlib.Path) -> str:
    """A package inside the package is one room: shmgpu/ops/add.py belongs to ops."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def c_room(path: pathlib.Path) -> str:
    """Files named room_part.c are parts of one room."""
    return path.stem.split("_")[0]


def c_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and room of every ``#include "room.h"``."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+["<]([\w./-]+)[">]', line)
        if include and (CSRC / include.group(1)).exists():
            found.append((number, c_room(pathlib.Path(include.group(1)))))
    return found


def python_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and room of every import of this package, those inside functions too."""
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
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "shmgpu":
                continue
            room = parts[1] if len(parts) > 1 else "__init__"
            if room != "_core" and room not in known_python_rooms():
                room = "__init__"  # `from shmgpu import launch` asks the package itself
            found.append((node.lineno, room))
    return found


def known_python_rooms() -> set[str]:
    return _known_python_rooms(PACKAGE)


@functools.cache
def _known_python_rooms(package: pathlib.Path) -> set[str]:
    return {*PYTHON_ROOMS, *(python_room(path) for path in package.rglob("*.py"))}


@needs_sources
@pytest.mark.parametrize(
    ("files", "room_of", "rooms"),
    [
        (c_files, c_room, C_ROOMS),
        (python_files, python_room, PYTHON_ROOMS),
    ],
    ids=["c", "python"],
)
def test_every_file_has_a_row_in_the_table(files, room_of, rooms):
    strangers = [str(path.relative_to(ROOT)) for path in files() if room_of(path) not in rooms]
    assert not strangers, (
        f"{strangers} stand on no floor: add a row to the table in tests/unit/test_layering.py."
    )


@needs_sources
@pytest.mark.parametrize(
    ("files", "room_of", "uses", "rooms"),
    [
        (c_files, c_room, c_uses, C_ROOMS),
        (python_files, python_room, python_uses, PYTHON_ROOMS),
    ],
    ids=["c", "python"],
)
def test_nothing_points_up(files, room_of, uses, rooms):
    wrong = []
    for path in files():
        here = room_of(path)
        if here not in rooms:
            continue
        for line, used in uses(path):
            if used == here or used not in rooms or (here, used) in ALLOWED:
                continue
            if rooms.index(used) > rooms.index(here):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} is below {used}")
    assert not wrong, "\n".join(["These point up:", *wrong])


@needs_sources
def test_nothing_points_up_inside_the_server():
    wrong = []
    for path in sorted((PACKAGE / "serve").rglob("*.py")):
        here = path.relative_to(PACKAGE / "serve").with_suffix("").parts[0]
        assert here in SERVE_ROOMS, f"{path.name} stands on no floor: add a row"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                "shmgpu.serve"
            ):
                continue
            inner = node.module.removeprefix("shmgpu.serve").lstrip(".")
            inner = inner.partition(".")[0]  # a folder is one room
            for used in [inner] if inner else [alias.name for alias in node.names]:
                if SERVE_ROOMS.index(used) > SERVE_ROOMS.index(here) and not (
                    (here, used) == ("flags", "command")  # only when it is run
                ):
                    wrong.append(f"{path.name}:{node.lineno}: {here} is below {used}")
    assert not wrong, "\n".join(["These point up:", *wrong])


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
    (tmp_path / "launch.py").write_text("")
    low = tmp_path / "errors.py"
    low.write_text(
        "import shmgpu.launch\n"
        "from shmgpu import launch\n"
        "from shmgpu.launch import run\n"
        "from . import launch\n"
        "from .launch import run\n"
        "def later():\n"
        "    from . import _core\n"
    )
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert python_uses(low) == [*((line, "launch") for line in range(1, 6)), (7, "_core")]
