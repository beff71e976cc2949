"""The first call of a program in no broker: it joins, or starts one that ends by itself."""

from __future__ import annotations

import re
import signal

import pytest
from attach.commands import starting_by_themselves, until
from crash.programs import is_alive

# Calls as it stands: no launch, no init, no guard against being imported.
SCRIPT = """
import sys
import numpy as np, shmgpu

def load(helper):
    return 3

@shmgpu.function(arrays="numpy")
def triple(helper, x):
    return helper.session * x

print(triple(np.ones(2)).tolist(), shmgpu.stats()["broker"]["parent_pid"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with starting_by_themselves(tmp_path, SHMGPU_LOG="info") as made:
        yield made


def answer(said):
    """The broker's process, from what a script printed."""
    match = re.fullmatch(r"\[3\.0, 3\.0\] (\d+)\n", said)
    assert match, said
    return int(match[1])


def ends(pid):
    until(lambda: not is_alive(pid), "the broker has ended")


def test_a_script_that_only_calls_gets_its_answer_and_the_next_one_joins(place):
    status, said, complained = place.run("script.py")
    assert status == 0, complained
    broker = answer(said)
    assert is_alive(broker)  # it outlives who started it
    assert answer(place.run("script.py")[1]) == broker


def test_programs_that_start_at_the_same_moment_end_with_one_broker(place):
    programs = [place.start("script.py") for _ in range(3)]
    said = [one.communicate(timeout=60) for one in programs]
    assert all(one.returncode == 0 for one in programs), said
    assert len({answer(out) for out, _ in said}) == 1


def test_threads_whose_calls_are_the_first_join_once(place):
    (place.directory / "threads.py").write_text(
        "import concurrent.futures, numpy as np, served_here, shmgpu\n"
        "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
        "    done = [pool.submit(served_here.double, np.ones(1)) for _ in range(8)]\n"
        "    print(sum(one.result()[0] for one in done))\n"
    )
    status, said, complained = place.run("threads.py")
    assert (status, said) == (0, "16.0\n"), complained


def test_it_ends_when_nobody_has_been_joined_for_so_long(place):
    place.environment["SHMGPU_IDLE_TIMEOUT"] = "0.3"
    broker = answer(place.run("script.py")[1])
    ends(broker)
    assert not place.path.exists()
    (log,) = (path.read_text() for path in place.directory.glob("*.log"))
    assert 'idle role=parent cause="nobody has been joined for 0.3 s"' in log, log
    assert answer(place.run("script.py")[1]) != broker


def test_it_does_not_end_while_a_program_is_joined(place):
    place.environment["SHMGPU_IDLE_TIMEOUT"] = "0.1"
    (place.directory / "stays.py").write_text(
        "import time, numpy as np, served_here, shmgpu\n"
        "first = served_here.who(np.ones(1))\n"
        "time.sleep(0.5)\n"
        "print(served_here.who(np.ones(1)) == first)\n"
    )
    assert place.run("stays.py")[1] == "True\n"


def test_programs_that_come_while_one_ends_are_served_by_one_or_the_next(place):
    place.environment["SHMGPU_IDLE_TIMEOUT"] = "0.01"  # so that ends and comings meet
    brokers = set()
    for _ in range(5):
        programs = [place.start("script.py") for _ in range(2)]
        for one in programs:
            said, complained = one.communicate(timeout=60)
            assert one.returncode == 0, complained
            brokers.add(answer(said))
    assert len(brokers) > 1
    for broker in brokers:
        ends(broker)


@pytest.mark.parametrize("auto", ["never", "join"])
def test_who_does_not_want_that_is_told_that_no_broker_runs(place, auto):
    status, _, complained = place.run("script.py", SHMGPU_AUTO=auto)
    assert status == 1 and "NotRunning: no broker is running in this process" in complained
    assert not place.path.exists()


def test_helpers_and_forked_children_start_none(place):
    (place.directory / "roles.py").write_text(
        "import os, numpy as np, served_here, shmgpu\n"
        "@shmgpu.function(arrays='numpy')\n"
        "def ask(helper, x):\n"
        "    return served_here.double(x)\n"
        "try:\n"
        "    ask(np.ones(1))\n"
        "except shmgpu.RemoteError as error:\n"
        "    print(error.type_name.rpartition('.')[2], flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        served_here.double(np.ones(1))\n"
        "    except shmgpu.NotRunning:\n"
        "        os.write(1, b'refused\\n')\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    status, said, complained = place.run("roles.py")
    assert (status, said) == (0, "NotRunning\nrefused\n"), complained


def test_below_a_launch_whose_broker_has_ended_nothing_is_started(place):
    status, _, complained = place.run("script.py", SHMGPU_SOCKET="@shmgpu-none-such")
    assert status == 1 and "no broker listens at @shmgpu-none-such" in complained
    assert not list(place.directory.glob("@*"))


def test_a_broker_that_ends_says_so_to_those_who_connect(place):
    with place.up("--idle-timeout", "3600") as broker:
        member = place.start(
            "-c",
            "import numpy as np, served_here, shmgpu\n"
            "shmgpu.connect()\n"
            "one = served_here.held.submit(np.zeros(1), 'drained')\n"
            "while shmgpu.stats()['broker']['in_flight'] == 0: pass\n"
            "print('asked', flush=True)\n"
            "one.result()\n",
        )
        assert member.stdout.readline() == "asked\n"
        broker.process.send_signal(signal.SIGTERM)
        broker.hear("STOPPING=1")
        status, _, complained = place.run("-c", "import shmgpu\nshmgpu.connect()\n")
        assert status == 1 and "BrokerDied" in complained and "is stopping" in complained
        newcomer = place.start("script.py")  # waits for its end, and starts the next
        (place.directory / "drained").touch()
        said, complained = newcomer.communicate(timeout=60)
        assert newcomer.returncode == 0, complained
        assert answer(said) != broker.process.pid
        assert member.communicate(timeout=20)[0] == ""
        broker.end()
