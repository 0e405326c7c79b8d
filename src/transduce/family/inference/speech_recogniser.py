"""wav2vec 2.0 as a user has it: sound in, text out."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member, read_json
from transduce.family.inference.application import Application
from transduce.family.inference.text_encoder import finite
from transduce.family.sound import ctc
from transduce.family.sound.log_mel import RATE
from transduce.family.sound.segments import Transcript, TranscriptSegment
from transduce.family.sound.sound_file import samples_of
from transduce.family.sound.wav2vec2 import Wav2Vec2, normalised
from transduce.model.cpu_backend import faster_products

CHARACTERS = "vocab.json"  # of a public folder: the id of each character
SPACE = "|"


class SpeechRecogniser(Application):
    """A wav2vec 2.0 with the tokenizer or the characters of its folder. Raises UserError for another member."""

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(Wav2Vec2, "a model of sound, wav2vec 2.0")

    def transcribe(self, sound: str | Path | np.ndarray | Tensor, *, beam_size: int = 1) -> str:
        """Return the words of a sound. `transcript` describes the arguments and the errors."""
        return self.transcript(sound, beam_size=beam_size).text

    @torch.inference_mode()
    def transcript(self, sound: str | Path | np.ndarray | Tensor, *, beam_size: int = 1) -> Transcript:
        """Return the transcript of a sound: a file, or samples (N,) at 16 kHz, numbers from -1 to 1.

        It has no language, and one segment, the whole sound, or none without words: the model does not learn times.
        beam_size: beginnings of the text that the search keeps; 1: the text of the most likely path. The model hears
        the whole sound at once, so time grows with the square of its length. Raises UserError for a sound that cannot
        be read, and NotFiniteError if an output of the model is not finite.
        """
        if type(beam_size) is not int or beam_size < 1:
            raise UserError(f"beam_size={beam_size!r}: expected a whole number of at least 1; leave it out")
        samples = samples_of(sound)
        if samples.dim() != 1 or not samples.is_floating_point() or not samples.isfinite().all():
            expected = "expected finite floating-point numbers of the shape (samples,), at 16,000 samples a second"
            raise UserError(f"sound: {expected}, not {samples.dtype} of {(*samples.shape,)}; convert it")
        if int(self.model.n_frames(torch.tensor(len(samples)))) < 1:
            raise UserError(f"sound: expected a longer sound than {len(samples)} samples; check its conversion")
        heard = samples[None].to(self.model.output.weight)
        mask = torch.ones_like(heard, dtype=torch.bool)
        with faster_products(heard.device):
            logits = finite(self.model(normalised(heard, mask), mask)[0], self.folder)
        log_probs = logits.log_softmax(dim=-1).cpu().numpy()
        text = self._text(ctc.greedy(log_probs) if beam_size == 1 else ctc.prefix_beam(log_probs, beam_size))
        duration = len(samples) / RATE
        return Transcript(text, None, duration, (TranscriptSegment(0.0, duration, text),) if text else ())

    def _text(self, ids: Sequence[int]) -> str:
        if self._characters is None:
            return self._decode(ids).strip()
        return "".join(self._characters.get(i, "") for i in ids).replace(SPACE, " ").strip()

    @cached_property
    def _characters(self) -> dict[int, str] | None:
        """The character of each id in a public folder; None in a folder with tokenizer.json."""
        folder = self.member.folder
        if folder is None or "tokenizer.json" in self.member.files or not (folder / CHARACTERS).is_file():
            return None
        ids = read_json(folder / CHARACTERS)
        if not all(type(i) is int for i in ids.values()):
            raise UserError(f"{folder / CHARACTERS}: expected the id of each character; use another copy")
        return {i: character for character, i in ids.items() if len(character) == 1}
