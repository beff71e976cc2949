"""Which broker a program shares that started none by word, and that none serves it old code.

Two programs run one after the other, with an edit between them, or at once.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket

import pytest
from attach.commands import starting_by_themselves, until
from crash.programs import is_alive

from shmgpu.attach import automatic, endpoint
from shmgpu.errors import ConfigError

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

# Calls as it stands; where something is to be read, it stays until it is told to go.
SCRIPT = """
import sys
import numpy as np, shmgpu

FACTOR = 3

def load(helper):
    return 1

@shmgpu.function(arrays="numpy")
def times(helper, x):
    return FACTOR * helper.session * x

print(int(times(np.ones(1))[0]), shmgpu.stats()["broker"]["parent_pid"], flush=True)
sys.stdin.readline()
"""
IMPORTS = SCRIPT.replace("FACTOR = 3", "import models").replace("FACTOR *", "models.FACTOR *")
TENSORS = """
import sys
import shmgpu as gt
gt.set_backend("numpy")
print(int(gt.ones(1).data[0]), gt.stats()["broker"]["parent_pid"], flush=True)
sys.stdin.readline()
"""

UP_DETACHED = ("shmgpu", "up", "--detach", "--arena", "1MiB", "--devices", "cpu", "served_here")


@pytest.fixture
def place(tmp_path):
    with starting_by_themselves(tmp_path, SHMGPU_IDLE_TIMEOUT="30") as made:
        yield made


def write(place, name, text):
    (place.directory / name).write_text(text)
    return name


def answer(place, *words, **more):
    """What a program computed, and the process of the broker that it had."""
    status, said, complained = place.run(*words, **more)
    assert status == 0, complained
    match = re.fullmatch(r"(\d+) (\d+)\n", said)
    assert match, said
    return int(match[1]), int(match[2])


def staying(place, *words):
    """A program that goes on: it, what it computed, and its broker."""
    read, told = os.pipe()
    program = place.start(*words, stdin=read)
    os.close(read)
    value, broker = map(int, program.stdout.readline().split())
    return program, told, value, broker


def ends(pid):
    until(lambda: not is_alive(pid), "the broker has ended")


EDITS = {
    "a constant": ("FACTOR = 3", "FACTOR = 5", 5),
    "the session": ("return 1", "return 2", 6),
    "the function": ("return FACTOR", "return 4 + FACTOR", 7),
}


def test_a_folder_that_no_socket_fits_in_is_said_to_be_too_long(monkeypatch, tmp_path):
    monkeypatch.delenv("SHMGPU_SOCKET", raising=False)
    monkeypatch.setattr(automatic.carry, "name_apart", lambda: None)
    automatic.SharedBroker(pathlib.Path("/tmp/broker"), {})
    with pytest.raises(ConfigError, match=r"too long for a Unix socket: set .* eleven more"):
        automatic.SharedBroker(pathlib.Path("/tmp", "x" * 100, "broker"), {})


def test_a_script_that_was_edited_is_served_by_what_it_says(place):
    write(place, "script.py", SCRIPT)
    first = answer(place, "script.py")
    assert first[0] == 3 and answer(place, "script.py") == first
    write(place, "script.py", "# A line more.\n" + SCRIPT)
    assert answer(place, "script.py") == first
    brokers = {first[1]}
    for what, (before, after, value) in EDITS.items():
        write(place, "script.py", SCRIPT.replace(before, after))
        said, broker = answer(place, "script.py")
        assert (said, broker in brokers) == (value, False), what
        brokers.add(broker)


def test_an_edit_of_a_module_that_helpers_loaded_gives_the_next_program_another_broker(place):
    """The old one goes on for those who have it, and ends with the last of them."""
    write(place, "script.py", IMPORTS)
    write(place, "models.py", "FACTOR = 3\n")
    program, told, value, old = staying(place, "script.py")
    assert value == 3
    write(place, "models.py", "FACTOR = 7\n")  # as long, and maybe within the same second
    value, new = answer(place, "script.py")
    assert (value, new != old) == (7, True)
    assert is_alive(old)
    os.close(told)
    program.communicate(timeout=30)
    ends(old)
    assert answer(place, "script.py") == (7, new)


def test_what_a_function_imports_only_when_it_runs_counts_too(place):
    late = "def times(helper, x):\n    import models\n"
    write(
        place,
        "script.py",
        IMPORTS.replace("import models\n", "\n").replace("def times(helper, x):\n", late),
    )
    write(place, "models.py", "FACTOR = 3\n")
    assert answer(place, "script.py")[0] == 3
    write(place, "models.py", "FACTOR = 8\n")
    assert answer(place, "script.py")[0] == 8


def test_a_file_that_is_written_anew_with_the_same_content_has_not_changed(place):
    write(place, "script.py", IMPORTS)
    write(place, "models.py", "FACTOR = 3\n")
    first = answer(place, "script.py")
    write(place, "next.py", "FACTOR = 3\n")
    os.replace(place.directory / "next.py", place.directory / "models.py")  # as editors do
    assert answer(place, "script.py") == first


def test_programs_that_only_use_tensors_share_one_whatever_their_source(place):
    write(place, "one.py", TENSORS)
    write(place, "two.py", "# Another.\n" + TENSORS.replace("ones(1)", "full((2, 2), 4.0)[0]"))
    (place.directory / "elsewhere").mkdir()
    _, broker = answer(place, "one.py")
    assert answer(place, "two.py") == (4, broker)
    assert answer(place, "-c", TENSORS) == (1, broker)


def test_the_same_program_with_other_arguments_shares_one(place):
    text = (
        (EXAMPLES / "multi_user.py")
        .read_text()
        .replace("shmgpu.connect(wait=30)", "shmgpu.ensure()")
    )
    write(place, "multi_user.py", text.replace("ROUNDS, AT_ONCE = 50, 4", "ROUNDS, AT_ONCE = 2, 2"))
    programs = [place.start("multi_user.py", user) for user in ("user1", "user2")]
    said = [one.communicate(timeout=60) for one in programs]
    assert all("right answers" in out for out, _ in said), said
    assert len(sockets(place)) == 1


def sockets(place):
    return [path for path in place.directory.iterdir() if path.is_socket()]


def test_programs_with_other_functions_other_values_or_other_settings_have_brokers_of_their_own(
    place,
):
    write(place, "script.py", SCRIPT)
    write(place, "other.py", SCRIPT.replace("times", "product"))
    write(place, "value.py", SCRIPT.replace("FACTOR = 3", "FACTOR = len(sys.argv) + 2"))
    brokers = [
        answer(place, "script.py"),
        answer(place, "script.py", SHMGPU_ARENA="2MiB"),
    ]
    assert answer(place, "script.py", SHMGPU_ARENA="2048KiB") == brokers[1]
    brokers += [
        answer(place, "script.py", OMP_NUM_THREADS="1"),
        answer(place, "other.py"),
        answer(place, "value.py", "one", "two"),
    ]
    assert [value for value, _ in brokers] == [3, 3, 3, 3, 5]
    assert len({broker for _, broker in brokers}) == len(brokers)


@pytest.mark.slow
def test_commands_say_which_brokers_there_are_where_there_are_several(place):
    write(place, "one.py", SCRIPT)
    write(place, "two.py", SCRIPT.replace("times", "product"))
    pids = {answer(place, name)[1] for name in ("one.py", "two.py")}
    for words in (["down"], ["scale", "2"]):
        status, _, complained = place.run("shmgpu", *words)
        assert status == 1 and "2 brokers run that programs have started" in complained
        assert "(one.py)" in complained and "(two.py)" in complained
    named = str(sockets(place)[0])
    assert place.run("shmgpu", "scale", "--path", named, "2")[0] == 0
    assert place.run("shmgpu", "down", "--path", named)[0] == 0
    assert place.run("shmgpu", "scale", "2")[0] == 0  # the one that is left
    assert place.run("shmgpu", "down", "--all")[0] == 0
    for pid in pids:
        ends(pid)
    assert sockets(place) == []


def test_down_all_ends_that_of_up_and_those_that_started_by_themselves_at_once(place):
    _, pid = answer(place, "-c", TENSORS)
    assert place.run(*UP_DETACHED)[0] == 0
    status, said, complained = place.run("shmgpu", "down", "--all")
    assert status == 0 and said.count("has ended") == 2, complained
    ends(pid)
    assert sockets(place) == [] and not place.path.exists()
    status, said, _ = place.run("shmgpu", "down", "--all")
    assert status == 0 and said.startswith("there is no broker to end (those of launch()")


def test_a_program_asks_the_broker_that_it_shares_for_the_helpers_that_it_lacks(place):
    more = TENSORS.replace('gt.set_backend("numpy")', 'gt.set_backend("numpy")\ngt.gpu_workers(2)')
    _, broker = answer(place, "-c", TENSORS)
    assert answer(place, "-c", more) == (1, broker)
    grows = SCRIPT + (
        "import os, time\nuntil = time.monotonic() + 20\nwanted = int(os.environ['WANTED'])\n"
        "while sum(row['state'] == 2 for row in shmgpu.stats()['helpers']) != wanted:\n"
        "    assert time.monotonic() < until\n    time.sleep(0.01)\n"
    )
    write(place, "script.py", grows)
    first = answer(place, "script.py", WANTED="1")
    assert answer(place, "script.py", SHMGPU_HELPERS="2", WANTED="2") == first


def test_one_that_stands_by_itself_is_joined_as_it_is_and_only_calls_of_other_code_warn(place):
    served = (
        SCRIPT.split("print")[0]
        + "@shmgpu.function(arrays='numpy')\ndef unused(helper):\n    return 1\n"
    )
    write(place, "mine.py", served)
    calls = "import numpy as np, mine\nfor _ in range(3): print(int(mine.times(np.ones(1))[0]))\n"
    write(place, "calls.py", calls)
    assert place.run("shmgpu", "up", "--detach", "--devices", "cpu", "mine.py")[0] == 0
    write(
        place,
        "mine.py",
        # Longer: what Python compiled in the same second would pass for a file of the same size.
        served.replace("FACTOR = 3", "FACTOR = 40").replace("return 1\n", "return 2\n"),
    )
    status, said, complained = place.run("calls.py")
    assert (status, said) == (0, "3\n3\n3\n"), complained
    assert complained.count("the broker runs other code for mine:times") == 1
    assert "unused" not in complained and "shmgpu down" in complained
    write(place, "other.py", SCRIPT.replace("times", "product"))
    status, _, complained = place.run("other.py")
    assert (
        status == 1
        and "BadFunction: the broker that this program joined has no other:pr" in complained
    )
    assert "(shmgpu down, then shmgpu up ... other.py)" in complained
    more = {"SHMGPU_SOCKET": str(place.directory / "mine.sock")}  # as it advises, too
    assert place.run("other.py", **more)[1].startswith("3 ")
    assert place.run("shmgpu", "down", "--all", **more)[0] == 0


OTHER_SESSION = "the broker made its sessions with other code than mine:load has in this program"


def test_so_does_a_session_function_that_is_not_what_the_broker_made_its_sessions_with(place):
    script = SCRIPT.replace("print(int", 'if __name__ == "__main__": print(int')
    write(place, "mine.py", script)
    assert place.run("shmgpu", "up", "--detach", "--devices", "cpu", "mine.py")[0] == 0
    asks = "import shmgpu, mine\nshmgpu.ensure(session=mine.load)\nprint('3 joined')\n"
    for session, times in (("return 1", 0), ("return 1000", 1)):
        write(place, "mine.py", script.replace("return 1", session))
        for words in (("mine.py",), ("-c", asks)):
            status, said, complained = place.run(*words)
            assert status == 0 and said[:1] == "3", complained
            assert complained.count(OTHER_SESSION) == times, (words, complained)
            assert "times" not in complained


@pytest.mark.parametrize("name", ["make", "from json import load\ndef make"])
def test_a_session_function_of_another_name_is_told_of_where_it_is_missed(place, name):
    write(
        place,
        "script.py",
        SCRIPT.replace("def load", f"def {name}")
        if name == "make"
        else SCRIPT.replace("def load", name),
    )
    status, _, complained = place.run("script.py")
    assert status == 1 and "helper.session is None" in complained and "called load" in complained


def test_a_session_function_is_given_by_hand(place):
    text = SCRIPT.replace("def load", "def make").replace(
        "print(", "shmgpu.ensure(session=make)\nprint("
    )
    write(place, "script.py", text)
    assert answer(place, "script.py")[0] == 3


@pytest.mark.parametrize("words", [["-"], ["-c", SCRIPT]])
def test_functions_of_a_prompt_are_served(place, words):
    if words == ["-"]:
        with open(place.directory / write(place, "typed", SCRIPT)) as typed:
            program = place.start("-", stdin=typed)
            said, complained = program.communicate(timeout=60)
        assert program.returncode == 0, complained
        assert said.split()[0] == "3"
    else:
        first = answer(place, *words)
        assert first[0] == 3 and answer(place, *words) == first


def test_a_cell_that_is_defined_later_is_served_after_leaving(place):
    cell = "@shmgpu.function(arrays='numpy')\ndef later(helper):\n    return 9\n"
    code = (
        SCRIPT.split("print(")[0]
        + "times(np.ones(1))\n"
        + cell
        + (
            "try:\n    later()\n"
            "except shmgpu.BadFunction as error:\n    assert 'shmgpu.ensure()' in str(error)\n"
            "shmgpu.disconnect()\nshmgpu.ensure()\n"
            "print(later(), shmgpu.stats()['broker']['parent_pid'])\n"
        )
    )
    assert answer(place, "-c", code)[0] == 9


TYPED = """
import sys
import numpy as np, shmgpu

def defined(text):
    exec(text, globals())

defined("@shmgpu.function(arrays='numpy')\\ndef times(helper, x):\\n    return 3 * x")
WEIGHTS = np.ones(1)
cell = "@shmgpu.function(arrays='numpy')\\ndef weigh(helper):\\n    return WEIGHTS"
defined(cell)
first = times
assert times(np.ones(1))[0] == 3 and weigh()[0] == 1
defined("@shmgpu.function(arrays='numpy')\\ndef later(helper):\\n    return 9")
defined("@shmgpu.function(arrays='numpy')\\ndef times(helper, x):\\n    return 4 * x")
assert [times(np.ones(1))[0], first(np.ones(1))[0]] == [4, 3]
WEIGHTS = 2 * np.ones(1)
defined(cell)  # the same code, and another value, which nothing plain tells apart
assert weigh()[0] == 2
"""


def test_what_is_typed_after_the_first_call_is_carried_to_a_broker_of_the_program_s_own(place):
    end = "print(later(), shmgpu.stats()['broker']['parent_pid'], flush=True)\n"
    brokers = [answer(place, "-i", "-c", TYPED + end) for _ in range(2)]
    assert [value for value, _ in brokers] == [9, 9]
    assert brokers[0][1] != brokers[1][1]  # each may define what the other does not have


CHANGED = """
import logging, sys
import numpy as np, shmgpu

def cell(text):
    exec(text, globals())

def load(helper):
    return SEED

told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("shmgpu").addHandler(handler)
SEED, SCALE, x = 1, 2.0, np.ones(1)
cell("def twice(x):\\n    return 2 * x")
cell("@shmgpu.function(arrays='numpy')\\ndef first(helper, x):\\n    return twice(SCALE * x)")
assert [first(x)[0] for _ in range(5)] == [4] * 5
cell("@shmgpu.function(arrays='numpy')\\ndef late(helper, x):\\n    return twice(SCALE + x)")
assert late(x)[0] == 6
for SCALE in (10.0, 20.0, np.full(1, 30.0), np.full(1, 40.0), 50.0):
    assert [first(x)[0] for _ in range(5)] == [2 * SCALE] * 5
    assert late.submit(x).result()[0] == 2 * SCALE + 2
cell("def twice(x):\\n    return 3 * x")
assert (late(x)[0], first.submit(x).result()[0]) == (153, 150)
assert told == []
SEED = 2
cell("def load(helper):\\n    return 3")
for _ in range(2):
    assert first(x)[0] == 150
assert [one.split()[0].rstrip(",") for one in told] == ["load", "SEED"], told
"""


def test_at_a_prompt_functions_mean_what_they_refer_to_at_each_call_and_sessions_are_told_of(place):
    end = "print(9, shmgpu.stats()['broker']['parent_pid'], flush=True)\n"
    assert answer(place, "-i", "-c", CHANGED + end)[0] == 9


def test_a_process_that_a_prompt_forks_has_what_was_there_when_the_broker_started(place):
    code = TYPED + (
        "import os\n"
        "if os.fork() == 0:\n"
        "    with shmgpu.claim():\n"
        "        assert first(np.ones(1))[0] == 3\n"
        "        try:\n"
        "            later()\n"
        "        except shmgpu.BadFunction:\n"
        "            print(9, shmgpu.stats()['broker']['parent_pid'], flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "assert later() == 9\n"
    )
    assert answer(place, "-i", "-c", code)[0] == 9


def test_of_many_that_find_it_changed_at_once_all_have_the_same_next_one(place):
    write(place, "script.py", IMPORTS)
    write(place, "models.py", "FACTOR = 3\n")
    _, old = answer(place, "script.py")
    write(place, "models.py", "FACTOR = 6\n")
    programs = [place.start("script.py") for _ in range(4)]
    said = [one.communicate(timeout=60) for one in programs]
    assert all(one.returncode == 0 for one in programs), said
    assert len({out for out, _ in said}) == 1 and said[0][0].startswith("6 ")
    ends(old)
    assert len(sockets(place)) == 1


def test_what_ended_brokers_left_is_cleared_away_but_for_the_newest_logs(place):
    for number in range(automatic.KEPT_LOGS + 5):
        for suffix in automatic.LEFT:
            write(place, f"broker.sock.{number:010x}{suffix}", "")
            os.utime(place.directory / f"broker.sock.{number:010x}{suffix}", (number, number))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:  # its socket stays
        killed.bind(str(place.directory / f"broker.sock.{3:010x}"))
    write(place, "script.py", SCRIPT)
    # Another program starts one where the oldest log is: nobody waits for that.
    with endpoint.locked(place.directory / f"broker.sock.{0:010x}", ".starting"):
        answer(place, "script.py")
    logs = sorted(path.name for path in place.directory.glob("broker.sock.*.log"))
    assert len(logs) == automatic.KEPT_LOGS + 2
    assert (place.directory / f"broker.sock.{0:010x}.log").exists()
    assert not (place.directory / f"broker.sock.{4:010x}.starting").exists()
    assert len(sockets(place)) == 1


def test_of_many_brokers_without_programs_the_newest_go_on(place):
    """Each has the memory of its helpers; one that is in use, or was asked to stay, does."""
    place.environment["SHMGPU_IDLE_TIMEOUT"] = "600"
    asked = "shmgpu.ensure()\nprint(int(times("
    write(place, "stays.py", SCRIPT.replace("print(int(times(", asked).replace("= 3", "= 1"))
    stays = answer(place, "stays.py")[1]
    write(place, "used.py", SCRIPT.replace("= 3", "= 2"))
    program, told, _, used = staying(place, "used.py")
    idle = []
    for number in range(automatic.KEPT_BROKERS):
        write(place, "script.py", SCRIPT.replace("FACTOR = 3", f"FACTOR = {number + 3}"))
        idle.append(answer(place, "script.py")[1])
    assert all(map(is_alive, (stays, used, *idle)))
    write(place, "script.py", SCRIPT.replace("FACTOR = 3", "FACTOR = 9"))
    idle.append(answer(place, "script.py")[1])
    ends(idle[0])
    assert all(map(is_alive, (stays, used, *idle[1:])))
    os.close(told)
    program.communicate(timeout=30)
    ends(used)
    assert is_alive(stays)


def test_a_broker_for_which_no_memory_is_left_names_the_others(place):
    write(place, "script.py", SCRIPT)
    answer(place, "script.py")
    write(place, "large.py", SCRIPT.replace("return 1", "raise MemoryError('out of memory')"))
    status, _, complained = place.run("large.py")
    assert status == 1
    assert "(script.py)" in complained and "shmgpu down --all" in complained


TWICE = """
import numpy as np, shmgpu

@shmgpu.function(arrays="numpy")
def f(helper, x):
    return x + 1

first = f

@shmgpu.function(arrays="numpy")
def f(helper, x):
    return x + 2
"""


@pytest.mark.parametrize("where", ["script.py", "module.py"])
def test_two_functions_of_one_name_are_two_to_every_program_that_shares_the_broker(place, where):
    calls = (
        "print(int(first(np.ones(1))[0]) * 10 + int(f(np.ones(1))[0]), "
        "shmgpu.stats()['broker']['parent_pid'])\n"
    )
    write(place, where, TWICE)
    if where == "module.py":
        write(place, "script.py", f"import numpy as np, shmgpu\nfrom module import *\n{calls}")
    else:
        write(place, where, TWICE + calls)
    starts = answer(place, "script.py")
    assert starts[0] == 23
    assert answer(place, "script.py") == starts


def test_a_module_that_was_loaded_again_is_served_as_it_is_after_leaving(place):
    write(place, "module.py", TWICE)
    code = (
        "import importlib, pathlib, numpy as np, shmgpu, module\n"
        "def asked(): print(int(module.f(np.ones(1))[0]), end=' ')\n"
        "asked()\n"
        "path = pathlib.Path('module.py')\n"
        "path.write_text(path.read_text().replace('x + 2', 'x + 12'))\n"
        "importlib.invalidate_caches(); importlib.reload(module)\n"
        "asked()\n"
        "for _ in range(2):\n"
        "    shmgpu.disconnect(); shmgpu.ensure(idle_timeout=30)\n"
        "    asked()\n"
        "    importlib.reload(module)\n"
    )
    status, said, complained = place.run("-B", "-c", code)
    assert (status, said) == (0, "3 3 13 13 "), complained
    assert "shmgpu.ensure() give it one that runs this code" in complained


NONSENSE = {
    "helpers='two'": "helpers must be a whole number",
    "helpers={'a': 'x'}": "helpers['a'] must be a whole number",
    "helpres=2": "no setting 'helpres'",
}


@pytest.mark.parametrize("setting", NONSENSE)
def test_nonsense_for_a_setting_is_refused_also_where_one_runs_and_leaves_nothing_joined(
    place, setting
):
    answer(place, "-c", TENSORS)
    code = (
        "import shmgpu\n"
        f"try: shmgpu.ensure({setting})\n"
        "except shmgpu.ConfigError as error: print(error)\n"
        "shmgpu.ensure(idle_timeout=30)\n"
    )
    assert NONSENSE[setting] in place.program(code)


def test_a_directory_in_which_nothing_can_be_written_is_named(place):
    answer(place, "-c", TENSORS)
    (path,) = sockets(place)
    assert place.run("shmgpu", "down")[0] == 0
    endpoint.beside(path, ".sources").mkdir()  # where a record cannot be
    status, _, complained = place.run("-c", TENSORS)
    assert status == 1
    assert f"cannot write beside its socket {path}" in complained


def test_a_broker_that_is_killed_is_followed_by_the_next(place):
    write(place, "script.py", SCRIPT)
    _, broker = answer(place, "script.py")
    os.kill(broker, signal.SIGKILL)
    ends(broker)
    assert answer(place, "script.py")[1] != broker
    (path,) = sockets(place)
    assert endpoint.beside(path, ".sources").exists()
    assert place.run("shmgpu", "down")[0] == 0
    assert not endpoint.beside(path, ".sources").exists()


def test_a_program_that_was_started_before_an_edit_is_served_what_it_has(place):
    """What it carries is what it read; nobody looks at the script again."""
    write(place, "script.py", SCRIPT.replace("print(", "open(__file__, 'w').write('')\nprint(", 1))
    assert answer(place, "script.py")[0] == 3


CELLS = """
import logging
import numpy as np
import shmgpu

class Scale:
    factor = 3

def load(helper):
    return {"by": 2}

TIMES = 10
ROWS = [1, 2]
WEIGHTS = np.ones(3)

def twice(x):
    return 2 * x

@shmgpu.function(arrays="numpy")
def scaled(helper, x):
    return twice(x) * helper.session["by"] * TIMES * Scale.factor * len(ROWS) * WEIGHTS.sum()

def told(text):
    exec(text, globals())
    for _ in range(2):
        scaled(np.ones(1))
        scaled.submit(np.ones(1)).result()
    if logged:
        print(text.split()[0], *logged)
    logged.clear()

logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("shmgpu").addHandler(handler)

assert scaled(np.ones(1))[0] == 720
"""


def test_what_a_prompt_defines_anew_after_joining_is_told_of_once(place):
    same = (  # what a cell that is run again defines
        "class Scale:\n    factor = 3", "def load(helper):\n    return {'by': 2}", "TIMES = 10",
        "ROWS = [1, 2]", "def twice(x):\n    return 2 * x", "del WEIGHTS", "OTHER = 3",
    )  # fmt: skip
    changed = (
        "class Scale:\n    factor = 4", "def load(helper):\n    return {'by': 3}", "TIMES = 11",
        "ROWS = [1, 2, 3]", "def twice(x):\n    return 3 * x", "WEIGHTS = np.ones(4)",
    )  # fmt: skip
    code = CELLS + "".join(f"told({text!r})\n" for text in (*same, *changed))
    status, said, complained = place.run("-c", code)
    assert status == 0, complained
    old = "is not what it was when this program joined its broker: helpers go on with the old one"
    way = "call shmgpu.disconnect() and shmgpu.ensure(), which starts a broker with this one"
    assert said.splitlines() == [
        f"class Scale, which scaled refers to, {old}: {way}",
        "def load was defined anew after this program had joined its broker: helpers keep the "
        f"sessions that the old one made: {way}",
        f"TIMES TIMES, which scaled refers to, {old}: {way}",
        f"ROWS ROWS, which scaled refers to, {old}: {way}",
        f"def twice, which scaled refers to, {old}: {way}",
        f"WEIGHTS WEIGHTS, which scaled refers to, {old}: {way}",
    ]


def test_a_session_function_of_another_name_is_watched_at_a_prompt_and_no_file_is(place):
    cells = CELLS.replace("def load", "def make").replace(
        "assert scaled", "shmgpu.ensure(session=make)\nassert scaled"
    )
    anew = "told(\"def make(helper):\\n    return {'by': 3}\")\n"
    status, said, complained = place.run("-c", cells + anew)
    assert status == 0 and "make was defined anew" in said, complained
    write(place, "script.py", cells + anew)
    assert place.run("script.py")[:2] == (0, "")


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_cpu_is_named_only_where_there_is_another_device(has_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(automatic, "DRIVER", str(tmp_path if has_gpu else tmp_path / "none"))
    named = ["cpu"] if has_gpu else []
    assert automatic._named_devices(None) == []
    for devices in ("cpu", ["cpu"], ["cpu", "cpu"]):
        assert automatic._named_devices(devices) == named
    assert automatic._named_devices({"b": "cpu", "a": None}) == ["a: []", f"b: {named}"]
    assert automatic._named_devices(["cuda:1", "cpu"]) == ["cpu", "cuda:1"]
