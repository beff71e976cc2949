"""What an executor works with: the helper that functions see, a decoded block, a result's array.

Owns data, and never reads a block itself: :mod:`shmgpu.helper.executor` fills and uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from shmgpu import core
from shmgpu.codec import arrays, dtypes
from shmgpu.codec.arrays import ArraySpec, aligned
from shmgpu.codec.layout import WORD_BYTES, ParameterBlock
from shmgpu.codec.pytree import TreeDef
from shmgpu.errors import BadParams
from shmgpu.helper.gang import GangMember


class ServedFunction(Protocol):
    """What an executor needs to know of a function."""

    name: str
    body: Callable[..., Any]
    arrays_kind: str
    pickle: bool
    batch_max_rows: int
    takes_raw_calls: bool
    mutates: bool


class Device(Protocol):
    """Where a helper's tensors live; see :mod:`shmgpu.common.devices`."""

    is_cuda: bool

    def to_device(self, tensor: Any) -> Any:
        """A tensor on the device with the same contents."""

    def gather(self, tensors: Sequence[Any]) -> Any:
        """One tensor on the device: all of them, one after the other on axis 0."""

    def copy_out(self, destination: Any, tensor: Any) -> None:
        """Copy a tensor into arena memory; see :meth:`finish` and :meth:`take_event`."""

    def new_like(self, tensor: Any) -> Any:
        """An uninitialised tensor on the device, of that tensor's shape and dtype."""

    def finish(self) -> None:
        """Wait until all copies are complete."""

    def take_event(self) -> Any:
        """What to wait for (``.synchronize()``) until all copies are complete; None: nothing."""

    def failed(self, error: BaseException) -> bool:
        """Told of a function's exception; True when the device is beyond use."""


class Helper:
    """What a function gets as its first argument, and a session function as its only one.

    Attributes:
        id: number of the helper, from 0; ``inline`` calls see 0.
        device: ``"cpu"``, ``"cuda:0"``, ...
        session: what the session function returned, or None.
        out: the declared output arrays to write into, or None.
        offered: ``room``, or what makes it for whoever looks.
        room: where a result of one array is copied to, if it has the shape that arguments of these
            shapes gave last time: a result that was written there is not copied. None if that is
            not known, or if calls run as a batch.
        pool: name of the helper's pool.
        generation: how many processes have held this slot, this one included.
        version: how many broadcasts its pool has had, as far as this helper has had them; see
            :func:`shmgpu.broadcast`. It never falls, and callers may be told it with a result.
        calls: how many calls are being run as one batch; 1 for a call by itself.
        caller: (number, generation) of the child whose call runs, for functions that keep
            something for each child.
        when_children_leave: functions without arguments that are called when a child has left,
            to release what was kept for it.
        keeps_something: functions without arguments that tell whether a helper keeps what would
            be lost with it: then it is not ended for being idle.
        later: what :meth:`afterwards` was given for the running calls; for the helper's loop.
    """

    __slots__ = (
        "__dict__",
        "caller",
        "calls",
        "device",
        "generation",
        "id",
        "keeps_something",
        "later",
        "offered",
        "out",
        "pool",
        "session",
        "version",
        "when_children_leave",
    )

    def __init__(self, number: int, device: str, pool: str, generation: int) -> None:
        self.id = number
        self.device = device
        self.pool = pool
        self.generation = generation
        self.session: Any = None
        self.out: Any = None
        self.offered: Any = None
        self.calls = 1
        self.version = 0
        self.caller = (0, 0)
        self.when_children_leave: list[Callable[[], None]] = []
        self.keeps_something: list[Callable[[], bool]] = []
        self.later: list[tuple[Callable[[], None], Callable[[BaseException], None] | None]] = []

    @property
    def room(self) -> Any:
        """See above: made for whoever asks."""
        if callable(self.offered):
            self.offered = self.offered()
        return self.offered

    def afterwards(
        self, work: Callable[[], None], failed: Callable[[BaseException], None] | None = None
    ) -> None:
        """Have ``work()`` done when the running call has been answered, before the next one begins.

        The caller has its result by then, and continues in parallel. So the work may read the
        call's arrays only if the caller is known not to change them, and must not write to them.
        To the broker it is part of the call: the helper is busy, and ``hang_after`` counts it. If
        the call raises, the work is dropped. If the helper dies meanwhile, no call is lost.

        Args:
            work: a function without arguments.
            failed: called with what ``work`` raised, which is logged, too.
        """
        self.later.append((work, failed))

    def __repr__(self) -> str:
        return f"<helper {self.id} on {self.device}, pool {self.pool!r}>"


class DecodedCall:
    """A parameter block, read and checked: its arguments as views, and where the result goes.

    Attributes:
        kind: the block's bytes but for its addresses: of two blocks that agree in them, and in
            the function, nothing else differs.
        nbytes: of its arrays, all together.
        rows: length of its arrays' axis 0; None where they have none, or not all the same.
        places: which of the positional arguments are arrays, where those and plain values are all
            that is passed; None where the function is called the general way.
        template: such arguments, with None for each array.
        values_at: where in ``kind`` the bytes of the plain values begin.
        is_plain: whether NumPy has the dtypes of all arrays that are promised.
    """

    __slots__ = (
        "declared",
        "function",
        "hint",
        "is_plain",
        "kind",
        "nbytes",
        "numpy_outs",
        "out_numpy",
        "out_torch",
        "output_bytes",
        "output_offset",
        "places",
        "rows",
        "slot",
        "specs",
        "template",
        "tensors",
        "torch_outs",
        "tree",
        "values",
        "values_at",
        "views",
    )

    function: int
    slot: int
    tree: TreeDef
    specs: list[tuple[int, ArraySpec]]
    values: list[Any]
    values_at: int
    kind: bytes
    nbytes: int
    rows: int | None
    views: Any
    tensors: list[Any] | None
    places: list[int] | None
    template: list[Any]
    is_plain: bool
    declared: bool
    hint: Any  # a TreeLayout, or None
    output_offset: int
    output_bytes: int

    def __init__(self) -> None:
        self.torch_outs: list[Any] | None = None
        self.numpy_outs: list[Any] | None = None
        self.out_numpy: Any = None
        self.out_torch: Any = None
        self.tensors = None
        self.views = None

    @property
    def value_bytes(self) -> bytes:
        """Its plain values as the block has them."""
        return self.kind[self.values_at :]

    def set_values(self, values: list[Any]) -> None:
        """The plain values among its arguments."""
        self.values = values
        if self.places is not None:
            self.template = list(values)
            for place in self.places:  # in order, so each finds those before it in place
                self.template.insert(place, None)

    def with_values(self, values: list[Any], kind: bytes) -> DecodedCall:
        """The same call with other plain values."""
        made = DecodedCall.__new__(DecodedCall)
        for name in DecodedCall.__slots__:
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        made.kind = kind
        made.set_values(values)
        return made


class RawRequest:
    """A raw call that arrived: a block that its function reads itself.

    Attributes:
        head, code: its two parts, whatever they mean.
        addresses: of the arrays that come with it.
        first, end: where the arrays of the caller's arena begin and end.
        output_offset, output_bytes: where the result goes, from the first byte of all arenas.
        gang: the members that run it at once, this helper among them; None: it runs here alone.
        has_said: whether :meth:`say` has given the caller the results.
        put: writes results into the output buffer.
    """

    __slots__ = (
        "_look",
        "_origin",
        "addresses",
        "code",
        "end",
        "first",
        "gang",
        "has_said",
        "head",
        "output_bytes",
        "output_offset",
        "put",
    )

    put: Callable[[RawRequest, Sequence[Any]], None]

    def __init__(
        self,
        data: bytes,
        block: ParameterBlock,
        bounds: tuple[int, int],
        output: tuple[int, int],
        origin: int,
        look: Callable[[int, ArraySpec], Any],
    ) -> None:
        self.head = block.signature
        self.code = data[block.values_at :]
        self.addresses = block.addresses
        self.first, self.end = bounds
        self.output_offset, self.output_bytes = output
        self.gang: GangMember | None = None
        self.has_said = False
        self._origin = origin
        self._look = look

    def array(self, index: int, spec: ArraySpec) -> Any:
        """One of the arrays, as what it is meant to be; not to be written to.

        Raises:
            BadParams: it does not lie in the caller's own arena, or there is none.
        """
        if index >= len(self.addresses):
            raise BadParams("the message has fewer arrays than it needs")
        address = self.addresses[index]
        if not self.first <= address <= self.end - spec.nbytes:
            raise BadParams("an argument does not lie in the caller's own arena")
        return self._look(address - self._origin, spec)

    def say(self, results: Sequence[Any]) -> None:
        """Write arrays, each at the next multiple of 64, and tell the caller, who waits for that.

        What is written later, as the text of an exception is, goes behind them.

        Raises:
            BadParams: they do not fit the output buffer, or no word lies before that.
        """
        word = self._word()
        self.put(self, results)
        if not core.word_say(word, core.SAID_RESULTS):
            raise BadParams("no word lies before the output buffer")
        taken = sum(aligned(array.nbytes) for array in results)
        self.output_offset += taken
        self.output_bytes = max(self.output_bytes - taken, 0)
        self.has_said = True

    def say_failed(self) -> None:
        """Tell the caller, if it still waits for results, that there will be none."""
        if not self.has_said:
            with contextlib.suppress(BadParams):
                core.word_say(self._word(), core.SAID_FAILED)

    def _word(self) -> int:
        address = self.output_offset + self._origin - WORD_BYTES
        if address < self.first:
            raise BadParams("no word lies before the output buffer in the caller's own arena")
        return address


class Leaf:
    """One array of a result."""

    __slots__ = ("_is_own", "_storage", "array", "is_torch", "spec")

    def __init__(self, leaf: Any) -> None:
        self.is_torch = arrays.is_tensor(leaf)
        self._storage: Any = None
        self._is_own = False
        if self.is_torch:
            if leaf.layout is not _strided():
                raise BadParams(
                    f"the function returned a {leaf.layout} tensor: return it with to_dense()"
                )
            self.array = leaf.detach()
            self.spec = ArraySpec(dtypes.of_torch(leaf.dtype), tuple(leaf.shape))
        else:
            source = arrays.ArraySource(leaf)
            self.spec = source.spec
            self._storage = source.memory
            self.array = leaf if isinstance(leaf, np.ndarray) else source.memory

    def storage(self) -> Any:
        """A NumPy array over its bytes in a dtype that NumPy always has."""
        return self._storage

    def detach(self) -> None:
        """Become a copy, if it may be a view on an arena."""
        if not self.may_overlap:
            return
        self._is_own = True
        if self.is_torch:
            self.array = self.array.clone()
        else:
            self.array = self.array.copy()
            self._storage = self._storage.copy()

    @property
    def may_overlap(self) -> bool:
        """Whether it may be a view on an arena instead of memory of the function's own."""
        if self._is_own:
            return False
        if self.is_torch:
            return bool(self.array.device.type == "cpu" and self.spec.nbytes)
        return self.array.base is not None and bool(self.spec.nbytes)


def _strided() -> Any:
    import torch

    return torch.strided


def rows_of(specs: Sequence[ArraySpec]) -> int | None:
    """The length of the arrays' axis 0; None where they have none, or not all the same."""
    lengths = {spec.shape[:1] for spec in specs}
    if len(lengths) != 1 or () in lengths:
        return None
    return lengths.pop()[0]


def check_rows(array: Any, total: int, name: str) -> None:
    """Raise BadParams unless a batched function's output has a row for each row it got."""
    shape = tuple(array.shape)
    if not shape or shape[0] != total:
        raise BadParams(
            f"{name} is batched: it got {total} rows and must return arrays whose axis 0 has "
            f"as many, not the shape {shape}"
        )
