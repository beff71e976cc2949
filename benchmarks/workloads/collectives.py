"""collectives: what helpers meet for, in shared memory, beside gloo between as many processes.

Two members, one compute thread each. shmgpu's are taken inside a step: a program of a few
collectives, each of which needs the one before, and one of many; what the many take longer, over
how many they are more. So the message to the helpers, and back, is in neither. The time begins when
the program is recorded; ``with_recording`` is the same from its first line on: a child records
while helpers compute, unless it waits for each step, as here. gloo's are calls in a loop, in two
processes of ``torch.distributed``. ``copies`` is what no collective through memory can better: two
processes at once that each copy as many bytes in, and as many out.
``gang`` is the message itself: one number changed and read, on two helpers as one device, beside
the same on one.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure.figures import Curve, Figure, Group, Point, ProbeFailed, Workload
from benchmarks.workloads.tensors import LIMIT_S, median_us, probe

MEMBERS = 2
FEW, MANY = 4, 20  # collectives in a program
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = {"4KiB": 1 << 12, "64KiB": 1 << 16, "1MiB": 1 << 20, "4MiB": 1 << 22, "16MiB": 1 << 24}
RECORDED = {size: f"{size}_recorded" for size in SIZES}  # the same with the time of recording
ITEM_BYTES = 4
WARM_UPS = 4


# ---- shmgpu ------------------------------------------------------------------------------------


def _one(kind: str, mesh: Any) -> Callable[[Any], Any]:
    """What does one such collective on pieces and gives pieces of the shape that it took."""
    from shmgpu.distributed import Partial, Replicate, Shard, local_map

    own = {"all_reduce": Partial(), "all_gather": Shard(0), "reduce_scatter": Partial()}[kind]
    after = {"all_reduce": Replicate(), "all_gather": Replicate(), "reduce_scatter": Shard(0)}[kind]

    def again(pieces: Any) -> Any:
        if kind == "all_gather":
            return pieces[: pieces.shape[0] // MEMBERS]
        if kind == "reduce_scatter":
            return pieces.repeat(MEMBERS)
        return pieces

    def one(x: Any) -> Any:
        return x.redistribute(mesh, [after])

    return lambda x: one(local_map(again, [own], [after], device_mesh=mesh)(x))


def shmgpu_collectives(seconds: float, kind: str) -> dict[str, float]:
    """Return the microseconds of one, by the bytes that a member has before or after it.

    And those with the time of recording it, under the names of ``RECORDED``.
    """
    import shmgpu
    from shmgpu.distributed import (
        CommDebugMode,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    found = {}
    with shmgpu.init(helpers=MEMBERS, devices="cpu", arena="256MiB"), shmgpu.no_grad():
        mesh = init_device_mesh("cpu", (MEMBERS,))
        lies = Shard(0) if kind == "reduce_scatter" else Replicate()
        step = _one(kind, mesh)

        def chain(x: Any, count: int) -> tuple[int, int]:
            began = time.perf_counter_ns()
            for _ in range(count):
                x = step(x)
            total = x.sum()
            recorded = time.perf_counter_ns()
            if total.item() != 0:
                raise ProbeFailed("shmgpu gave a wrong answer")
            ended = time.perf_counter_ns()
            return ended - recorded, ended - began

        for size, nbytes in SIZES.items():
            x = distribute_tensor(np.zeros(nbytes // ITEM_BYTES, "f4"), mesh, [lies])
            with CommDebugMode() as met:
                chain(x, MANY)
            if met.get_comm_counts().get(kind) != MANY:
                raise ProbeFailed(f"a chain of {MANY} had {met.get_comm_counts()}")
            few, many = (
                _medians_us(functools.partial(chain, x, count), seconds / 2 / len(SIZES))
                for count in (FEW, MANY)
            )
            each = [(b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True)]
            found[size], found[RECORDED[size]] = each
    return found


def _medians_us(call: Callable[[], tuple[int, int]], seconds: float) -> list[float]:
    """Medians of the two times that each call returns, in nanoseconds; as microseconds."""
    for _ in range(WARM_UPS):
        call()
    took = []
    end = time.perf_counter() + seconds
    while len(took) < 3 or time.perf_counter() < end:
        took.append(call())
    return [statistics.median(times) / 1000 for times in zip(*took, strict=True)]


# ---- gloo, and memory itself -------------------------------------------------------------------


def _in_processes(work: Callable[[int, str], dict[str, float]]) -> dict[str, float]:
    """The longest of what members returned for each size; each is a process forked for it."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        answers = [os.path.join(folder, f"answer{rank}") for rank in range(MEMBERS)]
        pids = []
        for rank, answer in enumerate(answers):
            pid = os.fork()
            if pid == 0:
                try:
                    took = work(rank, folder)
                    with open(answer, "w", encoding="ascii") as file:
                        json.dump(took, file)
                    os._exit(0)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            pids.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(ended):
            raise ProbeFailed(f"members ended with {ended}")
        for answer in answers:
            with open(answer, encoding="ascii") as file:
                found.append(json.load(file))
    return {size: max(one[size] for one in found) for size in SIZES}


def _took_us(call: Callable[[], object], seconds: float, agree: Callable[[int], int]) -> float:
    """Microseconds of a call; members agree on how often they do it."""
    for _ in range(WARM_UPS):
        call()
    began = time.perf_counter()
    for _ in range(WARM_UPS):
        call()
    each = (time.perf_counter() - began) / WARM_UPS
    count = agree(max(8, int(seconds / max(each, 1e-6))))
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count * 1e6


def gloo_collectives(seconds: float, kind: str) -> dict[str, float]:
    """Return the same of ``torch.distributed`` with gloo, one thread a process."""

    def work(rank: int, folder: str) -> dict[str, float]:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        warnings.simplefilter("ignore", FutureWarning)  # names that older builds have, too
        store = distributed.FileStore(os.path.join(folder, "store"), MEMBERS)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=MEMBERS)

        def agree(count: int) -> int:
            said = torch.tensor([count])
            distributed.broadcast(said, 0)
            return int(said)

        def of(nbytes: int) -> Callable[[], object]:
            whole = torch.zeros(nbytes // ITEM_BYTES)
            part = torch.zeros(len(whole) // MEMBERS)
            return {
                "all_reduce": lambda: distributed.all_reduce(whole),
                "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
                "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
            }[kind]

        return {
            size: _took_us(of(nbytes), seconds / len(SIZES), agree)
            for size, nbytes in SIZES.items()
        }

    return _in_processes(work)


def copies(seconds: float) -> dict[str, float]:
    """Return the microseconds in which two processes at once copy so much in, and as much out."""
    shared = mmap.mmap(-1, MEMBERS * max(SIZES.values()))
    lines = mmap.mmap(-1, mmap.PAGESIZE)
    begun = np.frombuffer(lines, "i8")

    def work(rank: int, _folder: str) -> dict[str, float]:
        def agree(count: int) -> int:
            begun[rank] += 1
            end = time.monotonic() + LIMIT_S
            while begun[1 - rank] < begun[rank]:
                if time.monotonic() > end:
                    raise ProbeFailed("the other process never began")
            return count

        found = {}
        for size, nbytes in SIZES.items():
            own = np.zeros(nbytes, "u1")
            region = np.frombuffer(shared, "u1", nbytes, rank * max(SIZES.values()))

            def call(own: Any = own, region: Any = region) -> None:
                region[:] = own
                own[:] = region

            found[size] = _took_us(call, seconds / len(SIZES), agree)
        return found

    return _in_processes(work)


# ---- the message -------------------------------------------------------------------------------


def message(seconds: float, on_mesh: bool) -> dict[str, float]:
    """Return the median microseconds in which a number is changed and read."""
    import shmgpu
    from shmgpu.distributed import distribute_tensor, init_device_mesh

    with shmgpu.init(helpers=MEMBERS, devices="cpu"), shmgpu.no_grad():
        x = shmgpu.tensor([1.0])
        if on_mesh:
            x = distribute_tensor(x, init_device_mesh("cpu", (MEMBERS,)))
        x.item()

        def call() -> None:
            if (x + 1).item() != 2:
                raise ProbeFailed("shmgpu gave a wrong answer")

        return {"us": median_us(call, seconds, 200)}


# ---- groups ------------------------------------------------------------------------------------

_HERE = "benchmarks.workloads.collectives"
_US = {"us": "us"}
_SIZES = dict.fromkeys(SIZES, "us")
_OURS = dict.fromkeys([*SIZES, *RECORDED.values()], "us")
# Of gloo's time at 4 KiB at most half, and from 1 MiB up at least twice its bandwidth; and at least
# 0.7 of the bandwidth of copies.
_OF_GLOO, _OF_COPIES = "<= 0.5", "<= 1.43"
_LARGE = ("1MiB", "4MiB", "16MiB")
_JUDGED = ("4KiB", *_LARGE)


def _group(kind: str) -> Group:
    is_judged = kind == "all_reduce"
    probes = [
        probe("shmgpu", f"{_HERE}:shmgpu_collectives", _OURS, kind=kind),
        probe("gloo", f"{_HERE}:gloo_collectives", _SIZES, kind=kind),
    ]
    figures = [
        Figure(
            f"{kind}_{size}",
            ("shmgpu", size),
            ("gloo", size),
            _OF_GLOO if is_judged and size in _JUDGED else None,
            point=Point(Curve(kind, "bytes"), nbytes, "shmgpu"),
        )
        for size, nbytes in SIZES.items()
    ]
    if is_judged:
        probes.append(probe("copies", f"{_HERE}:copies", _SIZES))
        figures += [
            Figure(f"copies_{size}", ("shmgpu", size), ("copies", size), _OF_COPIES)
            for size in _LARGE
        ]
        figures += [
            Figure(f"with_recording_{size}", ("shmgpu", RECORDED[size]), ("copies", size))
            for size in _LARGE
        ]
    return Group(kind, tuple(probes), tuple(figures), seconds=2.0, quick=is_judged, quick_rounds=1)


WORKLOAD = Workload(
    "collectives",
    "what helpers meet for, beside gloo and the copies of memory; an empty gang, beside a call",
    (
        *map(_group, KINDS),
        Group(
            "gang",
            (
                probe("gang", f"{_HERE}:message", _US, on_mesh=True),
                probe("one helper", f"{_HERE}:message", _US, on_mesh=False),
            ),
            (Figure("gang", ("gang", "us"), ("one helper", "us"), "<= 1.6"),),
            quick=False,
        ),
    ),
)
