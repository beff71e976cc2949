"""Players think ahead with a network that learns from their games: AlphaZero's way, Connect Four.

    python examples/tree_search.py

16 players play against themselves, each two groups of games in turn: a tree is searched for every
move, and while the leaves of one group's trees are with the network, the other group's are looked
for. What is sent of a leaf is 16 bytes. Two helpers answer all players, in batches; a third learns
from the games that are over, and its new weights are broadcast. After each lesson it plays a
hundred games without any search against a player who wins if one move does it, prevents that the
other does, and moves at random otherwise: the curve is how many it won.

Silver et al., "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play", 2018, is where the method comes from.
"""

from __future__ import annotations

import argparse
import math
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import shmgpu

WIDTH, HEIGHT = 7, 6
GAMES = 8  # in a group
THOUGHTS = 32  # leaves of each tree that are looked at before a move
EXPLORES, NOISE, OPENING = 1.5, 0.3, 8  # moves of the opening are drawn, later ones are the best
LESSON, KEPT, PIECE, RATE = 1024, 20_000, 256, 2e-3  # positions
GOAL = 60  # games of a hundred

# A column is seven bits, its lowest the bottom, and the seventh stays empty.
COLUMN = HEIGHT + 1
BOTTOM = [1 << COLUMN * column for column in range(WIDTH)]
FULL = [((1 << HEIGHT) - 1) << COLUMN * column for column in range(WIDTH)]
TOP = [1 << COLUMN * column + HEIGHT - 1 for column in range(WIDTH)]


# ---- the game: two numbers, the stones of who moves and those of the other ---------------------


def moves(mine: int, theirs: int) -> list[int]:
    """The columns that are not full."""
    taken = mine | theirs
    return [column for column in range(WIDTH) if not taken & TOP[column]]


def drop(mine: int, theirs: int, column: int) -> int:
    """My stones after one more falls into that column."""
    taken = mine | theirs
    return mine | ((taken + BOTTOM[column]) & FULL[column] & ~taken)


def has_won(stones: int) -> bool:
    """Whether four stand in a line: up, across, or along either diagonal."""
    for step in (1, COLUMN, COLUMN - 1, COLUMN + 1):
        pairs = stones & stones >> step
        if pairs & pairs >> 2 * step:
            return True
    return False


# ---- the network, in helpers -------------------------------------------------------------------


class Policy(nn.Module):
    """(count, 2) boards -> (count, 7) scores of the columns, (count,) values for who moves."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * WIDTH * COLUMN, 64),
            nn.ReLU(),
        )
        self.scores = nn.Linear(64, WIDTH)
        self.value = nn.Linear(64, 1)
        self.register_buffer("bits", torch.arange(WIDTH * COLUMN), persistent=False)

    def forward(self, boards):
        planes = (boards[:, :, None] >> self.bits & 1).float()
        seen = self.body(planes.reshape(-1, 2, WIDTH, COLUMN))
        return self.scores(seen), self.value(seen)[:, 0].tanh()


class Learner:
    """What the learning helper has besides the network."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.optimiser = torch.optim.Adam(policy.parameters(), RATE, weight_decay=1e-4)
        self.parts: deque[list[torch.Tensor]] = deque()  # handed in, the oldest first
        self.fresh = 0  # positions that came since the last lesson
        self.games = 0
        self.curve: list[tuple[int, int]] = [(0, won_of_a_hundred(policy))]
        self.is_learning = False
        self.is_over = False


def load(helper):  # runs once in each helper
    torch.manual_seed(1)
    policy = Policy().to(helper.device)
    return Learner(policy) if helper.pool == "learner" else policy.eval()


@shmgpu.function(batch=shmgpu.Batch(max_size=256), pool="players")
def judge(helper, boards):
    with torch.inference_mode():
        scores, values = helper.session(boards)
        return scores.softmax(1), values


@shmgpu.function(pool="players")
def set_weights(helper, weights):
    helper.session.load_state_dict(weights)


@shmgpu.function(pool="learner")
def hand_in(helper, boards, visits, outcomes, games):
    """Whether the caller is the one who is to have it learned, and whether all is over."""
    learner = helper.session
    # Copies: arguments are the caller's memory, and it goes on.
    learner.parts.append([one.clone() for one in (boards, visits, outcomes)])
    learner.fresh += len(boards)
    learner.games += games
    while sum(len(part[0]) for part in learner.parts) > KEPT:
        learner.parts.popleft()
    is_asked = learner.fresh >= LESSON and not learner.is_learning and not learner.is_over
    learner.is_learning |= is_asked
    return is_asked, learner.is_over


@shmgpu.function(pool="learner")
def learn(helper, most_games):
    """The weights after a lesson about the latest games."""
    learner = helper.session
    boards, visits, outcomes = map(torch.cat, zip(*learner.parts, strict=True))
    learner.fresh = 0
    for _ in range(2 * -(-LESSON // PIECE)):
        piece = torch.randint(len(boards), (PIECE,))
        scores, values = learner.policy(boards[piece])
        loss = F.cross_entropy(scores, visits[piece]) + F.mse_loss(values, outcomes[piece])
        learner.optimiser.zero_grad()
        loss.backward()
        learner.optimiser.step()
    learner.curve.append((learner.games, won_of_a_hundred(learner.policy)))
    won = [games for _, games in learner.curve[-2:]]
    learner.is_over = min(won) >= GOAL or learner.games >= most_games
    learner.is_learning = False
    return learner.policy.state_dict()


@shmgpu.function(pool="learner")
def curve(helper):
    return torch.tensor(helper.session.curve)


def won_of_a_hundred(policy: Policy) -> int:
    """Games of the network without search against a player who looks one move ahead."""
    rng = np.random.default_rng(0)
    games = [(0, 0) for _ in range(100)]  # the stones of who moves, and of the other
    won = 0
    for turn in range(WIDTH * HEIGHT):
        is_ours = turn % 2 == 0
        if is_ours:
            with torch.inference_mode():
                scores = policy(torch.tensor(games, dtype=torch.int64))[0].tolist()
        goes_on = []
        for number, (mine, theirs) in enumerate(games):
            if is_ours:
                column = max(moves(mine, theirs), key=scores[number].__getitem__)
            else:
                column = one_move_ahead(mine, theirs, rng)
            mine = drop(mine, theirs, column)
            if has_won(mine):
                won += is_ours
            else:
                goes_on.append((theirs, mine))
        games = goes_on
        if not games:
            break
    return won


def one_move_ahead(mine: int, theirs: int, rng: np.random.Generator) -> int:
    columns = moves(mine, theirs)
    for column in columns:
        if has_won(drop(mine, theirs, column)):
            return column
    for column in columns:
        if has_won(drop(theirs, mine, column)):
            return column
    return int(rng.choice(columns))


# ---- a player ----------------------------------------------------------------------------------


class Node:
    """A position that the network has judged: of each move its chance, visits and worth."""

    def __init__(self, columns: list[int], chances: list[float]) -> None:
        total = sum(chances[column] for column in columns) or 1.0
        self.columns = columns
        self.chances = [chances[column] / total for column in columns]
        self.visits = [0] * len(columns)
        self.worth = [0.0] * len(columns)  # the sum of what came of it, for who moves here
        self.after: list[Node | None] = [None] * len(columns)

    def best(self) -> int:
        """The place of the move to look at next."""
        spread = EXPLORES * math.sqrt(sum(self.visits) + 1)
        best, most = 0, -math.inf
        for place, visits in enumerate(self.visits):
            mean = self.worth[place] / visits if visits else 0.0
            value = mean + spread * self.chances[place] / (1 + visits)
            if value > most:
                best, most = place, value
        return best

    def add_noise(self, rng: np.random.Generator) -> None:
        noise = rng.dirichlet([1.0] * len(self.columns))
        self.chances = [
            (1 - NOISE) * chance + NOISE * float(more)
            for chance, more in zip(self.chances, noise, strict=True)
        ]


class Game:
    """One game, its tree, and what it teaches when it is over."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.begin()

    def begin(self) -> None:
        self.board = (0, 0)
        self.root: Node | None = None
        self.seen: list[tuple[tuple[int, int], list[float]]] = []

    def leaf(self) -> tuple[int, int]:
        """Walk down to a position that is not in the tree yet; some ends of games on the way."""
        while True:
            node, (mine, theirs) = self.root, self.board
            self.path: list[tuple[Node, int]] = []
            while node is not None:
                place = node.best()
                self.path.append((node, place))
                mine, theirs = theirs, drop(mine, theirs, node.columns[place])
                if has_won(theirs):
                    self.learn(-1.0)
                    break
                if not moves(mine, theirs):
                    self.learn(0.0)
                    break
                node = node.after[place]
            else:
                self.at = (mine, theirs)
                return self.at
            if sum(self.root.visits) >= THOUGHTS:  # nothing new is left to look at
                self.path, self.at = [], self.board
                return self.at

    def learn(self, value: float) -> None:
        """What a position is worth for who moves there, told to all moves that lead to it."""
        for node, place in reversed(self.path):
            value = -value
            node.visits[place] += 1
            node.worth[place] += value

    def hear(self, chances: list[float], value: float) -> None:
        """What the network says of the leaf."""
        if self.path:
            node, place = self.path[-1]
            node.after[place] = Node(moves(*self.at), chances)
            self.learn(value)
        elif self.root is None:
            self.root = Node(moves(*self.board), chances)
            self.root.add_noise(self.rng)

    def move(self) -> float | None:
        """Make a move when enough was thought; what came of the game for who moved, at its end."""
        root = self.root
        if root is None or sum(root.visits) < THOUGHTS:
            return None
        shares = [visits / sum(root.visits) for visits in root.visits]
        everywhere = [0.0] * WIDTH
        for column, share in zip(root.columns, shares, strict=True):
            everywhere[column] = share
        self.seen.append((self.board, everywhere))
        place = int(np.argmax(shares))
        if len(self.seen) <= OPENING:
            place = int(self.rng.choice(len(shares), p=shares))
        mine, theirs = self.board
        mine = drop(mine, theirs, root.columns[place])
        self.board = (theirs, mine)
        self.root = root.after[place]
        if self.root is not None:
            self.root.add_noise(self.rng)
        if has_won(mine):
            return 1.0
        return None if moves(theirs, mine) else 0.0


class Group:
    """Games whose leaves are sent together."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.games = [Game(rng) for _ in range(GAMES)]
        self.boards = shmgpu.arena.empty((GAMES, 2), "int64")  # where helpers can read it
        self.taught: list[tuple[tuple[int, int], list[float], float]] = []
        self.over = 0
        self.ask()

    def ask(self) -> None:
        self.boards[:] = [game.leaf() for game in self.games]
        self.answer = judge.submit(self.boards[:])

    def think(self) -> None:
        """Take what the network says of each game's leaf, and ask about the next."""
        chances, values = (one.tolist() for one in self.answer.result())
        for game, own, value in zip(self.games, chances, values, strict=True):
            game.hear(own, value)
            outcome = game.move()
            if outcome is None:
                continue
            for board, visits in reversed(game.seen):  # who moved last, and the other, in turn
                self.taught.append((board, visits, outcome))
                outcome = -outcome
            game.begin()
            self.over += 1
        self.ask()

    def handed_in(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        boards, visits, outcomes = zip(*self.taught, strict=True)
        games, self.taught, self.over = self.over, [], 0
        return (
            np.array(boards, "int64"),
            np.array(visits, "float32"),
            np.array(outcomes, "float32"),
            games,
        )


def player(rank, most_games):  # runs in each child
    groups = [Group(2 * rank), Group(2 * rank + 1)]
    is_over = False
    while not is_over:
        for group in groups:  # the other one's leaves are with the network meanwhile
            group.think()
            if not group.over:
                continue
            is_asked, is_over = hand_in(*group.handed_in())
            if is_asked:
                set_weights.broadcast(learn(most_games))
    counts = shmgpu.stats()
    return np.array(curve()), counts["mean_batch"], counts["broker"]["answered"]


# ---- the picture -------------------------------------------------------------------------------


def draw(found: np.ndarray) -> str:
    """The curve in letters: games won of a hundred, by games played so far."""
    columns, rows = 60, 10
    games, won = found.T
    at = np.interp(np.linspace(0, games[-1], columns), games, won)
    lines = []
    for row in range(rows, 0, -1):
        level = 100 * (row - 0.5) / rows
        lines.append(f"{100 * row // rows:4d} |" + "".join("*" if y >= level else " " for y in at))
    return "\n".join([*lines, "   0 +" + "-" * columns, f"      0{games[-1]:>{columns - 1},.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--players", type=int, default=16)
    parser.add_argument("--most-games", type=int, default=3_000)
    options = parser.parse_args()
    results = shmgpu.launch(
        player,
        args=(options.most_games,),
        children=options.players,
        helpers={"players": 2, "learner": 1},
        session=load,
    )
    found, mean_batch, calls = results[0]
    print(draw(found))
    print(
        f"{found[-1, 0]:,} games, {calls:,} calls in batches of {mean_batch:.1f}: "
        f"{found[0, 1]} of 100 games won at first, {found[-1, 1]} in the end"
    )


if __name__ == "__main__":
    main()
