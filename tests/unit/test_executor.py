"""What a helper answers of calls that end otherwise than with a result."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import fuzz_blocks, make_corpus

from shmgpu import core
from shmgpu.errors import GangAborted
from shmgpu.helper import executor as executors

BLOCK = make_corpus.block((np.arange(4.0),))


@pytest.fixture
def executor():
    target = fuzz_blocks.Target()  # which has the memory that it serves
    yield target.executor


class Gang:
    """As a member sees it, of which another member has died."""

    def __init__(self, *told):
        pass

    def settle(self):
        raise GangAborted("a member died")


def raise_it(helper, x):
    raise GangAborted("a member died")


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_member_of_a_gang_that_was_given_up_says_that_it_had_begun(
    at_its_end, executor, monkeypatch
):
    """Or the dispatcher would take it for one whose function has not run, and run it again."""
    monkeypatch.setattr(executors, "GangMember", Gang)
    executor.functions[fuzz_blocks.ROW].body = raise_it
    executor._backends = ()
    if at_its_end:
        executor.serve = lambda *call: (core.OK, 0)
    outcome = executor.serve_gang(3, 1, fuzz_blocks.ROW, BLOCK, 0, 1, 1)
    assert outcome == (core.EABORTED, 0)
