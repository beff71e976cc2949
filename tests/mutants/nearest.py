"""Which tests are nearest to a place in the source: those to run first when it was changed.

A file of tests is near to a file of the source when it was written together with it or with its
siblings (the history says so), sees one of the table's mutants of it, has its name, imports it, or
speaks of the very function. Nothing is run to find out.
"""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_OUT = (
    "tests/gpu/",
    "tests/typing/",
    *(
        f"tests/unit/test_{name}"
        for name in ("bench", "mutants", "layering", "packaging", "pages", "tour")
    ),
)
MOST_FILES = 40  # of a commit that still says which belong together


@functools.cache
def test_files() -> dict[str, str]:
    """Text by path, of what pytest runs and of C's own tests."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*")):
        name = str(path.relative_to(ROOT))
        if path.suffix in (".py", ".c") and not name.startswith(LEFT_OUT):
            found[name] = path.read_text()
    return found


@functools.cache
def commits() -> list[frozenset[str]]:
    """The files of each commit, by today's names; none where there is no history."""
    done = subprocess.run(
        ["git", "log", "--name-status", "-M", "--no-merges", "--format=%x00"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    today: dict[str, str] = {}  # a file's name in a commit: what it has been called since
    sets = []
    for part in done.stdout.split("\0"):
        files = set()
        for _, *names in (line.split("\t") for line in part.split("\n")):
            if len(names) == 2:
                today[names[0]] = today.get(names[1], names[1])
            files.update(today.get(name, name) for name in names[-1:])
        sets.append(frozenset(files))
    return [files for files in sets if 1 < len(files) <= MOST_FILES]


@functools.cache
def together(file: str) -> Counter[str]:
    """How much of a file's history it shares with each file of tests."""
    weights: Counter[str] = Counter()
    for files in commits():
        if file in files:
            for other in files & test_files().keys():
                weights[other] += 1 / len(files)
    most = max(weights.values(), default=1.0)
    return Counter({name: weight / most for name, weight in weights.items()})


@functools.cache
def siblings(file: str) -> list[str]:
    """The other files of a room of the core that is carved: dispatch.c and dispatch_replies.c."""
    if not file.startswith("csrc/"):
        return []
    room = pathlib.PurePath(file).stem.partition("_")[0]
    found = [str(path.relative_to(ROOT)) for path in (ROOT / file).parent.glob(f"{room}*.[ch]")]
    return [name for name in found if name != file]


def see_mutants_of(file: str) -> set[str]:
    """Files of tests that a row of the table names for it."""
    from mutants.table import MUTANTS  # the folder of this one may be all that is on the path

    return {one.test.partition("::")[0] for one in MUTANTS if one.file == file}


def speak_of(word: str) -> list[str]:
    """Files of tests that name it."""
    if len(word) < 4 or word.startswith("__"):
        return []
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return [name for name, text in test_files().items() if pattern.search(text)]


def reading_signatures() -> list[str]:
    """Files of tests that look at what arguments are when they are left out."""
    return [name for name, text in test_files().items() if "inspect.signature" in text]


def nearest(file: str, inside: str) -> list[str]:
    """Files of tests, the nearest first."""
    weights = Counter(together(file))
    for other in siblings(file):
        for name, weight in together(other).items():
            weights[name] += weight / 2 / len(siblings(file))
    for name in see_mutants_of(file) & test_files().keys():
        weights[name] += 1.0
    parts = pathlib.PurePath(file).with_suffix("").parts
    stem = parts[-1].removeprefix("_")
    module = re.compile(rf"\b{stem}\b")
    for name, text in test_files().items():
        tested = pathlib.PurePath(name).stem.removeprefix("test_")
        if tested in (stem, stem.split("_")[0]):
            weights[name] += 1.0
        elif set(parts) & set(pathlib.PurePath(name).parts):
            weights[name] += 0.1  # of the same room
        elif name.startswith("tests/broker/"):
            weights[name] += 0.01  # goes through most of it
        if file.endswith(".py") and any(
            "shmgpu" in line and module.search(line)
            for line in text.splitlines()
            if "import" in line
        ):
            weights[name] += 0.5
    speaking = speak_of(inside)
    for name in speaking:  # of what may be another's, where it does not know the file
        weights[name] += (2.0 if name in weights else 0.2) / len(speaking)
    if file.endswith(".py"):
        weights = Counter({name: w for name, w in weights.items() if name.endswith(".py")})
    return [name for name, _ in weights.most_common()]
