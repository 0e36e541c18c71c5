"""How many blocks sequences save that come from one prompt.

Owns: the lives of one request's sequences, on the real memory. Must not know: other requests, time.
"""

import random
from dataclasses import dataclass

from octavo.memory.kv_manager import KVManager
from octavo.memory.layer_groups import LayerGroup
from octavo.memory.sequence_cache import SequenceCache

ONE_GROUP = (LayerGroup((0,), None),)


@dataclass
class BlockCounts:
    """Blocks added up over the steps of answers.

    Attributes:
        unshared: entries of all block tables: blocks that would be held if nothing were shared.
        held: blocks that are.
    """

    unshared: int = 0
    held: int = 0

    @property
    def saved_ratio(self) -> float:
        """Blocks saved by sharing, of those held without it."""
        return 1 - self.held / self.unshared


def count_blocks(
    counts: BlockCounts, num_prompt_tokens: int, num_output_tokens: int, *, width: int, block_size: int, beams: random.Random | None
) -> None:
    """Adds the blocks of one request with ``width`` answers of equal length, over all steps of these.

    Args:
        beams: None = the answers go apart after the prompt (parallel sampling); else they are the beams of a beam search, and each
            step this draws, for each beam, the one that it continues, all with equal chances.
    """
    num_tokens = num_prompt_tokens + num_output_tokens
    num_blocks = (width + 1) * -(-num_tokens // block_size)
    kv = KVManager(num_blocks=num_blocks, block_size=block_size, groups=ONE_GROUP, enable_prefix_caching=False)
    prompt = kv.open(range(num_prompt_tokens), (), None)
    kv.allocate(prompt, num_prompt_tokens)
    kv.commit(prompt, range(num_prompt_tokens), num_prompt_tokens)
    caches = [prompt, *(kv.fork(prompt) for _ in range(width - 1))]
    for length in range(num_prompt_tokens + 1, num_tokens + 1):
        if beams is not None:
            caches = _continue_beams(kv, caches, beams)
        for cache in caches:
            has_room = kv.allocate(cache, length)
            assert has_room, "the pool holds every sequence unshared"
            kv.commit(cache, range(length), length)
        kv.drain_copies()
        counts.unshared += sum(cache.num_blocks for cache in caches)
        counts.held += kv.capacity - kv.num_free_blocks


def _continue_beams(kv: KVManager, caches: list[SequenceCache], beams: random.Random) -> list[SequenceCache]:
    """Returns the next step's sequences: each a continuation of a drawn one; those not drawn end."""
    parents = [beams.randrange(len(caches)) for _ in caches]
    children = [kv.fork(caches[parent]) for parent in parents]
    for cache in caches:
        kv.free(cache, ())
    return children
