"""The search of a service: the outputs of a file's search, in flat memory, and what happens where memory runs out."""

import resource
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.searches import SETTINGS, SMALL, alone, backend_of, check, jobs_of, needs_compiled, run
from support.small_models import model_of

from transduce.config.schema import SearchConfig
from transduce.decoding.backends import Backend
from transduce.decoding.beam import Beam
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_cache import CpuCache
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import PLAIN, Kernels
from transduce.decoding.running_search import Job, RunningSearch
from transduce.model.transformer import Transformer


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("kernels", "count", "schedules"),
    [
        pytest.param(PLAIN, 40, 1, id="plain"),
        pytest.param(compiled(), 40, 1, marks=needs_compiled, id="c++"),
        pytest.param(PLAIN, 150, 1, marks=pytest.mark.slow, id="plain, many"),
        pytest.param(compiled(), 1_000, 3, marks=[needs_compiled, pytest.mark.slow], id="c++, many"),
    ],
)
def test_a_running_search_gives_what_a_file_gives(
    precision: Precision, kernels: Kernels, count: int, schedules: int
) -> None:
    """Compiled kernels compute each row without regard to the others: then the scores are equal to the last bit.

    Those in torch round differently in other batches, and int8 enlarges that where a value is near the middle of two.
    """
    backend = backend_of(precision, kernels)
    wide = SearchConfig(beam_size=6, max_extra_tokens=8, lookahead=3, min_tokens=3)
    jobs = jobs_of(count, settings=(SETTINGS, wide, SearchConfig(beam_size=1, max_extra_tokens=5)))
    expected = {i: alone(backend, job) for i, job in enumerate(jobs)}
    tolerance = 0.0 if kernels is not PLAIN else 1e-4 if precision == "fp32" else 0.05
    for seed in range(schedules):
        search = RunningSearch(backend, limit=1_500)
        check(run(search, jobs, seed), expected, tolerance)


@pytest.mark.parametrize("count", [400, pytest.param(8_000, marks=pytest.mark.slow)])
def test_the_rows_of_sentences_that_ended_are_used_again(count: int) -> None:
    """The search is never empty. After its first 200 sentences nothing grows."""
    search, waiting = RunningSearch(backend_of(), limit=700), [replace(job, constraint=None) for job in jobs_of(count)]
    sizes: list[list[int]] = []
    while waiting:
        del waiting[: search.admit(waiting[:4])]
        search.step()
        (group,) = search.groups.values()
        beam, state = cast(Beam, group.beam), cast(CpuCache, group.beam.state)
        assert len(search) > 0
        sizes.append([len(state.tables.layers[0]), len(state.cross.layers[0]), len(beam.past), len(beam.pools)])
        if len(waiting) > count - 200:
            sizes = [[max(pair) for pair in zip(*sizes[-2:], strict=True)]]
    first, *later = sizes
    for name, before, most in zip(
        ("keys", "cross", "past", "pools"), first, map(max, zip(*later, strict=True)), strict=True
    ):
        assert most <= 2 * before, name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
def test_the_memory_of_12_000_sentences_is_flat() -> None:
    """After 4,000 sentences, 8,000 more take less than 0.1 kB each."""
    search, sizes = RunningSearch(backend_of(), limit=700), list[int]()
    for i in range(12_000):
        (job,) = jobs_of(1, seed=i)
        while not search.admit([replace(job, key=i)]):
            search.step()
        if i % 4_000 == 3_999:
            sizes.append(int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize())
    assert max(sizes) - sizes[0] < 800_000, sizes


@pytest.mark.parametrize("room", [1, 3, 8])
def test_a_step_that_runs_out_of_memory_returns_the_younger_half(room: int) -> None:
    backend, jobs = backend_of(), [replace(job, settings=SETTINGS, n_best=1) for job in jobs_of(30)]
    expected = {i: alone(backend, job) for i, job in enumerate(jobs)}
    real, returned = backend.decoder, [0]

    def step(last_ids: Any, state: Any) -> Any:
        if len(last_ids) > 4 * room:
            returned[0] += 1
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory")
        return real.step(last_ids, state)

    backend.decoder = replace(real, step=step)
    check(run(RunningSearch(backend), jobs, 0), expected, 1e-4)
    assert returned[0] > 0


def without_memory(last_ids: Any, state: Any) -> Any:
    raise MemoryError


def test_a_sentence_that_needs_too_much_memory_alone_fails() -> None:
    backend = backend_of()
    backend.decoder = replace(backend.decoder, step=without_memory)
    search = RunningSearch(backend)
    assert search.admit(jobs_of(3)) == 3
    failures, waiting = dict[Hashable, Exception](), list[Job]()
    while len(search) or waiting:
        del waiting[: search.admit(waiting)]
        step_now = search.step()
        failures |= step_now.failures
        waiting += step_now.returned
    assert {*failures} == {0, 1, 2} and all(isinstance(one, MemoryError) for one in failures.values())


def test_a_sentence_that_needs_too_much_memory_leaves_half_of_its_room_to_the_next_ones() -> None:
    backend = backend_of()
    backend.decoder = replace(backend.decoder, step=without_memory)
    search, long = RunningSearch(backend), Job("long", [5] * 2_000, SETTINGS)
    search.admit([long])
    assert [*search.step().failures] == ["long"]
    assert long.tokens // 2 <= search.limit < long.tokens


def with_a_bad_word(backend: Backend) -> list[Job]:
    """Return jobs, those called "bad" with a word of which the embedding is NaN."""
    (model,) = backend.models
    assert isinstance(model, CpuTransformer)
    with torch.no_grad():
        model.model.src_embedding.weight[39] = float("nan")  # pyright: ignore[reportIndexIssue]
    sources = {"good": [5, 6, 7], "bad": [5, 39], "also good": [8] * 9, "bad too": [39] * 7, "good as well": [9, 4]}
    return [Job(key, source, SETTINGS) for key, source in sources.items()]


def outcomes_of(search: RunningSearch, jobs: Sequence[Job]) -> tuple[dict[Any, list[Hypothesis]], dict[Any, Exception]]:
    """Return the outputs and the failures of jobs that come together."""
    outputs, failures = dict[Hashable, list[Hypothesis]](), dict[Hashable, Exception]()
    assert search.admit(jobs) == len(jobs)
    while not {*outputs, *failures} >= {job.key for job in jobs}:
        step = search.step()
        assert not step.returned
        outputs |= step.outputs
        failures |= step.failures
    assert len(search) == 0
    return outputs, failures


def test_nan_fails_one_sentence() -> None:
    backend = backend_of()
    jobs = with_a_bad_word(backend)
    outputs, failures = outcomes_of(RunningSearch(backend), jobs)
    assert outputs == {job.key: alone(backend, job) for job in jobs if "good" in job.key}
    assert {*failures} == {"bad", "bad too"}
    assert all(isinstance(one, FloatingPointError) for one in failures.values())


@pytest.mark.parametrize("place", ["start", "step"])
def test_an_error_of_the_model_fails_one_sentence(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of()
    jobs = with_a_bad_word(backend)
    expected = {job.key: alone(backend, job) for job in jobs if "good" in job.key}
    real, start = backend.decoder, backend.start

    def failing_step(last_ids: Any, state: Any) -> Any:
        output, state = real.step(last_ids, state)
        assert not output.isnan().any(), "the model fails"
        return output, state

    def failing_start(sources: Sequence[Sequence[int]], constraint: Any) -> Any:
        assert all(39 not in source for source in sources), "the model fails"
        return start(sources, constraint)

    if place == "start":
        monkeypatch.setattr(backend, "start", failing_start)
    else:
        backend.decoder = replace(real, step=failing_step, search=None)
    outputs, failures = outcomes_of(RunningSearch(backend), jobs)
    check(outputs, expected, 1e-4)
    assert {*failures} == {"bad", "bad too"} and all(isinstance(one, AssertionError) for one in failures.values())


def test_sentences_that_are_dropped_give_no_output() -> None:
    backend = backend_of()
    search, jobs = RunningSearch(backend), jobs_of(12)
    search.admit(jobs[:6])
    search.step()
    search.admit(jobs[6:])
    search.drop([1, 4, 7, 11, "another"])
    outputs = dict[Hashable, list[Hypothesis]]()
    while len(search):
        outputs |= search.step().outputs
    check(outputs, {i: alone(backend, jobs[i]) for i in (0, 2, 3, 5, 6, 8, 9, 10)}, 1e-4)


def test_the_search_is_bounded_by_tokens_times_beam() -> None:
    search = RunningSearch(backend_of(), limit=100)
    job = Job(0, [5] * 9, SETTINGS)
    assert search.admit([replace(job, key=key) for key in range(5)]) == 2  # 40 tokens each
    assert search.tokens == 80 and search.admit([replace(job, key=9)]) == 0
    search.drop([0, 1])
    assert search.admit([Job(7, [5] * 99, SETTINGS), job]) == 1  # a larger one runs alone
    search.drop([7])
    assert len(search) == 0


def test_a_model_that_cannot_join_takes_one_group_at_a_time() -> None:
    model: Transformer = model_of(SMALL, torch.float32).eval()
    backend = Backend([model])
    search, greedy = RunningSearch(backend), replace(SETTINGS, beam_size=1)
    jobs = [Job(0, [5, 6], SETTINGS), Job(1, [7], SETTINGS), Job(2, [8], greedy)]
    assert search.admit(jobs) == 2
    assert search.admit(jobs[2:]) == 0
    outputs = dict[Hashable, list[Hypothesis]]()
    while len(search):
        outputs |= search.step().outputs
    assert search.admit(jobs[2:]) == 1
    check(outputs, {i: alone(backend, jobs[i]) for i in (0, 1)}, 1e-4)
