"""What the sampler must know of one sequence, and how its history changes its logits.

Owns: penalties, biases and bans of one sequence, kept up to date token by token. Must not know: arrays of the step, other
sequences.

Invariants:
1. What it says depends on the sequence's token ids, its parameters and its choice index alone: not on how often the sequence was
   preempted, nor on its neighbours.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from octavo.runner.pooling import Pooling
from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """What a constraint says of an answer's next token.

    Attributes:
        bitmask: int32 ``[ceil(vocab / 32)]``; a set bit allows its token.
        must_end: the answer is complete: only end tokens are allowed.
    """

    bitmask: np.ndarray
    must_end: bool


class TokenConstraint(Protocol):
    """Limits an answer's tokens by the tokens before them."""

    def prepare(self, answer: list[int]) -> None:
        """Starts to work out what may follow the answer's tokens."""

    def allowed(self, answer: list[int]) -> AllowedTokens:
        """Returns what may follow the answer's tokens."""

    def fork(self) -> "TokenConstraint":
        """Returns the same for another answer to the same prompt."""


@dataclass(eq=False)
class SamplingRequest:
    """The sampling side of one sequence.

    Attributes:
        seed: the request's seed; all its choices share it.
        choice_index: which of the request's choices this is.
        num_prompt_tokens: tokens of ``token_ids`` that are prompt.
        end_token_ids: the model's end tokens, or none when the request ignores them.
        bad_words: token runs that must not appear in the answer.
        is_plain: no penalty, bias or ban by the history, now or later.
        changes_logits: the logits are not sampled as they are.
        reads_prompt: more is wanted of the prompt's tokens than the one that follows them.
        sampling_parameters: what the draw is given: temperature, top_k, top_p, min_p.
        token_bitmask: int32 ``[ceil(vocab / 32)]`` of the tokens that may be chosen anywhere; None: all.
        constraint: what else limits the tokens, step by step.
        num_logprobs: most likely tokens to report with each drawn one; None: report nothing. The parameters' if not given.
        pooling: what collects the hidden states of a prompt that is not continued; None: tokens are sampled.
    """

    params: SamplingParams
    seed: int
    choice_index: int
    num_prompt_tokens: int
    end_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    token_bitmask: np.ndarray | None = None
    constraint: TokenConstraint | None = None
    pooling: Pooling | None = None
    num_logprobs: int | None = None
    num_prompt_logprobs: int = 0  # how many prompt positions were reported already
    _output_counts: Counter[int] = field(default_factory=Counter)
    _prompt_tokens: frozenset[int] | None = None

    def __post_init__(self) -> None:
        params = self.params
        if self.num_logprobs is None:
            self.num_logprobs = params.num_logprobs
        self.is_plain = not (params.has_penalties or params.logit_bias or self.bad_words or params.min_tokens)
        self.changes_logits = not self.is_plain or self.token_bitmask is not None or self.constraint is not None
        self.reads_prompt = self.pooling is not None or params.prompt_logprobs is not None
        temperature = 0.0 if params.is_greedy else params.temperature
        self.sampling_parameters = (temperature, float(max(params.top_k, 0)), params.top_p, params.min_p)

    def for_choice(self, choice_index: int) -> "SamplingRequest":
        """Returns the same request for another of its choices, with a history of its own."""
        constraint = None if self.constraint is None else self.constraint.fork()
        return replace(self, choice_index=choice_index, constraint=constraint, _output_counts=Counter())

    def prepare(self, token_ids: list[int]) -> None:
        """Starts what `bitmask` will need for the sequence's next token."""
        if self.constraint is not None:
            self.constraint.prepare(token_ids[self.num_prompt_tokens :])

    def bitmask(self, token_ids: list[int]) -> np.ndarray | None:
        """Returns the int32 bitmask ``[ceil(vocab / 32)]`` of the tokens that may come next; None: all."""
        if self.constraint is None:
            return self.token_bitmask
        allowed = self.constraint.allowed(token_ids[self.num_prompt_tokens :]).bitmask
        return allowed if self.token_bitmask is None else allowed & self.token_bitmask

    def adjustments(self, token_ids: list[int]) -> dict[int, tuple[float, float]]:
        """Returns, for each token whose logit changes, (repetition divisor, addend); an addend of −inf is a ban.

        Args:
            token_ids: the sequence's tokens, prompt and answer.
        """
        changes: dict[int, tuple[float, float]] = {}
        if self.params.has_penalties:
            self._add_penalties(token_ids, changes)
        for token, bias in self.params.logit_bias.items():
            divisor, addend = changes.get(token, (1.0, 0.0))
            changes[token] = (divisor, addend + bias)
        for token in self._banned_tokens(token_ids):
            changes[token] = (1.0, -math.inf)
        return changes

    def _add_penalties(self, token_ids: list[int], changes: dict[int, tuple[float, float]]) -> None:
        params = self.params
        num_counted = self.num_prompt_tokens + self._output_counts.total()
        self._output_counts.update(token_ids[num_counted:])
        if params.repetition_penalty != 1.0:
            if self._prompt_tokens is None:
                self._prompt_tokens = frozenset(token_ids[: self.num_prompt_tokens])
            changes.update(dict.fromkeys(self._prompt_tokens, (params.repetition_penalty, 0.0)))
        for token, count in self._output_counts.items():
            changes[token] = (params.repetition_penalty, -params.presence_penalty - params.frequency_penalty * count)

    def _banned_tokens(self, token_ids: list[int]) -> set[int]:
        num_output = len(token_ids) - self.num_prompt_tokens
        banned: set[int] = set()
        if num_output < self.params.min_tokens and not self._must_end(token_ids):
            banned.update(self.end_token_ids, self.params.stop_token_ids)
        for *head, last in self.bad_words:
            if len(head) <= num_output and token_ids[len(token_ids) - len(head) :] == head:
                banned.add(last)
        return banned

    def _must_end(self, token_ids: list[int]) -> bool:
        return self.constraint is not None and self.constraint.allowed(token_ids[self.num_prompt_tokens :]).must_end


def bitmask_of(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """Returns the int32 bitmask ``[ceil(vocab_size / 32)]`` whose set bits are ``token_ids``."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
