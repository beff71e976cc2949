"""A copy of the tree that may be broken, and an end to whatever its tests leave behind."""

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
import sysconfig
import time
from collections.abc import Iterator, Sequence

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
KEEPER = pathlib.Path(__file__).with_name("keeper.py")
NORMAL, FAULTS = pathlib.Path("."), pathlib.Path("build/faults")  # where the builds' packages lie
TEST_S = 60  # for one mutant's tests; a hang is a failure, too
BASELINE_S = 600
PR_SET_CHILD_SUBREAPER = 36

KILLED = ("failed", "hung", "crashed")


def adopt_orphans() -> None:
    """Whatever descends of this process comes to it, however its parents end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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


def write(path: pathlib.Path, text: str, twin: pathlib.Path) -> None:
    """Give a file another text; what Python compiled of it, or of a link to it, is gone.

    It knows an old one by its size and the second it was written in, which may be the same.
    """
    for one in (path, twin):
        for compiled in one.parent.glob(f"__pycache__/{one.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)
    path.write_text(text)


# ---- the copy --------------------------------------------------------------------------------


class CannotBuild(Exception):
    """The compiler's words."""


class Copy:
    """The tree, copied to where it may be broken."""

    def __init__(
        self,
        place: pathlib.Path,
        names: Sequence[str] = COPIED,
        objects: pathlib.Path | None = None,  # where what was compiled is kept, for other copies
        builds: Sequence[pathlib.Path] = (NORMAL, FAULTS),
    ) -> None:
        self.root = place
        self.objects = objects or place / "build/objects"
        self.log = place / "pytest.log"
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(source, place / name, ignore=ignored)
            else:
                shutil.copy2(source, place / name)
        for where in builds:
            self.build(where)
        if FAULTS in builds:
            self.link()

    def link(self) -> None:
        """The build with fault points has the same Python files."""
        for part in (self.root / "shmgpu").iterdir():
            if part.suffix == ".py" or part.is_dir():
                (self.root / FAULTS / "shmgpu" / part.name).symlink_to(part)

    def build(self, where: pathlib.Path) -> None:
        """The extension, into ``where``/shmgpu; with the fault points when that is their place."""
        done = subprocess.run(
            [sys.executable, *"setup.py -q build_ext --force --build-lib".split(), str(where)],
            cwd=self.root,
            env={
                **os.environ,
                "SHMGPU_BUILD_FAULTS": "1" if where == FAULTS else "",
                "CC": self.compiler(),
            },
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise CannotBuild(done.stdout + done.stderr)

    def compiler(self) -> str:
        """The compiler, behind what keeps what it has compiled."""
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
        return f"{sys.executable} {KEEPER} {self.objects} {compiler}"

    def test(self, tests: list[str], seconds: float) -> dict[str, str]:
        """Outcome of each test; ``hung`` or ``crashed`` of all when pytest had no end."""
        found, end = self.outcomes(tests, seconds)
        if found is None:
            return dict.fromkeys(tests, end)
        return {test: worst(found, test) for test in tests}

    def outcomes(
        self, tests: list[str], seconds: float, *more: str
    ) -> tuple[dict[str, str] | None, str]:
        """What pytest told of every single test; None when it had no end, and how that was."""
        told = self.root / "outcomes.json"
        told.unlink(missing_ok=True)
        options = f"-q -p no:cacheprovider -p outcomes --timeout={TEST_S * 2 / 3}".split()
        end = self.pytest([*options, *more, *tests], seconds, MUTANTS_OUTCOMES=str(told))
        return (json.loads(told.read_text()), "") if told.exists() else (None, end)

    def pytest(self, arguments: list[str], seconds: float, **variables: str) -> str:
        """Run it in the copy, and end whatever it leaves; how it ended where it wrote nothing.

        Tests that start brokers have sockets in their temporary folders: a socket's path may have
        108 characters, and pytest's own folders would take more.
        """
        end = "crashed"
        arguments = [f"--basetemp={self.root.with_name(self.root.name + '.t')}", *arguments]
        with open(self.log, "w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *arguments],
                cwd=self.root,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(
                        [str(self.root), str(self.root / "tests/mutants")]
                    ),
                    **variables,
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            end = "hung"
        end_descendants()
        process.wait()
        return end

    @contextlib.contextmanager
    def changed(self, file: str, text: str, *builds: pathlib.Path) -> Iterator[None]:
        """The file has that text, and those builds of it are made anew, for the block."""
        path, twin = self.root / file, self.root / FAULTS / file
        built = [
            module
            for where in (NORMAL, FAULTS)
            for module in (self.root / where / "shmgpu").glob("*.abi3.so")
        ]
        good = path.read_text(), [module.read_bytes() for module in built]
        write(path, text, twin)
        try:
            if path.suffix in (".c", ".h"):
                for where in builds:
                    self.build(where)
            yield
        finally:
            write(path, good[0], twin)
            for module, content in zip(built, good[1], strict=True):  # newer than sources again
                module.unlink(missing_ok=True)
                module.write_bytes(content)


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
