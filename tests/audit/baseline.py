"""What the audit finds and is right as it is, each with the reason.

A row that nothing is found for any more is itself an error: it would hide what comes after it.
"""

from __future__ import annotations

from typing import NamedTuple

ANYWHERE = ""


class Accepted(NamedTuple):
    """A finding of bandit's that is accepted.

    Attributes:
        test: bandit's name of it.
        file: in which; ANYWHERE: all.
        code: what the line found has in it; empty: anything.
        reason: why it is no weakness.
    """

    test: str
    file: str
    code: str
    reason: str


CODE = (
    Accepted("B101", ANYWHERE, "", "asserts are for the type checker: input is checked by if"),
    Accepted("B403", ANYWHERE, "", "importing pickle does nothing: what is read with it is B301"),
    Accepted("B404", ANYWHERE, "", "importing subprocess does nothing: what is run is B603"),
    Accepted(
        "B603", "shmgpu/attach/spawn.py", "", "runs this very interpreter, with a list of words"
    ),
    Accepted(
        "B603", "shmgpu/doctor/machine.py", "", "runs this very interpreter, with our own text"
    ),
    Accepted("B603", "shmgpu/engine/native.py", "", "runs the user's compiler on our own source"),
    Accepted(
        "B607", "shmgpu/engine/native.py", '"sh"', "of the user's own PATH, as the compiler is"
    ),
    Accepted(
        "B604", "shmgpu/cli/completion.py", "options.shell", "the name of one, and none is run"
    ),
    Accepted(
        "B301",
        "shmgpu/helper/late.py",
        "",
        "functions of this launch's own children; a broker that programs share takes none",
    ),
    Accepted(
        "B301",
        "shmgpu/broker/daemon.py",
        "",
        "a pipe from the process that started it, which could run any code itself",
    ),
    Accepted(
        "B301",
        "shmgpu/broker/exit_reports.py",
        "",
        "a file of the broker's own forks, which run the same user's code",
    ),
    Accepted("B301", "shmgpu/broker/spawn_bootstrap.py", "", "a descriptor of its own parent"),
    Accepted("B301", "shmgpu/broker/spawn_main.py", "", "a descriptor of its own parent"),
    Accepted(
        "B301", "shmgpu/codec/pytree.py", "", "only functions declared with pickle=True get there"
    ),
    Accepted(
        "B102",
        "shmgpu/engine/compile.py",
        "",
        "source that is made of known operations and numbers",
    ),
    Accepted(
        "B103",
        "shmgpu/attach/endpoint.py",
        "0o660",
        "a group that the launch names may join, and it alone",
    ),
    Accepted("B105", "shmgpu/serve/frontend/routes.py", "NO_TOKEN", "a sentence, no password"),
    Accepted("B108", "shmgpu/serve/state/regions.py", "FOLDER", "where shm_open has its names"),
    Accepted("B108", "shmgpu/doctor/__init__.py", "/dev/shm", "is looked at, never written to"),
    Accepted("B108", "shmgpu/doctor/machine.py", "/dev/shm", "is looked at, never written to"),
    Accepted("B108", "shmgpu/doctor/memory.py", "/dev/shm", "a sentence about it"),
    Accepted(
        "B110", "shmgpu/attach/carry.py", "", "which part fails comes out one by one after it"
    ),
    Accepted("B113", "shmgpu/demo/queues.py", "", "a queue called requests, not the package"),
)

ADVISORIES: dict[str, str] = {}  # of packages, by their identifier: why they are none for us

WITHOUT_HASH = {
    "torch": "comes from PyTorch's own index, a file for each kind of processor and CUDA",
}
