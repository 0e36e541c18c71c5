"""From logits to tokens: adjusts, masks, draws and reports log-probabilities for the sampled rows of a step.

Owns: the order adjust → mask → draw, and the raw distribution that log-probabilities are taken from. Must not know: where logits
come from, text.

Invariants:
1. A draw is a function of the row's logits and of (seed, choice index, position) alone; a banned token is never drawn.
2. Log-probabilities are of the raw distribution, before penalties, biases, masks and temperature.
"""

from dataclasses import dataclass

import numpy as np

from octavo.kernels.operations import Operations
from octavo.runner.sampling_request import SamplingRequest

NO_TOKEN = -1  # drawn where bans and masks leave nothing to choose


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


class DrawPlan:
    """How tokens are drawn from some rows of logits, in all steps in which the same sequences are sampled.

    Args:
        requests: the sampling side of each row of logits.
        num_draws: tokens drawn from each row: 1, or n when a prompt was just computed.

    Attributes:
        rows: int32 ``[num_draws in all]``: the row that each token is drawn from.
        parameters: float32 ``[num_draws in all, 4]``: temperature, top_k, top_p, min_p.
        changes_logits: some row is not sampled as it is.
        copies_logits: the raw logits of such a row are reported too.
        num_top: for each draw whose log-probabilities are reported, how many besides the chosen one's.
    """

    def __init__(self, requests: list[SamplingRequest], num_draws: list[int]):
        self.requests = requests
        self.rows = np.repeat(np.arange(len(requests), dtype=np.int32), num_draws)
        self.parameters = np.array([request.sampling_parameters for request in requests], np.float32)[self.rows]
        self.changes_logits = any(request.changes_logits for request in requests)
        self.copies_logits = any(request.changes_logits and request.num_logprobs is not None for request in requests)
        self.num_top = {
            draw: num_top for draw, row in enumerate(self.rows.tolist()) if (num_top := requests[row].num_logprobs) is not None
        }
        draws = [
            (request.seed, request.choice_index + draw, 0)
            for request, num in zip(requests, num_draws, strict=True)
            for draw in range(num)
        ]
        self._keys = np.array(draws, np.uint64)

    def keys(self, num_tokens: list[int]) -> np.ndarray:
        """Returns (seed, choice index, position) of each draw, uint64; a row's position is the number of its tokens so far."""
        self._keys[:, 2] = np.array(num_tokens, np.uint64)[self.rows]
        return self._keys


class Sampler:
    """Draws tokens with the operations of one backend."""

    def __init__(self, operations: Operations):
        self._operations = operations

    def sample(
        self, logits: np.ndarray, plan: DrawPlan, token_ids: list[list[int]]
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Draws the plan's tokens from ``logits`` (float32 ``[rows, vocab]``, overwritten), those of a row side by side.

        Args:
            token_ids: the tokens so far of each row's sequence.

        Returns:
            The drawn ids, `NO_TOKEN` among them, and their log-probabilities where they are wanted.
        """
        requests, raw = plan.requests, logits
        if plan.changes_logits:
            if plan.copies_logits:
                raw = logits.copy()
            self._adjust(logits, requests, token_ids)
            self._mask(logits, requests, token_ids)
        drawn = np.empty(len(plan.rows), np.int32)
        self._operations.sample(logits, plan.rows, plan.parameters, plan.keys(list(map(len, token_ids))), drawn)
        if plan.changes_logits:
            drawn[np.isneginf(logits[plan.rows, drawn])] = NO_TOKEN
        return drawn.tolist(), self._report(raw, plan, drawn)

    def logprobs(self, logits: np.ndarray, rows: np.ndarray, chosen: np.ndarray, num_top: int) -> list[TokenLogprobs]:
        """Returns what the raw distributions ``logits[rows]`` say of ``chosen`` and of their ``num_top`` most likely tokens."""
        num_top = min(num_top, logits.shape[1])
        ids = np.empty((len(rows), 1 + num_top), np.int32)
        values = np.empty((len(rows), 1 + num_top), np.float32)
        ranks = np.empty(len(rows), np.int32)
        self._operations.logprobs(logits, rows, chosen, ids, values)
        self._operations.chosen_ranks(logits, rows, chosen, ranks)
        return [TokenLogprobs(*entry) for entry in zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True)]

    def _adjust(self, logits: np.ndarray, requests: list[SamplingRequest], token_ids: list[list[int]]) -> None:
        rows, tokens, divisors, addends = [], [], [], []
        for index, request in enumerate(requests):
            if request.is_plain:
                continue
            for token, (divisor, addend) in request.adjustments(token_ids[index]).items():
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

    def _mask(self, logits: np.ndarray, requests: list[SamplingRequest], token_ids: list[list[int]]) -> None:
        masks = {
            index: bitmask for index, request in enumerate(requests) if (bitmask := request.bitmask(token_ids[index])) is not None
        }
        if masks:
            self._operations.mask_logits(logits, np.array(list(masks), np.int32), np.stack(list(masks.values())))

    def _report(self, raw: np.ndarray, plan: DrawPlan, drawn: np.ndarray) -> list[TokenLogprobs | None]:
        reported: list[TokenLogprobs | None] = [None] * len(drawn)
        wanted = {draw: num_top for draw, num_top in plan.num_top.items() if drawn[draw] != NO_TOKEN}
        if not wanted:
            return reported
        draws = list(wanted)
        described = self.logprobs(raw, plan.rows[draws], drawn[draws], max(wanted.values()))
        for draw, logprobs in zip(draws, described, strict=True):
            kept = 1 + wanted[draw]
            reported[draw] = TokenLogprobs(logprobs.token_ids[:kept], logprobs.logprobs[:kept], logprobs.chosen_rank)
        return reported
