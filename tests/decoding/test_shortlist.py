"""The search with a vocabulary shortlist for each sentence: its tokens, and the same output in any batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.searches import SETTINGS, SMALL, alone, backend_of, check, jobs_of, needs_compiled, run, table
from support.small_models import model_of
from torch import Tensor

from transduce.config.schema import ModelConfig, SearchConfig
from transduce.data.vocabulary import BOS, EOS
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import sample_all, search_all
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.constraint import Both, Constraint, Joined, Prefixes
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import PLAIN, Kernels
from transduce.decoding.options import Sampling
from transduce.decoding.running_search import Job, RunningSearch
from transduce.decoding.shortlist.backend import ShortlistBackend
from transduce.decoding.shortlist.table import Shortlist

V = SMALL.vocab_size
assert V is not None
EVERYTHING = Shortlist(np.arange(V, dtype=np.int32), np.zeros((V, 1), dtype=np.int32))
WIDE = SearchConfig(beam_size=6, max_extra_tokens=8, lookahead=3, min_tokens=3)
GREEDY = SearchConfig(beam_size=1, max_extra_tokens=5)
NARROW = SearchConfig(beam_size=12, max_extra_tokens=3)  # wants more candidates than most shortlists have
all_settings = pytest.mark.parametrize("settings", [SETTINGS, WIDE, GREEDY, NARROW], ids=["4", "6", "greedy", "12"])
both_precisions = pytest.mark.parametrize("precision", ["fp32", "int8"])


def allowed(shortlist: Shortlist, job: Job) -> set[int]:
    needed = job.constraint.needed_ids[0] if job.constraint is not None else ()
    return {*shortlist.common.tolist(), *shortlist.own(job.source, needed).tolist()}


def outputs_of(backend: Backend, jobs: Sequence[Job], settings: SearchConfig) -> list[list[Hypothesis]]:
    """Search the jobs together, with their constraints."""
    return search_all(backend, [job.source for job in jobs], settings, constraint=prefixes_of(jobs))


def prefixes_of(jobs: Sequence[Job]) -> Prefixes:
    return Prefixes([job.constraint.prefixes[0] if isinstance(job.constraint, Prefixes) else [] for job in jobs])


# ---- which tokens ------------------------------------------------------------------------------------------------


def test_the_list_of_a_sentence() -> None:
    candidates = np.array([[0, 0]] * 4 + [[7, 6], [5, 9], [9, 0]], dtype=np.int32)
    shortlist = Shortlist(np.array([0, 1, 2, 3, 5, 8], dtype=np.int32), candidates)
    assert shortlist.own([4, 5, 5]).tolist() == [6, 7, 9]
    assert shortlist.own([6]).tolist() == [9]
    assert shortlist.own([6], [11, 3, 6]).tolist() == [6, 9, 11]
    assert shortlist.own([]).tolist() == []


@both_precisions
@all_settings
@pytest.mark.parametrize("kernels", [PLAIN, pytest.param(compiled(), marks=needs_compiled)], ids=["plain", "c++"])
def test_outputs_are_those_of_the_shortlist(precision: Precision, settings: SearchConfig, kernels: Kernels) -> None:
    """An output has no other token, and each of its log-probabilities is over the shortlist."""
    free, shortlist = backend_of(precision, kernels), table()
    backend, jobs = ShortlistBackend(free, shortlist), jobs_of(20)
    for job, (output,) in zip(jobs, outputs_of(backend, jobs, settings), strict=True):
        ids = sorted(allowed(shortlist, job))
        assert {*output.ids} <= {*ids}
        tokens = [*output.ids, EOS][: len(output.token_log_probs)]
        logits = logits_of(free, job.source, tokens)[:, ids].log_softmax(1)
        expected = [float(row[ids.index(token)]) for row, token in zip(logits, tokens, strict=True)]
        assert output.token_log_probs == pytest.approx(expected, abs=1e-4)


def logits_of(backend: Backend, source: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return the logits (T, V) of the steps that write `tokens`."""
    rows, decoder = list[Tensor](), backend.decoder
    assert decoder.logits is not None
    with backend.computing():
        state = backend.start([source])
        for token in [BOS, *tokens[:-1]]:
            scores, state = decoder.step(torch.tensor([token]), state)
            rows.append(decoder.logits(scores))
    return torch.cat(rows)


@needs_compiled
@both_precisions
@all_settings
def test_a_list_of_everything_changes_nothing(precision: Precision, settings: SearchConfig) -> None:
    backend, jobs = backend_of(precision), jobs_of(30)
    listed = ShortlistBackend(backend, EVERYTHING)
    assert outputs_of(listed, jobs, settings) == outputs_of(backend, jobs, settings)


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_models_without_compiled_kernels_have_shortlists(kind: Any) -> None:
    from transduce.model.build import build

    torch.manual_seed(1)
    sizes: Any = {"n_heads": 8, "d_ff": 2048} if kind == "recurrent" else {}
    model = build(ModelConfig(kind=kind, vocab_size=V, d_model=32, n_layers=2, dropout=0.0, **sizes)).eval()
    backend, jobs = Backend([model]), jobs_of(9)
    for shortlist in (EVERYTHING, table()):
        outputs = outputs_of(ShortlistBackend(backend, shortlist), jobs, SETTINGS)
        for job, (output,) in zip(jobs, outputs, strict=True):
            assert {*output.ids} <= allowed(shortlist, job)
    expected = outputs_of(backend, jobs, SETTINGS)
    outputs = outputs_of(ShortlistBackend(backend, EVERYTHING), jobs, SETTINGS)
    assert [one[0].ids for one in outputs] == [one[0].ids for one in expected]


def test_an_ensemble_has_shortlists() -> None:
    models = [CpuTransformer(model_of(replace(SMALL, norm=norm), torch.float32), "fp32") for norm in ("post", "pre")]
    backend, jobs, shortlist = Backend(models), jobs_of(9), table()
    outputs = outputs_of(ShortlistBackend(backend, shortlist), jobs, SETTINGS)
    assert all({*one.ids} <= allowed(shortlist, job) for job, (one,) in zip(jobs, outputs, strict=True))
    expected = outputs_of(backend, jobs, SETTINGS)
    outputs = outputs_of(ShortlistBackend(backend, EVERYTHING), jobs, SETTINGS)
    assert [one[0].ids for one in outputs] == [one[0].ids for one in expected]


def test_samples_are_drawn_from_the_shortlist() -> None:
    shortlist, jobs = table(), jobs_of(9)
    backend = ShortlistBackend(backend_of(), shortlist)
    sources = [job.source for job in jobs]
    seeds = [[1, 2]] * len(jobs)
    settings = {"sampling": Sampling(temperature=2.0), "seeds": seeds, "constraint": prefixes_of(jobs)}
    for job, samples in zip(jobs, sample_all(backend, sources, SETTINGS, **settings), strict=True):
        assert all({*one.ids} <= allowed(shortlist, job) for one in samples)


# ---- batches -----------------------------------------------------------------------------------------------------


@both_precisions
@pytest.mark.parametrize(
    ("kernels", "count", "schedules"),
    [
        pytest.param(PLAIN, 30, 1, id="plain"),
        pytest.param(compiled(), 60, 2, marks=needs_compiled, id="c++"),
        pytest.param(compiled(), 1_000, 2, marks=[needs_compiled, pytest.mark.slow], id="c++, many"),
    ],
)
def test_the_other_sentences_change_nothing(precision: Precision, kernels: Kernels, count: int, schedules: int) -> None:
    """Sentences come and go at random steps. With compiled kernels the scores are equal to the last bit."""
    backend = ShortlistBackend(backend_of(precision, kernels), table())
    jobs = jobs_of(count, settings=(SETTINGS, WIDE, GREEDY, NARROW))
    expected = {i: alone(backend, job) for i, job in enumerate(jobs)}
    tolerance = 0.0 if kernels is not PLAIN else 1e-4 if precision == "fp32" else 0.05
    for seed in range(schedules):
        check(run(RunningSearch(backend, limit=1_500), jobs, seed), expected, tolerance)


@needs_compiled
@both_precisions
def test_a_large_vocabulary_in_batches(precision: Precision) -> None:
    """Common and own tokens of several panels each."""
    size = 1_500
    model = model_of(replace(SMALL, vocab_size=size), torch.float32)
    backend = ShortlistBackend(Backend([CpuTransformer(model, precision)]), table(700, 30, size))
    jobs = [Job(i, [job.source[0] * 7, *job.source], SETTINGS) for i, job in enumerate(jobs_of(40)) if job.source]
    expected = {job.key: alone(backend, job) for job in jobs}
    outputs = search_all(backend, [job.source for job in jobs], SETTINGS)
    assert dict(zip(expected, outputs, strict=True)) == expected


def test_dropped_sentences_leave_their_lists() -> None:
    backend, shortlist = ShortlistBackend(backend_of(), table()), table()
    search, jobs = RunningSearch(backend), [replace(job, settings=SETTINGS, n_best=1) for job in jobs_of(12)]
    search.admit(jobs[:6])
    search.step()
    search.admit(jobs[6:])
    search.drop([1, 4, 7, 11])
    search.step()
    (group,) = search.groups.values()
    state: Any = group.beam.state
    assert len(state.rows.lists.ids) == len(group.beam) <= 8
    outputs = dict[Any, list[Hypothesis]]()
    while len(search):
        outputs |= search.step().outputs
    assert all({*one[0].ids} <= allowed(shortlist, jobs[key]) for key, one in outputs.items())
    check(outputs, {i: alone(backend, jobs[i]) for i in outputs}, 1e-4)


# ---- constraints -------------------------------------------------------------------------------------------------


def test_a_prefix_is_in_the_shortlist() -> None:
    shortlist = table(4, 1)
    prefix = [31, 32, 33]
    assert not {*prefix} & {*shortlist.own([5, 6]).tolist()}
    (output,) = search_all(
        ShortlistBackend(backend_of(), shortlist), [[5, 6]], SETTINGS, constraint=Prefixes([prefix])
    )[0]
    assert output.ids[:3] == prefix


class Nothing(Constraint):
    """A constraint without restrictions."""

    def allowed(self) -> dict[int, Sequence[int]]:
        return {}

    def select(self, rows: Sequence[int]) -> "Nothing":
        return self

    def advance(self, ids: Sequence[int]) -> None:
        return None


def test_groups_of_rows_need_their_ids() -> None:
    constraint = Joined([(None, 2), (Prefixes([[7], [8, 9]]), 2), (Nothing(), 1)])
    assert [{*ids} for ids in constraint.needed_ids] == [set(), set(), {7}, {8, 9}, set()]
    both = Both(Prefixes([[7], [8, 9]]), Prefixes([[], [5]]))
    assert [{*ids} for ids in both.needed_ids] == [{7}, {5, 8, 9}]
