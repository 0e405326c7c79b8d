"""The state of a training: everything that a resumed run needs to end in the same weights.

    TrainingState -> snapshot() -> Checkpoint -> storage -> Checkpoint -> restore() -> TrainingState

Only this file knows the contents of a checkpoint. `transduce.storage` writes and reads every `Checkpoint` in the same
way.
"""

import dataclasses
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from transduce.config.schema import TrainConfig
from transduce.data.batches import DataPosition
from transduce.errors import UserError
from transduce.training.gradients import Gradient, update
from transduce.training.optimizer import optimizer_of
from transduce.training.sharding import full_tensor, gather_on_leader, shard_like
from transduce.training.weights import live_weights, persistent_buffers, set_weights, trained_parameters

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]  # as far as JSON programs are exact
Seconds = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Checkpoint:
    """A copy of the state of a training: whole tensors on the CPU, by name. Ranks other than 0 have no tensors.

    weights: see `training.weights`. optimizer: Adam's moments, "exp_avg/NAME" and "exp_avg_sq/NAME" for each parameter
    that is trained; with Muon, "momentum/NAME" for each matrix; with LoRA, also "factors/NAME".
    ema: the moving average of the weights; None: the run has none. state: counters, data position, meter and record, as
    JSON values.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    state: dict[str, Any]


@dataclass
class Counters:
    """The numbers that a run counts. A checkpoint stores each under its name."""

    step: Count = 0  # optimizer steps, skipped ones included
    seconds: Seconds = 0.0  # of training, over all sessions of the run
    processor_seconds: Seconds = 0.0  # of all threads of this process, during batches and steps; without evaluation
    best_step: Count | None = None
    best_score: float | None = None  # of the evaluation at best_step: the loss, or another score with a minus sign
    evaluations_since_best: Count = 0
    skipped: Count = 0  # steps without an update, because loss or gradient was not finite
    skipped_in_a_row: Count = 0


def now() -> tuple[float, float]:
    """Return the seconds of the clock, and the processor seconds of all threads of this process."""
    return time.monotonic(), time.process_time()


class Meter:
    """Sums since the last report, and the speed since then.

    threads: number of threads that the steps may use. 0: unknown, or the steps are on a GPU; then no share of the
    processor is reported.
    """

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads
        self.loss = 0.0
        self.tgt_tokens = 0
        self.step_seconds = 0.0
        self.processor_seconds = 0.0
        self.session_tokens = 0  # on both sides, in this session of the run
        self.gradient_norm = 0.0  # of the newest step
        self.started_at = time.monotonic()

    def add(self, gradient: Gradient) -> None:
        """Count one step."""
        self.loss += gradient.loss
        self.tgt_tokens += gradient.tgt_tokens
        self.session_tokens += gradient.src_tokens + gradient.tgt_tokens
        self.gradient_norm = gradient.norm

    def add_time(self, seconds: float, processor_seconds: float) -> None:
        """Count the time of one step by the clock, and the processor time of all threads."""
        self.step_seconds += seconds
        self.processor_seconds += processor_seconds

    def report(self, lr: float, epoch: int, seconds: float) -> dict[str, float]:
        """Return the mean loss of a target token, and the speed: source and target tokens a second.

        In a task of sound, the source counts samples.

        processor_share: processor time divided by the number of threads and the time by the clock. Other programs take
        the rest. seconds: seconds of training so far.
        """
        possible = self.threads * self.step_seconds
        share = {"processor_share": round(self.processor_seconds / possible, 2)} if possible else {}
        return {
            "epoch": epoch,
            "loss": round(self.loss / self.tgt_tokens, 5),
            "lr": lr,
            "gradient_norm": round(self.gradient_norm, 5),
            "tokens_per_second": round(self.session_tokens / (time.monotonic() - self.started_at)),
            "seconds": round(seconds, 1),
            **share,
        }

    def state(self) -> dict[str, float]:
        """Return the sums that a checkpoint stores, so that a resumed run reports the same losses."""
        return {"loss": self.loss, "tgt_tokens": self.tgt_tokens, "gradient_norm": self.gradient_norm}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from what `state` returned."""
        self.loss = state["loss"]
        self.tgt_tokens = state["tgt_tokens"]
        self.gradient_norm = state["gradient_norm"]


class _Texts(msgspec.Struct):
    train: str
    valid: str


class _Fingerprint(msgspec.Struct):
    tokenizer: str
    torch: str
    threads: int
    model: str = ""
    device: str = ""


class _Position(msgspec.Struct):
    epoch: Count
    index: Count


class _Sums(msgspec.Struct):
    loss: float
    tgt_tokens: Count
    gradient_norm: float


_StoredState = msgspec.defstruct(
    "_StoredState",
    [
        *((field.name, field.type) for field in dataclasses.fields(Counters)),
        ("texts", _Texts),
        ("made_of", dict[str, str]),
        ("made_with", _Fingerprint),
        ("data", _Position),
        ("since_report", _Sums),
    ],
)


def check_state(state: object) -> None:
    """Check that a stored state has all values, of the right types and in their ranges. Raises ValueError."""
    msgspec.convert(state, _StoredState)


class TrainingState:
    """All that changes in a training: model, Adam, moving average, counters, data position, meter.

    model: on its device, in shards if the run is sharded. record: facts that every checkpoint repeats, as JSON values:
    which texts, which recipe, which program.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, record: Mapping[str, Any]) -> None:
        self.model = model
        self.config = config
        self.record = record
        self.optimizer = optimizer_of(model, config)
        self.ema: dict[str, Tensor] | None = None
        if config.ema_decay is not None:
            self.ema = {name: weight.detach().clone() for name, weight in live_weights(model).items()}
        self.counters = Counters()
        self.position = DataPosition()
        self.threads = torch.get_num_threads() if next(model.parameters()).device.type == "cpu" else 0
        self.meter = Meter(self.threads)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Checkpoint:
        """Return a copy of all that a restart needs. Every rank calls it; only rank 0 gets tensors."""
        parameters = trained_parameters(self.model)
        moments = {
            f"{m}/{name}": self.optimizer.state[p][m] for name, p in parameters.items() for m in self._moments(p)
        }
        ema = gather_on_leader(self.ema, copy=True) if self.ema is not None else None
        state = {
            **dataclasses.asdict(self.counters),
            **self.record,
            "data": dataclasses.asdict(self.position),
            "since_report": self.meter.state(),
        }
        weights = gather_on_leader(live_weights(self.model), copy=True)
        return Checkpoint(weights, gather_on_leader(moments, copy=True), ema, state)

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Return to the state of a snapshot, except for the record.

        path: the folder of the checkpoint, for messages. Raises UserError if it does not fit the model.
        """
        set_weights(self.model, checkpoint.weights, path)
        state = checkpoint.state
        try:
            count = float(state["step"] - state["skipped"])
            for name, parameter in trained_parameters(self.model).items():
                moments = self._moments(parameter)
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(count, device=parameter.device),
                    **{m: shard_like(checkpoint.optimizer[f"{m}/{name}"], parameter) for m in moments},
                }
            if checkpoint.ema is None:
                self.ema = None
            else:
                all_weights = live_weights(self.model).items()
                self.ema = {name: shard_like(checkpoint.ema[name], weight) for name, weight in all_weights}
            self.meter.restore(state["since_report"])
            self.counters = Counters(**{field.name: state[field.name] for field in dataclasses.fields(Counters)})
            self.position = DataPosition(**state["data"])
        except (KeyError, TypeError, ValueError, RuntimeError) as problem:
            raise UserError(
                f"{path}: expected a checkpoint of this version of transduce ({problem!r}); start a new run"
            ) from None

    def _moments(self, parameter: nn.Parameter) -> list[str]:
        """Return the names of the moments of a parameter."""
        return [name for name in self.optimizer.state[parameter] if name != "step"]

    # ---- one step ------------------------------------------------------------------------------------------------

    def update(self, gradient: Gradient) -> None:
        """Take a step with the gradient in .grad of the parameters: meter, Adam, moving average."""
        self.counters.skipped_in_a_row = 0
        self.meter.add(gradient)
        update(self.optimizer, self.counters.step - self.counters.skipped)
        if self.ema is not None:
            move_average(self.ema, self.model, self.config.ema_decay or 0.0)

    def count_time(self, started_at: tuple[float, float]) -> None:
        """Count the time of a step that began at `started_at`, a result of `now`."""
        seconds, processor_seconds = (end - start for end, start in zip(now(), started_at, strict=True))
        self.counters.processor_seconds += processor_seconds
        self.meter.add_time(seconds, processor_seconds)

    def skip(self) -> None:
        """Count a step without an update: weights, moments and moving average stay as they are."""
        self.counters.skipped += 1
        self.counters.skipped_in_a_row += 1

    def report(self, lr: float) -> dict[str, float]:
        """Return the report since the last one. Start the next one, unless this one is out of turn.

        A report after the last step is out of turn: in a run with a larger max_steps the meter would count on.
        """
        report = self.meter.report(lr, self.position.epoch, self.counters.seconds)
        if self.counters.step % self.config.log_every_steps == 0:
            self.meter = Meter(self.threads)
        return report

    # ---- evaluation and the end ----------------------------------------------------------------------------------

    def weights_to_evaluate(self) -> dict[str, Tensor]:
        """Return the moving average or, if there is none, the weights: whole, on the CPU, on rank 0 only."""
        return gather_on_leader(self.ema or live_weights(self.model))

    def nonfinite_parameter(self) -> str | None:
        """Return the name of a parameter that holds a value that is not finite; None if there is none."""
        for name, parameter in self.model.named_parameters():
            if not full_tensor(parameter.detach()).isfinite().all():
                return name
        return None

    def is_best(self, scores: Mapping[str, float]) -> bool:
        """Return True if an evaluation is better than all that were counted."""
        return self.counters.best_score is None or self.score(scores) < self.counters.best_score

    def note_scores(self, scores: dict[str, float]) -> bool:
        """Count an evaluation, and return True if it counts and is the best so far.

        An evaluation between two multiples of `evaluate_every_steps`, after the last step, does not count: a run with
        a larger max_steps would not have it.
        """
        counters = self.counters
        if counters.step % self.config.evaluate_every_steps:
            return False
        if self.is_best(scores):
            counters.best_step = counters.step
            counters.best_score = self.score(scores)
            counters.evaluations_since_best = 0
            return True
        counters.evaluations_since_best += 1
        return False

    def choose_best(self, evaluations: Mapping[int, Mapping[str, float]], kept: Collection[int]) -> bool:
        """Choose the best step again if it is not by `train.best_by`, or has no checkpoint. Return True then.

        evaluations: the logged scores, by step. kept: steps that have a checkpoint, of which the best one is chosen.
        """
        counters, name = self.counters, self.config.best_by
        earlier = {step: scores for step, scores in evaluations.items() if step <= counters.step}
        known = {step: self.score(scores) for step, scores in earlier.items() if name in scores}
        best = counters.best_step
        if best is None or best not in earlier or (best in kept and known.get(best) == counters.best_score):
            return False
        best = min(known.keys() & kept, key=lambda step: (known[step], step), default=None)
        counters.best_step = best
        counters.best_score = None if best is None else known[best]
        counters.evaluations_since_best = 0 if best is None else sum(step > best for step in known)
        return True

    def is_worse_than_best(self, scores: Mapping[str, float]) -> bool:
        """Return True if an evaluation is worse than the best one of the run, by `train.best_by`."""
        return self.counters.best_score is not None and self.score(scores) > self.counters.best_score

    def score(self, scores: Mapping[str, float]) -> float:
        """Return the score of `train.best_by`, with a minus sign if more is better."""
        return scores["loss"] if self.config.best_by == "loss" else -scores[self.config.best_by]

    @property
    def is_out_of_patience(self) -> bool:
        """True after `train.patience` evaluations without a new best."""
        return self.config.patience is not None and self.counters.evaluations_since_best >= self.config.patience

    @property
    def is_finished(self) -> bool:
        """True after the last step, or when patience has run out."""
        return self.counters.step >= self.config.max_steps or self.is_out_of_patience


def move_average(ema: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    """Set ema = decay * ema + (1 - decay) * parameters, in place. A buffer is not averaged."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    averages = [ema[name] for name in parameters]
    # A few kernels on a GPU, instead of one for each parameter.
    torch._foreach_lerp_(averages, [*parameters.values()], 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
    for name, buffer in persistent_buffers(model).items():
        ema[name].copy_(buffer)
