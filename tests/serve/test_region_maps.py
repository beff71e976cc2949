"""A helper's maps of clients' regions: what is gone or shorter is refused, and not kept open."""

from __future__ import annotations

import os
import pathlib
import types

import numpy as np
import pytest

from shmgpu.serve.models.region_maps import RegionMaps
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.state.regions import RegionLost, identity

START, SIZE = 4100, 8000  # no multiple of a page


class Table(types.SimpleNamespace):
    """What the control table says of regions."""

    def read(self):
        return self.version, {"regions": dict(self.regions)}

    def drop(self, *names):
        for name in names:
            del self.regions[name]
        self.version += 1


@pytest.fixture
def table():
    paths = [pathlib.Path(f"/dev/shm/tests-maps-{os.getpid()}-{number}") for number in range(2)]
    regions = {}
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number + 1]) * (START + SIZE))
        regions[path.name] = {
            "name": path.name, "key": path.name, "offset": START, "byte_size": SIZE, "pid": 0,
            "descriptor": 0, "identity": identity(path.stat()), "number": number,
        }  # fmt: skip
    yield Table(version=1, regions=regions, paths=paths)
    for path in paths:
        path.unlink()


def count_open(path):
    """How many of our descriptors lead there."""
    folder = pathlib.Path("/proc/self/fd")
    return sum(os.path.realpath(one) == str(path) for one in folder.iterdir())


@pytest.fixture
def maps(table):
    made = RegionMaps(table)
    yield made
    table.drop(*table.regions)
    made.refresh()
    assert made.open == {}


@pytest.mark.parametrize("own", [True, False], ids=["may be written to", "read-only"])
def test_what_is_shorter_when_it_is_mapped_first_is_refused_and_not_kept_open(table, maps, own):
    path = table.paths[0]
    os.truncate(path, START + SIZE - 1)
    into = memoryview(bytearray(8))
    for _ in range(3):
        with pytest.raises(RegionLost, match="has become smaller"):
            maps.copy(0, 0, into)
        with pytest.raises(RegionLost, match="has become smaller"):
            maps.read((0, 0, 8), DATATYPES["FP32"], (2,), own)
        with pytest.raises(RegionLost, match="has become smaller"):
            maps.write((0, 0, 8), into)
    assert count_open(path) == 0


def test_what_becomes_shorter_later_is_refused_also_where_it_still_has_what_is_asked(table, maps):
    into, path = memoryview(bytearray(8)), table.paths[0]
    maps.copy(0, 0, into)
    maps.write((0, 8, 8), into)
    os.truncate(path, START + SIZE - 1)
    for use in (
        lambda: maps.copy(0, 0, into),
        lambda: maps.read((0, 0, 8), DATATYPES["FP32"], (2,), False),
        lambda: maps.write((0, 8, 8), into),
        lambda: maps.output((0, 8, 8), (2,), np.dtype(np.float32), []),
    ):
        with pytest.raises(RegionLost, match="has become smaller"):
            use()
    assert path.stat().st_size == START + SIZE - 1


def test_what_was_unregistered_while_another_was_mapped_is_let_go_of(table, maps):
    first, second = table.paths
    into = memoryview(bytearray(8))
    maps.copy(0, 0, into)
    maps.write((0, 8, 8), memoryview(b"12345678"))
    maps.refresh()
    table.drop(first.name)
    maps.copy(1, 0, into)
    assert bytes(into) == b"\2" * 8 and count_open(first) > 0
    maps.refresh()
    assert count_open(first) == 0 and count_open(second) > 0
    maps.refresh()
    with pytest.raises(RegionLost, match="was unregistered"):
        maps.copy(0, 0, into)


def test_a_region_that_begins_at_no_page_is_read_and_written_where_it_lies(table, maps):
    path = table.paths[0]
    maps.write((0, 4, 8), memoryview(np.array([5, 6], np.float32)).cast("B"))
    assert path.read_bytes()[START : START + 16] == b"\1" * 4 + np.float32([5, 6]).tobytes() + (
        b"\1" * 4
    )
    into = memoryview(bytearray(8))
    maps.copy(0, 4, into)
    for own in (False, True):
        read = maps.read((0, 4, 8), DATATYPES["FP32"], (2,), own)
        assert read.tobytes() == bytes(into) and read.flags.writeable == own
    read[0] = 9  # a page of its own
    made = maps.output((0, 4, 8), (2,), np.dtype(np.float32), [])
    assert made.tolist() == [5, 6]
