"""`transduce score`: print the log-probability of given translations."""

from pathlib import Path

from transduce.cli.output import print_json


def score(*models: Path, src: Path, tgt: Path, precision: str = "fp32", json: bool = False) -> None:
    """Print the log-probability of given translations, one number a line (natural logarithm, end of sentence included).

    Parameters
    ----------
    models
        Model folders. Several are an ensemble.
    src
        Source text.
    tgt
        Translations to score, line by line.
    precision
        fp32, or bf16.
    json
        One JSON object per line, with the tokens and the log-probability of each.

    Examples
    --------
    transduce score run/model --src input.en --tgt candidates.de
    transduce score run/model --src input.en --tgt candidates.de --json
    """
    from itertools import islice

    from transduce.data.text import read_pairs
    from transduce.translate import load

    model, pairs, done = load(*models, precision=precision), read_pairs(src, tgt), 0
    while chunk := list(islice(pairs, 1_000)):
        for scored in model.score([s for s, _ in chunk], [t for _, t in chunk], first_number=done):
            if json:
                print_json(scored)
            else:
                print(f"{scored.log_prob:.6f}")
        done += len(chunk)
