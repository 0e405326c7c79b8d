"""Training as tests start it."""

from pathlib import Path
from typing import Any

from transduce import train as training
from transduce.config.schema import Config
from transduce.storage.run_request import TrainRequest
from transduce.training.task import Task


def train(config: str | Config, task: Task | None = None, **request: Any) -> Path:
    """Train as a `TrainRequest` with these fields asks, and return the model folder."""
    return training.train(TrainRequest(config, **request), task)
