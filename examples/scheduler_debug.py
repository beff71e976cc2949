"""Who was busy, and with what: four children train on two helpers, and the ticks are printed.

    python examples/scheduler_debug.py

The dispatcher notes every call of every child, so nothing is sampled and nothing slows down. Child
0 prints what it sees; each child also leaves a file, of which `shmgpu trace` makes a summary and,
with --png, a picture.
"""

import pathlib
import tempfile

import shmgpu as gt
from shmgpu import debug

CHILDREN, HELPERS, STEPS = 4, 2, 50


def work(rank):
    gt.manual_seed(rank)
    weight = gt.randn(64, 64, requires_grad=True)
    for _ in range(STEPS):
        loss = ((gt.randn(32, 64) @ weight).tanh() ** 2).mean()
        loss.backward()
        weight -= 0.1 * weight.grad
        weight.grad = None
        loss.item()
    if rank == 0:
        debug.print_worker_stats()
        busy = [share for tick in debug.get_tick_trace() for share in tick["busy"].values()]
        idle = sum(not share for share in busy)
        print(f"{len(busy)} ticks of helpers: {len(busy) - idle} busy, {idle} idle")
    return debug.verify()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        checked = gt.launch(
            work, children=CHILDREN, helpers=HELPERS, debug_dir=folder, tick_rate_ms=10
        )
        files = sorted(path.name for path in pathlib.Path(folder).iterdir())
        print(f"{sum(checked)} operations of {CHILDREN} children had their inputs at hand")
        print(f"{len(files)} files for shmgpu trace")
