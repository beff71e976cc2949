"""Limits: files, processes, pipes, addresses, core files.

Owns the checks of what this process, its user, its cgroup and the system allow. Never raises a
limit.
"""

from __future__ import annotations

from collections.abc import Callable

from shmgpu import core
from shmgpu.broker.launch_config import descriptors_needed
from shmgpu.doctor.gpus import devices_of
from shmgpu.doctor.machine import CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Headroom, Machine
from shmgpu.doctor.plan import GIB, PAGE, Plan, size
from shmgpu.doctor.processors import helper_threads
from shmgpu.doctor.verdict import Verdict, fail, fine, warn

FRAMES_OF_A_PAGE = PAGE // core.FRAME_BYTES
PIPE_PAGES = 16  # of a pipe, unless its user has too many
FILES_OF_A_ROLE = 8
MAPPINGS_OF_A_PROCESS = 4096  # libraries, stacks, heaps
LARGE_CORE_FILE = 1 * GIB


def open_files(machine: Machine, plan: Plan) -> Verdict:
    """What :func:`shmgpu.broker.launch_config.make_room_for_descriptors` would refuse."""
    needed = descriptors_needed(plan.roles, machine.open_files())
    soft, hard = machine.limit("Max open files")
    if soft is None or soft >= needed:
        return fine(f"{needed:,} open files may be needed, and {_or_any(soft)} are allowed")
    if hard is None or hard >= needed:
        return fine(
            f"{needed:,} open files may be needed; the limit is {soft:,}, and launch raises it"
        )
    return fail(
        f"{needed:,} open files may be needed, and the hard limit is {hard:,}",
        f"ulimit -n {needed} (as root; for good: 'hard nofile {needed}' in "
        "/etc/security/limits.conf, LimitNOFILE= of a service, docker run --ulimit)",
    )


def _or_any(limit: int | None) -> str:
    return "any number" if limit is None else f"{limit:,}"


def system_files(machine: Machine, plan: Plan) -> Verdict:
    """Open files of the whole system, which only root may exceed."""
    counts = machine.text("/proc/sys/fs/file-nr").split()
    if len(counts) != 3 or machine.is_capable(CAP_SYS_ADMIN):
        return fine("the system's limit on open files does not hold for this user")
    used, most = int(counts[0]), int(counts[2])
    # Each role has its own copies of its two pipe ends, and what the interpreter opens.
    needed = descriptors_needed(plan.roles, 0) + FILES_OF_A_ROLE * plan.roles
    if most - used >= needed:
        return fine(f"{needed:,} open files of the system's {most:,} may be needed")
    return fail(
        f"{needed:,} open files may be needed, and the system has {max(0, most - used):,} left",
        f"sudo sysctl fs.file-max={most + 2 * needed}",
    )


def _tasks(machine: Machine, plan: Plan, spare: Headroom, fix: Callable[[int], str]) -> Verdict:
    """Whether a limit on tasks has room for all roles, and for their threads."""
    tasks = plan.children + helper_threads(machine, plan)
    wanted = spare.total - spare.left + tasks
    if spare.left < plan.roles:
        return fail(
            f"{spare.limited_by} allows {spare.total:,} tasks and has room for {spare.left:,}, "
            f"and {plan.roles:,} processes are to be forked",
            fix(wanted),
        )
    if spare.left < tasks:
        return warn(
            f"{spare.limited_by} has room for {spare.left:,} tasks: all {plan.roles:,} processes, "
            f"but not all {tasks:,} threads",
            fix(wanted),
        )
    return fine(f"{spare.limited_by} has room for {spare.left:,} tasks; {tasks:,} are needed")


def user_processes(machine: Machine, plan: Plan) -> Verdict:
    """RLIMIT_NPROC, which counts all tasks of a user."""
    soft, hard = machine.limit("Max processes")
    if soft is None:
        return fine("the user's processes are not limited")
    is_root = machine.field("/proc/self/status", "Uid").split()[:1] == ["0"]
    whole = machine.text("/proc/self/uid_map").split() == ["0", "0", "4294967295"]
    if machine.is_capable(CAP_SYS_RESOURCE, CAP_SYS_ADMIN) or (is_root and whole):
        return fine("the limit on the user's processes does not hold for this user")
    used = machine.tasks_of_user()
    spare = Headroom(max(0, soft - used), soft, "the limit on the user's processes")
    lift = "" if hard is None or hard > soft else "as root; "
    return _tasks(
        machine,
        plan,
        spare,
        lambda wanted: f"ulimit -u {wanted} ({lift}for good: nproc in /etc/security/limits.conf)",
    )


def cgroup_processes(machine: Machine, plan: Plan) -> Verdict:
    """pids.max of the cgroups over us."""
    spare = machine.task_headroom_of_cgroup()
    if spare is None:
        return fine("no cgroup limits the number of processes")
    return _tasks(
        machine,
        plan,
        spare,
        lambda wanted: (
            f"docker run --pids-limit {wanted}, TasksMax={wanted} of a service, or "
            f"echo {wanted} | sudo tee {spare.limited_by}"
        ),
    )


def system_processes(machine: Machine, plan: Plan) -> Verdict:
    """Tasks and numbers of processes of the whole system."""
    running = machine.text("/proc/loadavg").split()
    used = int(running[3].partition("/")[2]) if len(running) > 3 else 0
    spares = []
    for name in ("kernel.threads-max", "kernel.pid_max"):
        most = machine.number("/proc/sys/" + name.replace(".", "/"))
        if most is not None:
            spares.append(Headroom(max(0, most - used), most, name))
    if not spares:
        return fine("the system does not limit the number of processes")
    spare = min(spares, key=lambda spare: spare.left)
    return _tasks(
        machine, plan, spare, lambda wanted: f"sudo sysctl {spare.limited_by}={2 * wanted}"
    )


def pipes(machine: Machine, plan: Plan) -> Verdict:
    """A window is no larger than a pipe, and a user with many pipes gets small ones."""
    largest = machine.number("/proc/sys/fs/pipe-max-size") or PIPE_PAGES * PAGE
    is_free = machine.is_capable(CAP_SYS_RESOURCE, CAP_SYS_ADMIN)
    pages = machine.pipe_bytes() // PAGE
    wanted = 2 * plan.roles * PIPE_PAGES
    soft = machine.number("/proc/sys/fs/pipe-user-pages-soft") or 0  # 0: no limit
    hard = machine.number("/proc/sys/fs/pipe-user-pages-hard") or 0
    if pages == 0 or (hard and wanted > hard and not is_free):
        return fail(
            f"{2 * plan.roles:,} pipes cannot be made",
            f"sudo sysctl fs.pipe-user-pages-hard={2 * wanted}",
        )
    if is_free:
        soft = 0
    small = min(pages, largest // PAGE) if not is_free else pages
    fix = f"sudo sysctl fs.pipe-user-pages-soft={2 * wanted}"
    if soft and wanted > soft:
        small = min(small, 2)
    elif largest < PIPE_PAGES * PAGE:
        fix = f"sudo sysctl fs.pipe-max-size={PIPE_PAGES * PAGE}"
    frames = max(small - 1, 1) * FRAMES_OF_A_PAGE
    if frames < plan.window:
        return warn(
            f"some pipes will hold {frames} messages, so some children have a window of {frames} "
            f"and not of {plan.window}",
            fix,
        )
    return fine(f"a pipe holds {frames} messages; the window is {plan.window}")


def address_space(machine: Machine, plan: Plan) -> Verdict:
    """All arenas lie in one reservation, which every process has."""
    wanted = plan.addresses
    soft, _ = machine.limit("Max address space")
    if soft is not None:
        left = max(0, soft - (machine.kib_field("/proc/self/status", "VmSize") or 0))
        if wanted > left:
            return fail(
                f"{size(wanted)} of addresses are reserved, and the limit leaves {size(left)}",
                "ulimit -v unlimited",
            )
        if any(name != "cpu" for name in devices_of(machine, plan)):
            return warn(
                f"CUDA reserves more addresses than the limit of {size(soft)} is likely to allow",
                "ulimit -v unlimited",
            )
    why = machine.why_not_reserved(wanted)
    if why:
        return fail(
            f"{size(wanted)} of addresses could not be reserved ({why})",
            "ulimit -v unlimited; sudo sysctl vm.overcommit_memory=0",
        )
    return fine(f"{size(wanted)} of addresses can be reserved")


def mappings(machine: Machine, plan: Plan) -> Verdict:
    """A helper maps every arena on its own, with a guard between."""
    most = machine.number("/proc/sys/vm/max_map_count")
    regions = 2 * (plan.children + (plan.helpers if plan.scratch else 0)) + 1
    wanted = regions + MAPPINGS_OF_A_PROCESS
    if most is None or most >= wanted:
        return fine(f"{wanted:,} mappings may be needed, and {_or_any(most)} are allowed")
    not_enough = fail if regions > most else warn
    return not_enough(
        f"a helper may need {wanted:,} mappings, {regions:,} of them for arenas, and {most:,} "
        "are allowed",
        f"sudo sysctl vm.max_map_count={max(65530, 2 * wanted)}",
    )


def file_size(machine: Machine, plan: Plan) -> Verdict:
    """RLIMIT_FSIZE holds for memory files, too."""
    soft, _ = machine.limit("Max file size")
    wanted = max(plan.arena_region, plan.scratch_region)
    if soft is None or soft >= wanted:
        return fine("files may be as large as an arena")
    return fail(
        f"a file may have {size(soft)}, and an arena is a memory file of {size(wanted)}",
        "ulimit -f unlimited",
    )


def processor_time(machine: Machine, plan: Plan) -> Verdict:
    """RLIMIT_CPU kills a process that has used it up: helpers, eventually."""
    soft, _ = machine.limit("Max cpu time")
    if soft is None:
        return fine("processor time is not limited")
    return warn(
        f"each process is killed after {soft:,} s of processor time, helpers and parent too",
        "ulimit -t unlimited",
    )


def core_files(machine: Machine, plan: Plan) -> Verdict:
    """A helper maps all arenas, so its core file holds them."""
    soft, _ = machine.limit("Max core file size")
    is_piped = machine.text("/proc/sys/kernel/core_pattern").startswith("|")
    shared = int(machine.text("/proc/self/coredump_filter") or "0", 16) & 2
    if soft == 0 and not is_piped:
        return fine("no core files are written; Python stacks of a crash are printed all the same")
    if shared and plan.payload >= LARGE_CORE_FILE:
        return warn(
            f"the core file of a helper that crashes holds all arenas, {size(plan.payload)}",
            "echo 0x31 > /proc/self/coredump_filter, in the shell that launches; or ulimit -c 1",
        )
    return fine("a crash leaves a core file, beside the Python stacks that are printed")
