"""What a helper makes of a program's message that no honest child would write."""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu
from shmgpu.child import runtime
from shmgpu.ops import program_message
from shmgpu.ops.elementwise import NEG
from shmgpu.ops.graph import spec_of
from shmgpu.ops.program import Program, Step
from shmgpu.ops.promotion import float32
from shmgpu.tensors import current, functions

SPEC = spec_of(float32, (4,))


def program(resident=False):
    return Program((SPEC,), (resident,), (), (), (Step(NEG, (0,), (), SPEC),), (), (1,))


class Sender:
    """A child that writes its messages itself."""

    def __init__(self, engine):
        self.target = functions.EXECUTE[engine]
        self.port = runtime.require_port()
        self.x = shmgpu.arena.zeros(4) + 1
        self.address = shmgpu.arena.placed(np.arange(4, dtype="f4"))
        self.handles = 0

    def ask(self, addresses, code, handles=(), output_bytes=16):
        head = program_message.HEAD.pack(1000, 0, 1, len(handles), 0)
        head += b"".join(one.to_bytes(8, "little") for one in handles)
        raw = self.port.arguments.raw_call(self.target, len(addresses), 1)
        raw.fill(head, code, addresses, output_bytes, self.port.arena)
        return np.frombuffer(self.port.send(raw, self.target, ()), "f4")[:4]


@pytest.fixture
def sender(engine):
    return Sender(engine)


def test_an_honest_raw_is_answered(sender):
    array, address = sender.address
    assert (sender.ask([address], program().encode()) == -array).all()
    assert (sender.ask([address], b"") == -array).all()  # known from then on


def test_arrays_lie_in_the_caller_s_own_arena(sender):
    array, address = sender.address
    arena = sender.port.arena
    code = program().encode()
    for wrong in (0, arena.base - 16, arena.end - 12, arena.end, 2**64 - 8):
        with pytest.raises(shmgpu.RemoteError, match="the caller's own arena"):
            sender.ask([wrong], code)
    assert (sender.ask([address], code) == -array).all()


def test_a_raw_has_the_arrays_and_tensors_that_its_program_needs(sender):
    _, address = sender.address
    with pytest.raises(shmgpu.RemoteError, match="fewer arrays than it needs"):
        sender.ask([], program().encode())
    with pytest.raises(shmgpu.RemoteError, match="another number of tensors"):
        sender.ask([address], program().encode(), handles=(1,))
    with pytest.raises(shmgpu.RemoteError, match="does not hold that tensor"):
        sender.ask([], program(resident=True).encode(), handles=(77,))


def test_a_result_is_not_written_beyond_its_room(sender):
    _, address = sender.address
    with pytest.raises(shmgpu.RemoteError, match="output buffer is smaller"):
        sender.ask([address], program().encode(), output_bytes=12)


def test_a_damaged_raw_is_refused(sender):
    _, address = sender.address
    for code in (b"?", program().encode()[:-3]):
        with pytest.raises(shmgpu.RemoteError, match="damaged"):
            sender.ask([address], code)


def test_raws_of_a_broker_that_was_left_are_copied_into_the_next_one(monkeypatch, request):
    monkeypatch.setattr(current, "_backend", "numpy")
    with shmgpu.init(inline=True, arena="1MiB"):
        x = shmgpu.tensor([1.0, 2.0])
        x.data
    with shmgpu.init(inline=True, arena="1MiB"):
        assert ((x + 1).data == [2, 3]).all()


def test_what_is_kept_of_raws_is_given_back_when_the_arena_is_full(engine):
    for n in range(1, 20):
        sum([shmgpu.tensor([float(k)]) for k in range(n)], shmgpu.tensor([0.0])).data
    free = shmgpu.arena.stats()["free_bytes"]
    big = shmgpu.arena.empty(free - 4096, "uint8")
    assert (shmgpu.tensor([1.0]) + 1).item() == 2
    del big
