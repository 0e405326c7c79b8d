"""The table of `transduce distil`: size, speed and BLEU of a student and of its teacher, in several precisions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from transduce.cli.stream import ModelFolders, load_translator
from transduce.config.schema import architecture
from transduce.data.corpora import Corpus, read_pairs
from transduce.decoding.options import DEFAULTS, DecodingOptions
from transduce.evaluation.metrics import bleu, bleu_signature
from transduce.model import devices

if TYPE_CHECKING:
    from transduce.cli.stream import AnyTranslator

MOST_LINES = 1_000
ROUNDS = 3  # in which the systems take turns
HEAD = ("model", "layers", "precision", "MB on disk", "sentences/s", "speed", "BLEU")


@dataclass
class System:
    """A model as it is used. seconds: of each round. outputs: the translations."""

    name: str
    folders: Sequence[Path]
    precision: str
    options: DecodingOptions = DEFAULTS
    seconds: list[float] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def load(self) -> "AnyTranslator":
        """Return the model, ready to translate."""
        return load_translator(ModelFolders(self.folders, self.precision), self.options)

    @property
    def megabytes(self) -> float:
        """The size of all files of its folders."""
        files = (path for folder in self.folders for path in folder.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files) / 1e6


def student_table(teacher: Sequence[Path], student: Path, export: Path | None, text: Corpus) -> str:
    """Return the table, measured on at most 1,000 pairs of a text. export: the student for CTranslate2, if any.

    The systems take turns, and their speed is the median of the ratios in a round: other processes slow all of them.
    """
    pairs = [*islice(read_pairs(text), MOST_LINES)]
    sources, references = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    systems = _systems(teacher, student, export)
    translators = [system.load() for system in systems]
    _measure(systems, translators, sources)
    rows = []
    for system, translator in zip(systems, translators, strict=True):
        base = next(first for first in systems if first.precision == system.precision)
        speed = median(first / own for first, own in zip(base.seconds, system.seconds, strict=True))
        layers = architecture(translator.config).partition(" layers")[0]
        figures = f"{system.megabytes:.1f}", f"{len(pairs) / median(system.seconds):,.0f}", f"{speed:.2f}"
        rows.append((system.name, layers, system.precision, *figures, f"{bleu(system.outputs, references):.2f}"))
    note = f"{len(pairs):,} lines of {text.name}; speed compared with the teacher in the same precision"
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in lines), note, f"BLEU: {bleu_signature(references)}"])


def _measure(systems: Sequence[System], translators: Sequence["AnyTranslator"], sources: Sequence[str]) -> None:
    """Let the systems translate in turns. Each gets its outputs, and the seconds of each round."""
    for number in range(ROUNDS + 1):
        for system, translator in zip(systems, translators, strict=True):
            start = time.perf_counter()
            outputs = translator.translate(sources, options=system.options)
            if number:  # the first round warms up
                system.seconds.append(time.perf_counter() - start)
            else:
                system.outputs = [translation.text for translation in outputs]


def _systems(teacher: Sequence[Path], student: Path, export: Path | None) -> list[System]:
    precisions = ("fp32", "int8") if devices.device().type == "cpu" else ("fp32",)
    both = (("teacher", teacher), ("student", [student]))
    systems = [System(name, folders, precision) for name, folders in both for precision in precisions]
    short = replace(DEFAULTS, shortlist=True)
    systems.append(System("student, shortlist", [student], precisions[-1], short))
    if export is not None and precisions[-1] == "int8":
        systems.append(System("student, CTranslate2", [export], "int8"))
    return systems
