"""Beam search of the family beside `generate` of Hugging Face transformers: ids and scores, with ends and cuts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.hugging_face import disturb, member_of

from transduce.config.schema import SearchConfig
from transduce.errors import UserError
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.inference.cpu_language_model import CpuLanguageModel

PROMPTS: list[list[int]] = torch.randint(50, (16, 3), generator=torch.Generator().manual_seed(1)).tolist()
LONGEST = 12
NEVER = 49_999  # an id that is none
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = {"bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture(scope="module", params=["GPT2LMHead", "LlamaForCausal"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(2)
    if request.param == "GPT2LMHead":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **IDS, n_positions=40))
    else:
        more = {"intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 40}
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **IDS, **more))
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


def settings_of(beam_size: int, alpha: float, min_tokens: int = 0) -> SearchConfig:
    penalty: Any = {"length_penalty": "power", "alpha": alpha, "min_tokens": min_tokens}
    return replace(GREEDY, beam_size=beam_size, max_extra_tokens=LONGEST, **penalty)


def their_outputs(theirs: Any, ends: list[int], settings: SearchConfig) -> tuple[list[tuple[list[int], bool]], Any]:
    """Return the ids of their continuations, without an end, and whether they have one; and the scores."""
    prompts = torch.tensor(PROMPTS)
    result = theirs.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        num_beams=settings.beam_size,
        length_penalty=settings.alpha,
        max_new_tokens=LONGEST,
        min_new_tokens=settings.min_tokens,
        eos_token_id=ends or [NEVER],
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    outputs = list[tuple[list[int], bool]]()
    for ids in result.sequences[:, len(PROMPTS[0]) :].tolist():
        first = next((i for i, one in enumerate(ids) if one in ends), LONGEST)
        outputs.append((ids[:first], first < LONGEST))
    return outputs, pytest.approx(result.sequences_scores.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("ends", "beam_size", "alpha", "min_tokens"),
    [
        ([], 4, 1.0, 0),
        ([19], 2, 0.0, 3),
        ([18], 4, 1.0, 0),
        ([*range(7)], 2, 1.0, 0),
        ([*range(10)], 4, 0.0, 3),
        ([*range(25)], 4, 1.0, 2),
        ([*range(0, 50, 3)], 4, 1.0, 0),
        ([*range(20)], 2, -1.0, 1),
    ],
)
def test_ids_and_scores_are_those_of_generate(
    models: tuple[Any, Any], ends: list[int], beam_size: int, alpha: float, min_tokens: int
) -> None:
    """Without one of the rules, outputs of at least one of these cases differ."""
    ours, theirs = models
    settings = settings_of(beam_size, alpha, min_tokens)
    expected, scores = their_outputs(theirs, ends, settings)
    for model in ours, CpuLanguageModel(ours, "fp32"):
        outputs = continue_ids(model, PROMPTS, ends, settings)
        assert [(one.ids, one.finished) for one in outputs] == expected
        assert [one.score for one in outputs] == scores


def test_some_outputs_end_and_some_are_cut(models: tuple[Any, Any]) -> None:
    """Else the test above would compare less than it says."""
    outputs = continue_ids(models[0], PROMPTS, [*range(25)], settings_of(4, 1.0, 2))
    lengths = [len(one.ids) for one in outputs if one.finished]
    assert 0 < len(lengths) < len(outputs)
    assert min(lengths) < LONGEST - 3


def test_the_other_prompts_do_not_change_an_output(models: tuple[Any, Any]) -> None:
    prompts = [prompt[: 1 + i % 3] for i, prompt in enumerate(PROMPTS[:6])]
    for model in models[0], CpuLanguageModel(models[0], "fp32"):
        together = continue_ids(model, prompts, [*range(25)], settings_of(4, 1.0, 2))
        for prompt, expected in zip(prompts, together, strict=True):
            (alone,) = continue_ids(model, [prompt], [*range(25)], settings_of(4, 1.0, 2))
            assert (alone.ids, alone.finished) == (expected.ids, expected.finished)
            assert alone.score == pytest.approx(expected.score, rel=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_lookahead_is_refused(models: tuple[Any, Any], beam_size: int) -> None:
    settings = replace(settings_of(beam_size, 0.0), lookahead=5)
    with pytest.raises(UserError, match=r"^search.lookahead=5: expected None, .*; leave it out$"):
        continue_ids(models[0], PROMPTS, [0], settings)
