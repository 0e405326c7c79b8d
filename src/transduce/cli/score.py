"""`transduce score`: print the log-probability of given translations."""

from itertools import islice
from pathlib import Path

from transduce.cli.options import Flag, Models, Precision
from transduce.cli.output import print_json

CHUNK_LINES = 1_000


def score(*models: Models, src: Path, tgt: Path, precision: Precision = "fp32", json: Flag = False) -> None:
    """Print the log-probability of given translations.

    Each line has one number, a natural logarithm. It includes the end of the sentence.

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
    from transduce.data.text import read_pairs
    from transduce.translate import load

    model, pairs, number = load(*models, precision=precision), read_pairs(src, tgt), 0
    while chunk := list(islice(pairs, CHUNK_LINES)):
        sources, targets = [source for source, _ in chunk], [target for _, target in chunk]
        for result in model.score(sources, targets, first_number=number):
            if json:
                print_json(result)
            else:
                print(f"{result.log_prob:.6f}")
        number += len(chunk)
