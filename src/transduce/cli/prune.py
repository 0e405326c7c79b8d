"""`transduce prune`: write a model without its least important attention heads."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from transduce.cli.heads import Pairs, check_pairs, head_report
from transduce.cli.options import Flag, Integer
from transduce.cli.output import print_json
from transduce.console import in_markdown, printable
from transduce.errors import UserError

By = Annotated[
    Literal["gradient", "loss"],
    Parameter(help="gradient: prune the heads of the least gradient. loss: those without which the loss grows least."),
]


TITLE = "\n## Pruned heads\n\n"


def prune(
    model: Path,
    *,
    keep: Annotated[int, Integer],
    src: Path,
    tgt: Path,
    out: Path,
    by: By = "gradient",
    pairs: Pairs = 200,
    json: Flag = False,
) -> None:
    """Write a model without its least important attention heads, and print what that costs.

    The heads remain in the model with no effect: their columns of W_O are zero. So every engine and export reads the
    new folder, and nothing becomes faster. Loss and BLEU are those of the whole text, before and after.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    keep
        Number of heads that remain.
    src
        Source text to measure on, such as the validation text. A test text must be another one.
    tgt
        Its translations, line by line.
    out
        The new model folder.
    json
        Print one JSON object.

    Examples
    --------
    transduce prune run/model --keep 100 --src val.en --tgt val.de --out small
    """
    from transduce.data.text import read_pairs
    from transduce.evaluate import validation_scores
    from transduce.evaluation.heads import (
        heads_of,
        is_pruned,
        least_gradient,
        least_important,
        prune_heads,
        read_batches,
        transformer_of,
    )
    from transduce.storage.model_folder import card_of, load_model, save_model
    from transduce.training.weights import weights
    from transduce.translate import Translator

    if out.exists():
        raise UserError(f"{out}: expected the name of a new folder, but it exists; give another --out")
    loaded = load_model(model)
    network = transformer_of(loaded.model)
    heads = heads_of(network)
    live = [head for head in heads if not is_pruned(network, head)]
    check_pairs(pairs)
    if not 0 <= keep < len(live):
        most = f"0 to {len(live) - 1}, fewer than the {len(live)} heads of the model" if live else "a model with heads"
        raise UserError(f"--keep={keep}: expected {most}; give another")
    translator, text = Translator([loaded]), list(read_pairs(src, tgt))
    if by == "gradient":
        batches = read_batches(src, tgt, loaded.tokenizer, network, pairs)
        pruned = least_gradient(network, batches, len(heads) - keep)
    else:
        pruned = least_important(head_report(translator, src, tgt, pairs), len(heads) - keep, by)
    before = validation_scores(translator, text)
    prune_heads(network, pruned)
    after = validation_scores(Translator([loaded]), text)  # another one, because a translator has copies of its weights
    names = [str(head) for head in heads if head in pruned]
    where = f"on {printable(src.name)} and {printable(tgt.name)}"
    note = (
        f"`transduce prune` switched off {len(names)} of {len(heads)} attention heads, by {by}: {', '.join(names)}. "
        f"Loss {before['loss']} to {after['loss']}, BLEU by greedy search {before['bleu']} to {after['bleu']}, {where}."
    )
    card = (card_of(model) or "# A model").partition(TITLE)[0]  # without the section of an earlier pruning
    card = f"{card}{TITLE}{in_markdown(note)}\n"
    save_model(out, weights(network), loaded.config, loaded.tokenizer, card, loaded.shortlist)
    if json:
        print_json({"keep": keep, "pruned": names, "before": before, "after": after})
        return
    print(f"pruned {len(names)} of {len(heads)} heads: {', '.join(names)}")
    for name in before:
        print(f"{name:10} {before[name]:9} to {after[name]:9}  {where}")
