"""What constraints.txt pins, and the hashes of the archives that it stands for.

Owns hashes.txt. Never asks an index.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from audit import baseline

ROOT = pathlib.Path(__file__).resolve().parents[2]
HASHES = pathlib.Path(__file__).with_name("hashes.txt")
OURS = ("shmgpu", "pip")  # what is installed and not pinned: this project, and what installs
HEAD = """\
# SHA-256 of the archives that constraints.txt stands for, as their index has them: `make audit`
# holds what it offers now against them, and `make audit T=--write` adds those of another platform.
"""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lines() -> list[str]:
    """The pins, as they are written."""
    text = (ROOT / "constraints.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pinned() -> dict[str, set[str]]:
    """Versions by name: more than one where Pythons differ."""
    found: dict[str, set[str]] = {}
    for line in lines():
        name, _, version = line.partition(";")[0].strip().partition("==")
        found.setdefault(normal(name), set()).add(version)
    return found


def hashed_lines() -> list[str]:
    """The pins whose archives have a hash here."""
    return [
        line for line in lines() if normal(line.partition("==")[0]) not in baseline.WITHOUT_HASH
    ]


def known_hashes() -> dict[str, str]:
    """By the archive's name."""
    rows = (line.split() for line in HASHES.read_text().splitlines() if not line.startswith("#"))
    return {file: digest for digest, file in rows}


def write_hashes(known: dict[str, str]) -> None:
    """All of them, in order."""
    rows = (f"{known[file]}  {file}\n" for file in sorted(known, key=str.lower))
    HASHES.write_text(HEAD + "".join(rows))


def archives_of(report: dict[str, Any]) -> dict[str, str]:
    """Hashes by name, from what pip says that it would install."""
    told = [one["download_info"] for one in report["install"]]
    return {
        one["url"].rpartition("/")[2].replace("%2B", "+"): one["archive_info"]["hashes"]["sha256"]
        for one in told
    }
