"""How long a step takes: the roofline.

Owns: what a model costs, what a machine can do, and the time that follows. Must not know: why a batch is as it is.

A step reads the weights once and the K/V that its queries see, and multiplies. It takes as long as the slower of the two, plus what
the engine spends on a step and on each sequence in it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.kv_layout import TOKENS_PER_GRANULE, KVLayout
from octavo.models.spec import ModelSpec
from octavo.scheduler.batch import ScheduledBatch


@dataclass(frozen=True)
class ModelCosts:
    """What computing and remembering tokens costs.

    Attributes:
        num_weights: weights that every token is multiplied with.
        weight_bytes: of all of them.
        layer_kv_bytes: K and V of one token in one layer.
        windows: per layer, the sliding window in tokens, or None for full attention.
        q_width: elements of all query heads of one token.
        max_model_len: tokens of the longest sequence.
        attention_parity_tokens: as `ModelSpec.attention_parity_tokens`.
    """

    num_weights: int
    weight_bytes: float
    layer_kv_bytes: int
    windows: tuple[int | None, ...]
    q_width: int
    max_model_len: int
    attention_parity_tokens: int | None

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return self.layer_kv_bytes * len(self.windows)


# Kwon et al., SOSP 2023, section 3 and Table 1: 40 layers of width 5120, 26 GB of weights in fp16, 800 KiB of K/V per token.
OPT_13B = ModelCosts(13_000_000_000, 26e9, 2 * 5120 * 2, (None,) * 40, 5120, 2048, 30720)


def model_costs(spec: ModelSpec, *, weight_bits: float, kv_dtype: str) -> ModelCosts:
    """Returns the costs of a model whose weights take ``weight_bits`` bits each."""
    attention = spec.hidden_size * (spec.qkv_width + spec.q_width)
    layer = attention + 3 * spec.hidden_size * spec.intermediate_size
    num_weights = spec.num_layers * layer + spec.vocab_size * spec.hidden_size
    granule = KVLayout(kv_dtype, TOKENS_PER_GRANULE, 1, spec.num_kv_heads, spec.head_dim)
    return ModelCosts(
        num_weights=num_weights,
        weight_bytes=num_weights * weight_bits / 8,
        layer_kv_bytes=granule.layer_bytes // TOKENS_PER_GRANULE,
        windows=spec.windows,
        q_width=spec.q_width,
        max_model_len=spec.max_position,
        attention_parity_tokens=spec.attention_parity_tokens,
    )


@dataclass(frozen=True)
class MachineRates:
    """What a machine reaches, and what the engine on it adds.

    Attributes:
        bytes_per_s: reading memory.
        flop_per_s: multiplying and adding.
        step_overhead_s: added to every step.
        sequence_overhead_s: added to a step for each sequence in it.
    """

    bytes_per_s: float
    flop_per_s: float
    step_overhead_s: float = 0.0
    sequence_overhead_s: float = 0.0


# The PagedAttention paper's machine and system. The data sheet says 1,555 GB/s and 312 TFLOP/s; the shares of them that are
# reached and the overheads of an engine written in Python are assumptions, not measurements.
A100_40GB = MachineRates(0.8 * 1555e9, 0.5 * 312e12, step_overhead_s=0.012, sequence_overhead_s=0.0003)


class StepTime(Protocol):
    """How long steps take."""

    def seconds(self, batch: ScheduledBatch, num_moved_slots: int = 0) -> float:
        """Returns the duration of a step.

        Args:
            num_moved_slots: slots whose K/V is first copied to another place.
        """


class Roofline:
    """The time of steps of one model on one machine, as the rates allow it at best."""

    def __init__(self, model: ModelCosts, machine: MachineRates):
        self._model = model
        self._machine = machine
        self._layers = tuple(Counter(model.windows).items())  # (window, layers that have it)

    def seconds(self, batch: ScheduledBatch, num_moved_slots: int = 0) -> float:
        """See `StepTime`."""
        num_read = num_attended = 0  # (token, layer) pairs whose K/V is read; (query, key, layer) triples
        for window, num_layers in self._layers:
            for start, count in zip(batch.starts, batch.counts, strict=True):
                context_len = start + count
                num_seen = context_len if window is None else min(context_len, window + count - 1)
                num_read += num_layers * num_seen
                num_attended += num_layers * num_seen * count
        model, machine = self._model, self._machine
        num_bytes = model.weight_bytes + num_read * model.layer_kv_bytes + 2 * num_moved_slots * model.kv_bytes_per_token
        flop = 2 * model.num_weights * batch.num_tokens + 4 * model.q_width * num_attended
        computing_s = max(num_bytes / machine.bytes_per_s, flop / machine.flop_per_s)
        return computing_s + machine.step_overhead_s + machine.sequence_overhead_s * len(batch.sequences)
