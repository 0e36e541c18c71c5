"""octavo.simulator.reserving_memory and memory_split: what is reserved, and what the slots count as."""

import pytest

from octavo.errors import ConfigError
from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.simulator.memories import ALLOCATORS, make_memory
from octavo.simulator.memory_split import MeanSplit, MemorySplit, paged_split
from octavo.simulator.reserving_memory import RESERVING, reserving_memory
from octavo.simulator.step_time import OPT_13B
from octavo.simulator.tokens import Tokens
from octavo.simulator.workload import Request


def tokens(num_prompt_tokens: int, num_output_tokens: int) -> Tokens:
    """Returns the tokens of a request of these lengths, before its first step."""
    return Tokens(Request(0.0, (range(num_prompt_tokens),), range(1000, 1000 + num_output_tokens), 0))


def opened(memory, num_prompt_tokens: int, num_output_tokens: int):
    """Returns a sequence whose prompt is computed."""
    held = tokens(num_prompt_tokens, num_output_tokens)
    reservation = memory.open(held, (), None)
    assert memory.allocate(reservation, num_prompt_tokens)
    memory.commit(reservation, held, num_prompt_tokens)
    return reservation


def test_tokens_know_their_end() -> None:
    grown = tokens(3, 2)
    assert not grown.grow()
    assert grown.grow()
    assert grown == [0, 1, 2, 1000, 1001]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("maximum", MemorySplit(10, 25, 93, 128)),
        ("power-of-two", MemorySplit(10, 25, 7, 214)),
        ("oracle", MemorySplit(10, 25, 0, 221)),
        ("compacting", MemorySplit(10, 25, 7, 214)),
    ],
)
def test_split_of_one_sequence(name: str, split: MemorySplit) -> None:
    memory = reserving_memory(name, 256, 128)
    opened(memory, 10, 25)
    assert memory.split() == split


@pytest.mark.parametrize("name", RESERVING)
def test_everything_comes_back(name: str) -> None:
    memory = reserving_memory(name, 256, 128)
    reservations = [opened(memory, 5, 20), opened(memory, 7, 3)]
    assert memory.num_free_blocks < 256
    for reservation in reservations:
        memory.free(reservation, reservation.tokens)
    assert memory.num_free_blocks == 256
    assert memory.split() == MemorySplit(0, 0, 0, 256)


def test_refused_run_changes_nothing() -> None:
    memory = reserving_memory("maximum", 128, 128)
    opened(memory, 1, 1)
    before = memory.split()
    refused = memory.open(tokens(1, 1), (), None)
    assert not memory.allocate(refused, 1)
    memory.free(refused, refused.tokens)
    assert memory.split() == before


@pytest.mark.parametrize("name", RESERVING)
def test_memory_too_small_for_the_longest_sequence_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no contiguous room for one sequence of 129"):
        reserving_memory(name, 128, 129)


def test_paged_split_counts_the_last_blocks_rest() -> None:
    kv = KVManager(num_blocks=8, block_size=4, groups=[LayerGroup((0,), None)])
    token_ids = list(range(6))
    cache = kv.open(token_ids, (), None)
    assert kv.allocate(cache, 6)
    kv.commit(cache, token_ids, 6)
    assert paged_split(kv) == MemorySplit(6, 0, 2, 24)


def test_mean_split_weighs_by_time() -> None:
    mean = MeanSplit()
    assert mean.shares() is None
    mean.add(MemorySplit(10, 0, 0, 0), 3.0)
    mean.add(MemorySplit(0, 0, 0, 10), 1.0)
    assert mean.shares() == {"tokens": 0.75, "reservation": 0.0, "internal": 0.0, "external": 0.25}


def test_the_papers_memory_holds_the_papers_slots() -> None:
    memories = {
        name: make_memory(name, OPT_13B, kv_bytes=12 * 2**30, block_size=16, max_model_len=2048, prefix_caching=False)
        for name in ALLOCATORS
    }
    assert memories.pop("paged").capacity == 983
    assert {memory.capacity for memory in memories.values()} == {15728}
