"""What a shortlist learns from a text: IBM model 1, the commonest pieces, and the pairs that it reads."""

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.toy_task import write_lines

from transduce.data import lexicon
from transduce.data.lexicon import ROUNDS, lexical_probabilities
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.decoding.shortlist.learning import learn_shortlist, read_ids
from transduce.errors import UserError

V = 40
LEXICON = {source: source + 16 for source in range(4, 20)}  # of each source piece its translation


def text(count: int, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """Return sentences of different source pieces, and their translations in any order, with a function word."""
    chance, src, tgt = random.Random(seed), list[list[int]](), list[list[int]]()
    for _ in range(count):
        source = chance.sample([*LEXICON], chance.randint(1, 6))
        target = [LEXICON[piece] for piece in source] + [38] * chance.randint(0, 2)
        chance.shuffle(target)
        src.append(source)
        tgt.append(target)
    return src, tgt


def slow_model_1(src: list[list[int]], tgt: list[list[int]]) -> dict[tuple[int, int], float]:
    """Return p(t | s) by the textbook, with dictionaries."""
    probabilities: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(ROUNDS):
        counts, totals = defaultdict[tuple[int, int], float](float), defaultdict[int, float](float)
        for source, target in zip(src, tgt, strict=True):
            for t in target:
                mass = sum(probabilities[s, t] for s in [*source, EOS])
                for s in [*source, EOS]:
                    counts[s, t] += probabilities[s, t] / mass
                    totals[s] += probabilities[s, t] / mass
        probabilities = defaultdict(float, {(s, t): count / totals[s] for (s, t), count in counts.items()})
    return probabilities


@pytest.mark.parametrize("at_a_time", [1, 100, lexicon.MOST_ENTRIES])
def test_probabilities_are_those_of_model_1(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MOST_ENTRIES", at_a_time)
    src, tgt = text(60)
    src, tgt = [*src, [5, 5, 6], []], [*tgt, [], [21, 21]]
    keys, probabilities = lexical_probabilities(src, tgt, V, empty=EOS)
    expected = slow_model_1(src, tgt)
    assert keys.tolist() == sorted(s * V + t for s, t in expected)
    assert probabilities == pytest.approx([expected[divmod(key, V)] for key in keys.tolist()], abs=1e-12)


def test_the_likeliest_piece_is_the_translation() -> None:
    shortlist = learn_shortlist(*text(400), V, V, n_candidates=3, n_common=2)
    assert {source: int(shortlist.candidates[source][0]) for source in LEXICON} == LEXICON
    assert shortlist.candidates.shape == (V, 3) and shortlist.candidates[EOS][0] == 38
    assert not shortlist.candidates[4 + 16 :].any()  # pieces without an occurrence have no candidates
    common = shortlist.common.tolist()
    assert common[:4] == [0, 1, 2, 3] and len(common) == 6 and 38 in common
    shortlist.check(V, V, "here")


def test_more_common_pieces_than_there_are_is_all() -> None:
    shortlist = learn_shortlist(*text(9), V, 39, n_candidates=1, n_common=1_000)
    assert shortlist.common.tolist() == [*range(39)]
    assert learn_shortlist(*text(9), V, 39, n_candidates=1, n_common=0).common.tolist() == [0, 1, 2, 3]


def test_equal_candidates_are_in_the_order_of_ids() -> None:
    shortlist = learn_shortlist([[5]], [[9, 8, 7]], 10, 10, n_candidates=2, n_common=0)
    assert shortlist.candidates[5].tolist() == [7, 8]


# ---- pairs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a b c d e f g h i j 0 1 2 3 4 5 6 7 8 9"] * 2, vocab_size=300)


@pytest.mark.parametrize("count", [1, 7, 20, 99, 1_000])
def test_pairs_are_spread_evenly_over_the_text(count: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    lines = [f"{number:03d}" for number in range(100)]
    src, tgt = write_lines(tmp_path / "src", lines), write_lines(tmp_path / "tgt", [line[::-1] for line in lines])
    sources, targets = read_ids(src, tgt, tokenizer, count, 50)
    numbers = [int(tokenizer.decode(ids)) for ids in sources]
    assert [tokenizer.decode(ids)[::-1] for ids in targets] == [f"{number:03d}" for number in numbers]
    assert len(numbers) == min(count, 100) and numbers[0] == 0
    assert np.diff(numbers).max(initial=1) <= 2 * max(100 // count, 1)
    assert numbers[-1] >= 99 - 3 * 100 // count


def test_blank_and_long_pairs_are_left_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    src = write_lines(tmp_path / "src", ["a", "", "b", "c " * 40, "d"])
    tgt = write_lines(tmp_path / "tgt", ["a", "a", "  ", "a", "e"])
    sources, targets = read_ids(src, tgt, tokenizer, 9, 20)
    assert [tokenizer.decode(ids) for ids in sources] == ["a", "d"]
    assert [tokenizer.decode(ids) for ids in targets] == ["a", "e"]
    with pytest.raises(UserError, match="src: expected a pair of lines of up to 1 tokens"):
        read_ids(src, write_lines(tmp_path / "other", ["a b c d"] * 5), tokenizer, 9, 1)
