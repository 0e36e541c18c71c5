"""octavo.simulator.sharing: what sequences of one prompt save, counted by hand."""

import random

import pytest

from octavo.simulator.sharing import BlockCounts, count_blocks


def counted(num_prompt_tokens: int, num_output_tokens: int, width: int, beams: random.Random | None = None) -> BlockCounts:
    """Returns the counts of one request with blocks of 4 tokens."""
    counts = BlockCounts()
    count_blocks(counts, num_prompt_tokens, num_output_tokens, width=width, block_size=4, beams=beams)
    return counts


def test_whole_blocks_of_the_prompt_are_shared() -> None:
    # Two blocks of prompt; each of three answers has a third one during two steps.
    assert counted(8, 2, 3) == BlockCounts(unshared=2 * 3 * 3, held=2 * (2 + 3))


def test_prompts_partial_block_is_copied_by_the_first_write() -> None:
    assert counted(6, 2, 2) == BlockCounts(unshared=2 * 2 * 2, held=2 * (1 + 2))


def test_one_answer_saves_nothing() -> None:
    assert counted(9, 20, 1).saved_ratio == 0
    assert counted(9, 20, 1, random.Random(0)).saved_ratio == 0


@pytest.mark.parametrize("width", [2, 4, 6])
def test_beams_share_more_than_samples_and_less_than_everything(width: int) -> None:
    samples, beams = counted(9, 60, width), counted(9, 60, width, random.Random(0))
    assert samples.unshared == beams.unshared
    assert samples.saved_ratio < beams.saved_ratio < 1 - 1 / width


def test_counts_add_up() -> None:
    counts = BlockCounts()
    for _ in range(2):
        count_blocks(counts, 8, 2, width=3, block_size=4, beams=None)
    assert counts == BlockCounts(unshared=36, held=20)
