"""Speech that Debian's espeak-ng makes of the demo's sentences, and the errors of models that were trained on it.

    apt-get install espeak-ng
    python benchmarks/speech.py make sounds [--train 3000]
    transduce train --recipe ctc-small --train sounds/train.paths sounds/train.en \
        --valid sounds/valid.paths sounds/valid.en --out ctc
    python benchmarks/speech.py score ctc/model sounds
    transduce train --recipe speech-small --train sounds/train.paths sounds/train.en \
        --valid sounds/valid.paths sounds/valid.en --out speech
    python benchmarks/speech.py score speech/model sounds
    transduce train --from speech/model --recipe speech-small --train sounds/train.paths sounds/train.de \
        --valid sounds/valid.paths sounds/valid.de --out translation --set train.max_steps=3000
    python benchmarks/speech.py score translation/model sounds --side de

`make` speaks English sentences of `transduce.demo.grammar` with several voices and speeds, and adds white noise. A line
of NAME.paths is a file of 16,000 samples a second; NAME.en has its text in small letters without punctuation, and
NAME.de the German translation. No sentence is in two of train, valid, test and voice; `voice` has a voice of its own.

`score` prints word errors and BLEU on the unseen sentences of known voices (test), and of the unseen one (voice).
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transduce.demo.grammar import corpus
from transduce.evaluation.metrics import bleu
from transduce.evaluation.word_errors import word_error_rate
from transduce.family.inference.model_folder import open_member
from transduce.family.inference.speech_recogniser import SpeechRecogniser
from transduce.family.inference.transcriber import Transcriber
from transduce.family.sound.sound_file import read_sound
from transduce.family.sound.wav2vec2 import Wav2Vec2

VOICES = ("en-us", "en-us+f2", "en-us+m7", "en-gb+m3", "en-gb+f4", "en-gb-scotland+m1")
UNSEEN_VOICE = "en-gb-x-rp+f3"
SPEEDS = (140, 190)  # words a minute
NOISE = (20.0, 40.0)  # decibels of the speech above the noise
MOST_WORDS = 8
SEED = 2022
RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.add_argument("out", type=Path)
    making.add_argument("--train", type=int, default=3_000)
    making.set_defaults(run=lambda args: make(args.out, {"train": args.train, "valid": 150, "test": 300, "voice": 300}))
    scoring = commands.add_parser("score")
    scoring.add_argument("model", type=Path)
    scoring.add_argument("sounds", type=Path)
    scoring.add_argument("--side", choices=("en", "de"), default="en")
    scoring.set_defaults(run=lambda args: score(args.model, args.sounds, args.side))
    args = parser.parse_args()
    args.run(args)


def make(out: Path, sizes: dict[str, int]) -> None:
    """Write the sounds, and line-aligned NAME.paths, NAME.en and NAME.de."""
    (out / "sound").mkdir(parents=True)
    sentences = set[str]()
    for number, (name, size) in enumerate(sizes.items()):
        pairs = [pair for pair in corpus(SEED + number, 4 * size, exclude=sentences) if is_short(pair)][:size]
        sentences |= {english for english, _ in pairs}
        rng = np.random.default_rng(SEED + number)
        for i, (english, _) in enumerate(pairs):
            voice = UNSEEN_VOICE if name == "voice" else str(rng.choice(VOICES))
            sound = noisy(spoken(english, voice, int(rng.integers(*SPEEDS))), rng)
            write(out / "sound" / f"{name}-{i:05}.wav", sound)
        write_lines(out, name, pairs)
        print(f"{name}: {len(pairs)} sounds", file=sys.stderr)


def is_short(pair: tuple[str, str]) -> bool:
    return len(pair[0].split()) <= MOST_WORDS


def write_lines(out: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Write the paths and texts of a set."""
    lines = {
        "paths": [str(out / "sound" / f"{name}-{i:05}.wav") for i in range(len(pairs))],
        "en": [re.sub(r"[^a-z' ]", "", english.lower()) for english, _ in pairs],
        "de": [german for _, german in pairs],
    }
    for side, texts in lines.items():
        (out / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def spoken(text: str, voice: str, speed: int) -> np.ndarray:
    """Return the samples of a sentence, from -1 to 1."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", file.name, text], check=True)
        with wave.open(file.name) as sound:
            rate = sound.getframerate()
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32_768
    size = round(len(samples) * RATE / rate)
    return np.fft.irfft(np.fft.rfft(samples)[: size // 2 + 1], size) * size / len(samples)


def noisy(sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a sound at a random volume with white noise."""
    power = np.sqrt(np.mean(sound**2)) * 10 ** (-rng.uniform(*NOISE) / 20)
    return (sound + power * rng.standard_normal(len(sound))) * rng.uniform(0.3, 0.9)


def write(path: Path, sound: np.ndarray) -> None:
    """Write a sound as WAV with 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(sound, -1, 1) * 32_767).astype("<i2").tobytes())


def score(model: Path, sounds: Path, side: str) -> None:
    """Print the scores of a model on both sets, by greedy search and by a beam."""
    member = open_member(model)
    is_ctc = isinstance(member.model, Wav2Vec2)
    listener: Any = SpeechRecogniser(member, model) if is_ctc else Transcriber(member, model)
    print("| sounds | beam | word errors, in % | BLEU | seconds of sound | seconds |\n|---|---|---|---|---|---|")
    for name, title in {"test": "known voices", "voice": UNSEEN_VOICE}.items():
        paths, references = (lines_of(sounds / f"{name}.{ending}") for ending in ("paths", side))
        samples = [read_sound(path) for path in paths]
        length = sum(map(len, samples)) / RATE
        for beam_size in (1, 10 if is_ctc else 4):
            started_at = time.monotonic()
            texts = [listener.transcribe(sound, beam_size=beam_size) for sound in samples]
            seconds = time.monotonic() - started_at
            outputs = texts if is_ctc else [transcript.text for transcript in texts]
            figures = f"{word_error_rate(outputs, references):.1f} | {bleu(outputs, references):.1f}"
            print(f"| {title} | {beam_size} | {figures} | {length:.0f} | {seconds:.0f} |", flush=True)
        for output, reference in zip(outputs[:3], references, strict=False):
            print(f"{reference}\n  {output}", file=sys.stderr)


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


if __name__ == "__main__":
    main()
