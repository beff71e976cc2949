"""Actors balance poles with a network that a learner keeps making better: PPO on CartPole.

    pip install gymnasium
    python examples/actor_learner.py

32 actors each step two groups of carts in turn: while one group's states are with the network, the
other group moves. Two helpers answer all of them, in batches. A third one learns from what actors
hand in, and whoever hands in the last of a batch has it learned and broadcasts the new weights:
each helper takes them over in one order with the calls, and so does one that is started later.
"""

from __future__ import annotations

import argparse
from collections import deque

import gymnasium
import numpy as np
import torch
from torch import nn

import shmgpu

CARTS = 8
MOMENTS = 16
BATCH = 8192  # moments of carts that are learned from at once
DISCOUNT, SMOOTHING, CLIP, EPOCHS, PIECE, RATE = 0.99, 0.95, 0.2, 8, 1024, 2e-3
GOAL = 475.0  # moments that a pole stands, on average over the last hundred: Gymnasium's own


class Policy(nn.Module):
    """(count, 4) states -> (count, 2) scores of the two pushes, (count,) values."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, states):
        return self.scores(states), self.value(states)[:, 0]


class Learner:
    """What the learning helper has besides the network."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.optimiser = torch.optim.Adam(policy.parameters(), RATE)
        self.parts: list[list[torch.Tensor]] = []  # handed in, not learned from yet
        self.lengths: deque[float] = deque(maxlen=100)  # of the last poles that fell
        self.curve: list[tuple[float, float]] = []  # moments so far, mean length
        self.moments = 0
        self.is_learning = False
        self.is_over = False

    def mean_length(self) -> float:
        return float(np.mean(self.lengths)) if self.lengths else 0.0


def load(helper):  # runs once in each helper
    torch.manual_seed(1)
    policy = Policy().to(helper.device)
    return Learner(policy) if helper.pool == "learner" else policy.eval()


# ---- what actors ask of the two helpers that act -----------------------------------------------


@shmgpu.function(batch=shmgpu.Batch(max_size=512), pool="actors")
def act(helper, states):
    with torch.inference_mode():
        return helper.session(states)


@shmgpu.function(pool="actors")
def set_weights(helper, weights):
    helper.session.load_state_dict(weights)


# ---- and of the one that learns ----------------------------------------------------------------


@shmgpu.function(pool="learner")
def hand_in(helper, states, pushes, chances, returns, advantages, lengths):
    """Whether the caller is the one who is to have it learned, and whether all is over."""
    learner = helper.session
    # Copies: arguments are the caller's memory, and it goes on.
    learner.parts.append([one.clone() for one in (states, pushes, chances, returns, advantages)])
    learner.lengths.extend(lengths.tolist())
    learner.moments += len(states)
    is_full = sum(len(part[0]) for part in learner.parts) >= BATCH
    is_asked = is_full and not learner.is_learning and not learner.is_over
    learner.is_learning |= is_asked
    return is_asked, learner.is_over


@shmgpu.function(pool="learner")
def learn(helper, most_moments):
    """The weights after all that was handed in.

    By PPO: Schulman et al., "Proximal Policy Optimization Algorithms", 2017.
    """
    learner = helper.session
    states, pushes, old, returns, advantages = map(torch.cat, zip(*learner.parts, strict=True))
    learner.parts = []
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(EPOCHS):
        for piece in torch.randperm(len(states)).split(PIECE):
            scores, values = learner.policy(states[piece])
            chances = scores.log_softmax(1).gather(1, pushes[piece, None])[:, 0]
            ratio = (chances - old[piece]).exp()
            gain = torch.min(
                ratio * advantages[piece], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[piece]
            )
            entropy = torch.distributions.Categorical(logits=scores).entropy()
            loss = (values - returns[piece]).pow(2).mean() - gain.mean() - 0.01 * entropy.mean()
            learner.optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learner.policy.parameters(), 0.5)
            learner.optimiser.step()
    learner.curve.append((learner.moments, learner.mean_length()))
    learner.is_over = learner.mean_length() >= GOAL or learner.moments >= most_moments
    learner.is_learning = False
    return learner.policy.state_dict()


@shmgpu.function(pool="learner")
def curve(helper):
    return torch.tensor(helper.session.curve, dtype=torch.float64)


# ---- an actor ----------------------------------------------------------------------------------


class Carts:
    """A group: what was seen and done at each of the last moments."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make_vec(
            "CartPole-v1", num_envs=CARTS, vectorization_mode="vector_entry_point"
        )
        self.states = shmgpu.arena.empty((CARTS, 4), "float32")  # where helpers can read it
        self.states[:] = self.env.reset(seed=seed)[0]
        self.ages = np.zeros(CARTS)
        self.begins = np.zeros(CARTS, bool)  # the next move only puts a new cart there
        self.rng = np.random.default_rng(seed)
        self.answer = act.submit(self.states)
        self.forget()

    def forget(self) -> None:
        self.kept: list[tuple[np.ndarray, ...]] = []
        self.lengths: list[float] = []

    def move(self) -> None:
        """Take what the network says of the present states, and ask about the next."""
        scores, values = self.answer.result()
        left = 1 / (1 + np.exp(scores[:, 1] - scores[:, 0]))
        pushes = (self.rng.random(CARTS) > left).astype("int64")
        chances = np.log(np.where(pushes == 0, left, 1 - left))
        seen = self.states.copy()
        states, _, fell, late, _ = self.env.step(pushes)
        is_real, ended = ~self.begins, fell | late
        self.kept.append((seen, pushes, chances, values.copy(), ended, is_real))
        self.ages += is_real
        self.lengths += self.ages[ended].tolist()
        self.ages[ended] = 0
        self.begins = ended
        self.states[:] = states
        self.answer = act.submit(self.states)

    def handed_in(self) -> list[np.ndarray]:
        """States, pushes, their log chances, returns and advantages; lengths of poles that fell."""
        after = self.answer.result()[1]
        states, pushes, chances, values, ended, is_real = map(
            np.stack, zip(*self.kept, strict=True)
        )
        advantages, advantage = np.zeros_like(values), np.zeros(CARTS)
        for moment in reversed(range(len(values))):  # generalised advantage estimation
            goes_on = ~ended[moment]
            surprise = 1 + DISCOUNT * after * goes_on - values[moment]
            advantage = surprise + DISCOUNT * SMOOTHING * advantage * goes_on
            advantages[moment], after = advantage, values[moment]
        found = (states, pushes, chances, advantages + values, advantages)
        kinds = ("float32", "int64", "float32", "float32", "float32")
        arrays = [one[is_real].astype(kind) for one, kind in zip(found, kinds, strict=True)]
        return [*arrays, np.array(self.lengths, "float32")]


def actor(rank, most_moments):  # runs in each child
    groups = [Carts(2 * rank), Carts(2 * rank + 1)]
    is_over = False
    while not is_over:
        for _ in range(MOMENTS):
            for group in groups:  # the other one's states are with the network meanwhile
                group.move()
        for group in groups:
            is_asked, is_over = hand_in(*group.handed_in())
            group.forget()
            if is_asked:
                set_weights.broadcast(learn(most_moments))
    return np.array(curve() if rank == 0 else [])


# ---- the picture -------------------------------------------------------------------------------


def draw(found: np.ndarray) -> str:
    """The curve in letters: how long poles stood, by moments so far."""
    columns, rows = 60, 10
    moments, lengths = found.T
    at = np.interp(np.linspace(0, moments[-1], columns), moments, lengths)
    lines = []
    for row in range(rows, 0, -1):
        level = 500 * (row - 0.5) / rows
        lines.append(f"{500 * row // rows:4d} |" + "".join("*" if y >= level else " " for y in at))
    return "\n".join([*lines, "   0 +" + "-" * columns, f"      0{moments[-1]:>{columns - 1},.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=32)
    parser.add_argument("--most-moments", type=int, default=2_000_000)
    options = parser.parse_args()
    results = shmgpu.launch(
        actor,
        args=(options.most_moments,),
        children=options.actors,
        helpers={"actors": 2, "learner": 1},
        session=load,
    )
    found = results[0]
    print(draw(found))
    print(f"{len(found)} times new weights, {found[-1, 0]:,.0f} moments: {found[-1, 1]:.0f} of 500")


if __name__ == "__main__":
    main()
