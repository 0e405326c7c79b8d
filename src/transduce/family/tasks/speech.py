"""What models of sound learn: the text of a sound, or its translation.

A source line is the path of a sound file, and the target line is its text. A batch reads the files of its pairs: its
`src` (B,S) has samples from -1 to 1 in place of ids, 16,000 a second. Everything else is as in translation.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import Config, SearchConfig, TrainConfig
from transduce.console import printable
from transduce.data.batches import Batch, collate
from transduce.data.paths import path_of
from transduce.data.text import is_blank
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Request
from transduce.decoding.search import greedy
from transduce.errors import NotFiniteError, UserError
from transduce.evaluation.metrics import bleu
from transduce.evaluation.word_errors import word_error_rate
from transduce.family.sound.ctc import ctc_losses
from transduce.family.sound.ctc import greedy as text_of_path
from transduce.family.sound.log_mel import RATE, STEP, log_mel
from transduce.family.sound.sound_file import read_sound
from transduce.family.sound.wav2vec2 import normalised
from transduce.model.build import build
from transduce.model.devices import in_float64
from transduce.model.transformer import mixed_precision
from transduce.training.progress import format_scores
from transduce.training.task import summed_loss

SILENCE = np.zeros(RATE, np.float32)  # for a rank without pairs
SHORTEST = 1_200  # samples of a sound
EVALUATED = 16  # pairs of a batch of the validation


class SoundTask(ABC):
    """The part of a task that all models of sound share."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of the sounds whose paths are `src`, and of their texts, as in translation."""
        sounds = [read_samples(path_of(row)) for row in src] if len(pairs) else [SILENCE]
        mask = np.arange(max(map(len, sounds))) < np.array([len(sound) for sound in sounds])[:, None]
        samples = np.zeros(mask.shape, np.float32)
        samples[mask] = np.concatenate(sounds)
        batch = collate(src, tgt, pairs)
        return dataclasses.replace(batch, src=torch.from_numpy(samples), src_mask=torch.from_numpy(mask))

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        for number, (path, text) in enumerate(pairs, start=1):
            if not Path(path.strip()).is_file():
                raise UserError(
                    f"{names[0]}:{number}: expected the path of a sound file, but {printable(path.strip())} does not "
                    "exist; give a path from the working folder, or a whole path"
                )
            size = len(tokenizer.target.encode(text)) + 1
            if is_blank(text) or size > longest:
                expected = "expected text" if is_blank(text) else f"expected at most {longest} tokens, not {size}"
                raise UserError(f"{names[-1]}:{number}: {expected}; leave this line out of both files")

    @torch.inference_mode()
    def evaluate(
        self, model: Any, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return the loss of a token without label smoothing, and the scores of the most likely texts."""
        plain = dataclasses.replace(config.train, label_smoothing=0.0, rdrop=0.0)
        nats, count, texts = 0.0, 0, dict[int, str]()
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))
        for members in (order[i : i + EVALUATED] for i in range(0, len(order), EVALUATED)):
            batch = batch_of([pairs[i] for i in members], tokenizer, self).to(model.output.weight.device)
            nats += in_float64(self.loss(model, batch, plain)).item()
            count += int(batch.tgt_mask.sum())
            texts |= dict(zip(members, map(tokenizer.target.decode, self.ids(model, batch)), strict=True))
        if not math.isfinite(nats):
            raise NotFiniteError("the model: expected log-probabilities that are finite; use an earlier checkpoint")
        outputs = [texts[i] for i in range(len(pairs))]
        return {"loss": round(nats / count, 5), **self.scores(outputs, [text for _, text in pairs])}

    @abstractmethod
    def loss(self, model: Any, batch: Batch, config: TrainConfig) -> Tensor:
        """Return the summed loss of a batch (see `training.task.Task`)."""

    @abstractmethod
    def ids(self, model: Any, batch: Batch) -> list[list[int]]:
        """Return the ids of a likely text of each sound of a batch."""

    def scores(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the scores of texts."""
        return {"word_errors": round(word_error_rate(outputs, references), 2)}


class CTCTask(SoundTask):
    """An encoder learns the text of a sound by CTC."""

    def loss(self, model: Any, batch: Batch, config: TrainConfig) -> Tensor:
        with mixed_precision(config.precision, batch.src.device):
            logits = model(normalised(batch.src, batch.src_mask), batch.src_mask)
        n_targets = batch.tgt_mask.sum(1) - 1  # without EOS; -1 in the empty batch of a rank without pairs
        n_frames = model.n_frames(batch.src_mask.sum(1))
        return ctc_losses(logits, n_frames, batch.tgt_out, n_targets.clamp(min=0))[n_targets >= 0].sum()

    def ids(self, model: Any, batch: Batch) -> list[list[int]]:
        logits = model(normalised(batch.src, batch.src_mask), batch.src_mask).float().log_softmax(dim=-1).cpu().numpy()
        n_frames = model.n_frames(batch.src_mask.sum(1)).tolist()
        return [text_of_path(rows[:n]) for rows, n in zip(logits, n_frames, strict=True)]

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of the most likely path"


class SpeechTask(SoundTask):
    """An encoder-decoder learns the text of a sound, or its translation."""

    def loss(self, model: Any, batch: Batch, config: TrainConfig) -> Tensor:
        return summed_loss(outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)

    def ids(self, model: Any, batch: Batch) -> list[list[int]]:
        decoder = Decoder(model.decode_step, model.output.weight.device, lambda logits: logits.log_softmax(dim=-1))
        most = [2 * batch.tgt_mask.size(1)] * len(batch.pairs)  # a longer text has at least as many errors as words
        request = Request(search=SearchConfig(beam_size=1), max_lengths=most, bos=BOS, eos=EOS)
        return [output.ids for output in greedy(decoder, model.start(*encode_sounds(model, batch.src)), request)]

    def scores(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {"bleu": round(bleu(outputs, references), 2), **super().scores(outputs, references)}

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} by greedy search"


def outputs(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the decoder's outputs (N,D) at the real target tokens, and these tokens (N,)."""
    return batch.real(model.decode(batch.tgt_in, *encode_sounds(model, batch.src)))


def encode_sounds(model: Any, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the encoder of a Whisper makes of sounds (B,S), and its mask. Silence fills each up to the window.

    Raises UserError for a sound that is longer than the window.
    """
    longest = 2 * model.config.max_frames * STEP
    if samples.size(1) > longest:
        seconds, most = samples.size(1) / RATE, longest / RATE
        raise UserError(
            f"a sound of {seconds:.1f} s: expected at most {most:g} s with model.max_frames={model.config.max_frames}; "
            "cut the sound and its text, or set model.max_frames"
        )
    with torch.no_grad(), torch.autocast(samples.device.type, enabled=False):
        whole = F.pad(samples, (0, longest - samples.size(1)))
        features = torch.stack([log_mel(sound, model.config.n_mels) for sound in whole])
    mask = torch.ones(len(samples), model.config.max_frames, dtype=torch.bool, device=samples.device)
    return model.encode(features, mask), mask


def read_samples(path: str) -> np.ndarray:
    """Return the samples of a file. Raises UserError for one that cannot be read, or is shorter than a frame."""
    samples = read_sound(path)
    if len(samples) < SHORTEST:
        expected = f"expected a sound of at least {SHORTEST / RATE * 1_000:.0f} ms, not {len(samples)} samples"
        raise UserError(f"{printable(path)}: {expected}; leave it and its text out")
    return samples


def batch_of(pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, task: SoundTask) -> Batch:
    """Return the batch of paths and texts."""
    paths = tokenizer.encode_batch([path for path, _ in pairs])
    texts = tokenizer.target.encode_batch([text for _, text in pairs])
    return task.collate([*map(np.array, paths)], [np.array(ids, int) for ids in texts], np.arange(len(pairs)))
