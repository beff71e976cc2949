"""Which arenas a helper has registered with the driver, while slots change hands."""

from __future__ import annotations

import logging

import pytest

from shmgpu.common import devices
from shmgpu.common.devices import PinnedArenas

SIZE = 1 << 20
REGIONS = [(SIZE * (2 * child + 1), SIZE) for child in range(3)]


class Driver:
    """Registers each range once, and refuses what it is told to."""

    def __init__(self):
        self.registered = set()
        self.refuses = set()

    def cudaHostRegister(self, address, size, flags):
        assert size == SIZE and address not in self.registered
        if address in self.refuses:
            return 1
        self.registered.add(address)
        return 0

    def cudaHostUnregister(self, address):
        self.registered.remove(address)
        return 3 if address in self.refuses else 0


@pytest.fixture
def driver():
    return Driver()


def holds(arenas, child, offset=0, size=SIZE):
    first = REGIONS[child][0] + offset
    return arenas.hold(first, first + size)


def test_every_arena_is_registered_at_the_start_and_nothing_between_them(driver):
    arenas = PinnedArenas(driver, REGIONS, lambda child: False, pytest.fail)
    assert driver.registered == {address for address, _ in REGIONS}
    assert all(holds(arenas, child) for child in range(3))
    assert not holds(arenas, 0, offset=1)  # beyond its end
    assert not holds(arenas, 0, offset=-1)
    assert not holds(arenas, 2, offset=SIZE, size=1)
    assert not arenas.hold(0, 1)


def test_the_memory_of_who_has_left_is_let_go_of_and_the_next_ones_registered_when_it_is_used(
    driver,
):
    old = set()
    arenas = PinnedArenas(driver, REGIONS, old.__contains__, pytest.fail)
    old.add(1)
    arenas.let_go_of_old()
    assert driver.registered == {REGIONS[0][0], REGIONS[2][0]}
    assert not holds(arenas, 1)  # the new memory is not mapped here yet
    assert driver.registered == {REGIONS[0][0], REGIONS[2][0]}
    old.clear()
    assert holds(arenas, 1, 100, 100)
    assert REGIONS[1][0] in driver.registered
    arenas.let_go_of_old()
    assert len(driver.registered) == 3


def test_an_arena_that_cannot_be_registered_is_told_of_once_and_tried_again_for_the_next(driver):
    old, said = set(), []
    driver.refuses.add(REGIONS[2][0])
    arenas = PinnedArenas(driver, REGIONS, old.__contains__, said.append)
    assert [holds(arenas, 2) for _ in range(3)] == [False] * 3
    assert len(said) == 1 and "1,048,576 bytes" in said[0]
    driver.refuses.clear()
    old.add(2)
    arenas.let_go_of_old()
    old.clear()
    assert holds(arenas, 2)


def test_only_what_cannot_be_let_go_of_is_told_of(driver, caplog):
    arenas = PinnedArenas(driver, REGIONS, {0, 1}.__contains__, pytest.fail)
    arenas._pinned |= {0, 1}  # before those who had them left
    driver.registered |= {REGIONS[0][0], REGIONS[1][0]}
    driver.refuses.add(REGIONS[1][0])
    with caplog.at_level(logging.WARNING, "shmgpu"):
        arenas.let_go_of_old()
    assert [one.getMessage() for one in caplog.records] == [
        "an arena could not be unregistered (status 3)"
    ]


def test_empty_arenas_are_left_alone(driver):
    arenas = PinnedArenas(driver, [(SIZE, 0)], lambda child: False, pytest.fail)
    assert not arenas.hold(SIZE, SIZE + 1)
    assert driver.registered == set()


@pytest.mark.parametrize(
    ("error", "is_of_device"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("CUDA error: as somebody's own code says"), False),
    ],
)
def test_an_error_is_the_device_s_only_where_its_driver_says_so(error, is_of_device):
    assert devices.is_of_device(error) is is_of_device
