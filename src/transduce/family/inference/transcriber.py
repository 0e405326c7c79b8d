"""Whisper as a user has it: sound in, text out, with languages and times."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.config.schema import SearchConfig
from transduce.decoding.backends import searchable
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Hypothesis, Request
from transduce.decoding.options import DecodingOptions
from transduce.decoding.repetition import watch, with_change
from transduce.errors import NotFiniteError, UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import PreparedApplication
from transduce.family.inference.continuation import GREEDY
from transduce.family.inference.cpu_whisper import CpuWhisper
from transduce.family.inference.generation_settings import GenerationSettings, generation_settings
from transduce.family.inference.hugging_face_beam import hugging_face_beam
from transduce.family.inference.whisper_tokens import Rules, SpecialTokens, rules_of, settings_of, special_tokens
from transduce.family.sound.log_mel import RATE, STEP, log_mel
from transduce.family.sound.segments import FRAMES, SECONDS, TimedIds, Transcript, TranscriptSegment, timed_ids_of
from transduce.family.sound.sound_file import samples_of
from transduce.family.sound.whisper import Whisper
from transduce.model.cpu_backend import faster_products

LEAST_LOG_PROB = -1.0  # mean of the tokens of an output that is heard even in a window that seems silent
MOST_NO_SPEECH = 0.6  # probability of the token for no speech
Span = tuple[float, float]  # start and end, in seconds


class Transcriber(PreparedApplication):
    """A Whisper with the tokenizer of its folder. Raises UserError for another member."""

    def __init__(self, member: Member, folder: Path | str = "the folder", *, precision: str = "fp32") -> None:
        super().__init__(member, folder, precision=precision)
        self.model = self.model_of(Whisper, "a model of sound, Whisper")

    @cached_property
    def prepared_model(self) -> Whisper | CpuWhisper:
        """The model, prepared for this machine, which takes some time and memory."""
        is_on_cpu = self.model.output.weight.device.type == "cpu"
        if self.precision == "fp32" and (compiled() is None or not is_on_cpu):
            return self.model
        return CpuWhisper(self.model, cast(Precision, self.precision))

    @property
    def decoder(self) -> Decoder[Any]:
        """A decoding step of the model."""
        return searchable(cast(Any, self.prepared_model)).as_decoder()

    @cached_property
    def tokens(self) -> SpecialTokens:
        """The special tokens of the folder. Raises UserError if one is missing."""
        return special_tokens(self.tokenizer, self.member, self.folder)

    @cached_property
    def generation_settings(self) -> GenerationSettings:
        """The settings of the folder. Raises UserError for some that are not supported."""
        return generation_settings(self.member, self.folder, ("suppress_tokens", "begin_suppress_tokens"))

    @torch.inference_mode()
    def transcribe(
        self,
        sound: str | Path | np.ndarray | Tensor,
        *,
        language: str | None = None,
        task: str | None = None,
        times: bool | None = None,
        beam_size: int | None = None,
    ) -> Transcript:
        """Return the transcript of a sound: a file, or samples (N,) at 16 kHz, numbers from -1 to 1.

        language: code of the language that is spoken, such as "de"; None: the folder's, or else the most likely one.
        task: "transcribe", or "translate" into English; None: the folder's, or else "transcribe". times: let the output
        have times, which make segments; None: where the sound is longer than one window, of 30 s in public models.
        beam_size: hypotheses of the beam search; None: the folder's, or else 1, greedy search.
        A longer sound is heard in windows, each from the last time of the window before. Raises UserError for a sound
        that cannot be read, and for options that the model does not have.
        """
        self.tokens.check(language, task)
        settings = self._settings(beam_size)
        samples = samples_of(sound)
        features, n_frames = self._features(samples)
        times = self._has_times(n_frames, times)
        rules = rules_of(self.tokens, self.member, self.folder, with_times=times)
        with faster_products(self.model.output.weight.device):
            memory = self._memory(features, 0)
            language = language or self.tokens.language or self._most_likely_language(memory)
            prompt = self.tokens.prompt(language, task, with_times=times)
            segments = list[TranscriptSegment]()
            cut = list[Span]()
            silent = list[Span]()
            start = 0
            while start < n_frames:
                memory = self._memory(features, start) if start else memory
                output = self._output(memory, prompt, rules, settings)
                n = min(self.window, n_frames - start)
                span = (start * STEP / RATE, (start + n) * STEP / RATE)
                parts, n_done = self._parts(memory, output, n, with_times=times)
                segments += [self._segment(part, span[0], len(samples) / RATE) for part in parts]
                silent += [] if parts else [span]
                cut += [span] if parts and not output.finished else []
                start += n_done
        return Transcript(
            "".join(segment.text for segment in segments).strip(),
            language,
            len(samples) / RATE,
            tuple(segments),
            tuple(cut),
            tuple(silent),
        )

    def _parts(self, memory: Tensor, output: Hypothesis, n: int, *, with_times: bool) -> tuple[list[TimedIds], int]:
        """Return the parts of the output for a window of `n` frames, none if it is silent, and the frames of them."""
        if self._is_silent(memory, output):
            return [], n
        if not with_times:
            return [TimedIds(0, n // FRAMES, output.ids)], n
        parts, n_done = timed_ids_of(output.ids, self.tokens.first_time, n)
        return parts, n_done or n  # the next window never begins where this one does

    def _segment(self, part: TimedIds, offset: float, duration: float) -> TranscriptSegment:
        """Return a segment of a window that begins at `offset` in a sound, both in seconds."""
        start, end = (min(offset + time * SECONDS, duration) for time in (part.start, part.end))
        return TranscriptSegment(start, end, self._text(part.ids))

    def _settings(self, beam_size: int | None) -> SearchConfig:
        if self.generation_settings.sampling is not None:
            expected = "expected a search, not a draw (do_sample); set it to false in a copy of the folder"
            raise UserError(f"{self.folder}/generation_config.json: {expected}")
        penalty: Any = {"length_penalty": "power", "alpha": 1.0} if (beam_size or 1) > 1 else {}
        options = self.generation_settings.options(DecodingOptions(beam_size=beam_size, **penalty))
        most = settings_of(self.member, self.folder).get("max_new_tokens") or self.model.config.max_positions
        return options.resolve(self.generation_settings.defaults(GREEDY, most))

    # ---- sound -------------------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """The number of frames that the model hears at a time."""
        return 2 * self.model.config.max_frames

    def _features(self, samples: Tensor) -> tuple[Tensor, int]:
        """Return the features (M,F) of a sound (N,), and the number of its frames. Silence fills a short one up."""
        if samples.dim() != 1 or not samples.is_floating_point() or not len(samples):
            expected = "expected floating-point numbers of the shape (samples,), at 16,000 samples a second"
            raise UserError(f"sound: {expected}, not {samples.dtype} of {(*samples.shape,)}; convert it")
        if not samples.isfinite().all():
            raise UserError("sound: expected finite numbers; check its conversion")
        samples = samples.float().to(self.model.output.weight.device)
        missing = max(0, self.window * STEP - len(samples))
        features = log_mel(F.pad(samples, (0, missing)), self.model.config.n_mels)
        return features, max(1, len(samples) // STEP)

    def _has_times(self, n_frames: int, times: bool | None) -> bool:
        is_long, knows_times = n_frames > self.window, self.tokens.no_times is not None
        if not knows_times and (times or is_long):
            longest = self.window * STEP / RATE
            remedy = f"cut the sound into pieces of at most {longest:g} s, without times"
            raise UserError(f"{self.folder}: expected a model that knows times, <|notimestamps|>; {remedy}")
        if is_long and times is False:
            raise UserError("times=False: must not be set for a sound longer than one window; leave it out")
        return is_long if times is None else times

    def _memory(self, features: Tensor, start: int) -> Tensor:
        """Return the memory (1,S,D) of the window that begins at frame `start`. Zeros fill the last one up."""
        part = features[:, start : start + self.window]
        part = F.pad(part, (0, self.window - part.size(1)))
        return self.prepared_model.encode(part[None], self._mask)

    @property
    def _mask(self) -> Tensor:
        return torch.ones(1, self.model.config.max_frames, dtype=torch.bool, device=self.model.output.weight.device)

    # ---- search ------------------------------------------------------------------------------------------------------

    def _most_likely_language(self, memory: Tensor) -> str | None:
        """Return the language that the model gives the highest probability; None if it has one language."""
        if not self.tokens.languages:
            return None
        log_probs = self._first_log_probs(memory)
        return max(self.tokens.languages, key=lambda code: float(log_probs[self.tokens.languages[code]]))

    def _output(self, memory: Tensor, prompt: list[int], rules: Rules, settings: SearchConfig) -> Hypothesis:
        """Return the output for a window."""
        *before, last = prompt
        longest = min(settings.max_extra_tokens, self.model.config.max_positions - len(prompt))
        request = Request(search=settings, max_lengths=[longest], bos=last, eos=self.tokens.end)
        _, state = self._after(before, memory)
        decoder = self.decoder
        if request.avoids_repetition:
            logits = decoder.logits if settings.beam_size == 1 else None
            decoder, state = watch(decoder, state, 1, settings, [prompt], logits)
        decoder, state = with_change(decoder, state, 1, rules)
        try:
            ((best, *_),) = hugging_face_beam(decoder, request).search(state, request, n_best=1)
        except FloatingPointError as problem:
            expected = f"expected outputs that are finite numbers: {problem}; use another copy"
            raise NotFiniteError(f"{self.folder}: {expected}") from None
        return best

    def _is_silent(self, memory: Tensor, output: Hypothesis) -> bool:
        """Check whether an output is likely invented: an unlikely text of a window in which there is likely no speech.

        The thresholds are those of section 4.5.
        """
        mean = output.log_prob / (len(output.ids) + 1)
        if self.tokens.no_speech is None or mean >= LEAST_LOG_PROB:
            return False
        return float(self._first_log_probs(memory)[self.tokens.no_speech]) > math.log(MOST_NO_SPEECH)

    def _first_log_probs(self, memory: Tensor) -> Tensor:
        """Return the log-probabilities (V,) of the first token after the start of an output."""
        scores, _ = self._after([self.tokens.start], memory)
        return self.decoder.log_probs(scores)[0]

    def _after(self, ids: list[int], memory: Tensor) -> tuple[Any, Any]:
        """Return the scores after some ids, and the state with them, of an output for a window."""
        scores, state = None, self.prepared_model.start(memory, self._mask)
        for token in ids:
            scores, state = self.decoder.step(torch.tensor([token], device=self.decoder.device), state)
        return scores, state

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of a segment, without its times and other special tokens."""
        return self._decode([token for token in ids if token < self.tokens.first_time])
