"""What a helper holds for each child: arrays and programs, counted, bounded, and let go of."""

from __future__ import annotations

import types
from collections import OrderedDict

import numpy as np
import pytest

from shmgpu.engine import session
from shmgpu.engine.session import Engine, NotMade, Tenant, TooMuch, UnknownTensor
from shmgpu.errors import BadParams


def sized(code_bytes=5, **said):
    """A program of so many bytes."""
    return types.SimpleNamespace(code_bytes=code_bytes, compiled=1, fused=1, **said)


def array(nbytes):
    return np.zeros(nbytes, np.uint8)


def test_arrays_are_counted_while_they_are_held():
    tenant = Tenant()
    tenant.take(3, [array(8), array(16)])
    assert list(tenant.arrays) == [3, 4] and tenant.nbytes == 24
    tenant.hold(3, array(1))
    assert tenant.nbytes == 17
    tenant.drop(4)
    tenant.drop(4)
    assert list(tenant.arrays) == [3] and tenant.nbytes == 1


def test_of_what_is_lost_the_reason_is_kept_until_it_is_let_go_of():
    tenant = Tenant()
    tenant.take(3, [array(8), array(16)])
    tenant.lose([3, 9], "it was written over")
    assert tenant.failed == {3: "it was written over", 9: "it was written over"}
    assert tenant.nbytes == 16
    tenant.fail(5, 7, ValueError("no"))
    assert sorted(tenant.failed) == [3, 5, 6, 9] and tenant.failed[5].endswith("ValueError: no")
    for handle in (3, 5, 6, 9):
        tenant.drop(handle)
    assert tenant.failed == {}


@pytest.mark.parametrize(
    ("known", "code", "kept"),
    [
        (3, 100, [[1], [1, 2], [1, 2, 3], [2, 3, 4]]),
        (100, 15, [[1], [1, 2], [1, 2, 3], [2, 3, 4]]),
        (100, 14, [[1], [1, 2], [2, 3], [3, 4]]),
        (100, 4, [[1], [2], [3], [4]]),  # the last one is kept however large it is
        (0, 100, [[1], [2], [3], [4]]),
    ],
)
def test_so_many_programs_and_so_much_of_them_is_known(monkeypatch, known, code, kept):
    monkeypatch.setattr(session, "MAX_KNOWN", known)
    monkeypatch.setattr(session, "MAX_CODE_BYTES", code)
    tenant = Tenant()
    for number, numbers in enumerate(kept, 1):
        tenant.know(number, sized())
        assert list(tenant.programs) == numbers and tenant.code_bytes == 5 * len(numbers)


def test_a_number_that_is_given_anew_is_the_newest():
    tenant = Tenant()
    tenant.know(1, sized())
    tenant.know(2, sized())
    again = sized(7)
    tenant.know(1, again)
    assert list(tenant.programs) == [2, 1] and tenant.programs[1] is again
    assert tenant.code_bytes == 12


def engine(**said):
    one = object.__new__(Engine)
    vars(one).update(
        _graphs=None, _tenants={}, _compiled=OrderedDict(), _code_bytes=0, quota=0, memory=0,
        _pool=types.SimpleNamespace(buffers=[]), **said,
    )  # fmt: skip
    return one


@pytest.mark.parametrize(
    ("name", "most", "left"),
    [
        ("MAX_COMPILED", 2, [3, 4]),
        ("MAX_CODE_BYTES", 10, [3, 4]),
        ("MAX_CODE_BYTES", 9, [4]),
        ("MAX_COMPILED", 0, [4]),
        ("MAX_BUFFER_BYTES", 29, [4]),
        ("MAX_BUFFER_BYTES", 30, [1, 2, 3, 4]),
    ],
)
def test_programs_make_room_the_oldest_first(monkeypatch, name, most, left):
    one, dropped = engine(), []
    monkeypatch.setattr(session, name, most)
    one._pool.buffers = [10, 20]
    one._graphs = types.SimpleNamespace(drop=dropped.append)
    programs = {number: sized() for number in range(1, 5)}
    one._compiled.update(programs)
    one._code_bytes = 20
    one._make_room()
    assert list(one._compiled) == left and one._code_bytes == 5 * len(left)
    gone = [programs[number] for number in programs if number not in left]
    assert dropped == gone and all(it.compiled is it.fused is None for it in gone)
    assert all(programs[number].compiled for number in left)


def test_a_childs_share_ends_with_it_and_is_not_its_successors():
    one, forgotten = engine(), []
    one._graphs = types.SimpleNamespace(forget=forgotten.append)
    first = one.tenant(3, 1)
    assert one.tenant(3, 1) is first and not one.keeps_arrays()
    first.take(0, [array(8)])
    assert one.keeps_arrays() and one.callers() == [(3, 1)]
    second = one.tenant(3, 2)
    assert second is not first and not one.keeps_arrays() and one.callers() == [(3, 2)]
    second.lose([5], "it is lost")
    assert one.keeps_arrays()  # the child has yet to be told
    one.forget(3)
    one.forget(3)
    assert one.callers() == [] and forgotten == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("held", "kept", "donated", "fits"),
    [
        (50, 50, 0, True),
        (50, 51, 0, False),
        (100, 8, 8, True),
        (100, 8, 7, False),
        (101, 0, 0, True),
    ],
)
def test_a_child_keeps_no_more_than_its_quota(held, kept, donated, fits):
    one, tenant = engine(), Tenant()
    one.quota = 100
    tenant.nbytes = held
    ready = types.SimpleNamespace(kept_bytes=kept, donated=[(0, 0)])
    if fits:
        one._check_quota(tenant, ready, [array(donated)])
        return
    with pytest.raises(TooMuch, match=rf"\({held} bytes\) and the {kept - donated} more .*100 byt"):
        one._check_quota(tenant, ready, [array(donated)])


@pytest.mark.parametrize(("memory", "fits"), [(0, True), (100, True), (99, False)])
def test_no_operation_makes_more_than_there_is_memory(memory, fits):
    one = engine()
    one.memory = memory
    steps = [types.SimpleNamespace(spec=types.SimpleNamespace(nbytes=n)) for n in (100, 8)]
    if fits:
        one._check_memory(types.SimpleNamespace(steps=steps))
        one._check_memory(types.SimpleNamespace(steps=[]))
        return
    with pytest.raises(TooMuch, match="makes a tensor of 100 bytes, and the helper has 99"):
        one._check_memory(types.SimpleNamespace(steps=steps))


SPEC = types.SimpleNamespace(shape=(8,))


@pytest.mark.parametrize(
    ("handles", "error", "words"),
    [
        ((7,), None, ""),
        ((), BadParams, "another number of tensors than it needs"),
        ((7, 7), BadParams, "another number of tensors than it needs"),
        ((8,), UnknownTensor, ""),
        ((9,), NotMade, ""),
        ((6,), BadParams, "not of the type that it says"),
        ((5,), BadParams, "not of the type that it says"),
    ],
)
def test_a_program_is_given_what_it_says_that_it_takes(handles, error, words):
    tenant = Tenant()
    tenant.hold(7, array(8))
    tenant.hold(6, array(9))
    tenant.hold(5, np.zeros(8, np.int8))
    tenant.lose([9], "it is lost")
    ready = types.SimpleNamespace(
        resident=1, given=((True, 0, SPEC, np.uint8), (False, 0, SPEC, np.uint8))
    )

    def ask():
        return Engine._given(engine(), ready, tenant, handles, lambda *sent: sent)

    if error is None:
        assert ask()[0] is tenant.arrays[7] and ask()[1] == (0, SPEC)
        return
    with pytest.raises(error, match=words or None) as caught:
        ask()
    assert error is not NotMade or caught.value.why == "it is lost"
