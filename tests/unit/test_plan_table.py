"""A function's table of plans, whoever else looks into it meanwhile."""

from __future__ import annotations

import threading

import pytest

from shmgpu.child import plans
from shmgpu.child.plans import PlanTable


class Key:
    """As signatures are: compared by Python code, where threads and signal handlers may run."""

    def __init__(self, number, meanwhile=lambda: None):
        self.number = number
        self.meanwhile = meanwhile

    def __hash__(self):
        return 1

    def __eq__(self, other):
        self.meanwhile()
        return self.number == other.number


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 4)


def test_the_least_lately_made_goes(few):
    table = PlanTable()
    for number in range(10):
        table.add(number, number)
    assert list(table) == [6, 7, 8, 9]
    table.add(7, "again")
    assert table == {6: 6, 7: "again", 8: 8, 9: 9}


def test_plans_may_be_added_while_one_is_added(few):
    """As by a handler that calls the same function with other arrays."""
    table = PlanTable()
    numbers = iter(range(1000, 2000))

    def add_one():
        if len(busy) < 1:
            busy.append(1)
            table.add(Key(next(numbers)), 0)
            busy.pop()

    busy = [1]
    for number in range(4):
        table.add(Key(number, add_one), number)
    busy.clear()
    for number in range(4, 40):
        table.add(Key(number, add_one), number)
    busy.append(1)
    assert len(table) <= 4 and 39 in [key.number for key in table]


def test_threads_may_add_plans_at_once(few):
    table, errors = PlanTable(), []

    def add(first):
        try:
            for number in range(first, first + 2000):
                table.add(Key(number), number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(table) <= 4
