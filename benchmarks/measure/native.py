"""Compiling the C programs of ``benchmarks/c`` into ``build/bench`` and running them.

Every program gets the same compiler and flags, those that harden the C core among them, so that a
difference between two of them is never a difference in how they were built. A program is built
again when any source or header is newer.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import endings
from benchmarks.measure.figures import ProbeFailed, Unavailable
from benchmarks.measure.processes import await_that, group_runs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path("benchmarks") / "c"
LIBRARY = Path("csrc")
EXTENSIONS = ROOT / LIBRARY / "python"
OUTPUT = Path("build") / "bench"
HARDENING = LIBRARY / "hardening.py"
KILLED_LIMIT_S = 5.0
FLAGS = ("-O2", "-std=c11", "-D_GNU_SOURCE", "-pthread")


def compiler() -> str:
    """Return the C compiler's command: $CC or cc."""
    return os.environ.get("CC", "cc")


@functools.cache
def flags() -> tuple[str, ...]:
    """Return what every program is built with: ``FLAGS``, and what hardens the C core."""
    if not (ROOT / HARDENING).exists():
        return FLAGS
    command = [sys.executable, ROOT / HARDENING, compiler()]
    return (*FLAGS, *run_text(command, 60.0).split())


def build(program: str, *, library: str | None = None) -> Path:
    """Compile ``benchmarks/c/<program>.c``, with ``library`` also ``csrc``'s files of that pattern.

    Raises Unavailable without a compiler or without the sources, ProbeFailed when it does not
    compile.
    """
    if shutil.which(compiler()) is None:
        raise Unavailable(f"there is no C compiler ({compiler()})")
    source = ROOT / SOURCES / f"{program}.c"
    if not source.exists():
        raise Unavailable(f"{SOURCES / source.name} is not there")
    sources = [source]
    headers = [*sorted((ROOT / SOURCES).glob("*.h")), ROOT / HARDENING]
    if library:
        sources += _of_core(library)
        headers += _of_core("*.h")
    target = ROOT / OUTPUT / program
    if _is_fresh(target, sources + headers):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another run may be using the old file, or building the same one: replace it in one step.
    partial = target.with_name(f"{program}.{os.getpid()}")
    command = [compiler(), *flags(), f"-I{ROOT / LIBRARY}", *map(str, sources), "-o", str(partial)]
    try:
        done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProbeFailed(f"{program} does not compile: {tail(done.stderr)}")
        partial.replace(target)
    finally:  # also where Ctrl-C ended the compiler
        partial.unlink(missing_ok=True)
    return target


def _of_core(pattern: str) -> list[Path]:
    """The core's files of that pattern, without the extensions, which need Python's headers."""
    found = (ROOT / LIBRARY).rglob(pattern)
    return sorted(path for path in found if EXTENSIONS not in path.parents)


def _is_fresh(target: Path, inputs: Sequence[Path]) -> bool:
    if not target.exists():
        return False
    built = target.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns < built for path in inputs)


def tail(text: str, lines: int = 3) -> str:
    """Return the last lines that say something, as one line."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])


def run_json(command: Sequence[str | Path], timeout_s: float) -> dict[str, Any]:
    """Run a program that prints one JSON object as its last line. Raises ProbeFailed."""
    output = run_text(command, timeout_s)
    try:
        result = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise ProbeFailed(f"{Path(command[0]).name} printed no JSON") from error
    if not isinstance(result, dict):
        raise ProbeFailed(f"{Path(command[0]).name} printed no JSON object")
    return result


def run_text(command: Sequence[str | Path], timeout_s: float) -> str:
    """Run a program in a session of its own and return what it printed. Raises ProbeFailed.

    When it overruns ``timeout_s``, or somebody ends the run, its whole process group is killed, so
    that a benchmark that hangs leaves nothing behind.
    """
    name = Path(command[0]).name
    process: subprocess.Popen[str] | None = None
    try:
        with endings.held():
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"{name} did not end within {timeout_s:.0f} s") from None
    finally:
        if process is not None and process.returncode is None:
            end_group(process)
    if process.returncode != 0:
        raise ProbeFailed(f"{name} ended with {process.returncode}: {tail(errors)}")
    return output


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process started with ``start_new_session`` and everything it forked; wait for all."""
    with process:  # which closes its pipes
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Its forks are others' to ask for, and take their time where they have much memory.
    await_that(lambda: not group_runs(process.pid), KILLED_LIMIT_S)
