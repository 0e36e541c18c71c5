"""From logits to tokens: adjusts, masks, draws and reports log-probabilities for the sampled rows of a step.

Owns: the order adjust → mask → draw, and the raw distribution that log-probabilities are taken from. Must not know: where logits
come from, text.

Invariants:
1. A draw is a function of the row's logits and of (seed, choice index, position) alone.
2. Log-probabilities are of the raw distribution, before penalties, biases, masks and temperature.
"""

from dataclasses import dataclass

import numpy as np

from octavo.kernels.operations import Operations
from octavo.runner.sampling_request import SamplingRequest

PARAMETERS_PER_DRAW = 4  # temperature, top_k, top_p, min_p
KEYS_PER_DRAW = 3  # seed, choice index, position


@dataclass(frozen=True)
class SampledRow:
    """One row of logits to draw from.

    Attributes:
        token_ids: the sequence's tokens so far; the draw's position is their number.
        num_draws: choices drawn from this row: 1, or n when a prompt was just computed.
    """

    request: SamplingRequest
    token_ids: list[int]
    num_draws: int = 1


@dataclass(frozen=True)
class TokenLogprobs:
    """The chosen token and the most likely ones.

    Attributes:
        token_ids: the chosen id, then the most likely ids, best first.
        logprobs: theirs.
        chosen_rank: 1 when the chosen token is the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    chosen_rank: int


@dataclass(frozen=True)
class SampledToken:
    """One drawn token."""

    token_id: int
    logprobs: TokenLogprobs | None


class Sampler:
    """Draws tokens with the operations of one backend."""

    def __init__(self, operations: Operations):
        self._operations = operations

    def sample(self, logits: np.ndarray, sampled: list[SampledRow]) -> list[list[SampledToken]]:
        """Draws for each row of ``logits`` (float32 ``[len(sampled), vocab]``, overwritten) its number of tokens."""
        raw = logits
        changed = [not row.request.is_plain or row.request.token_bitmask is not None for row in sampled]
        if any(is_changed and row.request.params.logprobs is not None for is_changed, row in zip(changed, sampled, strict=True)):
            raw = logits.copy()
        if any(changed):
            self._adjust(logits, sampled)
            self._mask(logits, sampled)
        rows = np.repeat(np.arange(len(sampled), dtype=np.int32), [row.num_draws for row in sampled])
        token_ids = self._draw(logits, sampled, rows)
        reported = self._report(raw, sampled, rows, token_ids)
        tokens = [SampledToken(token, logprobs) for token, logprobs in zip(token_ids.tolist(), reported, strict=True)]
        if len(tokens) == len(sampled):
            return [[token] for token in tokens]
        drawn = iter(tokens)
        return [[next(drawn) for _ in range(row.num_draws)] for row in sampled]

    def logprobs(self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, num_top: int) -> list[TokenLogprobs]:
        """Returns what the raw distributions ``logits[rows]`` say of ``chosen`` and of their ``num_top`` most likely tokens."""
        num_top = min(num_top, logits.shape[1])
        ids = np.empty((len(rows), 1 + num_top), np.int32)
        values = np.empty((len(rows), 1 + num_top), np.float32)
        ranks = np.empty(len(rows), np.int32)
        self._operations.logprobs(logits, rows, chosen, ids, values)
        self._operations.chosen_ranks(logits, rows, chosen, ranks)
        return [TokenLogprobs(*entry) for entry in zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True)]

    def _adjust(self, logits: np.ndarray, sampled: list[SampledRow]) -> None:
        rows, tokens, divisors, addends = [], [], [], []
        for index, row in enumerate(sampled):
            if row.request.is_plain:
                continue
            for token, (divisor, addend) in row.request.adjustments(row.token_ids).items():
                rows.append(index)
                tokens.append(token)
                divisors.append(divisor)
                addends.append(addend)
        if rows:
            self._operations.adjust_logits(
                logits,
                np.array(rows, np.int32),
                np.array(tokens, np.int32),
                np.array(divisors, np.float32),
                np.array(addends, np.float32),
            )

    def _mask(self, logits: np.ndarray, sampled: list[SampledRow]) -> None:
        masks = {index: row.request.token_bitmask for index, row in enumerate(sampled) if row.request.token_bitmask is not None}
        if masks:
            self._operations.mask_logits(logits, np.array(list(masks), np.int32), np.stack(list(masks.values())))

    def _draw(self, logits: np.ndarray, sampled: list[SampledRow], rows: np.ndarray) -> np.ndarray:
        parameters = np.empty((len(rows), PARAMETERS_PER_DRAW), np.float32)
        keys = np.empty((len(rows), KEYS_PER_DRAW), np.uint64)
        parameters[:] = np.repeat([row.request.sampling_parameters for row in sampled], [row.num_draws for row in sampled], axis=0)
        keys[:] = [
            (row.request.seed, row.request.choice_index + draw, len(row.token_ids)) for row in sampled for draw in range(row.num_draws)
        ]
        token_ids = np.empty(len(rows), np.int32)
        self._operations.sample(logits, rows, parameters, keys, token_ids)
        return token_ids

    def _report(
        self, raw: np.ndarray, sampled: list[SampledRow], rows: np.ndarray, token_ids: np.ndarray
    ) -> list[TokenLogprobs | None]:
        reported: list[TokenLogprobs | None] = [None] * len(rows)
        wanted = [(draw, sampled[row].request.params.logprobs) for draw, row in enumerate(rows.tolist())]
        draws = [draw for draw, num_top in wanted if num_top is not None]
        if not draws:
            return reported
        num_top = max(num_top for _, num_top in wanted if num_top is not None)
        for draw, logprobs in zip(draws, self.logprobs(raw, rows[draws], token_ids[draws], num_top), strict=True):
            kept = 1 + (wanted[draw][1] or 0)
            reported[draw] = TokenLogprobs(logprobs.token_ids[:kept], logprobs.logprobs[:kept], logprobs.chosen_rank)
        return reported
