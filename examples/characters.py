"""Train a small transformer to write Python, beside the same model in PyTorch.

    python examples/characters.py [--steps 100] [--alone] [PICTURE.png]

The text is the standard library's own sources. Both models begin with the same weights and see the
same text, so their losses are the same, step for step, but for rounding. ``--alone`` leaves out
PyTorch's.
"""

import argparse
import math
import pathlib
import sysconfig

import numpy as np

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.common.progress import ProgressBar

WIDTH, HEADS, LAYERS, PLACES, BATCH = 64, 4, 2, 64, 16
MODULES = ("argparse", "ast", "functools", "inspect", "pathlib", "textwrap", "typing")


class Block(nn.Module):
    """What each place takes from those before it, and what it makes of that."""

    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        count, places, _ = x.shape
        parts = self.attention(self.before(x)).reshape(count, places, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.permute(0, 2, 1, 3).reshape(count, places, WIDTH))
        return x + self.narrow(nn.gelu(self.wide(self.between(x))))


class Transformer(nn.Module):
    """(count, places) of characters -> (count, places, characters) of scores for the next."""

    def __init__(self, characters):
        super().__init__()
        self.what = nn.Embedding(characters, WIDTH)
        self.where = nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, characters)

    def forward(self, text):
        x = self.what(text) + self.where(gt.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.scores(self.last(x))


def torch_twin(characters):
    """The same model in PyTorch, parameters of the same names."""
    import torch
    from torch.nn import functional

    class TorchBlock(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before = torch.nn.LayerNorm(WIDTH)
            self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.out = torch.nn.Linear(WIDTH, WIDTH)
            self.between = torch.nn.LayerNorm(WIDTH)
            self.wide = torch.nn.Linear(WIDTH, 4 * WIDTH)
            self.narrow = torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            count, places, _ = x.shape
            parts = self.attention(self.before(x)).reshape(count, places, 3, HEADS, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(seen.permute(0, 2, 1, 3).reshape(count, places, WIDTH))
            return x + self.narrow(functional.gelu(self.wide(self.between(x))))

    class TorchTransformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.what = torch.nn.Embedding(characters, WIDTH)
            self.where = torch.nn.Embedding(PLACES, WIDTH)
            self.blocks = torch.nn.ModuleList(TorchBlock() for _ in range(LAYERS))
            self.last = torch.nn.LayerNorm(WIDTH)
            self.scores = torch.nn.Linear(WIDTH, characters)

        def forward(self, text):
            x = self.what(text) + self.where(torch.arange(text.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.scores(self.last(x))

    return TorchTransformer()


def load_text():
    """The text as numbers, and how many different characters it has."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
    characters = sorted(set(text))
    number = {character: index for index, character in enumerate(characters)}
    return np.array([number[c] for c in text], np.int64), len(characters)


def batches(text, steps):
    """Stretches of the text, and the same one character later."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - PLACES - 1, BATCH)
        yield (
            np.stack([text[s : s + PLACES] for s in starts]),
            np.stack([text[s + 1 : s + 1 + PLACES] for s in starts]),
        )


def train(model, loss_of, step_of, tensor, batches):
    for text, following in batches:
        scores = model(tensor(text))
        loss = loss_of(scores.reshape(-1, scores.shape[-1]), tensor(following.reshape(-1)))
        step_of.zero_grad()
        loss.backward()
        step_of.step()
        yield loss.item()


def run(steps, alone=False, progress=None):
    """The losses of our model, and of PyTorch's, step by step."""
    text, characters = load_text()
    gt.manual_seed(0)
    ours = Transformer(characters)
    losses, theirs = [], []
    runs = [train(ours, nn.cross_entropy, optim.AdamW(ours.parameters(), lr=1e-3), gt.tensor,
                  batches(text, steps))]  # fmt: skip
    if not alone:
        import torch

        torch.set_num_threads(1)  # the helper computes in turn with it: more would wait for cores
        twin = torch_twin(characters)
        twin.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
        runs.append(
            train(
                twin,
                torch.nn.functional.cross_entropy,
                torch.optim.AdamW(twin.parameters(), lr=1e-3),
                torch.from_numpy,
                batches(text, steps),
            )
        )
    with ProgressBar(steps, "training", "steps", progress) as bar:
        for each in zip(*runs, strict=True):
            losses.append(each[0])
            theirs.append(each[-1])
            bar.update()
    return losses, [] if alone else theirs


def draw(path, losses, theirs):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot(losses, label="shmgpu")
    if theirs:
        axes.plot(theirs, linestyle="--", label="PyTorch in process")
    axes.set(xlabel="step", ylabel="loss, nats a character")
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("picture", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    with gt.init(helpers=1, devices=["cpu"]):
        losses, theirs = run(options.steps, options.alone)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} nats a character "
          f"({losses[-1] / math.log(2):.2f} bits)")  # fmt: skip
    if theirs:
        apart = max(abs(a - b) / b for a, b in zip(losses, theirs, strict=True))
        print(f"PyTorch's own losses: {apart:.1e} apart at most")
    if options.picture:
        draw(options.picture, losses, theirs)


if __name__ == "__main__":
    main()
