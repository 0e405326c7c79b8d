"""Connectionist temporal classification (Graves et al. 2006): text of as many tokens as it has, from frames of a sound.

Each frame has a token or a blank. A path of frames becomes a text in two steps: of equal neighbours one stays, then the
blanks go. Many paths have the same text, and its probability is their sum:

    _ c c _ a t t  ->  c a t                p(text) = sum over its paths of the product over frames of p(frame)

The blank has the id 0, which no text has. It must stand between two equal tokens of a text.
"""

from collections import defaultdict
from itertools import groupby

import numpy as np
import torch
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


def frames_needed(targets: Tensor, n_targets: Tensor) -> Tensor:
    """Return the number of frames that each text needs, (B,): one for each token, and a blank between equal ones.

    targets: ids (B,U), of which the first n_targets (B,) are real.
    """
    is_real = torch.arange(1, targets.size(1), device=targets.device) < n_targets[:, None]
    return n_targets + ((targets[:, 1:] == targets[:, :-1]) & is_real).sum(1)


def greedy(log_probs: np.ndarray) -> list[int]:
    """Return the ids of the text of the most likely path. log_probs: (T,V)."""
    return [token for token, _ in groupby(log_probs.argmax(axis=1).tolist()) if token != BLANK]


def prefix_beam(log_probs: np.ndarray, beam_size: int = 10, n_tokens: int | None = 20) -> list[int]:
    """Return the ids of the text that is most likely over all its paths, found by a beam over beginnings of texts.

    log_probs: (T,V). A beginning has two probabilities: of its paths that end in a blank, and of those that end in its
    last token. n_tokens: most likely tokens of a frame that may follow; None: all.
    """
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for frame in np.exp(log_probs.astype(np.float64)):
        probs = frame.tolist()
        best = range(len(probs)) if n_tokens is None else np.argsort(-frame)[:n_tokens].tolist()
        after: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for text, (with_blank, with_token) in beam.items():
            total = with_blank + with_token
            last = text[-1] if text else BLANK
            after[text][0] += total * probs[BLANK]
            after[text][1] += with_token * probs[last]
            for token in best:
                if token != BLANK:
                    after[*text, token][1] += (with_blank if token == last else total) * probs[token]
        ranked = sorted(after.items(), key=lambda item: sum(item[1]), reverse=True)[:beam_size]
        scale = sum(ranked[0][1])  # so that the product of many frames does not become 0
        beam = {text: (with_blank / scale, with_token / scale) for text, (with_blank, with_token) in ranked}
    return [*next(iter(beam))]
