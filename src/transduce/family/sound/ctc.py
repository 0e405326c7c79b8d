"""Connectionist temporal classification (Graves et al. 2006): text of as many tokens as it has, from frames of a sound.

Each frame has a token or a blank. A path of frames becomes a text in two steps: of equal neighbours one stays, then the
blanks go. Many paths have the same text, and its probability is their sum:

    _ c c _ a t t  ->  c a t                p(text) = sum over its paths of the product over frames of p(frame)

The blank has the id 0, which no text has. It must stand between two equal tokens of a text.
"""

from collections import defaultdict
from itertools import groupby

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from transduce.data.vocabulary import PAD

BLANK = PAD


def ctc_losses(logits: Tensor, n_frames: Tensor, targets: Tensor, n_targets: Tensor) -> Tensor:
    """Return - log p(text) in nats of each text, (B,); infinite for a text that needs more frames than there are.

    logits: (B,T,V), of which the first n_frames (B,) of a sound are real. targets: ids (B,U), of which the first
    n_targets (B,) are real.
    """
    log_probs = logits.float().log_softmax(dim=-1).transpose(0, 1)
    return F.ctc_loss(log_probs, targets, n_frames, n_targets, blank=BLANK, reduction="none")


def frames_needed(ids: np.ndarray) -> int:
    """Return the number of frames that a text needs at least: one for each token, and a blank between equal ones."""
    return len(ids) + int((ids[1:] == ids[:-1]).sum())


def greedy(log_probs: np.ndarray) -> list[int]:
    """Return the ids of the text of the most likely path. log_probs: (T,V)."""
    return [token for token, _ in groupby(log_probs.argmax(axis=1).tolist()) if token != BLANK]


def prefix_beam(log_probs: np.ndarray, beam_size: int = 10, n_tokens: int | None = 20) -> list[int]:
    """Return the ids of the text that is most likely over all its paths, found by a beam over beginnings of texts.

    log_probs: (T,V). A beginning has two probabilities: of its paths that end in a blank, and of those that end in its
    last token. n_tokens: most likely tokens of a frame that may follow; None: all.
    """
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    for frame in log_probs.astype(np.float64):
        best = range(len(frame)) if n_tokens is None else np.argsort(-frame)[:n_tokens].tolist()
        likely = [(token, float(frame[token])) for token in best if token != BLANK]
        after: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-np.inf, -np.inf])
        for text, (with_blank, with_token) in beam.items():
            total = np.logaddexp(with_blank, with_token)
            same = after[text]
            same[0] = np.logaddexp(same[0], total + frame[BLANK])
            if text:
                same[1] = np.logaddexp(same[1], with_token + frame[text[-1]])
            for token, log_prob in likely:
                longer = after[*text, token]
                start = with_blank if text and token == text[-1] else total
                longer[1] = np.logaddexp(longer[1], start + log_prob)
        ranked = sorted(after.items(), key=lambda item: np.logaddexp(item[1][0], item[1][1]), reverse=True)[:beam_size]
        beam = {text: (with_blank, with_token) for text, (with_blank, with_token) in ranked}
    return [*next(iter(beam))]
