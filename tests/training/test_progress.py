"""The progress of a training, as lines of text."""

import pytest

from transduce.training.progress import TrainingProgress

REPORT = {"loss": 2.5, "lr": 1e-3, "tokens_per_second": 12_000}


@pytest.mark.parametrize(
    ("share", "unit", "is_busy"),
    [
        ({}, "tokens", False),
        ({"processor_share": 0.93}, "samples and tokens", False),
        ({"processor_share": 0.5}, "tokens", False),
        ({"processor_share": 0.41}, "samples and tokens", True),
    ],
)
def test_a_report_says_that_the_machine_is_busy(
    share: dict[str, float], unit: str, is_busy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingProgress(1_000, 0, unit) as progress:
        progress.report(100, REPORT | share)
    line = capsys.readouterr().err
    assert line.startswith(f"step 100/1,000  loss 2.500  lr 1.00e-03  12,000 {unit}/s")
    assert ("machine busy: 41% of the processor time" in line) == is_busy
