"""Noise of real input, drawn again in each epoch (`data.noise`), and on a test text (`transduce evaluate --noise`).

    ids of a pair -> text -> the changes that the key of the pair draws -> ids

A translation keeps capitals, emoji, URLs and masks, so these change both sides. The other changes are mistakes of a
writer: they are in the source only, and the target stays as it is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

import numpy as np

from transduce.config.schema import NoiseKind
from transduce.data.text import LinePair, in_capitals, is_blank
from transduce.data.token_file import TokenRows
from transduce.data.vocabulary import TokenizerLike

T = TypeVar("T")


# One character each, of an area of Unicode without meaning. A tokenizer that learns for `masks` has them as pieces.
MASKS = [chr(code) for code in range(0xE010, 0xE01A)]
EMOJI = [chr(code) for code in (*range(0x1F300, 0x1F3FB), *range(0x1F400, 0x1F57B), *range(0x1F600, 0x1F650))]
AROUND = ("{}", "{}", "{}", "{}", "{}", "{}.", "{},", "{}:", "({})", '"{}"')  # of a mask
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# By how much a line grows in tokens, measured on captions and rounded up. Plans of batches leave room for it.
NOISE_GROWTH: dict[NoiseKind, float] = {
    "capitals": 3.0,
    "lower": 0.0,
    "titles": 0.6,
    "punctuation": 0.0,
    "typos": 0.2,
    "spaces": 0.3,
    "emoji": 0.4,
    "urls": 1.3,
    "masks": 0.7,
}
SHARE = 8  # one of this many words gets a typo, or is joined or split; at least one of a line
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_END = re.compile(r"(?<=\w)[.,;:!?…]+(?=\s|$)")


def add_noise(pair: LinePair, noise: Mapping[NoiseKind, float], random: Random) -> LinePair:
    """Return a pair with the changes that `random` draws. noise: the probability of each. No side becomes blank."""
    for name, probability in noise.items():
        if random.random() < probability:
            result = CHANGES[name](*pair, random)
            pair = pair if any(map(is_blank, result)) else result
    return pair


def noisy_rows(
    rows: TokenRows, noise: Mapping[NoiseKind, float], tokenizer: TokenizerLike, keys: np.ndarray
) -> TokenRows:
    """Return pairs of ids with noise. Each is a function of its ids, `noise` and its key, uint64."""
    sources, targets = [*rows[0]], [*rows[1]]
    pairs = dict[int, LinePair]()
    for i, key in enumerate(keys.tolist()):
        random = Random(key)
        kinds: dict[NoiseKind, float] = {
            name: 1 for name, probability in noise.items() if random.random() < probability
        }
        if kinds:
            src, tgt = sources[i].tolist(), targets[i].tolist()
            pair = tokenizer.decode(src), tokenizer.target.decode(tgt)
            text, target = add_noise(pair, kinds, random)
            tag = tokenizer.vocabulary[src[0]] if tokenizer.tags else ""
            pairs[i] = f"{tag} {text}" if tag in tokenizer.tags else text, target
    for side, of_side in ((sources, tokenizer), (targets, tokenizer.target)):
        texts = [pair[0 if side is sources else 1] for pair in pairs.values()]
        for i, ids in zip(pairs, of_side.encode_batch(texts), strict=True):
            side[i] = np.array(ids, np.int64)
    return sources, targets


# ---- on both sides -----------------------------------------------------------------------------------------------


def _capitals(src: str, tgt: str, random: Random) -> LinePair:
    return in_capitals(src), in_capitals(tgt)


def _emoji(src: str, tgt: str, random: Random) -> LinePair:
    return _put(src, tgt, random, _choice(EMOJI, random))


def _urls(src: str, tgt: str, random: Random) -> LinePair:
    words = [match[0].lower() for match in _WORD.finditer(src)] or ["page"]
    name = "".join(_choice(LETTERS, random) for _ in range(3 + _number(6, random)))
    end = _choice(("", "/", f"/{_choice(words, random)}", f"/{name}?id={_number(1000, random)}"), random)
    start = _choice(("https://", "https://www.", "http://", "www."), random)
    host = f"{_choice((name, _choice(words, random)), random)}.{_choice(('com', 'org', 'net', 'de', 'eu'), random)}"
    return _put(src, tgt, random, start + host + end)


def _masks(src: str, tgt: str, random: Random) -> LinePair:
    """Replace words that both sides have, such as names and numbers, by masks; or add masks, half with marks."""
    masks = [*MASKS]
    words, others = (re.findall(r"\w+", text) for text in (src, tgt))
    common = [word for word in words if words.count(word) == 1 == others.count(word)]
    for _ in range(1 + _number(3, random)):
        mask = masks.pop(_number(len(masks), random))
        if common:
            word = common.pop(_number(len(common), random))
            src, tgt = (re.sub(rf"\b{word}\b", mask, text) for text in (src, tgt))
        else:
            src, tgt = _put(src, tgt, random, _choice(AROUND, random).format(mask))
    return src, tgt


def _put(src: str, tgt: str, random: Random, text: str) -> LinePair:
    """Return the sides with `text` at the beginning, at the end, or in the same part of both."""
    part = _choice((0.0, 1.0, random.random()), random)
    sides = [side.split(" ") for side in (src, tgt)]
    places = [round(part * len(words)) for words in sides]
    before, after = (
        " ".join([*words[:place], text, *words[place:]]) for words, place in zip(sides, places, strict=True)
    )
    return before, after


# ---- in the source -----------------------------------------------------------------------------------------------


def _lower(src: str, tgt: str, random: Random) -> LinePair:
    return src.lower(), tgt


def _titles(src: str, tgt: str, random: Random) -> LinePair:
    return _WORD.sub(lambda match: match[0][0].upper() + match[0][1:], src), tgt


def _punctuation(src: str, tgt: str, random: Random) -> LinePair:
    return _END.sub("", src), tgt


def _typos(src: str, tgt: str, random: Random) -> LinePair:
    """Exchange, drop, double or replace a letter within words of four letters or more."""

    def typo(word: str) -> str:
        i = 1 + _number(len(word) - 2, random)
        letter, after = word[i : i + 2]
        changes = [after + letter, after, letter + letter + after, _choice(LETTERS, random) + after]
        changes = [change for change in changes if change != letter + after]
        return word[:i] + _choice(changes, random) + word[i + 2 :]

    return _change_some(src, [match for match in _WORD.finditer(src) if len(match[0]) >= 4], typo, random), tgt


def _spaces(src: str, tgt: str, random: Random) -> LinePair:
    """Join two words, or split a word."""

    def change(text: str) -> str:
        place = 1 + _number(len(text) - 1, random)
        return "" if text == " " else f"{text[:place]} {text[place:]}"

    return _change_some(src, [match for match in re.finditer(r" |\w{4,}", src)], change, random), tgt


CHANGES: dict[NoiseKind, Callable[[str, str, Random], LinePair]] = {
    "capitals": _capitals,
    "lower": _lower,
    "titles": _titles,
    "punctuation": _punctuation,
    "typos": _typos,
    "spaces": _spaces,
    "emoji": _emoji,
    "urls": _urls,
    "masks": _masks,
}


def _change_some(text: str, matches: Sequence[re.Match[str]], change: Callable[[str], str], random: Random) -> str:
    """Return a text in which one of `SHARE` matches is changed, at least one."""
    matches = [*matches]
    choice = [matches.pop(_number(len(matches), random)) for _ in range(-(-len(matches) // SHARE))]
    for match in sorted(choice, key=re.Match.start, reverse=True):
        text = text[: match.start()] + change(match[0]) + text[match.end() :]
    return text


def _number(n: int, random: Random) -> int:
    """Return a number from 0 to below n. Python promises the same draws of `random()` only."""
    return int(random.random() * n)


def _choice(values: Sequence[T], random: Random) -> T:
    return values[_number(len(values), random)]
