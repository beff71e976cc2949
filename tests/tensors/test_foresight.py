"""Numbers that helpers draw before they are asked for are those that the seeds give."""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu as gt
from shmgpu.engine.foresight import MAX_BYTES, MIN_BYTES, Draws, Foresight, seeds_of
from shmgpu.ops.creation import RAND
from shmgpu.ops.elementwise import ADD
from shmgpu.ops.graph import Spec
from shmgpu.ops.program import Program, Step

SIDE = 70  # 19,600 bytes: enough to be drawn ahead


@pytest.fixture(params=["inline", "helper"])
def engine(request):
    with gt.init(helpers=1, arena="64MiB", devices="cpu", inline=request.param == "inline"):
        yield


@pytest.fixture
def drawn_ahead(monkeypatch):
    """Counts what was drawn before it was asked for, in this very process."""
    count = []
    draw = Foresight.draw
    monkeypatch.setattr(Foresight, "draw", lambda self: (draw(self), count.append(1)))
    return count


def together():
    a, b = gt.randn(SIDE, SIDE), gt.rand(SIDE, SIDE)
    c = a + b * 100.0
    return c.data


def alone(numbers):
    """The same draws, all by one program, which nobody foresees."""
    found = []
    for _ in range(numbers):
        a, b = gt.randn(SIDE, SIDE), gt.rand(SIDE, SIDE)
        found.append(a + b * 100.0)
    return [np.array(one.data) for one in found]


def test_the_seeds_of_a_program_are_its_numbers_that_nothing_else_reads():
    vector, seed = Spec(gt.float32, (3,)), Spec(gt.int64, ())
    draws = [Step(RAND, (place,), (), vector) for place in (1, 2, 3)]  # the array is at 0
    program = Program(
        arrays=(vector,), resident=(False,), donated=(), numbers=(seed,) * 3,
        steps=(*draws, Step(ADD, (0, 2), (), vector)), kept=(), read=(7,),
    )  # fmt: skip
    assert seeds_of(program) == {0, 2}


def test_a_loop_draws_what_its_seeds_give(engine):
    gt.manual_seed(4)
    loop = [np.array(together()) for _ in range(8)]
    gt.manual_seed(4)
    np.testing.assert_array_equal(loop, alone(8))
    assert len({row.tobytes() for row in loop}) == 8


def test_a_guess_that_fails_changes_nothing(engine):
    def mixed():
        found = [np.array(together()) for _ in range(4)]
        found.append(np.array(gt.randn(SIDE, SIDE).data))  # other seeds than were foreseen follow
        found += [np.array(together()) for _ in range(3)]
        return found

    gt.manual_seed(5)
    first = mixed()
    gt.manual_seed(5)
    begin = alone(4)
    between = np.array((gt.randn(SIDE, SIDE) * 1.0).data)
    np.testing.assert_array_equal(first, [*begin, between, *alone(3)])


def test_seeding_anew_is_a_guess_that_fails(engine):
    found = []
    for _ in range(6):
        gt.manual_seed(6)
        found.append(np.array(together()))
    assert len({one.tobytes() for one in found}) == 1


def test_what_repeats_is_drawn_before_it_is_asked_for(drawn_ahead):
    with gt.init(inline=True, devices="cpu", arena="64MiB"):
        for _ in range(5):
            together()
        assert len(drawn_ahead) == 4
        gt.manual_seed(1)
        together()
        assert len(drawn_ahead) == 4


def test_programs_that_draw_alike_are_foreseen_whatever_they_do_with_it(drawn_ahead):
    """As those of a loop that looks at every tenth step."""
    with gt.init(inline=True, devices="cpu", arena="64MiB"):
        gt.manual_seed(8)
        found = []
        for n in range(6):
            drawn = gt.randn(SIDE, SIDE)
            found.append((drawn if n % 3 else drawn.exp().log()).sum().item())
        assert len(drawn_ahead) == 5
        gt.manual_seed(8)
        again = [gt.randn(SIDE, SIDE).sum() for _ in range(6)]
        np.testing.assert_allclose(found, [one.item() for one in again], rtol=1e-4)


@pytest.mark.parametrize("nbytes", [MIN_BYTES - 4, MAX_BYTES + 4])
def test_little_is_not_kept_and_neither_is_much(drawn_ahead, nbytes):
    with gt.init(inline=True, devices="cpu", arena="64MiB"):
        for _ in range(4):
            gt.randn(nbytes // 4).sum().item()
    assert not drawn_ahead


def test_what_is_foreseen_is_given_once():
    foresight, drawn = Foresight(), []

    def kernel(seed):
        drawn.append(seed)
        return seed * 10

    draws = Draws((1,), ("drawn",), (kernel,))
    assert foresight.meet(draws, (7, 100)) == (7, 100)
    assert not foresight.is_likely
    assert foresight.meet(draws, (7, 101)) == (7, 101)
    assert foresight.is_likely
    foresight.draw()
    assert drawn == [102]
    _, given = foresight.meet(draws, (7, 102))
    assert given.array == 1020
    assert foresight.meet(draws, (7, 102)) == (7, 102)
    assert not foresight.is_likely
