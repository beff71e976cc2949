"""Devices: where helpers' tensors live, and how bytes get there and back.

Owns everything that knows CUDA: choosing devices, registering arenas so that copies are DMA
straight from a child's array, the stream on which copies run, memory caps, and what to do about a
failing device. Never initialises CUDA outside a helper: children see no device.
"""

from __future__ import annotations

import bisect
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu import core
from shmgpu.common import blas, wait_policy
from shmgpu.common.logs import logger
from shmgpu.errors import ConfigError


def prepare_environment() -> None:
    """Make torch ask the driver's library, not the driver: asking must not poison a fork."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def cuda_is_initialised() -> bool:
    """Whether this process has initialised CUDA: its forks could not use it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def hide_from_children() -> None:
    """In a child: no CUDA device exists."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def available() -> int:
    """How many CUDA devices this machine shows, asked without initialising CUDA."""
    prepare_environment()
    try:
        import torch

        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    except (ImportError, RuntimeError, AssertionError):
        return 0


def choose(devices: Any, helpers: int) -> list[str]:
    """One device name a helper: those given, taken in turn; all GPUs, else the CPU."""
    if devices is None:
        count = available() if _torch_is_used() else 0
        names = [f"cuda:{index}" for index in range(count)] or ["cpu"]
    elif isinstance(devices, (str, int)) or not hasattr(devices, "__iter__"):
        names = [name_of(devices)]
    else:
        names = [name_of(device) for device in devices]
        if not names:
            raise ConfigError('devices=[] names none: use ["cpu"], or omit it')
    if any(name.startswith("cuda") for name in names):
        count = available()
        for name in names:
            index = int(name.partition(":")[2] or 0)
            if name.startswith("cuda") and index >= count:
                raise ConfigError(
                    f"devices names {name}, and this machine shows {count} CUDA devices: "
                    'use one that exists, or "cpu"'
                )
    return [names[index % len(names)] for index in range(helpers)]


def _torch_is_used() -> bool:
    return "torch" in sys.modules


def name_of(device: Any) -> str:
    """``"cpu"`` or ``"cuda:N"`` of what a user may call a device; raises ConfigError.

    One device has one name: ``"cpu:0"`` is ``"cpu"``, as there is one.
    """
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return f"cuda:{device}"
    text = str(device)
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ConfigError(f'{text!r} is no device: use "cpu", "cuda" or "cuda:0"')
    return "cpu" if kind == "cpu" else f"cuda:{int(index or 0)}"


# ---- threads -------------------------------------------------------------------------------


def cores() -> int:
    """CPU cores this process may use, its cgroup's quota taken into account."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(count, 1)


def threads_of_helper(cores: float, helpers: int) -> int:
    """Compute threads of each of some helpers on the CPU, unless the user says how many.

    One core is left to those who call, and to the dispatcher: with a thread on every core a small
    step takes as long alone, and twice as long, for twice the processor time, beside others.
    """
    return max(1, (int(cores) - 1) // max(helpers, 1))


def set_threads(count: int) -> None:
    """Give this process that many compute threads, in torch and in libraries loaded later."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def openmp_pool_is_used(forks: bool = False) -> bool:
    """Whether threads of an OpenMP pool exist in this process.

    A forked process inherits the pool's bookkeeping without its threads, and its first parallel
    operation would wait for them for ever. A sleeping worker of the pool is recognised by where
    it sleeps: its program counter lies in the OpenMP library's code. One that still spins after
    its last work has none to show, so a running thread is looked at again for a while, unless it
    is one of Python's own: on a busy machine those may wait for a core for long. OpenBLAS's spin
    for a tenth of a second after each use, and when they are made: for one who ``forks`` next
    they are ended, as the fork would have done.
    """
    if forks:
        blas.end_threads()
    for _ in range(20):
        found = _look_for_openmp()
        if found is not None:
            return found
        time.sleep(0.005)
    return True


def _look_for_openmp() -> bool | None:
    """Whether a pool's worker sleeps in this process; None when a running thread may be one."""
    running = False
    own = {one.native_id for one in threading.enumerate()}
    libraries = wait_policy.mapped("libgomp", "libiomp", "libomp")
    ranges = [(first, end) for _, first, end, permissions in libraries if b"x" in permissions]
    if not ranges:
        return False
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/syscall", encoding="ascii") as file:
                fields = file.read().split()
            if fields and fields[0] == "running":
                running = running or int(task) not in own
            elif fields and fields[-1].startswith("0x"):
                counter = int(fields[-1], 16)
                if any(first <= counter < end for first, end in ranges):
                    return True
    except (OSError, ValueError):
        return False
    return None if running else False


# ---- failures of a device --------------------------------------------------------------------


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left: PyTorch's own error, or the driver's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return is_of_device(error) and "out of memory" in str(error)


def is_of_device(error: BaseException) -> bool:
    """Whether a device reported it. Errors of kernels come late, at any call that asks."""
    kinds = getattr(sys.modules.get("torch"), "AcceleratorError", ())
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error)
    )


class Failures:
    """What a device makes of a function's exception."""

    def empty_cache(self) -> None:
        """Give back what is cached, so that the next call, and other processes, have it."""

    def is_beyond_use(self) -> bool:
        """Whether every later call will fail, too: ask the device itself."""
        return False

    def failed(self, error: BaseException) -> bool:
        """Out of memory: give back what is cached and live on. Anything sticky: True."""
        if is_out_of_memory(error):
            self.empty_cache()
            return False
        return is_of_device(error) and self.is_beyond_use()


# ---- devices -------------------------------------------------------------------------------


class CpuDevice(Failures):
    """The CPU: tensors are views on the caller's arena."""

    is_cuda = False

    def to_device(self, tensor: Any) -> Any:
        """The tensor itself."""
        return tensor.detach()

    def gather(self, tensors: Sequence[Any]) -> Any:
        """All rows in one tensor."""
        import torch

        return torch.cat(list(tensors), dim=0)

    def copy_out(self, destination: Any, tensor: Any) -> None:
        """Copy into arena memory."""
        destination.copy_(tensor)

    def new_like(self, tensor: Any) -> Any:
        """The tensor itself: the function writes where the result goes."""
        return tensor.detach()

    def let_go_of_old_arenas(self) -> None:
        """Nothing is kept of them."""

    def finish(self) -> None:
        """Copies are complete when they return."""

    def take_event(self) -> Any:
        """Nothing to wait for."""
        return None


class PinnedArenas:
    """Arenas registered with the driver where they lie, so that copies need no staging.

    A slot that changes hands gets other memory at the same addresses: the driver must let go of the
    old before the new is mapped there, and is told of the new one when something is first copied.

    Args:
        cudart: the runtime's calls.
        regions: (address, bytes) of each arena, by child, in ascending order.
        is_old: whether what is mapped there is the memory of who was there before.
        warn: told why an arena could not be registered.
    """

    def __init__(
        self,
        cudart: Any,
        regions: Sequence[tuple[int, int]],
        is_old: Callable[[int], bool],
        warn: Callable[[str], None],
    ) -> None:
        self._cudart = cudart
        self._regions = list(regions)
        self._starts = [address for address, _ in self._regions]
        self._is_old = is_old
        self._warn = warn
        self._pinned: set[int] = set()
        self._refused: set[int] = set()
        for child in range(len(self._regions)):
            self._pin(child)

    def hold(self, first: int, end: int) -> bool:
        """Whether those addresses lie in a registered arena, which is registered now if need be."""
        child = bisect.bisect_right(self._starts, first) - 1
        if child < 0 or end > sum(self._regions[child]):
            return False
        return child in self._pinned or self._pin(child)

    def _pin(self, child: int) -> bool:
        address, size = self._regions[child]
        if size == 0 or child in self._refused or self._is_old(child):
            return False
        status = int(self._cudart.cudaHostRegister(address, size, 0))
        if status != 0:
            self._refused.add(child)
            self._warn(f"registering {size:,} bytes of an arena failed with status {status}")
            return False
        self._pinned.add(child)
        return True

    def let_go_of_old(self) -> None:
        """Unregister the memory of those who have left."""
        for child in [child for child in self._pinned | self._refused if self._is_old(child)]:
            self._refused.discard(child)  # tried again for the next child
            if child in self._pinned:
                self._pinned.discard(child)
                status = int(self._cudart.cudaHostUnregister(self._regions[child][0]))
                if status != 0:
                    logger.warning("an arena could not be unregistered (status %d)", status)


class CudaDevice(Failures):
    """One GPU: copies run on a stream of their own, by DMA where the arena could be registered.

    Args:
        index: of the device.
        memory_bytes: cap on this process's share of the device's memory; 0 means none.
        regions: (address, bytes) of the arenas.
        is_old: see :class:`PinnedArenas`.
    """

    is_cuda = True

    def __init__(
        self,
        index: int,
        memory_bytes: int,
        regions: Sequence[tuple[int, int]],
        is_old: Callable[[int], bool],
    ) -> None:
        import torch as typed_torch

        torch: Any = typed_torch  # most of torch.cuda has no types
        self.torch = torch
        self.index = index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(index)
        torch.cuda.init()
        torch.cuda.manual_seed(torch.initial_seed())
        if memory_bytes:
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / total), index)
        self.stream = torch.cuda.Stream(self.device)
        self._is_copying = False
        self._staging: Any = None
        self._warned = False
        self.arenas = PinnedArenas(torch.cuda.cudart(), regions, is_old, self._warn)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: copies to %s go through a pinned buffer instead (raise the limit on locked "
                "memory, or use smaller arenas)",
                why,
                self.device,
            )

    def is_registered(self, tensor: Any) -> bool:
        """Whether a tensor's bytes lie in registered memory."""
        first = tensor.data_ptr()
        return self.arenas.hold(first, first + tensor.nbytes)

    def let_go_of_old_arenas(self) -> None:
        """Before other memory is mapped where arenas lay."""
        self.arenas.let_go_of_old()

    def _stage(self, size: int) -> Any:
        """A pinned buffer of at least that many bytes, free for use."""
        torch = self.torch
        if self._staging is None or self._staging.nbytes < size:
            self._staging = torch.empty(max(size, 1 << 20), dtype=torch.uint8, pin_memory=True)
        else:
            self.stream.synchronize()
        return self._staging[:size]

    def _copy_in(self, destination: Any, tensor: Any) -> None:
        """Enqueue a copy on the copy stream: from the arena, or from the file of a broadcast."""
        if tensor.nbytes == 0:
            return
        source = tensor
        if not self.is_registered(tensor):
            staged = self._stage(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
            staged.copy_(tensor)
            source = staged
        with self.torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
        self._is_copying = True
        core.count_bytes(core.BYTES_HOST_TO_DEVICE, tensor.nbytes)

    def _join_in(self, *tensors: Any) -> None:
        """Make what is computed next wait for the copies in."""
        current = self.torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(self.stream)

    def to_device(self, tensor: Any) -> Any:
        """A tensor on the device with the same contents; the copy is enqueued, not awaited."""
        torch = self.torch
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        self._copy_in(made, tensor)
        self._join_in(made)
        return made

    def gather(self, tensors: Sequence[Any]) -> Any:
        """All rows in one device tensor, each part copied straight from its caller's arena."""
        torch = self.torch
        rows = sum(tensor.shape[0] for tensor in tensors)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        made = torch.empty(
            (rows, *tensors[0].shape[1:]), dtype=tensors[0].dtype, device=self.device
        )
        start = 0
        for tensor in tensors:
            self._copy_in(made[start : start + tensor.shape[0]], tensor)
            start += tensor.shape[0]
        self._join_in(made)
        return made

    def copy_out(self, destination: Any, tensor: Any) -> None:
        """Enqueue a copy into arena memory; see :meth:`finish`."""
        if tensor.device.type == "cpu":
            destination.copy_(tensor)
            return
        if tensor.nbytes == 0:
            return
        core.count_bytes(core.BYTES_DEVICE_TO_HOST, tensor.nbytes)
        if not self.is_registered(destination):
            destination.copy_(tensor)
            return
        torch = self.torch
        tensor = tensor.contiguous()
        self.stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self.stream):
            destination.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        self._is_copying = True

    def new_like(self, tensor: Any) -> Any:
        """An uninitialised device tensor; its contents are copied out afterwards."""
        return self.torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)

    def finish(self) -> None:
        """Wait until all copies are complete, both ways.

        Those in too, because a caller that has its answer may change its arguments.
        """
        event = self.take_event()
        if event is not None:
            event.synchronize()

    def take_event(self) -> Any:
        """An event that comes after all copies so far; None when there were none."""
        if not self._is_copying:
            return None
        self._is_copying = False
        event = self.torch.cuda.Event()
        event.record(self.stream)
        return event

    def empty_cache(self) -> None:
        """Free what PyTorch's allocator holds unused."""
        self.torch.cuda.empty_cache()

    def is_beyond_use(self) -> bool:
        """A fault in a kernel ends the context: whatever is asked of it raises from then on."""
        try:
            self.torch.cuda.synchronize(self.index)
        except RuntimeError:
            logger.exception("%s is beyond use: this helper ends and is replaced", self.device)
            return True
        return False


def make(
    name: str,
    memory_bytes: int,
    regions: Sequence[tuple[int, int]],
    is_old: Callable[[int], bool] = lambda child: False,
) -> Any:
    """The device of that name, ready for use; in a helper only."""
    if name == "cpu":
        return CpuDevice()
    return CudaDevice(int(name.partition(":")[2] or 0), memory_bytes, regions, is_old)
