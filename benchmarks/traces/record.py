"""Record the allocation traces that benchmarks/c/allocator.c replays.

Each trace is what PyTorch's CPU allocator was asked for while a small real program ran, from
the making of its model to the end: parameters, gradients, activations, optimiser state and the
temporaries inside operations. The profiler reports every allocation and every free with its
address; ties in time keep the profiler's order.

    python -m benchmarks.traces.record [NAME...]      record (needs torch and scikit-learn)
    python -m benchmarks.traces.record --describe     print the distribution of what is kept
"""

from __future__ import annotations

import collections
import pathlib
import random
import sys
from collections.abc import Callable

from benchmarks.traces.form import Trace, table

HERE = pathlib.Path(__file__).resolve().parent
MAX_TRACE_BYTES = 300_000


def cnn_training() -> None:
    """Train a small convolutional network on the digits of scikit-learn, batch 64, Adam."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters())
    for _ in range(4):
        for batch in torch.randperm(len(images)).split(64):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimiser.step()


def transformer_training() -> None:
    """Train a causal transformer (4 layers, width 128) on sequences of changing length, AdamW."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    chooser = random.Random(0)
    width, vocabulary = 128, 256
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
    )
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(vocabulary, width),
            "position": nn.Embedding(128, width),
            "body": nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            "head": nn.Linear(width, vocabulary),
        }
    )
    optimiser = torch.optim.AdamW(model.parameters())
    for _ in range(16):
        length = chooser.randrange(32, 129)
        tokens = torch.randint(vocabulary, (8, length + 1))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = model["embed"](inputs) + model["position"](torch.arange(length))
        scores = model["head"](model["body"](hidden, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def batched_inference() -> None:
    """Serve 600 calls of 1 to 64 images; the caller keeps the last 16 requests and results."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    chooser = random.Random(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 100),
    ).eval()  # fmt: skip
    kept: collections.deque[tuple[torch.Tensor, ...]] = collections.deque(maxlen=16)
    with torch.inference_mode():
        for _ in range(600):
            rows = min(64, int(chooser.paretovariate(0.8)))
            images = torch.randint(0, 256, (rows, 3, 32, 32), dtype=torch.uint8)
            scores = model(images.float() / 255).softmax(dim=1)
            best = scores.topk(5)
            kept.append((images, scores, best.values, best.indices))


PROGRAMS: dict[str, Callable[[], None]] = {
    "cnn_training": cnn_training,
    "transformer_training": transformer_training,
    "batched_inference": batched_inference,
}


def memory_events(program: Callable[[], None]) -> list[tuple[int, int]]:
    """Run program; return its CPU allocations (address, bytes) and frees (address, -bytes)."""
    import torch
    from torch._C._profiler import _EventType
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program()
    events = []
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            events.append((event.start_time_ns, event.id, fields.ptr, fields.alloc_size))
    events.sort()
    return [(ptr, size) for _, _, ptr, size in events]


def text_of(about: str, events: list[tuple[int, int]]) -> str:
    """Turn events into a trace; frees of what was allocated before the recording are left out."""
    trace = Trace(about)
    used = len(about) + 3
    born: dict[int, int] = {}
    for address, size in events:
        if size > 0:
            if address in born:
                raise ValueError("the profiler lost a free: record again")
            born[address] = trace.allocate(size)
        elif size < 0 and address in born:
            trace.free(born.pop(address))
        else:
            continue
        used += len(trace.lines[-1]) + 1
        if used > MAX_TRACE_BYTES:
            trace.lines.pop()
            break
    return trace.text()


def record(name: str) -> None:
    """Record one program into NAME.trace, cut after MAX_TRACE_BYTES."""
    program = PROGRAMS[name]
    program()  # what PyTorch sets up once for itself is not the program's
    text = text_of(f"{name}: {program.__doc__}", memory_events(program))
    (HERE / f"{name}.trace").write_text(text)


def main(arguments: list[str]) -> None:
    """Record or describe, as the module's docstring says."""
    if arguments != ["--describe"]:
        for name in arguments or PROGRAMS:
            record(name)
    print(table(sorted(HERE.glob("*.trace"))))


if __name__ == "__main__":
    main(sys.argv[1:])
