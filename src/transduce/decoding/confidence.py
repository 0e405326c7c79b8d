"""The confidence in a translation: the probability that it is good, by what the search knows of it. Without torch.

`transduce calibrate` learns the weights of the features from translations with references (`evaluation.calibration`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from transduce.decoding.hypothesis import Translation
from transduce.errors import UserError

FARTHEST = 4.0  # deviations from the mean: a text unlike the calibration's counts as one at this distance
DIGITS = 4  # decimals of a confidence

HALF = math.log(0.5)

# Of a source without its tag, its translation, and the log-probabilities of the pieces, which no other line changes.
# These add nothing: the least probability, the standard deviation, and the margin of the n-best list.
FEATURES: Mapping[str, Callable[[str, str, Sequence[float]], float]] = {
    "mean_log_probability": lambda source, text, log_probs: math.fsum(log_probs) / len(log_probs),
    "mean_probability": lambda source, text, log_probs: math.fsum(map(math.exp, log_probs)) / len(log_probs),
    "unlikely_pieces": lambda source, text, log_probs: sum(p < HALF for p in log_probs) / len(log_probs),
    "log_pieces": lambda source, text, log_probs: math.log(len(log_probs)),
    "log_source_length": lambda source, text, log_probs: math.log(len(source) + 1),
    "log_length_ratio": lambda source, text, log_probs: math.log((len(text) + 1) / (len(source) + 1)),
    "piece_length": lambda source, text, log_probs: len(text) / len(log_probs),
}


def features_of(source: str, translation: Translation) -> list[float] | None:
    """Return the features of a translation; None for text that is copied, and where the pieces have no scores.

    source: the line without its tag.
    """
    log_probs = translation.token_log_probs
    return [feature(source, translation.text, log_probs) for feature in FEATURES.values()] if log_probs else None


@dataclass(frozen=True)
class Weight:
    """The weight of a feature, which is standardised by its mean and deviation in the text of the calibration."""

    name: str
    mean: float
    deviation: float
    weight: float

    def standardised(self, value: float) -> float:
        """Return a value of the feature in deviations from the mean, at most FARTHEST."""
        return min(max((value - self.mean) / self.deviation, -FARTHEST), FARTHEST)


@dataclass(frozen=True)
class Calibration:
    """What turns the features of a translation into a confidence.

    good: the least chrF of a good translation, 0 to 100. constant: the log-odds of the mean features. weights: of each
    of `FEATURES`, in their order.
    """

    good: float
    constant: float
    weights: tuple[Weight, ...]

    def confidence(self, features: Sequence[float]) -> float:
        """Return the probability that a translation with these features is good."""
        terms = (w.weight * w.standardised(x) for w, x in zip(self.weights, features, strict=True))
        return round(1 / (1 + math.exp(-max(self.constant + math.fsum(terms), -700.0))), DIGITS)

    def check(self, where: object) -> None:
        """Raise UserError unless this is a calibration for these features. where: for the message."""
        numbers = [self.good, self.constant, *(x for w in self.weights for x in (w.mean, w.deviation, w.weight))]
        is_whole = [w.name for w in self.weights] == [*FEATURES] and all(map(math.isfinite, numbers))
        if not is_whole or min(w.deviation for w in self.weights) <= 0:
            raise UserError(
                f"{where}: expected finite weights of {', '.join(FEATURES)}; learn it again with transduce calibrate"
            )


def with_confidence(
    calibration: Calibration, sources: Sequence[str], translations: list[Translation]
) -> list[Translation]:
    """Return the translations, and their alternatives, with their confidence.

    sources: the lines without their tags.
    """
    confident = []
    for source, translation in zip(sources, translations, strict=True):
        best, *others = (_confident(calibration, source, each) for each in (translation, *translation.alternatives))
        confident.append(replace(best, alternatives=tuple(others)) if others else best)
    return confident


def _confident(calibration: Calibration, source: str, translation: Translation) -> Translation:
    features = features_of(source, translation)
    return translation if features is None else replace(translation, confidence=calibration.confidence(features))
