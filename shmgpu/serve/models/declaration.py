"""What a model file declares: its models, their inputs and outputs, and how they are batched.

Owns the decorator, the checks of what it is given, and the description (plain data) by which
workers, which never import the file, know the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import index
from typing import Any

from shmgpu.errors import ConfigError
from shmgpu.serve.models import queue_policy
from shmgpu.serve.models.queue_policy import QueuePolicy
from shmgpu.serve.protocol import datatypes

MOST_ROWS = 4096  # of a batch; see rows.CAPACITY
MOST_DELAY_MS = 1000  # see rows.DELAYS_MS


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Args:
        name: what requests call it.
        datatype: as the Open Inference Protocol names it: ``"FP32"``, ``"INT64"``, ``"BYTES"``.
            A function that gets NumPy arrays finds BYTES in an array of ``bytes`` objects, and BF16
            as ml_dtypes' bfloat16, or without that package as an int16 array of the bits.
        shape: lengths of all axes, that of the batch first where there is one; -1 is any length.
        optional: a request may omit this input; the function gets None for it.
        labels: of an output's classes, for requests that ask for its best classes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a tensor's name must be text, not {self.name!r}")
        if not isinstance(self.datatype, str) or self.datatype not in datatypes.DATATYPES:
            raise ConfigError(
                f"tensor {self.name!r} has the datatype {self.datatype!r}: use one of "
                f"{', '.join(datatypes.DATATYPES)}"
            )
        try:
            shape = tuple(index(n) for n in self.shape)
        except TypeError:
            raise ConfigError(
                f"tensor {self.name!r}: shape={self.shape!r} must be lengths, such as (-1, 64)"
            ) from None
        if any(n < -1 for n in shape):
            raise ConfigError(f"tensor {self.name!r}: shape={shape} has a length below -1")
        if isinstance(self.labels, str) or not isinstance(self.labels, Sequence):
            raise ConfigError(
                f"tensor {self.name!r}: labels={self.labels!r} must be a list, in order of classes"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))


@dataclass(frozen=True)
class Description:
    """A model as workers know it: plain data, from a helper that has loaded it.

    Attributes:
        name: what requests call it.
        version: as text, an integer.
        inputs, outputs: dictionaries with the fields of :class:`Tensor`.
        max_batch_size: rows that run as one; 0: axis 0 is no batch, requests run one by one.
        max_delay_ms: how long a request may wait for company.
        arrays: ``"numpy"`` or ``"torch"``.
        streams: whether it yields several results for a request.
        platform: what it was made of, as ``python`` or ``torchscript``.
        parameters: free text by name, shown in its configuration.
        sequence: whether its requests belong to sequences.
        cache: whether the same input always has the same answer.
        prepare: what workers do to a request's inputs, ``"module:function"``; empty: nothing.
        prepared: what that gives, as ``inputs``; empty where there is none.
        cuda_graphs: whether its batches are to run as CUDA graphs.
        max_queue_size: its requests that may wait or run at once; 0: as many as the server takes.
        default_timeout_ms: of its requests that name none; 0: they have none.
        steps: what workers run instead of a call, ``"module:function"``; empty: it is no ensemble.
        priority_queue_policy: fields of :class:`shmgpu.serve.models.queue_policy.QueuePolicy`, by
            the priority as text.
    """

    name: str
    version: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    max_batch_size: int = 0
    max_delay_ms: float = 0.0
    arrays: str = "numpy"
    streams: bool = False
    platform: str = "python"
    parameters: dict[str, str] | None = None
    sequence: bool = False
    cache: bool = False
    prepare: str = ""
    prepared: list[dict[str, Any]] = field(default_factory=list)
    cuda_graphs: bool = False
    max_queue_size: int = 0
    default_timeout_ms: float = 0.0
    steps: str = ""
    priority_queue_policy: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the control table."""
        return asdict(self)


def _listed(tensors: Any) -> tuple[Any, ...]:
    """Of what should be a list; none where it is none."""
    return tuple(tensors) if isinstance(tensors, Iterable) else ()


class Model:
    """A function that is served; what :func:`model` makes of the one it decorates."""

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        name: str = "",
        max_batch_size: int = 0,
        max_delay_ms: float = 0.0,
        arrays: str = "numpy",
        warmup: Callable[[], Any] | Sequence[Any] | None = None,
        platform: str = "python",
        parameters: dict[str, str] | None = None,
        sequence: bool = False,
        cache: bool = False,
        prepare: str = "",
        prepared: Sequence[Tensor] = (),
        cuda_graphs: bool = False,
        max_queue_size: int = 0,
        default_timeout_ms: float = 0.0,
        steps: str = "",
        priority_queue_policy: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        self.body = body
        self.name = name or getattr(body, "__name__", "model")
        self._check_kinds(max_delay_ms, parameters, prepare)
        self.steps = steps
        self.inputs = _listed(inputs)
        self.outputs = _listed(outputs)
        self.max_batch_size = max_batch_size
        self.max_delay_ms = float(min(max_delay_ms, 1e300))  # an int may be larger than floats
        self.arrays = arrays
        self.warmup = warmup
        self.platform = platform
        self.parameters = dict(parameters or {})
        self.sequence = sequence
        self.cache = cache
        self.prepare = prepare
        self.prepared = _listed(prepared)
        self.cuda_graphs = cuda_graphs
        self.streams = inspect.isgeneratorfunction(body)
        try:
            self.policy = QueuePolicy(max_queue_size, default_timeout_ms)
        except ConfigError as error:
            raise ConfigError(f"model {self.name!r}: {error}") from None
        try:
            self.policies = queue_policy.checked(priority_queue_policy, sequence or self.streams)
        except ConfigError as error:
            raise ConfigError(f"model {self.name!r}: priority_queue_policy=: {error}") from None
        self._check()
        self.taken = self.prepared or self.inputs  # what the function gets

    def _check_kinds(self, max_delay_ms: Any, parameters: Any, prepare: Any) -> None:
        """What the rest takes for granted."""
        if not isinstance(self.name, str) or "/" in self.name or not self.name.isprintable():
            raise ConfigError(
                f"model {self.name!r}: a name must be text that can be a part of a path: leave out "
                "slashes and line ends"
            )
        if inspect.iscoroutinefunction(self.body) or inspect.isasyncgenfunction(self.body):
            raise ConfigError(
                f"model {self.name!r} is an async function, and a helper runs one call at a time: "
                "make it a plain one"
            )
        for value, kinds, what in (
            (max_delay_ms, (int, float), "max_delay_ms= must be a number"),
            (parameters, (dict, type(None)), "parameters= must be a dictionary of text"),
            (prepare, str, 'prepare= must be "module:function"'),
        ):
            if not isinstance(value, kinds):
                raise ConfigError(f"model {self.name!r}: {what}, not {value!r}")

    def _check(self) -> None:
        declared = [(self.inputs, "inputs"), (self.outputs, "outputs")]
        if self.prepare or self.prepared:
            declared.append((self.prepared, "prepared"))
            if not _names_function(self.prepare):
                raise ConfigError(
                    f"model {self.name!r}: prepare={self.prepare!r} must be "
                    '"module:function", and prepared= what that returns'
                )
            if any(one.datatype in ("BYTES", "BF16") for one in self.prepared):
                raise ConfigError(
                    f"model {self.name!r}: prepared= must be plain numbers, not BYTES or BF16"
                )
        for tensors, what in declared:
            if not tensors or not all(isinstance(one, Tensor) for one in tensors):
                raise ConfigError(f"model {self.name!r}: {what}= must list Tensors, at least one")
            names = [one.name for one in tensors]
            if len(set(names)) < len(names):
                raise ConfigError(f"model {self.name!r}: two {what} have the same name")
        self._check_signature()
        size = self.max_batch_size
        if not isinstance(size, int) or not 0 <= size <= MOST_ROWS:
            raise ConfigError(
                f"model {self.name!r}: max_batch_size={size!r} must be rows, 0 to {MOST_ROWS}"
            )
        if not 0 <= self.max_delay_ms <= MOST_DELAY_MS:
            raise ConfigError(
                f"model {self.name!r}: max_delay_ms={self.max_delay_ms:g} must be 0 to "
                f"{MOST_DELAY_MS}"
            )
        if self.arrays not in ("numpy", "torch"):
            raise ConfigError(
                f'model {self.name!r}: arrays={self.arrays!r} must be "numpy" or "torch"'
            )
        if self.sequence and (size or self.streams):
            raise ConfigError(
                f"model {self.name!r} keeps a state for each sequence, so its requests run one by "
                "one: omit max_batch_size=, and return what it would yield"
            )
        if self.cache and (self.sequence or self.streams):
            raise ConfigError(
                f"model {self.name!r}: cache=True is for models that answer at once and by their "
                "inputs alone: omit it"
            )
        if self.cuda_graphs:
            self._check_graphs()
        if size:
            for one in (*self.inputs, *self.prepared, *self.outputs):
                if not one.shape or one.shape[0] != -1:
                    raise ConfigError(
                        f"model {self.name!r} is batched, so axis 0 of {one.name!r} is its rows: "
                        f"write shape=(-1, ...), not {one.shape}"
                    )

    def _check_graphs(self) -> None:
        if self.arrays != "torch" or not self.max_batch_size or self.streams:
            raise ConfigError(
                f"model {self.name!r}: cuda_graphs is for batched models of torch that answer at "
                'once: omit it, or use max_batch_size, arrays="torch" and no yield'
            )
        for one in (*(self.prepared or self.inputs), *self.outputs):
            if one.datatype == "BYTES":
                raise ConfigError(
                    f"model {self.name!r}: cuda_graphs is for tensors of numbers, and {one.name!r} "
                    "is BYTES: omit it"
                )

    def _check_signature(self) -> None:
        """What it is called with: the helper, a sequence's state, then the inputs in order."""
        taken = self.prepared or self.inputs
        words = ["helper", *(["state"] if self.sequence else []), *(one.name for one in taken)]
        try:
            signature = inspect.signature(self.body)
        except (TypeError, ValueError):  # one made in C
            return
        try:
            signature.bind(*words)
        except TypeError:
            raise ConfigError(
                f"model {self.name!r} has the parameters {signature}, and is called with "
                f"({', '.join(words)}): take the helper first, then each input"
            ) from None

    def __call__(self, helper: Any, *args: Any) -> Any:
        """The function itself."""
        return self.body(helper, *args)

    def describe(self, version: str) -> Description:
        """What workers are told of it."""
        return Description(
            self.name,
            version,
            [asdict(one) for one in self.inputs],
            [asdict(one) for one in self.outputs],
            self.max_batch_size,
            self.max_delay_ms,
            self.arrays,
            self.streams,
            self.platform,
            self.parameters,
            self.sequence,
            self.cache,
            self.prepare,
            [asdict(one) for one in self.prepared],
            self.cuda_graphs,
            self.policy.max_queue_size,
            self.policy.default_timeout_ms,
            self.steps,
            queue_policy.described(self.policies),
        )


def model(
    *,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    name: str = "",
    max_batch_size: int = 0,
    max_delay_ms: float = 0.0,
    arrays: str = "numpy",
    warmup: Callable[[], Any] | Sequence[Any] | None = None,
    parameters: dict[str, str] | None = None,
    sequence: bool = False,
    cache: bool = False,
    prepare: str = "",
    prepared: Sequence[Tensor] = (),
    cuda_graphs: bool = False,
    max_queue_size: int = 0,
    default_timeout_ms: float = 0.0,
    priority_queue_policy: Mapping[int, QueuePolicy] | None = None,
) -> Callable[[Callable[..., Any]], Model]:
    """Serve the decorated function: ``function(helper, *inputs)`` returns its outputs in order.

    Args:
        inputs: what it takes after the helper, in order.
        outputs: what it returns: one array, or a tuple of as many as there are outputs, or a
            dictionary by name. A model of one output saves a copy by writing it to
            ``helper.out`` and returning that, as in ``np.add(x, x, out=helper.out)``: an array of
            the shape that inputs of these shapes gave last time, or None. Do not do so if the
            output has another shape, or is kept.
        name: what requests call the model; the function's name by default.
        max_batch_size: rows of several requests that may run as one; 0 runs each by itself.
        max_delay_ms: how long a request may wait for others; 0 runs what is queued. Allowed are 1,
            2, 5, 10, 20, ... 1000; other values are rounded down, to 1 at least.
        arrays: ``"numpy"``: read-only NumPy arrays; ``"torch"``: tensors on ``helper.device``,
            which must not be written to either.
        warmup: samples that are run before the model is ready: a list of tuples of inputs, or a
            function that returns one. By default one row of zeros, if all shapes are known.
        parameters: text by name, shown in the model's configuration.
        sequence: requests belong to sequences, and the function is called as ``function(helper,
            state, *inputs)``. ``state`` is the sequence's own dictionary: empty at its start, the
            same for each of its requests, which run in order in one helper, and dropped at its end.
            Requests of such a model run one by one.
        cache: the same inputs always have the same outputs, so that ``--response-cache`` may answer
            from memory.
        prepare: ``"module:function"``, which workers call with a request's inputs, as NumPy arrays,
            and whose results the decorated function gets instead: a tokeniser, say. The module lies
            beside the model's file or is installed; what it imports, each worker imports. A
            ValueError that it raises is answered 400, with its text. It may return
            ``PreparedInputs(arrays, parameters)``, whose parameters the answer has.
        prepared: what that returns, one array or a tuple of them or a dictionary by name.
        cuda_graphs: on a CUDA device, batches run as graphs that were captured from the warm-up
            samples; what the function does on the host is then done at the capture only. Needs
            ``arrays="torch"`` and a ``max_batch_size``.
        max_queue_size: requests of the model that may wait or run at once, divided among workers; a
            request beyond is answered 503. 0: as many as ``--max-queue`` lets the server take.
        default_timeout_ms: after which a request that names no ``timeout`` is answered 503; 0: none
            but the server's ``--timeout``.
        priority_queue_policy: a :class:`QueuePolicy` by priority, 1 to 3, and 4 for requests that
            name none: their own queue and time, instead of the two above.

    Raises:
        ConfigError: a declaration is impossible.

    Example:
        >>> from shmgpu.serve import Tensor, model
        >>> @model(inputs=[Tensor("x", "FP32", (-1, 4))], outputs=[Tensor("y", "FP32", (-1, 4))])
        ... def double(helper, x):
        ...     return 2 * x
        >>> double.name
        'double'
    """

    def decorate(body: Callable[..., Any]) -> Model:
        return Model(
            body,
            inputs=inputs,
            outputs=outputs,
            name=name,
            max_batch_size=max_batch_size,
            max_delay_ms=max_delay_ms,
            arrays=arrays,
            warmup=warmup,
            parameters=parameters,
            sequence=sequence,
            cache=cache,
            prepare=prepare,
            prepared=prepared,
            cuda_graphs=cuda_graphs,
            max_queue_size=max_queue_size,
            default_timeout_ms=default_timeout_ms,
            priority_queue_policy=priority_queue_policy,
        )

    return decorate


def ensemble(
    name: str,
    *,
    steps: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: dict[str, str] | None = None,
    max_queue_size: int = 0,
    default_timeout_ms: float = 0.0,
) -> Model:
    """A model that is a function which calls other models of the same server.

    Args:
        name: what requests call it.
        steps: ``"module:function"``, a coroutine that workers run as ``function(call, *inputs)``.
            ``await call("other", x=array)`` runs a model and gives its outputs, a dictionary by
            name; what one model gives is handed to the next without a copy. The module lies beside
            the model's file or is installed; each worker imports it. A ValueError that it raises is
            answered 400, with its text.
        inputs: what it takes after ``call``, in order: NumPy arrays.
        outputs: what it returns: one array, a tuple in order, or a dictionary by name.
        parameters: text by name, shown in the model's configuration.
        max_queue_size: as of :func:`model`.
        default_timeout_ms: as of :func:`model`, for all of its calls together.

    Raises:
        ConfigError: a declaration is impossible.
    """
    if not _names_function(steps):
        raise ConfigError(f'ensemble {name!r}: steps={steps!r} must be "module:function"')
    return Model(
        _in_workers,
        inputs=inputs,
        outputs=outputs,
        name=name,
        warmup=[],
        platform="ensemble",
        parameters=parameters,
        max_queue_size=max_queue_size,
        default_timeout_ms=default_timeout_ms,
        steps=steps,
    )


def _names_function(reference: str) -> bool:
    """Whether it has the form ``module:function``."""
    module, _, function = reference.partition(":")
    return bool(module) and function.isidentifier()


def _in_workers(helper: Any, *inputs: Any) -> Any:
    """Never called: workers run an ensemble's steps."""
    raise ConfigError("an ensemble is run by workers: call it as a model of the server")
