"""iceoryx2: request-response through shared memory, without a copy between processes.

A client loans a chunk of shared memory, writes its request there and sends it; the worker reads it
where it lies, writes the answer into a chunk of its own, and the client reads that. A request goes
to every server of a service, so each worker has a service of its own.

Who waits is woken by an event of its own (``waiting="events"``), or asks again and again, giving
the core away between two looks (``"polling"``). ``in_place`` takes the client's data as made in
the loaned chunk, which costs nobody a copy: the chunks that are used in turn hold it already, and
a call writes only its first item. Without it the client's array is copied into the chunk.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.task import ITEM_BYTES
from benchmarks.peers.work import Run, end, see_out, start

WARM_CHUNKS = 8  # more than one client's pool has
_runs = itertools.count()


def _node() -> Any:
    """Return a node whose files carry this run's name, so that they can be told from others'."""
    import iceoryx2 as iox2

    iox2.set_log_level(iox2.LogLevel.Fatal)
    folder = Path(tempfile.gettempdir())
    config = iox2.config.default()
    config.global_cfg.root_path = iox2.Path.new(str(folder / "iceoryx2"))
    config.global_cfg.prefix = iox2.FileName.new(f"{folder.name}_")
    return iox2.NodeBuilder.new().config(config).create(iox2.ServiceType.Ipc)


class _Ports:
    """How one process opens the services, which whoever comes first creates."""

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self._number = number  # services of an earlier run may not be gone yet
        self.node = _node()
        self._services: list[Any] = []  # a port of a service that is gone does not work

    def calls(self, worker: int) -> Any:
        import iceoryx2 as iox2

        run = self._run
        # Of bytes, since in a slice of anything larger the binding takes bytes for elements.
        array = iox2.Slice[ctypes.c_uint8]
        cache_line = iox2.Alignment.new(64)
        service = (
            self.node.service_builder(iox2.ServiceName.new(f"{self._number}/calls/{worker}"))
            .request_response(array, array)
            .request_payload_alignment(cache_line)
            .response_payload_alignment(cache_line)
            .max_clients(run.clients + 1)
            .max_servers(1)
            .max_nodes(run.clients + run.workers + 1)
            .max_active_requests_per_client(1)
            .max_loaned_requests(1)
            .max_response_buffer_size(1)
            .max_borrowed_responses_per_pending_response(1)
            .open_or_create()
        )
        self._services.append(service)
        return service

    def event(self, name: str) -> Any:
        import iceoryx2 as iox2

        run = self._run
        service = (
            self.node.service_builder(iox2.ServiceName.new(f"{self._number}/{name}"))
            .event()
            .max_listeners(1)
            .max_notifiers(run.clients + run.workers)
            .max_nodes(run.clients + run.workers + 1)
            .open_or_create()
        )
        self._services.append(service)
        return service

    def listener(self, name: str) -> Any:
        return self.event(name).listener_builder().create()

    def notifier(self, name: str) -> Any:
        return self.event(name).notifier_builder().create()


def _array(chunk: Any) -> Any:
    """Return the float32 array that lies in a chunk; the chunk must outlive it."""
    return np.frombuffer(chunk.payload().as_memory_view(), "float32")


def measure(run: Run, waiting: str, in_place: bool) -> None:
    """Measure with ``waiting`` for ``events``, or by ``polling``."""
    task = run.task
    events = waiting == "events"
    number = next(_runs)
    request_bytes, answer_bytes = ITEM_BYTES * task.request_items, ITEM_BYTES * task.answer_items

    def work(worker: int) -> None:
        ports = _Ports(run, number)
        mine = range(worker, run.clients, run.workers)
        if events:
            bell = ports.listener(f"worker/{worker}")
            rings = {client: ports.notifier(f"client/{client}") for client in mine}
        # Last, because clients ring as soon as it is there.
        builder = ports.calls(worker).server_builder().initial_max_slice_len(answer_bytes)
        server = builder.create()
        owners: dict[Any, int] = {}  # a client's port -> its number, the first thing it sends
        while True:
            if events:
                bell.blocking_wait()
            else:
                os.sched_yield()
            # All there are before the first answer: the port looks at its clients in order, and
            # one that asks again at once would keep the others from their turn.
            for request in list(iter(server.receive, None)):
                x = _array(request)
                owner = owners.setdefault(request.origin.value, int(x[0]))
                response = request.loan_slice_uninit(answer_bytes)
                task.answer_into(np, x, _array(response))
                response.assume_init().send()
                request.delete()
                if events:
                    rings[owner].notify()

    def ask(client: int) -> None:
        ports = _Ports(run, number)
        worker = client % run.workers
        service = ports.calls(worker)
        port = service.client_builder().initial_max_slice_len(request_bytes).create()
        if events:
            bell, ring = ports.listener(f"client/{client}"), ports.notifier(f"worker/{worker}")
        x = task.request()
        held: list[Any] = []

        def exchange(whole: bool) -> Any:
            while held:
                held.pop().delete()
            loan = port.loan_slice_uninit(request_bytes)
            if whole:
                _array(loan)[:] = x
            else:
                _array(loan)[0] = x[0]
            pending = loan.assume_init().send()
            if events:
                ring.notify()
            while (response := pending.receive()) is None:
                if events:
                    bell.blocking_wait()
                else:
                    os.sched_yield()
            held.extend((response, pending))
            return _array(response)

        while service.dynamic_config.number_of_servers < 1:
            os.sched_yield()
        x[0] = client
        for _ in range(WARM_CHUNKS):
            exchange(whole=True)
        x[0] = 1
        run.drive(client, x, lambda: exchange(whole=not in_place))
        while held:
            held.pop().delete()

    processes = [start(work, worker) for worker in range(run.workers)]
    see_out([start(ask, client) for client in range(run.clients)], processes)
    end(processes)
