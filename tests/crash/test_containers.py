"""What a container does to a program: it is PID 1, has little memory and /dev/shm, and no rights.

The containers are namespaces, as any container's; nothing here needs a container tool.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import termios
import time

import numpy as np
import pytest
from crash import programs
from crash.programs import say, until

import shmgpu

MIB = 1 << 20
ALONE = ("unshare", "-rpf", "--kill-child", "--mount-proc")  # PID 1 of its own namespace
MOUNTS = ("unshare", "-rm")


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


def launch(main, **settings):
    settings = {"children": 2, "helpers": 2, "devices": "cpu", "arena": "1MiB", **settings}
    return shmgpu.launch(main, **settings)


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def status_of(pid):
    return pathlib.Path(f"/proc/{pid}/status").read_text()


# ---- PID 1 ---------------------------------------------------------------------------------


def serve_as_pid_1(kind):
    assert os.getpid() == 1
    say("start")

    def main(rank=0):
        with pytest.raises(shmgpu.HelperDied):
            die()
        return add_one(np.zeros(1)).tolist(), os.getppid()

    if kind == "launch":
        for result, parent in launch(main):
            assert result == [1] and parent == os.getpid()
    else:
        with shmgpu.init(helpers=2, devices="cpu", arena="1MiB"):
            assert main()[0] == [1]
    assert os.getpid() != 1 and os.getppid() == 1
    until(lambda: name_of(1) == "shmgpu-init", "PID 1 is the init")
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    assert others == set()  # no role and no zombie
    again = launch(lambda rank: os.getppid())
    assert again == [os.getpid()] * 2  # one init is enough
    say("end")
    sys.exit(7)


@pytest.mark.parametrize("kind", ["launch", "init"])
def test_a_program_that_is_pid_1_is_served_and_ends_with_its_own_status(kind):
    done = programs.run(serve_as_pid_1, kind, before=programs.needs(*ALONE))
    assert (done.stdout.split(), done.returncode) == (["start", "end"], 7), done.stderr


def leave_an_orphan():
    """A process whose parent has ended and that ends by itself, a little later."""
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.02)
        os._exit(0)
    os.wait()


def orphans_and_subprocesses():
    def main(rank):
        for _ in range(20):
            leave_an_orphan()
        mine = subprocess.run([sys.executable, "-c", "import sys; sys.exit(9)"])
        until(no_zombies, "every orphan is reaped")
        return mine.returncode

    say(launch(main))


def no_zombies():
    return not any(
        name.isdigit() and programs.stat(int(name))[:1] == ["Z"] for name in os.listdir("/proc")
    )


def test_f19_pid_1_reaps_every_orphan_and_no_subprocess_of_the_users():
    assert programs.result(orphans_and_subprocesses, before=programs.needs(*ALONE)) == ["[9, 9]"]


def subprocess_before_the_launch():
    users = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(33)"])
    launched = launch(lambda rank: add_one(np.zeros(1)).tolist())
    say(launched, users.wait(), os.getpid())


def test_f19_pid_1_with_subprocesses_of_its_own_stays_and_keeps_their_status():
    lines = programs.result(subprocess_before_the_launch, before=programs.needs(*ALONE))
    assert lines == ["[[1.0], [1.0]] 33 1"]


FORWARDED = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


def hears_signals():
    """As the caller of an init() that serves something: it hears what PID 1 is sent."""
    heard = []
    for name in FORWARDED:
        number = getattr(signal, name)
        signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        for name in FORWARDED:
            os.kill(1, getattr(signal, name))  # its own are not echoed
        until(lambda: "ShdPnd:\t0000000000000000" in status_of(1), "PID 1 has taken them")
        assert heard == []
        for name in FORWARDED:
            subprocess.run(["kill", "-" + name[3:], "1"], check=True)
            until(lambda: heard, f"{name} is handed on")
            time.sleep(0.01)
            assert heard == [name]  # once
            heard.clear()
            assert add_one(np.zeros(1)).tolist() == [1]
        os.kill(os.getpid(), signal.SIGSTOP)  # the test continues it
    say("went on")
    os.kill(os.getpid(), signal.SIGKILL)


def test_pid_1_hands_on_signals_waits_for_a_stopped_program_and_tells_how_it_was_killed():
    with programs.start(hears_signals, before=programs.needs(*ALONE)) as program:

        def stopped():
            return [p for p in program.others() if programs.stat(p)[:1] == ["T"]]

        [pid] = until(stopped, "it has heard them all, and stopped itself")
        assert program.process.poll() is None
        os.kill(pid, signal.SIGCONT)
        out, errors = program.end()
        assert out.split("\n")[0] == "went on", errors
        assert program.process.returncode == 128 + signal.SIGKILL


def waits_for_the_end():
    def main(rank):
        try:
            say("up")
            time.sleep(60)
        finally:
            say("unwound")

    launch(main)


def test_f30_a_request_to_end_the_container_ends_the_launch_in_order():
    """As `docker stop`: SIGTERM to PID 1, sent from outside."""
    with programs.start(waits_for_the_end, before=programs.needs(*ALONE)) as program:
        program.lines(2)

        def inits():  # it gets its name beside the program that it has forked
            return [p for p in program.others() if name_of(p) == "shmgpu-init"]

        [first] = until(inits, "PID 1 is the init")
        os.kill(first, signal.SIGTERM)
        out, errors = program.end()
        assert out.split() == ["unwound", "unwound"], errors
        assert program.process.returncode == 128 + signal.SIGTERM


def reads_a_terminal():
    """The leader of a session with a terminal, as in `docker run -it`."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        assert os.tcgetpgrp(0) == os.getpgrp() != os.getpid()
        say("ready")
        until(lambda: heard, "Ctrl-C arrives")
        assert sys.stdin.readline() == "typed\n"
        time.sleep(0.1)  # a second one would have come
        say("heard", len(heard), add_one(np.zeros(1)).tolist())


def test_f30_ctrl_c_at_a_containers_terminal_arrives_once():
    terminal, ours = pty.openpty()
    try:
        before = programs.needs(*ALONE)
        with programs.start(reads_a_terminal, before=before, stdin=ours) as program:
            assert program.line() == "ready"
            os.write(terminal, b"\x03")
            os.write(terminal, b"typed\n")
            out, errors = program.end()
            assert out.strip() == "heard 1 [1.0]", errors
    finally:
        os.close(terminal)
        os.close(ours)


def closes_what_it_opened_before(path):
    """The init holds nothing open: whoever reads sees the end, a lock is free, a port too."""
    ends = os.pipe()
    launch(lambda rank: rank)
    os.close(ends[1])
    say(os.read(ends[0], 1) == b"")


def test_what_the_program_closes_is_closed():
    before = programs.needs(*ALONE)
    assert programs.result(closes_what_it_opened_before, "-", before=before) == ["True"]


# ---- /dev/shm ------------------------------------------------------------------------------


def fills_its_arenas():
    pathlib.Path("/dev/shm/full").write_bytes(b"x" * (MIB - 8192))

    def main(rank):
        x = shmgpu.arena.zeros(6 * MIB, "uint8")
        x += 1
        assert int(add_one(x[:MIB])[-1]) == 2
        return int(x.sum())

    say(launch(main, children=4, arena="8MiB", scratch="4MiB"))


def test_f23_a_dev_shm_of_one_mebibyte_that_is_full_does_not_matter():
    tiny = ("sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh")
    before = programs.needs(*MOUNTS, *tiny)
    assert programs.result(fills_its_arenas, before=before) == [str([6 * MIB] * 4)]


# ---- memory limits -------------------------------------------------------------------------


def asks_for_arenas(children, mebibytes):
    try:
        say(len(launch(lambda rank: rank, children=int(children), arena=f"{mebibytes}MiB")))
    except shmgpu.LaunchError as error:
        say("LaunchError:", error)


def cgroup_lines():
    """This process's memory cgroups: {"v1": path, "v2": path}, as far as there are any."""
    found = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found["v2"] = path
        elif "memory" in controllers.split(","):
            found["v1"] = path
    return found


LIMITS = {
    "v1": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "v2": ("", "memory.max", "memory.current", "inactive_file"),
}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("limit", "used", "cache", "works"),
    [
        (600, 100, 0, True),  # four arenas of 64 MiB are asked for
        (300, 100, 0, False),
        (300, 100, 90, True),  # page cache is given back under pressure
        (200, 300, 0, False),  # over its limit already
        (None, 100, 0, True),  # no limit at all
    ],
)
def test_f23_a_limit_of_the_cgroup_is_a_clear_error_at_launch(
    version, limit, used, cache, works, tmp_path
):
    """A made-up tree of cgroups stands where the machine's is."""
    path = cgroup_lines().get(version)
    if path is None:
        pytest.skip(f"this process is in no memory cgroup of {version}")
    folder, limit_name, used_name, cache_name = LIMITS[version]
    for place in {path, "/"}:  # its own, and one above it that has no limit
        made = tmp_path / folder / place.lstrip("/")
        made.mkdir(parents=True, exist_ok=True)
        no_limit = "max" if version == "v2" else str((1 << 63) - 4096)
        is_own = place == path and limit is not None
        (made / limit_name).write_text(f"{limit * MIB if is_own else no_limit}\n")
        (made / used_name).write_text(f"{used * MIB}\n")
        (made / "memory.stat").write_text(f"anon 5\n{cache_name} {cache * MIB}\n")
    bind = ("sh", "-c", f'mount --bind "{tmp_path}" /sys/fs/cgroup && exec "$@"', "sh")
    [line] = programs.result(asks_for_arenas, 4, 64, before=programs.needs(*MOUNTS, *bind))
    if works:
        assert line == "4"
    else:
        asked = f"{4 * 64 + 2 * 4} MiB are asked for in all, 8 of them as helpers' scratch regions"
        assert line.startswith("LaunchError") and asked in line
        assert "cgroup" in line and f"{max(limit - used, 0)} MiB to give" in line


@contextlib.contextmanager
def memory_cgroup(limit):
    """A cgroup below our own, which thereby stays in force; gone afterwards."""
    lines = cgroup_lines()
    base = pathlib.Path("/sys/fs/cgroup")
    for version, path in lines.items():
        folder, limit_name, _, _ = LIMITS[version]
        own = base / folder / path.lstrip("/")
        try:
            made = pathlib.Path(tempfile.mkdtemp(prefix="shmgpu-test-", dir=own))
        except OSError:
            continue
        try:
            try:
                (made / limit_name).write_text(str(limit))
            except OSError:
                continue  # the controller is not ours to give
            yield made
            return
        finally:
            until(lambda made=made: try_to_remove(made), "the cgroup is empty")
    pytest.skip("this machine does not allow to make a memory cgroup")


def try_to_remove(folder):
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        return True


def out_of_memory_kills(folder):
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def fills_what_it_got(children, mebibytes):
    def main(rank):
        x = shmgpu.arena.empty((int(mebibytes) - 4) * MIB, "uint8")
        x[:] = 1  # every page of it
        add_one(x[:MIB])
        return int(x[-1])

    try:
        say(launch(main, children=int(children), helpers=1, arena=f"{mebibytes}MiB"))
    except shmgpu.LaunchError as error:
        say("LaunchError:", error)


def test_f23_under_a_real_memory_limit_arenas_fit_or_are_refused():
    with memory_cgroup(512 * MIB) as cgroup:
        inside = ("sh", "-c", f'echo $$ >"{cgroup}/cgroup.procs" && exec "$@"', "sh")
        if subprocess.run([*inside, "true"]).returncode != 0:
            pytest.skip("this machine does not allow to enter a cgroup")
        [line] = programs.result(fills_what_it_got, 4, 160, before=inside)
        assert line.startswith("LaunchError") and "644 MiB are asked for" in line
        assert "cgroup" in line
        [line] = programs.result(fills_what_it_got, 4, 64, before=inside)
        assert line == "[1, 1, 1, 1]"
        assert out_of_memory_kills(cgroup) == 0


def asks_for_more_addresses_than_it_may_have():
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 128 * MIB, used + 128 * MIB))
    asks_for_arenas(2, 256)
    asks_for_arenas(2, 16)


def test_f23_a_limit_of_the_address_space_is_a_clear_error_at_launch():
    refused, works = programs.result(asks_for_more_addresses_than_it_may_have)
    assert refused.startswith("LaunchError") and "RLIMIT_AS" in refused
    assert works == "2"


# ---- no rights -----------------------------------------------------------------------------


def serve_without_rights(user):
    status = dict(line.split(":\t", 1) for line in status_of("self").splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == 0 and os.getuid() == int(user) != 0
    assert status["NoNewPrivs"] == "1"

    def main(rank):
        if rank == 0:
            with pytest.raises(shmgpu.HelperDied):
                die()
        return add_one(np.zeros(1)).tolist()

    say(launch(main, prefault=True), os.getpid() != 1 and os.getppid() == 1)


def test_as_another_user_without_privileges_it_serves_as_pid_1_too():
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    nobody = ("--reuid=64321", "--regid=64321", "--clear-groups", "--no-new-privs")
    drop = ("setpriv", *nobody, "--inh-caps=-all", "--bounding-set=-all")
    before = programs.needs("unshare", "-pf", "--kill-child", "--mount-proc", *drop)
    if subprocess.run([*before, sys.executable, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip("another user cannot read this checkout")
    assert programs.result(serve_without_rights, 64321, before=before) == ["[[1.0], [1.0]] True"]


if __name__ == "__main__":
    programs.main(globals())
