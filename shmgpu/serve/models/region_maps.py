"""In a helper: clients' shared-memory regions, mapped here so that their bytes are not copied.

Owns the mappings. A region is opened at its first use through the descriptor of the worker that
registered it, because the client may have removed its name since; or by name where that worker is
gone. Either way it must be the very file that was registered. Inputs are read from a mapping that
is never writable; outputs are copied through another one, or computed there (``helper.out``). A
region that was unregistered is released when the helper next reads the control table; arrays that a
running function still holds keep their mapping.

A client that shrinks its file while a function reads it kills this helper (SIGBUS): the helper's
calls are answered 503, and another helper replaces it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.regions import RegionLost, open_region

RegionSlice = tuple[int, int, int]  # number of a region, offset in it, bytes


class _RegionMap:
    """One region: its descriptors, and a mapping of all that was registered."""

    def __init__(self, region: dict[str, Any]) -> None:
        self.start: int = region["offset"]
        self.size: int = region["byte_size"]
        self.reading = open_region(region, os.O_RDONLY)
        self.region = region
        self._writing = -1
        self._written: mmap.mmap | None = None
        self.page = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self.before = self.start - self.page
        try:
            self.memory = self._mapped(self.reading, mmap.ACCESS_READ)
        except BaseException:
            os.close(self.reading)
            raise

    @property
    def writing(self) -> int:
        """A second descriptor, for outputs alone."""
        if self._writing < 0:
            self._writing = open_region(self.region, os.O_RDWR)
        return self._writing

    @property
    def written(self) -> mmap.mmap:
        """A second mapping, for outputs alone."""
        if self._written is None:
            self._written = self._mapped(self.writing, mmap.ACCESS_WRITE)
        return self._written

    def copy_on_write(self) -> mmap.mmap:
        """A new mapping, in which what is written stays."""
        return self._mapped(self.reading, mmap.ACCESS_COPY)

    def _mapped(self, descriptor: int, access: int) -> mmap.mmap:
        try:
            return mmap.mmap(descriptor, self.before + self.size, access=access, offset=self.page)
        except ValueError:  # that is more than the file has
            raise self.shrunk() from None

    def check(self) -> None:
        """Refuses a file that has become shorter than what was registered."""
        # Which has the size for a third of what fstat takes; nobody reads where the file stands.
        if os.lseek(self.reading, 0, os.SEEK_END) < self.start + self.size:
            raise self.shrunk()

    def shrunk(self) -> RegionLost:
        """What there is to say of such a file."""
        return RegionLost(
            f"shared memory region {self.region['name']!r} has become smaller than it was when "
            "it was registered: unregister it, and register it again"
        )

    def close(self) -> None:
        os.close(self.reading)
        if self._writing >= 0:
            os.close(self._writing)


class RegionMaps:
    """The regions that one helper has open."""

    def __init__(self, table: ControlTable) -> None:
        self.table = table
        self.version = -1
        self.open: dict[int, _RegionMap] = {}

    def refresh(self) -> None:
        """Let go of what is not registered any more."""
        if not self.open or self.version == self.table.version:
            return
        self.version, state = self.table.read()
        numbers = {region["number"] for region in state["regions"].values()}
        for number in self.open.keys() - numbers:
            self.open.pop(number).close()

    def read(
        self, where: RegionSlice, datatype: datatypes.Datatype, shape: tuple[int, ...], own: bool
    ) -> np.ndarray[Any, Any]:
        """The input that lies there.

        Args:
            where: its region, offset and bytes.
            datatype: of its elements.
            shape: its extents.
            own: whether the array must be one that may be written to: then its pages are copied
                when they are, and the client's stay as they are.

        Raises:
            RegionLost: the region is gone, or holds no such tensor.
        """
        number, offset, nbytes = where
        region_map = self._map(number)
        region_map.check()
        memory = region_map.copy_on_write() if own else region_map.memory
        start = region_map.before + offset
        data = memoryview(memory)[start : start + nbytes]
        try:
            datatypes.check(datatype, shape, data)
            return datatypes.decode(datatype, shape, data)
        except ValueError as error:
            raise RegionLost(
                f"the input in shared memory region {region_map.region['name']!r} {error}"
            ) from None

    def output(
        self,
        where: RegionSlice,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        inputs: Sequence[int],
    ) -> np.ndarray[Any, Any] | None:
        """The memory in which the function can make an output directly.

        Args:
            where: its region, offset and bytes.
            shape: that it is expected to have.
            dtype: likewise.
            inputs: numbers of the regions that inputs lie in.

        Returns:
            None where that is too small, or where it might lie over an input: it is another
            mapping, so that nobody would see that they overlap.

        Raises:
            RegionLost: the region is gone, or has become smaller.
        """
        number, offset, nbytes = where
        region_map = self._map(number)
        region_map.check()
        own = region_map.region["identity"]
        if any(self._map(one).region["identity"] == own for one in inputs):
            return None
        start = region_map.before + offset
        if start % dtype.itemsize or math.prod(shape) * dtype.itemsize > nbytes:
            return None
        return np.ndarray(shape, dtype, region_map.written, start)

    def copy(self, number: int, offset: int, into: memoryview) -> None:
        """Copy a part of a region; raises RegionLost when it is gone, or has become smaller."""
        region_map = self._map(number)
        region_map.check()  # which refuses what is still there, too: as of requests by themselves
        if os.preadv(region_map.reading, [into], region_map.start + offset) != len(into):
            raise region_map.shrunk()

    def write(self, where: Sequence[int], data: memoryview) -> None:
        """Put an output at a region, offset and bytes; RegionLost when it is gone or too small."""
        number, offset, nbytes = where
        region_map = self._map(number)
        region_map.check()
        if data.nbytes > nbytes:
            raise RegionLost(
                f"an output has {data.nbytes} bytes, and its part of shared memory region "
                f"{region_map.region['name']!r} has {nbytes}: give it a larger one"
            )
        at = region_map.start + offset
        try:
            while len(data):
                count = os.pwrite(region_map.writing, data, at)
                at, data = at + count, data[count:]
        except OSError as error:  # such as no memory for a page that the client never wrote
            raise RegionLost(
                f"an output cannot be written to shared memory region "
                f"{region_map.region['name']!r}: {error.strerror}"
            ) from error

    def _map(self, number: int) -> _RegionMap:
        region_map = self.open.get(number)
        if region_map is None:
            _, state = self.table.read()  # `refresh` looks at what is gone since its version
            for region in state["regions"].values():
                if region["number"] == number:
                    region_map = self.open[number] = _RegionMap(region)
                    return region_map
            raise RegionLost(
                "the request's shared memory region was unregistered before the request was run: "
                "unregister it after the answer"
            )
        return region_map
