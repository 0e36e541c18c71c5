"""One step on the model: arrays, forward pass, logits of the rows that are asked for, sampling.

Owns: the step's arrays, the decoder's buffers, the logits buffer and the order of events within a step. Must not know: requests,
text, who runs next.

Invariants:
1. Blocks are copied before anything of the step is written.
2. Logits exist for one slice of rows at a time: their buffer is bounded whatever the number of sequences or the vocabulary.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from octavo.kernels.operations import Operations
from octavo.models.decoder import DecoderBuffers, logits_bytes
from octavo.models.spec import ModelSpec
from octavo.models.weights import DecoderWeights
from octavo.runner.batch_arrays import BatchArrays
from octavo.runner.forward import Forward
from octavo.runner.kv_check import KVCheck
from octavo.runner.kv_storage import KVStorage
from octavo.runner.sampler import Sampler, TokenLogprobs
from octavo.runner.sampling_request import SamplingRequest
from octavo.runner.step_plan import StepPlan
from octavo.scheduler.batch import ScheduledBatch, ScheduledSequence
from octavo.scheduler.sequence import Sequence


@dataclass
class StepResult:
    """What a step found out.

    Attributes:
        sampled_for: sequences whose last known token was computed, each as often as it starts choices.
        token_ids: the id drawn for each of those, or `NO_TOKEN`.
        logprobs: its log-probabilities where they are wanted.
        prompt_logprobs: by sequence id, entries for the prompt positions that follow the step's tokens.
        embedded: each sequence whose prompt was pooled to its end, with its vector.
    """

    sampled_for: list[Sequence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    embedded: list[tuple[Sequence, np.ndarray]] = field(default_factory=list)


class ModelRunner:
    """Computes scheduled batches with one model and one KV storage.

    Attributes:
        kv_check: watches the storage; None: nobody does.
    """

    def __init__(
        self,
        operations: Operations,
        spec: ModelSpec,
        weights: DecoderWeights,
        storage: KVStorage,
        arrays: BatchArrays,
        buffers: DecoderBuffers,
        forward: Forward,
    ):
        self._operations = operations
        self._spec = spec
        self._weights = weights
        self._storage = storage
        self._arrays = arrays
        self._buffers = buffers
        self._forward = forward
        self.kv_check: KVCheck | None = None
        self._sampler = Sampler(operations)
        self._plan: StepPlan | None = None  # of the last step
        self._logits = np.empty((logits_bytes(spec.vocab_size) // (4 * spec.vocab_size), spec.vocab_size), np.float32)

    def execute(self, batch: ScheduledBatch, requests: Mapping[int, SamplingRequest]) -> StepResult:
        """Computes the batch.

        Args:
            requests: the sampling side of every sequence of the batch, by sequence id.

        Side effects: writes KV, reads and writes the step's arrays.
        """
        if self.kv_check is not None:
            self.kv_check.before_copies(batch.block_copies)
        if batch.block_copies:
            self._operations.copy_blocks(self._storage.blocks, np.array(batch.block_copies, np.int64))
        sizes = self._arrays.fill(batch)
        if self.kv_check is not None:
            self.kv_check.before_forward(batch)
        plan = self._plan
        if plan is None or not plan.is_for(batch):
            plan = self._plan = StepPlan(batch, requests, len(self._logits))
        for index in plan.constrained:
            plan.samplings[index].prepare(batch.sequences[index].token_ids)
        self._forward.run(sizes)
        if self.kv_check is not None:
            self.kv_check.after_forward(batch)
        result = StepResult()
        self._sample(plan, result)
        entries = batch.entries if plan.readers else []
        for index in plan.readers:
            first_row = int(self._arrays.step.cu_seqlens_q[index])
            self._read_prompt(entries[index], plan.samplings[index], first_row, result)
        return result

    @property
    def kv_blocks(self) -> np.ndarray:
        """The KV storage, uint8 ``[num_blocks, block_bytes]``."""
        return self._storage.blocks

    def release_blocks(self, block_ids: Iterable[int]) -> None:
        """Gives the pages of blocks that hold nothing back to the system."""
        released = list(block_ids)
        if self.kv_check is not None:
            self.kv_check.forget(released)
        self._storage.release(released)

    @property
    def hidden_size(self) -> int:
        """Width of a token's hidden state."""
        return self._spec.hidden_size

    @property
    def weights_bytes(self) -> int:
        """Bytes of the packed weights."""
        return self._weights.num_bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the step's arrays, the decoder's buffers and the logits."""
        buffers = self._buffers.bytes_per_token(self._spec) * len(self._buffers.hidden)
        return self._arrays.num_bytes + buffers + self._logits.nbytes

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one KV block."""
        return self._storage.layout.block_bytes

    def _sample(self, plan: StepPlan, result: StepResult) -> None:
        """Draws the plan's tokens, a buffer of logits at a time."""
        last_rows = self._arrays.step.cu_seqlens_q[1 : len(plan.samplings) + 1] - 1
        for part in plan.parts:
            logits = self._compute_logits(last_rows[part.indices])
            token_ids, logprobs = self._sampler.sample(logits, part.draws, part.token_ids)
            result.sampled_for += part.drawn_for
            result.token_ids += token_ids
            result.logprobs += logprobs

    def _compute_logits(self, rows: np.ndarray) -> np.ndarray:
        spec, weights = self._spec, self._weights
        logits = self._logits[: len(rows)]
        self._operations.logits(
            self._buffers.hidden,
            rows,
            weights.final_norm,
            weights.head,
            logits,
            eps=spec.rms_norm_eps,
            soft_cap=spec.final_soft_cap,
        )
        return logits

    # ---- what else is wanted of prompts

    def _read_prompt(self, entry: ScheduledSequence, request: SamplingRequest, first_row: int, result: StepResult) -> None:
        """Pools the hidden states of the entry's tokens, or scores the tokens that follow them; its rows begin at ``first_row``."""
        sequence, pooling = entry.sequence, request.pooling
        if request.params.prompt_logprobs is not None:
            result.prompt_logprobs[sequence.sequence_id] = self._score_prompt(entry, request, first_row)
        if pooling is None:
            return
        first = max(entry.start, pooling.next_position)
        pooling.add(self._final_states(first_row + first - entry.start, first_row + entry.num_tokens))
        if pooling.is_complete:
            result.embedded.append((sequence, pooling.vector()))

    def _final_states(self, begin: int, end: int) -> np.ndarray:
        """Returns the hidden states of the step's rows ``begin .. end`` after the final norm; the next step overwrites them."""
        states = self._buffers.normed[begin : max(begin, end)]
        if len(states):
            hidden = self._buffers.hidden[begin:end]
            self._operations.rms_norm(hidden, self._weights.final_norm, states, eps=self._spec.rms_norm_eps)
        return states

    def _score_prompt(self, entry: ScheduledSequence, request: SamplingRequest, first_row: int) -> list[TokenLogprobs]:
        """Scores the prompt tokens that follow the entry's tokens and were not scored before a preemption."""
        num_top = request.params.prompt_logprobs or 0
        first = max(entry.start, request.num_prompt_logprobs)
        end = min(entry.start + entry.num_tokens, request.num_prompt_tokens - 1)
        scored: list[TokenLogprobs] = []
        for begin in range(first, end, len(self._logits)):
            positions = np.arange(begin, min(begin + len(self._logits), end), dtype=np.int32)
            logits = self._compute_logits(positions + np.int32(first_row - entry.start))
            following = np.array(entry.sequence.token_ids[begin + 1 : begin + 1 + len(positions)], np.int32)
            scored += self._sampler.logprobs(logits, np.arange(len(positions), dtype=np.int32), following, num_top)
        request.num_prompt_logprobs = max(request.num_prompt_logprobs, end)
        return scored
