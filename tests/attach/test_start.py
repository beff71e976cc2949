"""A broker that is started by exec: for all programs of a user, or for one that cannot fork."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import textwrap
import threading

import numpy as np
import pytest
from attach import served_here
from attach.commands import Place, starting_by_themselves, until
from crash.programs import is_alive

import shmgpu
from shmgpu.attach import spawn

JOIN = """
import numpy as np, served_here, shmgpu
from shmgpu.attach.membership import ensure
with ensure(["served_here"], devices="cpu", arena="1MiB", threads=1):
    print(served_here.double(np.ones(1)).tolist(), shmgpu.stats()["broker"]["parent_pid"])
"""


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def busybody():
    """A thread that runs, so that no fork is safe."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    yield
    stop.set()
    thread.join()


@shmgpu.function(arrays="numpy")
def of_session(helper, x):
    return x * helper.session


@shmgpu.function(arrays="numpy")
def where(helper):
    return os.getppid()


@shmgpu.function(arrays="numpy")
def kill_broker(helper):
    os.kill(os.getppid(), signal.SIGKILL)


def session(helper):
    return 10.0


def failing(helper):
    raise ValueError("the weights are gone")


# ---- for all programs ------------------------------------------------------------------------


def test_many_that_start_one_at_once_end_with_one_and_it_outlives_them(place):
    programs = [place.start("-c", JOIN) for _ in range(3)]
    said = [one.communicate(timeout=30) for one in programs]
    assert all(one.returncode == 0 for one in programs), said
    pids = {out.split("] ")[1] for out, _ in said}
    assert len(pids) == 1
    assert place.program(JOIN).endswith(pids.pop().strip())
    assert place.run("shmgpu", "down")[0] == 0


def test_a_start_that_fails_tells_why(place):
    status, _, complained = place.run("-c", JOIN, SERVED_HERE_FAILS="1")
    assert status == 1
    assert "SessionError" in complained and "the weights are gone" in complained
    status, _, complained = place.run("-c", JOIN.replace('"served_here"]', '"no_such_module"]'))
    assert status == 1 and "ConfigError: no_such_module cannot be imported" in complained


def test_a_start_that_takes_too_long_is_given_up_with_the_logs_last_lines(place):
    (place.directory / "stuck.py").write_text(
        "import sys, time, shmgpu\n"
        "@shmgpu.function(arrays='numpy')\ndef f(helper): pass\n"
        "def load(helper):\n"
        "    print('still loading', file=sys.stderr, flush=True)\n"
        "    open('loading', 'w').close()\n"
        "    time.sleep(30)\n"
    )
    code = textwrap.dedent(
        """
        import os, select, time
        from shmgpu.attach import spawn
        from shmgpu.attach.membership import ensure

        class Clock:
            @staticmethod
            def select(*what):  # the three seconds are over once the helper loads
                if what[3] in (0, spawn.ENDS_WITHIN_S):
                    return select.select(*what)
                while not os.path.exists("loading"):
                    time.sleep(0.01)
                return [], [], []

        spawn.select = Clock
        ensure(["stuck.py"], devices="cpu", arena="1MiB", threads=1, timeout=3)
        """
    )
    process = place.start("-c", code)
    try:
        _, complained = process.communicate(timeout=30)
        assert "was not ready within 3 s" in complained
        assert "still loading" in complained
        assert place.program(JOIN).startswith("[2.0]")  # by the next one, which serves others
    finally:
        place.run("shmgpu", "down")


@pytest.mark.parametrize("moment", ["imports", "loading"])
def test_of_a_start_that_takes_too_long_nothing_goes_on(place, moment):
    """Neither while modules are imported nor while a session is made, whatever that heeds."""
    (place.directory / "stuck.py").write_text(
        "import os, signal, sys, time, shmgpu\n"
        "def stay():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    os.rename('pid', 'here')\n"
        "    time.sleep(60)\n"
        "@shmgpu.function(arrays='numpy')\ndef f(helper): pass\n"
        + ("stay()\n" if moment == "imports" else "def load(helper):\n    stay()\n")
    )
    code = (
        "from shmgpu.attach import spawn\n"
        "from shmgpu.attach.membership import ensure\n"
        "spawn.ENDS_WITHIN_S = 0.5\n"
        "ensure(['stuck.py'], devices='cpu', arena='1MiB', threads=1, timeout=2)\n"
    )
    status, _, complained = place.run("-c", code)
    assert status == 1 and "was not ready within 2 s" in complained
    found = place.directory / "here"
    if found.exists():  # on a busy machine it has not come so far
        until(lambda: not is_alive(int(found.read_text())), "it has ended")
    assert place.program(JOIN).startswith("[2.0]")
    place.run("shmgpu", "down")


def test_a_script_is_served_by_its_own_functions(place):
    script = place.directory / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np, shmgpu
            from shmgpu.attach.membership import ensure

            @shmgpu.function(arrays="numpy")
            def halve(helper, x):
                return x / 2

            if __name__ == "__main__":
                with ensure(devices="cpu", arena="1MiB", threads=1):
                    print(halve(np.ones(1)).tolist())
            """
        )
    )
    status, said, complained = place.run(str(script))
    assert (status, said) == (0, "[0.5]\n"), complained
    assert place.run("shmgpu", "down")[0] == 0


UNGUARDED = [
    "shmgpu.ensure(['unguarded.py'], devices='cpu', arena='1MiB', threads=1)",
    "shmgpu.connect()",
    "shmgpu.claim()",
    "shmgpu.init(devices='cpu', arena='1MiB')",
    "shmgpu.init(inline=True)",
    "shmgpu.launch(print, devices='cpu', arena='1MiB')",
]


def test_what_only_the_program_is_to_do_is_refused_as_its_module_is_loaded(place):
    """Whoever starts the broker hears of it at once, and no process is left."""
    (place.directory / "unguarded.py").write_text(
        textwrap.dedent(
            f"""
            import sys, shmgpu

            @shmgpu.function(arrays="numpy")
            def f(helper):
                return 1

            for text in {UNGUARDED}:
                try:
                    exec(text)
                except shmgpu.LaunchError as error:
                    print(text, error, file=sys.stderr)
            exec(text)
            """
        )
    )
    script = place.directory / "script.py"
    script.write_text(
        "from shmgpu.attach.membership import ensure\n"
        "ensure(['unguarded.py'], devices='cpu', arena='1MiB', threads=1)\n"
    )
    status, _, complained = place.run(str(script))
    assert status == 1
    assert "LaunchError: a broker is loading this module" in complained
    assert 'under if __name__ == "__main__":' in complained
    status, _, complained = place.run("shmgpu", "up", "unguarded.py")
    assert status == 1
    for text in UNGUARDED:
        assert f"{text} a broker is loading this module" in complained
    until(lambda: not processes_that_hold(place.directory), "nobody waits for anything")


def processes_that_hold(directory):
    """Those that work there."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(directory):
                found.append(name)
        except OSError:
            pass  # it has ended
    return found


# ---- for one ---------------------------------------------------------------------------------


def start(**settings):
    return shmgpu.init(
        **{"helpers": 1, "devices": "cpu", "arena": "1MiB", "threads": 1, **settings}
    )


def test_init_beside_a_running_thread_does_what_init_does(busybody, tmp_path):
    trace = tmp_path / "trace.json"
    with start(helpers=2, session=session, window=5, trace_path=trace) as made:
        assert shmgpu.rank() == 0
        assert of_session(np.ones(2)).tolist() == [10, 10]
        assert served_here.double(np.ones(1)).tolist() == [2]
        assert of_session.submit(np.ones(1)).result().tolist() == [10]
        broker = shmgpu.stats()["broker"]
        assert (broker["helpers"], broker["window"]) == (2, 5)
        assert broker["parent_pid"] == where() == made.spawned.process.pid
        kept = of_session(np.ones(3))
        with pytest.raises(shmgpu.LaunchError):
            start()
    assert made.spawned.process.returncode == 0
    assert kept.tolist() == [10, 10, 10]
    assert "of_session" in trace.read_text()
    with pytest.raises(shmgpu.NotRunning, match="was shut down"):
        of_session(np.ones(1))


@pytest.mark.slow
def test_init_in_a_thread_works_too(busybody):
    results = []

    def run():
        with start(session=lambda helper: 3.0):
            results.append(of_session(np.ones(1)).tolist())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [[3]]


def test_a_function_that_cannot_be_carried_is_left_out_with_a_warning(busybody, caplog):
    lock = threading.Lock()

    @shmgpu.function(arrays="numpy")
    def locked(helper):
        return lock

    @shmgpu.function(arrays="numpy")
    def local(helper, x):
        return x + 1

    with start():
        assert local(np.ones(1)).tolist() == [2]
        with pytest.raises(shmgpu.BadFunction):
            locked()
    assert "locked is not in the broker" in caplog.text


def test_a_function_that_is_defined_anew_is_not_taken_for_the_one_that_the_broker_has(busybody):
    cell = "@shmgpu.function(arrays='numpy')\ndef f(helper):\n    return {}\n"
    before, after = ({"shmgpu": shmgpu, "__name__": "__main__"} for _ in range(2))
    exec(cell.format(1), before)
    with start():
        exec(cell.format(2), after)
        assert (before["f"](), after["f"]()) == (1, 2)  # that one is carried now
    with start():
        assert (before["f"](), after["f"]()) == (1, 2)


def test_a_session_that_fails_is_raised_as_by_init(busybody):
    lock = threading.Lock()
    with pytest.raises(shmgpu.SessionError, match="the weights are gone") as caught:
        start(session=failing)
    assert caught.value.helper == 0 and "ValueError" in caught.value.traceback_text
    with pytest.raises(shmgpu.ConfigError, match="window"):
        start(window=100_000)
    with pytest.raises(shmgpu.ConfigError, match="cannot be carried over"):
        start(session=lambda helper: lock)


def test_a_broker_that_is_killed_is_told(busybody):
    with start() as made:
        with pytest.raises(shmgpu.BrokerDied):
            kill_broker()
        with pytest.raises(shmgpu.BrokerDied):
            where()
    assert made.spawned.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["loading", "serving"])
def test_nothing_is_left_of_a_program_that_is_killed(place, moment):
    (place.directory / "program.py").write_text(
        textwrap.dedent(
            """
            import os, sys, threading, time, shmgpu
            threading.Thread(target=threading.Event().wait, daemon=True).start()

            def session(helper):
                print(os.getppid(), flush=True)
                if sys.argv[1] == "loading":
                    time.sleep(0.5)

            @shmgpu.function(arrays="numpy")
            def f(helper):
                return 1

            shmgpu.init(devices="cpu", arena="1MiB", threads=1, session=session)
            f()
            print("serves", flush=True)
            threading.Event().wait()
            """
        ).replace("sys.argv[1]", repr(moment))
    )
    program = place.start("program.py")
    broker = int(program.stdout.readline())
    if moment == "serving":
        assert program.stdout.readline() == "serves\n"
    program.kill()
    until(lambda: not is_alive(broker), "the broker has ended")
    program.communicate()


def test_ctrl_c_reaches_the_program_alone(place):
    (place.directory / "program.py").write_text(
        textwrap.dedent(
            """
            import threading, time, shmgpu
            threading.Thread(target=threading.Event().wait, daemon=True).start()

            @shmgpu.function(arrays="numpy")
            def nap(helper, seconds):
                import time
                time.sleep(seconds)

            with shmgpu.init(devices="cpu", arena="1MiB", threads=1):
                nap(0)
                try:
                    print("calling", flush=True)
                    nap(20)
                except KeyboardInterrupt:
                    print("interrupted", shmgpu.is_running(), flush=True)
            """
        )
    )
    program = place.start("program.py")
    assert program.stdout.readline() == "calling\n"
    program.send_signal(signal.SIGINT)
    said, complained = program.communicate(timeout=30)
    assert (program.returncode, said) == (0, "interrupted True\n"), complained


# ---- a notebook ------------------------------------------------------------------------------

CELLS = [
    "import numpy as np, shmgpu\nfactor = 7",
    "@shmgpu.function(arrays='numpy')\ndef f(helper, x):\n    return x * helper.session",
    "@shmgpu.function(arrays='numpy')\ndef f(helper, x):\n    return x * helper.session + 1",
    "session = shmgpu.init(devices='cpu', arena='1MiB', threads=1, session=lambda h: factor)",
    "print(f(np.ones(2)).tolist())",
    "@shmgpu.function(arrays='numpy')\ndef late(helper):\n    return 1",
    "print(late())",
    "@shmgpu.function(arrays='numpy')\ndef f(helper, x):\n    return x - 1",
    "print(f(np.ones(2)).tolist())",
    "shmgpu.shutdown()",
    "with shmgpu.init(devices='cpu', arena='1MiB', threads=1):\n    print(late())",
]
WITHOUT_INIT = [
    "def load(helper):\n    return factor",
    *(cell for cell in CELLS if "init" not in cell and "shutdown" not in cell),
]


DRIVER = """
import json, sys
from jupyter_client import KernelManager

manager = KernelManager()
manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)

def hear(message):
    kind, content = message["msg_type"], message["content"]
    if kind == "stream" and content["name"] == "stdout":
        print(content["text"], end="")
    if kind == "error":
        print(*content["traceback"], sep="\\n")

for cell in json.loads(sys.argv[1]):
    client.execute_interactive(cell, output_hook=hear, timeout=60)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jupyter_client", "ipykernel"))),
    reason="jupyter_client and ipykernel are not installed",
)
@pytest.mark.parametrize("cells", [CELLS, WITHOUT_INIT], ids=["with init", "as they are"])
def test_a_notebook_s_cells_call_what_they_define_whenever(tmp_path, cells):
    with starting_by_themselves(tmp_path) as place:
        own = {name: str(place.directory) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
        status, said, complained = place.run("-c", DRIVER, json.dumps(cells), **own)
    assert status == 0, complained
    lines = ["[8.0, 8.0]", "1", "[0.0, 0.0]", *(["1"] if cells is CELLS else [])]
    assert said.splitlines() == lines, said


def test_what_is_not_found_there_even_when_it_was_carried_is_an_error_and_not_tried_for_ever():
    tried = []

    def begin(by_value):
        tried.append(set(by_value))
        raise spawn.NotFoundThere("there is no such module", "served_here")

    with pytest.raises(spawn.NotFoundThere, match="no such module"):
        spawn._until_found(begin)
    assert len(tried) == len({frozenset(one) for one in tried})  # each time with more by value
