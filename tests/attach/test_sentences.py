"""What a newcomer is told who has done a thing too early, too late or too often."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import threading
import types

import pytest
from attach.commands import starting_by_themselves

import shmgpu
from shmgpu.cli import main as cli

FUNCTION = (
    "import numpy as np, shmgpu\n"
    "@shmgpu.function(arrays='numpy')\n"
    "def double(helper, x): return 2 * x\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with starting_by_themselves(tmp_path_factory.mktemp("sentences")) as made:
        yield made


def complaint(place, code, **more):
    (place.directory / "script.py").write_text(code)
    status, _, complained = place.run("script.py", **more)
    assert status == 1
    return complained


@pytest.mark.parametrize("start", ["shmgpu.launch(print)", "shmgpu.init()"])
def test_who_has_joined_by_a_call_is_told_to_disconnect_before_a_launch(place, start):
    said = complaint(place, FUNCTION + f"double(np.ones(1))\n{start}\n")
    assert "call shmgpu.disconnect() before" in said, said


@pytest.mark.parametrize("early", ["double(np.ones(1))", "shmgpu.ones(1)"])
def test_an_imported_module_that_calls_as_a_broker_loads_it_is_told_where_to(place, early):
    (place.directory / "early.py").write_text(FUNCTION + f"{early}\n")
    said = complaint(place, "import early\n")
    assert 'under if __name__ == "__main__":' in said, said


def test_an_array_of_the_arena_may_be_a_programs_first_thing(place):
    assert place.program("import shmgpu; print(shmgpu.arena.zeros(2).sum())") == "0.0"


def test_a_runtime_directory_that_is_too_long_is_named(place, tmp_path):
    long = tmp_path / ("l" * 100)
    long.mkdir()
    more = {"SHMGPU_SOCKET": "", "XDG_RUNTIME_DIR": str(long)}
    assert "set XDG_RUNTIME_DIR to a shorter" in complaint(place, FUNCTION + "double(1)", **more)


def test_the_command_line_speaks_of_its_own_flags(place):
    status, _, complained = place.run("shmgpu", "down", "--path", "l" * 120)
    assert status == 1 and "--path 'lll" in complained and "path=" not in complained


def test_a_missing_session_is_told_of_only_where_the_function_uses_it(place):
    code = FUNCTION.replace("2 * x", "{}.get(1).shape") + "double(np.ones(1))\n"
    assert "session" not in complaint(place, code)
    assert "helper.session is None" in complaint(place, code.replace("{}.get(1)", "helper.session"))


def test_a_session_function_under_another_name_is_told_the_name_that_it_needs(place):
    code = FUNCTION.replace("return 2 * x", "return helper.session(x)")
    code += "def weights(helper): return abs\nimport numpy as np\ndouble(np.ones(1))\n"
    said = complaint(place, code)
    assert (
        said.count("rename weights, or start the broker with shmgpu.ensure(session=weights)") == 1
    )
    assert "helper.session is None" in said


def test_the_server_without_its_extra_says_what_to_install(place):
    code = "import sys; sys.modules['orjson'] = None; from shmgpu.serve import Model\n"
    said = complaint(place, code)
    assert "pip install '.[serve]' in a checkout" in said, said


def test_a_misspelt_variable_is_warned_of_once_whoever_starts_the_broker(place):
    told = "SHMGPU_HELPRS means nothing to shmgpu: unset it, or use SHMGPU_HELPERS"
    starts = joins = "double(np.ones(1)); shmgpu.disconnect(); shmgpu.ensure()\n"
    by_exec = "import threading; threading.Thread(target=shmgpu.init).start()\n"
    for code in (starts, joins, by_exec):
        (place.directory / "script.py").write_text(FUNCTION + code)
        status, _, complained = place.run("script.py", SHMGPU_HELPRS="2")
        assert status == 0 and complained.count(told) == 1, complained


@pytest.mark.parametrize(
    ("joins", "way"),
    [
        ("", 'run it with SHMGPU_ARENA=4MiB in its environment, or call ensure(arena="4MiB")'),
        ("shmgpu.init(arena='1MiB')", 'init(arena="4MiB")'),
        ("shmgpu.init(arena='1MiB', inline=True)", 'init(arena="4MiB")'),
    ],
)
def test_who_needs_a_larger_arena_is_told_how_this_program_gets_one(place, joins, way):
    said = complaint(place, f"{FUNCTION}{joins}\ndouble(np.ones(1 << 18))\n")
    assert f"have a larger arena: {way}" in said, said
    assert "During handling" not in said


def test_who_has_left_on_purpose_stays_outside_and_is_told_the_way_back(place):
    """The rest of a block that ended would be served with other settings than it asks for."""
    said = place.program(
        FUNCTION + "def tried():\n"
        "    try: return double(np.ones(1))[0]\n"
        "    except shmgpu.NotRunning as error: return 'call shmgpu.ensure() first' in str(error)\n"
        "with shmgpu.init(devices='cpu'): print(tried())\n"
        "print(tried(), shmgpu.is_running())\n"
        "with shmgpu.ensure(): print(tried())\n"
        "print(tried(), shmgpu.is_running())\n"
    )
    assert said.split() == ["2.0", "True", "False", "2.0", "True", "False"]


@pytest.mark.parametrize("first", ["double(np.ones(1))", "shmgpu.ensure(['early'])"])
def test_a_program_whose_directory_was_deleted_is_told_to_change_into_another(place, first):
    """Its own entry in the search path, "", is a place that is no more."""
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
    status, _, complained = place.run("-c", f"{gone}{FUNCTION}{first}")
    assert status == 1 and "LaunchError: the directory in which" in complained, complained


@pytest.mark.parametrize(
    "joins",
    ["", "threading.Thread(target=threading.Event().wait, daemon=True).start(); shmgpu.init()\n"],
)
def test_a_function_that_could_not_be_carried_says_what_it_refers_to(place, joins):
    """Also to who joins the broker that another program has started without it."""
    code = FUNCTION.replace("2 * x", "LOCK and 2 * x").replace("import", "import threading,", 1)
    code += f"LOCK = threading.Lock()\n{joins}double(np.ones(1))\n"
    for _ in range(1 if joins else 2):
        (error,) = complaint(place, code).split("BadFunction: ")[1:]
        assert error.startswith("script:double is not in the broker, which is a process of its own")
        assert "LOCK cannot be carried there (TypeError" in error and "make LOCK in the" in error


def test_what_a_helper_prints_is_at_once_in_the_log_that_the_command_line_names(
    place, monkeypatch, capsys
):
    monkeypatch.setenv("SHMGPU_SOCKET", str(place.path))

    def listed(*words):
        assert cli.main(["list", *words]) == 0
        return capsys.readouterr().out

    prints = FUNCTION.replace("return", "print('seen in a helper'); return")
    (place.directory / "prints.py").write_text(f"{prints}double(np.ones(1))\n")
    status, _, complained = place.run("prints.py", PYTHONUNBUFFERED="")
    assert status == 0, complained
    lines = r"process \d+, started by prints.py\n  socket  (.+)\n  log     (.+)\n"
    found = re.search(lines, listed())
    socket, log = found.groups()
    assert "seen in a helper\n" in pathlib.Path(log).read_text()
    assert listed("--path", socket) == found[0]
    assert listed("--path", f"{place.path}.none").startswith("you have no broker")
    (pid,) = re.findall(r"process (\d+)", found[0])
    assert cli.main(["top", "--path", socket, "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == int(pid)
    assert cli.main(["top", "--path", f"{place.path}.none", "--once"]) == 1
    assert "no broker listens at" in capsys.readouterr().err


@pytest.fixture
def ticker():
    """A thread of the program's own."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="ticker")
    thread.start()
    yield
    end.set()
    thread.join()


def test_a_launch_beside_threads_names_them_and_says_why_they_matter(ticker, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with pytest.raises(shmgpu.LaunchError, match=r"stays locked there: end these .*: .*ticker"):
        shmgpu.launch(print)


def test_a_launch_in_a_notebook_says_what_works_there_instead(ticker, monkeypatch):
    shell = types.SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    with pytest.raises(shmgpu.LaunchError) as caught:
        shmgpu.launch(print)
    said = str(caught.value)
    assert "as they are" in said and "shmgpu.init()" in said and "!python script.py" in said
    assert "ticker" not in said
