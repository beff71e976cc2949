"""From a source to models: files loaded, samples run, and what they declare published.

Owns how each kind of file is loaded, the warm-up, and the errors of both, which name the file.
Never keeps a model: :mod:`shmgpu.serve.models.runner` does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from shmgpu.common import module_loader
from shmgpu.common.logs import logger
from shmgpu.common.progress import tell_terminal
from shmgpu.errors import ConfigError
from shmgpu.helper.decoded import Helper
from shmgpu.serve.models import conversion, preprocessing
from shmgpu.serve.models.adapters import ADAPTERS
from shmgpu.serve.models.cuda_graphs import CapturedGraphs
from shmgpu.serve.models.declaration import Model
from shmgpu.serve.models.errors import LoadFailed
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import MOST_MODELS
from shmgpu.serve.state.imported_modules import SERVED, Stamp


def module_name(source_number: int) -> str:
    """The name under which a source's file is imported."""
    return f"{SERVED}{source_number}"


def announce(text: str) -> None:
    """Say how far the loading is: to whoever looks at a terminal, otherwise to the log."""
    if not tell_terminal(text):
        logger.info("%s", text)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors raised in the block become LoadFailed, which says what raised them."""
    try:
        yield
    except ConfigError:  # our own sentence
        raise
    except (Exception, SystemExit) as error:
        said = str(error)
        kind = type(error).__name__ + (f": {said}" if said else "")
        raise LoadFailed(f"{what} raised {kind}") from error


def load_python(helper: Helper, source: dict[str, Any], source_number: int) -> list[Model]:
    """Import a model file: ``load(helper)`` makes its session, decorated functions are models."""
    path = source["path"]
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with explained(path):
        module = module_loader.anew(module_name(source_number), path, is_listed=True)
    load = getattr(module, "load", None)
    if load is not None:
        with explained(f"load() of {path}"):
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


def warm_up(model: Model, helper: Helper, path: str, captured: CapturedGraphs | None) -> None:
    """Run the model on its samples; capture its CUDA graphs, if it has any."""
    samples = _samples(model)
    if model.steps:
        preprocessing.find(model.steps, path, "steps")
    if model.prepare:  # looked up even without samples, so that a wrong name is reported at once
        samples = _prepared(model, preprocessing.find(model.prepare, path), samples)
    for sample in samples:
        inputs = [
            conversion.bfloat16(conversion.as_array(model, one, helper))
            if declared.datatype == "BF16" and one is not None
            else conversion.as_array(model, one, helper)
            for declared, one in zip(model.taken, sample, strict=True)
        ]
        result = model.body(helper, *([{}] if model.sequence else []), *inputs)
        if model.streams:
            for part in result:
                conversion.in_order(model, part)
        else:
            conversion.in_order(model, result, conversion.rows_of(model, inputs))
        if captured is not None:
            captured.capture(inputs)
    if samples:
        logger.debug("model %s was warmed up with %d samples", model.name, len(samples))


def _samples(model: Model) -> Any:
    """The samples that the model's file gives for its warm-up."""
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
    """Samples as workers would pass them on."""
    expected = [TensorMetadata(one.name, one.datatype, one.shape) for one in model.prepared]
    return [
        preprocessing.call(
            prepare, sample, expected, len(sample[0]) if model.max_batch_size else None
        )[0]
        for sample in samples
    ]


def _zeros(model: Model) -> list[tuple[Any, ...]]:
    """One row of zeros, if the declaration leaves nothing else open."""
    sample = []
    for one in model.inputs:
        shape = (1, *one.shape[1:]) if model.max_batch_size else one.shape
        if -1 in shape or one.datatype == "BYTES":
            return []
        sample.append(np.zeros(shape, datatypes.DATATYPES[one.datatype].storage))
    return [tuple(sample)]


def publish(
    table: ControlTable,
    source_number: int,
    described: list[dict[str, Any]],
    imported: dict[str, Stamp],
) -> list[int]:
    """Enter a source's models into the control table, once; the counters' index of each.

    Args:
        table: of the server.
        source_number: of the source.
        described: its models.
        imported: files of modules that are to be watched, as they were when they were imported.
    """
    with table.change() as state:
        source = state["sources"][str(source_number)]
        source["imported"].update(imported)
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
