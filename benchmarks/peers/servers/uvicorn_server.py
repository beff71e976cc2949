"""What a user builds by hand: an ASGI application under uvicorn, the model in other processes.

Two uvicorn workers (uvloop, httptools), each with a model process of its own, reached through an
executor of ``concurrent.futures`` or over a bare ``multiprocessing.Pipe``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvicorn

MODULE = "benchmarks.peers.servers.uvicorn_server"  # uvicorn's workers import it anew
BEHIND = "SHMGPU_BENCH_BEHIND"
fork = multiprocessing.get_context("fork")
Model = Callable[[bytes], Awaitable[bytes]]


def double(body: bytes) -> bytes:
    """Return float32 items, doubled: the model."""
    x = np.frombuffer(body, "float32")
    return (x + x).tobytes()


def _heed_sigterm() -> None:
    """In a model process: the handler that it was forked with would only wake the event loop."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def by_executor() -> Model:
    executor = ProcessPoolExecutor(1, mp_context=fork, initializer=_heed_sigterm)
    executor.submit(double, b"").result()
    loop = asyncio.get_running_loop()
    return lambda body: loop.run_in_executor(executor, double, body)


def _serve(pipe: Connection) -> None:
    _heed_sigterm()
    while True:
        pipe.send_bytes(double(pipe.recv_bytes()))


def by_pipe() -> Model:
    """Return a model whose answers come in the order of the requests, one at a time."""
    mine, theirs = fork.Pipe()
    fork.Process(target=_serve, args=(theirs,), daemon=True).start()
    theirs.close()
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[bytes, asyncio.Future[bytes]]] = deque()

    def arrived() -> None:
        _, future = waiting.popleft()
        answer = mine.recv_bytes()
        if not future.cancelled():
            future.set_result(answer)
        if waiting:
            mine.send_bytes(waiting[0][0])

    async def call(body: bytes) -> bytes:
        future: asyncio.Future[bytes] = loop.create_future()
        waiting.append((body, future))
        if len(waiting) == 1:
            mine.send_bytes(body)
        return await future

    loop.add_reader(mine.fileno(), arrived)
    os.set_blocking(mine.fileno(), True)  # libuv has just cleared it, and a Connection needs it
    return call


MODELS = {"executor": by_executor, "pipe": by_pipe}
model: Model | None = None


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer every request with its body doubled; as bare as ASGI allows."""
    global model
    if scope["type"] != "http":
        return
    if model is None:
        model = MODELS[os.environ[BEHIND]]()
    parts = []
    more = True
    while more:
        event = await receive()
        parts.append(event["body"])
        more = event["more_body"]
    answer = await model(b"".join(parts))
    length = (b"content-length", b"%d" % len(answer))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--behind", choices=MODELS, default="executor")
    options = parser.parse_args()
    os.environ[BEHIND] = options.behind
    uvicorn.run(
        f"{MODULE}:application",
        host="127.0.0.1",
        port=options.port,
        workers=2,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
    )


if __name__ == "__main__":
    main()
