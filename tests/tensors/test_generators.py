"""Random numbers follow from seeds: a generator's own, or the program's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn

DRAWS = {
    "rand": lambda g: gt.rand(4, generator=g),
    "randn": lambda g: gt.randn(2, 3, generator=g),
    "randint": lambda g: gt.randint(0, 100, (6,), generator=g),
    "randperm": lambda g: gt.randperm(20, generator=g),
    "normal": lambda g: gt.normal(1.0, 2.0, (5,), generator=g),
    "bernoulli": lambda g: gt.bernoulli(gt.full((30,), 0.5), generator=g),
    "multinomial": lambda g: gt.multinomial(gt.ones(9), 4, generator=g),
    "multinomial again": lambda g: gt.multinomial(gt.ones(9), 4, True, generator=g),
    "uniform_": lambda g: gt.zeros(5).uniform_(-1, 1, generator=g),
    "normal_": lambda g: gt.zeros(5).normal_(generator=g),
    "bernoulli_": lambda g: gt.zeros(30).bernoulli_(generator=g),
    "random_": lambda g: gt.zeros(8, dtype="int64").random_(0, 1000, generator=g),
    "exponential_": lambda g: gt.zeros(5).exponential_(2.0, generator=g),
    "init": lambda g: nn.init.normal_(gt.zeros(5), generator=g),
    "init with a fan": lambda g: nn.init.kaiming_uniform_(gt.zeros(5, 4), generator=g),
    "init here": lambda g: nn.init.trunc_normal_(gt.zeros(5), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_follows_from_its_generator_alone(engine, name):
    draw = DRAWS[name]
    gt.manual_seed(3)
    before = gt.get_rng_state().tolist()
    one = gt.Generator().manual_seed(11)
    first, second = draw(one).tolist(), draw(one).tolist()
    assert first != second
    assert gt.get_rng_state().tolist() == before  # the default one was not drawn from
    one.manual_seed(11)
    assert [draw(one).tolist(), draw(one).tolist()] == [first, second]
    assert draw(gt.Generator().manual_seed(12)).tolist() != first


def test_a_generator_s_state_comes_back(engine):
    one = gt.Generator()
    assert one.initial_seed() == torch.Generator().initial_seed()
    gt.rand(2, generator=one)
    state, clone = one.get_state(), one.clone_state()
    copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one)), clone]
    expected = gt.rand(3, generator=one).tolist()
    for other in copies:
        assert gt.rand(3, generator=other).tolist() == expected
    assert gt.rand(3, generator=one.set_state(state)).tolist() == expected
    seed = one.seed()
    expected = gt.rand(3, generator=one).tolist()
    assert gt.rand(3, generator=one.manual_seed(seed)).tolist() == expected
    big = gt.Generator().manual_seed(2**63 + 5)
    assert (
        gt.Generator().set_state(big.get_state()).get_state().tolist() == big.get_state().tolist()
    )
    with pytest.raises(ValueError, match="get_state"):
        one.set_state([1.5, 2])


def test_the_default_generator_is_seeded_and_goes_on_where_it_was(engine):
    default = gt.manual_seed(5)
    assert gt.initial_seed() == default.initial_seed() == 5
    first = gt.rand(3).tolist()
    state = gt.get_rng_state()
    second = gt.rand(3).tolist()
    gt.set_rng_state(state)
    assert gt.rand(3).tolist() == second
    assert gt.rand(3, generator=default.manual_seed(5)).tolist() == first
    assert gt.seed() == gt.initial_seed() != 5
    assert pickle.loads(pickle.dumps(default)) is default


def test_another_library_s_generator_is_refused(engine):
    for wrong in (torch.Generator(), np.random.default_rng(0), 7):
        with pytest.raises(TypeError, match=r"must be a shmgpu\.Generator"):
            gt.rand(2, generator=wrong)


def test_what_random__draws_is_whole_and_within_the_type(engine):
    for kind in ("uint8", "int8", "int32", "int64", "float32"):
        drawn = gt.zeros(1000, dtype=kind).random_().numpy()
        assert (drawn >= 0).all() and (drawn == np.floor(drawn)).all() and drawn.std() > 0
    assert set(gt.zeros(200).random_(3).tolist()) == {0, 1, 2}
    assert set(gt.zeros(200).random_(5, 7).tolist()) == {5, 6}
    assert gt.zeros(20000).exponential_(0.5).mean().item() == pytest.approx(2, rel=0.05)
