"""Run a program of this folder beside its twin in PyTorch: the same file with other imports.

    python examples/twins/beside.py gpt|digits|cartpole [--steps 40] [--no-speed]

Both begin with the same weights and see the same data, and dropout is given the same numbers, so
their losses are the same step for step, but for rounding. Then each runs for its speed, with the
settings that a user has who sets nothing.
"""

import argparse
import contextlib
import itertools
import pathlib
import re
import time
import types
from unittest import mock

import torch

import shmgpu

FOLDER = pathlib.Path(__file__).parent
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "beside")
IMPORTS = re.compile(r"^(import|from) shmgpu\b", re.M)
SEED = 7


def source_of(name, is_twin):
    """The program's text; its twin's has other imports, and nothing else that is other."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return IMPORTS.sub(r"\1 torch", text) if is_twin else text


def load(name, is_twin=False):
    module = types.ModuleType(f"{name}_in_torch" if is_twin else name)
    exec(compile(source_of(name, is_twin), str(FOLDER / f"{name}.py"), "exec"), module.__dict__)
    return module


def alike(program, twin):
    """A model of each, with the same weights."""
    shmgpu.manual_seed(SEED)
    ours, theirs = program.make(), twin.make()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    return ours, theirs


@contextlib.contextmanager
def same_draws():
    """Dropout in PyTorch is given the numbers that it is given here."""
    drawn = shmgpu.Generator().manual_seed(SEED)
    shmgpu.manual_seed(SEED)

    def dropout(input, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return input
        kept = shmgpu.rand(input.shape, generator=drawn).numpy() >= p
        return input * torch.tensor(kept, dtype=input.dtype) / (1 - p)

    with mock.patch.object(torch.nn.functional, "dropout", dropout):
        yield


def checked(program, twin, steps):
    """The losses of both, step by step, and the two models at the end."""
    ours, theirs = alike(program, twin)
    with same_draws():
        pairs = list(zip(program.train(ours, steps), twin.train(theirs, steps), strict=True))
    return pairs, ours, theirs


def timed(program, twin, steps, rounds=4):
    """Steps a second of each, in turns: the better half of the rounds."""
    ours, theirs = alike(program, twin)
    count = steps * (rounds + 1)
    runs = [(program.train(ours, count), []), (twin.train(theirs, count), [])]
    for number, (run, times) in itertools.product(range(rounds + 1), runs):
        began = time.perf_counter()
        for _ in range(steps):
            next(run)
        shmgpu.cuda.synchronize()
        if number:  # the first is for what is planned and compiled once
            times.append(time.perf_counter() - began)
    return [steps * (rounds // 2) / sum(sorted(times)[: rounds // 2]) for _, times in runs]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, help="those that the program itself says unless given")
    parser.add_argument("--no-speed", action="store_true")
    options = parser.parse_args()
    program, twin = load(options.program), load(options.program, is_twin=True)
    steps = options.steps or program.STEPS
    with shmgpu.init(helpers=1):
        pairs, ours, theirs = checked(program, twin, steps)
        apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)
        print(f"loss {pairs[0][0]:.3f} -> {pairs[-1][0]:.3f}")
        print(f"PyTorch's own losses: {apart:.1e} apart at most in {steps} steps")
        if hasattr(program, "score"):
            print(f"score {program.score(ours):.3f}, PyTorch's {twin.score(theirs):.3f}")
        if not options.no_speed:
            mine, other = timed(program, twin, max(steps // 4, 5))
            print(f"{mine:.1f} steps a second, {mine / other:.2f} times PyTorch's {other:.1f}")


if __name__ == "__main__":
    main()
