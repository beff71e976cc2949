"""Models that come and go, step by step: helpers are played, and any step may fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types

import pytest

from shmgpu.errors import ConfigError, HelperDied, RemoteError, ShmError, remote_name
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling import lifecycle
from shmgpu.serve.scheduling.lifecycle import TRIES, Lifecycle
from shmgpu.serve.state.control_table import ControlTable
from shmgpu.serve.state.repository import ModelSource, entry_of


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lifecycle, "LOOK_S", 0)
    monkeypatch.setattr(lifecycle, "SETTLE_S", 0)


class Rows:
    """The rows of a pool, by their names."""

    load, unload = "load", "unload"


class Port:
    """Helpers that do as they are told: what was asked of which, and what fails."""

    def __init__(self, table):
        self.table, self.asked, self.fails = table, [], []

    def submit(self, target, args, kwargs, options, handler, *_):
        assert kwargs == {}
        helper = options.placement.bit_length() - 1
        assert options.placement == 1 << helper
        self.asked.append((target, helper, args[0]))
        error = self.fails.pop(0) if self.fails else None
        if target == "load" and error is None:
            with self.table.change() as state:
                entry = state["sources"][str(args[0])]
                if not entry["models"]:
                    key = f"{entry['name']}\n{entry['version']}"
                    state["indices"].setdefault(key, len(state["indices"]))
                    entry["models"] = [{"name": entry["name"], "version": entry["version"]}]
        asyncio.get_running_loop().call_soon(handler.ended, None, "done", error)


def source(name, version="1", path=None, **said):
    return ModelSource(path or f"/{name}.pt", "torchscript", name, version, "p", **said)


def entry(name, version="1", state="READY", models=True, **said):
    made = entry_of(source(name, version), **{"state": state, **said})
    made["models"] = [{"name": name, "version": version}] if models else []
    return made


@pytest.fixture
def make(monkeypatch):
    """Makes what one worker does, of the sources of a table and those on disk."""
    with contextlib.ExitStack() as stack:

        def made(on_disk=(), **sources):
            indices = {
                f"{one['name']}\n{one['version']}": n for n, one in enumerate(sources.values())
            }
            state = {"sources": sources, "indices": indices, "next_source": len(sources)}
            table = stack.enter_context(contextlib.closing(ControlTable(state)))
            counters = types.SimpleNamespace(pending=lambda row, parity: 0)
            monkeypatch.setattr(lifecycle, "ServerFunction", lambda row, pool: row)
            one = Lifecycle(Port(table), table, counters, Rows, {"p": [0, 1]}, ["/"])

            def found():
                if isinstance(on_disk, Exception):
                    raise on_disk
                return list(on_disk)

            one._on_disk = found
            return one

        yield made


def states(one):
    return {
        number: (found["name"], found["version"], found["state"])
        for number, found in one.table.read()[1]["sources"].items()
    }


def refused(one, words, course):
    with pytest.raises(ProtocolError, match=words) as caught:
        asyncio.run(course)
    assert caught.value.status == 400
    assert one.table.try_hold()  # and the lock is free
    one.table.let_go()


def test_the_index_is_in_the_order_of_names_and_of_numbers(make):
    one = make(
        a=entry("m", "10"), b=entry("m", "9", state="UNAVAILABLE", reason="unloaded"),
        c=entry("a", models=False), d=entry("", models=False),
    )  # fmt: skip
    assert [(row["name"], row["version"]) for row in one.index(False)] == [
        ("a", "1"), ("m", "9"), ("m", "10"),
    ]  # fmt: skip
    assert [(row["name"], row["version"]) for row in one.index(True)] == [("a", "1"), ("m", "10")]
    assert one.index(False)[1] == {
        "name": "m", "version": "9", "state": "UNAVAILABLE", "reason": "unloaded",
    }  # fmt: skip


def test_a_model_is_loaded_in_each_helper_before_the_older_one_is_let_go_of(make):
    one = make([source("m"), source("n")], **{"0": entry("m", parity=1)})
    asyncio.run(one.load("m"))
    assert one.port.asked == [("load", 0, 1), ("load", 1, 1), ("unload", 0, 0), ("unload", 1, 0)]
    assert states(one) == {"1": ("m", "1", "READY")}
    made = one.table.read()[1]["sources"]["1"]
    assert made["parity"] == 0 and made["replaces"] == "0" and made["is_rolled"]
    asyncio.run(one.load("m"))
    assert one.table.read()[1]["sources"]["2"]["parity"] == 1
    assert one.table.read()[1]["next_source"] == 3


def test_versions_that_are_new_come_and_those_that_are_gone_go(make):
    one = make([source("m", "2", "/2.pt")], **{"0": entry("m", "1")})
    asyncio.run(one.load("m"))
    assert states(one) == {"1": ("m", "2", "READY")}
    assert one.table.read()[1]["sources"]["1"]["replaces"] == ""


@pytest.mark.parametrize(
    ("on_disk", "words"),
    [
        ([source("n")], "failed to load 'm': the server's repository has no such model"),
        (ConfigError("no folder"), "failed to load 'm': no folder"),
    ],
)
def test_a_model_that_is_nowhere_is_not_loaded(make, on_disk, words):
    one = make(on_disk)
    refused(one, words, one.load("m"))
    assert one.port.asked == [] and states(one) == {}


@pytest.mark.parametrize(
    ("error", "words", "logged"),
    [
        (RemoteError("ValueError", "no", "Traceback"), "ValueError: no", "ValueError: no"),
        (RemoteError(remote_name(ConfigError), "a sentence", "Traceback"), "a sentence$", "a sen"),
        (ShmError("the broker is gone"), "the broker is gone", ""),
    ],
)
def test_a_model_that_cannot_be_loaded_leaves_all_as_it_was(make, caplog, error, words, logged):
    one = make([source("m")], **{"0": entry("m")})
    one.port.fails = [None, error]
    refused(one, f"failed to load 'm': {words}", one.load("m"))
    assert states(one) == {"0": ("m", "1", "READY")}
    assert one.port.asked[2:] == [("unload", 0, 1), ("unload", 1, 1)]
    assert logged in caplog.text and ("could not be loaded" in caplog.text) == bool(logged)


def test_of_a_models_own_code_the_log_has_the_traceback(make, caplog):
    code = ModelSource("/m.py", "python", "m", "1", "p")
    one = make([code])
    one.port.fails = [RemoteError("ValueError", "no", "Traceback of its own\n")]
    refused(one, "ValueError: no", one.load("m"))
    assert "could not be loaded: Traceback of its own" in caplog.text


@pytest.mark.parametrize(("deaths", "loads"), [(TRIES - 1, True), (TRIES, False)])
def test_a_helper_that_dies_as_it_loads_is_asked_again_some_times(make, deaths, loads):
    one = make([source("m")])
    one.port.fails = [HelperDied("it died")] * deaths
    if loads:
        asyncio.run(one.load("m"))
        assert states(one) == {"0": ("m", "1", "READY")}
    else:
        refused(one, "failed to load 'm': it died", one.load("m"))
        assert states(one) == {}
    assert one.port.asked.count(("load", 0, 0)) == deaths + loads


def test_what_is_unloaded_is_forgotten_when_nothing_is_pending_and_stays_in_the_index(make, caplog):
    one = make(**{"0": entry("m", parity=1), "1": entry("n")})
    looks, asked = [2, 1, 0], []

    def pending(row, parity):
        asked.append((row, parity))
        assert one.port.asked == []
        assert states(one)["0"][2] == "UNLOADING"
        return looks.pop(0)

    one.counters.pending = pending
    one.port.fails = [ShmError("it died")]
    with caplog.at_level(logging.INFO, "shmgpu"):
        asyncio.run(one.unload("m"))
    assert asked == [(0, 1)] * 3 and "helper 0 could not forget a model: it died" in caplog.text
    assert one.port.asked == [("unload", 0, 0), ("unload", 1, 0)]
    assert states(one) == {"0": ("m", "1", "UNAVAILABLE"), "1": ("n", "1", "READY")}
    assert one.table.read()[1]["sources"]["0"]["reason"] == "unloaded"
    refused(one, "failed to unload 'k': there is no such model", one.unload("k"))


def test_what_a_worker_left_half_done_is_cleared_away_by_the_next(make):
    one = make(
        **{
            "0": entry("m", state="LOADING", is_rolled=True),
            "1": entry("n", state="LOADING"),
            "2": entry("k", state="UNLOADING"),
            "3": entry("l"),
        }
    )
    refused(one, "there is no such model", one.unload("none"))
    assert states(one) == {"1": ("n", "1", "LOADING"), "3": ("l", "1", "READY")}
    assert one.port.asked == [
        ("unload", 0, 0), ("unload", 1, 0), ("unload", 0, 2), ("unload", 1, 2),
    ]  # fmt: skip


def test_a_reload_takes_what_is_there_and_lets_go_of_what_is_not(make, caplog):
    one = make([source("m"), source("bad")], **{"0": entry("m"), "1": entry("gone")})
    asyncio.run(one.reload_when_asked())
    assert one.port.asked == []  # nobody has asked
    one.table.ask_reload()
    one.port.fails = [None, None, None, None, RemoteError("ValueError", "no", "")]
    asyncio.run(one.reload_when_asked())
    assert states(one) == {"2": ("m", "1", "READY"), "1": ("gone", "1", "UNAVAILABLE")}
    assert "failed to load '/bad.pt': ValueError: no" in caplog.text
    assert one.table.reloads_done == 1
    before = len(one.port.asked)
    asyncio.run(one.reload_when_asked())
    assert len(one.port.asked) == before


def test_a_reload_that_finds_no_models_leaves_those_that_there_are(make, caplog):
    one = make(ConfigError("the folder is gone"), **{"0": entry("m")})
    one.table.ask_reload()
    asyncio.run(one.reload_when_asked())
    assert "the models could not be reloaded: the folder is gone" in caplog.text
    assert states(one) == {"0": ("m", "1", "READY")} and one.table.reloads_done == 1


def test_of_two_workers_that_are_to_reload_one_does(make):
    one = make([source("m")])
    one.table.ask_reload()
    assert one.table.try_hold()

    async def course():
        waits = asyncio.ensure_future(one.reload_when_asked())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waits.done() and one.port.asked == []
        one.table.reloads_done = 1  # by the other
        one.table.let_go()
        await waits

    asyncio.run(course())
    assert one.port.asked == []


def test_an_answer_that_comes_when_nobody_waits_any_more_is_dropped():
    async def course():
        future = asyncio.get_running_loop().create_future()
        handler = lifecycle._OutcomeHandler(future)
        future.cancel()
        handler.ended(None, "late", None)
        handler.ended(None, None, ShmError("late"))

    asyncio.run(course())
