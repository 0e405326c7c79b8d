"""`transduce demo`: the commands that it prints."""

import shlex
from pathlib import Path


def test_the_commands_that_the_demo_prints_can_be_pasted() -> None:
    from transduce.demo.tour import _summary

    figures = ("bleu", "exact_match", "bleu_longer", "exact_match_longer", "train_seconds", "seconds")
    commands = _summary(dict.fromkeys(figures, 1.0), Path("my demo's")).split("Next steps\n")[1].splitlines()
    assert shlex.split(commands[0])[-1] == "my demo's/model"
    words = shlex.split(commands[1])
    assert words[:3] == ["transduce", "evaluate", "my demo's/model"]
    assert words[3:7] == ["--src", "my demo's/corpus/test.en", "--ref", "my demo's/corpus/test.de"]
