"""What tasks sleep on that await calls: it is a future to them, and they may go on at once."""

import asyncio
import contextvars
import gc

import pytest

from shmgpu.child import quick

pytestmark = pytest.mark.skipif(quick.native is None, reason=quick.NOT_BUILT)

NAME = contextvars.ContextVar("NAME", default="nobody's")


@pytest.fixture(params=["of C", "of Python"])
def make_task(request):
    """How a task is made: asyncio's own, or what it is where that was not built."""

    def make(course):
        if request.param == "of C":
            return asyncio.get_running_loop().create_task(course)
        return asyncio.tasks._PyTask(course, loop=asyncio.get_running_loop())

    return make


def run(course):
    """Run it in a loop for which nothing else is left when it ends."""
    return asyncio.run(asyncio.wait_for(course, 60))


def test_who_sleeps_goes_on_at_once_in_its_own_context(make_task):
    async def course():
        said, wake = [], quick.new_wake(asyncio.get_running_loop())

        async def sleep():
            NAME.set("the task's")
            assert await wake is None
            said.append((NAME.get(), asyncio.current_task() is task))

        task = make_task(sleep())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(
            lambda: (said.append("before"), quick.go_on(wake), said.append("after"))
        )
        await task
        assert wake.done() and said == ["before", ("the task's", True), "after"]
        quick.go_on(wake)  # nobody sleeps on it any more

    run(course())


def test_who_is_woken_otherwise_goes_on_in_the_loops_next_turn(make_task):
    async def course():
        wake, said = quick.new_wake(asyncio.get_running_loop()), []

        async def sleep():
            await wake
            said.append("woken")

        task = make_task(sleep())
        await asyncio.sleep(0)
        wake.set_result(None)
        wake.set_result(None)
        quick.go_on(wake)  # it is about to
        assert not said
        await task
        assert said == ["woken"]

    run(course())


def test_who_was_woken_before_does_not_sleep(make_task):
    async def course():
        wake = quick.new_wake(asyncio.get_running_loop())
        quick.go_on(wake)

        async def sleep():
            return await wake

        assert await make_task(sleep()) is None

    run(course())


@pytest.mark.parametrize("message", [None, "enough"])
def test_a_task_that_is_cancelled_as_it_sleeps_learns_why(make_task, message):
    async def course():
        wake = quick.new_wake(asyncio.get_running_loop())

        async def sleep():
            try:
                await wake
            except asyncio.CancelledError as error:
                return error.args

        task = make_task(sleep())
        await asyncio.sleep(0)
        assert task.cancel(message) and wake.done() and not wake.cancel()
        quick.go_on(wake)
        assert await task == (() if message is None else (message,))
        with pytest.raises(asyncio.CancelledError):
            wake.result()

    run(course())


def test_a_task_that_is_cancelled_before_it_goes_on_is_cancelled(make_task):
    async def course():
        wake = quick.new_wake(asyncio.get_running_loop())

        async def sleep():
            await wake

        task = make_task(sleep())
        await asyncio.sleep(0)
        wake.set_result(None)
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(course())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_ends_a_loop_comes_out_and_what_ends_a_task_does_not(make_task, error):
    async def course():
        wake, caught = quick.new_wake(asyncio.get_running_loop()), []

        async def sleep():
            await wake
            raise error

        def callback():
            try:
                quick.go_on(wake)
            except BaseException as raised:
                caught.append(type(raised))

        task = make_task(sleep())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(callback)
        with pytest.raises(error):
            await asyncio.shield(asyncio.wait([task]))
            task.result()
        assert caught == ([] if error is ValueError else [error])

    run(course())


def wakes():
    gc.collect()
    return sum(type(one) is quick.native.QuickWake for one in gc.get_objects())


def test_a_wake_that_nobody_told_goes_with_its_task():
    before = wakes()

    async def course():
        wake = quick.new_wake(asyncio.get_running_loop())

        async def sleep():
            held = [wake]  # a circle: the task holds the wake, which holds the task
            await held[0]

        task = asyncio.get_running_loop().create_task(sleep())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(course())
    assert wakes() <= before
