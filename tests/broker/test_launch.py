"""launch and init: what children get and give, how a broker starts, ends and refuses."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

import shmgpu
from shmgpu import function_table
from shmgpu.common.blas import BlasThreads


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def who(helper):
    return (helper.id, helper.pool, os.getpid(), torch.get_num_threads())


@shmgpu.function(arrays="numpy", pool="small")
def of_small(helper):
    return (helper.pool, helper.session)


@shmgpu.function(arrays="numpy", pool="nowhere")
def of_nowhere(helper):
    return None


@shmgpu.function(arrays="numpy")
def session(helper):
    return helper.session


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def leave(helper):
    sys.exit(3)


@shmgpu.function(arrays="numpy")
def nested(helper):
    try:
        shmgpu.launch(lambda rank: None, children=1, devices="cpu")
    except shmgpu.LaunchError as error:
        return str(error)


@shmgpu.function(arrays="numpy")
def calls_another(helper):
    return add_one(np.zeros(1))


@shmgpu.function(arrays="numpy")
def helper_number(helper):
    return shmgpu.shm_get_helper_id()


def launch(main, **settings):
    settings.setdefault("devices", "cpu")
    settings.setdefault("arena", "1MiB")
    if not isinstance(main, list):
        settings.setdefault("children", 1)
    return shmgpu.launch(main, **settings)


def test_results_come_back_in_order_of_rank():
    def main(rank, base, scale):
        x = shmgpu.arena.zeros(3)
        x[:] = base + scale * rank
        return rank, add_one(x)

    results = launch(main, children=5, helpers=2, args=(10, 2))
    assert [rank for rank, _ in results] == list(range(5))
    assert [x.tolist() for _, x in results] == [[11 + 2 * n] * 3 for n in range(5)]


def test_main_may_be_a_list():
    results = launch([lambda rank: ("a", rank), lambda rank: ("b", rank)])
    assert results == [("a", 0), ("b", 1)]


def test_a_result_of_any_size_comes_back():
    [result] = launch(lambda rank: np.arange(3_000_000))
    assert result.sum() == sum(range(3_000_000))


def test_a_child_that_raises_is_an_error_with_its_traceback():
    def main(rank):
        if rank == 1:
            raise KeyError("lost")
        time.sleep(30)

    start = time.monotonic()
    with pytest.raises(shmgpu.ChildError) as caught:
        launch(main, children=3)
    assert time.monotonic() - start < 10
    assert caught.value.rank == 1 and caught.value.exit_status == 1
    assert "KeyError: 'lost'" in caught.value.traceback_text
    package = os.path.dirname(shmgpu.__file__)  # whatever the checkout around it is called
    assert "in main" in str(caught.value) and package not in str(caught.value)


def test_a_helpers_traceback_is_told_once_where_a_child_fails_by_it():
    with pytest.raises(shmgpu.ChildError) as caught:
        launch(lambda rank: add_one("text"))
    said = str(caught.value)
    assert said.startswith("child 0 failed: RemoteError: the function raised TypeError in the")
    assert said.count("In the helper:") == said.count("in add_one") == 1, said


def test_a_child_whose_arena_is_full_is_told_of_launchs_setting():
    with pytest.raises(shmgpu.ChildError, match=r'launch\(\.\.\., arena="4MiB"\)'):
        launch(lambda rank: shmgpu.arena.zeros(1 << 19), arena="1MiB")


def test_a_child_that_is_killed_is_an_error_that_names_the_signal():
    with pytest.raises(shmgpu.ChildError, match="SIGKILL") as caught:
        launch(lambda rank: os.kill(os.getpid(), signal.SIGKILL))
    assert caught.value.exit_status == -9


def test_what_cannot_be_returned_is_an_error_in_a_sentence():
    with pytest.raises(shmgpu.ChildError, match="cannot be returned"):
        launch(lambda rank: lambda: 0)
    with pytest.raises(shmgpu.ChildError, match="cannot be read back"):
        launch(lambda rank: Unreadable())


class Unreadable:
    def __reduce__(self):
        return (_no, ())


def _no():
    raise RuntimeError("no")


def test_sys_exit_in_a_child_is_an_end_like_any_other():
    assert launch(lambda rank: sys.exit(0)) == [None]
    with pytest.raises(shmgpu.ChildError) as caught:
        launch(lambda rank: sys.exit(7))
    assert caught.value.exit_status == 7


def test_finally_blocks_of_other_children_run_when_one_fails(tmp_path):
    mark = tmp_path / "unwound"

    def main(rank):
        if rank == 0:
            while not (tmp_path / "waiting").exists():
                time.sleep(0.005)
            raise ValueError
        try:
            (tmp_path / "waiting").touch()
            time.sleep(30)
        finally:
            mark.touch()

    with pytest.raises(shmgpu.ChildError):
        launch(main, children=2)
    assert mark.exists()


def test_a_session_is_made_once_in_each_helper():
    def load(helper):
        return {"id": helper.id, "pid": os.getpid(), "device": helper.device}

    def main(rank):
        seen = {}
        while len(seen) < 2:  # a lone caller is always served by the same helper
            for future in [session.submit() for _ in range(50)]:
                made = future.result()
                seen[made["id"]] = made["pid"]
        return seen

    [seen] = launch(main, helpers=2, session=load)
    assert set(seen) == {0, 1} and len(set(seen.values())) == 2


def test_a_session_that_raises_fails_the_launch_with_its_traceback():
    def load(helper):
        if helper.id == 1:
            raise RuntimeError("no model")

    with pytest.raises(shmgpu.SessionError, match="no model") as caught:
        launch(lambda rank: None, helpers=2, session=load)
    assert "in load" in caught.value.traceback_text and caught.value.helper == 1
    with pytest.raises(shmgpu.SessionError, match="no model"):
        shmgpu.init(helpers=2, session=load, devices="cpu")
    assert not shmgpu.is_running()


def test_a_process_that_a_session_forked_takes_no_calls():
    def load(helper):
        os.fork()
        return os.getpid()

    def main(rank):
        return {who()[2] for _ in range(300)}

    [pids] = launch(main, helpers=1, session=load)
    assert len(pids) == 1


def test_pools_have_their_own_helpers_and_sessions():
    def main(rank):
        with pytest.raises(shmgpu.BadFunction, match="nowhere"):
            of_nowhere()
        return {of_small() for _ in range(5)}, {who()[:2] for _ in range(20)}

    [(small, big)] = launch(
        main,
        helpers={"big": 2, "small": 1},
        session={"small": lambda helper: "s", "big": lambda helper: "b"},
        devices={"big": "cpu", "small": ["cpu"]},
    )
    assert small == {("small", "s")}
    assert {pool for _, pool in big} == {"big"}


def test_as_many_helpers_pools_and_messages_as_there_may_be_are_served():
    def of_pool(name):
        @shmgpu.function(arrays="numpy", pool=name)
        def told(helper, gate):
            while not gate[0]:
                time.sleep(0.001)
            return (helper.pool, helper.id)

        return told

    asks = {f"p{n}": of_pool(f"p{n}") for n in range(16)}

    def main(rank):
        gate = shmgpu.arena.zeros(1)
        calls = [asks["p0"].submit(gate[:]) for _ in range(900)]
        until = time.monotonic() + 30
        while shmgpu.stats()["children"][0]["submitted"] < 896 and time.monotonic() < until:
            time.sleep(0.005)
        out = shmgpu.stats()["children"][0]["submitted"]
        gate[0] = 1
        assert {call.result(30)[0] for call in calls} == {"p0"}
        for n, ask in enumerate(asks.values()):
            numbers = range(4 * n, 4 * n + 4)
            found = [ask.options(helpers=[number])(gate) for number in numbers]
            assert found == [(f"p{n}", number) for number in numbers]
        return out

    assert launch(main, helpers=dict.fromkeys(asks, 4), window=896, arena="16MiB") == [896]


def test_as_many_functions_as_there_may_be_are_served_and_one_more_is_refused():
    program = """
        import shmgpu
        def decorated(number):
            def told(helper):
                return number
            return shmgpu.function(arrays="numpy")(told)
        functions = [decorated(number) for number in range(4087)]
        with shmgpu.init(devices="cpu", arena="1MiB"):
            print(functions[0](), functions[-1]())
        try:
            functions.append(decorated(4087))
            shmgpu.init(devices="cpu", arena="1MiB")
        except shmgpu.BadFunction as error:
            print(error)
    """
    served, refused = run_program(program).stdout.splitlines()
    assert served == "0 4086"
    assert "register fewer functions, 4,096 at most" in refused


def test_random_numbers_differ_by_rank_and_repeat_with_the_seed():
    def main(rank):
        return (random.random(), float(np.random.rand()), float(torch.rand(1)))

    first = launch(main, children=3, seed=5)
    assert launch(main, children=3, seed=5) == first
    assert launch(main, children=3, seed=6) != first
    assert len({value for row in first for value in row}) == 9


def test_a_dead_helper_is_an_error_for_its_caller_and_is_replaced():
    def main(rank):
        before = who()[2]
        with pytest.raises(shmgpu.HelperDied):
            die()
        with pytest.raises(shmgpu.RemoteError, match="SystemExit"):
            leave()
        return before, who()[2], add_one(np.zeros(1))[0]

    [(before, after, one)] = launch(main)
    assert before != after and one == 1


def test_children_have_one_thread_and_no_cuda():
    def main(rank):
        return torch.get_num_threads(), os.environ["CUDA_VISIBLE_DEVICES"]

    assert launch(main) == [(1, "")]


def test_helpers_share_the_cores():
    def main(rank):
        return who()[3]

    assert launch(main, helpers=1, threads=2) == [2]


@shmgpu.function(arrays="numpy")
def blas_threads(helper, x):
    (x @ x).sum()
    return BlasThreads().counts()


def test_numpys_linear_algebra_has_one_thread_in_children_and_its_share_in_helpers():
    before = BlasThreads().counts()
    if not before or max(before) < 2:
        pytest.skip("NumPy's linear algebra has one thread here anyway")

    def main(rank):
        x = np.ones((200, 200), "f4")
        (x @ x).sum()
        return BlasThreads().counts(), threads_of_process(), blas_threads(x)

    [(child, threads, helper)] = launch(main, helpers=1, threads=2)
    assert set(child) == {1} and threads == 1
    assert max(helper) == 2
    assert BlasThreads().counts() == before


def test_a_broker_that_comes_and_goes_makes_no_threads_of_numpys_linear_algebra():
    """Those that were there end with the first fork, and new ones would spin before they sleep."""
    program = """
        import os, numpy as np, shmgpu
        from shmgpu.common.blas import BlasThreads
        def threads():
            return len(os.listdir("/proc/self/task"))
        x = np.ones((300, 300))
        x @ x
        before, counts = threads(), BlasThreads().counts()
        with shmgpu.init():
            pass
        print(before, threads(), counts == BlasThreads().counts(), max(counts, default=1))
        x @ x
        print(threads())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, check=True
    )
    before, between, are_same, count, after = done.stdout.split()
    if int(count) < 2:
        pytest.skip("NumPy's linear algebra has one thread here anyway")
    assert int(before) > 1 and between == b"1"
    assert are_same == b"True" and int(after) >= int(count)


def threads_of_process():
    return len(os.listdir("/proc/self/task"))


def run_program(text, **settings):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        **settings,
    )


def test_a_low_soft_limit_on_open_files_is_raised_as_far_as_the_broker_needs():
    program = """
        import resource, shmgpu
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 4096))
        print(sum(shmgpu.launch(lambda rank: 1, children=30, arena="64KiB", devices="cpu")))
    """
    out = run_program(program)
    assert out.stdout.strip() == "30", out.stderr


def test_a_hard_limit_on_open_files_is_refused_in_a_sentence():
    program = """
        import resource, shmgpu
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        shmgpu.launch(lambda rank: 1, children=30, arena="64KiB", devices="cpu")
    """
    out = run_program(program)
    assert "LaunchError: 31 helpers and children need" in out.stderr
    assert "ulimit -n" in out.stderr


def test_a_limit_on_the_size_of_files_is_refused_in_a_sentence():
    program = """
        import resource, shmgpu
        resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))
        shmgpu.launch(lambda rank: 1, children=1, arena="64KiB", devices="cpu")
    """
    out = run_program(program)
    assert "LaunchError" in out.stderr and "ulimit -f unlimited" in out.stderr


@pytest.mark.cold
def test_importing_shmgpu_does_not_import_torch():
    out = run_program("import sys, shmgpu; print('torch' in sys.modules)")
    assert out.stdout.strip() == "False", out.stderr


@pytest.mark.cold
def test_the_command_line_does_not_import_torch():
    """Nor names tensors, for which a broker of ``shmgpu up`` would import it."""
    out = run_program(
        "import sys, shmgpu.cli.main; print({'torch', 'shmgpu.tensors.current'} & {*sys.modules})"
    )
    assert out.stdout.strip() == "set()", out.stderr


@pytest.mark.cold
def test_what_the_caller_froze_stays_frozen_and_nothing_else():
    program = """
        import gc, shmgpu
        @shmgpu.function(arrays="numpy")
        def frozen(helper):
            return gc.get_freeze_count()
        for _ in range(2):
            before = gc.get_freeze_count()
            with shmgpu.init(devices="cpu", arena="1MiB"):
                assert gc.get_freeze_count() <= before
                print(gc.get_freeze_count() > 5000, frozen() > 5000)
            gc.freeze()
    """
    out = run_program(program)
    assert out.stdout.split() == ["False", "True", "True", "True"], out.stderr


@pytest.mark.parametrize(
    ("number", "code", "whole_group"),
    [
        (signal.SIGINT, 1, False),
        (signal.SIGTERM, 143, False),
        (signal.SIGHUP, 129, False),
        (signal.SIGHUP, 129, True),  # as a terminal sends it that was closed
    ],
)
def test_a_signal_ends_a_launch_in_order(number, code, whole_group):
    program = """
        import os, shmgpu, sys, time
        def main(rank):
            try:
                os.write(1, b"up\\n")
                time.sleep(60)
            finally:
                os.write(1, b"unwound\\n")
        try:
            shmgpu.launch(main, children=2, devices="cpu", arena="1MiB")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    (os.killpg if whole_group else os.kill)(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert out.count("unwound") == 2
    assert ("interrupted" in out) == (number == signal.SIGINT)


def test_a_launch_that_ignores_a_closed_terminal_goes_on():
    program = """
        import os, shmgpu, signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        def main(rank):
            for pid in (os.getppid(), os.getpid()):
                os.kill(pid, signal.SIGHUP)
            return rank + 1
        print(shmgpu.launch(main, children=1, devices="cpu", arena="1MiB"))
    """
    out = run_program(program)
    assert (out.returncode, out.stdout) == (0, "[1]\n"), out.stderr


def test_a_parent_that_drains_beside_a_batch_that_is_due_sleeps():
    program = """
        import os, shmgpu, signal, time
        import numpy as np

        @shmgpu.function(arrays="numpy")
        def at_length(helper, x):
            time.sleep(1.5)

        @shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32, max_delay=0.02))
        def in_company(helper, x):
            return x

        def wakes():
            return shmgpu.stats()["broker"]["wakes"]

        def main(rank):
            x = shmgpu.arena.array(np.array([[os.getpid()]]))
            busy = at_length.submit(x[0])
            while shmgpu.stats()["broker"]["in_flight"] == 0:
                time.sleep(0.01)
            in_company.submit(x)
            while shmgpu.stats()["broker"]["queued"] == 0:
                pass
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(0.5)
            before = wakes()
            time.sleep(0.5)
            print("woken", wakes() - before, flush=True)
            busy.result()

        try:
            shmgpu.launch(main, children=1, helpers=1, devices="cpu", arena="1MiB")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    done = run_program(program)
    woken, number, said = done.stdout.split()
    assert (woken, said) == ("woken", "interrupted"), done.stderr
    assert int(number) < 2000  # it looks every few milliseconds whether all has been read


@pytest.mark.parametrize("start", ["init(", "launch(lambda rank: None, children=1, "])
def test_ctrl_c_while_a_session_loads_ends_the_start_at_once(start):
    program = f"""
        import os, shmgpu, signal, time
        def load(helper):
            os.write(1, b"loading\\n")
            time.sleep(60)
        try:
            shmgpu.{start}session=load, devices="cpu", arena="1MiB")
        except KeyboardInterrupt:
            os.write(1, b"interrupted\\n")
        with shmgpu.init(devices="cpu", arena="1MiB"):
            os.write(1, b"again\\n")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out.split() == ["interrupted", "again"] and process.returncode == 0


def test_an_exception_in_a_signal_handler_of_the_parent_ends_the_launch():
    program = """
        import shmgpu, signal, time
        class Enough(Exception): pass
        def enough(*_): raise Enough("of it")
        signal.signal(signal.SIGALRM, enough)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            shmgpu.launch(lambda rank: time.sleep(60), children=2, devices="cpu", arena="1MiB")
        except Enough as error:
            print("caught", error)
    """
    out = run_program(program)
    assert out.stdout.strip() == "caught of it", out.stderr


# ---- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"children": 0},
        {"children": -1},
        {"children": 5000},
        {"children": 1.5},
        {"helpers": 0},
        {"helpers": 65},
        {"helpers": {}},
        {"helpers": {"a": 0}},
        {"helpers": {"a": 40, "b": 40}},
        {"helpers": {"a": 1}, "session": {"b": None}},
        {"arena": 0},
        {"arena": "lots"},
        {"window": 0},
        {"window": 1000},
        {"args": 5},
        {"args": "text"},
        {"session": 5},
        {"devices": "tpu"},
        {"devices": []},
        {"devices": "cuda:63"},
        {"threads": -1},
        {"grace": "long"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_in_a_sentence(settings):
    with pytest.raises(shmgpu.ConfigError, match=r" "):
        launch(lambda rank: None, **settings)


@pytest.mark.parametrize("main", [5, [lambda rank: 0, 5], add_one, []])
def test_a_main_that_is_no_function_is_refused(main):
    with pytest.raises(shmgpu.ConfigError):
        launch(main)


def test_more_memory_than_there_is_is_refused_before_it_is_touched():
    with pytest.raises(shmgpu.LaunchError, match=r"memory|arena"):
        launch(lambda rank: None, children=64, arena="1TiB")


def test_launch_inside_a_child_or_a_helper_is_refused():
    def main(rank):
        with pytest.raises(shmgpu.LaunchError, match="inside a child"):
            launch(lambda rank: None)
        with pytest.raises(shmgpu.LaunchError, match="inside a child"):
            shmgpu.init(devices="cpu")
        return nested()

    assert "inside a helper" in launch(main)[0]


def test_a_function_decorated_too_late_is_refused():
    def main(rank):
        @shmgpu.function(arrays="numpy")
        def late(helper):
            return 1

        with pytest.raises(shmgpu.BadFunction, match=r"late.*after the broker"):
            late()
        assert repr(late).endswith("late(), which the broker does not have>")
        return True

    assert launch(main) == [True]


def test_a_function_decorated_while_a_broker_ran_is_entered_once_for_those_that_follow():
    with shmgpu.init(devices="cpu", arena="1MiB"):

        @shmgpu.function(arrays="numpy")
        def later(helper):
            return 1

    for _ in range(2):
        with shmgpu.init(devices="cpu", arena="1MiB"):
            assert later() == 1
        assert [one for one in function_table.by_row.values() if one is later] == [later]


def test_calls_without_a_broker_are_refused():
    with pytest.raises(shmgpu.NotRunning, match=r"init\(\)|ensure\(\)"):
        add_one(np.zeros(1))
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.arena.empty(3)
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.shm_malloc(8)
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.stats()
    with pytest.raises(shmgpu.NotRunning):
        shmgpu.shm_get_helper_id()


@pytest.mark.parametrize("inline", [True, False])
def test_use_after_shutdown_is_refused_and_arrays_stay_readable(inline):
    shmgpu.init(helpers=1, devices="cpu", inline=inline)
    x = shmgpu.arena.zeros(4)
    y = add_one(x)
    shmgpu.shutdown()
    shmgpu.shutdown()
    assert y.tolist() == [1] * 4
    with pytest.raises(shmgpu.NotRunning, match="shut down"):
        add_one(x)
    with pytest.raises(shmgpu.NotRunning, match="shut down"):
        shmgpu.arena.empty(3)
    del x, y
    with shmgpu.init(helpers=1, devices="cpu", inline=inline):
        assert add_one(np.zeros(1)).tolist() == [1]


def test_init_twice_is_refused():
    with shmgpu.init(devices="cpu"):
        with pytest.raises(shmgpu.LaunchError):
            shmgpu.init(devices="cpu")
        with pytest.raises(shmgpu.LaunchError):
            launch(lambda rank: None)
        assert add_one(np.zeros(1)).tolist() == [1]


def test_a_helper_cannot_call():
    def main(rank):
        with pytest.raises(shmgpu.RemoteError, match="a helper cannot call"):
            calls_another()
        return helper_number(), shmgpu.shm_get_child_id(), shmgpu.rank()

    assert launch(main) == [(0, 0, 0)]


def test_a_process_forked_from_a_child_gets_a_sentence_and_disturbs_nobody():
    def main(rank):
        x = shmgpu.arena.zeros(3)
        y = add_one(x)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    add_one(x)
                except shmgpu.NotRunning as error:
                    code = 0 if "forked" in str(error) else 2
                try:
                    shmgpu.arena.empty(3)
                except shmgpu.NotRunning:
                    pass
                del x, y
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert y.tolist() == [1, 1, 1]
        return os.waitstatus_to_exitcode(status), add_one(y).tolist()

    assert launch(main) == [(0, [2, 2, 2])]


def test_the_environment_sets_what_arguments_leave_open(monkeypatch):
    monkeypatch.setenv("SHMGPU_CHILDREN", "3")
    monkeypatch.setenv("SHMGPU_ARENA", "2MiB")
    results = shmgpu.launch(lambda rank: shmgpu.arena.stats()["capacity_bytes"], devices="cpu")
    assert len(results) == 3 and all(size >= 2 << 20 for size in results)


def test_statistics_and_a_trace_are_left_behind(tmp_path):
    import json

    path = tmp_path / "trace.json"
    stats = {}

    def main(rank):
        x = shmgpu.arena.zeros(4)
        for _ in range(10):
            add_one(x)

    launch(main, children=2, helpers=2, trace_path=path, stats_into=stats)
    assert stats["broker"]["answered"] == 20
    events = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 20 and {e["name"] for e in slices} == {"add_one"}
    assert all(e["dur"] > 0 and e["ts"] >= 0 for e in slices)
    assert len([e for e in events if e["ph"] == "b"]) == 20
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"child 0", "child 1"} <= names


def test_launch_after_launch_after_init():
    for _ in range(2):
        assert launch(lambda rank: add_one(np.zeros(1)).tolist()) == [[1]]
        with shmgpu.init(devices="cpu"):
            assert add_one(np.zeros(1)).tolist() == [1]


IMPORTS = """
import sys
import shmgpu

@shmgpu.function(arrays="KIND")
def has_torch(helper):
    return "torch" in sys.modules

def main(rank):
    return bool(has_torch())

if __name__ == "__main__":
    print(shmgpu.launch(main, children=1, helpers=1, devices="cpu"), "torch" in sys.modules)
"""


@pytest.mark.cold
@pytest.mark.parametrize(("kind", "does"), [("numpy", False), ("torch", True)])
def test_torch_is_imported_once_before_the_fork_and_only_where_a_function_gets_tensors(
    tmp_path, kind, does
):
    if does:
        pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(IMPORTS.replace("KIND", kind))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == f"[{does}] {does}\n", done.stderr
