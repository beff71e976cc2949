"""A child that runs an event loop: many calls out at once, a deadline, a cancelled call.

    python examples/asyncio_child.py

`.aio()` returns an awaitable and uses no thread: the loop watches the child's reply pipe.
"""

import asyncio
import time

import shmgpu


@shmgpu.function(arrays="numpy")
def double(helper, x):
    return 2 * x


@shmgpu.function
def work(helper, seconds):
    time.sleep(seconds)
    return helper.id


async def serve():
    x = shmgpu.arena.zeros(16)
    x += 21
    answers = await asyncio.gather(*[double.aio(x) for _ in range(200)])
    print(f"{len(answers)} answers, each of {answers[0][0]:g}")

    try:  # the caller goes on at its deadline; the helper ends the call in its own time
        await work.options(timeout=0.05).aio(1.0)
    except shmgpu.CallTimeout as error:
        print(f"late: {error}")

    task = asyncio.ensure_future(double.aio(x))  # queues behind the late call
    await asyncio.sleep(0.01)
    task.cancel()  # no helper has it yet, so none ever will
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled before it was started")

    print("helper", await work.aio(0), "is free again")


def worker(rank):
    asyncio.run(serve())


if __name__ == "__main__":
    shmgpu.launch(worker, children=1, helpers=1)
