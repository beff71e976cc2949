"""``shmgpu scale``, ``pause`` and ``resume``: helpers come, go and rest while programs call."""

from __future__ import annotations

import signal

import pytest
from attach.commands import Place

READY, LEAVING, ABSENT = 2, 5, 6

# Calls without a pause until told to end; every answer is looked at.
CALLER = """
import select, sys
import numpy as np, served_here, shmgpu
shmgpu.connect()
x = shmgpu.arena.array(np.arange(8.0))
print("calling", flush=True)
calls = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    futures = [served_here.double.submit(x) for _ in range(16)]
    assert all(one.result()[7] == 14 for one in futures)
    calls += 16
print("calls", calls > 0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("scale"))


@pytest.fixture(scope="module", autouse=True)
def broker(place):
    sizes = ("--helpers", "1", "--max-helpers", "3", "--max-children", "4")
    with place.up(*sizes, "--order", "deadline") as broker:
        yield broker


def states(place, wanted):
    """The helpers' states, once they are as wanted; none has died."""
    code = (
        "import time, shmgpu\n"
        "shmgpu.connect()\n"
        "until = time.monotonic() + 20\n"
        "while time.monotonic() < until:\n"
        "    rows = shmgpu.stats()['helpers']\n"
        f"    if [row['state'] for row in rows] == {wanted}: break\n"
        "    time.sleep(0.01)\n"
        "print([row['state'] for row in rows], sum(row['deaths'] for row in rows))\n"
    )
    assert place.program(code) == f"{wanted} 0"


def scale(place, words):
    status, said, complained = place.run("shmgpu", "scale", words)
    assert status == 0, complained
    return said.strip()


@pytest.mark.slow
def test_helpers_come_and_go_under_load_and_no_call_fails(place):
    import subprocess
    import sys

    states(place, [READY, ABSENT, ABSENT])
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER],
        env=place.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert caller.stdout.readline() == "calling\n"
        assert scale(place, "3") == "pool default: 3 helpers, 2 more: making their sessions"
        states(place, [READY, READY, READY])
        assert scale(place, "default=1").startswith("pool default: 1 helper, 2 fewer: they end")
        states(place, [READY, ABSENT, ABSENT])
        assert scale(place, "2") == "pool default: 2 helpers, 1 more: making its session"
        assert scale(place, "2") == "pool default: 2 helpers, as before"
        states(place, [READY, READY, ABSENT])
        said, complained = caller.communicate("end\n", timeout=20)
    finally:
        caller.kill()
        caller.communicate()
    assert said == "calls True\n", complained
    scale(place, "1")


def test_one_that_is_let_go_finishes_what_it_holds(place):
    scale(place, "2")
    states(place, [READY, READY, ABSENT])
    said = place.program(
        "import pathlib, numpy as np, served_here, shmgpu, subprocess, sys\n"
        "shmgpu.connect()\n"
        "one = served_here.held.options(helpers=[1]).submit(np.zeros(1), 'let_go')\n"
        "while shmgpu.stats()['helpers'][1]['in_flight'] == 0: pass\n"
        "command = [sys.executable, '-m', 'shmgpu.cli.main', 'scale', '1']\n"
        "print(subprocess.run(command, capture_output=True, text=True).stdout.strip())\n"
        "print(shmgpu.stats()['helpers'][1]['state'])\n"
        "pathlib.Path('let_go').touch()\n"
        "print(one.result().tolist())\n"
    ).splitlines()
    assert said[0] == (
        "pool default: 1 helper, 1 fewer: it ends when it has finished what it holds"
    )
    assert said[1:] == [str(LEAVING), "[1]"]
    states(place, [READY, ABSENT, ABSENT])


def test_one_that_keeps_a_result_until_there_is_room_for_it_stays_so_long(place):
    scale(place, "2")
    states(place, [READY, READY, ABSENT])
    client = place.start(
        "-c",
        "import numpy as np, served_here, shmgpu\n"
        "shmgpu.connect()\n"
        "held = served_here.held.options(helpers=[1])\n"
        "call = held.submit(np.zeros(1), 'stopped', 300_000)\n"
        "while shmgpu.stats()['helpers'][1]['in_flight'] == 0: pass\n"
        "print('asked', flush=True)\n"
        "print(call.result().nbytes)\n",
    )
    try:
        assert client.stdout.readline() == "asked\n"
        client.send_signal(signal.SIGSTOP)  # it cannot make room for now
        (place.directory / "stopped").touch()
        place.program(
            "import shmgpu\n"
            "shmgpu.connect()\n"
            "while shmgpu.stats()['helpers'][1]['in_flight'] > 0: pass\n"
        )
        scale(place, "1")
        states(place, [READY, LEAVING, ABSENT])
        client.send_signal(signal.SIGCONT)
        said, complained = client.communicate(timeout=20)
    finally:
        client.kill()
        client.communicate()
    assert said == "300000\n", complained
    states(place, [READY, ABSENT, ABSENT])


def test_a_call_bound_to_one_that_is_gone_fails_and_names_the_reason(place):
    states(place, [READY, ABSENT, ABSENT])
    said = place.program(
        "import numpy as np, served_here, shmgpu\n"
        "shmgpu.connect()\n"
        "try:\n"
        "    served_here.double.options(helpers=[2])(np.zeros(1))\n"
        "except shmgpu.NoHelpers as error:\n"
        "    print(error)\n"
        "try:\n"
        "    served_here.double.options(helpers=[3])(np.zeros(1))\n"
        "except shmgpu.ConfigError as error:\n"
        "    print(error)\n"
    ).splitlines()
    assert "is not there, because its pool was scaled" in said[0]
    assert "none of the helpers asked for exists" in said[1]


STOPPED = f"""
import os, signal, time, shmgpu
from shmgpu.attach import control
shmgpu.connect()
while (row := shmgpu.stats()["helpers"][1])["state"] != {READY}: time.sleep(0.01)
os.kill(row["pid"], signal.SIGSTOP)
control.scale(1)
until = time.monotonic() + 20
while shmgpu.stats()["helpers"][1]["state"] != {ABSENT}:
    assert time.monotonic() < until
    time.sleep(0.01)
"""


def test_the_log_says_what_was_scaled_and_what_was_refused(tmp_path):
    """And one that is let go and does not end is killed, when it has had its time."""
    place = Place(tmp_path)
    more = {"SHMGPU_LOG": "info", "SHMGPU_GRACE": "0.2"}
    with place.up("--helpers", "few=1", "--max-helpers", "few=2", **more) as broker:
        scale(place, "2")
        assert place.run("shmgpu", "scale", "9")[0] == 1
        place.program(STOPPED)
        broker.process.send_signal(signal.SIGTERM)
        log = broker.end()
    assert "scaled role=parent pool=few helpers=2 before=1" in log
    assert (
        'scale_refused role=parent pool=few helpers=9 cause="the pool can have from 1 to 2' in log
    )
    assert "child_refused" not in log


def test_one_that_dies_over_what_it_held_when_it_was_let_go_is_told_of_as_dead(tmp_path):
    place = Place(tmp_path)
    with place.up("--helpers", "2", "--max-helpers", "2", SHMGPU_LOG="info") as broker:
        place.program(
            "import pathlib, served_here, shmgpu\n"
            "from shmgpu.attach import control\n"
            "shmgpu.connect()\n"
            "one = served_here.crash.options(helpers=[1]).submit('let_go')\n"
            "while shmgpu.stats()['helpers'][1]['in_flight'] == 0: pass\n"
            "control.scale(1)\n"
            f"while shmgpu.stats()['helpers'][1]['state'] != {LEAVING}: pass\n"
            "pathlib.Path('let_go').touch()\n"
            "assert isinstance(one.exception(20), shmgpu.HelperDied)\n"
            f"while shmgpu.stats()['helpers'][1]['state'] != {ABSENT}: pass\n"
        )
        broker.process.send_signal(signal.SIGTERM)
        log = broker.end()
    [told] = [line for line in log.splitlines() if "helper_died" in line]
    assert "crash" in told and 'action="not replaced: its pool needs fewer"' in told
    assert "helper_retired" not in log


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("4", "the pool can have from 1 to 3 helpers"),
        ("other=1", "the broker has no pool 'other': its pools are default"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_sentence(place, words, sentence):
    status, _, complained = place.run("shmgpu", "scale", words)
    assert status == 1 and sentence in complained


def test_without_a_broker_that_is_said(tmp_path):
    status, _, complained = Place(tmp_path).run("shmgpu", "scale", "2")
    assert status == 1 and "no broker listens at" in complained


def test_a_call_that_waits_for_company_at_one_that_is_let_go_fails_at_once(place):
    scale(place, "2")
    states(place, [READY, READY, ABSENT])
    said = place.program(
        "import numpy as np, served_here, shmgpu, subprocess, sys\n"
        "shmgpu.connect()\n"
        "x = np.zeros((1, 4))\n"
        "alone = served_here.in_company.options(helpers=[1]).submit(x)\n"
        "while shmgpu.stats()['broker']['queued'] == 0: pass\n"
        "subprocess.run([sys.executable, '-m', 'shmgpu.cli.main', 'scale', '1'], check=True)\n"
        "try:\n"
        "    alone.result(timeout=20)\n"
        "except shmgpu.NoHelpers as error:\n"
        "    print(error)\n"
    )
    assert "is not there, because its pool was scaled" in said.splitlines()[-1]
    states(place, [READY, ABSENT, ABSENT])


TENSORS = """
import collections, subprocess, sys
import shmgpu as gt
gt.connect()
held = collections.defaultdict(list)
for n in range(9):
    one = gt.ones(1000) + n
    assert one.sum().item() == 1000 * (n + 1)
    held[one._node.value.life.number].append((n, one))
print(sorted(held), flush=True)  # before what the command prints
subprocess.run([sys.executable, "-m", "shmgpu.cli.main", "scale", "1"], check=True)
while [row["state"] for row in gt.stats()["helpers"]] != [2, 6, 6]: pass
unasked = []
for n in range(3):
    unasked.append(gt.ones(1000) * n)
    gt.tensors.current.recorder().send()  # nobody waits for it
for n in range(9):
    assert (gt.ones(1000) + n).sum().item() == 1000 * (n + 1)
assert [one.sum().item() for one in unasked] == [0, 1000, 2000]
print(len({one.data[1] == n + 1 for n, one in held[0]}))
for _, one in held[1] + held[2]:
    try:
        (one * 2).data
    except gt.HelperDied as error:
        print(error)
"""


def test_tensors_go_on_at_the_helpers_that_are_left_and_those_of_others_say_why_they_are_gone(
    place,
):
    scale(place, "3")
    states(place, [READY, READY, READY])
    said = place.program(TENSORS).splitlines()
    assert said[0] == "[0, 1, 2]"
    assert said[2] == "1"
    gone = [
        f"helper {n} was let go when its pool was scaled, and with it went tensors" for n in (1, 2)
    ]
    assert len(said) > 4 and all(any(one in told for one in gone) for told in said[3:])
    states(place, [READY, ABSENT, ABSENT])


NINE_CORES = """
import os, sys
import numpy as np
import torch
import shmgpu
from shmgpu.common import devices as device
device.cores = lambda: 9

def load(helper):
    if helper.id == 1:
        torch.set_num_threads(7)  # of its own choice

@shmgpu.function(arrays="numpy")
def threads(helper, x):
    return np.array([torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])])
"""

SHARES = """
import time
import numpy as np, nine_cores, shmgpu
from shmgpu.attach import control
shmgpu.connect()

def become(wanted):
    until = time.monotonic() + 30
    found = None
    while found != wanted and time.monotonic() < until:
        states = [row["state"] for row in shmgpu.stats()["helpers"]]
        ready = [n for n, state in enumerate(states) if state == 2]
        found = [nine_cores.threads.options(helpers=[n])(np.zeros(1)).tolist() for n in ready]
    assert found == wanted, found

become([[8, 8]])
control.scale(2)
become([[4, 4], [7, 4]])
control.scale(3)
become([[2, 2], [7, 4], [2, 2]])
control.scale(1)
become([[8, 8]])
"""


def test_helpers_share_the_cores_among_as_many_as_there_are(tmp_path):
    """A number of threads that a session function chose stays."""
    place = Place(tmp_path)
    (tmp_path / "nine_cores.py").write_text(NINE_CORES)
    environment = {"PYTHONPATH": f"{tmp_path}:{place.environment['PYTHONPATH']}"}
    words = ("--helpers", "1", "--max-helpers", "3", "--threads", "0")
    with place.up(*words, "--session", "nine_cores:load", "nine_cores", **environment):
        place.program(SHARES, **environment)


def test_a_paused_pool_keeps_calls_until_it_goes_on(place):
    said = place.program(
        "import numpy as np, served_here, shmgpu, subprocess, sys\n"
        "def command(*words):\n"
        "    words = [sys.executable, '-m', 'shmgpu.cli.main', *words]\n"
        "    done = subprocess.run(words, capture_output=True, text=True)\n"
        "    print((done.stdout + done.stderr).strip())\n"
        "shmgpu.connect()\n"
        "command('pause', 'default')\n"
        "print(shmgpu.stats()['broker']['paused_pools'])\n"
        "waits = served_here.double.submit(np.ones(1))\n"
        "ended = []\n"
        "for seconds in (60, 40):\n"
        "    one = served_here.double.options(timeout=seconds).submit(np.ones(1))\n"
        "    one.add_done_callback(lambda _, seconds=seconds: ended.append(seconds))\n"
        "try:\n"
        "    served_here.double.options(timeout=0.05)(np.ones(1))\n"
        "except shmgpu.CallTimeout as error:\n"
        "    late = served_here.double.options(timeout=0.05).submit(np.ones(1)).exception()\n"
        "    assert str(late) == str(error)\n"
        "    print(str(error).rpartition(': ')[2], waits.done())\n"
        "    print(shmgpu.stats()['helpers'][0]['in_flight'])\n"
        "command('resume')\n"
        "print(waits.result().tolist(), ended, shmgpu.stats()['broker']['paused_pools'])\n"
        "command('pause', 'nowhere')\n"
    ).splitlines()
    assert said == [
        "pool default: paused: its calls wait",
        "1",
        "allow more time (its pool is paused, and goes on after shmgpu resume) False",
        "0",
        "pool default: goes on",
        "[2.0] [40, 60] 0",  # by deadline, as the broker was told to
        "shmgpu: the broker has no pool 'nowhere': its pools are default",
    ]
