"""An actor balances poles on carts, and a learner makes it better: advantage actor-critic.

    python examples/twins/beside.py cartpole

The carts are those of Barto, Sutton and Anderson (1983), with the numbers that Gymnasium's
CartPole-v1 has, eight at a time. Nothing but the imports names shmgpu.
"""

import numpy as np

import shmgpu as torch
from shmgpu import nn, optim
from shmgpu.nn import functional as F

STEPS, CARTS, MOMENTS, DISCOUNT, RATE = 100, 8, 32, 0.99, 1e-2


class Carts:
    """Position, speed, angle and its speed of each; one that fell, or came far, begins anew."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (CARTS, 4))
        self.age = np.zeros(CARTS, int)

    def move(self, actions):
        """Push each to the left (0) or the right (1): the rewards, and which have ended."""
        _, speed, angle, turn = self.state.T
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (np.where(actions, 10.0, -10.0) + 0.05 * turn**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * bend * cosine / 1.1
        self.state = self.state + 0.02 * np.stack([speed, pull, turn, bend], 1)
        self.age += 1
        ended = (abs(self.state[:, (0, 2)]) > (2.4, 0.2095)).any(1) | (self.age >= 500)
        ages = self.age[ended]
        self.state[ended] = self.rng.uniform(-0.05, 0.05, (ended.sum(), 4))
        self.age[ended] = 0
        return ended, ages


class Player(nn.Module):
    """(count, 4) of what is seen -> (count, 2) scores of pushes, (count,) values."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.scores = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        return self.scores(x), self.value(x).squeeze(-1)


def make():
    return Player()


@torch.no_grad()
def act(model, carts, rng):
    """Some moments of all carts: what was seen, what was done, returns, and ages of what ended."""
    seen, done, ends, ages = [], [], [], []
    for _ in range(MOMENTS):
        seen.append(carts.state.astype("float32"))
        left = model(torch.from_numpy(seen[-1]))[0].softmax(-1)[:, 0]
        done.append((rng.random(CARTS) > left.numpy()).astype("int64"))
        ended, of = carts.move(done[-1])
        ends.append(ended)
        ages.extend(of)
    value = model(torch.from_numpy(carts.state.astype("float32")))[1].numpy()
    returns = np.zeros((MOMENTS, CARTS), "float32")
    for moment in reversed(range(MOMENTS)):
        value = 1 - ends[moment] + DISCOUNT * value * ~ends[moment]
        returns[moment] = value
    return np.concatenate(seen), np.concatenate(done), returns.reshape(-1), ages


def train(model, steps):
    """The loss of each step of learning."""
    carts, rng = Carts(0), np.random.default_rng(1)
    optimiser = optim.Adam(model.parameters(), lr=RATE)
    for _ in range(steps):
        seen, done, target = map(torch.from_numpy, act(model, carts, rng)[:3])
        scores, values = model(seen)
        chances = F.log_softmax(scores, dim=-1)
        chosen = chances.gather(1, done.unsqueeze(1)).squeeze(1)
        advantage = (target - values).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = F.smooth_l1_loss(values, target) - (chosen * advantage).mean() - 0.01 * entropy
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()
        yield loss.item()


def score(model):
    """How long poles stay up, in moments: the mean of the last ones."""
    carts, rng, ages = Carts(2), np.random.default_rng(3), []
    while len(ages) < 16:
        ages.extend(act(model, carts, rng)[3])
    return float(np.mean(ages))
