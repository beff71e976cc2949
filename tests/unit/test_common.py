"""What any role uses, and what a child makes of an answer, by itself."""

from __future__ import annotations

import dataclasses
import io
import os
import socket
import sys
import threading
import types

import numpy as np
import pytest

from shmgpu import core, errors, messages
from shmgpu.broker import launch, launch_config, quotas
from shmgpu.child import arguments, gang_calls, memory, plans, results
from shmgpu.cli import brokers
from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import TreeLayout
from shmgpu.codec.pytree import encode_values
from shmgpu.common import devices, module_loader, parsers, progress, wait_policy
from shmgpu.core import hosting
from shmgpu.errors import ArenaFull, BadParams, ChildError, ConfigError, LaunchError, NotRunning
from shmgpu.watch import top

# ---- devices and threads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("cuda:3", "cuda:3"),
        ("cuda:03", "cuda:3"), (0, "cuda:0"), (2, "cuda:2"),
        (True, None), (-1, None), ("gpu", None), ("cuda:x", None), ("cuda:-1", None), ("", None),
    ],
)  # fmt: skip
def test_a_device_has_one_name(device, name):
    if name is not None:
        assert devices.name_of(device) == name
        return
    with pytest.raises(ConfigError, match=r"is no device: use"):
        devices.name_of(device)


@pytest.mark.parametrize(
    ("asked", "there", "helpers", "names"),
    [
        (None, 2, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (None, 0, 2, ["cpu", "cpu"]),
        ("cpu", 0, 2, ["cpu", "cpu"]),
        (1, 2, 1, ["cuda:1"]),
        (["cuda:1", "cpu"], 2, 3, ["cuda:1", "cpu", "cuda:1"]),
        ([], 2, 1, "names none"),
        ("cuda:2", 2, 1, "devices names cuda:2, and this machine shows 2 CUDA devices"),
        (["cpu", "cuda"], 0, 1, "devices names cuda:0, and this machine shows 0"),
    ],
)
def test_helpers_take_the_devices_in_turn_that_there_are(monkeypatch, asked, there, helpers, names):
    monkeypatch.setattr(devices, "available", lambda: there)
    monkeypatch.setattr(devices, "_torch_is_used", lambda: True)
    if isinstance(names, list):
        assert devices.choose(asked, helpers) == names
        return
    with pytest.raises(ConfigError, match=names):
        devices.choose(asked, helpers)


def test_without_torch_no_device_is_asked_for(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: pytest.fail("asked"))
    monkeypatch.setattr(devices, "_torch_is_used", lambda: False)
    assert devices.choose(None, 2) == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("quota", "mask", "count"),
    [
        ("max 100000", 8, 8),
        ("200000 100000", 8, 2),
        ("250000 100000", 8, 2),
        ("50000 100000", 8, 1),
        ("900000 100000", 8, 8),
        ("nonsense", 8, 8),
        (None, 8, 8),
        (None, 0, 1),
    ],
)
def test_cores_are_those_of_the_process_and_of_its_cgroup(monkeypatch, quota, mask, count):
    def opened(*_, **__):
        if quota is None:
            raise FileNotFoundError
        return io.StringIO(quota)

    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: set(range(mask)))
    monkeypatch.setattr(devices, "open", opened, raising=False)
    assert devices.cores() == count


@pytest.mark.parametrize(
    ("cores", "helpers", "threads"),
    [(8, 1, 7), (8, 2, 3), (8, 0, 7), (2, 1, 1), (1, 1, 1), (8.5, 3, 2), (4, 9, 1)],
)
def test_helpers_share_all_cores_but_one(cores, helpers, threads):
    assert devices.threads_of_helper(cores, helpers) == threads


@pytest.mark.parametrize(
    ("calls", "used"),
    [
        ({1: "202 0x1 0x7ffc 0x7f10"}, True),
        ({1: "202 0x1 0x7ffc 0x7eff"}, False),
        ({1: "202 0x1 0x7ffc 0x7f00"}, True),
        ({1: "202 0x1 0x7ffc 0x7f80"}, False),
        ({1: "202 0x1 0x7ffc 0x1", 2: "202 0x1 0x7ffc 0x7f7f"}, True),
        ({1: "running"}, None),
        ({7: "running"}, False),
        ({1: "running", 2: "202 0x1 0x7ffc 0x7f10"}, True),
        ({1: "-1 0x7ffc"}, False),
        ({1: ""}, False),
        ({1: "202 0xzz"}, False),
    ],
)
def test_a_worker_of_a_pool_is_known_by_where_it_sleeps(monkeypatch, calls, used):
    """7 is a thread of Python's own."""
    mapped = [("/usr/lib/libgomp.so.1", 0x7F00, 0x7F80, b"r-xp"), ("x", 0, 0x7F00, b"rw-p")]
    monkeypatch.setattr(wait_policy, "mapped", lambda *names: iter(mapped))
    monkeypatch.setattr(
        devices.threading, "enumerate", lambda: [types.SimpleNamespace(native_id=7)]
    )
    monkeypatch.setattr(devices.os, "listdir", lambda path: [str(one) for one in calls])
    monkeypatch.setattr(
        devices, "open", lambda path, **_: io.StringIO(calls[int(path.split("/")[4])]),
        raising=False,
    )  # fmt: skip
    assert devices._look_for_openmp() is used


def test_a_thread_that_runs_is_looked_at_again_and_then_taken_for_a_worker(monkeypatch):
    looks, slept = [None, None, False], []
    monkeypatch.setattr(devices, "_look_for_openmp", lambda: looks.pop(0))
    monkeypatch.setattr(devices.time, "sleep", slept.append)
    assert not devices.openmp_pool_is_used() and len(slept) == 2
    looks = [None] * 20
    assert devices.openmp_pool_is_used() and looks == []


MAPS = b"""\
7f00-7f80 r-xp 00000000 08:01 5                          /usr/lib/libgomp.so.1
7f80-7f90 rw-p 00001000 08:01 5                          /usr/lib/libgomp.so.1
8000-8100 r-xp 00000000 08:01 6                          /a b/libomp.so
8100-8200 r-xp 00000000 08:01 6                          /usr/lib/my_libgomp.so
8200-8300 r-xp 00000000 08:01 6                          /numpy.libs/libscipy_openblas64.so
8300-8400 rw-p 00000000 00:00 0                          [libgomp]
8400-8500 rw-p 00000000 00:00 0
"""


def test_libraries_are_found_by_their_names_in_the_list_of_mappings(monkeypatch):
    monkeypatch.setattr(wait_policy, "open", lambda *_: io.BytesIO(MAPS), raising=False)
    assert list(wait_policy.mapped("libgomp", "libomp")) == [
        ("/usr/lib/libgomp.so.1", 0x7F00, 0x7F80, b"r-xp"),
        ("/usr/lib/libgomp.so.1", 0x7F80, 0x7F90, b"rw-p"),
        ("/a b/libomp.so", 0x8000, 0x8100, b"r-xp"),
    ]
    assert wait_policy.loaded("libgomp", "libomp") == {
        "/usr/lib/libgomp.so.1": 0x7F00,
        "/a b/libomp.so": 0x8000,
    }
    assert list(wait_policy.loaded("openblas")) == ["/numpy.libs/libscipy_openblas64.so"]

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(wait_policy, "open", refused)
    assert list(wait_policy.mapped("libgomp")) == []


def test_a_function_of_a_library_that_is_not_there_is_not_called():
    assert not wait_policy.call("/absent.so", "f")
    found = next(iter(wait_policy.loaded("libc.so")), "libc.so.6")
    assert wait_policy.call(found, "abs", -5) and not wait_policy.call(found, "no_such_function")


# ---- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "is_whole"), [(78, True), (79, False)])
def test_a_value_is_shown_whole_up_to_80_characters(length, is_whole):
    text = "x" * length
    shown = parsers.shortened(text)
    assert shown == (repr(text) if is_whole else repr(text)[:60] + "...")


def test_a_number_that_cannot_be_written_is_told_of():
    said = parsers.shortened(10**5000)
    assert said in ("a number of thousands of digits", "1" + "0" * 59 + "...")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_told_and_nobody_else(monkeypatch):
    for stream, was_told in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert progress.tell_terminal("a sentence") == was_told
        assert stream is None or stream.getvalue() == "a sentence\n" * was_told
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert not progress.tell_terminal("a sentence")
    assert not progress._is_terminal(closed) and not progress._is_terminal(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not progress._is_terminal(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert progress._is_terminal(Terminal()) and not progress._is_terminal(io.StringIO())


def test_a_status_is_a_whole_number_of_a_few_digits():
    assert core.status_name(0) == "SHM_OK"
    for number in (1 << 31, -(1 << 31) - 1, 10**30):
        assert core.status_text(number) == core.status_text(1)
    for nonsense in ("0", 1.0, None):
        with pytest.raises(BadParams, match="a status is a whole number, not a"):
            core.status_text(nonsense)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("load", "session='load' must be MODULE:NAME"),
        (":load", "must be MODULE:NAME"),
        ("os:absent", "session='os:absent': os has no function absent"),
        ("os:name", "os has no function name"),
    ],
)
def test_a_session_is_named_by_its_module(name, words):
    with pytest.raises(ConfigError, match=words):
        module_loader.named(name)


def test_a_session_of_a_module_is_found():
    assert module_loader.named("os:getpid") is os.getpid


# ---- limits -----------------------------------------------------------------------------------


def test_so_many_tables_of_quotas_are_read(tmp_path):
    path = tmp_path / "quotas.toml"
    for count, fits in ((core.MAX_QUOTAS, True), (core.MAX_QUOTAS + 1, False)):
        path.write_text("".join(f"[program.p{n}]\nwindow = 3\n" for n in range(count)))
        if fits:
            rows = quotas.read(path)
            assert len(rows) == count and rows[7] == {"program": "p7", "window": 3}
        else:
            with pytest.raises(ConfigError, match=f"there are {count} tables: use {count - 1}"):
                quotas.read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[default]\nwindow = 3", ""),
        ("[program.{}]\nwindow = 3".format("x" * quotas.LONGEST), ""),
        ("[program.{}]\nwindow = 3".format("x" * (quotas.LONGEST + 1)), "a name of 1 to"),
        ('[program.""]\nwindow = 3', "a name of 1 to"),
        ("[programs.a]", "'programs' means nothing: write"),
        ("default = 3", "default must be tables: write"),
        ("user = 3", "user must be tables: write"),
        ("[user]\nroot = 3", r"user\.root must be tables"),
        ("[default]\nwindows = 3", r"default\.windows means nothing: use arena"),
        ("window", "is not TOML"),
    ],
)
def test_quotas_are_tables_of_what_there_is(tmp_path, text, words):
    path = tmp_path / "quotas.toml"
    path.write_text(text)
    if not words:
        assert len(quotas.read(path)) == 1
        return
    with pytest.raises(ConfigError, match=words):
        quotas.read(path)


def test_quotas_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        quotas.read(tmp_path)
    assert quotas.read(None) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, None),
        ("5", 5),
        ("root", "--group root admits nobody"),
        ("0", "--group root admits nobody"),
        ("no such group", "there is no such group here"),
        (str(brokers.NO_GROUP - 1), brokers.NO_GROUP - 1),
        (str(brokers.NO_GROUP), "no group has a number from"),
    ],
)
def test_a_group_is_named_or_numbered(name, found):
    if not isinstance(found, str):
        assert brokers._group(name) == found
        return
    with pytest.raises(ConfigError, match=found):
        brokers._group(name)


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ({"a": 5, "b": 6}, 0, ["process 5", "process 6"]),
        ({"a": NotRunning("gone"), "b": 6}, 0, ["process 6"]),
        ({"a": LaunchError("it stays"), "b": 6}, 1, ["it stays", "process 6"]),
        ({"a": LaunchError("it stays")}, None, []),
        ({}, 0, ["there is no broker to end"]),
    ],
)
def test_all_brokers_are_ended_though_one_of_them_is_not(monkeypatch, capsys, ends, status, said):
    def down(path, timeout):
        if isinstance(ends[path], Exception):
            raise ends[path]
        return ends[path]

    monkeypatch.setattr(brokers.control, "down", down)
    monkeypatch.setattr(brokers.control, "all_running", lambda path: list(ends))
    options = types.SimpleNamespace(path=None, all=True, timeout=1.0)
    if status is None:
        with pytest.raises(LaunchError, match="it stays"):
            brokers._down(options)
        return
    assert brokers._down(options) == status
    told = "".join(capsys.readouterr())
    assert all(one in told for one in said) and told.count("\n") == len(said)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": True}, "--json prints one sample: add --once"),
        ({"once": True, "serve": ""}, "--web and --serve answer: use one of them"),
        ({}, "the screen needs a terminal: add --once"),
    ],
)
def test_watching_needs_one_place_to_be_shown_at(monkeypatch, given, words):
    pytest.importorskip("textual")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ConfigError, match=words):
        top.run(dataclasses.replace(top.TopOptions(None), **given))


# ---- what a parent makes of reports -----------------------------------------------------------


def report(**said):
    return types.SimpleNamespace(**{"kind": "error", "traceback_text": "", "message": "no", **said})


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (None, "child 3 ended without leaving its result"),
        (report(traceback_text="Traceback\n"), "child 3: no"),
        (report(kind="result", value=7), 7),
    ],
)
def test_a_child_leaves_a_result_or_an_error(found, wanted):
    host = types.SimpleNamespace(child_reports=types.SimpleNamespace(read=lambda child: found))
    if wanted == 7:
        assert launch._result(host, 3) == 7
        return
    with pytest.raises(ChildError, match=wanted) as caught:
        launch._result(host, 3)
    assert caught.value.rank == 3 and caught.value.exit_status == (found is not None)
    assert caught.value.traceback_text == ("" if found is None else "Traceback\n")


@pytest.mark.parametrize(
    ("found", "exit_status", "said"),
    [
        (report(traceback_text="Traceback\n"), 1, "child 3 failed: no"),
        (report(kind="result", value=7), -9, "child 3 failed: killed by SIGKILL"),
        (None, 5, "child 3 failed: exit status 5"),
        (None, 0, "child 3 failed: it exited before its main had ended"),
    ],
)
def test_a_child_that_failed_says_how(found, exit_status, said):
    host = types.SimpleNamespace(
        child_reports=types.SimpleNamespace(read=lambda child: found), last_words={3: "last words"}
    )
    error = launch._child_error(host, 3, exit_status)
    assert str(error).startswith(said)
    assert (error.rank, error.exit_status) == (3, exit_status)
    has_told = found is not None and found.kind == "error"
    assert error.traceback_text == ("Traceback\n" if has_told else "last words")


@pytest.mark.parametrize(
    ("reports", "failed", "said", "number"),
    [
        ({0: report(), 2: report(message="yes")}, 2, "helper 2 could not make its session: yes", 2),
        ({0: report(), 2: report()}, -1, "helper 0 could not make its session: no", 0),
        ({2: report(traceback_text="Traceback\n")}, 0, "no\n\nIn the helper:\nTraceback", 2),
        ({}, -1, "a helper could not make its session: ", -1),
    ],
)
def test_the_helper_that_failed_says_why_there_is_no_session(reports, failed, said, number):
    host = types.SimpleNamespace(
        helper_reports=types.SimpleNamespace(read=reports.get),
        helper_failed=failed,
        plan=types.SimpleNamespace(helpers=3),
    )
    error = launch._session_error(host)
    assert said in str(error) and error.helper == number


# ---- what a child makes of an answer ------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", 1.0, None, -1, 1 << 64])
@pytest.mark.parametrize(
    ("name", "words"), [("function", "decorated function"), ("params", "block of shm_malloc")]
)
def test_an_address_is_a_whole_number_of_64_bits(value, name, words):
    with pytest.raises(BadParams, match=f"{name}=.* is not an address: pass a {words}"):
        messages._word(value, name)


def test_the_last_address_is_one():
    assert messages._word((1 << 64) - 1, "params") == (1 << 64) - 1 and messages._word(0, "x") == 0


def test_an_error_that_is_not_the_brokers_is_of_no_helper():
    error = errors.HelperDied("it died")
    error._helper, error._is_committed = 3, True
    assert gang_calls.outcome_of(error) == (3, True)
    assert gang_calls.outcome_of(errors.HelperDied("it died")) == (-1, False)
    assert gang_calls.outcome_of(KeyboardInterrupt()) == (-1, False)


def spec(*shape):
    return ArraySpec(by_name("float32"), shape)


@pytest.mark.parametrize(
    ("specs", "most", "rows"),
    [
        ((spec(3),), 0, 0),
        ((), 8, 0),
        ((spec(3), spec(3, 2)), 8, 3),
        ((spec(8),), 8, 8),
        ((spec(9),), 8, 0),
        ((spec(0),), 8, 0),
        ((spec(3), spec(4)), 8, r"must have equally many rows, not \[3, 4\]"),
        ((spec(),), 8, r"so each array needs one: pass x\[None\]"),
        ((spec(3), spec(4)), 0, 0),
    ],
)
def test_a_batched_call_has_as_many_rows_as_each_of_its_arrays(specs, most, rows):
    if isinstance(rows, int):
        assert plans._rows_of(specs, most, "f") == rows
        return
    with pytest.raises(BadParams, match=rows):
        plans._rows_of(specs, most, "f")


@pytest.mark.parametrize(
    ("size", "capacity", "wanted"),
    [
        (1, 1, "1MiB"),
        (1 << 20, 1 << 20, "2MiB"),
        ((1 << 20) + 1, 1 << 20, "4MiB"),
        (1, (1 << 29) - 1, "1GiB"),
        (1 << 28, 1 << 10, "512MiB"),
        (1 << 29, 1 << 10, "1GiB"),
        ((1 << 30) + 1, 1, "4GiB"),
    ],
)
def test_an_arena_that_would_be_large_enough_is_named(size, capacity, wanted):
    arena = types.SimpleNamespace(made_larger_by="arena={size}")
    said = memory.Arena._way_to_more(arena, size, capacity)
    assert said == f"have a larger arena: arena={wanted}"


@pytest.mark.parametrize(
    ("begin", "end", "is_there"),
    [
        (0, 64, True),
        (16, 64, True),
        (32, 64, True),
        (33, 64, False),
        (32, 63, False),
        (-1, 64, False),
    ],
)
def test_an_output_that_lies_in_the_arena_is_written_where_it_lies(begin, end, is_there):
    """To the last byte of the arena; any other is copied to when the result is there."""
    pages = np.zeros(96, "u1")
    made = object.__new__(arguments.Arguments)
    made._base = pages.ctypes.data + 16
    made._end = made._base + end
    made.arena = types.SimpleNamespace(allocate=lambda size: ("buffer", 4096))
    out, outputs = pages[16 + begin :][:32], []
    call = types.SimpleNamespace(
        signature=1, plan=types.SimpleNamespace(signature=1), out=out, output_bytes=40
    )
    call.set_output = lambda size, buffer, address: outputs.append((size, address))
    made.allocate_output(call)
    assert outputs == [(32, out.ctypes.data) if is_there else (40, 4096)]


def call_with(data):
    plan = types.SimpleNamespace(row=0)
    return types.SimpleNamespace(result=data, plan=plan, out=None)


def described(*values):
    made = TreeLayout(b"t" + len(values).to_bytes(4, "little") + b"V" * len(values), ())
    return layout.describe_result(made, encode_values(values))


@pytest.mark.parametrize(
    ("status", "value", "kind", "words"),
    [
        (core.ETIMEOUT, 0, errors.CallTimeout, ""),
        (core.EBAD_PARAMS, core.UNREADABLE, BadParams, "what was sent is not a call"),
        (core.EBAD_PARAMS, 0, BadParams, "the helper refused the arguments"),
        (core.EHELPER_DIED, 0, errors.HelperDied, ""),
        (core.ENO_MEMORY, 0, errors.ShmError, ""),
    ],
)
def test_a_status_is_an_error_of_its_kind(status, value, kind, words):
    with pytest.raises(kind, match=words or None):
        results.result_of(call_with(b""), status, value, None)


def test_an_exception_is_read_back_with_what_caused_it():
    data = described("ValueError", "too few", "Traceback")
    cause = KeyError("k")
    with pytest.raises(errors.RemoteError) as caught:
        results.result_of(call_with(data), core.EREMOTE, len(data), cause)
    error = caught.value
    assert (error.type_name, error.message) == ("ValueError", "too few")
    assert error.traceback_text == "Traceback" and error.__cause__ is cause
    with pytest.raises(ArenaFull, match="to keep what is broadcast: too few"):
        results.result_of(call_with(data), core.ENO_MEMORY, len(data), None)


@pytest.mark.parametrize("data", [b"", b"nonsense" * 9, described("ValueError", "too few")])
def test_an_exception_whose_text_did_not_arrive_is_one_all_the_same(data):
    with pytest.raises(errors.RemoteError, match="its text did not arrive"):
        results.result_of(call_with(data), core.EREMOTE, len(data), None)


@pytest.mark.parametrize(
    ("result", "as_torch", "name", "kind"),
    [
        (None, False, "float32", "ndarray"),
        (None, True, "float32", "Tensor"),
        (None, True, "datetime64[s]", "ndarray"),
        (list, True, "float32", "list"),
    ],
)
def test_an_array_of_a_result_is_of_the_kind_that_its_caller_has(result, as_torch, name, kind):
    one = ArraySpec(by_name(name), (2,))
    plan = types.SimpleNamespace(result=result, as_torch=as_torch)
    buffer = bytearray(np.arange(8, dtype="u1").tobytes() * 4)
    assert type(results._leaf(buffer, 8, one, plan)).__name__ == kind


# ---- asking a broker ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (core.ask, "the broker did not answer"),
        (lambda fd: core.ask_scale(fd, 0, 1), "the broker was not scaled"),
        (lambda fd: core.ask_pause(fd, 0, True), "the pool was not paused or resumed"),
        (core.ask_retire, "the broker was not told to end"),
        (
            lambda fd: core.join(fd, "program", 0, core.new_descriptor()),
            "the broker was not joined",
        ),
    ],
)
def test_who_asks_a_broker_that_has_gone_is_told_so(ask, words):
    here, there = socket.socketpair()
    there.close()
    with here, pytest.raises(errors.ShmError, match=f"^{words}: "):
        ask(here.fileno())


@pytest.fixture
def library(monkeypatch):
    """The library, whose functions answer what a test says."""

    class Library:
        def __getattr__(self, name):
            return getattr(hosting_library, name)

    hosting_library = hosting.lib
    made = Library()
    monkeypatch.setattr(hosting, "lib", made)
    return made


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (core.ETIMEOUT, hosting.NoAnswer, "it does not answer"),
        (core.ENO_CHILD_SLOT, hosting.NoPlace, "the broker was not joined"),
        (core.EBROKER_DIED, errors.BrokerDied, "the broker was not joined"),
    ],
)
def test_why_a_broker_was_not_joined_is_told_apart(library, status, kind, words):
    answers = [core.EINTR, core.EINTR, status]
    library.shm_join = lambda *_: answers.pop(0)  # signal handlers run between
    with pytest.raises(kind, match=words) as caught:
        core.join(5, "program", 0, None)
    assert type(caught.value) is kind and not answers


def test_what_a_broker_answers_is_given(library):
    def answers(*, before, manifest=None):
        def answer(*told):
            places = [one for one in told if not isinstance(one, int)]
            places[0][0] = before
            if manifest is not None:
                places[1][0] = manifest
            return 0

        return answer

    library.shm_ask = answers(before=3, manifest=9)
    library.shm_ask_scale = answers(before=2)
    assert core.ask(5, 1) == (3, 9) and core.ask_scale(5, 1, 4) == 2
    library.shm_ask_pause = library.shm_ask_retire = lambda *_: 0
    core.ask_pause(5, 0, True)
    core.ask_retire(5)


@pytest.mark.parametrize(
    ("status", "arenas", "version", "is_old"),
    [(0, 1, 1, False), (0, 2, 1, True), (core.ENOT_RUNNING, 2, 1, False)],
)
def test_a_helper_maps_what_a_slot_had_until_it_changes_hands(
    library, status, arenas, version, is_old
):
    def stats(child, out):
        out.arenas = arenas
        out.parked_limit = 77
        return status

    library.shm_get_child_stats = stats
    library.shm_arena_version = lambda child: version
    assert core.maps_old_arena(0) == is_old
    assert core.parked_limit(0) == (0 if status else 77)


def test_a_thread_that_did_nothing_wrong_has_nothing_to_tell():
    told = []
    thread = threading.Thread(target=lambda: told.append(core.error_detail()))
    thread.start()
    thread.join()
    assert told == [""]


# ---- what a broker is made of -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"colour": 1, "art": 2}, TypeError, "a broker has no setting 'art'"),
        ({"helpers": {}}, ConfigError, r"helpers=\{\} names no pool"),
        (
            {"helpers": {str(n): 1 for n in range(core.MAX_POOLS + 1)}},
            ConfigError,
            f"has {core.MAX_POOLS + 1} pools: use {core.MAX_POOLS} or fewer",
        ),
        ({"arena": 0}, ConfigError, "arena=0 leaves children no memory"),
    ],
)
def test_settings_that_make_no_broker_are_refused(settings, kind, words):
    with pytest.raises(kind, match=words):
        launch_config.LaunchConfig(children=1, **{"devices": "cpu", **settings})


def test_as_many_pools_as_there_may_be_are_made():
    pools = {str(n): 1 for n in range(core.MAX_POOLS)}
    plan = launch_config.LaunchConfig(children=1, helpers=pools, devices="cpu")
    assert [one.pool for one in plan.setups] == [*pools]


def test_torch_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LaunchError, match=r"torch cannot be imported .*: install torch, or dec"):
        launch_config._import_torch()


@pytest.mark.parametrize(
    ("main", "children", "words"),
    [
        ([print, print], 3, "main lists 2 functions, but children=3: omit children"),
        ([print], 2, "main lists 1 function, but children=2: omit children"),
    ],
)
def test_there_are_as_many_children_as_functions_for_them(main, children, words):
    with pytest.raises(ConfigError, match=words):
        launch._mains(main, children)
    assert launch._mains(main, len(main)) == main == launch._mains(tuple(main), None)
