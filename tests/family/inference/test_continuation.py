"""Continuation of token ids. `test_hugging_face_beam.py` has its beam search."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.hugging_face import disturb, member_of

from transduce.decoding.options import Sampling
from transduce.decoding.rows import Rows
from transduce.errors import UserError
from transduce.family.attention_configs import T6Config
from transduce.family.configs import GPT2Config
from transduce.family.gpt2 import GPT2
from transduce.family.inference import continuation
from transduce.family.inference.continuation import GREEDY, continue_ids, prepare
from transduce.family.inference.cpu_language_model import CpuLanguageModel
from transduce.family.tensor_product_attention import T6

Models = tuple[Any, Any]
PROMPTS = [[5], [7, 3, 9], [1, 2, 3], [30, 8, 8, 2, 41, 6], [9, 9, 9]]
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module", params=["GPT2LMHead", "LlamaForCausal"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if request.param == "GPT2LMHead":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **ids, n_positions=40))
    else:
        more = {"intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 40}
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ids, **more))
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


@pytest.fixture(params=["as it is", "prepared"])
def ours(request: pytest.FixtureRequest, models: Models) -> Any:
    """Return our model, as it is and prepared for a CPU."""
    return models[0] if request.param == "as it is" else CpuLanguageModel(models[0], "fp32")


def their_ids(theirs: Any, prompt: list[int], ends: list[int], **options: Any) -> list[int]:
    """Return their continuation of one prompt, without its end."""
    options = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": ends, "pad_token_id": 0, **options}
    prompts = torch.tensor([prompt])
    ids = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)[0, len(prompt) :].tolist()
    first = next((i for i, one in enumerate(ids) if one in ends), len(ids))
    return ids[:first]


@pytest.mark.parametrize(
    ("penalty", "ngram", "n_beams", "ends"),
    [
        (1.8, 0, 1, [0]),
        (1.8, 0, 3, [17, 4, 30, 22]),
        (0.7, 0, 3, [0]),
        (1.0, 2, 1, [17, 4, 30, 22]),
        (1.0, 2, 3, [0]),
        (1.3, 3, 3, [17, 4, 30, 22]),
    ],
)
def test_repetition_is_avoided_as_by_hugging_face(
    ours: Any, models: Models, penalty: float, ngram: int, n_beams: int, ends: list[int]
) -> None:
    repetition = {"repetition_penalty": penalty, "no_repeat_ngram": ngram}
    power = {"length_penalty": "power", "alpha": 1.0}
    settings = replace(GREEDY, max_extra_tokens=20, beam_size=n_beams, **repetition, **power)
    outputs = continue_ids(ours, PROMPTS, ends, settings)
    options = {"repetition_penalty": penalty, "no_repeat_ngram_size": ngram, "num_beams": n_beams}
    expected = [their_ids(models[1], prompt, ends, **options) for prompt in PROMPTS]
    assert [output.ids for output in outputs] == expected
    assert expected != [their_ids(models[1], prompt, ends, num_beams=n_beams) for prompt in PROMPTS]


@pytest.mark.parametrize("ends", [[0], [11], [17, 4, 30, 22]])
def test_greedy_search_gives_the_ids_of_hugging_face(ours: Any, models: Models, ends: list[int]) -> None:
    theirs = models[1]
    settings = replace(GREEDY, max_extra_tokens=20)
    outputs = continue_ids(ours, PROMPTS, ends, settings)
    assert [output.ids for output in outputs] == [their_ids(theirs, prompt, ends) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("sampling", "ranks"),
    [
        (Sampling(), range(1, 40, 2)),
        (Sampling(0.5), (0, 1, 3)),
        (Sampling(top_k=1), (1, 2, 3)),
        (Sampling(top_k=3), (2, 3)),
    ],
)
def test_a_draw_takes_each_end_as_a_token_of_its_own(
    ours: Any, models: Models, sampling: Sampling, ranks: Sequence[int]
) -> None:
    """ranks: of the ends, by probability. One end with the sum of all would be drawn more often."""
    n_draws, settings = 400, replace(GREEDY, max_extra_tokens=1)
    log_probs, order = models[0](torch.tensor([PROMPTS[1]]))[0, -1].log_softmax(dim=-1).sort(descending=True)
    ends = order[[*ranks]].tolist()
    probabilities = (log_probs / sampling.temperature)[: sampling.top_k].softmax(dim=-1)
    share = sum(probabilities[rank].item() for rank in ranks if rank < len(probabilities))
    outputs = continue_ids(ours, [PROMPTS[1]] * n_draws, [*ends, ends[0]], settings, sampling, range(n_draws))
    assert sum(one.finished for one in outputs) / n_draws == pytest.approx(share, abs=0.08 if 0 < share < 1 else 0)
    assert all(one.ids == [] for one in outputs if one.finished)
    known = log_probs[[*ranks]].tolist()
    assert all(min(abs(one.score - other) for other in known) < 1e-5 for one in outputs if one.finished)


def test_no_end_is_drawn_too_early(ours: Any) -> None:
    ends, settings = [*range(1, 50)], replace(GREEDY, max_extra_tokens=5, min_tokens=3)
    (output,) = continue_ids(ours, [PROMPTS[1]], ends, settings, Sampling(), [1])
    assert output.ids[:3] == [0] * 3


def test_without_an_end_a_minimum_of_tokens_changes_nothing(ours: Any) -> None:
    settings, prompts = replace(GREEDY, max_extra_tokens=5), [PROMPTS[1]] * 60
    expected = continue_ids(ours, prompts, [], settings, Sampling(), range(60))
    assert continue_ids(ours, prompts, [], replace(settings, min_tokens=5), Sampling(), range(60)) == expected


def test_a_beam_ends_at_an_end(ours: Any) -> None:
    settings = replace(GREEDY, beam_size=4, max_extra_tokens=20)
    (output,) = continue_ids(ours, [PROMPTS[1]], [*range(50)], settings)
    assert output.ids == [] and output.finished
    greedy = continue_ids(ours, PROMPTS, [])
    for prompt, cut in zip(PROMPTS, greedy, strict=True):
        (ended,) = continue_ids(ours, [prompt], [cut.ids[6]])
        assert ended.ids == cut.ids[: cut.ids.index(cut.ids[6])] and ended.finished


def test_the_other_prompts_do_not_change_an_answer(ours: Any) -> None:
    together = continue_ids(ours, PROMPTS, [0])
    alone = [continue_ids(ours, [prompt], [0])[0] for prompt in PROMPTS]
    assert [output.ids for output in together] == [output.ids for output in alone]
    sampling, seeds = Sampling(0.8), [1, 2, 3, 4, 5]
    together = continue_ids(ours, PROMPTS, [0], sampling=sampling, seeds=seeds)
    alone = [continue_ids(ours, [p], [0], sampling=sampling, seeds=[s])[0] for p, s in zip(PROMPTS, seeds, strict=True)]
    assert [output.ids for output in together] == [output.ids for output in alone]


def test_a_continuation_ends_at_the_last_position(ours: Any) -> None:
    (output,) = continue_ids(ours, [[3] * 35], [])
    assert len(output.ids) == 5 and not output.finished
    with pytest.raises(UserError, match="prompt 2: expected 1 to 39 ids, not 40"):
        continue_ids(ours, [[3], [3] * 40], [])
    with pytest.raises(UserError, match="prompt 1: expected 1 to 39 ids, not 0"):
        continue_ids(ours, [[]], [])


def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of prompts of each batch that is searched from now on."""
    sizes, search = list[int](), Rows.search

    def counted(rows: Any, state: Any, request: Any, **more: Any) -> Any:
        sizes.append(len(request.max_lengths))
        return search(rows, state, request, **more)

    monkeypatch.setattr(Rows, "search", counted)
    return sizes


def test_the_positions_of_the_model_bound_the_cost_of_a_prompt(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a large max_extra_tokens would make each prompt a batch of its own."""
    sizes, settings = batch_sizes(monkeypatch), replace(GREEDY, max_extra_tokens=1 << 20)
    assert len(continue_ids(ours, [[3, 4]] * 9, [], settings)) == sum(sizes) == 9
    assert sizes == [9]


def test_a_model_as_it_is_takes_prompts_of_one_length_together(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = batch_sizes(monkeypatch)
    continue_ids(models[0], PROMPTS, [0])
    assert sizes == [1, 3, 1]
    continue_ids(CpuLanguageModel(models[0], "fp32"), PROMPTS, [0])
    assert sizes[3:] == [5]


def test_a_subclass_with_another_attention_is_searched_as_it_is() -> None:
    model = T6(T6Config(vocab_size=50, d_model=24, n_layers=2, n_heads=4, d_ff=40, tied=False))
    assert prepare(model, "fp32") is model
    with pytest.raises(UserError, match="precision='int8': expected fp32 for T6; take fp32"):
        prepare(model, "int8")
    assert isinstance(prepare(GPT2(GPT2Config(vocab_size=50, d_model=24, n_heads=4)), "int8"), CpuLanguageModel)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_batches_in_threads_change_no_answer(models: Models, n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = CpuLanguageModel(models[0], "fp32")
    expected = continue_ids(ours, PROMPTS, [0])
    monkeypatch.setattr(continuation, "BATCH_TOKENS", 120)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    assert [one.ids for one in continue_ids(ours, PROMPTS, [0])] == [one.ids for one in expected]
