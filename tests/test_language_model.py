"""A task that is no translation: a decoder-only language model, with the same loop, checkpoints, resume and search.

Only this file defines the task. It shows that nothing in the loop, the checkpoints or the search is about translation.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.toy_task import write_lines
from support.trainings import train
from torch import Tensor, nn

from transduce.config.kinds import KINDS, Kind
from transduce.config.schema import Config, DataConfig, SearchConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding.constraint import Prefixes
from transduce.decoding.decoder import Decoder
from transduce.decoding.search import Request, beam_search, greedy
from transduce.model.attention import MultiHeadAttention
from transduce.model.positions import SinusoidalPositions
from transduce.model.transformer import EncoderLayer, FeedForward, Residual
from transduce.storage.model_folder import load_model
from transduce.training.loss import projected_cross_entropy

# ---- the model, its task and its search --------------------------------------------------------------------------


@dataclass(frozen=True)
class LanguageModelConfig:
    kind: str = "language_model"
    vocab_size: int | None = None
    d_model: int = 32
    n_layers: int = 2

    max_positions = None

    def problems(self) -> list[str]:
        return []


def layer(d_model: int) -> EncoderLayer:
    residuals = [Residual(nn.LayerNorm(d_model), 0.0, post=False) for _ in range(2)]
    return EncoderLayer(MultiHeadAttention(d_model, 4), FeedForward(d_model, 4 * d_model), residuals)


class LanguageModel(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = SinusoidalPositions(config.d_model)
        self.layers = nn.ModuleList(layer(config.d_model) for _ in range(config.n_layers))
        self.output = nn.Linear(config.d_model, config.vocab_size)

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(0, ids.size(1))
        for layer in self.layers:
            x = layer(x, "causal")
        return x


class NextToken:
    collate = staticmethod(collate)

    def build(self, config: Config) -> LanguageModel:
        return LanguageModel(config.model)

    def check(self, pairs: list, tokenizer: Tokenizer, longest: int, names: tuple[str, ...]) -> None:
        pass

    def loss(self, model: LanguageModel, batch: Batch, config: TrainConfig) -> Tensor:
        hidden, targets = batch.real(model.hidden(batch.tgt_in))
        return projected_cross_entropy(hidden, model.output.weight, targets, config.label_smoothing, model.output.bias)

    def evaluate(self, model: LanguageModel, config: Config, tokenizer: Tokenizer, pairs: list) -> dict[str, float]:
        ids = [np.array(tokenizer.encode(line)) for _, line in pairs]
        batch = collate(ids, ids)
        with torch.no_grad():
            return {
                "loss": self.loss(model, batch, TrainConfig(label_smoothing=0.0)).item() / int(batch.tgt_mask.sum())
            }

    def describe(self, scores: dict[str, float]) -> str:
        return f"loss {scores['loss']:.3f}"


@dataclass(frozen=True)
class TokensSoFar:
    ids: Tensor  # (N, t)

    def select(self, rows: Tensor, sentences: Tensor) -> "TokensSoFar":
        return TokensSoFar(self.ids[rows])


def decoder(model: LanguageModel) -> Decoder[TokensSoFar]:
    def step(last_ids: Tensor, state: TokensSoFar) -> tuple[Tensor, TokensSoFar]:
        ids = torch.cat([state.ids, last_ids[:, None]], dim=1)
        return model.output(model.hidden(ids)[:, -1]).log_softmax(-1), TokensSoFar(ids)

    return Decoder(step)


# ---- the tests ---------------------------------------------------------------------------------------------------

LETTERS = "abcdefghij"
TRAIN = TrainConfig(
    max_steps=240,
    warmup_steps=40,
    lr_factor=0.3,
    label_smoothing=0.0,
    use="last",
    log_every_steps=60,
    evaluate_every_steps=120,
    checkpoint_every_steps=60,
)
CONFIG = Config(LanguageModelConfig(), DataConfig(vocab_size=290, batch_tokens=400, max_tokens=16), TRAIN)


def successive_letters(start: int, count: int) -> str:
    return " ".join(LETTERS[(start + i) % 10] for i in range(count))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a model that continues the alphabet to eight letters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "language_model", Kind(f"{__name__}:LanguageModelConfig", f"{__name__}:LanguageModel"))
        yield train_in(tmp_path_factory.mktemp("language_model"), CONFIG)


def train_in(folder: Path, config: Config, *, resume: bool = False) -> Path:
    lines = [successive_letters(start, 8) for start in range(10)] * 20
    text, valid = write_lines(folder / "text", lines), write_lines(folder / "valid", lines[:10])
    allow_change = ["train.max_steps"] if resume else []
    files = {"train": (text, text), "valid": (valid, valid), "out": folder / "run"}
    train(config, NextToken(), **files, resume=resume, allow_change=allow_change)
    return folder / "run"


def test_the_search_continues_a_prompt(run: Path) -> None:
    loaded = load_model(run / "model")
    prompts = [loaded.tokenizer.encode(successive_letters(start, 3)) for start in range(10)]
    settings = SearchConfig(length_penalty="none", alpha=0.0)
    banned = (PAD, BOS, UNK)
    request = Request(
        search=settings, max_lengths=[12] * 10, bos=BOS, eos=EOS, banned=banned, constraint=Prefixes(prompts)
    )
    start = TokensSoFar(torch.zeros(10, 0, dtype=torch.int64))
    expected = [successive_letters(start, 8) for start in range(10)]
    with torch.no_grad():
        likely = greedy(decoder(loaded.model), start, request)
        best = [outputs[0] for outputs in beam_search(decoder(loaded.model), start, request)]
    for outputs in (likely, best):
        assert [loaded.tokenizer.decode(output.ids) for output in outputs] == expected
        assert all(output.finished for output in outputs)


def test_a_resumed_run_ends_in_the_same_weights(run: Path, tmp_path: Path) -> None:
    half = train_in(tmp_path, replace(CONFIG, train=replace(TRAIN, max_steps=60)))
    train_in(tmp_path, CONFIG, resume=True)
    name = "checkpoints/step-00000240/model.safetensors"
    assert (half / name).read_bytes() == (run / name).read_bytes()
