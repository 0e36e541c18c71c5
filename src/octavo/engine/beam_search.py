"""Beam search over scored tokens: which continuations live on, and which answers are the best.

Owns: beams' scores, finished answers and the end of a search, as transformers defines them. Must not know: sequences, memory, text.

Invariants:
1. Sums are float32, as in transformers, so that equal log-probabilities give equal choices.
2. Ties go to the beam with the lower number, then to the more likely token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.sampling_params import BeamSearchParams, SamplingParams


def greedy_params(params: BeamSearchParams) -> SamplingParams:
    """Returns what a beam search asks of its request: logits as they are."""
    return SamplingParams(
        n=params.num_answers,
        temperature=0.0,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        skip_special_tokens=params.skip_special_tokens,
    )


@dataclass(frozen=True)
class Hypothesis:
    """An answer of a beam search.

    Attributes:
        logprob: sum of its tokens' log-probabilities.
        score: ``logprob`` divided by the length to the power of the length penalty.
        is_ended: by an end token, not by its length.
    """

    token_ids: list[int]
    logprob: float
    score: float
    is_ended: bool


@dataclass(frozen=True)
class Continuation:
    """A beam with one more token."""

    beam: int
    token_id: int
    logprob: np.float32


class BeamSearch:
    """One search.

    Args:
        max_answer_tokens: the length at which every answer ends.

    Attributes:
        finished: the best finished answers, at most ``num_beams``, best first.
    """

    def __init__(self, params: BeamSearchParams, end_token_ids: Iterable[int], max_answer_tokens: int):
        self._params = params
        self._end_token_ids = frozenset(end_token_ids)
        self.max_answer_tokens = max_answer_tokens
        self._logprobs = [np.float32(0.0)]  # of the live beams
        self.finished: list[Hypothesis] = []

    @property
    def num_candidates(self) -> int:
        """Most likely tokens of each beam that must be known: even if all end tokens are among them, enough beams live on."""
        return max(2, 1 + len(self._end_token_ids)) * self._params.num_beams

    def advance(self, answers: Sequence[list[int]], candidates: Sequence[Iterable[tuple[int, float]]]) -> list[Continuation]:
        """Takes the most likely next tokens of every live beam.

        Args:
            answers: each beam's tokens so far, the prompt left out.
            candidates: each beam's tokens with their log-probabilities, best first.

        Returns:
            The beams that live on, best first; none when the search is over.
        """
        num_beams, length = self._params.num_beams, len(answers[0]) + 1
        best = self._best_continuations(candidates)
        ending = [self._ends(continuation, length) for continuation in best]
        for continuation, ends in list(zip(best, ending, strict=True))[:num_beams]:
            if ends:
                self._finish([*answers[continuation.beam], continuation.token_id], continuation.logprob)
        live = [continuation for continuation, ends in zip(best, ending, strict=True) if not ends][:num_beams]
        self._logprobs = [continuation.logprob for continuation in live]
        return [] if not live or self._is_over(length) else live

    def best_answers(self, answers: Sequence[list[int]]) -> list[Hypothesis]:
        """Returns what a search that is cut short has: finished answers, then live beams, each best first."""
        live = [
            Hypothesis(answer, float(logprob), self._score(logprob, max(1, len(answer))), is_ended=False)
            for answer, logprob in zip(answers, self._logprobs, strict=False)
        ]
        return self.finished + live

    def _best_continuations(self, candidates: Sequence[Iterable[tuple[int, float]]]) -> list[Continuation]:
        continuations = [
            Continuation(beam, token_id, np.float32(logprob) + self._logprobs[beam])
            for beam, tokens in enumerate(candidates)
            for token_id, logprob in tokens
        ]
        continuations.sort(key=lambda continuation: -continuation.logprob)  # stable: ties stay in order
        return continuations[: self.num_candidates]

    def _ends(self, continuation: Continuation, length: int) -> bool:
        return continuation.token_id in self._end_token_ids or length >= self.max_answer_tokens

    def _finish(self, token_ids: list[int], logprob: np.float32) -> None:
        """Adds a finished answer if it is among the best."""
        score = self._score(logprob, len(token_ids))
        self.finished.append(Hypothesis(token_ids, float(logprob), score, token_ids[-1] in self._end_token_ids))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self._params.num_beams :]

    def _is_over(self, length: int) -> bool:
        """Returns whether running beams, now of this length, are given up."""
        if len(self.finished) < self._params.num_beams:
            return False
        if self._params.early_stopping is True:
            return True
        grows = self._params.early_stopping == "never" and self._params.length_penalty > 0
        best_possible = self._score(self._logprobs[0], self.max_answer_tokens if grows else length)
        return not best_possible > self.finished[-1].score

    def _score(self, logprob: np.float32, length: int) -> float:
        return float(logprob) / length**self._params.length_penalty
