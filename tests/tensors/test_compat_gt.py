"""GT's meanings, in programs that ask for them: processes of their own, because an import does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

TURN = """
import shmgpu.compat.gt as gt
from shmgpu import debug

if __name__ == "__main__":
    with gt.init(helpers=2, devices="cpu", arena="8MiB", debug=True):
        a, b, c = gt.randn(4, 4), gt.zeros(4, 4), gt.tensor([[1.0] * 4] * 4)
        d = gt.from_numpy((c * 0).numpy())
        total = ((a @ b) + (c @ d)).sum()
        assert total.item() == 0
        queue = debug.get_output_queue()
        where = {row["tensor"]: row["helper"] for row in queue if row["kind"] == "KEEP"}
        homes = [where[one.id] for one in (a, b, c, d)]
        assert sorted(homes[:2]) == [0, 1] and homes[0] != homes[1], homes
        assert homes[2] != homes[3], homes
        assert any(row["kind"] == "MOVE" for row in queue)
        assert debug.verify()
        print("ok")
"""

SPELLED = """
import numpy as np
import shmgpu.compat.gt as gt
from shmgpu.compat.gt import nn
from shmgpu.compat.gt.nn import SGD, Linear

with gt.init(inline=True):
    t = gt.tensor(np.arange(6.0).reshape(1, 2, 3))
    assert t.max(axis=2).tolist() == [[2, 5]] and t.max().item() == 5
    assert gt.min(t, axis=-1, keepdims=True).shape == (1, 2, 1)
    assert t.max(2).values.tolist() == [[2, 5]]  # as PyTorch has it, with dim
    assert t.T.shape == (1, 3, 2) and gt.ones(2, 3).T.shape == (3, 2) and gt.ones(3).T.shape == (3,)
    assert t.node_id == t.id
    w = gt.tensor([1, 2], requires_grad=True)
    y = w * w
    y.retain_grad()
    y.sum().backward()
    assert w.grad.data.tolist() == [2, 4] and y.grad.data.tolist() == [1, 1]
    assert nn.Linear is Linear and callable(SGD) and "randn" in dir(gt)
    assert gt.zeros(2).tolist() == [0, 0]
print("ok")
"""

JOINED = """
import shmgpu.compat.gt as gt

one = gt.connect("localhost:31999")
assert (gt.ones(2) + 1).tolist() == [2, 2]
assert gt.connect() is one and gt.connect(host="localhost", port=12345) is one
try:
    gt.connect("elsewhere.example:12345")
except gt.ConfigError as error:
    print(error)
"""

FLAGS = """
from shmgpu.compat.gt import server

print(server.parser().parse_args(["--gpu", "0,1", "--workers", "3"]).workers)
"""

TRAINED = """
import sys
import shmgpu.compat.gt as gt
from shmgpu.tensors import current

with gt.connect("localhost:" + sys.argv[1]):
    x = gt.randn(8, 4)
    w = gt.zeros(4, 1, requires_grad=True)
    first = None
    for _ in range(50):
        loss = ((x @ w - x.sum(axis=1, keepdims=True)) ** 2).mean()
        first = first or loss.item()
        loss.backward()
        w -= 0.1 * w.grad
        w.grad.zero_()
    assert loss.item() < first / 3
    print(len(current.recorder().helpers))
"""


@pytest.fixture
def given():
    """An environment with a runtime directory of its own, short enough for a socket's path."""
    kept = {name: value for name, value in os.environ.items() if "SHMGPU_" not in name}
    with tempfile.TemporaryDirectory() as place:
        yield kept | {"XDG_RUNTIME_DIR": place, "SHMGPU_ARENA": "8MiB"}


def run(given, text, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments], env=given, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def started(given, module, *flags):
    """A server or a worker that has said that it is there, and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"shmgpu.compat.gt.{module}", *flags],
        env=given, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, process.stdout.readline()


def ended(process, by=signal.SIGTERM):
    process.send_signal(by)
    with process.stdout:
        assert process.wait(60) == 0


def test_leaves_are_given_to_helpers_in_turn(given, tmp_path):
    program = tmp_path / "turn.py"
    program.write_text(TURN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], env=given, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_names_mean_what_they_mean_in_gt(given):
    assert run(given, SPELLED) == "ok"


def test_connect_starts_a_broker_where_none_runs_and_gives_the_membership_there_is(given):
    assert "another machine" in run(given, JOINED)
    subprocess.run([sys.executable, "-m", "shmgpu", "down", "--all"], env=given, timeout=60)


def test_a_server_and_workers_have_gt_s_flags(given):
    serving, said = started(given, "server", "-p", "23456", "--no-workers")
    try:
        assert said.startswith("serving at localhost:23456 (")
        assert run(given, TRAINED, "23456") == "1"  # a broker has one at least
        working = [
            started(given, "worker", "--host", "localhost", "-p", "23456", "--worker-id", name)
            for name in ("left", "right")
        ]
        assert [line.partition(";")[0] for _, line in working] == [
            "left: the server has 1 now",
            "right: the server has 2 now",
        ]
        wait = (
            "import shmgpu.compat.gt as gt\nwith gt.connect('localhost:23456'): gt.gpu_workers(2)"
        )
        run(given, wait)
        assert run(given, TRAINED, "23456") == "2"
        for process, _ in working:
            ended(process)
    finally:
        ended(serving)


@pytest.mark.parametrize(
    ("module", "flags", "says"),
    [
        ("server", ["-H", "example.com"], "is another machine"),
        ("worker", ["--host", "example.com"], "is another machine"),
        ("worker", ["-p", "4444"], "no server of this user listens"),
        ("server", ["-p", "99999"], "is not a port"),
    ],
)
def test_another_machine_a_server_that_is_not_there_and_nonsense_are_refused(
    given, module, flags, says
):
    done = subprocess.run(
        [sys.executable, "-m", f"shmgpu.compat.gt.{module}", *flags],
        env=given, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2 and says in done.stderr


def test_the_server_takes_gts_flags(given):
    assert run(given, FLAGS) == "3"
