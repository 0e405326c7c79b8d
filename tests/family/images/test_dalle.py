"""DALL-E beside loops: its loss, its drawing with a cache, and its autoencoder."""

import math
from dataclasses import replace

import pytest
import torch
from support.hugging_face import disturb
from torch.nn import functional as F

from transduce.family.images.configs import DallEConfig
from transduce.family.images.dalle import DallE, DiscreteAutoencoder
from transduce.model.transformer import parameter_count

CONFIG = DallEConfig(
    n_text_ids=5, n_text=3, n_codes=7, side=2, d_model=16, n_layers=2, n_heads=2, dropout=0.0, n_channels=1, d_pixels=8
)


@pytest.fixture(scope="module")
def model() -> DallE:
    torch.manual_seed(1)
    model = DallE(CONFIG)
    disturb(model)
    return model


def test_the_loss_is_that_of_a_loop(model: DallE) -> None:
    """Each token is predicted from those before it alone, among those of its own kind."""
    texts, codes = torch.tensor([[4, 1, 2], [4, 0, 3]]), torch.tensor([[6, 0, 3, 3], [1, 2, 0, 5]])
    of_text, of_codes = [], []
    for text, image in zip(texts.tolist(), codes.tolist(), strict=True):
        row = text + [5 + code for code in image]
        for place in range(1, 7):
            logits = model.decoder(torch.tensor([row[:place]]))[0, -1]
            if place < 3:
                of_text.append(-logits[:5].log_softmax(0)[row[place]])
            else:
                of_codes.append(-logits[5:].log_softmax(0)[row[place] - 5])
    expected = torch.stack(of_text).mean() / 8 + torch.stack(of_codes).mean() * 7 / 8
    torch.testing.assert_close(model.loss(texts, codes), expected)
    ours, theirs = (torch.autograd.grad(x, [*model.parameters()]) for x in (model.loss(texts, codes), expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_codes_are_drawn_with_the_probabilities_of_the_model(model: DallE) -> None:
    """The last code of 4,000 images, after one and the same code, is as frequent as it is likely."""
    torch.manual_seed(1)
    drawn = model.draw(torch.tensor([[4, 1, 2]]).expand(4_000, -1))
    prefix, count = drawn[:, :3].unique(dim=0, return_counts=True)
    most = prefix[count.argmax()]
    rows = drawn[(drawn[:, :3] == most).all(dim=1), 3]
    row = torch.tensor([[4, 1, 2, *(5 + most).tolist()]])
    p = model.decoder(row)[0, -1, 5:].softmax(0)
    expected, spread = p * len(rows), (p * (1 - p) * len(rows)).sqrt()
    assert len(rows) > 30
    assert ((torch.bincount(rows, minlength=7) - expected).abs() < 4 * spread + 1).all()


def test_a_low_temperature_draws_the_most_likely_codes(model: DallE) -> None:
    text = torch.tensor([[4, 1, 2]])
    ids = text
    for _ in range(4):
        ids = torch.cat([ids, 5 + model.decoder(ids)[:, -1:, 5:].argmax(-1)], dim=1)
    assert torch.equal(model.draw(text, temperature=1e-4), ids[:, 3:] - 5)


def test_a_model_in_training_draws_without_dropout() -> None:
    torch.manual_seed(1)
    model, text = DallE(replace(CONFIG, dropout=0.5)).train(), torch.tensor([[4, 1, 2]]).expand(20, -1)
    codes = model.draw(text, temperature=1e-4)
    assert model.training and model.decoder.training
    assert torch.equal(codes, model.eval().draw(text, temperature=1e-4))
    assert not model.training and codes.unique(dim=0).size(0) == 1


def test_codes_become_the_image_that_their_choice_becomes() -> None:
    torch.manual_seed(1)
    model = DiscreteAutoencoder(CONFIG)
    images = torch.randn(3, 1, 4, 4)
    logits = model.encoder(images)
    choice = F.one_hot(logits.argmax(1), 7).permute(0, 3, 1, 2).float()
    torch.testing.assert_close(model.decode(model.codes(images)), model.decoder(choice))


def test_the_divergence_is_from_codes_that_are_equally_likely() -> None:
    torch.manual_seed(1)
    model, images = DiscreteAutoencoder(CONFIG), torch.randn(2, 1, 4, 4)
    losses = []
    for beta in (0.0, 1.0):
        torch.manual_seed(2)
        losses.append(model.loss(images, 1.0, beta))
    entropies = torch.distributions.Categorical(logits=model.encoder(images).movedim(1, -1)).entropy()
    torch.testing.assert_close(losses[1] - losses[0], math.log(7) - entropies.mean())


def test_the_decoder_of_the_paper_has_its_number_of_parameters() -> None:
    with torch.device("meta"):
        assert parameter_count(DallE(DallEConfig())) == 12_198_080_384  # the paper: 12 billion


def test_it_draws_what_a_caption_asks_for() -> None:
    """The pictures of two captions are two patterns with noise."""
    torch.manual_seed(1)
    patterns = torch.sign(torch.randn(2, 1, 4, 4))
    autoencoder, model = DiscreteAutoencoder(CONFIG), DallE(CONFIG)
    classes = torch.arange(64) % 2
    images = patterns[classes] + 0.1 * torch.randn(64, 1, 4, 4)
    texts = torch.stack([torch.full((64,), 4), classes, classes], dim=1)
    optimizer = torch.optim.Adam([*autoencoder.parameters(), *model.parameters()], 1e-2)
    for step in range(150):
        optimizer.zero_grad()
        loss = autoencoder.loss(images, max(0.3, 1 - step / 50)) if step < 80 else None
        (model.loss(texts, autoencoder.codes(images)) if loss is None else loss).backward()
        optimizer.step()
    drawn = autoencoder.decode(model.draw(texts, temperature=0.5))
    nearest = (drawn[:, None] - patterns).square().flatten(2).sum(-1).argmin(1)
    assert (nearest == classes).float().mean() > 0.9
