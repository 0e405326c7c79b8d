"""Outputs in another form than their references: each form is a remark, and equal forms are none."""

import json

import pytest

from transduce.evaluation.metrics import bleu
from transduce.evaluation.output_checks import remarks

RAW = ["A dog runs.", "Two men see it.", "Is it Tom?", "a cat"]
FORMS = {
    "are JSON objects": [json.dumps({"text": line}) for line in RAW],
    "have tabs": [f"{line}\t{line}" for line in RAW],
    "have marks of subwords": ["A do@@ g runs.", "Two men s@@ ee it.", "Is it T@@ om?", "a cat"],
    "are tokenised": ["A dog runs .", "Two men see it .", "Is it Tom ?", "a cat"],
    "have no capitals": [line.lower() for line in RAW],
}


@pytest.mark.parametrize("words", FORMS)
def test_another_form_is_named(words: str) -> None:
    for hyps, refs, which in ((FORMS[words], RAW, "outputs"), (RAW, FORMS[words], "references")):
        (line,) = remarks("out.de", hyps, refs)
        assert line.startswith(f"out.de: expected the form of the references, but only the {which} {words}")
    assert remarks("out.de", FORMS[words], FORMS[words]) == []


def test_texts_without_a_form_have_no_remark() -> None:
    assert (
        remarks("x", RAW, RAW) == remarks("x", ["", "..."], RAW) == remarks("x", ["東京に行く"], ["東京へ行く"]) == []
    )


def test_bleu_of_a_script_without_spaces_finds_words() -> None:
    assert bleu(["私は東京に行きました"], ["私は東京に行きます"]) > 50
