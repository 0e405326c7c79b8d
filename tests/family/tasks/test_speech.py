"""Models of sound learn tones as letters, from sound files, by the loop of translation."""

import math
import random
import re
import wave
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.toy_task import CommandResult, write_lines
from support.trainings import log_without_times, train, with_train

from transduce.config.recipes import configure, find_recipe
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.data.batches import collate
from transduce.data.paths import PathsAndText
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.evaluation.word_errors import word_error_rate
from transduce.family.configs import WhisperConfig
from transduce.family.inference.speech_recogniser import SpeechRecogniser
from transduce.family.inference.transcriber import Transcriber
from transduce.family.sound.configs import Wav2Vec2Config
from transduce.family.tasks.speech import CTCTask, SpeechTask, batch_of, encode_sounds
from transduce.model.build import build
from transduce.model.transformer import parameter_count
from transduce.training.gradients import cut

pytest.importorskip("soundfile", reason="needs transduce[sound]")
HERTZ = {"a": 300, "b": 600, "c": 1_200, "d": 2_400}
CTC = Config(
    model=Wav2Vec2Config(
        d_model=32,
        n_layers=1,
        n_heads=2,
        n_channels=32,
        kernels=(40, 3, 4),
        strides=(20, 2, 4),
        position_width=4,
        position_groups=2,
        norm="pre",
        dropout=0.0,
    ),
    data=DataConfig(vocab_size=300, batch_tokens=13 * 256),
    train=TrainConfig(
        task="ctc",
        max_steps=120,
        warmup_steps=20,
        lr_factor=0.4,
        label_smoothing=0.0,
        log_every_steps=20,
        evaluate_every_steps=40,
        checkpoint_every_steps=40,
        use="last",
    ),
)
WHISPER = replace(
    with_train(CTC, task="speech", max_steps=260, warmup_steps=60, lr_factor=0.12),
    model=WhisperConfig(d_model=48, n_layers=1, n_heads=2, n_mels=16, max_frames=10, max_positions=256),
)


def write_sounds(folder: Path, name: str, count: int, seed: int) -> tuple[Path, Path]:
    """Write sounds of 2 to 4 tones of 40 ms, with their letters as words, and return the two texts."""
    folder.mkdir(exist_ok=True)
    generator, noise = random.Random(seed), np.random.default_rng(seed)
    paths, texts = list[str](), list[str]()
    for number in range(count):
        letters = generator.choices([*HERTZ], k=generator.randint(2, 4))
        time = np.arange(640) / 16_000
        tones = [np.sin(2 * np.pi * HERTZ[letter] * time) * np.hanning(640) for letter in letters]
        samples = np.concatenate(tones) * generator.uniform(0.2, 0.8)
        samples += 0.01 * noise.standard_normal(len(samples))
        paths.append(str(write_sound(folder / f"{name}-{number}.wav", samples)))
        texts.append(" ".join(letters))
    return write_lines(folder / f"{name}.paths", paths), write_lines(folder / f"{name}.txt", texts)


def write_sound(path: Path, samples: Sequence[float] | np.ndarray) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((np.asarray(samples) * 32_767).astype("<i2").tobytes())
    return path


def train_in(folder: Path, config: Config, sounds: Path, sizes: tuple[int, int] = (200, 30), **request: Any) -> Path:
    texts = {"train": write_sounds(sounds, "train", sizes[0], 1), "valid": write_sounds(sounds, "valid", sizes[1], 2)}
    train(config, out=folder, **texts, **request)
    return folder


def last_scores(run: Path) -> dict[str, Any]:
    return [line for line in log_without_times(run) if "valid_loss" in line][-1]


# ---- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctc_learns_the_tones(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    run = train_in(tmp_path / "run", CTC, tmp_path / "sounds")
    scores = last_scores(run)
    assert scores["valid_word_errors"] <= 10 and scores["valid_loss"] < 0.3
    texts = (tmp_path / "sounds" / "valid.txt").read_text().splitlines()
    recogniser = SpeechRecogniser.load(run / "model")
    sounds = [tmp_path / "sounds" / f"valid-{i}.wav" for i in range(30)]
    outputs = [recogniser.transcribe(sound) for sound in sounds]
    assert word_error_rate(outputs, texts) == pytest.approx(scores["valid_word_errors"], abs=0.01)
    beam = [recogniser.transcribe(sound, beam_size=10) for sound in sounds]
    assert word_error_rate(beam, texts) <= 10
    recogniser.save(tmp_path / "exported")
    again = SpeechRecogniser.load(tmp_path / "exported")
    assert [again.transcribe(sound) for sound in sounds[:5]] == outputs[:5]
    assert cli("transcribe", run / "model", *sounds[:5]).out.decode().splitlines() == outputs[:5]


@pytest.mark.slow
def test_whisper_learns_the_tones(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    run = train_in(tmp_path / "run", WHISPER, tmp_path / "sounds")
    scores = last_scores(run)
    assert scores["valid_word_errors"] <= 5 and scores["valid_loss"] < 0.3
    texts = (tmp_path / "sounds" / "valid.txt").read_text().splitlines()
    transcriber = Transcriber.load(run / "model")
    outputs = [transcriber.transcribe(tmp_path / "sounds" / f"valid-{i}.wav").text for i in range(30)]
    assert word_error_rate(outputs, texts) == pytest.approx(scores["valid_word_errors"], abs=0.01)
    assert cli("transcribe", run / "model", tmp_path / "sounds" / "valid-0.wav").out.decode() == f"{outputs[0]}\n"
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# A model of speech\n") and "bpe, 269 pieces |" in card
    assert "Word errors" in (run / "report.html").read_text()


# ---- the loop ------------------------------------------------------------------------------------------------------

SHORT = {"max_steps": 4, "log_every_steps": 2, "evaluate_every_steps": 2, "checkpoint_every_steps": 2}


@pytest.mark.parametrize("config", [CTC, WHISPER], ids=["ctc", "speech"])
def test_a_resumed_run_is_the_same_run(config: Config, tmp_path: Path) -> None:
    config = replace(config, model=replace(config.model, dropout=0.2))
    run = train_in(tmp_path / "whole", with_train(config, **SHORT), tmp_path / "sounds", (30, 4))
    train_in(tmp_path / "parts", with_train(config, **SHORT | {"max_steps": 2}), tmp_path / "sounds", (30, 4))
    request: dict[str, Any] = {"resume": True, "allow_change": ["train.max_steps"]}
    resumed = train_in(tmp_path / "parts", with_train(config, **SHORT), tmp_path / "sounds", (30, 4), **request)
    ours, theirs = (folder / "checkpoints" / "step-00000004" for folder in (resumed, run))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert last_scores(resumed) == last_scores(run)


def test_the_report_of_a_run_counts_samples_and_word_errors(tmp_path: Path) -> None:
    page = (
        train_in(tmp_path / "run", with_train(CTC, **SHORT), tmp_path / "sounds", (30, 4)) / "report.html"
    ).read_text()
    assert " samples and tokens/s</dd>" in page and "Word errors" in page and "<h3>Perplexity" not in page


def test_a_batch_has_the_samples_of_its_files(tmp_path: Path) -> None:
    samples = torch.rand(1_400, generator=torch.Generator().manual_seed(1)) - 0.5
    values = samples.numpy()
    sounds = [write_sound(tmp_path / "a.wav", values), write_sound(tmp_path / "b.wav", values[:1_300])]
    tokenizer = PathsAndText(Tokenizer.learn(["a b"], vocab_size=300))
    batch = batch_of([(str(sounds[0]), "a"), (str(sounds[1]), "a b")], tokenizer, CTCTask())
    torch.testing.assert_close(batch.src[0], samples, atol=1e-4, rtol=0)
    torch.testing.assert_close(batch.src[1, :1_300], samples[:1_300], atol=1e-4, rtol=0)
    assert batch.src_mask.sum(1).tolist() == [1_400, 1_300] and not batch.src[1, 1_300:].any()
    assert tokenizer.target.decode(batch.tgt_in[1].tolist()) == "a b"
    (first, second) = cut(batch, 2)
    assert first.src.shape == (1, 1_400) and second.src.shape == (1, 1_300)


def test_a_rank_without_pairs_adds_nothing() -> None:
    """A part of the gradient of several GPUs: a batch of silence without a target."""
    batch = CTCTask().collate([np.array([3])], [np.array([3])], np.array([], int))
    batch = replace(batch, tgt_mask=torch.zeros_like(batch.tgt_mask), tgt_indices=batch.tgt_indices[:0])
    for config, task in ((CTC, CTCTask()), (WHISPER, SpeechTask())):
        model = build(replace(config.model, vocab_size=300))
        if task.__class__ is SpeechTask:
            batch = replace(batch, src=batch.src[:, :1_000])
        assert task.loss(model, batch, config.train).item() == 0


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["none.wav\ta"], "valid.paths:1: expected the path of a sound file, but none.wav does not exist"),
        (["SOUND\ta", "SOUND\t "], "valid.txt:2: expected text; leave this line out of both files"),
        (["SOUND\t" + "a b " * 300], "valid.txt:1: expected at most 256 tokens, not 1202"),
    ],
)
def test_a_validation_text_that_cannot_be_scored_is_named(lines: list[str], message: str, tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "a.wav", [0.0] * 1_000)
    pairs = [tuple(line.replace("SOUND", str(sound)).split("\t")) for line in lines]
    tokenizer = PathsAndText(Tokenizer.learn(["a b"], vocab_size=264))
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        CTCTask().check([(path, text) for path, text in pairs], tokenizer, 256, ("valid.paths", "valid.txt"))


def test_a_sound_shorter_than_a_frame_is_refused(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.wav", [0.1] * 500)
    tokenizer = PathsAndText(Tokenizer.learn(["a b"], vocab_size=300))
    with pytest.raises(UserError, match="a.wav: expected a sound of at least 75 ms, not 500 samples; leave it and"):
        batch_of([(str(path), "a")], tokenizer, CTCTask())


def started(folder: Path, config: Config, lines: Sequence[tuple[Path, str]], valid: Sequence[tuple[Path, str]]) -> None:
    """Start a training of one step on paths and texts."""
    texts = {
        name: [write_lines(folder / f"{name}.{i}", [str(line[i]) for line in rows]) for i in (0, 1)]
        for name, rows in (("train", lines), ("valid", valid))
    }
    steps = {"max_steps": 1, "log_every_steps": 1, "evaluate_every_steps": 1, "checkpoint_every_steps": 1}
    train(with_train(config, **steps), train=tuple(texts["train"]), valid=texts["valid"], out=folder / "run")


def test_a_text_without_enough_frames_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation text is refused, and the loss skips a training text, which would be infinite."""
    sound = write_sound(tmp_path / "a.wav", 0.1 * np.sin(np.arange(1_600)))
    good, long = (sound, "a b"), (sound, "a b c d a b c d a b c d")
    with pytest.raises(
        UserError, match=r"^valid.1:2: expected a text for \d+ frames, but it needs \d\d; leave this line"
    ):
        started(tmp_path, CTC, [good, good], [good, long])
    with pytest.raises(UserError, match="lines 1: expected a text that needs no more frames than its sound has"):
        started(tmp_path, CTC, [long], [good])
    started(tmp_path, CTC, [good, long, good], [good])
    printed = capsys.readouterr().err
    assert re.search(
        r"training skips 1 pairs with too few frames for the text: \S*train.0 and \S*train.1, lines 2", printed
    )
    assert math.isfinite(last_scores(tmp_path / "run")["valid_loss"]) and "skipped" not in printed
    assert " samples and tokens/s  " in printed


def test_a_skipped_text_adds_no_gradient() -> None:
    model = build(replace(CTC.model, vocab_size=300))
    tokens = [np.array([300 - i for i in range(2, 5)]), np.arange(5, 60)]
    samples = torch.randn(2, 1_600, generator=torch.Generator().manual_seed(1))
    both = replace(collate(tokens, tokens), src=samples, src_mask=torch.ones(2, 1_600, dtype=torch.bool))
    first = replace(collate(tokens[:1], tokens[:1]), src=samples[:1], src_mask=both.src_mask[:1])
    gradients = []
    for batch in (both, first):
        model.zero_grad()
        CTCTask().loss(model, batch, CTC.train).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    assert any(gradient.any() for gradient in gradients[1])


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        (CTC, "none.wav", "expected a sound file, but it is missing; check the path"),
        (CTC, "text.wav", "expected a sound (Format not recognised)"),
        (CTC, "short.wav", "expected a sound of at least 75 ms, not 500 samples"),
        (WHISPER, "long.wav", "expected at most 0.2 s with model.max_frames=10; cut the sound"),
    ],
)
def test_a_bad_training_sound_is_named_before_the_training(
    config: Config, name: str, message: str, tmp_path: Path
) -> None:
    good = write_sound(tmp_path / "a.wav", [0.1] * 1_600), "a b"
    (tmp_path / "text.wav").write_text("no sound")
    write_sound(tmp_path / "short.wav", [0.1] * 500)
    write_sound(tmp_path / "long.wav", [0.1] * 8_000)
    bad = tmp_path / name, "a b"
    place = rf"\S*train.0 and \S*train.1, lines 2: {re.escape(str(tmp_path / name))}"
    with pytest.raises(UserError, match=rf"^{place}.*{re.escape(message)}"):
        started(tmp_path, config, [good, bad], [good])
    if name != "none.wav":  # `check` has named it
        with pytest.raises(UserError, match=rf"^valid.0:2: .*{re.escape(message)}"):
            started(tmp_path, config, [good], [good, bad])


def test_a_sound_that_is_damaged_after_its_header_is_named(tmp_path: Path) -> None:
    """The samples of a training sound are read in its step only."""
    good = write_sound(tmp_path / "a.wav", [0.1] * 1_600), "a b"
    bad = tmp_path / "b.wav"
    nan = np.full(1_600, np.nan, np.float32)
    pytest.importorskip("soundfile").write(bad, nan, 16_000, subtype="FLOAT")
    with pytest.raises(UserError, match=r"train.1, lines 2: \S*b.wav: expected samples that are finite numbers; use"):
        started(tmp_path, CTC, [good, (bad, "a b")], [good])


def test_a_sound_longer_than_the_window_is_refused() -> None:
    model = build(replace(WHISPER.model, vocab_size=300))
    with pytest.raises(UserError, match=r"a sound of 0.5 s: expected at most 0.2 s with model.max_frames=10; cut"):
        encode_sounds(model, torch.zeros(1, 8_000))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.label_smoothing=0.1", "train.label_smoothing=0.1: expected 0 with train.task='ctc'"),
        ("train.rdrop=1", "train.rdrop=1.0: expected 0 with train.task='ctc'"),
        ("data.tags=<2de>", "data.tags=<2de>: must not be set with train.task='ctc'"),
        ("model.strides=5,2", "model.strides=5,2: expected as many numbers as model.kernels has"),
        ("model.strides=5,x", "--set model.strides=5,x: expected a list"),
        ("train.task=speech", "model.kind='wav2vec2': expected 'whisper' with train.task='speech'"),
        ("train.best_by=bleu", "train.best_by='bleu': expected 'loss' with train.task='ctc'"),
    ],
)
def test_settings_that_do_not_fit_are_named(setting: str, message: str) -> None:
    _, lines, _ = configure("ctc-small", [setting])
    assert any(line.startswith(message) for line in lines), lines


def test_the_recipes_have_their_sizes() -> None:
    for name, size in (("ctc-small", 0.9), ("speech-small", 1.3)):
        model = build(replace(find_recipe(name)().model, vocab_size=290))
        assert round(parameter_count(model) / 1e6, 1) == size
