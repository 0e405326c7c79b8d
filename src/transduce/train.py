"""Training (section 5): one loop, visible whole.

    text -> tokens -> batches -> model -> loss -> optimizer -> checkpoint

A run lives in a folder, RUN: config.json, tokenizer.json, data/, checkpoints/, log.jsonl and, at the end, model/.
"""

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from transduce import text
from transduce.batches import Batch, Batches, State, open_store
from transduce.card import model_card
from transduce.checkpoint import (
    Checkpoint,
    LoadedModel,
    average,
    checkpoint_path,
    checkpoints,
    load_checkpoint,
    load_model,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_model,
    set_weights,
    weights,
)
from transduce.config import Config, differences, from_json, override, to_json, validate
from transduce.errors import UserError
from transduce.evaluate import mean_loss, perplexity
from transduce.log import Log
from transduce.loss import projected_cross_entropy
from transduce.model import Transformer, parameter_count
from transduce.optimizer import adam, learning_rate
from transduce.progress import Progress
from transduce.recipes import find_recipe
from transduce.scores import bleu
from transduce.tokens import Tokenizer
from transduce.translate import Translator, load

Pair = tuple[Path, Path]


@dataclass
class Tally:
    """What a run remembers beside weights and data: it is saved in every checkpoint."""

    step: int = 0
    seconds: float = 0.0  # of training so far, over all sessions of the run
    best_step: int | None = None
    best_score: float | None = None  # validation loss or BLEU at best_step
    evaluations_since_best: int = 0
    stopped_early: bool = False


def fit(
    src: str | Path,
    tgt: str | Path,
    *,
    valid: tuple[str | Path, str | Path],
    out: str | Path,
    recipe: str | Config = "small",
    settings: Sequence[str] = (),
) -> Translator:
    """Train on the line-aligned texts `src` and `tgt` and return the model, ready to translate.

    valid: two more such texts to judge by. out: the folder of the run; if it holds a run, that one goes on.
    recipe: a name, FILE.py:FUNCTION, or a Config. settings: overrides such as "train.max_steps=2000".
    Raises UserError for whatever the user can mend.
    """
    config = override(recipe if isinstance(recipe, Config) else find_recipe(recipe)(), settings)
    texts = (Path(src), Path(tgt)), (Path(valid[0]), Path(valid[1]))
    return load(train(config, train=texts[0], valid=texts[1], out=Path(out), resume=True))


def train(
    config: Config,
    *,
    train: Pair,
    valid: Pair,
    out: Path,
    resume: bool = False,
    start_from: Path | None = None,
    tensorboard: bool = False,
) -> Path:
    """Train a model on the line-aligned texts `train` = (source, target), judge it on `valid`, and return RUN/model.

    out: the folder of the run, RUN. resume: go on from its newest checkpoint, or begin if it has none.
    start_from: a model folder whose weights, tokenizer and architecture the run begins with (the optimizer is new).
    SIGINT and SIGTERM finish the step, save, and return; a second one ends the program at once.
    Raises UserError for whatever the user can mend, all problems of the configuration at once, before reading text.
    """
    # ---- what is asked, and what is there ------------------------------------------------------------------------
    validate(config)
    found = _find_run(out, resume)
    parent = load_model(start_from) if start_from else None
    tokenizer = _tokenizer(config, train, out, parent.tokenizer if parent else None)
    config = _fill_in(config, tokenizer, parent.config if parent else None)
    _claim(out, config, tokenizer)

    # ---- data ----------------------------------------------------------------------------------------------------
    store = open_store(out / "data" / "train", *train, tokenizer)
    batches = Batches(store, tokenizer, config.data, seed=config.train.seed, accumulate=config.train.accumulate)
    valid_pairs = list(text.read_pairs(*valid))

    # ---- model and optimizer -------------------------------------------------------------------------------------
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(config.train.seed)
    model = Transformer(config.model).to(device)
    if parent:
        set_weights(model, weights(parent.model), str(start_from))
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    ema = weights(model) if config.train.ema_decay else None
    tally, data_state = Tally(), State()
    if found:
        checkpoint = load_checkpoint(found)
        _check_data(checkpoint, store.key, found)
        tally, data_state = _restore(checkpoint, model, optimizer, found)
        ema = checkpoint.ema
    log = Log(out, tally.step, tensorboard=tensorboard)
    progress = Progress(config.train.max_steps, tally.step)
    progress.say(_opening(config, batches, model, device, tally.step))

    # ---- the loop ------------------------------------------------------------------------------------------------
    def save() -> None:
        state = {**dataclasses.asdict(tally), "data": dataclasses.asdict(data_state), "data_key": store.key}
        save_checkpoint(out, _checkpoint(model, optimizer, ema, state))
        prune_checkpoints(out, config.train.keep_checkpoints, tally.best_step)

    model.train()
    started_at, seconds_before = time.monotonic(), tally.seconds
    since_report = _Since(model)
    stop = _StopSignal()
    for micro_batches, next_state in batches.stream(data_state):
        if tally.step >= config.train.max_steps or tally.stopped_early or stop.wanted:
            break
        tally.step += 1
        lr = _learning_rate(config, tally.step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        tokens = sum(int(batch.tgt_mask.sum()) for batch in micro_batches)
        for batch in micro_batches:
            loss = batch_loss(model, batch.to(device), config.train.label_smoothing, config.train.precision)
            (loss / tokens).backward()
            since_report.add(loss.detach(), batch)
        due = tally.step % config.train.log_every_steps == 0 or tally.step == config.train.max_steps
        gradient_norm = _gradient_norm(model) if due else None
        optimizer.step()
        optimizer.zero_grad()
        if ema is not None:
            _move_average(ema, model, config.train.ema_decay or 0.0)
        data_state = next_state
        tally.seconds = seconds_before + time.monotonic() - started_at
        progress.advance(tally.step)

        if due:
            report = since_report.report(lr, gradient_norm, data_state.epoch, tally)
            log.report(tally.step, report)
            progress.report(tally.step, report)
            since_report = _Since(model)
        if tally.step % config.train.evaluate_every_steps == 0 or tally.step == config.train.max_steps:
            with _with_weights(model, ema):
                scores = judge(model, tokenizer, config, valid_pairs)
            log.report(tally.step, {f"valid_{name}": value for name, value in scores.items()})
            is_best = _note(tally, scores, config)
            progress.evaluated(tally.step, scores, is_best)
            if is_best:
                save()
        if tally.step % config.train.checkpoint_every_steps == 0 and not checkpoint_path(out, tally.step).exists():
            save()

    # ---- the model to use ----------------------------------------------------------------------------------------
    stop.restore()
    if tally.step and not checkpoint_path(out, tally.step).exists():
        save()
    final, origin = _final_weights(config, out, tally)
    set_weights(model, final, out)
    scores = judge(model, tokenizer, config, valid_pairs)
    facts = {
        "training": f"{tally.step:,} steps, {tally.seconds:,.0f} s, on {train[0].name} and {train[1].name}",
        "validation": f"{_in_words(scores)}, on {valid[0].name} and {valid[1].name}",
    }
    save_model(out / "model", final, config, tokenizer, model_card(config, origin, facts))
    log.close()
    progress.close(_closing(out, tally, scores, origin, config, stop.wanted))
    return out / "model"


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float, precision: str = "fp32") -> Tensor:
    """The summed loss of a batch (a scalar); positions that are padding never reach the softmax."""
    mixed = torch.autocast(batch.src.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with mixed:
        memory = model.encode(batch.src, batch.src_mask)
        decoded = model.decode(batch.tgt_in, memory, batch.src_mask)  # (B,T,D)
        hidden, targets = decoded[batch.tgt_mask], batch.tgt_out[batch.tgt_mask]  # (N,D), (N,)
        return projected_cross_entropy(hidden.float(), model.output.weight, targets, label_smoothing)


# ---- beginning ---------------------------------------------------------------------------------------------------


def _find_run(out: Path, resume: bool) -> Path | None:
    """The checkpoint to go on from. UserError if there is a run in `out` and going on was not asked for."""
    if checkpoints(out) and not resume:
        raise UserError(f"{out} holds a run already; add --resume to go on with it, or give another --out")
    newest = newest_checkpoint(out) if resume else None
    return newest[0] if newest else None


def _tokenizer(config: Config, train: Pair, out: Path, given: Tokenizer | None) -> Tokenizer:
    path = out / "tokenizer.json"
    if given is not None:
        return given
    if path.exists() and checkpoints(out):
        return Tokenizer.load(path)
    lines = (side for pair in text.read_pairs(*train) for side in pair)
    return Tokenizer.learn(lines, kind=config.data.tokenizer, vocab_size=config.data.vocab_size)


def _fill_in(config: Config, tokenizer: Tokenizer, parent: Config | None) -> Config:
    """`config` with the vocabulary size of the tokenizer and, if there is a parent, with its architecture."""
    if parent is not None:
        dropouts = {key: getattr(config.model, key) for key in ("dropout", "attention_dropout", "ffn_dropout")}
        data = dataclasses.replace(config.data, tokenizer=parent.data.tokenizer, vocab_size=parent.data.vocab_size)
        config = dataclasses.replace(config, model=dataclasses.replace(parent.model, **dropouts), data=data)
    if config.model.vocab_size not in (None, tokenizer.vocab_size):
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer has {tokenizer.vocab_size} pieces; "
            "leave model.vocab_size out (it is filled in) and ask for a size with data.vocab_size"
        )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size))


def _claim(out: Path, config: Config, tokenizer: Tokenizer) -> None:
    """Write config.json and tokenizer.json, or refuse to go on with another configuration than the run's."""
    path = out / "config.json"
    if checkpoints(out):
        changed = differences(from_json(path.read_bytes(), path), config)
        if changed:
            raise UserError("\n".join([f"{out} was begun with another configuration:", *changed]))
        return
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(config), encoding="utf-8")
    tokenizer.save(out / "tokenizer.json")


def _check_data(checkpoint: Checkpoint, key: str, where: Path) -> None:
    if checkpoint.state["data_key"] != key:
        raise UserError(f"{where} was trained on other text: the training files have changed since; restore them")


def _opening(config: Config, batches: Batches, model: Transformer, device: torch.device, step: int) -> list[str]:
    """What a person should know before the wait."""
    left_out = len(batches.store) - len(batches.pairs)
    lines = [f"resuming at step {step:,}"] if step else []
    if batches.tokenizer.vocab_size < config.data.vocab_size:
        lines.append(
            f"the tokenizer has {batches.tokenizer.vocab_size:,} pieces, not {config.data.vocab_size:,}: "
            "the text has no more to learn from"
        )
    if left_out:
        lines.append(f"{left_out:,} of {len(batches.store):,} pairs left out: an empty side, or over data.max_tokens")
    steps = len(batches.plan(0))
    lines.append(
        f"{len(batches.pairs):,} pairs, {steps:,} steps an epoch; {parameter_count(model) / 1e6:.1f} M parameters; "
        f"{config.train.precision} on {device}, {torch.get_num_threads()} threads"
    )
    return lines


# ---- within the loop ---------------------------------------------------------------------------------------------


def _learning_rate(config: Config, step: int) -> float:
    warmup, factor = config.train.warmup_steps, config.train.lr_factor
    return learning_rate(step, d_model=config.model.d_model, warmup_steps=warmup, lr_factor=factor)


def _gradient_norm(model: Transformer) -> float:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _move_average(ema: dict[str, Tensor], model: Transformer, decay: float) -> None:
    """ema = decay * ema + (1 - decay) * weights."""
    for name, parameter in model.named_parameters():
        ema[name].lerp_(parameter.detach().to(ema[name].device), 1 - decay)


class _Since:
    """Sums since the last report."""

    def __init__(self, model: Transformer) -> None:
        self.loss = torch.zeros((), device=model.output.weight.device)
        self.tgt_tokens = self.src_tokens = 0
        self.started_at = time.monotonic()

    def add(self, loss: Tensor, batch: Batch) -> None:
        self.loss += loss
        self.tgt_tokens += int(batch.tgt_mask.sum())
        self.src_tokens += int(batch.src_mask.sum())

    def report(self, lr: float, gradient_norm: float | None, epoch: int, tally: Tally) -> dict[str, Any]:
        """The means per target token, and the speed in source and target tokens a second."""
        loss = float(self.loss) / self.tgt_tokens
        if not math.isfinite(loss):
            raise UserError(
                f"the training loss became {loss} by step {tally.step}; the last checkpoint is good: lower "
                "train.lr_factor or raise train.warmup_steps and begin anew"
            )
        tokens_per_second = (self.src_tokens + self.tgt_tokens) / (time.monotonic() - self.started_at)
        return {
            "epoch": epoch,
            "loss": round(loss, 5),
            "lr": lr,
            "gradient_norm": round(gradient_norm or 0.0, 5),
            "tokens_per_second": round(tokens_per_second),
            "seconds": round(tally.seconds, 1),
        }


def judge(
    model: Transformer, tokenizer: Tokenizer, config: Config, pairs: Sequence[tuple[str, str]]
) -> dict[str, float]:
    """Validation: loss and perplexity per token (unsmoothed), and BLEU of greedy decoding (sacreBLEU, 13a)."""
    translator = Translator([LoadedModel(model, config, tokenizer)])
    src, ref = [src for src, _ in pairs], [ref for _, ref in pairs]
    loss = mean_loss(translator, src, ref)
    hypotheses = [translation.text for translation in translator.translate(src, beam_size=1)]
    model.train()
    return {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4), "bleu": round(bleu(hypotheses, ref), 2)}


@contextmanager
def _with_weights(model: Transformer, other: dict[str, Tensor] | None) -> Iterator[None]:
    """The model with `other` weights for a while; None: with its own."""
    own = weights(model) if other else {}
    if other:
        set_weights(model, other, "the moving average")
    yield
    if other:
        set_weights(model, own, "the model")


def _in_words(scores: dict[str, float]) -> str:
    loss, perplexity, bleu = scores["loss"], scores["perplexity"], scores["bleu"]
    return f"loss {loss:.3f}, perplexity {perplexity:.2f}, BLEU {bleu:.1f} (sacreBLEU 13a, greedy search)"


def _note(tally: Tally, scores: dict[str, float], config: Config) -> bool:
    """Keep count of the best evaluation; whether this one is."""
    score = scores["loss"] if config.train.best_by == "loss" else -scores["bleu"]
    if tally.best_score is None or score < tally.best_score:
        tally.best_step, tally.best_score, tally.evaluations_since_best = tally.step, score, 0
        return True
    tally.evaluations_since_best += 1
    tally.stopped_early = tally.evaluations_since_best == config.train.patience
    return False


# ---- checkpoints -------------------------------------------------------------------------------------------------


def _checkpoint(
    model: Transformer, optimizer: torch.optim.Adam, ema: dict[str, Tensor] | None, state: dict[str, Any]
) -> Checkpoint:
    moments = {}
    for name, parameter in model.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            moments[f"{moment}/{name}"] = optimizer.state[parameter][moment].detach().cpu()
    rng = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return Checkpoint(weights(model), moments, rng, ema, state)


def _restore(
    checkpoint: Checkpoint, model: Transformer, optimizer: torch.optim.Adam, where: Path
) -> tuple[Tally, State]:
    set_weights(model, checkpoint.weights, where)
    state = dict(checkpoint.state)
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state["step"]), device=parameter.device),
            **{m: checkpoint.optimizer[f"{m}/{name}"].to(parameter.device) for m in ("exp_avg", "exp_avg_sq")},
        }
    torch.set_rng_state(checkpoint.rng["cpu"])
    if "cuda" in checkpoint.rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(checkpoint.rng["cuda"])
    data_state = State(**state.pop("data"))
    state.pop("data_key")
    return Tally(**state), data_state


def _final_weights(config: Config, out: Path, tally: Tally) -> tuple[dict[str, Tensor], str]:
    """The weights that `train.use` asks for, and in words what they are."""
    last = checkpoint_path(out, tally.step)
    if config.train.use == "average":
        newest = checkpoints(out)[-config.train.average_checkpoints :]
        return average(newest), "the mean of the checkpoints " + ", ".join(p.name for p in newest)
    if config.train.use == "best" and tally.best_step is not None:
        best = checkpoint_path(out, tally.best_step)
        return load_checkpoint(best).weights, f"the best checkpoint by validation {config.train.best_by}, {best.name}"
    if config.train.use == "ema":
        return load_checkpoint(last).ema or {}, f"the exponential moving average at {last.name}"
    return load_checkpoint(last).weights, f"the last checkpoint, {last.name}"


def average_run(run: Path, *, last: int, out: Path) -> None:
    """Write the mean of the newest `last` checkpoints of `run` (§6.1) as the model folder `out`.

    Raises UserError if there are not so many, or `out` is there already.
    """
    paths = checkpoints(run)
    if not 1 <= last <= len(paths):
        raise UserError(f"--last {last}, but {run} has {len(paths)} checkpoints; expected 1 to {len(paths)}")
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    config = from_json((run / "config.json").read_bytes(), run / "config.json")
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    origin = "the mean of the checkpoints " + ", ".join(path.name for path in paths[-last:])
    save_model(out, average(paths[-last:]), config, tokenizer, model_card(config, origin))


def _closing(
    out: Path, tally: Tally, scores: dict[str, float], origin: str, config: Config, interrupted: bool
) -> list[str]:
    done = "interrupted" if interrupted else "stopped early" if tally.stopped_early else "finished"
    lines = [f"{done} at step {tally.step:,} of {config.train.max_steps:,} after {tally.seconds:,.0f} s of training"]
    lines.append(f"{out / 'model'} is {origin}")
    lines.append(f"validation: {_in_words(scores)}")
    if interrupted:
        lines.append("go on with the same command and --resume")
    return lines


# ---- signals -----------------------------------------------------------------------------------------------------


class _StopSignal:
    """SIGINT and SIGTERM set `wanted`; a second one acts as usual. Off the main thread, signals are left alone."""

    def __init__(self) -> None:
        self.wanted = False
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        self.restore()

    def restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
