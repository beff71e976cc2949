"""Where the doorstep is tried: a copy of the tree, its environments, and what programs leave.

Owns ``build/doorstep``: a copy of the tree in a folder called shmgpu, in a path with a space and a
letter beyond ASCII; the environment that ``make setup`` builds in it; and a new one with the
installed package. It is kept, so that the next run is short; ``make clean`` removes it. Torch and
whatever else the package needs are in the first only, and the second looks there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP_LIMIT_S = 900
PROGRAM_LIMIT_S = 100
GONE_WITHIN_S = 15
MARK = "DOORSTEP_MARK"


class Failed(Exception):
    """A check failed; the message says how."""


def expect(holds: object, *said: object) -> None:
    """Fail unless it holds."""
    if not holds:
        raise Failed(" ".join(map(str, said)))


@dataclasses.dataclass
class Ended:
    """How a program ended."""

    status: int
    out: str
    err: str

    def well(self) -> str:
        """What it printed; Failed unless it ended well."""
        expect(self.status == 0, f"exit status {self.status}\n{self.out}{self.err}")
        return self.out


class Place:
    """The copy and its environments."""

    def __init__(self) -> None:
        self.base = ROOT / "build" / "doorstep" / "a ü b"
        self.checkout = self.base / "shmgpu"
        self.source = self.base / "source" / "shmgpu"  # a checkout in which nothing was built
        self.pythons = {
            "editable": self.checkout / ".venv" / "bin" / "python",
            "wheel": self.base / "installed" / "bin" / "python",
        }

    def prepare(self) -> None:
        """Copy what git would clone, with what is not committed yet; build as a newcomer would."""
        self.base.mkdir(parents=True, exist_ok=True)
        names = _files()
        _copy(names, self.checkout)
        is_changed = _copy(names, self.source)
        self.make("setup")
        python = self.pythons["wheel"]
        if python.exists() and not is_changed and (self.base / "is-installed").exists():
            return
        if not python.exists():
            _command([sys.executable, "-m", "venv", str(self.base / "installed")], self.base)
        [libraries] = (self.checkout / ".venv" / "lib").glob("python3*/site-packages")
        [own] = (self.base / "installed" / "lib").glob("python3*/site-packages")
        (own / "needs.pth").write_text(f"{libraries}\n", encoding="utf-8")
        pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall"]
        fresh = self.base / "to-install"
        _copy(names, fresh, anew=True)
        _command([*pip, "."], fresh)
        (self.base / "is-installed").touch()

    def make(self, *words: str) -> str:
        """Run make in the checkout."""
        return _command(["make", *words], self.checkout)


def _files() -> list[str]:
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    skipped = {"build", "dist", "__pycache__"}
    return [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.is_file()
        and path.suffix not in {".so", ".pyc"}
        and not any(part in skipped or part.startswith(".venv") for part in path.parts)
    ]


def _copy(names: Sequence[str], folder: pathlib.Path, anew: bool = False) -> bool:
    """Copy what differs, and remove what is there no more; what was built stays."""
    is_changed = False
    if anew:
        shutil.rmtree(folder, ignore_errors=True)
    listing = folder / ".copied"
    before = listing.read_text(encoding="utf-8").split("\n") if listing.exists() else []
    for name in set(before) - set(names) - {""}:
        (folder / name).unlink(missing_ok=True)
        is_changed = True
    for name in names:
        source, target = ROOT / name, folder / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        is_changed = True
    listing.write_text("\n".join(names), encoding="utf-8")
    return is_changed


def _command(command: Sequence[str], folder: pathlib.Path) -> str:
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SHMGPU_", "PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        command, cwd=folder, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SETUP_LIMIT_S,
    )  # fmt: skip
    expect(done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


class Home:
    """An unrelated directory, an environment of its own, and whatever runs in it."""

    def __init__(self, python: pathlib.Path) -> None:
        self.python = str(python)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="doorstep-"))
        self.env = {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "HOME": str(self._made("home")),
            "TMPDIR": str(self._made("tmp")),
            "XDG_RUNTIME_DIR": str(self._made("run")),
            MARK: self.folder.name,
        }
        self.cwd = self._made("work")

    def _made(self, name: str) -> pathlib.Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        return folder

    def write(self, name: str, text: str) -> str:
        """A program's file in the working directory."""
        (self.cwd / name).write_text(text, encoding="utf-8")
        return name

    def start(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        before: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """A program of this environment's Python, in a session of its own as a terminal's is."""
        return subprocess.Popen(
            [*before, self.python, *words],
            cwd=cwd or self.cwd,
            env=dict(self.env if env is None else env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, process: subprocess.Popen[str], within_s: float = PROGRAM_LIMIT_S) -> Ended:
        """Wait for a program's end, and that of all who have its output."""
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise Failed(f"it did not end within {within_s:.0f} s\n{out}{err}") from None
        return Ended(process.returncode, out, err)

    def run(self, *words: str, **how: object) -> Ended:
        """A program, to its end."""
        return self.end(self.start(*words, **how))  # type: ignore[arg-type]

    def processes(self) -> dict[int, str]:
        """Those that were started here, however they are related now: pid and command line."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                here = os.readlink(f"/proc/{name}/cwd").startswith(str(self.folder))
                mark = f"{MARK}={self.folder.name}\0".encode()
                if here or mark in pathlib.Path("/proc", name, "environ").read_bytes():
                    line = pathlib.Path("/proc", name, "cmdline").read_bytes()
                    found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace")[:200]
        return found

    def close(self) -> None:
        """End the automatic brokers; Failed where anything else is left, of any kind."""
        sockets = self.folder / "run" / "shmgpu"
        try:
            if any(sockets.glob("broker.sock*")):
                self.run("-m", "shmgpu", "down", "--all").well()
            deadline = time.monotonic() + GONE_WITHIN_S
            while (left := self.processes()) and time.monotonic() < deadline:
                time.sleep(0.05)
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            expect(not left, "left running:", *(f"\n  {pid} {line}" for pid, line in left.items()))
            left_behind = [one.name for one in sockets.glob("*") if one.is_socket()]
            expect(not left_behind, f"left behind: {left_behind}")
            files = sorted(os.listdir(self.folder / "tmp"))
            files = [name for name in files if not name.startswith("torchinductor")]  # torch's
            expect(not files, f"left in the temporary directory: {files}")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def home(python: pathlib.Path) -> Iterator[Home]:
    """A home, left as it was found."""
    made = Home(python)
    try:
        yield made
    except BaseException:
        with contextlib.suppress(Failed):
            made.close()
        raise
    made.close()
