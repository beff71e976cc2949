"""Ctrl-C at a terminal, while a helper is at work."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import shmgpu

DEADLINE_S = 60.0

PROGRAM = """
import os, time
import shmgpu

@shmgpu.function(arrays="numpy")
def held(helper):
    print("at work", flush=True)
    time.sleep(1000)

def work(rank):
    held()

if __name__ == "__main__":
    shmgpu.launch(work, children=1, devices="cpu", grace=500)
"""


def said(terminal, word):
    """What the terminal shows, as soon as that is among it."""
    shown = ""
    deadline = time.monotonic() + DEADLINE_S
    while word not in shown:
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], shown
        shown += os.read(terminal, 4096).decode()
    return shown


def test_ctrl_c_says_what_it_waits_for_and_a_second_one_does_not_wait(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    terminal, theirs = os.openpty()
    found = os.pathsep.join(
        [str(pathlib.Path(shmgpu.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    program = subprocess.Popen(
        [sys.executable, tmp_path / "program.py"],
        env={**os.environ, "PYTHONPATH": found},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said(terminal, "at work")
        os.killpg(program.pid, signal.SIGINT)
        said(terminal, "or after 500 s of grace; Ctrl-C again ends them at once")
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(DEADLINE_S) == -signal.SIGINT
    finally:
        program.kill()
        program.wait()
        os.close(terminal)
