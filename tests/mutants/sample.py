"""``make mutants SAMPLE=100 SEED=7``: random small changes; the tests nearest to each must fail.

Each is made in a copy of the tree, one copy for each job, and the tests are run file by file, the
nearest first, until one fails that passes without the change. What survives is listed with its
line: a test that is missing, code that is not needed, or something that cannot be seen, which gets
a remark in unseen.py. The exit status is 1 when more survive than MOST in a hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import multiprocessing
import os
import pathlib
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import mutations
from mutations import Mutation
from nearest import nearest
from trees import FAULTS, NORMAL, ROOT, CannotBuild, Copy, adopt_orphans
from unseen import UNSEEN

sys.path.insert(0, str(ROOT / "tests"))
import parallel

SOURCES = ("shmgpu/**/*.py", "csrc/*.c", "csrc/*.h")
LEFT_OUT = ("csrc/build_core.py", "csrc/shmgpu.h")
FILE_S = 150.0  # for the tests of one file
C_TEST_S = 300.0

copy: Copy  # a job's
good: set[str] = set()  # tests that were seen to pass without any change
unfit: set[str] = set()  # tests that fail without any change


def sources() -> list[str]:
    found = {
        str(path.relative_to(ROOT)) for pattern in SOURCES for path in sorted(ROOT.glob(pattern))
    }
    return sorted(found - set(LEFT_OUT))


def draw(count: int, seed: int, only: str = "") -> list[Mutation]:
    """So many of all mutations there are, of files whose path contains ``only``."""
    everything = [
        mutation
        for file in sources()
        if only in file
        for mutation in mutations.of(file, (ROOT / file).read_text())
    ]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def remark(mutation: Mutation, text: str) -> str:
    """Why it cannot be seen; "" when nobody says so."""
    old, new = mutation.lines(text)
    for one in UNSEEN:
        if (one.file, one.line, one.becomes) == (mutation.file, old, new):
            return one.why
    return ""


# ---- one job -----------------------------------------------------------------------------------


def begin(place: str, ready: Any) -> None:
    """A job's copy, its /dev/shm, its temporary files."""
    global copy
    adopt_orphans()
    parallel.have_private_shm()
    mine = pathlib.Path(place, str(os.getpid()))
    for name in ("", "tree", "t", "run"):  # short: a socket's path may have 108 characters
        (mine / name).mkdir(mode=0o700)
    os.environ.update(TMPDIR=str(mine / "t"), XDG_RUNTIME_DIR=str(mine / "run"))
    os.environ["SHMGPU_AUTO"] = "never"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    copy = Copy(mine / "tree", [name for name in listed if name and (ROOT / name).is_file()])
    os.symlink(ROOT / ".venv", copy.root / ".venv")


def c_test_passes(name: str) -> bool:
    """One of tests/c, in the copy; what no longer pleases the compiler is no matter."""
    words = [f"T={name}", "WARNINGS=-w", "JOBS=1"]
    quiet: dict[str, Any] = {"cwd": copy.root, "capture_output": True, "text": True}
    built = subprocess.run(["make", "c-programs", *words], **quiet)
    if built.returncode:
        raise CannotBuild(built.stderr)
    try:
        done = subprocess.run(["make", "ctest", *words], timeout=C_TEST_S, **quiet)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def failing(file: str) -> list[str]:
    """Tests of a file that fail in the copy as it is; the file's name when they have no end."""
    if file.endswith(".c"):
        return [] if c_test_passes(pathlib.Path(file).stem.removeprefix("test_")) else [file]
    skipped = [word for test in sorted(unfit) for word in ("--deselect", test)]
    options = ["-x", "-m", "not slow", *skipped]
    found, _ = copy.outcomes([file], FILE_S, *options)
    if found is None:
        return [file]
    return [test for test, outcome in found.items() if outcome in ("failed", "broken")]


def fails_without(tests: list[str]) -> bool:
    """Whether one of them fails in a tree that nobody changed."""
    for test in tests:
        if test in unfit:
            return True
        if test not in good:
            if failing(test):
                unfit.add(test)
                return True
            good.add(test)
    return False


def trial(mutation: Mutation, seconds: float) -> dict[str, Any]:
    """What became of it: ``seen`` and by which test, ``remark``, ``no build`` or ``survives``."""
    started = time.monotonic()
    known = set(unfit)
    text = (copy.root / mutation.file).read_text()
    told = {"mutation": mutation, "line": mutation.line(text), "by": "", "files": 0}
    if why := remark(mutation, text):
        return {**told, "verdict": "remark", "by": why}
    files = nearest(mutation.file, mutation.inside)
    try:
        changed = mutation.apply(text)
        for file in files:
            if time.monotonic() - started > seconds and told["files"]:
                break
            told["files"] += 1
            with contextlib.ExitStack() as stack:
                if file.endswith(".py"):
                    text_of_tests = (copy.root / file).read_text()
                    builds = [NORMAL, FAULTS] if "with_faults" in text_of_tests else [NORMAL]
                    stack.enter_context(copy.changed(mutation.file, changed, *builds))
                else:
                    (copy.root / mutation.file).write_text(changed)
                    stack.callback((copy.root / mutation.file).write_text, text)
                tests = failing(file)
            if tests and not fails_without(tests):
                return {**told, "verdict": "seen", "by": tests[0]}
    except CannotBuild:
        return {**told, "verdict": "no build"}
    by = " ".join(files[: told["files"]])
    return {**told, "verdict": "survives", "by": by, "unfit": sorted(unfit - known)}


def try_one(work: tuple[int, Mutation, float]) -> tuple[int, dict[str, Any]]:
    number, mutation, seconds = work
    return number, trial(mutation, seconds)


# ---- the run -----------------------------------------------------------------------------------


def show(told: dict[str, Any]) -> str:
    """Place, kind and difference of one that survives."""
    mutation = Mutation(*told["mutation"])
    text = (ROOT / mutation.file).read_text()
    lines = difflib.unified_diff(
        text.splitlines(), mutation.apply(text).splitlines(), lineterm="", n=0
    )
    changes = [line for line in lines if line[:2] not in ("--", "++", "@@")]
    head = f"{mutation.file}:{told['line']}: {mutation.what}, in {mutation.inside or 'the file'}"
    words = [f"fails without it, too: {test}" for test in told.get("unfit", ())]
    return "\n    ".join([head, *changes, f"survived {told['by']}", *words])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="part of the paths of the files to change")
    parser.add_argument("-j", "--jobs", type=int, default=max(1, parallel.workers()))
    parser.add_argument("--seconds", type=float, default=240.0, help="of tests for each")
    parser.add_argument("--most", type=float, default=10.0, help="in a hundred may survive")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    drawn = draw(options.sample, seed, options.only)
    print(f"mutants: seed {seed}, {len(drawn)} of them, {options.jobs} at a time", flush=True)
    results: dict[int, dict[str, Any]] = {}
    out = ROOT / "build" / "mutants"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="m-") as place:
        context = multiprocessing.get_context("fork")
        with context.Pool(options.jobs, begin, (place, None)) as pool:
            work = [(number, mutation, options.seconds) for number, mutation in enumerate(drawn)]
            for number, told in pool.imap_unordered(try_one, work):
                results[number] = told
                line = f"{told['mutation'].file}:{told['line']} {told['mutation'].what}"
                by = told["by"] if told["verdict"] == "seen" else ""
                print(f"{len(results):4} {told['verdict']:9} {line}  {by}", flush=True)
                (out / f"sample-{seed}.json").write_text(json.dumps(results, indent=1))
            pool.close()
            pool.join()
    verdicts = Counter(told["verdict"] for told in results.values())
    for told in results.values():
        if told["verdict"] == "survives":
            print(show(told))
    tried = verdicts["seen"] + verdicts["survives"]
    share = 100 * verdicts["survives"] / tried if tried else 0.0
    print(f"mutants: seed {seed}: {dict(verdicts)}: {share:.0f} in 100 survive")
    return 1 if share > options.most else 0


if __name__ == "__main__":
    raise SystemExit(main())
