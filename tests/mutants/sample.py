"""``make mutants SAMPLE=100 SEED=7``: random small changes; the tests nearest to each must fail.

First the suite runs once in a marked copy of the tree, which tells the tests that pass through each
place; that is kept in build/mutants/through, and holds for later samples, too, until ``--mark``
makes it anew. Tests that were written since are tried on whatever is near to them. Then each change
is made in a copy, one copy for each job, and those tests are run, of each function of tests one
before others of its parameters, the nearest and quickest first, until one fails that passes without
the change; then those near to it of which ``make test`` runs a sample. Where the marks tell
nothing, it is the nearest files of tests. What survives is listed with its line: a test that is
missing, code that is not needed, or something that cannot be seen, which gets a remark in
unseen.py. The exit status is 1 when more survive than MOST in a hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import multiprocessing
import os
import pathlib
import pickle
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mutations
import through
from mutations import Mutation
from nearest import LEFT_OUT, nearest, reading_signatures
from trees import FAULTS, NORMAL, ROOT, CannotBuild, Copy, adopt_orphans
from unseen import UNSEEN

sys.path.insert(0, str(ROOT / "tests"))
import parallel

# A socket's path is short, and so is that of the tree with marks.
MARKED = pathlib.Path(tempfile.gettempdir(), f"m-{zlib.crc32(str(ROOT).encode()):08x}")
KEPT = ROOT / "build/mutants/through"
OBJECTS = ROOT / "build/mutants/objects"  # what was compiled, by the text that it was compiled from
SOURCES = ("shmgpu/**/*.py", "csrc/**/*.c", "csrc/**/*.h")
NOT_CHANGED = ("csrc/build_core.py", "csrc/shmgpu.h")
FILE_S = 150.0  # for what is run at once
CHUNK_S = 20.0  # of tests that pass through a place, as long as they took
CHUNK_TESTS = 200
FILE_TESTS_S = 20.0  # what a file of tests counts at most
LATE = 4  # times what is granted of the tests' own time may pass on the clock, on a busy machine
C_TEST_S = 300.0
NEAR = 20  # files of tests, of which those that were changed since the marks are run, too
MOST_UNFIT = 5  # times that the same tests are run without one that fails by itself
SUITE_S = 3600.0

SAMPLED = re.compile(r"mark\.(operations|table)\b")  # tests of which `make test` runs some

copy: Copy  # a job's
good: set[str] = set()  # tests that were seen to pass without any change
unfit: set[str] = set()  # tests that fail without any change
passing: dict[Mutation, through.Passing] = {}  # what the marked copy told
seconds_of: dict[str, float] = {}  # of each test, there
newer: dict[str, frozenset[str]] = {}  # files of tests that were changed since: tests known then
unmarked: set[str] = set()  # C tests of which the marks tell nothing
partly: dict[str, frozenset[str]] = {}  # those of whose tests some were run there: which


def sources() -> list[str]:
    found = {
        str(path.relative_to(ROOT)) for pattern in SOURCES for path in sorted(ROOT.glob(pattern))
    }
    return sorted(found - set(NOT_CHANGED))


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
    if why := mutations.why_nobody_measures(mutation.what, old, new):
        return why
    for one in UNSEEN:
        if (one.file, one.line, one.becomes) == (mutation.file, old, new):
            return one.why
    return ""


# ---- one job -----------------------------------------------------------------------------------


def tracked() -> list[str]:
    """The files of the tree."""
    words = ["git", "ls-files"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def begin(place: pathlib.Path, ready: Any) -> None:
    """A job's copy, its /dev/shm, its temporary files."""
    global copy
    adopt_orphans()
    parallel.have_private_shm()
    mine = pathlib.Path(place, str(os.getpid()))
    for name, mode in {"": 0o711, "tree": 0o711, "t": 0o711, "run": 0o700}.items():
        (mine / name).mkdir(mode=mode)
    os.environ.update(TMPDIR=str(mine / "t"), XDG_RUNTIME_DIR=str(mine / "run"))
    copy = Copy(mine / "tree", tracked(), OBJECTS)
    os.symlink(ROOT / ".venv", copy.root / ".venv")


def c_test_passes(name: str) -> bool:
    """One of tests/c, in the copy; what no longer pleases the compiler is no matter."""
    words = [f"T={name}", "WARNINGS=-w", "JOBS=1", f"CC={copy.compiler()}"]
    quiet: dict[str, Any] = {"cwd": copy.root, "capture_output": True}
    built = subprocess.run(["make", "c-programs", *words], **quiet)
    if built.returncode:
        raise CannotBuild(built.stderr.decode(errors="replace"))
    try:
        done = subprocess.run(["make", "ctest", *words], timeout=C_TEST_S, **quiet)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def failing(tests: list[str]) -> list[str]:
    """Which fail in the copy as it is, of files of tests or of single ones; all, without an end.

    A file's name with "::" behind it stands for the tests in it of which the marks tell nothing.
    """
    if tests[0].endswith(".c"):
        return [] if c_test_passes(pathlib.Path(tests[0]).stem.removeprefix("test_")) else tests
    told = {**partly, **newer}
    known = unfit.union(*(told[test[:-2]] for test in tests if test.endswith("::")))
    skipped = [word for test in sorted(known) for word in ("--deselect", test)]
    options = ["-x", "-m", "not slow", *skipped]
    found, _ = copy.outcomes([test.removesuffix("::") for test in tests], FILE_S, *options)
    if found is None:  # without an end
        return tests
    failed = [test for test, outcome in found.items() if outcome in ("failed", "broken")]
    return tests if "" in failed else failed  # what all of them import could not be


def to_run(mutation: Mutation) -> Iterator[list[str]]:
    """What is run at once, the most promising first."""
    files = nearest(mutation.file, mutation.inside)
    told = passing.get(mutation)
    if told is None:
        yield from ([file] for file in files)
        return
    rank = {file: number for number, file in enumerate(files)}
    if mutation.what == mutations.DEFAULT:  # which may be compared, though nobody leaves it out
        reading = sorted(reading_signatures(), key=lambda file: rank.get(file, len(rank)))
        yield from ([file] for file in reading)
    yield from ([f"{file}::"] for file in newer if rank.get(file, len(rank)) < NEAR)
    yield from ([file] for file in files[:NEAR] if file in unmarked)
    passed = [test for test in told.tests if test.endswith(".c")]
    yield from ([test] for test in sorted(passed, key=lambda test: rank.get(test, len(rank))))
    alike: dict[str, list[str]] = {}  # of one function, with other parameters
    for test in sorted(told.tests - set(passed), key=lambda test: seconds_of.get(test, 0.0)):
        alike.setdefault(test.partition("[")[0], []).append(test)
    turn = {test: n.bit_length() for tests in alike.values() for n, test in enumerate(tests)}

    def promise(test: str) -> tuple[int, int, float]:
        """Of each function of tests one, then two more of each, four more, ..."""
        near = rank.get(test.partition("::")[0], len(rank)) // 4
        return turn[test], near, seconds_of.get(test, 0.0)

    chunk: list[str] = []
    for test in sorted(turn, key=promise):
        chunk.append(test)
        if len(chunk) == CHUNK_TESTS or sum(seconds_of.get(one, 0.0) for one in chunk) > CHUNK_S:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
    rest = [file for file in files[:NEAR] if file in partly.keys() - newer.keys()]
    yield from ([f"{file}::"] for file in rest)
    yield from ([file] for file in sorted(told.files, key=lambda file: rank.get(file, len(rank))))


def fails_without(tests: list[str]) -> list[str]:
    """Which of them fail in a tree that nobody changed."""
    while unknown := [test for test in tests if test not in good | unfit]:
        failed = failing(unknown)
        if not failed:
            good.update(unknown)
        elif failed == unknown:  # without an end, or a single one
            alone = {test: failed if len(unknown) == 1 else failing([test]) for test in unknown}
            for test, failed in alone.items():
                (unfit if failed else good).add(test)
        else:
            unfit.update(failed)
    return [test for test in tests if test in unfit]


def seen_by(mutation: Mutation, text: str, tests: list[str]) -> str:
    """The test that fails with the change and not without it; "" where there is none.

    One that fails without it, too, is left out from then on, and the others are run again.
    """
    files = {test.partition("::")[0] for test in tests}
    use_faults = any("with_faults" in (copy.root / one).read_text() for one in files)
    builds = [NORMAL, FAULTS] if use_faults else [NORMAL]
    for _ in range(MOST_UNFIT):
        if not (tests := [test for test in tests if test not in unfit]):
            return ""
        with contextlib.ExitStack() as stack:
            if tests[0].endswith(".c"):
                (copy.root / mutation.file).write_text(mutation.apply(text))
                stack.callback((copy.root / mutation.file).write_text, text)
            else:
                stack.enter_context(copy.changed(mutation.file, mutation.apply(text), *builds))
            failed = failing(tests)
        if not failed:
            return ""
        if not fails_without(failed):
            return failed[0]
    return ""


def cost(test: str) -> float:
    """Seconds that a test takes, or a file: a slow one counts less, so that others are tried."""
    if test in seconds_of:
        return seconds_of[test]
    file = test.removesuffix("::")
    if test == file:
        known = [taken for one, taken in seconds_of.items() if one.startswith(f"{file}::")]
        return min(sum(known), FILE_TESTS_S) if known else FILE_TESTS_S
    return FILE_TESTS_S


def trial(mutation: Mutation, seconds: float) -> dict[str, Any]:
    """What became of it: ``seen`` and by which test, ``remark``, ``no build`` or ``survives``."""
    started, spent = time.monotonic(), 0.0
    known = set(unfit)
    text = (copy.root / mutation.file).read_text()
    told: dict[str, Any] = {"mutation": mutation, "line": mutation.line(text), "by": "", "runs": 0}
    if why := remark(mutation, text):
        return {**told, "verdict": "remark", "by": why}
    ran: list[str] = []
    try:
        for tests in to_run(mutation):
            late = time.monotonic() - started
            if ran and (spent > seconds or late > LATE * seconds):
                break
            spent += sum(map(cost, tests))
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            ran += [file for file in files if file not in ran]
            if by := seen_by(mutation, text, tests):
                return {**told, "verdict": "seen", "by": by, "runs": len(ran)}
    except CannotBuild:
        return {**told, "verdict": "no build"}
    by = " ".join(ran)
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
    parser.add_argument(
        "--seed", type=int, nargs="+", default=None, help="several: one after another"
    )
    parser.add_argument("--only", default="", help="part of the paths of the files to change")
    parser.add_argument(
        "--tests", nargs="+", default=["tests"], help="those that are run in a marked tree"
    )
    parser.add_argument("--mark", action="store_true", help="run them there, though some were")
    parser.add_argument("-j", "--jobs", type=int, default=max(1, parallel.workers()))
    parser.add_argument("--seconds", type=float, default=240.0, help="of tests for each")
    parser.add_argument("--most", type=float, default=10.0, help="in a hundred may survive")
    options = parser.parse_args()
    seeds = options.seed or [secrets.randbelow(1 << 31)]
    drawn = {seed: draw(options.sample, seed, options.only) for seed in seeds}
    with tempfile.TemporaryDirectory(prefix="m-") as place:
        os.chmod(place, 0o711)  # a test's other user comes to what the test has opened to it
        if options.mark or not KEPT.exists():
            mark(options.tests, options.jobs)
        if not options.sample:
            return 0
        recall([one for some in drawn.values() for one in some])
        shares = [
            run(seed, some, pathlib.Path(place), options.jobs, options.seconds)
            for seed, some in drawn.items()
        ]
    return 1 if max(shares) > options.most else 0


def mark(tests: list[str], jobs: int) -> None:
    """Run tests in a marked tree, to find what passes through each block of it.

    What they tell is added to what others have told of the same sources. A tree that was marked
    for them is used again.
    """
    texts = {file: (ROOT / file).read_text() for file in sources()}
    numbers = through.numbered(texts)
    print(f"mutants: {' '.join(tests)} in a tree with {len(numbers)} marks", flush=True)
    if tests == ["tests"] or not (KEPT / "texts.json").exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)
        KEPT.chmod(0o777)  # a test's other user passes through, too
    elif json.loads((KEPT / "texts.json").read_text()) != texts:
        raise SystemExit(f"Sources were changed since: mark all anew, or remove {KEPT} first.")
    tests_then = {file: (ROOT / file).read_text() for file in tests_of_python()}
    for name, content in {"texts": texts, "tests": tests_then}.items():
        (KEPT / f"{name}.json").write_text(json.dumps(content))
    MARKED.mkdir(mode=0o711, exist_ok=True)
    tree = marked_tree(texts, numbers)
    told = {"THROUGH": str(KEPT), "THROUGH_SIZE": str(len(numbers))}
    if programs := [test for test in tests if test.endswith(".c") or test == "tests"]:
        mark_c(tree.root, len(numbers), [] if "tests" in programs else programs)
    if files := [test for test in tests if test not in programs or test == "tests"]:
        options = ["-q", "-p", "no:cacheprovider", "-p", "marks", "-m", "not slow"]
        options += ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
        options += [f"--ignore-glob={name}*" for name in LEFT_OUT]
        options += ["--operations=20:1"]  # as make test
        end = tree.pytest([*options, *files], SUITE_S, **told)
        print(f"mutants: {tree.log.read_text().splitlines()[-1]}", flush=True)
        if end == "hung":
            raise SystemExit("The marked tree's tests did not end.")


def marked_tree(texts: dict[str, str], numbers: dict[tuple[str, int], int]) -> Copy:
    """The tree with marks, built; the one of before when nothing was changed since."""
    place = MARKED / "tree"
    state = pathlib.Path(MARKED, "marked.json")
    if place.exists() and state.exists() and json.loads(state.read_text()) == texts:
        return Copy(place, [name for name in tracked() if name.startswith("tests/")], OBJECTS, ())
    shutil.rmtree(place, ignore_errors=True)
    tree = Copy(place, tracked(), OBJECTS, ())
    os.symlink(ROOT / ".venv", place / ".venv")
    (place / through.NOTES).write_text(through.WRITER.format(size=len(numbers)))
    (place / through.C_NOTES).write_text(through.C_WRITER.format(size=len(numbers)))
    for file, text in texts.items():
        own = {line: number for (name, line), number in numbers.items() if name == file}
        put_in = through.marked if file.endswith(".py") else through.marked_c
        (place / file).write_text(put_in(text, own))
    tree.build(NORMAL)
    tree.build(FAULTS)
    tree.link()
    state.write_text(json.dumps(texts))
    return tree


def mark_c(tree: pathlib.Path, size: int, files: list[str]) -> None:
    """Run each C test, or some, with a map of its own."""
    quiet: dict[str, Any] = {"cwd": tree, "capture_output": True, "timeout": SUITE_S}
    times = KEPT / "times.json"
    seconds = json.loads(times.read_text()) if times.exists() else {}
    with (KEPT / "programs.told").open("ab") as file:
        for path in files or c_programs():
            own = KEPT / "program"
            own.write_bytes(bytes(size))
            name = pathlib.Path(path).stem.removeprefix("test_")
            words = ["make", "ctest", "WARNINGS=-w", "JOBS=2", f"T={name}"]
            begun = time.monotonic()
            subprocess.run(words, env={**os.environ, "MUTANTS_MAP": str(own)}, **quiet)
            seconds[path] = time.monotonic() - begun
            pickle.dump(("program", path, zlib.compress(own.read_bytes(), 1)), file)
    times.write_text(json.dumps(seconds))


def c_programs() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/c/test_*.c"))


def tests_of_python() -> list[str]:
    return [name for name in tracked() if re.match(r"tests/.*test_\w+\.py$", name)]


def recall(mutations: list[Mutation]) -> None:
    """What the kept run of the marked tree tells of each."""
    told = through.Told(KEPT)
    seconds_of.update(told.seconds)
    texts = {one.file: (ROOT / one.file).read_text() for one in mutations}
    wanted = [told.number(one.file, texts[one.file], one.start) for one in mutations]
    found = told.passing(wanted)
    passing.update({one: its for one, its in zip(mutations, found, strict=True) if any(its)})
    # Where nothing passes, what passes nearby may since, or may be made to by the change.
    nearby = [
        (one, number)
        for one in mutations
        if one not in passing
        for number in told.above(one.file, texts[one.file], one.start)
    ]
    found = told.passing([[number] for _, number in nearby])
    for (one, _), its in zip(nearby, found, strict=True):
        if any(its):
            passing.setdefault(one, its)
    ran = {test for phase, test, _ in told.records if phase == "program"}
    unmarked.update(file for file in c_programs() if file not in ran)
    then = json.loads((KEPT / "tests.json").read_text())
    for file in tests_of_python():
        text = (ROOT / file).read_text()
        known = frozenset(test for test in seconds_of if test.partition("::")[0] == file)
        if then.get(file) != text:
            newer[file] = known
        if SAMPLED.search(text):
            partly[file] = known
    print(
        f"mutants: tests were seen to pass through {len(passing)} of {len(mutations)}; "
        f"{len(newer)} files of tests were changed since",
        flush=True,
    )


def run(seed: int, drawn: list[Mutation], place: pathlib.Path, jobs: int, seconds: float) -> float:
    """Try one sample; how many in a hundred survive."""
    print(f"mutants: seed {seed}, {len(drawn)} of them, {jobs} at a time", flush=True)
    results: dict[int, dict[str, Any]] = {}
    out = ROOT / "build" / "mutants"
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, begin, (place, None)) as pool:
        work = [(number, mutation, seconds) for number, mutation in enumerate(drawn)]
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
    print(f"mutants: seed {seed}: {dict(verdicts)}: {share:.0f} in 100 survive", flush=True)
    return share


if __name__ == "__main__":
    raise SystemExit(main())
