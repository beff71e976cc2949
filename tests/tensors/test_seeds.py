"""What tensors draw follows from the launch's seed, the rank, and ``manual_seed``."""

from __future__ import annotations

import pytest

import shmgpu as gt
from shmgpu.common import seeding


@pytest.fixture(autouse=True)
def _own_numbers(monkeypatch):
    before = seeding.TENSORS.state
    monkeypatch.setattr(seeding, "_from", seeding._AFRESH)
    yield
    seeding.TENSORS.state = before


def draw(rank=0):
    return gt.randn(4).tolist() + gt.rand(3).tolist()


def test_children_draw_differently_and_the_same_again_with_the_same_seed():
    first = gt.launch(draw, children=3, devices="cpu", seed=5)
    assert gt.launch(draw, children=3, devices="cpu", seed=5) == first
    assert gt.launch(draw, children=3, devices="cpu", seed=6) != first
    assert len({tuple(row) for row in first}) == 3


def test_without_a_seed_every_launch_draws_afresh():
    first, second = (gt.launch(draw, children=2, devices="cpu") for _ in range(2))
    assert len({tuple(row) for row in first + second}) == 4


def test_what_a_child_seeds_itself_holds():
    def child(rank):
        gt.manual_seed(1)
        return draw()

    first = gt.launch(child, children=2, devices="cpu", seed=5)
    assert first[0] == first[1]
    assert gt.launch(child, children=1, devices="cpu", seed=6) == first[:1]


@pytest.mark.parametrize("inline", [True, False])
def test_init_seeds_the_calling_process_as_child_0(inline):
    (wanted,) = gt.launch(draw, children=1, devices="cpu", seed=5)
    for _ in range(2):
        with gt.init(inline=inline, devices="cpu", seed=5):
            assert draw() == wanted


def test_init_without_a_seed_leaves_what_was_seeded(monkeypatch):
    def drawn():
        gt.manual_seed(3)
        with gt.init(inline=True):
            return draw()

    assert drawn() == drawn()
    monkeypatch.setenv("SHMGPU_SEED", "5")
    by_variable = drawn()
    monkeypatch.delenv("SHMGPU_SEED")
    assert by_variable != drawn()
