"""In a helper: the models that it has loaded, and how a call runs one.

Owns a helper's model store: what it has loaded, by number. The models of a source are numbered from
``source * MODELS_OF_A_SOURCE``. A reload is another source, so the old and the new models stay
loaded side by side until nobody calls the old ones. A helper that is restarted loads what the
control table lists. Never knows HTTP or gRPC.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shmgpu.errors import ConfigError
from shmgpu.helper.decoded import Helper
from shmgpu.helper.process import end_copy
from shmgpu.serve.models import conversion, cuda_graphs, gathering, loading, memory_usage
from shmgpu.serve.models.cuda_graphs import FATES, CapturedGraphs
from shmgpu.serve.models.declaration import Model, Tensor
from shmgpu.serve.models.errors import Unloaded
from shmgpu.serve.models.generators import Generators
from shmgpu.serve.models.region_maps import RegionMaps
from shmgpu.serve.models.request_context import NO_REQUEST, RequestContext, Whose, split
from shmgpu.serve.models.response_parameters import ResponseContext, pack
from shmgpu.serve.models.sequences import Sequences
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import (
    FIELDS,
    INDEX,
    PART_FIELDS,
    Counters,
    batch_offset,
    part_offset,
)
from shmgpu.serve.state.imported_modules import ImportedModules
from shmgpu.serve.state.regions import ALONE, LOST
from shmgpu.serve.state.repository import MODELS_OF_A_SOURCE

MOST_SHAPES = 64  # of inputs, remembered for each model


_EXEC_COUNT, _EXEC_REQUESTS = INDEX["exec_count"], INDEX["exec_requests"]
_INPUT_NS, _INFER_NS, _OUTPUT_NS = INDEX["input_ns"], INDEX["infer_ns"], INDEX["output_ns"]
_FATES = {fate: INDEX[f"graph_{fate}"] for fate in FATES}
_PART = {name: 2 * number for number, name in enumerate(PART_FIELDS)}
_NO_MORE = object()  # parts of a stream
_now = time.monotonic_ns


class LoadedModel:
    """One model of a store.

    Attributes:
        model: what the file declared.
        helper: what its function gets: this helper, with the file's own session.
        index, base: the row of its counters, and where they begin.
        graphs: CUDA graphs of its batches; None if it does not ask for them.
        placed: shape and type of its only output that went to a region, by the inputs' shapes.
    """

    __slots__ = ("arriving", "base", "graphs", "helper", "index", "is_plain", "model", "placed")

    def __init__(
        self, model: Model, helper: Helper, index: int, graphs: CapturedGraphs | None
    ) -> None:
        self.model = model
        self.helper = helper
        self.index = index
        self.graphs = graphs
        self.base = index * len(FIELDS)
        # By position, what converts an input for the function; None: it needs no conversion.
        self.arriving = [conversion.ARRIVING.get(one.datatype) for one in model.taken]
        self.is_plain = not any(self.arriving)
        self.placed: dict[tuple[Any, ...], tuple[tuple[int, ...], np.dtype[Any]]] = {}

    @property
    def told(self) -> dict[str, Any]:
        """Parameters of the answer, as its function gave them last."""
        helper: Any = self.helper
        found: dict[str, Any] = helper.response.parameters
        return found

    def remember(self, inputs: Sequence[Any], output: Any) -> None:
        """Note an output that went to a region, so that the next one can be made there at once."""
        if type(output) is not np.ndarray or self.model.outputs[0].datatype == "BF16":
            return
        key, seen = conversion.shapes_of(inputs), (output.shape, output.dtype)
        if self.placed.get(key) == seen:
            return
        if len(self.placed) >= MOST_SHAPES:
            self.placed.clear()
        self.placed[key] = seen

    def taken(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs as the function gets them, from inputs as calls carry them."""
        return [
            one if arrives is None or one is None else arrives(one)
            for one, arrives in zip(inputs, self.arriving, strict=True)
        ]


class ModelStore:
    """What a helper has loaded: the session of a server's helpers."""

    def __init__(
        self,
        helper: Helper,
        table: ControlTable,
        counters: Counters,
        writer: int,
        sequences: Sequences,
        most_models: int,
        max_batch_size: int | None,
        modules: ImportedModules | None,
    ) -> None:
        self.helper = helper
        self.table = table
        self.file = counters.file
        self.counters = counters.of(writer)
        self.batches = counters.batches_of(writer)
        self.parts = counters.parts_of(writer)
        self.memory = counters.memory[writer]
        self.memory[...] = 0  # of whoever was this helper before
        self.loaded: dict[int, LoadedModel] = {}
        self.region_maps = RegionMaps(table)
        self.generators = Generators()
        self.sequences = sequences
        self.most_models = most_models  # of one file
        self.max_batch_size = max_batch_size  # instead of what models declare
        self.modules = modules  # whose files are watched; None: none are
        self._driver: Any = None  # made when the first model asks for CUDA graphs
        helper.when_children_leave.append(self.generators.forget_those_who_left)
        self.is_copy = False  # a process that a model forked
        os.register_at_fork(after_in_child=self._was_copied)

    def _was_copied(self) -> None:
        self.is_copy = True

    def load(self, source_number: int) -> None:
        """Load one source of the table: load its models, warm them up, publish them."""
        if source_number * MODELS_OF_A_SOURCE in self.loaded:
            return  # the helper was restarted meanwhile, and loaded it at its start
        source = self.table.read()[1]["sources"].get(str(source_number))
        if source is None:
            raise Unloaded("the model was unloaded")
        if self.modules is not None:
            self.modules.forget_changed()
        begun, used = _now(), memory_usage.in_use(self.helper.device)
        loading.announce(f"helper {self.helper.id} loads {source['path']}")
        helper = Helper(
            self.helper.id, self.helper.device, self.helper.pool, self.helper.generation
        )
        helper.request = NO_REQUEST  # type: ignore[attr-defined]
        helper.response = ResponseContext()  # type: ignore[attr-defined]
        try:
            models, captured = self._made(source, source_number, helper)
        finally:
            if self.is_copy:
                end_copy(f"the loading of {source['path']}")
        described = [model.describe(source["version"]).as_dict() for model in models]
        grown = self._grown(used)
        imported = self.modules.stamps() if self.modules is not None else {}
        indices = loading.publish(self.table, source_number, described, imported)
        for position, (model, index) in enumerate(zip(models, indices, strict=True)):
            number = source_number * MODELS_OF_A_SOURCE + position
            one = described[position]
            self.file.name(index, f"{one['name']} {one['version']}")
            self.loaded[number] = LoadedModel(model, helper, index, captured[position])
            self.memory[index] = grown
        names = ", ".join(model.name for model in models)
        took = (_now() - begun) / 1e9
        loading.announce(f"helper {self.helper.id} has loaded {names} in {took:.1f} s")

    def _made(
        self, source: dict[str, Any], source_number: int, helper: Helper
    ) -> tuple[list[Model], list[CapturedGraphs | None]]:
        """The models of a source, warmed up, and what was captured of each."""
        models = loading.LOADERS[source["kind"]](helper, source, source_number)
        if len(models) > self.most_models:
            raise ConfigError(
                f"{source['path']} declares {len(models)} models, more than {self.most_models}: "
                "use several files, or raise --models-per-file"
            )
        for model in models:
            if self.max_batch_size is not None and model.max_batch_size:
                model.max_batch_size = self.max_batch_size
        if source["name"] and len(models) == 1:
            models[0].name = source["name"]  # as clients call it, also in messages
        captured = [self._graphs(model, helper) for model in models]
        for model, own in zip(models, captured, strict=True):
            with loading.explained(f"the warm-up of model {model.name!r} in {source['path']}"):
                loading.warm_up(model, helper, source["path"], own)
        return models, captured

    def _grown(self, before: tuple[int, int]) -> np.ndarray[Any, Any]:
        """By how much the memory in use has grown since: a row of `Counters.memory`."""
        device = self.helper.device
        own, on_gpu = (
            max(now - then, 0)
            for now, then in zip(memory_usage.in_use(device), before, strict=True)
        )
        row: np.ndarray[Any, Any] = np.zeros_like(self.memory[0])
        row[0] = own
        gpu = memory_usage.gpu_of(device)
        if gpu is not None and gpu + 1 < len(row):
            row[gpu + 1] = on_gpu
        return row

    def _graphs(self, model: Model, helper: Helper) -> CapturedGraphs | None:
        if not model.cuda_graphs:
            return None
        if self._driver is None:
            self._driver = cuda_graphs.driver_of(helper.device)

        def body(*inputs: Any) -> Any:
            return conversion.in_order(model, model.body(helper, *inputs))

        return CapturedGraphs(model.name, self._driver, body, model.max_batch_size)

    def unload(self, source_number: int) -> None:
        """Forget a source's models and its session."""
        first = source_number * MODELS_OF_A_SOURCE
        for number in [n for n in self.loaded if first <= n < first + MODELS_OF_A_SOURCE]:
            loaded = self.loaded.pop(number)
            self.sequences.forget(number)
            if loaded.graphs is not None:
                loaded.graphs.close()
            if all(one.index != loaded.index for one in self.loaded.values()):
                self.memory[loaded.index] = 0
        sys.modules.pop(loading.module_name(source_number), None)

    def run(
        self,
        whose: Whose,
        inputs: Sequence[Any],
        targets: Sequence[Any] | None = None,
        first: tuple[Any, ...] = (),
        requests: int = 1,
    ) -> Any:
        """Run the model once: takes its inputs in order, returns its outputs in order.

        Args:
            whose: the model's number, and the parameters of the requests, if they have any.
            inputs: a BYTES tensor as (its shape, its bytes); one in a client's region as
                ``{"in": its region, offset and bytes, "shape": its shape}``.
            targets: (output's number, region, offset, bytes) for each output that goes to a region;
                such an output is returned as how many bytes it has, and its shape. None if no
                tensor is in a region.
            first: arguments of the function before the inputs.
            requests: how many the rows of each call belong to.
        """
        started = _now()
        self.region_maps.refresh()
        number, context = split(whose)
        loaded = self._loaded(number)
        model = loaded.model
        expected = self.helper.room
        if targets is not None:
            regions = [one["in"][0] for one in inputs if isinstance(one, dict)]
            inputs = [
                self._arrived(loaded, declared, one)
                for declared, one in zip(model.taken, inputs, strict=True)
            ]
            if targets:
                expected = self._in_region(loaded, inputs, targets, regions)
        elif not loaded.is_plain:
            inputs = loaded.taken(inputs)
        begun = _now()
        outputs, rows, ended = self._execute(loaded, context, (*first, *inputs), inputs, expected)
        if targets and outputs is expected:
            outputs = _told(outputs.shape, outputs.nbytes)
        elif targets:
            made, outputs = outputs, self._placed(model, outputs, targets)
            loaded.remember(inputs, made)
        if loaded.told:
            outputs = pack(outputs, loaded.told, f"model {model.name!r}", rows)
        self._count(loaded, rows, self.helper.calls * requests, (started, begun, ended))
        return outputs

    def run_gathered(
        self, number: int, shapes: Sequence[tuple[int, ...]], places: np.ndarray[Any, Any]
    ) -> Any:
        """Run the model once for several requests whose tensors all lie in clients' regions.

        Args:
            number: the model's.
            shapes: of each input of one request.
            places: int64, a row for each request: region, offset and bytes of each input, then of
                each output.

        Returns:
            For each output an int64 array with a row for each request: the output's bytes, and its
            shape. Instead of the bytes `LOST` or `ALONE`: that request must be sent by itself.
        """
        started = _now()
        self.region_maps.refresh()
        loaded = self._loaded(number)
        model, requests = loaded.model, places.tolist()
        gathered, there = gathering.gather(self.region_maps, model, shapes, requests)
        if not there:
            told = gathering.unlike(model, len(requests), LOST)
        else:
            inputs = [
                self._given(loaded, declared, one)
                for declared, one in zip(model.taken, gathered, strict=True)
            ]
            begun = _now()
            outputs, rows, ended = self._execute(loaded, NO_REQUEST, inputs, inputs, None)
            if loaded.told:
                told = gathering.unlike(model, len(requests), ALONE)
            else:
                made = [outputs] if len(model.outputs) == 1 else outputs
                told = gathering.scatter(self.region_maps, model, made, requests, there)
            self._count(loaded, rows, len(there), (started, begun, ended))
        return told[0] if len(told) == 1 else tuple(told)

    def _execute(
        self,
        loaded: LoadedModel,
        context: RequestContext,
        arguments: Sequence[Any],
        inputs: Sequence[Any],
        expected: Any,
    ) -> tuple[Any, int | None, int]:
        """The model's outputs in order, the batch's rows, and when the model had ended.

        ``arguments``: of its function; ``expected``: the memory that an output may be made in.
        """
        model = loaded.model
        rows = conversion.rows_of(model, inputs)
        own: Any = loaded.helper
        loaded.told.clear()  # of a warm-up, or of a call that has failed
        if loaded.graphs is not None:
            outputs, fate = loaded.graphs.run(inputs)
            self.counters[loaded.base + _FATES[fate]] += 1
            if outputs is not None:
                return outputs, rows, _now()
        own.out = expected
        own.request = context
        try:
            result = model.body(own, *arguments)
        finally:
            own.out = None
            if self.is_copy:
                end_copy(f"model {model.name!r}")
        ended = _now()
        return conversion.in_order(model, result, rows), rows, ended

    def _count(
        self, loaded: LoadedModel, rows: int | None, calls: int, times: tuple[int, int, int]
    ) -> None:
        """Count a run for so many requests: when it started, and the model began and ended."""
        started, begun, ended = times
        base, counters = loaded.base, self.counters
        counters[base + _EXEC_COUNT] += 1
        counters[base + _EXEC_REQUESTS] += calls
        spent = begun - started, ended - begun, _now() - ended
        counters[base + _INPUT_NS] += spent[0] * calls
        counters[base + _INFER_NS] += spent[1] * calls
        counters[base + _OUTPUT_NS] += spent[2] * calls
        for index, more in enumerate((1, *spent), batch_offset(loaded.index, rows or 1)):
            self.batches[index] += more

    def run_in_sequence(
        self,
        whose: Whose,
        name: str,
        starts: bool,
        ends: bool,
        inputs: Sequence[Any],
        targets: Sequence[Any],
    ) -> Any:
        """Run one request of the sequence ``name``, with its state; otherwise as :meth:`run`.

        A sequence whose first request fails has not begun; one whose last request fails is over.
        """
        number = split(whose)[0]
        loaded = self._loaded(number)
        key = number, name
        state = self.sequences.state(key, loaded.model.name, starts)
        try:
            result = self.run(whose, inputs, targets, (state,))
        except BaseException:
            ends = ends or starts
            raise
        finally:
            if ends:
                self.sequences.end(key)
        return result

    def open_stream(
        self, caller: tuple[int, int], whose: Whose, token: int, inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Start a streaming model; returns its first part, as :meth:`next_part` does."""
        number, context = split(whose)
        loaded = self._loaded(number)
        self.generators.open(caller, token, self._parts(loaded, loaded.taken(inputs), context))
        self.counters[loaded.base + _EXEC_COUNT] += 1
        self.counters[loaded.base + _EXEC_REQUESTS] += 1
        return self.next_part(caller, token)

    def next_part(self, caller: tuple[int, int], token: int) -> tuple[Any, ...]:
        """The next part: a tuple of its outputs; an empty one when there are no more."""
        return self.generators.next(caller, token)

    def _parts(
        self, loaded: LoadedModel, inputs: Sequence[Any], context: RequestContext
    ) -> Iterator[Any]:
        response = ResponseContext()
        parts = loaded.model.body(loaded.helper, *inputs)
        try:
            for place in itertools.count():
                part = self._part(loaded, parts, context, response, place)
                if part is _NO_MORE:
                    return
                try:
                    yield part
                except GeneratorExit:  # nobody wants the rest
                    begun = _now()
                    parts.close()
                    self._count_part(loaded, place + 1, cancel=_now() - begun)
                    raise
        finally:
            parts.close()

    def _part(
        self,
        loaded: LoadedModel,
        parts: Iterator[Any],
        context: RequestContext,
        response: ResponseContext,
        place: int,
    ) -> Any:
        """The next part of a stream as calls carry it, or _NO_MORE; and its times, counted."""
        own: Any = loaded.helper
        own.request, own.response = context, response  # others may have run since the last part
        told = response.parameters
        told.clear()
        begun, made = _now(), 0
        try:
            try:
                part = next(parts, _NO_MORE)
            finally:
                if self.is_copy:
                    end_copy(f"model {loaded.model.name!r}")
                made = _now()
                self.counters[loaded.base + _INFER_NS] += made - begun
            if part is _NO_MORE:
                self._count_part(
                    loaded, place, compute_infer=made - begun, empty_response=made - begun
                )
                return part
            outputs = conversion.in_order(loaded.model, part)
            if told:
                outputs = pack(outputs, told, f"model {loaded.model.name!r}", None)
        except BaseException:
            self._count_part(loaded, place, compute_infer=made - begun, fail=_now() - begun)
            raise
        ended = _now()
        self._count_part(
            loaded,
            place,
            compute_infer=made - begun,
            compute_output=ended - made,
            success=ended - begun,
        )
        return outputs

    def _count_part(self, loaded: LoadedModel, place: int, **spent_ns: int) -> None:
        """Count once, and for so long, what became of a part."""
        base, counters = part_offset(loaded.index, place), self.parts
        for name, ns in spent_ns.items():
            counters[base + _PART[name]] += 1
            counters[base + _PART[name] + 1] += ns

    def _loaded(self, number: int) -> LoadedModel:
        if number not in self.loaded:  # it was loaded while this helper was starting
            self.load(number // MODELS_OF_A_SOURCE)
        return self.loaded[number]

    def _arrived(self, loaded: LoadedModel, declared: Tensor, one: Any) -> Any:
        """An input of a call in which some are in regions."""
        if isinstance(one, dict):
            own = loaded.model.arrays == "torch"  # torch might write to it
            datatype = datatypes.DATATYPES[declared.datatype]
            one = self.region_maps.read(one["in"], datatype, one["shape"], own)
        elif declared.datatype == "BYTES":
            one = conversion.elements(one)
        return self._given(loaded, declared, one)

    def _given(self, loaded: LoadedModel, declared: Tensor, one: Any) -> Any:
        """An input that was brought here as an array, as the function gets it."""
        if declared.datatype == "BYTES" or one is None:
            return one
        one = conversion.as_array(loaded.model, one, loaded.helper)
        return conversion.bfloat16(one) if declared.datatype == "BF16" else one

    def _in_region(
        self,
        loaded: LoadedModel,
        inputs: Sequence[Any],
        targets: Sequence[Any],
        regions: Sequence[int],
    ) -> np.ndarray[Any, Any] | None:
        """An array in the region for a model's only output, if its shape was seen before."""
        known = loaded.placed.get(conversion.shapes_of(inputs)) if len(targets) == 1 else None
        if known is None:
            return None
        _, number, offset, nbytes = targets[0]
        return self.region_maps.output((number, offset, nbytes), *known, regions)

    def _placed(self, model: Model, outputs: Any, targets: Sequence[Any]) -> Any:
        """The outputs, after those that go to regions were written there."""
        found = [outputs] if len(model.outputs) == 1 else list(outputs)
        for which, *target in targets:
            shape, data = conversion.encoded(model, model.outputs[which], found[which])
            self.region_maps.write(target, data)
            found[which] = _told(shape, data.nbytes)
        return found[0] if len(found) == 1 else tuple(found)


def _told(shape: Sequence[int], nbytes: int) -> np.ndarray[Any, Any]:
    """An output that went to a region, as its call's result has it: an array, like any other."""
    return np.array((nbytes, *shape), np.int64)


class Opening:
    """The session function of a server's helpers: a store with all that the table lists."""

    def __init__(
        self,
        table: ControlTable,
        counters: Counters,
        first_row: int,
        most_sequences: int,
        sequence_idle_s: float,
        most_models: int,
        max_batch_size: int | None,
        is_watched: bool,
    ) -> None:
        self.table = table
        self.counters = counters
        self.first_row = first_row
        self.most_sequences = most_sequences
        self.sequence_idle_s = sequence_idle_s
        self.most_models = most_models
        self.max_batch_size = max_batch_size
        self.is_watched = is_watched

    def __call__(self, helper: Helper) -> ModelStore:
        """Run once in each helper."""
        store = ModelStore(
            helper,
            self.table,
            self.counters,
            self.first_row + helper.id,
            Sequences(self.most_sequences, self.sequence_idle_s),
            self.most_models,
            self.max_batch_size,
            ImportedModules() if self.is_watched else None,
        )
        for number, source in self.table.read()[1]["sources"].items():
            if source["pool"] != helper.pool or source["state"] == "UNAVAILABLE":
                continue
            # A source that is being loaded while the server runs is loaded by whoever asked for it:
            # it may have killed the last helper.
            if not (source["state"] == "LOADING" and source["is_rolled"]):
                store.load(int(number))
        return store
