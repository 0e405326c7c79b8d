"""Training (section 5): prepare, loop, finish.

text -> tokens -> batches -> model -> loss -> optimizer -> checkpoint, in the folder of the run
"""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config.kinds import TASKS, import_object
from transduce.config.schema import Config, TrainConfig
from transduce.config.validation import as_path, as_text_files
from transduce.console import printable
from transduce.data.batches import Batch, Batches, Share, collate
from transduce.data.corpora import Corpus, corpus_sha256, read_pairs, training_text
from transduce.data.overlap import cached_overlap
from transduce.data.prefetch import Prefetch
from transduce.data.token_store import open_store
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.segmentation import most_tokens
from transduce.errors import NotFiniteError, UserError
from transduce.evaluate import check_validation, validation_scores
from transduce.evaluation.metrics import bleu_signature
from transduce.evaluation.run_report import refresh_report
from transduce.model import devices
from transduce.model.build import Model, build
from transduce.storage import run_choices, run_folder
from transduce.storage.atomic_folder import listed_sha256
from transduce.storage.checkpoints import CheckpointWriter, step_of
from transduce.storage.model_card import model_card
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.storage.more_tags import check_new_tags
from transduce.storage.run_log import RunLog, evaluations
from transduce.storage.run_request import TrainRequest
from transduce.storage.tensors import Tensors
from transduce.storage.trackers import TrackerName
from transduce.training import distributed, notices, sharding
from transduce.training.gradients import Gradient, Gradients, dropout_seed
from transduce.training.lora import freeze, frozen_names
from transduce.training.optimizer import learning_rate
from transduce.training.progress import TrainingProgress, format_scores, print_lines
from transduce.training.run import Run
from transduce.training.signals import StopSignal
from transduce.training.state import TrainingState, now
from transduce.training.task import InspectingTask, RelativeTask, Task, task_of, translation_loss
from transduce.training.weights import set_weights, start_weights
from transduce.translate import Translator, load


class TranslationTask:
    """Translation: the model predicts the target text from the source text."""

    collate = staticmethod(collate)

    def build(self, config: Config) -> Model:
        return build(config.model)

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_validation(pairs, tokenizer, longest, names[0])

    @staticmethod
    def loss(model: Model, batch: Batch, config: TrainConfig) -> Tensor:
        return translation_loss(model, batch, config.label_smoothing, config.precision, config.rdrop)

    def evaluate(
        self, model: Model, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        return validation_scores(Translator([LoadedModel(model, config, tokenizer)]), pairs)

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} by greedy search"


def fit(
    src: str | Path | Sequence[Corpus],
    tgt: str | Path | None = None,
    *,
    valid: str | Path | tuple[str | Path, str | Path] | None = None,
    out: str | Path,
    recipe: str | Config = "auto",
    minutes: float | None = None,
    start_from: str | Path | None = None,
    old_valid: str | Path | tuple[str | Path, str | Path] | None = None,
    settings: Sequence[str] = (),
    allow_change: Sequence[str] = (),
    device: str = "auto",
) -> Translator:
    """Train on the line-aligned texts `src` and `tgt` and return the model, ready to translate.

    src: the source text; without `tgt`, a file with both sides (see `transduce.data.corpora`), or corpora with weights.
    valid: the source and the target text to evaluate on, or a table with both; None holds out a part of the text.
    out: the folder of the run; a run that it holds is resumed.
    recipe: a name, FILE.py:FUNCTION, or a Config; "auto" chooses one for the text and this machine. minutes: time of
    the whole training; None: the steps of the recipe.
    start_from: a model folder to fine-tune. old_valid: validation text of that model, in the form of `valid`, to see
    whether it becomes worse there.
    settings: overrides such as "train.max_steps=2000".
    allow_change: keys, such as "train.max_steps", in which recipe and settings may differ from the configuration of a
    resumed run (see `config.files.CHANGEABLE`).
    device: as for `load`, of the training and of the model.
    Raises UserError for every mistake that the user can fix.
    """
    request = TrainRequest(
        recipe,
        training_text(src, tgt),
        () if valid is None else as_text_files("valid", valid),
        as_path("out", out),
        settings,
        resume=True,
        allow_change=allow_change,
        start_from=None if start_from is None else as_path("start_from", start_from),
        old_valid=() if old_valid is None else as_text_files("old_valid", old_valid),
        minutes=minutes,
    )
    if request.is_of_one_text:
        task = request.config.train.task
        raise UserError(f"train.task={task!r}: expected a task with source and target; use the command transduce train")
    with devices.on_device(device):
        return load(train(request))


@distributed.process_group()
def train(request: TrainRequest, task: Task[Any] | None = None) -> Path:
    """Train a model and return RUN/model, the folder of the model to use. task: None means the task of `train.task`.

    SIGINT, SIGTERM and SIGHUP finish the step, save, and return. A second SIGINT or SIGTERM ends the program at once,
    and so does a signal during `prepare`, before there is anything to save.
    Raises UserError for every mistake that the user can fix. Mistakes in the request are found before any text is read.
    """
    request.check()
    distributed.barrier()  # rank 0 writes into the folder that a slower rank still checks otherwise
    with run_folder.exclusive(request.out):
        request = run_choices.complete(request, print_lines if distributed.is_leader() else lambda lines: None)
        run, state = prepare(request, task or task_of(request.config.train.task))
        session(run, state, request.tracker)
    return run.out / "model"


def session(run: Run, state: TrainingState, tracker: TrackerName | None = None) -> None:
    """Train from the step of `state` on, and write checkpoints, log, model and report."""
    is_leader = distributed.is_leader()
    config = run.config.train
    step = state.counters.step
    is_new = step == 0 and state.counters.best_step is None
    with (
        closing(RunLog(run.out if is_leader else None, -1 if is_new else step, tracker=tracker)) as log,
        TrainingProgress(config.max_steps, step, TASKS[config.task].unit, quiet=not is_leader) as progress,
        StopSignal() as stop,
        CheckpointWriter(run.out, log, progress.print_lines, config, None if is_new else step) as writer,
    ):
        progress.print_lines([*run.lines])
        if step and is_leader:
            writer.prune(state.counters.best_step)  # a killed session may have left unfinished folders
        if is_new and run.is_from_model:
            evaluate_step(run, state, writer, progress)  # no later step may be worse than the start and called the best
        loop(run, state, writer, progress, stop)
        finish(run, state, writer, progress)


# ---- prepare -----------------------------------------------------------------------------------------------------


def prepare(request: TrainRequest, task: Task[Any]) -> tuple[Run, TrainingState]:
    """Read the texts and, to resume, the newest checkpoint. Return the run, and its state before the next step.

    Raises UserError, before it writes anything, if texts, model and run do not fit each other.
    """
    valid_names, old_names = request.evaluation_names()
    with distributed.leader_first():
        checkpoint, lines = run_folder.find_run(request.out, request.back_to) if request.resume else (None, [])
        parent = model_to_start_from(request)
        valid_pairs = list(read_pairs(request.valid_corpus))
        old_pairs = list(read_pairs(request.old_corpus)) if request.old_corpus else []
        tokenizer, config = tokenizer_and_config(request, checkpoint, parent)
        check_new_tags(parent, frozen_names(task.build, config), config.train)
        longest = most_tokens(config.model.max_positions)
        task.check(valid_pairs, tokenizer, longest, valid_names)
        if request.old_corpus:
            task.check(old_pairs, tokenizer, longest, old_names)
        if distributed.is_leader():
            run_folder.claim(request.out, config, tokenizer, request.allow_change)
        store = open_store(request.out / "data" / "train", request.corpora, tokenizer)
        overlap = cached_overlap(valid_pairs, store, request.out / "data" / "leaks.json")
    share = Share(distributed.rank(), distributed.world_size(), config.train.accumulate)
    batches = Batches(store, tokenizer, config.data, seed=config.train.seed, share=share, collate=task.collate)
    if not (checkpoint or parent):
        lines += notices.small_vocabulary(config.data.vocab_size, tokenizer)
    torch.manual_seed(config.train.seed)
    model = task.build(config)
    texts = {"train": store.key, "valid": corpus_sha256(request.valid_corpus)}
    if parent and request.start_from:
        set_weights(model, start_weights(parent.model, config.model), str(request.start_from))
        if isinstance(task, RelativeTask):
            task.reference = parent.model.requires_grad_(False).to(devices.device())
            texts["reference"] = listed_sha256(request.start_from, "model.safetensors")
    if isinstance(task, InspectingTask):
        lines += task.inspect(model, batches, [(valid_names, valid_pairs), (old_names, old_pairs)])
    freeze(model, config.train)
    del parent  # otherwise its weights would stay in memory
    if request.shard:
        sharding.shard(model)
    record = {"texts": texts, "made_of": request.provenance(), "made_with": run_folder.fingerprint(config, tokenizer)}
    record["valid_files"] = [printable(path) for path in request.valid]
    state = TrainingState(model.to(devices.device()), config.train, record)
    if checkpoint:
        lines += run_folder.resume(request, config, state, checkpoint)
    lines += [*notices.start(config, batches, model, state.counters.step), *notices.frozen(state)]
    if distributed.is_leader():
        lines += notices.texts(batches, valid_pairs, valid_names[0], is_from_model=request.start_from is not None)
    lines += notices.overlap(overlap, valid_names, len(valid_pairs), is_one_text=store.is_one_text)
    run = Run(
        request.out, task, config, tokenizer, batches, valid_pairs, valid_names, lines,
        old_pairs=old_pairs, is_from_model=request.start_from is not None, is_sharded=request.shard,
    )  # fmt: skip
    return run, state


def tokenizer_and_config(
    request: TrainRequest, checkpoint: Path | None, parent: LoadedModel | None
) -> tuple[TokenizerLike, Config]:
    """Return the tokenizer, learned for a new run, and the whole configuration. parent: model that the run starts from.

    checkpoint: from which the run resumes; None for a new run.
    """
    if checkpoint or not distributed.is_leader():  # rank 0 has written it
        tokenizer = run_folder.run_tokenizer(request.out, checkpoint)
        run = run_folder.run_config(request.out)
    else:
        tokenizer = parent.tokenizer if parent else request.learn_tokenizer()
        run = None
    return tokenizer, request.complete_config(tokenizer, parent.config if parent else None, run)


def model_to_start_from(request: TrainRequest) -> LoadedModel | None:
    """Return the model of --from, or the model that the task makes from it; None if there is none."""
    if request.start_from is None:
        return None
    start = TASKS[request.config.train.task].start
    return load_model(request.start_from) if start is None else import_object(start)(request)


# ---- the loop ----------------------------------------------------------------------------------------------------


def loop(
    run: Run, state: TrainingState, writer: CheckpointWriter, progress: TrainingProgress, stop: StopSignal
) -> None:
    """Train until the last step, until patience runs out, or until a signal asks to stop. One pass is one step."""
    config = run.config.train
    counters = state.counters
    gradients = Gradients(state.model, run.task, config, devices.device(), progress.print_lines)
    schedule = {name: getattr(config, name) for name in ("warmup_steps", "lr_factor", "max_steps", "decay_steps")}
    schedule["d_model"] = run.config.model.d_model
    state.model.train()
    started_at = time.monotonic()
    seconds_before = counters.seconds
    step_started_at = now()
    stream = Prefetch(run.batches.stream(state.position), devices.device())
    while not (state.is_finished or distributed.any_rank(stop.is_requested and counters.step > 0)):
        micro_batches, next_position = stream.take()
        counters.step += 1
        lr = learning_rate(counters.step, **schedule)
        for group in state.optimizer.param_groups:
            group["lr"] = lr
        gradient = gradients.of(micro_batches, seed=dropout_seed(config.seed, counters.step, run.batches.share.rank))
        stream.start()  # while a GPU computes the gradient
        if gradient.is_finite:
            state.update(gradient)
        else:
            skip(run, state, gradient, writer)
        state.optimizer.zero_grad()
        state.position = next_position
        counters.seconds = seconds_before + time.monotonic() - started_at
        state.count_time(step_started_at)
        progress.advance(counters.step)

        is_last = counters.step == config.max_steps
        if state.meter.tgt_tokens and (is_last or counters.step % config.log_every_steps == 0):
            report = state.report(lr)
            writer.log.report(counters.step, report)
            progress.report(counters.step, report)
        if is_last or counters.step % config.evaluate_every_steps == 0:
            evaluate_step(run, state, writer, progress)
        if counters.step % config.checkpoint_every_steps == 0:
            writer.save(counters.step, state.snapshot)
        step_started_at = now()


def evaluate_step(run: Run, state: TrainingState, writer: CheckpointWriter, progress: TrainingProgress) -> None:
    """Evaluate the weights of this step, log and print the scores, and save the best checkpoint so far."""
    step = state.counters.step
    writer.wait()  # a run that has diverged names its last checkpoint
    run_folder.check_parameters(state, run.out)
    scores = distributed.run_on_leader(evaluate, run, step, state.weights_to_evaluate())
    is_best = state.is_best(scores)
    is_new_best = state.note_scores(scores)
    writer.log.report(step, {f"valid_{name}": value for name, value in scores.items()})
    progress.report_scores(step, scores, is_best)
    if distributed.is_leader():
        progress.print_lines(notices.fall(state, evaluations(run.out).get(0, {}), scores))
        progress.print_lines(refresh_report(run.out))
    if is_new_best:
        writer.save(step, state.snapshot)


def evaluate(run: Run, step: int, weights: Tensors) -> dict[str, float]:
    """Return the validation scores of `weights` at `step`. Raises UserError if the model gives no finite numbers."""
    try:
        return run.evaluate(weights)
    except NotFiniteError:
        problem = "the outputs of the model for the validation text are not finite numbers"
        raise run_folder.diverged(problem, step, run.out) from None


MAX_SKIPPED_IN_A_ROW = 5  # steps; after more of them the weights would hardly recover


def skip(run: Run, state: TrainingState, gradient: Gradient, writer: CheckpointWriter) -> None:
    """Count and log a step whose gradient is not finite. Its pairs count as used, and the schedule continues.

    Raises UserError after `MAX_SKIPPED_IN_A_ROW` such steps.
    """
    state.skip()
    reason = f"loss {gradient.loss / gradient.tgt_tokens}, gradient norm {gradient.norm}"
    pairs = run.batches.plan(state.position.epoch)[state.position.index]
    writer.log.report(state.counters.step, {"skipped": reason, "lines": run.batches.where(pairs, limit=len(pairs))})
    if state.counters.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
        writer.wait()
        problem = f"{MAX_SKIPPED_IN_A_ROW} steps in a row were skipped, the last for {reason}"
        raise run_folder.diverged(f"{problem}, on {run.batches.where(pairs)};", state.counters.step, run.out)


# ---- finish ------------------------------------------------------------------------------------------------------


def finish(run: Run, state: TrainingState, writer: CheckpointWriter, progress: TrainingProgress) -> None:
    """Save the last step, and write RUN/model and the report. Rank 0 writes, then the others return."""
    counters = state.counters
    model_folder = run.out / "model"
    writer.save(counters.step, state.snapshot)
    writer.wait()
    with distributed.leader_first():
        if not distributed.is_leader():
            return
        writer.raise_failure(counters.step)
        if not state.is_finished and run_folder.has_finished_model(run.out, run.config):
            kept = f"{model_folder} is still the model of the shorter training; continue with --resume"
            progress.print_lines([f"{notices.outcome(state)}; {kept}", *refresh_report(run.out)])
            return
        weights, origin, scores = choose_weights(run, state)
        if run_folder.holds(model_folder, weights, run.config):
            lines = [f"{notices.outcome(state)}; {model_folder} is up to date", *notices.patience(state)]
            progress.print_lines([*lines, *refresh_report(run.out)])
            return
        facts = {**state.record["made_of"], "training": f"{counters.step:,} steps, {counters.seconds:,.0f} s"}
        if state.is_finished:
            scores = scores or evaluate(run, counters.step, weights)
            signature = f" ({bleu_signature([tgt for _, tgt in run.valid_pairs])})" if "bleu" in scores else ""
            facts["validation"] = f"{run.task.describe(scores)}{signature}, on {' and '.join(run.valid_names)}"
        save_model(model_folder, weights, run.config, run.tokenizer, model_card(run.config, origin, facts))
        lines = notices.end(state, model_folder, origin, facts.get("validation"))
        if scores:
            lines += notices.worse(state, scores, evaluations(run.out).get(state.counters.best_step or 0, {}))
        progress.print_lines([*lines, *refresh_report(run.out)])


def choose_weights(run: Run, state: TrainingState) -> tuple[dict[str, Tensor], str, dict[str, float] | None]:
    """Return the weights that `train.use` names, their origin in words, and their scores if they were evaluated.

    At the end of a run, they give way to the best of their rivals if that one is better by `train.best_by`. A mean with
    checkpoints from a steep part of the loss can be worse than each of them: by 8 BLEU after 900 steps on Multi30k.
    """
    config = run.config.train
    if config.use == "average" and not state.is_finished:  # an interrupted run ends soon
        config = dataclasses.replace(config, use="last")
    weights, origin = run_folder.final_weights(config, run.out, state.counters.best_step)
    rivals = run_folder.rivals_of_final(config, run.out, state.counters.best_step)
    if not (rivals and state.is_finished):
        return weights, origin, None
    scores = evaluate(run, state.counters.step, weights)
    logged = evaluations(run.out)
    rival_scores = {
        path: logged.get(step_of(path)) or evaluate(run, step_of(path), run_folder.evaluated_weights(path))
        for path in rivals
    }
    best = min(rivals, key=lambda path: state.score(rival_scores[path]))
    if state.score(rival_scores[best]) >= state.score(scores):
        return weights, origin, scores
    origin = f"the checkpoint {best.name}, which is better by validation {config.best_by} than {origin}"
    return run_folder.evaluated_weights(best), origin, rival_scores[best]
