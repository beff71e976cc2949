"""Memory: whether arenas and processes fit, and what happens where they do not.

Owns the checks and the estimates. What ``launch`` would refuse fails here, in the same arithmetic;
an estimate is never more than a warning.
"""

from __future__ import annotations

from shmgpu.doctor.gpus import devices_of
from shmgpu.doctor.machine import Headroom, Machine
from shmgpu.doctor.plan import GIB, MIB, PAGE, Plan, size
from shmgpu.doctor.verdict import Verdict, fail, fine, warn

# What roles take beside arenas, before any model and any data: for estimates, not for refusals.
CHILD_BYTES = 4 * MIB
CPU_HELPER_BYTES = 64 * MIB
CUDA_HELPER_BYTES = 1 * GIB  # what a CUDA context keeps in the host's memory


def arenas(machine: Machine, plan: Plan) -> Verdict:
    """What ``launch`` refuses before it touches anything."""
    spares = machine.memory_headrooms()
    if not spares:
        return warn(
            "how much memory there is cannot be read, so arenas may be larger than it",
            "mount -t proc proc /proc",
        )
    spare, wanted = spares[0], plan.payload
    if wanted <= spare.left:
        return fine(
            f"arenas and scratch regions have {size(wanted)}; {spare.limited_by} "
            f"has {size(spare.left)} to give"
        )
    least = max(PAGE, (spare.left - plan.helpers * plan.scratch) // plan.children // MIB * MIB)
    return fail(
        f"arenas and scratch regions have {size(wanted)}, and {spare.limited_by} "
        f"has {size(spare.left)} to give",
        f'arena="{least // MIB or 1}MiB" or fewer children{_raise_memory(spare)}',
    )


def _raise_memory(spare: Headroom) -> str:
    if "commit" in spare.limited_by:
        return "; or sudo sysctl vm.overcommit_memory=0"
    return "; or more memory for the container (docker run --memory, MemoryMax=)" * (
        "cgroup" in spare.limited_by
    )


def _estimate(machine: Machine, plan: Plan) -> int:
    """Of what all roles take in the host's memory once every arena is full, without models."""
    on_cuda = sum(name != "cpu" for name in devices_of(machine, plan))
    return (
        plan.payload
        + plan.children * CHILD_BYTES
        + (plan.helpers - on_cuda) * CPU_HELPER_BYTES
        + on_cuda * CUDA_HELPER_BYTES
    )


def everything(machine: Machine, plan: Plan) -> Verdict:
    """Arenas are not all: an estimate with the processes in it."""
    spares = machine.memory_headrooms()
    wanted = _estimate(machine, plan)
    if not spares or wanted <= spares[0].left:
        return fine(f"with all processes it will be about {size(wanted)}, models not counted")
    return warn(
        f"with all processes it will be about {size(wanted)}, models not counted, and "
        f"{spares[0].limited_by} has {size(spares[0].left)}: the kernel would end processes",
        f"smaller arenas or fewer children{_raise_memory(spares[0])}",
    )


def swap(machine: Machine, plan: Plan) -> Verdict:
    """An arena that is swapped out stalls its helper."""
    available = machine.kib_field("/proc/meminfo", "MemAvailable")
    free_swap = machine.kib_field("/proc/meminfo", "SwapFree") or 0
    if available is None or plan.payload <= available or not free_swap:
        return fine("arenas do not depend on swap space")
    return warn(
        f"arenas have {size(plan.payload)}, memory has {size(available)}: some would be swapped "
        "out, and helpers would wait for the disk",
        "smaller arenas or fewer children",
    )


def pressure(machine: Machine, plan: Plan) -> Verdict:
    """How full the cgroup is already, and whether it would be slowed down."""
    high = machine.memory_throttle()
    if high is not None and plan.payload > high.left:
        return warn(
            f"{high.limited_by} leaves {size(high.left)}, and arenas have {size(plan.payload)}: "
            "above it the kernel slows all processes down",
            f"echo max | sudo tee {high.limited_by} (MemoryHigh= of a service)",
        )
    spare = machine.memory_headroom_of_cgroup()
    if spare is None:
        return fine("no cgroup limits memory")
    if spare.left < spare.total // 10:
        return warn(
            f"{spare.limited_by} is {size(spare.total)} and {size(spare.left)} of it are left",
            "docker run --memory, MemoryMax= of a service; or end what else runs there",
        )
    return fine(f"{spare.limited_by} is {size(spare.total)}, and {size(spare.left)} of it are left")


def overcommit(machine: Machine, plan: Plan) -> Verdict:
    """Under strict accounting each fork charges all that the parent could write to."""
    mode = machine.number("/proc/sys/vm/overcommit_memory")
    if mode != 2:
        return fine(f"the kernel promises memory before it is used (vm.overcommit_memory={mode})")
    own = machine.kib_field("/proc/self/status", "VmData") or 0
    wanted = plan.payload + plan.roles * own
    spare = next(
        (spare for spare in machine.memory_headrooms() if "commit" in spare.limited_by),
        None,
    )
    if spare is None or wanted <= spare.left:
        return fine("the commit limit has room for the arenas and for every fork")
    return warn(
        f"vm.overcommit_memory=2 charges each of {plan.roles:,} forks with the parent's "
        f"{size(own)}: about {size(wanted)} in all, of which {size(spare.left)} are left",
        "sudo sysctl vm.overcommit_memory=0",
    )


def huge_pages(machine: Machine, plan: Plan) -> Verdict:
    """Transparent huge pages of shared memory are switched apart from others."""
    if not plan.huge_pages:
        return fine("huge pages are not asked for")
    directory = "/sys/kernel/mm/transparent_hugepage"
    path = f"{directory}/hugepages-2048kB/shmem_enabled"  # where it says "inherit", as it does
    chosen = _chosen(machine.text(path))  # unless somebody changed it, the older file decides
    if chosen in ("", "inherit"):
        path = f"{directory}/shmem_enabled"
        chosen = _chosen(machine.text(path))
    if chosen in ("always", "within_size", "advise", "force"):
        return fine(f"shared memory may have huge pages ({chosen})")
    if not chosen:
        return warn(
            "this kernel has no transparent huge pages for shared memory: arenas get small ones",
            "huge_pages=False, or a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    return warn(
        f"huge pages are asked for, and shared memory gets none ({chosen})",
        f"echo advise | sudo tee {path}",
    )


def _chosen(text: str) -> str:
    """The word in brackets."""
    return text.partition("[")[2].partition("]")[0]


def shm_mount(machine: Machine, plan: Plan) -> Verdict:
    """People look there first; said so that they need not."""
    total = machine.shared_memory_bytes()
    there = f"has {size(total)}" if total is not None else "does not exist"
    return fine(f"/dev/shm {there}; arenas are memory files and need none of it")


def oom_order(machine: Machine, plan: Plan) -> Verdict:
    """Roles offer themselves to the out-of-memory killer, so that the parent outlives them."""
    why = machine.why_refused("oom_score")
    if why:
        return warn(
            f"oom_score_adj cannot be written ({why}): where memory runs out, the kernel may end "
            "the parent, and with it all",
            "mount /proc writable, as container runtimes do by default",
        )
    text = machine.text("/proc/self/oom_score_adj")
    own = int(text) if text.lstrip("-").isdecimal() else 0
    if own >= 1000:
        return warn(
            f"this process has oom_score_adj {own}, and helpers and children can have no more: "
            "where memory runs out, the kernel may end the parent first, and with it all",
            "echo 0 | sudo tee /proc/$$/oom_score_adj (in a cluster: give the pod memory requests)",
        )
    return fine("where memory runs out, the kernel ends helpers and children before the parent")
