"""``make mutants``: switch off each row's protection, one at a time; that row's test must fail.

Works on a copy of the tree, so that nothing here is ever switched off. First every test must pass
on the copy as it is. Then each mutant is put in, what is C is built anew, its test is run, and
whatever processes that leaves behind are ended: a broker without its protections leaves some.
``python tests/mutants F01 F36`` takes some rows alone.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from subprocess import Popen
from typing import IO

from table import MUTANTS, NO_SWITCH, PENDING, Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = (
    "csrc",
    "shmgpu",
    "tests",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "Makefile",
)
CORE = pathlib.Path("shmgpu/_core.abi3.so")
NORMAL, FAULTS = pathlib.Path("."), pathlib.Path("build/faults")  # where the builds' packages lie
TEST_S = 60  # for one mutant's tests; a hang is a failure, too
BASELINE_S = 600
PR_SET_CHILD_SUBREAPER = 36

KILLED = ("failed", "hung", "crashed")


# ---- processes -------------------------------------------------------------------------------


def descendants() -> set[int]:
    """Every process below this one."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = pathlib.Path("/proc", name, "stat").read_text()
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def end_descendants() -> None:
    """Orphans come to this process, so nothing that a test started escapes."""
    deadline = time.monotonic() + 10
    while (left := descendants()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


# ---- the copy --------------------------------------------------------------------------------


class CannotBuild(Exception):
    """The compiler's words."""


class Copy:
    """The tree, copied to where it may be broken."""

    def __init__(self, place: pathlib.Path) -> None:
        self.root = place
        self.log = place / "pytest.log"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(source, place / name, ignore=ignored)
            else:
                shutil.copy2(source, place / name)
        self.build(NORMAL)
        self.build(FAULTS)
        for part in (place / "shmgpu").iterdir():
            if part.suffix == ".py" or part.is_dir():
                (place / FAULTS / "shmgpu" / part.name).symlink_to(part)

    def build(self, where: pathlib.Path) -> None:
        """The extension, into ``where``/shmgpu; with the fault points when that is their place."""
        done = subprocess.run(
            [sys.executable, *"setup.py -q build_ext --force --build-lib".split(), str(where)],
            cwd=self.root,
            env={**os.environ, "SHMGPU_BUILD_FAULTS": "1" if where == FAULTS else ""},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise CannotBuild(done.stdout + done.stderr)

    def test(self, tests: list[str], seconds: float) -> dict[str, str]:
        """Outcome of each test; ``hung`` or ``crashed`` of all when pytest had no end."""
        told = self.root / "outcomes.json"
        told.unlink(missing_ok=True)
        options = f"-q -p no:cacheprovider -p outcomes --timeout={TEST_S * 2 / 3}".split()
        with open(self.log, "w") as log:
            process = self._pytest([*options, *tests], told, log)
        end = "crashed"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            end = "hung"
        end_descendants()
        process.wait()
        if not told.exists():
            return dict.fromkeys(tests, end)
        found = json.loads(told.read_text())
        return {test: worst(found, test) for test in tests}

    def _pytest(self, arguments: list[str], told: pathlib.Path, log: IO[str]) -> Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.root), str(self.root / "tests/mutants")]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "MUTANTS_OUTCOMES": str(told),
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def test_without(self, mutant: Mutant) -> str:
        """Outcome of the mutant's test while its protection is switched off."""
        path = self.root / mutant.file
        cores = [self.root / where / CORE for where in (NORMAL, FAULTS)]
        good = path.read_text(), [core.read_bytes() for core in cores]
        path.write_text(good[0].replace(mutant.text, mutant.off))
        try:
            if path.suffix in (".c", ".h"):
                self.build(FAULTS if needs_faults(mutant.test) else NORMAL)
            return self.test([mutant.test], TEST_S)[mutant.test]
        except CannotBuild as error:
            print(error, file=sys.stderr)
            return "no build"
        finally:
            path.write_text(good[0])
            for core, content in zip(cores, good[1], strict=True):  # newer than its sources again
                core.unlink(missing_ok=True)
                core.write_bytes(content)


def needs_faults(test: str) -> bool:
    """Whether the test runs on the test build: whether it asks for ``with_faults``."""
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == name.partition("[")[0]
        and "with_faults" in {argument.arg for argument in node.args.args}
        for node in ast.walk(tree)
    )


def worst(found: dict[str, str], test: str) -> str:
    """A test with parameters is several: failed if one failed, broken if none ran."""
    file = test.partition("::")[0]
    if found.get(file) == "broken":
        return "broken"
    mine = {
        outcome
        for name, outcome in found.items()
        if name == test or name.startswith((test + "[", test + "::"))
    }
    ranks = ("failed", "broken", "passed", "skipped")
    return next((outcome for outcome in ranks if outcome in mine), "not found")


# ---- the run ---------------------------------------------------------------------------------


def bar(total: int):
    """The package's own progress bar: drawn on a terminal, nothing elsewhere."""
    sys.path.insert(0, str(ROOT))
    from shmgpu.progress import Bar

    return Bar(total, "mutants", "mutants")


def main(rows: list[str]) -> int:
    """Run the table; the exit status."""
    known = {mutant.row for mutant in MUTANTS} | set(NO_SWITCH) | set(PENDING)
    if strangers := set(rows) - known:
        raise SystemExit(
            f"There is no row {', '.join(sorted(strangers))}: use F01 to F37, or a theme."
        )
    chosen = [mutant for mutant in MUTANTS if not rows or mutant.row in rows]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, bar(len(chosen)) as progress:
        copy = Copy(pathlib.Path(place))
        tests = sorted({mutant.test for mutant in chosen})
        unfit = {
            test: outcome
            for test, outcome in copy.test(tests, BASELINE_S).items()
            if outcome != "passed"
        }
        if unfit:
            lines = "\n".join(f"  {test}: {outcome}" for test, outcome in unfit.items())
            print(copy.log.read_text(), file=sys.stderr)
            print(f"These must pass before anything is switched off:\n{lines}", file=sys.stderr)
            return 1
        for mutant in chosen:
            start = time.monotonic()
            outcome = copy.test_without(mutant)
            results.append((mutant, outcome, time.monotonic() - start))
            progress.update()
    for mutant, outcome, seconds in results:
        verdict = "seen" if outcome in KILLED else "SURVIVES"
        name = mutant.test.rpartition("::")[2]
        print(f"{mutant.row}  {verdict:8}  {outcome:9} {seconds:5.1f} s  {mutant.file:20} {name}")
    for row, reason in NO_SWITCH.items():
        if not rows or row in rows:
            print(f"{row}  no switch: {reason}")
    if PENDING and not rows:
        print(f"still to be entered: {' '.join(PENDING)}")
    survivors = [mutant for mutant, outcome, _ in results if outcome not in KILLED]
    print(f"{len(results)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
