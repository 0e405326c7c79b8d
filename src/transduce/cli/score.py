"""`transduce score`: print the log-probability of given translations."""

from collections.abc import Iterator
from pathlib import Path

from transduce.cli.options import Flag, ModelsArgument, PrecisionOption, with_device
from transduce.cli.output import print_json
from transduce.data.text import LinePair, read_pairs
from transduce.errors import UserError

CHUNK_LINES, CHUNK_CHARACTERS = 1_000, 1 << 20  # read, scored and printed together


@with_device
def score(
    *models: ModelsArgument, src: Path, tgt: Path, precision: PrecisionOption = "fp32", json: Flag = False
) -> None:
    """Print the log-probability of given translations.

    Each line has one number, a natural logarithm. It includes the end of the sentence. A line that cannot be scored
    ends the command, after the numbers of the lines before it.

    Parameters
    ----------
    src
        Source text.
    tgt
        Translations to score, line by line.
    json
        Print one JSON object per line, with the tokens and the log-probability of each token.

    Examples
    --------
    transduce score run/model --src input.en --tgt candidates.de
    transduce score run/model --src input.en --tgt candidates.de --json
    """
    from transduce.cli.tags import TagWatch
    from transduce.translate import load

    model = load(*models, precision=precision)
    number = 0
    tags = TagWatch(f"{src}", model.tokenizer, "put one before each line")
    for chunk in _chunks(read_pairs(src, tgt)):
        sources, targets = [source for source, _ in chunk], [target for _, target in chunk]
        tags.see(sources)
        too_long = model.long_line(sources, targets)
        end = None if too_long is None else too_long.index
        for result in model.score(sources[:end], targets[:end], first_number=number):
            if json:
                print_json(result)
            else:
                print(f"{result.log_prob:.6f}")
        if too_long is not None:
            raise UserError(too_long.problem((str(src), str(tgt)), number))
        number += len(chunk)
    tags.end()


def _chunks(pairs: Iterator[LinePair]) -> Iterator[list[LinePair]]:
    """Yield pairs in lists of at most CHUNK_LINES, fewer if they are long.

    The pairs before a mistake in a text come before its exception.
    """
    chunk: list[LinePair] = []
    characters = 0
    try:
        for src, tgt in pairs:
            chunk.append((src, tgt))
            characters += len(src) + len(tgt)
            if len(chunk) == CHUNK_LINES or characters >= CHUNK_CHARACTERS:
                yield chunk
                chunk = []
                characters = 0
    except UserError:
        yield chunk
        raise
    yield chunk
