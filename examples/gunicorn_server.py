"""A web server that forks its workers: gunicorn's master starts the broker, each worker claims.

One file is both gunicorn's configuration and the application. Two workers share one model::

    gunicorn --config examples/gunicorn_server.py --chdir examples gunicorn_server:app
    curl --data '[1, 2, 3, 4]' http://127.0.0.1:8000/
"""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np

import shmgpu

workers = 2
bind = "127.0.0.1:8000"
preload_app = True  # the application is imported, and its functions decorated, before any fork


FEATURES = 4


def load(helper):
    return np.arange(8, dtype="float32").reshape(FEATURES, 2)


@shmgpu.function(arrays="numpy", timeout=10)
def predict(helper, row):
    return row @ helper.session


# ---- gunicorn's hooks ----------------------------------------------------------------------


def pre_fork(server, worker):
    """In the master, before it forks a worker: start the broker, or another if that was killed."""
    if shmgpu.is_running():
        return
    shmgpu.shutdown()
    # One place more than workers: the next worker may start before the last one's is clean.
    shmgpu.init(helpers=1, session=load, devices="cpu", arena="4MiB", slots=workers + 1)


def post_worker_init(worker):
    """In each worker, and in each that replaces one.

    Not in ``post_fork``: until gunicorn has given a worker its own signal handlers, a SIGTERM to it
    is lost, and a server that is told to end waits for it until ``graceful_timeout``.
    """
    try:
        shmgpu.claim(wait=10)
    except shmgpu.NotRunning as error:
        # An exception here would end the master. So this worker ends, and before the next one is
        # forked another broker starts.
        sys.exit(f"worker {worker.pid} joins no broker: {error}")


def on_exit(server):
    """In the master, when all workers have ended."""
    shmgpu.shutdown()


# ---- the application -----------------------------------------------------------------------


def row_of(body):
    """The numbers of a request; ValueError, in words for whoever sent it, where it has none."""
    try:
        row = np.array(json.loads(body), "float32")
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ValueError("the body must be a JSON list of numbers") from None
    if row.shape != (FEATURES,):
        raise ValueError(f"the list must have {FEATURES} numbers, and its shape is {row.shape}")
    return row


def app(environ, start_response):
    try:
        row = row_of(environ["wsgi.input"].read())
    except ValueError as error:
        start_response("422 Unprocessable Content", [("Content-Type", "application/json")])
        return [json.dumps({"detail": str(error)}).encode()]
    try:
        scores = predict(row)
    except shmgpu.BrokerDied:
        os.kill(os.getpid(), signal.SIGTERM)  # the worker that replaces this one has a broker
        start_response("503 Service Unavailable", [("Retry-After", "1")])
        return [b""]
    answer = {"scores": scores.tolist(), "place": shmgpu.rank()}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
