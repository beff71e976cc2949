"""A GPT learns to write Python, character by character: dropout, AdamW, a schedule, clipping.

    python examples/twins/beside.py gpt

The text is the standard library's own sources. Nothing but the imports names shmgpu.
"""

import math
import pathlib
import sysconfig

import numpy as np

import shmgpu as torch
from shmgpu import nn, optim
from shmgpu.nn import functional as F

WIDTH, HEADS, LAYERS, PLACES, BATCH, DROPOUT = 64, 4, 2, 64, 16, 0.1
STEPS, WARM, ALL = 40, 20, 400  # those tried; up to the greatest rate, and down to its tenth
MODULES = ("argparse", "ast", "functools", "inspect", "shutil", "textwrap", "typing")
FOLDER = pathlib.Path(sysconfig.get_paths()["stdlib"])
TEXT = "".join((FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
CHARACTERS, NUMBERS = np.unique(list(TEXT), return_inverse=True)


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
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x):
        count, places, _ = x.shape
        parts = self.attention(self.before(x)).split(WIDTH, dim=2)
        query, key, value = (
            one.view(count, places, HEADS, WIDTH // HEADS).transpose(1, 2) for one in parts
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(count, places, WIDTH)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.between(x)))))


class GPT(nn.Module):
    """(count, places) of characters -> (count, places, characters) of scores for the next."""

    def __init__(self, characters):
        super().__init__()
        self.what = nn.Embedding(characters, WIDTH)
        self.where = nn.Embedding(PLACES, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, characters, bias=False)

    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.scores(self.last(self.blocks(self.drop(self.what(text) + self.where(places)))))


def make():
    return GPT(len(CHARACTERS))


def batches(text, steps, seed=0):
    """Stretches of the text, and the same one character later."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - PLACES - 1, BATCH)[:, None] + np.arange(PLACES)
        yield torch.tensor(text[starts]), torch.tensor(text[starts + 1])


def rate(step):
    """The share of the learning rate: up in a line, down in half a cosine."""
    down = 0.55 + 0.45 * math.cos(math.pi * min((step - WARM) / (ALL - WARM), 1))
    return (step + 1) / WARM if step < WARM else down


def train(model, steps):
    """The loss of each step."""
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in model.parameters() if one.dim() <= 1], "weight_decay": 0.0},
    ]
    optimiser = optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    schedule = optim.lr_scheduler.LambdaLR(optimiser, rate)
    model.train()
    for before, after in batches(NUMBERS, steps):
        scores = model(before)
        loss = F.cross_entropy(scores.view(-1, scores.size(-1)), after.view(-1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        yield loss.item()
