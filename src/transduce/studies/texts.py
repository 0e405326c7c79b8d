"""The data of a training of a study: its texts, and the arguments with which `transduce evaluate` scores its model.

A study of translation has `Texts`. A study of another task has a separate class, of the form of `TrainingData`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from transduce.data import corpora, text
from transduce.data.corpora import Corpus
from transduce.errors import UserError
from transduce.evaluation.metrics import Score, check_settings

FilePair = tuple[Path, Path]


class TrainingData(Protocol):
    """The texts of a training, each as source and target, and the evaluation of its model.

    headline: the keys of the main figures of the validation text, and their names in messages.
    """

    headline: ClassVar[Mapping[str, str]]

    @property
    def train(self) -> FilePair: ...
    @property
    def valid(self) -> FilePair: ...

    def evaluations(self) -> dict[str, list[str]]:
        """Return the arguments of `transduce evaluate MODEL` by text: "valid", and "test" if there is one."""
        ...

    def figures(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON output of an evaluation as figures of an entry."""
        ...


@dataclass(frozen=True)
class Texts:
    """The texts of all trainings of a study of translation: source and target of each.

    test: None if the study has no test text. language: code of the target language, for the Moses tokenizer.
    """

    train: FilePair
    valid: FilePair
    test: FilePair | None = None
    language: str = "en"

    headline: ClassVar[Mapping[str, str]] = {"perplexity": "perplexity", "bleu": "BLEU"}

    def read(self) -> dict[str, str]:
        """Return the hashes of the texts, by their names. Raises UserError for unusable texts or a wrong language."""
        pairs = {"training text": self.train, "validation text": self.valid}
        if self.test:
            pairs["test text"] = self.test
        problems = corpora.problems([Corpus(*pair) for pair in pairs.values()])
        if problems:
            raise UserError(*problems)
        check_settings(language=self.language, tokenize="13a")
        for pair in pairs.values():
            for _ in text.read_pairs(*pair):
                pass
        return {name: " ".join(text.file_sha256(path) for path in pair) for name, pair in pairs.items()}

    def evaluations(self) -> dict[str, list[str]]:
        """Return the arguments of `transduce evaluate MODEL` for the validation text and the test text."""
        pairs = {"valid": self.valid, **({"test": self.test} if self.test else {})}
        return {
            name: ["--src", str(src), "--ref", str(ref), "--language", self.language, "--json"]
            for name, (src, ref) in pairs.items()
        }

    def figures(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return perplexity and scores from the JSON output of an evaluation."""
        scores = msgspec.convert(output["systems"]["model"], list[Score])
        return score_figures(output["lines"], output["perplexity"], scores)


def score_figures(lines: int, perplexity: float, scores: Sequence[Score]) -> dict[str, Any]:
    """Return an evaluation as figures of an entry: the scores by name, their brevity penalties and signatures."""
    return {
        "lines": lines,
        "perplexity": round(perplexity, 4),
        **{score.name: round(score.value, 4) for score in scores},
        "brevity": {score.name: asdict(score.brevity) for score in scores if score.brevity},
        "signatures": {score.name: score.signature for score in scores},
    }
