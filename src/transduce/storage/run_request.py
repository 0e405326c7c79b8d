"""A request to train, and the check of its arguments before any text is read."""

import dataclasses
import math
import reprlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from numbers import Real
from pathlib import Path

from transduce.config.files import from_json, permission_problems
from transduce.config.kinds import TASKS
from transduce.config.overrides import inherit, without_effect
from transduce.config.recipes import auto, configure
from transduce.config.schema import Config
from transduce.config.validation import problems, validate
from transduce.console import printable
from transduce.data import corpora
from transduce.data.corpora import Corpus
from transduce.data.fill_in_middle import check_marks
from transduce.data.held_out import HeldOut
from transduce.data.noise import MASKS
from transduce.data.paths import PathsAndText
from transduce.data.sentences import usual_most
from transduce.data.symbols import SubwordsAndSymbols
from transduce.data.text import FilePair
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import MIDDLE_MARKS, TokenizerLike, split_tag
from transduce.data.words import Words
from transduce.decoding.segmentation import check_lines
from transduce.errors import UserError
from transduce.model import devices
from transduce.storage.atomic_folder import folder_problems
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_card import recipe_in_words
from transduce.storage.trackers import TrackerName, tracker_problems
from transduce.training.distributed import world_size
from transduce.training.sharding import shard_problems

OF_THE_TIME = ("train.max_steps", "train.decay_steps")  # keys that `more_minutes` sets
SAMPLED_LINES = 200_000  # of each corpus, of which every tenth is divided into sentences: this takes 1 s


@dataclass(frozen=True)
class TrainRequest:
    """A request to train. Its fields are the arguments of the command `train`.

    recipe: a name, FILE.py:FUNCTION, or a Config. train: source and target text, or corpora with weights. valid: source
    and target text to evaluate on; empty: a part of the training text (`storage.run_choices`). A task of one text, such
    as a language model, takes one file for each of the two.
    out: the folder of the run, RUN. settings: overrides, "section.key=value". resume: continue from the newest
    checkpoint of the run, or start if it has none. allow_change: keys in which a resumed run may differ from its
    configuration (see `config.files.CHANGEABLE`).
    start_from: a model folder; the run starts with its weights, tokenizer and architecture, and with a new optimizer.
    old_valid: validation text of that model, as in `valid`, to show whether it becomes worse there; empty: none.
    minutes: time of a new training, from which its number of steps follows; None: the steps of the recipe.
    more_minutes: time for more steps of a finished run that is resumed; None: it stays finished.
    tracker: a program that gets the numbers of each report, too; None: none. shard: each rank keeps only a part of
    weights, gradients, moments and moving average, for a model that does not fit into one GPU; a checkpoint does not
    depend on it.
    chosen, held_out: what `storage.run_choices` fills in for what was left open. back_to: the step before the next one
    of a finished run that gets more steps; None: that of the newest checkpoint.
    Raises UserError for an argument of a wrong type.
    """

    recipe: str | Config
    train: FilePair | Sequence[Corpus]
    valid: Sequence[Path]
    out: Path
    settings: Sequence[str] = ()
    resume: bool = False
    allow_change: Sequence[str] = ()
    start_from: Path | None = None
    old_valid: Sequence[Path] = ()
    tracker: TrackerName | None = None
    shard: bool = False
    minutes: float | None = None
    more_minutes: float | None = None
    chosen: Config | None = None
    held_out: HeldOut | None = None
    back_to: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, str | Config):
            raise UserError(f"recipe={reprlib.repr(self.recipe)}: expected a name, FILE.py:FUNCTION, or a Config")
        if not isinstance(self.train, list | tuple) or not all(isinstance(text, Corpus | Path) for text in self.train):
            raise UserError(f"train={reprlib.repr(self.train)}: expected source and target text, or a list of Corpus")
        weights = {f"train[{i}].weight": text.weight for i, text in enumerate(self.train) if isinstance(text, Corpus)}
        for name, value in {"minutes": self.minutes, "more_minutes": self.more_minutes, **weights}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise UserError(f"{name}={reprlib.repr(value)}: expected a number, such as 2")
        check_lines(settings=self.settings, allow_change=self.allow_change)

    @cached_property
    def _configuration(self) -> tuple[Config, list[str], bool]:
        if self.chosen:  # with regard to the settings
            return self.chosen, problems(self.chosen), True
        settings = [setting for setting in self.settings if setting not in self.replaced_settings]
        recipe = auto.undecided() if self.is_auto else self.recipe
        return configure(self._run_config or recipe, settings)

    def sets(self, key: str) -> bool:
        """Return True if a setting of the user gives `key` a value."""
        return any(setting.partition("=")[0] == key for setting in self.settings)

    @property
    def replaced_settings(self) -> list[str]:
        """The settings of the steps of a resumed run: `more_minutes` gives it others."""
        gets_time = self.has_run and self.more_minutes is not None
        return [setting for setting in self.settings if gets_time and setting.partition("=")[0] in OF_THE_TIME]

    @property
    def is_auto(self) -> bool:
        """True if the program chooses the configuration of a new run, and a resumed run keeps its own."""
        return self.recipe == "auto"

    @property
    def has_run(self) -> bool:
        """True if the request resumes a run with a checkpoint."""
        return self.resume and bool(checkpoints(self.out))

    @property
    def _run_config(self) -> Config | None:
        """The configuration of the run to resume, if the program chose it; None if it is damaged, or another."""
        if not (self.has_run and (self.is_auto or self.minutes is not None)):
            return None
        with suppress(OSError, UserError):
            return from_json((self.out / "config.json").read_bytes(), self.out)
        return None

    @property
    def config(self) -> Config:
        """The configuration from recipe and settings, before `complete_config` sets the size of the vocabulary."""
        return self._configuration[0]

    @property
    def is_of_one_text(self) -> bool:
        """True if the task learns from one text instead of source and target."""
        return TASKS[self.config.train.task].is_of_one_text

    @cached_property
    def corpora(self) -> list[Corpus]:
        """The text to train on, without what is held out. One text is aligned with itself."""
        return self.held_out.training if self.held_out else self.given_corpora

    @cached_property
    def given_corpora(self) -> list[Corpus]:
        """The whole training text. One text is aligned with itself."""
        all_corpora = corpora.as_corpora(self.train)
        if not self.is_of_one_text:
            return all_corpora
        return [dataclasses.replace(corpus, tgt=corpus.tgt or corpus.src) for corpus in all_corpora]

    @property
    def valid_corpus(self) -> Corpus:
        """The validation text. One text is aligned with itself."""
        return self.held_out.valid if self.held_out else self._evaluation_text(self.valid)

    @property
    def old_corpus(self) -> Corpus | None:
        """The validation text of the model that the run starts from, if it was given."""
        return self._evaluation_text(self.old_valid) if self.old_valid else None

    def _evaluation_text(self, files: Sequence[Path]) -> Corpus:
        return Corpus(files[0], files[-1] if len(files) > 1 or self.is_of_one_text else None)

    def problems(self) -> list[str]:
        """Return a line for each mistake in the request. Reads no text."""
        _, problems, has_recipe = self._configuration
        # One file is a text or a table, which depends on the task.
        texts = self.corpora if has_recipe else [corpus for corpus in self.corpora if corpus.tgt is not None]
        return [
            *problems,
            *(without_effect(self.settings, self.start_from, self.config) if self.start_from else []),
            *(corpora.problems(texts) if has_recipe or texts else []),
            *(self._text_problems() if has_recipe else []),
            *(self._evaluation_problems() if has_recipe or len(self.valid) > 1 else []),
            *self._adaptation_problems(),
            *self._run_problems(),
            *(tracker_problems(self.tracker) if self.tracker else []),
            *(shard_problems(self.config.train) if self.shard else []),
        ]

    def check(self) -> None:
        """Raise UserError with all mistakes in the request. Reads no text."""
        problems = self.problems()
        if problems:
            raise UserError(*problems)

    def _text_problems(self) -> list[str]:
        """Return a line for each text that has source and target although the task has one text, or the reverse."""
        task = self.config.train.task
        if not self.is_of_one_text:
            words, values = TASKS[task].sides
            expected = f"expected {words}, or one file with both in columns; give --valid {values}"
            counts = (0, 1, 2) if task == "translation" else (1, 2)
            return [f"--valid={_names(self.valid)}: {expected}"] if len(self.valid) not in counts else []
        lines = [
            f"--train={corpus.src} {corpus.tgt}: expected one text with train.task={task!r}; give --train FILE"
            for corpus in self.corpora
            if not corpus.is_one_text
        ]
        if len({*self.valid}) != 1:
            lines.append(f"--valid={_names(self.valid)}: expected one text with train.task={task!r}; give --valid FILE")
        return lines

    def _evaluation_problems(self) -> list[str]:
        """Return a line for each problem of the validation texts."""
        lines = corpora.problems([self.valid_corpus]) if self.valid else []
        if not self.old_valid:
            return lines
        if self.start_from is None:
            lines.append(f"--old-valid={_names(self.old_valid)}: must not be set without --from; add --from MODEL")
        if len(self.old_valid) not in ((1,) if self.is_of_one_text else (1, 2)):
            lines.append(
                f"--old-valid={_names(self.old_valid)}: expected as many files as --valid; leave the others out"
            )
        return [*lines, *corpora.problems([self._evaluation_text(self.old_valid)])]

    def _adaptation_problems(self) -> list[str]:
        """Return a line for each setting that needs a model to start from, and for an optimizer that LoRA lacks."""
        train = self.config.train
        settings = {"freeze": ",".join(train.freeze), "lora_rank": train.lora_rank}
        lines = [
            f"train.{name}={value}: must not be set without --from; add --from MODEL"
            for name, value in settings.items()
            if value and self.start_from is None and not self.has_run
        ]
        is_chosen = self.is_auto and not self.sets("train.optimizer")
        if train.lora_rank is not None and train.optimizer != "adam" and not is_chosen:
            name = f"train.optimizer={train.optimizer!r}"
            lines.append(f"{name}: expected 'adam' with train.lora_rank; add --set train.optimizer=adam")
        return lines

    def _run_problems(self) -> list[str]:
        """Return a line for each reason why a run cannot start or resume in `out`."""
        problems = [*permission_problems(self.allow_change), *self._choice_problems()]
        if self.allow_change and not self.resume:
            names = " ".join(self.allow_change)
            problems.append(f"--allow-change={names}: must not be set without --resume; add --resume")
        if checkpoints(self.out) and not self.resume:
            problems.append(f"--out={self.out}: expected a new folder, not a run; add --resume, or give another folder")
        if self.start_from is None and TASKS[self.config.train.task].start is not None:
            task = self.config.train.task
            problems.append(f"train.task={task!r}: expected --from, a pre-trained model; add --from FOLDER")
        if self.start_from is not None and not self.start_from.is_dir():
            problems.append(f"--from={self.start_from}: expected a model folder such as RUN/model; check the path")
        return [*problems, *_foreign_file_problems(self.out)]

    def _choice_problems(self) -> list[str]:
        """Return a line for each reason why steps or a configuration cannot be chosen."""
        lines = []
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            lines.append(f"--minutes={self.minutes:g}: expected a number over 0; for example --minutes 60")
        task = self.config.train.task
        if self.minutes is not None and task != "translation":
            lines.append(f"--minutes={self.minutes:g}: expected train.task='translation', not {task!r}; leave it out")
        if self.minutes is not None and not self.has_run:
            lines += [
                f"--set {setting}: must not be set with --minutes, which sets it; leave one of them out"
                for setting in self.settings
                if setting.startswith("train.max_steps=")
            ]
            if (
                self.sets("train.average_checkpoints")
                and self.config.train.use == "average"
                and not self.sets("train.use")
            ):
                lines.append(
                    "--set train.average_checkpoints: must not be set with --minutes, whose model is a moving average; "
                    "add --set train.use=average"
                )
        if (self.is_auto or self.minutes is not None) and not self.has_run and world_size() > 1:
            name = "--recipe=auto" if self.is_auto else f"--minutes={self.minutes:g}"
            lines.append(f"{name}: expected one rank, for the trial; give a recipe without --minutes")
        return lines

    # ---- the parts of a new run ----------------------------------------------------------------------------------

    def learn_tokenizer(self) -> TokenizerLike:
        """Return a tokenizer learned from the training text. Each pair counts once, regardless of its weight."""
        data = self.config.data
        default = "spaces" if self.config.train.task == "translation" else "none"
        normalizes = (data.normalization or default) == "spaces"
        tags = MIDDLE_MARKS if data.fill_middle else data.tags
        rules = {"kind": data.tokenizer, "vocab_size": data.vocab_size, "tags": tags, "normalizes": normalizes}
        learn = partial(Tokenizer.learn, **rules)
        pairs = (pair for corpus in self.corpora for pair in corpora.read_pairs(corpus))
        if data.target_tokens == "symbols":
            of_source = partial(Words.learn, vocab_size=data.vocab_size) if data.source_tokens == "words" else learn
            return SubwordsAndSymbols.learn(pairs, of_source)
        if TASKS[self.config.train.task].is_of_sound:
            return PathsAndText(learn(text for _, text in pairs))
        n_texts = 1 if self.is_of_one_text else 2
        masks = MASKS if "masks" in data.noise_probabilities else []
        return learn(chain((side for pair in pairs for side in pair[:n_texts]), masks))

    def count_sentences(self) -> int | None:
        """Return `data.sentences_per_line` for the training text, counted in a sample; None unless it is translated."""
        if self.config.train.task != "translation":
            return None
        lines = (src for corpus in self.corpora for src, _ in islice(corpora.read_pairs(corpus), 0, SAMPLED_LINES, 10))
        return usual_most(split_tag(line, self.config.data.tags)[1] for line in lines)

    def complete_config(self, tokenizer: TokenizerLike, parent: Config | None, run: Config | None) -> Config:
        """Return `config` with the keys that the tokenizer sets and, unless it is None, the architecture of `parent`.

        run: the configuration of the run so far, which keeps what `config` leaves open; None: the run is new, and the
        text and the device decide. Raises UserError if the result is not valid.
        """
        config = inherit(self.config, parent, self.settings) if parent is not None else self.config
        normalization = "spaces" if tokenizer.normalizes else "none"
        if config.data.normalization not in (None, normalization):
            raise UserError(
                f"data.normalization={config.data.normalization!r}: expected {normalization!r}, as the tokenizer; "
                "leave it out"
            )
        if config.data.fill_middle:
            check_marks(tokenizer)
        n_sentences = config.data.sentences_per_line
        if n_sentences is None:
            n_sentences = run.data.sentences_per_line if run else self.count_sentences()
        data = dataclasses.replace(config.data, normalization=normalization, sentences_per_line=n_sentences)
        config = with_precision(config, run.train.precision if run else devices.training_precision())
        config = dataclasses.replace(config, data=data)
        if config.model.vocab_size not in (None, tokenizer.vocab_size):
            raise UserError(
                f"model.vocab_size={config.model.vocab_size}: expected null or {tokenizer.vocab_size}, the number of "
                "pieces of the tokenizer; use null, and set the size of the tokenizer with data.vocab_size"
            )
        sizes: dict[str, object] = {"vocab_size": tokenizer.vocab_size}
        if tokenizer.target.vocab_size != tokenizer.vocab_size:
            sizes["tgt_vocab_size"] = tokenizer.target.vocab_size
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))
        validate(config)
        return config

    def provenance(self) -> dict[str, str]:
        """Return the origin of a model for its card: recipe, settings and the names of the text files."""
        files = ([side for side in dict.fromkeys((corpus.src, corpus.tgt)) if side] for corpus in self.given_corpora)
        names = (" and ".join(printable(file.name) for file in of_corpus) for of_corpus in files)
        facts = {
            "recipe": recipe_in_words(self.recipe, self.settings, self.start_from),
            "training text": "; ".join(names),
        }
        if self.held_out:
            facts["validation text"] = f"{self.held_out.n_valid:,} pairs of the training text, which were held out"
        return facts

    def evaluation_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the files of the validation text, and of the old one, for messages."""
        valid = self.valid_corpus
        files = [path for path in (valid.src, valid.tgt) if path], self.old_valid
        names, old_names = (tuple(dict.fromkeys(printable(path.name) for path in paths)) for paths in files)
        return names, old_names

    def text_names(self) -> dict[str, str]:
        """Return the names of training text, validation text, and the model that a loss compares with, for messages."""
        names = {"train": "; ".join(corpus.name for corpus in self.given_corpora), "valid": self.valid_corpus.name}
        return {**names, "reference": f"--from={self.start_from}"}


def with_precision(config: Config, precision: str) -> Config:
    """Return `config` with this precision if it has "auto"."""
    if config.train.precision != "auto":
        return config
    return dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))


def _names(paths: Sequence[Path]) -> str:
    return printable(" ".join(map(str, paths)))


def _foreign_file_problems(out: Path) -> list[str]:
    """Return a line if `out` has files that do not belong to a run: training would overwrite config.json and data/."""
    if problems := folder_problems(out):
        return problems
    if (out / "manifest.json").exists():
        return [f"--out={out}: expected a new folder or a run, not a model; give another folder"]
    if (out / "config.json").exists():
        return _config_problems(out / "config.json")
    for name in ("checkpoints", "data", "log.jsonl", "model", "report.html", "tokenizer.json"):
        if (out / name).exists():
            return [f"--out={out}: expected a new folder or a run, but {name} exists there; give another folder"]
    return []


def _config_problems(path: Path) -> list[str]:
    try:
        from_json(path.read_bytes(), path)
    except UserError as mistake:
        return [*mistake.args]
    return []
