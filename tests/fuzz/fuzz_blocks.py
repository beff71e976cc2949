"""Fuzz target: any bytes as a parameter block are a call that is in bounds, or BadParams.

The input is served by a real executor on memory of its own: whatever the block promises, the
function sees arrays of the caller's arena only, and what changes lies in that arena. Run by ``make
fuzz`` (atheris, libFuzzer for Python) and, on the corpus, by ``make test``.
"""

from __future__ import annotations

import mmap
import types
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.codec.layout import ParameterBlock, Signature
from shmgpu.errors import BadParams
from shmgpu.helper.batch_executor import BatchExecutor
from shmgpu.helper.decoded import Helper

ARENA = 1 << 16
ORIGIN = 1 << 20  # address of the first byte; arena 1 lies behind arena 0
BLOCK = 4096  # where the block lies in arena 0
ROW = 7


class Device:
    """Arrays stay where they are."""

    is_cuda = False

    def failed(self, error: BaseException) -> bool:
        return False

    def finish(self) -> None:
        pass


class Target:
    """An executor, the memory it serves, and a function that looks at all it is given."""

    def __init__(self) -> None:
        self.pages = mmap.mmap(-1, 2 * ARENA)
        self.first = core.address_of(self.pages)
        function = types.SimpleNamespace(
            name="look",
            body=self.look,
            arrays_kind="numpy",
            pickle=False,
            batch_max_rows=8,
            takes_raw_calls=False,
            mutates=False,
        )
        self.executor = BatchExecutor(
            Helper(0, "cpu", "default", 1),
            {ROW: function},
            core.window_on(self.first, 2 * ARENA),
            ORIGIN,
            lambda slot: (ORIGIN + slot * ARENA, ORIGIN + (slot + 1) * ARENA),
            Device(),  # type: ignore[arg-type]
            parked_limit=1 << 20,
        )
        self.calls = 0

    def look(self, helper: Helper, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        for leaf in leaves((args, kwargs, helper.out)):
            if leaf.nbytes:
                first = leaf.__array_interface__["data"][0]
                assert self.first <= first <= self.first + ARENA - leaf.nbytes
        return args[0] if args else None

    def serve(self, data: bytes) -> tuple[int, int]:
        data = data[: ARENA - BLOCK]
        self.pages[ARENA:] = b"\xa5" * ARENA
        self.pages[BLOCK : BLOCK + len(data)] = data
        self.executor.reader.refusals = 1 << 40  # nothing of this belongs into a log
        work = (ROW, ORIGIN + BLOCK, len(data), 0, 1, 1)
        status, value = self.executor.serve(ROW, self.executor.read(*work[1:3]), 0, 1, 1)
        assert status in (core.OK, core.EBAD_PARAMS, core.EREMOTE, core.ENEEDS_SPACE), status
        batched = self.executor.serve_batch([work, work])
        assert all((one[0] == core.EBAD_PARAMS) >= (status == core.EBAD_PARAMS) for one in batched)
        self.executor.grow(ORIGIN + BLOCK, len(data), 0, 1, 1)
        assert self.pages[ARENA:] == b"\xa5" * ARENA
        return status, value


def leaves(tree: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree] if isinstance(tree, np.ndarray) else []


def check_codec(data: bytes) -> None:
    """What can be read is written again to the same bytes."""
    try:
        signature = Signature.read(ParameterBlock(data).signature)
    except BadParams:
        return
    again = Signature.read(signature.encoded)
    assert again.encoded == signature.encoded
    assert again.arguments == signature.arguments and again.hint == signature.hint


def one_input(data: bytes) -> None:
    target.serve(data)
    check_codec(data)


target: Any = None


def set_up() -> None:
    global target
    target = Target()
