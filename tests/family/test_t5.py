"""T5 and its version 1.1 beside Hugging Face transformers, with the same random weights."""

import json
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import SearchConfig
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Request
from transduce.errors import UserError
from transduce.family.configs import T5Config
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.t5 import CONVERSION
from transduce.family.inference.hugging_face_beam import hugging_face_beam
from transduce.family.relative_bias import RelativeBias
from transduce.family.t5 import T5
from transduce.model.transformer import parameter_count

SIZES = {
    "vocab_size": 50,
    "d_model": 24,
    "d_kv": 9,
    "d_ff": 60,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
PAD, EOS = 0, 1
REAL = torch.arange(17) < torch.tensor([[17], [9], [1]])  # the mask of three rows
Models = tuple[Any, Any]


@pytest.fixture(scope="module", params=["1.0", "1.1"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    is_new = request.param == "1.1"
    of_version = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if is_new else {}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **of_version))
    if is_new:  # transformers 5 ties the output of a new model in any case
        theirs.lm_head.weight = nn.Parameter(torch.zeros(50, 24))
    disturb(theirs)
    with torch.no_grad():
        theirs.lm_head.weight[EOS] *= 5  # so that some outputs end
    ours = member_of(theirs, tmp_path_factory.mktemp("theirs"))
    assert (ours.config.gated, ours.config.tied) == (is_new, not is_new)
    return ours, theirs


def random_ids(n: int) -> Tensor:
    return torch.randint(2, 50, (3, n), generator=torch.Generator().manual_seed(n))


def both_logits(models: Models) -> tuple[Tensor, Tensor]:
    """Return the logits of ours and theirs for a batch with padding in the source."""
    ours, theirs = models
    src, tgt_in = random_ids(17) * REAL, random_ids(30)
    outputs = theirs(input_ids=src, attention_mask=REAL.long(), decoder_input_ids=tgt_in)
    return ours(src, REAL, tgt_in), outputs.logits


def test_logits_are_those_of_hugging_face(models: Models) -> None:
    assert difference(*both_logits(models)) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: Models) -> None:
    truth = random_ids(30).roll(-1, 1).flatten()
    losses = [F.cross_entropy(logits.flatten(0, 1), truth) for logits in both_logits(models)]
    assert gradient_difference_of(*models, losses) < TOLERANCE


@pytest.mark.parametrize("chunks", [[1] * 30, [5, 25], [29, 1]])
def test_chunks_after_a_cache_are_the_whole(models: Models, chunks: list[int]) -> None:
    ours, _ = models
    expected, _ = both_logits(models)
    cache, logits = ours.start(ours.encode(random_ids(17) * REAL, REAL), REAL), []
    for chunk in random_ids(30).split(chunks, dim=1):
        states, cache = ours.decode_after(chunk, cache)
        logits.append(ours.logits(states))
    assert cache.length == 30
    assert difference(torch.cat(logits, dim=1), expected) < TOLERANCE


def lines() -> list[Tensor]:
    """Return sources, one a row."""
    return [line[:n][None] for n, line in zip((3, 17, 9, 12, 5, 7), random_ids(17).repeat(2, 1) % 47 + 2, strict=True)]


def our_search(ours: T5, src: Tensor, beam_size: int, alpha: float = 0.0) -> tuple[list[int], float]:
    """Return the ids, EOS included, and the score of the output of at most 20 tokens that `TextToText` finds."""
    decoder = Decoder(ours.decode_step, log_probs=lambda logits: logits.log_softmax(dim=-1))
    search = SearchConfig(beam_size=beam_size, alpha=alpha, length_penalty="power", min_tokens=3)
    request = Request(search=search, max_lengths=[20], bos=PAD, eos=EOS)
    mask = torch.ones_like(src, dtype=torch.bool)
    with torch.inference_mode():
        rows = hugging_face_beam(decoder, request)
        ((best, *_),) = rows.search(ours.start(ours.encode(src, mask), mask), request, n_best=1)
    return [*best.ids, EOS] if best.finished else best.ids, best.score


OPTIONS = {"max_new_tokens": 20, "min_new_tokens": 3, "forced_eos_token_id": None, "return_dict_in_generate": True}


def test_greedy_search_gives_the_ids_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    for src in lines():
        expected = theirs.generate(src, num_beams=1, do_sample=False, **OPTIONS).sequences[0, 1:].tolist()
        assert our_search(ours, src, 1)[0] == expected


@pytest.mark.parametrize(("beam_size", "alpha"), [(2, 1.0), (4, 0.0)])
def test_beam_search_gives_the_ids_of_hugging_face(models: Models, beam_size: int, alpha: float) -> None:
    ours, theirs = models
    ends = set[bool]()
    for src in lines():
        output = theirs.generate(src, num_beams=beam_size, length_penalty=alpha, output_scores=True, **OPTIONS)
        ids, score = our_search(ours, src, beam_size, alpha)
        assert ids == output.sequences[0, 1:].tolist()
        assert score == pytest.approx(output.sequences_scores.item(), rel=1e-4)
        ends.add(ids[-1] == EOS)
    assert ends == {False, True}  # some are cut


def test_buckets_have_the_numbers_of_t5() -> None:
    both, before = RelativeBias(2, is_causal=False), RelativeBias(2, is_causal=True)
    distances = torch.tensor([0, -1, 1, -8, 8, 11, 12, 90, 91])
    assert both.buckets(distances).tolist() == [0, 1, 17, 8, 24, 24, 25, 30, 31]
    distances = -torch.tensor([15, 16, 18, 19, 32, 64, 112, 113])
    assert before.buckets(distances).tolist() == [15, 16, 16, 17, 21, 26, 30, 31]


@pytest.mark.parametrize(("is_causal", "n_buckets", "longest"), [(True, 32, 128), (False, 32, 128), (False, 8, 20)])
def test_buckets_are_those_of_hugging_face(is_causal: bool, n_buckets: int, longest: int) -> None:
    module = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transduce[export]")
    bucket = module.T5Attention._relative_position_bucket
    distances = torch.arange(-300, 301)
    ours = RelativeBias(2, is_causal=is_causal, n_buckets=n_buckets, longest=longest).buckets(distances)
    expected = bucket(distances, bidirectional=not is_causal, num_buckets=n_buckets, max_distance=longest)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("relative_attention_num_buckets", 3, "4 or more"),
        ("relative_attention_max_distance", 4, "more than 4, half of the buckets"),
    ],
)
def test_buckets_that_cannot_be_are_refused(key: str, value: int, expected: str) -> None:
    settings = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], **SIZES, key: value}
    with pytest.raises(UserError, match=f"config.json: {key}={value}: expected {expected}"):
        CONVERSION.build(Settings(settings, "config.json"))


def test_the_form_returns_the_settings_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = json.loads(theirs.config.to_json_string(use_diff=False))
    if not ours.config.tied:
        expected["tie_word_embeddings"] = False  # transformers 5 always writes True
    settings = CONVERSION.settings(ours)
    assert settings == {name: expected[name] for name in settings}


@pytest.mark.parametrize(
    ("sizes", "arguments", "count"),
    [
        ((32_128, 512, 6, 8), {"d_ff": 2_048}, 60_506_624),  # t5-small
        ((32_128, 768, 12, 12), {"d_ff": 3_072}, 222_903_552),  # t5-base
        ((32_128, 1_024, 24, 16), {"d_ff": 4_096}, 737_668_096),  # t5-large
        ((32_128, 512, 8, 6), {"d_ff": 1_024, "gated": True}, 60_511_616),  # transformers 5 counts v1.1-small so, tied
        (
            (32_128, 512, 8, 6),
            {"d_ff": 1_024, "gated": True, "tied": False},
            76_961_152,
        ),  # t5-v1_1-small, flan-t5-small
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, arguments: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        names = ("vocab_size", "d_model", "n_layers", "n_heads")
        model = T5(T5Config(**dict(zip(names, sizes, strict=True)), d_k=64, **arguments), n_sentinels=0)
    assert parameter_count(model) == count


def test_scores_start_with_a_deviation_of_about_one() -> None:
    """Scores are not divided by sqrt(d_k), so W^Q starts that much smaller."""
    torch.manual_seed(1)
    deviations = {
        name: float(p.detach().std())
        for name, p in T5(
            T5Config(vocab_size=500, d_model=64, n_layers=1, n_heads=4, d_k=25), n_sentinels=0
        ).named_parameters()
    }
    assert deviations["embedding.weight"] == pytest.approx(1, rel=0.05)
    assert deviations["encoder.0.self_attention.w_q.weight"] == pytest.approx(0.025, rel=0.1)
    assert deviations["encoder.0.self_attention.w_k.weight"] == pytest.approx(0.125, rel=0.1)
    assert deviations["encoder.0.self_attention.w_o.weight"] == pytest.approx(0.1, rel=0.1)
    assert deviations["encoder.0.feed_forward.w_2.weight"] == pytest.approx(0.0625, rel=0.1)
    assert deviations["encoder_bias.table.weight"] == pytest.approx(0.125, rel=0.3)


def test_dropout_acts_in_training_only(models: Models) -> None:
    ours, _ = models
    before, _ = both_logits(models)
    assert not torch.equal(ours.train()(random_ids(17) * REAL, REAL, random_ids(30)), before)
    ours.eval()
    assert torch.equal(both_logits(models)[0], before)
