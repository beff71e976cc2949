"""A program that repeats on a device is captured and replayed, and nobody could tell from results.

The device is a stand-in that records what torch is asked for; what holds only on a real one is in
tests/gpu/test_graphs.py.
"""

from __future__ import annotations

import importlib.util
import itertools
import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tensors.stand_in import StandIn, Unreplayed, memory
from tensors.test_engine import (
    ALL_OFF,
    BIG,
    Child,
    arrays_for,
    equal,
    make_ones,
    plain,
    programs,
    slow_machine,
    steps_of,
)

import shmgpu as gt
from shmgpu import debug, nn, optim
from shmgpu.engine import backends, capture, cuda_graphs, session
from shmgpu.engine import functions as bodies
from shmgpu.engine.compile import Pool, compiled
from shmgpu.engine.cuda import CudaDriver
from shmgpu.engine.plan import Options
from shmgpu.ops import TABLE, shaping
from shmgpu.ops import elementwise as e
from shmgpu.ops.graph import spec_of
from shmgpu.ops.program import decode
from shmgpu.ops.promotion import bfloat16, float32, int64
from shmgpu.tensors import current, functions

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
RUNS = cuda_graphs.WATCHED + capture.WARM_UPS  # before a program is captured
NUMBER = spec_of(float32, ())


@pytest.fixture
def on_device(monkeypatch):
    """Tensors in this very process, on the stand-in: gives the engine's figures."""
    monkeypatch.setattr(backends, "TorchBackend", StandIn)
    monkeypatch.setattr(bodies, "_memory", lambda backend: 0)
    monkeypatch.setattr(current, "_backend", "torch")
    with gt.init(inline=True, arena="64MiB"):
        yield lambda: functions.engine_figures()[0]


def elsewhere(work):
    """What the work gives on the CPU, operation by operation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "TorchBackend", Unreplayed)
        with gt.init(inline=True, arena="64MiB"):
            return work()


def compare(work):
    """The same work on the stand-in and on the CPU; and the figures of the stand-in's engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "TorchBackend", StandIn)
        patch.setattr(bodies, "_memory", lambda backend: 0)
        with gt.init(inline=True, arena="64MiB"):
            ours = work()
            figures = functions.engine_figures()[0]
    return ours, elsewhere(work), figures


# ---- training ------------------------------------------------------------------------------------


def perceptron():
    gt.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model, step_of, steps, each=lambda step: None):
    rng = np.random.default_rng(0)
    losses = []
    for step in range(steps):
        each(step)
        x = gt.tensor(rng.standard_normal((8, 20), dtype=np.float32))
        y = gt.tensor(rng.standard_normal((8, 4), dtype=np.float32))
        loss = nn.mse_loss(model(x), y)
        step_of.zero_grad()
        loss.backward()
        step_of.step()
        losses.append(loss.item())
    return losses, [one.data.copy() for one in model.parameters()]


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda parameters: optim.SGD(parameters, lr=0.05),
        lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
        lambda parameters: optim.AdamW(parameters, lr=0.01),
    ],
    ids=["sgd", "momentum", "adamw"],
)
def test_a_step_of_training_is_replayed_and_trains_alike(optimiser):
    def work():
        model = perceptron()
        return train(model, optimiser(model.parameters()), 12)

    (losses, weights), (true_losses, true_weights), figures = compare(work)
    np.testing.assert_allclose(losses, true_losses, rtol=1e-6)
    for one, other in zip(weights, true_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert figures["captured"] >= 1 and figures["replays"] >= 12 - 1 - RUNS
    assert figures["fallbacks"] == {}


def test_weights_that_a_step_writes_over_are_not_copied(on_device):
    model = perceptron()
    train(model, optim.SGD(model.parameters(), lr=0.05), 10)
    events = StandIn.made.standing_in.events
    last = [i for i, what in enumerate(events) if what == "replay"][-1]
    # In: the two arrays that were sent. Out: the gradients, which .grad shows, and the loss.
    assert events[last - 1] == "copy 2" and events[last + 1] == "copy 5"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside these tests")
def test_a_small_transformer_is_replayed_and_trains_alike():
    spec = importlib.util.spec_from_file_location("gpt", EXAMPLES / "twins" / "gpt.py")
    gpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)
    text = np.random.default_rng(0).integers(0, 40, 2000)

    def work():
        gt.manual_seed(0)
        model = gpt.GPT(40)
        optimiser = optim.AdamW(model.parameters(), lr=3e-4)
        losses = []
        for before, after in gpt.batches(text, 10):
            loss = nn.cross_entropy(model(before).reshape(-1, 40), after.reshape(-1))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    ours, theirs, figures = compare(work)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert figures["captured"] == 1 and figures["fallbacks"] == {}


def test_a_rate_that_changes_at_each_step_is_brought_to_the_graph():
    def work():
        model = perceptron()
        step_of = optim.SGD(model.parameters(), lr=0.05)

        def schedule(step):
            step_of.param_groups[0]["lr"] = 0.05 / (1 + step)

        return train(model, step_of, 10, schedule)

    (losses, _), (true_losses, _), figures = compare(work)
    np.testing.assert_allclose(losses, true_losses, rtol=1e-6)
    assert figures["captured"] == 1 and figures["fallbacks"] == {}


def test_a_rate_that_changes_later_is_noticed_and_counted():
    def work():
        model = perceptron()
        step_of = optim.SGD(model.parameters(), lr=0.05)

        def schedule(step):
            step_of.param_groups[0]["lr"] = 0.05 if step < 8 else 0.01

        return train(model, step_of, 16, schedule)

    (losses, _), (true_losses, _), figures = compare(work)
    np.testing.assert_allclose(losses, true_losses, rtol=1e-6)
    assert figures["captured"] == 2 and figures["fallbacks"] == {cuda_graphs.CHANGED: 1}


def test_two_models_of_one_structure_keep_their_own_weights():
    def work():
        gt.manual_seed(1)
        models = [nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2)]
        steps = [optim.SGD(one.parameters(), lr=0.1) for one in models]
        rng = np.random.default_rng(0)
        losses = []
        for turn in range(24):
            at = turn % 2 if turn < 16 else 0  # by turns, then one of them alone
            x = gt.tensor(rng.standard_normal((8, 20), dtype=np.float32))
            loss = (models[at](x) ** 2).mean()
            steps[at].zero_grad()
            loss.backward()
            steps[at].step()
            losses.append(loss.item())
        return losses, [p.data.copy() for one in models for p in one.parameters()]

    (losses, weights), (true_losses, true_weights), figures = compare(work)
    np.testing.assert_allclose(losses, true_losses, rtol=1e-6)
    for one, other in zip(weights, true_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert figures["replays"] > 0


def test_what_is_drawn_follows_from_its_seed_in_a_replay_too():
    def work():
        gt.manual_seed(5)
        x = gt.ones(64)
        return [(nn.dropout(x * 2, 0.5) + gt.randn(64)).data.copy() for _ in range(10)]

    ours, theirs, figures = compare(work)
    for one, other in zip(ours, theirs, strict=True):
        equal(one, other)
    assert not np.array_equal(ours[-1], ours[-2])
    assert figures["captured"] == 1 and figures["fallbacks"] == {}


def test_what_was_kept_is_not_written_over_by_the_next_replay(on_device):
    held, x = [], gt.ones(50, 50)
    for step in range(10):
        one = gt.tensor(np.full((50, 50), step, np.float32)) * x + x * x - 1
        one.sum().item()  # the sum is read, what it is of stays with the helper
        held.append(one)
    assert on_device()["replays"] >= 5
    assert [one.data[7, 7] for one in held] == [float(step) for step in range(10)]


def test_figures_are_shown_with_the_helpers(on_device, capsys):
    model = perceptron()
    train(model, optim.SGD(model.parameters(), lr=0.05), 10)
    (row,) = debug.get_worker_stats().values()
    assert row["captured"] == 1 and row["replays"] >= 5 and row["fallbacks"] == {}
    debug.print_worker_stats()
    assert "replays" in capsys.readouterr().out


# ---- the engine ----------------------------------------------------------------------------------


def step_program(extra=()):
    """w = w * 2 - n, which writes over w; and a sum that is read."""
    return steps_of(
        [BIG],
        [
            (e.MUL, (0, 0)),
            (e.ABS, (2,)),
            (e.SUB, (0, 1)),
            *extra,
            (TABLE["sum"], (3,), ((0, 1), False)),
        ],
        kept=(4,),
        read=(5 + len(extra),),
        donated=(0,),
        numbers=(NUMBER,),
    )


@pytest.fixture
def engine():
    return session.Engine(StandIn())


def make_weights(child, value=1.0):
    (handle,), _ = child.run(make_ones(), numbers=(value,))
    return handle


def repeat(child, program, handle, numbers, times):
    seen = []
    for n in itertools.islice(numbers, times):
        (handle,), (read,) = child.run(program, (handle,), (n,))
        seen.append(float(read))
    return handle, seen


def test_a_program_is_watched_then_warmed_then_captured_then_replayed(engine):
    child = Child(engine)
    handle, _ = repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 8)
    events = [one for one in engine.backend.standing_in.events if not one.startswith("copy")]
    assert events == ["beside"] * capture.WARM_UPS + ["capture"] + ["replay"] * (8 - RUNS)
    array = engine.tenant(0, 1).arrays[handle]
    assert float(array[0, 0]) == 1 - 8 * 0.5


def test_capturing_can_be_switched_off(engine):
    child = Child(engine)
    handle = make_weights(child)
    for _ in range(8):
        (handle,), _ = child.run(step_program(), (handle,), (0.5,), flags=32)
    assert float(engine.tenant(0, 1).arrays[handle][0, 0]) == 1 - 8 * 0.5
    assert engine.backend.standing_in.events == [] and engine.figures()["fallbacks"] == {}


def test_a_failed_graph_is_counted_and_not_tried_again(engine):
    engine.backend.standing_in.fails = True
    child = Child(engine)
    handle, _ = repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 10)
    assert engine.figures()["fallbacks"] == {
        capture.FAILED.format("RuntimeError", "the device cannot"): 1
    }
    assert engine.backend.standing_in.events.count("capture") == 1
    assert float(engine.tenant(0, 1).arrays[handle][3, 3]) == 1 - 10 * 0.5


def test_without_memory_for_a_graph_the_program_runs_as_it_did(engine, monkeypatch):
    child = Child(engine)
    handle, _ = repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 2)

    def nothing_left(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("nothing left")

    monkeypatch.setattr(cuda_graphs, "compiled", nothing_left)
    handle, _ = repeat(child, step_program(), handle, itertools.repeat(0.5), 4)
    assert float(engine.tenant(0, 1).arrays[handle][0, 0]) == 1 - 6 * 0.5
    ((reason, count),) = engine.figures()["fallbacks"].items()
    assert "nothing left" in reason and count == 1


def test_what_waits_for_the_device_is_no_graph(engine, monkeypatch):
    waiting = type(e.ABS)(
        "abs", e.ABS.rule, numpy=e.ABS.numpy, torch=lambda *_: lambda x: x.abs() * x.sum().item()
    )
    monkeypatch.setitem(TABLE, "abs", waiting)
    child = Child(engine)
    repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 8)
    ((reason, count),) = engine.figures()["fallbacks"].items()
    assert "not permitted" in reason and count == 1
    assert engine.figures()["graphs"] == 0


@pytest.mark.parametrize("name", ["arange", "linspace"])
def test_a_number_that_only_the_host_may_give_is_a_reason(engine, name):
    shape = (float32, 20)
    program = steps_of(
        [],
        [(TABLE[name], (0, 1), shape), (e.ABS, (2,)), (e.NEG, (3,)), (e.EXP, (4,))],
        read=(4,),
        numbers=(NUMBER, NUMBER),
    )
    child = Child(engine)
    for n in range(8):
        _, (read,) = child.run(program, (), (float(n), 2.0))
        assert float(read[0]) == -n
    assert engine.figures()["fallbacks"] == {cuda_graphs.PLAIN.format(name): 1}


def test_a_seed_that_is_a_tensor_is_a_reason(engine):
    program = steps_of(
        [spec_of(int64, ())],
        [
            (TABLE["rand"], (0,), (float32, (20, 20))),
            (e.NEG, (1,)),
            (e.EXP, (2,)),
        ],
        read=(3,),
    )
    child = Child(engine)
    (handle,), _ = child.run(make_seed(), numbers=(3,))
    for _ in range(6):
        child.run(program, (handle,))
    assert engine.figures()["fallbacks"] == {cuda_graphs.SEEDED.format("rand"): 1}


def make_seed():
    whole = spec_of(int64, ())
    return steps_of([], [(TABLE["full"], (0,), (int64, ()))], (1,), (), (), [whole])


def test_few_operations_are_not_worth_it_and_that_is_counted_once(engine):
    program = steps_of([BIG], [(e.NEG, (0,))], read=(1,))
    child = Child(engine)
    handle = make_weights(child)
    for _ in range(8):
        child.run(program, (handle,))
    assert engine.figures()["fallbacks"] == {cuda_graphs.FEW: 1}
    assert engine.figures()["captured"] == 0


def test_a_program_too_large_is_not_captured(engine, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_BYTES", 1000)
    child = Child(engine)
    repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 8)
    assert engine.figures()["fallbacks"] == {cuda_graphs.LARGE: 1}


def test_graphs_are_bounded_and_the_oldest_has_to_repeat_again(engine, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    child = Child(engine)
    several = [step_program([(e.ABS, (4,))] * n) for n in range(4)]
    handle = make_weights(child)
    for program in several:
        handle, _ = repeat(child, program, handle, itertools.repeat(0.0), 7)
    assert engine.figures()["captured"] == 4 and engine.figures()["graphs"] == 2
    handle, _ = repeat(child, several[0], handle, itertools.repeat(0.0), RUNS)
    assert engine.figures()["captured"] == 4
    repeat(child, several[0], handle, itertools.repeat(0.0), 1)
    assert engine.figures()["captured"] == 5


def test_a_graph_goes_with_its_program_and_with_its_child(engine, monkeypatch):
    first, second = Child(engine), Child(engine, slot=1)
    for child in (first, second):
        repeat(child, step_program(), make_weights(child), itertools.repeat(0.5), 7)
    assert engine.figures()["graphs"] == 2
    engine.forget(0)
    assert engine.figures()["graphs"] == 1
    Child(engine, slot=1, generation=2).run(make_seed(), numbers=(1,))
    assert engine.figures()["graphs"] == 0
    repeat(first, step_program(), make_weights(first), itertools.repeat(0.5), 7)
    monkeypatch.setattr(session, "MAX_COMPILED", 1)
    make_weights(first)
    first.run(step_program([(e.ABS, (4,))]), (make_weights(first),), (0.5,))
    assert engine.figures()["graphs"] == 0 and engine.figures()["graph_bytes"] == 0


def test_children_of_one_program_have_graphs_of_their_own(engine):
    children = [Child(engine, slot=slot) for slot in range(3)]
    handles = [make_weights(child, float(n)) for n, child in enumerate(children)]
    for _ in range(9):
        for n, child in enumerate(children):
            (handles[n],), _ = child.run(step_program(), (handles[n],), (0.25,))
    assert engine.figures()["graphs"] == 3 and engine.figures()["fallbacks"] == {}
    for n, handle in enumerate(handles):
        assert float(engine.tenant(n, 1).arrays[handle][0, 0]) == n - 9 * 0.25


def test_a_graph_holds_no_array_that_a_child_may_let_go_of(engine):
    passed = steps_of(
        [BIG, BIG],
        [(e.MUL, (0, 0)), (e.ABS, (2,)), (e.NEG, (3,)), (e.SUB, (1, 4))],
        kept=(0, 4, 5),
        read=(0, 4),
        donated=(1,),
    )
    child = Child(engine)
    first, second = make_weights(child), make_weights(child, 2.0)
    frees = ()
    for turn in range(7):
        kept, read = child.run(passed, (first, second), frees=frees)
        *frees, second = kept
        assert [float(one[0, 0]) for one in read] == [1, -1]
        assert float(engine.tenant(0, 1).arrays[second][0, 0]) == 3 + turn
    assert engine.figures()["graphs"] == 1
    (captured,) = [one.captured for one in engine._graphs._graphs]
    theirs = {memory(one) for one in engine.tenant(0, 1).arrays.values()}
    held = [one for part in captured.results for one in part if one is not None]
    assert held and not theirs & {memory(one) for one in held}


def test_an_array_that_lies_otherwise_in_the_same_memory_is_not_taken_for_the_one_before(engine):
    program = steps_of(
        [BIG],
        [(e.NEG, (0,)), (e.ABS, (1,)), (shaping.SLICE, (0,), ((0, 0), (1, 20), (1, 1)))],
        read=(2, 3),
    )
    child = Child(engine)
    handle = make_weights(child)
    held = engine.tenant(0, 1).arrays
    held[handle] = torch.arange(400.0).view(20, 20)
    for _ in range(RUNS + 2):
        _, (_, row) = child.run(program, (handle,))
    assert row[0, 5] == 5 and engine.figures()["replays"] > 0
    held[handle] = held[handle].t()
    _, (_, row) = child.run(program, (handle,))
    assert row[0, 5] == 100


def test_operations_of_sixteen_bits_with_a_moving_number_are_done_in_float32():
    seen = []

    def kernel(*inputs):
        seen.extend(one.dtype for one in inputs)
        return inputs[0] * inputs[1]

    op = type(e.MUL)("probe", e.MUL.rule, numpy=e.MUL.numpy, torch=lambda *_: kernel)
    half = spec_of(bfloat16, (2,))
    made = cuda_graphs.of_arrays(op).torch(torch, (half, NUMBER), (), half)
    x, out = torch.tensor([1.0, 3.0]).bfloat16(), torch.zeros(2).bfloat16()
    assert made(x, torch.tensor(0.1), out=out) is out
    assert seen == [torch.float32, torch.float32]
    assert torch.equal(out, (x.float() * 0.1).bfloat16())


def test_numbers_of_sixteen_bits_are_not_rounded_to_them(engine):
    number = spec_of(bfloat16, ())
    program = steps_of(
        [spec_of(bfloat16, (20, 20))],
        [(e.NEG, (0,)), (TABLE["add_scaled"], (0, 2, 1)), (e.ABS, (3,)), (e.MUL, (4, 1))],
        read=(5,),
        numbers=(number,),
    )
    threes = steps_of([], [(TABLE["full"], (0,), (bfloat16, (20, 20)))], (1,), (), (), [number])
    child = Child(engine)
    (handle,), _ = child.run(threes, numbers=(3.0,))
    for n in range(9):
        alpha = 0.1 + n / 1000
        _, (read,) = child.run(program, (handle,), (alpha,))
        if n >= RUNS - capture.WARM_UPS:
            once = torch.tensor(3 - 3 * alpha).bfloat16()  # each operation rounds once
            assert read[0, 0] == (once.float() * alpha).bfloat16()
    assert engine.figures()["replays"] > 0


@settings(slow_machine, max_examples=30)
@given(programs())
def test_any_program_gives_equal_results_when_it_is_replayed(drawn):
    program, seed = drawn
    program = decode(program.encode())
    if len(program.steps) < cuda_graphs.LEAST_STEPS:
        return
    backend = StandIn()
    engine = session.Engine(backend)
    ready = session.Ready(program, backend, 0, 0)
    host = backends.TorchBackend("cpu")
    plain_run = compiled(program, host, Pool(host), cuda_graphs.as_one(ALL_OFF))
    ready.compiled = compiled(program, backend, Pool(backend), cuda_graphs.as_one(Options()))
    held = []
    for turn in range(RUNS + 3):
        arrays = arrays_for(program, seed + turn % 3, backend)
        numbers = tuple(
            [0.5 + at + (turn if turn % 2 else 0) for at, _ in enumerate(program.numbers)]
        )
        packed = ready.numbers.pack(*numbers)
        with backend.running():
            want = plain_run.run([one.clone() for one in arrays], numbers)
            want = [plain(one) for part in want for one in part]
            given_arrays = list(arrays)
            got = engine._graphs.run((0, 1), ready, given_arrays, numbers, packed)
        held.append(([one for part in got for one in part], want))
    # What earlier runs gave is as it was.
    for got, want in held:
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(plain(ours), theirs, rtol=1e-5, atol=1e-6)
    assert not engine.figures()["fallbacks"]


# ---- CUDA, as far as it can be tried without one -------------------------------------------------


class Notes:
    """Stands for torch, and notes what is asked of its CUDA."""

    def __init__(self, fails=False):
        self.said = []
        said = self.said
        self.now = "main"

        class Stream:
            def __init__(self, name):
                self.name = name

            def wait_stream(self, other):
                said.append(f"{self.name} waits for {other.name}")

        streams = {"main": Stream("main"), "side": Stream("side")}
        outer = self

        class on:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                self.before, outer.now = outer.now, self.stream.name

            def __exit__(self, *error):
                outer.now = self.before

        class CUDAGraph:
            def register_generator_state(self, generator):
                said.append(f"register {generator}")

            def replay(self):
                said.append("replay")

        class graph:
            def __init__(self, made, pool, stream, capture_error_mode):
                said.append(f"capture into {pool} on {stream.name}, {capture_error_mode}")
                self.stream = stream

            def __enter__(self):
                outer.now = self.stream.name

            def __exit__(self, *error):
                if fails:
                    raise RuntimeError("the capture was invalidated")  # and the stream stays
                outer.now = "main"

        pools = itertools.count()

        class cuda:
            pass

        cuda.CUDAGraph, cuda.graph, cuda.stream = CUDAGraph, graph, on
        cuda.Stream = staticmethod(lambda device: streams["side"])
        cuda.current_stream = staticmethod(lambda device: streams[outer.now])
        cuda.set_stream = staticmethod(lambda stream: setattr(outer, "now", stream.name))
        cuda.graph_pool_handle = staticmethod(lambda: f"pool {next(pools)}")
        cuda.current_device = staticmethod(lambda: 0)
        self.cuda = cuda

        class _C:
            @staticmethod
            def _cuda_endAllocateToPool(index, pool):
                said.append(f"leave {pool}")

        self._C = _C


def test_a_warm_up_is_in_order_with_what_comes_before_and_after_it():
    torch_like = Notes()
    driver = CudaDriver(torch_like, "cuda:0")
    assert driver.beside(lambda: torch_like.said.append(f"work on {torch_like.now}") or 7) == 7
    assert torch_like.said == ["side waits for main", "work on side", "main waits for side"]
    assert torch_like.now == "main"


def test_captures_share_a_pool_and_a_stream_and_know_their_generators():
    torch_like = Notes()
    driver = CudaDriver(torch_like, "cuda:0")
    replays = [driver.capture(lambda: "out", ["g"]) for _ in range(2)]
    assert [results for _, results in replays] == ["out", "out"]
    assert torch_like.said == ["register g", "capture into pool 0 on side, thread_local"] * 2
    replays[0][0]()
    assert torch_like.said[-1] == "replay"


def test_after_a_failed_capture_work_goes_on_where_it_did_and_in_another_pool():
    torch_like = Notes(fails=True)
    driver = CudaDriver(torch_like, "cuda:0")
    for pool in ("pool 0", "pool 1"):
        with pytest.raises(RuntimeError, match="invalidated"):
            driver.capture(lambda: 1 / 0, [])
        assert torch_like.now == "main"
        assert torch_like.said[-2:] == [
            f"capture into {pool} on side, thread_local",
            f"leave {pool}",
        ]


def test_torch_has_what_the_driver_asks_for():
    import inspect

    taken = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"pool", "stream", "capture_error_mode"} <= set(taken)
    for name in ("CUDAGraph", "graph_pool_handle", "current_stream", "set_stream", "Stream"):
        assert callable(getattr(torch.cuda, name))
    assert callable(torch._foreach_copy_)
    assert "_cuda_endAllocateToPool" in dir(torch._C)
