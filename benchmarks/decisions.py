"""A Decision Transformer that saw only random play collects more coins when it is asked for more.

    python benchmarks/decisions.py [--episodes 5000] [--steps 1000] [--seed 1] [--out decisions.json]

The game is made here: a walk on a grid of 4 x 4, with one coin. Who reaches it gets 1, and another coin appears. An
episode has 12 moves: up, down, left or right, and a move against the edge leads nowhere. All episodes of the training
are random moves. One thread; times are processor time.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.family.configs import DecisionTransformerConfig
from transduce.family.decision_transformer import DecisionTransformer
from transduce.studies.small_models import train_small
from transduce.training.optimizer import learning_rate

SIDE, MOVES = 4, 12
DIRECTIONS = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
SIZES = DecisionTransformerConfig(
    n_states=4 * SIDE, n_actions=4, is_discrete=True, d_model=32, n_layers=2, n_heads=2, max_steps=MOVES, dropout=0.1
)
BATCH, PEAK_RATE, PLAYED = 128, 4e-3, 500


class Episodes(NamedTuple):
    """States (B,T,16), actions (B,T) and returns to go (B,T) of B episodes."""

    states: Tensor
    actions: Tensor
    returns: Tensor


class Game:
    """B games at a time. player and coin: rows and columns, (B,2)."""

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.generator = generator
        self.player = self._places(n)
        self.coin = self._places(n)

    def state(self) -> Tensor:
        """Return a vector (B,16) for each game: four numbers from 0 to 3, each as a single 1."""
        return F.one_hot(torch.cat([self.player, self.coin], dim=1), SIDE).flatten(1).float()

    def move(self, actions: Tensor) -> Tensor:
        """Make the moves (B,), and return the rewards (B,)."""
        self.player = (self.player + DIRECTIONS[actions]).clamp(0, SIDE - 1)
        is_reached = (self.player == self.coin).all(dim=1)
        self.coin = torch.where(is_reached[:, None], self._places(len(actions)), self.coin)
        return is_reached.float()

    def _places(self, n: int) -> Tensor:
        return torch.randint(SIDE, (n, 2), generator=self.generator)


def random_play(n: int, generator: torch.Generator) -> Episodes:
    """Return n episodes of random moves."""
    game, states, rewards = Game(n, generator), list[Tensor](), list[Tensor]()
    actions = torch.randint(4, (n, MOVES), generator=generator)
    for t in range(MOVES):
        states.append(game.state())
        rewards.append(game.move(actions[:, t]))
    returns = torch.stack(rewards, dim=1).flip(1).cumsum(1).flip(1)
    return Episodes(torch.stack(states, dim=1), actions, returns)


def predictions(model: DecisionTransformer, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """Return the scores (B,T,4) of the actions of each time step."""
    steps = torch.arange(states.size(1)).expand(len(states), -1)
    return model(returns[..., None], states, F.one_hot(actions, 4).float(), steps).actions


def train(episodes: Episodes, n_steps: int, seed: int) -> DecisionTransformer:
    """Return a model that imitates the episodes."""
    torch.manual_seed(seed)
    model = DecisionTransformer(SIZES)
    warmup = max(1, n_steps // 10)
    factor = PEAK_RATE * (SIZES.d_model * warmup) ** 0.5
    schedule = {"d_model": SIZES.d_model, "warmup_steps": warmup, "lr_factor": factor}

    def losses() -> Iterator[Tensor]:
        for _ in range(n_steps):
            rows = torch.randint(len(episodes.actions), (BATCH,))
            states, actions, returns = (part[rows] for part in episodes)
            yield F.cross_entropy(predictions(model, states, actions, returns).flatten(0, 1), actions.flatten())

    def rate(step: int) -> float:
        return learning_rate(step, **schedule, max_steps=n_steps, decay_steps=n_steps // 2)

    def show(step: int, loss: float) -> None:
        print(f"step {step}, loss {loss:.4f} (random moves have ln 4 = 1.3863)", file=sys.stderr)

    train_small(model, losses(), rate, show=show)
    return model


@torch.inference_mode()
def play(model: DecisionTransformer, wish: float, seed: int, *, draws: bool) -> list[float]:
    """Return the returns of PLAYED games in which the model is asked for `wish`, which each reward lowers.

    draws: draw each action from its probabilities; otherwise take the most likely one.
    """
    generator = torch.Generator().manual_seed(seed)
    game = Game(PLAYED, generator)
    states, actions = torch.empty(PLAYED, 0, 4 * SIDE), torch.zeros(PLAYED, 0, dtype=torch.int64)
    returns, total = torch.full((PLAYED, 1), float(wish)), torch.zeros(PLAYED)
    for _ in range(MOVES):
        states = torch.cat([states, game.state()[:, None]], dim=1)
        unknown = torch.zeros(PLAYED, 1, dtype=torch.int64)  # the action to predict
        scores = predictions(model, states, torch.cat([actions, unknown], dim=1), returns)[:, -1]
        chosen = torch.multinomial(scores.softmax(1), 1, generator=generator) if draws else scores.argmax(1)[:, None]
        actions = torch.cat([actions, chosen], dim=1)
        rewards = game.move(chosen[:, 0])
        total += rewards
        returns = torch.cat([returns, (returns[:, -1:] - rewards[:, None]).clamp(min=0)], dim=1)
    return total.tolist()


def shortest_paths(seed: int) -> list[float]:
    """Return the returns of PLAYED games in which each move leads towards the coin: the best play."""
    game, total = Game(PLAYED, torch.Generator().manual_seed(seed)), torch.zeros(PLAYED)
    for _ in range(MOVES):
        rows, columns = (game.coin - game.player).unbind(1)
        along_rows = torch.where(rows < 0, 0, 1)
        along_columns = torch.where(columns < 0, 2, 3)
        total += game.move(torch.where(rows != 0, along_rows, along_columns))
    return total.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    episodes = random_play(args.episodes, torch.Generator().manual_seed(args.seed))
    data = episodes.returns[:, 0].tolist()
    started_at = time.process_time()
    model = train(episodes, args.steps, args.seed)
    seconds = time.process_time() - started_at
    rows = {f"random play, the {args.episodes:,} episodes of the training": data}
    for wish in (0, 1, 2, round(max(data))):
        rows[f"asked for {wish}, drawn actions"] = play(model, wish, args.seed, draws=True)
    rows[f"asked for {round(max(data))}, most likely actions"] = play(model, max(data), args.seed, draws=False)
    rows["the best play: shortest paths"] = shortest_paths(args.seed)
    print(f"\n{seconds:.0f} s of training\n\n| player | mean return | standard error | most |\n|---|---|---|---|")
    for name, returns in rows.items():
        error = statistics.stdev(returns) / len(returns) ** 0.5
        print(f"| {name} | {statistics.mean(returns):.2f} | {error:.2f} | {max(returns):.0f} |")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
