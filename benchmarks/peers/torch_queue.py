"""``torch.multiprocessing``: tensors move to shared memory when they are put into a queue.

What goes through the pipe is a handle: a descriptor (``file_descriptor``) or a name in a shared
file system (``file_system``). With ``reused`` each client's two tensors are shared once, before
the fork, and the queue carries the client's number only, as PyTorch's notes advise: reuse buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.work import Run, see_out, start, use_cores_of_one_worker


@contextmanager
def session() -> Iterator[None]:
    """Import torch once for all runs, and use no thread pool before the forks, where it hangs."""
    import torch

    torch.set_num_threads(1)
    yield


def measure(run: Run, strategy: str, reused: bool = False) -> None:
    """Measure with a sharing ``strategy`` of torch's."""
    import torch
    import torch.multiprocessing as mp

    mp.set_sharing_strategy(strategy)
    context: Any = mp.get_context("fork")
    requests = context.SimpleQueue()
    answers = [context.SimpleQueue() for _ in range(run.clients)]
    task = run.task
    mine = [torch.ones(task.request_items).share_memory_() for _ in range(run.clients)]
    outs = [
        torch.zeros(task.answer_items).share_memory_() for _ in range(run.clients if reused else 0)
    ]

    def work() -> None:
        use_cores_of_one_worker(run.workers)
        while (item := requests.get()) is not None:
            client, x = item
            if reused:
                task.answer_into(torch, mine[client], outs[client])
                answers[client].put(None)
            else:
                answers[client].put(task.answer(torch, x))

    def ask(client: int) -> None:
        tensor = mine[client]
        put, get = requests.put, answers[client].get

        def call() -> Any:
            put((client, None if reused else tensor))
            answer = get()
            return (outs[client] if reused else answer).numpy()

        run.drive(client, tensor.numpy(), call)

    processes = [start(work) for _ in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    for _ in processes:
        requests.put(None)
    see_out(processes)
