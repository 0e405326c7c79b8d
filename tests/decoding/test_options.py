"""Decoding options: their keywords, and the values that are refused."""

import dataclasses
import math
from typing import Any, get_type_hints

import pytest

from transduce.config.schema import SearchConfig
from transduce.decoding.options import DecodingKeywords, DecodingOptions, Sampling
from transduce.errors import UserError


def test_the_keywords_are_the_fields() -> None:
    assert get_type_hints(DecodingKeywords) == get_type_hints(DecodingOptions)
    assert get_type_hints(DecodingKeywords).keys() == {f.name for f in dataclasses.fields(DecodingOptions)}


def test_an_option_replaces_the_setting_of_the_model() -> None:
    search = SearchConfig(beam_size=3, alpha=0.5, lookahead=4, min_tokens=2)
    assert DecodingOptions().resolve(search) == search
    options = DecodingOptions(beam_size=6, alpha=0.0, n_best=6)
    assert options.resolve(search) == SearchConfig(beam_size=6, alpha=0.0, lookahead=4, min_tokens=2)
    assert DecodingOptions(lookahead=9).resolve(search).lookahead == 9


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"beam_size": 0}, "beam_size=0: expected 1 to 500"),
        ({"beam_size": "4"}, "beam_size='4': expected an integer"),
        ({"beam_size": 4.0}, "beam_size=4.0: expected an integer"),  # equal to the setting, of another type
        ({"alpha": -1.0}, "alpha=-1.0: expected a number from 0 to 10"),
        ({"alpha": math.nan}, "alpha=nan: expected a number from 0 to 10"),
        ({"alpha": math.inf}, "alpha=inf: expected a number from 0 to 10"),
        ({"lookahead": 0}, "lookahead=0: expected at least 1"),
        ({"n_best": 5}, "n_best=5: expected 1 to the beam size, 4"),
        ({"n_best": 0}, "n_best=0: expected 1 to the beam size, 4"),
        ({"beam_size": 0, "alpha": 11.0}, "alpha=11.0: expected a number from 0 to 10"),
    ],
)
def test_values_that_the_search_cannot_use(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DecodingOptions(**keywords).resolve(SearchConfig())


def test_no_length_penalty_needs_no_alpha() -> None:
    assert DecodingOptions(length_penalty="power").resolve(SearchConfig()) == SearchConfig(length_penalty="power")
    none = DecodingOptions(length_penalty="none").resolve(SearchConfig())
    assert (none.length_penalty, none.alpha) == ("none", 0.0)
    with pytest.raises(UserError, match="alpha=0.6"):
        DecodingOptions(length_penalty="none", alpha=0.6).resolve(SearchConfig())
    with pytest.raises(UserError, match="length_penalty='wu': expected one of 'gnmt', 'power', 'none'"):
        DecodingOptions(length_penalty="wu")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mbr": 1}, "mbr=1: expected 2 to 1,000 candidates; give another number"),
        ({"mbr": 1_001}, "mbr=1001: expected 2 to 1,000 candidates; give another number"),
        ({"mbr": 2.5}, "mbr=2.5: expected an integer"),
        ({"mbr_metric": "chrf"}, "mbr_metric=chrf: must not be set without mbr; add mbr"),
        ({"mbr": 8, "mbr_metric": "ter"}, "mbr_metric='ter': expected one of 'chrf', 'bleu'"),
        ({"mbr": 8, "lookahead": 5}, "lookahead=5: must not be set with sampling, from which mbr takes"),
        (
            {"mbr": 8, "beam_size": 8, "sampling": Sampling()},
            "beam_size=8: must not be set with sampling, from which",
        ),
        ({"mbr": 8, "beam_size": 4}, "mbr=8: expected 2 to the beam size, 4; give fewer, or a larger beam"),
        ({"mbr": 8, "n_best": 9}, "n_best=9: expected 1 to the number of candidates, 8"),
        ({"mbr": 4, "n_best": 5, "beam_size": 8}, "n_best=5: expected 1 to the number of candidates, 4"),
        ({"mbr": 8, "n_best": 0}, "n_best=0: expected 1 to the number of candidates, 8"),
    ],
)
def test_minimum_bayes_risk_that_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DecodingOptions(**keywords).resolve(SearchConfig())


def test_the_candidates_of_minimum_bayes_risk() -> None:
    """Samples with a limit, samples by the given settings, or the best of a beam."""
    assert DecodingOptions(mbr=8).draws == Sampling(0.7, epsilon=0.02)
    assert DecodingOptions(mbr=8, sampling=Sampling(0.5)).draws == Sampling(0.5)
    assert DecodingOptions(mbr=8, beam_size=8, lookahead=3).draws is None
    assert DecodingOptions(mbr=8, beam_size=9, n_best=8).n_candidates == 8
    assert DecodingOptions.from_arguments(mbr=8, seed=3) == DecodingOptions(mbr=8, seed=3)
    with pytest.raises(UserError, match="seed=3: must not be set without sampling"):
        DecodingOptions.from_arguments(mbr=8, beam_size=8, seed=3)


def test_seeds_of_samples() -> None:
    """The first sample is that of plain sampling, and more candidates begin with the same ones."""
    plain, few, many = (
        options.seeds_of_line(7)
        for options in (
            DecodingOptions(sampling=Sampling(), seed=2),
            DecodingOptions(mbr=4, seed=2),
            DecodingOptions(mbr=50, seed=2),
        )
    )
    assert plain == few[:1] and few == many[:4] and len({*many}) == 50
    assert not {*many} & {*DecodingOptions(mbr=50, seed=2).seeds_of_line(8)}
    assert not {*many} & {*DecodingOptions(mbr=50, seed=3).seeds_of_line(7)}


@pytest.mark.parametrize("keywords", [{"beam_size": 2}, {"lookahead": 2}, {"n_best": 2}])
def test_options_of_the_search_are_refused_with_sampling(keywords: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="=2: must not be set with sampling"):
        DecodingOptions(sampling=Sampling(), **keywords)
    assert DecodingOptions(sampling=Sampling(), alpha=0.5).resolve(SearchConfig()).alpha == 0.5


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match="split='never': expected one of 'auto', 'none', 'long', 'sentences'"):
        DecodingOptions(split="never")  # pyright: ignore[reportArgumentType]


def test_flat_arguments() -> None:
    assert DecodingOptions.from_arguments(beam_size=2) == DecodingOptions(beam_size=2)
    options = DecodingOptions.from_arguments(top_k=3, seed=0)
    assert options == DecodingOptions(sampling=Sampling(1.0, 3), seed=0)
    assert DecodingOptions.from_arguments(epsilon=0.02) == DecodingOptions(sampling=Sampling(epsilon=0.02))
    with pytest.raises(UserError, match="seed=0: must not be set without sampling"):
        DecodingOptions.from_arguments(seed=0)


def test_options_that_an_engine_cannot_meet() -> None:
    DecodingOptions(beam_size=3).refuse(["lookahead", "sampling"], "here; leave it out")
    with pytest.raises(UserError, match="lookahead=3: must not be set here; leave it out"):
        DecodingOptions(lookahead=3).refuse(["lookahead", "sampling"], "here; leave it out")
