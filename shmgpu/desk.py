"""A helper's desk: check a private copy of a parameter block, call the function, put the result.

Owns the decoding of what children sent, the views on their arenas, and the results that were
too large for the room set aside (parked until the child makes room). The same code serves
``inline=True``. It trusts nothing in a block: the copy is read, every address is held against
the arena of the child that sent it, and only then is a view made.
"""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from shmgpu import arrays, core, dtypes, layout
from shmgpu.arrays import Spec
from shmgpu.errors import BadParams
from shmgpu.layout import Block, Layout, Signature
from shmgpu.log import logger
from shmgpu.values import Tree, decode_values, encode_values, flatten

_ndarray = np.ndarray
_count = core.count_bytes
_COPIED_OUT = core.BYTES_COPIED_OUT

MAX_ENTRIES = 4096  # whole blocks remembered, all functions together
PARKED_SECONDS = 60.0
MAX_TRACEBACK = 200_000  # characters


class Served(Protocol):
    """What a desk needs to know of a function."""

    name: str
    body: Callable[..., Any]
    arrays_kind: str
    pickle: bool


class Device(Protocol):
    """Where a helper's tensors live; see :mod:`shmgpu.device`."""

    is_cuda: bool

    def to_device(self, tensor: Any) -> Any:
        """A tensor on the device with the same contents."""

    def gather(self, tensors: Sequence[Any]) -> Any:
        """One tensor on the device: all of them, one after the other on axis 0."""

    def copy_out(self, destination: Any, tensor: Any) -> None:
        """Copy a tensor into arena memory; complete after :meth:`finish`."""

    def new_like(self, tensor: Any) -> Any:
        """An uninitialised tensor on the device, of that tensor's shape and dtype."""

    def finish(self) -> None:
        """Wait until all copies out are complete."""

    def failed(self, error: BaseException) -> bool:
        """Told of a function's exception; True when the device is beyond use."""


class Helper:
    """What a function gets as its first argument, and a session function as its only one.

    Attributes:
        id: number of the helper, from 0; ``inline`` calls see 0.
        device: ``"cpu"``, ``"cuda:0"``, ...
        session: what the session function returned, or None.
        out: the declared output arrays to write into, or None.
        pool: name of the helper's pool.
        generation: how many processes have held this place, this one included.
    """

    __slots__ = ("__dict__", "device", "generation", "id", "out", "pool", "session")

    def __init__(self, number: int, device: str, pool: str, generation: int) -> None:
        self.id = number
        self.device = device
        self.pool = pool
        self.generation = generation
        self.session: Any = None
        self.out: Any = None

    def __repr__(self) -> str:
        return f"<helper {self.id} on {self.device}, pool {self.pool!r}>"


class Entry:
    """A parameter block, read and checked: its arguments as views, and where the result goes."""

    __slots__ = (
        "declared",
        "function",
        "hint",
        "numpy_outs",
        "out_numpy",
        "room_bytes",
        "room_offset",
        "simple",
        "slot",
        "specs",
        "tensors",
        "torch_outs",
        "tree",
        "values",
        "views",
    )

    function: int
    slot: int
    tree: Tree
    specs: list[tuple[int, Spec]]
    values: list[Any]
    views: Any
    tensors: list[Any] | None
    simple: bool
    declared: bool
    hint: Any  # a Layout, or None
    room_offset: int
    room_bytes: int

    def __init__(self) -> None:
        self.torch_outs: list[Any] | None = None
        self.numpy_outs: list[Any] | None = None
        self.out_numpy: Any = None
        self.tensors = None
        self.views = None


class Desk:
    """Serves calls for one helper.

    Args:
        helper: what functions get as their first argument.
        functions: by row.
        memory: buffer over the memory in which all arenas lie.
        origin: address of its first byte.
        bounds: gives (first, last + 1) address of a child's arena.
        device: where tensors go.
        parked_limit: bytes of results that may wait for room.
    """

    def __init__(
        self,
        helper: Helper,
        functions: dict[int, Any],
        memory: Any,
        origin: int,
        bounds: Callable[[int], tuple[int, int]],
        device: Device,
        parked_limit: int = 256 << 20,
    ) -> None:
        self.helper = helper
        self.functions = functions
        self.memory = memory
        self.origin = origin
        self.device = device
        self.last_error: BaseException | None = None
        self.broken = False
        self.refusals = 0
        self._bounds_of = bounds
        self._bounds: dict[int, tuple[int, int]] = {}
        self._signatures: dict[bytes, Signature] = {}
        self._entries: dict[bytes, Entry] = {}
        self._parked: OrderedDict[tuple[int, int, int], tuple[Any, int, float]] = OrderedDict()
        self._parked_bytes = 0
        self._parked_limit = parked_limit

    # ---- one call ------------------------------------------------------------------------

    def serve(
        self, function: int, params: int, size: int, slot: int, generation: int, sequence: int
    ) -> tuple[int, int]:
        """Run one call: (status, value) for shm_helper_finish."""
        offset = params - self.origin
        block = self.memory[offset : offset + size]  # the one copy: only it is read from here on
        entry = self._entries.get(block)
        if entry is None or entry.function != function or entry.slot != slot:
            try:
                entry = self._admit(function, block, slot)
            except BadParams as error:
                self._refused(slot, error)
                return core.EBAD_PARAMS, 0
            except KeyError:
                return core.EBAD_FUNCTION, 0
        target = self.functions[function]
        helper = self.helper
        try:
            if entry.simple:
                result = target.body(helper, *[view.view() for view in entry.views])
                one = entry.out_numpy
                if (
                    one is not None
                    and type(result) is _ndarray
                    and result.shape == one.shape
                    and result.dtype == one.dtype
                ):
                    one[...] = result
                    _count(_COPIED_OUT, one.nbytes)
                    return 0, 0
            else:
                result = self._run(target, entry)
            return self._put(target, entry, result, (sequence, slot, generation))
        except BaseException as error:
            return self._put_error(entry, error, (sequence, slot, generation))

    def _run(self, target: Served, entry: Entry) -> Any:
        """Call the function the general way."""
        args, kwargs = entry.tree.build(self._leaves(target, entry), entry.values)
        helper = self.helper
        helper.out = None
        if entry.declared:
            helper.out = entry.hint.tree.build(self._outs(target, entry), ())
        try:
            result = target.body(helper, *args, **kwargs)
            return helper.out if result is None and entry.declared else result
        finally:
            helper.out = None

    def _leaves(self, target: Served, entry: Entry) -> list[Any]:
        if target.arrays_kind == "numpy":
            return [view.view() for view in entry.views]
        if entry.tensors is None:
            entry.tensors = [
                arrays.torch_view(self.memory, offset, spec) for offset, spec in entry.specs
            ]
        if self.device.is_cuda:
            return [self.device.to_device(tensor) for tensor in entry.tensors]
        return [tensor.detach() for tensor in entry.tensors]

    def _outs(self, target: Served, entry: Entry) -> list[Any]:
        if target.arrays_kind == "numpy":
            return [view.view() for view in self._numpy_outs(entry)]
        tensors = self._torch_outs(entry)
        if self.device.is_cuda:
            return [self.device.new_like(tensor) for tensor in tensors]
        return [tensor.detach() for tensor in tensors]

    def _numpy_outs(self, entry: Entry) -> list[Any]:
        if entry.numpy_outs is None:
            entry.numpy_outs = [
                arrays.storage_view(self.memory, entry.room_offset + offset, spec)
                if not spec.dtype.has_numpy
                else arrays.numpy_view(self.memory, entry.room_offset + offset, spec)
                for spec, offset in zip(entry.hint.specs, entry.hint.offsets, strict=True)
            ]
        return entry.numpy_outs

    def _torch_outs(self, entry: Entry) -> list[Any]:
        if entry.torch_outs is None:
            entry.torch_outs = [
                arrays.torch_view(self.memory, entry.room_offset + offset, spec)
                for spec, offset in zip(entry.hint.specs, entry.hint.offsets, strict=True)
            ]
        return entry.torch_outs

    def _refused(self, slot: int, error: BadParams) -> None:
        """Log the 1st, 2nd, 4th, 8th, ... refusal, so that no child can flood the log."""
        self.refusals += 1
        if self.refusals & (self.refusals - 1) == 0:
            logger.warning(
                "a call of child %d was refused: %s (refusal %d)", slot, error, self.refusals
            )

    # ---- reading a block -----------------------------------------------------------------

    def bounds(self, slot: int) -> tuple[int, int]:
        """First and last + 1 address of a child's arena."""
        found = self._bounds.get(slot)
        if found is None:
            found = self._bounds[slot] = self._bounds_of(slot)
        return found

    def _admit(self, function: int, data: bytes, slot: int) -> Entry:
        target = self.functions[function]
        block = Block(data)
        signature = self._signatures.get(block.signature)
        if signature is None:
            signature = Signature.read(block.signature)
            if len(self._signatures) >= MAX_ENTRIES:
                self._signatures.clear()
            self._signatures[block.signature] = signature
        specs = signature.arguments.specs
        if len(specs) != len(block.addresses):
            raise BadParams("the parameter block's arrays and addresses do not agree")
        first, end = self.bounds(slot)
        origin = self.origin
        places = []
        for address, spec in zip(block.addresses, specs, strict=True):
            if not first <= address <= end - spec.nbytes:
                raise BadParams("an argument does not lie in the caller's own arena")
            places.append((address - origin, spec))
        entry = Entry()
        entry.function = function
        entry.slot = slot
        entry.room_offset, entry.room_bytes = self._room(block, first, end)
        entry.hint = signature.hint
        entry.declared = signature.declared
        if entry.hint is not None and entry.hint.nbytes > entry.room_bytes:
            raise BadParams("the room for the result is smaller than the promised result")
        entry.specs = places
        entry.tree = signature.arguments.tree
        entry.values = decode_values(
            data, entry.tree.value_count, block.values_at, len(data), target.pickle
        )
        if target.arrays_kind == "numpy":
            entry.views = [arrays.numpy_view(self.memory, offset, spec) for offset, spec in places]
        entry.simple = (
            target.arrays_kind == "numpy" and not entry.declared and entry.tree.is_flat_arguments()
        )
        if entry.hint is not None and entry.hint.tree.is_one_array and not entry.declared:
            entry.out_numpy = self._numpy_outs(entry)[0]
        if not target.pickle and not any(type(v) is bytearray for v in entry.values):
            entries = self._entries
            if len(entries) >= MAX_ENTRIES:
                entries.clear()
            entries[data] = entry
        return entry

    def _room(self, block: Block, first: int, end: int) -> tuple[int, int]:
        address, size = block.result_address, block.result_bytes
        if not (first <= address <= end and size <= end - address):
            raise BadParams("the room for the result does not lie in the caller's own arena")
        return address - self.origin, size

    # ---- putting a result ----------------------------------------------------------------

    def _put(
        self, target: Served, entry: Entry, result: Any, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        flat = flatten(result, arrays.is_array, target.pickle)
        leaves = [Leaf(leaf) for leaf in flat.arrays]
        hint = entry.hint
        if (
            hint is not None
            and not flat.values
            and hint.tree.structure == flat.structure
            and all(leaf.spec == spec for leaf, spec in zip(leaves, hint.specs, strict=True))
        ):
            for index, leaf in enumerate(leaves):
                if leaf.is_torch:
                    outs = self._torch_outs(entry)
                    if outs[index].data_ptr() != leaf.array.data_ptr():
                        self.device.copy_out(outs[index], leaf.array)
                        _count(_COPIED_OUT, leaf.spec.nbytes)
                else:
                    out = self._numpy_outs(entry)[index]
                    if leaf.spec.nbytes and not _same_place(out, leaf.array):
                        out[...] = leaf.array
                        _count(_COPIED_OUT, leaf.spec.nbytes)
            self.device.finish()
            return core.OK, 0
        found = Layout(bytes(flat.structure), [leaf.spec for leaf in leaves])
        description = layout.describe_result(found, encode_values(flat.values, target.pickle))
        return self._put_described(core.OK, entry, found, description, leaves, key)

    def _put_described(
        self,
        status: int,
        entry: Entry,
        found: Layout,
        description: bytes,
        leaves: Sequence[Leaf],
        key: tuple[int, int, int],
    ) -> tuple[int, int]:
        needed = layout.result_bytes(description, found)
        if needed <= entry.room_bytes:
            place = entry.room_offset
            if any(leaf.may_overlap for leaf in leaves):
                # What the function returned may lie where the result goes.
                blob = self._blob(needed, found, description, leaves)
                self.memory[place : place + needed] = memoryview(blob).cast("B")
            else:
                self._write(self.memory, place, found, description, leaves)
            _count(_COPIED_OUT, needed)
            return status, needed
        if needed > self._parked_limit:
            return core.ETOO_LARGE, needed
        self._make_parking(needed)
        blob = self._blob(needed, found, description, leaves)
        self._parked[key] = (blob, status, time.monotonic() + PARKED_SECONDS)
        self._parked_bytes += needed
        return core.ENEEDS_SPACE, needed

    def _blob(self, size: int, found: Layout, description: bytes, leaves: Sequence[Leaf]) -> Any:
        blob = np.empty(size, np.uint8)
        self._write(blob.data, 0, found, description, leaves)
        return blob

    def _write(
        self,
        buffer: Any,
        place: int,
        found: Layout,
        description: bytes,
        leaves: Sequence[Leaf],
    ) -> None:
        buffer[place : place + len(description)] = description
        start = place + arrays.aligned(len(description))
        for leaf, spec, offset in zip(leaves, found.specs, found.offsets, strict=True):
            if leaf.is_torch:
                self.device.copy_out(arrays.torch_view(buffer, start + offset, spec), leaf.array)
            else:
                arrays.storage_view(buffer, start + offset, spec)[...] = leaf.storage()
        self.device.finish()

    def _put_error(
        self, entry: Entry, error: BaseException, key: tuple[int, int, int]
    ) -> tuple[int, int]:
        self.last_error = error
        self.broken = self.device.failed(error) or self.broken
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.broken = True
        try:
            text = "".join(traceback.format_exception(type(error), error, _user_frames(error)))[
                -MAX_TRACEBACK:
            ]
            values = (_type_name(error), _message(error), text)
            flat = flatten(values, arrays.is_array)
            found = Layout(bytes(flat.structure), ())
            description = layout.describe_result(found, encode_values(flat.values))
            return self._put_described(core.EREMOTE, entry, found, description, (), key)
        except Exception:
            logger.exception("an exception could not be sent to its caller")
            return core.EREMOTE, 0

    # ---- parked results ------------------------------------------------------------------

    def _make_parking(self, needed: int) -> None:
        now = time.monotonic()
        while self._parked:
            key, (_, _, until) = next(iter(self._parked.items()))
            if until > now and self._parked_bytes + needed <= self._parked_limit:
                break
            self._drop(key)

    def _drop(self, key: tuple[int, int, int]) -> tuple[Any, int, float] | None:
        parked = self._parked.pop(key, None)
        if parked is not None:
            self._parked_bytes -= len(parked[0])
        return parked

    def grow(
        self, params: int, size: int, slot: int, generation: int, sequence: int
    ) -> tuple[int, int]:
        """The child made room for a parked result (params == 0: it does not want it)."""
        parked = self._drop((sequence, slot, generation))
        if parked is None or params == 0:
            return (core.OK, 0) if params == 0 else (core.ETOO_LARGE, 0)
        blob, status, _ = parked
        offset = params - self.origin
        data = self.memory[offset : offset + size]
        try:
            place, room = self._room(Block(data), *self.bounds(slot))
        except BadParams as error:
            self._refused(slot, error)
            return core.EBAD_PARAMS, 0
        needed = len(blob)
        if needed > room:
            return core.EBAD_PARAMS, 0
        self.memory[place : place + needed] = memoryview(blob)
        _count(_COPIED_OUT, needed)
        return status, needed

    # ---- batches -------------------------------------------------------------------------

    def serve_batch(self, works: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """Run several calls as one: (status, value) for each.

        ``works`` holds (function, params, size, slot, generation, sequence) tuples. Inputs are
        concatenated on axis 0, outputs split on axis 0 by each call's rows.
        """
        outcomes: list[tuple[int, int] | None] = [None] * len(works)
        good: list[tuple[int, Entry, tuple[int, int, int]]] = []
        for index, (function, params, size, slot, generation, sequence) in enumerate(works):
            offset = params - self.origin
            block = self.memory[offset : offset + size]
            entry = self._entries.get(block)
            try:
                if entry is None or entry.function != function or entry.slot != slot:
                    entry = self._admit(function, block, slot)
                if good and not _batchable(good[0][1], entry):
                    raise BadParams("the call does not fit the batch that its key chose")
            except BadParams as error:
                self._refused(slot, error)
                outcomes[index] = (core.EBAD_PARAMS, 0)
                continue
            except KeyError:
                outcomes[index] = (core.EBAD_FUNCTION, 0)
                continue
            good.append((index, entry, (sequence, slot, generation)))
        if good:
            target = self.functions[good[0][1].function]
            for (index, entry, key), outcome in zip(
                good, self._run_batch(target, good), strict=True
            ):
                del entry, key
                outcomes[index] = outcome
        return [outcome or (core.EBAD_PARAMS, 0) for outcome in outcomes]

    def _run_batch(
        self, target: Served, good: list[tuple[int, Entry, tuple[int, int, int]]]
    ) -> list[tuple[int, int]]:
        entries = [entry for _, entry, _ in good]
        helper = self.helper
        rows = [entry.specs[0][1].shape[0] for entry in entries]
        try:
            args, kwargs = entries[0].tree.build(self._gather(target, entries), entries[0].values)
            helper.out = None
            if entries[0].declared:
                helper.out = self._batch_out(target, entries[0], sum(rows))
            declared = helper.out
            try:
                result = target.body(helper, *args, **kwargs)
            finally:
                helper.out = None
            if result is None and declared is not None:
                result = declared
            parts = _split(result, rows, target.name, target.pickle)
        except BaseException as error:
            return [self._put_error(entry, error, key) for _, entry, key in good]
        outcomes = []
        for (_, entry, key), part in zip(good, parts, strict=True):
            try:
                one = entry.out_numpy
                if (
                    one is not None
                    and type(part) is _ndarray
                    and part.shape == one.shape
                    and part.dtype == one.dtype
                ):
                    one[...] = part
                    _count(_COPIED_OUT, one.nbytes)
                    outcomes.append((core.OK, 0))
                else:
                    outcomes.append(self._put(target, entry, part, key))
            except BaseException as error:
                outcomes.append(self._put_error(entry, error, key))
        return outcomes

    def _gather(self, target: Served, entries: list[Entry]) -> list[Any]:
        gathered = []
        total = 0
        for position in range(len(entries[0].specs)):
            if target.arrays_kind == "numpy":
                joined = np.concatenate([entry.views[position] for entry in entries], axis=0)
                total += joined.nbytes
            else:
                parts = []
                for entry in entries:
                    if entry.tensors is None:
                        entry.tensors = [
                            arrays.torch_view(self.memory, offset, spec)
                            for offset, spec in entry.specs
                        ]
                    parts.append(entry.tensors[position])
                joined = self.device.gather(parts)
                if not self.device.is_cuda:
                    total += joined.nbytes
            gathered.append(joined)
        if total:
            _count(core.BYTES_GATHERED, total)
        return gathered

    def _batch_out(self, target: Served, entry: Entry, rows: int) -> Any:
        """Declared outputs of a batch: scratch arrays with everybody's rows."""
        outs: list[Any] = []
        for spec in entry.hint.specs:
            shape = (rows, *spec.shape[1:])
            if target.arrays_kind == "numpy":
                outs.append(np.empty(shape, spec.dtype.numpy))
            else:
                import torch

                outs.append(torch.empty(shape, dtype=spec.dtype.torch, device=self.helper.device))
        return entry.hint.tree.build(outs, ())


class Leaf:
    """One array of a result."""

    __slots__ = ("_storage", "array", "is_torch", "spec")

    def __init__(self, leaf: Any) -> None:
        self.is_torch = arrays.is_tensor(leaf)
        self._storage: Any = None
        if self.is_torch:
            if leaf.layout is not _strided():
                raise BadParams(
                    f"the function returned a {leaf.layout} tensor: return it with to_dense()"
                )
            self.array = leaf.detach()
            self.spec = Spec(dtypes.of_torch(leaf.dtype), tuple(leaf.shape))
        else:
            source = arrays.Source(leaf)
            self.spec = source.spec
            self._storage = source.memory
            self.array = leaf if isinstance(leaf, np.ndarray) else source.memory

    def storage(self) -> Any:
        """A NumPy array over its bytes in a dtype that NumPy always has."""
        return self._storage

    @property
    def may_overlap(self) -> bool:
        """Whether it may be a view on an arena instead of memory of the function's own."""
        if self.is_torch:
            return bool(self.array.device.type == "cpu" and self.spec.nbytes)
        return self.array.base is not None and bool(self.spec.nbytes)


def _strided() -> Any:
    import torch

    return torch.strided


def _same_place(out: Any, array: Any) -> bool:
    return array.flags.c_contiguous and core.address_of(out) == core.address_of(array)


def _batchable(first: Entry, other: Entry) -> bool:
    return (
        first.function == other.function
        and first.tree.structure == other.tree.structure
        and len(other.specs) > 0
        and all(
            a.dtype.name == b.dtype.name and a.shape[1:] == b.shape[1:] and b.shape
            for (_, a), (_, b) in zip(first.specs, other.specs, strict=True)
        )
        and len({spec.shape[0] for _, spec in other.specs}) == 1
        and encode_values(first.values, True) == encode_values(other.values, True)
    )


def _split(result: Any, rows: list[int], name: str, pickle: bool) -> list[Any]:
    """Cut each array of a batch's result on axis 0 into one part for each call."""
    total = sum(rows)
    if type(result) is _ndarray or arrays.is_tensor(result):
        _check_rows(result, total, name)
        return _cut(result, rows)
    flat = flatten(result, arrays.is_array, pickle)
    if not flat.arrays:
        raise BadParams(
            f"{name} is batched, so it must return arrays with one row for each row it got: "
            f"it returned a {type(result).__name__}"
        )
    for leaf in flat.arrays:
        _check_rows(leaf, total, name)
    tree = Tree(bytes(flat.structure))
    columns = [_cut(leaf, rows) for leaf in flat.arrays]
    return [
        tree.build([column[index] for column in columns], flat.values) for index in range(len(rows))
    ]


def _check_rows(array: Any, total: int, name: str) -> None:
    shape = tuple(array.shape)
    if not shape or shape[0] != total:
        raise BadParams(
            f"{name} is batched: it got {total} rows and must return arrays whose axis 0 has "
            f"as many, not the shape {shape}"
        )


def _cut(array: Any, rows: list[int]) -> list[Any]:
    parts = []
    start = 0
    for count in rows:
        parts.append(array[start : start + count])
        start += count
    return parts


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TRACEBACK]
    except Exception:
        return "(its text could not be made)"


def _user_frames(error: BaseException) -> Any:
    """The traceback from the user's function on, without the desk's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace or error.__traceback__
