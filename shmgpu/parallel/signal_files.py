"""Configurations of signals in files: the part of YAML that GT's are written in.

Owns the form: names, and under each ``shard`` (``axis``, ``workers``, ``replicated``),
``backward`` and ``compile``. It is read here, so that nobody needs a library for it. Never lays a
tensor.
"""

from __future__ import annotations

import os
import re
from typing import Any

from shmgpu.errors import ConfigError
from shmgpu.parallel.signals import ShardConfig, SignalConfig, register_config

VARIABLE = "GT_CONFIG"
_LINE = re.compile(r"( *)(?:(-) +)?(?:([\w.-]+|\"[^\"]*\"|'[^']*') *:(?: +|$))?(.*)")
_WORDS = {"true": True, "yes": True, "false": False, "no": False, "null": None, "~": None}
_KEYS = {
    "": {"shard", "backward", "compile"},
    "shard": {"axis", "workers", "replicated"},
}


def load_config(config_file: str | os.PathLike[str]) -> None:
    """Register the signals of a file.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it is not in the form that this reads, with the line.
    """
    with open(config_file, encoding="utf-8") as file:
        read = _mapping(file.read(), str(config_file))
    for name, said in read.items():
        register_config(name, _config(said, name, str(config_file)))


def load_from_environment() -> None:
    """Register the signals of the file that ``GT_CONFIG`` names, if it names one."""
    if path := os.environ.get(VARIABLE):
        load_config(path)


def _config(said: Any, name: str, path: str) -> SignalConfig:
    said = {} if said is None else said
    shard = said.get("shard") if isinstance(said, dict) else None
    for under, keys in _KEYS.items():
        part = said if not under else shard
        if part is not None and not (isinstance(part, dict) and part.keys() <= keys):
            raise ConfigError(
                f"{path}: {f'{under} of ' if under else ''}signal {name!r} may say "
                f"{', '.join(sorted(keys))}, and nothing else"
            )
    made = SignalConfig(None, said.get("backward"), bool(said.get("compile", False)))
    if shard is not None:
        axis, workers = shard.get("axis", 0), shard.get("workers")
        if type(axis) is not int or not (
            workers is None
            or (isinstance(workers, list) and all(type(one) is int for one in workers))
        ):
            raise ConfigError(
                f"{path}: signal {name!r} has axis={axis!r} and workers={workers!r}: an axis is a "
                "number, and workers are a list of helpers' numbers"
            )
        made.shard = ShardConfig(axis, workers, bool(shard.get("replicated", False)))
    return made


def _mapping(text: str, path: str) -> dict[str, Any]:
    """Mappings by indentation, lists in brackets or by dashes, words and numbers."""
    whole: dict[str, Any] = {}
    open_ones: list[tuple[int, Any]] = [(-1, whole)]  # indentation, and what is filled
    last: tuple[int, dict[str, Any], str] | None = None  # a key that nothing has followed yet
    for number, full in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^| )#.*", "", full).rstrip()
        if not line or line == "---":
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\t" in line:
            raise _not_read(path, number, full)
        indent, dash, key, rest = len(match[1]), match[2], match[3], match[4]
        if last is not None and (indent > last[0] or (dash and indent == last[0])):
            filled: Any = [] if dash else {}
            last[1][last[2]] = filled
            open_ones.append((indent, filled))
        last = None
        while open_ones[-1][0] > indent:
            open_ones.pop()
        if isinstance(open_ones[-1][1], list) and not dash and open_ones[-1][0] == indent:
            open_ones.pop()  # a list as deep as its key has ended
        into = open_ones[-1][1]
        if bool(dash) != isinstance(into, list) or (dash and key) or (not dash and not key):
            raise _not_read(path, number, full)
        if dash:
            into.append(_value(rest, path, number))
            continue
        key = key.strip("\"'")
        into[key] = _value(rest, path, number) if rest else None
        if not rest:
            last = (indent, into, key)
    return whole


def _value(text: str, path: str, number: int) -> Any:
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]"):
            raise _not_read(path, number, text)
        inner = text[1:-1].strip()
        return [_value(one, path, number) for one in inner.split(",")] if inner else []
    if text.startswith(("{", "&", "*", "|", ">", "!")):
        raise _not_read(path, number, text)
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return _WORDS.get(text.lower(), text.strip("\"'"))


def _not_read(path: str, number: int, text: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: {text.strip()!r} is not understood: write 'name:', and under it "
        "'shard:' with 'axis: 0' and 'workers: [0, 1]', indented by spaces"
    )
