"""`octavo.runner.sampler`, `octavo.runner.step_plan`: what is kept from step to step changes no draw."""

import numpy as np

from octavo.kernels.reference import ReferenceOperations
from octavo.runner.sampler import DrawPlan, Sampler
from octavo.runner.sampling_request import SamplingRequest
from octavo.runner.step_plan import StepPlan
from octavo.sampling_params import SamplingParams
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence

VOCAB_SIZE = 64


def requests_of(*temperatures):
    return [
        SamplingRequest(SamplingParams(temperature=temperature), seed=row, choice_index=0, num_prompt_tokens=3)
        for row, temperature in enumerate(temperatures)
    ]


def draw(plan, token_ids):
    logits = np.random.default_rng(len(token_ids[0])).standard_normal((len(token_ids), VOCAB_SIZE), np.float32)
    drawn, _ = Sampler(ReferenceOperations()).sample(logits, plan, token_ids)
    return drawn


def test_a_kept_plan_follows_the_positions():
    plan = DrawPlan(requests_of(1.0, 0.7), [1, 2])
    for num_tokens in ([3, 9], [4, 10]):
        keys = plan.keys(num_tokens).tolist()
        assert keys == [[0, 0, num_tokens[0]], [1, 0, num_tokens[1]], [1, 1, num_tokens[1]]]


def test_a_kept_plan_draws_what_a_new_one_draws():
    requests, token_ids = requests_of(1.0, 0.7, 1.5), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    kept = DrawPlan(requests, [1, 3, 1])
    for _ in range(6):
        drawn = draw(kept, token_ids)
        assert drawn == draw(DrawPlan(requests, [1, 3, 1]), token_ids)
        assert len(drawn) == 5
        for known, first in zip(token_ids, (0, 1, 4), strict=True):
            known.append(drawn[first])


def sequences_of(requests):
    return [Sequence(index, [1, 2, 3], 64) for index in range(len(requests))]


def batch_of(sequences, *, unfinished=()):
    """Returns a batch that computes each sequence's newest token, or, of those at the places ``unfinished``, the one before it."""
    batch = ScheduledBatch()
    for place, sequence in enumerate(sequences):
        batch.add(sequence, sequence.num_tokens - 1 - (place in unfinished), 1)
    return batch


def test_a_plan_holds_as_long_as_the_same_sequences_want_the_same():
    requests = dict(enumerate(requests_of(1.0, 0.7)))
    sequences = sequences_of(requests)
    plan = StepPlan(batch_of(sequences), requests, 8)
    assert not plan.is_for(batch_of(sequences[::-1])) and not plan.is_for(batch_of(sequences[:1]))
    assert not plan.is_for(batch_of(sequences, unfinished=[1]))
    sequences[0].token_ids.append(4)
    assert plan.is_for(batch_of(sequences))
    sequences[1].num_choices = 2
    assert not StepPlan(batch_of(sequences), requests, 8).is_for(batch_of(sequences))


def test_a_plan_cuts_the_rows_into_parts_and_leaves_out_what_is_not_due():
    requests = dict(enumerate(requests_of(1.0, 0.7, 0.5, 0.2)))
    sequences = sequences_of(requests)
    plan = StepPlan(batch_of(sequences, unfinished=[1]), requests, 2)
    assert [part.indices for part in plan.parts] == [[0, 2], [3]]
    assert [part.drawn_for for part in plan.parts] == [[sequences[0], sequences[2]], [sequences[3]]]
    assert all(part.token_ids[0] is part.drawn_for[0].token_ids for part in plan.parts)
    assert [part.draws.requests for part in plan.parts] == [[requests[0], requests[2]], [requests[3]]]


def test_a_sequence_that_starts_choices_is_drawn_for_once_for_each():
    requests = dict(enumerate(requests_of(1.0, 0.7)))
    sequences = sequences_of(requests)
    sequences[0].num_choices = 3
    (part,) = StepPlan(batch_of(sequences), requests, 8).parts
    assert part.drawn_for == [sequences[0]] * 3 + [sequences[1]]
