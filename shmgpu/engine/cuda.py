"""CUDA graphs through torch: how work is captured on a device, and launched again as one.

Owns the stream that captures and the memory that graphs share. Never knows a program. Source:
PyTorch's documentation, *CUDA semantics*, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class CudaDriver:
    """Captures on one device. Everything that it does is in order on the caller's stream.

    Args:
        torch: the module; most of torch.cuda has no types.
        device: of CUDA.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._stream: Any = None  # made at first use, as is all that needs a context
        self._pool: Any = None

    def _aside(self) -> Any:
        if self._stream is None:
            self._stream = self._torch.cuda.Stream(self._device)
        return self._stream

    def beside(self, work: Callable[[], T]) -> T:
        """Do the work on the capturing stream, after what is enqueued and before what will be.

        Libraries set themselves up for each stream in their first calls, which must not be
        captured. Each stream waits for the other, so memory may pass between them.
        """
        cuda, stream = self._torch.cuda, self._aside()
        current = cuda.current_stream(self._device)
        stream.wait_stream(current)
        try:
            with cuda.stream(stream):
                return work()
        finally:
            current.wait_stream(stream)

    def capture(
        self, work: Callable[[], T], generators: Sequence[Any]
    ) -> tuple[Callable[[], None], T]:
        """Capture the work without doing it: (what launches it, what it gave, where that will be).

        ``generators``: what the work draws from. A replay draws what follows from their seeds.
        """
        cuda, stream = self._torch.cuda, self._aside()
        if self._pool is None:
            self._pool = cuda.graph_pool_handle()
        current = cuda.current_stream(self._device)
        graph = cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            # Other threads (a monitor of libraries, pinned memory's) may call CUDA meanwhile.
            with cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                results = work()
        except BaseException:
            cuda.set_stream(current)  # torch itself does so only after a capture that succeeded
            self._leave_pool()
            raise
        return graph.replay, results

    def _leave_pool(self) -> None:
        """After a failure: make torch's allocator take memory from elsewhere again."""
        pool, self._pool = self._pool, None
        index = self._torch.cuda.current_device()
        try:
            self._torch._C._cuda_endAllocateToPool(index, pool)
        except RuntimeError:
            return  # it does already

    def copy(self, destinations: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy arrays of equal specs, with as few launches as possible."""
        self._torch._foreach_copy_(list(destinations), list(sources), non_blocking=True)

    def put_numbers(self, destination: Any, values: Sequence[Any]) -> None:
        """Copy plain numbers into an array of one axis."""
        torch = self._torch
        wide = torch.float64 if destination.dtype.is_floating_point else torch.int64
        made = torch.tensor(values, dtype=wide, device="cpu").to(destination.dtype)
        # Torch keeps pinned memory until the copy is over.
        destination.copy_(made.pin_memory(), non_blocking=True)

    def finish(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize(self._device)
