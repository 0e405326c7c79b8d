"""The words of a translation, and the confidence of the model in each."""

import math
import re

from transduce.data.vocabulary import SPACE, TokenizerLike
from transduce.decoding.hypothesis import Translation

Confidences = list[tuple[str, float | None]]


def confidences(translation: Translation, tokenizer: TokenizerLike) -> Confidences:
    """Return the words of a translation, each with the white space before it and its confidence, from 0 to 1.

    The confidence of a word is the probability of its least likely piece. It is None where the engine has no scores of
    single tokens, for word pieces, which do not tell where a word begins, and where the pieces spell other words.
    """
    words = re.findall(r"\s*\S+|\s+$", translation.text)
    least: list[float] = []
    for piece, log_prob in zip(translation.pieces, translation.token_log_probs, strict=False):
        if piece == "</s>":
            continue
        if piece.startswith(SPACE) or not least:
            least.append(log_prob)
        else:
            least[-1] = min(least[-1], log_prob)
    if len(least) != len(words) or tokenizer.kind == "wordpiece":
        return [(word, None) for word in words]
    return [(word, round(math.exp(log_prob), 3)) for word, log_prob in zip(words, least, strict=True)]
