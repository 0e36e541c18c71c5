"""How many bytes a model's weights take, and how many of them a decode step reads.

Owns: sums over tensors or parameters. Must not know: files, machines.

Invariants:
1. A size is exact, from tensor headers, or computed, from parameters and a format; it says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import CheckpointError
from octavo.planner.formats import StorageFormat, weight_format
from octavo.planner.plan_spec import PlanSpec

EMBEDDING_NAMES = ("embed_tokens.weight", "token_embd.weight", "wte.weight", "embeddings.weight")
HEAD_NAMES = ("lm_head.weight", "output.weight")
UNREAD_NAMES = ("vision", "multi_modal", "audio", "mtp.")  # parts that decoding text does not pass through


@dataclass(frozen=True)
class WeightSizes:
    """Bytes of a model's weights.

    Attributes:
        expert_bytes: of all routed experts.
        unread_bytes: of what a decode step does not read, as an embedding table beside a head of its own.
        largest_tensor_bytes: of the largest piece that loading handles at once.
        is_exact: whether headers were summed.
        description: in words, where the figure comes from.
    """

    total_bytes: int
    expert_bytes: int
    unread_bytes: int
    largest_tensor_bytes: int
    is_exact: bool
    description: str

    def bytes_read(self, spec: PlanSpec, num_sequences: int) -> int:
        """Returns the weight bytes that one decode step of a batch reads, if every token picks its experts independently."""
        always = self.total_bytes - self.expert_bytes - self.unread_bytes
        if not spec.num_experts:
            return always
        touched = 1 - (1 - spec.experts_per_token / spec.num_experts) ** num_sequences
        return always + int(self.expert_bytes * touched)


def sizes_from_headers(tensors: Mapping[str, int]) -> WeightSizes:
    """Returns the sizes that the tensors' lengths in bytes add up to."""
    embedding = sum(size for name, size in tensors.items() if name.endswith(EMBEDDING_NAMES))
    has_head = any(name.endswith(HEAD_NAMES) for name in tensors)
    elsewhere = sum(size for name, size in tensors.items() if any(part in name for part in UNREAD_NAMES))
    return WeightSizes(
        total_bytes=sum(tensors.values()),
        expert_bytes=sum(size for name, size in tensors.items() if _is_routed_expert(name)),
        unread_bytes=elsewhere + (embedding if has_head else 0),
        largest_tensor_bytes=max(tensors.values()),
        is_exact=True,
        description=f"exact, from the headers of {len(tensors):,} tensors",
    )


def _is_routed_expert(name: str) -> bool:
    return ".experts." in name or "_exps." in name


def sizes_from_parameters(spec: PlanSpec, format_name: str) -> WeightSizes:
    """Returns the sizes that a model's parameters take in a format.

    Raises:
        CheckpointError: only a checkpoint's headers tell the parameters.
    """
    parameters, chosen = spec.parameters, weight_format(format_name)
    if parameters is None:
        raise CheckpointError(
            f"the weights of {spec.architecture} cannot be computed from its configuration",
            hint="give a folder or a hub id whose safetensors headers can be read, or their size with --weight-bytes",
        )

    def size(part: str) -> int:
        storage: StorageFormat = chosen.storage if part in chosen.parts else chosen.rest
        return storage.num_bytes(getattr(parameters, part))

    parts = ("embedding", "head", "attention", "mlp", "experts", "other")
    return WeightSizes(
        total_bytes=sum(map(size, parts)),
        expert_bytes=size("experts"),
        unread_bytes=size("embedding") if parameters.head else 0,
        largest_tensor_bytes=size("embedding"),
        is_exact=False,
        description=f"computed: {parameters.total:,} parameters in {format_name}",
    )


def sizes_from_total(total_bytes: int) -> WeightSizes:
    """Returns the sizes of weights of which only the sum is known: all of it is read in every step."""
    return WeightSizes(total_bytes, 0, 0, 0, is_exact=False, description="as given")
