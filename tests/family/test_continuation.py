"""Continuation of token ids beside `generate` of Hugging Face transformers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.hugging_face import disturb, member_of

from transduce.decoding.options import Sampling
from transduce.errors import UserError
from transduce.family.continuation import GREEDY, continue_ids

Models = tuple[Any, Any]
PROMPTS = [[5], [7, 3, 9], [1, 2, 3], [30, 8, 8, 2, 41, 6], [9, 9, 9]]
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
NEVER = 49_999  # an id that is none


@pytest.fixture(scope="module", params=["GPT2LMHead", "LlamaForCausal"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if request.param == "GPT2LMHead":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **ids, n_positions=40))
    else:
        more = {"intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 40}
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ids, **more))
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


def their_ids(theirs: Any, prompt: list[int], ends: list[int], **options: Any) -> list[int]:
    """Return their continuation of one prompt, without its end."""
    options = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": ends, "pad_token_id": 0, **options}
    prompts = torch.tensor([prompt])
    ids = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)[0, len(prompt) :].tolist()
    first = next((i for i, one in enumerate(ids) if one in ends), len(ids))
    return ids[:first]


@pytest.mark.parametrize("ends", [[0], [11], [17, 4, 30, 22]])
def test_greedy_search_gives_the_ids_of_hugging_face(models: Models, ends: list[int]) -> None:
    ours, theirs = models
    settings = replace(GREEDY, max_extra_tokens=20)
    outputs = continue_ids(ours, PROMPTS, ends, settings)
    assert [output.ids for output in outputs] == [their_ids(theirs, prompt, ends) for prompt in PROMPTS]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_search_gives_the_ids_of_hugging_face(models: Models, alpha: float) -> None:
    """Without an end: there the rules of both searches for hypotheses that end, or are cut, differ."""
    ours, theirs = models
    settings = replace(GREEDY, beam_size=4, max_extra_tokens=20, length_penalty="power", alpha=alpha)
    outputs = continue_ids(ours, PROMPTS, [], settings)
    options = {"num_beams": 4, "length_penalty": alpha}
    assert [output.ids for output in outputs] == [their_ids(theirs, prompt, [NEVER], **options) for prompt in PROMPTS]


def test_a_beam_ends_at_an_end(models: Models) -> None:
    ours, _ = models
    settings = replace(GREEDY, beam_size=4, max_extra_tokens=20)
    (output,) = continue_ids(ours, [PROMPTS[1]], [*range(50)], settings)
    assert output.ids == [] and output.finished
    greedy = continue_ids(ours, PROMPTS, [])
    for prompt, cut in zip(PROMPTS, greedy, strict=True):
        (ended,) = continue_ids(ours, [prompt], [cut.ids[6]])
        assert ended.ids == cut.ids[: cut.ids.index(cut.ids[6])] and ended.finished


def test_the_other_prompts_do_not_change_an_answer(models: Models) -> None:
    ours, _ = models
    together = continue_ids(ours, PROMPTS, [0])
    alone = [continue_ids(ours, [prompt], [0])[0] for prompt in PROMPTS]
    assert [output.ids for output in together] == [output.ids for output in alone]
    sampling, seeds = Sampling(0.8), [1, 2, 3, 4, 5]
    together = continue_ids(ours, PROMPTS, [0], sampling=sampling, seeds=seeds)
    alone = [continue_ids(ours, [p], [0], sampling=sampling, seeds=[s])[0] for p, s in zip(PROMPTS, seeds, strict=True)]
    assert [output.ids for output in together] == [output.ids for output in alone]


def test_a_continuation_ends_at_the_last_position(models: Models) -> None:
    ours, _ = models
    (output,) = continue_ids(ours, [[3] * 35], [])
    assert len(output.ids) == 5 and not output.finished
    with pytest.raises(UserError, match="prompt 2: expected 1 to 39 ids, not 40"):
        continue_ids(ours, [[3], [3] * 40], [])
    with pytest.raises(UserError, match="prompt 1: expected 1 to 39 ids, not 0"):
        continue_ids(ours, [[]], [])
