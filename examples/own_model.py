"""Serve a model from a file: the one you bring, or a small one that this program makes.

    python examples/own_model.py                                     # makes and serves a model
    python examples/own_model.py model.pt2 --shape 3,224,224         # serves yours
    python examples/own_model.py model.pt2 --shape 64 --devices cuda:0 --helpers 2

The file is what `torch.export.save` wrote, with a batch axis that may have any length and float32
rows of --shape. To serve a model class with a state dict instead, change `load` alone.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

import shmgpu

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", nargs="?", type=pathlib.Path, help="a .pt2 file")
parser.add_argument("--shape", default="64", help="of one row, such as 3,224,224")
parser.add_argument("--devices", help='"cpu", "cuda:0" ...: the GPUs there are, else the CPU')
parser.add_argument("--children", type=int, default=8)
parser.add_argument("--helpers", type=int, default=2)
parser.add_argument("--calls", type=int, default=50, help="of each child")
parser.add_argument("--make", action="store_true", help="only write a small model there")


def make(path):
    layers = [torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        torch.nn.Sequential(*layers).eval(), (torch.zeros(2, 64),), dynamic_shapes=({0: rows},)
    )
    torch.export.save(program, path)


def load_from(path, shape):
    """A session function: it runs once in each helper, after the fork, on the helper's device."""

    def load(helper):
        program = torch.export.load(path)
        if helper.device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, helper.device)
        model = program.module()
        model(torch.zeros(1, *shape, device=helper.device))  # the slow first time is behind it
        return model

    return load


@shmgpu.function(batch=shmgpu.Batch(max_size=32))
def predict(helper, rows):
    with torch.inference_mode():
        return helper.session(rows)


def worker(rank, shape, calls):
    rows = shmgpu.arena.empty((1, *shape), "float32")
    chance = np.random.default_rng(rank)
    seconds = []
    for _ in range(calls):
        chance.random(dtype="float32", out=rows)  # your data goes here, straight into the arena
        started = time.perf_counter()
        scores = predict(rows)
        seconds.append(time.perf_counter() - started)
    assert len(scores) == len(rows)
    return seconds


def serve(options, path):
    shape = tuple(int(n) for n in options.shape.split(","))
    stats = {}
    seconds = shmgpu.launch(
        worker,
        children=options.children,
        helpers=options.helpers,
        session=load_from(path, shape),
        devices=options.devices,
        arena="16MiB",
        args=(shape, options.calls),
        stats_into=stats,
    )
    times = np.sort(np.concatenate(seconds)) * 1000
    print(f"{len(times)} calls, median {times[len(times) // 2]:.2f} ms, ", end="")
    print(f"p99 {times[int(0.99 * len(times))]:.2f} ms, mean batch {stats['mean_batch']:.1f}")


if __name__ == "__main__":
    options = parser.parse_args()
    if options.make:
        make(options.model)
    elif options.model:
        serve(options, options.model)
    else:
        with tempfile.TemporaryDirectory() as folder:
            # In a process of its own: what computes before a launch must not be forked.
            path = pathlib.Path(folder, "model.pt2")
            subprocess.run([sys.executable, __file__, str(path), "--make"], check=True)
            serve(options, path)
