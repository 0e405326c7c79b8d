"""Programs that show the reports of a run as curves, with the curves of other runs: TensorBoard and trackio."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from transduce.errors import UserError

TrackerName = Literal["tensorboard", "trackio"]
PROJECT = "transduce"  # in trackio, the name of all runs together


class Tracker(Protocol):
    """Gets the numbers of a report. Raises OSError if it cannot write them."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def tracker_problems(name: str) -> list[str]:
    """Return the reasons why a tracker cannot be used, one line each."""
    if find_spec(name) is not None:
        return []
    return [f"--tracker={name}: expected the package {name}; pip install 'transduce[log]'"]


def open_tracker(name: TrackerName, run: Path, after_step: int) -> Tracker:
    """Return the tracker of a run, which continues after a step. after_step: below 0 for a new run."""
    return _TensorBoard(run, after_step) if name == "tensorboard" else _Trackio(run, after_step)


class _TensorBoard:
    """Writes events to RUN/tensorboard. Events of steps that come again are removed."""

    def __init__(self, run: Path, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=after_step + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    """Writes to trackio's database on this machine, or where its variables TRACKIO_... say.

    Steps that come again, because the run was killed after its last checkpoint, are there twice.

    The run has the whole name of its folder, and the settings of its configuration.
    """

    def __init__(self, run: Path, after_step: int) -> None:
        import trackio

        self._trackio: Any = trackio
        config = msgspec.json.decode((run / "config.json").read_bytes(), type=dict[str, Any])
        resume = "never" if after_step < 0 else "allow"
        with redirect_stdout(sys.stderr):
            try:
                self._run: Any = trackio.init(
                    PROJECT, str(run.absolute()), config=config, resume=resume, embed=False, auto_log_cpu=False
                )
            except Exception as problem:
                raise UserError(
                    f"--tracker=trackio: expected a database that trackio can write ({problem}); set TRACKIO_DIR to "
                    "another folder"
                ) from problem

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._trackio.finish()
