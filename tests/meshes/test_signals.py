"""Signals: where what is made in a scope lies, as the output queue has it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu import signal
from shmgpu.distributed import DTensor, Replicate, Shard
from shmgpu.errors import ConfigError
from shmgpu.parallel import signal_files, signals
from shmgpu.signal import ShardConfig, SignalConfig
from shmgpu.tensors import current

RNG = np.random.default_rng(2)
X = RNG.standard_normal((7, 4)).astype("f4")
W = RNG.standard_normal((4, 6)).astype("f4")


@pytest.fixture(scope="module")
def broker():
    signal.register_config("rows", SignalConfig(ShardConfig(axis=0)))
    signal.register_config("columns", SignalConfig(ShardConfig(axis=1)))
    signal.register_config("whole", SignalConfig(ShardConfig(replicated=True)))
    signal.register_config("pair", SignalConfig(ShardConfig(axis=-1, workers=[2, 1])))
    signal.register_config("back", SignalConfig(ShardConfig(axis=0), backward_signal="whole"))
    signal.register_config("said nothing of", SignalConfig(compile=True))
    with broker_of(3) as one:
        given = signal.tensor(gt.ones(3, 3), "rows")
        current.recorder().send()  # what the first messages open stays open
        given.numpy()
        yield one
    signals.configs.clear()


@pytest.fixture
def queue(broker):
    """Calls give the rows of one kind that were written in the meantime."""
    gt.debug.enable()
    yield lambda *kinds: [row for row in gt.debug.get_output_queue() if row["kind"] in kinds]
    assert gt.debug.verify()
    gt.debug.disable()


def ran(rows):
    """On which helpers each operation ran."""
    found = {}
    for row in rows:
        found.setdefault(row["call"].partition("(")[0], set()).add(row["helper"])
    return found


def test_what_is_made_within_a_scope_is_cut_and_computed_in_pieces(queue):
    with signal.context("rows"):
        a = gt.randn(7, 4)
        y = (gt.tensor(X) + a).relu()
    assert a.placements == y.placements == (Shard(0),)
    np.testing.assert_array_equal(y.numpy(), np.maximum(X + a.numpy(), 0))
    everywhere = {0, 1, 2}
    assert ran(queue("RUN"))["relu"] == ran(queue("RUN"))["add"] == everywhere
    kept = {row["helper"]: row["nbytes"] for row in queue("KEEP") if row["tensor"] == y.id}
    assert kept == {0: 3 * 16, 1: 2 * 16, 2: 2 * 16}
    assert not queue("MEET")  # nobody needs what others have


def test_tensors_from_outside_are_laid_by_the_first_operation_on_them(queue):
    x, w = gt.tensor(X), gt.tensor(W)
    with signal.context("rows"):
        turned = x.T
        y = x @ w
        total = (y.T * 2).sum()  # views and scalars are left as they come
    assert not isinstance(x, DTensor) and not isinstance(turned, DTensor)
    assert y.placements == (Shard(0),)
    np.testing.assert_allclose(total.item(), 2 * (X @ W).sum(), rtol=1e-4)
    assert {row["call"].partition(" ")[0] for row in queue("MEET")} == {"all_reduce"}
    assert {row["helper"] for row in queue("MEET")} == {0, 1, 2}


def test_a_signal_s_workers_alone_have_its_tensors(queue):
    with signal.context("pair"):
        a = gt.full((4, 3), 2.0)
        bias = gt.zeros(())
    assert not isinstance(bias, DTensor)
    assert a.device_mesh.mesh.tolist() == [2, 1] and a.placements == (Shard(1),)
    a.numpy()
    assert ran(queue("RUN"))["full"] >= {1, 2}
    kept = {row["helper"]: row["nbytes"] for row in queue("KEEP") if row["tensor"] == a.id}
    assert kept == {2: 4 * 4 * 2, 1: 4 * 4}


def test_gradients_lie_as_the_backward_signal_says(queue):
    w = gt.tensor(W, requires_grad=True)
    for name, backward in (("back", None), ("rows", "whole")):
        w.grad = None
        seen = []
        with signal.context(name, backward=backward):
            y = gt.tensor(X) @ w
        y.register_hook(lambda g, seen=seen: seen.append(g * 1))
        (y * y).sum().backward()
        assert seen[0].placements == (Replicate(),)
        np.testing.assert_allclose(w.grad.numpy(), 2 * X.T @ (X @ W), rtol=1e-3, atol=1e-4)
    assert y.placements == (Shard(0),)
    x = signal.tensor(gt.tensor(X, requires_grad=True), "columns", backward_name="rows")
    seen = []
    x.register_hook(lambda g: seen.append(g * 1))
    (x * 3).sum().backward()
    assert x.placements == (Shard(1),) and seen[0].placements == (Shard(0),)


def test_scopes_nest_and_are_a_thread_s_own(broker):
    made = []
    assert signal.current_signal() is None
    signal.enter("rows")
    with signal.context("columns"):
        assert signal.current_signal() == "columns"
        inner = gt.ones(4, 6)
        other = threading.Thread(target=lambda: made.append(gt.ones(2, 2) + 1))
        other.start()
        other.join()
    outer = gt.ones(4, 6) + inner
    for name, match in (("columns", "in the scope of 'rows'"), ("rows", None), ("rows", "in no")):
        if match is None:
            signal.exit(name)
        else:
            with pytest.raises(RuntimeError, match=match):
                signal.exit(name)
    assert inner.placements == (Shard(1),) and outer.shape == (4, 6)
    assert not isinstance(made[0], DTensor)
    assert gt.Tensor.__init__ is signals._plain_init  # nothing is watched any more


def test_names_that_say_nothing_change_nothing(broker):
    for name in ("nobody knows", "said nothing of"):
        with signal.context(name):
            one = gt.ones(3, 3)
        assert not isinstance(one, DTensor) and signal.tensor(one, name) is one
    signal.register_config("too many", SignalConfig(ShardConfig(workers=[0, 7])))
    with signal.signal("too many"), pytest.raises(ConfigError, match=r"name numbers from 0 to 2"):
        gt.ones(3, 3)


FILE = """
# of a model
layer1:            # the first
  shard:
    axis: 1
    workers: [0, 1]
  backward: layer1_bwd
  compile: true
"layer1_bwd":
  shard: {shard}
    workers:
    - 1
    - 2
    replicated: true
nothing:
"""


def test_files_say_what_signals_stand_for(tmp_path, monkeypatch):
    path = tmp_path / "signals.yaml"
    path.write_text(FILE.replace("{shard}", ""), encoding="utf-8")
    monkeypatch.setattr(signals, "configs", {})
    monkeypatch.setenv("GT_CONFIG", str(path))
    signal_files.load_from_environment()
    assert signals.configs == {
        "layer1": SignalConfig(ShardConfig(1, [0, 1]), "layer1_bwd", True),
        "layer1_bwd": SignalConfig(ShardConfig(0, [1, 2], True)),
        "nothing": SignalConfig(),
    }
    for text, match in (
        ("a:\n  shard:\n    rows: 0", "shard of signal 'a' may say axis"),
        ("a:\n  shards:\n", "signal 'a' may say backward"),
        ("a:\n  shard:\n    axis: first", "has axis='first'"),
        ("a:\n  shard: {axis: 0}", r"line 2: '\{axis: 0\}' is not understood"),
        ("a:\n- b: 1", "line 2"),
        ("a:\n  workers: [0, 1", "line 2"),
        ("a word", "line 1"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=match):
            signal.load_config(path)
    with pytest.raises(FileNotFoundError):
        signal.load_config(tmp_path / "none.yaml")


GT_S = """
import shmgpu.compat.gt as gt
from shmgpu import debug
from shmgpu.compat.gt.config import ShardConfig, get_signal_config, register_signal
from shmgpu.distributed import DTensor, Replicate, Shard

if __name__ == "__main__":
    assert get_signal_config("both") == gt.SignalConfig(ShardConfig(1, [0, 1]))
    register_signal("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
    with gt.init(helpers=2, devices="cpu", arena="8MiB", threads=1, debug=True):
        a, odd, one = gt.randn(4, 6), gt.tensor([1.0, 2.0, 3.0]), gt.tensor(5.0)
        assert a.placements == (Shard(0),) and odd.placements == (Replicate(),)
        assert not isinstance(one, DTensor)
        y = (a * 2 + one).sum(0)
        assert abs(y.numpy() - (a.numpy() * 2 + 5).sum(0)).max() < 1e-5
        with gt.signal.context("both"):
            b = gt.zeros(4, 6)
        assert b.placements == gt.signal_tensor(gt.ones(2, 2), "both").placements == (Shard(1),)
        rows = debug.get_output_queue()
        for op in ("randn", "mul", "sum"):
            found = {row["helper"] for row in rows if row["call"].startswith(op + "(")}
            assert found == {0, 1}, (op, found)
        assert debug.verify()
        print("ok")
"""


def test_gt_s_programs_have_signals_a_file_of_them_and_everything_cut(tmp_path):
    program, config = tmp_path / "program.py", tmp_path / "signals.yaml"
    program.write_text(GT_S, encoding="utf-8")
    config.write_text("both:\n  shard:\n    axis: 1\n    workers: [0, 1]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "GT_CONFIG": str(config), "GT_AUTO_SHARD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "ok\n", done.stderr
