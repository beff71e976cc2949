"""What calls have in common is found though others change the containers meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode

from shmgpu.child import quick
from shmgpu.codec.pytree import CHEAP_TYPES

pytestmark = pytest.mark.skipif(bool(quick.why_not()), reason=f"not used: {quick.why_not()}")


class Acts(TorchFunctionMode):
    """Python code that runs while C looks at a tensor: once, at the n-th."""

    def __init__(self, act, at=0):
        self.act, self.at = act, at

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.at -= 1
        if self.at == -1:
            self.act()
        return function(*args, **(kwargs or {}))


def some(count=3):
    return [torch.zeros(3) for _ in range(count)]


def named(count=3):
    return {f"x{at}": torch.zeros(3) for at in range(count)}


# How others change what was passed.
CHANGES = {
    "a list is emptied": (some, list.clear),
    "a list grows": (some, lambda given: given.extend(some(40))),
    "a list in its own": (lambda: [some()], lambda given: given[0].clear()),
    "a list loses its list": (lambda: [some(), some()], list.clear),
    "a dict is emptied": (named, dict.clear),
    "a dict grows": (named, lambda given: given.update({str(at): some() for at in range(200)})),
    "a dict loses its list": (lambda: {"a": some(), "b": some()}, dict.clear),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", range(3))
def test_a_container_may_change_while_it_is_looked_at(change, at):
    make, act = CHANGES[change]
    quick.know_tensor(torch.Tensor)
    given = make()
    with Acts(lambda: act(given), at):
        try:
            quick.native.Signature((given,), {}, CHEAP_TYPES)
        except ValueError as error:
            assert "made through Python" in str(error)
    given = make()
    signature = quick.native.Signature((given,), {}, CHEAP_TYPES)
    assert quick.native.find([signature], (given,), {})[1] is not None
    with Acts(lambda: act(given), at):
        quick.native.find([signature], (given,), {})


def test_more_than_a_signature_has_room_for_is_left_to_python():
    for given in ([1] * 1000, {str(at): 1 for at in range(1000)}, [[[[[[1]]]]]]):
        with pytest.raises(ValueError, match="made through Python"):
            quick.native.Signature((given,), {}, CHEAP_TYPES)


def fits(one, other):
    """Whether a call of one tensor may be made like one of another."""
    quick.know_tensor(torch.Tensor)
    signature = quick.native.Signature((other,), {}, CHEAP_TYPES)
    return quick.native.find([signature], (one,), {}) is not None


# Of the numbers from 1 to 12 in three rows, whose memory alone is looked at.
ROWS = torch.arange(1.0, 13).reshape(3, 4)
TENSORS = {
    "the same": (ROWS, True),
    "part of another": (torch.arange(20.0)[8:].view(3, 4), True),
    "one that is let go of by its gradient": (ROWS.clone().requires_grad_().detach(), True),
    "turned": (torch.arange(1.0, 13).reshape(4, 3).T, False),
    "with gaps": (torch.zeros(3, 8)[:, ::2], False),
    "flat": (ROWS.flatten(), False),
    "more rows": (torch.zeros(4, 4), False),
    "an axis more": (ROWS[None], False),
    "whole numbers of as many bits": (torch.zeros(3, 4, dtype=torch.int32), False),
    "of twice the bits": (ROWS.double(), False),
    "with a gradient": (ROWS.clone().requires_grad_(), False),
    "computed of one with a gradient": (ROWS.clone().requires_grad_() + 1, False),
    "negated when it is read": (torch._neg_view(ROWS), False),
    "a parameter": (torch.nn.Parameter(ROWS, requires_grad=False), False),
    "on no device": (ROWS.to("meta"), False),
    "sparse": (ROWS.to_sparse(), False),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_fits_where_its_memory_is_as_that_of_another(name):
    tensor, wanted = TENSORS[name]
    assert fits(tensor, torch.zeros(3, 4)) == wanted


def test_axes_of_one_element_have_any_stride():
    assert fits(torch.zeros(5, 4)[::5], torch.zeros(1, 4))
    assert (
        fits(torch.zeros(4, 5)[:, ::5], torch.zeros(4, 1))
        == torch.zeros(4, 5)[:, ::5].is_contiguous()
    )
    assert fits(torch.zeros(()), torch.zeros(()))


def test_a_tensor_without_elements_fits_another_of_its_shape_wherever_it_is():
    empty = torch.zeros(0, 4)
    assert fits(empty, empty) and fits(torch.zeros(8, 4)[3:3], empty)
    assert fits(torch.zeros(4, 0).T, empty) and not fits(torch.zeros(0, 5), empty)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "float16", "complex64"])
def test_tensors_of_each_type_fit_their_own_and_no_other(dtype):
    dtypes = ["bool", "uint8", "int8", "int64", "float16", "complex64"]
    mine = torch.zeros(3, dtype=getattr(torch, dtype))
    found = [name for name in dtypes if fits(torch.zeros(3, dtype=getattr(torch, name)), mine)]
    assert found == [dtype]


def test_a_tensor_that_is_conjugated_when_it_is_read_does_not_fit():
    plain = torch.zeros(3, dtype=torch.complex64)
    assert fits(plain, plain) and not fits(plain.conj(), plain)
    assert not fits(plain.conj().imag, torch.zeros(3))
