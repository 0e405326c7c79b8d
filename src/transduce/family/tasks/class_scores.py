"""Scores of a classifier on sentences with labels: accuracy, macro F1 and loss."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transduce.console import printable
from transduce.data.labels import label_of, problem_of
from transduce.data.text import is_blank, read_pairs
from transduce.errors import UserError
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.tasks.classes import macro_f1, unknown_label


@dataclass(frozen=True)
class ClassScores:
    """Scores of sentences. Blank ones do not count.

    accuracy: percentage of right labels. macro_f1: mean F1 of the classes that occur, in percent. loss: mean loss of a
    label, in nats; infinite if a label has the probability 0.
    """

    sentences: int
    accuracy: float
    macro_f1: float
    loss: float

    def __str__(self) -> str:
        """Return the scores as text to read."""
        return "\n".join(
            [
                f"{self.sentences:,} sentences",
                "",
                f"accuracy  {self.accuracy:7.2f} %",
                f"macro F1  {self.macro_f1:7.2f} %",
                f"loss      {self.loss:9.4f}  nats per label",
            ]
        )


def evaluate_classes(encoder: TextEncoder, sentences: Path, labels: Path) -> ClassScores:
    """Return the scores of `encoder.classify` on sentences, by their labels, which match line by line.

    Raises UserError for a label that the classifier does not have, for a sentence that is longer than it takes, and for
    a text that has only blank lines.
    """
    pairs, name = list(read_pairs(sentences, labels)), printable(sentences)
    answers = encoder.classify([sentence for sentence, _ in pairs])
    classes = sorted(next((answer.value for answer in answers if answer.value is not None), {}))
    truth = list[int]()
    predicted = list[int]()
    nats = 0.0
    for number, ((sentence, line), answer) in enumerate(zip(pairs, answers, strict=True), start=1):
        if is_blank(sentence):
            continue
        if answer.problem or answer.value is None:
            raise UserError(f"{name}:{number}: {answer.problem or 'expected a sentence; give one'}")
        if problem := problem_of(line) or unknown_label(label_of(line), classes):
            raise UserError(f"{printable(labels)}:{number}: {problem}")
        best, probability = next(iter(answer.value)), answer.value[label_of(line)]
        truth.append(classes.index(label_of(line)))
        predicted.append(classes.index(best))
        nats += -math.log(probability) if probability else math.inf
    if not truth:
        raise UserError(f"{name}: expected a line that is not blank; give a text to evaluate on")
    right, f1 = np.mean(np.equal(truth, predicted)), macro_f1(np.array(truth), np.array(predicted))
    return ClassScores(len(truth), round(100 * float(right), 2), round(100 * f1, 2), nats / len(truth))
