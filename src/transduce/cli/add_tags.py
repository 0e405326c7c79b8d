"""`transduce add-tags`: give the vocabulary of a model more tags."""

from pathlib import Path


def add_tags(model: Path, *, tags: list[str], out: Path) -> None:
    """Give the vocabulary of a model more tags, which a training with --from then teaches.

    Parameters
    ----------
    model
        A model folder of a translation model, also an imported one.
    tags
        Words such as <2fr>, each one token at the beginning of a source line. May be repeated. A Marian model has
        language codes, such as >>fra<<.
    out
        The new model folder.

    Examples
    --------
    transduce add-tags run/model --tags "<2fr>" --out larger
    """
    from transduce.storage.more_tags import add_tags as write

    write(model, tags, out)
