"""Training (section 5): one loop, visible whole.

    text -> tokens -> batches -> model -> loss -> optimizer -> checkpoint

A run lives in a folder, RUN: config.json, tokenizer.json, data/, checkpoints/, log.jsonl and, at the end, model/.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config.overrides import inherit, without_effect
from transduce.config.schema import Config
from transduce.config.validation import validate
from transduce.data import corpora, text
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.overlap import Leaks, leaks_into
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.segmentation import MAX_LINE_TOKENS
from transduce.errors import UserError
from transduce.evaluate import check_validation, validation_scores
from transduce.evaluation.metrics import bleu_signature
from transduce.evaluation.run_report import refresh_report
from transduce.model.build import Model, build
from transduce.model.transformer import parameter_count
from transduce.recipes import configure
from transduce.storage.checkpoints import (
    Checkpoint,
    checkpoint_path,
    checkpoints,
    drop_checkpoints_after,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from transduce.storage.model_card import model_card, recipe_in_words
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.storage.run_folder import (
    beginning_problems,
    claim,
    final_weights,
    find_run,
    fingerprint,
    holds,
    missing_files,
    rounding_differs,
    run_tokenizer,
)
from transduce.storage.run_log import Log, board_problems
from transduce.training import distributed, sharding
from transduce.training.gradients import Gradient, Gradients, dropout_seed, update
from transduce.training.optimizer import adam, learning_rate
from transduce.training.progress import Progress, in_words
from transduce.training.signals import StopSignal
from transduce.training.weights import set_weights
from transduce.translate import Translator, load

Pair = tuple[Path, Path]


@dataclass
class Tally:
    """What a run remembers beside weights and data: it is saved in every checkpoint."""

    step: int = 0
    seconds: float = 0.0  # of training so far, resumptions included
    processor_seconds: float = 0.0  # of all threads of this process, in batches and steps alone
    best_step: int | None = None
    best_score: float | None = None  # validation loss or BLEU at best_step
    evaluations_since_best: int = 0
    skipped: int = 0  # steps that were not taken, since loss or gradient were not finite
    skipped_in_a_row: int = 0


def fit(
    src: str | Path | Sequence[Corpus],
    tgt: str | Path | None = None,
    *,
    valid: tuple[str | Path, str | Path],
    out: str | Path,
    recipe: str | Config = "small",
    settings: Sequence[str] = (),
    allow_change: Sequence[str] = (),
) -> Translator:
    """Train on the line-aligned texts `src` and `tgt` and return the model, ready to translate.

    src: alone, one file of both sides (see `transduce.data.corpora`), or several corpora, with weights.
    valid: two more such texts to judge by. out: the folder of the run; if it holds a run, that one goes on.
    recipe: a name, FILE.py:FUNCTION, or a Config. settings: overrides such as "train.max_steps=2000".
    allow_change: keys, such as "train.max_steps", in which the recipe and settings may differ from those of a run that
    goes on (see `config.CHANGEABLE`).
    Raises UserError for whatever the user can mend.
    """
    one = [Corpus(Path(src), Path(tgt) if tgt is not None else None)] if isinstance(src, str | Path) else src
    return load(
        train(
            recipe,
            settings=settings,
            train=one,
            valid=(Path(valid[0]), Path(valid[1])),
            out=Path(out),
            resume=True,
            allow_change=allow_change,
        )
    )


@distributed.process_group()
def train(
    recipe: str | Config,
    *,
    train: Pair | Sequence[Corpus],
    valid: Pair,
    out: Path,
    settings: Sequence[str] = (),
    resume: bool = False,
    allow_change: Sequence[str] = (),
    start_from: Path | None = None,
    tensorboard: bool = False,
    shard: bool = False,
) -> Path:
    """Train a model on the line-aligned texts `train` = (source, target), judge it on `valid`, and return RUN/model.

    train: or several corpora, each with its weight.
    recipe, settings, allow_change: as in `fit`. out: the folder of the run, RUN. resume: go on from its newest
    checkpoint, or begin if it has none.
    shard: each of several ranks keeps only a part of weights, gradients, moments and moving average, for a model that
    does not fit otherwise; how a run is started, and nothing that it remembers.
    start_from: a model folder whose weights, tokenizer and architecture the run begins with (the optimizer is new).
    SIGINT and SIGTERM finish the step, save, and return; a second one ends the program at once, as does one that comes
    while the text is read, before anything could be saved.
    Raises UserError for whatever the user can mend: before anything is read, all that is wrong with the arguments.
    """
    # ---- what is asked, and what is there ------------------------------------------------------------------------
    config, problems = configure(recipe, settings)
    problems += without_effect(settings, start_from) if start_from else []
    sources = corpora.as_corpora(train)
    problems += corpora.problems(sources) + missing_files(valid)
    problems += beginning_problems(out, resume=resume, start_from=start_from, allow_change=allow_change)
    problems += board_problems() if tensorboard else []
    problems += sharding.shard_problems() if shard else []
    if problems:
        raise UserError(*problems)
    first = distributed.is_leader()
    with distributed.leader_first():
        found, passed_over = find_run(out) if resume else (None, [])
        parent = load_model(start_from) if start_from else None
        valid_pairs = list(text.read_pairs(*valid))
        is_there = found or not first
        tokenizer = run_tokenizer(out, found) if is_there else _tokenizer(config, sources, parent)
        config = _fill_in(config, tokenizer, parent.config if parent else None)
        longest = min(MAX_LINE_TOKENS, (config.model.max_positions or sys.maxsize) - 1)  # with BOS or EOS one more
        check_validation(valid_pairs, tokenizer, longest, valid[0].name)
        if first:
            claim(out, config, tokenizer, allow_change)
        store = open_store(out / "data" / "train", sources, tokenizer)
        leaked = leaks_into(valid_pairs, store, out / "data" / "leaks.json")
    dealt = {"accumulate": config.train.accumulate, "rank": distributed.rank(), "ranks": distributed.world_size()}
    batches = Batches(store, tokenizer, config.data, seed=config.train.seed, **dealt)
    texts = {"train": store.key, "valid": " ".join(text.file_sha256(path) for path in valid)}
    provenance = {"recipe": recipe_in_words(recipe, settings, start_from), "training text": _names(sources)}

    # ---- model and optimizer -------------------------------------------------------------------------------------
    fewer = [] if found or parent else _fewer_pieces(config.data.vocab_size, tokenizer)
    device = distributed.device()
    torch.manual_seed(config.train.seed)
    model = build(config.model)
    if parent:
        set_weights(model, dict(parent.model.named_parameters()), str(start_from))
    del parent
    if shard:
        sharding.shard(model)
    model.to(device)
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    ema = _copy(model) if config.train.ema_decay is not None else None
    tally, data_state, meter = Tally(), DataPosition(), _Meter()
    if found:
        checkpoint = load_checkpoint(found)
        _check_texts(checkpoint, texts, {"train": sources, "valid": [Corpus(*valid)]}, out)
        tally, data_state = _restore(checkpoint, model, optimizer, meter, found)
        passed_over += rounding_differs(checkpoint.state, config, tokenizer)
        ema = _parts(checkpoint.ema, model) if checkpoint.ema else None
        del checkpoint  # or it would be kept as long as the training lasts
        if first:
            drop_checkpoints_after(out, tally.step)

    def prune() -> None:
        every = config.train.checkpoint_every_steps
        prune_checkpoints(out, config.train.keep_checkpoints, tally.best_step, every=every)

    failed: dict[int, OSError] = {}  # saves in a row, by their step
    judge_on = torch.device("cpu") if shard else device  # on a GPU there may be no room for a whole model

    def save() -> None:
        """Rank 0 saves what all ranks have, once for a step."""
        if distributed.any_rank(first and (tally.step in failed or checkpoint_path(out, tally.step).exists())):
            return
        state = {**dataclasses.asdict(tally), "texts": texts, "made_of": provenance, "since_report": meter.state()}
        state |= {"data": dataclasses.asdict(data_state), "made_with": fingerprint(config, tokenizer)}
        checkpoint = _checkpoint(model, optimizer, ema, state)
        with distributed.leader_first():
            if first:
                write(checkpoint)

    def write(checkpoint: Checkpoint) -> None:
        try:
            log.sync()
            save_checkpoint(out, checkpoint)
            prune()
            failed.clear()
        except OSError as problem:
            failed[tally.step] = problem
            if len(failed) == MOST_FAILED:
                raise
            progress.say([f"not saved at step {tally.step:,}: {problem}; training goes on, the next checkpoint may do"])

    with (
        closing(Log(out if first else None, tally.step, tensorboard=tensorboard)) as log,
        Progress(config.train.max_steps, tally.step, quiet=not first) as progress,
        StopSignal() as stop,
    ):
        gradients = Gradients(model, config.train, device, progress.say)
        progress.say([*passed_over, *fewer, *_opening(config, batches, model, device, tally.step)])
        progress.say([_leaks(leaked, valid[0].name, len(valid_pairs))])
        if found and first:
            prune()  # what a kill left half done

        # ---- the loop --------------------------------------------------------------------------------------------
        model.train()
        started_at, seconds_before = time.monotonic(), tally.seconds
        step_began = time.process_time()
        stream = batches.stream(data_state)
        coming = next(stream)
        while not (_is_finished(tally, config) or distributed.any_rank(stop.wanted and tally.step > 0)):
            micro_batches, next_state = coming
            tally.step += 1
            lr = _learning_rate(config, tally.step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            gradient = gradients.of(micro_batches, seed=dropout_seed(config.train.seed, tally.step, distributed.rank()))
            coming = next(stream)  # while a GPU is at work
            if gradient.is_finite:
                tally.skipped_in_a_row = 0
                update(optimizer, tally.step - tally.skipped)
                if ema is not None:
                    _move_average(ema, model, config.train.ema_decay or 0.0)
                meter.add(gradient)
            else:
                _skip(gradient, batches, data_state, tally, log, out)
            optimizer.zero_grad()
            data_state = next_state
            tally.seconds = seconds_before + time.monotonic() - started_at
            tally.processor_seconds += time.process_time() - step_began
            progress.advance(tally.step)

            last = tally.step == config.train.max_steps
            if meter.tgt_tokens and (last or tally.step % config.train.log_every_steps == 0):
                report = meter.report(lr, data_state.epoch, tally)
                log.report(tally.step, report)
                progress.report(tally.step, report)
                in_turn = tally.step % config.train.log_every_steps == 0
                meter = _Meter() if in_turn else meter  # should there be more steps one day, it counts on
            if last or tally.step % config.train.evaluate_every_steps == 0:
                _refuse_nonfinite(model, tally, out)
                weights = sharding.gather_on_leader(ema or dict(model.named_parameters()))
                scores = distributed.run_on_leader(_judge, weights, tokenizer, config, valid_pairs, judge_on)
                del weights
                log.report(tally.step, {f"valid_{name}": value for name, value in scores.items()})
                is_best = _note(tally, scores, config)
                progress.evaluated(tally.step, scores, is_best)
                progress.say(refresh_report(out) if first else [])
                if is_best:
                    save()
            if tally.step % config.train.checkpoint_every_steps == 0:
                save()
            step_began = time.process_time()

        # ---- the model to use ------------------------------------------------------------------------------------
        save()
        with distributed.leader_first():
            if not first:
                return out / "model"
            if tally.step in failed:
                raise failed[tally.step]
            finished = _is_finished(tally, config)
            final, origin = final_weights(config.train, out, tally.best_step)
            if holds(out / "model", final, config):
                where = f"at step {tally.step:,} of {config.train.max_steps:,}"
                progress.say([f"{where}; {out / 'model'} is up to date", *refresh_report(out)])
                return out / "model"
            facts = {**provenance, "training": f"{tally.step:,} steps, {tally.seconds:,.0f} s"}
            if finished:
                scores = _judge(final, tokenizer, config, valid_pairs, judge_on)
                names = f"{valid[0].name} and {valid[1].name}"
                facts["validation"] = f"{in_words(scores)} by greedy search ({bleu_signature()}), on {names}"
            save_model(out / "model", final, config, tokenizer, model_card(config, origin, facts))
            progress.say([*_summary(out, tally, origin, config, facts.get("validation")), *refresh_report(out)])
    return out / "model"


# ---- beginning ---------------------------------------------------------------------------------------------------


def _names(sources: Sequence[Corpus]) -> str:
    return "; ".join(" and ".join(path.name for path in (one.src, one.tgt) if path is not None) for one in sources)


def _tokenizer(config: Config, sources: Sequence[Corpus], parent: LoadedModel | None) -> Tokenizer:
    """The parent's, or one that is learned from each pair once, whatever its weight."""
    if parent is not None:
        return parent.tokenizer
    lines = (side for corpus in sources for pair in corpora.read_pairs(corpus) for side in pair)
    return Tokenizer.learn(lines, kind=config.data.tokenizer, vocab_size=config.data.vocab_size)


def _fill_in(config: Config, tokenizer: Tokenizer, parent: Config | None) -> Config:
    """`config` with the vocabulary size of the tokenizer and, if there is a parent, with its architecture."""
    if parent is not None:
        config = inherit(config, parent)
    if config.model.vocab_size not in (None, tokenizer.vocab_size):
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer has {tokenizer.vocab_size} pieces; "
            "set it to null (it is filled in) and ask for a size with data.vocab_size"
        )
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size))
    validate(config)
    return config


def _check_texts(checkpoint: Checkpoint, texts: dict[str, str], files: dict[str, Sequence[Corpus]], out: Path) -> None:
    """Refuse to go on with other text than the run's."""
    for name, key in texts.items():
        if checkpoint.state["texts"][name] != key:
            given = "; ".join(corpus.name for corpus in files[name])
            raise UserError(f"{out} was begun with other text than {given} hold now; restore it, or begin anew")


def _fewer_pieces(asked: int, tokenizer: Tokenizer) -> list[str]:
    """What to say about a tokenizer, just learned, that has fewer pieces than were asked for."""
    if tokenizer.vocab_size >= asked:
        return []
    return [f"the tokenizer has {tokenizer.vocab_size:,} pieces, not {asked:,}: the text has no more to learn from"]


def _opening(config: Config, batches: Batches, model: Model, device: torch.device, step: int) -> list[str]:
    """What a person should know before the wait."""
    left_out = len(batches.store) - batches.usable
    lines = [f"resuming at step {step:,}"] if step else []
    if left_out:
        lines.append(f"{left_out:,} of {len(batches.store):,} pairs left out: an empty side, or over data.max_tokens")
    steps = len(batches.plan(0))
    lines.append(
        f"{batches.usable:,} pairs, {steps:,} steps an epoch; {parameter_count(model) / 1e6:.1f} M parameters; "
        f"{config.train.precision} on {device}, {torch.get_num_threads()} threads{_together()}"
    )
    return lines


def _together() -> str:
    return f", {distributed.world_size()} ranks" if distributed.world_size() > 1 else ""


def _leaks(found: Leaks, name: str, size: int) -> str:
    """How much of the validation text is in the training text, which makes its scores flatter."""
    counts = f"{len(found.pairs):,} pairs and {len(found.sources):,} sources"
    return f"of the {size:,} of {name}, {counts} are in the training text, too"


# ---- within the loop ---------------------------------------------------------------------------------------------


def _learning_rate(config: Config, step: int) -> float:
    warmup, factor = config.train.warmup_steps, config.train.lr_factor
    return learning_rate(step, d_model=config.model.d_model, warmup_steps=warmup, lr_factor=factor)


MOST_FAILED = 3  # saves in a row, by a disk that is full or broken
MOST_SKIPPED = 5  # steps in a row; more would hardly help


def _skip(gradient: Gradient, batches: Batches, state: DataPosition, tally: Tally, log: Log, out: Path) -> None:
    """Take note that this step, of the batch at `state`, is not taken: weights, moments and average stay as they are.

    The step and its pairs count as used, and the learning rate goes on. UserError if that is too many in a row.
    """
    tally.skipped += 1
    tally.skipped_in_a_row += 1
    what = f"loss {gradient.loss / gradient.tgt_tokens}, gradient norm {gradient.norm}"
    pairs = batches.plan(state.epoch)[state.index]
    log.report(tally.step, {"skipped": what, "lines": batches.where(pairs, limit=len(pairs))})
    if tally.skipped_in_a_row == MOST_SKIPPED:
        where = batches.where(pairs)
        raise _diverged(f"{MOST_SKIPPED} steps in a row were skipped, the last for {what}, on {where};", tally, out)


def _copy(model: Model) -> dict[str, Tensor]:
    """The parameters by name, copied, on their device."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _parts(tensors: dict[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Of whole tensors by name, what this rank has of the parameters of the same names, on their device."""
    return {name: sharding.shard_like(tensors[name], parameter) for name, parameter in model.named_parameters()}


def _move_average(ema: dict[str, Tensor], model: Model, decay: float) -> None:
    """ema = decay * ema + (1 - decay) * weights."""
    for name, parameter in model.named_parameters():
        ema[name].lerp_(parameter.detach(), 1 - decay)


class _Meter:
    """Sums since the last report, and the speed since then."""

    def __init__(self) -> None:
        self.loss, self.tgt_tokens = 0.0, 0
        self.tokens_here = 0  # on both sides, in this session of the run
        self.gradient_norm = 0.0  # of the newest step
        self.started_at = time.monotonic()

    def add(self, gradient: Gradient) -> None:
        self.loss += gradient.loss
        self.tgt_tokens += gradient.tgt_tokens
        self.tokens_here += gradient.src_tokens + gradient.tgt_tokens
        self.gradient_norm = gradient.norm

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run reports the same losses."""
        return {"loss": self.loss, "tgt_tokens": self.tgt_tokens, "gradient_norm": self.gradient_norm}

    def restore(self, state: dict[str, Any]) -> None:
        self.loss, self.tgt_tokens, self.gradient_norm = state["loss"], state["tgt_tokens"], state["gradient_norm"]

    def report(self, lr: float, epoch: int, tally: Tally) -> dict[str, Any]:
        """The mean loss of a target token, and the speed in source and target tokens a second."""
        return {
            "epoch": epoch,
            "loss": round(self.loss / self.tgt_tokens, 5),
            "lr": lr,
            "gradient_norm": round(self.gradient_norm, 5),
            "tokens_per_second": round(self.tokens_here / (time.monotonic() - self.started_at)),
            "seconds": round(tally.seconds, 1),
        }


def _refuse_nonfinite(model: Model, tally: Tally, out: Path) -> None:
    for name, parameter in model.named_parameters():
        if not sharding.full_tensor(parameter.detach()).isfinite().all():
            raise _diverged(f"{name} holds values that are not finite numbers", tally, out)


def _diverged(what: str, tally: Tally, out: Path) -> UserError:
    """What ends a run that bad numbers have ruined, and the ways out."""
    anew = "begin anew with a lower train.lr_factor or more train.warmup_steps"
    saved = checkpoints(out)
    if not saved:
        return UserError(f"{what} at step {tally.step:,}: the training diverged before its first checkpoint; {anew}")
    return UserError(
        f"{what} at step {tally.step:,}: the training diverged after its last good checkpoint, {saved[-1]}. To go on "
        f"from there with other settings, make a model of it, transduce average {out} --last 1 --out GOOD, and begin "
        f"another run with train --from GOOD; or {anew}. If the machine was at fault, go on with --resume"
    )


def _is_finished(tally: Tally, config: Config) -> bool:
    return tally.step >= config.train.max_steps or _out_of_patience(tally, config)


def _out_of_patience(tally: Tally, config: Config) -> bool:
    return config.train.patience is not None and tally.evaluations_since_best >= config.train.patience


def _judge(
    tensors: dict[str, Tensor],
    tokenizer: Tokenizer,
    config: Config,
    pairs: Sequence[tuple[str, str]],
    device: torch.device,
) -> dict[str, float]:
    """The scores of a model with these weights. There is room for it: in training it would be that of the gradient."""
    model = build(config.model).to(device)
    set_weights(model, tensors, "what is to be judged")
    return validation_scores(Translator([LoadedModel(model.eval(), config, tokenizer)]), pairs)


def _note(tally: Tally, scores: dict[str, float], config: Config) -> bool:
    """Keep count of the best evaluation; whether this one is.

    Out of turn, after the last step, it does not count: in a run that was asked for more steps it would not have been.
    """
    if tally.step % config.train.evaluate_every_steps:
        return False
    score = scores["loss"] if config.train.best_by == "loss" else -scores["bleu"]
    if tally.best_score is None or score < tally.best_score:
        tally.best_step, tally.best_score, tally.evaluations_since_best = tally.step, score, 0
        return True
    tally.evaluations_since_best += 1
    return False


# ---- checkpoints -------------------------------------------------------------------------------------------------

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam, as torch calls them


def _checkpoint(
    model: Model, optimizer: torch.optim.Adam, ema: dict[str, Tensor] | None, state: dict[str, Any]
) -> Checkpoint:
    """What is to be saved, for rank 0; the other ranks, which may have parts of it, get no tensors."""
    parameters = dict(model.named_parameters())
    moments = {f"{m}/{name}": optimizer.state[p][m] for name, p in parameters.items() for m in MOMENTS}
    average = sharding.gather_on_leader(ema) if ema is not None else None
    return Checkpoint(sharding.gather_on_leader(parameters), sharding.gather_on_leader(moments), average, state)


def _restore(
    checkpoint: Checkpoint, model: Model, optimizer: torch.optim.Adam, meter: _Meter, where: Path
) -> tuple[Tally, DataPosition]:
    """Put everything where it was, but the moving average."""
    set_weights(model, checkpoint.weights, where)
    state = checkpoint.state
    try:
        for name, parameter in model.named_parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(state["step"] - state["skipped"]), device=parameter.device),
                **{m: sharding.shard_like(checkpoint.optimizer[f"{m}/{name}"], parameter) for m in MOMENTS},
            }
        meter.restore(state["since_report"])
        remembered = {field.name: state[field.name] for field in dataclasses.fields(Tally)}
        return Tally(**remembered), DataPosition(**state["data"])
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise UserError(f"{where} is not what this version of transduce writes ({problem!r}); begin anew") from None


def _summary(out: Path, tally: Tally, origin: str, config: Config, validation: str | None) -> list[str]:
    finished = "stopped early" if _out_of_patience(tally, config) else "finished"
    done = finished if _is_finished(tally, config) else "interrupted"
    return [
        f"{done} at step {tally.step:,} of {config.train.max_steps:,} after {tally.seconds:,.0f} s of training",
        f"{out / 'model'} is {origin}",
        f"validation: {validation}" if validation else "go on with the same command and --resume",
    ]
