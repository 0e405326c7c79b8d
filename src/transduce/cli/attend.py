"""`transduce attend`: show what each head of a model attends to."""

from pathlib import Path
from typing import TYPE_CHECKING

from transduce.cli.options import Flag, TagOption, with_device
from transduce.cli.output import check_output
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.evaluation.lens import Inside
    from transduce.translate import Translator


@with_device
def attend(
    model: Path,
    sentence: str,
    *,
    target: str | None = None,
    out: Path,
    head: str | None = None,
    heads: Path | None = None,
    lens: Flag = False,
    other: str | None = None,
    tag: TagOption = None,
) -> None:
    r"""Show what each head of a model attends to, for one sentence.

    The ending of OUT chooses the form. NAME.html is a page with all heads of encoder, decoder and cross-attention; it
    is one file and loads nothing. NAME.svg is a picture of one head. NAME.npz has all weights as arrays of numpy.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    sentence
        A sentence of the source language.
    target
        Its translation. Default: the model's own translation.
    out
        File to write: NAME.html, NAME.svg or NAME.npz.
    head
        Head that the picture shows, and the page first: "encoder 3.5" is head 5 of layer 3, "cross 6.mean" the mean of
        the heads, "decoder 2.rollout" the rollout. Default: the mean of the last cross-attention.
    heads
        JSON of `transduce heads`. The page then shows the worth of each head below it.
    lens
        Also show what each layer of the decoder would answer (logit lens), and what each head changes in the answer.
    other
        With --lens, another sentence of the source language: outputs of heads are replaced by those on it, not by zero.

    Examples
    --------
    transduce attend run/model "A dog." --target "Ein Hund." --out page.html
    transduce attend run/model "A dog runs." --head "encoder 1.3" --out head.svg
    transduce attend run/model "A dog runs." --heads heads.json --out page.html
    transduce attend run/model "A dog." --lens --other "Cats." --out page.html
    """
    worth = _worth(model, out, heads)
    _check_texts(sentence, target, out, lens, other)

    from transduce.decoding.segmentation import with_tag
    from transduce.evaluation.attention_file import check_length, write_attention
    from transduce.translate import load

    translator = load(model)
    [source] = with_tag([sentence], tag, translator.tokenizer)
    check_length(out, len(translator.tokenizer.encode(source)) + 1)  # before the weights take memory
    if target is None:
        target = translator.translate([source])[0].text
    check_length(out, len(translator.tokenizer.target.encode(target)) + 1)
    attended = translator.attend(source, target)
    inside = _inside(translator, source, target, other, tag) if lens else None
    write_attention(attended, out, head=head, model=str(model), worth=worth, inside=inside)


def _inside(translator: "Translator", source: str, target: str, other: str | None, tag: str | None) -> "Inside":
    """Return what is inside a translation. other: the sentence of --other, without its tag."""
    from transduce.decoding.segmentation import with_tag
    from transduce.evaluation.heads import transformer_of
    from transduce.evaluation.lens import look_in

    other_source = None if other is None else with_tag([other], tag, translator.tokenizer)[0]
    if too_long := translator.long_line([other_source or source], [target]):
        raise UserError(too_long.problem(("--other", "--target")))
    return look_in(transformer_of(translator.models[0]), translator.tokenizer, source, target, other_source)


def _worth(model: Path, out: Path, heads: Path | None) -> dict[str, float] | None:
    """Return the figures in `heads`, by the name of a head.

    Raises UserError if the command cannot write `out`, or if its form does not show them.
    """
    from transduce.evaluation.attention_file import check_suffix
    from transduce.evaluation.heads import read_worth

    suffix = check_suffix(out)
    check_output(out, model, option="--out")
    if heads is not None and suffix != ".html":
        raise UserError(f"--heads={heads}: must not be set with {out.name}, because only a page shows it; leave it out")
    return None if heads is None else read_worth(heads)


def _check_texts(sentence: str, target: str | None, out: Path, lens: bool, other: str | None) -> None:
    """Raise UserError unless each text is a line with a sentence, and --lens and --other can have an effect."""
    from transduce.data.text import is_blank

    if lens and out.suffix.lower() == ".svg":
        raise UserError(f"--lens: must not be set with {out.name}, because a picture does not show it; leave it out")
    if other is not None and not lens:
        raise UserError(f"--other={other!r}: must not be set without --lens; add --lens")
    if other is not None and (is_blank(other) or "\n" in other):
        raise UserError(f"--other={other!r}: expected one line with a sentence; write one")
    for name, line in (("sentence", sentence), ("--target", target or "")):
        if "\n" in line:
            raise UserError(
                f"{name}: expected one line, not {line.count(chr(10)) + 1}; attend to one sentence at a time"
            )
    if is_blank(sentence):
        raise UserError(f"sentence={sentence!r}: expected a sentence, but it is blank; write one")
    if target is not None and is_blank(target):
        raise UserError(f"--target={target!r}: expected a translation, but it is blank; write one, or leave it out")
