"""Policies of allocation, followed by hand."""

from __future__ import annotations

import pytest

from benchmarks.traces.policies import POLICIES, footprint

# Two holes, of 4 and of 2 bytes, between blocks that stay; then 2, 4 and 2 are asked for.
TRACE = ["+4", "+1", "+2", "+1", "-4", "-2", "+2", "+4", "+2"]


@pytest.mark.parametrize(
    ("policy", "wanted"), [("best fit", 10), ("first fit", 12), ("last fit", 10), ("worst fit", 12)]
)
def test_a_policy_takes_what_it_would_take_by_hand(policy, wanted):
    assert footprint(TRACE, POLICIES[policy]) == wanted


def test_neighbours_that_are_free_are_one_and_the_last_of_them_grows():
    assert footprint(["+2", "+2", "+1", "-3", "-2", "+4"], POLICIES["best fit"]) == 5
    assert footprint(["+2", "+2", "-1", "+5"], POLICIES["best fit"]) == 7


def test_headers_and_alignment_count():
    assert footprint(["+1", "+9"], POLICIES["first fit"], header=8, align=16) == 48
