"""The bodies of the functions that the server's workers call.

Owns these bodies, each one call of a helper's model store. Never declares a function: for workers,
:mod:`shmgpu.serve.scheduling.rows` does.
"""

from __future__ import annotations

from typing import Any

from shmgpu.serve.models.request_context import Whose
from shmgpu.serve.models.runner import ModelStore


def infer(helper: Any, whose: Whose, *inputs: Any) -> Any:
    """Run a model; its number (with the request's parameters, if any), its inputs in order."""
    store: ModelStore = helper.session
    return store.run(whose, inputs)


def infer_together(helper: Any, number: int, requests: int, *inputs: Any) -> Any:
    """Run a model on the rows of several requests; see :mod:`shmgpu.serve.frontend.coalescing`."""
    store: ModelStore = helper.session
    return store.run(number, inputs, requests=requests)


def infer_in_regions(helper: Any, whose: Whose, outputs: Any, *inputs: Any) -> Any:
    """Run a model on tensors of which some lie in clients' regions; see `runner.ModelStore.run`."""
    store: ModelStore = helper.session
    return store.run(whose, inputs, outputs)


def infer_gathered(helper: Any, number: int, shapes: Any, places: Any) -> Any:
    """Run a model on rows of several requests in regions; see `runner.ModelStore.run_gathered`."""
    store: ModelStore = helper.session
    return store.run_gathered(number, shapes, places)


def infer_in_sequence(
    helper: Any, whose: Whose, outputs: Any, name: str, starts: bool, ends: bool, *inputs: Any
) -> Any:
    """Run a model with the state of a sequence; see `runner.ModelStore.run_in_sequence`."""
    store: ModelStore = helper.session
    return store.run_in_sequence(whose, name, starts, ends, inputs, outputs)


def open_stream(helper: Any, whose: Whose, token: int, *inputs: Any) -> Any:
    """Begin a stream, which its caller calls ``token``: this helper's number, the first part."""
    store: ModelStore = helper.session
    return helper.id, *store.open_stream(helper.caller, whose, token, inputs)


def next_part(helper: Any, token: int) -> Any:
    """One part more of a stream: a tuple of one; an empty one when that was all."""
    store: ModelStore = helper.session
    return store.next_part(helper.caller, token)


def close_stream(helper: Any, token: int) -> None:
    """Forget a stream."""
    helper.session.generators.close(helper.caller, token)


def load(helper: Any, source: int) -> None:
    """Load a source of the control table."""
    helper.session.load(source)


def unload(helper: Any, source: int) -> None:
    """Forget a source."""
    helper.session.unload(source)
