"""What a prompt and a notebook show of sessions, functions, futures and counters."""

from __future__ import annotations

import asyncio

import numpy as np

import shmgpu

RETURNED = "<CallFuture: returned ndarray>"


@shmgpu.function(arrays="numpy", pool="one")
def double(helper, x: np.ndarray, times: int = 1) -> np.ndarray:
    if times < 0:
        raise ValueError("less than nothing")
    return 2 * times * x


def test_each_says_its_state_while_a_broker_runs_and_afterwards():
    x = np.ones(2)
    assert repr(double) == "<shmgpu function double(x, times=1) of pool 'one'>"
    assert repr(double.options(timeout=2, helpers=[0, 2], out=x)).endswith(
        "of pool 'one' with timeout=2.0, helpers=[0, 2], out=Ellipsis>"
    )
    with shmgpu.init(helpers={"one": 2}, devices="cpu") as session:

        @shmgpu.function
        def late(helper):
            pass

        assert repr(late).endswith(".late()>")  # it goes there at its first call
        assert repr(session) == "<shmgpu session, running: 2 of 2 helpers ready>"
        assert repr(double.submit(x)) in ("<CallFuture: sent, no answer seen yet>", RETURNED)
        future, failed, dropped = (double.submit(x, n) for n in (1, -1, 1))
        dropped.cancel()
        future.result()
        failed.exception()
        shown = [repr(one) for one in (future, failed, dropped)]
        assert shown == [
            RETURNED,
            "<CallFuture: raised RemoteError>",
            "<CallFuture: cancelled>",
        ]

        async def ask():
            started = double.aio(x)
            ends = "<shmgpu call: returned ndarray>", "<shmgpu call: <Future finished "
            assert repr(started).startswith(("<shmgpu call: sent, no answer seen yet>", *ends))
            await started
            assert repr(started).startswith(ends)

        asyncio.run(ask())
        tables = shmgpu.stats()._repr_html_()
        assert tables.count("<tr>") == 2 + 2 + 1  # headings, helpers, this child
        assert "<th>pool</th>" in tables and "<td>one</td><td>ready</td>" in tables
    assert repr(session) == "<shmgpu session, shut down>"


def test_a_session_in_this_process_says_so():
    with shmgpu.init(helpers={"one": 1}, inline=True) as session:
        assert "inline" in repr(session)
        assert repr(double.submit(np.ones(1))) == RETURNED
