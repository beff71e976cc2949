"""Many CPU processes share few deep-learning sessions, through shared memory, without copies.

A *parent* forks *helpers*, which each hold a session (a loaded model, a CUDA context), and
*children*, which run your code and each own an *arena* of shared memory. A child calls a
decorated function like any other; what travels is a 16-byte message, because the arrays lie
where both sides see them::

    import shmgpu

    def load(helper):                            # runs once in each helper
        return torch.jit.load("model.pt").to(helper.device)

    @shmgpu.function(batch=shmgpu.Batch(max_size=32))
    def classify(helper, images):                # images come from the caller's arena
        return helper.session(images)

    def worker(rank):                            # runs in each child
        images = shmgpu.arena.empty((8, 64), "float32")
        return classify(images).argmax(1)

    shmgpu.launch(worker, children=32, helpers=2, session=load)

``import shmgpu`` does not import torch.
"""

# ruff: noqa: E402 - which package this is comes first
from __future__ import annotations

from typing import Any

from shmgpu import installed

installed.give_way()

from shmgpu import arena, errors, former
from shmgpu.arena import Block, frombuffer, shm_free, shm_malloc
from shmgpu.attach.membership import Membership, claim, connect, disconnect, ensure
from shmgpu.broker.launch import Session, init, is_running, launch, rank, shutdown
from shmgpu.child.arguments import Declared
from shmgpu.child.futures import CallFuture
from shmgpu.core import status_name, status_text
from shmgpu.engine import functions as _engine_functions  # noqa: F401 - its rows are sealed with the others
from shmgpu.errors import (
    ArenaFull,
    BadFree,
    BadFunction,
    BadParams,
    BrokerDied,
    CallCancelled,
    CallTimeout,
    ChildError,
    ConfigError,
    HelperDied,
    LaunchError,
    NoHelpers,
    NotRunning,
    RemoteError,
    ResultTooLarge,
    SessionError,
    ShmError,
)
from shmgpu.functions import Batch, Bound, Function, function
from shmgpu.helper.decoded import Helper
from shmgpu.messages import shm_get_child_id, shm_get_helper_id, shm_read_msg, shm_send_msg
from shmgpu.watch.stats import stats
from shmgpu.watch.trace import write as write_trace

former.answer()

__version__ = "0.1.0"

# Tensors, what is made of them, and the server's declarations are loaded when they are first named:
# a program that only calls functions does without.
_LAZY_MODULES = frozenset({"debug", "nn", "optim", "serve"})
_TENSOR_NAMES = {
    name: room
    for room, names in {
        "tensors.tensor": "Data Tensor from_numpy full grad manual_seed no_grad ones rand randn "
        "set_verbosity tensor zeros",
        "tensors.factories": "arange empty empty_like eye full_like linspace ones_like rand_like "
        "randn_like zeros_like",
        "optim": "SGD Adam AdamW",
        "tensors.placement": "gpu_workers set_backend",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    import importlib
    import importlib.machinery

    if name.startswith("_"):
        raise AttributeError(f"module 'shmgpu' has no attribute {name!r}")
    if name in _LAZY_MODULES:
        return importlib.import_module(f"shmgpu.{name}")
    if importlib.machinery.PathFinder.find_spec(f"shmgpu.{name}", __path__) is not None:
        # ``from shmgpu import room`` asks here first, also from within what tensors import.
        raise AttributeError(f"shmgpu.{name} is a module: import it")
    if name in _TENSOR_NAMES:
        found = getattr(importlib.import_module(f"shmgpu.{_TENSOR_NAMES[name]}"), name)
    else:  # operations, and element types
        tensors = importlib.import_module("shmgpu.tensors.tensor")
        found = tensors.FUNCTIONS.get(name) or tensors.DTYPES.get(name)
        if found is None:
            raise AttributeError(f"module 'shmgpu' has no attribute {name!r}")
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not, and none of the modules behind them."""
    from shmgpu.tensors.tensor import DTYPES, FUNCTIONS

    return [*__all__, *_LAZY_MODULES, *_TENSOR_NAMES, *FUNCTIONS, *DTYPES]


__all__ = [
    "ArenaFull",
    "BadFree",
    "BadFunction",
    "BadParams",
    "Batch",
    "Block",
    "Bound",
    "BrokerDied",
    "CallCancelled",
    "CallFuture",
    "CallTimeout",
    "ChildError",
    "ConfigError",
    "Declared",
    "Function",
    "Helper",
    "HelperDied",
    "LaunchError",
    "Membership",
    "NoHelpers",
    "NotRunning",
    "RemoteError",
    "ResultTooLarge",
    "Session",
    "SessionError",
    "ShmError",
    "__version__",
    "arena",
    "claim",
    "connect",
    "disconnect",
    "ensure",
    "errors",
    "frombuffer",
    "function",
    "init",
    "is_running",
    "launch",
    "rank",
    "shm_free",
    "shm_get_child_id",
    "shm_get_helper_id",
    "shm_malloc",
    "shm_read_msg",
    "shm_send_msg",
    "shutdown",
    "stats",
    "status_name",
    "status_text",
    "write_trace",
]
