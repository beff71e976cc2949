"""What is read of a long program is there before the program's end, and is the same; so is the end.

Programs here are short, so they are made to count as long.
"""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest
from attach.brokers import until
from meshes.conftest import broker_of
from meshes.dying import Deaths, count
from meshes.networks import WEIGHTS, X, on, train
from meshes.test_deaths_in_collectives import FORMS, trained

import shmgpu as gt
from shmgpu.codec.layout import WORD_BYTES
from shmgpu.distributed import Replicate, Shard, distribute_tensor, init_device_mesh
from shmgpu.errors import BadParams
from shmgpu.helper.decoded import RawRequest
from shmgpu.ops import gang
from shmgpu.parallel import programs
from shmgpu.tensors import current


@pytest.fixture
def early(monkeypatch):
    monkeypatch.setattr(programs, "MIN_BYTES_AFTER", 0)


class Held:
    """No helper commits a program while a file is there."""

    def __init__(self, folder):
        self.file = pathlib.Path(folder) / "held"

    def session(self, helper):
        commit = gang.commit

        def committing():
            until(lambda: not self.file.exists(), "the programs may end")
            commit()

        gang.commit = committing


def test_results_are_there_while_the_program_goes_on(early, tmp_path):
    held = Held(tmp_path)
    with gt.init(helpers=2, devices="cpu", threads=1, session=held.session):
        mesh = init_device_mesh("cpu", (2,))
        w = distribute_tensor(WEIGHTS[0], mesh).requires_grad_()
        opt = gt.optim.SGD([w], lr=0.5)
        losses = []
        for step in range(2):
            current.recorder().flush()
            held.file.touch()
            loss = (distribute_tensor(X[step], mesh, [Shard(0)]) @ w).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            assert held.file.exists() and len(current.recorder().placer._sent) == 1
            held.file.unlink()
        want = WEIGHTS[0] - 0.5 * X[0].sum(0)[:, None]
        np.testing.assert_allclose(losses[0], (X[0] @ WEIGHTS[0]).sum(), rtol=1e-4)
        np.testing.assert_allclose(losses[1], (X[1] @ want).sum(), rtol=1e-4)
        want -= 0.5 * X[1].sum(0)[:, None]
        np.testing.assert_allclose(w.detach().numpy(), want, rtol=1e-4, atol=1e-4)


def test_a_step_is_the_same_program_whether_the_one_before_has_ended_or_not(early, tmp_path):
    held = Held(tmp_path)
    with gt.init(helpers=2, devices="cpu", threads=1, session=held.session):
        mesh = init_device_mesh("cpu", (2,))
        w = distribute_tensor(WEIGHTS[0], mesh).requires_grad_()
        opt = gt.optim.SGD([w], lr=0.01, momentum=0.9)

        def step():
            loss = (distribute_tensor(X[0], mesh, [Shard(0)]) @ w).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            loss.item()

        known = []
        for is_under_way in (False, False, False, True, False, True):
            if is_under_way:
                held.file.touch()
                step()
                threading.Timer(0.1, held.file.unlink).start()
            step()
            current.recorder().flush()
            known.append(len(current.recorder().placer._programs._known))
        assert known[3:] == known[2:3] * 3


@pytest.mark.parametrize("helpers", [2, 3])
def test_training_is_the_same_bit_for_bit(helpers, monkeypatch):
    runs = []
    for least in (programs.MIN_BYTES_AFTER, 0):
        monkeypatch.setattr(programs, "MIN_BYTES_AFTER", least)
        with gt.init(helpers=helpers, devices="cpu", threads=1, arena="32MiB"):
            mesh = init_device_mesh("cpu", (helpers,))
            put = (on(mesh, Replicate()), on(mesh, Replicate()))
            losses, weights = train(put=put, batch=on(mesh, Shard(0)))
            runs.append((losses, [one.detach().numpy().copy() for one in weights]))
    (losses, weights), (early_losses, early_weights) = runs
    assert early_losses == losses
    for one, other in zip(early_weights, weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_what_members_have_parts_of_is_put_together_as_they_would(dtype, monkeypatch):
    whole = (np.arange(24).reshape(6, 4) % 7 - 3).astype("f4")
    reductions = ["sum", "amax"] + ["mean"] * (dtype != "int32")
    runs = []
    for least in (programs.MIN_BYTES_AFTER, 0):
        monkeypatch.setattr(programs, "MIN_BYTES_AFTER", least)
        with broker_of(3) as broker:
            x = distribute_tensor(gt.tensor(whole, dtype=dtype), broker.mesh(3), [Shard(0)])
            alone = [getattr(x, name)().item() for name in reductions]
            runs.append((alone, [getattr(x, name)(0).tolist() for name in reductions]))
    assert runs[0] == runs[1]
    assert runs[1][0][:2] == [whole.sum(), whole.max()]


@pytest.mark.parametrize(
    ("name", "moment", "victim"),
    [
        ("data", "within 0", 1),
        ("data by tensor", "within 0", 0),
        ("data by tensor", "at 4", 2),
        ("sharded", "within 2", 1),
    ],
)
def test_a_death_costs_no_bit_though_results_were_read(early, name, moment, victim):
    form = FORMS[name]
    losses, weights, _, _, _ = trained(form)
    again, ended, loads, died, _ = trained(form, (moment, victim))
    assert died == 1 and loads == (0 if form.is_mended else 1)
    assert again == losses
    for key, want in weights.items():
        np.testing.assert_array_equal(ended[key], want, err_msg=key)


def test_what_was_said_before_a_member_died_is_there_and_the_rest_is_done_again(early, tmp_path):
    deaths = Deaths(tmp_path)
    with gt.init(helpers=2, devices="cpu", threads=1, session=deaths.session):
        mesh = init_device_mesh("cpu", (2,))
        w = distribute_tensor(np.ones((6, 4), "f4"), mesh)
        assert w.sum().item() == 24
        current.recorder().flush()
        deaths.arm("at the commit", 1)
        w += 1
        assert w.sum().item() == 48
        assert w.tolist() == np.full((6, 4), 2.0).tolist()
        assert count() == 1


def test_an_operation_that_fails_says_so(early):
    with gt.init(helpers=2, devices="cpu", threads=1, arena="32MiB"):
        mesh = init_device_mesh("cpu", (2,))
        table = distribute_tensor(np.ones((6, 4), "f4"), mesh)
        for _ in range(2):
            rows = distribute_tensor(np.array([0, 9, 1, 2]), mesh, [Shard(0)])
            with pytest.raises(gt.RemoteError, match="index"):
                (table[rows] * 2).sum().item()
        assert (table * 2).sum().item() == 48


def test_the_output_queue_is_sound_after_a_death(early, tmp_path):
    deaths = Deaths(tmp_path)
    with gt.init(helpers=2, devices="cpu", threads=1, session=deaths.session):
        w = distribute_tensor(np.ones((6, 4), "f4"), init_device_mesh("cpu", (2,)))
        gt.debug.enable()
        try:
            for step in range(3):
                current.recorder().flush()
                if step == 1:
                    deaths.arm("at the commit", 1)
                w += 1
                assert w.sum().item() == 24 * (step + 2)
            current.recorder().flush()
            assert gt.debug.verify()
            rows = gt.debug.get_output_queue()
        finally:
            gt.debug.disable()
        assert [row["helper"] for row in rows if row["kind"] == "DIED"] == [1]


def test_a_word_is_written_in_the_callers_own_arena_alone():
    request = object.__new__(RawRequest)
    request._origin, request.first, request.output_offset = 4096, 8192, 4096 + WORD_BYTES - 8
    request.has_said = False
    with pytest.raises(BadParams, match="in the caller's own arena"):
        request.say([])
    request.say_failed()  # nobody can be told
