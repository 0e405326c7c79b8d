"""What a new run decides for its user: the validation text, the recipe `auto`, and the steps for a given time."""

import dataclasses
import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transduce.config.overrides import inherit, overridden
from transduce.config.recipes import auto
from transduce.config.recipes.schedule import DECAY, scheduled, with_optimizer
from transduce.config.schema import Config
from transduce.config.validation import validate
from transduce.console import printable
from transduce.data.corpora import Corpus, read_pairs
from transduce.data.held_out import MOST_PAIRS, MOST_SHARE, HeldOut, hold_out
from transduce.data.text_size import measure
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError
from transduce.model import devices
from transduce.model.cpu_backend import has_fast_bf16
from transduce.storage.checkpoints import before_decay, checkpoints, load_state, step_of
from transduce.storage.model_folder import load_config, load_tokenizer
from transduce.storage.run_request import OF_THE_TIME, TrainRequest, with_precision
from transduce.training import distributed
from transduce.training.trial import run_trial

HELD_OUT = "held-out"  # folder in RUN
RESCALED = ("train.warmup_steps", "train.lr_factor")  # keys whose values a shorter training changes


def complete(request: TrainRequest, print_lines: Callable[[list[str]], None]) -> TrainRequest:
    """Return `request` with all that it leaves open. print_lines: prints what was chosen, and why.

    A run that resumes keeps its configuration. If it is finished, `more_minutes` give it more steps.
    Raises UserError if the text is too short to hold a part of it out, or the time too short for a training, or if the
    settings do not fit the choice, or if a run resumes with a validation text but holds its own out, or the reverse.
    """
    if not request.has_run and request.config.train.precision == "auto" and devices.training_precision() == "bf16":
        print_lines(["precision: bf16 (chosen for this GPU; --set train.precision=fp32 computes as the paper did)"])
    if request.has_run:
        _check_validation(request)
    chooses = not request.has_run and (request.is_auto or request.minutes is not None)
    parent = config_of_parent(request.start_from) if chooses or not request.valid else None
    if not request.has_run and (chooses or not request.valid):
        print_lines([f"reading {', '.join(corpus.name for corpus in request.given_corpora)}"])
    if not request.valid:
        with distributed.leader_first():
            held_out = _held_out(request)
        request = dataclasses.replace(request, held_out=held_out)
        if not request.has_run:
            print_lines([_line_of(held_out)])
    if request.has_run:
        return _with_more_time(request, print_lines) if request.more_minutes else request
    if not chooses:
        return request
    choice = _choose(request, parent)
    validate(choice.config)
    print_lines(
        [*choice.lines, "now the tokenizer learns the text" if parent is None else "now the text becomes tokens"]
    )
    return dataclasses.replace(request, chosen=choice.config)


def _check_validation(request: TrainRequest) -> None:
    """Raise UserError if a run was started with a validation text and resumes without one, or the reverse."""
    state = _newest_state(request.out)
    was_held_out = "validation text" in state["made_of"]
    if request.valid and was_held_out:
        given = printable(shlex.join(map(str, request.valid)))
        raise UserError(
            f"--valid={given}: must not be set, because {request.out} evaluates on pairs that it held out of its "
            "training text; leave it out"
        )
    if not request.valid and not was_held_out:
        files = state.get("valid_files", ["SRC", "TGT"])  # older versions did not store their names
        words = shlex.join(files)
        raise UserError(
            f"{request.out}: expected the validation text that the run started with; add --valid {words}, in Python "
            f"valid={tuple(files) if len(files) > 1 else files[0]!r}"
        )


def _newest_state(out: Path) -> dict[str, Any]:
    """Return the state of the newest checkpoint whose state is undamaged. Raises UserError if there is none."""
    for path in reversed(checkpoints(out)):
        with suppress(UserError):
            return load_state(path)
    return load_state(checkpoints(out)[-1])


def config_of_parent(folder: Path | None) -> Config | None:
    """Return the configuration of the model of --from. Raises UserError unless it translates."""
    if folder is None:
        return None
    config = load_config(folder)
    if config.train.task != "translation":
        task = config.train.task
        raise UserError(
            f"--from={folder}: expected a model of train.task='translation', not {task!r}; give --recipe and --valid, "
            "and no --minutes"
        )
    return config


def _held_out(request: TrainRequest) -> HeldOut:
    rules = {"seed": request.config.train.seed, "tags": request.config.data.tags, "tokenizer": _tokenizer(request)}
    return hold_out(request.given_corpora, request.out / HELD_OUT, **rules)


def _tokenizer(request: TrainRequest) -> TokenizerLike | None:
    """Return the tokenizer of the model of --from, or of the run; None if it is not learned yet, or damaged."""
    if request.start_from is not None:
        return load_tokenizer(request.start_from)
    with suppress(OSError, UserError):
        return Tokenizer.load(request.out / "tokenizer.json") if request.has_run else None
    return None


def _line_of(held_out: HeldOut) -> str:
    return f"no --valid: {held_out.n_valid:,} pairs of the training text are held out for it, in {held_out.valid.name}"


def _choose(request: TrainRequest, parent: Config | None) -> auto.ExplainedConfig:
    """Return the configuration of a run. parent: the configuration of the model of --from."""
    texts = [request.valid_corpus, *([request.old_corpus] if request.old_corpus else [])]
    n_valid = sum(1 for text in texts for _ in read_pairs(text))
    if request.is_auto:
        return choose_for(request.corpora, request.minutes, request.settings, n_valid, parent)
    return _ended(request, n_valid, parent)


def choose_for(
    corpora: Sequence[Corpus],
    minutes: float | None,
    settings: Sequence[str] = (),
    n_valid: int | None = None,
    parent: Config | None = None,
) -> auto.ExplainedConfig:
    """Return the configuration that `auto` chooses for a text on this machine.

    minutes: time of the whole training; None: a full training. settings: overrides that the training will have.
    n_valid: number of pairs that an evaluation has; None: as many as would be held out. parent: configuration of the
    model that the training starts from; None: it starts from random weights.
    """
    config = overridden(parent or auto.start(), settings)[0]
    steps = config.train.max_steps if any(setting.startswith("train.max_steps=") for setting in settings) else None
    text = measure(corpora, config.data.max_tokens)
    size = max(1, min(MOST_PAIRS, int(MOST_SHARE * text.pairs))) if n_valid is None else n_valid

    def trial(config: Config) -> auto.Trial:
        return run_trial(config, text, size)

    def complete(config: Config) -> Config:
        train = overridden(config, settings)[0].train
        optimizer = train.optimizer if train.lora_rank is None else "adam"
        return overridden(with_optimizer(config, optimizer), settings)[0]

    precision = "bf16" if has_fast_bf16(devices.device()) else "fp32"
    conditions = auto.Conditions(minutes, precision, trial, complete, steps)
    return auto.choose(text, conditions) if parent is None else auto.choose_from(parent, text, conditions)


def _ended(request: TrainRequest, n_valid: int, parent: Config | None) -> auto.ExplainedConfig:
    """Return the configuration of `request` with the number of steps that fits into its minutes.

    The settings of warm-up and learning rate change the recipe before it is shortened, the others afterwards.
    """
    assert request.minutes is not None
    config = request.config if parent is None else inherit(request.config, parent, request.settings)
    text = measure(request.corpora, config.data.max_tokens)
    config = with_precision(config, devices.training_precision())
    speed = run_trial(config, text, n_valid)
    steps = auto.steps_within(request.minutes, text, speed)
    train = scheduled(config.train, steps, auto.evaluations(steps, speed))
    if request.sets("train.use") and config.train.use in ("average", "last"):
        train = dataclasses.replace(train, ema_decay=None)
    settings = [setting for setting in request.settings if setting.partition("=")[0] not in RESCALED]
    config = overridden(dataclasses.replace(config, train=train), settings)[0]
    return auto.ExplainedConfig(config, auto.of_time(text, config, speed, request.minutes))


# ---- more time for a finished run --------------------------------------------------------------------------------


def _with_more_time(request: TrainRequest, print_lines: Callable[[list[str]], None]) -> TrainRequest:
    """Return a request for a run with more steps, if the run in `request.out` is finished; otherwise `request`.

    The run goes back to the checkpoint before its learning rate fell: what came later is learned again, with a higher
    rate for longer. The later checkpoints stay until the training begins, and RUN/model until its end. Raises UserError
    if there is no such checkpoint, or if the time is shorter than the fall was.
    """
    assert request.more_minutes is not None
    given = f"--minutes={request.more_minutes:g}"
    if replaced := request.replaced_settings:
        print_lines([f"{given}: no effect of --set {' --set '.join(replaced)}: the run has its own steps"])
        settings = [setting for setting in request.settings if setting not in replaced]
        request = dataclasses.replace(request, settings=settings)
    train = request.config.train
    if step_of(checkpoints(request.out)[-1]) < train.max_steps:
        print_lines([f"{given}: the run is not finished, and keeps its {train.max_steps:,} steps"])
        return request
    every = train.evaluate_every_steps
    decay_start = train.max_steps - train.decay_steps
    path = before_decay(request.out, train.checkpoint_every_steps, decay_start) if train.decay_steps else None
    if path is None:
        raise UserError(
            f"{given}: expected a run with a checkpoint from before its learning rate fell to 0, which {request.out} "
            "lacks; leave it out, and give more steps: --set train.max_steps=N --allow-change train.max_steps"
        )
    start = step_of(path)
    state = _newest_state(request.out)
    minutes_per_step = state["seconds"] / state["step"] / 60
    steps = start + int(request.more_minutes / minutes_per_step) // every * every
    if steps <= train.max_steps:
        least = math.ceil((train.max_steps - start + every) * minutes_per_step)
        raise UserError(
            f"{given}: expected at least {least}, since the run goes back to step {start:,}, before its learning rate "
            "fell; give more"
        )
    print_lines([f"back to step {start:,}, before the learning rate fell; now {steps:,} steps"])
    decay_steps = min(steps - start, round(DECAY * steps))
    train = dataclasses.replace(train, max_steps=steps, decay_steps=decay_steps)
    allowed = [*request.allow_change, *OF_THE_TIME]
    chosen = dataclasses.replace(request.config, train=train)
    return dataclasses.replace(request, chosen=chosen, allow_change=allowed, back_to=start)
