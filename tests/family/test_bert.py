"""BERT beside Hugging Face transformers, with the same random weights."""

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.bert import Bert
from transduce.family.bert_heads import sentence_vectors
from transduce.family.configs import BertConfig
from transduce.family.hugging_face.bert import CONVERSION, HEADS
from transduce.family.hugging_face.folder import read_member
from transduce.family.hugging_face.settings import Settings
from transduce.model.transformer import parameter_count

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 60,
    "max_position_embeddings": 20,
    "classifier_dropout": 0.2,
    "num_labels": 3,
}
REAL = torch.arange(17) < torch.tensor([[17], [9], [1]])  # the mask of three rows
Models = tuple[Any, Any]


def their_model(architecture: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    return disturb(getattr(transformers, architecture)(transformers.BertConfig(**SIZES)))


@pytest.fixture(scope="module", params=HEADS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs, for each architecture."""
    theirs = their_model(request.param)
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


@pytest.fixture
def ids() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, 50, (3, 17), generator=generator) * REAL


@pytest.fixture
def segments(ids: Tensor) -> Tensor:
    return (torch.arange(17) > 5).long().expand_as(ids)


def our_outputs(ours: Bert, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    """Return the outputs of all heads of ours, by their names in transformers."""
    states = ours.encoder(ids, REAL, segments)
    outputs = {"states": states[REAL]}
    if ours.words is not None:
        outputs["words"] = ours.words(states)[REAL]
    if ours.pooler is not None:
        outputs["pooled"] = ours.pooler(states)
        for name, head in (("next_sentence", ours.next_sentence), ("classes", ours.classifier)):
            if head is not None:
                outputs[name] = head(outputs["pooled"])
    return outputs


def their_outputs(theirs: Any, ids: Tensor, segments: Tensor) -> dict[str, Tensor]:
    name = type(theirs).__name__
    inputs = {"attention_mask": REAL.long(), "token_type_ids": segments}
    outputs = theirs(ids, **inputs, output_hidden_states=True)
    by_name = {"states": outputs.hidden_states[-1][REAL]}
    pooled = outputs.pooler_output if name == "BertModel" else None
    if name in ("BertForMaskedLM", "BertForPreTraining"):
        words = outputs.logits if name == "BertForMaskedLM" else outputs.prediction_logits
        by_name["words"] = words[REAL]
    if name != "BertForMaskedLM":
        body = theirs if name == "BertModel" else theirs.bert
        by_name["pooled"] = pooled if pooled is not None else body(ids, **inputs).pooler_output
    if name == "BertForPreTraining":
        by_name["next_sentence"] = outputs.seq_relationship_logits
    elif name == "BertForNextSentencePrediction":
        by_name["next_sentence"] = outputs.logits
    elif name == "BertForSequenceClassification":
        by_name["classes"] = outputs.logits
    return by_name


def test_outputs_are_those_of_hugging_face(models: Models, ids: Tensor, segments: Tensor) -> None:
    ours, theirs = models
    output, expected = our_outputs(ours, ids, segments), their_outputs(theirs, ids, segments)
    assert output.keys() == expected.keys()
    assert all(difference(output[name], expected[name]) < TOLERANCE for name in output)


def test_gradients_are_those_of_hugging_face(models: Models, ids: Tensor, segments: Tensor) -> None:
    """In fp64: the rounding of fp32 depends on the processor."""
    models = copy.deepcopy(models[0]).double(), copy.deepcopy(models[1]).double()
    losses = []
    for outputs in (our_outputs(models[0], ids, segments), their_outputs(models[1], ids, segments)):
        truths = {name: torch.arange(len(logits)) % logits.size(1) for name, logits in outputs.items()}
        losses.append(sum(F.cross_entropy(logits, truths[name]) for name, logits in outputs.items()))
    assert gradient_difference_of(*models, losses) < TOLERANCE


def test_the_form_returns_the_settings_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = json.loads(theirs.config.to_json_string(use_diff=False))
    settings = CONVERSION.settings(ours)
    assert settings == {name: expected[name] for name in settings}


def test_a_set_of_heads_without_an_architecture_is_refused() -> None:
    with pytest.raises(UserError, match=r"expected the heads of one of BertModel \(pooler\)"):
        CONVERSION.settings(Bert(BertConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2), heads=["next_sentence"]))


def test_padding_changes_no_state(models: Models, ids: Tensor, segments: Tensor) -> None:
    ours, _ = models
    alone = ours.encoder(ids[1:2, :9], REAL[1:2, :9], segments[1:2, :9])
    torch.testing.assert_close(ours.encoder(ids, REAL, segments)[1:2, :9], alone)


@pytest.mark.parametrize("segments", [None, torch.zeros(3, 17, dtype=torch.int64)])
def test_without_segments_all_ids_are_in_the_first(models: Models, ids: Tensor, segments: Tensor | None) -> None:
    ours, theirs = models
    body = theirs if type(theirs).__name__ == "BertModel" else theirs.bert
    expected = body(ids, attention_mask=REAL.long()).last_hidden_state
    assert difference(ours.encoder(ids, REAL, segments)[REAL], expected[REAL]) < TOLERANCE


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [0.6, 0.8]),
        ("mean_sqrt_len", [0.6, 0.8]),
        ("cls", [1.0, 0.0]),
        ("max", [5**-0.5, 2 * 5**-0.5]),
        ("weightedmean", [5**-0.5, 2 * 5**-0.5]),
        ("lasttoken", [2 / 68**0.5, 8 / 68**0.5]),
    ],
)
def test_a_sentence_vector_is_made_of_the_states(pooling: str, expected: list[float]) -> None:
    vectors = sentence_vectors(torch.tensor([[[4.0, 0.0], [2.0, 8.0]]]), pooling)
    torch.testing.assert_close(vectors, torch.tensor([expected]))


BASE, LARGE = (30_522, 768, 12, 12), (30_522, 1_024, 24, 16)


@pytest.mark.parametrize(
    ("sizes", "heads", "count"),
    [
        (BASE, ["pooler"], 109_482_240),  # bert-base-uncased
        (BASE, ["words"], 109_514_298),
        (BASE, ["words", "pooler", "next_sentence"], 110_106_428),
        (BASE, ["pooler", "classifier"], 109_483_778),
        (LARGE, ["pooler"], 335_141_888),  # bert-large-uncased
        (LARGE, ["words", "pooler", "next_sentence"], 336_226_108),
        ((30_522, 128, 2, 2), ["pooler"], 4_385_920),  # bert-tiny
        ((30_522, 384, 6, 12), ["pooler"], 22_713_216),  # all-MiniLM-L6-v2
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, heads: list[str], count: int) -> None:
    with torch.device("meta"):
        names = ("vocab_size", "d_model", "n_layers", "n_heads")
        model = Bert(BertConfig(**dict(zip(names, sizes, strict=True))), heads=heads, labels=["good", "bad"])
    assert parameter_count(model) == count


def test_matrices_start_normal_and_biases_at_zero() -> None:
    torch.manual_seed(1)
    config = BertConfig(vocab_size=500, d_model=64, n_layers=2, n_heads=4)
    model = Bert(config, heads=("words", "pooler", "classifier"), labels="abc" * 20)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert float(parameter.detach().std()) == pytest.approx(
                0.02, rel=0.1 if parameter.numel() > 200 else 0.5
            ), name
        elif name.endswith("bias"):
            assert not parameter.any(), name


def test_dropout_acts_in_training_only(models: Models, ids: Tensor, segments: Tensor) -> None:
    ours, _ = models
    before = our_outputs(ours, ids, segments)
    ours.train()
    in_training = our_outputs(ours, ids, segments)
    ours.eval()
    assert all(not torch.equal(in_training[name], before[name]) for name in before)


@pytest.mark.parametrize("names", [{"0": "good", "2": "bad"}, {"0": 1}, {}, ["good", "bad"], "good"])
def test_classes_without_a_name_are_refused(names: Any) -> None:
    settings = {**SIZES, "architectures": ["BertForSequenceClassification"], "id2label": names}
    with pytest.raises(UserError, match="config.json: id2label=.*: expected a name for each of the numbers from 0 on"):
        CONVERSION.build(Settings(settings, "config.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem_type": "regression"}, "problem_type='regression': expected 'single_label_classification'; use a"),
        ({"problem_type": "multi_label_classification"}, "expected 'single_label_classification'; use a"),
        ({"num_labels": 1}, "num_labels=1: expected 2 or more; use a model"),
        ({"id2label": {"0": "LABEL_0"}}, "id2label=.*: expected 2 or more classes; use a model"),
        ({"id2label": {"0": "good", "1": "good"}}, "id2label=.*: expected a different name for each class; use a"),
    ],
)
def test_classes_with_other_probabilities_are_refused(changes: dict[str, Any], message: str) -> None:
    settings = {**SIZES, "architectures": ["BertForSequenceClassification"], **changes}
    with pytest.raises(UserError, match=f"^config.json: .*{message}"):
        CONVERSION.build(Settings(settings, "config.json"))


def test_an_architecture_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match=r"architectures=\['BertForTokenClassification'\]: expected \['BertModel'\] or"):
        CONVERSION.build(Settings({**SIZES, "architectures": ["BertForTokenClassification"]}, "config.json"))


def old_folder(folder: Path, architecture: str) -> Bert:
    """Write a folder as public ones of 2019: other heads, old names, copies. Return the model of all its tensors."""
    theirs = their_model("BertForPreTraining")
    ours = member_of(theirs, folder)
    config, file = folder / "config.json", folder / "model.safetensors"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [architecture]}))
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    tensors["bert.embeddings.position_ids"] = torch.arange(20)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    safetensors.torch.save_file(tensors, file)
    return ours


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_old_public_folders_are_read(architecture: str, ids: Tensor, segments: Tensor, tmp_path: Path) -> None:
    expected = our_outputs(old_folder(tmp_path, architecture), ids, segments)
    outputs = our_outputs(cast(Bert, read_member(tmp_path).model), ids, segments)
    assert len(outputs) == 1 + len(HEADS[architecture])
    assert all(torch.equal(outputs[name], expected[name]) for name in outputs)


def test_an_output_matrix_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    old_folder(tmp_path, "BertForMaskedLM")
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["cls.predictions.decoder.weight"][3] += 1
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.weight is not bert\.embeddings\.word_embeddings"):
        read_member(tmp_path)
