"""In helpers: batches of a torch model, captured as CUDA graphs when the model is warmed up.

Owns which sizes are captured, the arrays that a graph reads, and which batches run without one; the
capturing itself is that of :mod:`shmgpu.engine.capture`. Never knows a request.

A graph is for so many rows: 1, 2, 4 and so on, and the most that a batch may have. The smallest
graph that is large enough replays a batch. The batch's rows are copied over the first rows of the
graph's inputs; the remaining rows keep what they held, from earlier batches or the warm-up sample,
because those are values that the model can take. Outputs are copied out at once: the next replay
overwrites them, and an answer may wait for memory in its caller's arena until after that.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shmgpu.common.logs import logger
from shmgpu.engine.capture import Capture, NotCapturable, reason_of
from shmgpu.engine.cuda import CudaDriver

if TYPE_CHECKING:
    from shmgpu.engine.backends import Driver

# How a batch was run, in the metrics' words: replayed, or why not.
REPLAYED = "replayed"
NO_DEVICE = "no_device"  # the helper computes on the CPU
NOT_CAPTURED = "not_captured"  # the model cannot be captured, at least not in this size
UNSEEN_SHAPE = "unseen_shape"  # axes other than the first differ from all warm-up samples
FATES = (REPLAYED, NO_DEVICE, NOT_CAPTURED, UNSEEN_SHAPE)

Shapes = tuple[Any, ...]


def driver_of(device: str) -> Driver | None:
    """What captures on a helper's device, for all its models; None if the device is the CPU."""
    if device == "cpu":
        return None
    import torch

    return CudaDriver(torch, torch.device(device))


def sizes(most_rows: int) -> list[int]:
    """Numbers of rows that are captured: powers of two, and the most that a batch has."""
    powers = [1 << power for power in range(most_rows.bit_length())]
    return [*[size for size in powers if size < most_rows], most_rows]


class _CapturedGraph:
    """All captured graphs for inputs that differ in nothing but their rows.

    Attributes:
        inputs: of the largest; the others read their first rows. None: the input is omitted.
        sizes: rows of each graph, ascending.
        replays, outputs: of each graph.
    """

    def __init__(self, inputs: list[Any]) -> None:
        self.inputs = inputs
        self.sizes: list[int] = []
        self.replays: list[Callable[[], None]] = []
        self.outputs: list[list[Any]] = []


class CapturedGraphs:
    """The captured graphs of one model in one helper.

    Args:
        name: of the model, for the log.
        driver: of the helper; None: nothing is captured.
        body: of the model: inputs in order to outputs in order, one array or a tuple of them. What
            it does on the host is done when it is captured, and not again.
        most_rows: of a batch.
    """

    def __init__(
        self, name: str, driver: Driver | None, body: Callable[..., Any], most_rows: int
    ) -> None:
        self._name = name
        self._driver = driver
        self._body = body
        self._most_rows = most_rows
        self._by_shapes: dict[Shapes, _CapturedGraph] = {}
        self._told: set[str] = set()
        if driver is None:
            self._tell("the helper has no CUDA device")

    def capture(self, sample: Sequence[Any]) -> None:
        """Capture all sizes for inputs like these, with the rows repeated; log what fails."""
        shapes = _shapes(sample)
        if self._driver is None or shapes in self._by_shapes:
            return
        import torch

        with torch.no_grad():
            try:
                found = _CapturedGraph([_filled(torch, one, self._most_rows) for one in sample])
            except Exception as error:
                self._tell(reason_of(error))
                return
            self._by_shapes[shapes] = found
            # The largest first: the others then find its memory in the pool.
            for rows in reversed(sizes(self._most_rows)):
                try:
                    replay, outputs = self._captured(rows, found.inputs)
                except Exception as error:
                    self._tell(reason_of(error))
                    continue
                found.sizes.insert(0, rows)
                found.replays.insert(0, replay)
                found.outputs.insert(0, outputs)
            self._driver.finish()
        if found.sizes:
            logger.debug("model %s was captured for %s rows", self._name, found.sizes)

    def _captured(self, rows: int, inputs: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        assert self._driver is not None
        work = functools.partial(self._work, [_first(one, rows) for one in inputs])
        one: Capture[list[Any]] = Capture(self._driver)
        while not one.is_warm:
            _check(one.warm_up(work), rows, inputs)
        outputs = one.capture(work)
        assert one.replay is not None
        one.replay()  # the first replay uploads the graph to the device
        return one.replay, outputs

    def _work(self, inputs: list[Any]) -> list[Any]:
        result = self._body(*inputs)
        outputs = result if isinstance(result, tuple) else (result,)
        # Without what autograd would keep of the computation.
        return [one.detach() if hasattr(one, "detach") else one for one in outputs]

    def run(self, inputs: Sequence[Any]) -> tuple[Any, str]:
        """Replay a batch.

        Returns:
            The outputs in memory of their own, one array or a tuple; None if the batch is to run
            without a graph. And how it was run: one of ``FATES``.
        """
        if self._driver is None:
            return None, NO_DEVICE
        shapes = _shapes(inputs)
        found = self._by_shapes.get(shapes)
        if found is None:
            self._tell("these shapes were in no warm-up sample that could be captured")
            return None, UNSEEN_SHAPE
        rows = len(inputs[0])
        index = bisect.bisect_left(found.sizes, rows)
        if index == len(found.sizes):
            return None, NOT_CAPTURED
        import torch

        with torch.no_grad():
            given = [index for index, one in enumerate(inputs) if one is not None]
            self._driver.copy(
                [found.inputs[one][:rows] for one in given], [inputs[one] for one in given]
            )
            found.replays[index]()
            there = [one[:rows] for one in found.outputs[index]]
            outputs = [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in there]
            self._driver.copy(outputs, there)
        return (outputs[0] if len(outputs) == 1 else tuple(outputs)), REPLAYED

    def close(self) -> None:
        """Drop them, when the device has finished."""
        if self._driver is not None:
            self._driver.finish()
        self._by_shapes.clear()

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("model %s does not run as CUDA graphs: %s", self._name, reason)


def _shapes(inputs: Sequence[Any]) -> Shapes:
    """What must be the same for one graph: everything but the rows."""
    return tuple([None if one is None else (one.shape[1:], one.dtype) for one in inputs])


def _first(one: Any, rows: int) -> Any:
    return None if one is None else one[:rows]


def _filled(torch: Any, one: Any, rows: int) -> Any:
    """That many rows in memory of their own: the sample's rows, repeated."""
    if one is None:
        return None
    if not len(one):
        raise NotCapturable("a warm-up sample has no rows")
    return one[torch.arange(rows, device=one.device) % len(one)]


def _check(outputs: list[Any], rows: int, inputs: list[Any]) -> None:
    device = next(one.device for one in inputs if one is not None)
    for number, one in enumerate(outputs):
        if getattr(one, "device", None) != device:
            raise NotCapturable(f"output {number} is not a tensor on the helper's device")
        if not one.ndim or len(one) != rows:
            raise NotCapturable(f"output {number} has the shape {tuple(one.shape)} for {rows} rows")
