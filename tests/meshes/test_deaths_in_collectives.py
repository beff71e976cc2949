"""A member dies in each collective of a step, in every form of parallelism: it costs no bit.

What another member has as well is mended, and the step done again. Of a piece that nobody else has
the error says so; then the program goes on from what it saved, as the page tells it to.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from meshes.dying import Deaths, count
from meshes.test_forms import TARGET, TENSOR, X, model, on, sequence_parallel

import shmgpu as gt
from shmgpu.distributed import Shard, fully_shard, init_device_mesh, parallelize_module
from shmgpu.tensors import current

STEPS, DISTURBED = 4, 2


def _data(mesh):
    return model(), on(mesh, Shard(0))


def _tensor(mesh):
    return parallelize_module(model(), mesh, TENSOR), lambda array: lambda: gt.tensor(array)


def _sequence(mesh):
    return parallelize_module(model(), mesh, sequence_parallel()), on(mesh, Shard(1))


def _sharded(mesh):
    net = model()
    for layer in net:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh), on(mesh, Shard(0))


def _data_by_tensor(mesh):
    net = parallelize_module(model(), mesh["tensor"], TENSOR)
    return net, on(mesh["data"], Shard(0))


def _sharded_by_tensor(mesh):
    net, rows = _data_by_tensor(mesh)
    for layer in net:
        fully_shard(layer, mesh=mesh["data"])
    return net, rows


@dataclasses.dataclass(frozen=True)
class Form:
    """How a model is cut.

    Attributes:
        build: mesh -> the model, and how a batch is put on the mesh.
        shape: of the mesh.
        collectives: of a step.
        is_mended: each piece is with two members.
    """

    build: Callable[[Any], Any]
    shape: tuple[int, ...]
    collectives: int
    is_mended: bool = False


FORMS = {
    "data": Form(_data, (2,), 1, is_mended=True),
    "tensor": Form(_tensor, (2,), 4),
    "sequence": Form(_sequence, (2,), 11),
    "sharded": Form(_sharded, (2,), 5),
    "data by tensor": Form(_data_by_tensor, (2, 2), 5, is_mended=True),
    "sharded by tensor": Form(_sharded_by_tensor, (2, 2), 9),
}


def copied(state):
    """A state as arrays of the program's own."""
    if isinstance(state, dict):
        return {key: copied(one) for key, one in state.items()}
    if isinstance(state, list):
        return [copied(one) for one in state]
    return state.numpy().copy() if isinstance(state, gt.Tensor) else state


def trained(form, moment=None):
    """Losses, final parameters, and how often what was saved had to be loaded.

    ``moment``: of one step, and the member that dies then.
    """
    with tempfile.TemporaryDirectory() as folder:
        deaths = Deaths(pathlib.Path(folder))
        settings = {"devices": "cpu", "threads": 1, "arena": "32MiB"}
        size = int(np.prod(form.shape))
        with gt.init(helpers=size, session=deaths.session, **settings):
            names = ("data", "tensor") if len(form.shape) == 2 else None
            mesh = init_device_mesh("cpu", form.shape, mesh_dim_names=names)
            losses, saved, loads, net = [], None, 0, None
            while len(losses) < STEPS:
                try:
                    if net is None:
                        net, put = form.build(mesh)
                        opt = gt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
                        if saved is not None:
                            net.load_state_dict(saved[0])
                            opt.load_state_dict(saved[1])
                            loads += 1
                    current.recorder().flush()
                    if len(losses) == DISTURBED and moment is not None:
                        deaths.arm(*moment)
                        moment = None
                    loss = ((net(put(X)()) - put(TARGET)()) ** 2).mean()
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    value = loss.item()
                    saved = copied(net.state_dict()), copied(opt.state_dict())
                    losses.append(value)
                except gt.HelperDied as error:
                    assert "its piece of a tensor" in str(error) and "state_dict" in str(error)
                    net = None
            programs = current.recorder().placer._programs._known.values()
            met = max(len(one.lowered.collectives) for one in programs)
            return losses, saved[0], loads, count(), met


@functools.cache
def undisturbed(name):
    losses, saved, loads, died, met = trained(FORMS[name])
    assert (loads, died, met) == (0, 0, FORMS[name].collectives)
    return losses, saved


def moments():
    """Every collective of every form; of each form one that the ordinary run tries, too."""
    for name, form in FORMS.items():
        size = int(np.prod(form.shape))
        for number in range(form.collectives):
            for when in ("at", "within"):
                is_usual = when == "within" and number == form.collectives // 2
                yield pytest.param(
                    name,
                    f"{when} {number}",
                    (number + (when == "at")) % size,
                    marks=() if is_usual else pytest.mark.slow,
                )


@pytest.mark.parametrize(("name", "moment", "victim"), [*moments()])
def test_a_member_that_dies_in_a_collective_costs_no_bit(name, moment, victim):
    form, (losses, weights) = FORMS[name], undisturbed(name)
    again, ended, loads, died, _ = trained(form, (moment, victim))
    assert died == 1
    assert loads == (0 if form.is_mended else 1)
    assert again == losses
    for key, want in weights.items():
        np.testing.assert_array_equal(ended[key], want, err_msg=key)
