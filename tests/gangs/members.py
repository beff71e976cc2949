"""Functions that the members of a gang run, and how a test calls them.

A member is sent what to do as a JSON text (the call's ``code``), and which arrays of the arena it
is given; its result is arrays. Members exchange as :class:`shmgpu.collectives.in_order.InOrder`
does.
"""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np

from shmgpu import core
from shmgpu.child import runtime
from shmgpu.child.gang_calls import GangCall, GangCallPlan, MemberBlock
from shmgpu.codec import arrays
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import of_any
from shmgpu.collectives.operations import CollectiveSpec
from shmgpu.functions import Function, post
from shmgpu.ops import gang as gangs
from shmgpu.ops.program import decode


def take_part(helper, request):
    """Do what the request says, as one member: the arrays that come of it."""
    gang, task = request.gang, json.loads(request.code)
    given = [
        request.array(index, ArraySpec(of_any(dtype), tuple(shape)))
        for index, (dtype, shape) in enumerate(task["arrays"])
    ]
    return STEPS[task["step"]](gang, given, task)


def _collective(gang, given, task):
    """One collective again and again, each time of what the last one gave; ``at``: what happens."""
    value = given[0].copy() if given else np.zeros(4, np.float32)
    for time_ in range(task.get("times", 1)):
        if time_ == task.get("at"):
            happens(gang, task)
        value = COLLECTIVES[task["kind"]](gang, value, task)
    if task.get("at") == "arriving":
        happens(gang, task)
    if task.get("commits"):
        gang.commit()
        if task.get("at") == "committed":
            happens(gang, task)
    return [value]


def happens(gang, task):
    """What befalls the member of that rank."""
    if gang.rank != task["victim"]:
        return
    what = task["what"]
    if what == "raise":
        raise ValueError("this member cannot")
    if what == "exit":
        os._exit(0)
    if what == "sleep":
        time.sleep(task["seconds"])
        return
    if what == "dies late":  # the others are in their commits by then
        time.sleep(0.3)
        what = "SIGKILL"
    os.kill(os.getpid(), getattr(signal, what))


def _even(total, size):
    return [total // size + (rank < total % size) for rank in range(size)]


COLLECTIVES = {
    "all_reduce": lambda gang, x, task: gang.exchange.all_reduce(
        x, task.get("reduction", "sum"), algorithm=task.get("algorithm", "auto")
    ),
    "all_gather": lambda gang, x, task: gang.exchange.all_gather(x)[: x.size],
    "reduce_scatter": lambda gang, x, task: np.resize(
        gang.exchange.reduce_scatter(x, _even(x.size, gang.size)), x.size
    ),
    "all_to_all": lambda gang, x, task: (
        gang.exchange.all_to_all(x, *[[x.size // gang.size] * gang.size] * 2)
        if x.size % gang.size == 0
        else x
    ),
    "broadcast": lambda gang, x, task: gang.exchange.broadcast(x, task.get("root", 0)),
    "barrier": lambda gang, x, task: gang.exchange.barrier() or x,
    "none": lambda gang, x, task: x,
}


def _tensors(gang, given, task):
    """One collective of a tensor of torch."""
    x = given[0].clone()
    made = {
        "all_reduce": lambda: gang.exchange.all_reduce(x),
        "all_gather": lambda: gang.exchange.all_gather(x)[: x.numel()],
        "broadcast": lambda: gang.exchange.broadcast(x),
    }[task["kind"]]()
    assert type(made) is type(x)
    gang.commit()
    return [made]


def _both_receive(gang, given, task):
    """Each waits for what the other one would send."""
    target = np.empty_like(given[0])
    receives = CollectiveSpec(
        *("recv", of_any("float32"), (target.size,)), root=1 - gang.rank, group=(0, 1)
    )
    gang.collectives.prepare(receives, gang.rank, gang.size).run(1, None, target)
    return [target]


def _meetings(gang, given, task):
    """What programs ask for, with parts of several members and several arrays as one."""
    ours, row = gang.programs, gang.rank // 2 * 2
    members = tuple(range(gang.size))
    pair = (row, row + 1)
    x = given[0]
    parts = [x[:5], x[5:5], x[5:]]
    total, whole = np.empty_like(x), np.empty(2 * x.size + 3, x.dtype)
    later = ours.all_reduce(0, members, "avg", parts, total, wait=False)
    own = [x, x[:3]] if gang.rank == row else [x]
    counts = (x.size + 3, x.size)
    gathering = ours.all_gather(1, pair, counts, own, whole, wait=False)
    cut = (x.size - 4, 4)
    scattered = np.empty(cut[gang.rank - row], x.dtype)
    ours.reduce_scatter(2, pair, "max", cut, parts, scattered)
    gathering()
    others = (gang.rank % 2, gang.rank % 2 + 2)
    got = np.empty(8, x.dtype)
    sent = (3, 5) if gang.rank < 2 else (5, 3)
    ours.all_to_all(4, others, sent, sent, [x[:3], x[3:8]], got)
    later()
    flags = np.array([gang.rank == 1, False])
    either = np.empty_like(flags)
    ours.all_reduce(7, members, "max", [flags], either)
    return [total, whole, np.resize(scattered, x.size), got, either]


def _lowered(gang, given, task):
    """This member's part of a lowered program, which comes with the request."""
    from distributed.members import run

    program = decode(given.pop().tobytes())
    with gangs.member_of(gang.programs):
        read, _ = run(program, given, task["numbers"])
    return read


STEPS = {
    "meetings": _meetings,
    "lowered": _lowered,
    "torch": _tensors,
    "both receive": _both_receive,
    "collective": _collective,
    "who": lambda gang, given, task: [
        np.array([gang.rank, gang.size, len(gang.helpers), os.getpid()], np.int64)
    ],
    "too much": lambda gang, given, task: [np.zeros(1 << 20)],
}


def _declared(name, **settings):
    """A function of that name; brokers know functions by their names."""

    def body(helper, request):
        return take_part(helper, request)

    body.__qualname__ = body.__name__ = name
    function: Function = Function(body, **settings)
    function.takes_raw_calls = True
    return function


numpy_members = _declared("numpy_members", arrays="numpy")
idempotent_members = _declared("idempotent_members", arrays="numpy", idempotent=True)
impatient_members = _declared("impatient_members", arrays="numpy", hang_after=0.4)
torch_members = _declared("torch_members", arrays="torch")


def prepare(helpers, task, given=(), out=(), function=numpy_members):
    """A call: ``task`` for each helper, or one of its own for each; ``given`` arrays by rank.

    ``out``: specs of the results, the same for all, or of each rank.
    """
    port = runtime.require_port()
    plan = GangCallPlan(function.row, 0, helpers, function.name, port.transport.number)
    call = GangCall(plan, port.arena)
    tasks = task if isinstance(task, list) else [task] * len(helpers)
    parts = []
    specs = out if isinstance(out, dict) else dict.fromkeys(range(len(helpers)), out)
    for rank in range(len(helpers)):
        own = given[rank] if given else []
        described = [[str(array.dtype), list(array.shape)] for array in own]
        code = json.dumps({**tasks[rank], "arrays": described}).encode()
        addresses = [core.address_of(array) for array in own]
        parts.append(
            MemberBlock(
                b"", code, addresses, sum(arrays.aligned(spec.nbytes) for spec in specs[rank])
            )
        )
    call.fill(parts, port.arena)
    return call


def read(buffers, out):
    """The results of each member: lists of arrays."""
    results = []
    for rank, buffer in enumerate(buffers):
        offset, own = 0, []
        for spec in out[rank] if isinstance(out, dict) else out:
            own.append(arrays.numpy_view(buffer, offset, spec).copy())
            offset += arrays.aligned(spec.nbytes)
        results.append(own)
    return results


def ask(helpers, task, given=(), out=(), function=numpy_members):
    """Send it and wait: the results of each member, by rank."""
    call = prepare(helpers, task, given, out, function)
    return read(runtime.require_port().send(call, function, (call, given)), out)


def submit(helpers, task, given=(), out=(), function=numpy_members):
    """Send it: a future of nothing, and the call."""
    call = prepare(helpers, task, given, out, function)
    return post(runtime.require_port(), call, (call, given)), call
