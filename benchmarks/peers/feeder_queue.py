"""``multiprocessing.Queue``: a pipe fed by a thread of the sender.

With ``shared_memory`` the arrays lie in a ``multiprocessing.shared_memory`` block of each client,
and the queues carry the client's number only: what the standard library can do without copying.
"""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from benchmarks.measure.task import ITEM_BYTES, Task
from benchmarks.peers.work import Run, fork, see_out, start


class _Block:
    """A client's argument and answer, mapped by all processes forked later.

    Its name is removed at once, so that nothing is left behind however the run ends.
    """

    def __init__(self, task: Task) -> None:
        split = ITEM_BYTES * task.request_items
        self._memory = SharedMemory(create=True, size=split + ITEM_BYTES * task.answer_items)
        self._memory.unlink()
        # An array over this view keeps the mapping, whose owner complains when it is left open.
        whole = np.frombuffer(self._memory.buf, "float32")
        self.request, self.answer = np.split(
            whole[: task.request_items + task.answer_items], [task.request_items]
        )
        self.request[:] = 1
        self.answer[:] = 0

    def close(self) -> None:
        """Unmap."""
        del self.request, self.answer
        self._memory.close()


def measure(run: Run, answers: str, shared_memory: bool = False) -> None:
    """Measure with ``answers`` through a ``queue`` or a ``pipe`` for each client."""
    requests = fork.Queue()
    task = run.task
    blocks = [_Block(task) for _ in range(run.clients)] if shared_memory else []
    replies: list[tuple[Any, Any]] = []  # how each client's answer is sent, and received
    for _ in range(run.clients):
        if answers == "queue":
            queue = fork.Queue()
            replies.append((queue.put, queue.get))
        else:
            near, far = fork.Pipe(duplex=False)
            replies.append((far.send, near.recv))

    def work() -> None:
        while (item := requests.get()) is not None:
            client, x = item
            if shared_memory:
                block = blocks[client]
                task.answer_into(np, block.request, block.answer)
                replies[client][0](None)
            else:
                replies[client][0](task.answer(np, x))

    def ask(client: int) -> None:
        x = blocks[client].request if shared_memory else task.request()
        put, receive = requests.put, replies[client][1]

        def call() -> Any:
            put((client, None if shared_memory else x))
            answer = receive()
            return blocks[client].answer if shared_memory else answer

        run.drive(client, x, call)

    processes = [start(work) for _ in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    for _ in processes:
        requests.put(None)
    see_out(processes)
    for block in blocks:
        block.close()
