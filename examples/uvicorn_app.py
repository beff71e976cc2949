"""A web server that starts its workers by exec: each joins a broker that runs already.

The broker serves this file's functions; four workers share its two helpers, and any number of
requests is out at once in each::

    shmgpu up --helpers 2 examples/uvicorn_app.py
    uvicorn --workers 4 --app-dir examples uvicorn_app:app
    curl --data '[1, 2, 3, 4]' http://127.0.0.1:8000/
"""

from __future__ import annotations

import json

import numpy as np

import shmgpu

FEATURES = 4


def load(helper):
    return np.arange(8, dtype="float32").reshape(FEATURES, 2)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=32), timeout=10)
def predict(helper, rows):
    return rows @ helper.session


async def lifespan(receive, send):
    while True:
        event = (await receive())["type"]
        if event == "lifespan.startup":
            shmgpu.connect(wait=30)
        else:
            shmgpu.disconnect()
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def body_of(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def row_of(body):
    """The numbers of a request; ValueError, in words for whoever sent it, where it has none."""
    try:
        row = np.array(json.loads(body), "float32")
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ValueError("the body must be a JSON list of numbers") from None
    if row.shape != (FEATURES,):
        raise ValueError(f"the list must have {FEATURES} numbers, and its shape is {row.shape}")
    return row


async def answer(send, status, content):
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    if not shmgpu.is_running():  # the broker that was joined has ended: another may run by now
        shmgpu.connect(wait=30)
    try:
        row = row_of(await body_of(receive))
    except ValueError as error:
        await answer(send, 422, {"detail": str(error)})
        return
    scores = await predict.aio(row[None])  # the loop goes on meanwhile
    await answer(send, 200, {"scores": scores[0].tolist(), "place": shmgpu.rank()})
