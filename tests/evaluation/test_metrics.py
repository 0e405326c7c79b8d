"""Scores of text: against arithmetic by hand, sacreBLEU's own command, and BLEU from its definition."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from transduce.errors import UserError
from transduce.evaluation.metrics import (
    Brevity,
    Score,
    bleu,
    check_settings,
    corpus_scores,
    missing_scores,
    split_compounds,
)
from transduce.evaluation.significance import paired_bootstrap

REFS = [
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "„Das ist ein UV-Filter“, sagte sie.",
    "Der Preis stieg um 3,5 % auf 1.200 Euro.",
    "Ein Hund läuft durch den hohen Schnee – schnell!",
    "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
]
HYPS = [
    "Zwei Männer stehen am Herd und bereiten das Essen vor.",
    '"Das ist ein UV-Filter", sagte sie.',
    "Der Preis stieg auf 1.200 Euro um 3,5 %.",
    "Ein Hund rennt durch den Schnee.",
    "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
]


def by_name(hyps: Sequence[str], refs: Sequence[str], language: str = "en", tokenize: str = "13a") -> dict[str, Score]:
    return {score.name: score for score in corpus_scores(hyps, refs, language=language, tokenize=tokenize)}


def value(name: str, hyp: str, ref: str, language: str = "en") -> float:
    return by_name([hyp], [ref], language)[name].value


# ---- one score at a time --------------------------------------------------------------------------------------------


def plain_bleu(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """Return BLEU by its definition (Papineni et al. 2002): clipped precisions up to 4, brevity penalty, 0 to 100."""
    matches, totals = Counter(), Counter()
    for hyp, ref in zip(hyps, refs, strict=True):
        for n in (1, 2, 3, 4):
            grams = [Counter(tuple(w[i : i + n]) for i in range(len(w) - n + 1)) for w in (hyp.split(), ref.split())]
            matches[n] += (grams[0] & grams[1]).total()
            totals[n] += grams[0].total()
    if not all(matches[n] for n in (1, 2, 3, 4)):
        return 0.0
    hyp_len, ref_len = (sum(len(line.split()) for line in lines) for lines in (hyps, refs))
    brevity_penalty = 1.0 if hyp_len > ref_len else math.exp(1 - ref_len / hyp_len)
    return 100 * brevity_penalty * math.prod(matches[n] / totals[n] for n in (1, 2, 3, 4)) ** 0.25


def test_without_a_matching_four_gram_only_sacrebleu_smooths() -> None:
    """Matches of 1 to 4 words: 5 of 6, 3 of 5, 1 of 4, 0 of 3. multi-bleu: 0. sacreBLEU counts the 0 as 1/2:
    (5/6 · 3/5 · 1/4 · 1/6)^(1/4) = (1/48)^(1/4) = 0.3799."""
    scores = by_name(["the cat sat on the mat"], ["the cat is on the mat"])
    assert scores["bleu_tokenised"].value == scores["bleu_compound_split"].value == 0
    assert scores["bleu"].value == pytest.approx(37.99, abs=0.005)
    assert scores["bleu_as_given"].value == pytest.approx(37.99, abs=0.005)


def test_brevity_penalty() -> None:
    """Every n-gram matches, with 5 words against 6: exp(1 - 6/5) = 0.8187."""
    for name in ("bleu", "bleu_uncased", "bleu_tokenised", "bleu_compound_split", "bleu_as_given"):
        assert value(name, "a b c d e", "a b c d e f") == pytest.approx(81.87, abs=0.005), name
        assert by_name(["a b c d e"], ["a b c d e f"])[name].brevity == Brevity(pytest.approx(0.8187, abs=5e-5), 5, 6)
    assert by_name(["a b"], ["a b"])["chrf"].brevity is None


def test_compounds_count_as_several_words() -> None:
    """Whole: 4 of 5 words match, and no 4-gram. Split into 7 tokens: 6/7 · 4/6 · 3/5 · 2/4 = 6/35, to the power 1/4
    = 0.6435."""
    hyp, ref = "a rich-text format is good", "a rich-text format was good"
    assert value("bleu_tokenised", hyp, ref) == 0
    assert value("bleu_compound_split", hyp, ref) == pytest.approx(64.35, abs=0.005)


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("a rich-text format", "a rich ##AT##-##AT## text format"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("a-b-c-d-e", "a ##AT##-##AT## b-c ##AT##-##AT## d-e"),
        ("a-ä-c", "a ##AT##-##AT## ä ##AT##-##AT## c"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a---b", "a ##AT##-##AT## --b"),
        ("Öl-Übung", "Öl ##AT##-##AT## Übung"),
        ("- a - b -", "- a - b -"),
        ("-a b-", "-a b-"),
        ("", ""),
    ],
)
def test_compounds_are_split_as_perl_does(line: str, split: str) -> None:
    """The right-hand side is what perl prints for s/(\\S)-(\\S)/$1 ##AT##-##AT## $2/g."""
    assert split_compounds(line) == split


def test_quotes_are_straightened_in_the_output_only() -> None:
    curly, straight = "er sagte “ja doch” und ging’s an", 'er sagte "ja doch" und ging\'s an'
    assert value("bleu_compound_split", curly, straight, "de") == pytest.approx(100)
    assert value("bleu_compound_split", straight, curly, "de") < 100
    assert value("bleu_tokenised", curly, straight, "de") < 100


@pytest.mark.parametrize(("language", "article"), [("fr", "C' est l' "), ("en", "C 'est l '"), ("de", "C ' est l ' ")])
def test_moses_tokenises_by_the_language(language: str, article: str) -> None:
    """The language decides which word keeps the apostrophe. Tokens by hand, BLEU from its definition."""
    hyp, ref = "C'est l'eau du grand lac bleu, là !", "C'est l'air du grand lac bleu, là !"
    tokens = [f"{article}{word} du grand lac bleu , là !" for word in ("eau", "air")]
    assert value("bleu_tokenised", hyp, ref, language) == pytest.approx(plain_bleu(tokens[:1], tokens[1:]))


def test_tokenised_bleu_is_bleu_of_the_tokens() -> None:
    """The tokens are written by hand; BLEU is from its definition."""
    hyp_tokens = [
        "Zwei Männer stehen am Herd und bereiten das Essen vor .",
        '" Das ist ein UV-Filter " , sagte sie .',
        "Der Preis stieg auf 1.200 Euro um 3,5 % .",
        "Ein Hund rennt durch den Schnee .",
        "Ein Mann mit einem orangefarbenen Hut starrt etwas an .",
    ]
    ref_tokens = [
        "Zwei Männer stehen am Herd und bereiten Essen zu .",
        "„ Das ist ein UV-Filter “ , sagte sie .",
        "Der Preis stieg um 3,5 % auf 1.200 Euro .",
        "Ein Hund läuft durch den hohen Schnee – schnell !",
        "Ein Mann mit einem orangefarbenen Hut starrt etwas an .",
    ]
    scores = by_name(HYPS, REFS, "de")
    assert scores["bleu_tokenised"].value == pytest.approx(plain_bleu(hyp_tokens, ref_tokens))
    split = [[line.replace("UV-", "UV ##AT##-##AT## ") for line in lines] for lines in (hyp_tokens, ref_tokens)]
    assert scores["bleu_compound_split"].value == pytest.approx(plain_bleu(split[0], split[1]))
    assert scores["bleu_as_given"].value == pytest.approx(plain_bleu(HYPS, REFS))


def test_capitals_count_in_all_scores_but_one() -> None:
    scores = by_name([line.upper() for line in REFS], REFS, "de")
    assert scores["bleu_uncased"].value == pytest.approx(100)
    assert all(score.value < 60 for name, score in scores.items() if name != "bleu_uncased")


def test_exact_match_is_a_percentage() -> None:
    assert by_name(HYPS, REFS)["exact_match"].value == 20
    assert by_name(["a ", "A"], ["a", "a"])["exact_match"].value == 0


def test_sacrebleus_command_prints_the_same_scores(tmp_path: Path) -> None:
    for name, lines in (("hyp", HYPS), ("ref", REFS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def sacrebleu(*options: str) -> list[tuple[float, str]]:
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-w", "6", *options]
        output = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
        return [(row["score"], row["signature"]) for row in (output if isinstance(output, list) else [output])]

    scores = by_name(HYPS, REFS, "de")
    expected = [*sacrebleu("-m", "bleu", "chrf"), *sacrebleu("-m", "bleu", "-tok", "none", "--force")]
    expected += sacrebleu("-m", "bleu", "--lowercase")
    ours = [scores[name] for name in ("bleu", "chrf", "bleu_as_given", "bleu_uncased")]
    assert [(round(score.value, 6), score.signature) for score in ours] == expected


# ---- all scores together --------------------------------------------------------------------------------------------


def test_names_and_order() -> None:
    names = [score.name for score in corpus_scores(HYPS, REFS)]
    bleus = ["bleu_tokenised", "bleu_compound_split", "bleu_as_given"]
    assert names == ["bleu", "bleu_uncased", "chrf", *bleus, "exact_match"]


def test_perfect_output_scores_100_and_empty_output_0() -> None:
    refs = [line for line in REFS if "“" not in line]  # a curly quote is straightened only in the output
    assert [score.value for score in corpus_scores(refs, refs)] == pytest.approx([100] * 7)
    assert all(score.value <= 100 for score in corpus_scores(refs, refs))
    assert [score.value for score in corpus_scores([""] * 5, REFS)] == [0] * 7


def test_every_score_has_its_own_signature() -> None:
    scores = by_name(HYPS, REFS, "de")
    assert len({score.signature for score in scores.values()}) == len(scores)
    for name, compounds in (("bleu_tokenised", "whole"), ("bleu_compound_split", "split")):
        facts = dict(fact.split(":") for fact in scores[name].signature.split("|"))
        assert facts["moses"].startswith("sacremoses-")
        del facts["moses"], facts["version"]
        punctuation = {"punct": "ascii-in-output"} if compounds == "split" else {}
        assert facts == {
            "nrefs": "1", "lang": "de", "case": "mixed", "eff": "no", "tok": "moses-de", "smooth": "none",
            "compounds": compounds, **punctuation,
        }  # fmt: skip


def test_only_german_is_compared_with_the_papers_figures() -> None:
    assert "27.3" in by_name(HYPS, REFS, "de")["bleu_compound_split"].label
    assert not any("27.3" in score.label for score in corpus_scores(HYPS, REFS, language="fr"))


def test_a_language_unknown_to_moses_is_named_in_label_and_signature() -> None:
    for name in ("bleu_tokenised", "bleu_compound_split"):
        score = by_name(HYPS, REFS, "jv")[name]
        assert "'jv'" in score.label
        assert "tok:moses-default" in score.signature


def test_labels_warn_of_text_that_is_tokenised_already() -> None:
    tokens = [line.replace(".", " .") for line in REFS]
    names = {name for name, score in by_name(tokens, tokens).items() if "tokenised already" in score.label}
    assert names == {"bleu", "bleu_uncased", "bleu_tokenised", "bleu_compound_split"}
    assert not any("tokenised already" in score.label for score in corpus_scores(REFS, REFS))


def test_japanese_is_scored_by_characters() -> None:
    """13a finds one word and no match; of characters 7 of 8, 6 of 7, 5 of 6, 4 of 5 n-grams: (1/2)^(1/4) = 0.8409."""
    hyps, refs = ["私は犬が好きです"], ["私は犬が好きでし"]
    of_words, of_characters = (by_name(hyps, refs, "ja", tokenize=name) for name in ("13a", "char"))
    by_word, by_character = of_words["bleu"], of_characters["bleu"]
    assert by_word.value == 0
    assert "without spaces" in by_word.label
    assert by_character.value == pytest.approx(84.09, abs=0.005)
    assert "tok:char" in by_character.signature
    assert "without spaces" not in by_character.label
    assert "without spaces: give --tokenize char" in of_words["bleu_uncased"].label
    assert "without spaces" not in of_characters["bleu_uncased"].label


def test_hostile_lines_are_scored() -> None:
    hostile = [
        "",
        " ",
        "\u2028",
        "a\u0085b c d e",
        "\0 \0 \0 \0",
        "x" * 100_000,
        "- -- ---",
        "&amp; <skipped> |",
        "-" * 999,
    ]
    assert all(0 <= score.value <= 100 for score in corpus_scores(hostile, hostile[::-1]))
    assert by_name(hostile, hostile)["exact_match"].value == 100


def test_without_sacremoses_two_scores_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_scores() is None
    complete = by_name(HYPS, REFS)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    notice = missing_scores()
    assert notice is not None
    assert "pip install 'transduce[eval]'" in notice
    missing = complete.keys() & set(re.findall(r"\w+", notice))
    assert missing == {"bleu_tokenised", "bleu_compound_split"}
    assert by_name(HYPS, REFS) == {name: score for name, score in complete.items() if name not in missing}


@pytest.mark.parametrize("module", ["metrics", "significance"])
def test_importing_loads_no_heavy_package(module: str) -> None:
    heavy = ["torch", "numpy", "sacrebleu", "sacremoses"]
    code = f"import sys, transduce.evaluation.{module}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_unequal_counts_are_named() -> None:
    with pytest.raises(UserError, match="the hypotheses: expected 5 lines, as many as the references, not 4"):
        corpus_scores(HYPS[:4], REFS)


def test_empty_texts_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1 line, not 0"):
        corpus_scores([], [])


@pytest.mark.parametrize("language", ["", "German", "DE", "de-DE", "d|e"])
def test_language_must_be_a_code(language: str) -> None:
    with pytest.raises(UserError, match="expected a code of two or three lower-case letters"):
        corpus_scores(HYPS, REFS, language=language)


def test_tokenize_must_be_known() -> None:
    with pytest.raises(UserError, match=r"tokenize='v13a': expected one of 13a, .*did you mean '13a'\?"):
        corpus_scores(HYPS, REFS, tokenize="v13a")
    with pytest.raises(UserError, match="tokenize='flores200': expected one of"):
        check_settings(language="en", tokenize="flores200")


def test_a_missing_mecab_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(UserError, match=r"pip install 'sacrebleu\[ja\]'"):
        corpus_scores(HYPS, REFS, tokenize="ja-mecab")


def test_several_references_equal_sacrebleu() -> None:
    """The second text of references is the output: every score is 100."""
    from sacrebleu.metrics.bleu import BLEU

    hyps, other = ["a dog runs in the park", "two men see it"], ["a dog ran in a park", "two men saw it now"]
    refs = ["the dog runs in the garden", "both men see it"]
    scores = corpus_scores(hyps, refs, more_refs=[other])
    assert scores[0].value == BLEU(force=True).corpus_score(hyps, [refs, other]).score > bleu(hyps, refs)
    assert all(score.signature.startswith("nrefs:2|") for score in scores)
    assert [score.value for score in corpus_scores(hyps, refs, more_refs=[hyps])] == pytest.approx([100] * 7)
    result = paired_bootstrap(hyps, hyps, refs, more_refs=[other], samples=3)
    assert result.bleu_a == pytest.approx(scores[0].value) and result.signature.startswith("nrefs:2|")
    with pytest.raises(UserError, match="expected 1 lines, as many as the references"):
        corpus_scores(hyps, refs, more_refs=[["a"]])
