"""The page for users of DTensor: its programs print the same before and after."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from unit.test_pages import ROOT, split_page

PAGE = ROOT / "examples" / "migrating-from-dtensor.md"
RANKS_OF = (2, 4, 4)  # each program before

# As torchrun starts ranks, but that they load torch once.
RANKS = """
import os, runpy, sys, traceback
import torch, torch.distributed, torch.distributed.tensor.parallel, torch.distributed.fsdp

program, size, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
ranks = []
for rank in range(size):
    pid = os.fork()
    if not pid:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        code = 1
        try:
            runpy.run_path(program, run_name="__main__")
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    ranks.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks))
"""


def programs():
    """Of each part of the page the program before, and the one after."""
    _, blocks = split_page(PAGE)
    assert all(block.language == "python" for block in blocks)
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return [(before.text, after.text) for before, after in pairs]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ran(folder, *command):
    """What it prints; it is alone in its folder."""
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHMGPU_")}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_three_programs():
    assert len(programs()) == len(RANKS_OF)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RANKS_OF)))
def test_a_program_prints_the_same_before_and_after(number, tmp_path):
    before, after = programs()[number]
    for name, text in (("ranks", RANKS), ("before", before), ("after", after)):
        (tmp_path / f"{name}.py").write_text(text)
    port = free_port()
    want = ran(
        tmp_path / "there", tmp_path / "ranks.py", tmp_path / "before.py", RANKS_OF[number], port
    )
    got = ran(tmp_path / "here", tmp_path / "after.py")
    assert len(want.split()) >= 15
    for mine, other in zip(got.split(), want.split(), strict=True):
        assert float(mine.strip("[],")) == pytest.approx(float(other.strip("[],")), abs=2e-4)
    there, here = (tmp_path / name / "model.pt" for name in ("there", "here"))
    assert there.exists() == here.exists() == (number == 1)
    if there.exists():
        saved, made = torch.load(there), torch.load(here)
        assert saved.keys() == made.keys()
        for name, one in saved.items():
            np.testing.assert_allclose(made[name].numpy(), one.numpy(), atol=2e-3, err_msg=name)
