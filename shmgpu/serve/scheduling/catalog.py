"""The models as a worker calls them, by name and version, as the control table has them now.

Owns the look-up, and what the worker's port needs to call each model. Never calls one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.common.logs import logger
from shmgpu.serve.models import preprocessing
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.metadata import ModelMetadata, TensorMetadata
from shmgpu.serve.protocol.types import InferRequest, ProtocolError, cut_name
from shmgpu.serve.scheduling.queues import ModelQueue, level_of
from shmgpu.serve.scheduling.rows import FunctionRows, ServerFunction
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.counters import FIELDS, INDEX
from shmgpu.serve.state.imported_modules import ImportedModules
from shmgpu.serve.state.repository import MODELS_OF_A_SOURCE


class ServedModel(ServerFunction):
    """One version of a model: a target of the port's calls, and its declaration.

    Attributes:
        description: as in the table; see :class:`shmgpu.serve.models.declaration.Description`.
        number: the first argument of ``infer``.
        index, base: the row of its counters, and where they begin.
        pending: where requests are counted that are pending with it.
        metadata: what requests are held against; its versions are this one alone.
        input_index, output_index: of inputs and outputs, by name.
        together: the target of the rows of several requests at once.
        in_regions: the target of requests with tensors in clients' regions, which are no rows of
            one array either.
        devices: of its helpers.
        queue: of its requests whose priority has no policy of its own.
        queues: of those whose priority has one, by priority.
        cache: whether its answers may be kept.
        takes_bytes: whether any of its inputs is BYTES; ``has_bytes``: what calls carry.
        sequence: whether its requests belong to sequences; then the target of those.
        prepare: what is done to inputs before a call carries them, and ``prepared``, what it gives;
            None and empty: nothing.
        steps: what is run here in the place of a call; None: it is no ensemble.
        streams: whether it answers in parts; then the targets that begin, continue and end that.
    """

    def __init__(
        self,
        description: dict[str, Any],
        number: int,
        index: int,
        source: dict[str, Any],
        rows: FunctionRows,
    ) -> None:
        self.description = description
        name: str = description["name"]
        self.version: str = description["version"]
        self.number = number
        self.devices: list[str] = []
        self.base = index * len(FIELDS)
        self.index = index
        self.pending = self.base + INDEX["pending_0"] + source["parity"]
        self.metadata = ModelMetadata(
            name,
            (self.version,),
            description["platform"],
            tuple(_declared(one) for one in description["inputs"]),
            tuple(_declared(one) for one in description["outputs"]),
            description["max_batch_size"],
        )
        self.inputs = [datatypes.DATATYPES[one.datatype] for one in self.metadata.inputs]
        self.outputs = [datatypes.DATATYPES[one.datatype] for one in self.metadata.outputs]
        self.input_index = {one.name: index for index, one in enumerate(self.metadata.inputs)}
        self.output_index = {one.name: index for index, one in enumerate(self.metadata.outputs)}
        self.max_batch_size: int = description["max_batch_size"]
        self.templates: dict[bytes | int, Any] = {}  # see shmgpu.serve.scheduling.templates
        self.prepared = [_declared(one) for one in description["prepared"]]
        self.prepare = _found(description, "prepare", source) if self.prepared else None
        self.steps = _found(description, "steps", source) if description["steps"] else None
        taken = [] if self.prepared else self.inputs  # what is prepared is plain numbers
        self.takes_bytes = any(one.kind == "bytes" for one in self.inputs)
        self.has_bytes = any(one.kind == "bytes" for one in (*taken, *self.outputs))
        # Elements of BYTES differ in length, so such requests are no rows of one array.
        max_rows = 0 if self.has_bytes else self.max_batch_size
        function = rows.of(description["arrays"], max_rows, description["max_delay_ms"])
        super().__init__(function, source["pool"] or None, name, max_rows)
        self.together = ServerFunction(
            rows.infer_together[description["arrays"]], self.pool, name, max_rows
        )
        self.in_regions = ServerFunction(rows.infer_in_regions, self.pool, name)
        self._gathered: dict[int, ServerFunction] = {}
        self._gathering = rows.infer_gathered
        plain = {"timeout_action": "REJECT", "allow_timeout_override": True}
        self.queue = ModelQueue(self.pending, {**plain, **description})
        self.queues = {
            int(level): ModelQueue(self.pending, policy)
            for level, policy in description["priority_queue_policy"].items()
        }
        self.cache: bool = description["cache"]
        self.sequence: bool = description["sequence"]
        self.in_sequence = ServerFunction(
            rows.infer_in_sequence[description["arrays"]], self.pool, name
        )
        self.streams: bool = description["streams"]
        self.opening = ServerFunction(rows.open_stream[description["arrays"]], self.pool, name)
        self.continuing = ServerFunction(rows.next_part, self.pool, name)
        self.closing = ServerFunction(rows.close_stream, self.pool, name)

    def gathered(self, rows: int) -> ServerFunction:
        """The target of small requests in regions, of so many rows each."""
        found = self._gathered.get(rows)
        if found is None:
            most = self.batch_max_rows // rows
            found = ServerFunction(self._gathering, self.pool, self.name, most)
            self._gathered[rows] = found
        return found

    @property
    def only_queue(self) -> ModelQueue | None:
        """The queue of any request; None where that depends on its priority."""
        return None if self.queues else self.queue

    def queue_of(self, request: InferRequest) -> ModelQueue:
        """The queue that a request waits in."""
        return self.queues.get(level_of(request), self.queue) if self.queues else self.queue


def _found(description: dict[str, Any], key: str, source: dict[str, Any]) -> preprocessing.Prepare:
    """The function that a key names; or one that refuses, where this process cannot import it."""
    try:
        return preprocessing.find(description[key], source["path"], key)
    except Exception as error:
        logger.error("model %s cannot be served: %s", description["name"], error)
        why = f"this worker cannot find {key}= of '{description['name']}': its log says why"

        def refuse(*inputs: Any) -> Any:
            raise ProtocolError(500, why)

        return refuse


def _declared(one: dict[str, Any]) -> TensorMetadata:
    return TensorMetadata(
        one["name"], one["datatype"], tuple(one["shape"]), one["optional"], tuple(one["labels"])
    )


class Catalog:
    """What can be called, for one worker.

    Attributes:
        when_changed: functions that are called when the table was seen to have changed.
    """

    def __init__(
        self, table: ControlTable, rows: FunctionRows, modules: ImportedModules | None = None
    ) -> None:
        self.table = table
        self._modules = modules  # that functions of models use here, and whose files are watched
        self.when_changed: list[Callable[[], None]] = []
        self.rows = rows
        self.version = -1
        self.state: dict[str, Any] = {}
        self.models: dict[str, dict[str, ServedModel]] = {}  # by name, by version
        self._known: dict[int, ServedModel] = {}
        self._found: dict[tuple[str, str], ServedModel] = {}

    def refresh(self) -> None:
        """Look whether the table has changed."""
        if self.version == self.table.version:
            return
        self.version, self.state = self.table.read()
        if self._modules is not None:
            self._modules.forget_changed()
        known: dict[int, ServedModel] = {}
        self.models = {}
        for source_number, source in self.state["sources"].items():
            if source["state"] != "READY":
                continue
            for position, description in enumerate(source["models"]):
                number = int(source_number) * MODELS_OF_A_SOURCE + position
                served = self._known.get(number)
                if served is None:
                    key = f"{description['name']}\n{description['version']}"
                    index = self.state["indices"][key]
                    served = ServedModel(description, number, index, source, self.rows)
                    served.devices = self.state["devices"][source["pool"]]
                known[number] = served
                self.models.setdefault(served.name, {})[served.version] = served
        if self._modules is not None:
            self._modules.stamps()
        self._known = known
        self._found = {}
        for told in self.when_changed:
            told()

    def find(self, name: str, version: str = "", status: int = 404) -> ServedModel:
        """A model that is ready; its highest version unless one is named.

        Raises:
            ProtocolError: there is none; with that status.
        """
        if self.version != self.table.version:
            self.refresh()
        served = self._found.get((name, version))
        if served is not None:
            return served
        versions = self.models.get(name)
        if not versions:
            raise ProtocolError(
                status, f"Request for unknown model: '{cut_name(name)}' is not found"
            )
        if version:
            served = versions.get(version)
            if served is None:
                raise ProtocolError(
                    status,
                    f"Request for unknown model: '{name}' version {cut_name(version)} is not found",
                )
        else:
            served = versions[max(versions, key=int)]
        self._found[name, version] = served
        return served
