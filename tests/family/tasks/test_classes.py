"""Fine-tuning: a small BERT becomes a classifier by the loop of translation."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import assert_mistake
from support.small_encoders import bert_folder, small_bert
from support.small_members import gpt2_folder
from support.toy_task import CommandResult, write_lines
from support.trainings import log_without_times, train, with_train
from torch.nn import functional as F

from transduce.config.recipes import family
from transduce.config.schema import Config, DataConfig
from transduce.config.validation import problems
from transduce.data.corpora import Corpus
from transduce.data.labels import MAX_LABELS, TextAndLabels
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, EOS
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.family.configs import BertClassifierConfig, BertConfig
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.tasks.classes import ClassTask, macro_f1
from transduce.family.tasks.fine_tuning import start
from transduce.family.tasks.masked_words import MaskedWordsTask
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_request import TrainRequest
from transduce.training.gradients import cut
from transduce.training.weights import weights

OTHERS = "a the runs sleeps fast on small big".split()
LABELS = ["has a bird", "has a cat", "has a dog"]
RECIPE = family.bert_classifier()
CONFIG = replace(
    with_train(
        RECIPE,
        max_steps=40,
        warmup_steps=20,
        lr_factor=0.04,
        log_every_steps=20,
        evaluate_every_steps=20,
        checkpoint_every_steps=20,
        use="last",
    ),
    model=replace(RECIPE.model, dropout=0.05),
    data=replace(RECIPE.data, batch_tokens=200, max_tokens=20),
)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sentences of at most 7 words with their labels: which animal is there."""
    generator, pairs = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        words, animal = generator.choices(OTHERS, k=generator.randint(1, 6)), generator.choice(["cat", "dog", "bird"])
        words.insert(generator.randint(0, len(words)), animal)
        pairs.append((" ".join(words), f"has a {animal}"))
    return pairs


def write(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    lines, labels = zip(*pairs, strict=True)
    return write_lines(folder / f"{name}.txt", lines), write_lines(folder / f"{name}.labels", labels)


TRAIN, VALID = sentences(150, seed=1), [*sentences(40, seed=2), ("", LABELS[0])]


def train_in(folder: Path, config: Config = CONFIG, encoder: Path | None = None, **request: Any) -> Path:
    encoder = encoder or folder / "encoder"
    if not encoder.exists():
        bert_folder(encoder, "words")
    texts = {"train": write(folder, "train", [*TRAIN, ("", LABELS[0])]), "valid": write(folder, "valid", VALID)}
    train(config, start_from=encoder, out=folder / "run", **texts, **request)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("classes"))


def test_it_learns_the_classes(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    scores = [line for line in log_without_times(run) if "valid_loss" in line][-1]
    assert scores["valid_accuracy"] >= 95 and scores["valid_macro_f1"] >= 95 and scores["valid_loss"] < 0.7
    lines = write_lines(tmp_path / "lines", ["a small dog runs", "", "the cat"])
    output = cli("classify", run / "model", "--input", lines).out.decode().splitlines()
    assert [line.partition("\t")[0] for line in output] == ["has a dog", "", "has a cat"]
    card = (run / "model" / "README.md").read_text()
    assert card.startswith("# A classifier\n") and "transduce classify THIS_FOLDER" in card
    assert "wordpiece, 20 pieces; 3 labels" in card and "macro F1" in card
    page = (run / "report.html").read_text()
    assert "% of the sentences" in page and "validation macro F1" in page and "<h3>Perplexity" not in page


def test_a_classifier_is_evaluated(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    """The validation text has the figures of the training, in RUN/model and in Hugging Face's form."""
    text, labels = write(tmp_path, "valid", VALID)
    cli("export", run / "model", "--to", "huggingface", "--out", tmp_path / "bert")
    expected = [line for line in log_without_times(run) if "valid_loss" in line][-1]
    for folder in (run / "model", tmp_path / "bert"):
        scores = json.loads(cli("evaluate", folder, "--text", text, "--labels", labels, "--json").out)
        assert scores["sentences"] == len(VALID) - 1
        assert scores["loss"] == pytest.approx(expected["valid_loss"], abs=2e-5)
        assert [scores["accuracy"], scores["macro_f1"]] == [expected["valid_accuracy"], expected["valid_macro_f1"]]
    text, labels = write(tmp_path, "unknown", [VALID[0], ("a cow", "cow")])
    mistake = cli("evaluate", run / "model", "--text", text, "--labels", labels)
    assert_mistake(
        mistake, "unknown.labels:2: expected a label of the training text (has a bird, has a cat, has a dog)"
    )
    assert_mistake(cli("evaluate", run / "model", "--labels", labels), "--labels: expected the sentences as --text")
    text, labels = write(tmp_path, "long", [VALID[0], ("a " * 30, LABELS[0])])
    assert_mistake(
        cli("evaluate", run / "model", "--text", text, "--labels", labels), "long.txt:2: expected at most 24"
    )


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path) -> None:
    encoder = run.parent / "encoder"
    train_in(tmp_path, with_train(CONFIG, max_steps=20), encoder)
    request: dict[str, Any] = {"resume": True, "allow_change": ["train.max_steps"]}
    resumed = train_in(tmp_path, with_train(CONFIG, max_steps=40), encoder, **request)
    (ours,) = [path for path in checkpoints(resumed) if path.name == "step-00000040"]
    theirs = run / "checkpoints" / "step-00000040"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_the_answer_to_a_line_does_not_depend_on_the_others(run: Path) -> None:
    encoder, lines = TextEncoder.load(run / "model"), [line for line, _ in VALID]
    assert [encoder.classify([line])[0] for line in lines] == encoder.classify(lines)


def test_a_fine_tuning_starts_from_the_encoder_and_a_new_head(tmp_path: Path) -> None:
    def parameters(encoder: Path, seed: int = 1) -> dict[str, Any]:
        texts = {"train": [Corpus(*write(tmp_path, "t", TRAIN))], "valid": [], "out": tmp_path}
        return weights(start(TrainRequest(with_train(CONFIG, seed=seed), **texts, start_from=encoder)).model)

    words, pooled = bert_folder(tmp_path / "a", "words"), bert_folder(tmp_path / "b", "pooler")
    one, other, third = parameters(words), parameters(words, seed=2), parameters(pooled)
    for name, values in weights(small_bert("pooler")).items():
        assert third[name].equal(values), name
    for name, values in weights(small_bert("words").encoder).items():
        assert one[f"encoder.{name}"].equal(values), name
    assert not one["classifier.linear.weight"].equal(other["classifier.linear.weight"])
    assert float(one["pooler.linear.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert not one["classifier.linear.bias"].any() and not one["pooler.linear.bias"].any()
    assert one["classifier.linear.weight"].shape == (3, 48)


# ---- Hugging Face ------------------------------------------------------------------------------------------------


def assert_same_logits(model: Path, exported: Path, lines: Sequence[str]) -> None:
    """Check that transformers cuts the lines as `classify` does, and computes the same logits and labels."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(exported).eval()
    assert type(theirs).__name__ == "BertForSequenceClassification"
    encoder, loaded = TextEncoder.load(model), load_model(model)
    ours: Any = loaded.model
    for line in lines:
        ids = tokenizer(line)["input_ids"]
        assert ids == encoder.tokenizer.encode(line).ids == loaded.tokenizer.encode(line)
        inputs = torch.tensor([ids])
        with torch.no_grad():
            expected = theirs(inputs).logits
            states = ours.encoder(inputs, torch.ones_like(inputs, dtype=torch.bool))
            torch.testing.assert_close(ours.classifier(ours.pooler(states)), expected, rtol=1e-4, atol=1e-5)
        answer = encoder.classify([line])[0].value or {}
        assert next(iter(answer)) == theirs.config.id2label[int(expected.argmax())]


def test_hugging_face_computes_the_same_logits(run: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    assert cli("export", run / "model", "--to", "huggingface", "--out", tmp_path / "bert").code == 0
    assert_same_logits(run / "model", tmp_path / "bert", [line for line, _ in VALID[:10]])


def test_the_encoder_may_be_one_of_a_training_here(cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    """Its tokenizer stays, with both ends. A classifier may be fine-tuned again, with other labels."""
    tokenizer = Tokenizer.learn([line for line, _ in TRAIN], vocab_size=290)
    model = BertConfig(vocab_size=tokenizer.vocab_size, d_model=32, n_layers=1, n_heads=2, max_positions=40)
    task = with_train(Config(model=model, data=DataConfig(max_tokens=32)), task="masked_words")
    torch.manual_seed(1)
    save_model(tmp_path / "bert", weights(MaskedWordsTask().build(task)), task, tokenizer, "")
    others = [(line, label.replace("has a", "with a")) for line, label in VALID[:-1]]
    train_texts, valid_texts = write(tmp_path, "train", TRAIN), write(tmp_path, "valid", VALID)
    settings = ["--set", "train.max_steps=2", "--set", "data.max_tokens=40", "--set", "model.dropout=0.2"]
    for folder, pair, out in (("bert", valid_texts, "one"), ("one/model", write(tmp_path, "other", others), "two")):
        texts = ["--train", *(train_texts if out == "one" else pair), "--valid", *pair]
        result = cli("finetune", tmp_path / folder, *texts, "--out", tmp_path / out, "--seed", 3, *settings)
        assert result.code == 0, result.err
        config = json.loads((tmp_path / out / "config.json").read_text())
        assert config["train"]["seed"] == 3 and config["model"]["dropout"] == 0.2
        assert config["model"]["d_model"] == 32 and config["data"]["tokenizer"] == "bpe"
    loaded = load_model(tmp_path / "two" / "model")
    assert loaded.tokenizer.encode("a dog") == [BOS, *tokenizer.encode("a dog"), EOS]
    assert loaded.tokenizer.target.vocabulary == ["with a bird", "with a cat", "with a dog"]
    assert cli("export", tmp_path / "two" / "model", "--to", "huggingface", "--out", tmp_path / "hf").code == 0
    assert_same_logits(tmp_path / "two" / "model", tmp_path / "hf", ["a dog", "the <unknown> cat, 犬"])


# ---- scores and batches --------------------------------------------------------------------------------------------


def test_scores_are_those_of_a_loop(run: Path) -> None:
    loaded, task = load_model(run / "model"), ClassTask()
    model: Any = loaded.model
    pairs = [(line, LABELS[i % 3]) for i, (line, _) in enumerate(VALID)]  # mostly wrong
    scores = task.evaluate(model, loaded.config, loaded.tokenizer, pairs)
    losses, right = list[float](), list[bool]()
    for line, label in pairs[:-1]:  # the last line is blank
        ids = torch.tensor([loaded.tokenizer.encode(line)])
        with torch.no_grad():
            logits = model.classifier(model.pooler(model.encoder(ids, ids >= 0)))
        losses.append(float(F.cross_entropy(logits, torch.tensor([LABELS.index(label)]))))
        right.append(int(logits.argmax()) == LABELS.index(label))
    assert scores["loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert scores["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)


def test_macro_f1_is_the_mean_over_the_classes_that_occur() -> None:
    truth, predicted = np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 4])
    assert macro_f1(truth, predicted) == pytest.approx((4 / 5 + 2 / 3 + 0 + 0) / 4)
    assert macro_f1(truth, truth) == 1


def test_the_batch_does_not_change_the_loss(run: Path) -> None:
    model, task, config = load_model(run / "model").model, ClassTask(), CONFIG.train
    rows = [np.arange(2, 2 + n) for n in (9, 18, 14, 3)]
    batch = task.collate(rows, [np.array([i % 3]) for i in range(4)], np.arange(4))
    together, alone = task.loss(model, batch, config), [task.loss(model, part, config) for part in cut(batch, 4)]
    torch.testing.assert_close(together, sum(alone), rtol=1e-5, atol=1e-5, check_dtype=False)
    with_rdrop = task.loss(model, batch, replace(config, rdrop=2.0))  # without dropout the passes are equal
    torch.testing.assert_close(together, with_rdrop, rtol=1e-5, atol=1e-5)


def test_parameters_are_counted() -> None:
    config = BertClassifierConfig(vocab_size=30_522)
    with torch.device("meta"):
        model = build(config)
    assert sum(one.numel() for one in model.parameters()) == parameter_count(config, 30_522) == 109_483_778


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_wrong_texts_are_refused(cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    good, valid = write(tmp_path, "good", TRAIN[:20]), write(tmp_path, "valid", VALID)
    bert_folder(tmp_path / "bert", "words")
    texts = {
        "short": [*TRAIN[:9]],
        "blank": [*TRAIN[:3], ("a dog", " ")],
        "one": [("a cat", "cat"), ("a dog", "cat ")],
        "tab": [("a cat", "cat\t0.5"), ("a dog", "dog")],
        "swapped": [(label, f"{line} {i}") for i, (line, label) in enumerate(TRAIN * 10)],
    }
    files = {name: write(tmp_path, name, pairs) for name, pairs in texts.items()}
    files["short"] = (files["short"][0], good[1])
    messages = {
        "short": ["short.txt and", "good.labels: expected the same number of lines, not 9 and 20"],
        "blank": ["blank.labels:4: expected a label, not a blank line; give the label, or leave out"],
        "one": ["one.labels: expected at least 2 different labels, not cat alone"],
        "tab": ["tab.labels:1: expected a label of at most 100 characters without a tab; give the sentences first"],
        "swapped": [f"swapped.labels:{MAX_LABELS + 1}: expected at most 1,000 different labels"],
    }

    def finetune(train: Sequence[Path], valid: Sequence[Path], folder: Path = tmp_path / "bert") -> CommandResult:
        options = ["--out", tmp_path / "run", "--set", "data.max_tokens=20"]
        return cli("finetune", folder, "--train", *train, "--valid", *valid, *options)

    for name, expected in messages.items():
        assert_mistake(finetune(files[name], valid), *expected)
    unknown = write(tmp_path, "unknown", [VALID[0], ("a cow", "cow")])
    message = "unknown.labels:2: expected a label of the training text (has a bird, has a cat, has a dog), not cow"
    assert_mistake(finetune(good, unknown), message)
    assert_mistake(finetune(good, files["blank"]), "blank.labels:4: expected a label, not a blank line")
    long = write(tmp_path, "long", [VALID[0], ("a " * 30, LABELS[0])])
    assert_mistake(finetune(good, long), "long.txt:2: expected at most 24 tokens, not 32; split the line")
    assert_mistake(finetune(good, valid[:1]), "in a single file; or give two text files")
    assert_mistake(finetune(good, valid, tmp_path / "none"), "none: expected the folder of a pre-trained encoder")
    gpt2 = gpt2_folder(tmp_path / "gpt2")
    assert_mistake(finetune(good, valid, gpt2), "model_type='gpt2': expected a BERT; use one in Hugging Face's form")
    bare = bert_folder(tmp_path / "bare", "words", tokenizer=b"")
    assert_mistake(finetune(good, valid, bare), "bare: expected tokenizer.json; use a whole folder")
    broken = bert_folder(tmp_path / "broken", "words", tokenizer=b'{"model": 1}')
    assert_mistake(finetune(good, valid, broken), "broken: expected a tokenizer", "refuses its tokenizer.json")
    assert not (tmp_path / "run" / "config.json").exists()


def test_settings_and_uses_that_do_not_fit_are_refused(run: Path, cli: Callable[..., CommandResult]) -> None:
    texts = {"train": [Corpus(Path("s"), Path("l"))], "valid": (Path("s"), Path("l")), "out": run}
    expected = "train.task='classes': expected --from, a pre-trained model; add --from FOLDER"
    assert expected in TrainRequest("bert-classifier", **texts).problems()
    settings = ["model.n_segments=3", "data.vocab_size=900"]
    lines = TrainRequest("bert-classifier", **texts, settings=settings, start_from=run).problems()
    assert sum("must not be set with --from" in line for line in lines) == 2
    changes = {"target_tokens": "subwords", "bpe_dropout": 0.1, "tags": ("<2de>",)}
    assert [line.partition("=")[0] for line in problems(replace(CONFIG, data=replace(CONFIG.data, **changes)))] == [
        *(f"data.{name}" for name in changes)
    ]
    labels = replace(Config(), data=DataConfig(target_tokens="labels"))
    assert any("data.target_tokens='labels': expected 'subwords' or 'symbols'" in line for line in problems(labels))
    mistake = cli("translate", run / "model", "--input", run / "config.json")
    assert_mistake(mistake, "expected a translation model", "use transduce classify")


def test_a_damaged_tokenizer_is_refused(run: Path) -> None:
    text = (run / "tokenizer.json").read_text()
    tokenizer = Tokenizer.from_json(text)
    assert isinstance(tokenizer, TextAndLabels) and tokenizer.to_json() == text
    assert tokenizer.target.encode_batch(["has a cat ", "", "cow"]) == [[1], [], []]
    assert tokenizer.encode(" ") == [] and len(tokenizer.vocabulary) == tokenizer.vocab_size == 20
    content = json.loads(text)
    for key, value in (("labels", ["a", "a"]), ("labels", [1, 2]), ("files", {}), ("vocab_size", 9), ("files", 1)):
        with pytest.raises(UserError, match="expected a tokenizer of transduce, but"):
            Tokenizer.from_json(json.dumps({**content, key: value}))
    with pytest.raises(UserError, match="expected a tokenizer of transduce, but it has no files"):
        Tokenizer.from_json(text[:200])
