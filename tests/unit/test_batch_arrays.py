"""`octavo.runner.batch_arrays`: the arrays say of every token what its sequence says, whatever the step is made of."""

import random

import pytest

from octavo.kernels.step_arrays import StepArrays
from octavo.memory.block_table import BlockTable
from octavo.memory.sequence_cache import SequenceCache
from octavo.runner.batch_arrays import BatchArrays
from octavo.scheduler.batch import ScheduledBatch
from octavo.scheduler.sequence import Sequence

BLOCK_SIZE, NUM_ROWS, NUM_GROUPS, MAX_BLOCKS = 16, 8, 2, 8
LARGE = 2**28  # a slot of such a block is beyond 32 bits


def make_sequence(source, row):
    """Returns a running sequence with as many blocks as its tokens need, in tables of random ids."""
    sequence = Sequence(row, [source.randrange(1000) for _ in range(source.randrange(1, MAX_BLOCKS * BLOCK_SIZE))], 4096)
    num_blocks = -(-sequence.num_tokens // BLOCK_SIZE)
    tables = [BlockTable([source.randrange(LARGE, LARGE + 99) for _ in range(num_blocks)], 0) for _ in range(NUM_GROUPS)]
    sequence.row, sequence.cache = row, SequenceCache((), 0, tuple(tables), registers=False)
    return sequence


def batch_of(entries, changed_tables):
    """Returns a batch of sequences, each with its start and its number of tokens."""
    batch = ScheduledBatch(changed_tables=changed_tables)
    for entry in entries:
        batch.add(*entry)
    return batch


def check(step, batch):
    """Compares the arrays with what each entry's sequence says."""
    place = 0
    for index, entry in enumerate(batch.entries):
        sequence = entry.sequence
        assert step.cu_seqlens_q[index] == place and step.table_rows[index] == sequence.row
        assert step.context_lens[index] == entry.start + entry.num_tokens
        for position in range(entry.start, entry.start + entry.num_tokens):
            assert (step.token_ids[place], step.positions[place]) == (sequence.token_ids[position], position)
            for group, table in enumerate(sequence.cache.tables):
                slot = table.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                assert step.slot_mapping[group, place] == slot
            place += 1
    assert step.cu_seqlens_q[len(batch.sequences)] == place


@pytest.mark.parametrize("only_decodes", [True, False])
def test_arrays_of_steps_of_every_kind(only_decodes):
    source = random.Random(5)
    step = StepArrays.allocate(max_tokens=1024, max_seqs=NUM_ROWS, num_groups=NUM_GROUPS, max_blocks_per_seq=MAX_BLOCKS)
    arrays = BatchArrays(step, BLOCK_SIZE)
    sequences = [make_sequence(source, row) for row in range(NUM_ROWS)]
    for number in range(20):
        chosen = source.sample(sequences, source.randrange(1, NUM_ROWS + 1))
        starts = [source.randrange(sequence.num_tokens) for sequence in chosen]
        counts = [
            1 if only_decodes else source.randrange(1, sequence.num_tokens - start + 1)
            for sequence, start in zip(chosen, starts, strict=True)
        ]
        batch = batch_of(zip(chosen, starts, counts, strict=True), sequences if number == 0 else [])
        sizes = arrays.fill(batch)
        assert (sizes.num_tokens, sizes.num_seqs) == (sum(counts), len(chosen))
        check(step, batch)


def test_a_sequence_that_comes_back_in_another_row_is_found_there():
    source = random.Random(7)
    step = StepArrays.allocate(max_tokens=64, max_seqs=NUM_ROWS, num_groups=NUM_GROUPS, max_blocks_per_seq=MAX_BLOCKS)
    arrays = BatchArrays(step, BLOCK_SIZE)
    sequences = [make_sequence(source, row) for row in range(3)]
    entries = [(sequence, sequence.num_tokens - 1, 1) for sequence in sequences]
    arrays.fill(batch_of(entries, sequences))
    back = sequences[1]
    back.row, back.cache.num_mirrored_blocks = 5, 0
    batch = batch_of(entries, [back])
    batch.admitted.append(back)
    arrays.fill(batch)
    check(step, batch)


def test_a_block_that_is_replaced_or_added_is_seen_in_the_next_step():
    sequence = make_sequence(random.Random(6), 3)
    step = StepArrays.allocate(max_tokens=64, max_seqs=NUM_ROWS, num_groups=NUM_GROUPS, max_blocks_per_seq=MAX_BLOCKS)
    arrays = BatchArrays(step, BLOCK_SIZE)
    batch = batch_of([(sequence, 0, 1)], [sequence])
    arrays.fill(batch)
    for table in sequence.cache.tables:
        table.replace(0, 7)
        table.append(11)
    sequence.cache.num_mirrored_blocks = 0
    arrays.fill(batch)
    check(step, batch)
    length = sequence.cache.table_length
    assert (step.block_tables[:, 3, :length] == [table.block_ids for table in sequence.cache.tables]).all()
