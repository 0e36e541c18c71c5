"""The C++ backend: the operations on all cores, called one by one or recorded into a program.

Owns: the choice of instruction set and number of threads, and the passage of arrays to `octavo._cpu`. Must not know: models,
sequences, who fills the arrays.

Invariants:
1. `CpuOperations` and `CpuProgram` have the same methods and compute the same bits.
2. A program keeps every array alive that it was recorded with.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo import _cpu
from octavo.errors import ConfigError
from octavo.kernels.host_tensor import HostTensor
from octavo.kernels.kv_layout import KVLayer
from octavo.kernels.operations import PackedWeight
from octavo.kernels.step_arrays import StepArrays

KERNELS_PATH: str = _cpu.__file__  # the compiled kernels: another build may round differently


def instruction_sets() -> list[str]:
    """Returns the names of the instruction sets that this processor and this build can run.

    The best one is first, and is taken where none is named; at the end are those that are used by name only.
    """
    return _cpu.instruction_sets()


@dataclass(frozen=True)
class MachineRates:
    """What the machine can do at best right now, all threads together.

    Attributes:
        read_gb_per_s: reading memory.
        fp32_gflop_per_s: products and sums of float32.
        bf16_gflop_per_s: products of bf16 summed in float32; 0 where the instruction set has none.
        int8_gop_per_s: products of int8 summed in int32; 0 where the instruction set has none.
    """

    read_gb_per_s: float
    fp32_gflop_per_s: float
    bf16_gflop_per_s: float
    int8_gop_per_s: float


def probe_machine(num_threads: int, *, read_bytes: int = 512 * 2**20) -> MachineRates:
    """Measures for about half a second, in the best instruction set; ``read_bytes`` of fresh memory should exceed every cache."""
    rates = _cpu.probe_machine(instruction_sets()[0], num_threads, read_bytes)
    return MachineRates(rates.read_bytes, rates.fp32_operations, rates.bf16_operations, rates.int8_operations)


@dataclass(frozen=True)
class OperationTime:
    """How often an operation ran, and the seconds of all its runs together, until the last thread was done."""

    num_calls: int
    seconds: float


class _RecordableOperations:
    """The operations of a forward pass, sent to an executor that runs or records them."""

    def __init__(self, executor: _cpu.Executor):
        self._executor = executor

    def embed(self, token_ids: np.ndarray, table: PackedWeight, out: np.ndarray, *, scale: float = 1.0) -> None:
        """See `Operations.embed`."""
        _cpu.embed(self._executor, token_ids, table, out, scale)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, out: np.ndarray, *, eps: float, accumulate: bool = False) -> None:
        """See `Operations.rms_norm`."""
        _cpu.rms_norm(self._executor, x, weight, out, eps, accumulate, None)

    def linear(
        self, x: np.ndarray, weight: PackedWeight, out: np.ndarray, *, bias: np.ndarray | None = None, accumulate: bool = False
    ) -> None:
        """See `Operations.linear`."""
        _cpu.linear(self._executor, x, weight, out, bias, accumulate)

    def rotary(self, positions: np.ndarray, inverse_frequencies: np.ndarray, out: np.ndarray, *, scale: float = 1.0) -> None:
        """See `Operations.rotary`."""
        _cpu.rotary(self._executor, positions, inverse_frequencies, out, scale)

    def rope_and_store(
        self,
        qkv: np.ndarray,
        rotation: np.ndarray,
        slot_mapping: np.ndarray,
        kv: KVLayer,
        *,
        num_q_heads: int,
        q_norm: np.ndarray | None = None,
        k_norm: np.ndarray | None = None,
        eps: float = 0.0,
    ) -> None:
        """See `Operations.rope_and_store`."""
        _cpu.rope_and_store(self._executor, qkv, rotation, slot_mapping, kv, num_q_heads, q_norm, k_norm, eps)

    def paged_attention(
        self,
        qkv: np.ndarray,
        kv: KVLayer,
        step: StepArrays,
        group: int,
        out: np.ndarray,
        *,
        num_q_heads: int,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float = 0.0,
        sinks: np.ndarray | None = None,
    ) -> None:
        """See `Operations.paged_attention`."""
        _cpu.paged_attention(self._executor, qkv, kv, step, group, out, num_q_heads, scale, sliding_window or 0, soft_cap, sinks)

    def gated_activation(self, gate_up: np.ndarray, out: np.ndarray, *, activation: str) -> None:
        """See `Operations.gated_activation`."""
        _cpu.gated_activation(self._executor, gate_up, out, activation)


class CpuOperations(_RecordableOperations):
    """Implements `Operations`: runs each operation at once, on exactly the rows that it is given.

    Args:
        num_threads: threads that work together, the caller's included.
        instruction_set: one of `instruction_sets()`; None takes the environment's ``OCTAVO_CPU_ISA``, or else the first.

    Raises:
        ConfigError: the instruction set is not available here, ``num_threads`` < 1, or the system does not start so many.
    """

    def __init__(self, num_threads: int, *, instruction_set: str | None = None):
        self.instruction_set = instruction_set or os.environ.get("OCTAVO_CPU_ISA") or instruction_sets()[0]
        try:
            executor = _cpu.EagerExecutor(num_threads, self.instruction_set)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(str(error)) from error
        super().__init__(executor)

    def record(self) -> "CpuProgram":
        """Returns an empty program that will run on this object's threads."""
        return CpuProgram(_cpu.Program(self._executor))

    def start_profile(self) -> None:
        """Times every operation from now on, those of recorded programs too; forgets earlier times."""
        self._executor.start_profile()

    def profile(self) -> dict[str, OperationTime]:
        """Returns the times since `start_profile` by operation; products have their shape in the name."""
        return {name: OperationTime(time.num_calls, time.seconds) for name, time in self._executor.profile().items()}

    def pack_weight(self, parts: Sequence[HostTensor], weight_format: str) -> PackedWeight:
        """See `Operations.pack_weight`."""
        return _cpu.pack_weight(self._executor, list(parts), weight_format)

    def logits(
        self,
        hidden: np.ndarray,
        rows: np.ndarray,
        norm_weight: np.ndarray,
        head: PackedWeight,
        out: np.ndarray,
        *,
        eps: float,
        soft_cap: float = 0.0,
    ) -> None:
        """See `Operations.logits`."""
        normed = np.empty((len(rows), hidden.shape[1]), np.float32)
        _cpu.rms_norm(self._executor, hidden, norm_weight, normed, eps, False, rows)
        _cpu.linear(self._executor, normed, head, out, None, False)
        if soft_cap > 0:
            _cpu.soft_cap(self._executor, out, soft_cap)

    def copy_blocks(self, storage: np.ndarray, pairs: np.ndarray) -> None:
        """See `Operations.copy_blocks`."""
        _cpu.copy_blocks(self._executor, storage, pairs)

    def adjust_logits(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, repetition: np.ndarray, additive: np.ndarray
    ) -> None:
        """See `Operations.adjust_logits`."""
        _cpu.adjust_logits(self._executor, logits, rows, token_ids, repetition, additive)

    def mask_logits(self, logits: np.ndarray, rows: np.ndarray, bitmasks: np.ndarray) -> None:
        """See `Operations.mask_logits`."""
        _cpu.mask_logits(self._executor, logits, rows, bitmasks)

    def sample(self, logits: np.ndarray, rows: np.ndarray, parameters: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
        """See `Operations.sample`."""
        _cpu.sample(self._executor, logits, rows, parameters, keys, out)

    def logprobs(
        self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, top_ids: np.ndarray, top_logprobs: np.ndarray
    ) -> None:
        """See `Operations.logprobs`."""
        _cpu.logprobs(self._executor, logits, rows, chosen, top_ids, top_logprobs)

    def chosen_ranks(self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, out: np.ndarray) -> None:
        """See `Operations.chosen_ranks`."""
        _cpu.chosen_ranks(self._executor, logits, rows, chosen, out)


class CpuProgram(_RecordableOperations):
    """The operations of a forward pass, recorded once over full-size arrays and run for every step."""

    def __init__(self, program: _cpu.Program):
        super().__init__(program)

    def run(self, num_tokens: int, num_seqs: int) -> None:
        """Runs the recorded operations on the first ``num_tokens`` rows and ``num_seqs`` sequences.

        Raises:
            ValueError: a number is negative or exceeds what the arrays hold.
        """
        self._executor.run(num_tokens, num_seqs)
