"""What this engine's process takes beside weights and KV: the process itself, and the buffers that a step works in.

Owns: both formulas. Must not know: budgets, machines.

`benchmarks/plan_vs_reality.py` compares them with running engines.
"""

from octavo.kernels.step_arrays import StepArrays
from octavo.memory.layer_groups import group_layers
from octavo.models.decoder import DecoderBuffers, logits_bytes
from octavo.models.spec import ModelSpec

# Measured as resident memory beside weights and buffers. A started server with a tokenizer of 49,152 words holds 101 MiB, with one
# of 262,144 words 182 MiB: 82 MiB and 400 bytes for each word. Steps add 5 MiB: what threads keep for packing rows, and requests.
LIBRARIES_BYTES = (82 + 5) * 2**20
WORD_BYTES = 400


def process_bytes(vocab_size: int) -> int:
    """Returns what a started server holds without weights, KV and workspace."""
    return LIBRARIES_BYTES + WORD_BYTES * vocab_size


def workspace_bytes(
    spec: ModelSpec, *, step_tokens: int, max_num_seqs: int, max_blocks_per_seq: int, num_users: int | None = None
) -> int:
    """Returns what a runner's arrays and buffers take.

    Args:
        max_blocks_per_seq: of one layer group.
        num_users: sequences that really get a token in one step: of the logits no more rows than these are ever written, so that
            the system never gives the rest any memory. None = all rows.
    """
    arrays = StepArrays.bytes_of(
        max_tokens=step_tokens,
        max_seqs=max_num_seqs,
        num_groups=len(group_layers(spec.windows)),
        max_blocks_per_seq=max_blocks_per_seq,
    )
    logits = logits_bytes(spec.vocab_size)
    if num_users is not None:
        logits = min(logits, 4 * num_users * spec.vocab_size)
    return arrays + DecoderBuffers.bytes_per_token(spec) * step_tokens + logits
