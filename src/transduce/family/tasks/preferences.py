"""Learning from preferences: of two texts with a common beginning, somebody chose one.

    -log sigma(m)                              the loss of a pair (Bradley and Terry 1952)
    m = r(chosen) - r(rejected)                with a reward model (Ouyang et al. 2022, eq. 1)
    m = beta (d(chosen) - d(rejected))         direct preference optimisation (Rafailov et al. 2023, eq. 7)
    d(x) = log p(x) - log p_start(x)           p_start: the model that the run starts from

A text is the prompt and its continuation. The prompt needs no mark: its log-probability is in both texts of a pair, and
their difference does not have it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.kinds import kinds_of
from transduce.config.schema import Config, TrainConfig
from transduce.console import printable
from transduce.data.batches import Batch, Batches, indices_of, pad
from transduce.data.corpora import read_pairs
from transduce.data.text import is_blank
from transduce.data.token_store import numbers_in_words
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.decoding.batched_search import by_length
from transduce.decoding.segmentation import encode_lines
from transduce.errors import NotFiniteError, UserError
from transduce.family.configs import GPT2Config, RewardConfig, sizes_of
from transduce.family.reward import RewardModel
from transduce.family.tasks.text_scores import check_lines
from transduce.family.text_model import TextModel
from transduce.model.build import build
from transduce.model.devices import in_float64
from transduce.model.transformer import mixed_precision
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.storage.run_request import TrainRequest
from transduce.training.loss import projected_cross_entropy, token_log_probs
from transduce.training.progress import format_scores
from transduce.training.task import InspectingTask, RelativeTask

PreferencePairs = Sequence[tuple[str, str]]
Judge = TypeVar("Judge", TextModel, RewardModel, contravariant=True)


class PairTask(InspectingTask[Judge]):
    """A model says of two texts by how much the first one is better: their margin."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of rows (B,S): BOS, chosen text, EOS, BOS, rejected text, EOS.

        The target (B,1) is the number of tokens of the chosen text with its ends, so a pair counts as one.
        """
        ends = [BOS], [EOS, BOS], [EOS]
        rows = [np.concatenate([ends[0], a, ends[1], b, ends[2]]) for a, b in zip(src, tgt, strict=True)]
        ids, mask = pad(rows)
        lengths, is_real = pad([np.array([len(row) + 2]) for row in src])
        return Batch(ids, mask, lengths, lengths, is_real, indices_of(is_real), pairs.astype(np.int64))

    def check(self, pairs: PreferencePairs, tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]) -> None:
        for lines, name in zip(zip(*pairs, strict=True), (names[0], names[-1]), strict=True):
            check_lines(lines, tokenizer, longest, name)
        check_differ(pairs, names[0])
        if not any(map(_is_whole, pairs)):
            raise UserError(f"{names[0]}: expected a pair without a blank text; give pairs to evaluate on")

    def inspect(
        self, model: Judge, batches: Batches, texts: Sequence[tuple[tuple[str, ...], PreferencePairs]]
    ) -> list[str]:
        """Return a line for each validation text with blank lines (see `training.task.InspectingTask`)."""
        counts = [(names, len(pairs), sum(not _is_whole(pair) for pair in pairs)) for names, pairs in texts]
        return [
            f"of the {size:,} pairs of {names[0]}, the evaluation leaves out {n:,} with an empty side"
            for names, size, n in counts
            if n
        ]

    @abstractmethod
    def margins(self, model: Judge, batch: Batch, config: TrainConfig) -> Tensor:
        """Return the margin of each pair, (B,)."""

    @torch.inference_mode()
    def evaluate(
        self, model: Judge, config: Config, tokenizer: TokenizerLike, pairs: PreferencePairs
    ) -> dict[str, float]:
        """Return the loss of a pair, and the percentage of pairs with a margin above 0. Of a margin of 0, half counts.

        Pairs with a blank text do not count.
        """
        sides = zip(*filter(_is_whole, pairs), strict=True)
        chosen, rejected = ([np.asarray(ids) for ids in encode_lines(side, tokenizer)] for side in sides)
        device = model.output.weight.device

        def margins_of(members: Sequence[int]) -> Tensor:
            batch = self.collate([chosen[i] for i in members], [rejected[i] for i in members], np.array(members))
            return in_float64(self.margins(model, batch.to(device), config.train)).cpu()

        lengths = [len(a) + len(b) for a, b in zip(chosen, rejected, strict=True)]
        margins = torch.cat([part for _, part in by_length(margins_of, lengths, device)])
        if not margins.isfinite().all():
            raise NotFiniteError("the model: expected log-probabilities that are finite; use an earlier checkpoint")
        accuracy = (margins.sign() + 1).mean().item() / 2
        return {"loss": round(F.softplus(-margins).mean().item(), 5), "accuracy": round(100 * accuracy, 2)}

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of the pairs"


class RewardTask(PairTask[RewardModel]):
    """The model gives the chosen text the higher reward."""

    def margins(self, model: RewardModel, batch: Batch, config: TrainConfig) -> Tensor:
        ids, mask = texts_of(batch)
        chosen, rejected = model(ids[:, :-1], mask.sum(1) - 1).float().chunk(2)  # the end of a text has no reward
        return chosen - rejected

    def loss(self, model: RewardModel, batch: Batch, config: TrainConfig) -> Tensor:
        with mixed_precision(config.precision, batch.src.device):
            return pair_loss(self.margins(model, batch, config), batch)


class PreferenceTask(PairTask[TextModel], RelativeTask[TextModel]):
    """The model raises the chosen text above the rejected one, compared with the model that the run starts from."""

    def margins(self, model: TextModel, batch: Batch, config: TrainConfig) -> Tensor:
        ids, mask = texts_of(batch)
        return self._margins(model, model.states(ids[:, :-1], model.no_past)[0], ids, mask, config.dpo_beta)

    def loss(self, model: TextModel, batch: Batch, config: TrainConfig) -> Tensor:
        """Return the summed loss. Its gradient is the gradient of a cross entropy, in which a token has a factor.

        The factor of the tokens of a pair is beta sigma(-m), for the rejected text with a minus sign (Rafailov et al.
        2023, section 4). So no logits are in memory.
        """
        ids, mask = texts_of(batch)
        with mixed_precision(config.precision, ids.device):
            states = model.states(ids[:, :-1], model.no_past)[0]
            margins = self._margins(model, states, ids, mask, config.dpo_beta)
            factors = config.dpo_beta * torch.sigmoid(-margins) * batch.tgt_mask[:, 0]
            weights = torch.cat([factors, -factors])[:, None] * mask[:, 1:]
            rows = states.flatten(0, 1)
            truth = ids[:, 1:].flatten()
            output = model.output
            slope = projected_cross_entropy(rows, output.weight, truth, bias=output.bias, weights=weights.flatten())
        return pair_loss(margins, batch) + (slope - slope.detach())

    def _margins(self, model: TextModel, states: Tensor, ids: Tensor, mask: Tensor, beta: float) -> Tensor:
        """Return the margins (B,), without a gradient. states: of the model, at all ids but the last."""
        with torch.no_grad():
            start = log_probs(self.reference, self.reference.states(ids[:, :-1], model.no_past)[0], ids, mask)
        chosen, rejected = (log_probs(model, states, ids, mask) - start).chunk(2)
        return beta * (chosen - rejected)


def pair_loss(margins: Tensor, batch: Batch) -> Tensor:
    """Return -log sigma(margin), summed over the pairs."""
    return (F.softplus(-margins) * batch.tgt_mask[:, 0]).sum()


def texts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the chosen texts of a batch and, after them, the rejected ones: ids with both ends, and mask, (2B,T)."""
    chosen = batch.tgt_out
    lengths = torch.cat([chosen, batch.src_mask.sum(1, keepdim=True) - chosen])
    columns = torch.arange(int(lengths.max()), device=lengths.device)
    begins = torch.cat([torch.zeros_like(chosen), chosen])
    places = (begins + columns).clamp(max=batch.src.size(1) - 1)
    return batch.src.repeat(2, 1).gather(1, places), columns < lengths


def log_probs(model: TextModel, states: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the log-probability of each text, (N,), without a gradient. states (N,T-1,D): at all ids but the last."""
    truth, output = ids[:, 1:], model.output
    of_tokens = token_log_probs(states.flatten(0, 1), output.weight, truth.flatten(), output.bias)
    return (of_tokens.view_as(truth) * mask[:, 1:]).sum(1)


# ---- the start of a run ------------------------------------------------------------------------------------------


def start(request: TrainRequest) -> LoadedModel:
    """Return the language model that a run starts from. Raises UserError for another model, and for equal texts."""
    assert request.start_from is not None
    loaded = load_model(request.start_from)
    if loaded.config.model.kind not in kinds_of("preferences"):
        kind = f"model.kind={loaded.config.model.kind!r}"
        raise UserError(f"--from={request.start_from}: expected a language model, not {kind}; use one of gpt2-small")
    for corpus in request.corpora:
        check_differ(read_pairs(corpus), printable(corpus.src))
    return loaded


def start_reward(request: TrainRequest) -> LoadedModel:
    """Return the reward model that a run starts from: a GPT-2 with a new head. Raises UserError as `start` does."""
    parent = start(request)
    sizes = parent.config.model
    if not isinstance(sizes, GPT2Config):
        raise UserError(f"--from={request.start_from}: expected a GPT-2, not model.kind={sizes.kind!r}; use another")
    model = RewardModel(sizes_of(sizes, RewardConfig))
    model.base.load_state_dict(parent.model.state_dict())
    return replace(parent, model=model, config=Config(model=model.config, data=parent.config.data))


def check_differ(pairs: Iterator[tuple[str, str]] | PreferencePairs, name: str) -> None:
    """Raise UserError for pairs of two equal texts. Blank pairs are left out."""
    numbered = enumerate(pairs, start=1)
    equal = [n for n, (chosen, rejected) in numbered if chosen == rejected and not is_blank(chosen)]
    if len(equal) == 1:
        raise UserError(f"{name}:{equal[0]}: expected a chosen text that is not the rejected one; remove the pair")
    if equal:
        expected = f"expected chosen texts that are not the rejected ones; remove these {len(equal):,} pairs"
        raise UserError(f"{name}, lines {numbers_in_words(equal, limit=10)}: {expected}")


def _is_whole(pair: tuple[str, str]) -> bool:
    return not any(map(is_blank, pair))


# ---- the use of a reward model -----------------------------------------------------------------------------------


@torch.inference_mode()
def rewards(folder: str | Path, texts: Sequence[str]) -> list[float]:
    """Return the reward of each text, by the reward model in a folder. Only differences have a meaning.

    Raises UserError for another model, and for a text that is blank or longer than the model takes.
    """
    loaded = load_model(Path(folder))
    if not isinstance(loaded.model, RewardModel):
        kind = f"model.kind={loaded.config.model.kind!r}"
        raise UserError(f"{folder}: expected a reward model, not {kind}; use one of gpt2-reward")
    for text in texts:
        check_lines([text], loaded.tokenizer, loaded.model.base.n_positions - 1, "a text")
    rows = [torch.tensor([[BOS, *(ids or ())]]) for ids in encode_lines(texts, loaded.tokenizer)]
    return [loaded.model(row, torch.tensor([row.size(1)])).item() for row in rows]
