"""Models in Hugging Face's form that were imported translate as they do in transformers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.calls import fork_transduce
from support.opus_models import LINES, hugging_face, opus, sentencepiece, transformers
from support.toy_task import write_lines
from support.trainings import CONFIG, train, with_train

import transduce
from transduce import UserError
from transduce.data.corpora import read_pairs
from transduce.data.vocabulary import EOS
from transduce.interop.marian_export import export_marian
from transduce.interop.marian_import import import_marian
from transduce.storage import run_choices
from transduce.storage.model_folder import load_model
from transduce.storage.run_folder import run_config
from transduce.storage.run_request import TrainRequest


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "relu"},
        {"share_encoder_decoder_embeddings": False},
        {"tie_word_embeddings": False},
        {"encoder_layers": 3, "decoder_layers": 1},
        {"encoder_layers": 2, "decoder_layers": 4},
    ],
    ids=str,
)
def test_an_imported_model_translates_as_in_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = opus(tmp_path / "opus", **changes)
    import_marian(folder, tmp_path / "model")
    theirs, tokenizer = hugging_face(folder)
    loaded, model = load_model(tmp_path / "model"), transduce.load(tmp_path / "model")
    pad = theirs.config.pad_token_id
    ours = {pad: 1, 0: EOS} | {i: i + 3 for i in range(1, pad)}  # their id -> ours

    tokens = tokenizer(LINES, text_target=LINES, return_tensors="pt", padding=True)
    for line, src, tgt in zip(LINES, tokens["input_ids"].tolist(), tokens["labels"].tolist(), strict=True):
        for side, ids in ((loaded.tokenizer, src), (loaded.tokenizer.target, tgt)):
            assert [*side.encode(line), EOS] == [ours[i] for i in ids if i != pad]

    start = torch.full((len(LINES), 1), pad)
    decoder_ids = torch.cat([start, tokens["labels"]], 1)
    mask = tokens["attention_mask"]
    with torch.inference_mode():
        expected = theirs(input_ids=tokens["input_ids"], attention_mask=mask, decoder_input_ids=decoder_ids).logits
        our_src, our_tgt = (x.apply_(lambda i: ours[i]) for x in (tokens["input_ids"].clone(), decoder_ids.clone()))
        logits = loaded.model(our_src, mask.bool(), our_tgt)
    torch.testing.assert_close(logits[..., [ours[i] for i in range(pad + 1)]], expected, rtol=1e-4, atol=1e-3)
    assert (logits[..., [0, 3]] < -1e3).all()
    assert min(loaded.tokenizer.encode("<pad> <s> </s> <unk>")) > 3  # text is never a control token

    search = replace(loaded.config.search, min_tokens=6, alpha=0.0)  # otherwise a random model ends at once
    model = transduce.Translator([replace(loaded, config=replace(loaded.config, search=search))])
    options = {"bad_words_ids": [[pad]], "min_new_tokens": 6, "max_length": 50, "forced_eos_token_id": None}
    beam = {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.0, **options}
    with_scores = {"output_scores": True, "return_dict_in_generate": True}
    equal = 0
    for line in LINES:
        sentence = tokenizer([line], return_tensors="pt")
        greedy = theirs.generate(**sentence, num_beams=1, **options)[0, 1:].tolist()
        assert list(model.translate([line], beam_size=1, loops="keep")[0].pieces)[
            : len(greedy)
        ] == loaded.tokenizer.pieces([ours[i] for i in greedy])
        best, output = model.translate([line], loops="keep")[0], theirs.generate(**sentence, **beam, **with_scores)
        score, ids = output.sequences_scores[0].item(), output.sequences[0].tolist()
        if best.text == tokenizer.decode(ids, skip_special_tokens=True):
            assert best.score == pytest.approx(score, abs=1e-3)
            equal += len(best.text) > 0
        else:
            # transformers drops hypotheses that end outside the best 4 extensions, and may return one that was cut.
            assert best.score > score or ids[-1] != 0
    assert equal >= 1  # 3 to 5 with tied weights


def test_a_model_of_two_vocabularies_translates_as_in_transformers(original: Path, tmp_path: Path) -> None:
    """The target has the pieces of its own sentencepiece model, and other ids."""
    folder = shutil.copytree(original, tmp_path / "opus")
    target = sentencepiece.SentencePieceProcessor(model_file=str(folder / "target.spm"))
    pieces = [target.id_to_piece(i) for i in range(3, target.vocab_size())]
    pad = len(json.loads((folder / "vocab.json").read_bytes())) - 1
    pieces = ["</s>", "<unk>", *pieces, *(f"unused{i}" for i in range(pad - 2 - len(pieces))), "<pad>"]
    (folder / "target_vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), "utf-8")
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    settings = json.loads((folder / "config.json").read_bytes())
    settings |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": pad + 1}
    model = transformers.MarianMTModel(transformers.MarianConfig.from_dict(settings)).eval()
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    import_marian(folder, tmp_path / "model")
    export_marian(tmp_path / "model", tmp_path / "out")  # with one vocabulary of the pieces of both
    tokens = dict(return_tensors="pt", padding=True)
    options = {"num_beams": 1, "min_new_tokens": 6, "max_length": 20, "forced_eos_token_id": None}
    texts = []
    for path in (folder, tmp_path / "out"):
        theirs, tokenizer = hugging_face(path)
        output = theirs.generate(**tokenizer(LINES, **tokens), **options, bad_words_ids=[[theirs.config.pad_token_id]])
        texts.append(tokenizer.batch_decode(output, skip_special_tokens=True))
    assert texts[0] == texts[1] and all(texts[0])
    search = replace(load_model(tmp_path / "model").config.search, min_tokens=6)
    loaded = replace(
        load_model(tmp_path / "model"), config=replace(load_model(tmp_path / "model").config, search=search)
    )
    ours = transduce.Translator([loaded]).translate(LINES, beam_size=1, max_length=19, loops="keep")
    assert [translation.text for translation in ours] == texts[0]


def test_an_imported_model_translates_and_scores(tmp_path: Path) -> None:
    folder = opus(tmp_path / "opus")
    process = fork_transduce("import", "marian", folder, "--out", tmp_path / "model")
    assert (process.code, process.out, process.err) == (0, b"", "")
    model = transduce.load(tmp_path / "model")
    assert model.tokenizer.tags == [">>fra<<"] and model.tokenizer.target.tags == []
    with_code = [f">>fra<< {line}" for line in LINES[:2]]
    assert model.translate(LINES[:2], tag=">>fra<<") == model.translate(with_code)
    two = " ".join(LINES[:2])  # a space between a code and a text belongs to neither, also before each sentence
    options = {"split": "sentences", "alignment": True}
    assert (
        model.translate([two], tag=">>fra<<", **options)[0].text
        == model.translate([f">>fra<< {two}"], **options)[0].text
    )
    best = model.translate(LINES[:1])[0]
    assert model.score(LINES[:1], [best.text])[0].log_prob < 0
    assert fork_transduce("import", "marian", folder, tmp_path / "model").code == 2


def test_a_text_that_is_held_out_has_no_source_with_another_language_code(tmp_path: Path) -> None:
    import_marian(opus(tmp_path / "opus"), tmp_path / "model")
    twice = [(f"{code}der Hund {i}", f"{code[2:5]} {i}") for i in range(100) for code in (">>fra<< ", ">>ita<<")]
    once = [(f">>fra<< das Kind {i}", f"enfant {i}") for i in range(10)]
    sides = zip(*twice, *once, strict=True)
    texts = [write_lines(tmp_path / name, side) for name, side in zip(("src", "tgt"), sides, strict=True)]
    config = with_train(CONFIG, max_steps=1, warmup_steps=1, decay_steps=0)
    config = replace(config, data=replace(config.data, bpe_dropout=0.0))
    run = tmp_path / "run"
    train(config, train=texts, valid=[], out=run, start_from=tmp_path / "model")
    written = (run / "held-out" / "valid.src").stat().st_mtime_ns
    resumed = run_choices.complete(TrainRequest(run_config(run), texts, [], run, resume=True), lambda lines: None)
    assert {*read_pairs(resumed.valid_corpus)} <= {*once}
    assert resumed.valid_corpus.src.stat().st_mtime_ns == written, "a run that resumes has another text"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function='gelu'"),
        ({"scale_embedding": False}, "scale_embedding=False"),
        ({"decoder_ffn_dim": 20}, "encoder_ffn_dim=48 and decoder_ffn_dim=20: expected equal values"),
        ({"decoder_start_token_id": 5}, "decoder_start_token_id=5: expected pad_token_id="),
    ],
)
def test_a_model_that_transduce_cannot_build_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        import_marian(opus(tmp_path / "opus", **changes), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opus(tmp_path_factory.mktemp("marian") / "opus")


def refused(folder: Path, name: str, content: bytes, out: Path) -> str:
    """Return the message about a copy of `folder` in which the file `name` has another content."""
    copy = shutil.copytree(folder, out / "copy")
    (copy / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        import_marian(copy, out / "model")
    assert not (out / "model").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": None}, "d_model=None: expected an integer"),
        ({"d_model": ...}, "d_model=not in config.json: expected an integer"),
        ({"d_model": "32"}, "d_model='32': expected an integer"),
        ({"d_model": True}, "d_model=True: expected an integer"),
        ({"encoder_layers": ..., "decoder_layers": ...}, "decoder_layers=not in config.json: expected an integer"),
        ({"activation_function": ["relu"]}, "activation_function=['relu']: expected text"),
        ({"dropout": None}, "dropout=None: expected a number"),
        ({"dropout": "0.1"}, "dropout='0.1': expected a number"),
        ({"length_penalty": []}, "length_penalty=[]: expected a number"),
        ({"num_beams": "4"}, "num_beams='4': expected an integer"),
        ({"num_beams": 0}, "config.json: expected a model that transduce can build; search.beam_size=0"),
        ({"pad_token_id": None}, "pad_token_id=None: expected an integer"),
        ({"d_model": 1_000_000}, "model.safetensors: expected the tensors of its configuration"),
        (
            {"encoder_ffn_dim": 1_000_000, "decoder_ffn_dim": 1_000_000},
            "feed_forward.w_1.weight has the shape (48, 32)",
        ),
        ({"encoder_layers": 9_000, "decoder_layers": 9_000}, "model.safetensors: expected the tensors of config.json"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str, original: Path, tmp_path: Path) -> None:
    settings = json.loads((original / "config.json").read_bytes()) | changes
    content = {key: value for key, value in settings.items() if value is not ...}
    copy = shutil.copytree(original, tmp_path / "copy")
    (copy / "generation_config.json").unlink()  # its values come before the values of config.json
    assert message in refused(copy, "config.json", json.dumps(content).encode(), tmp_path / "out")


def test_wrong_vocabularies_are_refused(original: Path, tmp_path: Path) -> None:
    ids = json.loads((original / "vocab.json").read_bytes())
    piece = next(piece for piece in ids if piece.startswith("▁"))
    changes = {
        "expected an integer for each piece": [{piece: None}, {piece: "7"}, {piece: 1.5}, {piece: True}],
        "expected pieces that are text": [{"\ud800": 3}, {"<s>": 3}, {"<unknown>": 3}],
        "expected the ids 0 to": [{"further": len(ids)}, {piece: len(ids)}],
    }
    folders = iter(range(99))
    for message, contents in changes.items():
        for change in contents:
            content = json.dumps({**ids, **change}).encode()
            assert message in refused(original, "vocab.json", content, tmp_path / str(next(folders)))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("content", [b"", b"\n", b"no model", b"\xff" * 100])
def test_sentencepiece_models_without_pieces_are_refused(
    side: str, content: bytes, original: Path, tmp_path: Path
) -> None:
    message = refused(original, f"{side}.spm", content, tmp_path)
    assert f"{side}.spm: expected a sentencepiece model" in message and message.endswith("use another copy")


def test_null_in_the_generation_settings_means_the_default(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    (copy / "generation_config.json").write_text('{"length_penalty": null, "num_beams": null}')
    import_marian(copy, tmp_path / "model")
    search = load_model(tmp_path / "model").config.search
    assert (search.beam_size, search.alpha) == (4, 1.0)


def test_weights_in_a_pickle_are_refused(tmp_path: Path) -> None:
    folder = opus(tmp_path / "opus")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"a pickle, .*save_pretrained"):
        import_marian(folder, tmp_path / "model")
    (folder / "source.spm").unlink()
    with pytest.raises(UserError, match="expected a Marian model with model.safetensors, source.spm"):
        import_marian(folder, tmp_path / "model")
