"""The servers: ``shmgpu serve``, what a user would pick instead, and a bare echo.

One file for each, a program of its own that takes ``--port``, and one table, ``SERVERS``. All serve
the model that doubles float32 items, in two model processes where the server has such, and get the
same load. ``../README.md`` says which configurations were tried, what is taken, and why: of
``shmgpu serve`` as of its peers. Never puts load on a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.servers.wires import WireFormat, binary, msgpack, raw

# One connection, up to a dozen, dozens and more; bodies beyond a hundred kilobytes.
KINDS = ("lone", "few", "many", "large")


@dataclass(frozen=True)
class Configuration:
    """What a server's program is told besides the port, and how it is spoken to."""

    arguments: tuple[str, ...]
    wire: WireFormat


@dataclass(frozen=True)
class Server:
    """A server: the interpreter's arguments, what it needs, the configurations tried.

    ``needs`` are modules, ``program`` must be on the path. ``best`` names the configuration that
    did best, for each kind of load in ``KINDS``. Answers are the request's items times ``factor``.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    configurations: Mapping[str, Configuration]
    best: Mapping[str, str]
    program: str | None = None
    factor: int = 2

    @property
    def key(self) -> str:
        """The name as it stands in rows' names."""
        return "".join(letter for letter in self.name.lower() if letter.isalnum())

    def label(self, configuration: str) -> str:
        """Return the server and one of its configurations as they are written in a table."""
        return f"{self.name} ({configuration})"

    def slug(self, configuration: str) -> str:
        """Return a configuration as it stands in rows' names."""
        return "_".join(re.findall(r"\w+", configuration))


def _ours(module: str) -> tuple[str, ...]:
    """Return the arguments that run a program of this folder."""
    return ("-m", f"{__name__}.{module}")


_SHMGPU = ("--helpers", "1", "--devices", "cpu", "--arena", "192MiB", "--allow-client-shm")
SHMGPU = Server(
    "shmgpu",
    ("-m", "shmgpu", "serve", str(Path(__file__).with_name("double.py"))),
    ("shmgpu", "uvloop", "httptools"),
    {
        "one worker": Configuration(("--workers", "1", *_SHMGPU), binary()),
        "two workers": Configuration(("--workers", "2", *_SHMGPU), binary()),
    },
    {
        "lone": "one worker",
        "few": "one worker",
        "many": "one worker",
        "large": "two workers",
    },
)
ECHO = Server(
    "echo",
    _ours("echo"),
    ("uvloop", "httptools"),
    {"two processes": Configuration((), raw("/"))},
    dict.fromkeys(KINDS, "two processes"),
    factor=1,
)

_MOSEC, _LITSERVE = raw("/inference"), raw("/predict")

PEERS: tuple[Server, ...] = (
    Server(
        "mosec",
        _ours("mosec_server"),
        ("mosec", "msgpack"),
        {
            "raw bytes": Configuration((), _MOSEC),
            "raw bytes, one process": Configuration(("--processes", "1"), _MOSEC),
            "raw bytes, batches": Configuration(("--kind", "batch"), _MOSEC),
            "msgpack": Configuration(("--kind", "msgpack"), msgpack("/inference")),
        },
        {
            "lone": "raw bytes, one process",
            "few": "raw bytes",
            "many": "raw bytes, batches",
            "large": "raw bytes",
        },
    ),
    Server(
        "LitServe",
        _ours("litserve_server"),
        ("litserve",),
        {
            "one by one": Configuration((), _LITSERVE),
            "fast queue": Configuration(("--fast-queue",), _LITSERVE),
            "fast queue, batches": Configuration(("--fast-queue", "--batch", "32"), _LITSERVE),
        },
        dict.fromkeys(KINDS, "fast queue"),
    ),
    Server(
        "uvicorn",
        _ours("uvicorn_server"),
        ("uvicorn", "uvloop", "httptools"),
        {
            "executor": Configuration(("--behind", "executor"), raw("/")),
            "pipe": Configuration(("--behind", "pipe"), raw("/")),
        },
        dict.fromkeys(KINDS, "pipe"),
    ),
    Server(
        "Triton",
        _ours("triton_server"),
        (),
        {"Python backend": Configuration((), binary())},
        dict.fromkeys(KINDS, "Python backend"),
        program="tritonserver",
    ),
)


def find(name: str) -> Server:
    """Return the server of a name."""
    return next(server for server in (SHMGPU, ECHO, *PEERS) if server.name == name)
