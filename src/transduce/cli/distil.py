"""`transduce distil`: train a small and fast student on the translations of a model."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.options import Flag, Integer, ModelsArgument, with_device
from transduce.cli.train import HoursOption, MinutesOption, SettingsOption, ValidOption, minutes_of
from transduce.cli.translate import AnyPrecisionOption, NearestByOption
from transduce.console import printable
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.config.schema import Config
    from transduce.storage.run_request import TrainRequest

StudentTextOption = Annotated[
    list[Path],
    Parameter(
        consume_multiple=True,
        help="SRC [TGT]: source text and, if there are any, its translations, line by line. With TGT, the student "
        "learns the output that is nearest to it.",
    ),
]
LayersOption = Annotated[
    tuple[int, int] | None,
    Integer,
    Parameter(help="Layers of the student's encoder, and of its decoder.", show_default="the teacher's, and 1"),
]
TeacherNBestOption = Annotated[
    int | None,
    Integer,
    Parameter(help="Outputs of which the nearest is taken.", show_default="the teacher's beam size"),
]
# Of the student. With the teacher's 0.2, a student of captions ended with BLEU 35.0 after 1,600 steps. With 0.1 and a
# higher learning rate, another had 35.6 after 1,100 of 2,200 steps.
MOST_DROPOUT = 0.1


@with_device
def distil(
    *teacher: ModelsArgument,
    train: StudentTextOption,
    out: Path,
    valid: ValidOption = None,
    layers: LayersOption = None,
    n_best: TeacherNBestOption = None,
    nearest_by: NearestByOption = "bleu",
    backward: Path | None = None,
    minutes: MinutesOption = None,
    hours: HoursOption = None,
    settings: SettingsOption = None,
    precision: AnyPrecisionOption = "auto",
    dry_run: Flag = False,
) -> None:
    r"""Train a small and fast student on the translations of a model, its teacher.

    The student starts with layers of the teacher. It gets a shortlist, and an export to CTranslate2 in int8. At the
    end, a table compares both models. After an interruption, the same command continues.

    Parameters
    ----------
    out
        Folder of the run. The student is in OUT/model, its export in OUT/ctranslate2.
    backward
        A model of the other direction. Of 100 pairs, drop the 5 whose source it finds least likely.
    precision
        Precision of the teacher's translation of the text, as in `transduce translate`.
    dry_run
        Print the commands of the steps, and write nothing.

    Examples
    --------
    transduce distil run/model --train train.en train.de \
        --valid valid.en valid.de --out student
    transduce distil run/model --train train.en --layers 6 1 --out student
    transduce distil run/model --train train.en train.de --out student --dry-run
    """
    distillation = Distillation(teacher, train, valid or [], out, backward, nearest_by, precision, settings or [])
    distillation.layers = layers
    distillation.n_best = n_best
    distillation.minutes = minutes_of(minutes, hours)
    distillation.check()
    if dry_run:
        print("\n".join([distillation.plan(), *distillation.commands()]))
        return
    distillation.run()


@dataclass
class Distillation:
    """The steps of a distillation. The fields are the arguments of the command."""

    teacher: Sequence[Path]
    train: Sequence[Path]
    valid: Sequence[Path]
    out: Path
    backward: Path | None
    nearest_by: NearestByOption
    precision: str | None
    settings: Sequence[str]
    layers: tuple[int, int] | None = None
    n_best: int | None = None
    minutes: float | None = None

    @cached_property
    def config(self) -> "Config":
        """The configuration of the first teacher."""
        from transduce.storage.run_choices import config_of_parent

        config = config_of_parent(self.teacher[0])
        assert config is not None
        return config

    @property
    def translations(self) -> Path:
        """The folder of the teacher's translations."""
        return self.out / "teacher"

    @property
    def text(self) -> tuple[Path, Path]:
        """The two files that the student learns."""
        return self.out / "distilled.src", self.out / "distilled.tgt"

    @property
    def n_outputs(self) -> int:
        """The number of the teacher's outputs for each line."""
        if self.n_best is not None:
            return self.n_best
        return self.config.search.beam_size if len(self.train) == 2 else 1

    @property
    def all_settings(self) -> list[str]:
        """The settings of the training. Those of the user come last, and replace the others."""
        depths = self.layers or (self.config.model.depths[0], 1)
        model = [f"model.n_{side}_layers={n}" for side, n in zip(("encoder", "decoder"), depths, strict=True)]
        return [*model, f"model.dropout={min(self.config.model.dropout, MOST_DROPOUT)}", *self.settings]

    def request(self, src: Path, tgt: Path) -> "TrainRequest":
        """Return the request to train the student on a text."""
        from transduce.data.corpora import Corpus
        from transduce.storage.run_request import TrainRequest

        start = {"start_from": self.teacher[0], "minutes": self.minutes, "resume": True}
        return TrainRequest("auto", [Corpus(src, tgt)], self.valid, self.out, self.all_settings, **start)

    def check(self) -> None:
        """Raise UserError for mistakes that would otherwise be found after hours."""
        from transduce.cli.clean import check_helpers
        from transduce.cli.file_translation import line_count
        from transduce.cli.work_folder import ORIGIN
        from transduce.data.corpora import Corpus, read_pairs
        from transduce.data.text import unequal
        from transduce.storage.run_choices import choose_for

        if not 1 <= len(self.train) <= 2:
            raise UserError(f"--train={' '.join(map(str, self.train))}: expected SRC or SRC TGT; give one or two files")
        if self.n_best is not None and len(self.train) == 1:
            raise UserError(f"--n-best={self.n_best}: must not be set without TGT; give --train SRC TGT")
        others = [path for path in self.out.iterdir() if path != self.translations] if self.out.is_dir() else []
        if others and not (self.translations / ORIGIN).exists():
            raise UserError(f"--out={self.out}: expected a new folder, or one of this job; give another folder")
        if self.config.model.kind != "transformer":
            raise UserError(f"{self.teacher[0]}: expected a Transformer, not {self.config.model.kind}; give another")
        request = self.request(self.train[0], self.train[-1])
        request.check()
        n_valid = sum(1 for _ in read_pairs(request.valid_corpus)) if self.valid else None
        counts = [line_count(path) for path in self.train]
        if counts[0] != counts[-1]:
            raise unequal((f"{self.train[0]}", f"{self.train[-1]}"), (counts[0], counts[-1]))
        check_helpers([], self.backward)
        if self.minutes is not None and not self.text[0].exists():
            texts = [Corpus(self.train[0], self.train[-1])]
            choose_for(texts, self.minutes, self.all_settings, n_valid, self.config)  # it refuses too few minutes

    def plan(self) -> str:
        """Return the sizes of the text and of the models."""
        from transduce.cli.file_translation import line_count
        from transduce.cli.recipes import format_size
        from transduce.config.overrides import inherit
        from transduce.config.schema import architecture

        models = {"teacher": self.config, "student": inherit(self.config, self.config, self.all_settings)}
        sizes = [f"{name} {format_size(model)}, {architecture(model)}" for name, model in models.items()]
        return "\n".join([f"{line_count(self.train[0]):,} lines", *sizes])

    def commands(self) -> list[str]:
        """Return the commands of the steps, without the table at the end."""
        from transduce.cli.file_translation import TRANSLATIONS

        source, *targets = self.train
        src, tgt = self.text
        outputs = self.translations / TRANSLATIONS
        nearest = ["--n-best", self.n_outputs, "--nearest", *targets, "--nearest-by", self.nearest_by]
        precision = ["--precision", self.precision] if self.precision else []
        backward = ["--backward", self.backward] if self.backward else []
        valid = ["--valid", *self.valid] if self.valid else []
        settings = [word for setting in self.all_settings for word in ("--set", setting)]
        minutes = [] if self.minutes is None else ["--minutes", f"{self.minutes:g}"]
        choice = nearest if targets and self.n_outputs > 1 else []
        model = self.out / "model"
        export = ["--to", "ctranslate2", "--precision", "int8", "--out", self.out / "ctranslate2"]
        steps = [
            ["translate", *self.teacher, *precision, *choice, "--input", source, "--output", outputs],
            ["clean", source, outputs, *backward, "--out", src, tgt],
            ["train", "--from", self.teacher[0], *settings, *minutes, "--train", src, tgt, *valid, "--out", self.out],
            ["shortlist", model, "--src", src, "--tgt", tgt],
            ["export", model, *export],
        ]
        return [shlex.join(["transduce", *map(str, step)]) for step in steps]

    def run(self) -> None:
        """Take all steps that are not done, and print the table."""
        from transduce.cli.shortlist import shortlist
        from transduce.storage.model_folder import SHORTLIST_FILE
        from transduce.train import train

        self.write_text()
        src, tgt = self.text
        request = self.request(src, tgt)
        if request.has_run and self.minutes is not None:
            steps = f"the training has begun, and keeps its {request.config.train.max_steps:,} steps"
            more = f"after its end, this gives it more: {self.commands()[2]} --resume"
            print(f"transduce: --minutes={self.minutes:g}: {steps}; {more}", file=sys.stderr)
        student = train(request)
        if not self.is_trained():
            print("transduce: the training is not finished; the same command continues", file=sys.stderr)
            return
        if not (student / SHORTLIST_FILE).exists():
            shortlist(student, src=src, tgt=tgt)
        self.print_table(student)

    def write_text(self) -> None:
        """Translate the source text, and write the pairs that the student learns."""
        from transduce.cli.clean import find_bad_pairs, output_paths, write_clean
        from transduce.cli.file_translation import translate_file
        from transduce.cli.nearest import Nearest
        from transduce.cli.stream import ModelFolders
        from transduce.cli.work_folder import has_work, open_work
        from transduce.data.corpora import Corpus
        from transduce.decoding.options import DecodingOptions

        source, *targets = self.train
        nearest = Nearest(targets[0], self.nearest_by) if targets and self.n_outputs > 1 else None
        options = DecodingOptions.from_arguments(n_best=self.n_outputs)
        teacher = ModelFolders(self.teacher, self.precision)
        remedy = "put one before each line"
        outputs = translate_file(teacher, source, self.translations, options, nearest, tag_remedy=remedy)
        corpus = Corpus(source, outputs)
        inputs = [source, outputs, *([self.backward] if self.backward else [])]
        with open_work(self.out / "cleaning", inputs, None) as work:  # it stays, to tell another --backward
            if has_work(work) and all(path.exists() for path in self.text):
                return
            cleaning = find_bad_pairs(corpus, [], [], self.backward, work)
            if not cleaning.n_kept:
                raise UserError(
                    f"{outputs}: expected translations that transduce clean keeps; train the teacher for longer"
                )
            write_clean(corpus, cleaning, output_paths(self.text))

    def is_trained(self) -> bool:
        """Return True if the training has taken its last step, or its patience has run out."""
        from transduce.storage.checkpoints import checkpoints, load_state
        from transduce.storage.run_folder import run_config

        train = run_config(self.out).train
        state = load_state(checkpoints(self.out)[-1])
        is_out_of_patience = train.patience is not None and state["evaluations_since_best"] >= train.patience
        return state["step"] >= train.max_steps or is_out_of_patience

    def print_table(self, student: Path) -> None:
        """Print the table of the student and its export."""
        from transduce.cli.student_table import student_table
        from transduce.data.corpora import Corpus
        from transduce.storage.run_choices import HELD_OUT

        export = self.export(student)
        src, *tgt = self.valid or [self.out / HELD_OUT / name for name in ("valid.src", "valid.tgt")]
        print(student_table(self.teacher, student, export, Corpus(src, tgt[0] if tgt else None)))

    def export(self, student: Path) -> Path | None:
        """Return the export of the student, made again if the student is newer; None if that is impossible."""
        from transduce.interop.ctranslate2_export import export_ctranslate2
        from transduce.storage.atomic_folder import remove

        export = self.out / "ctranslate2"
        if export.exists() and (student / "manifest.json").stat().st_mtime_ns > export.stat().st_mtime_ns:
            remove(export)
        try:
            if not export.exists():
                print(export_ctranslate2(student, export, "int8"), file=sys.stderr)
        except UserError as problem:
            print(f"transduce: no export: {printable(str(problem))}", file=sys.stderr)
            return None
        return export
