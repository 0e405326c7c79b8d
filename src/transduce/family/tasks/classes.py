"""The training of a classifier: BERT learns the class of a sentence (Devlin et al. 2018, section 4.1).

A pair is a sentence and its label. Its row has the tokens that the encoder's tokenizer gives, the first and the last
of which are [CLS] and [SEP] in BERT's. The logits come from the state of the first token. The loss is the cross entropy
of the labels.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from transduce.config.schema import Config, TrainConfig
from transduce.console import printable
from transduce.data.batches import Batch, indices_of, pad
from transduce.data.labels import label_of, problem_of
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.batched_search import by_length
from transduce.errors import NotFiniteError, UserError
from transduce.family.bert import BertClassifier
from transduce.family.tasks.text_scores import check_lines
from transduce.model.build import build
from transduce.model.devices import in_float64
from transduce.training.progress import format_scores
from transduce.training.task import summed_loss


class ClassTask:
    """The model predicts the label of a sentence."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of sentences, src (B,S), and the numbers of their labels, tgt_in = tgt_out (B,1)."""
        ids, mask = pad(src)
        labels, is_real = pad(tgt)
        return Batch(ids, mask, labels, labels, is_real, indices_of(is_real), pairs.astype(np.int64))

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_lines([sentence for sentence, _ in pairs], tokenizer, longest + 1, names[0])  # both ends are ids already
        labels = tokenizer.target.vocabulary
        for number, (_, line) in enumerate(pairs, start=1):
            if problem := problem_of(line) or unknown_label(label_of(line), labels):
                raise UserError(f"{names[1]}:{number}: {problem}")

    def loss(self, model: BertClassifier, batch: Batch, config: TrainConfig) -> Tensor:
        return summed_loss(class_outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)

    def evaluate(
        self, model: BertClassifier, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return the loss of a label, the percentage of right labels, and macro F1 in percent.

        Pairs whose sentence has no token, such as a blank one, do not count.
        """
        sentences = tokenizer.encode_batch([sentence for sentence, _ in pairs])
        labels = tokenizer.target.encode_batch([label for _, label in pairs])
        rows = [np.asarray(ids) for ids in sentences if ids]
        truth = np.array([label for ids, (label,) in zip(sentences, labels, strict=True) if ids])
        log_probs = self._log_probs(model, rows, truth)
        predicted = log_probs.argmax(axis=1)
        loss = -float(log_probs[np.arange(len(truth)), truth].mean())
        if not math.isfinite(loss):
            raise NotFiniteError("the model: expected log-probabilities that are finite; use an earlier checkpoint")
        return {
            "loss": round(loss, 5),
            "accuracy": round(100 * float((predicted == truth).mean()), 2),
            "macro_f1": round(100 * macro_f1(truth, predicted), 2),
        }

    @torch.inference_mode()
    def _log_probs(self, model: BertClassifier, rows: list[np.ndarray], truth: np.ndarray) -> np.ndarray:
        """Return the log-probability of each class for each row of ids, float64 (N,C)."""
        device = model.output.weight.device
        log_probs = np.empty((len(rows), model.output.out_features))

        def log_probs_of(members: Sequence[int]) -> np.ndarray:
            batch = self.collate([rows[i] for i in members], [truth[i : i + 1] for i in members], np.array(members))
            hidden, _ = class_outputs(model, batch.to(device))
            return in_float64(model.output(hidden)).log_softmax(dim=-1).cpu().numpy()

        for members, of_members in by_length(log_probs_of, [len(row) for row in rows], device):
            log_probs[members] = of_members
        return log_probs

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of the sentences"


MOST_LISTED = 20  # labels in a message


def unknown_label(label: str, labels: Sequence[str]) -> str | None:
    """Return the message that a label is not one of `labels`, or None."""
    if label in labels:
        return None
    known = printable(", ".join(labels[:MOST_LISTED])) + (", ..." if len(labels) > MOST_LISTED else "")
    return (
        f"expected a label of the training text ({known}), not {printable(label)}; correct it, or train on sentences "
        "with this label"
    )


def class_outputs(model: BertClassifier, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the pooled states (N,D), as `model.output` takes them, and the numbers of the labels (N,)."""
    assert model.pooler is not None and model.classifier is not None
    pooled = model.pooler(model.encoder(batch.src, batch.src_mask))
    return batch.real(model.classifier.dropout(pooled)[:, None])


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean over classes of F1, 2 TP / (2 TP + FP + FN), for two arrays of numbers of classes (N,).

    The classes are those that occur in one of the two.
    """
    scores = []
    for label in np.union1d(truth, predicted):
        is_true, is_predicted = truth == label, predicted == label
        scores.append(2 * (is_true & is_predicted).sum() / (is_true.sum() + is_predicted.sum()))
    return float(np.mean(scores))
