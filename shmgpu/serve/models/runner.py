"""In a helper: models loaded from their files, and run.

Owns a helper's model store: what it has loaded, by number. The models of a source are numbered from
``source * MODELS_OF_A_SOURCE``; a reload is another source, so the old and the new stay loaded side
by side until nobody calls the old one. A helper that is restarted loads what the control table
lists. Never knows HTTP or gRPC.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.codec.arrays import is_array
from shmgpu.common import module_loader
from shmgpu.common.logs import logger
from shmgpu.errors import ConfigError
from shmgpu.helper.decoded import Helper
from shmgpu.helper.process import end_copy
from shmgpu.serve.models import cuda_graphs, preprocessing
from shmgpu.serve.models.adapters import ADAPTERS
from shmgpu.serve.models.cuda_graphs import FATES, CapturedGraphs
from shmgpu.serve.models.declaration import Model, Tensor
from shmgpu.serve.models.errors import LoadFailed, Unloaded
from shmgpu.serve.models.generators import Generators
from shmgpu.serve.models.region_maps import RegionMaps
from shmgpu.serve.models.sequences import Sequences
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import FIELDS, INDEX, MOST_MODELS, Counters, batch_offset
from shmgpu.serve.state.repository import MODELS_OF_A_SOURCE

MOST_SHAPES = 64  # of inputs, remembered for each model


_EXEC_COUNT, _EXEC_REQUESTS = INDEX["exec_count"], INDEX["exec_requests"]
_INPUT_NS, _INFER_NS, _OUTPUT_NS = INDEX["input_ns"], INDEX["infer_ns"], INDEX["output_ns"]
_FATES = {fate: INDEX[f"graph_{fate}"] for fate in FATES}
_now = time.monotonic_ns


class LoadedModel:
    """One model of a store.

    Attributes:
        model: what the file declared.
        helper: what its function gets: this helper, with the file's own session.
        index, base: the row of its counters, and where they begin.
        graphs: of its batches; None where it does not ask for them.
        placed: what its only output was that went to a region, by the inputs' shapes.
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
        # How an input becomes what the function gets, by position; None: as it comes.
        self.arriving = [_ARRIVING.get(one.datatype) for one in model.taken]
        self.is_plain = not any(self.arriving)
        self.placed: dict[tuple[Any, ...], tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def remember(self, inputs: Sequence[Any], output: Any) -> None:
        """What went to a region, so that the next one like it can be made there at once."""
        if type(output) is not np.ndarray or self.model.outputs[0].datatype == "BF16":
            return
        key, seen = _shapes(inputs), (output.shape, output.dtype)
        if self.placed.get(key) == seen:
            return
        if len(self.placed) >= MOST_SHAPES:
            self.placed.clear()
        self.placed[key] = seen

    def taken(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs as they came, as the function gets them."""
        return [
            one if arrives is None or one is None else arrives(one)
            for one, arrives in zip(inputs, self.arriving, strict=True)
        ]


class ModelStore:
    """What a helper has loaded; the session of a server's helpers."""

    def __init__(
        self,
        helper: Helper,
        table: ControlTable,
        counters: Counters,
        writer: int,
        sequences: Sequences,
    ) -> None:
        self.helper = helper
        self.table = table
        self.file = counters.file
        self.counters = counters.of(writer)
        self.batches = counters.batches_of(writer)
        self.loaded: dict[int, LoadedModel] = {}
        self.region_maps = RegionMaps(table)
        self.generators = Generators()
        self.sequences = sequences
        self._driver: Any = None  # made for the first model that asks for CUDA graphs
        helper.when_children_leave.append(self.generators.forget_those_who_left)
        self.is_copy = False  # a process that a model forked
        os.register_at_fork(after_in_child=self._was_copied)

    def _was_copied(self) -> None:
        self.is_copy = True

    def load(self, source_number: int) -> None:
        """Load one source of the table, warm its models up, publish them."""
        if source_number * MODELS_OF_A_SOURCE in self.loaded:
            return  # the helper was restarted meanwhile, and loaded it then
        source = self.table.read()[1]["sources"].get(str(source_number))
        if source is None:
            raise Unloaded("the model was unloaded")
        helper = Helper(
            self.helper.id, self.helper.device, self.helper.pool, self.helper.generation
        )
        try:
            models, captured = self._made(source, source_number, helper)
        finally:
            if self.is_copy:
                end_copy(f"the loading of {source['path']}")
        described = [model.describe(source["version"]).as_dict() for model in models]
        indices = publish(self.table, source_number, described)
        for position, (model, index) in enumerate(zip(models, indices, strict=True)):
            number = source_number * MODELS_OF_A_SOURCE + position
            one = described[position]
            self.file.name(index, f"{one['name']} {one['version']}")
            self.loaded[number] = LoadedModel(model, helper, index, captured[position])

    def _made(
        self, source: dict[str, Any], source_number: int, helper: Helper
    ) -> tuple[list[Model], list[CapturedGraphs | None]]:
        """The models of a source, warm, and what was captured of each."""
        models = LOADERS[source["kind"]](helper, source, source_number)
        if len(models) > MODELS_OF_A_SOURCE:
            raise ConfigError(f"{source['path']} declares more than {MODELS_OF_A_SOURCE} models")
        if source["name"] and len(models) == 1:
            models[0].name = source["name"]  # as clients call it, in all that is said of it
        captured = [self._graphs(model, helper) for model in models]
        for model, own in zip(models, captured, strict=True):
            with _told(f"the warm-up of model {model.name!r} in {source['path']}"):
                _warm_up(model, helper, source["path"], own)
        return models, captured

    def _graphs(self, model: Model, helper: Helper) -> CapturedGraphs | None:
        if not model.cuda_graphs:
            return None
        if self._driver is None:
            self._driver = cuda_graphs.driver_of(helper.device)

        def body(*inputs: Any) -> Any:
            return _in_order(model, model.body(helper, *inputs))

        return CapturedGraphs(model.name, self._driver, body, model.max_batch_size)

    def unload(self, source_number: int) -> None:
        """Forget a source's models and its session."""
        first = source_number * MODELS_OF_A_SOURCE
        for number in range(first, first + MODELS_OF_A_SOURCE):
            loaded = self.loaded.pop(number, None)
            if loaded is not None:
                self.sequences.forget(number)
                if loaded.graphs is not None:
                    loaded.graphs.close()
        sys.modules.pop(_module_name(source_number), None)

    def run(
        self,
        number: int,
        inputs: Sequence[Any],
        targets: Sequence[Any] | None = None,
        first: tuple[Any, ...] = (),
        requests: int = 1,
    ) -> Any:
        """One execution: inputs in order, what the model returned, in order.

        Args:
            number: of the model.
            inputs: a BYTES tensor as (its shape, its bytes); one in a client's region as
                ``{"in": its region, offset and bytes, "shape": its shape}``.
            targets: of outputs that go to regions, (which output, region, offset, bytes) each; an
                output that went there is given as (its shape, its bytes' number). None where no
                tensor is in a region.
            first: what the function gets before the inputs.
            requests: that the rows of each call belong to.
        """
        started = _now()
        self.region_maps.refresh()
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
        rows = _rows(model, inputs)
        outputs = None
        if loaded.graphs is not None:
            outputs, fate = loaded.graphs.run(inputs)
            self.counters[loaded.base + _FATES[fate]] += 1
        if outputs is None:
            own = loaded.helper
            own.out = expected
            try:
                result = model.body(own, *first, *inputs)
            finally:
                own.out = None
                if self.is_copy:
                    end_copy(f"model {model.name!r}")
            ended = _now()
            outputs = _in_order(model, result, rows)
        else:
            ended = _now()
        if targets and outputs is expected:
            outputs = outputs.shape, outputs.nbytes
        elif targets:
            made, outputs = outputs, self._placed(model, outputs, targets)
            loaded.remember(inputs, made)
        calls = self.helper.calls * requests
        base, counters = loaded.base, self.counters
        counters[base + _EXEC_COUNT] += 1
        counters[base + _EXEC_REQUESTS] += calls
        spent = begun - started, ended - begun, _now() - ended
        counters[base + _INPUT_NS] += spent[0] * calls
        counters[base + _INFER_NS] += spent[1] * calls
        counters[base + _OUTPUT_NS] += spent[2] * calls
        for index, more in enumerate((1, *spent), batch_offset(loaded.index, rows or 1)):
            self.batches[index] += more
        return outputs

    def run_in_sequence(
        self,
        number: int,
        name: str,
        starts: bool,
        ends: bool,
        inputs: Sequence[Any],
        targets: Sequence[Any],
    ) -> Any:
        """One request of the sequence ``name``, with what it keeps; otherwise as :meth:`run`.

        One that cannot be begun has not begun; one that ends is over even if that fails.
        """
        loaded = self._loaded(number)
        key = number, name
        state = self.sequences.state(key, loaded.model.name, starts)
        try:
            result = self.run(number, inputs, targets, (state,))
        except BaseException:
            ends = ends or starts
            raise
        finally:
            if ends:
                self.sequences.end(key)
        return result

    def open_stream(
        self, caller: tuple[int, int], number: int, token: int, inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Begin what a streaming model yields; its first part, as :meth:`next_part` gives it."""
        loaded = self._loaded(number)
        self.generators.open(caller, token, self._parts(loaded, loaded.taken(inputs)))
        self.counters[loaded.base + _EXEC_COUNT] += 1
        self.counters[loaded.base + _EXEC_REQUESTS] += 1
        return self.next_part(caller, token)

    def next_part(self, caller: tuple[int, int], token: int) -> tuple[Any, ...]:
        """One part: a tuple of its outputs alone; an empty one when that was all."""
        return self.generators.next(caller, token)

    def _parts(self, loaded: LoadedModel, inputs: Sequence[Any]) -> Iterator[Any]:
        parts = loaded.model.body(loaded.helper, *inputs)
        try:
            while True:
                begun = _now()
                try:
                    part = next(parts)
                except StopIteration:
                    return
                finally:
                    if self.is_copy:
                        end_copy(f"model {loaded.model.name!r}")
                    self.counters[loaded.base + _INFER_NS] += _now() - begun
                yield _in_order(loaded.model, part)
        finally:
            parts.close()

    def _loaded(self, number: int) -> LoadedModel:
        if number not in self.loaded:  # it was loaded while this helper was being started
            self.load(number // MODELS_OF_A_SOURCE)
        return self.loaded[number]

    def _arrived(self, loaded: LoadedModel, declared: Tensor, one: Any) -> Any:
        """An input of a call that has some in regions."""
        if isinstance(one, dict):
            own = loaded.model.arrays == "torch"  # torch would write where it may not
            datatype = datatypes.DATATYPES[declared.datatype]
            one = self.region_maps.read(one["in"], datatype, one["shape"], own)
        elif declared.datatype == "BYTES":
            one = _elements(one)
        if declared.datatype == "BYTES" or one is None:
            return one
        one = _as_array(loaded.model, one, loaded.helper)
        return _bfloat16(one) if declared.datatype == "BF16" else one

    def _in_region(
        self,
        loaded: LoadedModel,
        inputs: Sequence[Any],
        targets: Sequence[Any],
        regions: Sequence[int],
    ) -> np.ndarray[Any, Any] | None:
        """Where a model's only output goes in a region, if it is what it was the last time."""
        known = loaded.placed.get(_shapes(inputs)) if len(targets) == 1 else None
        if known is None:
            return None
        _, number, offset, nbytes = targets[0]
        return self.region_maps.output((number, offset, nbytes), *known, regions)

    def _placed(self, model: Model, outputs: Any, targets: Sequence[Any]) -> Any:
        """The outputs, of which those that go to regions are written there."""
        found = [outputs] if len(model.outputs) == 1 else list(outputs)
        for which, *target in targets:
            declared = model.outputs[which]
            datatype = datatypes.DATATYPES[declared.datatype]
            if declared.datatype == "BYTES":
                shape, array = found[which]
                data = array.data
            else:
                array = _on_host(found[which])
                shape = array.shape
                if array.dtype != datatype.storage and not (
                    datatype.name == "BF16" and array.dtype.itemsize == 2
                ):
                    raise ConfigError(
                        f"model {model.name!r} returned {array.dtype} for output "
                        f"{declared.name!r}, which is declared as {datatype.name}"
                    )
                data = datatypes.encode(datatype, array)
            self.region_maps.write((target[0], target[1], target[2]), data)
            found[which] = tuple(shape), data.nbytes
        return found[0] if len(found) == 1 else tuple(found)


class Opening:
    """The session function of a server's helpers: a store with all that the table lists."""

    def __init__(
        self,
        table: ControlTable,
        counters: Counters,
        first_row: int,
        most_sequences: int,
        sequence_idle_s: float,
    ) -> None:
        self.table = table
        self.counters = counters
        self.first_row = first_row
        self.most_sequences = most_sequences
        self.sequence_idle_s = sequence_idle_s

    def __call__(self, helper: Helper) -> ModelStore:
        """Run once in each helper."""
        store = ModelStore(
            helper,
            self.table,
            self.counters,
            self.first_row + helper.id,
            Sequences(self.most_sequences, self.sequence_idle_s),
        )
        for number, source in self.table.read()[1]["sources"].items():
            if source["pool"] != helper.pool or source["state"] == "UNAVAILABLE":
                continue
            # One that is being loaded while the server runs is loaded by whoever asked for it: it
            # may be what killed the last helper.
            if not (source["state"] == "LOADING" and source["is_rolled"]):
                store.load(int(number))
        return store


def publish(table: ControlTable, source_number: int, described: list[dict[str, Any]]) -> list[int]:
    """Enter a source's models into the table, once; the counters' index of each."""
    with table.change() as state:
        source = state["sources"][str(source_number)]
        replaced = source.get("replaces")
        taken = {}
        if not source["models"]:
            taken = {
                (model["name"], model["version"]): other["path"]
                for number, other in state["sources"].items()
                if other["state"] == "READY" and number not in (str(source_number), replaced)
                for model in other["models"]
            }
        indices = []
        for model in described:
            key = (model["name"], model["version"])
            if key in taken:
                raise ConfigError(
                    f"two files declare version {key[1]} of the model {key[0]!r} "
                    f"({taken[key]}, {source['path']}): give one of them another name"
                )
            index = state["indices"].setdefault("\n".join(key), len(state["indices"]))
            if index >= MOST_MODELS:
                raise ConfigError(
                    f"a server can load at most {MOST_MODELS} models in its life: restart it"
                )
            indices.append(index)
        source["models"] = described
        if source["state"] == "LOADING" and not source["is_rolled"]:
            source["state"] = "READY"
    return indices


# ---- loading -------------------------------------------------------------------------------


def _module_name(source_number: int) -> str:
    return f"shmgpu_served_{source_number}"


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What is raised meanwhile says of which model, and what it was doing."""
    try:
        yield
    except ConfigError:  # our own sentence
        raise
    except (Exception, SystemExit) as error:
        said = str(error)
        kind = type(error).__name__ + (f": {said}" if said else "")
        raise LoadFailed(f"{what} raised {kind}") from error


def load_python(helper: Helper, source: dict[str, Any], source_number: int) -> list[Model]:
    """Run a model file: ``load(helper)`` makes the session, decorated functions are models."""
    path = source["path"]
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _told(path):
        module = module_loader.anew(_module_name(source_number), path, is_listed=True)
    load = getattr(module, "load", None)
    if load is not None:
        with _told(f"load() of {path}"):
            helper.session = load(helper)
    found = [one for one in vars(module).values() if isinstance(one, Model)]
    models = list(dict.fromkeys(found))
    if not models:
        raise ConfigError(
            f"{path} declares no model: decorate a function with @shmgpu.serve.model(inputs=..., "
            "outputs=...)"
        )
    return models


def _adapted(helper: Helper, source: dict[str, Any], source_number: int) -> list[Model]:
    """A file that needs no code."""
    return [ADAPTERS[source["kind"]](helper, source["path"])]


LOADERS: dict[str, Callable[[Helper, dict[str, Any], int], list[Model]]] = {
    "python": load_python,
    **dict.fromkeys(ADAPTERS, _adapted),
}


def _warm_up(model: Model, helper: Helper, path: str, captured: CapturedGraphs | None) -> None:
    samples = _samples(model)
    if model.prepare:  # found in any case, so that a wrong name is told of before it is served
        samples = _prepared(model, preprocessing.find(model.prepare, path), samples)
    for sample in samples:
        inputs = [
            _bfloat16(_as_array(model, one, helper))
            if declared.datatype == "BF16" and one is not None
            else _as_array(model, one, helper)
            for declared, one in zip(model.taken, sample, strict=True)
        ]
        result = model.body(helper, *([{}] if model.sequence else []), *inputs)
        if model.streams:
            for part in result:
                _in_order(model, part)
        else:
            _in_order(model, result, _rows(model, inputs))
        if captured is not None:
            captured.capture(inputs)
    if samples:
        logger.debug("model %s was warmed up with %d samples", model.name, len(samples))


def _samples(model: Model) -> Any:
    """What the model is warmed up with, as its file says."""
    samples = model.warmup() if callable(model.warmup) else model.warmup
    if samples is None:
        return _zeros(model)
    samples = list(samples) if isinstance(samples, Iterable) else [None]
    if not all(isinstance(one, (list, tuple)) and len(one) == len(model.inputs) for one in samples):
        raise ConfigError(
            f"model {model.name!r}: warmup= must be a list of samples, each a tuple with a value "
            f"for each input ({', '.join(one.name for one in model.inputs)})"
        )
    return samples


def _prepared(model: Model, prepare: preprocessing.Prepare, samples: Any) -> list[Any]:
    """Samples as workers would hand them over."""
    expected = [TensorMetadata(one.name, one.datatype, one.shape) for one in model.prepared]
    return [
        preprocessing.call(
            prepare, sample, expected, len(sample[0]) if model.max_batch_size else None
        )
        for sample in samples
    ]


def _zeros(model: Model) -> list[tuple[Any, ...]]:
    """One row of zeros, where the declaration leaves nothing else open."""
    sample = []
    for one in model.inputs:
        shape = (1, *one.shape[1:]) if model.max_batch_size else one.shape
        if -1 in shape or one.datatype == "BYTES":
            return []
        sample.append(np.zeros(shape, datatypes.DATATYPES[one.datatype].storage))
    return [tuple(sample)]


def _as_array(model: Model, sample: Any, helper: Helper) -> Any:
    if model.arrays != "torch" or sample is None:
        return sample
    import torch

    if isinstance(sample, np.ndarray) and not sample.flags.writeable:
        return arrays.tensor_over(sample).to(helper.device)
    return torch.as_tensor(sample).to(helper.device)


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    """A model's output where its bytes can be read."""
    if isinstance(array, np.ndarray) or not hasattr(array, "detach"):
        return np.asarray(array)
    import torch

    tensor = array.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    found: np.ndarray[Any, Any] = tensor.numpy()
    return found


# ---- inputs and outputs --------------------------------------------------------------------


def _elements(carried: Any) -> Any:
    """A BYTES tensor, carried as (its shape, its bytes): an object array."""
    shape, data = carried
    data = np.asarray(data)
    return datatypes.decode(datatypes.DATATYPES["BYTES"], shape, data.data)


def _bfloat16(array: Any) -> Any:
    """A BF16 tensor, carried as the bits of its elements; those stay where NumPy has no name."""
    if not isinstance(array, np.ndarray):
        import torch

        return array.view(torch.bfloat16) if array.dtype == torch.int16 else array
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.int16 else array


_ARRIVING: dict[str, Callable[[Any], Any]] = {"BYTES": _elements, "BF16": _bfloat16}


def _shapes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if one is None else tuple(one.shape) for one in inputs)


def _rows(model: Model, inputs: Sequence[Any]) -> int | None:
    """Rows of a batch, of which every input that is there has as many; None: there is no batch."""
    return next(len(one) for one in inputs if one is not None) if model.max_batch_size else None


def _in_order(model: Model, result: Any, rows: int | None = None) -> Any:
    """What a model returned: one array, or as many as it has outputs, in order.

    Args:
        model: that returned it.
        result: as it came.
        rows: of the batch, of which axis 0 of each output has as many; None: there is no batch.

    Raises:
        ConfigError: it is not what the model declares.
    """
    outputs = model.outputs
    if isinstance(result, dict):
        missing = [one.name for one in outputs if one.name not in result]
        if missing:
            raise ConfigError(f"model {model.name!r} returned no output {missing[0]!r}")
        result = tuple(result[one.name] for one in outputs)
    if len(outputs) == 1 and not isinstance(result, tuple):
        # A list is the one array's elements, or a list of that array.
        is_listed = isinstance(result, list) and len(result) == 1 and is_array(result[0])
        result = result if is_listed else (result,)
    if not isinstance(result, (tuple, list)) or len(result) != len(outputs):
        what = f"{len(result)} values" if isinstance(result, (tuple, list)) else _kind(result)
        wanted = "one array" if len(outputs) == 1 else f"a tuple of {len(outputs)} arrays"
        raise ConfigError(
            f"model {model.name!r} returned {what}: return {wanted}, as it declares its outputs"
        )
    found = tuple(
        _carried(model, one, part, rows) for one, part in zip(outputs, result, strict=True)
    )
    return found[0] if len(outputs) == 1 else found


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _carried(model: Model, declared: Tensor, array: Any, rows: int | None) -> Any:
    """An output as a call carries it: BYTES as (its shape, its bytes), BF16 as its bits."""
    if declared.datatype == "BYTES":
        array = np.asarray(array, dtype=object)
        data = datatypes.join(array.reshape(-1).tolist())
        carried: Any = tuple(array.shape), np.frombuffer(data, np.uint8)
    elif not is_array(array):
        raise ConfigError(
            f"model {model.name!r} returned {_kind(array)} for output {declared.name!r}: return "
            "an array"
        )
    elif declared.datatype != "BF16":
        carried = array
    elif not isinstance(array, np.ndarray):
        import torch

        carried = array.to(torch.bfloat16).view(torch.int16)
    else:
        is_wide = array.dtype == np.float32
        carried = datatypes.round_bf16(array) if is_wide else array.view(np.int16)
    if rows is not None and (shape := getattr(array, "shape", None)) is not None:
        if not shape or shape[0] != rows:
            raise ConfigError(
                f"model {model.name!r} got {rows} rows and returned the shape {list(shape)} for "
                f"output {declared.name!r}: return one row for each"
            )
    return carried
