"""`clean` drops planted faults of many kinds, keeps good pairs to the byte, and lists what it dropped."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.toy_task import CommandResult, write_lines

from transduce.cleaning import clean
from transduce.cleaning.clean import RULES, find_faults, read_raw
from transduce.cleaning.misfits import FOLDS, _falling, learn_misfits, make_misfits
from transduce.cleaning.near_copies import NearCopies
from transduce.data.corpora import Corpus
from transduce.demo.grammar import corpus as grammar

Pair = tuple[str, str]
CLEAN: list[Pair] = list(dict.fromkeys(grammar(5, 4_000)))[:3_000]
FRENCH = "Le chien noir court dans la neige avec une balle rouge numéro"


def faulty(pair: Pair, kind: str, other: Pair, number: int) -> Pair:
    """Return a pair with a fault of this kind."""
    src, tgt = pair
    words = tgt.split()
    match kind:
        case "misaligned":
            return src, other[1]
        case "language":
            return src, f"{FRENCH} {number}."
        case "untranslated":
            return src, src
        case "cut":
            return src, " ".join(words[: len(words) // 3])
        case "repetition":
            return src, " ".join(words[:-1] + words[-1:] * 6)
        case "mojibake":
            return src, f"{tgt} " + "für schöne Gärten".encode().decode("cp1252")
        case "boilerplate":
            return src, f"Alle Rechte vorbehalten. Impressum und Datenschutz {number % 3}."
        case _:
            return tgt, src


KINDS = "misaligned language untranslated cut repetition mojibake boilerplate swapped".split()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, list[str]]:
    """Return a corpus of which 3 in 10 pairs have a fault, and the fault of each pair; "" for none."""
    generator = random.Random(1)
    faults = [""] * len(CLEAN)
    pairs = [*CLEAN]
    for number, i in enumerate(generator.sample(range(len(CLEAN)), 3 * len(CLEAN) // 10)):
        faults[i] = KINDS[number % len(KINDS)]
        pairs[i] = faulty(CLEAN[i], faults[i], generator.choice(CLEAN), number)
    folder = tmp_path_factory.mktemp("planted")
    src = write_lines(folder / "train.en", [src for src, _ in pairs])
    return Corpus(src, write_lines(folder / "train.de", [tgt for _, tgt in pairs])), faults


def test_planted_faults_go_and_good_pairs_stay(planted: tuple[Corpus, list[str]]) -> None:
    pytest.importorskip("py3langid")
    corpus, faults = planted
    cleaning = find_faults(corpus)
    is_dropped, is_faulty = cleaning.rules >= 0, np.array([bool(fault) for fault in faults])
    by_kind = Counter(fault for fault, dropped in zip(faults, is_dropped, strict=True) if fault and not dropped)
    assert is_dropped[is_faulty].mean() >= 0.95, by_kind
    assert is_dropped[~is_faulty].mean() <= 0.01, cleaning.counts
    assert {"copied", "mojibake", "repetition", "swapped", "language", "misfit"} <= cleaning.counts.keys()


def test_a_clean_text_stays_whole(tmp_path: Path) -> None:
    src = write_lines(tmp_path / "a", [src for src, _ in CLEAN[:1_500]])
    cleaning = find_faults(Corpus(src, write_lines(tmp_path / "b", [tgt for _, tgt in CLEAN[:1_500]])))
    assert (cleaning.rules >= 0).mean() <= 0.01, cleaning.counts


def test_kept_and_dropped_lines_give_the_text_again(
    planted: tuple[Corpus, list[str]], tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    src, tgt = b"one\r\ntwo  \n\xff\n\nfive", b"eins\nzwei\ndrei\nvier\nf\xc3\xbcnf"
    (tmp_path / "src").write_bytes(src)
    (tmp_path / "tgt").write_bytes(tgt)
    out = tmp_path / "out.src", tmp_path / "out.tgt"
    result = cli("clean", tmp_path / "src", tmp_path / "tgt", "--out", *out, "--report", tmp_path / "new" / "r.html")
    assert result.code == 0, result.err
    assert "5 pairs: 3 kept, 2 dropped" in result.out.decode()
    assert out[0].read_bytes() == b"one\r\ntwo  \nfive\n"
    dropped = [json.loads(line) for line in (tmp_path / "out.src.dropped.jsonl").read_text().splitlines()]
    assert [(pair["line"], pair["rule"]) for pair in dropped] == [(3, "not_utf8"), (4, "blank")]
    assert [pair["src"].encode("utf-8", "surrogateescape") for pair in dropped] == [b"\xff", b""]
    assert "not UTF-8" in (tmp_path / "new" / "r.html").read_text()


def test_wrong_calls_are_one_line_and_write_nothing(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    src, tgt = write_lines(tmp_path / "src", ["a", "b"]), write_lines(tmp_path / "tgt", ["a"])
    out = tmp_path / "out.src", tmp_path / "out.tgt"
    for arguments, message in [
        (["--out", *out], "expected the same number of lines, not 2 and 1"),
        ([], "--dry-run to write none"),
        (["--out", src, out[1]], "another file than the input"),
        (["--out", out[0], out[0]], "expected different files"),
        (["--dry-run", "--without", "mojibak"], "expected the name of a rule; did you mean 'mojibake'"),
        (["--dry-run", "--report", src / "r.html"], f"--report={src / 'r.html'}: expected a file in a folder, but"),
        (["--out", *out, "--report", out[0]], "--out and --dropped and --report="),
        (["--dry-run", "--test", src, tgt], "expected the same number of lines, not 2 and 1"),
        (["--dry-run", "--backward", tmp_path / "none"], "none"),
    ]:
        result = cli("clean", src, tgt, *arguments)
        assert result.code == 2, arguments
        assert message in result.err and ("check:" in result.err) == (arguments == ["--out", *out]), result.err
    out[1].write_text("mine")
    result = cli("clean", src, src, "--out", *out)
    assert "expected no file with this name" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tgt", "src", "tgt"]


def test_a_cleaning_that_was_interrupted_continues(
    planted: tuple[Corpus, list[str]],
    tmp_path: Path,
    cli: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("py3langid")
    corpus, _ = planted
    words = ("clean", corpus.src, corpus.tgt, "--without", "misfit", "--out")
    assert cli(*words, tmp_path / "whole.src", tmp_path / "whole.tgt").code == 0
    out = tmp_path / "out.src", tmp_path / "out.tgt"
    monkeypatch.setattr(clean, "PORTION", 1_000)
    monkeypatch.setattr(clean, "cores", lambda: 1)
    portions: list[int] = []

    def judged(pairs: Sequence[Pair], folds: np.ndarray) -> bytes:
        portions.append(len(pairs))
        if len(portions) == 2:
            raise KeyboardInterrupt
        return judge(pairs, folds)

    judge = clean._judge_pairs
    monkeypatch.setattr(clean, "_judge_pairs", judged)
    assert cli(*words, *out).code == 130 and not out[0].exists()
    assert len((tmp_path / "out.src.cleaning" / "judgements").read_bytes()) == 1_000
    monkeypatch.setattr(clean, "examine", lambda *_: 1 / 0)  # it is not needed again
    assert "expected the work of the same command" in cli("clean", corpus.src, corpus.tgt, "--out", *out).err
    assert cli(*words, *out).code == 0
    assert portions[0] == portions[2] == 1_000 and sum(portions[2:]) < len(CLEAN) - 1_000
    for number in (0, 1):
        assert out[number].read_bytes() == (tmp_path / ("whole.src", "whole.tgt")[number]).read_bytes()
    assert not (tmp_path / "out.src.cleaning").exists()


def test_one_pair_is_no_pairs(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    src, tgt = write_lines(tmp_path / "src", ["a"]), write_lines(tmp_path / "tgt", ["b"])
    assert cli("clean", src, tgt, "--dry-run").out.decode().startswith("1 pair: 1 kept, 0 dropped\n")
    assert cli("check", src, tgt).out.decode().startswith("1 pair\n")


def test_a_rule_can_be_left_out_and_nothing_is_written_in_a_dry_run(
    tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    src, tgt = write_lines(tmp_path / "src", ["a b", "a b"]), write_lines(tmp_path / "tgt", ["c d", "c d"])
    result = cli("clean", src, tgt, "--dry-run")
    assert "1  repeated" in result.out.decode()
    assert "2 kept, 0 dropped" in cli("clean", src, tgt, "--dry-run", "--without", "repeated").out.decode()
    assert len([*tmp_path.iterdir()]) == 2


def test_near_copies_of_test_lines_are_found() -> None:
    copies = NearCopies(["Two men sit on a red bench in the old park.", "Yes!", "犬が赤いボールで遊んでいる"])
    assert copies.is_copy("two men sit on a red bench in the old park")
    assert copies.is_copy("Two men sit on a red bench in the old park today.")
    assert not copies.is_copy("Two women sit on a bench in front of the old house.")
    assert copies.is_copy("犬が赤いボールで遊んでいる。")  # a script without spaces
    assert not copies.is_copy("yes")
    assert copies.is_short_copy("yes")
    assert not copies.is_short_copy("") and not NearCopies([""]).is_short_copy("...")


def test_made_misfits_differ_from_their_pairs() -> None:
    misfits = make_misfits(CLEAN[:400], np.random.default_rng(1))
    same = sum(made == pair for made, pair in zip(misfits, CLEAN[:400], strict=True))
    assert same <= 8
    assert all(made[0] == pair[0] for made, pair in zip(misfits[1::2], CLEAN[1:400:2], strict=True))


def test_the_share_of_misfits_is_estimated() -> None:
    generator = np.random.default_rng(2)
    pairs = [*CLEAN]
    for i in range(0, len(pairs), 8):
        pairs[i] = pairs[i][0], pairs[int(generator.integers(len(pairs)))][1]
    order = generator.permutation(len(pairs))
    misfits = learn_misfits([pairs[i] for i in order])
    assert 0.08 <= misfits.share <= 0.15
    scores = np.empty(len(pairs))
    for fold in range(FOLDS):
        scores[fold::FOLDS] = misfits.scores([pairs[i] for i in order[fold::FOLDS]], fold)
    is_misfit = order % 8 == 0
    assert (scores >= misfits.least)[is_misfit].mean() > 0.8
    assert (scores >= misfits.least)[~is_misfit].mean() < 0.02


def test_a_text_of_misfits_and_a_text_without_words_are_learned_from() -> None:
    shuffled = list(zip([src for src, _ in CLEAN[:1_000]], [tgt for _, tgt in CLEAN[500:1_500]], strict=True))
    misfits = learn_misfits(shuffled)
    assert misfits.share > 0.9 and (misfits.scores(CLEAN[:50]) >= misfits.least).mean() > 0.9
    symbols = [("☃" * (1 + i % 9), "☂" * (1 + i % 7)) for i in range(1_000)]
    assert not np.isnan(learn_misfits([*symbols, ("one dog", "ein Hund")]).scores(CLEAN[:50])).any()


def test_values_that_rise_share_their_mean() -> None:
    assert _falling(np.array([5.0, 1, 3, 2, 4, 0])).tolist() == [5, 2.5, 2.5, 2.5, 2.5, 0]


def test_raw_lines_are_the_bytes_of_the_files(planted: tuple[Corpus, list[str]]) -> None:
    corpus, _ = planted
    assert b"".join(src for src, _ in read_raw(corpus)) == corpus.src.read_bytes()
    assert len(RULES) == len({*RULES})
