"""`transduce shortlist`: learn which target pieces each source piece suggests."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.options import Integer
from transduce.console import printable
from transduce.errors import UserError

CandidatesOption = Annotated[
    int, Integer, Parameter(help="Number of the most likely target pieces for each source piece.")
]
CommonOption = Annotated[int, Integer, Parameter(help="Number of the most common target pieces, for every sentence.")]
LearningPairsOption = Annotated[
    int,
    Integer,
    Parameter(help="Number of pairs to learn from, spread evenly over the text. Time and memory grow with it."),
]

MOST_CANDIDATES = 1_000


def shortlist(
    model: Path,
    *,
    src: Path,
    tgt: Path,
    candidates: CandidatesOption = 50,
    common: CommonOption = 1_000,
    pairs: LearningPairsOption = 200_000,
) -> None:
    """Learn which target pieces each source piece suggests, for translate --shortlist.

    The command adds the file shortlist.safetensors to the model folder. The model stays as it is, and translates as
    before without --shortlist. A training or `transduce average` writes a new model without the file.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    src
        Source text, such as the training text.
    tgt
        Its translations, line by line.

    Examples
    --------
    transduce shortlist run/model --src train.en --tgt train.de
    transduce shortlist run/model --src train.en --tgt train.de --candidates 100
    """
    from transduce.decoding.shortlist.learning import learn_shortlist, read_ids
    from transduce.storage.model_folder import SHORTLIST_FILE, load_translation_model, save_shortlist

    if not 1 <= candidates <= MOST_CANDIDATES:
        raise UserError(f"--candidates={candidates}: expected 1 to {MOST_CANDIDATES:,}; give another number")
    for name, value, least in (("common", common, 0), ("pairs", pairs, 1)):
        if value < least:
            raise UserError(f"--{name}={value}: expected at least {least}; give another number")
    loaded = load_translation_model(model)
    if loaded.config.data.target_tokens == "symbols":
        raise UserError(f"{model}: expected a model that writes text, not trees; give another model")
    src_ids, tgt_ids = read_ids(src, tgt, loaded.tokenizer, pairs, loaded.config.data.max_tokens)
    sizes = loaded.tokenizer.vocab_size, loaded.tokenizer.target.vocab_size
    learned = learn_shortlist(src_ids, tgt_ids, *sizes, n_candidates=candidates, n_common=common)
    save_shortlist(model, learned)
    print(
        f"{printable(model / SHORTLIST_FILE)}: {len(learned.common):,} of {sizes[1]:,} pieces for every sentence, up "
        f"to {candidates} for each source piece, learned from {len(src_ids):,} pairs"
    )
