"""More tags for the vocabulary of a trained model, so that a training with --from can teach it what they mean."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from transduce.config.schema import TrainConfig
from transduce.config.validation import is_tag, validate
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError
from transduce.storage.model_folder import LoadedModel, card_of, load_translation_model, save_model
from transduce.training.weights import live_weights, weights

TABLES = ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias")  # a row for each piece


def add_tags(model: Path, tags: Sequence[str], out: Path) -> None:
    """Write the model folder `model` as `out`, with more words that are one token at the beginning of a source line.

    The row of a new tag is the mean of all rows of its table, as Hewitt (2021) advises for new words. Its output bias
    is the lowest. A shortlist is left out, because it has ids. Raises UserError for a wrong tag, for one that the model
    has, and for a model without such tables.
    """
    if out.exists():
        raise UserError(f"{out}: expected the name of a new folder, but it exists; give another --out")
    loaded = load_translation_model(model)
    config, old = loaded.config, loaded.tokenizer
    settings = config.model
    if settings.kind != "transformer":
        raise UserError(f"{model}: expected model.kind='transformer', not {settings.kind!r}; use another model")
    _check_tags(tags, old)
    tokenizer = old.with_tags(tags)
    size = tokenizer.vocab_size
    own_tags = config.data.tags if old.kind == "sentencepiece" else tuple(tokenizer.tags)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(settings, vocab_size=size),
        data=dataclasses.replace(config.data, tags=own_tags, vocab_size=max(size, config.data.vocab_size)),
    )
    validate(config)
    ids = {piece: i for i, piece in enumerate(old.vocabulary)}
    rows = [ids.get(piece, -1) for piece in tokenizer.vocabulary]
    tensors = {name: _with_rows(x, rows) if name in TABLES else x for name, x in weights(loaded.model).items()}
    names = ", ".join(f"`{tag}`" for tag in tags)
    card = f"{card_of(model).rstrip()}\n\nLater it got the tags {names}, not yet trained.\n"
    save_model(out, tensors, config, tokenizer, card)


def check_new_tags(parent: LoadedModel | None, frozen: Collection[str], config: TrainConfig) -> None:
    """Raise UserError if a training that starts from `parent` would not teach it a new tag.

    parent: None for a training that starts from random weights. frozen: names of the parameters that stay as they are.
    """
    if parent is None or TABLES[0] not in frozen or not parent.tokenizer.tags:
        return
    table = live_weights(parent.model)[TABLES[0]]
    is_mean = (table - table.mean(dim=0)).abs().amax(dim=1) < 1e-3 * table.std()
    vocabulary = parent.tokenizer.vocabulary
    if new := [tag for tag in parent.tokenizer.tags if is_mean[vocabulary.index(tag)]]:
        rank = config.lora_rank
        setting = f"train.freeze={','.join(config.freeze)}" if rank is None else f"train.lora_rank={rank}"
        raise UserError(
            f"{setting}: expected a model whose tags have been trained, but the embedding of {', '.join(new)} is new, "
            "and would stay as it is; leave the setting out"
        )


def _check_tags(tags: Sequence[str], tokenizer: TokenizerLike) -> None:
    """Raise UserError unless `tags` are different words that can be tags and are no pieces yet."""
    for i, tag in enumerate(tags):
        if not is_tag(tag):
            raise UserError(
                f"--tags={tag}: expected words of at most 32 ASCII characters, with a letter or digit and with another "
                "character but a comma, such as <2de>"
            )
        if tag in tokenizer.vocabulary or tag in tags[:i]:
            raise UserError(f"--tags={tag}: expected a word that the model does not have yet; leave it out")


def _with_rows(table: Tensor, rows: Sequence[int]) -> Tensor:
    """Return a table with the old rows `rows`, where -1 is a new row: the mean of all, or the lowest bias."""
    new = table.min() if table.ndim == 1 else table.mean(dim=0)
    return torch.cat([table, new[None]])[torch.tensor(rows)].contiguous()
