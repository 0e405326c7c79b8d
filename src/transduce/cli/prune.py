"""`transduce prune`: write a model without its least important attention heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from transduce.cli.heads import MeasuredPairsOption, check_pairs, head_report
from transduce.cli.options import Integer, JsonObjectOption, with_device
from transduce.cli.output import print_json
from transduce.console import in_markdown, printable
from transduce.errors import UserError
from transduce.model import devices

if TYPE_CHECKING:
    from transduce.evaluation.heads import Head
    from transduce.translate import Translator

KeepOption = Annotated[int, Integer, Parameter(help="Number of heads that remain.")]
ByOption = Annotated[
    Literal["gradient", "loss"],
    Parameter(help="gradient: prune the heads of least gradient. loss: the heads without which the loss grows least."),
]

TITLE = "\n## Pruned heads\n\n"


@with_device
def prune(
    model: Path,
    *,
    keep: KeepOption,
    src: Path,
    tgt: Path,
    out: Path,
    by: ByOption = "gradient",
    pairs: MeasuredPairsOption = 200,
    json: JsonObjectOption = False,
) -> None:
    """Write a model without its least important attention heads, and print the scores before and after.

    The heads remain in the model with no effect: their columns of W_O are zero. So every engine and export reads the
    new folder, and nothing becomes faster. The command prints loss and BLEU of the whole text, before and after.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    src
        Source text to measure on, such as the validation text. A test text must be another one.
    tgt
        Its translations, line by line.
    out
        The new model folder.

    Examples
    --------
    transduce prune run/model --keep 16 --src v.en --tgt v.de --out pruned
    """
    from transduce.data.text import read_pairs
    from transduce.evaluate import validation_scores
    from transduce.evaluation.heads import heads_of, is_pruned, prune_heads, transformer_of
    from transduce.storage.model_folder import card_of, load_model, save_model
    from transduce.training.weights import weights
    from transduce.translate import Translator

    if out.exists():
        raise UserError(f"{out}: expected the name of a new folder, but it exists; give another --out")
    loaded = load_model(model)
    network = transformer_of(loaded.model).to(devices.device())
    heads = heads_of(network)
    check_pairs(pairs)
    n_pruned = sum(is_pruned(network, head) for head in heads)
    _check_keep(keep, len(heads) - n_pruned)
    translator = Translator([loaded])
    text = list(read_pairs(src, tgt))
    pruned = _least_important(translator, len(heads) - keep, src, tgt, pairs, by)
    before = validation_scores(translator, text)
    prune_heads(network, pruned)
    after = validation_scores(Translator([loaded]), text)  # a new one: it copies the weights
    where = f"on {printable(src.name)} and {printable(tgt.name)}"
    names = [str(head) for head in heads if head in pruned]
    pruning = Pruning(names, len(heads), n_pruned, before, after, where)
    card = pruning.add_to(card_of(model) or "# A model", by)
    save_model(out, weights(network), loaded.config, loaded.tokenizer, card, loaded.shortlist)
    figures = {"keep": keep, "pruned": pruning.names, "before": before, "after": after}
    print_json(figures) if json else print(pruning.table())


def _check_keep(keep: int, n_live: int) -> None:
    """Raise UserError unless `keep` is less than `n_live`, the number of heads that have an effect."""
    if not 0 <= keep < n_live:
        most = f"0 to {n_live - 1}, fewer than the {n_live} heads of the model" if n_live else "a model with heads"
        raise UserError(f"--keep={keep}: expected {most}; give another")


def _least_important(
    translator: "Translator", count: int, src: Path, tgt: Path, pairs: int, by: ByOption
) -> "Sequence[Head]":
    """Return the `count` least important heads of a model, measured on `pairs` pairs of the text."""
    from transduce.evaluation.heads import least_gradient, least_important, read_batches, transformer_of

    if by == "loss":
        return least_important(head_report(translator, src, tgt, pairs), count, by)
    network = transformer_of(translator.models[0])
    return least_gradient(network, read_batches(src, tgt, translator.tokenizer, network, pairs), count)


@dataclass(frozen=True)
class Pruning:
    """The pruned heads of a model, and the scores before and after it.

    names: names of all heads without an effect. n_heads: number of all heads. n_pruned_before: number of heads that had
    no effect before this pruning. where: the text of the scores, in words.
    """

    names: Sequence[str]
    n_heads: int
    n_pruned_before: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    where: str

    def add_to(self, card: str, by: ByOption) -> str:
        """Return a model card with a section on this pruning, instead of the section on an earlier one."""
        before = self.before
        after = self.after
        n = self.n_pruned_before
        earlier = f", {n} of them in an earlier pruning" if n else ""
        note = (
            f"`transduce prune` switched off {len(self.names)} of {self.n_heads} attention heads{earlier}, by {by}: "
            f"{', '.join(self.names)}. Loss {before['loss']} to {after['loss']}, BLEU by greedy search "
            f"{before['bleu']} to {after['bleu']}, {self.where}. The scores above were measured before any pruning."
        )
        return f"{card.partition(TITLE)[0]}{TITLE}{in_markdown(note)}\n"

    def table(self) -> str:
        """Return a line with the heads, and a line for each score."""
        lines = [f"pruned {len(self.names)} of {self.n_heads} heads: {', '.join(self.names)}"]
        lines += [f"{name:10} {self.before[name]:9} to {self.after[name]:9}  {self.where}" for name in self.before]
        return "\n".join(lines)
