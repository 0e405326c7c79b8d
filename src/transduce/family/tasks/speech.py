"""What models of sound learn: the text of a sound, or its translation.

A source line is the path of a sound file, and the target line is its text. A batch reads the files of its pairs: its
`src` (B,S) has samples from -1 to 1 in place of ids, 16,000 a second. Everything else is as in translation.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import Config, SearchConfig, TrainConfig
from transduce.console import printable
from transduce.data.batches import Batch, Batches, collate
from transduce.data.paths import path_of
from transduce.data.text import is_blank
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Request
from transduce.decoding.search import greedy
from transduce.errors import NotFiniteError, PairError, UserError
from transduce.evaluation.metrics import bleu
from transduce.evaluation.word_errors import word_error_rate
from transduce.family.sound.ctc import ctc_losses, frames_needed
from transduce.family.sound.ctc import greedy as text_of_path
from transduce.family.sound.log_mel import RATE, STEP, log_mel
from transduce.family.sound.sound_file import read_sound, sound_length
from transduce.family.sound.wav2vec2 import Wav2Vec2, normalised
from transduce.family.sound.whisper import Whisper
from transduce.model.build import build
from transduce.model.devices import in_float64
from transduce.model.transformer import mixed_precision
from transduce.training.progress import format_scores
from transduce.training.task import InspectingTask, summed_loss

SILENCE = np.zeros(RATE, np.float32)  # for a rank without pairs
SHORTEST = 1_200  # samples of a sound
READ = 10_000  # training pairs whose ids are in memory at a time
EVALUATED = 16  # pairs of a batch of the validation


Listener = TypeVar("Listener", Wav2Vec2, Whisper, contravariant=True)


class SoundTask(InspectingTask[Listener]):
    """The part of a task that all models of sound share."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of the sounds whose paths are `src`, and of their texts, as in translation."""
        sounds = [SILENCE]
        if len(pairs):
            sounds = [_of_pair(number, path_of(row)) for number, row in zip(pairs.tolist(), src, strict=True)]
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

    def inspect(
        self, model: Listener, batches: Batches, texts: Sequence[tuple[tuple[str, ...], Sequence[tuple[str, str]]]]
    ) -> list[str]:
        """Read the validation sounds, and the lengths of the training sounds (see `training.task.InspectingTask`)."""
        for names, pairs in texts:
            for number, (path, text) in enumerate(pairs, start=1):
                try:
                    n_samples = len(read_samples(path.strip()))
                    self.check_length(model, path.strip(), n_samples)
                except UserError as error:
                    raise UserError(f"{names[0]}:{number}: {error}") from None
                if problem := self.shortage(model, n_samples, batches.tokenizer.target.encode(text)):
                    raise UserError(f"{names[-1]}:{number}: {problem}; leave this line out of both files")
        skipped = list[int]()
        for first, lengths, _ in batches.store.lengths():
            usable = first + np.flatnonzero(batches.is_usable(lengths))
            for i in range(0, len(usable), READ):
                skipped += self._skipped(model, batches, usable[i : i + READ])
        where = batches.where(np.array(skipped, int), limit=10)
        if len(skipped) == batches.usable:
            raise UserError(
                f"{where}: expected a text that needs no more frames than its sound has; give shorter texts"
            )
        return [f"training skips {len(skipped):,} pairs with too few frames for the text: {where}"] if skipped else []

    def _skipped(self, model: Listener, batches: Batches, pairs: np.ndarray) -> list[int]:
        """Return those of some training pairs that the loss skips. Raises UserError for a sound that cannot be used."""
        skipped = list[int]()
        for pair, src, tgt in zip(pairs.tolist(), *batches.store.read(pairs), strict=True):
            path = path_of(src)
            try:
                n_samples = sound_length(Path(path))
                self.check_length(model, path, n_samples)
            except UserError as error:
                raise UserError(f"{batches.where(np.array([pair]))}: {error}") from None
            if self.shortage(model, n_samples, tgt.tolist()):
                skipped.append(pair)
        return skipped

    def check_length(self, model: Listener, path: str, n_samples: int) -> None:
        """Raise UserError for a sound that is too short or too long for the model."""
        check_shortest(path, n_samples)

    def shortage(self, model: Listener, n_samples: int, ids: Sequence[int]) -> str:
        """Return by how much a sound is too short for the tokens of its text; empty if it is not."""
        return ""

    @torch.inference_mode()
    def evaluate(
        self, model: Listener, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return the loss of a token without label smoothing, and the scores of the most likely texts."""
        plain = dataclasses.replace(config.train, label_smoothing=0.0, rdrop=0.0)
        nats = 0.0
        count = 0
        texts = dict[int, str]()
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
    def loss(self, model: Listener, batch: Batch, config: TrainConfig) -> Tensor:
        """Return the summed loss of a batch (see `training.task.Task`)."""

    @abstractmethod
    def ids(self, model: Listener, batch: Batch) -> list[list[int]]:
        """Return the ids of a likely text of each sound of a batch."""

    def scores(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the scores of texts."""
        return {"word_errors": round(word_error_rate(outputs, references), 2)}


class CTCTask(SoundTask[Wav2Vec2]):
    """An encoder learns the text of a sound by CTC. The loss skips a text that needs more frames than its sound has."""

    def loss(self, model: Wav2Vec2, batch: Batch, config: TrainConfig) -> Tensor:
        with mixed_precision(config.precision, batch.src.device):
            logits = model(normalised(batch.src, batch.src_mask), batch.src_mask)
        n_targets = batch.tgt_mask.sum(1) - 1  # without EOS; -1 in the empty batch of a rank without pairs
        n_frames = model.n_frames(batch.src_mask.sum(1))
        counts = (n_targets >= 0) & (frames_needed(batch.tgt_out, n_targets) <= n_frames)
        return ctc_losses(logits, n_frames, batch.tgt_out, n_targets.where(counts, 0))[counts].sum()

    def shortage(self, model: Wav2Vec2, n_samples: int, ids: Sequence[int]) -> str:
        n_frames = int(model.n_frames(torch.tensor(n_samples)))
        needed = int(frames_needed(torch.tensor([ids]), torch.tensor([len(ids)])))
        return "" if needed <= n_frames else f"expected a text for {n_frames} frames, but it needs {needed}"

    def ids(self, model: Wav2Vec2, batch: Batch) -> list[list[int]]:
        logits = model(normalised(batch.src, batch.src_mask), batch.src_mask).float().log_softmax(dim=-1).cpu().numpy()
        n_frames = model.n_frames(batch.src_mask.sum(1)).tolist()
        return [text_of_path(rows[:n]) for rows, n in zip(logits, n_frames, strict=True)]

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of the most likely path"


class SpeechTask(SoundTask[Whisper]):
    """An encoder-decoder learns the text of a sound, or its translation."""

    def check_length(self, model: Whisper, path: str, n_samples: int) -> None:
        super().check_length(model, path, n_samples)
        check_longest(printable(path), model.config.max_frames, n_samples)

    def loss(self, model: Whisper, batch: Batch, config: TrainConfig) -> Tensor:
        return summed_loss(outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)

    def ids(self, model: Whisper, batch: Batch) -> list[list[int]]:
        decoder = Decoder(model.decode_step, model.output.weight.device, lambda logits: logits.log_softmax(dim=-1))
        most = [2 * batch.tgt_mask.size(1)] * len(batch.pairs)  # a longer text has at least as many errors as words
        request = Request(search=SearchConfig(beam_size=1), max_lengths=most, bos=BOS, eos=EOS)
        return [output.ids for output in greedy(decoder, model.start(*encode_sounds(model, batch.src)), request)]

    def scores(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {"bleu": round(bleu(outputs, references), 2), **super().scores(outputs, references)}

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} by greedy search"


def outputs(model: Whisper, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the decoder's outputs (N,D) at the real target tokens, and these tokens (N,)."""
    return batch.real(model.decode(batch.tgt_in, *encode_sounds(model, batch.src)))


def encode_sounds(model: Whisper, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the encoder of a Whisper makes of sounds (B,S), and its mask. Silence fills each up to the window.

    Raises UserError for a sound that is longer than the window.
    """
    longest = check_longest("a sound", model.config.max_frames, samples.size(1))
    with torch.no_grad(), torch.autocast(samples.device.type, enabled=False):
        whole = F.pad(samples, (0, longest - samples.size(1)))
        features = torch.stack([log_mel(sound, model.config.n_mels) for sound in whole])
    mask = torch.ones(len(samples), model.config.max_frames, dtype=torch.bool, device=samples.device)
    return model.encode(features, mask), mask


def read_samples(path: str) -> np.ndarray:
    """Return the samples of a file. Raises UserError for one that cannot be read, or is shorter than a frame."""
    samples = read_sound(path)
    check_shortest(path, len(samples))
    return samples


def check_shortest(path: str, n_samples: int) -> None:
    """Raise UserError for a sound that is shorter than a frame."""
    if n_samples < SHORTEST:
        expected = f"expected a sound of at least {SHORTEST / RATE * 1_000:.0f} ms, not {n_samples} samples"
        raise UserError(f"{printable(path)}: {expected}; leave it and its text out")


def check_longest(name: str, max_frames: int, n_samples: int) -> int:
    """Return the samples of the window of a Whisper. Raises UserError for a longer sound. name: of the sound."""
    longest = 2 * max_frames * STEP
    if n_samples > longest:
        raise UserError(
            f"{name} of {n_samples / RATE:.1f} s: expected at most {longest / RATE:g} s with "
            f"model.max_frames={max_frames}; cut the sound and its text, or set model.max_frames"
        )
    return longest


def _of_pair(number: int, path: str) -> np.ndarray:
    """Return the samples of the sound of a pair. Raises PairError for one that cannot be read. number: of the pair."""
    try:
        return read_samples(path)
    except UserError as error:
        raise PairError(number, str(error)) from None


def batch_of(pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, task: SoundTask) -> Batch:
    """Return the batch of paths and texts."""
    paths = tokenizer.encode_batch([path for path, _ in pairs])
    texts = tokenizer.target.encode_batch([text for _, text in pairs])
    return task.collate([*map(np.array, paths)], [np.array(ids, int) for ids in texts], np.arange(len(pairs)))
