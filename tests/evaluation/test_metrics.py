"""Scores of text: against arithmetic by hand, sacreBLEU's own command, and slow, obvious versions."""

import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from transduce.errors import UserError
from transduce.evaluation.metrics import Score, corpus_scores, left_out, paired_bootstrap, split_compounds

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


# ---- one figure at a time -------------------------------------------------------------------------------------------


def plain_bleu(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """BLEU from its definition (Papineni et al. 2002): clipped n-gram precisions up to 4, brevity penalty, 0 to 100."""
    matched, made = Counter(), Counter()
    for hyp, ref in zip(hyps, refs, strict=True):
        for n in (1, 2, 3, 4):
            grams = [Counter(tuple(w[i : i + n]) for i in range(len(w) - n + 1)) for w in (hyp.split(), ref.split())]
            matched[n] += (grams[0] & grams[1]).total()
            made[n] += grams[0].total()
    if not all(matched[n] for n in (1, 2, 3, 4)):
        return 0.0
    hyp_len, ref_len = (sum(len(line.split()) for line in lines) for lines in (hyps, refs))
    brevity_penalty = 1.0 if hyp_len > ref_len else math.exp(1 - ref_len / hyp_len)
    return 100 * brevity_penalty * math.prod(matched[n] / made[n] for n in (1, 2, 3, 4)) ** 0.25


def test_no_four_gram_matches() -> None:
    """Matches of 1 to 4 words: 5 of 6, 3 of 5, 1 of 4, 0 of 3. multi-bleu: 0. sacreBLEU counts the 0 as 1/2:
    (5/6 · 3/5 · 1/4 · 1/6)^(1/4) = (1/48)^(1/4) = 0.3799."""
    scores = by_name(["the cat sat on the mat"], ["the cat is on the mat"])
    assert scores["bleu_tokenised"].value == scores["bleu_compound_split"].value == 0
    assert scores["bleu"].value == pytest.approx(37.99, abs=0.005)
    assert scores["bleu_as_given"].value == pytest.approx(37.99, abs=0.005)


def test_brevity_penalty() -> None:
    """Every n-gram matches, 5 words stand against 6: exp(1 - 6/5) = 0.8187."""
    for name in ("bleu", "bleu_tokenised", "bleu_compound_split", "bleu_as_given"):
        assert value(name, "a b c d e", "a b c d e f") == pytest.approx(81.87, abs=0.005), name


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
def test_split_compounds_as_perl_does(line: str, split: str) -> None:
    """The right-hand side is what perl prints for s/(\\S)-(\\S)/$1 ##AT##-##AT## $2/g."""
    assert split_compounds(line) == split


def test_quotes_are_straightened_in_the_output_only() -> None:
    curly, straight = "er sagte “ja doch” und ging’s an", 'er sagte "ja doch" und ging\'s an'
    assert value("bleu_compound_split", curly, straight, "de") == pytest.approx(100)
    assert value("bleu_compound_split", straight, curly, "de") < 100
    assert value("bleu_tokenised", curly, straight, "de") < 100


@pytest.mark.parametrize(("language", "article"), [("fr", "C' est l' "), ("en", "C 'est l '"), ("de", "C ' est l ' ")])
def test_moses_tokenises_by_the_language(language: str, article: str) -> None:
    """Whose is the apostrophe? Tokens written down by hand, BLEU from its definition."""
    hyp, ref = "C'est l'eau du grand lac bleu, là !", "C'est l'air du grand lac bleu, là !"
    tokens = [f"{article}{word} du grand lac bleu , là !" for word in ("eau", "air")]
    assert value("bleu_tokenised", hyp, ref, language) == pytest.approx(plain_bleu(tokens[:1], tokens[1:]))


def test_tokenised_bleu_is_bleu_of_the_tokens() -> None:
    """Tokens written down by hand; BLEU from its definition."""
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


def test_exact_match_is_a_percentage() -> None:
    assert by_name(HYPS, REFS)["exact_match"].value == 20
    assert by_name(["a ", "A"], ["a", "a"])["exact_match"].value == 0


def test_sacrebleu_command_prints_the_same(tmp_path: Path) -> None:
    for name, lines in (("hyp", HYPS), ("ref", REFS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def sacrebleu(*options: str) -> list[tuple[float, str]]:
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-w", "6", *options]
        printed = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
        return [(row["score"], row["signature"]) for row in (printed if isinstance(printed, list) else [printed])]

    scores = by_name(HYPS, REFS, "de")
    expected = [*sacrebleu("-m", "bleu", "chrf"), *sacrebleu("-m", "bleu", "-tok", "none", "--force")]
    ours = [scores[name] for name in ("bleu", "chrf", "bleu_as_given")]
    assert [(round(score.value, 6), score.signature) for score in ours] == expected


# ---- all of them together -------------------------------------------------------------------------------------------


def test_names_and_order() -> None:
    names = [score.name for score in corpus_scores(HYPS, REFS)]
    assert names == ["bleu", "chrf", "bleu_tokenised", "bleu_compound_split", "bleu_as_given", "exact_match"]


def test_perfect_output_scores_100_and_empty_output_0() -> None:
    refs = [line for line in REFS if "“" not in line]  # a curly quote is straightened in the output alone
    assert [score.value for score in corpus_scores(refs, refs)] == pytest.approx([100] * 6)
    assert all(score.value <= 100 for score in corpus_scores(refs, refs))
    assert [score.value for score in corpus_scores([""] * 5, REFS)] == [0] * 6


def test_signatures_tell_the_bleu_scores_apart() -> None:
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
        score = by_name(HYPS, REFS, "xx")[name]
        assert "'xx'" in score.label
        assert "tok:moses-default" in score.signature


def test_labels_warn_of_text_that_is_tokenised_already() -> None:
    tokenised = [line.replace(".", " .") for line in REFS]
    warned = {name for name, score in by_name(tokenised, tokenised).items() if "tokenised already" in score.label}
    assert warned == {"bleu", "bleu_tokenised", "bleu_compound_split"}
    assert not any("tokenised already" in score.label for score in corpus_scores(REFS, REFS))


def test_japanese() -> None:
    """13a sees one word and no match; of characters 7 of 8, 6 of 7, 5 of 6, 4 of 5 n-grams: (1/2)^(1/4) = 0.8409."""
    hyps, refs = ["私は犬が好きです"], ["私は犬が好きでし"]
    by_word, by_character = (by_name(hyps, refs, "ja", tokenize=name)["bleu"] for name in ("13a", "char"))
    assert by_word.value == 0
    assert "without spaces" in by_word.label
    assert by_character.value == pytest.approx(84.09, abs=0.005)
    assert "tok:char" in by_character.signature
    assert "without spaces" not in by_character.label


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


def test_without_sacremoses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert left_out() is None
    complete = by_name(HYPS, REFS)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    notice = left_out()
    assert notice is not None
    assert "pip install 'transduce[eval]'" in notice
    missing = complete.keys() & set(re.findall(r"\w+", notice))
    assert missing == {"bleu_tokenised", "bleu_compound_split"}
    assert by_name(HYPS, REFS) == {name: score for name, score in complete.items() if name not in missing}


def test_importing_is_light() -> None:
    heavy = ["torch", "numpy", "sacrebleu", "sacremoses"]
    code = f"import sys, transduce.evaluation.metrics; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_unequal_counts_are_named() -> None:
    with pytest.raises(UserError, match=r"hypotheses have 4 lines but the references have 5"):
        corpus_scores(HYPS[:4], REFS)
    with pytest.raises(UserError, match=r"A have 1 lines but the references have 5"):
        paired_bootstrap(HYPS[:1], HYPS, REFS)
    with pytest.raises(UserError, match=r"B have 1,000 lines but the references have 5"):
        paired_bootstrap(HYPS, HYPS * 200, REFS)


def test_nothing_to_score() -> None:
    with pytest.raises(UserError, match="0 lines"):
        corpus_scores([], [])
    with pytest.raises(UserError, match="0 lines"):
        paired_bootstrap([], [], [])


@pytest.mark.parametrize("language", ["", "German", "DE", "de-DE", "d|e"])
def test_language_must_be_a_code(language: str) -> None:
    with pytest.raises(UserError, match="such as en, de or fr"):
        corpus_scores(HYPS, REFS, language=language)


def test_tokenize_must_be_known() -> None:
    with pytest.raises(UserError, match=r"'v13a' is none of 13a, .*did you mean '13a'\?"):
        corpus_scores(HYPS, REFS, tokenize="v13a")
    with pytest.raises(UserError, match="'flores200' is none of"):
        paired_bootstrap(HYPS, HYPS, REFS, tokenize="flores200")


def test_mecab_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(UserError, match=r"pip install 'sacrebleu\[ja\]'"):
        corpus_scores(HYPS, REFS, tokenize="ja-mecab")


def test_bootstrap_settings() -> None:
    with pytest.raises(UserError, match="at least 2 lines.*got 1"):
        paired_bootstrap(["a"], ["b"], ["a"])
    with pytest.raises(UserError, match="at least 1 sample.*got 0"):
        paired_bootstrap(HYPS, HYPS, REFS, samples=0)
    with pytest.raises(UserError, match="seed.*got -1"):
        paired_bootstrap(HYPS, HYPS, REFS, seed=-1)


# ---- paired bootstrap -----------------------------------------------------------------------------------------------


def sentences(n_lines: int, seed: int, max_words: int = 14) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices("abcdefghijkl", k=rng.randint(1, max_words))) for _ in range(n_lines)]


def damaged(lines: Sequence[str], rate: float, seed: int) -> list[str]:
    """Each word replaced with probability `rate`."""
    rng = random.Random(seed)
    return [" ".join("z" if rng.random() < rate else word for word in line.split()) for line in lines]


def slow_bootstrap(
    hyps_a: Sequence[str], hyps_b: Sequence[str], refs: Sequence[str], *, samples: int, seed: int
) -> tuple[float, float, float]:
    """(p, low, high): sacreBLEU itself scores each resampled test set, drawn the way sacreBLEU draws it."""
    draws = np.random.default_rng(seed).choice(len(refs), size=(samples, len(refs)), replace=True)

    def bleu(hyps: Sequence[str], draw: Sequence[int]) -> float:
        return BLEU().corpus_score([hyps[i] for i in draw], [[refs[i] for i in draw]]).score

    deltas = [bleu(hyps_b, draw) - bleu(hyps_a, draw) for draw in draws]
    delta = bleu(hyps_b, range(len(refs))) - bleu(hyps_a, range(len(refs)))
    mean = sum(deltas) / samples
    p_value = (sum(abs(d - mean) >= abs(delta) for d in deltas) + 1) / (samples + 1)
    return p_value, float(np.percentile(deltas, 2.5)), float(np.percentile(deltas, 97.5))


@pytest.mark.parametrize(
    ("n_lines", "rate", "max_words"),
    [(2, 0.5, 14), (3, 0.9, 14), (12, 0.4, 14), (25, 0.15, 14), (12, 0.99, 14), (3, 0.1, 3), (6, 0.2, 5)],
)
def test_bootstrap_equals_the_slow_version(n_lines: int, rate: float, max_words: int) -> None:
    """Few lines, short lines and much damage bring the corners: no 4-gram, no match, nothing at all, too much."""
    refs = sentences(n_lines, seed=n_lines, max_words=max_words)
    hyps_a, hyps_b = damaged(refs, rate, seed=1), damaged(refs, rate, seed=2)
    hyps_a[-1] += " and more"
    hyps_b[0] = ""
    fast = paired_bootstrap(hyps_a, hyps_b, refs, samples=100, seed=5)
    slow = slow_bootstrap(hyps_a, hyps_b, refs, samples=100, seed=5)
    assert (fast.p_value, fast.delta_low, fast.delta_high) == pytest.approx(slow)


def test_bootstrap_bleu_is_the_bleu_that_is_reported() -> None:
    for tokenize in ("13a", "char"):
        result = paired_bootstrap(HYPS, REFS, REFS, samples=10, tokenize=tokenize)
        expected = by_name(HYPS, REFS, tokenize=tokenize)["bleu"].value
        assert (result.bleu_a, result.bleu_b) == pytest.approx((expected, 100))
        assert result.delta == result.bleu_b - result.bleu_a
        assert f"bs:10|seed:12345|case:mixed|eff:no|tok:{tokenize}|smooth:exp" in result.signature


def test_identical_systems_do_not_differ() -> None:
    result = paired_bootstrap(HYPS, HYPS, REFS)
    assert (result.delta, result.delta_low, result.delta_high, result.p_value) == (0, 0, 0, 1)


def test_a_much_better_system_is_significant() -> None:
    refs = sentences(150, seed=0)
    result = paired_bootstrap(damaged(refs, 0.4, seed=1), damaged(refs, 0.2, seed=2), refs)
    assert result.p_value == 1 / 1001
    assert 0 < result.delta_low < result.delta < result.delta_high


def test_swapping_the_systems_turns_the_sign_and_nothing_else() -> None:
    refs = sentences(40, seed=0)
    hyps = damaged(refs, 0.3, seed=1), damaged(refs, 0.25, seed=2)
    ab, ba = paired_bootstrap(hyps[0], hyps[1], refs), paired_bootstrap(hyps[1], hyps[0], refs)
    assert ab.p_value == ba.p_value
    assert (ab.bleu_a, ab.bleu_b, ab.delta) == (ba.bleu_b, ba.bleu_a, -ba.delta)
    assert (ab.delta_low, ab.delta_high) == pytest.approx((-ba.delta_high, -ba.delta_low))


def test_the_seed_decides() -> None:
    refs = sentences(40, seed=0)
    hyps = damaged(refs, 0.3, seed=1), damaged(refs, 0.25, seed=2)
    assert paired_bootstrap(hyps[0], hyps[1], refs, seed=1) == paired_bootstrap(hyps[0], hyps[1], refs, seed=1)
    first, second = (paired_bootstrap(hyps[0], hyps[1], refs, seed=seed) for seed in (1, 2))
    assert first.delta_low != second.delta_low


def test_equally_good_systems_are_told_apart_about_one_time_in_twenty() -> None:
    """p is a probability: p <= 0.05 in 5 % of 200 comparisons; the bounds are 4 standard errors (1.5 %) away."""
    rejected = 0
    for trial in range(200):
        refs = sentences(60, seed=trial)
        hyps_a, hyps_b = damaged(refs, 0.3, seed=2 * trial), damaged(refs, 0.3, seed=2 * trial + 1)
        rejected += paired_bootstrap(hyps_a, hyps_b, refs, samples=200).p_value <= 0.05
    assert 0 < rejected / 200 <= 0.11


def test_sacrebleu_own_paired_test_is_one_sided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why its p is not ours: smaller, and for a system against itself as small as can be."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    refs = sentences(60, seed=0)
    systems: list[tuple[str, Sequence[str]]] = [
        ("A", damaged(refs, 0.3, seed=1)),
        ("B", damaged(refs, 0.25, seed=2)),
        ("A again", damaged(refs, 0.3, seed=1)),
    ]
    _, table = PairedTest(systems, {"BLEU": BLEU()}, [refs], test_type="bs", n_samples=1000)()
    theirs = [result.p_value for result in table["BLEU"][1:] if not isinstance(result, str)]
    ours = [paired_bootstrap(systems[0][1], hyps, refs).p_value for _, hyps in systems[1:]]
    assert theirs == [pytest.approx(0.5 * ours[0], rel=0.5), pytest.approx(1 / 1001)]
    assert ours[1] == 1
