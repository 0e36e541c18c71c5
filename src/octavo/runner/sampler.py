"""From logits to tokens: adjusts, masks, draws and reports log-probabilities for the sampled rows of a step.

Owns: the order adjust → mask → draw, and the raw distribution that log-probabilities are taken from. Must not know: where logits
come from, text.

Invariants:
1. A draw is a function of the row's logits and of (seed, choice index, position) alone; a banned token is never drawn.
2. Log-probabilities are of the raw distribution, before penalties, biases, masks and temperature.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from octavo.kernels.operations import Operations
from octavo.runner.sampling_request import SamplingRequest

NO_TOKEN = -1  # drawn where bans and masks leave nothing to choose


@dataclass(slots=True)
class SampledRow:
    """One row of logits to draw from.

    Attributes:
        token_ids: the sequence's tokens so far; the draw's position is their number.
        num_draws: choices drawn from this row: 1, or n when a prompt was just computed.
    """

    request: SamplingRequest
    token_ids: list[int]
    num_draws: int = 1


@dataclass(slots=True)
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


@dataclass(slots=True)
class SampledToken:
    """One drawn token, or `NO_TOKEN`."""

    token_id: int
    logprobs: TokenLogprobs | None


class Sampler:
    """Draws tokens with the operations of one backend."""

    def __init__(self, operations: Operations):
        self._operations = operations

    def sample(self, logits: np.ndarray, sampled: list[SampledRow]) -> list[list[SampledToken]]:
        """Draws for each row of ``logits`` (float32 ``[len(sampled), vocab]``, overwritten) its number of tokens."""
        raw = logits
        changed = [row for row in sampled if row.request.changes_logits]
        if changed:
            if any(row.request.num_logprobs is not None for row in changed):
                raw = logits.copy()
            self._adjust(logits, sampled)
            self._mask(logits, sampled)
        num_draws = [row.num_draws for row in sampled]
        rows = np.repeat(np.arange(len(sampled), dtype=np.int32), num_draws)
        token_ids = self._draw(logits, sampled, rows)
        if changed:
            token_ids[np.isneginf(logits[rows, token_ids])] = NO_TOKEN
        reported = self._report(raw, sampled, rows, token_ids)
        drawn = iter([SampledToken(token, logprobs) for token, logprobs in zip(token_ids.tolist(), reported, strict=True)])
        return [list(islice(drawn, num)) for num in num_draws]

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
        masks = {index: bitmask for index, row in enumerate(sampled) if (bitmask := row.request.bitmask(row.token_ids)) is not None}
        if masks:
            self._operations.mask_logits(logits, np.array(list(masks), np.int32), np.stack(list(masks.values())))

    def _draw(self, logits: np.ndarray, sampled: list[SampledRow], rows: np.ndarray) -> np.ndarray:
        parameters = np.array([row.request.sampling_parameters for row in sampled], np.float32)[rows]
        keys = np.array(
            [
                (row.request.seed, row.request.choice_index + draw, len(row.token_ids))
                for row in sampled
                for draw in range(row.num_draws)
            ],
            np.uint64,
        )
        token_ids = np.empty(len(rows), np.int32)
        self._operations.sample(logits, rows, parameters, keys, token_ids)
        return token_ids

    def _report(
        self, raw: np.ndarray, sampled: list[SampledRow], rows: np.ndarray, token_ids: np.ndarray
    ) -> list[TokenLogprobs | None]:
        reported: list[TokenLogprobs | None] = [None] * len(rows)
        wanted = {
            draw: num_top
            for draw, row in enumerate(rows.tolist())
            if (num_top := sampled[row].request.num_logprobs) is not None and token_ids[draw] != NO_TOKEN
        }
        if not wanted:
            return reported
        draws = list(wanted)
        described = self.logprobs(raw, rows[draws], token_ids[draws], max(wanted.values()))
        for draw, logprobs in zip(draws, described, strict=True):
            kept = 1 + wanted[draw]
            reported[draw] = TokenLogprobs(logprobs.token_ids[:kept], logprobs.logprobs[:kept], logprobs.chosen_rank)
        return reported
