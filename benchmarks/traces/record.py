"""Record the allocation traces that benchmarks/c/allocator.c replays.

Each trace is what PyTorch's CPU allocator was asked for while a small real program ran, from
the making of its model to the end: parameters, gradients, activations, optimiser state and the
temporaries inside operations. The profiler reports every allocation and every free with its
address; ties in time keep the profiler's order.

One event a line: ``+BYTES`` allocates, ``-AGE`` frees the block that was allocated AGE
allocations ago (1 is the latest). Lines that begin with ``#`` say what was recorded. Blocks
still alive at the end are the replayer's to free.

    python benchmarks/traces/record.py [NAME...]      record (needs torch and scikit-learn)
    python benchmarks/traces/record.py --describe     print the distribution of what is kept
"""

from __future__ import annotations

import collections
import pathlib
import random
import statistics
import sys
from collections.abc import Callable, Iterator

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


def as_lines(events: list[tuple[int, int]]) -> Iterator[str]:
    """Turn events into lines; frees of what was allocated before the recording are left out."""
    born: dict[int, int] = {}
    count = 0
    for address, size in events:
        if size > 0:
            if address in born:
                raise ValueError("the profiler lost a free: record again")
            born[address] = count
            count += 1
            yield f"+{size}"
        elif size < 0 and address in born:
            yield f"-{count - born.pop(address)}"


def record(name: str) -> None:
    """Record one program into NAME.trace, cut after MAX_TRACE_BYTES."""
    program = PROGRAMS[name]
    program()  # what PyTorch sets up once for itself is not the program's
    text = [f"# {name}: {program.__doc__}"]
    used = len(text[0]) + 1
    for line in as_lines(memory_events(program)):
        used += len(line) + 1
        if used > MAX_TRACE_BYTES:
            break
        text.append(line)
    (HERE / f"{name}.trace").write_text("\n".join(text) + "\n")


def describe(path: pathlib.Path) -> str:
    """Return a Markdown table row: counts, sizes' quantiles, lifetimes, peak live bytes."""
    sizes: list[int] = []
    dead: set[int] = set()
    lifetimes: list[int] = []
    live = peak = 0
    for line in path.read_text().splitlines():
        if line.startswith("+"):
            sizes.append(int(line[1:]))
            live += sizes[-1]
            peak = max(peak, live)
        elif line.startswith("-"):
            block = len(sizes) - int(line[1:])
            dead.add(block)
            live -= sizes[block]
            lifetimes.append(int(line[1:]))
    size = statistics.quantiles(sizes, n=100, method="inclusive")
    life = statistics.quantiles(lifetimes, n=100, method="inclusive")
    cells = [
        path.stem, len(sizes), len(dead), len(set(sizes)), min(sizes), round(size[24]),
        round(size[49]), round(size[74]), round(size[98]), max(sizes),
        f"{life[49]:.0f} / {life[89]:.0f} / {max(lifetimes)}", f"{peak / 2**20:.2f} MiB",
    ]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main(arguments: list[str]) -> None:
    """Record or describe, as the module's docstring says."""
    if arguments != ["--describe"]:
        for name in arguments or PROGRAMS:
            record(name)
    print(
        "| trace | allocations | frees | distinct sizes | min | 25 % | median | 75 % | 99 % "
        "| max (bytes) | lifetime p50 / p90 / max (allocations) | peak live |"
    )
    print("|" + "---|" * 12)
    for path in sorted(HERE.glob("*.trace")):
        print(describe(path))


if __name__ == "__main__":
    main(sys.argv[1:])
