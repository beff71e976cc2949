"""TorchRL's inference server with ``ProcessSlotTransport``, the closest relative.

Each client owns one slot in shared memory, of fixed shapes, with one request in flight. The server
gathers the slots that are ready into a batch, runs the model once, writes the answers back and
wakes their clients. A server is one process; with several workers each serves a part of the
clients.

A client gets a copy of its answer, or with ``borrowed`` a view of its slot. A server takes up to
``batch`` requests at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.measure.task import Task
from benchmarks.peers import torch_queue
from benchmarks.peers.work import Run, fork, see_out, start, use_cores_of_one_worker


@contextmanager
def session() -> Iterator[None]:
    """Import TorchRL once for all runs."""
    with torch_queue.session():
        import torchrl.modules.inference_server  # noqa: F401

        logging.getLogger("torchrl").setLevel(logging.ERROR)
        yield


def _model(task: Task, workers: int) -> Any:
    """Return the policy: the task's function, on rows."""
    import torch
    from tensordict.nn import TensorDictModule

    use_cores_of_one_worker(workers)

    def answer(x: Any) -> Any:
        if task.answer_items == x.shape[-1]:
            return x + 1
        return (x[:, :1] + 1).expand(len(x), task.answer_items)

    torch.set_grad_enabled(False)
    return TensorDictModule(answer, in_keys=["x"], out_keys=["y"])


def measure(run: Run, borrowed: bool, batch: int) -> None:
    """Measure with answers that are copied or ``borrowed``."""
    import torch
    from tensordict import TensorDict
    from torchrl.modules.inference_server import ProcessInferenceServer, ProcessSlotTransport

    task = run.task
    shares = [range(worker, run.clients, run.workers) for worker in range(run.workers)]
    transports = [
        ProcessSlotTransport(
            TensorDict({"x": torch.zeros(task.request_items)}),
            TensorDict({"y": torch.zeros(task.answer_items)}),
            num_slots=len(share),
            ctx=fork,
            copy_result=not borrowed,
        )
        for share in shares
    ]
    servers = [
        ProcessInferenceServer(
            policy_factory=lambda: _model(task, run.workers),
            transport=transport,
            max_batch_size=min(batch, len(share)),
            collect_stats=False,
            policy_version_key=None,
            mp_context=fork,
        )
        for transport, share in zip(transports, shares, strict=True)
    ]
    places = {
        client: transport.client()
        for transport, share in zip(transports, shares, strict=True)
        for client in share
    }

    def ask(client: int) -> None:
        x = task.request()
        request = TensorDict({"x": torch.from_numpy(x)})
        place = places[client]
        run.drive(client, x, lambda: place(request)["y"].numpy())

    with ExitStack() as stack:
        clients = []
        for server in servers:
            stack.enter_context(server)
        clients = [start(ask, client) for client in range(run.clients)]
        see_out(clients)
