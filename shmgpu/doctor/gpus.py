"""GPUs: whether helpers find those they are to use, and enough memory on them.

Owns which device each helper gets, and the checks. Never asks CUDA in this process: see
:meth:`shmgpu.doctor.machine.Machine.gpus`.
"""

from __future__ import annotations

from collections.abc import Iterable

from shmgpu.doctor.machine import CAP_IPC_LOCK, Gpu, Machine
from shmgpu.doctor.plan import MIB, Plan, count, size
from shmgpu.doctor.verdict import Verdict, fail, fine, warn

CUDA_CONTEXT_BYTES = 512 * MIB  # of each helper, on the device, outside of its cap


def devices_of(machine: Machine, plan: Plan) -> list[str]:
    """The device of each helper."""
    names = list(plan.devices)
    if not names:
        names = [f"cuda:{index}" for index in range(len(machine.gpus.devices))] or ["cpu"]
    return [names[index % len(names)] for index in range(plan.helpers)]


def _wants_cuda(plan: Plan) -> bool:
    return any(name != "cpu" for name in plan.devices)


def torch_there(machine: Machine, plan: Plan) -> Verdict:
    """Tensors and CUDA need torch; NumPy functions do not."""
    version = machine.torch_version()
    if version:
        return fine(f"torch {version} is installed")
    if _wants_cuda(plan):
        return fail("CUDA helpers need torch, and it is not installed", "pip install torch")
    return warn(
        'torch is not installed: only functions with arrays="numpy" can run', "pip install torch"
    )


def gpu_files(machine: Machine, plan: Plan) -> Verdict:
    """Device files: there, and open to this user."""
    found = machine.gpu_files
    no_cpu = fail if _wants_cuda(plan) else warn
    if not found:
        if _wants_cuda(plan):
            return fail(
                f"{', '.join(plan.devices)} is asked for, and this machine shows no GPU",
                'install NVIDIA\'s driver, docker run --gpus all, or devices="cpu"',
            )
        return fine("this machine shows no GPU: helpers compute on the CPU")
    shut = [name for name in found if not machine.may_use(name)]
    if shut:
        return no_cpu(
            f"{', '.join(shut)} may not be used by this user",
            f"sudo chmod a+rw {' '.join(shut)}, or join the group that owns them",
        )
    if "/dev/dxg" not in found and "nvidia-uvm" not in machine.names("/dev"):
        return no_cpu(
            "/dev/nvidia-uvm is missing, and CUDA does not start without it",
            "sudo nvidia-modprobe -u -c=0",
        )
    return fine(f"{', '.join(found)} can be used")


def gpu_visibility(machine: Machine, plan: Plan) -> Verdict:
    """What torch sees is what helpers get."""
    if not machine.gpu_files:
        return fine("no GPU is looked for")
    no_cpu = fail if _wants_cuda(plan) else warn
    shown = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and shown.strip() in ("", "-1"):
        return no_cpu(f"CUDA_VISIBLE_DEVICES={shown} hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    gpus = machine.gpus
    if gpus.error:
        return no_cpu(f"torch cannot use the GPUs ({gpus.error})", "nvidia-smi")
    if not gpus.cuda:
        return no_cpu(
            "there are GPUs, and torch is missing or was built without CUDA",
            "pip install --force-reinstall torch (the build with CUDA, not +cpu)",
        )
    if not gpus.devices:
        return no_cpu(
            f"torch with CUDA {gpus.cuda} sees no GPU: the driver may be older than that",
            "nvidia-smi, then update the driver",
        )
    beyond = [name for name in plan.devices if _index(name) >= len(gpus.devices)]
    if beyond:
        return fail(
            f"{', '.join(beyond)} is asked for, and torch sees "
            f"{count(len(gpus.devices), 'device')}",
            "name one that exists, or change CUDA_VISIBLE_DEVICES",
        )
    names = [
        f"cuda:{index} {gpu.name}, {size(gpu.total)}" for index, gpu in enumerate(gpus.devices)
    ]
    return fine("; ".join(names))


def _index(name: str) -> int:
    return int(name.partition(":")[2] or 0) if name != "cpu" else -1


def _sharing(machine: Machine, plan: Plan) -> Iterable[tuple[str, Gpu, int]]:
    """Each device in use with how many helpers share it."""
    names = devices_of(machine, plan)
    for index, gpu in enumerate(machine.gpus.devices):
        helpers = names.count(f"cuda:{index}")
        if helpers:
            yield f"cuda:{index}", gpu, helpers


def gpu_memory(machine: Machine, plan: Plan) -> Verdict:
    """The caps of the helpers of one device, against its memory."""
    used = list(_sharing(machine, plan))
    if not used:
        return fine("no helper uses a GPU")
    said = []
    for name, gpu, helpers in used:
        caps, contexts = helpers * plan.gpu_memory, helpers * CUDA_CONTEXT_BYTES
        each = (gpu.total - contexts) // helpers // MIB
        fix = f'gpu_memory="{max(each, 1)}MiB", or fewer helpers'
        if caps > gpu.total:
            return fail(
                f"{count(helpers, 'helper')} may take {size(plan.gpu_memory)} each of {name}, "
                f"{size(caps)} in all, and it has {size(gpu.total)}",
                fix,
            )
        if not caps and helpers > 1:
            return warn(
                f"{helpers} helpers share {name} without a cap: one can take what the others need",
                fix,
            )
        wanted = caps + contexts
        if wanted > gpu.free:
            each = max(gpu.free - contexts, 0) // helpers // MIB
            return warn(
                f"{count(helpers, 'helper')} of {name} may take {size(caps)} and about "
                f"{size(contexts)} of contexts, and {size(gpu.free)} of {size(gpu.total)} are free",
                f'end what uses it (nvidia-smi), or gpu_memory="{max(each, 1)}MiB"',
            )
        said.append(f"{name}: {size(wanted)} of {size(gpu.free)} free")
    return fine("; ".join(said))


def gpu_mode(machine: Machine, plan: Plan) -> Verdict:
    """A GPU may be set so that one process only, or none, can use it."""
    for name, gpu, helpers in _sharing(machine, plan):
        index = _index(name)
        if gpu.mode == 2 or (gpu.mode in (1, 3) and helpers > 1):
            mode = "no process" if gpu.mode == 2 else "one process"
            return fail(
                f"{name} lets {mode} use it, and {count(helpers, 'helper')} would",
                f"sudo nvidia-smi -i {index} -c DEFAULT",
            )
    return fine("no GPU is reserved for one process")


def locked_memory(machine: Machine, plan: Plan) -> Verdict:
    """Arenas are registered with CUDA, which locks their pages."""
    if not any(name != "cpu" for name in devices_of(machine, plan)):
        return fine("no helper uses CUDA, so no memory is locked")
    soft, _ = machine.limit("Max locked memory")
    wanted = plan.payload
    if soft is None or soft >= wanted or machine.is_capable(CAP_IPC_LOCK):
        return fine(f"{size(wanted)} of arenas may be locked for CUDA")
    return warn(
        f"{size(soft)} may be locked and the arenas have {size(wanted)}: where the driver keeps to "
        "that, copies go through a pinned buffer",
        "ulimit -l unlimited (as root; for good: memlock in /etc/security/limits.conf, "
        "LimitMEMLOCK= of a service, docker run --ulimit memlock=-1)",
    )
