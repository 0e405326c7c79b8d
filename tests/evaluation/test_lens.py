"""The logit lens and the patching of heads, compared with models that are cut, pruned or patched by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.random_models import CONFIG as NAMED
from support.random_models import random_model
from support.small_models import CONFIG, both_norms, model_of
from torch import Tensor, nn

from transduce.config.schema import ModelConfig
from transduce.data.batches import Batch, collate
from transduce.errors import UserError
from transduce.evaluation.attention import all_weights
from transduce.evaluation.heads import Head, prune_heads
from transduce.evaluation.lens import head_effects, logit_lens, look_in
from transduce.model.build import build

SOURCE, OTHER, LONGER = np.array([4, 9, 7, 5]), np.array([8, 3, 11, 6]), np.array([4, 9, 7, 5, 5])
TARGET = np.array([6, 12, 8])
BATCH = collate([SOURCE], [TARGET])
PARTS = ("encoder", "decoder", "cross")


def log_probs_of(model: Any, batch: Batch = BATCH) -> Tensor:
    with torch.no_grad():
        log_probs = model(batch.src, batch.src_mask, batch.tgt_in)[0].log_softmax(-1)
    return log_probs.gather(-1, batch.tgt_out[0][:, None])[:, 0]


def projection_of(model: Any, head: Head) -> nn.Linear:
    layer = (model.encoder if head.part == "encoder" else model.decoder)[head.layer - 1]
    return (layer.cross_attention if head.part == "cross" else layer.self_attention).w_o


@both_norms
def test_the_lens_of_a_layer_is_the_model_cut_after_it(norm: Any) -> None:
    model = model_of(replace(CONFIG, n_layers=3, norm=norm))
    log_probs, of_target = logit_lens(model, BATCH)
    assert log_probs.shape == (4, 4, CONFIG.vocab_size) and of_target.shape == (4, 4)
    np.testing.assert_allclose(of_target[-1].numpy(), all_weights(model, BATCH)[3], atol=1e-5)
    layers = model.decoder
    for n in range(4):
        model.decoder = layers[:n]
        with torch.no_grad():
            expected = model(BATCH.src, BATCH.src_mask, BATCH.tgt_in)[0].log_softmax(-1)
        torch.testing.assert_close(log_probs[n], expected.float())
        torch.testing.assert_close(of_target[n], log_probs_of(model).float())
    assert all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in layers)


@both_norms
def test_a_head_replaced_by_zero_is_a_pruned_head(norm: Any) -> None:
    config = replace(CONFIG, n_layers=2, n_decoder_layers=1, norm=norm)
    effects, before = head_effects(model_of(config), BATCH), log_probs_of(model_of(config))
    assert {part: effect.shape for part, effect in effects.items()} == {
        "encoder": (2, 2, 4),
        "decoder": (1, 2, 4),
        "cross": (1, 2, 4),
    }
    for part, of_part in effects.items():
        for layer, number in np.ndindex(of_part.shape[:2]):
            pruned = model_of(config)
            prune_heads(pruned, [Head(part, layer + 1, number + 1)])
            expected = log_probs_of(pruned) - before
            np.testing.assert_allclose(of_part[layer, number], expected.numpy(), atol=1e-5)
            assert expected.abs().max() > 1e-4


def test_a_head_replaced_by_another_sentence_has_its_columns_before_the_projection() -> None:
    """Inputs of W_O are the outputs of the heads, next to each other. Hooks replace the columns of one head."""
    model = model_of(replace(CONFIG, n_layers=2))
    other = collate([OTHER], [TARGET])
    effects, before = head_effects(model, BATCH, other), log_probs_of(model)
    for part in PARTS:
        for layer, number in np.ndindex(effects[part].shape[:2]):
            inputs: list[Tensor] = []
            projection = projection_of(model, Head(part, layer + 1, number + 1))

            def record(_: Any, given: Any, inputs: list[Tensor] = inputs) -> None:
                inputs.append(given[0])

            hook = projection.register_forward_pre_hook(record)
            log_probs_of(model, other)
            hook.remove()

            def swap(_: Any, given: Any, inputs: list[Tensor] = inputs, number: int = number) -> Any:
                columns = [*given[0].chunk(2, dim=-1)]
                columns[number] = inputs[0].chunk(2, dim=-1)[number]
                return (torch.cat(columns, dim=-1),)

            hook = projection.register_forward_pre_hook(swap)
            expected = log_probs_of(model) - before
            hook.remove()
            np.testing.assert_allclose(effects[part][layer, number], expected.numpy(), atol=1e-5)


def test_a_head_replaced_by_itself_changes_nothing() -> None:
    for effect in head_effects(model_of(CONFIG), BATCH, BATCH).values():
        np.testing.assert_allclose(effect, 0, atol=1e-6)


def test_heads_of_the_encoder_need_a_sentence_of_equal_length() -> None:
    effects = head_effects(model_of(CONFIG), BATCH, collate([LONGER], [TARGET]))
    assert effects["encoder"].shape == (0, 2, 4) and np.abs(effects["cross"]).max() > 0


def test_a_look_names_the_answers() -> None:
    loaded = random_model(NAMED)
    inside = look_in(loaded.model, loaded.tokenizer, "the cat", "a b c", "a dog")
    n_layers, n_tokens = NAMED.depths[1] + 1, len(loaded.tokenizer.target.encode("a b c")) + 1
    assert inside.answers.shape == inside.log_probs.shape == (n_layers, n_tokens, 3)
    assert (np.diff(inside.log_probs, axis=-1) <= 0).all() and inside.other == "a dog"
    batch = collate([np.array(loaded.tokenizer.encode("the cat"))], [np.array(loaded.tokenizer.target.encode("a b c"))])
    with torch.no_grad():
        best = loaded.model(batch.src, batch.src_mask, batch.tgt_in)[0].argmax(-1)
    assert inside.answers[-1, :, 0].tolist() == loaded.tokenizer.target.pieces(best.tolist())
    rival = build(ModelConfig(kind="recurrent", vocab_size=loaded.config.model.vocab_size, d_model=8, n_layers=1))
    with pytest.raises(UserError, match="expected a Transformer, because the rivals of Table 2 have no heads"):
        look_in(rival, loaded.tokenizer, "a", "b")
