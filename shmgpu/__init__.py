"""Many CPU processes share a few deep-learning sessions, through shared memory, without copies.

A *parent* forks *helpers*, which each hold a session (a loaded model, a CUDA context), and
*children*, which run your code and each own an *arena* of shared memory. A child calls a
decorated function like any other. Only a 16-byte message travels, because the arrays lie where
both sides can read them. A complete program::

    import numpy as np
    import shmgpu

    def load(helper):                          # runs once in each helper: load a model
        return np.ones((64, 10), "float32")

    @shmgpu.function(batch=32, arrays="numpy")
    def classify(helper, images):              # runs in a helper, on rows of many children
        return images @ helper.session

    def worker(rank):                          # runs in each child
        images = shmgpu.arena.empty((4, 64), "float32")
        images[:] = rank
        return classify(images).sum().item()   # waits; the result is in this child's arena

    if __name__ == "__main__":
        print(shmgpu.launch(worker, children=32, helpers=2, session=load))

The names, by purpose; ``help(shmgpu.launch)`` and so on say more. Start and end:

    launch          fork helpers and children, run a function in each child, return the results
    init            start helpers for this process, in a script or a notebook
    Session         what ``init`` returns; leave it as a context, or with ``shutdown``
    shutdown        end what ``init`` started
    is_running      whether this process can call functions
    rank            this child's number, from 0

Functions that helpers run:

    function        the decorator
    Function        its result: call it, or ``.submit()``, ``.aio()``, ``.map()``, ``.options()``
    Bound           what ``.options()`` returns: the function with a deadline, a priority, ...
    Batch           how calls run together
    Declared        shape and type of a result, declared before the call
    CallFuture      what ``.submit()`` returns
    broadcast       run a function once in each helper, and in each that comes later: new weights
    Helper          a function's first argument: its session, its device

Arrays that are passed without a copy:

    arena           ``empty``, ``zeros``, ``array`` in this child's arena; its ``stats``
    shm_malloc      a block of bytes
    shm_free        free it now
    Block           such a block
    frombuffer      an array over it

Programs that no broker forked:

    connect         join a broker that runs
    ensure          join it, and start it first if none runs
    claim           in a process that your program forked: take a slot of its own
    disconnect      leave
    Membership      what these return; leave it as a context

Tensors, computed by helpers, in PyTorch's spelling:

    tensor          a tensor with a copy of the data
    Tensor          an array that is computed when it is read
    Data            its elements, as a NumPy array
    from_numpy      a tensor of an array's elements, without a copy if it is in the arena
    zeros           zeros; also zeros_like
    ones            ones; also ones_like
    empty           arbitrary values; also empty_like
    full            one value; also full_like
    rand            uniformly distributed from 0 to 1; also rand_like
    randn           from the normal distribution; also randn_like
    arange          numbers from one to another
    linspace        a given count of evenly spaced numbers
    logspace        powers with such exponents
    eye             ones on the diagonal
    randint         whole numbers between two
    randperm        the whole numbers up to one, in random order
    normal          normally distributed, with means and deviations
    bernoulli       1 with a probability, else 0
    multinomial     places, drawn by weights
    meshgrid        coordinates of a grid
    as_tensor       the tensor itself, or a new one
    nonzero         where elements are not 0
    masked_select   the elements where a mask holds
    unique          the different elements
    bincount        how often each whole number is there
    allclose        whether all are near each other
    equal           whether shapes and elements are the same
    is_tensor       whether something is a tensor; also is_floating_point
    numel           the number of elements
    clone           a tensor of its own with the same elements
    detach          the same elements, through which no gradients flow
    t               a matrix transposed
    tril_indices    the places of a matrix's lower triangle
    triu_indices    the places of its upper triangle
    grad            gradients of outputs with respect to inputs
    no_grad         a context in which nothing is recorded for gradients; also inference_mode
    enable_grad     a context that records again; also set_grad_enabled
    is_grad_enabled  whether this thread records for gradients
    manual_seed     seed the random numbers; also seed
    initial_seed    the seed that they began with
    Generator       random numbers that follow from a seed of their own
    get_rng_state   where random numbers are; also set_rng_state
    device          a device's name, as tensors tell where they live
    cuda            whether that is a CUDA device, and the like
    inf             infinity; also nan, pi, e, newaxis
    finfo           limits of a float type; also iinfo, of integers
    get_default_dtype  the type of tensors of Python's floats
    Size            what shapes are: tuples
    nn              layers and losses
    optim           optimisers, of which SGD, Adam and AdamW are also in ``shmgpu``; schedules
    autograd        ``grad`` and ``backward`` of several tensors
    linalg          norms, inverses, determinants, linear equations
    array_api       the Python array API standard, over tensors
    distributed     many helpers as one device: meshes, tensors in pieces, forms of parallelism
    amp             mixed precision, with ``GradScaler``; also autocast
    checkpoint      call a function, and compute it again for its gradients
    compile         the function itself: every step is compiled as it is
    save            tensors, however they are nested, into a file of safetensors
    load            what ``save`` wrote, or another file of safetensors
    set_backend     which library computes, and where
    gpu_workers     on how many helpers tensors live
    set_verbosity   how much is logged
    debug           what tensors did: tapes, handles, ticks

Operations are functions and methods of tensors:

    add sub mul div pow maximum minimum remainder floor_divide eq ne lt le gt ge logical_not
    logical_and logical_or bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift bitwise_not neg abs sign floor ceil round exp log sqrt rsqrt sin cos
    tanh sigmoid erf relu where clamp log1p square reciprocal isnan isfinite isinf expm1 asin
    acos atan asinh acosh atanh atan2 hypot copysign signbit nextafter arcsin arccos arctan
    arcsinh arccosh arctanh arctan2 permute transpose unsqueeze squeeze flatten cat stack narrow
    split chunk flip movedim unbind to sum mean var std amax amin logsumexp all any prod matmul
    linear dot softmax log_softmax gelu silu leaky_relu softplus dropout layer_norm conv2d
    max_pool2d avg_pool2d scaled_dot_product_attention mse_loss l1_loss nll_loss cross_entropy
    binary_cross_entropy binary_cross_entropy_with_logits gather scatter_add index_select take
    embedding masked_fill tril triu pad roll one_hot argmax argmin max min argsort sort topk
    cumsum cumprod searchsorted bucketize mm bmm mv outer addmm addmv baddbmm tensordot einsum
    ravel unflatten select swapaxes broadcast_to tile repeat_interleave concat vstack hstack
    diagonal diag take_along_dim index_add index_copy index_fill scatter diff reshape absolute
    clip trunc fmod log2 log10 tan sinh cosh logaddexp logical_xor lerp addcmul addcdiv
    nan_to_num isclose count_nonzero norm cosine_similarity cdist var_mean std_mean aminmax median
    quantile trace split_with_sizes tensor_split hsplit vsplit flipud fliplr rot90 diag_embed
    select_scatter slice_scatter clamp_min clamp_max exp2 fix sgn frac deg2rad rad2deg logit sinc
    xlogy fmax fmin float_power isposinf isneginf nansum nanmean dist kthvalue inner vdot kron cross
    matrix_power inverse det isin ger
    concatenate divide greater greater_equal less less_equal moveaxis multiply negative
    not_equal subtract swapdims true_divide

Element types: bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64, and
PyTorch's other names for them: short int long half float double

Models served over HTTP and gRPC:

    serve           what a model file imports: ``model``, ``Model`` and ``Tensor``

Statistics, errors, and single messages:

    stats           counters of the broker
    write_trace     the trace as a file that Perfetto opens
    errors          all errors; each is also in ``shmgpu``:
    ShmError        the root of the others
    ConfigError     a setting is out of range
    LaunchError     the broker could not be started
    SessionError    a session function raised
    NotRunning      this process has no broker
    BrokerDied      the parent is gone
    ArenaFull       the arena has no free block of that size
    BadFree         not a block, or freed before
    BadFunction     not in the table that was sealed at the start
    BadParams       an argument or a result cannot be carried
    RemoteError     the function raised in its helper
    BroadcastError  it raised in one of the helpers that a broadcast was for
    HelperDied      the helper died while it executed this call
    GangAborted     a call on several helpers was given up, and changed nothing
    NoHelpers       no helper is left that could serve the call
    NotAllowed      another user's broker does not let this program do that
    QueueFull       max_queue calls of the function wait already
    RateExceeded    the broker's quotas allow no more calls a second
    CallTimeout     the deadline passed
    CallCancelled   the call was removed from the queue
    ResultTooLarge  the result is larger than a helper keeps
    ChildError      a child's main raised, or was killed
    status_name     the name of a status code
    status_text     its sentence
    shm_send_msg    send a message to a helper
    shm_read_msg    wait for the next answer
    shm_get_child_id   in a child: its number
    shm_get_helper_id  in a helper: its number

``import shmgpu`` does not import torch, and loads tensors when one of their names is first used.
Modules that are not named here are internal: they may change with each release.
"""

# ruff: noqa: E402 - which package this is comes first
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shmgpu import installed

installed.give_way()

from shmgpu import arena, errors, former
from shmgpu.arena import Block, frombuffer, shm_free, shm_malloc
from shmgpu.attach.membership import Membership, claim, connect, disconnect, ensure
from shmgpu.broker.launch import Session, init, is_running, launch, rank, shutdown
from shmgpu.child.arguments import Declared
from shmgpu.child.futures import CallFuture
from shmgpu.core import status_name, status_text
from shmgpu.errors import (
    ArenaFull,
    BadFree,
    BadFunction,
    BadParams,
    BroadcastError,
    BrokerDied,
    CallCancelled,
    CallTimeout,
    ChildError,
    ConfigError,
    GangAborted,
    HelperDied,
    LaunchError,
    NoHelpers,
    NotAllowed,
    NotRunning,
    QueueFull,
    RateExceeded,
    RemoteError,
    ResultTooLarge,
    SessionError,
    ShmError,
)
from shmgpu.function_table import Batch
from shmgpu.functions import Bound, Function, broadcast, function
from shmgpu.helper.decoded import Helper
from shmgpu.helper.number import shm_get_helper_id
from shmgpu.messages import shm_get_child_id, shm_read_msg, shm_send_msg
from shmgpu.tensors import functions as _tensor_functions  # noqa: F401 - its rows are sealed with the others
from shmgpu.watch.stats import stats
from shmgpu.watch.trace import write as write_trace

former.answer()

__version__ = "0.2.0"

# Tensors, what builds on them, and the server's declarations are loaded when they are first named,
# because a program that only calls functions does not need them.
_LAZY_MODULES = frozenset(
    "amp array_api autograd cuda debug distributed linalg nn optim serve".split()
)
_CONSTANTS: dict[str, Any] = {"e": math.e, "inf": math.inf, "nan": math.nan, "pi": math.pi}
_CONSTANTS |= {"newaxis": None, "Size": tuple}  # a new axis; what shapes are
_TENSOR_NAMES = {
    name: module
    for module, names in {
        "tensors.tensor": "Data Tensor from_numpy full grad manual_seed ones rand randn "
        "set_verbosity tensor zeros",
        "array_api.types": "finfo iinfo",
        "tensors.factories": "arange empty empty_like eye full_like get_default_dtype linspace "
        "logspace ones_like rand_like randn_like zeros_like",
        "tensors.whole": "allclose as_tensor bernoulli bincount clone detach equal "
        "is_floating_point is_tensor masked_select meshgrid multinomial nonzero normal numel "
        "randint randperm t tril_indices triu_indices unique",
        "tensors.devices": "device",
        "tensors.generators": "Generator get_rng_state initial_seed seed set_rng_state",
        "tensors.grad_mode": "enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
        "amp": "autocast",
        "optim": "SGD Adam AdamW",
        "saving": "load save",
        "tensors.recomputing": "checkpoint compile",
        "tensors.placement": "gpu_workers set_backend",
    }.items()
    for name in names.split()
}


if TYPE_CHECKING:
    from shmgpu.typed_names import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        import importlib
        import importlib.machinery

        if name.startswith("_"):
            raise AttributeError(f"module 'shmgpu' has no attribute {name!r}")
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _LAZY_MODULES:
            return importlib.import_module(f"shmgpu.{name}")
        if importlib.machinery.PathFinder.find_spec(f"shmgpu.{name}", __path__):  # noqa: F405
            # ``from shmgpu import module`` asks here first, also from within what tensors import.
            raise AttributeError(f"shmgpu.{name} is a module: import it")
        if name in _TENSOR_NAMES:
            importlib.import_module("shmgpu.tensors.tensor")  # tensors have all of their methods
            found = getattr(importlib.import_module(f"shmgpu.{_TENSOR_NAMES[name]}"), name)
        else:  # operations, and element types
            tensors = importlib.import_module("shmgpu.tensors.tensor")
            found = tensors.FUNCTIONS.get(name) or tensors.DTYPES.get(name)
            if found is None:
                raise AttributeError(
                    f"module 'shmgpu' has no attribute {name!r}: help(shmgpu) lists what it has"
                )
        globals()[name] = found  # asked for once
        return found


def __dir__() -> list[str]:
    """The public names, loaded or not, and none of the modules behind them."""
    from shmgpu.tensors.tensor import DTYPES, FUNCTIONS

    return [*__all__, *_CONSTANTS, *_LAZY_MODULES, *_TENSOR_NAMES, *FUNCTIONS, *DTYPES]


__all__ = [
    "ArenaFull",
    "BadFree",
    "BadFunction",
    "BadParams",
    "Batch",
    "Block",
    "Bound",
    "BroadcastError",
    "BrokerDied",
    "CallCancelled",
    "CallFuture",
    "CallTimeout",
    "ChildError",
    "ConfigError",
    "Declared",
    "Function",
    "GangAborted",
    "Helper",
    "HelperDied",
    "LaunchError",
    "Membership",
    "NoHelpers",
    "NotAllowed",
    "NotRunning",
    "QueueFull",
    "RateExceeded",
    "RemoteError",
    "ResultTooLarge",
    "Session",
    "SessionError",
    "ShmError",
    "__version__",
    "arena",
    "broadcast",
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
