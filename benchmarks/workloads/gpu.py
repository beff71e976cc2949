"""gpu: what shmgpu makes of a CUDA device; skipped where there is none.

``copies``: bytes a second from a child's arena to the device and back, beside pinned memory of
PyTorch's own and beside pageable memory. A helper registers arenas with the driver, so its copies
should be as fast as pinned ones. ``call``: the same through the broker, a call whose argument or
result is that large.

``graphs``: a lone child's call of a small network, launched kernel by kernel or as a CUDA graph.

``training``: the steps a second of a small network, which a helper captures as one graph, beside
PyTorch eager on the same device.

``sharing``: 32 processes that ask a model for 8 rows at a time, through 2 helpers, beside 32
processes with a model of their own: calls a second, 99th percentile, the device's memory.

``mps``: those 32 and 2 helpers with and without NVIDIA's Multi-Process Service.

Every body is given the device and runs on the CPU as well, which is how the tests try it; the
figures are of CUDA devices only. CUDA is initialised in helpers and in the peer's processes, after
they are forked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.measure import devices, isolate
from benchmarks.measure.crowd import Crowd
from benchmarks.measure.figures import (
    Curve,
    Figure,
    Group,
    Point,
    Probe,
    ProbeFailed,
    Unavailable,
    Workload,
)
from benchmarks.measure.models import Perceptron
from benchmarks.measure.stage import Stage
from benchmarks.workloads import training

MIB = 1 << 20
COPY_MIB = (1, 8, 64)
PASS_BYTES = 256 * MIB  # copied between two readings of the clock: its reading must not matter
CLIENTS = 32
HELPERS = 2
ROWS = 8
BATCH_ROWS = CLIENTS * ROWS
DEVICE = "cuda:0"
END_LIMIT_S = 60.0
LIMIT_S = 240.0
SMALL = Perceptron(layers=16, width=256)  # 32 kernels of a few microseconds
LARGE = Perceptron(layers=16, width=2048)  # 256 MiB of weights
TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}  # a graph may be captured with another kernel of cuBLAS


def _need(device: str) -> None:
    if device.startswith("cuda"):
        devices.need_cuda()


def timed(work: Callable[[], object], device: str) -> float:
    """Return the seconds that ``work`` takes on the device, which may be the CPU."""
    if not device.startswith("cuda"):
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    import torch

    began_event, ended_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began_event.record()  # type: ignore[no-untyped-call]
    work()
    ended_event.record()  # type: ignore[no-untyped-call]
    ended_event.synchronize()  # type: ignore[no-untyped-call]
    return float(began_event.elapsed_time(ended_event)) / 1000.0  # type: ignore[no-untyped-call]


def copy_rates(array: Any, seconds: float, device: str) -> dict[str, float]:
    """Return bytes a second of copies to and from the device, by kind of host memory.

    Runs in a helper; ``array`` is an argument, which lies in the caller's arena. The kinds and
    directions take turns, and the first turn is not counted. Raises ProbeFailed when the arena is
    not registered, or when a copy brought nothing.
    """
    import torch

    is_cuda = device.startswith("cuda")
    arena = torch.from_numpy(array)
    if is_cuda and not arena.is_pinned():
        raise ProbeFailed("the arena is not registered with the driver: copies would be staged")
    hosts = {
        "arena": arena,
        "pinned": torch.empty(arena.shape, dtype=arena.dtype, pin_memory=is_cuda),
        "pageable": torch.empty(arena.shape, dtype=arena.dtype),
    }
    there = torch.empty(arena.shape, dtype=arena.dtype, device=device)
    ways: dict[str, tuple[Any, Any]] = {}
    for number, (name, host) in enumerate(hosts.items()):
        ways[f"{name}_in"] = (there, host)
        ways[f"{name}_out"] = (host, there)
        host.fill_(number + 1)  # takes the pages, too
        there.copy_(host)
        host.zero_()
        host.copy_(there)
        if not bool((host == number + 1).all()):
            raise ProbeFailed(f"copies of {name} memory do not bring what was copied")
    repeats = max(1, PASS_BYTES // arena.nbytes)
    took: dict[str, list[float]] = {way: [] for way in ways}
    ends = time.monotonic() + seconds
    while len(took["arena_in"]) < 2 or time.monotonic() < ends:
        for way, (destination, source) in ways.items():

            def copies(destination: Any = destination, source: Any = source) -> None:
                for _ in range(repeats):
                    destination.copy_(source, non_blocking=True)

            took[way].append(timed(copies, device))
    moved = repeats * arena.nbytes
    return {way: moved / statistics.median(times[1:]) for way, times in took.items()}


def copies(seconds: float, mebibytes: int, device: str = DEVICE) -> dict[str, float]:
    """Return GB/s by way: those of ``copy_rates``, and ``call_in`` and ``call_out``."""
    _need(device)
    import shmgpu

    shape = (mebibytes * MIB // 4,)

    @shmgpu.function(arrays="numpy")
    def rates(helper, x):  # type: ignore[no-untyped-def]
        return copy_rates(x, seconds, helper.device)

    @shmgpu.function
    def take(helper, x):  # type: ignore[no-untyped-def]
        return None

    @shmgpu.function
    def give(helper):  # type: ignore[no-untyped-def]
        return helper.session

    def session(helper: Any) -> Any:
        import torch

        return torch.ones(shape, device=helper.device)

    def run(rank: int) -> dict[str, float]:
        x = shmgpu.arena.zeros(shape, "float32")
        found = dict(rates(x))
        result = shmgpu.arena.zeros(shape, "float32")
        back = give.options(out=result)
        for name, call in (("call_in", lambda: take(x)), ("call_out", lambda: back())):
            found[name] = x.nbytes / _median_s(call, seconds / 4)
        if not (result == 1).all():
            raise ProbeFailed("the result did not come back")
        return found

    settings = {"children": 1, "helpers": 1, "devices": [device]}
    (found,) = shmgpu.launch(
        run, arena=f"{2 * mebibytes + 8}MiB", prefault=True, session=session, **settings
    )
    return {way: rate / 1e9 for way, rate in found.items()}


def _median_s(call: Callable[[], object], seconds: float) -> float:
    call()
    took: list[float] = []
    ends = time.monotonic() + seconds
    while not took or time.monotonic() < ends:
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def graphed(model: Callable[[Any], Any], rows: Any) -> Callable[[Any], Any]:
    """Return the model for arrays of ``rows``'s shape, its kernels captured as one CUDA graph.

    A few calls on a side stream come first, as PyTorch's notes on CUDA graphs ask for: libraries
    set themselves up in their first calls, which must not be captured. The result is a copy: the
    next replay writes where this one did, maybe before the helper has copied it out.
    """
    import torch as typed_torch

    torch: Any = typed_torch  # most of torch.cuda has no types
    given = rows.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(given)

    def run(rows: Any) -> Any:
        given.copy_(rows)
        graph.replay()
        return result.clone()

    return run


def model_latency(seconds: float, graph: bool, device: str = DEVICE) -> dict[str, float]:
    """Time a lone child's calls of the small network with one row."""
    _need(device)
    import numpy as np

    import shmgpu

    @shmgpu.function
    def infer(helper, rows):  # type: ignore[no-untyped-def]
        return helper.session(rows)

    def session(helper: Any) -> Any:
        import torch

        model = SMALL.make(helper.device)
        if not graph or not helper.device.startswith("cuda"):
            return model
        rows = torch.ones(1, SMALL.width, device=helper.device)
        captured = graphed(model, rows)
        if not torch.allclose(captured(2 * rows), model(2 * rows), **TOLERANCE):
            raise ProbeFailed("the captured graph does not answer as the model does")
        return captured

    stage = Stage(1, seconds)

    def run(rank: int) -> None:
        rows = shmgpu.arena.zeros((1, SMALL.width), "float32")
        rows[:] = np.linspace(-1, 1, SMALL.width)
        infer(rows)
        stage.drive(rank, lambda: infer(rows))

    stage.start_clock()
    shmgpu.launch(run, children=1, helpers=1, devices=[device], arena="4MiB", session=session)
    result = stage.result()
    return {"median": result["median_us"], "p99": result["p99_us"]}


def train_through_helper(seconds: float, device: str = DEVICE) -> dict[str, float]:
    """Return the steps of training a second of a small network, which a helper's device replays."""
    _need(device)
    return training.shmgpu_mlp(seconds, device)


def train_eagerly(seconds: float, device: str = DEVICE) -> dict[str, float]:
    """Return the same with PyTorch in this process, on the device."""
    _need(device)
    return training.eager_mlp(seconds, device)


def _used_mib(device: str) -> float:
    return devices.memory_used_mib() if device.startswith("cuda") else 0.0


def _shared_out(crowd: Crowd, before_mib: float, during_mib: float) -> dict[str, float]:
    result = crowd.result()
    return {
        "rate": result["rate"],
        "p99": result["p99_ms"],
        "memory": during_mib - before_mib,
    }


def through_helpers(
    seconds: float,
    device: str = DEVICE,
    clients: int = CLIENTS,
    mps: bool = False,
    width: int = LARGE.width,
) -> dict[str, float]:
    """Have ``clients`` children ask a model that two helpers hold.

    With ``mps``, through NVIDIA's Multi-Process Service; Unavailable where that does not run.
    """
    _need(device)
    import shmgpu

    model = replace(LARGE, width=width)

    @shmgpu.function(batch=shmgpu.Batch(max_size=BATCH_ROWS))
    def infer(helper, rows):  # type: ignore[no-untyped-def]
        return helper.session(rows)

    crowd = Crowd(clients, seconds)
    before = _used_mib(device)

    def run(rank: int) -> float:
        if rank == clients:
            return float(crowd.watch(lambda: _used_mib(device))[1])
        rows = shmgpu.arena.zeros((ROWS, width), "float32")
        crowd.drive(rank, lambda: infer(rows))
        return 0.0

    with devices.mps() if mps else contextlib.nullcontext():
        try:
            results = shmgpu.launch(
                run,
                children=clients + 1,
                helpers=HELPERS,
                devices=[device],
                arena="4MiB",
                session=lambda helper: model.make(helper.device),
            )
        except shmgpu.LaunchError as error:
            if not mps:
                raise
            raise Unavailable(f"with MPS helpers do not start: {error}") from None
        if mps and not devices.mps_servers():
            raise Unavailable("MPS started, and no helper connected to it")
    return _shared_out(crowd, before, results[clients])


def with_own_models(
    seconds: float, device: str = DEVICE, clients: int = CLIENTS, width: int = LARGE.width
) -> dict[str, float]:
    """Have ``clients`` processes each ask a model of their own on the device."""
    _need(device)
    fork = multiprocessing.get_context("fork")
    crowd = Crowd(clients, seconds)
    before = _used_mib(device)

    def run(client: int) -> None:
        with crowd.ended_by_errors():
            import torch

            model = replace(LARGE, width=width).make(device)
            host = torch.zeros(ROWS, width, pin_memory=device.startswith("cuda"))

            def call() -> Any:
                # The answer on the host ends a call here as well.
                return model(host.to(device, non_blocking=True)).cpu()

            crowd.drive(client, call)

    processes = [fork.Process(target=run, args=(client,), daemon=True) for client in range(clients)]
    for process in processes:
        process.start()
    _, during = crowd.watch(lambda: _used_mib(device))
    for process in processes:
        process.join(END_LIMIT_S)
        if process.exitcode != 0:
            raise ProbeFailed(f"a process with its own model ended with {process.exitcode}")
    return _shared_out(crowd, before, during)


def _probe(name: str, target: str, units: dict[str, str], **size: Any) -> Probe:
    def run(seconds: float) -> dict[str, float]:
        devices.need_driver()
        return dict(
            isolate.call(
                f"benchmarks.workloads.gpu:{target}", seconds + LIMIT_S, seconds=seconds, **size
            )
        )

    return Probe(name, run, units, needs=("shmgpu", "torch"))


def _copies(mebibytes: int) -> Group:
    probe = _probe("copies", "copies", dict.fromkeys(WAYS, "GB/s"), mebibytes=mebibytes)
    figures = []
    for way, direction in DIRECTIONS.items():
        curve = Curve(f"gpu: copies {direction}", "MiB", log="x")
        for kind, asked in (("arena", ">= 0.95"), ("call", None)):
            figures.append(
                Figure(
                    f"{kind}_{way}_{mebibytes}MiB",
                    ("copies", f"{kind}_{way}"),
                    ("copies", f"pinned_{way}"),
                    asked,
                    "pin_memory",
                    Point(curve, mebibytes, kind),
                )
            )
        figures.append(
            Figure(
                f"pageable_{way}_{mebibytes}MiB",
                ("copies", f"pageable_{way}"),
                point=Point(curve, mebibytes, "pageable"),
            )
        )
        figures.append(
            Figure(
                f"arena_{way}_{mebibytes}MiB_pageable",
                ("copies", f"arena_{way}"),
                ("copies", f"pageable_{way}"),
                baseline="pageable",
            )
        )
    largest = mebibytes == max(COPY_MIB)
    return Group(f"copies_{mebibytes}MiB", (probe,), tuple(figures), rounds=3, quick=largest)


DIRECTIONS = {"in": "to the device", "out": "from the device"}
KINDS = ("arena", "pinned", "pageable", "call")
WAYS = tuple(f"{kind}_{way}" for kind in KINDS for way in DIRECTIONS)
_CROWD = {"rate": "1/s", "p99": "ms", "memory": "MiB"}

WORKLOAD = Workload(
    "gpu",
    "copies, CUDA graphs, sharing a device and MPS; where there is a CUDA device",
    (
        *(_copies(mebibytes) for mebibytes in COPY_MIB),
        Group(
            "graphs",
            tuple(
                _probe(name, "model_latency", {"median": "us", "p99": "us"}, graph=graph)
                for name, graph in (("graph", True), ("eager", False))
            ),
            (
                Figure("latency_graph", ("graph", "median"), ("eager", "median")),
                Figure("latency_graph_p99", ("graph", "p99"), ("eager", "p99")),
            ),
            rounds=3,
        ),
        Group(
            "training",
            (
                _probe("shmgpu", "train_through_helper", {"rate": "1/s"}),
                _probe("PyTorch eager", "train_eagerly", {"rate": "1/s"}),
            ),
            (Figure("mlp_device", ("shmgpu", "rate"), ("PyTorch eager", "rate"), ">= 1.5"),),
            rounds=3,
        ),
        Group(
            "sharing",
            (
                _probe("2 helpers", "through_helpers", _CROWD),
                _probe("32 models", "with_own_models", _CROWD),
            ),
            tuple(
                Figure(f"sharing_{quantity}", ("2 helpers", quantity), ("32 models", quantity))
                for quantity in _CROWD
            ),
            seconds=1.0,
            rounds=2,
            quick=False,
        ),
        Group(
            "mps",
            (
                _probe("with MPS", "through_helpers", _CROWD, mps=True),
                _probe("without", "through_helpers", _CROWD),
            ),
            tuple(
                Figure(f"mps_{quantity}", ("with MPS", quantity), ("without", quantity))
                for quantity in _CROWD
            ),
            seconds=1.0,
            rounds=2,
            quick=False,
        ),
    ),
)
