"""In a helper: clients' shared-memory regions, mapped here so that their bytes are not copied.

Owns the mappings. A region is opened at its first use, through the descriptor of the worker that
registered it, because a client may have removed the name since; by name where that worker is gone.
Either way it must be the very file that was registered. Inputs are read from a mapping that cannot
be written to; outputs are copied through another one, or made there (``helper.out``). A region
that is unregistered is let go when the helper next looks at the control table; arrays that a
running function still has keep their mapping.

A client that shrinks its file while a function reads it ends this helper (SIGBUS): its calls are
answered 503, another takes its place.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.state.control_table import Table
from shmgpu.serve.state.regions import RegionLost, open_region

Placed = tuple[int, int, int]  # number of a region, offset in it, bytes


class _Window:
    """One region: its descriptors, and a mapping of all that was registered."""

    def __init__(self, region: dict[str, Any]) -> None:
        self.start: int = region["offset"]
        self.size: int = region["byte_size"]
        self.reading = open_region(region, os.O_RDONLY)
        self.region = region
        self._writing: mmap.mmap | None = None
        page = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self.before = self.start - page
        self.page = page
        self.memory = mmap.mmap(
            self.reading, self.before + self.size, prot=mmap.PROT_READ, offset=page
        )

    @property
    def writing(self) -> mmap.mmap:
        """A second mapping, for outputs alone."""
        if self._writing is None:
            descriptor = open_region(self.region, os.O_RDWR)
            try:
                self._writing = mmap.mmap(descriptor, self.before + self.size, offset=self.page)
            finally:
                os.close(descriptor)
        return self._writing

    def check(self) -> None:
        """Refuses a file that has become shorter than what was registered."""
        if os.fstat(self.reading).st_size < self.start + self.size:
            raise RegionLost(
                f"shared memory region {self.region['name']!r} has become smaller than it was when "
                "it was registered: register it again"
            )

    def close(self) -> None:
        os.close(self.reading)


class Windows:
    """The regions that one helper has open."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.version = -1
        self.open: dict[int, _Window] = {}

    def refresh(self) -> None:
        """Let go of what is not registered any more."""
        if not self.open or self.version == self.table.version:
            return
        self.version, state = self.table.read()
        numbers = {region["number"] for region in state["regions"].values()}
        for number in self.open.keys() - numbers:
            self.open.pop(number).close()

    def read(
        self, placed: Placed, datatype: datatypes.Datatype, shape: tuple[int, ...], own: bool
    ) -> np.ndarray[Any, Any]:
        """The input that lies there.

        Args:
            placed: where.
            datatype: of its elements.
            shape: its extents.
            own: whether the array must be one that may be written to: then its pages are copied
                when they are, and the client's stay as they are.

        Raises:
            RegionLost: the region is gone, or holds no such tensor.
        """
        number, offset, nbytes = placed
        window = self._window(number)
        window.check()
        if own:
            memory = mmap.mmap(
                window.reading,
                window.before + window.size,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
                offset=window.page,
            )
        else:
            memory = window.memory
        start = window.before + offset
        data = memoryview(memory)[start : start + nbytes]
        try:
            datatypes.check(datatype, shape, data)
            return datatypes.decode(datatype, shape, data)
        except ValueError as error:
            raise RegionLost(
                f"the input in shared memory region {window.region['name']!r} {error}"
            ) from None

    def room(
        self,
        placed: Placed,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        inputs: Sequence[int],
    ) -> np.ndarray[Any, Any] | None:
        """Where an output can be made in its place.

        Args:
            placed: where it is to go.
            shape: that it is expected to have.
            dtype: likewise.
            inputs: numbers of the regions that inputs lie in.

        Returns:
            None where that has no room for it, or where it might lie over an input: it is another
            mapping, so that nobody would see that they overlap.

        Raises:
            RegionLost: the region is gone, or has become smaller.
        """
        number, offset, nbytes = placed
        window = self._window(number)
        window.check()
        own = window.region["identity"]
        if any(self._window(one).region["identity"] == own for one in inputs):
            return None
        start = window.before + offset
        if start % dtype.itemsize or math.prod(shape) * dtype.itemsize > nbytes:
            return None
        return np.ndarray(shape, dtype, window.writing, start)

    def write(self, placed: Placed, data: memoryview) -> None:
        """Put an output there; raises RegionLost when the region is gone or has too little room."""
        number, offset, nbytes = placed
        window = self._window(number)
        window.check()
        if data.nbytes > nbytes:
            raise RegionLost(
                f"an output has {data.nbytes} bytes, and its place in shared memory region "
                f"{window.region['name']!r} has {nbytes}: give it a larger one"
            )
        at = window.before + offset
        window.writing[at : at + data.nbytes] = data

    def _window(self, number: int) -> _Window:
        window = self.open.get(number)
        if window is None:
            self.version, state = self.table.read()
            for region in state["regions"].values():
                if region["number"] == number:
                    window = self.open[number] = _Window(region)
                    return window
            raise RegionLost(
                "the request's shared memory region was unregistered before the request was run: "
                "unregister it after the answer"
            )
        return window
