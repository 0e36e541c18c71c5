"""`octavo.scheduler`: the token budget, admission, preemption and progress, with the real memory and no model."""

import random

import pytest

from octavo.errors import CapacityError
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.scheduler.scheduler import Scheduler, SchedulerLimits
from octavo.scheduler.sequence import Sequence, SequenceStatus

FULL = (LayerGroup((0,), None),)


class Bench:
    """A scheduler whose model is a counter: every sampled token is new."""

    def __init__(self, num_blocks, *, block_size=4, budget=8, max_num_seqs=8, groups=FULL, caching=True, **limits):
        self.kv = KVManager(num_blocks=num_blocks, block_size=block_size, groups=groups, enable_prefix_caching=caching)
        self.scheduler = Scheduler(self.kv, SchedulerLimits(max_num_seqs, budget, **limits))
        self.next_token = 1000
        self.num_made = 0
        self.first_token_order = []
        self.num_steps = 0

    def add(self, prompt, num_new, **fields):
        self.num_made += 1
        sequence = Sequence(self.num_made, list(prompt), len(prompt) + num_new, **fields)
        self.scheduler.check_capacity(len(prompt), sequence.max_tokens, sequence.num_choices)
        self.scheduler.add(sequence)
        return sequence

    def step(self):
        batch = self.scheduler.schedule()
        assert batch.num_tokens <= self.scheduler.limits.max_num_batched_tokens
        assert batch.num_tokens == sum(entry.num_tokens for entry in batch.entries)
        assert len({id(entry.sequence) for entry in batch.entries}) == len(batch.entries)
        assert all(entry.num_tokens > 0 for entry in batch.entries)
        self.scheduler.update(batch)
        for entry in batch.entries:
            if entry.is_last_chunk:
                self.sample(entry.sequence)
        self.kv.check_invariants()
        self.num_steps += 1
        return batch

    def sample(self, sequence):
        if sequence.num_tokens == sequence.num_prompt_tokens:
            self.first_token_order.append(sequence.sequence_id)
        sequence.token_ids.append(self.next_token)
        self.next_token += 1
        if sequence.num_tokens >= sequence.max_tokens:
            self.scheduler.finish(sequence)

    def run(self, *, max_steps):
        while self.scheduler.has_work:
            assert self.num_steps < max_steps, f"{len(self.scheduler.running)} running, {len(self.scheduler.waiting)} waiting"
            assert self.step().entries, "work waits and nothing runs"
        assert self.kv.stats().num_used_blocks == 0


def test_a_prompt_is_computed_in_chunks_of_the_budget():
    bench = Bench(16)
    sequence = bench.add(range(20), 2)
    assert [bench.step().num_tokens for _ in range(3)] == [8, 8, 4]
    assert sequence.num_tokens == 21


def test_decodes_get_their_token_beside_a_long_prompt():
    bench = Bench(32)
    bench.add(range(3), 20)
    bench.step()
    bench.add(range(100, 140), 1)
    for _ in range(5):
        batch = bench.step()
        assert [entry.num_tokens for entry in batch.entries] == [1, 7]


def test_a_long_prompt_does_not_stretch_the_steps_of_many_decodes():
    bench = Bench(400, budget=512, max_num_seqs=64)
    for start in range(20):
        bench.add([1000 * start], 60)
    bench.step()
    bench.add(range(100_000, 100_600), 1)
    sizes = [bench.step().num_tokens for _ in range(10)]
    assert sizes == [20 + 40] * 10
    bench.scheduler.finish(bench.scheduler.running[0])
    assert bench.step().num_tokens == 19 + 38


def test_a_few_decodes_leave_a_prompt_a_useful_chunk():
    bench = Bench(400, budget=512, max_num_seqs=64)
    bench.add([7], 60)
    bench.step()
    bench.add(range(100_000, 100_600), 1)
    assert [bench.step().num_tokens for _ in range(3)] == [1 + 32] * 3


def test_pieces_of_a_long_prompt_become_shorter_beside_decodes():
    bench = Bench(800, budget=512, max_num_seqs=64, attention_parity_tokens=500)
    for start in range(16):
        bench.add([1000 * start], 100)
    bench.step()
    bench.add(range(100_000, 101_000), 1)
    pieces = [bench.step().num_tokens - 16 for _ in range(45)]
    assert pieces[0] == 32 and pieces == sorted(pieces, reverse=True) and pieces[-1] == 12


def test_the_oldest_leaves_room_for_decodes_when_it_computes_again():
    bench = Bench(32, budget=24, caching=False)
    oldest, other = bench.add(range(20), 9), bench.add(range(100, 103), 9)
    bench.step()
    bench.scheduler._preempt(oldest)
    bench.scheduler.limits = SchedulerLimits(8, 8)
    bench.step()
    batch = bench.step()
    assert [(entry.sequence, entry.num_tokens) for entry in batch.entries] == [(oldest, 7), (other, 1)]


def test_a_sequence_without_tokens_in_the_step_is_not_sampled():
    bench = Bench(64, max_num_seqs=3)
    first, second = bench.add(range(40), 2), bench.add(range(100, 140), 2)
    batch = bench.step()
    assert [entry.sequence for entry in batch.entries] == [first]
    assert not batch.entries[0].is_last_chunk
    assert second.num_tokens == 40


def test_what_can_never_fit_is_refused_with_the_numbers():
    bench = Bench(8)
    with pytest.raises(
        CapacityError, match=r"prompt of 30 tokens and up to 3 more need 9 KV blocks .* has 8 \(32 tokens\)"
    ) as caught:
        bench.add(range(30), 3)
    assert "kv_memory" in caught.value.hint
    assert not caught.value.may_fit_later
    with pytest.raises(CapacityError, match="n=9"):
        bench.add(range(4), 1, num_choices=9)
    assert not bench.scheduler.has_work


def test_a_sequence_as_long_as_the_pool_runs_alone():
    bench = Bench(8)
    bench.add(range(30), 2)
    for start in range(3):
        bench.add(range(100 * start, 100 * start + 6), 4)
    bench.run(max_steps=60)


def test_order_of_first_tokens_is_order_of_arrival():
    bench = Bench(12)
    for start in range(6):
        bench.add(range(100 * start, 100 * start + 6), 3)
    bench.run(max_steps=100)
    assert bench.first_token_order == sorted(bench.first_token_order)


def test_lower_priority_numbers_run_earlier():
    bench = Bench(64, max_num_seqs=1)
    for priority in (3, 1, 2):
        bench.add([priority] * 5, 1, priority=priority)
    bench.run(max_steps=20)
    assert bench.first_token_order == [2, 3, 1]


def test_the_oldest_is_never_preempted():
    bench = Bench(10)
    oldest = bench.add(range(8), 28)
    for start in range(1, 8):
        bench.add(range(100 * start, 100 * start + 9), 14)
    bench.run(max_steps=400)
    assert oldest.num_preemptions == 0


def test_a_preempted_sequence_is_not_thrown_out_again_and_again():
    bench = Bench(10)
    first = bench.add(range(8), 28)
    second = bench.add(range(100, 128), 4)
    sequences = [first, second]
    while bench.scheduler.has_work:
        if bench.num_steps % 5 == 0 and len(sequences) < 12:
            start = 1000 * len(sequences)
            sequences.append(bench.add(range(start, start + 5), 3))
        bench.step()
        assert bench.num_steps < 300
    assert max(sequence.num_preemptions for sequence in sequences) <= 3
    computed = sum(sequence.num_recomputed_tokens + sequence.num_tokens for sequence in sequences)
    assert computed <= 2 * sum(sequence.num_tokens for sequence in sequences)


def test_a_long_prompt_starts_although_short_ones_keep_arriving():
    bench = Bench(12)
    for start in range(4):
        bench.add(range(100 * start, 100 * start + 6), 4)
    bench.step()
    long = bench.add(range(5000, 5036), 2)
    for step in range(60):
        bench.add(range(10000 + 10 * step, 10006 + 10 * step), 2)
        bench.step()
        if long.num_tokens > long.num_prompt_tokens:
            break
    assert long.num_tokens > long.num_prompt_tokens
    bench.run(max_steps=600)


def test_equal_prompts_are_computed_once():
    bench = Bench(64, budget=16)
    prompt = list(range(41))
    sequences = [bench.add([*prompt, 100 + index], 2) for index in range(6)]
    num_prefill = 0
    while bench.scheduler.has_work:
        num_prefill += sum(e.num_tokens for e in bench.step().entries if e.start < e.sequence.num_prompt_tokens)
    assert num_prefill <= 42 + 5 * 4
    assert all(sequence.num_hit_tokens >= 40 for sequence in sequences[1:])


def test_salted_prompts_share_nothing():
    bench = Bench(64, budget=64)
    first = bench.add(range(20), 1, namespace="a")
    second = bench.add(range(20), 1, namespace="b")
    bench.run(max_steps=5)
    assert (first.num_hit_tokens, second.num_hit_tokens) == (0, 0)


def start_choices(bench, prompt, num_new, num_choices):
    """Computes a prompt and returns the choices that it starts, each with its first token."""
    lead = bench.add(prompt, num_new, num_choices=num_choices)
    bench.scheduler.update(bench.scheduler.schedule())
    children = [Sequence(10 + index, list(lead.token_ids), lead.max_tokens) for index in range(1, num_choices)]
    for child in children:
        bench.scheduler.fork(lead, child)
    for sequence in (lead, *children):
        bench.sample(sequence)
    return [lead, *children]


def test_forked_choices_share_their_prompt():
    bench = Bench(64, budget=64)
    choices = start_choices(bench, range(18), 6, 3)
    assert bench.kv.stats().num_used_blocks == 5
    batch = bench.step()
    assert set(batch.admitted) == set(choices[1:])
    assert len(batch.block_copies) == 2
    assert bench.kv.stats().num_used_blocks == 7
    bench.run(max_steps=20)


def test_what_was_given_room_in_a_step_keeps_it():
    bench = Bench(3)
    first, second, third, last = start_choices(bench, range(4), 3, 4)  # each needs a block; of the last, no block is its own
    batch = bench.step()
    assert (batch.sequences, batch.preempted) == ([first, second], [last, third])
    assert batch.changed_tables == [second, first, second]
    bench.run(max_steps=30)


def test_finishing_in_any_state_gives_everything_back():
    bench = Bench(10)
    running, prefilling, waiting = bench.add(range(4), 9), bench.add(range(100, 116), 9), bench.add(range(200, 230), 2)
    bench.step()
    assert prefilling.num_computed_tokens == 4
    for sequence in (prefilling, waiting, running):
        bench.scheduler.finish(sequence)
        bench.kv.check_invariants()
        assert sequence.status is SequenceStatus.FINISHED
    assert bench.kv.stats().num_used_blocks == 0
    assert not bench.scheduler.has_work


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("groups", [FULL, (LayerGroup((0,), None), LayerGroup((1,), 6))], ids=["full", "windowed"])
def test_random_loads_in_tiny_pools_always_finish(seed, groups):
    source = random.Random(seed)
    bench = Bench(source.randint(5, 14), budget=source.randint(4, 20), max_num_seqs=4, groups=groups, caching=source.random() < 0.7)
    sequences = []
    for _ in range(400):
        if source.random() < 0.25 and len(sequences) < 40:
            base = source.choice([0, 0, 100 * len(sequences)])
            try:
                sequences.append(bench.add(range(base, base + source.randint(1, 40)), source.randint(1, 12)))
            except CapacityError:
                continue
        if source.random() < 0.03 and sequences:
            bench.scheduler.finish(source.choice(sequences))
        if bench.scheduler.has_work:
            assert bench.step().entries, "work waits and nothing runs"
    bench.run(max_steps=3000)


def test_an_unimportant_sequence_never_throws_out_an_important_one():
    bench = Bench(6)
    old = bench.add(range(4), 12)
    bench.step()
    low = bench.add([100], 12, priority=10)
    bench.step()
    high = bench.add(range(200, 203), 12, priority=-5)
    while bench.scheduler.running and bench.scheduler.running[0] is old:  # the oldest alone may take from anybody
        bench.step()
        assert low.sequence_id not in high.preempted_by
    assert low.num_preemptions > 0
    bench.run(max_steps=200)


def test_admission_looks_at_each_sequence_a_bounded_number_of_times(monkeypatch):
    bench = Bench(4000, budget=400, max_num_seqs=200)
    calls = []
    blocks_needed = bench.kv.blocks_needed
    monkeypatch.setattr(bench.kv, "blocks_needed", lambda *sizes: calls.append(sizes) or blocks_needed(*sizes))
    for start in range(100):
        bench.add([1000 * start, 1000 * start + 1], 50)
    calls.clear()
    bench.step()
    assert len(bench.scheduler.running) == 100
    assert len(calls) <= 3 * 100
