"""A beam whose sentences come and go at random steps: each gets what it gets alone."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from support.search_tables import BOS, EOS, Table, V, random_table, request_for, tied_table
from torch import Tensor

from transduce.decoding.beam import Beam, beam_of
from transduce.decoding.decoder import Decoder, EnsembleState, ensemble, most_likely
from transduce.decoding.hypothesis import Request
from transduce.decoding.rows import Greedy, SentenceOutcome
from transduce.decoding.search import beam_search


@dataclass(frozen=True)
class Paths:
    """The state of a decoder whose rows may have different ages: of each row its sentence and its tokens so far."""

    rows: Sequence[tuple[int, tuple[int, ...]]]

    def select(self, rows: Tensor, sentences: Tensor) -> "Paths":
        """Return the state of `rows`."""
        return Paths([self.rows[row] for row in rows.tolist()])

    def join(self, other: "Paths") -> "Paths":
        """Return the rows of both."""
        return Paths([*self.rows, *other.rows])


def decoder_of(table: Table) -> Decoder[Paths]:
    """Return a decoder of a table that takes newcomers."""

    def step(last_ids: Tensor, state: Paths) -> tuple[Tensor, Paths]:
        assert len(state.rows) == len(last_ids)
        rows = [(i, (*path, int(one))) for (i, path), one in zip(state.rows, last_ids, strict=True)]
        assert all(path[0] == BOS for _, path in rows)
        return torch.stack([table(i, path[1:]) for i, path in rows]), Paths(rows)

    return Decoder(step, join=Paths.join)


def start(sentences: Sequence[int]) -> Paths:
    return Paths([(i, ()) for i in sentences])


RequestOf = Callable[[Sequence[int]], Request]


def run(
    decoder: Decoder[Paths], request_of: RequestOf, n_best: Sequence[int], seed: int, dropped: Sequence[int] = ()
) -> dict[int, SentenceOutcome]:
    """Search all sentences, which join at random steps, a few at a time; `dropped` ones leave at random steps."""
    chance, waiting = random.Random(seed), list(range(len(n_best)))
    chance.shuffle(waiting)
    beam, sentences, outcomes = beam_of(decoder, request_of([])), dict[int, int](), dict[int, SentenceOutcome]()
    while waiting or len(beam):
        while waiting and (not len(beam) or chance.random() < 0.4):
            size = chance.randint(1, 5)
            new, waiting = waiting[:size], waiting[size:]
            numbers = beam.admit(start(new), request_of(new), [n_best[i] for i in new])
            sentences |= zip(numbers, new, strict=True)
        leaving = [number for number, i in sentences.items() if i in dropped and chance.random() < 0.3]
        beam.drop(leaving)
        for number in leaving:
            del sentences[number]
        if len(beam):
            outcomes |= {sentences.pop(number): outcome for number, outcome in beam.step().items()}
    assert not sentences and not (isinstance(beam, Beam) and beam.pools)
    return outcomes


@pytest.mark.parametrize("table", [random_table(4), tied_table(5)], ids=["random", "ties"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("settings", [{}, {"lookahead": 2}, {"min_length": 3}, {"penalty": ("power", -0.5)}], ids=str)
def test_sentences_that_come_and_go_get_what_they_get_alone(
    table: Table, size: int, settings: dict[str, object]
) -> None:
    chance = random.Random(size)
    max_lengths = [chance.randint(1, 9) for _ in range(40)]
    prefixes = [[chance.randint(2, 5) for _ in range(chance.choice([0, 0, 1, 3]))][:most] for most in max_lengths]
    n_best, decoder = [chance.randint(1, size) for _ in range(40)], decoder_of(table)

    def request_of(sentences: Sequence[int]) -> Request:
        longest, begun = [max_lengths[i] for i in sentences], [prefixes[i] for i in sentences]
        return request_for(longest, prefixes=begun, beam_size=size, **settings)  # pyright: ignore[reportArgumentType]

    alone = {i: beam_search(decoder, start([i]), request_of([i]), n_best=n_best[i])[0] for i in range(40)}
    for seed in range(3):
        assert run(decoder, request_of, n_best, seed) == alone
        some = run(decoder, request_of, n_best, seed, dropped=range(0, 40, 2))
        assert some == {i: alone[i] for i in some} and {*range(1, 40, 2)} <= {*some}


def test_a_sentence_with_nan_fails_alone() -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        broken = sentence % 4 == 1 and len(prefix) == sentence % 3
        return torch.full((V,), float("nan")) if broken else random_table(3)(sentence, prefix)

    def request_of(sentences: Sequence[int]) -> Request:
        return request_for([7] * len(sentences), beam_size=3, min_length=3)

    outcomes = run(decoder_of(table), request_of, [2] * 24, seed=1)
    assert {i for i, outcome in outcomes.items() if isinstance(outcome, FloatingPointError)} == {*range(1, 24, 4)}
    for i in {*range(24)} - {*range(1, 24, 4)}:
        assert outcomes[i] == beam_search(decoder_of(table), start([i]), request_of([i]), n_best=2)[0]


def test_an_error_of_the_decoder_leaves_the_beam_as_it_was() -> None:
    decoder, fails = decoder_of(random_table(2)), [False]

    def step(last_ids: Tensor, state: Paths) -> tuple[Tensor, Paths]:
        if fails[0]:
            raise MemoryError
        return decoder.step(last_ids, state)

    request = request_for([9] * 4, beam_size=2)
    beam, outcomes = beam_of(Decoder(step, join=Paths.join), request), dict[int, SentenceOutcome]()
    beam.admit(start(range(4)), request, [1] * 4)
    while len(beam):
        fails[0] = True
        with pytest.raises(MemoryError):
            beam.step()
        fails[0] = False
        outcomes |= beam.step()
    expected = beam_search(decoder, start(range(4)), request)
    assert [outcomes[i] for i in range(4)] == expected


def five_tokens(sentence: int, prefix: tuple[int, ...]) -> Tensor:
    """Return a table of outputs that all have five tokens."""
    certain = EOS if len(prefix) == 4 else 2
    return torch.tensor([0.0 if token == certain else -50.0 for token in range(V)])


def test_the_beam_remembers_no_more_steps_than_its_oldest_sentence() -> None:
    request = request_for([9], beam_size=2)
    beam, most = Beam(decoder_of(five_tokens), request), 0
    for i in range(50):
        beam.admit(start([i]), request, [1])
        beam.step()
        most = max(most, len(beam.past))
    assert most == 4 and len(beam) == 4 and len(beam.pools) == 4


def test_greedy_search_has_room_for_the_outputs_of_its_sentences_alone() -> None:
    request = request_for([9], beam_size=1)
    beam, most = Greedy(decoder_of(five_tokens), request), (0, 0)
    for i in range(50):
        beam.admit(start([i]), request, [1])
        most = max(most, beam.ids.shape)
        beam.step()
    assert most == (4 + 9, 5) and len(beam) == 4


def test_an_ensemble_joins_if_all_its_decoders_do() -> None:
    first, second = decoder_of(random_table(1)), decoder_of(random_table(2))
    together, request = ensemble([first, second]), request_for([6], beam_size=2)
    beam, outcomes = beam_of(together, request), dict[int, SentenceOutcome]()
    for i in range(5):
        beam.admit(EnsembleState([start([i])] * 2), request, [2])
        outcomes |= beam.step()
    while len(beam):
        outcomes |= beam.step()
    for i in range(5):
        assert outcomes[i] == beam_search(together, EnsembleState([start([i])] * 2), request, n_best=2)[0]
    assert ensemble([first, Decoder(second.step)]).join is None


class OnGpu(Tensor):
    """A tensor that says it is on a GPU; its copy on the CPU is a plain tensor."""

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.device("cuda")

    def cpu(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.as_subclass(Tensor)


@pytest.mark.parametrize("n_candidates", [2, 12])
def test_the_best_tokens_of_a_gpu_have_the_types_of_a_cpu(n_candidates: int) -> None:
    """A search writes rows of both kinds into one array."""
    log_probs = torch.randn(3, 10, generator=torch.Generator().manual_seed(1)).log_softmax(dim=1)
    expected = most_likely(log_probs, n_candidates)
    actual = most_likely(log_probs.as_subclass(OnGpu), n_candidates)
    assert [x.dtype for x in actual] == [torch.float32, torch.int64]
    assert all(type(a) is Tensor and torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
