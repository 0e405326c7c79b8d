"""Sentences that are searched by continuous batching, and what each gives in its own search."""

import random
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
import torch

from support.small_models import model_of
from transduce.config.schema import ModelConfig, SearchConfig
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.constraint import prefix_constraint
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import Kernels
from transduce.decoding.running_search import Job, RunningSearch
from transduce.decoding.shortlist.table import Shortlist

SMALL = ModelConfig(vocab_size=40, d_model=32, n_encoder_layers=3, n_decoder_layers=2, n_heads=4, d_ff=48, dropout=0.0)
needs_compiled = pytest.mark.skipif(compiled() is None, reason="needs compiled kernels")
SETTINGS = SearchConfig(beam_size=4, max_extra_tokens=8)


def backend_of(precision: Precision = "fp32", kernels: Kernels | None = None) -> Backend:
    model = model_of(SMALL, torch.float32)
    with torch.no_grad():
        model.output.weight.mul_(3)  # sharper, so that sentences end at different steps
    return Backend([CpuTransformer(model, precision, kernels)])


def jobs_of(count: int, seed: int = 0, settings: Sequence[SearchConfig] = (SETTINGS,)) -> list[Job]:
    chance, jobs = random.Random(seed), list[Job]()
    for key in range(count):
        source = [chance.randint(4, 39) for _ in range(chance.randint(0, 12))]
        prefix = [chance.randint(4, 39) for _ in range(chance.choice([0, 0, 0, 2]))]
        search = chance.choice(settings)
        constraint = prefix_constraint([prefix], [len(source) + search.max_extra_tokens], 2)
        jobs.append(Job(key, source, search, chance.randint(1, search.beam_size), constraint))
    return jobs


def table(n_common: int = 9, n_candidates: int = 3, size: int = 40, seed: int = 1) -> Shortlist:
    """Return a random shortlist for a vocabulary of `size` ids."""
    chance = np.random.default_rng(seed)
    common = np.append(np.arange(4), 4 + np.sort(chance.permutation(size - 4)[: n_common - 4]))
    return Shortlist(common.astype(np.int32), chance.integers(0, size, (size, n_candidates), dtype=np.int32))


def alone(backend: Backend, job: Job) -> list[Hypothesis]:
    return search_all(backend, [job.source], job.settings, n_best=job.n_best, constraint=job.constraint)[0]


def run(search: RunningSearch, jobs: Sequence[Job], seed: int) -> dict[Hashable, list[Hypothesis]]:
    """Search the jobs, which come at random steps; jobs that come back are admitted again."""
    chance = random.Random(seed)
    waiting = list(jobs)
    outputs = dict[Hashable, list[Hypothesis]]()
    while waiting or len(search):
        if chance.random() < 0.4 or not len(search):
            del waiting[: search.admit(waiting[: chance.randint(1, 9)])]
        step = search.step()
        assert not step.failures
        outputs |= step.outputs
        waiting = [*step.returned, *waiting]
    return outputs


def check(outputs: dict[Hashable, list[Hypothesis]], expected: dict[int, list[Hypothesis]], tolerance: float) -> None:
    assert {*outputs} == {*expected}
    for key, hypotheses in expected.items():
        assert [h.ids for h in outputs[key]] == [h.ids for h in hypotheses], key
        assert [h.score for h in outputs[key]] == pytest.approx([h.score for h in hypotheses], abs=tolerance)
