"""`transduce translate`: translate lines."""

from pathlib import Path
from typing import Literal

from transduce.errors import UserError


def translate(
    *models: Path,
    input: Path | None = None,
    output: Path | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    lookahead: int | None = None,
    n_best: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    split: Literal["long", "sentences"] = "long",
    precision: str | None = None,
    engine: Literal["torch", "ctranslate2"] | None = None,
    json: bool = False,
) -> None:
    """Translate lines: one line in, one line out, in the same order, answered as they come. Blank lines stay blank.

    Parameters
    ----------
    models
        Model folders, such as run/model. Several are an ensemble.
    input
        File to read; default: standard input.
    output
        File to write; default: standard output.
    beam_size
        Hypotheses kept by the search; default: the model's own setting. 1 is greedy search.
    alpha
        Exponent of the length penalty; default: the model's own setting.
    lookahead
        The beam search ends when no output could be better that is at most so many tokens longer than those at hand.
        Default: the model's own setting, usually no limit, which is exact and slower, as is 10000. Not for CTranslate2.
    n_best
        Outputs for each line; more than one needs --json.
    temperature
        Sample instead of searching, at this temperature.
    top_k
        Sample from the K likeliest tokens.
    top_p
        Sample from the fewest tokens that have this probability together.
    seed
        Of sampling; the same seed draws the same. Default: 1.
    split
        Which lines are translated sentence by sentence: long, those of data.max_tokens tokens or more; or sentences,
        all, for a model of single sentences and lines that hold several. Default: long.
    precision
        fp32; bf16; int8, on CPUs; or auto, what this machine does fastest, which is then told. Default: fp32, or that
        of an exported model's weights.
    engine
        torch, or ctranslate2 for a model exported to it. Default: what the folder is for.
    json
        One JSON object per line, with scores, tokens and alternatives.

    Examples
    --------
    transduce translate run/model < input.en > output.de
    echo "A dog runs." | transduce translate run/model --json --n-best 3
    transduce translate run/model --split sentences < pages.en > pages.de
    transduce translate run1/model run2/model --input in.en --output out.de
    """
    if n_best > 1 and not json:
        raise UserError(f"--n-best {n_best} gives several outputs for a line; add --json")

    from transduce.cli.stream import Models, run_filter
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions.from_arguments(
        beam_size=beam_size,
        alpha=alpha,
        lookahead=lookahead,
        n_best=n_best,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        split=split,
    )
    run_filter(Models(models, precision, engine), input, output, options, json=json)
