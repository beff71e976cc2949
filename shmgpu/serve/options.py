"""The flags of ``shmgpu serve``: one table, from which the configuration file's keys come too.

Owns what can be asked of a server. Never imports what only a server needs, so that ``--help``
always works.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmgpu.common import devices, logs, parsers, settings
from shmgpu.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# In a smaller arena not even small requests fit beside what a worker keeps there.
LEAST_ARENA = 1 << 20
MOST_WORKERS = 2  # unless somebody says


def _int(value: Any) -> int:
    """Of text, or of TOML's integers: neither its booleans nor a part of a float is one."""
    if isinstance(value, (bool, float)):
        raise ValueError
    return int(value)


def _whole(least: int, most: float = math.inf) -> Callable[[Any], int]:
    def number(text: Any) -> int:
        value = _int(text)
        if not least <= value <= most:
            raise ConfigError(f"use {least} " + (f"to {most}" if most < math.inf else "or more"))
        return value

    return number


def _seconds(text: Any) -> float:
    if isinstance(text, bool):
        raise ValueError
    return parsers.parse_seconds(float(text), "seconds")


def _time(text: Any) -> float:
    """Seconds of which there must be some."""
    seconds = _seconds(text)
    if seconds <= 0:
        raise ConfigError("use more than 0")
    return seconds


def _size(least: int) -> Callable[[Any], int]:
    def size(text: Any) -> int:
        value = parsers.parse_bytes(text, "size")
        if value < least:
            raise ConfigError(f"use {in_units(least)} or more: a number without a unit is bytes")
        return value

    return size


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def name(value: Any) -> str:
        if value not in names:
            raise ConfigError("use " + " or ".join(names))
        return str(value)

    return name


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _level(text: Any) -> str:
    level = _text(text).upper()
    if level not in logs.LEVELS:
        raise ConfigError(f"use {', '.join(logs.LEVELS).lower()}")
    return level


def _pools(text: Any) -> int | dict[str, int]:
    """``2``, or ``fast=2,large=1``."""
    if not isinstance(text, str) or "=" not in text:
        return _int(text)
    pools: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        name = name.strip()
        if not name or name in pools:
            raise ConfigError("each pool needs a name of its own")
        pools[name] = int(count)
    return pools


def _devices(text: Any) -> list[str] | dict[str, list[str]] | None:
    """``cuda:0,cpu``, or by pool: ``fast=cuda:0,large=cuda:1``; empty: the default."""
    if not _text(text).strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    if not any("=" in part for part in parts):
        return parts
    devices: dict[str, list[str]] = {}
    for part in parts:
        name, sign, device = (word.strip() for word in part.partition("="))
        if not (name and sign and device):
            raise ConfigError("either each device has its pool, as in fast=cuda:0, or none has")
        devices.setdefault(name, []).append(device)
    return devices


@dataclass(frozen=True)
class Flag:
    """One row: ``--name`` on the command line, ``name`` in the configuration file.

    One without a metavar is a switch, off unless it is given.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    metavar: str
    help: str


def _setting(name: str, parse: Callable[[Any], Any], default: Any, meaning: str = "") -> Flag:
    """A setting of the broker's: its name, form and variable are its row's."""
    row = settings.BY_NAME[name]
    return Flag(name, parse, default, row.metavar, meaning or row.meaning.replace("`", ""))


FLAGS = (
    Flag("host", _text, "127.0.0.1", "ADDRESS", "where to listen; 0.0.0.0 is every network"),
    Flag("port", _whole(0, 65535), 8000, "N", "HTTP port; 0 chooses a free one"),
    Flag(
        "grpc-port",
        _whole(0, 65535),
        None,
        "N",
        "gRPC port; 0 chooses a free one (default: no gRPC)",
    ),
    Flag(
        "grpc-front",
        _one_of("auto", "nghttp2", "grpcio"),
        "auto",
        "NAME",
        "what speaks HTTP/2: nghttp2 or grpcio; auto is nghttp2 where its library is",
    ),
    Flag("uds", _text, None, "PATH", "listen on a Unix socket instead"),
    Flag(
        "workers",
        _whole(1),
        None,
        "N",
        "processes that speak to clients (default: 2, or 1 where helpers leave no cores for more)",
    ),
    _setting("helpers", _pools, 1, "processes that compute; or pools, such as fast=2,large=1"),
    _setting(
        "devices",
        _devices,
        None,
        "devices assigned to helpers in turn, cuda:0,cuda:1 or cpu; or by pool, fast=cuda:0",
    ),
    _setting("threads", _whole(1), None, "compute threads of each CPU helper"),
    _setting(
        "arena", _size(LEAST_ARENA), 256 << 20, "memory of each worker for requests and answers"
    ),
    Flag("max-body", _size(1 << 10), 64 << 20, "SIZE", "largest body of a request; 413 beyond"),
    Flag("max-header", _size(1 << 10), 64 << 10, "SIZE", "largest head of a request; 431 beyond"),
    Flag("max-connections", _whole(1), 5000, "N", "connections open at once; 503 beyond"),
    Flag("max-tensors", _whole(1), 256, "N", "inputs, or outputs, of one request; 400 beyond"),
    Flag("max-json-depth", _whole(1), 64, "N", "nesting of a request's JSON; 400 beyond"),
    Flag(
        "idle-timeout", _time, 75.0, "S", "seconds without a request until a connection is closed"
    ),
    Flag("receive-timeout", _time, 30.0, "S", "seconds for a request to arrive; 408 beyond"),
    Flag("send-timeout", _time, 30.0, "S", "seconds that an answer may stay unread"),
    Flag(
        "token-file", _text, None, "FILE", "holds the token that clients must send; 401 without it"
    ),
    Flag("tls-cert", _text, None, "FILE", "the server's certificate, in PEM: HTTPS only"),
    Flag("tls-key", _text, None, "FILE", "the key of that certificate"),
    Flag("access-log", _text, None, "FILE", "a line for each request; - is standard output"),
    Flag(
        "log-level", _level, None, "LEVEL", "what is logged: info shows each model; or SHMGPU_LOG"
    ),
    Flag("hide-errors", _switch, False, "", "tell clients nothing of what a model's code raised"),
    Flag("max-queue", _whole(1), 1000, "N", "requests that may wait or run at once; 503 beyond"),
    Flag("timeout", _time, None, "S", "seconds until a request fails with 503"),
    Flag("allow-repository", _switch, False, "", "let clients load and unload models; 503 without"),
    Flag("allow-settings", _switch, False, "", "let clients change log settings; 403 without"),
    Flag("allow-client-shm", _switch, False, "", "let clients register shared memory; 403 without"),
    Flag("models-per-file", _whole(1, 256), 64, "N", "models that one file may declare"),
    Flag(
        "max-batch-size",
        _whole(1, 4096),
        None,
        "N",
        "rows that run as one, instead of what batched models declare",
    ),
    Flag("reload", _switch, False, "", "reload models when their files change, for development"),
    Flag(
        "max-client-regions",
        _whole(1),
        1000,
        "N",
        "shared regions that clients may register; 400 beyond",
    ),
    Flag(
        "max-sequences",
        _whole(1),
        10000,
        "N",
        "sequences that one helper keeps at once; 503 beyond",
    ),
    Flag(
        "sequence-idle",
        _seconds,
        60.0,
        "S",
        "seconds without a request until a sequence may be dropped",
    ),
    Flag(
        "response-cache", _size(0), None, "SIZE", "cache of each worker, for models with cache=True"
    ),
    Flag("otel", _switch, False, "", "export a span for each request; see the OTEL_... variables"),
    Flag(
        "hang-after", _time, None, "S", "seconds of one execution after which a helper is replaced"
    ),
    Flag(
        "drain-delay", _seconds, 0.0, "S", "seconds between not ready and refusing new connections"
    ),
    Flag("drain-timeout", _seconds, 30.0, "S", "seconds that the last answers may take"),
)


def most_of(arena: int) -> int:
    """Bytes of an arena that one request may take: the rest is for what a worker keeps there."""
    return arena - arena // 16


def workers_beside(helpers: int, cores: int) -> int:
    """How many workers there are unless somebody says.

    A second one that has to share its core with a helper or the dispatcher answers fewer requests
    than one alone: 41,000 of 1 KiB a second instead of 51,000 on two cores, over eight connections.
    """
    return min(max(cores - helpers - 1, 1), MOST_WORKERS)


def page() -> str:
    """The table of flags, as README.md beside this file shows it."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for flag in FLAGS:
        name = f"--{flag.name} {flag.metavar}".strip()
        default = "" if not flag.metavar or flag.default is None else _shown(flag)
        rows.append(f"| `{name}` | {default} | {flag.help} |")
    return "\n".join(rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL[@POOL]",
        help="model files or folders of models; @cuda:1: on that device",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML with these flags' names as keys, and models = [...]; the command line wins",
    )
    for flag in FLAGS:
        if not flag.metavar:
            parser.add_argument(
                f"--{flag.name}", action="store_true", default=argparse.SUPPRESS, help=flag.help
            )
            continue
        default = "" if flag.default is None else f" ({_shown(flag)})"
        parser.add_argument(
            f"--{flag.name}",
            type=_checked(flag),
            default=argparse.SUPPRESS,
            metavar=flag.metavar,
            help=flag.help + default,
        )


def _checked(flag: Flag) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return flag.parse(text)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(_wrong(flag, text, error)) from None

    return parse


def _wrong(flag: Flag, value: Any, error: Exception) -> str:
    why = f" ({error})" if isinstance(error, ConfigError) else ""
    return f"{value!r} is not a valid {flag.metavar or 'switch (true or false)'}: {flag.help}{why}"


def _shown(flag: Flag) -> str:
    default = flag.default
    if flag.metavar == "SIZE":
        return in_units(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def in_units(size: int) -> str:
    """A size as it is written: ``64MiB``."""
    return next(
        f"{size >> shift}{unit}"
        for shift, unit in ((20, "MiB"), (10, "KiB"), (0, " bytes"))
        if size >= 1 << shift and size % (1 << shift) == 0
    )


def resolve(options: argparse.Namespace) -> argparse.Namespace:
    """What was asked for: the command line, else the configuration file, a variable, the default.

    Raises:
        ConfigError: the file cannot be read, or has what is no flag.
    """
    resolved = {flag.name.replace("-", "_"): _default(flag) for flag in FLAGS}
    if options.config:
        resolved.update(_from_file(options.config))
    given = {name: value for name, value in vars(options).items() if name != "run"}
    if not given["models"]:
        del given["models"]
    resolved.update(given)
    if not resolved.get("models"):
        raise ConfigError("there is nothing to serve: name model files, or a folder of models")
    if resolved["workers"] is None:
        helpers = resolved["helpers"]
        count = helpers if isinstance(helpers, int) else sum(helpers.values())
        resolved["workers"] = workers_beside(count, devices.cores())
    # A body that no arena could hold is too large, and not to be tried again.
    resolved["max_body"] = min(resolved["max_body"], most_of(resolved["arena"]))
    return argparse.Namespace(**resolved)


def _default(flag: Flag) -> Any:
    row = settings.BY_NAME.get(flag.name)  # a flag of the server's own has no variable
    variable = row.variable if row is not None and row.is_taken_by("serve") else ""
    text = os.environ.get(variable, "")
    if not text or (flag.name == "threads" and text == "0"):
        return flag.default
    try:
        return flag.parse(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{variable}: {_wrong(flag, text, error)}") from None


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            read = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read ({error})") from None
    by_name = {flag.name: flag for flag in FLAGS}
    found: dict[str, Any] = {}
    models = read.pop("models", [])
    if not isinstance(models, list) or not all(isinstance(one, str) for one in models):
        raise ConfigError(f"models in {path} must be a list of paths")
    if models:
        found["models"] = [str(Path(path).parent / one) for one in models]
    for key, value in read.items():
        flag = by_name.get(key.replace("_", "-"))
        if flag is None:
            known = [*by_name, "models"]
            close = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see --help"
            raise ConfigError(f"{key} in {path} is not a flag of shmgpu serve: {hint}")
        name = flag.name.replace("-", "_")
        if name in found:
            raise ConfigError(f"{path} says {name} twice, with an underscore and with a dash")
        try:
            found[name] = flag.parse(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key} in {path}: {_wrong(flag, value, error)}") from None
    return found
