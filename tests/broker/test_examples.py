"""Every example runs as its page says, and prints what it is about."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

# What a reader sees, as patterns of whole lines in this order. Figures that vary stay open.
SHOWN = {
    "quickstart.py": [r"32 children were answered; the first: \[\d, \d, \d, \d\]"],
    "batching.py": [
        r" *one_by_one: 160 calls in 160 runs, .*",
        r" *greedy: 160 calls in (?!160)\d+ runs, .*",
        r" *patient: 160 calls in (?!160)\d+ runs, .*",
    ],
    "asyncio_child.py": [
        r"200 answers, each of 42",
        r"late: work: .*deadline.*",
        r"cancelled before it was started",
        r"helper 0 is free again",
    ],
    "pools.py": [r"of 800 rows, 1[0-9][0-9] went on to the large model"],
    "own_model.py": [r"400 calls, median [\d.]+ ms, p99 [\d.]+ ms, mean batch [\d.]+"],
    "growing_results.py": [
        r"below 0.001: 100 places, 800 bytes",
        r"below 0.5: 50000 places, 400000 bytes",
        r"below 1.5: 100000 places, 800000 bytes",
        r"below 0.25: 25000 places, 200000 bytes",
        r"4 calls, 4 runs",
        r"declared and in place: 800000 bytes",
    ],
    "inline_debugging.py": [
        r"local: \[3. 3.\]",
        r"inline: ValueError\('one axis is expected, not 2'\)",
        r"helper process: None",
    ],
}


# These need a broker, or a server, beside them: tests/attach/test_examples.py runs them.
ATTACHED = {"multi_user.py", "gunicorn_server.py", "uvicorn_app.py", "data_loader.py"}


def run(*command: str) -> str:
    environment = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN) | ATTACHED


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_is_about(name):
    lines = run(sys.executable, str(EXAMPLES / name)).splitlines()
    assert len(lines) == len(SHOWN[name]), lines
    for line, pattern in zip(lines, SHOWN[name], strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


def test_own_model_serves_a_file_that_its_user_brings(tmp_path):
    model = tmp_path / "mine.pt2"
    program = str(EXAMPLES / "own_model.py")
    run(sys.executable, program, str(model), "--make")
    shown = run(
        sys.executable, program, str(model), "--children", "3", "--helpers", "1", "--calls", "4"
    )
    assert shown.startswith("12 calls, median ")


def test_the_readme_shows_the_quickstart():
    quickstart = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    assert quickstart in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_talks_example_runs_on_the_c_core_alone(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler here")
    sources = sorted(str(path) for path in (ROOT / "csrc").glob("*.c"))
    talk = tmp_path / "talk"
    run(
        compiler, "-std=c11", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'csrc'}",
        str(EXAMPLES / "talk.c"), *sources, "-o", str(talk),
    )  # fmt: skip
    lines = run(str(talk)).splitlines()
    assert len(lines) == 12
    pattern = r"helper [01]: child ([0-3]), message ([0-2]): \[.*\] adds up to (\d+)"
    found = sorted(tuple(map(int, re.fullmatch(pattern, line).groups())) for line in lines)
    # 8 numbers, the first of which is 100 * child + 10 * message.
    assert found == [
        (child, turn, 8 * (100 * child + 10 * turn) + 28) for child in range(4) for turn in range(3)
    ]
