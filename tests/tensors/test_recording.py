"""Steps that repeat are recognised, and those that only look alike are told apart."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import shmgpu as gt
from shmgpu.ops import elementwise
from shmgpu.ops.graph import Node, spec_of
from shmgpu.ops.program import ProgramDraft
from shmgpu.ops.promotion import float32, number
from shmgpu.tensors import current

OPERATIONS = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a - 0.5 * b,
    lambda a, b: (a * 0.25).exp() + b,
    lambda a, b: a.relu() * b,
    lambda a, b: a.sum() * b,
]


def on_a_helper(values):
    """A tensor that is resident, and nowhere else."""
    made = gt.tensor(values, dtype="float64") * 1
    current.recorder().send()
    return made


def programs():
    return len(current.recorder()._programs)


def test_the_same_tensor_twice_is_not_two_tensors(engine):
    x, y = on_a_helper([1.0, 2.0]), on_a_helper([5.0, 7.0])
    for a, b in [(x, y), (x, x), (y, x), (y, y)] * 2:
        expected = a.data * b.data + a.data
        np.testing.assert_array_equal((a * b + a).data, expected)


class Away:
    """Stands for a value that a helper holds."""


def test_programs_that_read_another_of_their_values_once_more_have_different_keys():
    spec = spec_of(float32, (2,))

    def key(again):
        given = [Node(None, (), (), spec, Away()) for _ in range(3)]
        given += [number(value, float32) for value in (2.0, 3.0, 4.0)]
        sums = list(itertools.accumulate(given, elementwise.add))[1:]
        last = elementwise.mul(sums[-1], [*given, *sums][again])
        return ProgramDraft([*sums, last], [last], Away).settled([], []).key

    keys = [key(again) for again in range(11)]
    assert len(set(keys)) == 11
    assert keys == [key(again) for again in range(11)]


def test_a_number_is_not_an_array_without_axes(engine):
    x, two = gt.tensor([1.0, 2.0]), gt.tensor(2.0)
    for _ in range(2):
        for factor in (2.0, two, 3.0, gt.tensor(3.0)):
            scale = factor if isinstance(factor, float) else float(factor.data)
            np.testing.assert_array_equal((x * factor).data, np.float32([1, 2]) * scale)


def test_a_step_that_repeats_is_one_program(engine):
    w = gt.tensor(np.ones(4, "f4"), requires_grad=True)
    optimiser = gt.SGD([w], lr=0.1)

    def step(scale):
        loss = (w * scale).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    step(1.0), step(1.0)
    known = programs()
    assert [round(step(scale), 4) for scale in (1.0, 2.0)] == [3.2, 5.6]
    assert programs() == known


def test_a_leaf_that_something_still_knows_is_not_written_over(engine):
    """The same operations, with nothing, a tensor, a view or a waiting gradient behind the leaf."""
    for holds in (None, "tensor", "alias", "graph", None, "graph", "alias", "tensor"):
        x = on_a_helper([1.0, 2.0, 3.0])
        kept = {
            None: lambda x: None,
            "tensor": lambda x: x,
            "alias": lambda x: x.detach(),
            "graph": lambda x: gt.ones(3, dtype="float64", requires_grad=True) * x,
        }[holds](x)
        y = (x + 1) * 2
        del x
        np.testing.assert_array_equal(y.data, [4, 6, 8])
        if kept is not None:
            np.testing.assert_array_equal(kept.data, [1, 2, 3])


def test_a_leaf_that_a_computed_graph_still_needs_is_not_written_over(engine):
    w = gt.ones(3, dtype="float64", requires_grad=True)
    for needs in (False, True, False, True):
        x = on_a_helper([1.0, 2.0, 3.0])
        product = w * x if needs else None
        if needs:
            np.testing.assert_array_equal(product.data, [1, 2, 3])
        y = (x + 1) * 2
        del x
        np.testing.assert_array_equal(y.data, [4, 6, 8])
        if needs:
            w.grad = None
            product.sum().backward()
            np.testing.assert_array_equal(w.grad.data, [1, 2, 3])


def test_a_graph_that_is_walked_back_later_has_what_it_needs(engine):
    """The step is the same each time; what differs is whether its gradient will be asked for."""
    w = gt.tensor([2.0, 3.0], requires_grad=True)
    for later in (True, False, True):
        hidden = (w * w).exp()
        loss = (hidden * w).sum()
        seen = loss.item()
        assert np.isclose(seen, np.sum(np.exp([4.0, 9.0]) * [2, 3]), rtol=1e-5)
        if later:
            w.grad = None
            loss.backward()
            exact = np.exp([4.0, 9.0]) * (1 + 2 * np.array([4.0, 9.0]))
            np.testing.assert_allclose(w.grad.data, exact, rtol=1e-5)
        del hidden, loss


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=some.lists(
        some.tuples(some.sampled_from(OPERATIONS), some.integers(0, 9), some.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    alive=some.lists(some.lists(some.booleans(), min_size=10, max_size=10), min_size=2, max_size=3),
    collects=some.lists(some.booleans(), min_size=3, max_size=3),
    walks=some.lists(some.booleans(), min_size=3, max_size=3),
)
def test_one_program_with_other_tensors_alive(engine, steps, alive, collects, walks):
    for shown, collect, walk in zip(
        [*alive, alive[0]], [*collects, collects[0]], [*walks, walks[0]], strict=False
    ):
        values, same = [], []
        for place in range(2):
            start = np.linspace(-1, 1, 3) + place
            values.append(on_a_helper(start))
            same.append(torch.tensor(start))
            if collect:
                values[-1].requires_grad_()
                same[-1].requires_grad_()
        leaves, torch_leaves = values[:], same[:]
        for operation, a, b in steps:
            count = len(values)
            values.append(operation(values[a % count], values[b % count]))
            same.append(operation(same[a % count], same[b % count]))
        kept = {place: values[place] for place in range(len(values)) if shown[place]}
        last = values[-1]
        del values
        if not collect:
            leaves = []
        np.testing.assert_allclose(last.data, same[-1].detach(), rtol=1e-9)
        for place, one in kept.items():
            np.testing.assert_allclose(one.data, same[place].detach(), rtol=1e-9)
        if collect and walk and last.requires_grad:
            last.sum().backward()
            same[-1].sum().backward()
            for ours, theirs in zip(leaves, torch_leaves, strict=True):
                assert (ours.grad is None) == (theirs.grad is None)
                if ours.grad is not None:
                    np.testing.assert_allclose(ours.grad.data, theirs.grad, rtol=1e-9)
