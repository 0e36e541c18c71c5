"""All that an engine holds, as text.

Owns: the wording, and which request stands in the way when nothing runs. Must not know: why anybody asks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.engine.block_map import describe_blocks
from octavo.engine.request import Choice
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence


@dataclass(frozen=True)
class StateDump:
    """One moment of an engine.

    Attributes:
        offender: the request that should have got on: that of the oldest running sequence, else of the first waiting one.
        text: queues, pool, and who holds which block; several lines.
    """

    offender: str | None
    text: str


def dump_state(scheduler: Scheduler, choices: Mapping[int, Choice]) -> StateDump:
    """Returns the state between two steps. Cost: O(blocks)."""
    lines = [*_queue_lines("running", scheduler.running, choices), *_queue_lines("waiting", scheduler.waiting, choices)]
    lines += _pool_lines(scheduler, choices)
    first = next(iter([*scheduler.running, *scheduler.waiting]), None)
    offender = None if first is None else choices[first.sequence_id].request.request_id
    return StateDump(offender, "\n".join(lines))


def _queue_lines(name: str, sequences: Iterable[Sequence], choices: Mapping[int, Choice]) -> Iterable[str]:
    listed = list(sequences)
    yield f"{name}: {len(listed)} sequences"
    for sequence in listed:
        cache = sequence.cache
        reasons = ", ".join(f"{reason.value}: {count}" for reason, count in sequence.wait_reasons.items())
        yield (
            f"  sequence {sequence.sequence_id} of {choices[sequence.sequence_id].request.request_id}: "
            f"{sequence.num_computed_tokens} of {sequence.num_tokens} tokens computed, at most {sequence.max_tokens}; "
            f"{cache.num_blocks if cache else 0} blocks; preempted {sequence.num_preemptions} times; "
            f"waited for [{reasons}]"
        )


def _pool_lines(scheduler: Scheduler, choices: Mapping[int, Choice]) -> Iterable[str]:
    memory = scheduler.kv.stats()
    yield (
        f"pool: {memory.num_blocks} blocks, {memory.num_free_blocks} free, {memory.num_cached_blocks} cached, "
        f"{memory.num_used_blocks} used, {memory.num_committed_blocks} with pages; admitting: {scheduler.is_admitting}"
    )
    for block in describe_blocks(scheduler.kv, choices.values()).blocks:
        holders = [f"{holder.request_id}/{holder.sequence_id} group {holder.group}" for holder in block.holders]
        holders += ["a transfer"] * (block.ref_count - len(holders))
        yield f"  block {block.block_id}: {block.state}, {block.num_tokens} tokens, held by [{', '.join(holders)}]"
