"""Whisper in use beside `generate` of Hugging Face transformers: ids, times, windows, languages and beams."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.hugging_face import difference, disturb
from support.whisper_folder import FIRST, LANGUAGES, N_TIMES, RATE, noise, tokenizer_file, write_whisper

import transduce
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import PLAIN
from transduce.errors import NotFiniteError, UserError
from transduce.family.configs import WhisperConfig
from transduce.family.inference.cpu_whisper import CpuWhisper
from transduce.family.inference.transcriber import Transcriber
from transduce.family.inference.whisper_tokens import rules_of
from transduce.family.sound.log_mel import log_mel
from transduce.family.sound.segments import Transcript, timed_ids_of
from transduce.family.sound.whisper import Whisper

END = 256
FIRST_TIME = END + len(FIRST)
Both = tuple[Transcriber, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("whisper")
    theirs = write_whisper(folder)
    return transduce.family.load(folder), theirs


def generate(theirs: Any, features: torch.Tensor, **options: Any) -> Any:
    return theirs.generate(features[None], num_beams=options.pop("num_beams", 1), do_sample=False, **options)


def expected_segments(both: Both, samples: torch.Tensor, **options: Any) -> list[tuple[float, float, str]]:
    """Return start, end and text of the segments of `generate`, which may end after the sound."""
    ours, theirs = both
    output = generate(theirs, log_mel(samples, 20), return_timestamps=True, return_segments=True, **options)
    segments = [(s["start"].item(), s["end"].item(), ours._text(s["tokens"].tolist())) for s in output["segments"][0]]
    duration = len(samples) / RATE
    return [(pytest.approx(min(a, duration)), pytest.approx(min(b, duration)), text) for a, b, text in segments]


def segments_of(transcript: Transcript) -> list[tuple[float, float, str]]:
    return [dataclasses.astuple(segment) for segment in transcript.segments]


@pytest.mark.parametrize(("seed", "language", "task"), [(1, "de", "transcribe"), (2, "yue", "translate")])
def test_windows_of_a_long_sound_are_those_of_hugging_face(both: Both, seed: int, language: str, task: str) -> None:
    samples = noise(1.7, seed)
    transcript = both[0].transcribe(samples, language=language, task=task)
    assert segments_of(transcript) == expected_segments(both, samples, language=language, task=task)
    assert transcript.text == "".join(segment.text for segment in transcript.segments).strip()
    assert transcript.duration == pytest.approx(1.7) and transcript.language == language
    assert 0 < len(transcript.cut) < len(transcript.segments)  # some outputs end, and others are cut


@pytest.mark.parametrize("beam_size", [2, 4])
def test_a_beam_finds_what_hugging_face_finds(both: Both, beam_size: int) -> None:
    samples = noise(1.0, 3)
    transcript = both[0].transcribe(samples, language="en", beam_size=beam_size)
    options = {"language": "en", "task": "transcribe", "num_beams": beam_size}
    assert segments_of(transcript) == expected_segments(both, samples, **options)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_short_sound_without_times_has_the_text_of_hugging_face(both: Both, seed: int) -> None:
    ours, theirs = both
    samples = noise(0.6, seed)
    (ids,) = generate(theirs, log_mel(samples, 20), language="de", task="transcribe").tolist()
    assert ours.transcribe(samples, language="de").text == ours._text(ids).strip()


def test_the_language_is_the_one_that_hugging_face_detects(both: Both) -> None:
    ours, theirs = both
    samples = noise(1.0, 4)
    (expected,) = theirs.detect_language(log_mel(samples, 20)[None], num_segment_frames=60).tolist()
    assert ours.transcribe(samples).language == {ours.tokens.languages[code]: code for code in LANGUAGES}[expected]


def test_repetition_settings_of_the_folder_are_those_of_hugging_face(tmp_path: Path) -> None:
    theirs = write_whisper(tmp_path, repetition_penalty=1.7, no_repeat_ngram_size=2)
    both = Transcriber.load(tmp_path), theirs
    samples = noise(1.0, 1)
    expected = expected_segments(both, samples, language="de", task="transcribe")
    assert segments_of(both[0].transcribe(samples, language="de")) == expected


def test_rules_bar_the_tokens_that_hugging_face_bars(both: Both) -> None:
    """Outputs that follow the rules, of any length, with random probabilities of the next token."""
    module = pytest.importorskip("transformers.generation.logits_process", reason="needs transduce[export]")
    ours, theirs = both
    rules = rules_of(ours.tokens, ours.member, ours.folder, with_times=True)
    config = theirs.generation_config
    processors = [
        module.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin_index=1),
        module.SuppressTokensLogitsProcessor(config.suppress_tokens),
        module.WhisperTimeStampLogitsProcessor(config, begin_index=1),
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        output: list[int] = []
        for _ in range(12):
            logits = 4 * torch.randn(1, FIRST_TIME + N_TIMES, generator=generator)
            logits[0, FIRST_TIME:] += torch.randn(1, generator=generator)
            log_probs = expected = logits.log_softmax(dim=-1)
            for processor in processors:
                expected = processor(torch.tensor([[0, *output]]), expected)
            changed = rules(log_probs, [output])
            assert torch.equal(changed, expected)
            output.append(int(torch.multinomial(changed[0].exp(), 1, generator=generator)))


def test_parts_are_the_segments_of_hugging_face(both: Both) -> None:
    retrieve = both[1]._retrieve_segment
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        times = FIRST_TIME + torch.randint(N_TIMES, (8,), generator=generator).sort().values
        ids: list[int] = []
        for pair in times.split(2):  # a segment is a time, text, and a time
            start, end = pair.tolist()
            ids += [start, *[5] * int(torch.randint(1, 4, (1,), generator=generator)), end]
        ids = ids[: int(torch.randint(1, len(ids) + 1, (1,), generator=generator))]
        n_frames = int(torch.randint(2, 61, (1,), generator=generator))
        segments, n_done = retrieve(
            seek_sequence=torch.tensor(ids),
            seek_outputs=[None],
            time_offset=torch.zeros(1, dtype=torch.float64),
            timestamp_begin=FIRST_TIME,
            seek_num_frames=torch.tensor([n_frames]),
            time_precision=0.02,
            time_precision_features=0.01,
            input_stride=2,
            prev_idx=0,
            idx=0,
            return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 3),
        )
        parts, ours_done = timed_ids_of(ids, FIRST_TIME, n_frames)
        assert ours_done == n_done
        expected = [(float(s["start"]), float(s["end"])) for s in segments]
        assert [(p.start * 0.02, p.end * 0.02) for p in parts] == [pytest.approx(pair) for pair in expected]
        texts = [[token for token in s["tokens"].tolist() if token < FIRST_TIME] for s in segments]
        assert [[token for token in p.ids if token < FIRST_TIME] for p in parts] == texts


def test_silence_and_sounds_shorter_than_a_frame_have_a_transcript(both: Both) -> None:
    for samples in torch.zeros(5_000), torch.full((3,), 0.5), np.zeros(20_000):
        transcript = both[0].transcribe(samples, language="en")
        assert transcript.segments and transcript.duration == len(samples) / 16_000


def test_a_sound_may_be_a_view_that_torch_does_not_take(both: Both) -> None:
    samples = noise(0.5).numpy()
    backwards = both[0].transcribe(samples[::-1], language="en")
    assert backwards == both[0].transcribe(samples[::-1].copy(), language="en")


def test_segments_end_within_the_sound(both: Both) -> None:
    for seed in range(4):
        transcript = both[0].transcribe(noise(0.31, seed), language="en", times=True)
        assert all(0 <= s.start <= s.end <= transcript.duration for s in transcript.segments)


@pytest.mark.parametrize("times", [False, True])
def test_two_times_side_by_side_do_not_stop_the_windows(both: Both, monkeypatch: Any, times: bool) -> None:
    """Without times such an output is one part; with times, a pair at 0.00 does not lead back to the same window."""
    ids = [65, 66, FIRST_TIME, FIRST_TIME, 67, 68]
    monkeypatch.setattr(Transcriber, "_output", lambda *_: Hypothesis(ids, 0.0, 0.0, [], True))
    transcript = both[0].transcribe(noise(0.6), language="en", times=times)
    assert transcript.text == both[0]._text(ids[:2] if times else ids) and len(transcript.segments) == 1


@pytest.mark.parametrize(
    ("mean", "no_speech", "is_silent"), [(-1.2, 0.7, True), (-0.9, 0.7, False), (-1.2, 0.5, False)]
)
def test_an_unlikely_text_of_a_window_without_speech_is_left_out(
    both: Both, monkeypatch: Any, mean: float, no_speech: float, is_silent: bool
) -> None:
    ours = both[0]
    ids = [65, 66, 67]
    probs = torch.full((FIRST_TIME + N_TIMES,), (1 - no_speech) / (FIRST_TIME + N_TIMES - 1))
    probs[END + FIRST.index("nospeech")] = no_speech
    monkeypatch.setattr(Transcriber, "_output", lambda *_: Hypothesis(ids, 0.0, 4 * mean, [], True))
    monkeypatch.setattr(Transcriber, "_first_log_probs", lambda *_: probs.log())
    transcript = ours.transcribe(noise(0.6), language="en", times=False)
    assert transcript.text == ("" if is_silent else ours._text(ids)) and len(transcript.segments) == (not is_silent)
    assert transcript.silent == (((0.0, 0.6),) if is_silent else ())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (torch.zeros(2, 100), "floating-point numbers of the shape"),
        (torch.zeros(0), "floating-point numbers of the shape"),
        (torch.zeros(100, dtype=torch.int16), "floating-point numbers of the shape"),
        (torch.tensor([0.0, float("nan")]), "expected finite numbers"),
    ],
)
def test_what_is_no_sound_is_refused(both: Both, samples: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        both[0].transcribe(samples)


def test_what_the_model_does_not_have_is_refused(both: Both) -> None:
    ours = both[0]
    with pytest.raises(UserError, match="language='dee': expected one of en, de, yue; did you mean 'de'"):
        ours.transcribe(noise(0.1), language="dee")
    with pytest.raises(UserError, match="task='listen': expected one of transcribe, translate"):
        ours.transcribe(noise(0.1), task="listen")
    with pytest.raises(UserError, match="times=False: must not be set for a sound longer than one window"):
        ours.transcribe(noise(1.0), times=False)
    with pytest.raises(UserError, match="beam_size=0"):
        ours.transcribe(noise(0.1), beam_size=0)


def test_a_model_of_one_language_has_no_language_in_its_prompt(tmp_path: Path) -> None:
    theirs = write_whisper(tmp_path, is_multilingual=False, lang_to_id=None, task_to_id=None)
    ours, samples = Transcriber.load(tmp_path), noise(0.6, 2)
    del theirs.generation_config.lang_to_id
    (ids,) = generate(theirs, log_mel(samples, 20)).tolist()
    transcript = ours.transcribe(samples)
    assert transcript.text == ours._text(ids).strip() and transcript.language is None
    with pytest.raises(UserError, match="language='en': must not be set for a model of one language; leave it out"):
        ours.transcribe(samples, language="en")


def test_a_model_without_times_takes_short_sounds_only(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    tokenizer = tokenizer_file(0).to_str().replace("notimestamps", "nothing")
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    ours = Transcriber.load(tmp_path)
    assert ours.transcribe(noise(0.5), language="en").segments
    with pytest.raises(UserError, match="cut the sound into pieces of at most 0.6 s"):
        ours.transcribe(noise(1.0), language="en")


def test_the_language_and_task_of_an_older_folder_are_ids(tmp_path: Path) -> None:
    pairs = [[1, END + 3], [2, END + 5]]  # <|de|>, <|translate|>
    write_whisper(tmp_path, forced_decoder_ids=pairs)
    tokens = Transcriber.load(tmp_path).tokens
    assert (tokens.language, tokens.task) == ("de", "translate")
    assert tokens.prompt(tokens.language, None, with_times=False) == [END + 1, END + 3, END + 5, END + 8]


def test_other_folders_are_refused_by_name(both: Both, tmp_path: Path) -> None:
    write_whisper(tmp_path, do_sample=True)
    with pytest.raises(UserError, match="expected a search, not a draw"):
        Transcriber.load(tmp_path).transcribe(noise(0.1))
    (tmp_path / "tokenizer.json").write_text(tokenizer_file().to_str().replace("<|transcribe|>", "<|nothing|>"))
    with pytest.raises(UserError, match=r"tokenizer.json: expected the token <\|transcribe\|>"):
        Transcriber.load(tmp_path).transcribe(noise(0.1))


def test_weights_that_are_too_large_are_named(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    ours = Transcriber.load(tmp_path)
    with torch.no_grad():
        ours.model.decoder_norm.weight.fill_(float("inf"))
    with pytest.raises(NotFiniteError, match="expected outputs that are finite numbers"):
        ours.transcribe(noise(0.1), language="en")


# ---- the engine of translation -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_whisper() -> Whisper:
    torch.manual_seed(1)
    sizes: Any = {"d_model": 48, "n_layers": 2, "n_decoder_layers": 3, "n_heads": 3, "n_mels": 20, "max_frames": 300}
    model = Whisper(WhisperConfig(vocab_size=90, **sizes))
    disturb(model)
    return model


@pytest.mark.parametrize("kernels", [PLAIN, compiled()], ids=["plain", "compiled"])
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("int8", 0.05), ("bf16", 0.03)])
@torch.inference_mode()
def test_the_engine_computes_what_the_model_computes(
    random_whisper: Whisper, kernels: Any, precision: Any, most: float
) -> None:
    """Logits after each of 20 tokens, for two sounds, with rows that are selected and repeated as a beam does."""
    if kernels is None:
        pytest.skip("no compiled kernels here")
    engine = CpuWhisper(random_whisper, precision, kernels)
    features, heard = torch.randn(2, 20, 600), torch.ones(2, 300, dtype=torch.bool)
    memory, expected = engine.encode(features, heard), random_whisper.encode(features, heard)
    assert difference(memory.view_as(expected), expected) < most
    states: list[Any] = [engine.start(memory, heard), random_whisper.start(expected, heard)]
    rows, sounds = torch.tensor([0, 0, 1, 1]), torch.arange(2)
    for i in range(20):
        if i == 3:
            states = [state.select(rows, sounds) for state in states]
        ids = torch.arange(len(rows) if i >= 3 else 2) * 7 + i
        logits, states[0] = engine.decode_step(ids, states[0])
        of_model, states[1] = random_whisper.decode_step(ids, states[1])
        assert difference(logits, of_model) < most


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@torch.inference_mode()
def test_threads_do_not_change_the_encoder(random_whisper: Whisper, precision: Any) -> None:
    engine, features, heard = CpuWhisper(random_whisper, precision), torch.randn(2, 20, 600), torch.ones(2, 300) > 0
    alone = engine.encode(features, heard)
    torch.set_num_threads(3)
    assert difference(engine.encode(features, heard), alone) < 1e-6
    assert all(map(torch.equal, engine.keys_values(alone), [layer.cross_memory(alone) for layer in engine.decoder]))
    assert torch.get_num_threads() == 3


def test_an_engine_in_int8_and_bf16_transcribes(both: Both, tmp_path: Path) -> None:
    samples, folder = noise(1.0, 2), both[0].folder
    for precision in "int8", "bf16":
        model = transduce.family.load(folder, precision=precision)
        transcript = copy.deepcopy(model).transcribe(samples, language="en")
        assert transcript == model.transcribe(samples, language="en") and transcript.segments
    assert Transcriber.load(folder, precision="auto").precision in ("fp32", "bf16", "int8")
